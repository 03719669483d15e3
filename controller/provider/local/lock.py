"""The kernel lock of a worker directory: held means that its supervisor lives, or that somebody is ending what it left.

Not promised: fairness. It is only ever tried, never waited for.

`fcntl.flock` itself and not filelock: a supervisor has to start fast, and the lock goes with the descriptor to the
process that is to hold it, so that no moment lies between the one who found it free and the supervisor that he
starts.
"""

from __future__ import annotations

import fcntl
import os

from controller.provider.local.places import LOCK


def try_lock(directory: str) -> int | None:
    """A descriptor that holds the lock of *directory*; None while somebody else does.

    Never makes the file: one that is missing says that the directory is damaged, not that nobody lives. Raises OSError.
    """
    descriptor = os.open(os.path.join(directory, LOCK), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_lock_of(descriptor: int, directory: str) -> bool:
    """Whether the lock that *descriptor* holds is still the one that others would find in *directory*."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(os.path.join(directory, LOCK)))
    except OSError:
        return False
