"""What can be said and done for a worker whose supervisor is gone. Every function here needs the worker's lock.

The groups of its steps are ended first: only then is the worker gone, and only then is a step's end unknowable rather
than still to come.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from controller.clock import Clock
from controller.model.action import Action
from controller.model.inventory import Seen, SeenStep, StepSeen
from controller.model.records import ActionType
from controller.provider.local.fence import answer, cancel_request, cancel_what_does_not_run, seen, settled
from controller.provider.local.memory import Cleared, Dark, Ended, Memory
from controller.provider.local.places import ERRORS, PID, SOCKET, WorkerFile, remove_worker_directory
from controller.provider.process import end_group
from controller.provider.protocol import Done, Outcome, Rejected, Unknown

_GRACE: Final = 1.0


def recover(memory: Memory, clock: Clock) -> bool:
    """End what the supervisor left and record what became of it. False: a process that cannot be ended is left.

    Raises OSError when that cannot be recorded.
    """
    for key, group in tuple(memory.groups.items()):
        if not end_group(group, clock, grace=_GRACE):
            return False
        end = SeenStep(key, StepSeen.EXITED, reason="its supervisor ended while it ran", ended_at=clock.now_ms())
        memory.append(*([Ended(end)] if memory.steps[key].state is StepSeen.RUNNING else []), Cleared(key))
    return True


def state_of(memory: Memory, worker: WorkerFile) -> Seen:
    """The state of a worker whose groups have been ended."""
    if memory.dark == worker.generation:
        return Seen.DARK
    return Seen.GONE if memory.up == worker.generation else Seen.CREATING


def mutate(directory: str, worker: WorkerFile, memory: Memory, action: Action, clock: Clock) -> Outcome:
    """Do *action*, or say why not. Raises OSError: unknown, the same key again."""
    if not recover(memory, clock):
        return Unknown("a process of one of its steps could not be ended", process_lives=True)
    if (known := answer(memory, worker, action)) is not None:
        return known
    match action.type:
        case ActionType.EXECUTE if memory.dark == worker.generation:
            return Rejected("the worker was deallocated")
        case ActionType.EXECUTE:
            return Unknown("the worker is gone")
        case ActionType.CANCEL:
            request = cancel_request(action)
            return (
                request if isinstance(request, Rejected) else cancel_what_does_not_run(memory, action, request.target)
            )
        case ActionType.DEALLOCATE:
            memory.append(*settled(memory, action), Dark(worker.generation, clock.now_ms()))
            return Done(worker=seen(memory, worker, Seen.DARK))
        case ActionType.DELETE_COMPUTE:
            for name in (SOCKET, PID, ERRORS):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, name))
            return Done()
        case ActionType.RESET:
            remove_worker_directory(directory)
            return Done()
        case ActionType.CREATE:
            return Unknown("a create does not come here")
