"""The worker machine: moved by the planner's actions and by looks only. State None is a slot without a worker record.

Not promised: that the provider agrees. The machine says what the document may record. An arrow that needs a provider is
taken when its action is parked (`park_create`, `resume`) or when its action has settled (the others), never in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from controller.model.reason import Reason
from controller.model.records import WorkerState
from controller.model.transition import (
    Assign,
    Explain,
    Folded,
    ForgetAccepted,
    Identify,
    Moved,
    NextGeneration,
    Occupy,
    PreviousGeneration,
    Refused,
    Trigger,
    Unassign,
    Vacate,
    Why,
    WorkerEffect,
    fold,
)

_State = WorkerState | None


class WorkerGuards(Struct, frozen=True):
    """What decides where a trigger leads, in the order it is read: the fence, the preconditions, the reason."""

    current: bool = True
    """What the caller says is about the recorded assignment and generation."""
    run_over: bool = True
    """The worker holds no run: its run has ended, or went back to its queue."""
    proven: bool = True
    """The release proof is there, or none is asked for."""
    folded: bool = True
    """The end of every accepted step is folded, or the worker's data is proven gone."""
    owned: bool = False
    """It is assigned to a run: one that it holds, or whose data it has and is not released from."""
    resumed: bool = False
    """Its create is a resume: it was deallocated before, or, if it `was_lost`, lost."""
    was_lost: bool = False
    reason: Reason | None = None


def next_worker(state: _State, trigger: Trigger, guards: WorkerGuards) -> Moved[_State] | Refused:
    """Decide what *trigger* does to a worker in *state*."""
    answer = _decide(state, trigger, guards)
    if guards.current or trigger not in _ALPHABET:
        return answer
    denied = answer.denied if isinstance(answer, Refused) else answer.to
    return Refused(state, trigger, denied, Why.STALE_LEASE)


_ALPHABET: Final = frozenset(
    {
        Trigger.PARK_CREATE,
        Trigger.CREATE_DONE,
        Trigger.CREATE_SETTLED,
        Trigger.CLAIM,
        Trigger.RELEASE,
        Trigger.REUSE,
        Trigger.DEALLOCATE,
        Trigger.DELETE_COMPUTE,
        Trigger.RESET,
        Trigger.RESUME,
        Trigger.SEEN_GONE,
        Trigger.ADOPT,
        Trigger.CONDEMN,
        Trigger.FORGET,
    }
)


