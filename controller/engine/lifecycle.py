"""What becomes of a worker whose run is over, and what keeps one from its next move. Pure.

Not promised: that anything moves here but a release that nobody has to prove. An assignment whose compute is stopped or
gone is ended by an operator alone: nothing here gives up data that was kept on purpose.
"""

from __future__ import annotations

from msgspec import Struct

from controller.model.edit import Draft
from controller.model.inventory import Look
from controller.model.policy import Policy, Release
from controller.model.reason import Reason
from controller.model.records import Document, RunState, Worker, WorkerState
from controller.model.views import holds

__all__ = ["Wait", "cools_until", "holds", "idled_long", "is_worn", "kept_for", "let_go", "waits_for"]


class Wait(Struct, frozen=True):
    """What keeps a worker from its next move, and until when (UTC ms; None: until an operator or a look says so)."""

    reason: Reason
    until: int | None = None


def kept_for(known: Draft | Document, worker: Worker, policy: Policy) -> Reason | None:
    """Why the assignment of a worker whose run is over does not end by itself; None: it does, or there is none."""
    if worker.run is None:
        return None
    run = known.runs.get(worker.run)
    if policy.retain_failed and run is not None and run.state is RunState.FAILED:
        return Reason.RETAIN_FAILED
    return Reason.NOT_RELEASED if policy.release is Release.PROOF else None


def let_go(draft: Draft, slot: int, policy: Policy) -> None:
    """The worker holds no run any more: release it, unless it is kept."""
    from controller.model.perform import WorkerGiven, move_worker
    from controller.model.transition import Trigger

    worker = draft.workers.get(slot)
    if worker is None or worker.state is not WorkerState.ASSIGNED or worker.running is not None:
        return
    if kept_for(draft, worker, policy) is None:
        move_worker(draft, slot, Trigger.RELEASE, WorkerGiven())


def is_worn(worker: Worker, policy: Policy) -> bool:
    """Whether the worker has done as many runs as it may."""
    return 0 < policy.max_runs <= worker.runs


def cools_until(worker: Worker, policy: Policy, now: int) -> Wait | None:
    """What a released, stopped worker still waits for before its compute is removed; None: nothing.

    The cooldown runs from the first look that found it dark, so one that no look has found dark waits for that look;
    and so does one that was found dark later than now, since the clock went back: the next look corrects that.
    """
    if worker.state is not WorkerState.DEALLOCATED or policy.cooldown_ms == 0 or worker.reason is Reason.UNRECORDED:
        return None
    if worker.dark_at is None or worker.dark_at > now:
        return Wait(Reason.COOLDOWN)
    until = worker.dark_at + policy.cooldown_ms
    return Wait(Reason.COOLDOWN, until) if now < until else None


def idled_long(worker: Worker, look: Look, policy: Policy) -> bool:
    """Whether looks, *look* the last of them, have seen it idle for the time after which one is stopped unreleased."""
    return worker.idle_since is not None and look.ended_at - worker.idle_since.ended_at > policy.idle_release_ms


def waits_for(document: Document, worker: Worker, policy: Policy, now: int) -> Wait | None:
    """What keeps the worker from its next move, by the document alone; None: nothing but the next reconcile."""
    known = document.slots.get(worker.slot)
    if worker.reason is Reason.IDENTITY_REFUSED and known is not None and known.cordoned:
        return Wait(Reason.IDENTITY_REFUSED)
    run = None if worker.run is None else document.runs.get(worker.run)
    if worker.run is None:
        return cools_until(worker, policy, now)
    match worker.state:
        case WorkerState.DEALLOCATED if worker.reason in (Reason.RETAIN_FAILED, Reason.IDLE_RELEASE):
            return Wait(worker.reason)
        case WorkerState.DEALLOCATED:
            return Wait(Reason.NOT_RELEASED)
        case WorkerState.LOST:
            return Wait(Reason.DATA_LEFT)
        case WorkerState.ASSIGNED if not holds(worker, run) and (run is None or run.state is not RunState.QUEUED):
            kept = kept_for(document, worker, policy)
            if kept is not Reason.NOT_RELEASED:
                return None
            idle = worker.idle_since
            return Wait(kept, None if idle is None else idle.ended_at + policy.idle_release_ms)
    return None
