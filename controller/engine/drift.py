"""Recorded beside observed, and what reconcile will do about it, for whoever asks before it does. Pure.

Not promised: that reconcile does just that. It looks and plans again, on what the document and the provider say then.
"""

from __future__ import annotations

from msgspec.structs import asdict

from controller.engine.classify import Classified, classify
from controller.engine.lifecycle import waits_for
from controller.engine.planner import Plan
from controller.engine.standing import span
from controller.model.action import action_of
from controller.model.errors import BrokenAction
from controller.model.inventory import Look
from controller.model.policy import Policy
from controller.model.reason import EXPLAINED
from controller.model.records import Document, PendingAction

NOTHING = "nothing"


class Drift(Classified, frozen=True):
    """One slot, as `classify` judges it; `will` is what reconcile does about it, in words."""

    will: str = NOTHING


def drift(document: Document, look: Look, planned: Plan | None, policy: Policy, now: int) -> tuple[Drift, ...]:
    """Every slot that is configured, recorded or shown. *planned* on this very document and look; None: it cannot be
    planned, so that nothing is told of what will be done.
    """
    classified = classify(document, look, policy.slots)
    told = ("not known" if planned is None else _will(document, each, planned, policy, now) for each in classified)
    return tuple(Drift(**asdict(each), will=will) for each, will in zip(classified, told, strict=True))


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
