"""What an outcome, or the evidence of a look, does to the document. Pure: it only changes the draft.

Unknown is never failed: only a definite answer, or proof, unparks. Everything here may touch the slot's worker, the run
that worker holds or was made for, and counters; the store checks that.
"""

from __future__ import annotations

from typing import assert_never

from msgspec import Struct, json
from msgspec.structs import replace

from controller.engine import fold
from controller.engine.age import is_expired
from controller.engine.identity import changed_data, identity_matches
from controller.engine.sight import grace_over, second_absence, seen_in, speaks_of
from controller.model.action import Action, CancelRequest
from controller.model.edit import Draft
from controller.model.inventory import Look, Seen, SeenStep, SeenWorker, StepSeen, shows
from controller.model.perform import Given, WorkerGiven, move_run, move_worker
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import ActionType, Document, PendingAction, RunState, Span, Worker, WorkerState
from controller.model.transition import Trigger
from controller.provider.protocol import Done, IdentityRefused, NotSent, Outcome, Pending, Rejected, Unknown

MAX_RETRY_AFTER_MS = 3_600_000
"""The longest a provider's "ask again" is believed."""
ASK_AGAIN_MS = 1_000
"""When a provider is asked again that did not say when."""


class WorkerLost(Struct, frozen=True):
    """A look showed that exact worker gone: its execute, cancel or deallocate is over, whatever became of it."""

    seen: SeenWorker | None


class FirstAbsence(Struct, frozen=True):
    """A look showed nothing of the action; another, later one must say so too."""

    span: Span


class SeenAgain(Struct, frozen=True):
    """A look shows the worker: what an earlier one did not show is no evidence of anything any more."""


class NoEffect(Struct, frozen=True):
    """Proven to have had no effect, and never sent again."""

    reason: Reason
    why: str


Evidence = Done | WorkerLost | FirstAbsence | SeenAgain | NoEffect


def evidence(
    document: Document, slot: int, entry: PendingAction, action: Action, look: Look, policy: Policy, now: int
) -> Evidence | None:
    """What *look* proves about a pending action; None: nothing.

    Only a complete look counts that was asked for after the commit of the last send, since that changed the slot.
    `rejected` or expired actions wait for proof alone; for others a look settles just what it shows for certain: an
    accepted key, a worker gone. What is shown under the worker's name and may be another settles nothing.
    """
    if not speaks_of(look, document, slot):
        return None
    shown = seen_in(look, document.lineage, action)
    waits_for_proof = entry.rejected is not None or is_expired(document, entry, now)
    if not shown:
        return _absence(document, entry, action, look, policy, waits_for_proof=waits_for_proof)
    # The last send may still be on its way to its effect: that it had none is believed only a grace time after it.
    proves_nothing_came = waits_for_proof and grace_over(entry.sent_at or entry.parked_at, look, policy)
    found = None
    if doubt(document, action, look) is None:
        found = _presence(action, shown[0], waits_for_proof=waits_for_proof, proves_nothing_came=proves_nothing_came)
    worker = document.workers.get(slot)
    doubted = entry.absent is not None or (worker is not None and worker.absent is not None)
    return SeenAgain() if found is None and doubted else found


def doubt(document: Document, action: Action, look: Look) -> str | None:
    """Why what *look* shows under the name of the action's worker proves nothing; None: it may, or is not shown."""
    shown = seen_in(look, document.lineage, action)
    if len(shown) > 1:
        return "it is listed more than once, and not alike"
    worker = document.workers.get(action.slot)
    for seen in shown:
        if action.type is ActionType.CREATE:
            return changed_data(action.resources, seen)
        if worker is None or not shows(worker, document.lineage, seen):
            named = (action.slot, action.assignment, action.generation)
            worker = Worker(*named, "", 0, 0, resources=action.resources)
        return None if identity_matches(worker, seen) else "it is shown with another identity than was recorded"
    return None


def _absence(
    document: Document, entry: PendingAction, action: Action, look: Look, policy: Policy, *, waits_for_proof: bool
) -> Evidence | None:
    """What it proves that *look* does not show the worker. Where it existed before, sends do not start its grace
    again.
    """
    since = entry.sent_at or entry.parked_at
    if action.type is ActionType.CREATE:
        if not waits_for_proof:
            return None
    elif (worker := document.workers.get(action.slot)) is not None:
        since = worker.changed_at
    if not grace_over(since, look, policy):
        return None
    if not second_absence(entry.absent, look, policy):
        return FirstAbsence(Span(look.began_at, look.ended_at)) if entry.absent is None else None
    match action.type:
        case ActionType.CREATE:
            return NoEffect(Reason.PROVEN_ABSENT, entry.rejected or "two looks show nothing of it")
        case ActionType.EXECUTE | ActionType.CANCEL | ActionType.DEALLOCATE:
            return WorkerLost(None)
        case ActionType.DELETE_COMPUTE | ActionType.RESET:
            return Done(reason="already gone")
        case _:
            assert_never(action.type)


