"""The memory store keeps the contract, and shows what a killed process leaves."""

from __future__ import annotations

import errno

import pytest
from msgspec.structs import replace

from controller.clock import FakeClock, SystemClock
from controller.model.errors import DocumentMissing, LockBusy, LockLost, RevisionMoved
from controller.model.records import Event, new_document
from controller.store.memory import MemoryDisk, MemoryStore
from controller.store.protocol import Store
from tests.store import kit
from tests.store.contract import Make, StoreContract


def disk_at_revision_1() -> MemoryDisk:
    event = Event(1, 1, kit.NOW, "init", "fleet", "initialised")
    return MemoryDisk(replace(new_document("f", kit.LINEAGE), revision=1, events=(event,)))


class Killed(BaseException):
    pass


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def disk(self) -> MemoryDisk:
        return disk_at_revision_1()

    @pytest.fixture
    def make(self, disk: MemoryDisk) -> Make:
        return lambda: MemoryStore(disk, clock=SystemClock(), whoami=kit.ME, command="test")

    def break_at(self, point: str, monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
        store = make()
        assert isinstance(store, MemoryStore)

        def fault(reached: str) -> None:
            if reached == point:
                raise OSError(errno.EIO, "broken")

        monkeypatch.setattr(store.disk, "fault", fault)

    def mend(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()

    def test_a_document_that_moved_is_refused(self, make: Make, disk: MemoryDisk) -> None:
        with make().hold(1) as hold:
            loaded = hold.load()
            assert disk.document is not None
            disk.document = replace(disk.document, revision=9)
            with pytest.raises(RevisionMoved) as refusal:
                hold.commit(loaded, kit.submitting(loaded.document, "r-1"))
        assert (refusal.value.loaded, refusal.value.found) == (1, 9)

    def test_a_missing_document_is_not_a_new_one(self) -> None:
        store: Store = MemoryStore(MemoryDisk(None), clock=FakeClock(), whoami=kit.ME, command="test")
        with pytest.raises(DocumentMissing):
            store.read()
        with pytest.raises(DocumentMissing), store.hold(1):
            pass


def die_holding(store: MemoryStore, disk: MemoryDisk) -> None:
    with store.hold_slot(2) as slot, store.hold(1) as hold:
        slot.register(kit.OTHER, 5, "key")
        disk.kill(kit.ME)  # somebody else's death frees nothing of ours
        kit.submit_in(hold, "r-1")


@pytest.mark.parametrize(("point", "committed"), [("write", False), ("written", True)])
def test_a_process_killed_in_a_commit_leaves_it_whole_or_absent(point: str, committed: bool) -> None:
    disk = disk_at_revision_1()
    dying = MemoryStore(disk, clock=FakeClock(), whoami=kit.OTHER, command="dying")
    heir = MemoryStore(disk, clock=FakeClock(), whoami=kit.ME, command="heir")

    def fault(reached: str) -> None:
        if reached == point:
            raise Killed

    disk.fault = fault
    with pytest.raises(Killed):
        die_holding(dying, disk)
    disk.fault = lambda _point: None
    disk.kill(kit.OTHER)
    kit.submit(heir, "r-2")
    assert set(heir.read().document.runs) == ({"r-1", "r-2"} if committed else {"r-2"})
    assert [event.revision for event in heir.history()] == list(range(1, 4 if committed else 3))
    with heir.hold_slot(2):
        assert heir.slot_note(2).key == "key"


def test_a_killed_holder_has_lost_its_lock() -> None:
    disk = disk_at_revision_1()
    store = MemoryStore(disk, clock=FakeClock(), whoami=kit.ME, command="test")
    with store.hold(1) as hold:
        loaded = hold.load()
        disk.kill(kit.ME)
        with pytest.raises(LockLost):
            hold.commit(loaded, kit.submitting(loaded.document, "r-1"))


def test_a_waiter_on_a_fake_clock_gives_up_without_waiting() -> None:
    disk = disk_at_revision_1()
    clock = FakeClock()
    with (
        MemoryStore(disk, clock=clock, whoami=kit.OTHER, command="holder").hold(1),
        pytest.raises(LockBusy, match="holder"),
        MemoryStore(disk, clock=clock, whoami=kit.ME, command="test").hold(60),
    ):
        pass
    assert clock.monotonic() >= 1_060
