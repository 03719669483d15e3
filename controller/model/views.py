"""What people browse runs by, and what to do next. Beside the machine: a looker need not know how a run moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from controller.model.mapping import Records
from controller.model.reason import EXPLAINED, Reason
from controller.model.records import Run, RunState, StepState, Tombstone, Worker, WorkerRef


class View(StrEnum):
    """The four sets that people browse."""

    PENDING = "pending"
    SCHEDULED = "scheduled"
    ACTIVE = "active"
    DEAD = "dead"


class Outline(Struct, frozen=True):
    """As much of a run as tells where it stands: what all of them are counted by, without decoding the rest."""

    created_at: int
    state: RunState = RunState.QUEUED
    available_at: int | None = None
    longest_ms: int | None = None
    waiting_since: int | None = None


class Tally(NamedTuple):
    """Runs by state and by view; and since when the one that waited longest could have started, None: none waits."""

    states: Mapping[RunState, int]
    views: Mapping[View, int]
    oldest_at: int | None


def tally(runs: Mapping[str, Run], now: int) -> Tally:
    """Count *runs*, none of which is decoded whole for it."""
    return tallied((run for _, run in Records.of(runs).project(Outline)), now)


def tallied(runs: Iterable[Run | Outline], now: int) -> Tally:
    """Count *runs*. None of them is kept: there may be many."""
    states: Counter[RunState] = Counter()
    queued, due, later, oldest = RunState.QUEUED, 0, 0, None
    for run in runs:
        if run.state is not queued:
            states[run.state] += 1
        elif run.available_at is not None and is_deferred(run, now):
            later += 1
        else:
            due += 1
            since = waits_since(run)
            if oldest is None or since < oldest:
                oldest = since
    states[queued] = due + later
    views = {
        View.PENDING: due,
        View.SCHEDULED: later,
        View.ACTIVE: states[RunState.RUNNING],
        View.DEAD: states[RunState.FAILED],
    }
    return Tally(states, views, oldest)


def holds(worker: Worker, run: Run | None) -> bool:
    """Whether that very worker holds *run*, and the run is running."""
    return (
        run is not None
        and run.state is RunState.RUNNING
        and worker.run == run.id
        and run.worker == WorkerRef(worker.slot, worker.assignment, worker.generation)
    )


def is_deferred(run: Run | Outline, now: int) -> bool:
    """Queued and not due yet. Exactly *now* is due, and so is what is further away than it was ever to wait."""
    if run.state is not RunState.QUEUED or run.available_at is None:
        return False
    wait = run.available_at - now
    return wait > 0 and (run.longest_ms is None or wait <= run.longest_ms)


def waits_since(run: Run | Outline) -> int:
    """Since when, in UTC ms, a queued run that is due has waited for a holder."""
    if run.waiting_since is not None:
        return run.waiting_since
    return run.created_at if run.available_at is None else run.available_at


def view_of(run: Run | Outline, now: int) -> View | None:
    """The set that people find *run* in; None: it is in none (cancelled, or succeeded)."""
    match run.state:
        case RunState.QUEUED:
            return View.SCHEDULED if is_deferred(run, now) else View.PENDING
        case RunState.RUNNING:
            return View.ACTIVE
        case RunState.FAILED:
            return View.DEAD
        case RunState.SUCCEEDED | RunState.CANCELLED:
            return None


def advice(run: Run | Tombstone) -> str | None:
    """What a person does about *run*, in a sentence or two; None when nothing explains its state.

    That a step failed is no reason to act on: how it failed is. A command that never started wrote no log, and what a
    consumer ran wrote none here.
    """
    reason = run.reason or (run.defer_reason if isinstance(run, Run) else None)
    if isinstance(run, Run) and run.reported is not None and reason is not Reason.INVALID_PAYLOAD:
        reason = Reason.CONSUMER_FAILED if run.state is RunState.FAILED else reason
    elif reason in (Reason.STEP_FAILED, Reason.ATTEMPTS_EXHAUSTED):
        reason = next((step.reason for step in run.steps if step.state is StepState.FAILED and step.reason), reason)
    return None if reason is None else EXPLAINED[reason].next.replace("RUN", run.id)
