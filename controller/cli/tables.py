"""Tables for people, as values: how wide and how colourful they may be is known where they are written.

Not promised: that a table fits. Ids, states, keys and numbers are never cut; on anything but a terminal nothing is,
since what reads it there may look for what would be missing. Lines that are no table are wrapped, never cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from controller.cli.text import BOLD, painted, pairs, telling, width

FREE: Final = ("COMMAND", "DETAIL", "WHY", "REASON", "NEEDS", "WHAT", "MEANING", "ERROR", "WILL")
"""Columns of running text: the only ones that are cut."""
TELLING: Final = ("STATE", "OUTCOME", "CLASS")
"""Columns whose words have a meaning that a colour can repeat."""
SHORTEST: Final = 8
_PAIR: Final = re.compile(r" *[^ ]+(?: [^ ]+)*  +")
_ESCAPE: Final = re.compile(r"\x1b\[[0-9]*m")


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
        for n in free:
            widths[n] = min(widths[n], max(room, SHORTEST))  # at once: a command may be a megabyte long
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
        return (painted(text, BOLD) if head else telling(text) if name in TELLING else text) + padding


class Facts(Table):
    """Lines of `name  value`, one of which may be the state."""

    def __init__(self, items: Iterable[tuple[str, str]]) -> None:
        super().__init__(("", ""), items)

    def lines(self, *, room: int | None = None, color: bool = False) -> Iterator[str]:
        told = ((name, telling(value) if color and name == "state" else value) for name, value in self.rows)
        for line in pairs(told):
            yield from (line,) if room is None else wrapped(line, room)


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


def wrapped(line: str, room: int) -> Iterator[str]:
    """*line* in lines of at most *room* columns, broken at blanks. Words, and commands in backticks, stay whole.

    What follows the first line stands under the value of a `name  value`, otherwise two columns further in.
    """
    if width(_ESCAPE.sub("", line)) <= room:
        yield line
        return
    indent = len(line) - len(line.lstrip(" "))
    pair = _PAIR.match(line)
    start = width(_ESCAPE.sub("", pair[0])) if pair else indent + 2
    if start > room // 2:
        start = min(indent, room // 2)
    whole = max(room - start - 2, 1)
    so_far, used = "", 0
    for word in re.findall(rf" *(?:[^ `]*`[^`]{{1,{whole}}}`[^ ]*|[^ ]+)", line):
        wide = width(_ESCAPE.sub("", word))
        if so_far and used + wide > room and len(so_far) > start:
            yield so_far
            bare = word.lstrip(" ")
            so_far, used = " " * start + bare, start + wide - (len(word) - len(bare))
        else:
            so_far, used = so_far + word, used + wide
    yield so_far
