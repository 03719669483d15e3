"""Runs as people handle them: submit, withdraw, cancel, retry, drain. Each is one commit.

Not promised: that a withdrawn or cancelled run did nothing; a cancel of a running one takes effect when its worker has
ended it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Raw, Struct, UnsetType, to_builtins

from controller.clock import Clock
from controller.model.action import action_of, digest
from controller.model.edit import Draft
from controller.model.errors import Conflict, NotFound, TransitionRefused, UsageFault
from controller.model.graph import Misfit, misfit
from controller.model.reason import Reason
from controller.model.records import Document, Priority, Run, RunState, Step, Tombstone, is_id
from controller.store.protocol import Store

FLEET_QUEUE = "fleet"


class Context(Struct, frozen=True):
    """What every engine verb needs. *command* is what history says did it; *lock_timeout* is in seconds."""

    store: Store
    clock: Clock
    command: str
    lock_timeout: float = 10.0

    def draft(self, document: Document) -> Draft:
        return Draft(document, now=self.clock.now_ms(), command=self.command)


class Submission(Struct, frozen=True):
    """A run to be. `id` None: the document names it. Steps carry only what their submitter chose."""

    steps: tuple[Step, ...]
    id: str | None = None
    queue: str = FLEET_QUEUE
    priority: Priority = Priority.NORMAL
    max_attempts: int = 1
    max_crashes: int | None = None
    payload: Raw | UnsetType = UNSET


class Submitted(Struct, frozen=True):
    """`created` False: the same id with the same content was there already; that run is the answer."""

    run: str
    created: bool


def submit(context: Context, submissions: Sequence[Submission]) -> tuple[Submitted, ...]:
    """Add runs in one commit, all or none.

    Raises UsageFault (id outside the grammar, no steps, steps that `model.graph.misfit` has something against),
    Conflict (an id with other content), and what a hold raises.
    """
    for submission in submissions:
        _check(submission)
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        draft = context.draft(loaded.document)
        answers = tuple(add_run(draft, submission) for submission in submissions)
        edit = draft.edit()
        if not edit.empty:
            hold.commit(loaded, edit)
    return answers


def _check(submission: Submission) -> None:
    if submission.id is not None and not is_id(submission.id):
        raise UsageFault(
            f"not an id: {submission.id!r}",
            where="--id",
            next="use letters, digits, '.', '_' and '-', starting with a letter or digit, at most 64",
        )
    if not submission.steps and submission.payload is UNSET:
        raise UsageFault("a run needs a command", next="controller submit -- COMMAND [ARGUMENT...]")
    if submission.max_attempts < 1 or (submission.max_crashes is not None and submission.max_crashes < 1):
        raise UsageFault("a run needs at least one attempt", where="--attempts", next="give a number from 1 up")
    found = misfit(submission.steps)
    if found is not None:
        raise UsageFault(found.what, where=_place(found, submission.steps), next=found.next)


def _place(found: Misfit, steps: Sequence[Step]) -> str:
    """A graph names the step; a run of one step is a command line, and its place is an option, or the words."""
    if len(steps) != 1:
        return found.place(steps)
    return f"--{found.member}" if found.member in ("env", "cwd") else ""


def add_run(draft: Draft, submission: Submission) -> Submitted:
    """Add one checked run to the draft, or find it there. Raises Conflict."""
    content = content_of(submission)
    if submission.id is not None:
        known = draft.runs.get(submission.id) or draft.finished.get(submission.id)
        if known is not None:
            if known.content != content:
                raise Conflict(
                    f"run {submission.id} exists with other content",
                    where=f"run {submission.id}, {known.state}",
                    next=f"choose another --id, or see `controller show {submission.id}`",
                )
            return Submitted(submission.id, created=False)
    run_id = submission.id or _fresh_id(draft)
    run = Run(
        id=run_id,
        queue=submission.queue,
        sequence=draft.count("sequence"),
        created_at=draft.now,
        steps=submission.steps,
        priority=submission.priority,
        max_attempts=submission.max_attempts,
        max_crashes=submission.max_attempts if submission.max_crashes is None else submission.max_crashes,
        payload=submission.payload,
        content=content,
    )
    draft.runs.put(run_id, run)
    draft.event(f"run:{run_id}", "submitted", to=RunState.QUEUED)
    return Submitted(run_id, created=True)


def content_of(submission: Submission) -> str:
    """The digest of everything a submitter chose but the id."""
    chosen = to_builtins(submission)
    chosen.pop("id")
    if submission.payload is not UNSET:
        chosen["payload"] = bytes(submission.payload).decode()
    return digest(chosen)


def _fresh_id(draft: Draft) -> str:
    while True:
        run_id = f"r-{draft.count('run')}"
        if run_id not in draft.runs and run_id not in draft.finished:
            return run_id


def slots_naming(document: Document, run_id: str) -> tuple[int, ...]:
    """Every slot whose worker or pending action names the run."""
    named = {n for n, worker in document.workers.items() if run_id in (worker.run, worker.reserved)}
    named |= {n for n, pending in document.pending_actions.items() if action_of(pending).run == run_id}
    return tuple(sorted(named))


def find(document: Document, run_id: str) -> Run | Tombstone:
    """The run or what is left of it. Raises NotFound."""
    found = document.runs.get(run_id) or document.finished.get(run_id)
    if found is None:
        raise NotFound(f"no run {run_id}", next="controller runs")
    return found


def _live(document: Document, run_id: str, verb: str) -> Run:
    found = find(document, run_id)
    if isinstance(found, Tombstone):
        raise TransitionRefused(
            f"run {run_id} has {found.state} and left the document: it cannot be {verb}",
            why="illegal_transition",
            where=f"run {run_id}",
            next=f"controller show {run_id}",
        )
    return found


def withdraw(context: Context, run_id: str) -> None:
    """Cancel a queued run that no worker ever took. Refused, naming every slot, while anything still names it."""
    from controller.model.perform import Given, move_run
    from controller.model.transition import Trigger

    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        run = _live(loaded.document, run_id, "withdrawn")
        slots = slots_naming(loaded.document, run_id)
        if slots:
            names = ", ".join(f"slot {slot}" for slot in slots)
            raise Conflict(f"run {run_id} is still named by {names}", where=names, next=f"controller cancel {run_id}")
        if run.state is not RunState.QUEUED or run.attempts > 0:
            raise _not_withdrawn(run)
        draft = context.draft(loaded.document)
        move_run(draft, run_id, Trigger.CANCEL_OBSERVED, Given(reason=Reason.WITHDRAWN))
        hold.commit(loaded, draft.edit())


def _not_withdrawn(run: Run) -> TransitionRefused:
    verb = "show"
    if run.state is RunState.CANCELLED:
        what = f"is {'withdrawn' if run.reason is Reason.WITHDRAWN else 'cancelled'} already"
    elif run.state in (RunState.FAILED, RunState.SUCCEEDED):
        what = f"has {run.state} already: there is nothing to take back"
    else:
        verb = "cancel"
        taken = "is running" if run.state is RunState.RUNNING else "was taken before"
        what = f"{taken}: only a run that nobody ever took can be withdrawn"
    return TransitionRefused(
        f"run {run.id} {what}",
        why="illegal_transition",
        where=f"run {run.id}",
        next=f"controller {verb} {run.id}",
    )


class Cancelled(Struct, frozen=True):
    """`state` after the commit: cancelled at once if queued, else running until its worker, in `slot`, has ended it."""

    state: RunState
    slot: int | None
    requested: bool


def cancel(context: Context, run_id: str) -> Cancelled:
    """Request the cancel of a run: durable once this returns, never un-requested but by an operator's retry.

    Raises NotFound; TransitionRefused when the run has ended.
    """
    from controller.model.perform import Given, move_run, request_cancel
    from controller.model.transition import Trigger

    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        run = _live(loaded.document, run_id, "cancelled")
        if run.state in (RunState.FAILED, RunState.CANCELLED):
            raise TransitionRefused(
                f"run {run_id} is {run.state} already",
                why="illegal_transition",
                where=f"run {run_id}",
                next=f"controller show {run_id}",
            )
        draft = context.draft(loaded.document)
        requested = request_cancel(draft, run_id, Reason.CANCELLED)
        if run.state is RunState.QUEUED:
            move_run(draft, run_id, Trigger.CANCEL_OBSERVED, Given(reason=Reason.CANCELLED))
        edit = draft.edit()
        if not edit.empty:
            hold.commit(loaded, edit)
        moved = draft.runs.get(run_id) or run
    return Cancelled(moved.state, moved.worker.slot if moved.worker else None, requested)


def retry(context: Context, run_id: str) -> None:
    """Queue a failed or cancelled run again: what succeeded is kept, budgets are cleared, the token stays."""
    from controller.model.perform import Given, move_run
    from controller.model.transition import Trigger

    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        run = _live(loaded.document, run_id, "retried")
        if run.state in (RunState.QUEUED, RunState.RUNNING):
            raise TransitionRefused(
                f"run {run_id} is {run.state} already",
                why="illegal_transition",
                where=f"run {run_id}",
                next=f"controller explain {run_id}",
            )
        draft = context.draft(loaded.document)
        move_run(draft, run_id, Trigger.OPERATOR_RETRY, Given(reason=Reason.OPERATOR_RETRY))
        hold.commit(loaded, draft.edit())


def set_draining(context: Context, on: bool) -> bool:
    """Make every reconcile take nothing new and empty the fleet, or lift that. False: it was so already."""
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        if loaded.document.draining == on:
            return False
        draft = context.draft(loaded.document)
        draft.draining = on
        draft.event("fleet", "draining" if on else "drain_lifted", reason=Reason.DRAINING if on else None)
        hold.commit(loaded, draft.edit())
    return True
