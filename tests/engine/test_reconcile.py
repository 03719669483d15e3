"""The bounded loop: what it does in which order, when it ends, and what survives its death at any point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

from controller.engine.planner import Ground, plan
from controller.engine.queue import cancel, set_draining
from controller.engine.reconcile import MAX_PASSES
from controller.model.action import Action
from controller.model.errors import ProviderFailed, SlotRetained
from controller.model.invariants import violations
from controller.model.inventory import Inventory, Seen
from controller.model.policy import Backoff
from controller.model.reason import Reason
from controller.model.records import ActionType, RunState
from controller.provider.fake import Before, FakeProvider, Later, LoseUndone, Say
from controller.provider.protocol import IdentityRefused, Outcome, Register, Rejected, Unknown
from controller.store.file import FileHold
from tests.engine.fleet import LINEAGE, Fleet


class Died(BaseException):
    """The process ends here: nothing catches it."""


class MortalProvider(FakeProvider):
    """Its caller dies at the call number `fatal` (from 0), before or after it took effect."""

    fatal: int = -1
    before: bool = True
    count: int = 0

    def mutate(self, action: Action, raw: Raw, register: Register) -> Outcome:
        number, self.count = self.count, self.count + 1
        if number == self.fatal and self.before:
            raise Died
        outcome = super().mutate(action, raw, register)
        if number == self.fatal:
            raise Died
        return outcome


def all_done(fleet: Fleet, *runs: str) -> None:
    """Every run succeeded in its first life, each slot holds at most one worker ever made for it, nothing is parked."""
    document = fleet.document
    assert {run: document.finished[run].token for run in runs} == dict.fromkeys(runs, 1)
    assert document.pending_actions == {}
    assert violations(document) == ()
    assert sorted(fleet.provider.workers) == sorted(document.workers)
    assert len(fleet.provider.done) == len(set(fleet.provider.done))


def test_a_reconcile_makes_workers_runs_everything_and_leaves_nothing_parked(fleet: Fleet) -> None:
    fleet.submit("a", "b", "c", "d", "e")
    report = fleet.reconciler(parallelism=4).reconcile()
    assert report.converged
    assert report.exit_code(fleet.document) == 0
    all_done(fleet, "a", "b", "c", "d", "e")


def test_all_slots_of_a_pass_are_parked_in_one_commit(fleet: Fleet) -> None:
    fleet.submit("a", "b", "c")
    before = fleet.document.revision
    fleet.park()
    assert len(fleet.pending) == 3
    assert fleet.document.revision == before + 1


def test_a_second_reconcile_sends_nothing_and_changes_nothing(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.reconciler().reconcile()
    before, sends = fleet.bytes(), len(fleet.provider.sends())
    assert not fleet.reconciler().reconcile().changed
    assert (fleet.bytes(), len(fleet.provider.sends())) == (before, sends)


def test_a_preview_changes_nothing(fleet: Fleet) -> None:
    fleet.submit("a")
    before = fleet.bytes()
    _, _, planned = fleet.reconciler().preview()
    assert [park.type for park in planned.parks] == [ActionType.CREATE]
    assert fleet.bytes() == before
    assert fleet.provider.sends() == []


def test_passes_are_bounded_however_much_there_is_to_do(fleet: Fleet) -> None:
    fleet.submit(*[f"r{n}" for n in range(100)])
    report = fleet.reconciler().reconcile()
    assert report.passes == MAX_PASSES
    assert not report.converged


def test_a_stop_sends_and_parks_nothing_more_and_what_is_parked_is_replayed_later(fleet: Fleet) -> None:
    def stop(_: Action) -> None:
        fleet.stop.set()

    fleet.submit("a", "b", "c")
    fleet.provider.script(ActionType.CREATE, Before(stop))
    report = fleet.reconciler().reconcile()
    assert report.interrupted
    assert len(fleet.provider.sends()) == 1
    assert sorted(fleet.pending) == [2, 3]
    fleet.stop = type(fleet.stop)()
    fleet.reconciler().reconcile()
    all_done(fleet, "a", "b", "c")


def test_one_poisoned_slot_does_not_stop_the_others(fleet: Fleet) -> None:
    fleet.submit("a", "b", "c")
    fleet.provider.script(ActionType.CREATE, *[LoseUndone()] * 20, slot=2)
    fleet.reconciler().reconcile()
    assert fleet.document.finished.keys() == {"a", "b", "c"}
    assert list(fleet.pending) == [2]


def test_a_failed_look_changes_no_slot_and_is_reported(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.reconciler().reconcile()
    worker = fleet.document.workers[1]
    fleet.provider.script_look(*[ProviderFailed("no route")] * 3)
    report = fleet.reconciler().reconcile()
    assert fleet.document.workers[1] == worker
    assert report.exit_code(fleet.document) == 5


@pytest.mark.parametrize("listing", [Inventory(True, ()), Inventory(False, ())])
def test_an_empty_or_incomplete_look_right_after_a_create_makes_nothing_again(fleet: Fleet, listing: Inventory) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    fleet.provider.script_look(listing, listing, listing, listing)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    assert len(fleet.provider.workers) == 1
    assert [type_ for _, type_, _ in fleet.provider.sends()] == [ActionType.CREATE, ActionType.EXECUTE]
    assert fleet.document.runs["a"].state is RunState.RUNNING


def test_an_action_that_may_be_asked_again_in_a_moment_is_waited_for(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    cancel(fleet.context, "a")
    fleet.provider.script(ActionType.CANCEL, Later(3, retry_after_ms=100))
    fleet.reconciler(only=1).reconcile()
    assert fleet.document.runs["a"].state is RunState.CANCELLED


def test_a_cancel_between_parking_a_create_and_its_answer_takes_the_worker_down(fleet: Fleet) -> None:
    def withdraw(_: Action) -> None:
        cancel(fleet.context, "a")

    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, Before(withdraw))
    fleet.reconciler().reconcile()
    assert fleet.document.runs["a"].state is RunState.CANCELLED
    assert fleet.document.workers[1].state == "ready"
    fleet.clock.advance(fleet.policy.idle_ms / 1000 + 1)
    fleet.reconciler().reconcile()
    assert fleet.document.workers == {}
    assert fleet.provider.workers == {}


def test_a_cancel_that_arrives_while_the_execute_is_under_way_ends_the_step_and_the_run(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)

    def ask(_: Action) -> None:
        cancel(fleet.context, "a")

    fleet.submit("a")
    fleet.provider.script(ActionType.EXECUTE, Before(ask))
    fleet.reconciler().reconcile()
    assert fleet.document.runs["a"].state is RunState.CANCELLED
    assert [type_ for _, type_, _ in fleet.provider.sends()][-1] is ActionType.CANCEL
    assert violations(fleet.document) == ()


def test_a_cancel_before_the_start_of_a_step_could_be_recorded_names_run_step_attempt_and_token(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    fleet.submit("a")

    def ask(_: Action) -> None:
        cancel(fleet.context, "a")

    fleet.provider.script(ActionType.EXECUTE, Before(ask))
    fleet.reconciler().reconcile()
    parked = [e for e in fleet.store.history("slot:1") if e.event == "action.parked" and e.to == "cancel"]
    assert [(event.step, event.token) for event in parked] == [("main", 1)]
    assert fleet.document.runs["a"].state is RunState.CANCELLED


def test_a_worker_that_one_look_does_not_show_gets_no_work_until_it_is_seen_again(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE, ends=0)
    fleet.policy = replace(fleet.policy, slots=1, idle_ms=10**9)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    fleet.clock.advance(fleet.policy.grace_ms / 1000 + 1)
    fleet.submit("b")
    fleet.provider.script_look(Inventory(True, ()), Inventory(True, ()))
    fleet.reconciler().reconcile()
    assert fleet.document.workers[1].state == "ready"
    assert fleet.document.runs["b"].attempts == 0
    fleet.reconciler().reconcile()
    assert fleet.document.finished["b"].state is RunState.SUCCEEDED


def test_a_run_does_not_wait_for_a_create_that_will_not_come_by_itself(fleet: Fleet) -> None:
    fleet.provider.script(ActionType.CREATE, Say(IdentityRefused("that disk is another one now")))
    fleet.submit("a")
    fleet.reconciler().reconcile()
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED
    assert list(fleet.pending) == [1]


def test_a_stop_during_a_look_parks_nothing(fleet: Fleet) -> None:
    fleet.provider.script_look(fleet.stop.set)
    fleet.submit("a")
    report = fleet.reconciler().reconcile()
    assert report.interrupted
    assert fleet.pending == {}


def test_a_provider_that_cannot_say_what_there_is_is_asked_for_nothing_new(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script_look(ProviderFailed("no route"))
    report = fleet.reconciler().reconcile()
    assert fleet.provider.sends() == []
    assert report.exit_code(fleet.document) == 5


def test_a_look_that_cannot_read_one_worker_speaks_of_all_others(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    fleet.submit("a", "b")
    fleet.reconciler().reconcile()
    for key in [*fleet.document.workers[1].accepted, *fleet.document.workers[2].accepted]:
        fleet.provider.end_step(key, exit_code=0)
    whole = fleet.provider.truth()
    half = replace(whole, workers=whole.workers[1:], unreadable=(1,), troubles=("worker 1-a-1 cannot be read",))
    fleet.provider.script_look(*[half] * 5)
    report = fleet.reconciler().reconcile()
    assert fleet.document.finished.keys() == {"b"}
    assert fleet.document.workers[1].state == "assigned"
    assert [error.what for error in report.errors] == ["worker 1-a-1 cannot be read"]
    assert report.stuck == {1}


def test_workers_above_a_lowered_number_of_slots_take_nothing_more_and_leave(fleet: Fleet) -> None:
    fleet.submit("a", "b", "c")
    fleet.reconciler().reconcile()
    fleet.policy = replace(fleet.policy, slots=1)
    fleet.submit("d", "e", "f")
    fleet.reconciler().reconcile()
    fleet.reconciler().reconcile()
    assert list(fleet.document.workers) == [1]
    workers = [fleet.document.finished[run].worker for run in ("d", "e", "f")]
    assert {worker.slot for worker in workers if worker is not None} == {1}


def test_an_incomplete_look_is_told(fleet: Fleet) -> None:
    fleet.provider.script_look(*[Inventory(False, ())] * 3)
    report = fleet.reconciler().reconcile()
    assert "incomplete" in report.errors[0].what
    assert len(report.errors) == 1
    assert report.exit_code(fleet.document) == 5


def test_keeping_to_one_slot_serves_it_and_takes_no_new_run(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    fleet.submit("b")
    cancel(fleet.context, "a")
    fleet.reconciler(only=1).reconcile()
    assert fleet.document.runs["a"].state is RunState.CANCELLED
    assert fleet.document.runs["b"].attempts == 0


def test_replaying_one_slot_settles_no_other(fleet: Fleet) -> None:
    fleet.submit("a", "b")
    for slot in (1, 2):
        fleet.provider.script(ActionType.CREATE, Say(Unknown("lost")), Say(Rejected("quota")), slot=slot)
    fleet.reconciler().reconcile()
    fleet.reconciler().replay()
    fleet.clock.advance(fleet.policy.grace_ms / 1000 + 1)
    fleet.reconciler().replay(slot=2)
    assert (fleet.pending[1].absent, fleet.pending[2].absent is None) == (None, False)


def test_a_full_quota_is_asked_about_once_a_slot_not_once_a_run(fleet: Fleet) -> None:
    fleet.policy = replace(fleet.policy, create=Backoff(600_000, 600_000))
    fleet.provider.script(ActionType.CREATE, *[Say(Rejected("quota"))] * 100)
    fleet.submit(*[f"r{n}" for n in range(30)])
    fleet.reconciler().reconcile()
    assert len(fleet.provider.sends()) <= 6


def test_a_worker_whose_run_it_does_not_hold_any_more_is_freed(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    document = fleet.document
    ended = replace(document.runs["a"], state=RunState.CANCELLED, worker=None, reason=Reason.CANCELLED, finished_at=1)
    worker = replace(document.workers[1], running=None)
    made = plan(replace(document, runs={"a": ended}, workers={1: worker}), None, Ground(fleet.policy, "fake"), 0)
    changed = made.edit.workers[1]
    assert changed is not None
    assert changed.run is None


def test_a_worker_that_is_lost_costs_its_run_a_life_and_is_cleaned_up(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    fleet.submit("a", attempts=2)
    fleet.reconciler().reconcile()
    fleet.provider.lose(1)
    fleet.reconciler().reconcile()
    run = fleet.document.runs["a"]
    assert (run.state, run.crashes, run.defer_reason) == (RunState.QUEUED, 1, Reason.RECONCILED_AFTER_CRASH)
    assert fleet.document.workers == {}


def test_a_worker_that_is_recorded_as_lost_and_comes_back_is_stopped_and_then_removed(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    fleet.submit("a", attempts=2)
    fleet.reconciler().reconcile()
    truth = fleet.provider.truth()
    gone = replace(truth, workers=tuple(replace(worker, state=Seen.GONE) for worker in truth.workers))
    fleet.provider.script_look(gone)
    fleet.provider.script(ActionType.DELETE_COMPUTE, Say(Rejected("the worker still runs; deallocate it first")))
    fleet.reconciler().reconcile()
    assert fleet.document.workers[1].state == "lost"
    fleet.clock.advance(3600)
    fleet.reconciler(only=1).reconcile()
    assert fleet.document.workers == {}
    assert [type_ for _, type_, _ in fleet.provider.sends()][-3:] == ["deallocate", "delete_compute", "reset"]


def test_a_report_tells_which_runs_ended_and_how(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    fleet.submit("a", "b")
    fleet.reconciler().reconcile()
    fleet.provider.end_step(fleet.document.workers[1].accepted[0], exit_code=0)
    fleet.provider.end_step(fleet.document.workers[2].accepted[0], exit_code=9)
    report = fleet.reconciler().reconcile()
    assert [(ended.run, ended.state, ended.detail) for ended in report.ended] == [
        ("a", "succeeded", None),
        ("b", "failed", "step main exited with 9"),
    ]


def test_a_worker_that_went_dark_by_itself_gives_its_run_back_and_is_removed(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    fleet.submit("a", attempts=2)
    fleet.reconciler().reconcile()
    worker = fleet.provider.workers[1]
    worker.seen = replace(worker.seen, state=Seen.DARK)
    fleet.reconciler().reconcile()
    assert fleet.document.runs["a"].state is RunState.QUEUED
    assert fleet.provider.workers == {}


def test_a_draining_fleet_lets_work_end_takes_nothing_new_and_empties_itself(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    fleet.submit("b")
    set_draining(fleet.context, True)
    fleet.reconciler().reconcile()
    assert fleet.document.runs["a"].state is RunState.RUNNING
    assert fleet.document.runs["b"].attempts == 0
    (key,) = fleet.document.workers[1].accepted
    fleet.provider.end_step(key, exit_code=0)
    fleet.reconciler().reconcile()
    assert fleet.document.workers == {}
    assert "a" in fleet.document.finished
    set_draining(fleet.context, False)
    fleet.reconciler().reconcile()
    assert fleet.document.runs["b"].state is RunState.RUNNING


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("fatal", range(8))
def test_a_death_in_any_provider_call_loses_and_doubles_nothing(tmp_path: Path, fatal: int, before: bool) -> None:
    provider = MortalProvider(LINEAGE, ends=0)
    provider.fatal, provider.before = fatal, before
    fleet = Fleet(tmp_path / "state", provider)
    fleet.submit("a", "b", "c")
    died = _run_until_death(lambda: fleet.reconciler().reconcile())
    assert died == (fatal < 6), "three creates and three executes"
    fleet.clock.advance(1)
    fleet.reconciler().reconcile()
    all_done(fleet, "a", "b", "c")


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("fatal", range(7))
def test_a_death_at_any_commit_loses_and_doubles_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, fatal: int, before: bool
) -> None:
    fleet.submit("a", "b")
    count = 0
    append = FileHold._append

    def mortal(self: FileHold, *args: object) -> None:
        nonlocal count
        number, count = count, count + 1
        if number == fatal and before:
            raise Died
        append(self, *args)  # type: ignore[arg-type] # what it takes
        if number == fatal:
            raise Died

    monkeypatch.setattr(FileHold, "_append", mortal)
    died = _run_until_death(lambda: fleet.reconciler().reconcile())
    monkeypatch.undo()
    assert died, "as many commits as that are made"
    fleet.clock.advance(1)
    fleet.reconciler().reconcile()
    all_done(fleet, "a", "b")


def _run_until_death(act: Callable[[], object]) -> bool:
    try:
        act()
    except Died:
        return True
    return False


def test_a_reconcile_says_what_it_leaves_alone_and_that_somebody_has_to_look(fleet: Fleet) -> None:
    fleet.provider = type(fleet.provider)(LINEAGE)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    worker = fleet.provider.workers[1]
    worker.seen = replace(worker.seen, id="another")
    report = fleet.reconciler().reconcile()
    (told,) = report.errors
    assert isinstance(told, SlotRetained)
    assert told.what == "slot 1 is left alone: worker fake-1-a-1 is recorded, and another is shown"
    assert (told.where, told.next) == ("slot 1, identity_changed", "controller explain slot:1 --live")
    assert (report.exit_code(fleet.document), report.stuck) == (5, {1})
