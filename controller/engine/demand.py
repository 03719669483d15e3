"""The runs that the fleet may take now, as one plan hands them out.

Not promised: that anybody takes them. What is taken, or a worker is made for, is handed out once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Final

from controller.engine.discovery import FINALISTS, is_fair_turn, is_paused
from controller.engine.index import order
from controller.model.edit import Draft
from controller.model.perform import Given, move_run
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import Priority, Run, RunState, Worker, WorkerState
from controller.model.transition import Trigger
from controller.model.views import is_deferred, waits_since


class Demand:
    """The runs that the fleet may take now. What is taken, or a worker is made for, is handed out once."""

    def __init__(self, draft: Draft, policy: Policy, *, closed: bool) -> None:
        self._draft = draft
        self._due: dict[str, Run] = {}
        self._first: list[Run] = []
        self._running: Counter[str] = Counter()
        self._bound = {w.run: n for n, w in draft.workers.items() if w.run is not None and w.state in BINDING}
        self._theirs: dict[str, Run] = {}
        self._granted: set[str] = set()
        if closed:
            return
        open_queues = {queue for queue in policy.queues if not is_paused(draft.queues.get(queue))}
        for run_id, run in draft.runs.items():
            if run.state is RunState.QUEUED and run.queue in open_queues and not is_deferred(run, draft.now):
                (self._theirs if run_id in self._bound else self._due)[run_id] = run
            elif run.state is RunState.RUNNING and run.concurrency_key:
                self._running[run.concurrency_key] += 1
        # More than can be served at once are of no use, and ordering them all costs more than everything else here.
        keyed = any(run.concurrency_key for run in self._due.values())
        most = len(self._due) if keyed else 2 * (policy.slots + len(draft.document.workers))
        self._first = nsmallest(most, self._due.values(), key=order)
        self._grant()
        self._defer_some()

    def __bool__(self) -> bool:
        return self.first() is not None

    def first(self) -> Run | None:
        """The one that is to be served next."""
        found = next(self._claimable(self._first), None)
        if found is None or not is_fair_turn(self._draft.queues.get(found.queue)):
            return found
        fair = (run for run in self._due.values() if run.queue == found.queue and run.priority is not Priority.FORCED)
        longest = min(self._claimable(fair), key=lambda run: (waits_since(run), run.sequence, run.id), default=None)
        return longest or found

    def take(self, run: Run) -> None:
        """*run* is claimed, or turned out to be cancelled."""
        del self._due[run.id]
        if run.concurrency_key:
            self._running[run.concurrency_key] += 1

    def is_due_for(self, worker: Worker) -> bool:
        """Whether the run that is kept for *worker* may be taken now; it is handed out then."""
        run = None if worker.run is None else self._theirs.get(worker.run)
        if (
            run is None
            or self._bound.get(run.id) != worker.slot
            or (run.concurrency_key and run.id not in self._granted)
        ):
            return False
        del self._theirs[run.id]
        return True

    def _grant(self) -> None:
        """Give permits to kept runs first: their workers are there already, and no other run can have those.

        By the order of all runs alone a permit could wait for one that no slot takes, while that slot waits for it.
        """
        for run in sorted((run for run in self._theirs.values() if run.concurrency_key), key=order):
            if _may_run(run, self._running):
                self._running[run.concurrency_key] += 1
                self._granted.add(run.id)

    def in_order(self) -> list[str]:
        """All that could be taken at once, first served first."""
        permits, found = Counter(self._running), []
        for run in self._first:
            if run.id in self._due and _may_run(run, permits):
                permits[run.concurrency_key] += 1
                found.append(run.id)
        return found

    def _claimable(self, runs: Iterable[Run]) -> Iterator[Run]:
        return (run for run in runs if run.id in self._due and _may_run(run, self._running))

    def _defer_some(self) -> None:
        """Say of the first whose key is full that they wait for it."""
        refused = [run for run in self._theirs.values() if run.concurrency_key and run.id not in self._granted]
        refused += [run for run in self._first if not _may_run(run, self._running)]
        for run in islice(refused, FINALISTS):
            if run.defer_reason is not Reason.CONCURRENCY:
                move_run(self._draft, run.id, Trigger.DEFERRED, Given(reason=Reason.CONCURRENCY))


BINDING: Final = (WorkerState.CREATING, WorkerState.ASSIGNED)
"""A worker that is there, or comes, with the data of a queued run: that run is for it alone."""


def _may_run(run: Run, running: Mapping[str, int]) -> bool:
    """Whether the run's key, if it has one, lets one run more."""
    return not run.concurrency_key or running.get(run.concurrency_key, 0) < run.concurrency
