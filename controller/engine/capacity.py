"""How many workers there should be: up at once for waiting runs, down only after the idle time.

Not promised: exactly so many. What is in use is never taken down for a smaller number, and what an operator keeps
counts for nothing here: its compute is off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from controller.model.action import action_of
from controller.model.edit import Draft
from controller.model.errors import BrokenAction
from controller.model.hysteresis import Switch, Threshold, observe
from controller.model.policy import Policy
from controller.model.records import ActionType, Worker, WorkerState

_COUNTED: Final = frozenset({WorkerState.CREATING, WorkerState.READY, WorkerState.ASSIGNED, WorkerState.RELEASED})


class Headcount:
    """The workers of one plan in the making, counted once; whoever parks a create or a deallocate says so.

    `there` have compute, or are getting it; `staying` are those of them that nothing takes down yet, and that take
    runs: the worker of a closed slot is none of the least number, or it would keep another from being made.
    """

    def __init__(self, draft: Draft, policy: Policy, is_closed: Callable[[int], bool] = lambda _: False) -> None:
        self._now = draft.now
        self._policy = policy
        self._is_closed = is_closed
        counted = [number for number, worker in draft.workers.items() if worker.state in _COUNTED]
        self.there = len(counted)
        self.staying = sum(not is_closed(number) and not _is_going(draft, number) for number in counted)

    def made(self) -> None:
        self.there += 1
        self.staying += 1

    def leaves(self, worker: Worker) -> None:
        """A deallocate was parked for the worker. One whose compute was never counted, such as a lost one, is none."""
        self.staying -= worker.state in _COUNTED and not self._is_closed(worker.slot)

    @property
    def room(self) -> int:
        """How many more may be made now."""
        return max(0, self._policy.ceiling - self.there)

    @property
    def lacking(self) -> int:
        """How many are to be made though no run waits for them, so that the least number is there."""
        return min(self.room, max(0, self._policy.least - self.staying))

    def is_spare(self, worker: Worker) -> bool:
        """Whether an idle worker is to go: nobody needed it for the idle time, and it is none of the least number.

        Whether it is needed is a signal that may swing with every run: it counts as needed until it was not for the
        whole idle time, counted from its last change. A clock that went back behind that makes the wait no longer.
        """
        since = worker.changed_at if worker.changed_at <= self._now else None
        used = Switch(True, since)
        needed = observe(Threshold(start=1, stop=0, dwell_ms=self._policy.idle_ms), used, 0, self._now)
        return not needed.on and (self.staying > self._policy.least or self._is_closed(worker.slot))


def _is_going(draft: Draft, number: int) -> bool:
    entry = draft.pending.get(number)
    if entry is None:
        return False
    try:
        return action_of(entry).type is ActionType.DEALLOCATE
    except BrokenAction:
        return False
