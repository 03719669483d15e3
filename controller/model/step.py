"""The step machine. It reads no lease: who holds a step is checked once, on its run (`perform.move_step`)."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from controller.model.reason import Reason
from controller.model.records import StepState
from controller.model.transition import (
    CloseAttempt,
    DropAttempt,
    Explain,
    Folded,
    KillProcessGroup,
    Moved,
    OpenAttempt,
    Refused,
    Trigger,
    Why,
    fold,
)


class StepGuards(Struct, frozen=True):
    """What decides where a trigger leads, in the order it is read: the preconditions, then the reason."""

    cancel_requested: bool = False
    """A cancel of the run was requested: nothing starts any more, and nothing is tried again."""
    needs_met: bool = True
    """Every step that this one needs has succeeded."""
    attempts_left: bool = False
    """Another attempt may follow within this life of the run."""
    survivable: bool = True
    """The run outlives the loss of its holder and will be claimed again."""
    reason: Reason | None = None


def next_step(state: StepState, trigger: Trigger, guards: StepGuards) -> Moved[StepState] | Refused:
    """Decide what *trigger* does to a step in *state*. A step that has ended accepts nothing."""
    match state, trigger:
        case StepState.PENDING, Trigger.STEP_STARTED if guards.cancel_requested:
            return Refused(state, trigger, StepState.RUNNING, Why.CANCEL_REQUESTED)
        case StepState.PENDING, Trigger.STEP_STARTED if not guards.needs_met:
            return Refused(state, trigger, StepState.RUNNING, Why.NOT_AVAILABLE)
        case StepState.PENDING, Trigger.STEP_STARTED:
            return Moved(StepState.RUNNING, (OpenAttempt(),))
        case StepState.PENDING, Trigger.UPSTREAM_FAILED:
            return Moved(StepState.SKIPPED, (Explain(Reason.UPSTREAM_FAILED),))
        case StepState.RUNNING, Trigger.STEP_SUCCEEDED:
            return Moved(StepState.SUCCEEDED, (CloseAttempt(Reason.COMPLETED), Explain(Reason.COMPLETED)))
        case StepState.RUNNING, Trigger.STEP_FAILED:
            again = guards.attempts_left and not guards.cancel_requested
            return _ended(state, trigger, StepState.PENDING if again else StepState.FAILED, guards.reason)
        case ((StepState.PENDING | StepState.RUNNING), Trigger.CANCEL_OBSERVED):
            return _ended(state, trigger, StepState.CANCELLED, guards.reason)
        case StepState.RUNNING, Trigger.SHUTDOWN_DRAIN:
            return Moved(StepState.PENDING, (DropAttempt(),))
        case StepState.RUNNING, Trigger.LEASE_EXPIRED if guards.survivable:
            return Moved(StepState.PENDING, (DropAttempt(),))
        case StepState.RUNNING, Trigger.LEASE_EXPIRED:
            return _ended(state, trigger, StepState.FAILED, guards.reason)
    return Refused(state, trigger, None, Why.ILLEGAL_TRANSITION)


def _ended(state: StepState, trigger: Trigger, to: StepState, reason: Reason | None) -> Moved[StepState] | Refused:
    if reason is None:
        return Refused(state, trigger, to, Why.MISSING_REASON_CODE)
    if state is StepState.PENDING:
        return Moved(to, (Explain(reason),))
    if to is StepState.CANCELLED:
        return Moved(to, (KillProcessGroup(), CloseAttempt(reason), Explain(reason)))
    return Moved(to, (CloseAttempt(reason), Explain(reason)))


def apply_step(
    history: Iterable[tuple[Trigger, StepGuards]], state: StepState = StepState.PENDING
) -> Folded[StepState]:
    """Fold a history; stop at its first refusal."""
    return fold(next_step, state, history)


def parse_step_state(text: str) -> StepState | Refused:
    """Read a stored name strictly: no case folding, no trimming, no guess."""
    try:
        return StepState(text)
    except ValueError:
        return Refused(text, None, None, Why.UNKNOWN_STATE)


def is_terminal(state: StepState) -> bool:
    return not is_active(state)


def is_active(state: StepState) -> bool:
    """It has not ended: pending or running."""
    return state in (StepState.PENDING, StepState.RUNNING)


def is_blocking(state: StepState) -> bool:
    """A step that needs one in this state can never start in this life of the run."""
    return state in (StepState.FAILED, StepState.SKIPPED, StepState.CANCELLED)
