"""The run machine, and what can be asked of a run without moving it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from controller.model.reason import Reason
from controller.model.records import TERMINAL, RunState, Step, StepState
from controller.model.transition import (
    CancelSteps,
    ClearDefer,
    CountCrash,
    CountDeferral,
    CountFailure,
    Defer,
    FailSteps,
    Finish,
    Folded,
    KillProcessGroup,
    MintToken,
    Moved,
    NoteError,
    Refused,
    RenewSteps,
    Reopen,
    Retire,
    ReturnSteps,
    RevokeLease,
    TakeLease,
    Trigger,
    Why,
    fold,
)

DEFER_REASONS: Final = frozenset(
    {
        Reason.CONCURRENCY,
        Reason.RETRY_BACKOFF,
        Reason.RECONCILED_AFTER_CRASH,
        Reason.REQUEUED_AFTER_SHUTDOWN,
        Reason.CREATE_REFUSED,
        Reason.SUBMITTED_FOR_LATER,
    }
)


class Aggregate(StrEnum):
    """What a run's steps amount to; the first that applies."""

    ACTIVE = "active"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"


class RunGuards(Struct, frozen=True):
    """What decides where a trigger leads, in the order it is read: the fence, the preconditions, the reason."""

    holder: bool = True
    """The caller holds the run under its current token, or acts for the controller itself."""
    available: bool = True
    """The run is due."""
    cancel: Reason | None = None
    """Why a cancel was requested; None if none was."""
    lease_over: bool = False
    """The holder is proven gone, or its deadline has passed on its own clock."""
    steps: Aggregate = Aggregate.SUCCEEDED
    failures_left: bool = False
    """Another life may fail after this one."""
    crashes_left: bool = False
    """Another life may be lost after this one."""
    final: bool = False
    """This failure ends the run by itself: its only life, or the holder says that another would be no use."""
    reason: Reason | None = None


def next_run(state: RunState, trigger: Trigger, guards: RunGuards) -> Moved[RunState] | Refused:
    """Decide what *trigger* does to a run in *state*.

    A caller must tell `to` apart: a claim and a lost or failed life may answer with cancelled. A trigger of this
    machine without the fence is stale whatever the state; `denied` then says where a holder would have got.
    """
    answer = _decide(state, trigger, guards)
    if guards.holder or trigger not in _ALPHABET:
        return answer
    denied = answer.denied if isinstance(answer, Refused) else answer.to
    return Refused(state, trigger, denied, Why.STALE_LEASE)


def _decide(state: RunState, trigger: Trigger, guards: RunGuards) -> Moved[RunState] | Refused:
    answer = _ANSWERS.get((state, trigger))
    return Refused(state, trigger, None, Why.ILLEGAL_TRANSITION) if answer is None else answer(state, trigger, guards)


def _claimed(state: RunState, trigger: Trigger, guards: RunGuards) -> Moved[RunState] | Refused:
    if guards.cancel is not None:
        return Moved(RunState.CANCELLED, (CancelSteps(guards.cancel), ClearDefer(), Finish(guards.cancel)))
    if not guards.available:
        return Refused(state, trigger, RunState.RUNNING, Why.NOT_AVAILABLE)
    return Moved(RunState.RUNNING, (MintToken(), TakeLease(), ClearDefer()))


def _deferred(state: RunState, trigger: Trigger, guards: RunGuards) -> Moved[RunState] | Refused:
    if guards.reason is None or guards.reason not in DEFER_REASONS:
        return Refused(state, trigger, RunState.QUEUED, Why.MISSING_DEFER_REASON)
    return Moved(RunState.QUEUED, (CountDeferral(), Defer(guards.reason)))


def _promoted(_state: RunState, _trigger: Trigger, _guards: RunGuards) -> Moved[RunState] | Refused:
    return Moved(RunState.QUEUED, (ClearDefer(),))


def _cancelled(state: RunState, trigger: Trigger, guards: RunGuards) -> Moved[RunState] | Refused:
    if guards.reason is None:
        return Refused(state, trigger, RunState.CANCELLED, Why.MISSING_REASON_CODE)
    if state is RunState.QUEUED:
        return Moved(RunState.CANCELLED, (CancelSteps(guards.reason), ClearDefer(), Finish(guards.reason)))
    effects = (KillProcessGroup(), CancelSteps(guards.reason), RevokeLease(), Finish(guards.reason))
    return Moved(RunState.CANCELLED, effects)


def _done(state: RunState, trigger: Trigger, guards: RunGuards) -> Moved[RunState] | Refused:
    if guards.steps is Aggregate.ACTIVE:
        return Refused(state, trigger, None, Why.STEPS_NOT_TERMINAL)
    if guards.cancel is not None:
        return Moved(RunState.CANCELLED, (RevokeLease(), Finish(guards.cancel)))
    if guards.steps is Aggregate.FAILED:
        effects = (CountFailure(), NoteError(), RevokeLease(), Finish(guards.reason or Reason.STEP_FAILED))
        return Moved(RunState.FAILED, effects)
    if guards.steps is Aggregate.CANCELLED:
        return Moved(RunState.CANCELLED, (RevokeLease(), Finish(guards.reason or Reason.CANCELLED)))
    return Moved(RunState.SUCCEEDED, (RevokeLease(), Finish(Reason.COMPLETED), Retire()))


