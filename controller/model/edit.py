"""Edits: a set of changed records, never a rewritten whole.

A `Draft` is a private overlay over one document; it collects changes and the events that explain them and gives an
`Edit`. Nothing is shared with the document, so a draft that is thrown away changed nothing. `apply_edit` is the only
way from one document to the next; every store uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType, structs

from controller.model.mapping import Records
from controller.model.reason import Reason
from controller.model.records import (
    MAX_TROUBLES,
    Counters,
    Disowned,
    Document,
    Event,
    PendingAction,
    Provider,
    Queue,
    Run,
    Slot,
    Tombstone,
    Trouble,
    Worker,
)

K = TypeVar("K", bound=str | int)
V = TypeVar("V")


MAPS: Final[Mapping[str, type[Struct]]] = {
    "runs": Run,
    "workers": Worker,
    "pending_actions": PendingAction,
    "slots": Slot,
    "queues": Queue,
    "providers": Provider,
    "finished": Tombstone,
    "disowned": Disowned,
}
"""Sections that are maps, in file order, and what they hold."""


class Edit(Struct, frozen=True):
    """Changed records by section (None: removed), new header values (None: unchanged), and the events, without
    revision.
    """

    runs: Mapping[str, Run | None]
    workers: Mapping[int, Worker | None]
    pending_actions: Mapping[int, PendingAction | None]
    slots: Mapping[int, Slot | None]
    queues: Mapping[str, Queue | None]
    providers: Mapping[str, Provider | None]
    finished: Mapping[str, Tombstone | None]
    disowned: Mapping[str, Disowned | None]
    troubles: tuple[Trouble, ...]
    counters: Counters | None
    draining: bool | None
    events: tuple[Event, ...]

    @property
    def empty(self) -> bool:
        return not self.events

    def sections(self) -> dict[str, Mapping[Any, Any]]:
        """The changed records of each section that has any, in file order."""
        return {name: changes for name in MAPS if (changes := getattr(self, name))}


class Table(Generic[K, V]):
    """One section seen through a draft: reads fall through to the document, writes stay here."""

    __slots__ = ("_base", "changes")

    def __init__(self, base: Mapping[K, V]) -> None:
        self._base = base
        self.changes: dict[K, V | None] = {}

    def get(self, key: K) -> V | None:
        if key in self.changes:
            return self.changes[key]
        return self._base.get(key)

    def put(self, key: K, record: V) -> None:
        self.changes[key] = record

    def remove(self, key: K) -> None:
        if key in self._base:
            self.changes[key] = None
        else:
            self.changes.pop(key, None)

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def items(self) -> Iterator[tuple[K, V]]:
        """Records of the base in its order, as changed, then new ones in the order they were put."""
        for key, base in self._base.items():
            record = self.changes.get(key, base)
            if record is not None:
                yield key, record
        for key, new in list(self.changes.items()):
            if new is not None and key not in self._base:
                yield key, new


class Draft:
    """An edit in the making over *document*. `now` is UTC ms and `command` what history shall say did it."""

    def __init__(self, document: Document, *, now: int, command: str) -> None:
        self.document = document
        self.now = now
        self.command = command
        self.runs: Table[str, Run] = Table(document.runs)
        self.workers: Table[int, Worker] = Table(document.workers)
        self.pending: Table[int, PendingAction] = Table(document.pending_actions)
        self.slots: Table[int, Slot] = Table(document.slots)
        self.queues: Table[str, Queue] = Table(document.queues)
        self.providers: Table[str, Provider] = Table(document.providers)
        self.finished: Table[str, Tombstone] = Table(document.finished)
        self.disowned: Table[str, Disowned] = Table(document.disowned)
        self.counters = document.counters
        self.draining = document.draining
        self._troubles: list[Trouble] = []
        self._events: list[Event] = []

    @property
    def empty(self) -> bool:
        """Whether nothing happened in it yet: every change has an event that explains it."""
        return not self._events

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Whatever is raised in the block leaves the draft as it was before."""
        tables: tuple[Table[Any, Any], ...] = (
            *(self.runs, self.workers, self.pending, self.slots),
            *(self.queues, self.providers, self.finished, self.disowned),
        )
        changes = [dict(table.changes) for table in tables]
        rest = self.counters, self.draining, len(self._troubles), len(self._events)
        try:
            yield
        except BaseException:
            for table, kept in zip(tables, changes, strict=True):
                table.changes = kept
            self.counters, self.draining, troubles, events = rest
            del self._troubles[troubles:], self._events[events:]
            raise

    def slot(self, number: int) -> Slot:
        return self.slots.get(number) or Slot()

    def count(self, name: str) -> int:
        """Raise one counter by one and return it."""
        value: int = getattr(self.counters, name) + 1
        self.counters = structs.replace(self.counters, **{name: value})
        return value

    def event(
        self,
        subject: str,
        event: str,
        from_: str | None = None,
        to: str | None = None,
        *,
        reason: Reason | None = None,
        token: int | None = None,
        key: str | None = None,
        step: str | None = None,
        detail: str | None = None,
        action: Raw | UnsetType = UNSET,
    ) -> None:
        """Record one transition. Its revision and number are given by the commit."""
        self._events.append(
            Event(0, 0, self.now, self.command, subject, event, from_, to, reason, token, key, step, detail, action)
        )

    def trouble(self, reason: Reason, what: str, *, slot: int | None = None, key: str = "") -> None:
        """Note a trouble (the document keeps the last 20) and the event that says so."""
        self._troubles.append(Trouble(self.now, reason, what, slot, key))
        subject = "fleet" if slot is None else f"slot:{slot}"
        self.event(subject, "trouble", reason=reason, key=key or None, detail=what)

    def edit(self) -> Edit:
        """The edit so far. Every slot whose worker or pending action changed is marked as changed by this revision."""
        revision = self.document.revision + 1
        slots = dict(self.slots.changes)
        for number in (*self.workers.changes, *self.pending.changes):
            slots[number] = structs.replace(slots.get(number) or self.slot(number), changed=revision)
        return Edit(
            runs=dict(self.runs.changes),
            workers=dict(self.workers.changes),
            pending_actions=dict(self.pending.changes),
            slots=slots,
            queues=dict(self.queues.changes),
            providers=dict(self.providers.changes),
            finished=dict(self.finished.changes),
            disowned=dict(self.disowned.changes),
            troubles=tuple(self._troubles),
            counters=None if self.counters == self.document.counters else self.counters,
            draining=None if self.draining == self.document.draining else self.draining,
            events=tuple(self._events),
        )