def _presence(action: Action, seen: SeenWorker, *, waits_for_proof: bool, proves_nothing_came: bool) -> Evidence | None:
    no_effect = NoEffect(Reason.PROVEN_ABSENT, "a look shows that it had no effect") if proves_nothing_came else None
    match action.type, seen.state:
        case ActionType.CREATE, (Seen.READY | Seen.DARK | Seen.GONE) if waits_for_proof:
            return Done(worker=seen)
        case ActionType.CREATE, _:
            return None
        case ActionType.EXECUTE, _ if (step := _listed(seen, action.idempotency_key)) is not None:
            return Done(step=step)
        case ((ActionType.EXECUTE | ActionType.CANCEL | ActionType.DEALLOCATE), Seen.GONE):
            return WorkerLost(seen)
        case ActionType.DELETE_COMPUTE, Seen.GONE:
            return Done(reason="already gone")
        case ActionType.DEALLOCATE, Seen.DARK:
            return Done(worker=seen)
        case _, Seen.CREATING:
            return None
        case ActionType.CANCEL, _ if waits_for_proof:
            target = _listed(seen, target_of(action))
            return Done(step=target) if target is not None and target.state is StepSeen.EXITED else no_effect
    return no_effect


def _listed(seen: SeenWorker, key: str) -> SeenStep | None:
    return next((step for step in seen.steps if step.idempotency_key == key), None)


def target_of(action: Action) -> str:
    """The key of the execute that a cancel is meant for."""
    return json.decode(action.request, type=CancelRequest).target


def describe(action: Action, outcome: Outcome) -> str:
    """What came back, in a few words, for people."""
    match outcome:
        case Done(worker, _, reason):
            if worker is not None and action.type is ActionType.CREATE:
                return f"worker {worker.id}" + (f": {reason}" if reason else "")
            return reason or ("accepted" if action.type is ActionType.EXECUTE else "")
        case Pending(after, reason):
            return f"not finished, ask again in {after} ms" + (f": {reason}" if reason else "")
        case Rejected(reason) | NotSent(reason) | IdentityRefused(reason) | Unknown(reason):
            return reason
        case _:
            assert_never(outcome)


def reason_of(outcome: Outcome) -> Reason:
    match outcome:
        case Done():
            return Reason.DONE
        case Pending():
            return Reason.PENDING
        case Rejected():
            return Reason.REJECTED
        case NotSent():
            return Reason.NOT_SENT
        case Unknown():
            return Reason.UNKNOWN
        case IdentityRefused():
            return Reason.IDENTITY_REFUSED
        case _:
            assert_never(outcome)


def checked(action: Action, outcome: Outcome) -> Outcome:
    """*outcome*, or Unknown when it speaks of another worker, or says done without what that needs.

    A create that says done of a worker which is still being made is pending: what takes no steps yet is given none.
    """
    if not isinstance(outcome, Done):
        return outcome
    if outcome.worker is not None:
        told = (outcome.worker.lineage, outcome.worker.slot, outcome.worker.assignment, outcome.worker.generation)
        if told != (action.lineage, action.slot, action.assignment, action.generation):
            return Unknown(f"the answer is about another worker: {told}")
        changed = changed_data(action.resources, outcome.worker) if action.type is ActionType.CREATE else None
        if changed is not None:
            return Unknown(f"the answer is about other data: {changed}")
        if action.type is ActionType.CREATE and outcome.worker.state is Seen.CREATING:
            return Pending(ASK_AGAIN_MS, "done, it says, and that the worker is still being made")
    elif action.type is ActionType.CREATE:
        return Unknown("the answer says done but describes no worker")
    if outcome.step is not None:
        key = target_of(action) if action.type is ActionType.CANCEL else action.idempotency_key
        if outcome.step.idempotency_key != key:
            return Unknown(f"the answer is about another step: {outcome.step.idempotency_key[:12]}")
    return outcome


