"""History folded through the machines: every event is put to `apply_run`, `apply_step` or `apply_worker` once more.

Not promised: what no event tells. A guard that history keeps nothing of (when a run was due, how its holder was proven
gone) is taken as met, since the event was committed. Budgets are those of the record; where the events before the first
known one are missing, or the record keeps none, what the event says decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from controller.model import transition as t
from controller.model.reason import Reason
from controller.model.records import Event, Run, RunState, Step, StepState, Tombstone, WorkerState
from controller.model.refusal import REFUSALS
from controller.model.run import RunGuards, apply_run, parse_run_state, run_aggregate
from controller.model.step import StepGuards, apply_step, parse_step_state
from controller.model.transition import Folded, Refused, Trigger
from controller.model.worker import WorkerGuards, apply_worker, parse_worker_state

_State = RunState | StepState | WorkerState
_OF_HOLDERS: Final = ("heartbeat", "lease_shortened")
"""What history tells of a consumer that holds a run, though the machine knows no such event."""


class RunPath:
    """Where the events of one run lead. Feed them oldest first to `hear`.

    `wrong` holds, in sentences, every event that its machine refuses or would have led elsewhere; what follows is then
    folded from where history says that it led.
    """

    def __init__(self, record: Run | Tombstone, events: Sequence[Event], *, whole: bool) -> None:
        self.record = record
        self.state = RunState.QUEUED if whole else _begun(record, events)
        self.token: int | None = None
        self.failures = 0
        self.crashes = 0
        self.cancel: Reason | None = None
        self.wrong: list[str] = []
        self.counted = whole
        """The budgets spent are known: the story is whole, or an operator has cleared them since it begins."""
        began = {} if whole else _steps_begun(record, events)
        self.steps: dict[str, Step] = {
            step.name: replace(step, state=began.get(step.name, StepState.PENDING)) for step in record.steps
        }
        self.opened: dict[str, int] = {}
        self._ending = {e.revision for e in events if e.event == Trigger.ATTEMPT_FAILED and e.to == RunState.FAILED}

    def hear(self, event: Event) -> None:
        trigger = _trigger(event)
        if event.event == "submitted":
            self.token = event.token
        elif event.event == "cancel_requested":
            self.cancel = event.reason or Reason.CANCELLED
        elif event.event in _OF_HOLDERS:
            self._hear_of_holder(event)
        elif event.event == "discarded":
            self._hear_of_discard(event)
        elif trigger is not None and event.step is not None:
            self._hear_of_step(event, event.step, trigger)
        elif trigger is not None:
            self._hear_of_run(event, trigger)

    def differences(self) -> tuple[str, ...]:
        """What the record says otherwise than the events that were heard, in sentences."""
        record, found = self.record, []
        token = record.attempts if isinstance(record, Run) else record.token
        pairs: list[tuple[str, object, object]] = [("state", self.state, record.state)]
        if self.token is not None:
            pairs.append(("last life", self.token, token))
        if self.counted and isinstance(record, Run):
            pairs += [("failed lives", self.failures, record.failures), ("lost lives", self.crashes, record.crashes)]
            asked = {True: "requested", False: "not requested"}
            pairs.append(("cancel", asked[self.cancel is not None], asked[record.cancel_requested_at is not None]))
        pairs += [(f"step {step.name}", self._step(step.name).state, step.state) for step in record.steps]
        for what, told, recorded in pairs:
            if told != recorded:
                found.append(f"{what}: history says {told}, the document says {recorded}")
        return tuple(found)

    def _hear_of_holder(self, event: Event) -> None:
        """Nothing moves; but somebody must have held the run, under its present token."""
        self.wrong += _gap(event, self.state, RunState.RUNNING)
        if self.token is not None and event.token != self.token:
            self.wrong.append(f"{_named(event)} under token {event.token}, but the last one given was {self.token}")

    def _hear_of_discard(self, event: Event) -> None:
        """No event of the machine, which moves only what stays in the document: it takes what has ended out."""
        came = parse_run_state(event.from_ or "")
        if isinstance(came, Refused):
            self.wrong.append(_nameless(event, came))
            return
        self.wrong += _gap(event, self.state, came)
        if came not in (RunState.FAILED, RunState.CANCELLED):
            self.wrong.append(f"{_named(event)} from {came}: only what has failed or is cancelled is taken out")
        self.state = RunState.CANCELLED

    def _hear_of_run(self, event: Event, trigger: Trigger) -> None:
        came, to = parse_run_state(event.from_ or ""), parse_run_state(event.to or "")
        if isinstance(came, Refused) or isinstance(to, Refused):
            self.wrong.append(_nameless(event, came if isinstance(came, Refused) else to))
            return
        self.wrong += _gap(event, self.state, came)
        folded = apply_run([(trigger, self._run_guards(event, trigger, to))], came)
        self.wrong += _judged(event, folded, to)
        self.state = to
        for effect in folded.effects:
            self._perform(effect, event)

    def _hear_of_step(self, event: Event, name: str, trigger: Trigger) -> None:
        came, to = parse_step_state(event.from_ or ""), parse_step_state(event.to or "")
        if isinstance(came, Refused) or isinstance(to, Refused):
            self.wrong.append(_nameless(event, came if isinstance(came, Refused) else to))
            return
        step = self._step(name)
        self.wrong += _gap(event, step.state, came)
        folded = apply_step([(trigger, self._step_guards(event, step, to))], came)
        self.wrong += _judged(event, folded, to)
        self.steps[name] = replace(step, state=to)
        for effect in folded.effects:
            match effect:
                case t.OpenAttempt():
                    self.opened[name] = self.opened.get(name, 0) + 1
                case t.DropAttempt():
                    self.opened[name] = max(0, self.opened.get(name, 0) - 1)

    def _run_guards(self, event: Event, trigger: Trigger, to: RunState) -> RunGuards:
        budget = self.record if self.counted and isinstance(self.record, Run) else None
        cancel = self.cancel
        if cancel is None and not self.counted and to is RunState.CANCELLED and trigger is not Trigger.CANCEL_OBSERVED:
            cancel = event.reason
        ended = to is RunState.FAILED and event.reason is not Reason.ATTEMPTS_EXHAUSTED
        return RunGuards(
            cancel=cancel,
            lease_over=True,
            steps=run_aggregate(self.steps.values()),
            failures_left=to is RunState.QUEUED if budget is None else self.failures + 1 < budget.max_attempts,
            crashes_left=to is RunState.QUEUED if budget is None else self.crashes + 1 < budget.max_crashes,
            final=ended or (budget is not None and budget.max_attempts <= 1),
            reason=event.reason,
        )

    def _step_guards(self, event: Event, step: Step, to: StepState) -> StepGuards:
        known = self.counted and isinstance(self.record, Run)
        again = to is StepState.PENDING
        crashes = self.record.max_crashes if isinstance(self.record, Run) else 0
        return StepGuards(
            cancel_requested=self.cancel is not None,
            needs_met=all(self._step(need).state is StepState.SUCCEEDED for need in step.needs),
            attempts_left=self._may_try_again(event, step) if known else again,
            survivable=(self.cancel is None and self.crashes + 1 < crashes) if known else again,
            reason=event.reason,
        )

    def _may_try_again(self, event: Event, step: Step) -> bool:
        """A step that its run's last failure took down has no attempts left, however many it may have."""
        last = event.to == StepState.FAILED and event.revision in self._ending
        return not last and self.opened.get(step.name, 0) < step.max_attempts

    def _perform(self, effect: t.AnyEffect, event: Event) -> None:
        match effect:
            case t.MintToken():
                last = self.token or 0
                if event.token is not None and event.token <= last:
                    self.wrong.append(f"{_named(event)} gave token {event.token} after token {last}: tokens only climb")
                self.token = last + 1 if event.token is None else event.token
            case t.CountFailure():
                self.failures += 1
            case t.CountCrash():
                self.crashes += 1
            case t.RenewSteps():
                kept = StepState.SUCCEEDED
                self.opened.clear()
                for name, step in self.steps.items():
                    self.steps[name] = step if step.state is kept else replace(step, state=StepState.PENDING)
            case t.Reopen():
                self.failures, self.crashes, self.cancel, self.counted = 0, 0, None, True

    def _step(self, name: str) -> Step:
        """The step as heard so far; one that the record does not have was pending."""
        return self.steps.get(name) or Step(name, ())


