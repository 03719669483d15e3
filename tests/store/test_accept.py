"""`state accept`: an edited document is judged, sealed as a new revision, and never makes history lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from controller.model.errors import DocumentCorrupt, EditedOutside, HistoryAhead, InvariantBroken
from controller.model.records import Event
from controller.store.accept import accept
from controller.store.file import FileStore
from tests.store import kit


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A fleet with one run and a create parked for slot 3, at revision 3."""
    store = kit.fleet(tmp_path / "s")
    kit.submit(store, "r-1")
    with store.hold(1) as hold:
        loaded = hold.load()
        hold.commit(loaded, kit.parking(loaded.document, 3))
    return tmp_path / "s"


@pytest.fixture
def store(directory: Path) -> FileStore:
    return kit.opened(directory, command="state accept")


def gapless(events: tuple[Event, ...]) -> bool:
    return [event.revision for event in events] == list(range(1, len(events) + 1))


def test_an_edit_is_sealed_as_the_next_revision_with_an_event(store: FileStore, directory: Path) -> None:
    kit.edit_file(directory, lambda content: content["runs"].pop("r-1"))
    accepted = accept(store, restore_pending=False, timeout=1)
    assert accepted.changed
    assert accepted.document.revision == 4
    assert not kit.opened(directory).read().edited
    assert store.read().document.runs == {}
    assert (store.history()[-1].event, store.history()[-1].command) == ("accepted", "state accept")
    assert gapless(store.history())
    kit.submit(store, "r-2")


def test_there_is_nothing_to_accept_in_a_document_of_ours(store: FileStore, directory: Path) -> None:
    store.fold()
    before = kit.snapshot_of(directory)
    assert not accept(store, restore_pending=True, timeout=1).changed
    assert kit.snapshot_of(directory) == before


def test_a_violation_is_named_and_nothing_is_written(store: FileStore, directory: Path) -> None:
    data = kit.edit_file(directory, lambda content: content["runs"]["r-1"].update(state="failed"))
    before = kit.snapshot_of(directory)
    with pytest.raises(InvariantBroken, match="run-reason"):
        accept(store, restore_pending=True, timeout=1)
    assert kit.snapshot_of(directory) == before
    assert (directory / "controller.json").read_bytes() == data


def touch_action(content: dict[str, Any]) -> None:
    content["pending_actions"]["3"]["action"]["generation"] = 9


def test_a_touched_action_is_refused_and_comes_back_from_history(store: FileStore, directory: Path) -> None:
    original = bytes(store.read().document.pending_actions[3].action)
    kit.edit_file(directory, touch_action)
    with pytest.raises(InvariantBroken, match="does not derive") as refusal:
        accept(store, restore_pending=False, timeout=1)
    assert "--restore-pending" in refusal.value.next
    accepted = accept(store, restore_pending=True, timeout=1)
    assert accepted.restored == (3,)
    assert bytes(store.read().document.pending_actions[3].action) == original
    assert store.history()[-1].detail == "pending actions restored from history: slots 3"


def test_an_action_that_history_does_not_know_is_not_restored(store: FileStore, directory: Path) -> None:
    def forge(content: dict[str, Any]) -> None:
        touch_action(content)
        content["pending_actions"]["3"]["action"]["idempotency_key"] = "0" * 64

    kit.edit_file(directory, forge)
    with pytest.raises(InvariantBroken, match="does not derive"):
        accept(store, restore_pending=True, timeout=1)


def test_an_action_that_is_no_longer_one_still_reads_and_is_refused(store: FileStore, directory: Path) -> None:
    kit.edit_file(directory, lambda content: content["pending_actions"]["3"].update(action=[1]))
    assert store.read().edited
    with pytest.raises(InvariantBroken, match="pending-action"):
        accept(store, restore_pending=True, timeout=1)


def test_a_revision_edited_down_is_refused(store: FileStore, directory: Path) -> None:
    kit.edit_file(directory, lambda content: content.update(revision=2))
    with pytest.raises(HistoryAhead, match="revision 3"):
        accept(store, restore_pending=False, timeout=1)


