"""Facts become records: what a provider answered or was seen doing, told to the machines in order.

Every function works on a draft and may touch one slot's worker and the run that worker holds, nothing else: the store
checks an apply for just that. Folding a fact twice changes nothing the second time.
"""

from __future__ import annotations

from msgspec.structs import replace

from controller.engine.chance import Seeded
from controller.engine.lifecycle import holds, kept_for, let_go
from controller.model.action import Action
from controller.model.backoff import delay_ms
from controller.model.edit import Draft
from controller.model.inventory import Seen, SeenStep, SeenWorker, StepSeen
from controller.model.perform import Given, WorkerGiven, move_run, move_step, move_worker, skip_unreachable
from controller.model.policy import Backoff, Policy
from controller.model.reason import Reason
from controller.model.records import Run, RunState, Step, StepState, Worker, WorkerState
from controller.model.run import Aggregate, run_aggregate
from controller.model.transition import Trigger
from controller.model.worker import is_live


def delay(backoff: Backoff, attempt: int, *seed: object) -> int:
    """The wait in ms before *attempt* is tried again; the same seed gives the same wait."""
    return delay_ms(
        attempt,
        initial_ms=backoff.initial_ms,
        cap_ms=backoff.cap_ms,
        factor=backoff.factor,
        jitter=backoff.jitter,
        generator=Seeded(*seed),
    )


def after_backoff(given: Given, draft: Draft, run: Run, attempt: int, policy: Policy) -> Given:
    """*given* with the wait that the queue's backoff computes before *attempt*, and the longest that it ever does."""
    backoff = policy.of_queue(run.queue).backoff
    wait = delay(backoff, attempt, draft.document.lineage, run.id, run.attempts)
    return replace(given, delay_ms=wait, longest_ms=backoff.cap_ms)


def accept(draft: Draft, action: Action, seen: SeenStep | None, policy: Policy, *, sent_at: int) -> None:
    """The worker has durably accepted the step that *action*, last sent at *sent_at*, asked to execute."""
    key = action.idempotency_key
    worker = draft.workers.get(action.slot)
    if worker is None or key in worker.accepted or key in worker.settled:
        return
    draft.workers.put(action.slot, replace(worker, accepted=(*worker.accepted, key), running=key))
    run = None if action.run is None else draft.runs.get(action.run)
    # A restore raises the token of a run that goes on in the same life; what is of an earlier epoch has the old one.
    same_life = run is not None and (run.attempts == action.token or action.epoch != draft.document.epoch)
    if run is not None and action.step is not None and holds(worker, run) and same_life:
        if run.cancel_requested_at is None:
            given = replace(_report(run, key=key), at=_started_at(draft, run, seen, sent_at))
            move_step(draft, run.id, action.step, Trigger.STEP_STARTED, given)
    if seen is not None and not unknowable(seen):
        # Otherwise a look has to say first whether the worker is gone: then its life was lost, and no step failed.
        end_step(draft, action.slot, seen, policy)


def _started_at(draft: Draft, run: Run, seen: SeenStep | None, sent_at: int) -> int | None:
    """When a step began that has ended by now: when it was asked for. None: now, since it runs.

    An attempt that is opened now, however late its answer is applied, would say that its step ended now as well.
    """
    if seen is None or seen.ended_at is None:
        return None
    return min(draft.now, max(min(sent_at, seen.ended_at), run.started_at or run.created_at))


def end_step(draft: Draft, slot: int, seen: SeenStep, policy: Policy, *, killed: bool = False) -> bool:
    """Fold how an accepted step ended. False: it runs on, or its end was folded before. *killed*: by our cancel."""
    worker = draft.workers.get(slot)
    key = seen.idempotency_key
    if worker is None or key not in worker.accepted or seen.state is not StepSeen.EXITED:
        return False
    draft.workers.put(
        slot,
        replace(
            worker,
            accepted=tuple(each for each in worker.accepted if each != key),
            settled=(*worker.settled, key),
            running=None if worker.running == key else worker.running,
        ),
    )
    found = _attempt_of(draft, worker, key)
    if found is not None:
        run, step = found
        given = _report(run, key=key, seen=seen)
        if seen.exit_code == 0:
            trigger = Trigger.STEP_SUCCEEDED
        elif killed:
            trigger, given = Trigger.CANCEL_OBSERVED, replace(given, reason=Reason.CANCELLED)
        else:
            trigger = Trigger.STEP_FAILED
        move_step(draft, run.id, step.name, trigger, given)
        advance(draft, run.id, policy, error=describe_end(step, seen))
    return True


