"""What was submitted when, by content: what is looked at instead of every run to find the same submission again.

Not promised: cheap memory. It is made when the first submission asks for it, and kept from then on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from controller.model.mapping import Records
from controller.model.records import Run, RunState, Tombstone

Place = tuple[int, int, str]
"""When it was submitted, its sequence, its id."""


class Outline(Struct, frozen=True):
    """As much of a run or a tombstone as its place needs."""

    id: str
    sequence: int
    created_at: int
    state: RunState = RunState.QUEUED
    content: str = ""


class Contents:
    """The runs, or with *stones* the tombstones, of one document. Of those only runs that succeeded count."""

    __slots__ = ("_places", "_stones", "records")

    def __init__(self, records: Mapping[str, Any], *, stones: bool = False) -> None:
        self.records: Mapping[str, Any] = records
        self._stones = stones
        self._places: dict[str, list[Place]] = {}
        for _, record in Records.of(records).project(Outline):
            if self._counts(record):
                self._places.setdefault(record.content, []).append(_place(record))
        for places in self._places.values():
            places.sort()

    def _counts(self, record: Run | Tombstone | Outline) -> bool:
        return not self._stones or record.state is RunState.SUCCEEDED

    def within(self, content: str, after: int, before: int) -> Iterator[str]:
        """Those submitted between both times, neither included; the latest first."""
        places = self._places.get(content, [])
        first, behind = bisect_right(places, after, key=_time), bisect_left(places, before, key=_time)
        return (places[n][2] for n in range(behind - 1, first - 1, -1))

    def follow(self, changes: Mapping[str, Any], records: Mapping[str, Any]) -> None:
        """Take over *changes* (None: it left), which made *records*."""
        for name, now in changes.items():
            was, new = (
                None if each is None or not self._counts(each) else (each.content, _place(each))
                for each in (self.records.get(name), now)
            )
            if was == new:
                continue
            if was is not None:
                places = self._places[was[0]]
                del places[bisect_left(places, was[1])]
                if not places:
                    del self._places[was[0]]
            if new is not None:
                insort(self._places.setdefault(new[0], []), new[1])
        self.records = records


def _place(record: Run | Tombstone | Outline) -> Place:
    return record.created_at, record.sequence, record.id


def _time(place: Place) -> int:
    return place[0]
