"""Locks: the document's, which is waited for, and the slots', which never are. So no two are waited for in a circle.

Not promised: order or fairness among waiters; anything on a file system without flock.

Both are kernel locks on descriptors of our own: they die with their process, whatever kills it, and nothing inherits
them. A lock file is never the data file, never truncated and never removed. Its first line is a note about the holder,
for people; what follows that line may be the rest of a longer, older note. One byte far behind it is word of a sync
that failed, for whoever holds the document next.

The note of a slot lock also names the provider process that got the last request. That part outlives the holder: taking
the lock keeps it, and only `clear` ends it, so whoever takes the lock next can find a provider that lives on.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, structs

from controller.clock import Clock
from controller.model.errors import LockBusy, LockLost, LockUnusable, NotFound, SlotBusy
from controller.model.process import ProcessIdentity
from controller.model.records import MAX_SLOTS
from controller.store import disk
from controller.store.protocol import SlotHold, SlotNote

SLOTS: Final = "slots"
_LONGEST_NOTE: Final = 4000
_DOUBT_AT: Final = 4095
_DOUBT: Final = b"!"

# Measured with 8 and 24 processes. Later polls that come 20 times as often gain nothing with 8, and with 24 take the
# processor away from whoever holds the lock: 5 commits a second instead of 180.
_POLL: Final = 0.005
_POLL_LATE: Final = 0.001
_LATE: Final = 0.050
_LOOK: Final = 0.025
_SHOWN_AFTER: Final = 1.0
_OFTEN: Final = 32
"""After so many notes a process counts as one that takes the lock again and again."""


class _Holder(Struct, frozen=True):
    """What the holder of the document writes into the lock file about itself."""

    pid: int
    command: str
    since: int


_HOLDER = msgspec.json.Decoder(_Holder)
_NOTE = msgspec.json.Decoder(SlotNote)


@cache
def _locking() -> Callable[..., bool]:
    """Once: finding a name in a module again costs as much as the lock itself. Readers do not load the library."""
    from filelock import lock_descriptor

    return lock_descriptor


class LockFile:
    """A lock file, open: `inode` is what it is, whatever its path names by now. Without the handle it is unlocked.

    `signed`: its note was written since.
    """

    __slots__ = ("handle", "inode", "signed")

    def __init__(self, handle: disk.Handle, inode: tuple[int, int]) -> None:
        self.handle = handle
        self.inode = inode
        self.signed = False

    @property
    def fd(self) -> int:
        return self.handle.fd


class DocumentLock:
    """The lock of one document, which a process takes again and again."""

    def __init__(self, path: Path, *, clock: Clock, whoami: ProcessIdentity, command: str) -> None:
        self._path = path
        self._clock = clock
        self._whoami = whoami
        self._command = command
        self.waited: tuple[float, str] | None = None
        """While it is waited for: since when on the monotonic clock, and who holds it, for whoever shows that."""
        self._since = 0
        self._signed = 0
        self._note = b""

    def acquire(
        self, timeout: float, *, still: Callable[[], object], meanwhile: Callable[[], object] = lambda: None
    ) -> LockFile:
        """The lock, on the file that its path names now; closing the handle releases it.

        Contention is waited for, up to *timeout* seconds (LockBusy); anything else is raised at once (LockUnusable,
        NotOurs). *still* must raise when the directory is no longer one to lock; it is called when the lock file was
        replaced. *meanwhile* is called now and then while it is waited for.
        """
        lock_descriptor = _locking()
        started = self._clock.monotonic()
        due = started + _LOOK
        lock = open_lock(self._path)
        while True:
            try:
                taken = lock_descriptor(lock.fd, blocking=False)
                ours = disk.leads_to(self._path, lock.inode)
            except OSError as error:
                raise unusable(self._path, error) from error
            if taken and ours:
                self.waited = None
                self._sign(lock)
                return lock
            now = self._clock.monotonic()
            if not ours:
                # Removed or replaced while we waited: ask for the one that is there now, if its directory still is.
                lock = open_lock(self._path)
                still()
            elif now - started >= timeout:
                self.waited = None
                raise self._busy(lock.fd, now - started)
            else:
                if self.waited is None and now - started >= _SHOWN_AFTER:
                    self.waited = started, self._holder(lock.fd)
                if now >= due:
                    meanwhile()
                    before, now = now, self._clock.monotonic()
                    due = now + max(_LOOK, now - before)  # whatever it meets, the lock is asked for as long again
                # Jitter from the digits of the clock that differ between processes anyway.
                jitter = (now * 1e6 + self._whoami.pid * 0.618) % 1.0
                pause = _POLL_LATE if now - started >= _LATE else _POLL * (0.5 + jitter)
                self._clock.sleep(max(0.0, min(pause, started + timeout - now)))

    @staticmethod
    def is_doubted(lock: LockFile) -> bool:
        """Whether a holder whose sync failed has left word of it."""
        return os.pread(lock.fd, 1, _DOUBT_AT) == _DOUBT

    @staticmethod
    def doubt(lock: LockFile, doubted: bool) -> None:
        """Leave word to every later holder that what is visible may not be on disk; or take it back.

        It need not survive a power cut: what is on disk then is the truth.
        """
        with suppress(OSError):
            os.pwrite(lock.fd, _DOUBT if doubted else b"\0", _DOUBT_AT)

    def _sign(self, lock: LockFile) -> None:
        """Say who holds it, and since which second. Best effort on a full disk.

        Whoever takes it again and again leaves alone what says so already: a write changes the times of the file, and
        with those to write as well the sync of the commit that follows takes half as long again. A short command always
        writes, so that what it asks of the system depends on no clock.
        """
        now = self._clock.now_ms()
        if self._signed < _OFTEN or now // 1000 != self._since // 1000:
            self._since = now
            self._note = msgspec.json.encode(_Holder(self._whoami.pid, self._command, now)) + b"\n"
            self._write(lock)
        else:
            with suppress(OSError):
                if os.pread(lock.fd, len(self._note), 0) != self._note:
                    self._write(lock)

    def _write(self, lock: LockFile) -> None:
        """Without truncating, so a reader finds the old note or the new one."""
        self._signed += 1
        lock.signed = True
        with suppress(OSError):
            os.pwrite(lock.fd, self._note, 0)

    def stamped(self, lock: LockFile) -> int:
        """When this hold began or later, by the kernel's clock, which stamps the document too, in ns. Earlier if the
        disk is full.
        """
        if not lock.signed:
            self._write(lock)
        return os.fstat(lock.fd).st_ctime_ns

    @staticmethod
    def _holder(fd: int) -> str:
        try:
            holder = _HOLDER.decode(os.pread(fd, _LONGEST_NOTE, 0).partition(b"\n")[0])
            return f"pid {holder.pid} ({holder.command}) since {disk.stamp(holder.since)}"
        except (OSError, msgspec.MsgspecError, ValueError, OverflowError):
            return "a process that left no readable note"

    def _busy(self, fd: int, waited: float) -> LockBusy:
        return LockBusy(
            f"the document is held by {self._holder(fd)}; waited {waited:.1f} s",
            where=str(self._path),
            next="run it again, or raise --lock-timeout",
        )


class SlotLocks:
    """The slot locks of one state directory."""

    def __init__(self, directory: Path, *, clock: Clock, whoami: ProcessIdentity, command: str) -> None:
        self._directory = directory / SLOTS
        self._clock = clock
        self._whoami = whoami
        self._command = command

    def path(self, slot: int) -> Path:
        return self._directory / f"{slot:05d}.lock"

    @contextmanager
    def hold(self, slot: int) -> Iterator[SlotHold]:
        from filelock import lock_descriptor

        if not 1 <= slot <= MAX_SLOTS:
            raise NotFound(f"there is no slot {slot}; slots are 1..{MAX_SLOTS}", where=str(self._directory))
        path = self.path(slot)
        self._make_directory()
        while True:
            lock = open_lock(path)
            try:
                taken = lock_descriptor(lock.fd, blocking=False)
                ours = disk.leads_to(path, lock.inode)
            except OSError as error:
                raise unusable(path, error) from error
            if ours:
                break
        if not taken:
            raise self._busy(slot)
        found = _read(lock.fd)
        note = structs.replace(found, controller=self._whoami, command=self._command, since=self._clock.now_ms())
        held = _SlotHold(path, lock, note, self._clock)
        try:
            if found.readable:  # what cannot be read is kept as it is: only a person knows what it said
                held.write(note)
            yield held
        finally:
            with suppress(Exception):  # the lock ends whether or not the note can say so
                if held.note.readable:
                    held.write(structs.replace(held.note, controller=None, command="", since=None))
            held.open = False
            lock.handle.close()

    def note(self, slot: int) -> SlotNote:
        try:
            handle = disk.Handle(os.open(self.path(slot), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
            note = _read(handle.fd)
        except FileNotFoundError:
            return SlotNote()
        except OSError:
            note = SlotNote(readable=False)
        return structs.replace(note, where=str(self.path(slot)))

    def _make_directory(self) -> None:
        try:
            os.mkdir(self._directory, disk.PRIVATE_DIRECTORY)
            os.chmod(self._directory, disk.PRIVATE_DIRECTORY)
        except FileExistsError:
            return
        except OSError as error:
            raise disk.denied(error, self._directory) or unusable(self._directory, error) from error

    def _busy(self, slot: int) -> SlotBusy:
        note = self.note(slot)
        if note.controller is None or note.since is None:
            who = "a process that left no readable note"
        else:
            age = max(self._clock.now_ms() - note.since, 0) / 1000
            who = f"pid {note.controller.pid} ({note.command}) since {disk.stamp(note.since)}, {age:.1f} s"
        return SlotBusy(
            f"slot {slot} is held by {who}",
            where=str(self.path(slot)),
            next="other slots go on; run it again once that process is done",
        )


class _SlotHold:
    def __init__(self, path: Path, lock: LockFile, note: SlotNote, clock: Clock) -> None:
        self.open = True
        self._clock = clock
        self.note = note
        self._path = path
        self._lock = lock

    def check(self) -> None:
        if not self.open or not disk.leads_to(self._path, self._lock.inode):
            raise LockLost(
                "this slot's lock file was removed or replaced",
                where=str(self._path),
                next="nothing was sent; run it again",
            )

    def register(self, identity: ProcessIdentity, deadline_at: int, key: str) -> None:
        self.check()
        deadline = self._clock.monotonic() + (deadline_at - self._clock.now_ms()) / 1000
        self.write(structs.replace(self.note, provider=identity, deadline_at=deadline_at, deadline=deadline, key=key))

    def clear(self) -> None:
        self.write(structs.replace(self.note, provider=None, deadline_at=None, deadline=None, key="", readable=True))

    def write(self, note: SlotNote) -> None:
        """One write in place. It need not survive a power cut: neither does any process that it names."""
        if not self.open:
            raise LockLost("this slot's hold is over", where=str(self._path), next="nothing was sent")
        line = msgspec.json.encode(note) + b"\n"
        with disk.storing(self._path):
            if os.pwrite(self._lock.fd, line, 0) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.note = note


def _read(fd: int) -> SlotNote:
    """The note in the file's first line; an empty file is an empty note. What cannot be read is unknown, not nobody."""
    try:
        line = os.pread(fd, _LONGEST_NOTE, 0).partition(b"\n")[0]
        return _NOTE.decode(line) if line else SlotNote()
    except (OSError, msgspec.MsgspecError, ValueError):
        return SlotNote(readable=False)


def open_lock(path: Path) -> LockFile:
    """The lock file, made if missing. Raises LockUnusable or NotOurs, with path and errno."""
    try:
        handle = disk.opened(path)
        status = os.fstat(handle.fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
    except OSError as error:
        raise disk.denied(error, path) or unusable(path, error) from error
    return LockFile(handle, disk.inode(status))


def unusable(path: Path, error: OSError) -> LockUnusable:
    return LockUnusable(
        f"cannot lock {path}: {disk.says(error)}",
        where=str(path),
        next="nobody holds it; this needs mending, not waiting",
    )
