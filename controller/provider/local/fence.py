"""What a worker answers from its memory alone, before it does anything: known keys, other generations, stale tokens.

The supervisor and whoever speaks for one that is gone ask the same functions. A key is looked up first, since a known
one gets its final answer again whatever has changed; then the fences, because what a stale caller asks must not be
done.
"""

from __future__ import annotations

from typing import Final

import msgspec

from controller.model.action import Action, CancelRequest
from controller.model.inventory import Seen, SeenWorker
from controller.model.records import ActionType, Resource, is_id
from controller.provider.local.memory import Fenced, Memory, Settled
from controller.provider.local.places import WorkerFile
from controller.provider.protocol import Done, IdentityRefused, Outcome, Rejected

DIRECTORY: Final = "directory"
"""The resource that is a worker's data."""
PROCESS: Final = "process"
"""The resource that computes: its supervisor."""
_EARLIER: Final = "vm"
"""What the directory was recorded as by an earlier release, whose workers may still be there."""


def answer(memory: Memory, worker: WorkerFile, action: Action) -> Outcome | None:
    """The answer that *memory* has for *action*; None: nothing stands against doing it."""
    if action.type is ActionType.EXECUTE and action.idempotency_key in memory.steps:
        return Done(step=memory.steps[action.idempotency_key])
    if (no := refusal(memory, worker, action)) is not None:
        return no
    if action.type in {ActionType.EXECUTE, ActionType.CANCEL}:
        return _step_fence(memory, action)
    if action.type is ActionType.DEALLOCATE and memory.dark == worker.generation:
        return Done(worker=seen(memory, worker, Seen.DARK))
    return None


def refusal(memory: Memory, worker: WorkerFile, action: Action) -> Outcome | None:
    """The refusal of an action that names another worker, generation or resource; None when it is this one's."""
    return misdirected(worker, action) or _other_resources(memory, worker, action)


def misdirected(worker: WorkerFile, action: Action) -> Outcome | None:
    """The refusal of an action that is not for exactly this worker in this generation; None when it is."""
    if (action.lineage, action.slot, action.assignment) != (worker.lineage, worker.slot, worker.assignment):
        return Rejected(
            f"this is for slot {action.slot}, {action.assignment} of lineage {action.lineage}; "
            f"here is slot {worker.slot}, {worker.assignment} of lineage {worker.lineage}"
        )
    if action.generation != worker.generation:
        return Rejected(f"this is for generation {action.generation}; the worker is generation {worker.generation}")
    return None


def other_data(worker: WorkerFile, action: Action) -> IdentityRefused | None:
    """The refusal of an action whose data is not this directory; None when it is, or when it names none."""
    named = action.resources.get(DIRECTORY)
    return None if named in (None, worker.directory) else _not_ours(DIRECTORY, named)


def _other_resources(memory: Memory, worker: WorkerFile, action: Action) -> IdentityRefused | None:
    """A create is only bound to data: whatever computed for it before is to be replaced."""
    if action.type is ActionType.CREATE:
        return other_data(worker, action)
    ours = {_EARLIER: worker.directory, **_resources(memory, worker)}
    for name, resource in action.resources.items():
        # Of a process that is gone nothing is known but that it is gone, and deleting what is gone is done.
        if resource != ours.get(name) and not (name == PROCESS and PROCESS not in ours):
            return _not_ours(name, resource)
    return None


def _not_ours(name: str, resource: Resource) -> IdentityRefused:
    return IdentityRefused(
        f"the recorded {name} is {resource.id} ({resource.immutable_id}), which is not this worker's"
    )


def _resources(memory: Memory, worker: WorkerFile) -> dict[str, Resource]:
    process = memory.process
    if process is None or memory.up != worker.generation or memory.dark == worker.generation:
        return {DIRECTORY: worker.directory}
    # Its pid alone is given out again within a boot, and two recorded workers must not share an id.
    own = Resource(f"{process.pid}-{process.started}", process.boot_id)
    return {DIRECTORY: worker.directory, PROCESS: own}


def _step_fence(memory: Memory, action: Action) -> Outcome | None:
    if action.run is None or action.step is None or action.attempt is None or action.token is None:
        return Rejected(f"{action.type} names no run, step, attempt and token")
    if not (is_id(action.run) and is_id(action.step)):
        return Rejected(f"run {action.run!r} or step {action.step!r} is not an id")
    if action.idempotency_key in memory.fenced:
        return Rejected("cancelled before it came")
    highest = memory.tokens.get(action.run, 0)
    if action.token < highest:
        return Rejected(f"stale token {action.token} of run {action.run}: token {highest} was seen since")
    return None


def settled(memory: Memory, action: Action) -> tuple[Settled, ...]:
    """What to record of the keys that *action* settles."""
    keys = memory.settles(action.settled)
    return (Settled(keys),) if keys else ()


def cancel_request(action: Action) -> CancelRequest | Rejected:
    try:
        return msgspec.json.decode(action.request, type=CancelRequest)
    except msgspec.MsgspecError as error:
        return Rejected(f"not a cancel request: {error}")


def cancel_what_does_not_run(memory: Memory, action: Action, target: str) -> Outcome:
    """The answer to a cancel when no process of its target is left. Raises OSError when it cannot be recorded."""
    step = memory.steps.get(target)
    if step is not None:
        memory.append(*settled(memory, action), sync=False)
        return Done(step=step)
    memory.append(*settled(memory, action), Fenced(target, str(action.run), int(action.token or 0)))
    return Done(reason="nothing was running under that key, and nothing will")


def seen(memory: Memory, worker: WorkerFile, state: Seen) -> SeenWorker:
    """The worker as a look shows it. A process that is gone is not listed; the directory that remains is."""
    resources = _resources(memory, worker)
    if state is not Seen.READY:
        resources.pop(PROCESS, None)
    return SeenWorker(
        worker.slot,
        worker.lineage,
        worker.assignment,
        worker.generation,
        worker.id,
        state,
        resources,
        memory.listed(),
    )
