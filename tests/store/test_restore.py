"""`state restore` on disk: what stood there is kept, history goes on in one line, and a refusal changes nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.model.errors import (
    Conflict,
    DocumentCorrupt,
    DocumentForeign,
    DocumentMissing,
    EditedOutside,
    HistoryAhead,
    InvariantBroken,
    Refusal,
)
from controller.model.records import Event
from controller.store import backups, codec
from controller.store.backups import back_up
from controller.store.file import FileStore
from controller.store.restore import Restored, beside, restore
from tests.store import kit


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    store = kit.fleet(tmp_path / "s")
    kit.submit(store, "r-1")
    return tmp_path / "s"


@pytest.fixture
def store(directory: Path) -> FileStore:
    return kit.opened(directory, command="state restore")


def bring(store: FileStore, file: Path | None, *, epoch: str = "e1", acknowledge: bool = False) -> Restored:
    return restore(store, file, epoch=epoch, acknowledge=acknowledge, timeout=1)


def park(store: FileStore, slot: int = 3) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        hold.commit(loaded, kit.parking(loaded.document, slot))


def sound(directory: Path) -> bool:
    """History can be read from its first line to its last, and the document is where it ends."""
    again = kit.opened(directory)
    again.past.verify()
    return gapless(again.history()) and again.history()[-1].revision == again.read().document.revision


def gapless(events: tuple[Event, ...]) -> bool:
    revisions = list(dict.fromkeys(event.revision for event in events))
    return revisions == list(range(1, len(revisions) + 1))


def test_a_restore_is_the_next_revision_and_history_goes_on(store: FileStore, tmp_path: Path) -> None:
    file = back_up(store, tmp_path / "b.json").path
    kit.submit(store, "r-2", "r-3")
    made = bring(store, file)
    assert (made.brought.revision, made.compared.last, made.document.revision) == (2, 3, 4)
    found = kit.opened(store.directory).read()
    assert found.document == made.document
    assert list(found.document.runs) == ["r-1"]
    assert found.document.epoch == "e1"
    assert sound(store.directory)
    kit.submit(kit.opened(store.directory), "r-9")


def test_what_stood_there_is_kept_and_can_be_restored_in_turn(store: FileStore, tmp_path: Path) -> None:
    file = back_up(store, tmp_path / "b.json").path
    kit.submit(store, "r-2")
    made = bring(store, file)
    assert made.kept is not None
    again = bring(kit.opened(store.directory), made.kept, epoch="e2")
    assert list(again.document.runs) == ["r-1", "r-2"]
    assert (again.document.epoch, again.document.revision) == ("e2", 5)


def test_what_stands_there_is_not_restored_over_itself(store: FileStore, tmp_path: Path) -> None:
    file = back_up(store, tmp_path / "b.json").path
    before = kit.snapshot_of(store.directory)
    for each in (file, None):
        assert not bring(store, each).changed
    assert kit.snapshot_of(store.directory) == before


def test_a_dry_run_changes_nothing_and_says_what_would_be(store: FileStore, tmp_path: Path) -> None:
    file = back_up(store, tmp_path / "b.json").path
    park(store)
    before = kit.snapshot_of(store.directory)
    made = restore(store, file, epoch="e1", acknowledge=False, dry_run=True, timeout=1)
    assert [(over.slot, over.lost) for over in made.compared.over] == [(3, True), (3, True)]
    assert kit.snapshot_of(store.directory) == before


@pytest.mark.parametrize("where", ["in what is brought", "in what stands there"])
def test_parked_actions_and_workers_are_gone_back_over_only_on_purpose(
    store: FileStore, tmp_path: Path, where: str
) -> None:
    if where == "in what is brought":
        park(store)
    file = back_up(store, tmp_path / "b.json").path
    if where != "in what is brought":
        park(store)
    kit.submit(store, "r-2")
    before = kit.snapshot_of(store.directory)
    with pytest.raises(Conflict, match="slot 3: a parked create") as refused:
        bring(kit.opened(store.directory), file)
    assert "--acknowledge" in refused.value.next
    assert kit.snapshot_of(store.directory) == before
    assert bring(kit.opened(store.directory), file, acknowledge=True).changed


def put_back_after(store: FileStore, *changes: Callable[[FileStore], object]) -> None:
    """The document of now comes back after *changes*, each of which is folded in: its own journal has but the first."""
    store.fold()
    old = (store.directory / "controller.json").read_bytes()
    for change in changes:
        change(store)
        assert store.fold()
    (store.directory / "controller.json").write_bytes(old)


def test_what_only_history_knows_is_gone_back_over_only_on_purpose(store: FileStore) -> None:
    put_back_after(store, lambda each: kit.submit(each, "r-2"), park)
    before = kit.snapshot_of(store.directory)
    with pytest.raises(Conflict, match="slot 3: a parked create"):
        bring(kit.opened(store.directory), None)
    assert kit.snapshot_of(store.directory) == before
    made = bring(kit.opened(store.directory), None, acknowledge=True)
    assert list(made.document.disowned), "what may have been made is not forgotten"


def test_without_a_file_the_old_document_that_stands_there_is_gone_on_from(store: FileStore) -> None:
    put_back_after(store, lambda each: kit.submit(each, "r-2"), lambda each: kit.submit(each, "r-3"))
    with pytest.raises(HistoryAhead) as ahead:
        kit.submit(kit.opened(store.directory), "r-4")
    assert "controller state restore" in ahead.value.next
    made = bring(kit.opened(store.directory), None)
    assert (made.brought.revision, made.compared.last, made.document.revision) == (3, 4, 5)
    assert sound(store.directory)
    assert list(kit.opened(store.directory).read().document.runs) == ["r-1", "r-2"]
    kit.submit(kit.opened(store.directory), "r-4")


def test_another_fleets_document_is_refused(store: FileStore, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_bytes(
        codec.encode(store.read().document).replace(kit.LINEAGE.encode(), b"somebody-elses")
    )
    sealed = codec.encode(codec.decode((tmp_path / "b.json").read_bytes(), "").document)
    (tmp_path / "b.json").write_bytes(sealed)
    before = kit.snapshot_of(store.directory)
    with pytest.raises(Refusal, match="another fleet"):
        bring(store, tmp_path / "b.json", acknowledge=True)
    (store.directory / "controller.json").unlink()
    with pytest.raises(Refusal, match="another fleet"):
        bring(kit.opened(store.directory), tmp_path / "b.json", acknowledge=True)
    assert {**kit.snapshot_of(store.directory), "controller.json": before["controller.json"]} == before


@pytest.mark.parametrize("how", ["missing", "broken", "edited"])
def test_a_document_that_is_lost_comes_back_and_whatever_stood_there_is_kept(
    store: FileStore, tmp_path: Path, how: str
) -> None:
    file = back_up(store, tmp_path / "b.json").path
    kit.submit(store, "r-2")
    path, data = store.directory / "controller.json", b""
    match how:
        case "missing":
            path.unlink()
        case "broken":
            data = b"{ half of it"
            path.write_bytes(data)
        case _:
            data = kit.edit_file(store.directory, lambda content: content.update(draining=True))
    made = bring(kit.opened(store.directory), file)
    assert (made.document.revision, list(made.document.runs)) == (4, ["r-1"])
    assert (made.kept is None) == (how == "missing")
    if made.kept is not None:
        assert made.kept.read_bytes() == data
    assert sound(store.directory)
    kit.submit(kit.opened(store.directory), "r-3")


def test_a_directory_that_lost_everything_comes_back_from_a_backup(store: FileStore, tmp_path: Path) -> None:
    kit.submit(store, "r-2")
    file = back_up(store, tmp_path / "b.json").path
    shutil.rmtree(store.directory)
    store.directory.mkdir(mode=0o700)
    made = bring(kit.opened(store.directory), file)
    assert (made.document.revision, list(made.document.runs)) == (4, ["r-1", "r-2"])
    kit.submit(kit.opened(store.directory), "r-3")


def test_without_a_file_there_must_be_a_sound_document(store: FileStore) -> None:
    path = store.directory / "controller.json"
    kit.edit_file(store.directory, lambda content: content.update(draining=True))
    with pytest.raises(EditedOutside):
        bring(kit.opened(store.directory), None)
    path.write_bytes(b"{ half of it")
    with pytest.raises(DocumentCorrupt):
        bring(kit.opened(store.directory), None)
    path.unlink()
    with pytest.raises(DocumentMissing):
        bring(kit.opened(store.directory), None)


def test_a_document_of_a_newer_program_is_not_replaced(store: FileStore, tmp_path: Path) -> None:
    file = back_up(store, tmp_path / "b.json").path
    path = store.directory / "controller.json"
    path.write_bytes(path.read_bytes().replace(b'"schema":2', b'"schema":3'))
    before = kit.snapshot_of(store.directory)
    with pytest.raises(DocumentForeign):
        bring(kit.opened(store.directory), file)
    assert kit.snapshot_of(store.directory) == before


def test_a_symbolic_link_in_place_of_the_document_is_refused(store: FileStore, tmp_path: Path) -> None:
    file = back_up(store, tmp_path / "b.json").path
    path = store.directory / "controller.json"
    os.rename(path, tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(Refusal, match="symbolic link"):
        bring(kit.opened(store.directory), file)
    assert path.is_symlink()


def test_what_breaks_a_rule_is_not_restored(store: FileStore, tmp_path: Path) -> None:
    document = store.read().document
    broken = codec.encode(document).replace(b'"max_attempts":1', b'"max_attempts":0')
    if broken == codec.encode(document):
        broken = broken.replace(b'"sequence":1,"created_at"', b'"sequence":1,"max_attempts":0,"created_at"')
    sealed = codec.encode(codec.decode(broken, "").document)
    (tmp_path / "b.json").write_bytes(sealed)
    kit.submit(store, "r-2")
    before = kit.snapshot_of(store.directory)
    assert backups.read_backup(tmp_path / "b.json").violations
    with pytest.raises(InvariantBroken, match="run-range"):
        bring(store, tmp_path / "b.json", acknowledge=True)
    assert kit.snapshot_of(store.directory) == before


def test_a_backup_of_schema_1_comes_back(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_bytes(kit.schema1())
    (tmp_path / "s").mkdir(mode=0o700)
    made = bring(kit.opened(tmp_path / "s"), tmp_path / "b.json")
    assert (made.document.schema, made.document.revision) == (2, 8)
    kit.submit(kit.opened(tmp_path / "s"), "r-2")


def test_a_backup_is_compared_with_what_is_here_without_a_lock(store: FileStore, tmp_path: Path) -> None:
    document = back_up(store, tmp_path / "b.json").document
    park(store)
    with store.hold(1):
        found = beside(document, kit.opened(store.directory))
    assert found is not None
    assert (found.same_lineage, found.same, found.last) == (True, False, 3)
    assert [over.slot for over in found.over] == [3, 3]
    assert beside(document, kit.opened(tmp_path / "none")) is None


def test_a_restore_wants_a_directory(tmp_path: Path, store: FileStore) -> None:
    file = back_up(store, tmp_path / "b.json").path
    with pytest.raises(DocumentMissing, match="no state directory"):
        bring(kit.opened(tmp_path / "none"), file, acknowledge=True)
    assert not (tmp_path / "none").exists()
