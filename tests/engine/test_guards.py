"""Guards of a send and of a settlement that only matter when somebody else was there in between."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.engine import outcomes
from controller.engine.gather import Waiting
from controller.engine.pending import Answer, park
from controller.model.action import Action
from controller.model.edit import Draft
from controller.model.errors import ScopeExceeded, SlotBusy, StorageFailed
from controller.model.inventory import Inventory, Look
from controller.model.reason import Reason
from controller.model.records import ActionType
from controller.provider.fake import After, DoThenLose, FakeProvider, Say
from controller.provider.process import own_identity
from controller.provider.protocol import Rejected
from controller.store.file import _FileHold
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
    assert fleet.sender.send(1, key, parked=entry).detail == "already settled"
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
    assert sent.detail == "already settled"
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
    assert fleet.pending[1].last_reason is Reason.APPLY_FAILED
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
    monkeypatch.setattr(_FileHold, "commit", full)
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
