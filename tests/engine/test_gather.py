"""Answers of several slots in one commit: all of them, in order, and none that would spoil the others."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from controller.engine import outcomes
from controller.engine.gather import Gather
from controller.engine.pending import Sent
from controller.engine.reconcile import Reconciler
from controller.model.edit import Draft
from controller.model.errors import ScopeExceeded, StorageFailed
from controller.model.reason import Reason
from controller.model.records import ActionType, WorkerState
from controller.provider.fake import FakeProvider
from controller.store import disk
from tests.engine.fleet import LINEAGE, Fleet
from tests.engine.serving import Script, Serving


class Senders:
    """Sends that wait at a gather, each in a thread of its own; and whoever takes from it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._offered = threading.Semaphore(0)
        self.gather = Gather(self._offered.release)
        self.reconciler: Reconciler = fleet.reconciler()
        self.reconciler.sender = replace(self.reconciler.sender, gather=self.gather)
        self.sends: dict[int, Future[Sent]] = {}

    @contextmanager
    def out(self, *slots: int) -> Iterator[None]:
        """These slots are asked, and their answers wait. Afterwards each has ended."""
        with ThreadPoolExecutor(len(slots)) as pool:
            for slot in slots:
                key = self.fleet.action(slot).idempotency_key
                self.sends[slot] = pool.submit(self.reconciler.sender.send, slot, key)
                assert self._offered.acquire(timeout=10)
            try:
                yield
            finally:
                self.gather.close()

    def sent(self, slot: int) -> Sent:
        return self.sends[slot].result(10)


@pytest.fixture
def parked(fleet: Fleet) -> Fleet:
    """Three creates are parked."""
    fleet.submit("a", "b", "c")
    fleet.park()
    return fleet


def spoil(monkeypatch: pytest.MonkeyPatch, slot: int, how: BaseException | None) -> None:
    """Settling that slot raises *how*, or touches another slot."""
    settle = outcomes.settle

    def spoiled(draft: Draft, number: int, *rest: object) -> None:
        settle(draft, number, *rest)  # type: ignore[arg-type]
        if number == slot and how is not None:
            raise how
        if number == slot:
            worker = draft.workers.get(3)
            assert worker is not None
            draft.workers.put(3, replace(worker, changed_at=worker.changed_at + 1))

    monkeypatch.setattr(outcomes, "settle", spoiled)


def test_answers_and_what_follows_them_are_one_revision(parked: Fleet) -> None:
    senders = Senders(parked)
    with senders.out(1, 2):
        before = parked.document.revision
        plan, document = senders.reconciler.park(None, waiting=senders.gather.take())
    assert document.revision == before + 1
    assert [(park.slot, park.type) for park in plan.parks] == [(1, ActionType.EXECUTE), (2, ActionType.EXECUTE)]
    assert [senders.sent(slot).reason for slot in (1, 2)] == [Reason.DONE] * 2
    assert parked.document == document
    told = [(event.subject, event.event) for event in document.events if event.event.startswith("action.")]
    parks = [("slot:1", "action.parked"), ("slot:2", "action.parked")]
    assert told == [("slot:1", "action.settled"), ("slot:2", "action.settled"), *parks]
    history = parked.context.store.history()
    assert tuple(event for event in history if event.revision == document.revision) == document.events


def test_the_slot_lock_is_held_until_the_answer_is_applied(parked: Fleet) -> None:
    senders = Senders(parked)
    with senders.out(1):
        assert parked.context.store.slot_note(1).controller is not None
        senders.reconciler.park(None, waiting=senders.gather.take())
        senders.sent(1)
    assert parked.context.store.slot_note(1).controller is None