def settle(
    draft: Draft, slot: int, entry: PendingAction, action: Action, outcome: Outcome | Evidence, policy: Policy
) -> None:
    """Fold *outcome* into the draft: apply and unpark, or keep the entry and note why."""
    match checked(action, outcome) if isinstance(outcome, Done) else outcome:
        case Done() as outcome:
            unpark(draft, slot, action, Reason.DONE)
            _apply(draft, action, outcome, policy, sent_at=entry.sent_at or entry.parked_at)
        case Pending(after, reason):
            wait = min(max(after, 0), MAX_RETRY_AFTER_MS)
            keep = replace(entry, not_before=draft.now + wait, unsure=0, last_reason=Reason.PENDING, last_error=None)
            _keep(draft, slot, action, keep, Reason.PENDING, reason)
        case Rejected(reason) if _must_prove(entry, action):
            keep = replace(
                entry, rejected=reason, not_before=None, last_reason=Reason.REJECTED, last_error=reason, absent=None
            )
            _keep(draft, slot, action, keep, Reason.REJECTED, reason)
        case Rejected(reason):
            _refused(draft, slot, action, Reason.REJECTED, reason, policy)
        case NotSent(reason) if entry.sends <= 1:
            _refused(draft, slot, action, Reason.NOT_SENT, reason, policy)
        case NotSent(reason):
            later(
                draft,
                slot,
                entry,
                action,
                Reason.NOT_SENT,
                f"{reason}; what became of an earlier send is unknown",
                policy,
            )
        case Unknown(reason):
            later(draft, slot, entry, action, Reason.UNKNOWN, reason, policy)
        case IdentityRefused(reason):
            # It answers for this send, not for earlier ones of unknown fate: an operator's "give it up" must know.
            unsure = 0 if entry.unsure <= 1 else entry.unsure
            keep = replace(
                entry, unsure=unsure, not_before=None, last_reason=Reason.IDENTITY_REFUSED, last_error=reason
            )
            _keep(draft, slot, action, keep, Reason.IDENTITY_REFUSED, reason)
        case WorkerLost(seen):
            unpark(draft, slot, action, Reason.WORKER_LOST)
            if seen is not None:
                fold.fold_steps(draft, slot, seen, policy)
            fold.lose(draft, slot, policy)
        case FirstAbsence(span):
            _keep(
                draft, slot, action, replace(entry, absent=span), Reason.PROVEN_ABSENT, "first look that shows nothing"
            )
        case SeenAgain():
            worker = draft.workers.get(slot)
            if worker is not None:
                draft.workers.put(slot, replace(worker, absent=None))
            _keep(draft, slot, action, replace(entry, absent=None), Reason.PENDING, "seen again")
        case NoEffect(reason_code, why):
            _refused(draft, slot, action, reason_code, why, policy)
            if entry.rejected is not None and entry.last_reason is Reason.IDENTITY_REFUSED:
                _set_aside(draft, slot, action)
        case _:
            assert_never(outcome)


def give_up(draft: Draft, slot: int, entry: PendingAction, action: Action, why: str, policy: Policy) -> None:
    """An operator gives up an action whose resource can never bind again: clear it, or let looks do so once they show
    that an earlier send of unknown fate had no effect.
    """
    if _must_prove(entry, action):
        refused = Reason.IDENTITY_REFUSED
        keep = replace(entry, rejected=why, not_before=None, last_reason=refused, last_error=why, absent=None)
        _keep(draft, slot, action, keep, refused, why)
        return
    _refused(draft, slot, action, Reason.IDENTITY_REFUSED, why, policy)
    _set_aside(draft, slot, action)


def _set_aside(draft: Draft, slot: int, action: Action) -> None:
    """Planning goes by records, and they would have the same asked at once: an operator says when to go on."""
    worker = draft.workers.get(slot)
    if worker is None:
        return
    draft.workers.put(slot, replace(worker, reason=Reason.IDENTITY_REFUSED))
    draft.slots.put(slot, replace(draft.slot(slot), cordoned=True))
    draft.event(f"slot:{slot}", "cordoned", reason=Reason.IDENTITY_REFUSED, key=action.idempotency_key)


def _must_prove(entry: PendingAction, action: Action) -> bool:
    """An earlier send of unknown fate may have worked: a "no" to this one does not undo it."""
    return entry.unsure > 1 and action.type in (ActionType.CREATE, ActionType.EXECUTE)


def later(
    draft: Draft, slot: int, entry: PendingAction, action: Action, reason: Reason, why: str, policy: Policy
) -> None:
    """Keep the entry parked and try again under backoff, saying why."""
    wait = fold.delay(policy.send, entry.sends, action.idempotency_key, entry.sends)
    keep = replace(entry, not_before=draft.now + wait, last_reason=reason, last_error=why)
    _keep(draft, slot, action, keep, reason, why)


def _keep(draft: Draft, slot: int, action: Action, entry: PendingAction, reason: Reason, why: str) -> None:
    draft.pending.put(slot, entry)
    draft.event(
        f"slot:{slot}", "action.kept", action.type, reason=reason, key=action.idempotency_key, detail=why or None
    )


