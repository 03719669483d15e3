"""Makes a story that went wrong short: fewer turns, then fewer accidents, as long as something goes wrong.

Not promised: the shortest; the same wrong, since a shorter story may show another one first, of the same kind or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from simulation.driver import TURNS, Story, Told
from simulation.whims import Accident

T = TypeVar("T")
MOST_TELLINGS = 400
"""After so many it is short enough."""


class Short(Struct, frozen=True):
    """A story with less in it, and how it is told again: by its turns, without the muted accidents."""

    told: Told
    turns: tuple[int, ...]
    muted: frozenset[Accident]
    tellings: int


def shorten(seed: int, *, most: int = MOST_TELLINGS) -> Short:
    """The story of *seed*, which goes wrong, with everything left out that is not needed for that."""
    count = 0

    def tell(turns: Sequence[int], muted: frozenset[Accident]) -> Told | None:
        nonlocal count
        if count >= most:
            return None
        count += 1
        told = Story(seed, turns=turns, muted=muted).tell()
        return told if told.wrong is not None else None

    turns: tuple[int, ...] = tuple(range(TURNS))
    muted: frozenset[Accident] = frozenset()
    first = Story(seed).tell()
    # What comes after the last turn that was told has nothing to do with it.
    last = max((turn for turn, _ in first.story), default=0)
    turns = turns[: last + 1]
    turns = _fewer(turns, lambda fewer: tell(fewer, muted) is not None)
    told = tell(turns, muted) or first
    kept = _fewer(tuple(told.happened), lambda fewer: tell(turns, _but(told, fewer)) is not None)
    muted = _but(told, kept)
    turns = _fewer(turns, lambda fewer: tell(fewer, muted) is not None)
    return Short(Story(seed, turns=turns, muted=muted).tell(), turns, muted, count)


def _but(told: Told, kept: Sequence[Accident]) -> frozenset[Accident]:
    return frozenset(told.happened) - frozenset(kept)


def _fewer(those: tuple[T, ...], still_wrong: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Take pieces out, ever smaller ones, as long as it still goes wrong without them."""
    size = max(1, len(those) // 2)
    while True:
        start = len(those)
        while start > 0:
            piece = slice(max(0, start - size), start)
            fewer = those[: piece.start] + those[piece.stop :]
            if still_wrong(fewer):
                those = fewer
            start = min(piece.start, len(those))
        if size == 1:
            return those
        size = max(1, size // 2)


def in_words(short: Short) -> str:
    """The short story, for people."""
    told = short.told
    lines = [f"{turn:>4}  {what}" for turn, what in told.story]
    return "\n".join([f"seed {told.seed}, {len(short.turns)} of {TURNS} turns:", *lines, f"wrong: {told.wrong}"])