_OWNED_OR_LOST: Final = ((False, False), (True, False), (False, True), (True, True))


class WorkerPath:
    """Where the events of one slot lead its worker, as `RunPath` tells of runs."""

    def __init__(self, *, whole: bool) -> None:
        self.state: WorkerState | None = None
        self.wrong: list[str] = []
        self._known = whole
        self._generation = 1

    def hear(self, event: Event) -> None:
        trigger = _trigger(event)
        if trigger is None:
            return
        came = None if event.from_ is None else parse_worker_state(event.from_)
        to = None if event.to is None else parse_worker_state(event.to)
        if isinstance(came, Refused) or isinstance(to, Refused):
            self.wrong.append(_nameless(event, came if isinstance(came, Refused) else to))
            return
        if self._known:
            self.wrong += _gap(event, self.state, came)
        self._known = True
        # Which generation a slot's first known worker had is not told; where its create led tells.
        resumed = self._generation > 1 or to in (WorkerState.DEALLOCATED, WorkerState.LOST)
        # Nor is whether it was assigned, or lost before it was resumed: one of the four has to lead where it went.
        ways = (WorkerGuards(owned=o, resumed=resumed, was_lost=w, reason=event.reason) for o, w in _OWNED_OR_LOST)
        tried = [apply_worker([(trigger, guards)], came) for guards in ways]
        folded = next((each for each in tried if each.refused is None and each.state is to), tried[0])
        self.wrong += _judged(event, folded, to)
        self.state = to
        for effect in folded.effects:
            match effect:
                case t.Occupy():
                    self._generation = 1
                case t.NextGeneration():
                    self._generation += 1
                case t.PreviousGeneration():
                    self._generation -= 1


