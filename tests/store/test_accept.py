"""`state accept`: an edited document is judged, sealed as a new revision, and never makes history lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.model.errors import EditedOutside, HistoryAhead, InvariantBroken
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


def test_what_a_crash_left_out_of_history_is_still_appended(store: FileStore, directory: Path) -> None:
    history = directory / "history.jsonl"
    lines = history.read_bytes().splitlines(keepends=True)
    history.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    kit.edit_file(directory, lambda content: content.update(draining=True))
    accept(store, restore_pending=False, timeout=1)
    assert [event.event for event in store.history()] == ["initialised", "submitted", "action.parked", "accepted"]
    assert gapless(store.history())


def test_without_history_the_edited_revision_is_gone_on_from(store: FileStore, directory: Path) -> None:
    (directory / "history.jsonl").unlink()
    kit.edit_file(directory, lambda content: content.update(draining=True))
    assert accept(store, restore_pending=False, timeout=1).document.revision == 4
    assert [event.event for event in store.history()] == ["action.parked", "accepted"]
