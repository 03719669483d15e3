"""The document in a directory: its lock, the load fence, compare-and-swap and the commit. The one page to audit.

Not promised: fairness among waiters; safety on network file systems; that a commit whose caller was killed did not
happen.

The commit point is the one line that `FileHold._append` writes to the journal. Before it the old revision stands; with
it the new one is visible, and it counts as done only once it is synced. Visible is not durable: see `FileHold.load`. A
whole document (init, a migration, an accepted edit, a restore) is committed by the rename in `store.checkpoint`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Final

from msgspec import structs

from controller.clock import Clock
from controller.model.edit import Edit
from controller.model.errors import (
    ControllerError,
    DocumentFault,
    DurabilityFailed,
    EditedOutside,
    FenceBroken,
    HistoryAhead,
    JournalForked,
    LockLost,
    LockReentered,
    RevisionMoved,
)
from controller.model.keep import Keep
from controller.model.process import ProcessIdentity
from controller.model.records import Document, Event
from controller.store import checkpoint, disk, journal
from controller.store.directory import LOCK, StateDirectory
from controller.store.locks import DocumentLock, LockFile
from controller.store.protocol import Hold, Leftover, Loaded, Part, Scope
from controller.store.reading import JournalFile, Reading

if TYPE_CHECKING:
    from controller.store.edits import Next

_AHEAD: Final = 1 << 20
"""How much space is taken for a journal at once, from the second line on that a process appends."""

_held: dict[tuple[int, int], tuple[int, int]] = {}
"""State directories held by this process, by inode so that no spelling of a path hides one, with (pid, thread)."""
_suspect: set[tuple[int, int]] = set()
"""State directories where syncing failed in this process: what is visible there is written anew before it is built
upon. Other processes are told by the lock file.
"""


@cache
def _next_document() -> Callable[..., Next]:
    """Once: readers do not load what checks an edit, and asking for a module again costs as much as a small check."""
    from controller.store.edits import next_document

    return next_document


class _Fenced(Loaded):
    """What `load` hands out. Only the hold that made it accepts it."""

    __slots__ = ("reading",)

    def __init__(self, reading: Reading) -> None:
        super().__init__(reading.document)
        self.reading = reading


class FileStore(StateDirectory):
    """The Store over one state directory (made by `store.create.initialise`).

    *whoami* and *command* go into lock notes, *keep* is asked how much history to leave, when there are many files of
    it. Several threads may use one object; a hold belongs to who took it. Whoever committed should `close` it, so that
    at rest the document is current.
    """

    def __init__(
        self, directory: Path, *, clock: Clock, whoami: ProcessIdentity, command: str, keep: Callable[[], Keep] = Keep
    ) -> None:
        super().__init__(directory, clock=clock, whoami=whoami, command=command)
        self.keep = keep
        self.durable: Reading | None = None
        """What this process knows to be durable, line by line."""
        self.lock_path = directory / LOCK
        self._unfolded = False
        self.lock = DocumentLock(self.lock_path, clock=clock, whoami=whoami, command=command)

    def waited(self) -> tuple[float, str] | None:
        """While the lock is waited for: since when on the monotonic clock, and who holds it."""
        return self.lock.waited

    def hold(self, timeout: float) -> AbstractContextManager[Hold]:
        return self.tenure(timeout)

    @contextmanager
    def tenure(self, timeout: float, *, founding: bool = False) -> Iterator[FileHold]:
        """`hold`, with more to it for the modules of this package. *founding*: the document need not be there yet."""
        directory = self.usable(founding=founding)
        registered = (os.getpid(), get_ident())
        if _held.get(directory) == registered:
            raise LockReentered(
                "this thread already holds the document",
                where=self.where,
                next="use the hold that is open; this is a bug of the program that asked",
            )
        lock = self.lock.acquire(timeout, still=lambda: self.usable(founding=founding), meanwhile=self._read_along)
        _held[directory] = registered
        hold = FileHold(self, lock, directory)
        try:
            yield hold
        finally:
            hold.open = False
            self._unfolded |= hold.committed
            if _held.get(directory) == registered:
                del _held[directory]
            lock.handle.close()
        latest = self.latest  # once: another thread may forget it meanwhile
        if hold.committed and latest is not None and checkpoint.outgrown(latest):
            self.fold()

    def _read_along(self) -> None:
        """While others commit: what was read before the lock is had need not be read while they wait for it.

        The hold looks again at all that counts; so nothing that goes wrong here is of interest.
        """
        with suppress(ControllerError, OSError):
            self.current(follow=False, hasty=True)

    def fold(self) -> bool:
        """Write the document anew and begin the next journal, if there is anything to fold in and nobody is at work.

        Never waits for the lock and never raises what belongs to this program: a fold that fails changes nothing that
        anybody was told.
        """
        try:
            with self.tenure(0) as hold:
                return hold.fold()
        except (ControllerError, OSError):
            return False

    def close(self) -> None:
        """The end of a process that goes well: fold what it committed, while that is cheap."""
        latest = self.latest
        if self._unfolded and latest is not None and checkpoint.is_small(latest):
            self._unfolded = False
            self.fold()


class FileHold:
    """One tenure of the document lock. Ends with its `with` block; a copy of it in a forked child holds nothing."""

    def __init__(self, store: FileStore, lock: LockFile, directory: tuple[int, int]) -> None:
        self.store = store
        self.open = True
        self.committed = False
        self._lock = lock
        self._pid = os.getpid()
        self._directory = directory
        self._fences: list[_Fenced] = []

    def load(self) -> Loaded:
        self.check_lock()
        reading = self.reading()
        self._judge(reading)
        reading = self._settled(reading)
        if reading.legacy:
            reading = self._settled(self._migrated(reading))
        fenced = _Fenced(reading)
        self._fences.append(fenced)
        return fenced

    def reading(self) -> Reading:
        """What stands there, unjudged. Raises DocumentFault."""
        now_ns = partial(self.store.lock.stamped, self._lock)
        return self.store.current(follow=False, now_ns=now_ns, writable=True)

    def _judge(self, reading: Reading) -> None:
        where = str(self.store.path)
        if reading.edited:
            raise EditedOutside(
                "the document was edited by something else than controller",
                where=where,
                next="`controller fsck` judges it, `controller state accept` takes it over",
            )
        if reading.ahead is not None:
            raise HistoryAhead(
                f"history knows revision {reading.ahead}, the document is of revision {reading.revision}: an older"
                " copy of the document was put back",
                where=where,
                next="put the newer one back, or `controller state restore` goes on from this one",
            )
        if reading.fork is not None:
            raise JournalForked(
                f"the last line of the journal {reading.fork}: something else than controller wrote it",
                where=f"{self.store.directory / (reading.file.name if reading.file else '')}, offset {reading.end}",
                next="`controller state restore` goes on from the line before it",
            )

    def _settled(self, reading: Reading) -> Reading:
        """Make what was read durable, unless this process knows that it is."""
        known = self.store.durable
        if self._directory in _suspect or self.store.lock.is_doubted(self._lock):
            if reading.legacy:
                return reading  # its migration writes all of it anew
            # A failed sync is not repeated: the pages may count as clean and be lost. All of it is written anew.
            self._renew(reading)
            return checkpoint.write(self, reading, reading.document)
        try:
            if known is None or known.checkpoint.identity != reading.checkpoint.identity:
                checkpoint.sweep(self.store.directory, reading)
                os.fsync(reading.checkpoint.handle.fd)
                if reading.file is not None:
                    self._again(reading.file, reading)
                    os.fsync(reading.file.handle.fd)
                disk.sync_directory(self.store.directory)
            elif reading.file is not None and known.end != reading.end:
                self._again(reading.file, reading)
                os.fdatasync(reading.file.handle.fd)
        except OSError as error:
            raise self.uncertain(error) from error
        self.store.durable = reading
        return reading

    @staticmethod
    def _again(file: JournalFile, reading: Reading) -> None:
        """Write the last line once more: who appended it may have seen a sync of it fail, and could tell nobody.

        Those before it were made durable by whoever appended behind them.
        """
        disk.rewrite(file.handle.fd, reading.begin, reading.end)

    def _renew(self, reading: Reading) -> None:
        """The journal that is to be closed, written once more; and what was undone behind it cannot come back."""
        file = reading.file
        if file is None:
            return
        try:
            disk.rewrite(file.handle.fd, 0, reading.end)
            if not reading.torn:
                os.ftruncate(file.handle.fd, reading.end)
            os.fsync(file.handle.fd)
        except OSError as error:
            raise self.uncertain(error) from error

    def _migrated(self, reading: Reading) -> Reading:
        """Commit the migration that reading did in memory; the old bytes are kept first, durably, before any change."""
        from controller.store import migrations

        store = self.store
        now = store.clock.now_ms()
        decoded = reading.checkpoint.decoded
        migrations.back_up(store.path, reading.checkpoint.data, decoded, now=now)
        before = migrations.lacking(decoded.document, store.past.events())
        self.replace(reading, migrations.committed(decoded, now=now, command=store.command), before=before)
        return self.reading()

    def commit(self, loaded: Loaded, edit: Edit, *, scope: Scope | None = None, parts: Sequence[Part] = ()) -> Document:
        self.check_lock()
        if not isinstance(loaded, _Fenced) or loaded not in self._fences:
            raise FenceBroken(
                "the document to change was not loaded inside this hold",
                where=str(self.store.path),
                next="nothing was written; load inside the hold, and again after each commit",
            )
        reading = loaded.reading
        self.check_unmoved(reading)
        if reading.torn and (edit.events or parts):
            edit = structs.replace(edit, events=(*edit.events, self._torn(reading)))
        made = _next_document()(reading.document, edit, scope, str(self.store.path), parts=parts)
        self._fences.clear()
        self._append(reading, made.document, made.body)
        return made.document

    def _append(self, reading: Reading, document: Document, body: bytes) -> None:
        """The commit: one line behind the last one, synced."""
        file = reading.file
        if file is None:
            raise FenceBroken("a document without a journal was loaded", where=str(self.store.path))
        path = file.path
        line, digest = journal.commit_line(body, reading.digest)
        end = reading.end + len(line)
        try:
            if reading.torn:
                checkpoint.set_aside(self.store.directory, reading)
            self._take(file, end)
        except OSError as error:
            raise disk.storage_failed(path, error) from error
        try:
            disk.write_at(file.handle.fd, line, reading.end)
        except OSError as error:
            if not self._undo(file, reading.end):
                self.uncertain(error)
            raise disk.storage_failed(path, error) from error
        self.committed = True
        try:
            os.fdatasync(file.handle.fd)
        except OSError as error:
            self._undo(file, reading.end)
            raise self.uncertain(error) from error
        file.appended += 1
        self.store.latest = self.store.durable = reading.grown(document, end=end, digest=digest)

    @staticmethod
    def _take(file: JournalFile, end: int) -> None:
        """Take space ahead, so that a line need not change the size of its file, which would be synced as well."""
        if end > file.allocated and file.appended:
            with suppress(OSError):  # the line itself may still fit
                os.posix_fallocate(file.handle.fd, file.allocated, end + _AHEAD - file.allocated)
                file.allocated = end + _AHEAD

    @staticmethod
    def _undo(file: JournalFile, end: int) -> bool:
        """Cut off what stands behind *end*, durably: it must not come back into a closed journal. False: it may."""
        try:
            os.ftruncate(file.handle.fd, end)
            os.fsync(file.handle.fd)
        except OSError:
            return False
        file.allocated = end
        return True

    def _torn(self, reading: Reading) -> Event:
        name = checkpoint.torn_name(self.store.directory, reading)
        now, command = self.store.clock.now_ms(), self.store.command
        of = "a commit that never was" if reading.fork is None else "a line that something else wrote"
        what = f"{len(reading.torn)} bytes of {of} are kept in {name}"
        return Event(0, 0, now, command, "fleet", "torn_tail_kept", detail=what)

    def replace(self, expected: Reading | None, document: Document, *, before: tuple[Event, ...] = ()) -> Document:
        """Commit a whole document in the place of *expected* (None: of none). Its revision and its events, which say
        why, are the caller's; *before* are events that history lacks. Raises LockLost, RevisionMoved, StorageFailed,
        DurabilityFailed.
        """
        self._fences.clear()
        if expected is not None and expected.torn:
            torn = structs.replace(self._torn(expected), revision=document.revision, n=len(document.events) + 1)
            document = structs.replace(document, events=(*document.events, torn))
        checkpoint.write(self, expected, document, events=(*before, *document.events))
        self.committed = True
        self.store.latest = None
        return document

    def fold(self) -> bool:
        """See `FileStore.fold`. False: there was nothing to fold in, or nothing that may be built upon."""
        self.check_lock()
        reading = self.reading()
        if reading.legacy or reading.edited or reading.ahead is not None or reading.fork is not None or reading.torn:
            return False
        reading = self._settled(reading)
        if reading.revision == reading.checkpoint.decoded.document.revision:
            return False
        folded = checkpoint.write(self, reading, reading.document)
        with suppress(OSError, ControllerError):  # it is tidied by the next fold
            checkpoint.tidy(self.store, reading, folded)
        return True

    def sweep(self) -> tuple[Leftover, ...]:
        """Put right what can be without knowing anything: what it was. Raises StorageFailed."""
        self.check_lock()
        return checkpoint.sweep(self.store.directory, self.reading())

    def uncertain(self, error: OSError) -> DurabilityFailed:
        """A sync failed: nothing here is believed before it was written anew."""
        _suspect.add(self._directory)
        self.store.lock.doubt(self._lock, True)
        self.store.latest = self.store.durable = None
        return DurabilityFailed(
            f"could not sync {self.store.directory}: {disk.says(error)}; the last change may not survive a power cut",
            where=str(self.store.path),
            next="mend the disk, then run it again: it looks at what is there and writes it anew",
        )

    def trusted(self) -> None:
        """Everything was written anew and synced."""
        if self._directory in _suspect or self.store.lock.is_doubted(self._lock):
            _suspect.discard(self._directory)
            self.store.lock.doubt(self._lock, False)

    def check_lock(self) -> None:
        """The lock is ours, and on the file that its path names. Raises LockLost."""
        path = self.store.lock_path
        why = "the hold is over" if not self.open else "this is a forked copy" if self._pid != os.getpid() else ""
        try:
            if not why and not disk.leads_to(path, self._lock.inode):
                why = "its file was removed or replaced"
        except OSError as error:
            why = f"its file cannot be looked at: {disk.says(error)}"
        if why:
            raise LockLost(
                f"the document lock is no longer ours: {why}",
                where=str(path),
                next="nothing was written; run it again, and leave the lock file alone",
            )

    def check_unmoved(self, expected: Reading | None) -> None:
        """Compare-and-swap: checkpoint and journal are as they were loaded, to the byte. Raises RevisionMoved.

        Of the journal the seal of its last line is read, and what is behind it, but never its size or times: after that
        a commit would have to write the inode as well.
        """
        loaded = 0 if expected is None else expected.revision
        path = self.store.path
        try:
            if expected is None:
                found = os.path.lexists(path)
                moved = found
            else:
                moved = not self._is_checkpoint(expected) or not self._is_tail(expected)
        except OSError as error:
            raise disk.storage_failed(path, error) from error
        if moved:
            now = None
            with suppress(DocumentFault):
                now = self.reading().document.revision
            raise RevisionMoved(loaded, now, where=str(path))

    def _is_checkpoint(self, expected: Reading) -> bool:
        known = expected.checkpoint
        try:
            if known.settled and disk.identity(os.lstat(self.store.path)) == known.identity:
                return True
            handle = disk.Handle(os.open(self.store.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
        except FileNotFoundError:
            return False
        return disk.read_all(handle.fd) == known.data

    @staticmethod
    def _is_tail(expected: Reading) -> bool:
        file = expected.file
        if file is None:
            return True
        if not file.in_place:
            return False
        seal = expected.seal
        found = os.pread(file.handle.fd, len(seal) + max(len(expected.torn), 1), expected.end - len(seal))
        behind = found[len(seal) :]
        return found.startswith(seal) and (behind == expected.torn if expected.torn else behind in (b"", b"\0"))
