"""The Store contract. Every "must" here is a case of the conformance suite.

Not promised: that a reader sees a commit made after its read began; any order among waiters for the lock; that a commit
whose caller was killed did not happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import Struct

from controller.model.edit import Edit
from controller.model.process import ProcessIdentity
from controller.model.records import Document, Event


class Snapshot(Struct, frozen=True):
    """One consistent document and what was noticed while reading it.

    `edited`: its digest does not match, so somebody else wrote these bytes; it may be read and not built upon.
    `legacy`: it is of an older schema and was migrated in memory only.
    `history_revision`: the last revision history knows, None when history is missing or empty.
    `digest`: that of the last line, or the one that the document carries ("" without one).
    `torn`: how many bytes stand behind the last whole line: not committed.
    `fork`: why the last line does not follow the one before it, None if it does: nothing can be changed.
    """

    document: Document
    edited: bool = False
    legacy: bool = False
    history_revision: int | None = None
    digest: str = ""
    torn: int = 0
    fork: str | None = None


class Leftover(Struct, frozen=True):
    """What a crash left and a holder can put right: a "torn_tail", a "temporary" file, a "stale_journal"; or
    what was kept of one before, "torn_kept".
    """

    kind: str
    path: str
    size: int


class Loaded:
    """A document loaded inside one hold: the fence. Made by `Hold.load` alone; it dies with its hold and its commit."""

    __slots__ = ("document",)

    def __init__(self, document: Document) -> None:
        self.document = document


class Scope(Struct, frozen=True):
    """What an apply may touch: its slot's worker and pending action, the run named here, and counters. Nothing else."""

    slot: int
    run: str | None


class Part(Struct, frozen=True):
    """An edit that shares its commit with others, and what it may touch."""

    edit: Edit
    scope: Scope


class Hold(Protocol):
    """One tenure of the document lock."""

    def load(self) -> Loaded:
        """The document as it stands, durable: what was read is synced unless this process made it durable itself.

        Raises DocumentFault (missing, corrupt, foreign), EditedOutside, HistoryAhead, JournalForked, LockLost,
        NotDurable. May be called again after a commit. A legacy document is migrated (backup first) before it is
        returned.
        """
        ...

    def sweep(self) -> tuple[Leftover, ...]:
        """Put right what a crash left and needs no judgement; what there was. A torn tail is set aside, kept, by the
        next commit.
        """
        ...

    def commit(self, loaded: Loaded, edit: Edit, *, scope: Scope | None = None, parts: Sequence[Part] = ()) -> Document:
        """Make *edit* of *loaded* durable and return the next document, which is not fenced: load again to commit
        again.

        Must check, in this order: LockLost, FenceBroken, RevisionMoved, ScopeExceeded (only with *scope*),
        InvariantBroken (only new violations); each leaves document and history as they were. StorageFailed: the old
        revision stands and no temporary file is left. DurabilityFailed: unknown; reload, and send nothing on the
        strength of it. An edit without events is refused (InvariantBroken): a change that history does not explain.

        *parts* come first, in the same commit, each drafted over what the one before leaves and checked for its own
        scope: all of them are committed with *edit*, which may then be empty, or none.
        """
        ...


class SlotHold(Protocol):
    """One slot's provider calls, exclusively, until closed or until this process dies."""

    def check(self) -> None:
        """Raises LockLost when the lock is no longer on the file that its path names: somebody removed that."""
        ...

    def register(self, identity: ProcessIdentity, deadline_at: int, key: str) -> None:
        """Record the provider process that is about to get its request. *deadline_at* is UTC ms."""
        ...

    def clear(self) -> None:
        """The provider process is gone."""
        ...


class SlotNote(Struct, frozen=True):
    """What a slot lock's file says. `provider` is the process of the last call that nobody has cleared.

    `deadline` is the same moment as `deadline_at`, in seconds on the monotonic clock of the boot in `provider`: it is
    what decides, since a wall clock that was set would end a call too early, or never.
    """

    controller: ProcessIdentity | None = None
    command: str = ""
    since: int | None = None
    provider: ProcessIdentity | None = None
    deadline_at: int | None = None
    deadline: float | None = None
    key: str = ""
    readable: bool = True
    where: str = ""
    """The lock file; `readable` False: something is in it that is no note, so nothing is known."""


class Store(Protocol):
    """Where the document lives between processes."""

    @property
    def where(self) -> str:
        """The state directory, as it is shown to people."""
        ...

    def read(self) -> Snapshot:
        """A consistent snapshot. Takes no lock, writes nothing, works on a read-only mount. Raises DocumentFault."""
        ...

    def hold(self, timeout: float) -> AbstractContextManager[Hold]:
        """Take the document lock, waiting up to *timeout* seconds.

        Raises LockReentered (this thread holds it, whatever spelling of the path), LockBusy (naming pid, command,
        since), LockUnusable (not contention: at once, with path and errno), NotOurs, Refusal (the document is a
        symbolic link), DocumentMissing (there is no state directory, or no document in it: nothing is made).
        """
        ...

    def hold_slot(self, slot: int) -> AbstractContextManager[SlotHold]:
        """Take a slot lock without waiting. Raises SlotBusy naming holder and age. Must not be inherited by children.

        Must exclude every other hold of the slot, another thread of this process included, and keep what the note says
        of a provider: only `clear` ends that.
        """
        ...

    def slot_note(self, slot: int) -> SlotNote:
        """What the slot lock's file says. Takes no lock."""
        ...

    def history(self, subject: str | None = None) -> tuple[Event, ...]:
        """Events, oldest first, of one subject or all. Raises DocumentCorrupt, with file and offset."""
        ...

    def history_fault(self) -> str | None:
        """What is wrong with history, from its first line to its last, in words; None: nothing. Takes no lock."""
        ...

    def leftovers(self) -> tuple[Leftover, ...]:
        """What `Hold.sweep` and the next commit would put right. Takes no lock, writes nothing."""
        ...

    def note_refusal(self, command: str, code: str, what: str, subject: str) -> None:
        """Best-effort note of a refused command in the bounded refusals file. Never raises."""
        ...

    def refusals(self, limit: int) -> tuple[dict[str, object], ...]:
        """The last refusals, newest last. Takes no lock; missing is empty."""
        ...
