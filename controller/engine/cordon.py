"""Cordon, uncordon and drain: whether a slot takes anything new, and whether its worker is taken down.

Not promised: that anything has happened to the worker when this returns. A reconcile respects what is said here; a
worker that has a run keeps it until that has ended.
"""

from __future__ import annotations

from msgspec.structs import replace

from controller.engine.operators import check_bounds, told
from controller.engine.queue import Context
from controller.model.edit import Draft
from controller.model.errors import NotFound
from controller.model.reason import Reason
from controller.model.records import Document


def cordon(
    context: Context,
    slot: int,
    *,
    on: bool = True,
    drain: bool = False,
    reason: str = "",
    by: str = "",
    dry_run: bool = False,
) -> bool:
    """Make a slot take nothing new, with *drain* also give up its worker, or (*on* false) lift both; False: it was so.

    Lifting also forgets that the provider refused to bind its worker: the next reconcile tries again. A slot that is
    drained is cordoned, so cordoning it changes nothing. *dry_run* says what would be, and changes nothing.

    Unlike other verbs it takes no heed of a pending action: it judges no record, and stops nothing that was asked.

    Raises NotFound for a slot that is neither configured nor on record, and what a hold raises.
    """
    check_bounds(slot)
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        _refuse_unknown(context, loaded.document, slot)
        draft = context.draft(loaded.document)
        changed = _lift(draft, slot, told(by, reason)) if not on else _close(draft, slot, drain, told(by, reason))
        if changed and not dry_run:
            context.commit(hold, loaded, draft)
    return changed


def _close(draft: Draft, slot: int, drain: bool, detail: str) -> bool:
    known = draft.slot(slot)
    if known.cordoned and (known.draining or not drain):
        return False
    draft.slots.put(slot, replace(known, cordoned=True, draining=known.draining or drain))
    event, reason = ("slot_draining", Reason.DRAINING) if drain else ("cordoned", Reason.CORDONED)
    draft.event(f"slot:{slot}", event, reason=reason, detail=detail)
    return True


def _lift(draft: Draft, slot: int, detail: str) -> bool:
    known, worker = draft.slot(slot), draft.workers.get(slot)
    refused = worker is not None and worker.reason is Reason.IDENTITY_REFUSED and slot not in draft.pending
    if not (known.cordoned or known.draining or refused):
        return False
    draft.slots.put(slot, replace(known, cordoned=False, draining=False))
    if worker is not None and refused:
        draft.workers.put(slot, replace(worker, reason=None))
    draft.event(f"slot:{slot}", "uncordoned", detail=detail)
    return True


def _refuse_unknown(context: Context, document: Document, slot: int) -> None:
    if context.policy is None:
        return  # nobody knows how many there are, and what stops things must work all the same
    slots = context.policy.slots
    if slot <= slots or slot in {*document.slots, *document.workers, *document.pending_actions}:
        return
    raise NotFound(
        f"there is no slot {slot}: {slots} are configured, and nothing is on record there",
        where=f"slot {slot}",
        next="controller status",
    )
