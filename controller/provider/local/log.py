"""The bounded log of a step: its first `HEAD` bytes as they come, and from then on the last `TAIL`, written at its end.

Not promised: the tail, should the supervisor be killed; anything at all on a full disk. A log never stops its step.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from controller.provider.local.places import make_directory

HEAD: Final = 1 << 20
TAIL: Final = 1 << 16


class Log:
    def __init__(self, path: str) -> None:
        """Raises OSError when it cannot be made."""
        make_directory(os.path.dirname(path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._room = max(0, HEAD - os.fstat(self._descriptor).st_size)
        self._tail = bytearray()
        self._beyond = 0
        self._open = True

    def write(self, output: bytes) -> None:
        if not self._open:
            return
        head, rest = output[: self._room], output[self._room :]
        self._put(head)
        self._room -= len(head)
        if rest:
            if not self._beyond:
                self._put(b"\n[the log is full; the last %d bytes follow when the step has ended]\n" % TAIL)
            self._beyond += len(rest)
            self._tail += rest
            del self._tail[:-TAIL]

    def finish(self) -> None:
        """Write what was kept of the end. What comes later is lost."""
        if not self._open:
            return
        self._open = False
        if self._beyond:
            self._put(b"[%d bytes are left out here]\n" % (self._beyond - len(self._tail)))
            self._put(bytes(self._tail))
        os.close(self._descriptor)

    def _put(self, output: bytes) -> None:
        with suppress(OSError):
            while output:
                output = output[os.write(self._descriptor, output) :]
