"""Tables for people, as values: how wide and how colourful they may be is known where they are written.

Not promised: that a table fits. Ids, states, keys and numbers are never cut; on anything but a terminal nothing is,
since what reads it there may look for what would be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from controller.cli.text import width

FREE: Final = ("COMMAND", "DETAIL", "WHY", "REASON", "NEEDS", "WHAT", "MEANING", "CHANGE")
"""Columns of running text: the only ones that are cut."""
TELLING: Final = ("STATE", "OUTCOME", "CLASS")
"""Columns whose words have a meaning that a colour can repeat."""
SHORTEST: Final = 12
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_GREEN, _RED, _YELLOW, _DIM = "\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[2m"
_COLORS: Final = {
    **dict.fromkeys(("succeeded", "done", "ready", "clean-warm"), _GREEN),
    **dict.fromkeys(("failed", "lost", "rejected", "unknown", "not_sent", "apply_failed", "identity_refused"), _RED),
    **dict.fromkeys(("running", "pending", "busy", "creating", "assigned"), _YELLOW),
    **dict.fromkeys(("queued", "skipped", "cancelled", "free"), _DIM),
}


class Table:
    """Left-aligned columns. Iterating gives the lines whole and plain."""

    def __init__(self, heads: Sequence[str], rows: Iterable[Sequence[str]], *, indent: str = "") -> None:
        self.heads = tuple(heads)
        self.rows = [tuple(row) for row in rows]
        self.indent = indent

    def __iter__(self) -> Iterator[str]:
        return self.lines()

    def lines(self, *, room: int | None = None, color: bool = False) -> Iterator[str]:
        """The lines, at most *room* columns wide where cutting running text is enough for that."""
        cells = [self.heads, *self.rows]
        widths = [max(width(row[n]) for row in cells) for n in range(len(self.heads))]
        if room is not None:
            self._shrink(widths, room - len(self.indent))
        for number, row in enumerate(cells):
            shown = [
                self._cell(cell, widths[n], self.heads[n], head=number == 0, last=n == len(row) - 1, color=color)
                for n, cell in enumerate(row)
            ]
            yield (self.indent + "  ".join(shown)).rstrip()

    def _shrink(self, widths: list[int], room: int) -> None:
        """Take from the widest column of running text until it fits, or none can give any more."""
        free = [n for n, head in enumerate(self.heads) if head in FREE]
        while sum(widths) + 2 * (len(widths) - 1) > room:
            widest = max(free, key=lambda n: widths[n], default=None)
            if widest is None or widths[widest] <= SHORTEST:
                return
            widths[widest] -= 1

    @staticmethod
    def _cell(cell: str, room: int, name: str, *, head: bool, last: bool, color: bool) -> str:
        text = cut(cell, room)
        padding = "" if last else " " * (room - width(text))
        if not color:
            return text + padding
        paint = _BOLD if head else _COLORS.get(text.partition(" ")[0], "") if name in TELLING else ""
        return f"{paint}{text}{_PLAIN}{padding}" if paint else text + padding


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, indent: str = "") -> Table:
    return Table(heads, rows, indent=indent)


def cut(text: str, room: int) -> str:
    """*text* in at most *room* columns, with a mark where something is missing."""
    if width(text) <= room:
        return text
    kept, used = "", 0
    for letter in text:
        used += width(letter)
        if used > room - 1:
            break
        kept += letter
    return f"{kept}\u2026"