def unpark(
    draft: Draft, slot: int, action: Action, reason: Reason, why: str | None = None, *, event: str = "action.settled"
) -> None:
    """Take the action out of the pending map, and say what became of it."""
    draft.pending.remove(slot)
    worker = draft.workers.get(slot)
    if worker is not None and worker.assignment == action.assignment:
        told = frozenset(action.settled) if reason is Reason.DONE else frozenset[str]()
        kept = tuple(key for key in worker.settled if key not in told)
        # Something was found out about it: what an earlier look did not show proves nothing together with a later one.
        draft.workers.put(slot, replace(worker, settled=kept, absent=None))
    draft.event(f"slot:{slot}", event, action.type, reason=reason, key=action.idempotency_key, detail=why)


def _refused(draft: Draft, slot: int, action: Action, reason: Reason, why: str, policy: Policy) -> None:
    """It had and will have no effect: unpark, say so, and let the planner try again under backoff, the slot's and the
    run's.
    """
    unpark(draft, slot, action, reason, why)
    backoff = policy.create if action.type is ActionType.CREATE else policy.send
    known = draft.slot(slot)
    wait = fold.delay(backoff, known.refusals + 1, action.idempotency_key)
    draft.slots.put(slot, replace(known, refusals=known.refusals + 1, not_before=draft.now + wait))
    if action.type is ActionType.CREATE:
        not_made(draft, action, reason, why, policy)


def not_made(draft: Draft, action: Action, reason: Reason, why: str, policy: Policy) -> None:
    """A create is over, and no record of a worker comes of it: its own goes, or is as it was before a resume, and the
    run that it was made for waits.
    """
    worker = draft.workers.get(action.slot)
    if worker is not None and worker.state is WorkerState.CREATING:
        move_worker(draft, action.slot, Trigger.CREATE_SETTLED, WorkerGiven(reason=reason))
    run = None if action.run is None else draft.runs.get(action.run)
    if run is not None and run.state is RunState.QUEUED:
        wait = fold.delay(policy.create, run.deferrals + 1, draft.document.lineage, run.id, run.deferrals)
        given = Given(reason=Reason.CREATE_REFUSED, error=why, delay_ms=wait, longest_ms=policy.create.cap_ms)
        move_run(draft, run.id, Trigger.DEFERRED, given)


def _apply(draft: Draft, action: Action, done: Done, policy: Policy, *, sent_at: int) -> None:
    slot = action.slot
    known = draft.slots.get(slot)
    if known is not None and known.refusals:
        draft.slots.put(slot, replace(known, refusals=0, not_before=None))
    worker = draft.workers.get(slot)
    match action.type:
        case ActionType.CREATE:
            _apply_create(draft, action, done, worker)
        case ActionType.EXECUTE:
            fold.accept(draft, action, done.step, policy, sent_at=sent_at)
        case ActionType.CANCEL:
            fold.cancel_done(draft, action, target_of(action), done.step, policy)
        case ActionType.DEALLOCATE if worker is not None:
            if done.worker is not None:
                fold.fold_steps(draft, slot, done.worker, policy)
            # What is stopped while it is assigned is kept: only a release ends an assignment.
            move_worker(draft, slot, Trigger.DEALLOCATE, replace(_tags(action, worker.reason), proven=False))
        case ActionType.DELETE_COMPUTE if worker is not None:
            move_worker(draft, slot, Trigger.DELETE_COMPUTE, _tags(action, worker.reason))
        case ActionType.RESET if worker is not None:
            move_worker(draft, slot, Trigger.RESET, _tags(action, worker.reason))
        case ActionType.DEALLOCATE | ActionType.DELETE_COMPUTE | ActionType.RESET:
            return
        case _:
            assert_never(action.type)


def _tags(action: Action, reason: Reason | None) -> WorkerGiven:
    return WorkerGiven(
        assignment=action.assignment, generation=action.generation, reason=reason, key=action.idempotency_key
    )


def _apply_create(draft: Draft, action: Action, done: Done, worker: Worker | None) -> None:
    """Always records the worker, even if its run has ended meanwhile or its record is missing."""
    if done.worker is None:
        raise AssertionError("checked() lets no create without a worker through")
    if worker is None:
        given = WorkerGiven(assignment=action.assignment, generation=action.generation, provider="unknown")
        move_worker(draft, action.slot, Trigger.PARK_CREATE, given)
    made = replace(_tags(action, None), id=done.worker.id, resources=done.worker.resources)
    move_worker(draft, action.slot, Trigger.CREATE_DONE, made)
