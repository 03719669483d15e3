"""Durable commits: beside SQLite's, in small documents and large ones, and by several processes at once.

Not promised: that a commit of the engine's verbs takes as long: it changes one record here, and theirs change two or
three.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.committing import committers
from benchmarks.disk import AHEAD, APPEND, appending
from benchmarks.fleets import change, opened, stocked, touch
from benchmarks.measuring import OURS, TIMES, Measured, Value, blocks, longer, middle, size_of_block, turns
from benchmarks.peers import row

_WARM = 100


def commit(runs: int) -> Callable[[Path, bool], Measured]:
    """In a document of so many runs, in one process."""

    def measure(place: Path, quick: bool) -> Measured:
        ours = partial(change, opened(stocked(place, min(runs, 1000) if quick else runs)), touch)
        sides: dict[str, Callable[[], object]] = {OURS: ours, "sqlite": row(place, quick=quick), **appending(place)}
        for _ in range(1 if quick else _WARM):
            ours()
        taken = blocks(sides, 1 if quick else 30, most=4 if quick else 50)
        values = {side: longer(taken, side) for side in ("sqlite", APPEND, AHEAD)}
        return Measured(values, {"samples": len(taken[OURS])})

    return measure


def flat(place: Path, quick: bool) -> Measured:
    """100 000 records over 16: two processes that commit in turns, each in a directory of its own."""
    (place / "small").mkdir()
    large, small = stocked(place, 1000 if quick else 100_000), stocked(place / "small", 16)
    taken: dict[str, list[float]] = {"large": [], "small": []}
    with committers(large, small) as members:
        sides = dict(zip(taken, members, strict=True))
        for side in turns([*sides, *sides], 1 if quick else 20):
            sides[side].ask(commits=2 if quick else size_of_block(50))
            taken[side] += sides[side].answer()
    return Measured({"small": longer(taken, "small", ours="large")}, {"samples": len(taken["large"])})


def processes(place: Path, quick: bool) -> Measured:
    """Eight on one directory, over one alone."""
    state, seconds = stocked(place, 16), 0.2 if quick else 2.0
    rates: dict[int, list[float]] = {8: [], 1: []}
    waits: list[float] = []
    for count in turns(list(rates), 1 if quick else 4):
        with committers(*[state] * count) as members:
            for member in members:
                member.ask(seconds=seconds)
            answers = [member.answer() for member in members]
        rates[count].append(sum(map(len, answers)) / seconds)
        waits += [max(answer) for answer in answers if answer] if count > 1 else []
    together, alone = middle(rates[8], 1), middle(rates[1], 1)
    worst = max(waits) * 1000
    values = {
        "alone": Value(together / alone, TIMES, together, alone, "commits/s"),
        "worst_wait": Value(worst, "ms", worst),
    }
    return Measured(values, {"median_of_worst_waits_ms": round(middle(waits), 1)})
