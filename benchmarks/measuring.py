"""How a figure is taken: ours and a peer's, in one run, in blocks in random order, as medians of single calls.

Not promised: that a figure repeats to the digit. What slows the machine for a while slows both, and their ratio little.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

BOTH: Final = (True, False)
"""Ours and theirs."""


class Broken(Exception):
    """A measurement did not do what it was to measure."""


class Missing(Exception):
    """The peer is not there."""


class Measured(NamedTuple):
    """Two medians, both in `unit`, of which the ratio is made; and what else is worth keeping."""

    ours: float
    theirs: float
    unit: str
    more: Mapping[str, float]


class Figure(NamedTuple):
    """What is measured, beside what, and the largest ratio that is aimed at."""

    measure: Callable[[Path, bool], Measured]
    beside: str
    aim: float | None
    limits: str


def seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def shuffled(sides: Sequence[T], rounds: int) -> list[T]:
    """Whose turn it is: each side as often as every other."""
    return random.sample(list(sides) * rounds, len(sides) * rounds)


def size_of_block(most: int) -> int:
    """From half of *most* up to it, at random, so that no block falls into step with anything periodic."""
    return random.randint((most + 1) // 2, most)


def medians(taken: Mapping[bool, Sequence[float]], unit: str, factor: float = 1.0, **more: float) -> Measured:
    return Measured(statistics.median(taken[True]) * factor, statistics.median(taken[False]) * factor, unit, more)


def beside(ours: Callable[[], object], theirs: Callable[[], object], blocks: int, *, most: int = 1) -> Measured:
    """Both in *blocks* of up to *most* calls (at least half of that), in random order. Medians of single calls."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    for mine in shuffled(BOTH, blocks):
        call = ours if mine else theirs
        taken[mine] += [seconds_of(call) for _ in range(size_of_block(most))]
    return medians(taken, "ms", 1000, samples=len(taken[True]))
