"""What all machines share: the closed alphabet of triggers, effects, and the two answers, `Moved` and `Refused`.

A machine is a pure function `(state, trigger, guards) -> Moved or Refused`: no clock, file, randomness or global. Its
guards are read in one order: the fence (is the caller who it must be), the trigger's precondition, the reason. A caller
must perform all effects of a `Moved`, in order and in one commit (`model.perform` does), and nothing after a `Refused`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import product
from typing import Generic, TypeVar, get_type_hints

from msgspec import Struct

from controller.model.reason import Reason
from controller.model.records import RunState, StepState, WorkerState

S = TypeVar("S")
G = TypeVar("G", bound=Struct)


class Trigger(StrEnum):
    """Every event that any machine hears. One alphabet for all, so that (run, step_succeeded) is a proven refusal."""

    # runs; claim also moves workers, and the three of cancel, loss and drain also move steps
    CLAIM = "claim"
    DEFERRED = "deferred"
    PROMOTED = "promoted"
    CANCEL_OBSERVED = "cancel_observed"
    ALL_STEPS_DONE = "all_steps_done"
    ATTEMPT_FAILED = "attempt_failed"
    LEASE_EXPIRED = "lease_expired"
    SHUTDOWN_DRAIN = "shutdown_drain"
    OPERATOR_RETRY = "operator_retry"
    # steps
    STEP_STARTED = "step_started"
    STEP_SUCCEEDED = "step_succeeded"
    STEP_FAILED = "step_failed"
    UPSTREAM_FAILED = "upstream_failed"
    # workers
    PARK_CREATE = "park_create"
    CREATE_DONE = "create_done"
    CREATE_SETTLED = "create_settled"
    """A create is settled as rejected, not sent or proven absent: nothing was made and nothing will be."""
    RELEASE = "release"
    REUSE = "reuse"
    DEALLOCATE = "deallocate"
    DELETE_COMPUTE = "delete_compute"
    RESET = "reset"
    RESUME = "resume"
    SEEN_GONE = "seen_gone"
    ADOPT = "adopt"
    CONDEMN = "condemn"
    """Something that no record knew is recorded so that it can be removed in order."""
    FORGET = "forget"
    """The record goes though nobody knows what is left of the worker: its provider is gone for good."""


class Why(StrEnum):
    """Why a machine refused."""

    ILLEGAL_TRANSITION = "illegal_transition"
    NOT_AVAILABLE = "not_available"
    MISSING_REASON_CODE = "missing_reason_code"
    MISSING_DEFER_REASON = "missing_defer_reason"
    STEPS_NOT_TERMINAL = "steps_not_terminal"
    STALE_LEASE = "stale_lease"
    LEASE_STILL_VALID = "lease_still_valid"
    CANCEL_REQUESTED = "cancel_requested"
    UNKNOWN_STATE = "unknown_state"


class Effect(Struct, frozen=True, tag=True):
    """Base of all effects, so that none can be confused with a bare tuple; `AnyEffect` is the closed union."""


class KillProcessGroup(Effect, frozen=True):
    """A demand on the caller, never performed here: no process of the step may be left. Always first among effects."""


class MintToken(Effect, frozen=True):
    """A new life: attempts + 1, started now, no end and no reason yet."""


class TakeLease(Effect, frozen=True):
    """The worker or the lease that came with the claim holds the run."""


class RevokeLease(Effect, frozen=True):
    """Nobody holds the run any more."""


class Defer(Effect, frozen=True):
    """Not available before now plus the caller's delay, for *reason*."""

    reason: Reason


class CountDeferral(Effect, frozen=True):
    """One deferral more in a row."""


class ClearDefer(Effect, frozen=True):
    """Available at once."""


class CountFailure(Effect, frozen=True):
    """One failed life more."""


class CountCrash(Effect, frozen=True):
    """One lost life more."""


class NoteError(Effect, frozen=True):
    """Keep the caller's error text as the run's last error."""


class RenewSteps(Effect, frozen=True):
    """Succeeded steps are kept, every other gets a new record."""


class ReturnSteps(Effect, frozen=True):
    """Running steps hear *trigger* and give their attempt back."""

    trigger: Trigger


class CancelSteps(Effect, frozen=True):
    """Steps that have not ended are cancelled, each through the step machine."""

    reason: Reason


