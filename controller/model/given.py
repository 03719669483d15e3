"""What callers bring to a transition, and how a machine's guards are read from that and the records."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, Raw, Struct, UnsetType

from controller.model import views
from controller.model.edit import Draft
from controller.model.reason import Reason
from controller.model.records import Lease, Resource, Run, Step, StepState, Worker, WorkerRef, WorkerState
from controller.model.run import RunGuards, is_active, is_report, run_aggregate
from controller.model.step import StepGuards
from controller.model.transition import Trigger
from controller.model.views import is_deferred
from controller.model.worker import WorkerGuards


class Given(Struct, frozen=True):
    """What a caller brings to a transition of a run or step.

    `token` is the one presented; None: the controller acts by its own authority, which is no substitute where only the
    holder can know (`run.is_report`). `worker` takes a claim; elsewhere it presents the token, and must be the holder.
    A claim needs exactly one of `worker` and `lease`. `delay_ms` (backoff, from the caller) is how long a run that goes
    back to its queue waits, and `longest_ms` the longest that its policy computes (None: the delay was chosen). `final`
    makes a failed life the last one. `key`, `exit_code`, `signal` and `at` (UTC ms, default now) are facts of an
    attempt. `lease_over`: the holder is proven gone, or its deadline has passed on its own clock. `result` is kept in
    the tombstone.
    """

    token: int | None = None
    worker: WorkerRef | None = None
    lease: Lease | None = None
    reason: Reason | None = None
    error: str | None = None
    delay_ms: int | None = None
    longest_ms: int | None = None
    final: bool = False
    key: str = ""
    exit_code: int | None = None
    signal: int | None = None
    at: int | None = None
    lease_over: bool = False
    result: Raw | UnsetType = UNSET


class WorkerGiven(Struct, frozen=True):
    """What a caller brings to a transition of a worker.

    `park_create` needs `assignment` and `provider`, and takes `generation` (default 1) and, for a reservation,
    `reserved`; so do `adopt` and `condemn`, with `id` and `resources`. Every other trigger is fenced by what is given
    of `assignment` and `generation`. `create_done` takes `id` and `resources`, `claim` needs `run`. `proven`: the
    release proof is there, or none is asked for. `data_gone`: no end of an accepted step can come any more. `key` and
    `token` are for history, and so is `detail`.
    """

    reason: Reason | None = None
    run: str | None = None
    reserved: str | None = None
    assignment: str | None = None
    generation: int | None = None
    provider: str = ""
    id: str = ""
    resources: Mapping[str, Resource] = {}
    proven: bool = True
    data_gone: bool = False
    key: str = ""
    token: int | None = None
    detail: str | None = None


def run_guards(draft: Draft, run: Run, trigger: Trigger, given: Given) -> RunGuards:
    return RunGuards(
        holder=holds(run, trigger, given),
        available=not is_deferred(run, draft.now),
        cancel=_asked(run),
        lease_over=given.lease_over,
        steps=run_aggregate(run.steps),
        failures_left=run.failures + 1 < run.max_attempts,
        crashes_left=run.crashes + 1 < run.max_crashes,
        final=given.final or run.max_attempts <= 1,
        reason=given.reason or _meant(run, trigger),
    )


def step_guards(run: Run, step: Step, given: Given) -> StepGuards:
    states = {each.name: each.state for each in run.steps}
    asked = _asked(run)
    return StepGuards(
        cancel_requested=asked is not None,
        needs_met=all(states.get(name) is StepState.SUCCEEDED for name in step.needs),
        attempts_left=len(step.attempts) < step.max_attempts,
        survivable=asked is None and run.crashes + 1 < run.max_crashes,
        reason=given.reason,
    )


def worker_guards(draft: Draft, worker: Worker | None, given: WorkerGiven) -> WorkerGuards:
    if worker is None:
        return WorkerGuards(reason=given.reason)
    return WorkerGuards(
        current=given.assignment in (None, worker.assignment) and given.generation in (None, worker.generation),
        run_over=worker.run is None or not views.holds(worker, draft.runs.get(worker.run)),
        proven=given.proven,
        folded=given.data_gone or not worker.accepted,
        owned=worker.run is not None,
        resumed=worker.was is not None,
        was_lost=worker.was is WorkerState.LOST,
        reason=given.reason,
    )


def holds(run: Run, trigger: Trigger, given: Given) -> bool:
    """The fence. Every exit from running revoked the lease, so a run that nobody holds has no current token."""
    if given.token is None:
        return not is_report(trigger)
    presenter = None if trigger is Trigger.CLAIM else given.worker
    return is_active(run.state) and given.token == run.attempts and presenter in (None, run.worker)


def _asked(run: Run) -> Reason | None:
    """Why a cancel was requested; `request_cancel` left it on the run."""
    return None if run.cancel_requested_at is None else run.reason or Reason.CANCELLED


def _meant(run: Run, trigger: Trigger) -> Reason | None:
    """What a trigger means when its caller gives no reason. A failure and a deferral mean nothing without one."""
    if trigger is Trigger.CANCEL_OBSERVED:
        return _asked(run) or Reason.CANCELLED
    return Reason.OPERATOR_RETRY if trigger is Trigger.OPERATOR_RETRY else None
