"""The document in a directory: its lock, the load fence, compare-and-swap and the durable write. The one page to audit.

Not promised: fairness among waiters; safety on network file systems; that a commit whose caller was killed did not
happen.

The commit point is the rename in `_FileHold._replaced`. Before it the old revision stands; after it the new one is
visible, and it counts as done only once the directory is synced. Visible is not durable: see `_FileHold.load`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import Final

from controller.clock import Clock
from controller.model.edit import Edit
from controller.model.errors import (
    DocumentFault,
    DocumentMissing,
    DurabilityFailed,
    EditedOutside,
    FenceBroken,
    HistoryBehind,
    LockLost,
    LockReentered,
    Refusal,
    RevisionMoved,
)
from controller.model.process import ProcessIdentity
from controller.model.records import Document, Event
from controller.store import codec, disk, refusals
from controller.store.history import History
from controller.store.locks import DocumentLock, SlotLocks, unusable
from controller.store.protocol import Hold, Loaded, Part, Scope, SlotHold, SlotNote, Snapshot

DOCUMENT: Final = "controller.json"
LOCK: Final = "controller.lock"
HISTORY: Final = "history.jsonl"
TEMPORARY: Final = f".{DOCUMENT}.tmp-"

SIGNS: Final = {HISTORY, "workers", "slots", "logs"}
"""What lies beside a document and nowhere else."""

_held: dict[tuple[int, int], tuple[int, int]] = {}
"""State directories held by this process, by inode so that no spelling of a path hides one, with (pid, thread)."""
_suspect: set[tuple[int, int]] = set()
"""State directories where syncing failed in this process: what is visible there is written anew before it is built
upon.
"""


class Image:
    """One reading of the document file. Its descriptor stays open, so its inode number cannot come back as another
    file.

    `settled`: its change time was old enough when it was read that equal identity proves equal content.
    """

    __slots__ = ("data", "decoded", "handle", "identity", "settled")

    def __init__(
        self, handle: disk.Handle, identity: disk.Identity, data: bytes, decoded: codec.Decoded, *, settled: bool
    ) -> None:
        self.handle = handle
        self.identity = identity
        self.data = data
        self.decoded = decoded
        self.settled = settled


class _Fenced(Loaded):
    """What `load` hands out. Only the hold that made it accepts it."""

    __slots__ = ("image",)

    def __init__(self, image: Image) -> None:
        super().__init__(image.decoded.document)
        self.image = image


class FileStore:
    """The Store over one state directory (made by `store.create.initialise`).

    *whoami* and *command* go into lock notes. Several threads may use one object; a hold belongs to who took it.
    """

    def __init__(self, directory: Path, *, clock: Clock, whoami: ProcessIdentity, command: str) -> None:
        self.directory = directory
        self.clock = clock
        self.whoami = whoami
        self.command = command
        self.path = directory / DOCUMENT
        self.past = History(directory / HISTORY)
        self.latest: Image | None = None
        self.durable: disk.Identity | None = None
        self.encoder = codec.Encoder()
        self.lock_path = directory / LOCK
        self._lock = DocumentLock(self.lock_path, clock=clock, whoami=whoami, command=command)
        self._slots = SlotLocks(directory, clock=clock, whoami=whoami, command=command)

    @property
    def where(self) -> str:
        return str(self.directory)

    def read(self) -> Snapshot:
        # History first: whatever is committed between the two reads cannot make it look ahead.
        history_revision = self.past.revision()
        image = self.image(follow=True, now_ns=self.clock.now_ms() * 1_000_000)
        found = image.decoded
        return Snapshot(found.document, found.edited, found.legacy, history_revision, found.digest)

    def image(self, *, follow: bool, now_ns: int) -> Image:
        """The document file as it is now, decoded again only if it changed. *now_ns* tells how old a change time is."""
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
            handle = disk.Handle(os.open(self.path, flags))
            status = os.fstat(handle.fd)
            if not stat.S_ISREG(status.st_mode):
                raise codec.corrupt("it is not a regular file", str(self.path))
            identity = disk.identity(status)
            known = self.latest
            if known is not None and known.settled and known.identity == identity:
                return known
            data = disk.read_all(handle.fd)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise missing(self.directory) from error
        except OSError as error:
            raise disk.denied(error, self.path) or disk.unreadable(self.path, error) from error
        if known is not None and known.data == data:
            data, decoded = known.data, known.decoded
        else:
            decoded = codec.decode(data, str(self.path))
        settled = identity.ctime_ns <= now_ns - disk.SETTLED_NS
        self.latest = Image(handle, identity, data, decoded, settled=settled)
        return self.latest

    def waited(self) -> tuple[float, str] | None:
        """While the lock is waited for: since when on the monotonic clock, and who holds it."""
        return self._lock.waited

    def hold(self, timeout: float) -> AbstractContextManager[Hold]:
        return self.tenure(timeout)

    @contextmanager
    def tenure(self, timeout: float, *, founding: bool = False) -> Iterator[_FileHold]:
        """`hold`, with more to it for the modules of this package. *founding*: the document need not be there yet."""
        directory = self._usable(founding=founding)
        registered = (os.getpid(), get_ident())
        if _held.get(directory) == registered:
            raise LockReentered(
                "this thread already holds the document",
                where=self.where,
                next="use the hold that is open; this is a bug of the program that asked",
            )
        lock = self._lock.acquire(timeout, still=lambda: self._usable(founding=founding))
        _held[directory] = registered
        hold = _FileHold(self, lock, directory)
        try:
            yield hold
        finally:
            hold.open = False
            if _held.get(directory) == registered:
                del _held[directory]
            lock.close()

    def _usable(self, *, founding: bool) -> tuple[int, int]:
        """Everything that can be refused before a lock file is made. Returns what the directory is."""
        try:
            status = os.stat(self.directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise missing(self.directory) from error
        except OSError as error:
            raise disk.denied(error, self.directory) or unusable(self.directory, error) from error
        disk.refuse_foreign_root(self.directory, status.st_uid)
        if not founding:
            try:
                document = os.lstat(self.path)
            except FileNotFoundError as error:
                raise missing(self.directory) from error
            except OSError as error:
                raise disk.denied(error, self.path) or unusable(self.path, error) from error
            if stat.S_ISLNK(document.st_mode):
                # Following it would put temporary file and rename in a directory that this lock does not guard.
                raise Refusal(
                    f"{self.path} is a symbolic link; a commit would replace the link, not the file",
                    where=str(self.path),
                    next="put the file itself there, or name its own directory with --state-dir",
                )
        return status.st_dev, status.st_ino

    def hold_slot(self, slot: int) -> AbstractContextManager[SlotHold]:
        self._usable(founding=False)
        return self._slots.hold(slot)

    def slot_note(self, slot: int) -> SlotNote:
        return self._slots.note(slot)

    def history(self, subject: str | None = None) -> tuple[Event, ...]:
        return self.past.events(self.read().document, subject)

    def history_fault(self) -> str | None:
        return self.past.fault(self.read().document)

    def note_refusal(self, command: str, code: str, what: str, subject: str) -> None:
        refusals.note(self.directory, self.clock.now_ms(), command, code, what, subject)

    def refusals(self, limit: int) -> tuple[dict[str, object], ...]:
        return refusals.last(self.directory, limit)


class _FileHold:
    """One tenure of the document lock. Ends with its `with` block; a copy of it in a forked child holds nothing."""

    def __init__(self, store: FileStore, lock: disk.Handle, directory: tuple[int, int]) -> None:
        self.store = store
        self.open = True
        self._lock = lock
        self._pid = os.getpid()
        self._directory = directory
        self._fences: list[_Fenced] = []
        # The lock file's own time, just written: the kernel's clock, the one that stamps the document too.
        self._now_ns = os.fstat(lock.fd).st_ctime_ns

    def load(self) -> Loaded:
        self.check_lock()
        image = self.store.image(follow=False, now_ns=self._now_ns)
        if image.decoded.edited:
            raise EditedOutside(
                "the document was edited by something else than controller",
                where=str(self.store.path),
                next="`controller fsck` judges it, `controller state accept` takes it over",
            )
        image = self.settle(image)
        if image.decoded.legacy:
            image = self.settle(self._migrated(image))
        fenced = _Fenced(image)
        self._fences.append(fenced)
        return fenced

    def settle(self, image: Image) -> Image:
        """Make what was read durable and history complete, unless this process knows that they are."""
        ours = self.store.durable == image.identity
        if self._directory in _suspect:
            # A failed sync is not repeated: the pages may count as clean and be lost. The same bytes are written anew.
            image = self._replaced(image, image.data, image.decoded)
        elif not ours:
            self.remove_stale()
            try:
                os.fsync(image.handle.fd)
                disk.sync_directory(self.store.directory)
            except OSError as error:
                raise self._uncertain(error) from error
        self.store.past.catch_up(image.decoded.document, synced=ours)
        self.store.durable = image.identity
        return image

    def _migrated(self, image: Image) -> Image:
        """Commit the migration that reading did in memory; the old bytes are kept first, durably, before any change."""
        from controller.store import migrations

        store = self.store
        now = store.clock.now_ms()
        old = image.decoded.document
        migrations.back_up(store.path, image.data, revision=old.revision, now=now)
        self.put(image, migrations.committed(old, now=now, command=store.command))
        return store.image(follow=False, now_ns=self._now_ns)

    def remove_stale(self) -> None:
        """Temporary files of the document and its companions: whoever made them held this lock, and died."""
        with suppress(OSError):
            for name in os.listdir(self.store.directory):
                if name.startswith(".controller.") and ".tmp-" in name:
                    with suppress(OSError):
                        os.unlink(self.store.directory / name)

    def _uncertain(self, error: OSError) -> DurabilityFailed:
        _suspect.add(self._directory)
        return DurabilityFailed(
            f"could not sync {self.store.directory}: {disk.says(error)}; the last change may not survive a power cut",
            where=str(self.store.path),
            next="mend the disk, then run it again: it looks at what is there and writes it anew",
        )

    def commit(self, loaded: Loaded, edit: Edit, *, scope: Scope | None = None, parts: Sequence[Part] = ()) -> Document:
        from controller.store.edits import next_document

        self.check_lock()
        if not isinstance(loaded, _Fenced) or not any(loaded is known for known in self._fences):
            raise FenceBroken(
                "the document to change was not loaded inside this hold",
                where=str(self.store.path),
                next="nothing was written; load inside the hold, and again after each commit",
            )
        self.check_unmoved(loaded.image)
        document = next_document(loaded.document, edit, scope, str(self.store.path), parts=parts)
        return self.put(loaded.image, document)

    def put(self, expected: Image | None, document: Document) -> Document:
        """Replace *expected* by *document*, durably, and append its events to history."""
        data = self.store.encoder.encode(document)
        digest = data[-67:-3].decode()
        image = self._replaced(expected, data, codec.Decoded(document, edited=False, legacy=False, digest=digest))
        try:
            self.store.past.append(document.events)
        except HistoryBehind:
            return document  # It stands. The next load appends them, or says that it cannot.
        self.store.durable = image.identity
        return document

    def check_lock(self) -> None:
        """The lock is ours, and on the file that its path names. Raises LockLost."""
        path = self.store.lock_path
        why = "the hold is over" if not self.open else "this is a forked copy" if self._pid != os.getpid() else ""
        try:
            if not why and not disk.same_file(path, self._lock.fd):
                why = "its file was removed or replaced"
        except OSError as error:
            why = f"its file cannot be looked at: {disk.says(error)}"
        if why:
            raise LockLost(
                f"the document lock is no longer ours: {why}",
                where=str(path),
                next="nothing was written; run it again, and leave the lock file alone",
            )

    def check_unmoved(self, expected: Image | None) -> None:
        """Compare-and-swap: what is on disk is *expected*, in revision and content. Raises RevisionMoved."""
        loaded = 0 if expected is None else expected.decoded.document.revision
        try:
            handle = disk.Handle(os.open(self.store.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
            identity = disk.identity(os.fstat(handle.fd))
            if expected is not None and expected.settled and expected.identity == identity:
                return
            data = disk.read_all(handle.fd)
        except FileNotFoundError:
            if expected is None:
                return
            raise RevisionMoved(loaded, None, where=str(self.store.path)) from None
        except OSError as error:
            raise disk.storage_failed(self.store.path, error) from error
        if expected is None or data != expected.data:
            found = None
            with suppress(DocumentFault):
                found = codec.decode(data, str(self.store.path)).document.revision
            raise RevisionMoved(loaded, found, where=str(self.store.path))

    def _replaced(self, expected: Image | None, data: bytes, decoded: codec.Decoded) -> Image:
        """The durable write: temporary file, sync, both checks again, rename, sync of the directory."""
        path = self.store.path
        temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{get_ident()}")
        self._fences.clear()
        try:
            like = None if expected is None else os.fstat(expected.handle.fd)
            handle = disk.create(temporary, like=like)
        except OSError as error:
            raise disk.denied(error, path.parent) or disk.storage_failed(path, error) from error
        try:
            disk.write_all(handle.fd, data)
            os.fsync(handle.fd)
            self.check_lock()
            self.check_unmoved(expected)
            os.rename(temporary, path)
        except BaseException as error:
            with suppress(OSError):
                os.unlink(temporary)
            if not isinstance(error, OSError):
                raise
            if self._happened(handle):
                raise self._uncertain(error) from error
            raise disk.storage_failed(path, error) from error
        self.store.durable = None
        try:
            disk.sync_directory(self.store.directory)
            identity = disk.identity(os.fstat(handle.fd))
        except OSError as error:
            raise self._uncertain(error) from error
        _suspect.discard(self._directory)
        self.store.latest = Image(handle, identity, data, decoded, settled=False)
        return self.store.latest

    def _happened(self, handle: disk.Handle) -> bool:
        """Whether a rename that reported an error took place all the same; also when nobody can tell."""
        try:
            return disk.same_file(self.store.path, handle.fd)
        except OSError:
            return True


def missing(directory: Path) -> DocumentMissing:
    """Missing is not new: only where nothing is left of an earlier life is a new document what comes next."""
    there = directory.is_dir()
    try:
        names = set(os.listdir(directory)) if there else set()
    except OSError:
        names = {""}
    if names & SIGNS:
        todo = f"put {DOCUMENT} back: what lies beside it belongs to it; or look at --state-dir"
    elif names:
        todo = f"look at --state-dir, put {DOCUMENT} back, or `controller init` a new fleet"
    else:
        todo = "`controller init` makes a new fleet there; if there should be one, look at --state-dir"
    return DocumentMissing(
        f"there is no document: {directory / DOCUMENT if there else directory} does not exist",
        where=str(directory),
        next=todo,
    )