class FailSteps(Effect, frozen=True):
    """The run is dead: running steps hear *trigger* and fail, pending ones are skipped."""

    trigger: Trigger
    reason: Reason


class Finish(Effect, frozen=True):
    """The run ends now, for *reason*."""

    reason: Reason


class Reopen(Effect, frozen=True):
    """An ended run lives again: end, reason, budgets and cancel request cleared; its token stays."""


class Retire(Effect, frozen=True):
    """The run leaves the live document; its tombstone stays."""


class OpenAttempt(Effect, frozen=True):
    """The step's next attempt starts, under the run's present token."""


class CloseAttempt(Effect, frozen=True):
    """The step's running attempt ended, for *reason*."""

    reason: Reason


class DropAttempt(Effect, frozen=True):
    """The step's running attempt is given back, as if it had not started."""


class Explain(Effect, frozen=True):
    """The record of the step or worker says *reason*."""

    reason: Reason


class Occupy(Effect, frozen=True):
    """The slot gets the worker record that the caller describes."""


class Vacate(Effect, frozen=True):
    """The slot's worker record is removed."""


class Identify(Effect, frozen=True):
    """The worker is what the provider says it is: id and resources."""


class Assign(Effect, frozen=True):
    """The worker belongs to the caller's run."""


class Unassign(Effect, frozen=True):
    """The worker belongs to no run, nor is it kept for one."""


class ForgetAccepted(Effect, frozen=True):
    """Ends of accepted steps will never be seen: expect them no longer."""


class NextGeneration(Effect, frozen=True):
    """Same assignment, new compute: generation + 1."""


class PreviousGeneration(Effect, frozen=True):
    """The new compute was never made: generation - 1."""


RunEffect = (
    KillProcessGroup
    | MintToken
    | TakeLease
    | RevokeLease
    | Defer
    | CountDeferral
    | ClearDefer
    | CountFailure
    | CountCrash
    | NoteError
    | RenewSteps
    | ReturnSteps
    | CancelSteps
    | FailSteps
    | Finish
    | Reopen
    | Retire
)
StepEffect = KillProcessGroup | OpenAttempt | CloseAttempt | DropAttempt | Explain
WorkerEffect = (
    Occupy | Vacate | Identify | Assign | Unassign | ForgetAccepted | NextGeneration | PreviousGeneration | Explain
)
AnyEffect = RunEffect | StepEffect | WorkerEffect


class Moved(Struct, Generic[S], frozen=True):
    """The machine goes to `to` (a worker's None: no record), and the caller must perform `effects`, in order."""

    to: S
    effects: tuple[AnyEffect, ...] = ()


class Refused(Struct, frozen=True):
    """Nothing moved and nothing is owed. `denied` is where the trigger would have led; None: nowhere from here."""

    state: RunState | StepState | WorkerState | str | None
    event: Trigger | None
    denied: RunState | StepState | WorkerState | None
    why: Why


class Folded(Struct, Generic[S], frozen=True):
    """Where a history legally led, what it earned, and what stopped it, if anything did."""

    state: S
    effects: tuple[AnyEffect, ...]
    refused: Refused | None


def fold(
    machine: Callable[[S, Trigger, G], Moved[S] | Refused], state: S, history: Iterable[tuple[Trigger, G]]
) -> Folded[S]:
    """Run *history* through *machine* from *state*, up to its first refusal."""
    effects: list[AnyEffect] = []
    for trigger, guards in history:
        answer = machine(state, trigger, guards)
        if isinstance(answer, Refused):
            return Folded(state, tuple(effects), answer)
        state = answer.to
        effects.extend(answer.effects)
    return Folded(state, tuple(effects), None)


def every(guards: type[G]) -> Iterator[G]:
    """All combinations of *guards*, which `docs/machines.md` and the tests sweep.

    A reason is absent, a deferral, or another one: no machine tells more apart.
    """
    hints = get_type_hints(guards)
    return (guards(*values) for values in product(*(_values(hints[name]) for name in guards.__struct_fields__)))


def _values(hint: object) -> tuple[object, ...]:
    if hint is bool:
        return (True, False)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return tuple(hint)
    return (None, Reason.CONCURRENCY, Reason.TIMED_OUT)