@pytest.mark.parametrize("revision", [4, 5, 900])
def test_a_revision_edited_up_is_refused(store: FileStore, directory: Path, revision: int) -> None:
    kit.edit_file(directory, lambda content: content.update(revision=revision))
    with pytest.raises(EditedOutside, match="history ends at 3"):
        accept(store, restore_pending=False, timeout=1)


def test_edited_events_do_not_reach_history(store: FileStore, directory: Path) -> None:
    kit.edit_file(directory, lambda content: content["events"][0].update(event="nothing happened"))
    accept(store, restore_pending=False, timeout=1)
    assert "nothing happened" not in [event.event for event in store.history()]
    assert gapless(store.history())


def test_what_a_crash_tore_off_is_kept_and_the_accepted_edit_says_so(store: FileStore, directory: Path) -> None:
    kit.edit_file(directory, lambda content: content.update(draining=True))
    journal = kit.journal_of(directory)
    with journal.open("ab") as file:
        file.write(b'{"revision":4,"at"')
    accepted = accept(store, restore_pending=False, timeout=1)
    assert [event.event for event in accepted.document.events] == ["accepted", "torn_tail_kept"]
    assert [path.read_bytes() for path in directory.glob("torn-*")] == [b'{"revision":4,"at"']
    kit.submit(kit.opened(directory), "r-2")
    found = kit.opened(directory)
    assert [event.revision for event in found.history()] == [1, 2, 3, 4, 4, 5]
    assert found.history_fault() is None


def test_an_edited_document_whose_journal_is_gone_is_not_accepted(store: FileStore, directory: Path) -> None:
    kit.edit_file(directory, lambda content: content.update(draining=True))
    name = kit.journal_of(directory).name
    (directory / name).unlink()
    before = kit.snapshot_of(directory)
    with pytest.raises(DocumentCorrupt, match=f"names {name}, which is not there"):
        accept(store, restore_pending=False, timeout=1)
    assert kit.snapshot_of(directory) == before


def test_an_edit_of_a_document_whose_journal_has_gone_on_meets_what_was_committed_since(
    store: FileStore, directory: Path
) -> None:
    """What a live fleet commits while somebody edits is not lost, and the edit is not either."""
    store.fold()
    kit.submit(store, "r-2")
    content = json.loads(store.path.read_bytes())
    content["runs"]["r-1"]["last_error"] = "by hand"
    store.path.write_text(json.dumps(content))
    accepted = accept(kit.opened(directory), restore_pending=False, timeout=1).document
    assert (accepted.runs["r-1"].last_error, set(accepted.runs)) == ("by hand", {"r-1", "r-2"})
    assert gapless(kit.opened(directory).history())


def test_what_commits_behind_the_edited_file_changed_stands_and_is_named(tmp_path: Path) -> None:
    """Its file was behind its journal when it was edited: the edit of those records is not taken, and not silently."""
    store = kit.fleet(tmp_path / "s")
    kit.submit(store, "r-1")
    store.fold()
    with store.hold(1) as hold:
        loaded = hold.load()
        draft = kit.draft(loaded.document)
        draft.runs.put("r-1", replace(loaded.document.runs["r-1"], max_attempts=3))
        draft.event("run:r-1", "noted")
        hold.commit(loaded, draft.edit())
    path = tmp_path / "s" / "controller.json"
    content = json.loads(path.read_bytes())
    content["runs"]["r-1"]["max_attempts"] = 7
    content["draining"] = True
    path.write_text(json.dumps(content))
    accepted = accept(kit.opened(tmp_path / "s"), restore_pending=False, timeout=1)
    assert accepted.newer == ("runs.r-1",)
    document = kit.opened(tmp_path / "s").read().document
    assert (document.runs["r-1"].max_attempts, document.draining, document.revision) == (3, True, 4)


def test_with_nothing_to_accept_the_file_is_made_current(tmp_path: Path) -> None:
    store = kit.fleet(tmp_path / "s")
    kit.submit(store, "r-1")
    assert not accept(store, restore_pending=False, timeout=1).changed
    assert "r-1" in json.loads((tmp_path / "s" / "controller.json").read_bytes())["runs"]
