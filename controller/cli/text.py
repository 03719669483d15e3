"""Text for people: escaping, times, pairs. Nothing here writes anything; tables are in `tables`.

A caller must pass every text that a user, a provider or a file chose through `shown`: it may hold control characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from msgspec import Struct

from controller.library.words import UNITS

_LAST_YEAR_MS = 253_402_300_799_999
"""The end of the year 9999, the last that a date can show."""


def shown(text: str) -> str:
    """*text* on one line, with everything escaped that a terminal would act on or not show."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


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
    widest = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        yield f"{name:<{widest}}  {value}".rstrip()


def width(text: str) -> int:
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)
