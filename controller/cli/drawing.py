"""The steps of a run as a drawing: one line a step, in order of need, with how each stands.

A column per step that others wait for, as in a drawing of branches: a line leaves a step downwards and ends at the last
step that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller.cli import text
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
    """Each after all that it needs, otherwise as listed."""
    placed: dict[str, Step] = {}
    waiting = list(steps)
    while waiting:
        ready = next((step for step in waiting if placed.keys() >= set(step.needs)), waiting[0])
        placed[ready.name] = ready
        waiting.remove(ready)
    return list(placed.values())


def drawing(steps: Sequence[Step], now: int) -> Iterator[str]:
    """Lines: the mark of each step's state, its name, state, time, exit, and what it needs."""
    ordered = in_order(steps)
    rows = list(_lines(ordered))
    if max(len(row) for row in rows) > WIDEST:
        rows = [MARKS[step.state] for step in ordered]
    columns = ("", "STEP", "STATE", "TOOK", "EXIT", "TRIES", "NEEDS")
    yield from text.table(columns, (_row(line, step, now) for line, step in zip(rows, ordered, strict=True)))


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
