"""A simulated disk under real files: what is written is visible, what is synced survives a power cut.

Not modelled: modes, owners and times; symbolic links; sectors that are torn inside; the sync of a name that some file
systems give away with the sync of a file; several threads. Lost bytes are old ones or zeros, never garbage.

Programs see real files, so that what is visible needs no simulation. What they change is recorded: `Disk.cut` makes
another directory of what was synced and any part of what was not. A file's sync keeps its bytes and its size, not its
name; a directory's sync keeps its names. Of what was not synced, every sector has any of the contents that it had
since, every file any of its sizes, and every change of names happened or did not, whatever happened before or after it.
A rename is one change: the name is the old file or the new one.

A sync that fails may have kept anything, and nothing that it lost is kept by the next sync: the pages count as clean.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.store.power.blocks import Change, Choose, Directory, Inode, apply

WRAPPED: Final = (
    "fdatasync", "fsync", "ftruncate", "link", "mkdir", "open", "posix_fallocate", "pwrite", "remove", "rename",
    "replace", "rmdir", "unlink", "write",
)  # fmt: skip

DONE: Final = (None, "late", "cut", "kill")
"""What befalls a call that is done all the same."""
TAKING: Final = ("link", "mkdir", "open", "posix_fallocate", "pwrite", "write")
"""The calls that need room."""
UNKNOWN: Final = (
    "copy_file_range", "mkfifo", "mknod", "pwritev", "sendfile", "splice", "symlink", "sync", "truncate", "writev",
)  # fmt: skip
"""Calls that a store may come to use one day, and that this disk would have to be taught first."""


class Stopped(BaseException):
    """The process that made the call is no more; nothing it does on its way out reaches the disk."""


class Trouble(NamedTuple):
    """What befalls a call: of those of that name ("": of all that change or sync something) the one that `at` others
    came before.

    "cut": when it is done, the power goes. "kill": its process does. "fail": it alone fails. "late": it is done, and
    says that it failed (what takes room just fails). "full": from here on there is no room. "broken": from here on
    everything fails.
    """

    kind: str
    call: str = ""
    at: int = 0


class Call(NamedTuple):
    """One call as it was seen: *site* are the functions of the store that led to it, outermost first."""

    name: str
    file: str
    site: str


Deaf = Callable[[Sequence[Call]], bool]
"""Whether the last of the calls, a sync, is answered and not done."""


class Disk:
    """Everything below *root*, which is there already and all of it synced."""

    def __init__(self, root: Path, choose: Choose = lambda what, options: 0) -> None:
        self.root = root
        self.choose = choose
        self.trouble: Trouble | None = None
        self.struck = False
        """Whether the trouble befell a call."""
        self.deaf: Deaf = lambda calls: False
        self.calls: list[Call] = []
        self._stopped = False
        self._ahead = 0
        """How many more calls there are before the one that the trouble befalls."""
        self._short = True
        """Whether the next write that finds no room still finds some."""
        self._changes: list[tuple[Change, ...]] = []
        self._nodes: dict[tuple[int, int], Inode | Directory] = {}
        self._wrappers = {name: getattr(self, f"_{name}") for name in WRAPPED}
        self._wrappers |= {name: _untaught(name) for name in UNKNOWN}
        self._real = {name: getattr(os, name) for name in self._wrappers}
        self._top = self._found(root)

    def _found(self, path: Path) -> Inode | Directory:
        node: Inode | Directory
        if path.is_dir():
            node = Directory(path.name)
            node.seen = {entry.name: self._found(entry) for entry in sorted(path.iterdir())}
            node.kept = dict(node.seen)
        else:
            node = Inode(path.name, path.read_bytes())
        self._know(os.stat(path), node)
        return node

    def _know(self, status: os.stat_result, node: Inode | Directory) -> None:
        self._nodes[status.st_dev, status.st_ino] = node

    @contextmanager
    def running(self, trouble: Trouble | None = None) -> Iterator[None]:
        """One process runs on this disk, until it ends or is `Stopped`."""
        self.trouble, self.struck, self._stopped, self.calls = trouble, False, False, []
        self._ahead = 0 if trouble is None else trouble.at
        self._short = True
        for name, wrapper in self._wrappers.items():
            setattr(os, name, wrapper)
        try:
            yield
        finally:
            for name, real in self._real.items():
                setattr(os, name, real)

    # What a cut leaves.

    def cut(self, root: Path) -> Disk:
        """The disk after a power cut, in the new directory *root*."""
        self.verify()
        kept: dict[int, dict[str, Inode | Directory]] = {}

        def names(directory: Directory) -> dict[str, Inode | Directory]:
            return kept.setdefault(id(directory), dict(directory.kept))

        for changes in self._changes:
            if self.choose("name", 2):
                for change in changes:
                    apply(names(change.directory), change)
        made: dict[int, Path] = {}

        def build(node: Inode | Directory, path: Path) -> None:
            if isinstance(node, Directory):
                path.mkdir(mode=0o700)
                for name, inside in sorted(names(node).items()):
                    build(inside, path / name)
            elif id(node) in made:
                path.hardlink_to(made[id(node)])
            else:
                path.touch(mode=0o600)
                path.write_bytes(node.left(self.choose))
                made[id(node)] = path

        build(self._top, root)
        return Disk(root, self.choose)

    def verify(self) -> None:
        """What was recorded is what is there: nothing went around the wrappers."""
        self._compare(self._top, self.root)

    def _compare(self, node: Inode | Directory, path: Path) -> None:
        if isinstance(node, Inode):
            if path.read_bytes() != node.seen:
                raise NotImplementedError(f"{path.name} was changed by a call that this disk does not see")
            return
        if {entry.name for entry in path.iterdir()} != set(node.seen):
            raise NotImplementedError(f"names in {path} were changed by a call that this disk does not see")
        for name, inside in node.seen.items():
            self._compare(inside, path / name)

    # Finding what a call is about.

    def _at(self, path: Any) -> tuple[Directory, str] | None:
        """The directory of ours that *path* is in, and its name there."""
        whole = Path(os.path.abspath(os.fsdecode(path)))
        try:
            status = os.stat(whole.parent)
        except OSError:
            return None
        node = self._nodes.get((status.st_dev, status.st_ino))
        return (node, whole.name) if isinstance(node, Directory) else None

    def _of(self, fd: int) -> Inode | Directory | None:
        status = os.fstat(fd)
        return self._nodes.get((status.st_dev, status.st_ino))

    def _step(self, call: str, file: str) -> str | None:
        """Count a call; what befalls it."""
        if self._stopped:
            raise Stopped
        self.calls.append(Call(call, file, _site() if "sync" in call else ""))
        trouble = self.trouble
        if trouble is None or (self.struck and trouble.kind not in ("full", "broken")):
            return None
        if not self.struck:
            self._ahead -= trouble.call in ("", call)
            if self._ahead >= 0:
                return None
            self.struck = True
        if trouble.kind == "late" and call in TAKING:
            return "fail"
        return None if trouble.kind == "full" and call not in TAKING else trouble.kind

    def _ended(self, befallen: str | None) -> None:
        """How a call ends that was done."""
        if befallen in ("cut", "kill"):
            self._stopped = True
            raise Stopped
        if befallen is not None:
            raise _error(befallen)

    def _plainly(self, call: str, file: str, act: Callable[[], object]) -> None:
        """A call that is done or not, and nothing in between."""
        befallen = self._step(call, file)
        if befallen not in DONE:
            raise _error(str(befallen))
        act()
        self._ended(befallen)

    def _changed(self, *changes: Change) -> None:
        for change in changes:
            apply(change.directory.seen, change)
            if change.node is not None:
                change.node.name = change.name
        self._changes.append(changes)

    # The calls.

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        real = self._real["open"]
        place = self._at(path) if dir_fd is None and flags & (os.O_CREAT | os.O_TRUNC) else None
        if place is None:
            return int(real(path, flags, mode, dir_fd=dir_fd))
        directory, name = place
        if name in directory.seen:
            if flags & os.O_TRUNC:
                raise NotImplementedError("this disk does not know O_TRUNC")
            return int(real(path, flags, mode))

        made: list[int] = []

        def create() -> None:
            made.append(int(real(path, flags, mode)))
            node = Inode(name)
            self._know(os.fstat(made[0]), node)
            self._changed(Change(directory, name, node))

        try:
            self._plainly("open", name, create)
        except Stopped:
            for fd in made:
                os.close(fd)
            raise
        return made[0]

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        place = self._at(path)
        if place is None or place[1] in place[0].seen:
            self._real["mkdir"](path, mode, dir_fd=dir_fd)
            return
        directory, name = place

        def make() -> None:
            self._real["mkdir"](path, mode)
            node = Directory(name)
            self._know(os.stat(path), node)
            self._changed(Change(directory, name, node))

        self._plainly("mkdir", name, make)

    def _write(self, fd: int, data: Any) -> int:
        return self._written("write", fd, bytes(data), lambda part: int(self._real["write"](fd, part)), None)

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        return self._written(
            "pwrite", fd, bytes(data), lambda part: int(self._real["pwrite"](fd, part, offset)), offset
        )

    def _written(self, call: str, fd: int, data: bytes, write: Callable[[bytes], int], offset: int | None) -> int:
        node = self._of(fd)
        if not isinstance(node, Inode):
            return write(data)
        befallen = self._step(call, node.name)
        if befallen == "full" and self._short and len(data) > 1:
            self._short, data = False, data[: len(data) // 2]
        elif befallen not in DONE:
            raise _error(str(befallen))
        done = write(data)
        # In append mode the place is known only afterwards.
        node.write(os.lseek(fd, 0, os.SEEK_CUR) - done if offset is None else offset, data[:done])
        if befallen != "full":
            self._ended(befallen)
        return done

    def _ftruncate(self, fd: int, length: int) -> None:
        node = self._of(fd)
        if not isinstance(node, Inode):
            self._real["ftruncate"](fd, length)
            return

        def cut() -> None:
            self._real["ftruncate"](fd, length)
            node.truncate(length)

        self._plainly("ftruncate", node.name, cut)

    def _posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        node = self._of(fd)
        if not isinstance(node, Inode):
            self._real["posix_fallocate"](fd, offset, length)
            return

        def allocate() -> None:
            self._real["ftruncate"](fd, max(offset + length, os.fstat(fd).st_size))  # sparse: only the size is seen
            node.allocate(offset + length)

        self._plainly("posix_fallocate", node.name, allocate)

    def _fsync(self, fd: int) -> None:
        self._synced("fsync", fd)

    def _fdatasync(self, fd: int) -> None:
        self._synced("fdatasync", fd)

    def _synced(self, call: str, fd: int) -> None:
        """Nothing is synced really: the disk under the test has no part in this."""
        node = self._of(fd)
        if node is None:
            self._real[call](fd)
            return
        name = "." if node is self._top else node.name + ("/" if isinstance(node, Directory) else "")
        befallen = self._step(call, name)
        if befallen not in DONE:
            if isinstance(node, Inode):
                node.fail_sync(self.choose)
        elif not self.deaf(self.calls):
            if isinstance(node, Inode):
                node.sync()
            else:
                self._sync_names(node)
        self._ended(befallen)

    def _sync_names(self, directory: Directory) -> None:
        left = []
        for changes in self._changes:
            if any(change.directory is directory for change in changes):
                for change in changes:
                    apply(change.directory.kept, change)
            else:
                left.append(changes)
        self._changes = left

    def _rename(self, src: Any, dst: Any) -> None:
        self._renamed("rename", src, dst)

    def _replace(self, src: Any, dst: Any) -> None:
        self._renamed("replace", src, dst)

    def _renamed(self, call: str, src: Any, dst: Any) -> None:
        old, new = self._at(src), self._at(dst)
        if old is None or new is None or old[1] not in old[0].seen:
            self._real[call](src, dst)
            return
        source, target = old, new
        node = source[0].seen[source[1]]

        def rename() -> None:
            self._real[call](src, dst)
            self._changed(Change(*source, None), Change(*target, node))

        self._plainly(call, target[1], rename)

    def _link(self, src: Any, dst: Any, *, follow_symlinks: bool = True) -> None:
        old, new = self._at(src), self._at(dst)
        if old is None or new is None or old[1] not in old[0].seen or new[1] in new[0].seen:
            self._real["link"](src, dst, follow_symlinks=follow_symlinks)
            return
        node, target = old[0].seen[old[1]], new

        def link() -> None:
            self._real["link"](src, dst, follow_symlinks=follow_symlinks)
            self._changed(Change(*target, node))

        self._plainly("link", target[1], link)

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._removed("unlink", path, dir_fd)

    def _remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._removed("remove", path, dir_fd)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._removed("rmdir", path, dir_fd)

    def _removed(self, call: str, path: Any, dir_fd: int | None) -> None:
        place = self._at(path) if dir_fd is None else None
        if place is None or place[1] not in place[0].seen:
            self._real[call](path, dir_fd=dir_fd)
            return
        directory, name = place

        def remove() -> None:
            self._real[call](path)
            self._changed(Change(directory, name, None))

        self._plainly(call, name, remove)


def _error(kind: str) -> OSError:
    number = errno.ENOSPC if kind == "full" else errno.EIO
    return OSError(number, os.strerror(number))


def _untaught(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"this disk does not know os.{name}")

    return refuse


def _site() -> str:
    """The functions of the store that are being called."""
    names = []
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("controller.store"):
            names.append(frame.f_code.co_qualname.rpartition(".")[2])
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ">".join(reversed(names))
