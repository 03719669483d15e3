"""Backups: one consistent document in a file of its own, and what such a file holds.

Not promised: that a backup knows what came after it. What was made since is there, costs money, and is not in it: that
is what a restore is careful about (`store.restore`).

A backup is a document as `store.codec` has it, sealed by its digest, without a journal. It is taken of what a reader
sees, so it waits for nobody and nobody waits for it; written under a temporary name, synced, and only then linked to
its own: a copy that was killed is never taken for a backup, and a link never replaces what is there.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from msgspec import Struct

from controller.model.errors import DocumentCorrupt, DocumentFault, EditedOutside
from controller.model.invariants import AT_REST, Violation, violations
from controller.model.records import Document
from controller.store import codec, copies, disk
from controller.store.file import FileStore


class Kept(Struct, frozen=True):
    """A backup that was made. `digest` is the one that its bytes carry, `size` is in bytes."""

    path: Path
    document: Document
    digest: str
    size: int


class Held(Struct, frozen=True):
    """What a file holds. `legacy`: it is of an older schema, and was migrated in memory. `digest` "": it has none."""

    path: Path
    document: Document
    legacy: bool
    digest: str
    size: int

    @property
    def violations(self) -> tuple[Violation, ...]:
        return tuple(each for each in violations(self.document) if each.id not in AT_REST)


def back_up(store: FileStore, target: Path | None) -> Kept:
    """Write what *store* holds to *target*, or to a fresh name beside the document: mode 0600, nothing overwritten.

    Takes no lock. Raises DocumentFault, EditedOutside (nobody knows what such a copy would be worth), AlreadyThere,
    Refusal (there is no such directory), NotOurs, StorageFailed.
    """
    document = sound(store)
    data = codec.encode(document)
    if target is None:
        disk.refuse_foreign_root(store.directory, os.stat(store.directory).st_uid)
        made = copies.keep(store.directory, f"backup-{document.revision}", ".json", data, now=store.clock.now_ms())
    else:
        made = copies.write(target, data)
    return Kept(made, document, codec.decode(data, str(made)).digest, len(data))


def sound(store: FileStore) -> Document:
    """The document, if nobody else wrote it."""
    snapshot = store.read()
    if snapshot.edited:
        raise EditedOutside(
            "the document was edited by something else than controller: a copy of it would prove nothing",
            where=str(store.path),
            next="`controller fsck` judges it, `controller state accept` takes it over",
        )
    return snapshot.document


def read_backup(path: Path) -> Held:
    """What the backup at *path* holds. Raises DocumentFault: it is missing, no regular file, broken or of a newer
    schema.
    """
    data = read_file(path)
    if data.startswith(b'{"export":'):
        raise DocumentCorrupt(
            f"{path} is an export, not a backup", where=str(path), next=f"controller state import {path}"
        )
    decoded = codec.decode(data, str(path))
    if decoded.edited:
        found = decoded.document
        raise DocumentCorrupt(
            f"the backup is not as it was written: its digest does not match "
            f"(it says that it is revision {found.revision} of fleet {found.fleet})",
            where=str(path),
            next="nothing was changed; take another backup",
        )
    return Held(path, decoded.document, decoded.legacy, decoded.digest, len(data))


def read_file(path: Path) -> bytes:
    """The bytes of a regular file; a pipe or a device is refused, not waited for."""
    try:
        handle = disk.Handle(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        if not stat.S_ISREG(os.fstat(handle.fd).st_mode):
            raise DocumentFault(
                f"{path} is not a regular file", where=str(path), next="name a file; nothing was changed"
            )
        return disk.read_all(handle.fd)
    except OSError as error:
        raise disk.denied(error, path) or disk.unreadable(path, error) from error