def apply_edit(document: Document, edit: Edit) -> Document:
    """The next document: revision + 1, carrying the edit's events numbered from 1. *document* is left as it is."""
    revision = document.revision + 1
    sections: dict[str, Any] = {
        name: Records.of(getattr(document, name)).after(changes) for name, changes in edit.sections().items()
    }
    return structs.replace(
        document,
        revision=revision,
        counters=edit.counters or document.counters,
        draining=document.draining if edit.draining is None else edit.draining,
        events=tuple([structs.replace(event, revision=revision, n=n) for n, event in enumerate(edit.events, 1)]),
        troubles=(*document.troubles, *edit.troubles)[-MAX_TROUBLES:],
        **sections,
    )


def foreseen(document: Document, edit: Edit) -> Document:
    """*document* as *edit* would leave it, still at its own revision: to draft what shall follow in the same commit."""
    return structs.replace(apply_edit(document, edit), revision=document.revision, events=document.events)


def joined(first: Edit, second: Edit) -> Edit:
    """Both as one edit; *second* was drafted over what *first* leaves."""
    return Edit(
        runs={**first.runs, **second.runs},
        workers={**first.workers, **second.workers},
        pending_actions={**first.pending_actions, **second.pending_actions},
        slots={**first.slots, **second.slots},
        queues={**first.queues, **second.queues},
        providers={**first.providers, **second.providers},
        finished={**first.finished, **second.finished},
        disowned={**first.disowned, **second.disowned},
        troubles=first.troubles + second.troubles,
        counters=second.counters or first.counters,
        draining=first.draining if second.draining is None else second.draining,
        events=first.events + second.events,
    )
