"""The runs that the fleet may take now, as one plan hands them out.

Not promised: that anybody takes them. What is taken, or a worker is made for, is handed out once.

Runs come along the lines of an index, so a plan looks at those that it hands out and at few more, however many wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from controller.engine.discovery import FINALISTS, Walk, is_fair_turn, is_paused
from controller.engine.index import Index, Line, Permit, order
from controller.model.edit import Draft
from controller.model.perform import Given, move_run
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import Priority, Run, RunState, Worker, WorkerState
from controller.model.transition import Trigger
from controller.model.views import is_deferred, waits_since


class Demand:
    """The runs that the fleet may take now. What is taken, or a worker is made for, is handed out once.

    *index* is that of the draft's document. `close` leaves it as it was, and must be called.
    """

    def __init__(self, draft: Draft, policy: Policy, index: Index, *, closed: bool) -> None:
        self._draft = draft
        self._index = index
        self._most = 2 * (policy.slots + len(draft.document.workers))
        self._bound = {w.run: n for n, w in draft.workers.items() if w.run is not None and w.state in BINDING}
        self._theirs: dict[str, Run] = {}
        self._granted: set[str] = set()
        self._taken: set[str] = set()
        self._early: dict[str, Run] = {}
        self._changed: dict[str, Run | None] = dict(draft.runs.changes)
        self._running = self._running_change()
        self._open = frozenset() if closed else self._open_queues(policy)
        self._heads: list[_Head] = []
        self._fresh: list[Run] = []
        if closed:
            return
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        draft, index = self._draft, self._index
        index.ripen(draft.now)
        for run_id in self._bound:
            run = draft.runs.get(run_id)
            if run is not None and self._is_due(run):
                self._theirs[run_id] = run
        self._fresh = [run for run in self._changed.values() if run is not None and self._is_ours(run)]
        self._grant()
        self._heads = [_Head(iter(sorted(self._fresh, key=order)))]
        for queue in sorted(self._open):
            if (waiting := index.waiting.get(queue)) is not None:
                walk = self._walk(waiting.by_layer, queue)
                self._heads.append(_Head(self._along(walk), walk))
        self._defer_some()

    def close(self) -> None:
        for head in self._heads:
            if head.walk is not None:
                head.walk.put_back()
        for run in self._early.values():
            self._index.unripe(run)

    def __bool__(self) -> bool:
        return self.first() is not None

    def first(self) -> Run | None:
        """The one that is to be served next."""
        found = self._first_by_layer()
        if found is None or not is_fair_turn(self._draft.queues.get(found.queue)):
            return found
        return self._longest_of(found.queue) or found

    def _first_by_layer(self) -> Run | None:
        firsts = (head.first(self._is_claimable) for head in self._heads)
        return min((run for run in firsts if run is not None), key=order, default=None)

    def _longest_of(self, queue: str) -> Run | None:
        """The one that has waited longest, `forced` left out."""
        fresh = [run for run in self._fresh if run.queue == queue and run.priority is not Priority.FORCED]
        found = [run for run in fresh if self._is_claimable(run)]
        if (waiting := self._index.waiting.get(queue)) is not None:
            walk = self._walk(waiting.by_wait, queue)
            found += islice(filter(self._is_claimable, self._along(walk)), 1)
            walk.put_back()
        return min(found, key=lambda run: (waits_since(run), run.sequence, run.id), default=None)

    def take(self, run: Run) -> None:
        """*run* is claimed, or turned out to be cancelled."""
        self._taken.add(run.id)
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

    def in_order(self) -> list[str]:
        """As many as could be of any use to be taken at once, first served first. Nothing is handed out any more."""
        found: list[str] = []
        while len(found) < self._most and (run := self._first_by_layer()) is not None:
            self.take(run)
            found.append(run.id)
        return found

    def _open_queues(self, policy: Policy) -> frozenset[str]:
        return frozenset(queue for queue in policy.queues if not is_paused(self._draft.queues.get(queue)))

    def _running_change(self) -> Counter[str]:
        """How many more runs of each key run in the draft than in its document."""
        change: Counter[str] = Counter()
        for run_id, now in self._changed.items():
            before = self._draft.document.runs.get(run_id)
            for run, more in ((now, 1), (before, -1)):
                if run is not None and run.concurrency_key and run.state is RunState.RUNNING:
                    change[run.concurrency_key] += more
        return change

    def _walk(self, line: Line, queue: str) -> Walk:
        """Along *line*, with what this very draft has freed: nobody stands in the line for that yet."""
        freed = [key for key, change in sorted(self._running.items()) if change < 0]
        return Walk(self._index, line, (permit for key in freed for permit in self._index.permits_of(key, queue)))

    def _along(self, walk: Walk) -> Iterator[Run]:
        """What is the fleet's to take on the way; of those that wait for one permit, the next if it may run too."""
        while (run_id := walk.pop()) is not None:
            permit = self._index.permit_of(run_id)
            if permit is not None and self._is_free(permit):
                walk.show_next(permit)
            run = self._draft.document.runs[run_id]
            if run_id in self._changed:
                continue
            if is_deferred(run, self._draft.now):
                self._early[run_id] = run
            elif self._is_ours(run):
                yield run

    def _is_due(self, run: Run) -> bool:
        return run.state is RunState.QUEUED and run.queue in self._open and not is_deferred(run, self._draft.now)

    def _is_ours(self, run: Run) -> bool:
        """Whether any worker may take the run: it is due, and no worker keeps it."""
        return self._is_due(run) and run.id not in self._bound

    def _is_claimable(self, run: Run) -> bool:
        return run.id not in self._taken and self._may_run(run)

    def _may_run(self, run: Run) -> bool:
        """Whether the run's key, if it has one, lets one run more."""
        return not run.concurrency_key or self._is_free((run.concurrency_key, run.concurrency))

    def _is_free(self, permit: Permit) -> bool:
        return self._index.is_free(permit, self._running[permit[0]])

    def _grant(self) -> None:
        """Give permits to kept runs first: their workers are there already, and no other run can have those.

        By the order of all runs alone a permit could wait for one that no slot takes, while that slot waits for it.
        """
        for run in sorted((run for run in self._theirs.values() if run.concurrency_key), key=order):
            if self._may_run(run):
                self._running[run.concurrency_key] += 1
                self._granted.add(run.id)

    def _defer_some(self) -> None:
        """Say of the first whose key is full that they wait for it."""
        refused = [run for run in self._theirs.values() if run.concurrency_key and run.id not in self._granted]
        refused += sorted(self._refused(), key=order)
        for run in islice(refused, FINALISTS):
            if run.defer_reason is not Reason.CONCURRENCY:
                move_run(self._draft, run.id, Trigger.DEFERRED, Given(reason=Reason.CONCURRENCY))

    def _refused(self) -> Iterator[Run]:
        """The first of those behind each key that workers hold, and all that this draft has queued, if it is full."""
        yield from (run for run in self._fresh if not self._may_run(run))
        for key in sorted(self._held_keys()):
            for queue in sorted(self._open):
                for permit in self._index.permits_of(key, queue):
                    if not self._is_free(permit):
                        yield from self._behind(permit, queue)

    def _held_keys(self) -> set[str]:
        held = [self._draft.runs.get(w.run) for _, w in self._draft.workers.items() if w.run is not None]
        keys = {run.concurrency_key for run in held if run is not None and run.concurrency_key}
        return keys | {key for key, change in self._running.items() if change > 0}

    def _behind(self, permit: Permit, queue: str) -> Sequence[Run]:
        walk = Walk(self._index, self._index.waiting[queue].by_layer, iter(()))
        found = [self._draft.document.runs[run_id] for run_id in walk.behind(permit, FINALISTS)]
        walk.put_back()
        return [run for run in found if run.id not in self._changed and self._is_ours(run)]


class _Head:
    """One line, and its first that may still be claimed: what may not now may not later in the same plan."""

    def __init__(self, runs: Iterator[Run], walk: Walk | None = None) -> None:
        self.walk = walk
        self._runs = runs
        self._first = next(runs, None)

    def first(self, is_claimable: Callable[[Run], bool]) -> Run | None:
        while self._first is not None and not is_claimable(self._first):
            self._first = next(self._runs, None)
        return self._first


BINDING: Final = (WorkerState.CREATING, WorkerState.ASSIGNED)
"""A worker that is there, or comes, with the data of a queued run: that run is for it alone."""
