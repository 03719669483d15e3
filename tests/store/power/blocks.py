"""What a disk is made of: files and names, each as programs see it and as a power cut would leave it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

SECTOR: Final = 512
PAGE: Final = 4096

Choose = Callable[[str, int], int]
"""Of a "name", a "size" or a "sector", one of so many that are in the order in which they came about: the first is what
was there before, the last what is visible.
"""


class Inode:
    """A file: its bytes as programs see them, and what of them the disk has."""

    def __init__(self, name: str, data: bytes = b"") -> None:
        self.name = name
        self.seen = bytearray(data)
        self._kept = bytearray(data)
        self._kept_size = len(data)
        self._dirty: dict[int, list[bytes]] = {}
        """What whole sectors held, one after the other, since they were synced."""
        self._sizes: list[int] = []

    def write(self, offset: int, data: bytes) -> None:
        size, end = len(self.seen), offset + len(data)
        if end > size:
            self.seen.extend(bytes(end - size))
            self._sizes += [*range((max(offset, size) // SECTOR + 1) * SECTOR, end, SECTOR), end]
        self.seen[offset:end] = data
        self._touch(offset, end)

    def truncate(self, size: int) -> None:
        old = len(self.seen)
        if size >= old:
            self.allocate(size)
            return
        del self.seen[size:]
        self._sizes.append(size)
        self._touch(size, old)

    def allocate(self, size: int) -> None:
        if size > len(self.seen):
            self.seen.extend(bytes(size - len(self.seen)))
            self._sizes.append(size)

    def _touch(self, begin: int, end: int) -> None:
        """Whole pages become dirty, so that a later write brings along what a failed sync of the same page lost."""
        for n in range(begin // PAGE * PAGE // SECTOR, -(-end // PAGE) * PAGE // SECTOR):
            content = _sector(self.seen, n)
            versions = self._dirty.get(n)
            if versions is None and content != _sector(self._kept, n):
                self._dirty[n] = [content]
            elif versions is not None and content != versions[-1]:
                versions.append(content)

    def sync(self) -> None:
        for n, versions in self._dirty.items():
            _put(self._kept, n, versions[-1])
        self._dirty.clear()
        self._kept_size = len(self.seen)
        self._sizes.clear()

    def fail_sync(self, choose: Choose) -> None:
        for n, versions in sorted(self._dirty.items()):
            _put(self._kept, n, _chosen("sector", [_sector(self._kept, n), *versions], choose))
        self._dirty.clear()

    def left(self, choose: Choose) -> bytes:
        """What a cut leaves of it."""
        size: int = _chosen("size", [self._kept_size, *self._sizes], choose)
        left = bytearray(self._kept)
        for n, versions in sorted(self._dirty.items()):
            if n * SECTOR < size:
                _put(left, n, _chosen("sector", [_sector(self._kept, n), *versions], choose))
        return bytes(left[:size].ljust(size, b"\0"))


class Directory:
    """Names, as programs see them and as the disk has them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: dict[str, Inode | Directory] = {}
        self.kept: dict[str, Inode | Directory] = {}


class Change(NamedTuple):
    """One entry of one directory: what its name is from now on."""

    directory: Directory
    name: str
    node: Inode | Directory | None


def _sector(data: bytearray, n: int) -> bytes:
    return bytes(data[n * SECTOR : (n + 1) * SECTOR]).ljust(SECTOR, b"\0")


def _put(data: bytearray, n: int, content: bytes) -> None:
    if len(data) < (n + 1) * SECTOR:
        data.extend(bytes((n + 1) * SECTOR - len(data)))
    data[n * SECTOR : (n + 1) * SECTOR] = content


def _chosen(what: str, versions: list[Any], choose: Choose) -> Any:
    distinct = [each for n, each in enumerate(versions) if n == 0 or each != versions[n - 1]]
    return distinct[choose(what, len(distinct))] if len(distinct) > 1 else distinct[0]


def apply(names: dict[str, Inode | Directory], change: Change) -> None:
    if change.node is None:
        names.pop(change.name, None)
    else:
        names[change.name] = change.node