def advance(draft: Draft, run_id: str, policy: Policy, *, error: str | None = None) -> None:
    """Move a running run as far as its steps allow, and free its worker once it no longer runs.

    Nothing happens while a step, or a process that its worker accepted, may still run.
    """
    run = draft.runs.get(run_id)
    if run is None or run.state is not RunState.RUNNING or run.worker is None:
        return
    worker = draft.workers.get(run.worker.slot)
    if worker is None or not holds(worker, run) or worker.running is not None:
        return
    if run.cancel_requested_at is not None:
        move_run(draft, run_id, Trigger.CANCEL_OBSERVED, Given())
    else:
        skip_unreachable(draft, run_id)
        run = draft.runs.get(run_id) or run
        match run_aggregate(run.steps):
            case Aggregate.ACTIVE:
                return
            case Aggregate.FAILED:
                told = error or failure_of(run)
                given = replace(_report(run), reason=Reason.STEP_FAILED, error=told)
                given = after_backoff(given, draft, run, run.failures + 1, policy)
                move_run(draft, run_id, Trigger.ATTEMPT_FAILED, given)
            case Aggregate.CANCELLED | Aggregate.SUCCEEDED:
                move_run(draft, run_id, Trigger.ALL_STEPS_DONE, _report(run))
    let_go(draft, worker.slot, policy)


def cancel_done(draft: Draft, action: Action, target: str, seen: SeenStep | None, policy: Policy) -> None:
    """No process of the step that *target* started is left: fold how it ended, and end the run that wanted that."""
    worker = draft.workers.get(action.slot)
    if worker is None:
        return
    if worker.running == target:
        draft.workers.put(action.slot, replace(worker, running=None))
    if seen is None:
        _settle_unknown(draft, action.slot, target)
    if seen is None or not end_step(draft, action.slot, seen, policy, killed=True):
        found = _attempt_of(draft, worker, target)
        if found is not None:
            run, step = found
            move_step(
                draft, run.id, step.name, Trigger.CANCEL_OBSERVED, _report(run, key=target, reason=Reason.CANCELLED)
            )
    if worker.run is not None:
        advance(draft, worker.run, policy)


def _settle_unknown(draft: Draft, slot: int, key: str) -> None:
    """Nobody says how the step ended, and no process of it is left: its end is not waited for any more."""
    worker = draft.workers.get(slot)
    if worker is not None and key in worker.accepted:
        accepted = tuple(each for each in worker.accepted if each != key)
        draft.workers.put(slot, replace(worker, accepted=accepted, settled=(*worker.settled, key)))


def lose(draft: Draft, slot: int, policy: Policy) -> None:
    """The worker is proven gone: its run's lease is over, and nothing more will be heard of what it accepted."""
    worker = draft.workers.get(slot)
    if worker is None:
        return
    end_lease(draft, worker, policy)
    if is_live(worker.state):  # else it was lost or stopped before, seen alive, and is gone again
        released = kept_for(draft, worker, policy) is None
        move_worker(draft, slot, Trigger.SEEN_GONE, WorkerGiven(data_gone=True, proven=released))
    lost = draft.workers.get(slot)
    if lost is not None:
        draft.workers.put(slot, replace(lost, running=None, absent=None))


def end_lease(draft: Draft, worker: Worker, policy: Policy) -> None:
    """The worker's compute is proven gone or stopped: a run it holds goes back to its queue, or is dead."""
    run = None if worker.run is None else draft.runs.get(worker.run)
    if run is not None and holds(worker, run):
        error = f"worker in slot {worker.slot} was lost"
        given = Given(reason=Reason.WORKER_LOST, error=error, lease_over=True)
        move_run(draft, run.id, Trigger.LEASE_EXPIRED, after_backoff(given, draft, run, run.crashes + 1, policy))


