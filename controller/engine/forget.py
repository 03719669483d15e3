"""Forget: give up the record of a worker of which no look will ever speak, since its provider is gone for good.

Not promised: that there is nothing left, nor that nothing costs money any more. What may be there is kept on record as
disowned, for ever and with every id; the slot takes nothing new until looks have shown whether it is there. That is
taken on an operator's word as soon as no look can be had: nothing here asks a provider.
"""

from __future__ import annotations

from msgspec import Struct

from controller.engine import disowned
from controller.engine.lifecycle import holds
from controller.engine.operators import check_bounds, identities, in_slot, refuse_answered, refuse_pending, told
from controller.engine.queue import Context
from controller.model.errors import Conflict, NotFound
from controller.model.inventory import Look
from controller.model.perform import WorkerGiven, move_worker
from controller.model.policy import Release
from controller.model.reason import Reason
from controller.model.records import Document, Worker
from controller.model.transition import Trigger


class Forgotten(Struct, frozen=True):
    """No worker is on record in the slot any more. `left` names what may be there still, each as `KIND ID`,
    with the immutable id where there is one.

    `key` is that of the disowned record which keeps it; "" of a dry run.
    """

    slot: int
    assignment: str
    generation: int
    provider: str
    left: tuple[str, ...]
    key: str


def forget(
    context: Context, slot: int, look: Look | None, *, reason: str = "", by: str = "", dry_run: bool = False
) -> Forgotten:
    """Remove the record of the slot's worker, and keep as disowned what may be left of it.

    *look* is what the worker's own provider shows; None: it did not answer, or nobody can ask it.

    Raises NotFound when no worker is on record; Conflict while an action is pending, while the worker is assigned to a
    run, and when the provider answers after all; TransitionRefused for one that is being made; what a hold raises.
    """
    check_bounds(slot)
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        document = loaded.document
        refuse_pending(document, slot, "forgotten", answered=False)
        worker = document.workers.get(slot)
        if worker is None:
            raise NotFound(
                f"no worker is on record in slot {slot}: there is nothing to forget",
                where=in_slot(slot),
                next=f"controller explain slot:{slot}",
            )
        _refuse_assigned(context, document, worker)
        then = f"controller reconcile --apply; `controller explain slot:{slot}` says what it waits for"
        refuse_answered(document, worker, look, then)
        draft = context.draft(document)
        left = identities(worker)
        named = f"{worker.assignment} generation {worker.generation} of {worker.provider}"
        kept = f"its provider is gone for good; what may be left of {named}: {', '.join(left) or 'no id is known'}"
        move_worker(draft, slot, Trigger.FORGET, WorkerGiven(reason=Reason.DISOWNED, detail=told(by, reason)))
        key = disowned.keep(draft, worker, kept, by=by)
        if not dry_run:
            context.commit(hold, loaded, draft, forget=False)
    return Forgotten(slot, worker.assignment, worker.generation, worker.provider, left, "" if dry_run else key)


def _refuse_assigned(context: Context, document: Document, worker: Worker) -> None:
    if worker.run is None:
        return
    held = holds(worker, document.runs.get(worker.run))
    then = f"controller surrender {worker.run} --slot {worker.slot} --unresolved --reason WHY --confirm-surrender"
    if context.rules.release is Release.AUTO and not held:
        then = f"controller release {worker.run} --slot {worker.slot} --reason WHY --confirm-release"
    raise Conflict(
        f"slot {worker.slot} cannot be forgotten: its worker is assigned to run {worker.run}",
        where=f"slot {worker.slot}: {worker.assignment} is {worker.state}",
        next=f"{then}; then run this again",
    )
