"""Ways out for a run whose worker is stopped or gone and whose data is kept: resume it, or surrender it.

Not promised: that the data is good, nor that there is any; that a provider makes what a resume asks for. Both verbs
judge a document that was loaded in the hold that commits, and a look that the caller has just had: nothing here asks a
provider. Whatever is refused changed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from controller.engine import disowned, fold
from controller.engine.capacity import Headcount
from controller.engine.classify import classify, retained, unrecorded_in
from controller.engine.identity import identity_matches
from controller.engine.lifecycle import holds
from controller.engine.operators import (
    assigned,
    identities,
    in_slot,
    is_on,
    named,
    on_under,
    refuse_answered,
    refuse_pending,
    refuse_silent,
    told,
    told_of,
)
from controller.engine.pending import park
from controller.engine.queue import Context
from controller.engine.sight import second_absence
from controller.engine.submission import slots_naming
from controller.model.edit import Draft
from controller.model.errors import Conflict
from controller.model.health import BreakerState, breaker_state, retry_at
from controller.model.inventory import Look, Seen, SeenWorker, shows
from controller.model.perform import Given, WorkerGiven, move_run, move_worker
from controller.model.policy import Release
from controller.model.reason import EXPLAINED, Reason
from controller.model.records import (
    ActionType,
    Document,
    PendingAction,
    Resource,
    Run,
    RunState,
    Worker,
    WorkerState,
)
from controller.model.transition import Trigger


class Resumed(Struct, frozen=True):
    """New compute is on its way: the create of `generation` is parked under `key`, exactly as in `parked`.

    `retried`: the run had failed or was cancelled, and is queued again. Of a dry run `key` is "" and `parked` None.
    """

    slot: int
    run: str
    generation: int
    key: str
    retried: bool
    parked: PendingAction | None


class Surrendered(Struct, frozen=True):
    """The assignment is over. `lost` names what was given up, each as `KIND ID`, with the immutable id where there is
    one. `ended`: the run was running on it.
    """

    slot: int
    run: str
    lost: tuple[str, ...]
    ended: bool


def resume(
    context: Context,
    run_id: str,
    look: Look,
    *,
    slot: int | None = None,
    reason: str = "",
    by: str = "",
    dry_run: bool = False,
    key_ttl_ms: int | None = None,
) -> Resumed:
    """Park the making of new compute for the data of a run: same assignment, next generation.

    A run that failed or was cancelled is queued again in the same commit. *slot* chooses where several workers are
    assigned to the run. *key_ttl_ms* is how long the provider says that it remembers keys.

    Raises NotFound; Conflict unless the old compute is shown dark or gone with the recorded identities, nothing else
    has or gets the run, nothing of the slot is pending, and the slot may take something new; what a hold raises.
    """
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        document = loaded.document
        worker = assigned(document, run_id, slot)
        refuse_pending(document, worker.slot, "resumed")
        _refuse_run(context, document, worker, run_id)
        _refuse_closed(context, document, worker)
        _refuse_unless_off(context, document, worker, look)
        draft, detail = context.draft(document), told(by, reason)
        there, gone = _told_apart(document, worker, look)
        run = document.runs.get(run_id)
        retried = run is not None and run.state in (RunState.FAILED, RunState.CANCELLED)
        if retried:
            move_run(draft, run_id, Trigger.OPERATOR_RETRY, Given(reason=Reason.OPERATOR_RETRY, error=detail))
        given = WorkerGiven(assignment=worker.assignment, generation=worker.generation, reason=Reason.RESUMED)
        given = replace(given, detail="; ".join((detail, *gone)))
        move_worker(draft, worker.slot, Trigger.RESUME, given)
        anew = draft.workers.get(worker.slot) or worker
        key = park(draft, ActionType.CREATE, anew, resources=there, run=run_id, key_ttl_ms=key_ttl_ms)
        if dry_run:
            return Resumed(worker.slot, run_id, anew.generation, "", retried, None)
        after = context.commit(hold, loaded, draft)
    return Resumed(worker.slot, run_id, anew.generation, key, retried, after.pending_actions.get(worker.slot))


def _refuse_run(context: Context, document: Document, worker: Worker, run_id: str) -> None:
    """The worker is stopped or gone and not released, and nothing else has, or is made for, the run."""
    slot, what = worker.slot, f"run {run_id} cannot be resumed"
    if worker.proof:
        raise Conflict(
            f"{what}: its worker was released by a proof, so its data may be gone at any moment",
            where=f"slot {slot}, proof {worker.proof[:12]}",
            next=f"controller history slot:{slot}",
        )
    run = document.runs.get(run_id)
    if run is not None and run.state is RunState.RUNNING:
        holder = in_slot(run.worker.slot) if run.worker else run.lease.owner if run.lease else "somebody"
        raise Conflict(f"{what}: it is running", where=f"held by {holder}", next=f"controller show {run_id}")
    others = [each for each in slots_naming(context.draft(document), run_id) if each != slot]
    others = [each for each in others if not _only_keeps(document, each)]
    if others:
        first = others[0]
        raise Conflict(
            f"{what}: another worker has it, or is made for it",
            where=named(others),
            next=f"controller explain slot:{first}",
        )
    match worker.state:
        case WorkerState.DEALLOCATED | WorkerState.LOST:
            pass
        case WorkerState.CREATING:
            raise Conflict(
                f"{what}: new compute for it is being made already",
                where=f"slot {slot}, generation {worker.generation}",
                next="controller reconcile --apply",
            )
        case _:
            raise Conflict(
                f"{what}: its worker is {worker.state}, so its compute is there as far as the document knows",
                where=in_slot(slot),
                next="controller reconcile --apply: once looks show it off or gone, run this again",
            )
    if run is None and context.rules.release is Release.AUTO:
        raise Conflict(
            f"{what}: it has ended and left the document, so there is nothing to go on with",
            where=in_slot(slot),
            next=f"controller release {run_id} --reason WHY --confirm-release",
        )
    if run is not None and run.queue not in context.rules.queues:
        raise Conflict(
            f"{what}: the fleet does not serve its queue, so nothing would ever take it",
            where=f"queue {run.queue}; [fleet] queues = {', '.join(context.rules.queues)}",
            next="put its queue into [fleet] queues first",
        )


def _only_keeps(document: Document, slot: int) -> bool:
    """Whether the slot has nothing of a run that names it but data of an earlier life."""
    worker = document.workers.get(slot)
    stopped = worker is not None and worker.state in (WorkerState.DEALLOCATED, WorkerState.LOST)
    return stopped and slot not in document.pending_actions and not disowned.blocks(document, slot)


def _refuse_closed(context: Context, document: Document, worker: Worker) -> None:
    """The slot may take something new, and its provider may be asked for it."""
    slot, rules, now = worker.slot, context.rules, context.clock.now_ms()
    known = document.slots.get(slot)
    what = f"slot {slot} takes nothing new, so nothing can be resumed there"
    if disowned.blocks(document, slot):
        raise _closed(what, "an action of it was disowned, and what that did is not known yet", Reason.DISOWNED, slot)
    if known is not None and (known.cordoned or known.draining):
        why = "it is draining" if known.draining else "it is cordoned"
        raise _closed(what, why, Reason.CORDONED, slot)
    if known is not None and known.unrecorded:
        raise _closed(what, "something is there that no record knows", Reason.UNRECORDED, slot)
    if document.draining:
        raise _closed(what, "the fleet is draining", Reason.DRAINING, slot)
    if Headcount(context.draft(document), rules).room == 0:
        raise Conflict(
            f"{what}: there are as many workers as there may be",
            where=f"[fleet] max = {rules.ceiling}",
            next="wait until one is taken down, or raise max",
        )
    if slot > rules.slots:
        raise Conflict(
            f"{what}: only {rules.slots} are configured",
            where=f"[fleet] slots = {rules.slots}",
            next=f"set slots to {slot} or more first",
        )
    provider = document.providers.get(worker.provider)
    if breaker_state(provider, rules.breaker, now) is BreakerState.OPEN:
        again = retry_at(provider, rules.breaker)
        wait = 0 if again is None else max(0, again - now)
        raise Conflict(
            f"nothing new is asked of provider {worker.provider}, which fails: {provider.why if provider else ''}",
            where=f"slot {slot}; it is tried again in {(wait + 999) // 1000} s",
            next=EXPLAINED[Reason.BREAKER_OPEN].next,
        )


def _closed(what: str, why: str, reason: Reason, slot: int) -> Conflict:
    then = f"controller uncordon {slot}" if reason is Reason.CORDONED else EXPLAINED[reason].next
    return Conflict(f"{what}: {why}", where=in_slot(slot), next=then)


def _refuse_unless_off(context: Context, document: Document, worker: Worker, look: Look) -> None:
    """The look shows that exact worker, its compute off or gone, and what it shows of its data is what was recorded."""
    slot, what = worker.slot, "no new compute is made"
    refuse_silent(document, slot, look, "resumed")
    shown = _shown(document, worker, look)
    if any(is_on(seen) for seen in shown):
        alive = next(seen for seen in shown if is_on(seen))
        words = "is on" if alive.state is Seen.READY else "is being made"
        raise Conflict(
            f"{what}: the old compute {words}, and two that use the same data would spoil it",
            where=f"slot {slot}: {told_of(alive)}",
            next="controller reconcile --apply stops it; then run this again",
        )
    other = next((seen for seen in shown if not identity_matches(worker, seen)), None)
    if other is not None:
        raise Conflict(
            f"{what}: what the provider shows is not what was recorded",
            where=f"slot {slot}: recorded {_named(worker)}; shown {_named(other)}",
            next=EXPLAINED[Reason.IDENTITY_CHANGED].next,
        )
    if slot in retained(document, look) or slot in unrecorded_in(document, look):
        raise _retained(context, document, look, slot, what)
    if not shown:
        raise Conflict(
            f"{what}: the provider does not show the old worker at all, which proves neither that it is off nor that "
            "its data is there",
            where=f"slot {slot}: {worker.assignment} generation {worker.generation}",
            next="see `controller status --live`; if its data is gone for good, "
            f"`controller surrender {worker.run} --reason WHY --confirm-surrender`",
        )
    if worker.resources and not any(worker.resources.keys() & seen.resources.keys() for seen in shown):
        raise Conflict(
            f"{what}: the provider shows none of the recorded resources, so nothing says that the data is there",
            where=f"slot {slot}: recorded {_named(worker)}",
            next=f"see `controller status --live`; `controller surrender {worker.run}` gives the data up",
        )


def _told_apart(document: Document, worker: Worker, look: Look) -> tuple[Mapping[str, Resource], tuple[str, ...]]:
    """Which of the recorded resources the look still shows, and what to say of the others.

    The create names the first alone, and has to come back with them. The record keeps all, in case it comes to nothing.
    """
    kinds = {kind for seen in _shown(document, worker, look) for kind in seen.resources}
    there = {kind: each for kind, each in worker.resources.items() if kind in kinds}
    gone = {kind: each for kind, each in worker.resources.items() if kind not in kinds}
    lost = ", ".join(identities(replace(worker, id="", resources=gone)))
    return there, ((f"not there any more: {lost}",) if lost else ())


def _shown(document: Document, worker: Worker, look: Look) -> list[SeenWorker]:
    return [seen for seen in look.inventory.workers if shows(worker, document.lineage, seen)]


def _named(known: Worker | SeenWorker) -> str:
    return ", ".join(identities(known)) or "nothing"


def _retained(context: Context, document: Document, look: Look, slot: int, what: str) -> Conflict:
    found = next(each for each in classify(document, look, context.rules.slots) if each.slot == slot)
    return Conflict(
        f"{what}: what the provider shows in slot {slot} has to be looked into first ({found.reason})",
        where=f"slot {slot}: {found.why}",
        next=f"controller explain slot:{slot}",
    )


def surrender(
    context: Context,
    run_id: str,
    look: Look | None,
    *,
    slot: int | None = None,
    reason: str = "",
    by: str = "",
    dry_run: bool = False,
    unresolved: bool = False,
) -> Surrendered:
    """End an assignment whose ordinary release can no longer be made: what is left of its data is anybody's to delete.

    *unresolved*: no look can be had, because the provider is gone for good; then a run that the worker holds is ended
    too, as lost. *look* None: the provider did not answer.

    Raises NotFound; Conflict while an action is pending, while an ordinary release would do, while compute may be live,
    and, with *unresolved*, when the provider answers after all; what a hold raises.
    """
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        document = loaded.document
        worker = assigned(document, run_id, slot)
        refuse_pending(document, worker.slot, "surrendered")
        run = document.runs.get(run_id)
        held = holds(worker, run)
        _refuse_ordinary(context, worker, run_id, held=held)
        if unresolved:
            again = "run it again without --unresolved"
            then = f"{again}; `controller explain slot:{worker.slot}` says what else there is"
            refuse_answered(document, worker, look, then)
        else:
            _refuse_unless_lost(context, document, worker, look, held=held)
        draft = context.draft(document)
        lost = identities(worker)
        detail = told(by, reason, f"lost: {', '.join(lost) or 'nothing that was recorded'}")
        _give_up(context, draft, worker, run if held else None, detail)
        if not dry_run:
            context.commit(hold, loaded, draft)
    return Surrendered(worker.slot, run_id, lost, held)


def _refuse_ordinary(context: Context, worker: Worker, run_id: str, *, held: bool) -> None:
    """Where no proof is asked for, whatever is over can be released."""
    if context.rules.release is Release.AUTO and not held:
        raise Conflict(
            f"run {run_id} needs no surrender: its worker can be released as always",
            where=in_slot(worker.slot),
            next=f"controller release {run_id} --reason WHY --confirm-release",
        )


def _refuse_unless_lost(context: Context, document: Document, worker: Worker, look: Look | None, *, held: bool) -> None:
    """Its run is over, its compute is off or gone by record and look, and part of what was recorded is not shown."""
    slot, run_id = worker.slot, worker.run
    what = f"run {run_id} cannot be surrendered"
    unresolved = f"controller surrender {run_id} --unresolved --reason WHY --confirm-surrender"
    if held:
        raise Conflict(f"{what}: it is running", where=in_slot(slot), next=f"controller cancel {run_id}")
    if look is None:
        raise Conflict(
            f"{what}: the provider did not say what there is",
            where=in_slot(slot),
            next=f"run it again once it answers; if it is gone for good: {unresolved}",
        )
    if disowned.blocks(document, slot):
        raise Conflict(
            f"{what}: an action of its slot was disowned, and what that did is not known yet",
            where=in_slot(slot),
            next=EXPLAINED[Reason.DISOWNED].next,
        )
    refuse_silent(document, slot, look, "surrendered")
    shown = _shown(document, worker, look)
    alive = next((seen for seen in shown if is_on(seen)), None)
    if alive is not None:
        raise Conflict(
            f"{what}: its compute is live, so its release can still be proven",
            where=f"slot {slot}: {told_of(alive)}",
            next=f"controller release {run_id} --template; `controller drain {slot}` stops it",
        )
    other = on_under(worker, document.lineage, look)
    if other is not None:
        raise Conflict(
            f"{what}: compute of another generation is live, and may use its data",
            where=f"slot {slot}: {told_of(other)}",
            next=f"controller explain slot:{slot}",
        )
    if worker.state not in (WorkerState.DEALLOCATED, WorkerState.LOST):
        raise Conflict(
            f"{what}: its worker is {worker.state} as far as the document knows",
            where=f"slot {slot}: "
            + (told_of(shown[0]) if shown else "not shown; two looks must agree that it is gone"),
            next="controller reconcile --apply; then run this again",
        )
    if not shown and not second_absence(worker.absent, look, context.rules):
        raise Conflict(
            f"{what}: that one look does not show its worker proves nothing of its data; two that are apart must agree",
            where=f"slot {slot}: {worker.assignment} generation {worker.generation} is {worker.state}",
            next="controller reconcile --apply twice, [fleet] grace apart; then run this again",
        )
    whole = [
        seen for seen in shown if identity_matches(worker, seen) and worker.resources.keys() <= seen.resources.keys()
    ]
    if whole:
        raise Conflict(
            f"{what}: all that was recorded of its worker is shown, so its release can still be proven",
            where=f"slot {slot}: {_named(whole[0])}",
            next=f"controller release {run_id} --template, then `controller release {run_id} --proof FILE`",
        )


def _give_up(context: Context, draft: Draft, worker: Worker, held: Run | None, detail: str) -> None:
    slot = worker.slot
    if held is not None:
        given = Given(
            reason=Reason.WORKER_LOST, error=f"worker in slot {slot} was surrendered {detail}", lease_over=True
        )
        given = fold.after_backoff(given, draft, held, held.crashes + 1, context.rules)
        move_run(draft, held.id, Trigger.LEASE_EXPIRED, given)
    if worker.state not in (WorkerState.DEALLOCATED, WorkerState.LOST):
        # Nobody can look. Gone is what it is treated as: it takes no run, and should it show up it is stopped first.
        move_worker(draft, slot, Trigger.SEEN_GONE, WorkerGiven(proven=False, data_gone=True, detail=detail))
        gone = draft.workers.get(slot) or worker
        draft.workers.put(slot, replace(gone, running=None, absent=None))
    move_worker(draft, slot, Trigger.RELEASE, WorkerGiven(reason=Reason.SURRENDERED, detail=detail))
