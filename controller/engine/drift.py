"""Recorded beside observed, and what reconcile will do about it, for whoever asks before it does. Pure.

Not promised: that reconcile does just that. It looks and plans again, on what the document and the provider say then.
"""

from __future__ import annotations

from msgspec import Struct

from controller.engine.classify import Classified, SlotClass, classify
from controller.engine.lifecycle import waits_for
from controller.engine.planner import Plan
from controller.engine.standing import span
from controller.model.action import action_of
from controller.model.errors import BrokenAction
from controller.model.inventory import Look, Seen, SeenWorker
from controller.model.policy import Policy
from controller.model.reason import EXPLAINED, Reason
from controller.model.records import Document, PendingAction, WorkerState

NOTHING = "nothing"


class Drift(Struct, frozen=True):
    """One slot, as `classify` judges it; `will` is what reconcile does about it, in words."""

    slot: int
    recorded: WorkerState | None
    observed: Seen | None
    slot_class: SlotClass
    reason: Reason
    why: str
    will: str
    unrecorded: tuple[SeenWorker, ...] = ()


def drift(document: Document, look: Look, planned: Plan | None, policy: Policy, now: int) -> tuple[Drift, ...]:
    """Every slot that is configured, recorded or shown. *planned* on this very document and look; None: it cannot be
    planned, so that nothing is told of what will be done.
    """
    found = []
    for each in classify(document, look, policy.slots):
        will = "not known" if planned is None else _will(document, each, planned, policy, now)
        found.append(
            Drift(
                slot=each.slot,
                recorded=each.recorded,
                observed=each.observed,
                slot_class=each.slot_class,
                reason=each.reason,
                why=each.why,
                will=will,
                unrecorded=each.unrecorded,
            )
        )
    return tuple(found)


def _will(document: Document, each: Classified, planned: Plan, policy: Policy, now: int) -> str:
    entry = document.pending_actions.get(each.slot)
    if entry is not None:
        return f"settle its {_kind(entry)} first"
    parks = [parked for parked in planned.parks if parked.slot == each.slot]
    if parks:
        return "; ".join(f"{parked.type}: {parked.why}" for parked in parks)
    worker = document.workers.get(each.slot)
    changed = planned.edit.workers.get(each.slot)
    if worker is not None and changed is not None and changed.state is not worker.state:
        return f"record it as {changed.state}"
    if each.slot in planned.retained:
        return f"{NOTHING}: {EXPLAINED[each.reason].text}"
    wait = None if worker is None else waits_for(document, worker, policy, now)
    if wait is None:
        return NOTHING
    left = "" if wait.until is None or wait.until <= now else f" for {span(wait.until - now)}"
    return f"{NOTHING}{left}: {EXPLAINED[wait.reason].text}"


def _kind(entry: PendingAction) -> str:
    try:
        return action_of(entry).type
    except BrokenAction:
        return "pending action"
