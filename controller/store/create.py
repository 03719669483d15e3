"""`init`: a new state directory. The only place that makes one.

Not promised: that a killed `init` leaves nothing. It leaves either a document or something that the same `init`
completes.

Missing is not new: a directory that shows any sign of an earlier life is refused, even when its document is gone. The
configuration is written first and the document last, so what has a document is whole.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import structs

from controller.clock import Clock
from controller.model.errors import AlreadyThere, RevisionMoved
from controller.model.process import ProcessIdentity
from controller.model.records import INITIALISED, Event, new_document
from controller.store import checkpoint, disk, journal
from controller.store.directory import DOCUMENT, SIGN_PREFIXES, SIGNS
from controller.store.file import FileStore

CONFIG: Final = "controller.toml"


def initialise(
    directory: Path,
    *,
    fleet: str,
    lineage: str,
    config_text: str,
    clock: Clock,
    whoami: ProcessIdentity,
    command: str,
    timeout: float = 10.0,
) -> FileStore:
    """Make *directory* (and missing parents) a state directory at revision 1: mode 0700, files 0600, whatever the
    umask.

    A directory that is there and empty is fine and becomes 0700; one that holds other things keeps its mode. Raises
    AlreadyThere, NotOurs, StorageFailed, DurabilityFailed and what `FileStore.hold` raises.
    """
    refuse_signs(directory)
    make_directory(directory)
    store = FileStore(directory, clock=clock, whoami=whoami, command=command)
    with store.tenure(timeout, founding=True) as hold:
        refuse_signs(directory)
        checkpoint.sweep(directory, None)
        _write_config(directory / CONFIG, config_text)
        event = Event(1, 1, clock.now_ms(), command, "fleet", INITIALISED, key=lineage, detail=f"fleet {fleet}")
        try:
            hold.replace(None, structs.replace(new_document(fleet, lineage), revision=1, events=(event,)))
        except RevisionMoved as error:
            raise _already(directory / DOCUMENT) from error
    return store


def refuse_signs(directory: Path, *, but: frozenset[str] = frozenset()) -> None:
    """Raise AlreadyThere for any sign of an earlier life, *but* for what has one of these names."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise _already(directory) from error
    except OSError as error:
        raise disk.denied(error, directory) or disk.storage_failed(directory, error) from error
    disk.refuse_foreign_root(directory, os.stat(directory).st_uid)
    # An init that was killed leaves the document half written beside a journal that says nothing yet.
    begun = any(name.startswith(disk.TEMPORARY) for name in names) and DOCUMENT not in names
    for name in names:
        if begun and journal.parse_name(name) == (1, 0) and journal.is_blank(directory / name):
            continue
        if name not in but and (name == DOCUMENT or name in SIGNS or name.startswith(SIGN_PREFIXES)):
            raise _already(directory / name)


def _already(path: Path) -> AlreadyThere:
    return AlreadyThere(
        f"{path} is there already" + ("" if path.name == DOCUMENT else ": a missing document is not a new one"),
        where=str(path.parent),
        next="controller status" if path.name == DOCUMENT else "put the document back, or choose another directory",
    )


def make_directory(directory: Path) -> None:
    """The directory, private, with its missing parents (as the umask has them); every new entry synced."""
    try:
        made = []
        path = directory.absolute()
        while not path.exists():
            made.append(path)
            path = path.parent
        for path in reversed(made):
            os.makedirs(path, exist_ok=True)
        if not os.listdir(directory):
            os.chmod(directory, disk.PRIVATE_DIRECTORY)
        for path in made:
            disk.sync_directory(path.parent)
        for path in (directory.absolute(), *directory.absolute().parents):
            if path not in made:  # an init that was killed may have made it
                with suppress(OSError):
                    disk.sync_directory(path.parent)
    except OSError as error:
        raise disk.denied(error, directory) or disk.storage_failed(directory, error) from error


def _write_config(path: Path, text: str) -> None:
    """What is there already stays if it says the same: an init that was killed may have written it."""
    data = text.encode()
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        disk.write_new(path, data)
        return
    except OSError as error:
        raise disk.denied(error, path) or disk.storage_failed(path, error) from error
    if found != data:
        raise AlreadyThere(
            f"{path} is there already and says something else",
            where=str(path),
            next="remove it, or choose another directory; nothing was overwritten",
        )
