"""What people browse runs by, and what to do next. Beside the machine: a looker need not know how a run moves."""

from __future__ import annotations

from enum import StrEnum

from controller.model.reason import EXPLAINED, Reason
from controller.model.records import Run, RunState, StepState, Tombstone


class View(StrEnum):
    """The four sets that people browse."""

    PENDING = "pending"
    SCHEDULED = "scheduled"
    ACTIVE = "active"
    DEAD = "dead"


def is_deferred(run: Run, now: int) -> bool:
    """Queued and not due yet. Exactly *now* is due."""
    return run.state is RunState.QUEUED and run.available_at is not None and run.available_at > now


def view_of(run: Run, now: int) -> View | None:
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

    That a step failed is no reason to act on: how it failed is. A command that never started wrote no log.
    """
    reason = run.reason or (run.defer_reason if isinstance(run, Run) else None)
    if reason in (Reason.STEP_FAILED, Reason.ATTEMPTS_EXHAUSTED):
        reason = next((step.reason for step in run.steps if step.state is StepState.FAILED and step.reason), reason)
    return None if reason is None else EXPLAINED[reason].next.replace("RUN", run.id)
