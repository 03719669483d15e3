"""Recorded beside observed: what each slot is, computed from the document and a look, never stored as truth.

Not promised: that a class stays; it is what these two say together now. Nothing is adopted or deleted on its strength:
it only keeps the planner's hands off (`retained`), on the word of a look that may speak of the slot. An incomplete one,
or one that was asked for before the slot changed, shows but decides nothing: the record alone gives the class then.

What carries another lineage is not ours and is passed over, unless it has the very id of something that is recorded
here. What is shown gone is a presence only as long as it has resources: those may cost money.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Final

from msgspec import Raw, Struct

from controller.engine.identity import changes, identity_matches, overtakes, same
from controller.engine.sight import speaks_of
from controller.model.action import Action, decode
from controller.model.errors import BrokenAction
from controller.model.inventory import Look, Seen, SeenWorker, remains, shows
from controller.model.reason import Reason
from controller.model.records import ActionType, Document, Resource, Worker, WorkerState


class SlotClass(StrEnum):
    FREE = "free"
    CREATING = "creating"
    ASSIGNED = "assigned"
    CLEAN_WARM = "clean-warm"
    DEALLOCATED = "deallocated"
    ORPHANED = "orphaned-safe-to-delete"
    RETAINED = "retained-for-investigation"


class Classified(Struct, frozen=True):
    """One slot. `observed` is the provider's word for it (None: not shown), `why` the reason in words.

    `unrecorded` is what the look shows in the slot and no record knows, whatever else is the matter with the slot.
    """

    slot: int
    recorded: WorkerState | None
    observed: Seen | None
    slot_class: SlotClass
    reason: Reason
    why: str
    unrecorded: tuple[SeenWorker, ...] = ()


_NOT_OURS: Final = frozenset({Reason.IDENTITY_CHANGED, Reason.FOREIGN_TAG, Reason.ID_TWICE, Reason.UNRECORDED})


def classify(document: Document, look: Look, slots: int) -> tuple[Classified, ...]:
    """Every slot that is configured, recorded or shown, in order, each in exactly one class. Never raises."""
    view = _View(document, look)
    numbers = {*range(1, slots + 1), *document.workers, *document.pending_actions, *view.disowned, *view.shown}
    return tuple(view.judge(number) for number in sorted(numbers))


def retained(document: Document, look: Look) -> frozenset[int]:
    """Slots that must be left alone, on the word of a look that speaks of them."""
    if not look.complete:
        return frozenset()
    view = _View(document, look)
    doubted = (n for n in document.workers.keys() | view.shown.keys() if not view.is_plain(n) and view.speaks(n))
    return frozenset(each.slot for each in map(view.judge, doubted) if _is_left_alone(each))


def _is_left_alone(each: Classified) -> bool:
    """Data that waits for an operator is not left alone: the machines keep it, and its compute may be stopped."""
    if each.recorded is WorkerState.COMPUTE_REMOVED and each.reason is Reason.RETURNED:
        return True  # all that could be planned is to forget it, and it is there
    return each.slot_class is SlotClass.RETAINED and each.reason in _NOT_OURS


def unrecorded_in(document: Document, look: Look) -> Mapping[int, tuple[SeenWorker, ...]]:
    """What is there and no record knows, by slot; only slots of which the look speaks, and that have any."""
    view = _View(document, look)
    found = ((number, view.unrecorded(number)) for number in sorted(view.shown) if view.speaks(number))
    return {number: unknown for number, unknown in found if unknown}


class _View:
    """A document and a look, by slot. `shown` has all of our lineage, in an order that the listing does not give."""

    def __init__(self, document: Document, look: Look) -> None:
        self.document = document
        self.look = look
        ours = (seen for seen in look.inventory.workers if seen.lineage == document.lineage)
        self.shown = _in_slots(ours)
        self.disowned = _unproven(document)

    @cached_property
    def _bearers(self) -> Mapping[tuple[str, str], list[SeenWorker]]:
        """What is there, by each of its ids."""
        found: dict[tuple[str, str], list[SeenWorker]] = {}
        for seen in self.look.inventory.workers:
            if remains(seen):
                for name in _ids(seen.id, seen.resources):
                    found.setdefault(name, []).append(seen)
        return found

    def is_plain(self, slot: int) -> bool:
        """Whether nothing can be wrong with the slot. Most are: what follows costs ten times as much."""
        worker, shown = self.document.workers.get(slot), self.shown.get(slot, ())
        if worker is None or len(shown) != 1 or worker.state is WorkerState.COMPUTE_REMOVED:
            return False
        (seen,) = shown
        same = self._is(worker, seen) and (worker.id, worker.resources) == (seen.id, seen.resources)
        return (
            same
            and seen.state is not Seen.GONE
            and all(len(self._bearers[name]) == 1 for name in _ids(seen.id, seen.resources))
        )

    def speaks(self, slot: int) -> bool:
        return speaks_of(self.look, self.document, slot)

    def judge(self, slot: int) -> Classified:
        """The class of one slot."""
        worker, shown = self.document.workers.get(slot), self.shown.get(slot, ())
        unknown = self.unrecorded(slot) if self.speaks(slot) else ()
        seen = self._itself(slot, worker)
        observed = next((each.state for each in (*([seen] if seen else []), *unknown, *shown)), None)
        kind, reason, why = self._verdict(slot, worker, seen, unknown)
        return Classified(slot, None if worker is None else worker.state, observed, kind, reason, why, unknown)

    def unrecorded(self, slot: int) -> tuple[SeenWorker, ...]:
        """What is there in *slot*, and known neither as its worker nor from an action that may have made
        it. A thing under the worker's own name that has another identity is only unknown beside the worker itself.
        """
        worker, entry = self.document.workers.get(slot), self.document.pending_actions.get(slot)
        shown = self.shown.get(slot, ())
        if worker is not None and len(shown) == 1 and self._is(worker, shown[0]):
            return ()
        known = {(action.assignment, action.generation) for action in self.disowned.get(slot, ())}
        action = None if entry is None else _readable(entry.action)
        if action is not None and action.type is ActionType.CREATE:
            known.add((action.assignment, action.generation))
        itself = self._itself(slot, worker)
        if worker is not None:
            if itself is None or not identity_matches(worker, itself):
                known.add((worker.assignment, worker.generation))
            if worker.was is not None:
                known.add((worker.assignment, worker.generation - 1))
        return tuple(
            seen
            for seen in shown
            if remains(seen)
            and (seen.assignment, seen.generation) not in known
            and not (worker is not None and self._is(worker, seen) and identity_matches(worker, seen))
            and not (worker is not None and _is_its_data(worker, seen))
        )

    def _is(self, worker: Worker, seen: SeenWorker) -> bool:
        return shows(worker, self.document.lineage, seen)

    def _itself(self, slot: int, worker: Worker | None) -> SeenWorker | None:
        """What is shown under the worker's name, before anything else what has its identity; or, without a record of
        one, what an action made that may still be settled.
        """
        shown = self.shown.get(slot, ())
        if worker is None:
            names = {(action.assignment, action.generation) for action in self.disowned.get(slot, ())}
            return next((seen for seen in shown if (seen.assignment, seen.generation) in names), None)
        named = [seen for seen in shown if self._is(worker, seen)]
        return min(named, key=lambda seen: not identity_matches(worker, seen), default=None)

    def _verdict(
        self, slot: int, worker: Worker | None, seen: SeenWorker | None, unknown: tuple[SeenWorker, ...]
    ) -> tuple[SlotClass, Reason, str]:
        recorded = SlotClass.FREE if worker is None else _by_record(worker)
        entry = self.document.pending_actions.get(slot)
        if entry is not None:
            if worker is None:
                action = _readable(entry.action)
                creates = action is not None and action.type is ActionType.CREATE
                recorded = SlotClass.CREATING if creates else SlotClass.RETAINED
            return recorded, Reason.ACTION_PENDING, "an action is pending: its record is not the truth yet"
        if not self.speaks(slot):
            return self._unsaid(slot, worker, recorded)
        wrong = self._wrong(slot, worker, seen, unknown)
        if wrong is not None:
            return SlotClass.RETAINED, *wrong
        kind, reason, why = (recorded, Reason.NO_WORKER, "no worker is recorded or shown")
        if worker is not None:
            kind, reason, why = _agreed(worker, None if seen is None else seen.state)
        if slot in self.disowned and reason in (Reason.NO_WORKER, Reason.AS_RECORDED):
            return self._held_back(worker, recorded)
        if unknown and reason is Reason.AS_RECORDED:
            # The worker itself is there and works on: to hold it back would strand its run for a stranger's sake.
            return kind, Reason.UNRECORDED, _beside(unknown[0], worker)
        return kind, reason, why

    def _unsaid(self, slot: int, worker: Worker | None, recorded: SlotClass) -> tuple[SlotClass, Reason, str]:
        known = self.document.slots.get(slot)
        if slot in self.disowned and worker is None:
            return self._held_back(worker, recorded)
        if known is not None and known.unrecorded and worker is None:
            why = f"an earlier look showed {known.unrecorded[0].assignment}, which no record knows"
            return SlotClass.RETAINED, Reason.UNRECORDED, why
        if not self.look.complete:
            return recorded, Reason.LOOK_SILENT, "the look is incomplete"
        if slot in self.look.inventory.unreadable:
            return recorded, Reason.LOOK_SILENT, "the provider cannot read the slot"
        return recorded, Reason.LOOK_SILENT, "the slot changed after the look was asked for"

    def _held_back(self, worker: Worker | None, recorded: SlotClass) -> tuple[SlotClass, Reason, str]:
        kind = SlotClass.RETAINED if worker is None else recorded
        return kind, Reason.DISOWNED, "what a disowned action did here is not proven"

    def _wrong(
        self, slot: int, worker: Worker | None, seen: SeenWorker | None, unknown: tuple[SeenWorker, ...]
    ) -> tuple[Reason, str] | None:
        """Why what is shown cannot be what is recorded, the worst first; None: it can."""
        there = [each for each in self.shown.get(slot, ()) if remains(each)]
        twice = self._twice(slot, worker, there)
        if twice is not None:
            return twice
        if worker is not None and seen is not None:
            changed = next(changes(worker, seen), None)
            if changed is not None:
                return Reason.IDENTITY_CHANGED, changed
        if unknown and worker is None:
            return Reason.UNRECORDED, _beside(unknown[0], None)
        if unknown and worker is not None:
            if seen is None and any(overtakes(worker, each.assignment, each.generation) for each in unknown):
                return Reason.UNRECORDED, f"the provider shows {_tag(unknown[0])} instead of {_tag(worker)}"
            ids = _ids(worker.id, worker.resources)
            alike = any(ids & _ids(each.id, each.resources) for each in unknown)
            # What only left data is in nobody's place: the worker itself may be looked for, and go.
            lives = any(each.state is not Seen.GONE for each in unknown)
            if alike or (lives and (seen is None or seen.state is Seen.GONE)):
                return Reason.FOREIGN_TAG, f"the provider shows {_tag(unknown[0])} instead of {_tag(worker)}"
        if worker is not None:
            said = [each.state for each in self.shown.get(slot, ()) if self._is(worker, each)]
            if len(said) > 1:
                states = " and as ".join(sorted(said))
                return Reason.ID_TWICE, f"the provider shows {_tag(worker)} more than once: as {states}"
        return None

    def _twice(self, slot: int, worker: Worker | None, there: list[SeenWorker]) -> tuple[Reason, str] | None:
        """One id in two places, or what is recorded here under somebody else's tag."""
        found = {each for seen in there for each in self._elsewhere(seen.id, seen.resources, slot)}
        ours = sorted((kind, other) for kind, lineage, other, _ in found if lineage == self.document.lineage)
        if ours:
            return Reason.ID_TWICE, f"{ours[0][0]} is shown in slot {slot} and in slot {ours[0][1]}"
        found = set() if worker is None else self._elsewhere(worker.id, worker.resources, slot)
        if not found:
            return None
        kind, lineage, other, tag = min(found)
        whose = "" if lineage == self.document.lineage else f" of lineage {lineage}"
        return Reason.FOREIGN_TAG, f"{kind}, recorded here, is shown as {tag} in slot {other}{whose}"

    def _elsewhere(self, own: str, resources: Mapping[str, Resource], slot: int) -> set[tuple[str, str, int, str]]:
        """Which of these ids something else has that is there: in another slot, or of another lineage.

        Each as the id with its kind, and the lineage, slot and tag of what has it.
        """
        here = (self.document.lineage, slot)
        return {
            (f"{kind or 'worker'} {id_}", other.lineage, other.slot, _tag(other))
            for kind, id_ in _ids(own, resources)
            for other in self._bearers.get((kind, id_), ())
            if (other.lineage, other.slot) != here and (not kind or same(resources[kind], other.resources[kind]))
        }


