"""Guards of a send and of a settlement that only matter when somebody else was there in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from controller.engine import calls, outcomes, pending
from controller.engine.gather import Waiting
from controller.engine.pending import Answer, Sender, Sent, park
from controller.model.action import Action
from controller.model.edit import Draft
from controller.model.errors import LockBusy, ScopeExceeded, SlotBusy, StorageFailed
from controller.model.inventory import Inventory, Look
from controller.model.process import ProcessIdentity
from controller.model.reason import Reason
from controller.model.records import ActionType, RunState, Span
from controller.provider.fake import After, Before, DoThenLose, FakeProvider, LoseUndone, Say
from controller.provider.process import boot_id, own_identity, pid_namespace
from controller.provider.protocol import Rejected
from controller.store.directory import LOCK
from controller.store.file import FileHold
from controller.store.locks import DocumentLock
from controller.store.protocol import Scope
from tests.engine.fleet import LINEAGE, Fleet


def waiting_for_proof(fleet: Fleet) -> tuple[str, Look]:
    """The key of a create in slot 1 that only looks can settle, and a look that does: its worker is there."""
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, DoThenLose(), Say(Rejected("name taken")))
    fleet.reconciler().reconcile()
    key = fleet.action(1).idempotency_key
    fleet.sender.send(1, key)
    look, _ = fleet.reconciler().look()
    assert look is not None
    return key, look


def test_what_was_parked_here_and_replayed_by_somebody_else_is_not_sent_again(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.park()
    entry, key = fleet.pending[1], fleet.action(1).idempotency_key
    fleet.reconciler().replay()
    sent = fleet.sender.send(1, key, parked=entry)
    assert (sent.detail, sent.settled) == ("already settled", True)
    assert len(fleet.provider.sends()) == 1


def test_a_late_send_of_a_settled_key_does_not_send_what_was_parked_since(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.park()
    key = fleet.action(1).idempotency_key
    fleet.reconciler().replay()
    fleet.park()
    assert fleet.action(1).type is ActionType.EXECUTE
    assert fleet.sender.send(1, key).detail == "already settled"
    assert len(fleet.provider.sends()) == 1


def test_an_answer_for_a_key_that_the_slot_holds_no_more_leaves_the_one_that_it_holds(fleet: Fleet) -> None:
    def settle_and_park(action: Action) -> None:
        with fleet.context.store.hold(5.0) as hold:
            loaded = hold.load()
            draft = fleet.context.draft(loaded.document)
            draft.pending.remove(action.slot)
            park(draft, ActionType.RESET, loaded.document.workers[action.slot])
            hold.commit(loaded, draft.edit())

    fleet.submit("a")
    fleet.park()
    fleet.provider.script(ActionType.CREATE, After(settle_and_park))
    sent = fleet.sender.send(1, fleet.action(1).idempotency_key)
    assert (sent.slot, sent.detail, sent.settled) == (1, "already settled", True)
    assert fleet.action(1).type is ActionType.RESET


def test_a_provider_that_could_not_be_ended_keeps_its_slot_busy(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE, ends=0, register=(own_identity(), fleet.clock.now_ms() + 60_000))
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, DoThenLose(process_lives=True))
    fleet.reconciler().reconcile()
    with pytest.raises(SlotBusy):
        fleet.sender.send(1, fleet.action(1).idempotency_key)


def test_no_look_settles_what_a_live_provider_process_works_on(fleet: Fleet) -> None:
    key, look = waiting_for_proof(fleet)
    with fleet.store.hold_slot(1) as held:
        held.register(own_identity(), fleet.clock.now_ms() + 60_000, key)
    with pytest.raises(SlotBusy):
        fleet.sender.settle(1, key, look)
    assert fleet.action(1).idempotency_key == key


def test_what_a_look_settles_is_told_whole(fleet: Fleet) -> None:
    key, look = waiting_for_proof(fleet)
    sent = fleet.sender.settle(1, key, look)
    assert sent is not None
    assert (sent.slot, sent.type, sent.key, sent.run) == (1, ActionType.CREATE, key, "a")
    assert (sent.reason, sent.settled, sent.unsaved, sent.ended) == (Reason.DONE, True, None, ())
    assert sent.detail.startswith("a look shows it")


def test_a_first_empty_look_leaves_an_action_unsettled_and_says_so(fleet: Fleet) -> None:
    key, look = waiting_for_proof(fleet)
    late = fleet.clock.now_ms() + fleet.policy.grace_ms
    sent = fleet.sender.settle(1, key, replace(look, began_at=late, ended_at=late, inventory=Inventory(True, ())))
    assert sent is not None
    assert (sent.reason, sent.settled) == (Reason.PENDING, False)
    assert fleet.action(1).idempotency_key == key


def test_the_lives_that_a_settlement_ends_are_told_with_their_reason(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.EXECUTE, *[LoseUndone()] * 5)
    fleet.reconciler().reconcile()
    key = fleet.action(1).idempotency_key
    fleet.provider.lose(1)
    look, _ = fleet.reconciler().look()
    assert look is not None
    sent = fleet.sender.settle(1, key, look)
    assert sent is not None
    assert (sent.reason, sent.run) == (Reason.WORKER_LOST, "a")
    assert [(ended.run, ended.state, ended.reason) for ended in sent.ended] == [
        ("a", RunState.FAILED, Reason.CRASHES_EXHAUSTED)
    ]


def test_no_look_settles_a_slot_without_a_pending_action_or_another_key(fleet: Fleet) -> None:
    key, look = waiting_for_proof(fleet)
    assert fleet.sender.settle(2, key, look) is None
    assert fleet.sender.settle(1, "another", look) is None
    assert fleet.action(1).idempotency_key == key


def test_a_settlement_waits_for_the_document_no_longer_than_it_was_told(fleet: Fleet) -> None:
    key, look = waiting_for_proof(fleet)
    taken = DocumentLock(fleet.directory / LOCK, clock=fleet.clock, whoami=own_identity(), command="test")
    lock = taken.acquire(0, still=lambda: None)
    try:
        with pytest.raises(LockBusy):
            fleet.sender.settle(1, key, look)
    finally:
        lock.handle.close()
    assert fleet.sender.settle(1, key, look) is not None


def test_a_dead_provider_process_hinders_no_settlement(fleet: Fleet) -> None:
    key, look = waiting_for_proof(fleet)
    with fleet.store.hold_slot(1) as held:
        held.register(ProcessIdentity(2**22 - 1, 1, boot_id(), pid_namespace()), 0, key)
    assert fleet.sender.settle(1, key, look) is not None
    assert fleet.store.slot_note(1).provider is None


@pytest.mark.parametrize(("late_ms", "ends"), [(-1, True), (60_000, False)])
def test_a_provider_process_is_ended_only_past_its_deadline(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, late_ms: int, ends: bool
) -> None:
    ended: list[ProcessIdentity] = []

    def end(identity: ProcessIdentity, _: object) -> bool:
        ended.append(identity)
        return True

    monkeypatch.setattr(calls, "end_group", end)
    fleet.submit("a")
    fleet.park()
    key = fleet.action(1).idempotency_key
    with fleet.store.hold_slot(1) as held:
        held.register(own_identity(), fleet.clock.now_ms() + late_ms, key)
    if ends:
        assert fleet.sender.send(1, key).settled
        assert ended == [own_identity()]
    else:
        with pytest.raises(SlotBusy, match="deadline in 60 s"):
            fleet.sender.send(1, key)
        assert ended == []


def test_a_provider_process_that_cannot_be_ended_keeps_its_slot_busy_past_its_deadline(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "end_group", lambda *_: False)
    fleet.submit("a")
    fleet.park()
    key = fleet.action(1).idempotency_key
    with fleet.store.hold_slot(1) as held:
        held.register(own_identity(), fleet.clock.now_ms() - 1, key)
    with pytest.raises(SlotBusy):
        fleet.sender.send(1, key)
    assert fleet.provider.sends() == []


@pytest.mark.parametrize("registers", [False, True])
def test_a_send_has_begun_once_and_before_the_provider_does_anything(fleet: Fleet, registers: bool) -> None:
    if registers:
        fleet.provider = FakeProvider(LINEAGE, ends=0, register=(own_identity(), fleet.clock.now_ms() + 60_000))
    order: list[str] = []
    fleet.submit("a")
    fleet.park()
    fleet.provider.script(ActionType.CREATE, Before(lambda _: order.append("asked")))
    fleet.sender.send(1, fleet.action(1).idempotency_key, began=lambda: order.append("began"))
    assert order == ["began", "asked"]


def offering(sender: Sender, gather: Callable[[Answer], Sent | None]) -> Sender:
    """*sender*, but its answers are offered to *gather*."""
    return Sender(sender.context, sender.provider, sender.policy, gather)


def test_an_answer_that_somebody_else_applied_is_not_applied_again(fleet: Fleet) -> None:
    offered: list[Answer] = []

    def elsewhere(answer: Answer) -> Sent:
        offered.append(answer)
        action = answer.action
        return Sent(action.slot, action.type, action.idempotency_key, Reason.DONE, "elsewhere", settled=True)

    fleet.submit("a")
    fleet.park()
    action, revision = fleet.action(1), fleet.document.revision
    sent = offering(fleet.sender, elsewhere).send(1, action.idempotency_key, parked=fleet.pending[1])
    assert sent.detail == "elsewhere"
    assert [answer.action for answer in offered] == [action]
    assert fleet.document.revision == revision


def test_an_answer_that_nobody_took_is_applied_by_its_sender(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.park()
    sent = offering(fleet.sender, lambda _: None).send(1, fleet.action(1).idempotency_key)
    assert (sent.settled, sent.run, fleet.pending) == (True, "a", {})


@pytest.mark.parametrize("type_", [ActionType.CREATE, ActionType.EXECUTE])
def test_a_send_undoes_the_evidence_that_nothing_was_made_but_not_that_a_worker_is_gone(
    fleet: Fleet, type_: ActionType
) -> None:
    fleet.submit("a")
    fleet.provider.script(type_, LoseUndone(), LoseUndone())
    fleet.reconciler().reconcile()
    span = Span(fleet.clock.now_ms() - 2, fleet.clock.now_ms() - 1)
    with fleet.context.store.hold(5.0) as hold:
        loaded = hold.load()
        draft = fleet.context.draft(loaded.document)
        draft.pending.put(1, replace(loaded.document.pending_actions[1], absent=span))
        draft.event("slot:1", "test")
        hold.commit(loaded, draft.edit())
    assert fleet.action(1).type is type_
    fleet.sender.send(1, fleet.action(1).idempotency_key)
    assert fleet.pending[1].absent == (None if type_ is ActionType.CREATE else span)


def test_an_incomplete_look_settles_nothing_whatever_it_shows(fleet: Fleet) -> None:
    key, look = waiting_for_proof(fleet)
    half = replace(look, inventory=Inventory(False, look.inventory.workers))
    assert fleet.sender.settle(1, key, half) is None
    assert fleet.sender.settle(1, key, look) is not None


def test_a_worker_that_cannot_be_read_is_never_taken_for_absent(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    fleet.provider.script_look(*[Inventory(True, (), unreadable=(1,))] * 30)
    for _ in range(3):
        fleet.clock.advance(600)
        fleet.reconciler().reconcile()
    assert fleet.document.workers[1].state == "assigned"
    assert fleet.document.runs["a"].crashes == 0


@pytest.fixture
def greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever settles an action, in an apply or by a look, drains the whole fleet as well."""
    settle = outcomes.settle

    def settle_and_drain(draft: Draft, *rest: object) -> None:
        settle(draft, *rest)  # type: ignore[arg-type] # what `settle` takes
        draft.draining = True

    monkeypatch.setattr(outcomes, "settle", settle_and_drain)


