"""The only place that edits a machine's state: it asks the machine, performs the effects on a draft, records one event.

Not promised: that anything outside the document happened. `KillProcessGroup` is a demand on the caller and comes first
among the effects: the `Moved` that is returned carries it, and the caller must have met it before it commits the draft.

All functions here either raise `TransitionRefused` or `NotFound` and leave the draft as it was, or put every changed
record into it with one event per transition: on `run:R` for a run and (with `step`) for its steps, on `slot:N` for a
worker. A caller that moves a run and its worker must move the run first: a worker is free once its run says so.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any, assert_never

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from controller.model import refusal
from controller.model import transition as t
from controller.model.edit import Draft
from controller.model.errors import ControllerError, NotFound
from controller.model.given import Given, WorkerGiven, holds, run_guards, step_guards, worker_guards
from controller.model.reason import Reason
from controller.model.records import (
    Attempt,
    Lease,
    Run,
    RunState,
    Step,
    StepState,
    Tombstone,
    Worker,
    WorkerState,
)
from controller.model.run import is_terminal, next_run
from controller.model.step import StepGuards, is_blocking, next_step
from controller.model.transition import Moved, Refused, Trigger, Why
from controller.model.views import waits_since
from controller.model.worker import next_worker

__all__ = [
    "move_run",
    "move_step",
    "move_worker",
    "request_cancel",
    "skip_unreachable",
    "extend_lease",
    "discard",
    "Given",
    "WorkerGiven",
]


def move_run(draft: Draft, run_id: str, trigger: Trigger, given: Given) -> Moved[RunState]:
    """Move a run. Raises NotFound, or TransitionRefused naming both sides, and then the draft is as it was.

    The caller must look at `to`: a claim of a run whose cancel was requested cancels it instead.
    """
    run = draft.runs.get(run_id)
    if run is None:
        raise _retired(draft, run_id, trigger, given)
    guards = run_guards(draft, run, trigger, given)
    moved = next_run(run.state, trigger, guards)
    if isinstance(moved, Refused):
        raise refusal.of_run(run, moved, given.token, draft.now)
    if trigger is Trigger.CLAIM and (given.worker is None) == (given.lease is None):
        raise ControllerError("a claim needs exactly one of worker and lease", where=f"run:{run_id}")
    scene = _Scene(draft, given, moved.to)
    scene.run = run
    for effect in moved.effects:
        _perform(effect, scene)
    scene.change(state=moved.to)
    if scene.revoked and run.lease is not None and given.token is not None:
        scene.change(reported=guards.reason or scene.reason or Reason.COMPLETED)
    after = scene.run
    if scene.retired:
        draft.runs.remove(run_id)
        draft.finished.put(run_id, _tombstone(run, after, given))
    else:
        draft.runs.put(run_id, after)
    draft.event(
        f"run:{run_id}",
        trigger,
        run.state,
        moved.to,
        reason=scene.reason or guards.reason,
        token=after.attempts,
        key=given.key or None,
        detail=given.error,
    )
    return moved


def move_step(draft: Draft, run_id: str, step: str, trigger: Trigger, given: Given) -> Moved[StepState]:
    """Move one step of a run, after checking on the run that the caller holds it. Raises as `move_run` does."""
    run = draft.runs.get(run_id)
    if run is None:
        raise _retired(draft, run_id, trigger, given)
    found = next((each for each in run.steps if each.name == step), None)
    if not holds(run, trigger, given):
        refused = Refused(run.state if found is None else found.state, trigger, None, Why.STALE_LEASE)
        raise refusal.of_run(run, refused, given.token, draft.now, step=step)
    if found is None:
        raise NotFound(
            f"run {run_id} has no step {step}", where=f"run:{run_id}", next=f"see `controller show {run_id}`"
        )
    after, moved = _move_step(draft, run, found, trigger, given, step_guards(run, found, given))
    draft.runs.put(run_id, after)
    return moved


def move_worker(draft: Draft, slot: int, trigger: Trigger, given: WorkerGiven) -> Moved[WorkerState | None]:
    """Move the worker of *slot*, or make its record, or remove it. Raises TransitionRefused; then nothing changed."""
    worker = draft.workers.get(slot)
    state = None if worker is None else worker.state
    moved = next_worker(state, trigger, worker_guards(draft, worker, given))
    if isinstance(moved, Refused):
        raise refusal.of_worker(slot, worker, moved)
    if worker is None and not (given.assignment and given.provider):
        raise ControllerError(f"{trigger} needs an assignment and a provider", where=f"slot:{slot}")
    if trigger is Trigger.CLAIM and given.run is None:
        raise ControllerError("a claim of a worker needs the run", where=f"slot:{slot}")
    scene = _Scene(draft, Given(), moved.to)
    scene.slot, scene.facts = slot, given
    if worker is not None:
        scene.worker = worker
    for effect in moved.effects:
        _perform(effect, scene)
    if moved.to is None:
        draft.workers.remove(slot)
    else:
        draft.workers.put(slot, replace(scene.worker, state=moved.to, changed_at=draft.now))
    reason = scene.reason or given.reason
    draft.event(
        f"slot:{slot}",
        trigger,
        state,
        moved.to,
        reason=reason,
        token=given.token,
        key=given.key or None,
        detail=given.detail,
    )
    return moved


def request_cancel(draft: Draft, run_id: str, reason: Reason = Reason.CANCELLED) -> bool:
    """Note on a run that it shall be cancelled, and why; only an operator's retry takes that back.

    False, and no event: it was requested before, or the run is cancelled. Raises NotFound, or TransitionRefused if the
    run ended otherwise. It moves nothing: a queued run must still be moved by `cancel_observed`.
    """
    run = draft.runs.get(run_id)
    given = Given(reason=reason)
    if run is None:
        raise _retired(draft, run_id, Trigger.CANCEL_OBSERVED, given)
    if run.cancel_requested_at is not None or run.state is RunState.CANCELLED:
        return False
    if is_terminal(run.state):
        refused = Refused(run.state, Trigger.CANCEL_OBSERVED, None, Why.ILLEGAL_TRANSITION)
        raise refusal.of_run(run, refused, None, draft.now)
    draft.runs.put(run_id, replace(run, cancel_requested_at=draft.now, reason=reason))
    draft.event(f"run:{run_id}", "cancel_requested", run.state, run.state, reason=reason, token=run.attempts)
    return True


def extend_lease(draft: Draft, run_id: str, token: int, lease: Lease, *, progress: Raw | UnsetType = UNSET) -> Run:
    """Renew the lease of a consumer that holds the run under *token*, and keep what it says of its progress.

    Raises as `move_run` does. Nothing moves: a lease that ran out and was not taken back yet is still its holder's.
    """
    given = Given(token=token)
    run = draft.runs.get(run_id)
    if run is None:
        raise _retired(draft, run_id, "heartbeat", given)
    if run.lease is None or not holds(run, Trigger.ALL_STEPS_DONE, given):
        raise refusal.of_run(run, Refused(run.state, None, None, Why.STALE_LEASE), token, draft.now, asked="heartbeat")
    after = replace(run, lease=lease, progress=run.progress if progress is UNSET else progress)
    draft.runs.put(run_id, after)
    draft.event(f"run:{run_id}", "heartbeat", run.state, run.state, token=token)
    return after


def discard(draft: Draft, run_id: str, reason: Reason) -> Tombstone:
    """Take a run out of the document for good, whatever its state; its holder is shut out. Raises NotFound.

    A caller must have refused what a worker holds: nothing here ends a process.
    """
    run = draft.runs.get(run_id)
    if run is None:
        raise _retired(draft, run_id, "discard", Given())
    if not is_terminal(run.state):
        move_run(draft, run_id, Trigger.CANCEL_OBSERVED, Given(reason=reason))
    ended = draft.runs.get(run_id) or run
    stone = replace(_tombstone(run, ended, Given()), state=RunState.CANCELLED, reason=reason)
    draft.runs.remove(run_id)
    draft.finished.put(run_id, stone)
    draft.event(f"run:{run_id}", "discarded", ended.state, RunState.CANCELLED, reason=reason, token=ended.attempts)
    return stone


def skip_unreachable(draft: Draft, run_id: str) -> tuple[str, ...]:
    """Skip every pending step behind a failed, skipped or cancelled one, however far behind; return their names.

    The caller must do so before `all_steps_done`, which is refused while a step is pending. Raises NotFound.
    """
    run = draft.runs.get(run_id)
    if run is None:
        raise _retired(draft, run_id, Trigger.UPSTREAM_FAILED, Given())
    if not any(is_blocking(step.state) for step in run.steps):
        return ()
    dependents: dict[str, list[int]] = {}
    for index, step in enumerate(run.steps):
        for need in step.needs:
            dependents.setdefault(need, []).append(index)
    behind = [index for step in run.steps if is_blocking(step.state) for index in dependents.get(step.name, ())]
    heapify(behind)  # the first in order of the list comes first, without a look at all steps for each
    skipped: list[str] = []
    while behind:
        step = run.steps[heappop(behind)]
        if step.state is StepState.PENDING:
            run, _ = _move_step(draft, run, step, Trigger.UPSTREAM_FAILED, Given(), StepGuards())
            skipped.append(step.name)
            for index in dependents.get(step.name, ()):
                heappush(behind, index)
    if skipped:
        draft.runs.put(run_id, run)
    return tuple(skipped)


class _Scene:
    """What one transition works on. Only its own machine's record is set: an effect of another machine is a bug.

    Changes of the run are collected until somebody looks at it: a new record for each effect is what takes the time.
    """

    step: Step
    worker: Worker
    slot: int
    facts: WorkerGiven
    _run: Run

    def __init__(self, draft: Draft, given: Given, to: RunState | StepState | WorkerState | None) -> None:
        self.draft = draft
        self.given = given
        self.to = to
        self.reason: Reason | None = None
        self.retired = False
        self.revoked = False
        self._changes: dict[str, Any] = {}

    @property
    def run(self) -> Run:
        if self._changes:
            self._run = replace(self._run, **self._changes)
            self._changes = {}
        return self._run

    @run.setter
    def run(self, run: Run) -> None:
        self._run, self._changes = run, {}

    def field(self, name: str) -> Any:
        """One of the run's, with the changes so far."""
        return self._changes[name] if name in self._changes else getattr(self._run, name)

    def change(self, **fields: Any) -> None:
        self._changes |= fields


