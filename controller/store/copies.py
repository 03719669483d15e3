"""Files that are written once and for all: durably, all at once, and never over anything.

Not promised: that a name is the one that was asked for: `keep` takes the first that nobody has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from threading import get_ident

from controller.model.errors import AlreadyThere, Refusal
from controller.store import disk


def keep(directory: Path, stem: str, suffix: str, data: bytes, *, now: int, unfinished: str = "") -> Path:
    """Write *data*, durably, to a file of *directory* under a name that nobody has; return that. Raises as `write`.

    *unfinished* is its name until then, for who holds the document: one that the next holder sweeps away.
    """
    with _written(directory / stem, data, unfinished) as temporary, disk.storing(directory / stem):
        made = fresh(directory, stem, suffix, now=now, source=temporary)
    _sync_directory(made)
    return made


def fresh(directory: Path, stem: str, suffix: str, *, now: int, source: Path) -> Path:
    """Give the file *source* another name, which nobody has. A link never replaces. Raises OSError."""
    moment = f"{datetime.fromtimestamp(now // 1000, UTC):%Y%m%dT%H%M%SZ}"
    for number in count():
        target = directory / f"{stem}-{moment}-{number}{suffix}"
        with suppress(FileExistsError):
            os.link(source, target)
            return target
    raise AssertionError("there is no last number")


def keep_once(directory: Path, stem: str, suffix: str, data: bytes, *, now: int) -> Path:
    """As `keep`, for who holds the document; what somebody who was killed then has kept already is not kept twice."""
    unfinished = f".controller.copy.tmp-{os.getpid()}"
    known = kept_before(directory, stem, suffix, data)
    return known or keep(directory, stem, suffix, data, now=now, unfinished=unfinished)


def kept_before(directory: Path, stem: str, suffix: str, data: bytes) -> Path | None:
    """The file that `keep` made of the very same bytes, synced once more. Raises StorageFailed."""
    for found in sorted(directory.glob(f"{stem}-*{suffix}")):
        with suppress(OSError):
            if found.read_bytes() != data:
                continue
            with disk.storing(found):
                handle = disk.Handle(os.open(found, os.O_RDONLY | os.O_CLOEXEC))
                os.fsync(handle.fd)
            _sync_directory(found)
            return found
    return None


def write(target: Path, data: bytes) -> Path:
    """Write *data* to *target*, durably and all at once: mode 0600, and only if nothing has that name.

    Raises AlreadyThere, Refusal (there is no such directory), NotOurs, StorageFailed.
    """
    with _written(target, data) as temporary, disk.storing(target):
        try:
            os.link(temporary, target)
        except FileExistsError as error:
            raise AlreadyThere(
                f"{target} is there already: nothing is overwritten", where=str(target), next="name another file"
            ) from error
    _sync_directory(target)
    return target


@contextmanager
def _written(target: Path, data: bytes, unfinished: str = "") -> Iterator[Path]:
    """A synced file with *data*, under a name that goes when it has got its own."""
    if not target.parent.is_dir():
        raise Refusal(f"there is no directory {target.parent}", where=str(target), next="make it, or name another file")
    # Not one of the names that whoever holds the document sweeps away: no lock is held here.
    temporary = target.with_name(unfinished or f".{target.name}.tmp-{os.getpid()}-{get_ident()}")
    try:
        handle = disk.create(temporary)
    except OSError as error:
        raise disk.denied(error, temporary) or disk.storage_failed(target, error) from error
    try:
        with disk.storing(target):
            disk.write_all(handle.fd, data)
            os.fsync(handle.fd)
        yield temporary
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def _sync_directory(path: Path) -> None:
    with disk.storing(path):
        disk.sync_directory(path.parent)
