"""What a provider reports: workers, their steps, and a whole look."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property

from msgspec import Struct

from controller.model.records import Resource, Worker


class Seen(StrEnum):
    """A worker's state as its provider sees it. `dark`: its compute is off, its data is kept."""

    CREATING = "creating"
    READY = "ready"
    DARK = "dark"
    GONE = "gone"


class StepSeen(StrEnum):
    RUNNING = "running"
    EXITED = "exited"


class SeenStep(Struct, frozen=True):
    """A step under the key of the execute that started it. Exited with neither code nor signal: how is unknowable.

    `timed_out`: the worker ended it at its own deadline. `reason`: a few words for people, such as why it never
    started.
    """

    idempotency_key: str
    state: StepSeen
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    started: bool = True
    reason: str = ""
    ended_at: int | None = None


class SeenWorker(Struct, frozen=True):
    slot: int
    lineage: str
    assignment: str
    generation: int
    id: str
    state: Seen
    resources: Mapping[str, Resource] = {}
    steps: tuple[SeenStep, ...] = ()


class Inventory(Struct, frozen=True):
    """One answer. `complete` false: it says nothing about what it does not list.

    `unreadable`: slots of which it says nothing, though complete: one damaged worker must not hide the others.
    `troubles`: what people should know of it.
    """

    complete: bool
    workers: tuple[SeenWorker, ...]
    unreadable: tuple[int, ...] = ()
    troubles: tuple[str, ...] = ()


Name = tuple[str, int, str, int]
"""Lineage, slot, assignment and generation."""


class Look(Struct, frozen=True, dict=True):
    """An inventory and the document revision read before it was asked for; `began_at`, `ended_at` in UTC ms."""

    revision: int
    began_at: int
    ended_at: int
    inventory: Inventory

    @property
    def complete(self) -> bool:
        return self.inventory.complete

    @cached_property
    def named(self) -> Mapping[Name, tuple[SeenWorker, ...]]:
        """What it shows, by name. Whatever is listed again just alike is there once; of many that differ two stand."""
        found: dict[Name, tuple[SeenWorker, ...]] = {}
        for seen in self.inventory.workers:
            name = (seen.lineage, seen.slot, seen.assignment, seen.generation)
            those = found.get(name, ())
            if len(those) < 2 and seen not in those:
                found[name] = (*those, seen)
        return found


def remains(seen: SeenWorker) -> bool:
    """Whether anything of it is there: its compute, or, of what is gone, data."""
    return seen.state is not Seen.GONE or bool(seen.resources)


def shows(worker: Worker, lineage: str, seen: SeenWorker) -> bool:
    """Whether *seen* is exactly this worker."""
    return (seen.lineage, seen.slot, seen.assignment, seen.generation) == (
        lineage,
        worker.slot,
        worker.assignment,
        worker.generation,
    )