def _decide(state: _State, trigger: Trigger, guards: WorkerGuards) -> Moved[_State] | Refused:
    match state, trigger:
        case None, Trigger.PARK_CREATE:
            return Moved(WorkerState.CREATING, (Occupy(),))
        case None, Trigger.ADOPT:
            return Moved(WorkerState.READY, (Occupy(), Identify(), Explain(Reason.ADOPTED)))
        case None, Trigger.CONDEMN:
            return Moved(WorkerState.LOST, (Occupy(), Identify(), Explain(Reason.UNRECORDED)))
        case WorkerState.CREATING, Trigger.CREATE_DONE:
            return Moved(WorkerState.ASSIGNED if guards.owned else WorkerState.READY, (Identify(),))
        case WorkerState.CREATING, Trigger.CREATE_SETTLED:
            return _not_made(state, trigger, guards)
        case WorkerState.READY, Trigger.CLAIM:
            return Moved(WorkerState.ASSIGNED, (Assign(),))
        case WorkerState.ASSIGNED, Trigger.RELEASE if not (guards.run_over and guards.proven):
            return Refused(state, trigger, WorkerState.RELEASED, Why.NOT_AVAILABLE)
        case WorkerState.ASSIGNED, Trigger.RELEASE:
            return Moved(WorkerState.RELEASED, (Unassign(), Explain(guards.reason or Reason.RUN_ENDED)))
        case ((WorkerState.DEALLOCATED | WorkerState.LOST), Trigger.RELEASE):
            if not (guards.owned and guards.run_over and guards.proven):
                return Refused(state, trigger, state, Why.NOT_AVAILABLE)
            return Moved(state, (Unassign(), Explain(guards.reason or Reason.RUN_ENDED)))
        case WorkerState.RELEASED, Trigger.REUSE:
            return Moved(WorkerState.READY, (Explain(Reason.REUSED),))
        case WorkerState.ASSIGNED, Trigger.DEALLOCATE if not guards.run_over:
            return Refused(state, trigger, WorkerState.DEALLOCATED, Why.NOT_AVAILABLE)
        case ((WorkerState.READY | WorkerState.ASSIGNED | WorkerState.RELEASED), Trigger.DEALLOCATE):
            return Moved(WorkerState.DEALLOCATED, (*_let_go(guards), *_because(guards)))
        case ((WorkerState.DEALLOCATED | WorkerState.LOST), Trigger.DEALLOCATE):
            return Moved(WorkerState.DEALLOCATED, _because(guards))
        case ((WorkerState.DEALLOCATED | WorkerState.LOST), Trigger.RESUME):
            if not guards.owned:
                return Refused(state, trigger, WorkerState.CREATING, Why.NOT_AVAILABLE)
            return Moved(WorkerState.CREATING, (NextGeneration(),))
        case ((WorkerState.DEALLOCATED | WorkerState.LOST), Trigger.DELETE_COMPUTE) if guards.owned:
            return Refused(state, trigger, WorkerState.COMPUTE_REMOVED, Why.NOT_AVAILABLE)
        case ((WorkerState.DEALLOCATED | WorkerState.LOST), Trigger.DELETE_COMPUTE):
            return Moved(WorkerState.COMPUTE_REMOVED)
        case WorkerState.COMPUTE_REMOVED, Trigger.RESET if not guards.folded:
            return Refused(state, trigger, None, Why.NOT_AVAILABLE)
        case WorkerState.COMPUTE_REMOVED, Trigger.RESET:
            return Moved(None, (Vacate(),))
        case ((WorkerState.READY | WorkerState.ASSIGNED | WorkerState.RELEASED), Trigger.SEEN_GONE):
            return Moved(WorkerState.LOST, (*_let_go(guards), ForgetAccepted(), Explain(Reason.SEEN_GONE)))
        case (
            WorkerState.READY
            | WorkerState.RELEASED
            | WorkerState.DEALLOCATED
            | WorkerState.COMPUTE_REMOVED
            | WorkerState.LOST,
            Trigger.FORGET,
        ):
            return Refused(state, trigger, None, Why.NOT_AVAILABLE) if guards.owned else Moved(None, (Vacate(),))
    return Refused(state, trigger, None, Why.ILLEGAL_TRANSITION)


def _let_go(guards: WorkerGuards) -> tuple[WorkerEffect, ...]:
    """An assignment that is not proven to be over outlives its compute: its data is not anybody's to delete."""
    return (Unassign(),) if guards.proven else ()


def _because(guards: WorkerGuards) -> tuple[WorkerEffect, ...]:
    return () if guards.reason is None else (Explain(guards.reason),)


def _not_made(state: _State, trigger: Trigger, guards: WorkerGuards) -> Moved[_State] | Refused:
    """A resume that came to nothing leaves the worker as it was."""
    before = WorkerState.LOST if guards.was_lost else WorkerState.DEALLOCATED
    to = before if guards.resumed else None
    if guards.reason is None:
        return Refused(state, trigger, to, Why.MISSING_REASON_CODE)
    if guards.resumed:
        return Moved(to, (PreviousGeneration(),))
    return Moved(to, (Vacate(),))


def apply_worker(history: Iterable[tuple[Trigger, WorkerGuards]], state: _State = None) -> Folded[_State]:
    """Fold a history; stop at its first refusal."""
    return fold(next_worker, state, history)


def parse_worker_state(text: str) -> WorkerState | Refused:
    """Read a stored name strictly: no case folding, no trimming, no guess."""
    try:
        return WorkerState(text)
    except ValueError:
        return Refused(text, None, None, Why.UNKNOWN_STATE)


def is_live(state: WorkerState) -> bool:
    """Its compute is there as far as the document knows: only such a worker can be seen gone.

    Not while creating: an empty look says nothing of a create that is still pending.
    """
    return state in (WorkerState.READY, WorkerState.ASSIGNED, WorkerState.RELEASED)


def is_leaving(state: WorkerState) -> bool:
    """It is on its way out and takes no run again, but by a resume."""
    return state in (WorkerState.DEALLOCATED, WorkerState.COMPUTE_REMOVED, WorkerState.LOST)
