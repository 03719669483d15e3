"""How a figure is taken: ours and its peers, in one run, in blocks in random order, as medians of single calls.

Not promised: that a figure repeats to the digit. What slows the machine for a while slows all sides, and their ratios
little.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

OURS: Final = "ours"
"""The side that every figure has."""
LONGEST: Final = 45.0
"""Seconds after which a figure begins no round more: a side that is far too slow must not keep the others waiting."""
TIMES: Final = "times"


class Broken(Exception):
    """A measurement did not do what it was to measure."""


class Missing(Exception):
    """The peer is not there."""


class Aim(NamedTuple):
    """What a value is to be: at most *limit*, or at least."""

    limit: float
    least: bool = False

    def __str__(self) -> str:
        return f"at {'least' if self.least else 'most'} {self.limit:g}"

    def spare(self, value: float) -> float:
        """By how much *value* is better than it has to be; below 0: worse."""
        return value - self.limit if self.least else self.limit - value


class Value(NamedTuple):
    """One number of a figure, in `unit`. `ours` and `theirs` are what it was made of, in `measured_in`."""

    value: float
    unit: str
    ours: float
    theirs: float | None = None
    measured_in: str = ""


class Asked(NamedTuple):
    """What one value of a figure is beside, and what it is to be."""

    beside: str
    aim: Aim | None = None


class Measured(NamedTuple):
    """The values of a figure by name, and what else is worth keeping."""

    values: Mapping[str, Value]
    more: Mapping[str, float]


class Figure(NamedTuple):
    """What is measured, how its values are to be read, each of them by name, and what limits them.

    *measure* gets a new directory of its own, whose parent all figures of the run share, and whether to be quick.
    """

    measure: Callable[[Path, bool], Measured]
    reads: str
    values: Mapping[str, Asked]
    limits: str


Taken = Mapping[str, Sequence[float]]
"""Seconds of every single call, by side."""


def seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def turns(sides: Sequence[T], rounds: int, *, seconds: float = LONGEST) -> Iterator[T]:
    """Whose turn it is: each side once in a round, in an order drawn anew. No round begins after *seconds*."""
    end = time.monotonic() + seconds
    for number in range(rounds):
        if number and time.monotonic() > end:
            return
        yield from random.sample(list(sides), len(sides))


def size_of_block(most: int) -> int:
    """From half of *most* up to it, at random, so that no block falls into step with anything periodic."""
    return random.randint((most + 1) // 2, most)


def blocks(sides: Mapping[str, Callable[[], object]], rounds: int, *, most: int = 1) -> Taken:
    """Every side in *rounds* blocks of up to *most* calls, at least half of that."""
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for side in turns(list(sides), rounds):
        taken[side] += [seconds_of(sides[side]) for _ in range(size_of_block(most))]
    return taken


def middle(seconds: Sequence[float], factor: float = 1e3) -> float:
    return statistics.median(seconds) * factor


def longer(taken: Taken, theirs: str, *, ours: str = OURS, unit: str = "ms", factor: float = 1e3) -> Value:
    """How many times as long ours took: the medians of single calls. Less is better."""
    mine, other = middle(taken[ours], factor), middle(taken[theirs], factor)
    return Value(mine / other, TIMES, mine, other, unit)


def faster(taken: Taken, theirs: str, *, ours: str = OURS) -> Value:
    """How many times as much ours did in a second, by the medians of single calls. More is better."""
    mine, other = 1 / statistics.median(taken[ours]), 1 / statistics.median(taken[theirs])
    return Value(mine / other, TIMES, mine, other, "runs/s")
