"""What consumers do with runs of a queue: claim, heartbeat, report. Each is one commit.

Not promised: that a run is done once. A holder may do its work and die before it says so, and the run is given to
another then: at least once. Promised is that only the holder of the present life ends it: every verb after the claim
carries the token, and the fence comes first.

A lease that ran out ends nothing by itself. Until somebody takes the run back (`upkeep.reap`) its holder may still
renew or complete it.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from controller.engine.discovery import Finder, count_claim, is_paused
from controller.engine.fold import after_backoff, failure_of
from controller.engine.queue import Context, is_over, live
from controller.engine.submission import check_bytes, refuse_held
from controller.model.edit import Draft
from controller.model.errors import Conflict, UsageFault
from controller.model.perform import Given, extend_lease, move_run, move_step, skip_unreachable
from controller.model.perform import discard as take_away
from controller.model.policy import DEFAULT_QUEUE, LONGEST_LEASE_MS, MOST_CLAIMS
from controller.model.reason import Reason
from controller.model.records import (
    ID_GRAMMAR,
    Document,
    Handed,
    Lease,
    Run,
    RunState,
    StepState,
    Tombstone,
    is_id,
)
from controller.model.run import Aggregate, run_aggregate
from controller.model.transition import Trigger

LONGEST_ERROR: Final = 4_000
"""Characters of an error that are kept; what is beyond is cut, and says so."""
FAILURES: Final = frozenset(
    {
        Reason.CONSUMER_FAILED,
        Reason.INVALID_PAYLOAD,
        Reason.STEP_FAILED,
        Reason.EXIT_CODE,
        Reason.KILLED_BY_SIGNAL,
        Reason.TIMED_OUT,
        Reason.NOT_STARTED,
        Reason.END_UNKNOWN,
        Reason.UPSTREAM_FAILED,
        Reason.REJECTED,
    }
)
"""What a holder may give as the reason for a failure."""


class Completed(Struct, frozen=True):
    """What became of the run, and the next one of its queue that the same holder got, if that was asked for.

    `repeated`: this was reported before, and the answer is what it was then.
    """

    run: Run | Tombstone
    next: Run | None = None
    repeated: bool = False


def remaining_ms(lease: Lease, boot_id: str, mono_ms: int) -> int:
    """How long the lease still lasts: never longer than it was granted for."""
    left = lease.deadline_ms - mono_ms if lease.boot_id == boot_id else 0
    return max(0, min(left, lease.granted_ms))


def granted(context: Context, document: Document, owner: str, lease_ms: int) -> Lease:
    """A lease of *lease_ms* from now on."""
    return Lease(owner, context.boot_id, context.mono_ms + lease_ms, lease_ms, document.epoch)


def claim(
    context: Context,
    queue: str = DEFAULT_QUEUE,
    *,
    owner: str,
    lease_ms: int | None = None,
    count: int = 1,
    tidy: bool = False,
) -> tuple[Run, ...]:
    """Take up to *count* runs that are due: each is running, held by *owner*, and its token is its `attempts`.

    *lease_ms* None: what the queue's policy grants. *tidy*: take back first what other consumers lost, and promote what
    is due; that is a commit of its own. Empty: nothing may be claimed now, or nobody ever used the queue.

    Raises UsageFault, Conflict for a queue of the fleet, and what a hold raises.
    """
    lease_ms = context.rules.of_queue(queue).lease_ms if lease_ms is None else lease_ms
    _check_claim(context, queue, owner, lease_ms, count)
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        if tidy:
            from controller.engine.upkeep import tidied

            loaded = tidied(context, hold, loaded)
        draft = context.draft(loaded.document)
        taken = take(context, draft, queue, granted(context, loaded.document, owner, lease_ms), count)
        after = context.commit(hold, loaded, draft)
    return tuple(after.runs[run_id] for run_id in taken)


def _check_claim(context: Context, queue: str, owner: str, lease_ms: int, count: int) -> None:
    check_queue(queue)
    if queue in context.rules.queues:
        raise Conflict(
            f"queue {queue} is the fleet's: its workers take what is in it",
            where=f"queue {queue}; [fleet] queues",
            next="submit to another queue, or leave the work to `controller run`",
        )
    if type(owner) is not str or not owner or len(owner) > 200 or not owner.isprintable():
        raise UsageFault(
            "an owner is a name of 1 to 200 characters", where="--owner", next="give one without line ends"
        )
    check_lease(lease_ms)
    if not 1 <= count <= MOST_CLAIMS:
        what = f"{count} runs cannot be claimed at once"
        raise UsageFault(what, where="--count", next=f"give a number from 1 to {MOST_CLAIMS}")


def check_queue(queue: str) -> None:
    """Raise UsageFault for what cannot be the name of a queue."""
    if not is_id(queue):
        grammar = f"use {ID_GRAMMAR}"
        raise UsageFault(f"not the name of a queue: {queue!r}", where="--queue", next=grammar)


def check_lease(lease_ms: int) -> None:
    """Raise UsageFault for a lease that nobody can hold, or that would outlive its holder for too long."""
    if not 1 <= lease_ms <= LONGEST_LEASE_MS:
        raise UsageFault(
            f"a lease of {lease_ms} ms cannot be granted",
            where="--lease",
            next=f"give 1ms to {LONGEST_LEASE_MS // 3_600_000}h; heartbeats renew it",
        )


def take(context: Context, draft: Draft, queue: str, lease: Lease, count: int) -> list[str]:
    """Claim up to *count* runs of *queue* in the draft; their ids, in the order of their claims."""
    taken: list[str] = []
    if is_paused(draft.queues.get(queue)):
        return taken
    with Finder(context.index(draft.document), draft, queue) as finder:
        while len(taken) < count and (run := finder.next()) is not None:
            if move_run(draft, run.id, Trigger.CLAIM, Given(lease=lease)).to is RunState.RUNNING:
                count_claim(draft, queue)
                taken.append(run.id)
    return taken


def complete(
    context: Context, run_id: str, token: int, *, result: Raw | UnsetType = UNSET, claim_next: bool = False
) -> Completed:
    """The run is done. It succeeds and leaves the document with *result* in its tombstone; or it is cancelled, if that
    was requested; or, when one of its steps was reported as failed, this life has failed.

    The only step of a run need not be reported: the run's end says it. *claim_next*: take the next run of the same
    queue in the same commit, for the same owner and as long; a repeated report is answered with the same one while that
    lease lives.

    Raises UsageFault, NotFound, Conflict (a worker holds it), TransitionRefused: `stale_lease`; `illegal_transition`
    with "already done by you"; `steps_not_terminal`.
    """
    check_bytes(result, "result")
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        draft = context.draft(loaded.document)
        if claim_next and (known := repeated(context, draft, run_id, token)) is not None:
            return known
        run = held(draft, run_id, token)
        lease = run.lease if run is not None else None
        end(context, draft, run_id, token, result)
        if claim_next and run is not None and lease is not None and run.queue not in context.rules.queues:
            again = granted(context, loaded.document, lease.owner, lease.granted_ms)
            for taken in take(context, draft, run.queue, again, 1):
                hand_over(draft, run_id, taken)
        after = context.commit(hold, loaded, draft)
    ended = after.runs.get(run_id) or after.finished[run_id]
    return Completed(ended, None if ended.next is None else after.runs.get(ended.next.run))


def repeated(context: Context, draft: Draft, run_id: str, token: int) -> Completed | None:
    """The answer to a report that was made before, while the run that was handed over with it is still its holder's."""
    ended = draft.runs.get(run_id) or draft.finished.get(run_id)
    if ended is None or ended.next is None or ended.state is RunState.RUNNING:
        return None
    if token != (ended.attempts if isinstance(ended, Run) else ended.token):
        return None
    following = draft.runs.get(ended.next.run)
    if following is None or following.attempts != ended.next.token or following.lease is None:
        return None
    return None if is_over(following.lease, context, draft.document) else Completed(ended, following, repeated=True)


