"""The Store contract in memory, for simulations and property tests.

Not promised: durability; bytes that somebody could edit; anything between real processes. A `MemoryDisk` is the disk,
every `MemoryStore` over it one simulated process; `MemoryDisk.kill` is its death.

A disk's `fault` is called with the name of each point that a commit passes: "write" (before its line is there) and
"written" (after it, before it is synced). An OSError from it fails the commit as a disk would; any other exception
passes through and leaves what a process killed there would leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import Lock, get_ident

from msgspec import Struct, structs

from controller.clock import Clock
from controller.model.edit import Edit
from controller.model.errors import (
    DocumentMissing,
    DurabilityFailed,
    FenceBroken,
    LockBusy,
    LockLost,
    LockReentered,
    NotFound,
    RevisionMoved,
    SlotBusy,
    StorageFailed,
)
from controller.model.process import ProcessIdentity
from controller.model.records import MAX_SLOTS, Document, Event
from controller.store.edits import next_document
from controller.store.protocol import Hold, Leftover, Loaded, Part, Scope, SlotHold, SlotNote, Snapshot
from controller.store.refusals import KEPT

_POLL = 0.005


class _Owner(Struct, frozen=True):
    whoami: ProcessIdentity
    thread: int
    command: str
    since: int


class MemoryDisk:
    """What outlives a simulated process: the document, history, notes and refusals; and who holds which lock."""

    def __init__(self, document: Document | None) -> None:
        self.document = document
        self.events: list[Event] = [] if document is None else list(document.events)
        self.notes: dict[int, SlotNote] = {}
        self.refusals: list[dict[str, object]] = []
        self.holder: _Owner | None = None
        self.slots: dict[int, _Owner] = {}
        self.fault: Callable[[str], None] = lambda _point: None
        self.guard = Lock()

    def kill(self, whoami: ProcessIdentity) -> None:
        """What a kernel does when that process dies: its locks are free. Its notes stay."""
        with self.guard:
            if self.holder is not None and self.holder.whoami == whoami:
                self.holder = None
            self.slots = {slot: owner for slot, owner in self.slots.items() if owner.whoami != whoami}


class _Fenced(Loaded):
    __slots__ = ()


class MemoryStore:
    """One process's view of a `MemoryDisk`."""

    def __init__(self, disk: MemoryDisk, *, clock: Clock, whoami: ProcessIdentity, command: str) -> None:
        self.disk = disk
        self.clock = clock
        self.whoami = whoami
        self.command = command

    @property
    def where(self) -> str:
        return "memory"

    def read(self) -> Snapshot:
        known = self.disk.events[-1].revision if self.disk.events else None
        return Snapshot(self.current(), history_revision=known)

    def current(self) -> Document:
        if self.disk.document is None:
            raise DocumentMissing("there is no document", where=self.where, next="make one")
        return self.disk.document

    def hold(self, timeout: float) -> AbstractContextManager[Hold]:
        return self._tenure(timeout)

    @contextmanager
    def _tenure(self, timeout: float) -> Iterator[Hold]:
        self.current()
        owner = self._take(timeout)
        try:
            yield _MemoryHold(self, owner)
        finally:
            with self.disk.guard:
                if self.disk.holder is owner:
                    self.disk.holder = None

    def _take(self, timeout: float) -> _Owner:
        started = self.clock.monotonic()
        while True:
            with self.disk.guard:
                holder = self.disk.holder
                if holder is None:
                    self.disk.holder = self._owner()
                    return self.disk.holder
            if (holder.whoami, holder.thread) == (self.whoami, get_ident()):
                raise LockReentered("this thread already holds the document", where=self.where, next="use that hold")
            if self.clock.monotonic() - started >= timeout:
                who = f"pid {holder.whoami.pid} ({holder.command}) since {holder.since}"
                raise LockBusy(f"the document is held by {who}", where=self.where, next="run it again")
            self.clock.sleep(_POLL)

    def _owner(self) -> _Owner:
        return _Owner(self.whoami, get_ident(), self.command, self.clock.now_ms())

    @contextmanager
    def hold_slot(self, slot: int) -> Iterator[SlotHold]:
        if not 1 <= slot <= MAX_SLOTS:
            raise NotFound(f"there is no slot {slot}; slots are 1..{MAX_SLOTS}", where=self.where)
        with self.disk.guard:
            held = self.disk.slots.get(slot)
            if held is not None:
                age = max(self.clock.now_ms() - held.since, 0) / 1000
                who = f"pid {held.whoami.pid} ({held.command}), {age:.1f} s"
                raise SlotBusy(f"slot {slot} is held by {who}", where=self.where, next="run it again later")
            owner = self.disk.slots[slot] = self._owner()
        slot_hold = _MemorySlotHold(self.disk, slot, owner)
        slot_hold.change(controller=self.whoami, command=self.command, since=owner.since)
        try:
            yield slot_hold
        finally:
            with self.disk.guard:
                if self.disk.slots.get(slot) is owner:
                    note = self.disk.notes[slot]
                    self.disk.notes[slot] = structs.replace(note, controller=None, command="", since=None)
                    del self.disk.slots[slot]

    def slot_note(self, slot: int) -> SlotNote:
        return self.disk.notes.get(slot, SlotNote())

    def history(self, subject: str | None = None) -> tuple[Event, ...]:
        self.current()
        return tuple(event for event in self.disk.events if subject in (None, event.subject))

    def note_refusal(self, command: str, code: str, what: str, subject: str) -> None:
        note: dict[str, object] = {
            "at": self.clock.now_ms(),
            "command": command,
            "code": code,
            "what": what,
            "subject": subject,
        }
        self.disk.refusals = [*self.disk.refusals, note][-KEPT:]

    def history_fault(self) -> str | None:
        return None

    def leftovers(self) -> tuple[Leftover, ...]:
        return ()

    def refusals(self, limit: int) -> tuple[dict[str, object], ...]:
        return tuple(self.disk.refusals[-limit:]) if limit > 0 else ()