def _beside(unknown: SeenWorker, worker: Worker | None) -> str:
    beside = "" if worker is None else f" beside {_tag(worker)}"
    left = "what is left of " if unknown.state is Seen.GONE else ""
    return f"the provider shows {left}{_tag(unknown)}{beside}, which no record knows"


def _is_its_data(worker: Worker, seen: SeenWorker) -> bool:
    """Whether all that is left of an earlier generation is the worker's own."""
    if seen.state is not Seen.GONE or seen.assignment != worker.assignment or seen.generation >= worker.generation:
        return False
    own = worker.resources
    return all(kind in own and same(own[kind], each) for kind, each in seen.resources.items())


def _tag(one: Worker | SeenWorker) -> str:
    return f"{one.assignment} generation {one.generation}"


def _ids(own: str, resources: Mapping[str, Resource]) -> set[tuple[str, str]]:
    """The ids by kind; "" is the kind of a worker's own."""
    return {("", own)} - {("", "")} | {(kind, resource.id) for kind, resource in resources.items() if resource.id}


def _in_slots(workers: Iterable[SeenWorker]) -> dict[int, tuple[SeenWorker, ...]]:
    found: dict[int, list[SeenWorker]] = {}
    for seen in workers:
        found.setdefault(seen.slot, []).append(seen)
    return {slot: tuple(those if len(those) == 1 else _in_order(those)) for slot, those in found.items()}