def hand_over(draft: Draft, run_id: str, following: str) -> None:
    """Note on a run that has ended in *draft* which one its holder got with that."""
    taken = draft.runs.get(following)
    if taken is None:
        return
    handed = Handed(following, taken.attempts)
    stone, run = draft.finished.get(run_id), draft.runs.get(run_id)
    if run is not None:
        draft.runs.put(run_id, replace(run, next=handed))
    elif stone is not None:
        draft.finished.put(run_id, replace(stone, next=handed))


def held(draft: Draft, run_id: str, token: int) -> Run | None:
    """The run that is reported on, as it is; None: it left the document, and the machine says how.

    Raises Conflict for one that a worker holds under *token*: what that did is told by its provider alone. Any other
    token is the machine's to refuse, as stale: the fence comes first. Raises UsageFault.
    """
    if type(token) is not int or not 1 <= token < 1 << 63:
        raise UsageFault(f"{token} cannot be a token", where="--token", next="give the number that the claim answered")
    run = draft.runs.get(run_id)
    if run is not None and run.worker is not None and token == run.attempts:
        raise Conflict(
            f"run {run_id} is held by the worker in slot {run.worker.slot}, which reports on it itself",
            where=f"run {run_id}; slot {run.worker.slot}",
            next=f"controller cancel {run_id}",
        )
    return run


