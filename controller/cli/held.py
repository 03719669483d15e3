"""Runs of queues as entries: what their holders and those who browse them are told."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from controller.cli.call import Call
from controller.cli.tables import Table, table
from controller.cli.text import duration, shown
from controller.cli.views import Here, run_row, step_whole, work_of
from controller.engine.browse import waits_for, why_nothing
from controller.engine.leases import drain
from controller.engine.queue import is_over
from controller.model.errors import ControllerError
from controller.model.records import Run, RunState


def held_row(run: Run, here: Here) -> dict[str, Any]:
    """A run for the consumer that holds it."""
    return {
        "run": run.id,
        "token": run.attempts,
        "lease_ms": None if run.lease is None else run.lease.granted_ms,
        "remaining_ms": None if run.lease is None else here.left(run.lease),
        **run_row(run, here.now),
        "steps": [step_whole(step) for step in run.steps],
    }


def browsed_row(run: Run, here: Here, running: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """A run for whoever browses its set; *running*: the runs of each concurrency key (`engine.browse.holders`).

    A run that a worker of the fleet holds has no lease that could end.
    """
    row = run_row(run, here.now)
    if run.state is RunState.QUEUED:
        row["reason"] = waits_for(run, here.now, running)
    if run.worker is not None:
        row["owner"] = f"slot {run.worker.slot}"
    return {
        **row,
        "token": run.attempts,
        "remaining_ms": None if run.lease is None else here.left(run.lease),
        "failures": run.failures,
        "crashes": run.crashes,
        "last_error": run.last_error,
    }


def why_none(call: Call, queue: str) -> dict[str, str]:
    """Why there was nothing to claim, and what to do `next`, as far as the document tells; each may be empty."""
    document, context = call.store.read().document, call.lenient
    over = partial(is_over, context=context, document=document)
    why, what = why_nothing(document, context.rules, queue, call.clock.now_ms(), over)
    return {"why": why, "next": what}


def none_page(found: Mapping[str, str]) -> list[str]:
    """The same for people."""
    first = f"nothing to claim: {found['why']}" if found["why"] else "nothing to claim"
    return [first, *([f"next: {found['next']}"] if found["next"] else [])]


def claimed_page(rows: list[dict[str, Any]]) -> Iterator[str | Table]:
    """Runs that were just claimed, and what their holder says next."""
    yield table(
        ("RUN", "TOKEN", "LEASE", "WHAT"),
        ((row["run"], str(row["token"]), duration(row["lease_ms"]), shown(work_of(row))) for row in rows),
    )
    first = rows[0]
    left = [step["name"] for step in first["steps"] if step["state"] == "pending"]
    said = f"step {first['run']} {left[0]} started" if left and len(first["steps"]) > 1 else f"complete {first['run']}"
    yield f"next: controller queue {said} --token {first['token']}"


@contextmanager
def unbroken() -> Iterator[list[int]]:
    """Signals that would end the command wait until the block has ended; those that came, so far none.

    Between a claim and its answer they would leave runs with a holder that never hears of them.
    """
    came: list[int] = []
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    previous = {number: handler for number, handler in previous.items() if handler is not signal.SIG_IGN}
    for number in previous:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def give_back(call: Call, runs: Sequence[Run]) -> None:
    """Return runs that were just claimed, and say so. Raises what kept one of them, once the others are back."""
    failure: ControllerError | None = None
    for run in runs:
        try:
            drain(call.lenient, run.id, run.attempts)
            call.output.warn(f"run {run.id} was given back: nobody heard that it was claimed")
        except ControllerError as error:
            failure = error
            call.output.warn(f"run {run.id} stays claimed until its lease is over, token {run.attempts}")
    if failure is not None:
        raise failure
