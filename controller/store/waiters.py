"""Waiters of a queue, notified between processes of one host: each has a FIFO with a name in `S/waiters/`.

Not promised: that a notification arrives, or that it means that there is something. A waiter looks by itself now and
then, and looks before it believes; so no lost notification strands a run, and no needless one costs a commit. A FIFO
that a child was forked with, and not closed by an exec, passes for that of a waiter who lives.

A waiter is woken at most once each time it is in line: whoever wakes it takes its name away first, then writes. It
stands in line again, at its old place, before it is told, so what comes while it looks wakes it again. Its name has a
twin that starts with a dot and stays: the same FIFO, so its descriptor stays the same too. A new FIFO after every
notification would cost more, and be lost to whoever selects on the old one.

Nobody needs the directory: readers and wakers never make it, and whoever cannot stand in line looks more often.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from contextlib import suppress
from itertools import count
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from controller.clock import Clock, SystemClock
from controller.model.records import is_id
from controller.store import disk

WAITERS: Final = "waiters"
POLL: Final = 0.25
"""Seconds that a waiter whom nobody can notify waits at most."""

_CLOCK: Final = SystemClock()
_TRIES: Final = 5
_LONGEST_MS: Final = 2**31 - 1
_WRITE: Final = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_READ: Final = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
"""Also for writing: a FIFO that a waker has closed again would be at its end, and readable, for ever."""
_numbers = count(1)


class Waiters:
    """Everybody who waits for a queue of the state directory *directory*. Several threads may use one object.

    *clock* says who has waited longest, by its monotonic time.
    """

    def __init__(self, directory: Path, *, clock: Clock = _CLOCK) -> None:
        self.clock = clock
        self._state = directory
        self._directory = directory / WAITERS

    def waiting(self, queue: str) -> Waiting:
        """A place in line for *queue*, until the `with` block ends."""
        return Waiting(self, queue)

    def anybody(self) -> bool:
        """Whether anybody might wait, for whatever queue."""
        try:
            with os.scandir(self._directory) as entries:
                return next(entries, None) is not None
        except OSError:
            return False

    def wake(self, queue: str, most: int) -> int:
        """Notify up to *most* waiters of *queue*, longest waiting first. Returns how many.

        Never waits and never raises. What waiters that died have left is removed on the way.
        """
        woken = 0
        if most > 0:
            for name in self.in_line(queue):
                woken += self._wake_one(name)
                if woken >= most:
                    break
        return woken

    def in_line(self, queue: str) -> list[str]:
        """Names of waiters of *queue*, longest waiting first; some may have died."""
        try:
            names = set(os.listdir(self._directory))
        except OSError:
            return []
        for name in names:
            # A twin alone is that of a waiter who is about to stand in line, or died when it was not.
            if name.startswith(".") and name[1:] not in names and _queue_of(name[1:]) == queue:
                self.lives(name)
        return sorted(name for name in names if _queue_of(name) == queue)

    def lives(self, name: str) -> bool:
        """Whether a process has that FIFO open. What nobody has open any more is removed."""
        return self._opened(name) is not None

    def path(self, name: str) -> Path:
        return self._directory / name

    def make_directory(self) -> None:
        """Raises OSError. Root makes none for somebody else: what it left there would be in its owner's way."""
        if os.geteuid() == 0 and os.stat(self._state).st_uid != 0:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        with suppress(FileExistsError):
            os.mkdir(self._directory, disk.PRIVATE_DIRECTORY)
            os.chmod(self._directory, disk.PRIVATE_DIRECTORY)

    def _wake_one(self, name: str) -> bool:
        handle = self._opened(name)
        if handle is None:
            return False
        try:
            # Unlinked first: of two who would wake the same waiter, one fails here and goes on to the next.
            os.unlink(self.path(name))
            os.write(handle.fd, b"\0")
        except BlockingIOError:
            return True  # full: it has been told more than once
        except OSError:
            return False
        return True

    def _opened(self, name: str) -> disk.Handle | None:
        path = self.path(name)
        try:
            handle = disk.Handle(os.open(path, _WRITE))
            return handle if stat.S_ISFIFO(os.fstat(handle.fd).st_mode) else None
        except OSError as error:
            if error.errno == errno.ENXIO:
                # No reader, so its process is gone; or has not opened it yet, and will find that its twin is missing.
                for left in {path, path.with_name(f".{name.removeprefix('.')}")}:
                    with suppress(OSError):
                        os.unlink(left)
            return None


