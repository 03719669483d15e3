"""Runs as people handle them: submit, withdraw, cancel, retry, drain. Each is one commit.

Not promised: that a withdrawn or cancelled run did nothing; a cancel of a running one takes effect when its worker has
ended it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from controller.clock import Clock
from controller.engine.index import Index
from controller.engine.indexes import Indexes
from controller.engine.retention import prune
from controller.engine.submission import Submission, Submitted, add_run, check, is_known, slots_naming, way_out
from controller.model.edit import Draft, Edit
from controller.model.errors import Conflict, NotFound, TransitionRefused
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import Document, Lease, Run, RunState, Tombstone
from controller.store.protocol import Hold, Loaded, Store

if TYPE_CHECKING:
    from controller.model.given import Given
    from controller.store.waiters import Waiters


class Context(Struct, frozen=True):
    """What every engine verb needs. *command* is what history says did it; *lock_timeout* is in seconds.

    *policy* None: the settings were not read. Nothing is forgotten then, since nobody knows what shall be kept.
    *boot_id* is that of this boot: leases that another one granted are over.
    """

    store: Store
    clock: Clock
    command: str
    lock_timeout: float = 10.0
    policy: Policy | None = None
    boot_id: str = ""
    waiters: Waiters | None = None
    indexes: Indexes = field(default_factory=Indexes)

    def draft(self, document: Document) -> Draft:
        return Draft(document, now=self.clock.now_ms(), command=self.command)

    @property
    def rules(self) -> Policy:
        """The policy, or all its defaults."""
        return self.policy or Policy()

    @property
    def mono_ms(self) -> int:
        """Now, in ms on the clock of lease deadlines."""
        return int(self.clock.monotonic() * 1000)

    def index(self, document: Document) -> Index:
        return self.indexes.of(document, self.boot_id)

    def commit(self, hold: Hold, loaded: Loaded, draft: Draft, *, forget: bool = True) -> Document:
        """Commit *draft*, keep the index, and wake whoever waits for what it freed. An empty draft commits nothing.

        *forget*: with what is due to be forgotten.
        """
        before, indexes = loaded.document, self.indexes
        if draft.empty:
            return before
        if forget and self.policy is not None:
            prune(draft, self.policy, indexes.known(before), indexes.stones(before), indexes.named)
        edit = draft.edit()
        after = hold.commit(loaded, edit)
        indexes.follow(before, edit, after)
        self.wake(before, edit, after)
        return after

    def wake(self, before: Document, edit: Edit, after: Document) -> None:
        """Wake whoever waits for what *edit* of *before*, committed as *after*, has brought. From any thread."""
        if self.waiters is not None and self.waiters.anybody():
            from controller.engine.claiming import notify

            notify(self.waiters, before, after, edit, lambda: self.index(after))


def submit(context: Context, submissions: Sequence[Submission]) -> tuple[Submitted, ...]:
    """As `submitted`, without the runs."""
    return tuple(answer for answer, _ in submitted(context, submissions))


def submitted(context: Context, submissions: Sequence[Submission]) -> tuple[tuple[Submitted, Run | Tombstone], ...]:
    """Add runs in one commit, all or none: each answer with the run, or what is left of it, as it was then.

    Raises UsageFault (id outside the grammar, nothing to do, steps that `model.graph.misfit` has something against),
    Conflict (an id with other content, a payload alone for the fleet), and what a hold raises.
    """
    for submission in submissions:
        check(submission, context.rules)
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        draft = context.draft(loaded.document)
        answers = [_add(context, draft, submission) for submission in submissions]
        told = tuple((answer, _known(draft, answer.run)) for answer in answers)
        context.commit(hold, loaded, draft)
    return told


def _add(context: Context, draft: Draft, submission: Submission) -> Submitted:
    token = 0
    forgets = draft.document.counters.pruned or draft.document.epoch  # a restore goes back over runs, too
    if submission.id is not None and forgets and not is_known(draft, submission.id):
        token = max((event.token or 0 for event in context.store.history(f"run:{submission.id}")), default=0)
    return add_run(draft, submission, context.rules, token=token, known_contents=context.indexes.contents)


def find(document: Document, run_id: str) -> Run | Tombstone:
    """The run or what is left of it. Raises NotFound."""
    return _found(document.runs.get(run_id) or document.finished.get(run_id), run_id)


def _known(draft: Draft, run_id: str) -> Run | Tombstone:
    return _found(draft.runs.get(run_id) or draft.finished.get(run_id), run_id)


def _found(found: Run | Tombstone | None, run_id: str) -> Run | Tombstone:
    if found is None:
        raise NotFound(f"no run {run_id}", next="controller runs")
    return found


def live(document: Document, run_id: str, verb: str) -> Run:
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
        run = live(loaded.document, run_id, "withdrawn")
        draft = context.draft(loaded.document)
        slots = slots_naming(draft, run_id)
        if slots:
            names = ", ".join(f"slot {slot}" for slot in slots)
            then = way_out(draft, run, slots, context.rules)
            raise Conflict(f"run {run_id} is still named by {names}", where=names, next=then)
        if run.state is not RunState.QUEUED or run.attempts > run.earlier_lives:
            raise _not_withdrawn(run)
        move_run(draft, run_id, Trigger.CANCEL_OBSERVED, Given(reason=Reason.WITHDRAWN))
        context.commit(hold, loaded, draft)


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
        run = live(loaded.document, run_id, "cancelled")
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
        elif run.lease is not None and is_over(run.lease, context, loaded.document):
            # Nobody will hear of the request any more.
            move_run(draft, run_id, Trigger.LEASE_EXPIRED, lost(run.lease, over=True))
        context.commit(hold, loaded, draft)
        moved = draft.runs.get(run_id) or run
    return Cancelled(moved.state, moved.worker.slot if moved.worker else None, requested)


def retry(context: Context, run_id: str) -> None:
    """Queue a failed or cancelled run again: what succeeded is kept, budgets are cleared, the token stays."""
    from controller.model.perform import Given, move_run
    from controller.model.transition import Trigger

    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        run = live(loaded.document, run_id, "retried")
        if run.state in (RunState.QUEUED, RunState.RUNNING):
            raise TransitionRefused(
                f"run {run_id} is {run.state} already",
                why="illegal_transition",
                where=f"run {run_id}",
                next=f"controller explain {run_id}",
            )
        draft = context.draft(loaded.document)
        move_run(draft, run_id, Trigger.OPERATOR_RETRY, Given(reason=Reason.OPERATOR_RETRY))
        context.commit(hold, loaded, draft)


def lost(lease: Lease, *, over: bool) -> Given:
    """What is told of a life whose lease has run out: its run is due at once, since the lease was the wait."""
    from controller.model.perform import Given

    return Given(reason=Reason.LEASE_EXPIRED, error=f"the lease of {lease.owner} ran out", delay_ms=0, lease_over=over)


def is_over(lease: Lease, context: Context, document: Document) -> bool:
    """Whether the lease has run out on its own clock, or with the boot or the epoch that granted it."""
    granter = lease.boot_id, lease.epoch
    return granter != (context.boot_id, document.epoch) or context.mono_ms >= lease.deadline_ms


def set_draining(context: Context, on: bool) -> bool:
    """Make every reconcile take nothing new and empty the fleet, or lift that. False: it was so already."""
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        if loaded.document.draining == on:
            return False
        draft = context.draft(loaded.document)
        draft.draining = on
        draft.event("fleet", "draining" if on else "drain_lifted", reason=Reason.DRAINING if on else None)
        context.commit(hold, loaded, draft)
    return True
