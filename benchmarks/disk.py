"""What the disk itself takes: the least that a durable commit can cost.

Not promised: anything about a disk that does not sync.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from benchmarks.measuring import blocks, middle

APPEND: Final = "append"
AHEAD: Final = "append_ahead"
_LINE: Final = b"x" * 299 + b"\n"
_CHUNK: Final = 1 << 20


class Appending:
    """Each call appends 300 bytes to a file and syncs them. *ahead*: to space that was taken 1 MiB at a time."""

    def __init__(self, path: Path, *, ahead: bool) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._ahead = ahead
        self._size = self._taken = 0

    def __call__(self) -> None:
        if self._ahead and self._size + len(_LINE) > self._taken:
            os.posix_fallocate(self._file, self._taken, _CHUNK)
            self._taken += _CHUNK
        self._size += os.pwrite(self._file, _LINE, self._size)
        os.fdatasync(self._file)


def appending(place: Path) -> dict[str, Appending]:
    return {APPEND: Appending(place / "append", ahead=False), AHEAD: Appending(place / "append-ahead", ahead=True)}


def syncs(place: Path, *, quick: bool) -> dict[str, float]:
    """Milliseconds of one append with its fdatasync, in both ways."""
    taken = blocks(appending(place), 1 if quick else 20, most=4 if quick else 50)
    return {f"{side}_ms": round(middle(taken[side]), 4) for side in taken}
