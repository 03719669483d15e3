"""Exports: a whole fleet in one text file, to move it to another directory or host.

Not promised: that workers move with it. What a provider has stays where it is, and so does the original: two
directories of one fleet must not both be driven.

    {"export":1,"fleet":"builds","lineage":L,"epoch":"","revision":8,"at":A,"config":"..."}
    {"document":"<the sealed document, as text>"}
    {"revision":1,"n":1,"at":A,...}                     one line for each event of history, oldest first
    {"events":N,"digest":"<SHA-256 of every byte before this line>"}
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from controller.model.errors import Conflict, DocumentCorrupt, DocumentForeign
from controller.model.records import Document, Event
from controller.store import backups, checkpoint, codec, disk, journal
from controller.store.create import CONFIG, make_directory, refuse_signs
from controller.store.file import FileStore
from controller.store.restore import Restored, compare, go_on, named
from controller.store.segments import LEGACY as HISTORY

FORMAT: Final = 1


class _Header(Struct, frozen=True):
    export: int
    fleet: str = ""
    lineage: str = ""
    epoch: str = ""
    revision: int = 0
    at: int = 0
    config: str | None = None


class _Whole(Struct, frozen=True):
    document: str


class _Trailer(Struct, frozen=True):
    events: int
    digest: str


class Exported(Struct, frozen=True):
    """What an export holds. `at` is when it was made; `config` the settings that lay beside the document, if any."""

    held: backups.Held
    events: tuple[Event, ...]
    at: int
    config: str | None


def export(store: FileStore) -> tuple[bytes, Document, int]:
    """The bytes of an export, the document in it, and how many events of history. Takes no lock. Raises as `back_up`
    does.
    """
    document = backups.sound(store)
    # A commit may have landed since: what is newer than the document is no part of the export.
    events = [event for event in store.history() if event.revision <= document.revision]
    config = None
    with suppress(OSError, UnicodeDecodeError):
        config = (store.directory / CONFIG).read_bytes().decode()
    header = _Header(
        FORMAT, document.fleet, document.lineage, document.epoch, document.revision, store.clock.now_ms(), config
    )
    lines = [header, _Whole(codec.encode(document).decode()), *events]
    data = b"".join(codec.line_of(line) + b"\n" for line in lines)
    trailer = codec.line_of(_Trailer(len(events), hashlib.sha256(data).hexdigest()))
    return data + trailer + b"\n", document, len(events)


def read_export(path: Path) -> Exported:
    """What the export at *path* holds. Raises DocumentFault: missing, cut off, touched, or of a later format."""
    data = backups.read_file(path)
    try:
        header = msgspec.json.decode(data[: data.find(b"\n") + 1], type=_Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _broken(f"its first line is none of an export: {error}", path) from error
    if header.export > FORMAT:
        raise DocumentForeign(
            f"the export is of format {header.export}; this program reads format {FORMAT}",
            where=str(path),
            next="use the newer controller that wrote it; nothing was changed",
        )
    begin = data.rfind(b"\n", 0, len(data) - 1) + 1
    try:
        trailer = msgspec.json.decode(data[begin:], type=_Trailer)
        if hashlib.sha256(data[:begin]).hexdigest() != trailer.digest or not data.endswith(b"\n"):
            raise _broken("its digest does not match: it is cut off, or was touched", path)
        lines = data[:begin].split(b"\n")[1:-1]
        document = msgspec.json.decode(lines[0], type=_Whole).document.encode()
        events = tuple(msgspec.json.decode(line, type=Event) for line in lines[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError) as error:
        raise _broken(f"it is cut off, or was touched: {error}", path) from error
    decoded = codec.decode(document, str(path))
    if decoded.edited or len(events) != trailer.events:
        raise _broken("what it holds is not what was written", path)
    held = backups.Held(path, decoded.document, decoded.legacy, decoded.digest, len(data))
    return Exported(held, events, header.at, header.config)


def is_export(path: Path) -> bool:
    """Whether the file begins as an export does. Raises DocumentFault when it cannot be read."""
    return backups.read_file(path).startswith(b'{"export":')


def take_in(store: FileStore, file: Path, *, epoch: str, acknowledge: bool, told: str, timeout: float) -> Restored:
    """Make the directory of *store*, which must hold nothing yet, go on from the export in *file*, in a new *epoch*.

    Settings that lie there already are kept. Raises AlreadyThere (it shows signs of an earlier life), Conflict (workers
    or parked actions, without *acknowledge*: the original may have them, too), DocumentFault, and what a hold raises. A
    killed import is finished by the same one.
    """
    exported = read_export(file)
    document, events = exported.held.document, exported.events
    lines = b"".join(codec.line_of(event) + b"\n" for event in events)
    compared = compare(document, None, events)
    if compared.over and not acknowledge:
        first = "; ".join(named(over) for over in compared.over[:4])
        raise Conflict(
            f"nothing was imported: the fleet has what its old directory may go on driving: {first}",
            where=str(file),
            next=f"stop everything that uses the old one, then controller state import {file} --acknowledge",
        )
    _refuse(store.directory, lines)
    make_directory(store.directory)
    with store.tenure(timeout, founding=True) as hold:
        _refuse(store.directory, lines)
        checkpoint.sweep(store.directory, None)
        made = go_on(store, document, None, events, compared, epoch=epoch, event="imported", file=file, told=told)
        if exported.config is not None and not os.path.lexists(store.directory / CONFIG):
            disk.write_new(store.directory / CONFIG, exported.config.encode())
        if lines:
            disk.write_new(store.directory / HISTORY, lines)
        made = hold.replace(None, made)
    return Restored(made, True, document, compared)


def _refuse(directory: Path, lines: bytes) -> None:
    """Raise AlreadyThere for any sign of an earlier life, but for what this very import has left when it was killed."""
    ours: set[str] = set()
    with suppress(OSError):
        if (directory / HISTORY).read_bytes() == lines:
            blank = (path.name for path in directory.glob(f"{journal.PREFIX}*") if journal.is_blank(path))
            ours = {HISTORY, *blank}
    refuse_signs(directory, but=frozenset(ours))


def _broken(what: str, path: Path) -> DocumentCorrupt:
    return DocumentCorrupt(
        f"the export cannot be used: {what}", where=str(path), next="nothing was changed; make another export"
    )
