"""Backups: whole or not there, nothing overwritten, and judged before anybody believes them."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from controller.model.errors import (
    AlreadyThere,
    DocumentCorrupt,
    DocumentFault,
    DocumentForeign,
    EditedOutside,
    Refusal,
)
from controller.store import codec, copies, exports
from controller.store.backups import back_up, read_backup
from controller.store.exports import export, read_export
from controller.store.file import FileStore
from tests.store import kit


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    made = kit.fleet(tmp_path / "s")
    kit.submit(made, "r-1")
    return made


def test_a_backup_is_the_sealed_document_and_reads_back_as_it(store: FileStore, tmp_path: Path) -> None:
    made = back_up(store, tmp_path / "b.json")
    held = read_backup(tmp_path / "b.json")
    assert held.document == store.read().document == made.document
    assert held.digest == made.digest != ""
    assert held.violations == ()
    assert "journal" not in json.loads((tmp_path / "b.json").read_bytes())


def test_without_a_name_it_gets_one_beside_the_document_that_nothing_overwrites(store: FileStore) -> None:
    first, second = back_up(store, None), back_up(store, None)
    assert first.path != second.path
    assert first.path.parent == store.directory
    assert first.path.name.startswith(f"backup-{first.document.revision}-")
    assert first.path.read_bytes() == second.path.read_bytes()
    assert not [name for name in kit.files(store.directory) if ".tmp-" in name]


def test_a_backup_is_for_its_owner_alone_whatever_the_umask(store: FileStore, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = back_up(store, tmp_path / "b.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_what_is_there_is_never_overwritten(store: FileStore, tmp_path: Path, kind: str) -> None:
    target, other = tmp_path / "b.json", tmp_path / "other"
    if kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to(other)
        if kind == "link":
            other.write_text("mine")
    before = kit.snapshot_of(tmp_path)
    with pytest.raises(AlreadyThere):
        back_up(store, target)
    assert kit.snapshot_of(tmp_path) == before
    assert not (kind == "dangling" and other.exists())


def test_a_directory_that_is_not_there_is_not_made(store: FileStore, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="no directory"):
        back_up(store, tmp_path / "none" / "b.json")
    assert not (tmp_path / "none").exists()


def test_an_edited_document_is_not_backed_up(store: FileStore, tmp_path: Path) -> None:
    kit.edit_file(store.directory, lambda content: content.update(draining=True))
    for act in (lambda: back_up(kit.opened(store.directory), tmp_path / "b.json"), lambda: export(store)):
        with pytest.raises(EditedOutside):
            act()
    assert not (tmp_path / "b.json").exists()


def test_a_backup_needs_no_lock(store: FileStore, tmp_path: Path) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        made = back_up(kit.opened(store.directory), tmp_path / "b.json")
    assert made.document == loaded.document


def test_while_others_write_every_backup_is_one_whole_revision(store: FileStore, tmp_path: Path) -> None:
    over = threading.Event()

    def write() -> None:
        writer = kit.opened(store.directory)
        for n in range(40):
            kit.submit(writer, f"more-{n}")
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    taken = 0
    while not over.is_set() or not taken:
        held = read_backup(back_up(kit.opened(store.directory), tmp_path / f"{taken}.json").path)
        assert held.violations == ()
        assert len(held.document.runs) == held.document.revision - 1, "each revision adds one run"
        taken += 1
    writer.join()
    assert taken


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: bytes(4096),
        lambda data: data[: len(data) // 2],
        lambda data: data + b"}",
        lambda data: data.replace(b"r-1", b"r-2"),
        lambda data: data[:-70] + b"0" + data[-69:],
    ],
    ids=["empty", "zeros", "half", "more", "touched", "digest"],
)
def test_a_broken_backup_is_refused(store: FileStore, tmp_path: Path, spoil: object) -> None:
    path = back_up(store, tmp_path / "b.json").path
    data = path.read_bytes()
    path.write_bytes(spoil(data))  # type: ignore[operator]
    with pytest.raises(DocumentCorrupt) as refused:
        read_backup(path)
    assert refused.value.where == str(path)


def test_a_newer_schema_is_refused_as_newer(store: FileStore, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(codec.encode(store.read().document).replace(b'"schema":2', b'"schema":3'))
    with pytest.raises(DocumentForeign):
        read_backup(path)


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null"), tmp_path / "none"):
        with pytest.raises(DocumentFault):
            read_backup(path)


def test_a_backup_of_schema_1_is_read_as_what_it_stands_for(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(kit.schema1())
    held = read_backup(path)
    assert (held.legacy, held.document.revision, list(held.document.runs)) == (True, 7, ["r-1"])


def test_a_kept_copy_is_found_by_its_bytes(tmp_path: Path) -> None:
    first = copies.keep(tmp_path, "backup-1", ".json", b"x", now=kit.NOW)
    assert copies.kept_before(tmp_path, "backup-1", ".json", b"x") == first
    assert copies.kept_before(tmp_path, "backup-1", ".json", b"y") is None
    second = copies.keep(tmp_path, "backup-1", ".json", b"y", now=kit.NOW)
    assert (first.name, second.name) == ("backup-1-20231114T221320Z-0.json", "backup-1-20231114T221320Z-1.json")


def test_an_export_holds_document_settings_and_the_whole_history(store: FileStore, tmp_path: Path) -> None:
    data, document, events = export(store)
    path = copies.write(tmp_path / "e.jsonl", data)
    found = read_export(path)
    assert found.held.document == document == store.read().document
    assert found.events == store.history()
    assert events == len(found.events)
    assert found.config == (store.directory / "controller.toml").read_text()
    assert all(json.loads(line) for line in data.splitlines())
    assert exports.is_export(path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[: data.rfind(b"\n", 0, -1) + 1],
        lambda data: data[:-5],
        lambda data: data.replace(b"submitted", b"Submitted"),
        lambda data: b"".join(data.splitlines(keepends=True)[:2] + data.splitlines(keepends=True)[3:]),
        lambda data: b'{"export":1}\n',
    ],
    ids=["no end", "torn", "touched", "a line less", "header alone"],
)
def test_a_broken_export_is_refused(store: FileStore, tmp_path: Path, spoil: object) -> None:
    path = copies.write(tmp_path / "e.jsonl", spoil(export(store)[0]))  # type: ignore[operator]
    with pytest.raises(DocumentCorrupt):
        read_export(path)


def test_an_export_is_no_backup_and_the_way_to_use_it_is_named(store: FileStore, tmp_path: Path) -> None:
    path = copies.write(tmp_path / "e.jsonl", export(store)[0])
    with pytest.raises(DocumentCorrupt) as refused:
        read_backup(path)
    assert refused.value.next == f"controller state import {path}"


def test_an_export_of_a_later_format_is_refused_as_later(store: FileStore, tmp_path: Path) -> None:
    path = copies.write(tmp_path / "e.jsonl", export(store)[0].replace(b'{"export":1', b'{"export":2'))
    with pytest.raises(DocumentForeign):
        read_export(path)