@pytest.mark.usefixtures("greedy")
def test_an_apply_that_touches_more_than_its_slot_and_run_is_not_saved(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.park()
    sent = fleet.sender.send(1, fleet.action(1).idempotency_key)
    assert isinstance(sent.unsaved, ScopeExceeded)
    action, entry = fleet.action(1), fleet.pending[1]
    assert (sent.slot, sent.type, sent.key) == (1, ActionType.CREATE, action.idempotency_key)
    assert (sent.reason, sent.settled, sent.run) == (Reason.APPLY_FAILED, False, "a")
    assert (entry.last_reason, entry.last_error) == (Reason.APPLY_FAILED, sent.unsaved.what)
    trouble = fleet.document.troubles[-1]
    assert (trouble.reason, trouble.slot, trouble.key) == (Reason.APPLY_FAILED, 1, action.idempotency_key)
    assert not fleet.document.draining


def test_a_settlement_that_touches_more_than_its_slot_and_run_is_not_saved(
    fleet: Fleet, request: pytest.FixtureRequest
) -> None:
    key, look = waiting_for_proof(fleet)
    request.getfixturevalue("greedy")
    with pytest.raises(ScopeExceeded):
        fleet.sender.settle(1, key, look)
    assert fleet.action(1).idempotency_key == key
    assert not fleet.document.draining


def test_an_answer_that_cannot_be_made_durable_stays_parked_and_says_why(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = StorageFailed("no space left on the device")

    def fail(*_: object, **__: object) -> None:
        raise full

    fleet.submit("a")
    fleet.park()
    entry, key = fleet.pending[1], fleet.action(1).idempotency_key
    monkeypatch.setattr(FileHold, "commit", fail)
    sent = fleet.sender.send(1, key, parked=entry)
    assert (sent.slot, sent.type, sent.key, sent.run) == (1, ActionType.CREATE, key, "a")
    assert (sent.reason, sent.settled, sent.unsaved) == (Reason.DONE, False, full)
    assert sent.detail
    assert fleet.pending[1] == entry


def test_an_apply_may_touch_the_run_that_the_slots_worker_holds_or_is_kept_for(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.park()
    document, action = fleet.document, fleet.action(1)
    nobody, held = replace(action, run=None), replace(document.workers[1], run="r-9")
    assert pending._scope(document, action) == pending._scope(document, nobody) == Scope(1, "a")
    assert pending._scope(replace(document, workers={1: held}), nobody) == Scope(1, "r-9")
    assert pending._scope(replace(document, workers={}), action) == Scope(1, "a")


def answered(fleet: Fleet, slot: int) -> Waiting:
    """The provider's answer for what is parked there, offered to be applied together with others."""
    outcome = fleet.provider.mutate(fleet.action(slot), fleet.pending[slot].action, lambda *_: None)
    return Waiting(Answer(fleet.action(slot), outcome))


def test_answers_that_share_a_commit_are_all_applied_in_it(fleet: Fleet) -> None:
    fleet.submit("a", "b")
    fleet.park()
    revision = fleet.document.revision
    waiting = [answered(fleet, 1), answered(fleet, 2)]
    fleet.reconciler().park(None, waiting=waiting)
    assert [(sent.slot, sent.settled) for each in waiting if (sent := each.result())] == [(1, True), (2, True)]
    assert [fleet.action(slot).type for slot in (1, 2)] == [ActionType.EXECUTE] * 2
    assert fleet.document.revision == revision + 1


def test_answers_whose_shared_commit_failed_are_handed_back_and_stay_parked(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageFailed("no space left on the device")

    fleet.submit("a", "b")
    fleet.park()
    waiting = [answered(fleet, 1), answered(fleet, 2)]
    monkeypatch.setattr(FileHold, "commit", full)
    with pytest.raises(StorageFailed):
        fleet.reconciler().park(None, waiting=waiting)
    assert [each.result() for each in waiting] == [None, None]
    assert [fleet.action(slot).type for slot in (1, 2)] == [ActionType.CREATE] * 2


def test_an_answer_that_cannot_be_folded_is_handed_back_and_the_others_are_saved(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_create = outcomes._apply_create

    def broken(draft: Draft, action: Action, *more: object) -> None:
        if action.slot == 1:
            raise ZeroDivisionError("planted")
        apply_create(draft, action, *more)  # type: ignore[arg-type] # what it takes

    fleet.submit("a", "b")
    fleet.park()
    waiting = [answered(fleet, 1), answered(fleet, 2)]
    monkeypatch.setattr(outcomes, "_apply_create", broken)
    fleet.reconciler().park(None, waiting=waiting)
    assert waiting[0].result() is None
    assert waiting[1].result() is not None
    assert [fleet.action(slot).type for slot in (1, 2)] == [ActionType.CREATE, ActionType.EXECUTE]
