"""What tells one worker from another: its name, its own id, and the identity of each of its resources.

Not promised: that what matches is the same thing. Only what both sides know can differ, and a provider may list less
than it told. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from controller.model.action import digest
from controller.model.inventory import Seen, SeenWorker
from controller.model.records import Resource, Worker, WorkerState


def identity_matches(worker: Worker, seen: SeenWorker) -> bool:
    """Whether *seen*, under the worker's name, may be the worker: nothing that both know differs.

    An id that one side does not know decides nothing: a provider may list less than it told when it made the worker.
    """
    return next(changes(worker, seen), None) is None


def changed_data(kept: Mapping[str, Resource], seen: SeenWorker) -> str | None:
    """Why *seen* cannot be what was made anew for what was *kept*; None: it can.

    Which of them computes, and is another one then, nobody says. But what is ready has all of them again, in that place
    the same or another; and data is the same, so not all can be others. Only what is gone may have none left.
    """
    there = sorted(kept.keys() & seen.resources.keys())
    missing = sorted(kept.keys() - seen.resources.keys())
    if missing and (seen.state is Seen.READY or (not there and seen.state is not Seen.GONE)):
        return f"it has no {missing[0]}, and {_named(kept[missing[0]])} was there"
    if there and not any(same(kept[kind], seen.resources[kind]) for kind in there):
        differ = (f"{kind} {_named(seen.resources[kind])} instead of {_named(kept[kind])}" for kind in there)
        return f"nothing of it is what was recorded: {', '.join(differ)}"
    return None


def overtakes(worker: Worker, assignment: str, generation: int) -> bool:
    """Whether that name is what a resume of this stopped worker has made, though the record knows of none."""
    stopped = worker.state in (WorkerState.DEALLOCATED, WorkerState.LOST)
    return stopped and worker.assignment == assignment and worker.generation < generation


def identity_of(slot: int, assignment: str, generation: int, id: str, resources: Mapping[str, Resource]) -> str:  # noqa: A002 - the record's word
    """The SHA-256 that stands for exactly this worker with exactly these resources."""
    told = {kind: {"id": each.id, "immutable_id": each.immutable_id} for kind, each in resources.items()}
    tags = {"slot": slot, "assignment": assignment, "generation": generation}
    return digest({**tags, "id": id, "resources": told})


def changes(worker: Worker, seen: SeenWorker) -> Iterator[str]:
    """What of it differs, each in words."""
    if worker.id and seen.id and worker.id != seen.id:
        yield f"worker {worker.id} is recorded, and {seen.id} is shown"
    for kind, resource in sorted(worker.resources.items()):
        shown = seen.resources.get(kind)
        if shown is not None and not same(resource, shown):
            yield f"{kind} {_named(resource)} is recorded, and {_named(shown)} is shown"


def same(one: Resource, other: Resource) -> bool:
    """Whether both may be one thing. An immutable id that one side does not know decides nothing."""
    both_known = one.immutable_id and other.immutable_id
    return one.id == other.id and not (both_known and one.immutable_id != other.immutable_id)


def _named(resource: Resource) -> str:
    return f"{resource.id} ({resource.immutable_id})" if resource.immutable_id else resource.id
