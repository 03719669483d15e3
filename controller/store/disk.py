"""Small durable-file operations shared by the modules of this package: every call of the system that can fail, mapped
once.

Not promised: anything about network file systems, or about extended attributes and access lists of replaced files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from controller.model.errors import DocumentFault, NotOurs, StorageFailed

PRIVATE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700
TEMPORARY: Final = ".controller.json.tmp-"
"""What a document is called while it is being written. A journal beside one may be that of a write that was killed."""
_PAGE: Final = 1 << 12
SETTLED_NS: Final = 20_000_000
"""How old a change time must be before an equal one proves that nothing was written since: clocks of inodes are
coarse.
"""


class Identity(NamedTuple):
    """What a file is and when it last changed. Equal ones mean "the same" only under the rules of `Image`."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def identity(status: os.stat_result) -> Identity:
    return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class Handle:
    """An open descriptor that closes itself with its last reference, so that whoever compares inodes can keep one
    open.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self, *, _close: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            try:  # noqa: SIM105 - at the end of the interpreter the names of this module are gone, `suppress` too
                _close(fd)
            except OSError:
                pass

    __del__ = close


def says(error: OSError) -> str:
    """The error in words, with the name of its number: `No space left on device (ENOSPC)`."""
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    return f"{error.strerror or error} ({name})"


def stamp(at: int) -> str:
    """UTC milliseconds as people read them."""
    return f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def owner_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


def belongs(path: Path) -> str:
    """Owner and mode of *path* in words; of its directory when it is not there."""
    for candidate in (path, path.parent):
        try:
            status = os.stat(candidate)
        except OSError:
            continue
        return f"{candidate} belongs to {owner_name(status.st_uid)}, mode {stat.S_IMODE(status.st_mode):04o}"
    return f"{path} cannot be looked at"


def denied(error: OSError, path: Path) -> NotOurs | None:
    """EACCES on somebody else's file as a refusal that names file, owner and mode; None when that is not the reason."""
    if error.errno not in (errno.EACCES, errno.EPERM):
        return None
    for candidate in (path, path.parent):
        try:
            status = os.stat(candidate)
        except OSError:
            continue
        if status.st_uid == os.geteuid():
            return None
        break
    return NotOurs(
        f"no access to {path}: {belongs(path)}; this is {owner_name(os.geteuid())}",
        where=str(path),
        next="run it as the owner, or ask the owner for access",
    )


def refuse_foreign_root(directory: Path, uid: int) -> None:
    """Root must not leave files in a user's directory that the user could then not write. Refused before anything is
    made.
    """
    if os.geteuid() != 0 or uid == 0:
        return
    name = owner_name(uid)
    raise NotOurs(
        f"{directory} belongs to {name}; root would leave files there that {name} cannot write",
        where=str(directory),
        next=f"sudo -u {name} controller ...",
    )


def same_file(path: Path, fd: int) -> bool:
    """Whether *path* names the file that *fd* is open on."""
    return leads_to(path, inode(os.fstat(fd)))


def inode(status: os.stat_result) -> tuple[int, int]:
    """What a file is, as long as somebody has it open: afterwards another may get the same."""
    return status.st_dev, status.st_ino


def leads_to(path: Path, known: tuple[int, int]) -> bool:
    """Whether *path* names the file of that inode, which is open."""
    try:
        return inode(os.stat(path)) == known
    except (FileNotFoundError, NotADirectoryError):
        return False


def create(path: Path, *, mode: int = PRIVATE, like: os.stat_result | None = None, flags: int = os.O_WRONLY) -> Handle:
    """A new file for writing: *mode* whatever the umask, or mode, group and (for root) owner of the file it will
    replace.
    """
    handle = Handle(os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE))
    try:
        if like is not None:
            made = os.fstat(handle.fd)
            if made.st_gid != like.st_gid or (os.geteuid() == 0 and made.st_uid != like.st_uid):
                os.fchown(handle.fd, like.st_uid if os.geteuid() == 0 else -1, like.st_gid)
            mode = stat.S_IMODE(like.st_mode)
        os.fchmod(handle.fd, mode)
    except BaseException:
        handle.close()
        with suppress(OSError):
            os.unlink(path)
        raise
    return handle


def opened(path: Path, flags: int = 0) -> Handle:
    """*path* for reading and writing, made if missing: mode 0600 whatever the umask, and its directory synced."""
    flags |= os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        try:
            return Handle(os.open(path, flags))
        except FileNotFoundError:
            with suppress(FileExistsError):
                handle = Handle(os.open(path, flags | os.O_CREAT | os.O_EXCL, PRIVATE))
                os.fchmod(handle.fd, PRIVATE)
                sync_directory(path.parent)
                return handle


def write_all(fd: int, data: bytes) -> None:
    """Every byte, in as many writes as it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Every byte from *offset* on, in one write if the system takes it so."""
    written = os.pwrite(fd, data, offset)
    while written < len(data):
        written += os.pwrite(fd, data[written:], offset + written)


def read_all(fd: int) -> bytes:
    """The whole file from its start, whatever its offset is."""
    size = os.fstat(fd).st_size
    # One byte more than there should be: getting just what there should be shows that it is all.
    data = os.pread(fd, size + 1, 0)
    if len(data) == size:
        return data
    parts = [data]
    position = len(data)
    while part := os.pread(fd, 1 << 16, position):
        parts.append(part)
        position += len(part)
    return b"".join(parts)


def read_behind(fd: int, last: bytes, offset: int, chunk: int) -> bytes:
    """What stands in a journal from *offset* on, where *last* does, up to the zeros at its end.

    One short read if nothing is behind *last*, which is what a holder asks again and again.
    """
    first = os.pread(fd, len(last) + 1, offset)
    if first == last or first == last + b"\0":
        return last
    parts: list[bytes] = []
    size = len(last) + _PAGE
    while part := os.pread(fd, size, offset):
        parts.append(part)
        if part.endswith(b"\0"):
            break
        offset, size = offset + len(part), min(4 * size, chunk)
    return b"".join(parts)


def rewrite(fd: int, begin: int, end: int) -> None:
    """Write what stands there once more, so that a sync has to write it, whatever became of one before."""
    write_at(fd, os.pread(fd, end - begin, begin), begin)


def sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_new(path: Path, data: bytes) -> None:
    """Make *path* hold *data*, durably and all at once; what was there is replaced. Raises StorageFailed.

    For files beside the document. The document itself is written by `store.file` alone.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with storing(path):
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        try:
            handle = create(temporary)
            write_all(handle.fd, data)
            os.fsync(handle.fd)
            handle.close()
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        sync_directory(path.parent)


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Maps errors of the system while *path* is being written to StorageFailed."""
    try:
        yield
    except OSError as error:
        raise storage_failed(path, error) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Maps errors of the system while *path* is being read to DocumentFault."""
    try:
        yield
    except OSError as error:
        raise denied(error, path) or unreadable(path, error) from error


def storage_failed(path: Path, error: OSError) -> StorageFailed:
    return StorageFailed(
        f"could not write {path}: {says(error)}",
        where=str(path),
        next="nothing changed; make room or mend the disk, then run it again",
    )


def unreadable(path: Path, error: OSError) -> DocumentFault:
    return DocumentFault(
        f"cannot read {path}: {says(error)}",
        where=str(path),
        next="nothing was changed; mend that, then run it again",
    )