def _perform(effect: t.AnyEffect, scene: _Scene) -> None:
    draft, given = scene.draft, scene.given
    match effect:
        # What ends and begins a life comes first: each case that does not match takes its time.
        case t.RevokeLease():
            scene.change(worker=None, lease=None)
            scene.revoked = True
        case t.Finish(reason):
            began = scene.field("started_at") or scene.field("created_at")
            scene.change(finished_at=max(draft.now, began), reason=reason)
            scene.reason = reason
        case t.Retire():
            scene.retired = True
        case t.MintToken():
            scene.change(
                attempts=scene.run.attempts + 1,
                deferrals=0,
                started_at=max(draft.now, scene.run.created_at),
                finished_at=None,
                reason=None,
                progress=UNSET,
                reported=None,
                next=None,
            )
        case t.TakeLease():
            scene.change(worker=given.worker, lease=given.lease)
        case t.ClearDefer():
            since = min(draft.now, waits_since(scene.run)) if scene.to is RunState.QUEUED else None
            scene.change(available_at=None, longest_ms=None, defer_reason=None, waiting_since=since)
        case t.KillProcessGroup():
            pass  # the caller's: see the top of this file
        case t.Defer(reason):
            wait = max(0, given.delay_ms or 0)
            deferred = {"available_at": draft.now + wait, "longest_ms": given.longest_ms if wait else 0}
            # One that waits for its key goes on waiting for a holder; whoever comes back, or is put off, begins anew.
            since = waits_since(scene.run) if scene.run.state is RunState.QUEUED and not wait else None
            scene.change(**deferred, defer_reason=reason, waiting_since=since)
            scene.reason = reason
        case t.CountDeferral():
            scene.change(deferrals=scene.run.deferrals + 1)
        case t.CountFailure():
            scene.change(failures=scene.run.failures + 1)
        case t.CountCrash():
            scene.change(crashes=scene.run.crashes + 1)
        case t.NoteError():
            scene.change(last_error=scene.run.last_error if given.error is None else given.error)
        case t.RenewSteps():
            scene.change(steps=tuple(_renewed(step) for step in scene.run.steps))
        case t.ReturnSteps(trigger):
            _each_step(scene, StepState.RUNNING, trigger, StepGuards(survivable=True))
        case t.CancelSteps(reason):
            _each_step(scene, StepState.PENDING, Trigger.CANCEL_OBSERVED, StepGuards(reason=reason))
            _each_step(scene, StepState.RUNNING, Trigger.CANCEL_OBSERVED, StepGuards(reason=reason))
        case t.FailSteps(trigger, reason):
            _each_step(scene, StepState.RUNNING, trigger, StepGuards(survivable=False, reason=reason))
            _each_step(scene, StepState.PENDING, Trigger.UPSTREAM_FAILED, StepGuards())
        case t.Reopen():
            scene.change(
                failures=0,
                crashes=0,
                deferrals=0,
                cancel_requested_at=None,
                started_at=None,
                finished_at=None,
                reason=None,
                waiting_since=draft.now,
            )
        case t.OpenAttempt():
            attempt = Attempt(len(scene.step.attempts) + 1, draft.now if given.at is None else given.at, given.key)
            attempts = (*scene.step.attempts, attempt)
            scene.step = replace(scene.step, attempts=attempts, token=scene.run.attempts, reason=None)
        case t.CloseAttempt(reason):
            scene.step = replace(scene.step, attempts=_closed(scene.step.attempts, reason, given, draft.now))
        case t.DropAttempt():
            scene.step = replace(scene.step, attempts=scene.step.attempts[:-1], reason=None)
        case t.Explain(reason):
            scene.reason = reason
            if isinstance(scene.to, StepState):
                scene.step = replace(scene.step, reason=reason)
            else:
                scene.worker = replace(scene.worker, reason=reason)
        case t.Occupy():
            facts = scene.facts
            scene.worker = Worker(
                slot=scene.slot,
                assignment=facts.assignment or "",
                generation=1 if facts.generation is None else facts.generation,
                provider=facts.provider,
                created_at=draft.now,
                changed_at=draft.now,
                reserved=facts.reserved,
                reason=facts.reason,
            )
        case t.Vacate():
            pass  # the state None says it: the record is removed
        case t.Identify():
            made = {"id": scene.facts.id, "resources": scene.facts.resources, "reason": None, "was": None}
            scene.worker = replace(scene.worker, **made, dark_at=None, idle_since=None)
        case t.Assign():
            runs = scene.worker.runs + 1
            taken = {"run": scene.facts.run, "reserved": None, "reason": None, "proof": ""}
            scene.worker = replace(scene.worker, **taken, runs=runs)
        case t.Unassign():
            scene.worker = replace(scene.worker, run=None, reserved=None, idle_since=None)
        case t.ForgetAccepted():
            scene.worker = replace(scene.worker, accepted=())
        case t.NextGeneration():
            again = {"generation": scene.worker.generation + 1, "was": scene.worker.state, "absent": None}
            scene.worker = replace(scene.worker, **again)
        case t.PreviousGeneration():
            scene.worker = replace(scene.worker, generation=scene.worker.generation - 1, was=None)
        case _:
            assert_never(effect)


