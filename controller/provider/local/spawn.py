"""How a supervisor starts: detached from whoever started it, with nothing of its starter but the lock.

The interpreter is spawned (not forked: the caller may have threads) in a session of its own, forks once more and
leaves, so that the supervisor belongs to init, has no controlling terminal and is in nobody's foreground group. Its
standard streams are not the caller's, every other descriptor is closed, signals are as new, and its working directory
is the worker's own.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from controller.provider.local.places import ERRORS
from controller.provider.local.supervisor import LOCK_DESCRIPTOR, READY_DESCRIPTOR

_ROOT: Final = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
_PROGRAM: Final = (
    "import os, sys; os.fork() and os._exit(0); os.setsid(); sys.path = sys.argv[2:]; "
    "sys.modules['typing_extensions'] = None; "
    "from controller.provider.local.supervisor import main; main(sys.argv[1])"
)
"""msgspec takes typing_extensions where it finds it and does without where it does not, 11 ms faster."""


def _search_path() -> list[str]:
    """Where this process finds modules, and so where the supervisor does, however they were installed."""
    found = [os.path.abspath(entry) for entry in sys.path if entry]
    return found if _ROOT in found else [*found, _ROOT]


def spawn(directory: str, lock: int, python: str, environment: Mapping[str, str]) -> tuple[int, int]:
    """Start the supervisor of *directory* and hand it *lock*. Raises OSError.

    Returns the pid of the process that only forks, which the caller must reap, and a descriptor that brings one byte
    once the supervisor listens, or its end when that will never happen.
    """
    ready, ready_end = os.pipe2(os.O_CLOEXEC)
    # Out of the way of the numbers they are about to get: a descriptor must not be overwritten before it is copied.
    lock_copy, ready_copy = _copy_high(lock), _copy_high(ready_end)
    os.close(ready_end)
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (
            os.POSIX_SPAWN_OPEN,
            2,
            os.path.join(directory, ERRORS),
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW,
            0o600,
        ),
        (os.POSIX_SPAWN_DUP2, lock_copy, LOCK_DESCRIPTOR),
        (os.POSIX_SPAWN_DUP2, ready_copy, READY_DESCRIPTOR),
    ]
    try:
        pid = os.posix_spawn(
            python,
            [python, "-I", "-S", "-X", "utf8", "-c", _PROGRAM, directory, *_search_path()],
            environment,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
    except BaseException:
        os.close(ready)
        raise
    finally:
        os.close(lock_copy)
        os.close(ready_copy)
    return pid, ready


def last_error(directory: str) -> str:
    """The last line that a supervisor left when it failed."""
    with suppress(OSError), open(os.path.join(directory, ERRORS), errors="replace") as file:
        lines = file.read()[-4096:].strip().splitlines()
        return lines[-1] if lines else ""
    return ""


def _copy_high(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, READY_DESCRIPTOR + 1)
