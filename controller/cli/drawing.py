"""The steps of a run as a drawing: one line a step, in order of need, with how each stands.

A column per step that others wait for, as in a drawing of branches: a line leaves a step downwards and ends at the last
step that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from controller.cli import text
from controller.cli.tables import Table, table
from controller.cli.text import shown
from controller.model.records import Step, StepState

MARKS = {
    StepState.PENDING: "o",
    StepState.RUNNING: "*",
    StepState.SUCCEEDED: "+",
    StepState.FAILED: "x",
    StepState.SKIPPED: "-",
    StepState.CANCELLED: "/",
}
WIDEST = 12
"""Columns at most; a graph with more open lines than this is drawn without them, since nobody could follow them."""


def in_order(steps: Sequence[Step]) -> list[Step]:
    """Each after all that it needs, otherwise as listed; steps that need each other come last."""
    waits = {step.name: len(step.needs) for step in steps}
    dependents: dict[str, list[int]] = {}
    for index, step in enumerate(steps):
        for need in step.needs:
            dependents.setdefault(need, []).append(index)
    ready = [index for index, step in enumerate(steps) if not step.needs]
    placed: dict[int, Step] = {}
    while ready:
        index = heappop(ready)
        placed[index] = steps[index]
        for dependent in dependents.get(steps[index].name, ()):
            waits[steps[dependent].name] -= 1
            if not waits[steps[dependent].name]:
                heappush(ready, dependent)
    return [*placed.values(), *(step for index, step in enumerate(steps) if index not in placed)]


def drawing(steps: Sequence[Step], now: int) -> Table:
    """Lines: the mark of each step's state, its name, state, time, exit, and what it needs."""
    ordered = in_order(steps)
    rows: list[str] = []
    for row in _lines(ordered):
        if len(row) > WIDEST:
            rows = [MARKS[step.state] for step in ordered]
            break
        rows.append(row)
    columns = ("", "STEP", "STATE", "TOOK", "EXIT", "TRIES", "NEEDS")
    return table(columns, (_row(line, step, now) for line, step in zip(rows, ordered, strict=True)))


def _lines(ordered: Sequence[Step]) -> Iterator[str]:
    """The drawn part of each row. A column is taken by a step until the last one that needs it has been drawn."""
    last = {need: step.name for step in ordered for need in step.needs}
    columns: list[str | None] = []
    for step in ordered:
        here = [need for need in step.needs if need in columns]
        place = columns.index(here[0]) if here and last[here[0]] == step.name else None
        ends = {columns.index(need) for need in here if last[need] == step.name}
        if place is None:
            place = next((n for n, taken in enumerate(columns) if taken is None), len(columns))
        if place == len(columns):
            columns.append(None)
        yield "".join(
            MARKS[step.state] if n == place else "'" if n in ends else "|" if taken is not None else " "
            for n, taken in enumerate(columns)
        ).rstrip()
        for n in ends:
            columns[n] = None
        columns[place] = step.name if step.name in last else None
        while columns and columns[-1] is None:
            columns.pop()


def _row(line: str, step: Step, now: int) -> tuple[str, ...]:
    attempt = step.attempts[-1] if step.attempts else None
    took = code = "-"
    if attempt is not None:
        took = text.duration((attempt.ended_at or now) - attempt.started_at)
        if attempt.exit_code is not None:
            code = str(attempt.exit_code)
        elif attempt.signal is not None:
            code = f"signal {attempt.signal}"
    tries = f"{len(step.attempts)} of {step.max_attempts}" if step.max_attempts > 1 else str(len(step.attempts))
    return line, shown(step.name), step.state.value, took, code, tries, ", ".join(map(shown, step.needs)) or "-"
