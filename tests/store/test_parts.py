"""A commit of several parts is one commit: all of them or none, each within its own scope. For every store."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from controller.clock import SystemClock
from controller.model.edit import Edit, foreseen
from controller.model.errors import FenceBroken, InvariantBroken, ScopeExceeded, StorageFailed
from controller.model.records import Document, Event, Run, RunState, Slot, new_document
from controller.store import disk
from controller.store.memory import MemoryDisk, MemoryStore
from controller.store.protocol import Part, Scope, Store
from tests.store import kit


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "file":
        kit.fleet(tmp_path / "s")
        return kit.opened(tmp_path / "s")
    event = Event(1, 1, kit.NOW, "init", "fleet", "initialised")
    document = replace(new_document("f", kit.LINEAGE), revision=1, events=(event,))
    return MemoryStore(MemoryDisk(document), clock=SystemClock(), whoami=kit.ME, command="test")


def marked(document: Document, slot: int, *, serials: int = 0) -> Edit:
    """An edit of one slot that says so, and counts."""
    draft = kit.draft(document)
    draft.slots.put(slot, Slot(cordoned=True))
    for _ in range(serials):
        draft.count("serial")
    draft.event(f"slot:{slot}", "applied")
    return draft.edit()


def nothing(document: Document) -> Edit:
    return kit.draft(document).edit()


def parts_of(document: Document, *slots: int, serials: int = 0) -> tuple[tuple[Part, ...], Document]:
    """A part for each slot, one drafted over the other, and the document that they leave."""
    parts: list[Part] = []
    for slot in slots:
        edit = marked(document, slot, serials=serials)
        document = foreseen(document, edit)
        parts.append(Part(edit, Scope(slot, None)))
    return tuple(parts), document


def test_parts_and_edit_are_one_revision_with_their_events_in_order(store: Store) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        parts, after = parts_of(loaded.document, 2, 1)
        assert after.revision == 1
        committed = hold.commit(loaded, marked(after, 3), parts=parts)
    assert committed.revision == 2
    assert store.read().document == committed
    assert sorted(committed.slots) == [1, 2, 3]
    numbered = [(event.revision, event.n, event.subject) for event in committed.events]
    assert numbered == [(2, 1, "slot:2"), (2, 2, "slot:1"), (2, 3, "slot:3")]
    assert store.history()[1:] == committed.events


def test_an_empty_edit_may_follow_parts_and_not_stand_alone(store: Store) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        with pytest.raises(InvariantBroken, match="no event"):
            hold.commit(loaded, nothing(loaded.document), parts=())
        parts, after = parts_of(loaded.document, 1)
        assert sorted(hold.commit(loaded, nothing(after), parts=parts).slots) == [1]


def test_counters_of_all_parts_are_kept(store: Store) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        parts, after = parts_of(loaded.document, 1, 2, serials=3)
        assert hold.commit(loaded, marked(after, 3), parts=parts).counters.serial == 6
        loaded = hold.load()
        parts, after = parts_of(loaded.document, 1, 2)
        assert hold.commit(loaded, marked(after, 3, serials=1), parts=parts).counters.serial == 7


def test_what_one_part_adds_a_later_one_may_change_or_remove(store: Store) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        first = kit.draft(loaded.document)
        first.workers.put(1, kit.worker(1))
        first.workers.put(2, kit.worker(2))
        first.event("slot:1", "made")
        after = foreseen(loaded.document, first.edit())
        second = kit.draft(after)
        second.workers.remove(1)
        second.workers.put(2, replace(kit.worker(2), changed_at=kit.NOW + 1))
        second.event("slot:1", "removed")
        document = hold.commit(loaded, kit.saying(after), parts=_unscoped(first.edit(), second.edit()))
    assert list(document.workers) == [2]
    assert document.workers[2].changed_at == kit.NOW + 1
    assert store.read().document == document


def _unscoped(*edits: Edit) -> tuple[Part, ...]:
    """Parts whose scope allows slots 1 and 2: one each."""
    found = []
    for edit in edits:
        for slot in (1, 2):
            workers = {number: worker for number, worker in edit.workers.items() if number == slot}
            slots = {number: record for number, record in edit.slots.items() if number == slot}
            events = edit.events if slot == 1 else ()
            found.append(Part(replace(edit, workers=workers, slots=slots, events=events), Scope(slot, None)))
    return tuple(found)


@pytest.mark.parametrize("beyond", [0, 1, 2])
def test_one_part_beyond_its_scope_refuses_them_all(store: Store, beyond: int) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        before = store.read().document
        parts, after = parts_of(loaded.document, 1, 2, 3)
        spoilt = [Part(part.edit, Scope(9, None)) if n == beyond else part for n, part in enumerate(parts)]
        with pytest.raises(ScopeExceeded, match=rf"slots\.{beyond + 1}"):
            hold.commit(loaded, marked(after, 4), parts=spoilt)
        assert store.read().document == before
        assert hold.commit(loaded, marked(after, 4), parts=parts).revision == 2, "what was loaded is still good"
    assert len(store.history()) == 5


def test_a_scope_of_the_edit_is_not_one_of_its_parts(store: Store) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        parts, after = parts_of(loaded.document, 1)
        with pytest.raises(ScopeExceeded):
            hold.commit(loaded, marked(after, 2), scope=Scope(1, None), parts=parts)
        assert sorted(hold.commit(loaded, marked(after, 2), scope=Scope(2, None), parts=parts).slots) == [1, 2]


def test_one_part_that_breaks_an_invariant_refuses_them_all(store: Store) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        parts, after = parts_of(loaded.document, 1)
        broken = kit.draft(after)
        broken.runs.put("r-1", Run("r-1", "fleet", broken.count("sequence"), 1, (), RunState.FAILED))
        broken.event("run:r-1", "failed")
        with pytest.raises(InvariantBroken, match="run-reason"):
            hold.commit(loaded, kit.saying(after), parts=(*parts, Part(broken.edit(), Scope(2, "r-1"))))
    assert store.read().document.revision == 1
    assert len(store.history()) == 1


def test_a_disk_that_fails_takes_none_of_them(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with store.hold(1) as hold:
        loaded = hold.load()
        parts, after = parts_of(loaded.document, 1, 2)
        monkeypatch.setattr(disk, "write_at", full)
        if isinstance(store, MemoryStore):
            monkeypatch.setattr(store.disk, "fault", full)
        with pytest.raises(StorageFailed):
            hold.commit(loaded, marked(after, 3), parts=parts)
        monkeypatch.undo()
        assert store.read().document.slots == {}
        with pytest.raises(FenceBroken):
            hold.commit(loaded, marked(after, 3), parts=parts)
        loaded = hold.load()
        assert hold.commit(loaded, marked(after, 3), parts=parts).revision == 2
    assert len(store.history()) == 4
