"""`state import`: a fleet moves with its history into a directory where nothing ever lived, in a new epoch."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.model.errors import AlreadyThere, Conflict, DocumentFault
from controller.store import copies
from controller.store.backups import back_up
from controller.store.exports import export, take_in
from controller.store.file import FileStore
from tests.store import kit
from tests.store.test_restore import gapless, park


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """Revision 2, with one run."""
    kit.submit(kit.fleet(tmp_path / "s"), "r-1")
    return kit.opened(tmp_path / "s", command="state restore")


def test_a_fleet_moves_with_its_history_in_a_new_epoch(store: FileStore, tmp_path: Path) -> None:
    file = copies.write(tmp_path / "e.jsonl", export(store)[0])
    other = kit.opened(tmp_path / "new" / "place", command="state import")
    made = take_in(other, file, epoch="e1", acknowledge=False, told="", timeout=1)
    assert (made.document.lineage, made.document.epoch) == (kit.LINEAGE, "e1")
    assert list(other.read().document.runs) == ["r-1"]
    events = kit.opened(tmp_path / "new" / "place").history()
    assert [event.event for event in events] == ["initialised", "submitted", "imported", "restored"]
    assert gapless(events)
    assert (other.directory / "controller.toml").read_text() == "# made by a test\n"
    kit.submit(kit.opened(other.directory), "r-2")


def test_an_import_with_workers_or_parked_actions_needs_a_word(store: FileStore, tmp_path: Path) -> None:
    park(store)
    file = copies.write(tmp_path / "e.jsonl", export(store)[0])
    other = kit.opened(tmp_path / "new")
    with pytest.raises(Conflict, match="slot 3"):
        take_in(other, file, epoch="e1", acknowledge=False, told="", timeout=1)
    assert not (tmp_path / "new").exists()
    assert take_in(other, file, epoch="e1", acknowledge=True, told="", timeout=1).changed


@pytest.mark.parametrize("sign", ["controller.json", "history.jsonl", "backup-1.json", "journal-1-0.jsonl", "workers"])
def test_nothing_is_imported_over_an_earlier_life(store: FileStore, tmp_path: Path, sign: str) -> None:
    file = copies.write(tmp_path / "e.jsonl", export(store)[0])
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / sign).write_text("of an earlier life")
    with pytest.raises(AlreadyThere):
        take_in(kit.opened(tmp_path / "new"), file, epoch="e1", acknowledge=True, told="", timeout=1)
    assert kit.files(tmp_path / "new") == {sign}


def test_settings_that_are_there_already_are_kept(store: FileStore, tmp_path: Path) -> None:
    file = copies.write(tmp_path / "e.jsonl", export(store)[0])
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "controller.toml").write_text("# of this host\n")
    take_in(kit.opened(tmp_path / "new"), file, epoch="e1", acknowledge=False, told="", timeout=1)
    assert (tmp_path / "new" / "controller.toml").read_text() == "# of this host\n"


def test_a_backup_is_refused_as_an_export(store: FileStore, tmp_path: Path) -> None:
    file = back_up(store, tmp_path / "b.json").path
    with pytest.raises(DocumentFault):
        take_in(kit.opened(tmp_path / "new"), file, epoch="e1", acknowledge=True, told="", timeout=1)
    assert not (tmp_path / "new").exists()
