"""Which run is claimed next: candidates from an index, each checked exactly against the draft that shall claim it.

Not promised: that the first in order is served first. One claim in sixteen of a queue serves the one that has waited
longest, `forced` left out, so that no layer starves another; and what cannot be claimed now is passed over.

Up to eight candidates are checked along a line, of which a fair turn has two. One whose key is full is deferred with
that reason, in the draft, and leaves the line until the key is freed; so do the next eight that wait for a key which
the claim itself fills.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Final, Self

from controller.engine.index import Entry, Index, Line, Permit, Waiting
from controller.model.edit import Draft
from controller.model.perform import Given, move_run
from controller.model.reason import Reason
from controller.model.records import Queue, Run, RunState
from controller.model.transition import Trigger
from controller.model.views import is_deferred

FAIR: Final = 16
FINALISTS: Final = 8


def is_fair_turn(queue: Queue | None) -> bool:
    """Whether the next claim of the queue serves whoever has waited longest."""
    return queue is not None and queue.claims % FAIR == FAIR - 1


def is_paused(queue: Queue | None) -> bool:
    """Whether nothing of the queue is handed out."""
    return queue is not None and queue.paused


def count_claim(draft: Draft, queue: str) -> None:
    """One claim of the queue more; the caller has just made it."""
    known = draft.queues.get(queue) or Queue()
    draft.queues.put(queue, Queue(paused=known.paused, claims=known.claims + 1))


def running_change(draft: Draft, key: str) -> int:
    """How many more runs of the key run in the draft than in its document."""
    change = 0
    for run_id, now in draft.runs.changes.items():
        before = draft.document.runs.get(run_id)
        change += _holds(now, key) - _holds(before, key)
    return change


def _holds(run: Run | None, key: str) -> int:
    return run is not None and run.concurrency_key == key and run.state is RunState.RUNNING


class Finder:
    """Hands out the runs of one queue that may be claimed in *draft*, in the order in which they are to be served.

    For a `with`: the index is afterwards as it was. What was claimed is told to it by the edit, once that is committed.
    """

    def __init__(self, index: Index, draft: Draft, queue: str) -> None:
        index.ripen(draft.now)
        self._index = index
        self._draft = draft
        self._queue = queue
        self._early: list[Run] = []
        self._waiting = index.waiting.get(queue) or Waiting()
        self._freed = tuple(self._given_back()) if draft.runs.changes else ()
        self._by_layer = Walk(index, self._waiting.by_layer, self._freed)
        self._by_wait: Walk | None = None

    def _given_back(self) -> Iterator[Permit]:
        """What this very draft has given back: nobody stands in the line for it yet."""
        changes: Mapping[str, Run | None] = self._draft.runs.changes
        befores = (self._draft.document.runs.get(run_id) for run_id in changes)
        keys = {run.concurrency_key for run in befores if run is not None and run.concurrency_key}
        for key in sorted(keys):
            yield from self._index.permits_of(key, self._queue)

    def next(self) -> Run | None:
        """The next run to claim, still queued in the draft; None: there is none. Each is handed out once."""
        if is_fair_turn(self._draft.queues.get(self._queue)):
            if self._by_wait is None:
                self._by_wait = Walk(self._index, self._waiting.by_wait, self._freed)
            found = self._first_of(self._by_wait)
            if found is not None:
                return found
        return self._first_of(self._by_layer)

    def _first_of(self, walk: Walk) -> Run | None:
        checked = 0
        while checked < FINALISTS and (run_id := walk.pop()) is not None:
            run = self._draft.runs.get(run_id)
            if run is None or run is not self._index.runs.get(run_id) or run.state is not RunState.QUEUED:
                continue  # this draft has moved it already
            permit = self._index.permit_of(run_id)
            if is_deferred(run, self._draft.now):
                self._early.append(run)
                if permit is not None:
                    walk.show_next(permit)
                continue
            checked += 1
            if permit is None:
                return run
            change = running_change(self._draft, permit[0])
            if self._index.is_free(permit, change):
                if self._index.is_free(permit, change + 1):
                    walk.show_next(permit)
                else:
                    self._defer(walk.behind(permit, FINALISTS))
                return run
            self._defer([run_id])
        return None

    def _defer(self, runs: Iterable[str]) -> None:
        """Say that these wait for their key, unless that was said before."""
        for run_id in runs:
            run = self._draft.runs.get(run_id)
            if run is not None and run.state is RunState.QUEUED and run.defer_reason is not Reason.CONCURRENCY:
                move_run(self._draft, run_id, Trigger.DEFERRED, Given(reason=Reason.CONCURRENCY))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._by_layer.put_back()
        if self._by_wait is not None:
            self._by_wait.put_back()
        for run in self._early:
            self._index.unripe(run)


class Walk:
    """One pass along a line. What it takes out is put back at the end."""

    def __init__(self, index: Index, line: Line, freed: Iterable[Permit]) -> None:
        self._index = index
        self._line = line
        self._taken: list[tuple[list[Entry], Entry]] = []
        self._seen: set[str] = set()
        self._extra: list[Entry] = []
        for permit in freed:
            self.show_next(permit)

    def pop(self) -> str | None:
        """The next id, each once; None: the line is at its end."""
        while True:
            heap = self._line.heap
            first = self._index.first(heap)
            if self._extra and (first is None or self._extra[0] < first):
                entry = heappop(self._extra)
            elif first is not None:
                entry = heappop(heap)
                if not self._stands(entry) or (self._taken and self._taken[-1][1] == entry):
                    continue
                self._taken.append((heap, entry))
            else:
                return None
            if entry[2] not in self._seen:
                self._seen.add(entry[2])
                return entry[2]

    def _stands(self, entry: Entry) -> bool:
        """Whether the entry is that of a run without a key, or still stands for those that wait for its permit."""
        permit = self._index.permit_of(entry[2])
        return permit is None or self._line.groups[permit].shown == entry

    def show_next(self, permit: Permit) -> None:
        """Let the next that waits for *permit* come too."""
        group = self._line.groups.get(permit)
        while group is not None and (first := self._index.first(group.heap)) is not None:
            if first[2] not in self._seen:
                heappush(self._extra, first)
                return
            self._taken.append((group.heap, heappop(group.heap)))

    def behind(self, permit: Permit, limit: int) -> list[str]:
        """The next that wait for *permit*, in order."""
        found: list[str] = []
        group = self._line.groups.get(permit)
        while group is not None and len(found) < limit and (first := self._index.first(group.heap)) is not None:
            self._taken.append((group.heap, heappop(group.heap)))
            if first[2] not in self._seen:
                found.append(first[2])
        return found

    def put_back(self) -> None:
        for heap, entry in self._taken:
            heappush(heap, entry)
