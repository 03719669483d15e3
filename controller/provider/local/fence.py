"""What a worker answers from its memory alone, before it does anything: known keys, other generations, stale tokens.

The supervisor and whoever speaks for one that is gone ask the same functions. A key is looked up first, since a known
one gets its final answer again whatever has changed; then the fences, because what a stale caller asks must not be
done.
"""

from __future__ import annotations

import msgspec

from controller.model.action import Action, CancelRequest
from controller.model.inventory import Seen, SeenWorker
from controller.model.records import ActionType, is_id
from controller.provider.local.memory import Fenced, Memory, Settled
from controller.provider.local.places import WorkerFile
from controller.provider.protocol import Done, IdentityRefused, Outcome, Rejected


def answer(memory: Memory, worker: WorkerFile, action: Action) -> Outcome | None:
    """The answer that *memory* has for *action*; None: nothing stands against doing it."""
    if action.type is ActionType.EXECUTE and action.idempotency_key in memory.steps:
        return Done(step=memory.steps[action.idempotency_key])
    if (refusal := misdirected(worker, action)) is not None:
        return refusal
    if action.type in {ActionType.EXECUTE, ActionType.CANCEL}:
        return _step_fence(memory, action)
    if action.type is ActionType.DEALLOCATE and memory.dark == worker.generation:
        return Done(worker=seen(memory, worker, Seen.DARK))
    return None


def misdirected(worker: WorkerFile, action: Action) -> Outcome | None:
    """The refusal of an action that is not for exactly this worker; None when it is."""
    if (action.lineage, action.slot, action.assignment) != (worker.lineage, worker.slot, worker.assignment):
        return Rejected(
            f"this is for slot {action.slot}, {action.assignment} of lineage {action.lineage}; "
            f"here is slot {worker.slot}, {worker.assignment} of lineage {worker.lineage}"
        )
    if action.generation != worker.generation:
        return Rejected(f"this is for generation {action.generation}; the worker is generation {worker.generation}")
    if action.type is not ActionType.CREATE:
        for name, resource in action.resources.items():
            if worker.resources.get(name) != resource:
                return IdentityRefused(
                    f"the recorded {name} is {resource.id} ({resource.immutable_id}), which is not this worker's"
                )
    return None


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
    """The worker as a look shows it."""
    return SeenWorker(
        worker.slot,
        worker.lineage,
        worker.assignment,
        worker.generation,
        worker.id,
        state,
        worker.resources,
        memory.listed(),
    )