def test_an_answer_that_was_settled_meanwhile_is_told_so(parked: Fleet) -> None:
    """As when another process restored a document, or settled it by hand, while the provider was asked."""
    senders = Senders(parked)
    with senders.out(1):
        context = parked.context
        with context.store.hold(5) as hold:
            loaded = hold.load()
            draft = context.draft(loaded.document)
            draft.pending.remove(1)
            draft.workers.remove(1)
            draft.event("slot:1", "noted")
            hold.commit(loaded, draft.edit())
        senders.reconciler.park(None, waiting=senders.gather.take())
        assert senders.sent(1).detail == "already settled"


def test_one_that_would_touch_another_slot_keeps_no_other_back(parked: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, 2, None)
    senders = Senders(parked)
    with senders.out(1, 2):
        with pytest.raises(ScopeExceeded):
            senders.reconciler.park(None, waiting=senders.gather.take())
        assert (senders.sent(1).reason, senders.sent(1).settled) == (Reason.DONE, True)
        assert (senders.sent(2).reason, senders.sent(2).settled) == (Reason.APPLY_FAILED, False)
    document = parked.document
    assert document.workers[1].state is WorkerState.READY
    assert sorted(document.pending_actions) == [2, 3]
    assert [(trouble.slot, trouble.reason) for trouble in document.troubles] == [(2, Reason.APPLY_FAILED)]


def test_one_that_cannot_be_folded_is_left_out_of_the_commit(parked: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, 2, ZeroDivisionError("by a bug"))
    senders = Senders(parked)
    with senders.out(1, 2):
        _, document = senders.reconciler.park(None, waiting=senders.gather.take())
        assert (sorted(document.workers), sorted(document.pending_actions)) == ([1, 2, 3], [1, 2, 3])
        assert senders.sent(1).reason is Reason.DONE
        assert senders.sent(2).reason is Reason.APPLY_FAILED
        assert "ZeroDivisionError" in str(senders.sent(2).unsaved)
    assert parked.action(1).type is ActionType.EXECUTE
    assert parked.action(2).type is ActionType.CREATE


def test_what_could_not_be_saved_stays_parked_and_says_both(parked: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    senders = Senders(parked)
    keys = {slot: parked.action(slot).idempotency_key for slot in (1, 2)}
    with senders.out(1, 2):
        before = parked.bytes()
        monkeypatch.setattr(disk, "write_at", full)
        with pytest.raises(StorageFailed):
            senders.reconciler.park(None, waiting=senders.gather.take())
        for slot in (1, 2):
            assert senders.sent(slot).settled is False
            assert isinstance(senders.sent(slot).unsaved, StorageFailed)
        assert parked.bytes() == before
    monkeypatch.undo()
    report = parked.reconciler().replay()
    assert {sent.slot: sent.key for sent in report.sent if sent.slot in keys} == keys
    assert all(sent.settled for sent in report.sent)
    assert len(parked.provider.done) == len(set(parked.provider.done)) == 3


def test_close_frees_those_who_wait_to_apply_alone(parked: Fleet) -> None:
    senders = Senders(parked)
    with senders.out(1, 2):
        senders.gather.close()
        assert [senders.sent(slot).reason for slot in (1, 2)] == [Reason.DONE] * 2
    assert sorted(parked.pending) == [3]


def test_nobody_waits_at_a_gather_that_is_closed(parked: Fleet) -> None:
    senders = Senders(parked)
    senders.gather.close()
    key = parked.action(1).idempotency_key
    assert senders.reconciler.sender.send(1, key).settled


def test_a_loop_outlives_an_answer_that_spoils_the_commit(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, 2, None)
    fleet.provider = FakeProvider(LINEAGE, ends=0, pushes=True)
    fleet.submit("a", "b", "c")
    serving = Serving(fleet)

    def script() -> Script:
        yield lambda: fleet.provider.sends(2) != [] and len(fleet.document.troubles) > 0
        yield serving.succeeded("a", "c")
        monkeypatch.undo()
        serving.tick = 5
        yield serving.succeeded("a", "b", "c")

    serving.serve(script())
    assert {sent.slot for report in serving.reports for sent in report.sent if sent.unsaved is not None} == {2}
