"""What is there and no record knows: taken into the document, or recorded so that it is removed in order.

Not promised: that it is clean, nor that it is ours beyond what its tags say. Both verbs judge a document that was
loaded in the hold that commits, and a look that the caller has just had; without the identity that a look showed before
they only tell what there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from controller.engine import disowned
from controller.engine.classify import unrecorded_in
from controller.engine.identity import changed_data, identity_of, overtakes
from controller.engine.operators import check_bounds, in_slot, refuse_pending, refuse_silent, told
from controller.engine.queue import Context
from controller.model.action import decode
from controller.model.edit import Draft
from controller.model.errors import Conflict, NotFound, UsageFault
from controller.model.inventory import Look, Seen, SeenWorker, StepSeen, remains
from controller.model.perform import WorkerGiven, move_worker
from controller.model.reason import EXPLAINED, Reason
from controller.model.records import MAX_UNRECORDED, Document, Resource, Worker
from controller.model.transition import Trigger

_DIGITS = 15
"""No counter has more. An assignment of a larger number is none that this document could ever hand out."""


class Found(Struct, frozen=True):
    """Something that no record knew. `identity` is what has to be said to act on exactly this; `state` the provider's.

    `running`: how many of its steps run. `kept`: it is later compute of the stopped worker on record, whose data stays.
    """

    slot: int
    assignment: str
    generation: int
    id: str
    state: Seen
    identity: str
    resources: Mapping[str, Resource]
    running: int
    kept: bool = False


def adopt(
    context: Context,
    slot: int,
    look: Look,
    *,
    provider: str,
    identity: str | None = None,
    reason: str = "",
    by: str = "",
    dry_run: bool = False,
) -> Found:
    """Record what the look shows in a slot as its worker, ready for a run. *provider* is the kind that showed it.

    Raises NotFound (nothing is there without a record); Conflict unless it is one thing, of *identity*, ready and idle,
    and neither its assignment nor an id of it is on record; what a hold raises. A dry run needs no *identity*.
    """
    return _settle(context, slot, look, Trigger.ADOPT, provider, identity, told(by, reason), dry_run=dry_run)


def condemn(
    context: Context,
    slot: int,
    look: Look,
    *,
    provider: str,
    identity: str | None = None,
    reason: str = "",
    by: str = "",
    dry_run: bool = False,
) -> Found:
    """Record what the look shows in a slot as lost, so that every reconcile stops and removes it, by its exact ids.

    As `adopt`, but whatever its state, with steps that run or not, and also what an earlier run left. What a resume has
    made that nobody knows of takes the place of the stopped worker on record, which stays assigned and keeps its data:
    reconcile stops that again, in its own generation.
    """
    return _settle(context, slot, look, Trigger.CONDEMN, provider, identity, told(by, reason), dry_run=dry_run)


def _settle(
    context: Context,
    slot: int,
    look: Look,
    trigger: Trigger,
    provider: str,
    identity: str | None,
    detail: str,
    *,
    dry_run: bool,
) -> Found:
    check_bounds(slot)
    verb = "adopted" if trigger is Trigger.ADOPT else "removed"
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        document = loaded.document
        before = _overtaken(document, look, slot) if trigger is Trigger.CONDEMN else None
        _refuse_recorded(document, slot, verb, before)
        refuse_silent(document, slot, look, verb)
        seen = _only_one(document, look, slot)
        found = _found(seen, kept=before is not None)
        if identity is None and not dry_run:
            raise UsageFault(
                "the identity of what is meant is missing", where=in_slot(slot), next="give --identity SHA"
            )
        if identity not in (None, found.identity):
            raise Conflict(
                f"what is in slot {slot} is not what was meant: it has another identity",
                where=f"slot {slot}: {seen.assignment} generation {seen.generation}, identity {found.identity}",
                next="look again: run it without --identity, and see what it is now",
            )
        _refuse_known(document, look, seen, verb, before)
        if trigger is Trigger.ADOPT:
            _refuse_used(document, seen, found)
        draft = context.draft(document)
        if before is not None:
            _take_over(draft, before, seen, detail)
        else:
            _record(draft, trigger, seen, provider, detail)
        if not dry_run:
            context.commit(hold, loaded, draft)
    return found


def _overtaken(document: Document, look: Look, slot: int) -> Worker | None:
    """The stopped worker on record of which the look shows a later generation, that no record knows."""
    worker = document.workers.get(slot)
    shown = unrecorded_in(document, look).get(slot, ())
    later = worker is not None and any(overtakes(worker, seen.assignment, seen.generation) for seen in shown)
    return worker if later else None


def _found(seen: SeenWorker, *, kept: bool) -> Found:
    running = sum(step.state is StepSeen.RUNNING for step in seen.steps)
    identity = identity_of(seen.slot, seen.assignment, seen.generation, seen.id, seen.resources)
    named = (seen.slot, seen.assignment, seen.generation, seen.id, seen.state)
    return Found(*named, identity, dict(seen.resources), running, kept)


def _refuse_recorded(document: Document, slot: int, verb: str, overtaken: Worker | None) -> None:
    refuse_pending(document, slot, verb)
    worker = document.workers.get(slot)
    if worker is not None and overtaken is None:
        raise Conflict(
            f"slot {slot} has a worker on record, so nothing can be {verb} there",
            where=f"slot {slot}: {worker.assignment} generation {worker.generation}, {worker.state}",
            next=f"controller show slot:{slot}",
        )
    if disowned.blocks(document, slot):
        raise Conflict(
            f"an action of slot {slot} was disowned, and what that did is not known yet: nothing can be {verb} there",
            where=in_slot(slot),
            next=EXPLAINED[Reason.DISOWNED].next,
        )


def _only_one(document: Document, look: Look, slot: int) -> SeenWorker:
    found = unrecorded_in(document, look).get(slot, ())
    if len(found) == 1:
        return found[0]
    if found:
        told = (f"{seen.assignment} generation {seen.generation} ({seen.id or 'no id'})" for seen in found)
        each = "; ".join(islice(told, MAX_UNRECORDED))
        more = f"; and {len(found) - MAX_UNRECORDED} more" if len(found) > MAX_UNRECORDED else ""
        raise Conflict(
            f"the provider shows {len(found)} things in slot {slot}, and a slot has room for one",
            where=f"slot {slot}: {each}{more}",
            next="find out at the provider which are not needed, and remove those there",
        )
    raise NotFound(
        f"the provider shows nothing in slot {slot} that no record knows",
        where=in_slot(slot),
        next="controller status --live",
    )


def _refuse_known(document: Document, look: Look, seen: SeenWorker, verb: str, overtaken: Worker | None) -> None:
    """Neither its assignment nor an id of it may belong to anything else, on record or shown; and what it overtakes
    must have the data that it has.
    """
    if not seen.assignment or seen.generation < 1:
        raise Conflict(
            f"it cannot be {verb}: its tags are none that controller gives",
            where=f"slot {seen.slot}: assignment {seen.assignment!r}, generation {seen.generation}",
            next="find out at the provider what it is, and remove it there",
        )
    changed = None if overtaken is None else changed_data(overtaken.resources, seen)
    if changed is not None:
        raise Conflict(
            f"it cannot be {verb}: its data is not what was recorded",
            where=f"slot {seen.slot}: {seen.assignment} generation {seen.generation}: {changed}",
            next=EXPLAINED[Reason.FOREIGN_TAG].next,
        )
    for slot, assignment in _assignments(document):
        if assignment == seen.assignment and (overtaken is None or slot != overtaken.slot):
            raise Conflict(
                f"it cannot be {verb}: its assignment {assignment} is on record for slot {slot}",
                where=in_slot(seen.slot),
                next=f"controller show slot:{slot}",
            )
    for slot, what in _twins(document, look, seen, overtaken):
        raise Conflict(
            f"it cannot be {verb}: {what} belongs to slot {slot} as well",
            where=in_slot(seen.slot),
            next=EXPLAINED[Reason.ID_TWICE].next,
        )


def _assignments(document: Document) -> Iterator[tuple[int, str]]:
    for slot, worker in document.workers.items():
        yield slot, worker.assignment
    for slot, entry in document.pending_actions.items():
        yield slot, decode(entry.action).assignment
    for run in document.runs.values():
        if run.worker is not None:
            yield run.worker.slot, run.worker.assignment


def _twins(document: Document, look: Look, seen: SeenWorker, overtaken: Worker | None) -> Iterator[tuple[int, str]]:
    mine = {(kind, resource.id) for kind, resource in seen.resources.items()}
    shown = [each for each in look.inventory.workers if remains(each) and each is not seen]
    recorded = [each for each in document.workers.values() if each is not overtaken]
    others: list[Worker | SeenWorker] = [*recorded, *shown]
    for each in others:
        if seen.id and each.id == seen.id:
            yield each.slot, f"id {seen.id}"
        for kind, resource in each.resources.items():
            if (kind, resource.id) in mine:
                yield each.slot, f"{kind} {resource.id}"


def _refuse_used(document: Document, seen: SeenWorker, found: Found) -> None:
    """What is adopted takes a run at once: it must be ready, idle, and without the data of another."""
    remove = f"controller delete-unrecorded {seen.slot}"
    where = f"slot {seen.slot}: {seen.assignment} generation {seen.generation} ({seen.id or 'no id'})"
    if seen.state is not Seen.READY:
        wait = "wait until it is ready, or remove it" if seen.state is Seen.CREATING else "remove it"
        raise Conflict(f"it cannot be adopted: it is {seen.state}, not ready", where=where, next=f"{wait}: {remove}")
    if found.running:
        many = "a step runs on it" if found.running == 1 else f"{found.running} steps run on it"
        raise Conflict(
            f"it cannot be adopted: {many}, and no record says of which run",
            where=where,
            next=f"wait until it is idle, or remove it: {remove}",
        )
    done = "a step was done on it" if seen.steps else None
    for stone in document.finished.values():
        if stone.worker is not None and stone.worker.assignment == seen.assignment:
            done = f"run {stone.id} was done on it"
    if done is not None:
        raise Conflict(
            f"it cannot be adopted: {done}, and it may hold what that left", where=where, next=f"remove it: {remove}"
        )


def _take_over(draft: Draft, before: Worker, seen: SeenWorker, detail: str) -> None:
    """Record it in the place of what it overtakes, stopped as that was: shown alive, it is deallocated as any other."""
    facts = {"generation": seen.generation, "id": seen.id, "resources": dict(seen.resources)}
    draft.workers.put(before.slot, replace(before, **facts, absent=None, dark_at=None, idle_since=None))
    draft.slots.put(before.slot, replace(draft.slot(before.slot), unrecorded=(), unrecorded_more=0))
    said = f"generation {seen.generation} of {seen.assignment} in place of {before.generation}; its data is kept"
    draft.event(f"slot:{before.slot}", "generation_taken", before.state, before.state, detail=f"{detail}; {said}")


def _record(draft: Draft, trigger: Trigger, seen: SeenWorker, provider: str, detail: str) -> None:
    given = WorkerGiven(
        assignment=seen.assignment,
        generation=seen.generation,
        provider=provider,
        id=seen.id,
        resources=dict(seen.resources),
        detail=detail,
    )
    move_worker(draft, seen.slot, trigger, given)
    draft.slots.put(seen.slot, replace(draft.slot(seen.slot), unrecorded=(), unrecorded_more=0))
    number = seen.assignment.rpartition("-")[2]
    if number.isascii() and number.isdecimal() and len(number) <= _DIGITS:
        # A document that was put back from a copy has not counted it yet, and would hand it out a second time.
        highest = max(draft.counters.assignment, int(number))
        draft.counters = replace(draft.counters, assignment=highest)
