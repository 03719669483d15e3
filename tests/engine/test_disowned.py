"""Disowned actions: what keeps their slot closed, and which looks open it again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.engine.abandon import Left
from controller.engine.age import latest_time
from controller.engine.disowned import blocks, observe
from controller.engine.queue import cancel
from controller.model.edit import Draft
from controller.model.inventory import Inventory, Look, Seen
from controller.model.reason import Reason
from controller.model.records import ActionType, Disowned, Proven, RunState, WorkerState
from controller.provider.fake import DoThenLose, FakeProvider, LoseUndone, Say
from controller.provider.protocol import Unknown
from tests.engine.abandoning import C, E, apart, give_up, look_of, parked, past_grace, plan, taking_nothing
from tests.engine.fleet import LINEAGE, Fleet


def disown(fleet: Fleet, *, done: bool, type_: ActionType = C) -> str:
    """The key of a disowned action of slot 1, which was done or was not, and which nobody answers for."""
    key = parked(fleet, DoThenLose() if done else LoseUndone(), Say(Unknown("no route to host")), type_=type_)
    assert give_up(fleet, unresolved=True, look=lambda: None).outcome is Left.DISOWNED
    return key


def record(fleet: Fleet) -> Disowned:
    (found,) = fleet.document.disowned.values()
    return found


def state(fleet: Fleet) -> str:
    return fleet.document.runs["a"].state.value


def look(fleet: Fleet) -> None:
    """Fold one look into the document, and plan by it."""
    plan(fleet)


def events(fleet: Fleet) -> list[str]:
    return [each.event for each in fleet.store.history("slot:1") if each.event.startswith("disowned")]


def test_a_slot_whose_create_was_disowned_takes_nothing_new_and_the_run_goes_elsewhere(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    disown(fleet, done=False)
    fleet.clock.advance(30)
    fleet.reconciler().reconcile()
    assert list(fleet.document.workers) == [2]
    assert fleet.document.runs["a"].state is RunState.RUNNING
    assert blocks(fleet.document, 1)
    assert not blocks(fleet.document, 2)


def test_a_create_that_looks_do_not_show_is_proven_absent_by_two_of_them_after_a_grace_time(fleet: Fleet) -> None:
    key = disown(fleet, done=False)
    fleet.clock.advance(1)
    look(fleet)
    assert record(fleet).absent is None, "inside the grace time it may still be on its way"
    past_grace(fleet)
    look(fleet)
    assert record(fleet).absent is not None
    look(fleet)
    assert record(fleet).proven is None, "a look that is not apart is the same look"
    apart(fleet)
    look(fleet)
    found = fleet.document.disowned[key]
    assert (found.proven, found.proven_at, found.absent) == (Proven.ABSENT, fleet.clock.now_ms(), None)
    assert events(fleet) == ["disowned_unseen", "disowned_proven"]
    assert not blocks(fleet.document, 1)


def test_looks_that_overlap_are_not_two(fleet: Fleet) -> None:
    disown(fleet, done=False)
    past_grace(fleet)
    old = look_of(fleet)
    assert old is not None
    look(fleet)
    apart(fleet)
    stale = replace(old, began_at=fleet.clock.now_ms(), ended_at=fleet.clock.now_ms())
    fleet.reconciler().park(stale)
    assert record(fleet).proven is None, "it was asked for before the first was noted"


@pytest.mark.parametrize(
    "silent", [Inventory(False, ()), Inventory(True, (), unreadable=(1,))], ids=["incomplete", "unreadable"]
)
def test_a_look_that_says_nothing_of_the_slot_proves_nothing(fleet: Fleet, silent: Inventory) -> None:
    disown(fleet, done=False)
    for _ in range(3):
        past_grace(fleet)
        fleet.provider.script_look(silent)
        look(fleet)
    assert (record(fleet).absent, record(fleet).proven) == (None, None)


def test_a_create_that_a_look_shows_is_proven_present_and_never_taken_in_by_itself(fleet: Fleet) -> None:
    disown(fleet, done=True)
    fleet.clock.advance(1)
    fleet.reconciler().reconcile()
    document = fleet.document
    assert record(fleet).proven is Proven.PRESENT
    assert 1 not in document.workers
    (left,) = document.slots[1].unrecorded
    assert left.id == fleet.provider.workers[1].seen.id
    fleet.clock.advance(3600)
    fleet.reconciler().reconcile()
    assert 1 in fleet.provider.workers, "nothing deletes it by itself"
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED, "its run went elsewhere"
    assert {slot for slot, _, _ in fleet.provider.sends()[2:]} == {2}


def test_the_plan_that_proves_what_is_there_makes_nothing_in_that_slot(fleet: Fleet) -> None:
    disown(fleet, done=True)
    fleet.clock.advance(30)
    look(fleet)
    assert record(fleet).proven is Proven.PRESENT
    assert 1 not in fleet.pending


@pytest.mark.parametrize(("left", "proven"), [(True, Proven.PRESENT), (False, Proven.ABSENT)])
def test_a_create_that_a_look_shows_gone_is_proven_by_what_it_left(fleet: Fleet, left: bool, proven: Proven) -> None:
    disown(fleet, done=True)
    fleet.provider.lose(1)
    there = fleet.provider.workers[1]
    there.seen = replace(there.seen, resources=there.seen.resources if left else {})
    fleet.clock.advance(1)
    look(fleet)
    assert record(fleet).proven is proven


def test_an_absence_with_a_look_between_that_shows_the_worker_is_no_evidence(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    disown(fleet, done=False, type_=E)
    past_grace(fleet)
    shown = fleet.provider.truth()
    fleet.provider.script_look(Inventory(True, ()))
    look(fleet)
    assert record(fleet).absent is not None
    creating = replace(shown, workers=tuple(replace(each, state=Seen.CREATING) for each in shown.workers))
    fleet.provider.script_look(creating)
    apart(fleet)
    look(fleet)
    assert record(fleet).absent is None
    assert events(fleet) == ["disowned_unseen", "disowned_seen_again"]


def test_while_an_execute_is_disowned_its_run_is_held_and_its_step_is_not_asked_for_again(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    disown(fleet, done=False, type_=E)
    sends = fleet.provider.sends()
    fleet.clock.advance(1)
    for _ in range(3):
        fleet.reconciler().reconcile()
    assert (fleet.pending, fleet.provider.sends()) == ({}, sends)
    run = fleet.document.runs["a"]
    assert (run.state, run.worker is not None) == (RunState.RUNNING, True)


def test_a_cancel_meanwhile_waits_for_what_looks_show(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    disown(fleet, done=True, type_=E)
    cancel(fleet.context, "a")
    fleet.provider.script_look(Inventory(False, ()))
    look(fleet)
    assert state(fleet) == "running"
    fleet.reconciler().reconcile()
    assert state(fleet) == "cancelled"
    assert all(step.signal == 15 for step in fleet.provider.workers[1].steps.values())


def test_an_execute_that_a_look_lists_is_accepted_like_any_other(fleet: Fleet) -> None:
    key = disown(fleet, done=True, type_=E)
    fleet.clock.advance(1)
    fleet.reconciler().reconcile()
    assert record(fleet).proven is Proven.PRESENT
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED
    assert [each for _, type_, each in fleet.provider.sends() if type_ is E] == [key, key], "done once, asked twice"


def test_an_execute_that_a_look_omits_had_no_effect_and_is_asked_for_anew(fleet: Fleet) -> None:
    key = disown(fleet, done=False, type_=E)
    fleet.clock.advance(1)
    look(fleet)
    assert record(fleet).proven is None, "inside the grace time it may still be on its way"
    past_grace(fleet)
    fleet.reconciler().reconcile()
    assert record(fleet).proven is Proven.ABSENT
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED
    assert fleet.provider.done[-1] != key


def test_a_worker_that_is_gone_ends_its_disowned_execute_with_its_life(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    disown(fleet, done=False, type_=E)
    fleet.provider.lose(1)
    fleet.clock.advance(1)
    look(fleet)
    assert record(fleet).proven is Proven.ABSENT
    assert fleet.document.workers[1].state is WorkerState.LOST
    assert (fleet.document.runs["a"].state, fleet.document.runs["a"].crashes) == (RunState.FAILED, 1)


def test_a_step_that_ended_before_its_worker_was_gone_is_folded_first(fleet: Fleet) -> None:
    disown(fleet, done=True, type_=E)
    fleet.provider.lose(1)
    fleet.clock.advance(1)
    look(fleet)
    assert record(fleet).proven is Proven.PRESENT
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED


def test_a_listed_execute_that_the_document_cannot_take_stops_no_other_slot_and_is_never_asked_for_again(
    fleet: Fleet,
) -> None:
    disown(fleet, done=True, type_=E)
    fleet.submit("b")
    with taking_nothing():
        fleet.clock.advance(1)
        look(fleet)
    assert record(fleet).proven is None
    assert 1 not in fleet.pending
    assert fleet.action(2).type is C
    fleet.reconciler().reconcile()
    assert fleet.document.finished.keys() == {"a", "b"}


@pytest.mark.parametrize(("done", "proven"), [(True, Proven.PRESENT), (False, Proven.ABSENT)])
def test_a_disowned_deallocate_is_settled_by_what_the_worker_is(fleet: Fleet, done: bool, proven: Proven) -> None:
    fleet.submit("a")
    fleet.reconciler().reconcile()
    fleet.clock.advance(fleet.policy.idle_ms / 1000 + 1)
    plan(fleet)
    assert fleet.action(1).type is ActionType.DEALLOCATE
    one = DoThenLose() if done else LoseUndone()
    fleet.provider.script(ActionType.DEALLOCATE, one, Say(Unknown("no route to host")))
    fleet.sender.send(1, fleet.action(1).idempotency_key, parked=fleet.pending[1])
    assert give_up(fleet, unresolved=True, look=lambda: None).outcome is Left.DISOWNED
    assert fleet.document.workers[1].state is WorkerState.READY
    past_grace(fleet)
    look(fleet)
    assert record(fleet).proven is proven
    assert fleet.document.workers[1].state is (WorkerState.DEALLOCATED if done else WorkerState.READY)
    fleet.clock.advance(600)
    fleet.reconciler().reconcile()
    assert fleet.document.workers == {}


def test_what_a_disowned_action_was_about_may_be_off_the_record_by_now(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    disown(fleet, done=True, type_=E)
    with fleet.context.store.hold(5.0) as hold:
        loaded = hold.load()
        draft = fleet.context.draft(loaded.document)
        draft.workers.put(1, replace(loaded.document.workers[1], generation=2))
        run = loaded.document.runs["a"]
        assert run.worker is not None
        draft.runs.put("a", replace(run, worker=replace(run.worker, generation=2)))
        draft.event("slot:1", "test")
        hold.commit(loaded, draft.edit())
    before = fleet.document.workers[1]
    fleet.clock.advance(1)
    found = look_of(fleet)
    assert found is not None
    draft = Draft(fleet.document, now=fleet.clock.now_ms(), command="test")
    observe(draft, found, fleet.policy)
    assert [each.proven for _, each in draft.disowned.items()] == [Proven.PRESENT]
    assert draft.workers.get(1) == before


def test_what_is_proven_is_told_once_and_is_kept_for_ever(fleet: Fleet) -> None:
    key = disown(fleet, done=True)
    fleet.clock.advance(1)
    fleet.reconciler().reconcile()
    revision = fleet.document.revision
    fleet.clock.advance(3600)
    for _ in range(3):
        fleet.reconciler().reconcile()
    assert list(fleet.document.disowned) == [key]
    assert events(fleet).count("disowned_proven") == 1
    assert fleet.document.revision > revision, "the fleet went on"


def test_a_look_that_shows_nothing_new_of_a_disowned_action_commits_nothing(fleet: Fleet) -> None:
    disown(fleet, done=False)
    fleet.provider.script_look(*[Inventory(True, (), unreadable=(1, 2, 3))] * 9)
    fleet.reconciler().reconcile()
    draft = Draft(fleet.document, now=fleet.clock.now_ms(), command="test")
    found = look_of(fleet)
    assert found is not None
    observe(draft, found, fleet.policy)
    assert draft.edit().empty


def test_when_it_was_disowned_is_a_time_that_the_document_knows(fleet: Fleet) -> None:
    disown(fleet, done=False)
    assert latest_time(fleet.document) == record(fleet).at


def test_a_disowned_action_is_told_whole(fleet: Fleet) -> None:
    key = disown(fleet, done=False)
    found, at = fleet.document.disowned[key], fleet.clock.now_ms()
    assert (found.at, found.sent_at, found.reason, found.by) == (at, at, Reason.DISOWNED, "ops@example.org")
    assert "no route to host" in found.detail
    (event,) = (each for each in fleet.store.history("slot:1") if each.event == "action.disowned")
    assert (event.from_, event.key, event.detail) == (C, key, found.detail)


def test_a_look_begun_before_the_disowning_says_nothing(fleet: Fleet) -> None:
    key = parked(fleet, DoThenLose(), Say(Unknown("no route to host")))
    old = look_of(fleet)
    assert isinstance(old, Look)
    give_up(fleet, key, unresolved=True, look=lambda: None)
    fleet.reconciler().park(old)
    assert record(fleet).proven is None