class Waiting:
    """One waiter's place in line, for one thread. Nothing here raises because of the file system.

    `listed`: it can be notified. Otherwise it must look every `POLL` seconds, and `wait` waits no longer than that.
    """

    def __init__(self, waiters: Waiters, queue: str) -> None:
        self.queue = queue
        self.listed = False
        self._waiters = waiters
        self._handle = disk.Handle(-1)
        self._name = ""
        self._ahead = ""
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        if is_id(self.queue):
            with suppress(OSError):
                self._waiters.make_directory()
                self._make()
        if self._handle.fd < 0:
            with suppress(OSError):
                self._handle = disk.Handle(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.close():
            self._waiters.wake(self.queue, 1)

    def fileno(self) -> int:
        """Readable once it is notified: then call `wait(0)`. The same for as long as it waits; never readable while it
        is not `listed`. -1: there are no descriptors left.
        """
        return self._handle.fd

    def wait(self, seconds: float) -> bool:
        """Wait up to *seconds*. True: it was notified, and is in line again already: look, then wait on.

        Signal handlers run meanwhile, and do not end it unless they raise.
        """
        if not self.listed:
            self._waiters.clock.sleep(max(0.0, min(seconds, POLL)))
            return False
        poll = select.poll()
        poll.register(self._handle.fd, select.POLLIN)
        ready = poll.poll(max(0, min(ceil(seconds * 1000), _LONGEST_MS)))
        if not ready and self._is_in_line():
            return False
        # Without a byte its name is missing all the same if whoever took it away died before it wrote.
        with suppress(OSError):
            os.read(self._handle.fd, 4096)
        self._stand()
        return True

    def first(self) -> bool:
        """Whether nobody alive has waited longer for the queue; also if it is not `listed`."""
        if not self.listed:
            return True
        if self._ahead and self._waiters.lives(self._ahead):
            return False
        self._ahead = ""
        for name in self._waiters.in_line(self.queue):
            if name == self._name:
                break
            if self._waiters.lives(name):
                self._ahead = name
                return False
        return True

    def close(self) -> bool:
        """Leave the line. True: it was chosen to be woken and was not told yet, so somebody else must be.

        The end of the `with` block does both; a caller that has looked since closes by itself.
        """
        chosen = False
        if self.listed and os.getpid() == self._pid:
            try:
                os.unlink(self._waiters.path(self._name))
            except OSError as error:
                chosen = error.errno == errno.ENOENT
            with suppress(OSError):
                os.unlink(self._twin)
        self.listed = False
        self._handle.close()
        return chosen

    @property
    def _twin(self) -> Path:
        return self._waiters.path(f".{self._name}")

    def _make(self) -> None:
        """The FIFO, open, and then its name in line: under that name it is never seen without a reader."""
        since = int(self._waiters.clock.monotonic() * 1e9)
        for _ in range(_TRIES):
            self._name = f"{since:020d}.{self._pid}.{next(_numbers)}.{self.queue}"
            try:
                os.mkfifo(self._twin, disk.PRIVATE)
            except FileExistsError:
                continue  # of another pid namespace
            try:
                os.chmod(self._twin, disk.PRIVATE)
                self._handle = disk.Handle(os.open(self._twin, _READ))
            except FileNotFoundError:
                continue  # somebody took it for that of a dead one
            except OSError:
                os.unlink(self._twin)
                raise
            self._stand()
            if self.listed:
                return
            with suppress(FileNotFoundError):
                os.unlink(self._twin)

    def _stand(self) -> None:
        try:
            os.link(self._twin, self._waiters.path(self._name))
        except FileExistsError:
            self.listed = True
        except OSError:
            self.listed = False
        else:
            self.listed = True

    def _is_in_line(self) -> bool:
        try:
            os.lstat(self._waiters.path(self._name))
        except FileNotFoundError:
            return False
        except OSError:
            pass
        return True


def _queue_of(name: str) -> str | None:
    """The queue that a name in line is for; None: it is no such name. The queue comes last, since it may have dots."""
    *numbers, queue = name.split(".", 3)
    if len(numbers) != 3 or not all(number.isascii() and number.isdecimal() for number in numbers):
        return None
    return queue