def end(context: Context, draft: Draft, run_id: str, token: int, result: Raw | UnsetType) -> None:
    """As `complete`, in a draft. A refusal may leave it half done if the run has steps: else it ends in one move."""
    given = Given(token=token)
    run = draft.runs.get(run_id)
    if run is not None and _is_of(run, token):
        if run.cancel_requested_at is not None:
            move_run(draft, run_id, Trigger.CANCEL_OBSERVED, given)
            return
        if len(run.steps) == 1:
            name, state = run.steps[0].name, run.steps[0].state
            if state is StepState.PENDING:
                move_step(draft, run_id, name, Trigger.STEP_STARTED, given)
            if state in (StepState.PENDING, StepState.RUNNING):
                move_step(draft, run_id, name, Trigger.STEP_SUCCEEDED, given)
        if run.steps:
            skip_unreachable(draft, run_id)
            run = draft.runs.get(run_id) or run
            if run_aggregate(run.steps) is Aggregate.FAILED:
                _fail_life(context, draft, run_id, token, failure_of(run) or "a step failed", Reason.STEP_FAILED)
                return
    move_run(draft, run_id, Trigger.ALL_STEPS_DONE, Given(token=token, result=result))


def _is_of(run: Run, token: int) -> bool:
    return run.lease is not None and run.attempts == token


def retry(context: Context, run_id: str, token: int, *, error: str, delay_ms: int | None = None) -> Run:
    """This life failed, with *error*: the run waits for its next one, or is dead if that was the last that may fail.

    *delay_ms* None: the queue's backoff decides. Raises as `complete` does.
    """
    if delay_ms is not None and delay_ms < 0:
        raise UsageFault("a delay cannot be below 0", where="--delay", next="give a duration such as 5s")
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        draft = context.draft(loaded.document)
        held(draft, run_id, token)
        _fail_life(context, draft, run_id, token, error, Reason.CONSUMER_FAILED, delay_ms=delay_ms)
        return context.commit(hold, loaded, draft).runs[run_id]


def fail(context: Context, run_id: str, token: int, *, error: str, reason: Reason) -> Run:
    """This life failed, with *error*, and no other would fare better: the run is dead, for *reason* of `FAILURES`.

    Raises as `complete` does.
    """
    _check_failure(reason)
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        draft = context.draft(loaded.document)
        held(draft, run_id, token)
        _fail_life(context, draft, run_id, token, error, reason, final=True)
        return context.commit(hold, loaded, draft).runs[run_id]


def _check_failure(reason: Reason) -> None:
    if reason not in FAILURES:
        listed = ", ".join(sorted(FAILURES))
        raise UsageFault(f"{reason} is no reason for a failure", where="--reason", next=f"give one of {listed}")


