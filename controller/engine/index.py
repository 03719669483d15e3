"""Where runs stand, by queue, layer, due time and lease deadline: what is looked at instead of every run.

Not promised: that a candidate may be claimed. The clock moves on, and a draft has changes of its own: `discovery`
checks each candidate exactly before it is claimed.

An index is built once and kept by what changes, whoever changed it. Entries are dropped when they surface, not when
they stop being true: an entry counts only while its serial is that of its run's place.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from heapq import heapify, heappop, heappush, merge
from typing import Final

from msgspec import Struct

from controller.engine.ended import Ended
from controller.model.mapping import Records
from controller.model.reason import Reason
from controller.model.records import TERMINAL, Lease, Priority, Run, RunState
from controller.model.views import Outline, waits_since

LAYERS: Final[Mapping[Priority, int]] = {layer: rank for rank, layer in enumerate(Priority)}

_SLACK: Final = 64
_SELDOM: Final = 256
"""After so many edits it is looked whether heaps hold too much that no longer counts."""

Entry = tuple[int, int, str, int]
"""What it is ordered by, then sequence and id, so that the order is total; and the serial of its run's place."""
Permit = tuple[str, int]
"""A concurrency key and how many of it may run: runs that wait for the same thing."""


class Slim(Outline, frozen=True, kw_only=True):
    """As much of a run as its place needs: what an index is built of without decoding the rest."""

    id: str
    queue: str
    sequence: int
    priority: Priority = Priority.NORMAL
    defer_reason: Reason | None = None
    lease: Lease | None = None
    finished_at: int | None = None
    concurrency_key: str = ""
    concurrency: int = 0


def order(run: Run) -> tuple[int, int, str]:
    """First served first: layer, sequence, id."""
    return LAYERS[run.priority], run.sequence, run.id


class _Place(Struct, frozen=True, gc=False):
    serial: int
    queue: str
    permit: Permit | None
    state: RunState


class _Group:
    """Runs that wait for one permit. `shown` is the one that stands for all of them in the line."""

    __slots__ = ("heap", "shown")

    def __init__(self) -> None:
        self.heap: list[Entry] = []
        self.shown: Entry | None = None


class Line:
    """Runs of one queue that wait, in one order: each without a key, and one for all that wait for the same permit.

    So runs whose key is full cost nothing, however many they are: nobody stands for them until the key is freed.
    """

    __slots__ = ("groups", "heap")

    def __init__(self) -> None:
        self.heap: list[Entry] = []
        self.groups: dict[Permit, _Group] = {}

    def add(self, entry: Entry, permit: Permit | None) -> None:
        """A run with a *permit* is not shown before `settle`."""
        heap = self.heap if permit is None else self.groups.setdefault(permit, _Group()).heap
        heappush(heap, entry)

    def settle(self, index: Index, permit: Permit) -> None:
        """Show the first that waits for *permit* if its key is free, and none otherwise."""
        group = self.groups.get(permit)
        if group is None:
            return
        first = index.first(group.heap)
        if first is None:
            del self.groups[permit]
        elif not index.is_free(permit):
            group.shown = None
        elif group.shown != first:
            group.shown = first
            heappush(self.heap, first)


class Waiting:
    """The two lines of a queue: by layer, and by how long each has waited, `forced` left out."""

    __slots__ = ("by_layer", "by_wait")

    def __init__(self) -> None:
        self.by_layer = Line()
        self.by_wait = Line()


