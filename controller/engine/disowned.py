"""Disowned actions: what can never apply, kept for ever, and what looks show of it. A worker that was forgotten is kept
so too, as the removal of its compute, which is never sent.

Not promised: that a look ever comes. Until looks have proven whether an action made or did anything, its slot takes
nothing new; what was proven is kept with the record and decides nothing any more.

What a create has made is never taken into the document by itself: it counts as unrecorded, for an operator to adopt or
delete; so is a worker whose record is gone. Everything else is folded as an ordinary apply would, if the document can
take it.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from controller.engine import outcomes
from controller.engine.sight import seen_in, speaks_of
from controller.model.action import Action, decode, mint
from controller.model.edit import Draft, foreseen
from controller.model.errors import BrokenAction
from controller.model.inventory import Look, remains
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import ActionType, Disowned, Document, PendingAction, Proven, Worker
from controller.provider.protocol import Done
from controller.store.edits import next_document
from controller.store.protocol import Scope


def record(
    draft: Draft, entry: PendingAction, action: Action, reason: Reason, detail: str, *, by: str, policy: Policy
) -> None:
    """Take a pending action out of the pending map and keep it as disowned, with *detail*: what it may have made.

    The record of a create's worker goes, or is as it was before a resume. Whatever an execute or a cancel is about
    stays as it is: a run that its worker holds goes on being held, until looks say what became of it.
    """
    key, slot = action.idempotency_key, action.slot
    outcomes.unpark(draft, slot, action, reason, detail, event="action.disowned")
    if action.type is ActionType.CREATE:
        outcomes.not_made(draft, action, reason, detail, policy)
    kept = Disowned(entry.action, draft.now, reason, detail, by, sent_at=entry.sent_at or entry.parked_at)
    draft.disowned.put(key, kept)


def keep(draft: Draft, worker: Worker, detail: str, *, by: str) -> str:
    """Keep as disowned, never sent, the removal of a worker whose record goes; return its key. *detail* has its ids."""
    key, raw = mint(
        type=ActionType.DELETE_COMPUTE,
        slot=worker.slot,
        serial=draft.count("serial"),
        lineage=draft.document.lineage,
        epoch=draft.document.epoch,
        assignment=worker.assignment,
        generation=worker.generation,
        resources=worker.resources,
        settled=worker.settled,
    )
    draft.disowned.put(key, Disowned(raw, draft.now, Reason.DISOWNED, detail, by))
    draft.event(
        f"slot:{worker.slot}",
        "action.disowned",
        ActionType.DELETE_COMPUTE,
        reason=Reason.DISOWNED,
        key=key,
        detail=detail,
        action=raw,
    )
    return key


def blocked(known: Draft | Document) -> frozenset[int]:
    """Slots that an unproven disowned action names: nothing at all may be planned for them.

    A draft is closed as it was loaded, too: who has just proven what is there has planned by a record without it.
    """
    seen = (known, known.document) if isinstance(known, Draft) else (known,)
    return frozenset(slot for each in seen for _, _, slot in _unproven(each))


def blocks(known: Draft | Document, slot: int) -> bool:
    """Whether an unproven disowned action names the slot."""
    return slot in blocked(known)


def observe(draft: Draft, look: Look, policy: Policy) -> None:
    """Settle unproven disowned actions by what *look* shows, each for itself. Must come before whatever else the look
    says of their slots: a key that it lists was accepted before its worker was gone.
    """
    for key, disowned, slot in tuple(_unproven(draft)):
        if slot not in draft.pending and speaks_of(look, draft.document, slot):
            _observe(draft, key, disowned, look, policy)


def _observe(draft: Draft, key: str, disowned: Disowned, look: Look, policy: Policy) -> None:
    action = decode(disowned.action)
    # The same evidence as for one that the provider has refused in the end: nothing is sent again, proof alone counts.
    since = disowned.sent_at or disowned.at
    entry = PendingAction(
        disowned.action, parked_at=since, sent_at=since, rejected=disowned.detail or "disowned", absent=disowned.absent
    )
    shown, recorded = seen_in(look, draft.document.lineage, action), _is_recorded(draft, action)
    if len(shown) == 1 and (action.type is ActionType.CREATE or not recorded):
        (seen,) = shown
        there = Proven.PRESENT if remains(seen) else Proven.ABSENT
        _prove(draft, key, disowned, action, there, f"a look shows worker {seen.id} {seen.state}")
        return
    found = outcomes.evidence(draft.document, action.slot, entry, action, look, policy, draft.now)
    match found:
        case outcomes.FirstAbsence(span):
            _note(draft, key, replace(disowned, absent=span), action, "disowned_unseen")
        case outcomes.SeenAgain() if disowned.absent is not None:
            _note(draft, key, replace(disowned, absent=None), action, "disowned_seen_again")
        case Done() | outcomes.WorkerLost() if not recorded:
            _prove(draft, key, disowned, action, Proven.ABSENT, "two looks show nothing of it")
        case outcomes.NoEffect(_, why):
            why = "two looks show nothing of it" if action.type is ActionType.CREATE else why
            _prove(draft, key, disowned, action, Proven.ABSENT, why)
        case outcomes.WorkerLost():
            _settle(draft, entry, action, found, policy)
            _prove(draft, key, disowned, action, Proven.ABSENT, "a look shows its worker gone")
        case Done():
            # A step that runs and is not recorded would be asked for again: then only the end of its worker settles it.
            if _settle(draft, entry, action, found, policy) or action.type is not ActionType.EXECUTE:
                detail = outcomes.describe(action, found)
                _prove(draft, key, disowned, action, Proven.PRESENT, f"a look shows it: {detail or 'it is done'}")
        case _:
            return


def _is_recorded(draft: Draft, action: Action) -> bool:
    """Whether the worker that it is about is on record."""
    worker = draft.workers.get(action.slot)
    tags = (action.assignment, action.generation)
    return worker is not None and (worker.assignment, worker.generation) == tags


def _settle(
    draft: Draft, entry: PendingAction, action: Action, found: Done | outcomes.WorkerLost, policy: Policy
) -> bool:
    """Fold what was proven, as an ordinary apply would. False: the document cannot take it, and the draft is as it was.

    It is tried apart first: one that the document cannot take would take the whole plan with it.
    """
    worker = draft.workers.get(action.slot)
    held = None if worker is None else worker.run or worker.reserved
    trial = Draft(foreseen(draft.document, draft.edit()), now=draft.now, command=draft.command)
    try:
        outcomes.settle(trial, action.slot, entry, action, found, policy)
        next_document(trial.document, trial.edit(), Scope(action.slot, held or action.run), "")
    except Exception:  # noqa: BLE001 - whatever it raises, other slots are planned for all the same
        return False
    outcomes.settle(draft, action.slot, entry, action, found, policy)
    return True


def _prove(draft: Draft, key: str, disowned: Disowned, action: Action, proven: Proven, detail: str) -> None:
    after = replace(disowned, proven=proven, proven_at=draft.now, absent=None)
    draft.disowned.put(key, after)
    draft.event(
        f"slot:{action.slot}",
        "disowned_proven",
        action.type,
        proven,
        reason=disowned.reason,
        key=key,
        step=action.step,
        detail=detail,
    )


def _note(draft: Draft, key: str, disowned: Disowned, action: Action, event: str) -> None:
    """Keep what a look showed or did not, and mark the slot: a look that was asked for before says no more of it."""
    draft.disowned.put(key, disowned)
    draft.slots.put(action.slot, replace(draft.slot(action.slot), changed=draft.document.revision + 1))
    draft.event(f"slot:{action.slot}", event, action.type, reason=disowned.reason, key=key)


def _unproven(known: Draft | Document) -> Iterator[tuple[str, Disowned, int]]:
    for key, disowned in known.disowned.items():
        if disowned.proven is None:
            try:
                slot = decode(disowned.action).slot
            except BrokenAction:  # `fsck` says so; a slot that nobody knows cannot be kept closed
                continue
            yield key, disowned, slot
