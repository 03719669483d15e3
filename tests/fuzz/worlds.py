"""State directories to mutate: what lies in them, and every document and event that was ever committed to them."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from controller.clock import FakeClock
from controller.model.edit import MAPS, Edit
from controller.model.records import Document, Event
from controller.store import codec
from controller.store.create import initialise
from controller.store.file import FileStore
from tests.engine.fsck_world import sound
from tests.store import kit

LEGACY: Final = "history.jsonl"
NAMES: Final = ("journal", "folded", "large", "torn", "legacy", "schema1", "continued")


BIG: Final = Raw(b'"%b"' % (b"x" * 300_000))
"""A payload that makes a document so large that its records are not decoded before they are touched."""


class Place(Struct, frozen=True):
    """A state directory as bytes. `chain` are its files of history, oldest first, the journal in use last."""

    name: str
    files: dict[str, bytes]
    chain: tuple[str, ...]
    documents: dict[int, Document]
    """By revision: what was committed."""
    events: tuple[Event, ...]

    def put(self, directory: Path, changes: dict[str, bytes | None]) -> None:
        """Lay the files down, with these *changes* (None: it is not there)."""
        directory.mkdir(mode=0o700)
        for name, data in (self.files | changes).items():
            if data is not None:
                (directory / name).write_bytes(data)


def opened(directory: Path) -> FileStore:
    return FileStore(directory, clock=FakeClock(kit.NOW + 10**6), whoami=kit.ME, command="fuzz")


def difference(before: Document, after: Document) -> Edit:
    """The edit that made *after* of *before*."""
    sections: dict[str, Any] = {}
    for name in MAPS:
        old, new = dict(getattr(before, name)), dict(getattr(after, name))
        gone: dict[Any, Any] = {key: None for key in old if key not in new}
        sections[name] = gone | {key: record for key, record in new.items() if old.get(key) != record}
    added = after.troubles[len(before.troubles) :]
    draining = None if after.draining == before.draining else after.draining
    return Edit(**sections, troubles=added, counters=after.counters, draining=draining, events=after.events)


@cache
def world(name: str) -> Place:
    """One of `NAMES`."""
    home = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        return _made(home / "s", name)
    finally:
        shutil.rmtree(home)


def _made(directory: Path, name: str) -> Place:
    if name == "schema1":
        return _legacy(directory, name, kit.schema1(), b"")
    story = sound()
    if name == "legacy":
        lines = b"".join(codec.line_of(event) + b"\n" for event in story.events)
        return _legacy(directory, name, codec.encode(story.document), lines)
    clock = FakeClock(kit.NOW)
    if name == "continued":
        lines = b"".join(codec.line_of(event) + b"\n" for event in story.events)
        _legacy(directory, name, codec.encode(story.document), lines)
        store = FileStore(directory, clock=clock, whoami=kit.ME, command="test")
        told = [*story.events]
        documents = {story.document.revision: story.document}
    else:
        store = initialise(
            directory, fleet="f", lineage="l", config_text="", clock=clock, whoami=kit.ME, command="init"
        )
        first = store.read().document
        told, documents = [*first.events], {1: first}
        for number, after in enumerate(story.earlier[1:]):
            clock.advance(1)
            edit = difference(store.read().document, after)
            _commit(store, edit, told, documents)
            if name == "folded" and number in (2, 6, 10):
                store.fold()
        if name == "large":
            big = kit.submitting(store.read().document, "big")
            run = big.runs["big"]
            assert run is not None
            _commit(store, replace(big, runs={"big": replace(run, payload=BIG)}), told, documents)
            store.fold()
    for number in range(3):
        clock.advance(1)
        _commit(store, kit.submitting(store.read().document, f"late-{number}"), told, documents)
    files = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    files.pop("controller.lock")
    last = kit.journal_of(directory).name
    if name == "torn":
        kept = files[last].rstrip(b"\0").splitlines(keepends=True)[-1]
        files[last] = files[last].rstrip(b"\0") + kept[: len(kept) // 2]
    else:
        files[last] = files[last].rstrip(b"\0") + b"\0" * 64
    chain = tuple(each for each in _in_order(files) if each != last)
    return Place(name, files, (*chain, last), documents, tuple(told))


def _commit(store: FileStore, edit: Edit, told: list[Event], documents: dict[int, Document]) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        if loaded.document.revision not in documents:  # a migration came first
            documents[loaded.document.revision] = loaded.document
            told += loaded.document.events
        made = hold.commit(loaded, edit)
    documents[made.revision] = made
    told += made.events


def _in_order(files: dict[str, bytes]) -> list[str]:
    def place(name: str) -> tuple[int, int]:
        head, _, rest = name.removesuffix(".jsonl").partition("-")
        return (-1, 0) if not rest else (int(rest.partition("-")[0]), head == "journal")

    return sorted((name for name in files if name.endswith(".jsonl") and name != "refusals.jsonl"), key=place)


def _legacy(directory: Path, name: str, data: bytes, lines: bytes) -> Place:
    directory.mkdir(mode=0o700)
    (directory / "controller.json").write_bytes(data)
    if lines:
        (directory / LEGACY).write_bytes(lines)
    document = kit.opened(directory).read().document
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    events = tuple(msgspec.json.decode(line, type=Event) for line in lines.splitlines()) or document.events
    return Place(name, files, (LEGACY,) if lines else (), {document.revision: document}, events)


# --- The oracle: nothing of the program that is judged ----------------------------------------------------------------


def good_lines(data: bytes) -> int:
    """How many lines of a journal stand there as they were written, each following the one before it."""
    previous, count = None, 0
    for line in data.partition(b"\0")[0].split(b"\n")[:-1]:
        body, _, seal = line.rpartition(b',"digest":"')
        digest = hashlib.sha256(body).hexdigest()
        if seal != digest.encode() + b'"}':
            break
        if previous is not None and b',"previous":"%b"' % previous.encode() not in body[-100:]:
            break
        previous, count = digest, count + 1
    return count
