"""`state restore` over a history that is damaged, torn, forked or elsewhere: kept, and nothing is lost silently."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from controller.model.errors import Conflict, JournalForked
from controller.store import codec
from controller.store.backups import back_up
from controller.store.file import FileStore
from tests.store import kit
from tests.store.test_restore import bring, park, sound


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """Revision 2, with one run."""
    kit.submit(kit.fleet(tmp_path / "s"), "r-1")
    return kit.opened(tmp_path / "s", command="state restore")


def spoil_middle(path: Path) -> None:
    """One byte of the first commit is another one."""
    data = bytearray(path.read_bytes())
    place = data.index(b"\n") + 20
    data[place] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("named", [True, False], ids=["from a backup", "as it stood there"])
def test_a_history_that_cannot_be_read_is_set_aside_only_on_purpose_and_nothing_in_it_is_handed_out_again(
    store: FileStore, tmp_path: Path, named: bool
) -> None:
    file = back_up(store, tmp_path / "b.json").path if named else None
    kit.submit(store, "r-7")
    kit.submit(store, "r-8")
    park(store)
    store.fold()
    old = kit.journals(store.directory)[0]
    spoil_middle(store.directory / old)
    before = kit.snapshot_of(store.directory)
    with pytest.raises(Conflict):
        bring(kit.opened(store.directory), file)
    assert kit.snapshot_of(store.directory) == before
    made = bring(kit.opened(store.directory), file, acknowledge=True)
    assert made.compared.damaged
    assert [path.name.startswith("backup-damaged-") for path in made.set_aside] == [True] * len(made.set_aside)
    assert made.set_aside
    assert made.document.counters.serial >= 1
    assert made.document.counters.run >= 8
    again = kit.opened(store.directory)
    assert again.history()[0].revision == made.document.revision == made.compared.last + 1
    again.past.verify()
    kit.submit(again, "r-9")


def test_a_second_restore_still_knows_what_was_set_aside(store: FileStore, tmp_path: Path) -> None:
    file = back_up(store, tmp_path / "b.json").path
    kit.submit(store, "r-7")
    store.fold()
    spoil_middle(store.directory / kit.journals(store.directory)[0])
    first = bring(kit.opened(store.directory), file, acknowledge=True)
    (store.directory / "controller.json").unlink()
    for name in kit.journals(store.directory):
        (store.directory / name).unlink()
    second = bring(kit.opened(store.directory), file, epoch="e2", acknowledge=True)
    assert second.document.counters.run == 7
    assert second.document.revision >= first.document.revision


def test_what_a_crash_tore_off_does_not_spoil_the_history_that_goes_on(store: FileStore, tmp_path: Path) -> None:
    file = back_up(store, tmp_path / "b.json").path
    kit.submit(store, "r-2")
    path = kit.journal_of(store.directory)
    whole = path.read_bytes().rstrip(b"\0")
    path.write_bytes(whole + whole[whole.rindex(b"\n", 0, -1) + 1 : -9])
    made = bring(kit.opened(store.directory), file)
    assert made.set_aside == ()
    assert sound(store.directory)
    assert [name for name in kit.files(store.directory) if name.startswith("torn-")]


def test_a_journal_that_somebody_else_wrote_to_is_gone_on_from_before_that_line_only_on_purpose(
    store: FileStore,
) -> None:
    kit.submit(store, "r-2")
    path = kit.journal_of(store.directory)
    whole = path.read_bytes().rstrip(b"\0")
    path.write_bytes(whole + whole[whole.rindex(b"\n", 0, -1) + 1 :])
    with pytest.raises(JournalForked) as forked:
        kit.submit(kit.opened(store.directory), "r-3")
    assert "controller state restore" in forked.value.next
    with pytest.raises(Conflict):
        bring(kit.opened(store.directory), None)
    made = bring(kit.opened(store.directory), None, acknowledge=True)
    assert list(made.document.runs) == ["r-1", "r-2"]
    assert made.set_aside
    kit.opened(store.directory).past.verify()
    kit.submit(kit.opened(store.directory), "r-3")


def test_a_backup_that_is_newer_than_all_that_history_knows_is_gone_on_from(store: FileStore, tmp_path: Path) -> None:
    saved = tmp_path / "earlier"
    store.fold()
    shutil.copytree(store.directory, saved)
    kit.submit(store, "r-2")
    kit.submit(store, "r-3")
    file = back_up(store, tmp_path / "b.json").path
    other = kit.opened(saved)
    made = bring(other, file, acknowledge=True)
    assert (made.brought.revision, made.document.revision) == (4, 5)
    assert made.set_aside, "its history ends elsewhere"
    kit.opened(saved).past.verify()
    kit.submit(kit.opened(saved), "r-4")


def test_a_document_from_before_there_were_journals_can_be_gone_back_over(store: FileStore, tmp_path: Path) -> None:
    file = back_up(store, tmp_path / "b.json").path
    kit.submit(store, "r-2")
    document, events = store.read().document, store.history()
    shutil.rmtree(store.directory)
    store.directory.mkdir(mode=0o700)
    (store.directory / "controller.json").write_bytes(codec.encode(document))
    lines = b"".join(codec.line_of(event) + b"\n" for event in events)
    (store.directory / "history.jsonl").write_bytes(lines)
    made = bring(kit.opened(store.directory), file)
    assert made.set_aside == ()
    assert sound(store.directory)