def go_dark(draft: Draft, slot: int, policy: Policy) -> None:
    """The worker's compute is off though nobody asked here: its data is kept, its run goes on elsewhere."""
    worker = draft.workers.get(slot)
    if worker is not None and worker.state in (WorkerState.READY, WorkerState.ASSIGNED, WorkerState.RELEASED):
        end_lease(draft, worker, policy)
        released = kept_for(draft, worker, policy) is None
        move_worker(draft, slot, Trigger.DEALLOCATE, WorkerGiven(reason=Reason.SEEN_DARK, proven=released))
        draft.workers.put(slot, replace(draft.workers.get(slot) or worker, running=None))


def fold_steps(draft: Draft, slot: int, seen: SeenWorker, policy: Policy) -> None:
    """Fold the ends that a worker shows: it repeats each until an action lists its key as settled.

    An end that nobody can know, on a worker that is gone or off, is no failure of the step: the life was lost with its
    compute. Such an end is folded once the run is held no more.
    """
    worker = draft.workers.get(slot)
    held = worker is not None and worker.run is not None and holds(worker, draft.runs.get(worker.run))
    for step in seen.steps:
        if not (unknowable(step) and held and seen.state in (Seen.GONE, Seen.DARK)):
            end_step(draft, slot, step, policy)


def unknowable(step: SeenStep) -> bool:
    """The step has ended, and nobody can know how."""
    return step.state is StepSeen.EXITED and step.exit_code is None and step.signal is None


def describe_end(step: Step, seen: SeenStep) -> str | None:
    """How a step ended, in words; None when it succeeded."""
    if seen.exit_code == 0:
        return None
    if not seen.started:
        how = "never started"
    elif seen.timed_out:
        how = "ran out of time"
    elif seen.signal is not None:
        how = f"was killed by signal {seen.signal}"
    elif seen.exit_code is not None:
        how = f"exited with {seen.exit_code}"
    else:
        how = "ended, and how cannot be known"
    return f"step {step.name} {how}" + (f": {seen.reason}" if seen.reason else "")


def failure_of(run: Run) -> str | None:
    """The first step in order that failed in this life, and how, in words."""
    for step in run.steps:
        if step.state is StepState.FAILED and step.attempts:
            last = step.attempts[-1]
            seen = SeenStep(last.key, StepSeen.EXITED, exit_code=last.exit_code, signal=last.signal)
            started = last.reason is not Reason.NOT_STARTED
            return describe_end(step, replace(seen, started=started, timed_out=last.reason is Reason.TIMED_OUT))
    return None


def _reason_of(seen: SeenStep) -> Reason:
    if seen.exit_code == 0:
        return Reason.COMPLETED
    if not seen.started:
        return Reason.NOT_STARTED
    if seen.timed_out:
        return Reason.TIMED_OUT
    if seen.signal is not None:
        return Reason.KILLED_BY_SIGNAL
    return Reason.EXIT_CODE if seen.exit_code is not None else Reason.END_UNKNOWN


def _report(run: Run, *, key: str = "", seen: SeenStep | None = None, reason: Reason | None = None) -> Given:
    """What the run's holder reports, under the token of the life the fact belongs to."""
    given = Given(token=run.attempts, worker=run.worker, key=key, reason=reason)
    if seen is None:
        return given
    return replace(given, exit_code=seen.exit_code, signal=seen.signal, at=seen.ended_at, reason=_reason_of(seen))


def _attempt_of(draft: Draft, worker: Worker, key: str) -> tuple[Run, Step] | None:
    """The running step whose attempt *key* opened, if the worker still holds its run."""
    run = None if worker.run is None else draft.runs.get(worker.run)
    if run is None or not holds(worker, run):
        return None
    for step in run.steps:
        if step.state is StepState.RUNNING and step.attempts and step.attempts[-1].key == key:
            return run, step
    return None