def _move_step(
    draft: Draft, run: Run, step: Step, trigger: Trigger, given: Given, guards: StepGuards
) -> tuple[Run, Moved[StepState]]:
    moved = next_step(step.state, trigger, guards)
    if isinstance(moved, Refused):
        raise refusal.of_run(run, moved, given.token, draft.now, step=step.name)
    scene = _Scene(draft, given, moved.to)
    scene.run, scene.step = run, step
    for effect in moved.effects:
        _perform(effect, scene)
    after = replace(scene.step, state=moved.to)
    draft.event(
        f"run:{run.id}",
        trigger,
        step.state,
        moved.to,
        reason=scene.reason or given.reason,
        token=run.attempts,
        key=given.key or None,
        step=step.name,
    )
    steps = tuple(after if each.name == step.name else each for each in run.steps)
    return replace(run, steps=steps), moved


def _each_step(scene: _Scene, state: StepState, trigger: Trigger, guards: StepGuards) -> None:
    for step in scene.run.steps:
        if step.state is state:
            scene.run, _ = _move_step(scene.draft, scene.run, step, trigger, Given(at=scene.given.at), guards)


def _renewed(step: Step) -> Step:
    if step.state is StepState.SUCCEEDED:
        return step
    return replace(step, state=StepState.PENDING, token=0, attempts=(), reason=None)


