"""Refused commands, noted best-effort for `explain`: they changed nothing, so document and history do not know them.

Not promised: that every refusal is there. Notes are taken without a lock; two writers at once may lose one.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from controller.store import disk

FILE: Final = "refusals.jsonl"
KEPT: Final = 200
"""How many are kept. The file is rewritten with the last of them once it holds more than twice as many."""
_LONGEST: Final = 500


def note(directory: Path, now: int, command: str, code: str, what: str, subject: str) -> None:
    """Append one note. Never raises, makes no directory, and leaves no file of root's in a user's directory."""
    record = {"at": now, "command": command, "code": code, "what": what[:_LONGEST], "subject": subject[:_LONGEST]}
    with suppress(OSError, ValueError, TypeError):
        if os.geteuid() == 0 and os.stat(directory).st_uid != 0:
            return
        path = directory / FILE
        handle = disk.opened(path, os.O_APPEND)
        disk.write_all(handle.fd, msgspec.json.encode(record) + b"\n")
        lines = disk.read_all(handle.fd).splitlines(keepends=True)
        if len(lines) > 2 * KEPT:
            temporary = directory / f".{FILE}.tmp-{os.getpid()}"
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            handle = disk.create(temporary)
            disk.write_all(handle.fd, b"".join(lines[-KEPT:]))
            os.rename(temporary, path)


def last(directory: Path, limit: int) -> tuple[dict[str, object], ...]:
    """The last *limit* notes, newest last. Missing or unreadable is empty; a line that is no note is left out."""
    try:
        handle = disk.Handle(os.open(directory / FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        if not stat.S_ISREG(os.fstat(handle.fd).st_mode):
            return ()
        lines = disk.read_all(handle.fd).splitlines()
    except OSError:
        return ()
    found: list[dict[str, object]] = []
    for line in reversed(lines):
        if len(found) >= limit:
            break
        with suppress(msgspec.MsgspecError, ValueError):
            found.append(msgspec.json.decode(line, type=dict[str, object]))
    return tuple(reversed(found))
