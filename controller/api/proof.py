"""A release proof as a file: who may have written it, and how much of it is read.

Not promised: that nobody else wrote it. What is made sure of is that it is a file of the caller's own, or root's, which
nobody else may write to now; directories above it are the caller's business.

Every check is made on the open file, never on its name: what stands under a name may change in between. Nothing here
waits, whatever the name leads to.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from controller.api.words import brief
from controller.engine.proof import parse
from controller.model.errors import ProofRefused, UsageFault
from controller.store.disk import Handle, owner_name, says

LARGEST: Final = 64 << 10
"""Bytes of a proof."""
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_proof(path: Path) -> Mapping[str, object]:
    """The JSON object in the file at *path*, for `engine.release.release`.

    Raises UsageFault where there is none, also for a name that is too long for one, ProofRefused for a symbolic link,
    anything but a regular file, more than `LARGEST` bytes, an owner that is neither the caller nor root, a mode that
    lets others write, and what is not strict JSON.
    """
    return parse(_bytes(path), brief(path))


def _bytes(path: Path) -> bytes:
    try:
        handle = Handle(os.open(path, _FLAGS))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise UsageFault("there is no such file", where=brief(path), next="check --proof") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageFault("no file has so long a name", where=brief(path), next="check --proof") from error
        if os.path.islink(path):  # unlike Path.is_symlink it raises nothing
            raise _refused("it is a symbolic link", path, "name the file that it leads to") from error
        raise _refused(f"it cannot be read: {says(error)}", path, "give a regular file of your own") from error
    try:
        _check(os.fstat(handle.fd), path)
        return _content(handle.fd, path)
    except OSError as error:
        raise _refused(f"it cannot be read: {says(error)}", path, "give a regular file of your own") from error
    finally:
        handle.close()


def _check(status: os.stat_result, path: Path) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise _refused("it is no regular file", path, "write the proof to a file, and name that")
    if status.st_uid not in (os.geteuid(), 0):
        raise _refused(
            f"it belongs to {owner_name(status.st_uid)}, and this is {owner_name(os.geteuid())}",
            path,
            "whoever releases signs for the proof: look at it, and make a file of your own of it",
        )
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _refused(f"others may write to it (mode {mode:04o})", path, f"look at it, then chmod go-w {path}")
    if status.st_size > LARGEST:
        raise _too_large(path)


def _content(fd: int, path: Path) -> bytes:
    data = b""
    while len(data) <= LARGEST and (part := os.read(fd, LARGEST + 1 - len(data))):
        data += part
    if len(data) > LARGEST:
        raise _too_large(path)
    return data


def _too_large(path: Path) -> ProofRefused:
    return _refused(f"it is larger than {LARGEST} bytes", path, "a proof is a few lines; check --proof")


def _refused(what: str, path: Path, then: str) -> ProofRefused:
    return ProofRefused(f"not taken as a proof: {what}", where=brief(path), next=then)