def _begun(record: Run | Tombstone, events: Sequence[Event]) -> RunState:
    """The state before the first of *events*: what it says, or what the record says when none does."""
    for event in events:
        if event.step is None and event.from_ is not None:
            state = parse_run_state(event.from_)
            return state if isinstance(state, RunState) else record.state
    return record.state


def _steps_begun(record: Run | Tombstone, events: Sequence[Event]) -> Mapping[str, StepState]:
    """The state of each step before *events*: what the first about it says, or what the record says."""
    began = {step.name: step.state for step in record.steps}
    for event in reversed(events):
        if event.step is not None:
            state = parse_step_state(event.from_ or "")
            began[event.step] = state if isinstance(state, StepState) else StepState.PENDING
    return began


def _trigger(event: Event) -> Trigger | None:
    try:
        return Trigger(event.event)
    except ValueError:
        return None


def _named(event: Event) -> str:
    step = f" of step {event.step}" if event.step is not None else ""
    return f"history says that {event.event}{step} (revision {event.revision}) led to {event.to or 'no record'}"


def _nameless(event: Event, state: object) -> str:
    name = state.state if isinstance(state, Refused) else state
    return f"{_named(event)}: there is no state {name!r}"


def _gap(event: Event, before: _State | None, came: _State | None) -> list[str]:
    if before == came:
        return []
    there = "no record" if came is None else came
    return [f"{_named(event)} from {there}, but what came before led to {before or 'no record'}"]


def _judged(
    event: Event, folded: Folded[RunState] | Folded[StepState] | Folded[WorkerState | None], to: _State | None
) -> list[str]:
    if folded.refused is not None:
        why = folded.refused.why
        return [f"{_named(event)}, which is refused: {REFUSALS[why].text} ({why})"]
    if folded.state != to:
        return [f"{_named(event)}, but it leads to {folded.state or 'no record'}"]
    return []