def _life_failed(state: RunState, trigger: Trigger, guards: RunGuards) -> Moved[RunState] | Refused:
    denied = RunState.QUEUED if guards.failures_left and not guards.final else RunState.FAILED
    if guards.cancel is not None:
        denied = RunState.CANCELLED
    if guards.reason is None:
        return Refused(state, trigger, denied, Why.MISSING_REASON_CODE)
    spent = (CountFailure(), NoteError())
    if guards.cancel is not None:
        return Moved(RunState.CANCELLED, (*spent, CancelSteps(guards.cancel), RevokeLease(), Finish(guards.cancel)))
    if guards.failures_left and not guards.final:
        return Moved(RunState.QUEUED, (*spent, RenewSteps(), RevokeLease(), Defer(Reason.RETRY_BACKOFF)))
    dead = guards.reason if guards.final else Reason.ATTEMPTS_EXHAUSTED
    return Moved(RunState.FAILED, (*spent, FailSteps(Trigger.STEP_FAILED, guards.reason), RevokeLease(), Finish(dead)))


def _life_lost(state: RunState, trigger: Trigger, guards: RunGuards) -> Moved[RunState] | Refused:
    to = RunState.QUEUED if guards.crashes_left else RunState.FAILED
    if guards.cancel is not None:
        to = RunState.CANCELLED
    if not guards.lease_over:
        return Refused(state, trigger, to, Why.LEASE_STILL_VALID)
    spent = (CountCrash(), NoteError())
    if guards.cancel is not None:
        return Moved(to, (*spent, CancelSteps(guards.cancel), RevokeLease(), Finish(guards.cancel)))
    if guards.crashes_left:
        return Moved(to, (*spent, ReturnSteps(trigger), RevokeLease(), Defer(Reason.RECONCILED_AFTER_CRASH)))
    lost = FailSteps(trigger, guards.reason or Reason.WORKER_LOST)
    return Moved(to, (*spent, lost, RevokeLease(), Finish(Reason.CRASHES_EXHAUSTED)))


def _given_back(_state: RunState, trigger: Trigger, _guards: RunGuards) -> Moved[RunState] | Refused:
    effects = (ReturnSteps(trigger), RevokeLease(), Defer(Reason.REQUEUED_AFTER_SHUTDOWN))
    return Moved(RunState.QUEUED, effects)


def _retried(_state: RunState, _trigger: Trigger, _guards: RunGuards) -> Moved[RunState] | Refused:
    return Moved(RunState.QUEUED, (RenewSteps(), Reopen(), ClearDefer()))


_Answer = Callable[[RunState, Trigger, RunGuards], Moved[RunState] | Refused]
_ANSWERS: Final[Mapping[tuple[RunState, Trigger], _Answer]] = {
    (RunState.QUEUED, Trigger.CLAIM): _claimed,
    (RunState.QUEUED, Trigger.DEFERRED): _deferred,
    (RunState.QUEUED, Trigger.PROMOTED): _promoted,
    (RunState.QUEUED, Trigger.CANCEL_OBSERVED): _cancelled,
    (RunState.RUNNING, Trigger.CANCEL_OBSERVED): _cancelled,
    (RunState.RUNNING, Trigger.ALL_STEPS_DONE): _done,
    (RunState.RUNNING, Trigger.ATTEMPT_FAILED): _life_failed,
    (RunState.RUNNING, Trigger.LEASE_EXPIRED): _life_lost,
    (RunState.RUNNING, Trigger.SHUTDOWN_DRAIN): _given_back,
    (RunState.FAILED, Trigger.OPERATOR_RETRY): _retried,
    (RunState.CANCELLED, Trigger.OPERATOR_RETRY): _retried,
}
"""What leads anywhere. Every other trigger is refused in every other state."""
_ALPHABET: Final = frozenset(trigger for _, trigger in _ANSWERS)


def apply_run(history: Iterable[tuple[Trigger, RunGuards]], state: RunState = RunState.QUEUED) -> Folded[RunState]:
    """Fold a history; stop at its first refusal."""
    return fold(next_run, state, history)


def parse_run_state(text: str) -> RunState | Refused:
    """Read a stored name strictly: no case folding, no trimming, no guess."""
    try:
        return RunState(text)
    except ValueError:
        return Refused(text, None, None, Why.UNKNOWN_STATE)


def is_terminal(state: RunState) -> bool:
    return state in TERMINAL


def is_active(state: RunState) -> bool:
    """Somebody holds it."""
    return state is RunState.RUNNING


def is_retryable(state: RunState) -> bool:
    """An operator may send it back to its queue."""
    return state in (RunState.FAILED, RunState.CANCELLED)


_REPORTS: Final = frozenset(
    {
        Trigger.ALL_STEPS_DONE,
        Trigger.ATTEMPT_FAILED,
        Trigger.SHUTDOWN_DRAIN,
        Trigger.STEP_STARTED,
        Trigger.STEP_SUCCEEDED,
        Trigger.STEP_FAILED,
    }
)


def is_report(trigger: Trigger) -> bool:
    """Only a holder can say it, so it must come with a token: nobody's own authority stands in for one."""
    return trigger in _REPORTS


def run_aggregate(steps: Iterable[Step]) -> Aggregate:
    """What *steps* amount to. Skipped counts as success, and no steps are a success."""
    states = {step.state for step in steps}
    if not states:
        return Aggregate.SUCCEEDED
    if states & {StepState.PENDING, StepState.RUNNING}:
        return Aggregate.ACTIVE
    if StepState.FAILED in states:
        return Aggregate.FAILED
    return Aggregate.CANCELLED if StepState.CANCELLED in states else Aggregate.SUCCEEDED