def _in_order(workers: Iterable[SeenWorker]) -> Iterator[SeenWorker]:
    """Each once, in an order of their own: whoever lists them twice, or the other way round, says nothing by that."""
    told = {
        (seen.assignment, seen.generation, seen.id, seen.state, *_resources(seen), repr(seen.steps)): seen
        for seen in workers
    }
    return (told[key] for key in sorted(told, key=repr))


def _resources(seen: SeenWorker) -> Iterator[tuple[str, str, str]]:
    return ((kind, each.id, each.immutable_id) for kind, each in sorted(seen.resources.items()))


def _unproven(document: Document) -> dict[int, list[Action]]:
    """Disowned actions of which no look has proven yet what they did, by slot."""
    found: dict[int, list[Action]] = {}
    for each in document.disowned.values():
        action = _readable(each.action) if each.proven is None else None
        if action is not None:
            found.setdefault(action.slot, []).append(action)
    return found


def _readable(raw: Raw) -> Action | None:
    try:
        return decode(raw)
    except BrokenAction:
        return None


def _agreed(worker: Worker, observed: Seen | None) -> tuple[SlotClass, Reason, str]:
    """The class of a worker that is shown as itself, as *observed*, or not shown."""
    recorded, agreed = _by_record(worker), "record and provider agree"
    kept = "its compute is gone, and its data is not released"
    match worker.state, observed:
        case WorkerState.LOST, (None | Seen.GONE | Seen.DARK):
            return (recorded, Reason.AS_RECORDED, agreed) if worker.run is None else (recorded, Reason.DATA_LEFT, kept)
        case WorkerState.COMPUTE_REMOVED, (None | Seen.GONE | Seen.DARK):
            return recorded, Reason.AS_RECORDED, agreed
        case _, None:
            return recorded, Reason.NOT_SHOWN, "the provider does not show it, and one look alone proves nothing"
        case _, Seen.GONE if worker.run is not None:
            return SlotClass.RETAINED, Reason.DATA_LEFT, kept
        case _, Seen.GONE:
            return SlotClass.ORPHANED, Reason.SEEN_GONE, "the provider shows it gone; what is left can be removed"
        case ((WorkerState.READY | WorkerState.ASSIGNED | WorkerState.RELEASED), Seen.DARK):
            return SlotClass.DEALLOCATED, Reason.SEEN_DARK, "its compute is off though nobody asked here"
        case WorkerState.COMPUTE_REMOVED, _:
            return SlotClass.RETAINED, Reason.RETURNED, "its compute was removed, and the provider shows it alive"
        case ((WorkerState.DEALLOCATED | WorkerState.LOST), (Seen.CREATING | Seen.READY)):
            return recorded, Reason.RETURNED, f"recorded as {worker.state}, and the provider shows it alive"
    return recorded, Reason.AS_RECORDED, agreed


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
        case WorkerState.LOST if worker.run is not None:
            return SlotClass.RETAINED
        case WorkerState.COMPUTE_REMOVED | WorkerState.LOST:
            return SlotClass.ORPHANED
