"""What the verbs of operators share: how their events read, and what all of them refuse.

Not promised: that what is not refused here may be done; each verb has more to ask. All of it judges a document that was
loaded in the hold that commits.
"""

from __future__ import annotations

from controller.engine.queue import find
from controller.engine.sight import speaks_of
from controller.model.action import action_of
from controller.model.errors import Conflict, NotFound
from controller.model.inventory import Look, Seen, SeenWorker
from controller.model.records import MAX_SLOTS, Document, Worker


def told(by: str, reason: str, *facts: str) -> str:
    """The detail of an event: who, why, and what came of it."""
    return "; ".join((f"by {by or 'somebody'}" + (f": {reason}" if reason else ""), *facts))


def in_slot(slot: int) -> str:
    return f"slot {slot}"


def named(slots: tuple[int, ...] | list[int]) -> str:
    return ", ".join(in_slot(slot) for slot in slots)


def check_bounds(slot: int) -> None:
    """Raise NotFound for what no slot can be."""
    if not 1 <= slot <= MAX_SLOTS:
        raise NotFound(f"there is no slot {slot}: slots are 1 to {MAX_SLOTS}", next="controller status")


def identities(known: Worker | SeenWorker) -> tuple[str, ...]:
    """What it has, each as `KIND ID`, with the immutable id where there is one."""
    parts = [f"worker {known.id}"] if known.id else []
    for kind, resource in sorted(known.resources.items()):
        parts.append(f"{kind} {resource.id}" + (f" ({resource.immutable_id})" if resource.immutable_id else ""))
    return tuple(parts)


def is_on(seen: SeenWorker) -> bool:
    """Its compute is there, or is being made."""
    return seen.state in (Seen.READY, Seen.CREATING)


def on_under(worker: Worker, lineage: str, look: Look) -> SeenWorker | None:
    """What *look*, complete or not, shows on under the worker's assignment, whatever its generation."""
    tags = (lineage, worker.slot, worker.assignment)
    shown = (seen for seen in look.inventory.workers if (seen.lineage, seen.slot, seen.assignment) == tags)
    return next((seen for seen in shown if is_on(seen)), None)


def told_of(seen: SeenWorker) -> str:
    return f"{seen.assignment} generation {seen.generation} ({seen.id or 'no id'}) is {seen.state}"


def refuse_answered(document: Document, worker: Worker, look: Look | None, then: str) -> None:
    """Raise Conflict when somebody answers for the worker after all. *then* is what to do instead.

    A complete listing is an answer, also one from before the slot changed; any other is one if it shows compute on.
    """
    if look is None:
        return
    on = on_under(worker, document.lineage, look)
    if on is None and (not look.complete or worker.slot in look.inventory.unreadable):
        return
    raise Conflict(
        "the provider answers, so it is not gone for good: what has become of the worker can be known",
        where=f"slot {worker.slot}: " + (f"{worker.assignment} is {worker.state}" if on is None else told_of(on)),
        next=then,
    )


def refuse_pending(document: Document, slot: int, verb: str, *, answered: bool = True) -> None:
    """Raise Conflict while an action is pending: until it is settled the slot's record is not the truth.

    *answered* False: its provider is gone for good, so no send settles it.
    """
    entry = document.pending_actions.get(slot)
    if entry is None:
        return
    action = action_of(entry)
    key = action.idempotency_key
    then = f"controller replay-pending --slot {slot}; `controller explain slot:{slot}` says what else settles it"
    if not answered:
        abandon = f"controller abandon {slot} --key {key} --unresolved --reason WHY --confirm-abandon"
        then = f"{abandon}; then run this again"
    raise Conflict(
        f"slot {slot} cannot be {verb}: its {action.type} is pending, so its record is not the truth yet",
        where=f"slot {slot}, key {key}",
        next=then,
    )


def refuse_silent(document: Document, slot: int, look: Look, verb: str) -> None:
    """Raise Conflict unless *look* speaks of the slot."""
    if speaks_of(look, document, slot):
        return
    if not look.complete:
        why, then = "the provider's listing is incomplete", "run it again once `controller status --live` is complete"
    elif slot in look.inventory.unreadable:
        why, then = f"the provider cannot read slot {slot}", "see `controller status --live`, and mend what it names"
    else:
        why, then = f"slot {slot} changed after the provider was asked", "run it again"
    raise Conflict(f"slot {slot} cannot be {verb}: {why}, so nothing is known of it", where=in_slot(slot), next=then)


def assigned(document: Document, run_id: str, slot: int | None) -> Worker:
    """The worker that is assigned to the run, whether it holds it or only has data of it: in *slot*, if that is given.

    Raises NotFound (no such run), Conflict (no such worker, or more than one).
    """
    if slot is not None:
        check_bounds(slot)
        worker = document.workers.get(slot)
        if worker is None or worker.run != run_id:
            find(document, run_id)
            there = "no worker is there" if worker is None else f"its worker is {worker.state}"
            there += f" for run {worker.run}" if worker is not None and worker.run else ""
            raise Conflict(
                f"the worker of slot {slot} is not assigned to run {run_id}",
                where=f"slot {slot}: {there}",
                next=f"controller show slot:{slot}",
            )
        return worker
    found = [worker for _, worker in sorted(document.workers.items()) if worker.run == run_id]
    if len(found) == 1:
        return found[0]
    if found:
        slots = [worker.slot for worker in found]
        raise Conflict(
            f"{len(found)} workers are assigned to run {run_id}",
            where=named(slots),
            next=f"say which: --slot {slots[0]}; `controller show slot:{slots[0]}` tells what it has",
        )
    find(document, run_id)
    raise Conflict(
        f"no worker is assigned to run {run_id}: nothing of it is kept in any slot",
        where=f"run {run_id}",
        next=f"controller show {run_id}",
    )
