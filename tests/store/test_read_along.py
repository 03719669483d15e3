"""Who waits for the lock reads what is committed meanwhile, and is hindered by nothing that it meets."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from controller.clock import FakeClock
from controller.model.errors import ControllerError, DocumentCorrupt, LockBusy
from controller.store.file import FileStore
from tests.store import kit


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return kit.fleet(tmp_path / "s")


def refused(waiter: FileStore) -> ControllerError:
    """What a second's wait for the lock ends in, in a thread of its own."""
    found: list[ControllerError] = []

    def wait() -> None:
        try:
            kit.submit(waiter, "r-never", timeout=1)
        except ControllerError as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(30)
    (error,) = found
    return error


@pytest.mark.parametrize("knows", [False, True], ids=["a stranger to it", "who has read it before"])
def test_what_is_committed_while_the_lock_is_waited_for_is_read_by_then(store: FileStore, knows: bool) -> None:
    waiter = kit.opened(store.directory, clock=FakeClock())
    if knows:
        waiter.read()
    with store.hold(5) as hold:
        kit.submit_in(hold, "r-1")
        kit.submit_in(hold, "r-2")
        assert isinstance(refused(waiter), LockBusy)
    assert waiter.latest is not None
    assert set(waiter.latest.document.runs) == {"r-1", "r-2"}
    kit.submit(waiter, "r-3")
    assert set(store.read().document.runs) == {"r-1", "r-2", "r-3"}


def test_a_damaged_document_does_not_end_the_wait_and_is_told_to_who_has_the_lock(store: FileStore) -> None:
    waiter = kit.opened(store.directory, clock=FakeClock())
    with store.hold(5):
        store.path.write_bytes(store.path.read_bytes()[:-10])
        assert isinstance(refused(waiter), LockBusy)
    assert isinstance(refused(waiter), DocumentCorrupt)


def test_a_wait_whose_time_is_over_while_it_reads_is_over(store: FileStore) -> None:
    class Slow(FakeClock):
        """On which each look at the document takes a minute."""

        def now_ms(self) -> int:
            self.advance(60)
            return super().now_ms()

    with store.hold(5):
        assert isinstance(refused(kit.opened(store.directory, clock=Slow())), LockBusy)


def test_a_line_that_was_read_and_then_undone_is_not_built_upon(store: FileStore) -> None:
    waiter = kit.opened(store.directory, clock=FakeClock())
    journal = kit.journal_of(store.directory)
    with store.hold(5) as hold:
        before = journal.read_bytes()
        kit.submit_in(hold, "r-1")
        assert isinstance(refused(waiter), LockBusy)
        journal.write_bytes(before)
    assert waiter.latest is not None
    assert set(waiter.latest.document.runs) == {"r-1"}
    kit.submit(waiter, "r-2")
    assert set(kit.opened(store.directory).read().document.runs) == {"r-2"}
