"""Recorded beside observed: what each slot is, computed from the document and a look, never stored as truth.

Not promised: that a class stays; it is what these two say together now. Nothing is adopted or deleted on its strength.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from controller.engine import fold
from controller.engine.looks import speaks_of
from controller.model.inventory import Look, Seen, SeenWorker
from controller.model.records import Document, Worker, WorkerState


class SlotClass(StrEnum):
    FREE = "free"
    CREATING = "creating"
    ASSIGNED = "assigned"
    CLEAN_WARM = "clean-warm"
    DEALLOCATED = "deallocated"
    ORPHANED = "orphaned-safe-to-delete"
    RETAINED = "retained-for-investigation"


class Classified(Struct, frozen=True):
    """One slot. `observed` is the provider's word for it; None: not shown, or the look may not speak of the slot."""

    slot: int
    recorded: WorkerState | None
    observed: Seen | None
    slot_class: SlotClass
    why: str


def classify(document: Document, look: Look, slots: int) -> tuple[Classified, ...]:
    """Every slot that is configured, recorded or shown, in order."""
    shown: dict[int, list[SeenWorker]] = {}
    for seen in look.inventory.workers:
        if seen.lineage == document.lineage:
            shown.setdefault(seen.slot, []).append(seen)
    numbers = sorted({*range(1, slots + 1), *document.workers, *shown})
    return tuple(_one(document, look, number, shown.get(number, [])) for number in numbers)


def _one(document: Document, look: Look, slot: int, shown: list[SeenWorker]) -> Classified:
    worker = document.workers.get(slot)
    if worker is None:
        if any(seen.state is not Seen.GONE for seen in shown):
            why = f"the provider shows {shown[0].assignment}, which no record knows"
            return Classified(slot, None, shown[0].state, SlotClass.RETAINED, why)
        return Classified(slot, None, None, SlotClass.FREE, "no worker is recorded or shown")
    seen = next((each for each in shown if fold.shows(worker, document.lineage, each)), None)
    observed = None if seen is None else seen.state
    if slot in document.pending_actions:
        kind = SlotClass.CREATING if worker.state is WorkerState.CREATING else _by_record(worker)
        return Classified(slot, worker.state, observed, kind, "an action is pending: its record is not the truth yet")
    if not speaks_of(look, document, slot):
        why = "the look is incomplete" if not look.complete else "the slot changed after the look was asked for"
        return Classified(slot, worker.state, observed, _by_record(worker), why)
    if seen is not None and worker.resources and seen.resources and dict(seen.resources) != dict(worker.resources):
        return Classified(slot, worker.state, observed, SlotClass.RETAINED, "a recorded resource has another identity")
    if seen is None and any(each.state is not Seen.GONE for each in shown):
        why = f"the provider shows {shown[0].assignment} generation {shown[0].generation} instead"
        return Classified(slot, worker.state, shown[0].state, SlotClass.RETAINED, why)
    return Classified(slot, worker.state, observed, *_agreed(worker, observed))


def _agreed(worker: Worker, observed: Seen | None) -> tuple[SlotClass, str]:
    gone = observed in (None, Seen.GONE)
    if gone and worker.state in (WorkerState.READY, WorkerState.ASSIGNED, WorkerState.RELEASED):
        if observed is None:
            return _by_record(worker), "the provider does not show it: two looks must agree before it counts as gone"
        return SlotClass.ORPHANED, "the provider shows it gone; what is left of it can be removed"
    if worker.state is WorkerState.LOST and observed in (Seen.CREATING, Seen.READY):
        return SlotClass.ORPHANED, "recorded as lost, but the provider shows it alive: it is stopped first"
    if observed is Seen.DARK and worker.state in (WorkerState.READY, WorkerState.ASSIGNED, WorkerState.RELEASED):
        return SlotClass.DEALLOCATED, "its compute is off though nobody asked here"
    return _by_record(worker), "record and provider agree"


def _by_record(worker: Worker) -> SlotClass:
    match worker.state:
        case WorkerState.CREATING:
            return SlotClass.CREATING
        case WorkerState.ASSIGNED:
            return SlotClass.ASSIGNED
        case WorkerState.READY | WorkerState.RELEASED:
            return SlotClass.CLEAN_WARM
        case WorkerState.DEALLOCATED:
            return SlotClass.DEALLOCATED
        case WorkerState.COMPUTE_REMOVED | WorkerState.LOST:
            return SlotClass.ORPHANED
