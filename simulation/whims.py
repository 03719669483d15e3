"""Everything that is left to chance in a story, so that it can be told again, and with less in it.

Each turn of a story has a stream of its own: a turn that is left out, or an accident that is muted, changes nothing
that is drawn in the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from controller.engine.chance import Seeded

T = TypeVar("T")
Accident = tuple[int, int]
"""Turn and number of an accident in it."""


class Whims:
    """*muted*: accidents that do not happen this time. `calm`: none do."""

    def __init__(self, seed: int, muted: frozenset[Accident] = frozenset()) -> None:
        self._seed = seed
        self._muted = muted
        self._turn = -1
        self._drawn = 0
        self._stream = Seeded(seed, -1)
        self.calm = False
        self.happened: list[Accident] = []
        self.told: list[tuple[int, str]] = []

    def turn(self, number: int) -> None:
        self._turn, self._drawn = number, 0
        self._stream = Seeded(self._seed, number)

    def tell(self, what: str) -> None:
        """Add a line to the story."""
        self.told.append((self._turn, what))

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self._stream.random()

    def number(self, low: int, high: int) -> int:
        """One of *low* to *high*, both included."""
        return low + int((high - low + 1) * self._stream.random())

    def one_of(self, those: Sequence[T]) -> T:
        return those[int(len(those) * self._stream.random())]

    def maybe(self, likely: float) -> bool:
        return self._stream.random() < likely

    def weighed(self, weights: Mapping[T, float]) -> T:
        point = self._stream.random() * sum(weights.values())
        for what, weight in weights.items():
            point -= weight
            if point < 0:
                return what
        return next(iter(weights))

    def accident(self, likely: Mapping[str, float]) -> str | None:
        """The accident that happens here, if any: each has its own probability, and at most one happens."""
        if self.calm or not likely:
            return None
        self._drawn += 1
        point = self._stream.random()
        for what, weight in likely.items():
            point -= weight
            if point < 0:
                where = (self._turn, self._drawn)
                if where in self._muted:
                    return None
                self.happened.append(where)
                return what
        return None
