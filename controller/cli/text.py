"""Text for people: escaping, times, pairs. Nothing here writes anything; tables are in `tables`.

A caller must pass every text that a user, a provider or a file chose through `shown`: it may hold control characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from controller.api.words import UNITS

BOLD, RED, GREEN, YELLOW, DIM = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[2m"
_PLAIN = "\x1b[0m"
_COLORS: Final = {
    **dict.fromkeys(("succeeded", "done", "ready", "clean-warm"), GREEN),
    **dict.fromkeys(("failed", "lost", "rejected", "unknown", "not_sent", "apply_failed", "identity_refused"), RED),
    **dict.fromkeys(("trouble", "violation"), RED),
    **dict.fromkeys(("running", "pending", "busy", "creating", "assigned"), YELLOW),
    **dict.fromkeys(("queued", "skipped", "cancelled", "free"), DIM),
}
"""Of states and outcomes, by their first word: a colour repeats what the word says, and never says more."""
_FIRST: Final = re.compile(r"[\w-]*")

_LAST_YEAR_MS = 253_402_300_799_999
"""The end of the year 9999, the last that a date can show."""


def shown(text: str) -> str:
    """*text* on one line, with everything escaped that a terminal would act on or not show."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def painted(text: str, color: str) -> str:
    return f"{color}{text}{_PLAIN}" if color and text else text


def telling(text: str) -> str:
    """*text*, which begins with a state or an outcome, with that word in its colour."""
    word = _FIRST.match(text)
    color = _COLORS.get(word[0], "") if word else ""
    return painted(word[0], color) + text[word.end() :] if word and color else text


def duration(ms: int) -> str:
    """A length of time in its two largest units, such as `2h 5m`; below ten seconds as `1.9s`. Never rounded up."""
    if ms < 1000:
        return f"{max(ms, 0)}ms"
    if ms < 10_000:
        return f"{ms // 100 / 10:.1f}s"
    left = ms
    parts = []
    for unit, size in UNITS[:-1]:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def counted(number: int, what: str) -> str:
    """`1 slot`, `2 slots`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def moment(at: int) -> str:
    """A point in time, UTC: `2026-11-30 14:02:11Z`. The time zone and language of the caller change nothing."""
    if not 0 <= at <= _LAST_YEAR_MS:
        return f"{at} ms"
    return datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


class Times(Struct, frozen=True):
    """How points in time are told: as ages, seen from `now` (UTC ms), or, on request, exactly."""

    now: int
    exact: bool = False

    def told(self, at: int) -> str:
        """`2m ago`, `in 5s`, or the moment itself."""
        if self.exact:
            return moment(at)
        return f"{duration(self.now - at)} ago" if at <= self.now else f"in {duration(at - self.now)}"

    def age(self, at: int) -> str:
        """For a column of ages: `2m`, or the moment itself."""
        return moment(at) if self.exact else duration(self.now - at)


def pairs(items: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Lines of `name  value`, names padded to one width."""
    known = list(items)
    widest = max((width(name) for name, _ in known), default=0)
    for name, value in known:
        yield f"{name}{' ' * (widest - width(name))}  {value}".rstrip()


def width(text: str) -> int:
    """How many columns of a terminal *text* takes."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    # Not by the combining class: many marks that stand above or below a letter have none.
    return sum(0 if category(c) in {"Mn", "Me"} else 2 if east_asian_width(c) in "WF" else 1 for c in text)