class Index:
    """Made by `indexes.Indexes`. Leases that another boot than *boot_id*, or another *epoch*, granted are over."""

    def __init__(self, runs: Mapping[str, Run], boot_id: str, epoch: str = "") -> None:
        self.runs = runs
        self.waiting: dict[str, Waiting] = {}
        self.ended = Ended()
        """Runs that ended and are still there."""
        self._ripe: dict[str, dict[str, int]] = {}
        """Runs of each queue that are due and were not promoted yet, with a number that says which fell due first."""
        self.granter = (boot_id, epoch)
        self._places: dict[str, _Place] = {}
        self._serial = 0
        self._running: dict[str, set[str]] = {}
        self._waits: dict[str, set[tuple[str, int]]] = {}
        self._due: list[Entry] = []
        self._ahead: list[Entry] = []
        self._leases: list[Entry] = []
        self._early: list[Entry] = []
        keys = {self._put(run) for _, run in Records.of(runs).project(Slim)}
        for key in sorted(keys - {""}):
            self._settle_key(key)
        self._follows = 0

    # Asking

    def is_free(self, permit: Permit, change: int = 0) -> bool:
        """Whether one run more may run under *permit*, with *change* runs of its key more or less than recorded."""
        key, most = permit
        return len(self._running.get(key, ())) + change < most

    def first(self, heap: list[Entry]) -> Entry | None:
        """The first entry that still counts; those before it are dropped."""
        counts = self.counts
        while heap:
            if counts(heap[0]):
                return heap[0]
            heappop(heap)
        return None

    def counts(self, entry: Entry) -> bool:
        place = self._places.get(entry[2])
        return place is not None and place.serial == entry[3]

    def permit_of(self, run_id: str) -> Permit | None:
        place = self._places.get(run_id)
        return None if place is None else place.permit

    def permits_of(self, key: str, queue: str) -> tuple[Permit, ...]:
        """What runs of *queue* wait for that *key* gives."""
        return tuple((key, most) for name, most in sorted(self._waits.get(key, ())) if name == queue)

    def over(self, mono_ms: int, limit: int) -> tuple[str, ...]:
        """Runs whose lease is over, earliest deadline first."""
        return self._head(self._leases, limit, lambda deadline: deadline <= mono_ms)

    def too_long(self, mono_ms: int, limit: int) -> tuple[str, ...]:
        """Runs whose lease lasts longer than it was granted for: no holder on this clock can have got that."""
        return self._head(self._early, limit, lambda negative: mono_ms < -negative)

    def _head(self, heap: list[Entry], limit: int, wanted: Callable[[int], bool]) -> tuple[str, ...]:
        taken: list[Entry] = []
        while len(taken) < limit and (entry := self.first(heap)) is not None and wanted(entry[0]):
            taken.append(heappop(heap))
        for entry in taken:
            heappush(heap, entry)
        return tuple(entry[2] for entry in taken)

    def ripe(self, without: Container[str] = ()) -> Iterator[str]:
        """Runs that are due and were not promoted yet, as `ripen` left them, in the order in which they fell due; those
        of queues in *without* left out.
        """
        each = [_numbered(ripe) for queue, ripe in self._ripe.items() if queue not in without]
        return (run_id for _, run_id in merge(*each))

    def waiting_for(self, key: str) -> Iterator[tuple[str, int]]:
        """The queues in which runs wait for *key*, and how many of it each of those lets run."""
        return iter(self._waits.get(key, ()))

    def running(self, key: str) -> int:
        """How many runs of *key* are running."""
        return len(self._running.get(key, ()))

    def next_deadline(self) -> int | None:
        """The next lease deadline, in ms on the monotonic clock."""
        entry = self.first(self._leases)
        return None if entry is None else entry[0]

    def next_due(self) -> int | None:
        """When the next run falls due, UTC ms."""
        entry = self.first(self._due)
        return None if entry is None else entry[0]

    # Keeping

    def ripen(self, now: int) -> None:
        """Let the runs that have fallen due by *now* into the lines."""
        while (entry := self.first(self._due)) is not None and entry[0] <= now:
            self._fall_due(heappop(self._due))
        while (entry := self.first(self._ahead)) is not None and now < -entry[0]:
            self._fall_due(heappop(self._ahead))

    def _fall_due(self, entry: Entry) -> None:
        run = self.runs[entry[2]]
        ripe = self._ripe.setdefault(run.queue, {})
        if run.id in ripe:
            return
        self._serial += 1
        ripe[run.id] = self._serial
        self._line_up(run, self._places[run.id])
        permit = self._places[run.id].permit
        if permit is not None:
            self._settle_key(permit[0])

    def unripe(self, run: Run) -> None:
        """The clock went back behind the time at which *run* was due: it waits for that time again."""
        self.follow({run.id: run}, self.runs)

    def follow(self, changes: Mapping[str, Run | None], runs: Mapping[str, Run]) -> None:
        """Take over an edit's *changes* (None: removed), which made *runs*."""
        keys = set()
        for run_id, run in changes.items():
            keys.add(self._remove(run_id))
            if run is not None:
                keys.add(self._put(run))
        self.runs = runs
        for key in sorted(keys - {""}):
            self._settle_key(key)
        self._follows += 1
        if self._follows % _SELDOM == 0:
            self._compact()

    def _compact(self) -> None:
        """Drop what no longer counts from heaps where that is the most: what lies below a first one that stays never
        surfaces.
        """
        most = 2 * len(self._places) + _SLACK
        lines = [line.heap for waiting in self.waiting.values() for line in (waiting.by_layer, waiting.by_wait)]
        for heap in (self._leases, self._early, self._due, self._ahead, *lines):
            if len(heap) > most:
                heap[:] = filter(self.counts, heap)
                heapify(heap)

    def _remove(self, run_id: str) -> str:
        """Forget its place. The concurrency key that this may have freed, or ""."""
        place = self._places.pop(run_id, None)
        if place is None:
            return ""
        if place.queue in self._ripe:
            self._ripe[place.queue].pop(run_id, None)
        if place.state in TERMINAL:
            self.ended.remove(run_id)
        if place.permit is None:
            return ""
        key = place.permit[0]
        if place.state is RunState.RUNNING:
            self._running[key].discard(run_id)
        return key

    def _put(self, run: Run | Slim) -> str:
        """Give it a place. The concurrency key that it has, or ""."""
        self._serial += 1
        permit = (run.concurrency_key, run.concurrency) if run.concurrency_key else None
        place = self._places[run.id] = _Place(self._serial, run.queue, permit, run.state)
        if run.state is RunState.RUNNING:
            if permit is not None:
                self._running.setdefault(permit[0], set()).add(run.id)
            if run.lease is not None:
                self._keep_lease(run, run.lease)
        elif run.state in TERMINAL:
            self.ended.put(run.id, run.queue, run.finished_at or run.created_at, run.sequence)
        elif run.available_at is None or run.defer_reason is Reason.CONCURRENCY:
            self._line_up(run, place)
        else:
            heappush(self._due, self._entry(run.available_at, run))
            if run.longest_ms is not None:
                heappush(self._ahead, self._entry(run.longest_ms - run.available_at, run))
        return run.concurrency_key

    def _keep_lease(self, run: Run | Slim, lease: Lease) -> None:
        foreign = (lease.boot_id, lease.epoch) != self.granter
        heappush(self._leases, self._entry(-1 if foreign else lease.deadline_ms, run))
        if not foreign:
            heappush(self._early, self._entry(lease.granted_ms - lease.deadline_ms, run))

    def _line_up(self, run: Run | Slim, place: _Place) -> None:
        waiting = self.waiting.get(run.queue)
        if waiting is None:
            waiting = self.waiting[run.queue] = Waiting()
        waiting.by_layer.add(self._entry(LAYERS[run.priority], run), place.permit)
        if run.priority is not Priority.FORCED:
            waiting.by_wait.add(self._entry(waits_since(run), run), place.permit)
        if place.permit is not None:
            self._waits.setdefault(place.permit[0], set()).add((run.queue, place.permit[1]))

    def _entry(self, rank: int, run: Run | Slim) -> Entry:
        return rank, run.sequence, run.id, self._places[run.id].serial

    def _settle_key(self, key: str) -> None:
        for queue, most in list(self._waits.get(key, ())):
            waiting = self.waiting[queue]
            waiting.by_layer.settle(self, (key, most))
            waiting.by_wait.settle(self, (key, most))
            if (key, most) not in waiting.by_layer.groups:
                self._waits[key].discard((queue, most))
        if not self._waits.get(key) and not self._running.get(key):
            self._waits.pop(key, None)
            self._running.pop(key, None)


def _numbered(ripe: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    return ((number, run_id) for run_id, number in ripe.items())