class _MemoryHold:
    def __init__(self, store: MemoryStore, owner: _Owner) -> None:
        self._store = store
        self._disk = store.disk
        self._owner = owner
        self._fences: list[_Fenced] = []

    def load(self) -> Loaded:
        self._check_lock()
        document = self._store.current()
        fenced = _Fenced(document)
        self._fences.append(fenced)
        return fenced

    def commit(self, loaded: Loaded, edit: Edit, *, scope: Scope | None = None, parts: Sequence[Part] = ()) -> Document:
        store, disk = self._store, self._disk
        self._check_lock()
        if not any(loaded is known for known in self._fences):
            raise FenceBroken(
                "the document to change was not loaded inside this hold",
                where=store.where,
                next="nothing was written; load inside the hold, and again after each commit",
            )
        self._check_unmoved(loaded.document)
        document = next_document(loaded.document, edit, scope, store.where, parts=parts).document
        self._fences.clear()
        try:
            disk.fault("write")
        except OSError as error:
            raise StorageFailed(f"could not write: {error}", where=store.where, next="run it again") from error
        disk.document = document
        disk.events.extend(document.events)
        try:
            disk.fault("written")
        except OSError as error:
            disk.document = loaded.document
            del disk.events[-len(document.events) :]
            raise DurabilityFailed(f"could not sync: {error}", where=store.where, next="reload") from error
        return document

    def sweep(self) -> tuple[Leftover, ...]:
        return ()

    def _check_lock(self) -> None:
        if self._disk.holder is not self._owner:
            raise LockLost("the document lock is no longer ours", where=self._store.where, next="run it again")

    def _check_unmoved(self, loaded: Document) -> None:
        found = self._disk.document
        if found is not loaded:
            raise RevisionMoved(loaded.revision, None if found is None else found.revision, where=self._store.where)


class _MemorySlotHold:
    def __init__(self, disk: MemoryDisk, slot: int, owner: _Owner) -> None:
        self._disk = disk
        self._slot = slot
        self._owner = owner

    def check(self) -> None:
        if self._disk.slots.get(self._slot) is not self._owner:
            raise LockLost("this slot's hold is over", where="memory", next="nothing was sent")

    def register(self, identity: ProcessIdentity, deadline_at: int, key: str) -> None:
        self.change(provider=identity, deadline_at=deadline_at, key=key)

    def clear(self) -> None:
        self.change(provider=None, deadline_at=None, deadline=None, key="", readable=True)

    def change(self, **fields: object) -> None:
        self.check()
        note = self._disk.notes.get(self._slot, SlotNote())
        self._disk.notes[self._slot] = structs.replace(note, **fields)