def _closed(attempts: tuple[Attempt, ...], reason: Reason, given: Given, now: int) -> tuple[Attempt, ...]:
    # A clock that went back must not leave a record that says an end came before its start.
    ended_at = max(now if given.at is None else given.at, attempts[-1].started_at)
    end = replace(attempts[-1], ended_at=ended_at, exit_code=given.exit_code, signal=given.signal, reason=reason)
    return (*attempts[:-1], end)


def _tombstone(held: Run, ended: Run, given: Given) -> Tombstone:
    return Tombstone(
        id=ended.id,
        queue=ended.queue,
        sequence=ended.sequence,
        token=ended.attempts,
        created_at=ended.created_at,
        finished_at=ended.created_at if ended.finished_at is None else ended.finished_at,
        state=ended.state,
        content=ended.content,
        worker=held.worker,
        owner=None if held.lease is None else held.lease.owner,
        steps=ended.steps,
        reason=ended.reason,
        result=given.result,
    )


def _retired(draft: Draft, run_id: str, asked: str, given: Given) -> ControllerError:
    """What to raise for a run that is not in the live document."""
    stone = draft.finished.get(run_id)
    if stone is None:
        return NotFound(f"there is no run {run_id}", where=f"run:{run_id}", next="see `controller runs`")
    return refusal.of_tombstone(stone, asked, given.token)