def _fail_life(
    context: Context,
    draft: Draft,
    run_id: str,
    token: int,
    error: str,
    reason: Reason,
    *,
    delay_ms: int | None = None,
    final: bool = False,
) -> None:
    run = draft.runs.get(run_id)
    given = Given(token=token, reason=reason, error=_cut(error), delay_ms=delay_ms, final=final)
    if run is not None and delay_ms is None:
        given = after_backoff(given, draft, run, run.failures + 1, context.rules)
    move_run(draft, run_id, Trigger.ATTEMPT_FAILED, given)


def _cut(error: str) -> str:
    """*error* as it can be stored: bytes that are no text, as file names have them, are spelled out."""
    if type(error) is not str:
        raise UsageFault("an error is a text", where="--error", next="say in words what went wrong")
    error = error.encode(errors="backslashreplace").decode()
    if len(error) <= LONGEST_ERROR:
        return error
    return f"{error[:LONGEST_ERROR]}... (cut, of {len(error)} characters)"


def heartbeat(
    context: Context, run_id: str, token: int, *, lease_ms: int | None = None, progress: Raw | UnsetType = UNSET
) -> Run:
    """Renew the lease, for *lease_ms* from now, or for as long as it was granted before.

    The caller must look at `cancel_requested_at`: once that is set it should stop, and say so with `drain`. Raises as
    `complete` does.
    """
    check_bytes(progress, "progress")
    if lease_ms is not None:
        check_lease(lease_ms)
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        draft = context.draft(loaded.document)
        run = held(draft, run_id, token)
        lease = None if run is None else run.lease
        owner, before = ("", 1) if lease is None else (lease.owner, lease.granted_ms)
        renewed = granted(context, loaded.document, owner, lease_ms or before)
        extend_lease(draft, run_id, token, renewed, progress=progress)
        return context.commit(hold, loaded, draft).runs[run_id]


def drain(context: Context, run_id: str, token: int) -> Run:
    """The holder gives the run back, without having failed: it is due at once, and no budget is spent.

    A run whose cancel was requested ends as cancelled. Raises as `complete` does.
    """
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        draft = context.draft(loaded.document)
        run = held(draft, run_id, token)
        move_run(draft, run_id, Trigger.SHUTDOWN_DRAIN, Given(token=token, delay_ms=0))
        if run is not None and run.cancel_requested_at is not None:
            move_run(draft, run_id, Trigger.CANCEL_OBSERVED, Given())
        return context.commit(hold, loaded, draft).runs[run_id]


def step(
    context: Context,
    run_id: str,
    name: str,
    token: int,
    happened: Trigger,
    *,
    error: str | None = None,
    reason: Reason | None = None,
    exit_code: int | None = None,
    signal: int | None = None,
) -> Run:
    """A step of the run started, succeeded or failed (`STEP_STARTED`, `STEP_SUCCEEDED`, `STEP_FAILED`).

    A failed one is pending again while it has attempts left. The run ends with `complete`. Raises as `complete` does,
    and TransitionRefused: `not_available` while a need has not succeeded, `cancel_requested` for a start.
    """
    if happened is Trigger.STEP_FAILED:
        reason = reason or _meant(exit_code, signal)
        _check_failure(reason)
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        draft = context.draft(loaded.document)
        held(draft, run_id, token)
        given = Given(token=token, reason=reason, exit_code=exit_code, signal=signal)
        move_step(draft, run_id, name, happened, given)
        run = draft.runs.get(run_id)
        if error is not None and run is not None:
            draft.runs.put(run_id, replace(run, last_error=_cut(error)))
        return context.commit(hold, loaded, draft).runs[run_id]


def _meant(exit_code: int | None, signal: int | None) -> Reason:
    if signal is not None:
        return Reason.KILLED_BY_SIGNAL
    return Reason.STEP_FAILED if exit_code is None else Reason.EXIT_CODE


def discard(context: Context, run_id: str) -> Tombstone:
    """Take a run out of the document for good, whatever its state. A consumer that holds it is shut out.

    Raises NotFound; Conflict while a worker holds it or a slot names it; TransitionRefused for one that has left.
    """
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        draft = context.draft(loaded.document)
        refuse_held(draft, live(loaded.document, run_id, "discarded"), "discarded", context.rules)
        take_away(draft, run_id, Reason.DISCARDED)
        return context.commit(hold, loaded, draft).finished[run_id]
