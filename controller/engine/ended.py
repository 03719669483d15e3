"""What has ended and is still there, by queue and by the time of its end: what is looked at instead of all of it when
something is to be forgotten.

Not promised: that what ended first may be forgotten; `retention` decides that.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import Any, Final

from msgspec import Struct

from controller.model.action import action_of, decode
from controller.model.edit import Draft
from controller.model.errors import BrokenAction
from controller.model.mapping import Records
from controller.model.records import Tombstone

_SLACK: Final = 64

Entry = tuple[int, int, str, int]
"""When it ended, its sequence and its id; and the serial of its place, which alone tells whether it still counts."""


class Ended:
    """How many of each queue there are, and which ended first."""

    __slots__ = ("_heaps", "_places", "_serial", "counts")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """Queues of which there is none are left out."""
        self._heaps: dict[str, list[Entry]] = {}
        self._places: dict[str, tuple[str, int]] = {}
        self._serial = 0

    def put(self, name: str, queue: str, at: int, sequence: int) -> None:
        self.remove(name)
        self._serial += 1
        self._places[name] = queue, self._serial
        count = self.counts[queue] = self.counts.get(queue, 0) + 1
        heap = self._heaps.setdefault(queue, [])
        heappush(heap, (at, sequence, name, self._serial))
        if len(heap) > 2 * count + _SLACK:  # what lies below a first one that stays never surfaces
            heap[:] = filter(self._counts, heap)
            heapify(heap)

    def remove(self, name: str) -> None:
        place = self._places.pop(name, None)
        if place is not None:
            queue = place[0]
            self.counts[queue] -= 1
            if not self.counts[queue]:
                del self.counts[queue], self._heaps[queue]

    def _counts(self, entry: Entry) -> bool:
        place = self._places.get(entry[2])
        return place is not None and place[1] == entry[3]

    def is_over(self, queue: str, most: int, before: int) -> bool:
        """Whether `oldest` would find any, of none that are kept or leaving."""
        heap = self._heaps[queue]
        while not self._counts(heap[0]):
            heappop(heap)
        return self.counts[queue] > most or heap[0][0] <= before

    def oldest(
        self,
        queue: str,
        limit: int,
        *,
        most: int = 0,
        before: int = 0,
        kept: Container[str] = (),
        leaving: AbstractSet[str] = frozenset(),
    ) -> list[str]:
        """Up to *limit* of the queue that are more than *most*, or ended at *before* or earlier: earliest end first.

        Those that are *kept* are passed over: however many they are, they hide nothing behind them. Those that are
        *leaving*, of this queue or another, are passed over too, and do not count.
        """
        heap, count = self._heaps.get(queue, []), self.counts.get(queue, 0)
        count -= sum((place := self._places.get(name)) is not None and place[0] == queue for name in leaving)
        found: list[str] = []
        taken: list[Entry] = []
        while heap and len(found) < limit:
            if not self._counts(heap[0]):
                heappop(heap)
                continue
            if count <= most and heap[0][0] > before:
                break
            taken.append(heappop(heap))
            if taken[-1][2] in leaving:
                continue
            count -= 1
            if taken[-1][2] not in kept:
                found.append(taken[-1][2])
        for entry in taken:
            heappush(heap, entry)
        return found


class _Outline(Struct, frozen=True):
    """As much of a tombstone as its place needs."""

    queue: str
    sequence: int
    finished_at: int


class Stones:
    """The tombstones of one document."""

    __slots__ = ("ended", "records")

    def __init__(self, finished: Mapping[str, Tombstone]) -> None:
        self.records: Mapping[str, Any] = finished
        self.ended = Ended()
        for name, stone in Records.of(finished).project(_Outline):
            self.ended.put(name, stone.queue, stone.finished_at, stone.sequence)

    def follow(self, changes: Mapping[str, Tombstone | None], finished: Mapping[str, Tombstone]) -> None:
        """Take over *changes* (None: it left), which made *finished*."""
        for name, stone in changes.items():
            if stone is None:
                self.ended.remove(name)
            else:
                self.ended.put(name, stone.queue, stone.finished_at, stone.sequence)
        self.records = finished


class Named:
    """The runs that slots name, remembered for as long as nothing of any slot changes."""

    __slots__ = ("_names", "_sections")

    def __init__(self) -> None:
        self._sections: tuple[object, object, object] | None = None
        self._names: frozenset[str] = frozenset()

    def of(self, draft: Draft) -> frozenset[str]:
        """Runs that a worker or a pending action names, or a disowned one that may have done anything."""
        if draft.workers.changes or draft.pending.changes or draft.disowned.changes:
            return _names(draft)
        document = draft.document
        sections = document.workers, document.pending_actions, document.disowned
        known = self._sections
        if known is None or any(one is not other for one, other in zip(known, sections, strict=True)):
            self._sections, self._names = sections, _names(draft)
        return self._names


def _names(draft: Draft) -> frozenset[str]:
    named = {run for _, worker in draft.workers.items() for run in (worker.run, worker.reserved) if run is not None}
    for entry in [entry for _, entry in draft.pending.items()]:
        with suppress(BrokenAction):  # nothing that is broken here can be applied, so it names nothing either
            named |= {run for run in (action_of(entry).run,) if run is not None}
    for each in [each for _, each in draft.disowned.items() if each.proven is None]:
        with suppress(BrokenAction):
            named |= {run for run in (decode(each.action).run,) if run is not None}
    return frozenset(named)
