"""Forget: what it refuses, what it keeps on record, which looks open the slot again, and that killed is still once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from msgspec.structs import replace

from controller.engine.adoption import condemn
from controller.engine.classify import SlotClass, classify, unrecorded_in
from controller.engine.disowned import blocks
from controller.engine.explain import explain_slot
from controller.engine.forget import Forgotten, forget
from controller.engine.looks import observe
from controller.engine.planner import Ground
from controller.engine.reconcile import Reconciler
from controller.engine.recovery import surrender
from controller.engine.standing import Surroundings
from controller.model.action import verify
from controller.model.edit import Draft
from controller.model.errors import Conflict, ControllerError, NotFound, TransitionRefused
from controller.model.invariants import against_history, violations
from controller.model.inventory import Look, Seen
from controller.model.policy import Policy, Release
from controller.model.reason import Reason
from controller.model.records import ActionType, Disowned, Proven, RunState, WorkerRef, WorkerState
from controller.provider.fake import DoThenLose, FakeProvider, LoseUndone, Say
from controller.provider.protocol import Unknown
from tests.engine import operating as kit
from tests.engine.abandoning import E, apart, give_up, parked, past_grace, plan
from tests.engine.fleet import LINEAGE, Fleet
from tests.engine.operating import POINTS, Died, Place, look, run, seen, worker

LOST = worker(state=WorkerState.LOST, run=None)
FORGETTABLE = (
    WorkerState.READY,
    WorkerState.RELEASED,
    WorkerState.DEALLOCATED,
    WorkerState.COMPUTE_REMOVED,
    WorkerState.LOST,
)


def place(state: WorkerState = WorkerState.LOST, **sections: Any) -> Place:
    return Place(kit.document(worker(state=state, run=None), **sections))


def forgotten(at: Place, shown: Look | None = None, **how: Any) -> Forgotten:
    return forget(at.context, 1, shown, **{"reason": "the account was closed", "by": "ops", **how})


def refused(
    at: Place, shown: Look | None = None, error: type[ControllerError] = Conflict, slot: int = 1
) -> ControllerError:
    """The refusal; it has changed nothing."""
    before = at.document
    with pytest.raises(error) as refusal:
        forget(at.context, slot, shown, reason="it has to be", by="ops")
    assert at.document == before
    assert refusal.value.next
    return refusal.value


@pytest.mark.parametrize("state", FORGETTABLE)
def test_the_record_goes_and_what_may_be_left_is_kept_with_every_id(state: WorkerState) -> None:
    at = place(state)
    answer = forgotten(at)
    assert 1 not in at.document.workers
    assert answer.left == ("worker w-1", "disk d-1 (x-1)", "vm i-1 (y-1)")
    ((key, kept),) = at.document.disowned.items()
    action = verify(kept.action)
    assert (key, action.type, action.slot) == (answer.key, ActionType.DELETE_COMPUTE, 1)
    assert (action.assignment, action.generation, action.resources) == ("a-1", 1, kit.DATA)
    assert (kept.reason, kept.by, kept.proven, kept.sent_at) == (Reason.DISOWNED, "ops", None, None)
    assert all(name in kept.detail for name in ("worker w-1", "d-1 (x-1)", "i-1 (y-1)", "a-1 generation 1 of test"))
    assert at.document.pending_actions == {}
    assert (blocks(at.document, 1), violations(at.document)) == (True, ())


def test_who_forgot_it_why_and_what_is_told_of_its_slot() -> None:
    at = place()
    forgotten(at)
    went, kept = at.events("slot:1")
    assert (went.event, went.from_, went.to, went.detail) == ("forget", "lost", None, "by ops: the account was closed")
    assert (kept.event, kept.from_) == ("action.disowned", "delete_compute")
    assert "vm i-1 (y-1)" in (kept.detail or "")
    assert against_history(at.document, at.context.store.history()) == (), "its serial is known to history"
    events = tuple(at.context.store.history("slot:1"))
    around = Surroundings(events, (), {}, 3, ("fleet",), at.clock.now_ms())
    found = explain_slot(at.document, 1, around)
    assert found.story.disagreements == ()
    because = " ".join(found.because)
    assert "Its worker was forgotten by ops: " in because
    assert "Until looks show whether it is there, the slot takes nothing new." in because


def test_a_pending_action_is_abandoned_first() -> None:
    at = place(pending_actions={1: kit.pending(ActionType.DEALLOCATE)})
    error = refused(at)
    key = kit.minted(ActionType.DEALLOCATE)[0]
    assert key in error.where
    assert error.next.startswith(f"controller abandon 1 --key {key} --unresolved --reason WHY --confirm-abandon")


@pytest.mark.parametrize(
    ("policy", "verb"),
    [(Policy(slots=3, release=Release.PROOF), "surrender a --slot 1 --unresolved"), (Policy(slots=3), "release a")],
)
@pytest.mark.parametrize("state", [WorkerState.ASSIGNED, WorkerState.DEALLOCATED, WorkerState.LOST])
def test_a_worker_of_a_run_is_given_up_for_that_first(policy: Policy, verb: str, state: WorkerState) -> None:
    at = Place(kit.document(worker(state=state), runs=(run(),)), policy)
    assert error_of(at).startswith(f"controller {verb}")


def test_a_run_that_its_worker_holds_is_surrendered_even_where_no_proof_is_asked_for() -> None:
    held = run(RunState.RUNNING, worker=WorkerRef(1, "a-1", 1), max_crashes=2)
    at = Place(kit.document(worker(state=WorkerState.ASSIGNED), runs=(held,)), Policy(slots=3))
    assert error_of(at).startswith("controller surrender a --slot 1 --unresolved")
    surrender(at.context, "a", None, unresolved=True, reason="gone", by="ops")
    forgotten(at)
    assert (at.document.workers, at.document.runs["a"].state) == ({}, RunState.QUEUED)


def error_of(at: Place) -> str:
    return refused(at).next


@pytest.mark.parametrize("shown", [look(), look(seen(LOST)), look(revision=0)], ids=["nothing", "it", "from before"])
def test_a_provider_that_answers_is_not_gone(shown: Look) -> None:
    error = refused(place(), shown)
    assert "the provider answers" in error.what
    assert error.where == "slot 1: a-1 is lost"
    assert "controller reconcile --apply" in error.next


@pytest.mark.parametrize("how", [{"complete": False}, {"unreadable": (1,)}], ids=["incomplete", "unreadable"])
def test_a_provider_that_shows_it_on_is_not_gone_whatever_else_it_leaves_out(how: dict[str, Any]) -> None:
    error = refused(place(), look(seen(LOST, Seen.READY, generation=2), **how))
    assert ("the provider answers" in error.what, error.where) == (True, "slot 1: a-1 generation 2 (w-1) is ready")


@pytest.mark.parametrize("shown", [look(complete=False), look(unreadable=(1,))], ids=["incomplete", "unreadable"])
def test_an_answer_that_says_nothing_of_the_slot_is_none(shown: Look) -> None:
    at = place()
    forgotten(at, shown)
    assert at.document.workers == {}


def test_what_is_being_made_is_not_forgotten() -> None:
    at = place(WorkerState.CREATING)
    before = at.document
    with pytest.raises(TransitionRefused):
        forgotten(at)
    assert at.document is before


def test_where_nothing_is_on_record_there_is_nothing_to_forget() -> None:
    assert [refused(place(), error=NotFound, slot=slot).exit for slot in (2, 10_001)] == [4, 4]


def test_a_dry_run_says_what_would_be_and_changes_nothing() -> None:
    at = place()
    before = at.document
    answer = forgotten(at, dry_run=True)
    assert (answer.key, answer.left[0], at.document) == ("", "worker w-1", before)


def test_twice_is_once() -> None:
    at = place()
    forgotten(at)
    refused(at, error=NotFound)
    assert len(at.document.disowned) == 1


def test_two_at_once_are_one() -> None:
    at = place()
    answers: list[str] = []

    def once() -> None:
        try:
            answers.append(forgotten(at).key)
        except NotFound:
            answers.append("not found")

    threads = [threading.Thread(target=once) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == sorted(["not found", *at.document.disowned])


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_step_it_is_done_once_when_it_is_typed_again(point: str) -> None:
    at = place()
    at.dies_at(point)
    with pytest.raises(Died):
        forgotten(at)
    try:
        forgotten(at)
    except NotFound:
        assert point == "written"
    assert (at.document.workers, len(at.document.disowned)) == ({}, 1)
    assert [event.event for event in at.events("slot:1")] == ["forget", "action.disowned"]
    assert against_history(at.document, at.context.store.history()) == ()


# What looks show of it later


def record(fleet: Fleet) -> Disowned:
    return next(each for each in fleet.document.disowned.values() if each.sent_at is None)


def given_up(fleet: Fleet, provider: FakeProvider | None = None) -> Fleet:
    """Slot 1 had a ready worker, whose provider is asked no more; *provider* is the one that the settings name then."""
    fleet.submit("a")
    fleet.reconciler().reconcile()
    forget(fleet.context, 1, None, reason="gone", by="ops")
    if provider is not None:
        fleet.provider = provider
    return fleet


def test_two_looks_apart_that_show_nothing_of_it_open_its_slot(fleet: Fleet) -> None:
    given_up(fleet, FakeProvider(LINEAGE, ends=0))
    fleet.submit("b", "c", "d")
    fleet.clock.advance(1)
    plan(fleet)
    assert record(fleet).absent is None, "inside the grace time it may not be listed yet"
    assert 1 not in fleet.pending
    past_grace(fleet)
    plan(fleet)
    assert (record(fleet).absent is not None, record(fleet).proven) == (True, None)
    plan(fleet)
    assert record(fleet).proven is None, "a look that is not apart is the same look"
    apart(fleet)
    plan(fleet)
    assert record(fleet).proven is Proven.ABSENT
    fleet.reconciler().reconcile()
    assert {"b", "c", "d"} <= fleet.document.finished.keys()
    assert fleet.document.workers[1].assignment != "a-1"


def test_the_provider_of_another_kind_that_the_settings_name_now_settles_it_too(fleet: Fleet) -> None:
    fleet.policy = replace(fleet.policy, slots=1)
    given_up(fleet, FakeProvider(LINEAGE, ends=0))
    fleet.submit("b")
    for _ in range(3):
        past_grace(fleet)
        Reconciler(fleet.sender, Ground(fleet.policy, "another"), parallelism=1, stop=fleet.stop).reconcile()
    assert record(fleet).proven is Proven.ABSENT
    served = fleet.document.finished["b"].worker
    assert served is not None
    assert (served.slot, served.assignment) == (1, "a-2")


@pytest.mark.parametrize("state", [Seen.READY, Seen.CREATING, Seen.DARK])
def test_one_that_is_there_after_all_is_unrecorded_in_the_commit_that_proves_it(fleet: Fleet, state: Seen) -> None:
    given_up(fleet)
    truth = fleet.provider.truth()
    shown = replace(truth, workers=tuple(replace(each, state=state) for each in truth.workers))
    fleet.provider.script_look(shown)
    fleet.submit("b", "c", "d")
    fleet.clock.advance(1)
    plan(fleet)
    assert record(fleet).proven is Proven.PRESENT
    assert [each.assignment for each in fleet.document.slots[1].unrecorded] == ["a-1"]
    assert 1 not in fleet.pending
    fleet.reconciler().park(None)
    assert 1 not in fleet.pending, "nor does a plan without a look make anything beside it"


def test_what_is_there_after_all_is_removed_by_the_operator_and_by_nobody_else(fleet: Fleet) -> None:
    given_up(fleet)
    for _ in range(4):
        past_grace(fleet)
        fleet.reconciler().reconcile()
    assert (list(fleet.provider.workers), fleet.document.workers) == ([1], {})
    shown = fleet.reconciler().look()[0]
    assert shown is not None
    found = condemn(fleet.context, 1, shown, provider="fake", dry_run=True)
    condemn(fleet.context, 1, shown, provider="fake", identity=found.identity, reason="found again", by="ops")
    fleet.clock.advance(1)
    fleet.reconciler().reconcile()
    assert (fleet.provider.workers, fleet.document.workers) == ({}, {})


def test_one_that_a_look_shows_gone_with_nothing_left_opens_its_slot_at_once(fleet: Fleet) -> None:
    given_up(fleet)
    fleet.provider.lose(1)
    there = fleet.provider.workers[1]
    there.seen = replace(there.seen, resources={})
    fleet.clock.advance(1)
    plan(fleet)
    assert record(fleet).proven is Proven.ABSENT


def test_until_it_is_proven_it_counts_as_held_back_and_then_as_unrecorded() -> None:
    at = place()
    forgotten(at)
    shown = look(seen(LOST, Seen.READY))
    (before,) = (each for each in classify(at.document, shown, 1) if each.slot == 1)
    assert (before.slot_class, before.reason, before.observed) == (SlotClass.RETAINED, Reason.DISOWNED, Seen.READY)
    assert unrecorded_in(at.document, shown) == {}

    def fold(draft: Draft) -> None:
        observe(draft, shown, at.policy)

    at.change(fold)
    (after,) = (each for each in classify(at.document, look(seen(LOST, Seen.READY)), 1) if each.slot == 1)
    assert (after.slot_class, after.reason) == (SlotClass.RETAINED, Reason.UNRECORDED)


def test_an_incomplete_look_settles_nothing(fleet: Fleet) -> None:
    given_up(fleet)
    fleet.provider.script_look(replace(fleet.provider.truth(), complete=False))
    past_grace(fleet)
    plan(fleet)
    assert (record(fleet).proven, record(fleet).absent) == (None, None)


@pytest.mark.parametrize("done", [True, False])
def test_after_an_abandon_and_a_surrender_both_records_are_settled_by_the_same_looks(fleet: Fleet, done: bool) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    parked(fleet, DoThenLose() if done else LoseUndone(), Say(Unknown("no route to host")), type_=E)
    give_up(fleet, unresolved=True, look=lambda: None)
    surrender(fleet.context, "a", None, unresolved=True, reason="gone", by="ops")
    forget(fleet.context, 1, None, reason="gone", by="ops")
    assert len(fleet.document.disowned) == 2
    past_grace(fleet)
    plan(fleet)
    assert {each.proven for each in fleet.document.disowned.values()} == {Proven.PRESENT}
    assert len(fleet.document.slots[1].unrecorded) == 1
