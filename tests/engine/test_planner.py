"""The planner: pure, one action a slot, and nothing concluded from a look that may not speak."""

from __future__ import annotations

from msgspec.structs import replace

from controller.engine import outcomes
from controller.engine.planner import Ground, plan
from controller.engine.sight import APART_MS
from controller.model.action import action_of, verify
from controller.model.invariants import violations
from controller.model.inventory import Seen, SeenStep, StepSeen
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import ActionType, RunState, StepState, WorkerState
from controller.provider.protocol import Done
from tests.engine.scenes import (
    GROUND,
    NOW,
    ended,
    look,
    planned,
    seen,
    settled,
    with_ready_worker,
    with_running_step,
    with_runs,
)


def test_planning_twice_gives_equal_plans_and_changes_nothing() -> None:
    document = with_runs("a", "b")
    before = repr(document)
    first, second = plan(document, None, GROUND, NOW), plan(document, None, GROUND, NOW)
    assert first == second
    assert [park.type for park in first.parks] == [ActionType.CREATE, ActionType.CREATE]
    assert repr(document) == before


def test_one_plan_parks_many_slots_and_never_two_actions_for_one() -> None:
    document, made = planned(with_runs("a", "b", "c"))
    assert sorted(document.pending_actions) == [1, 2]
    assert [park.slot for park in made.parks] == [1, 2]
    assert planned(document)[1].parks == ()


def test_every_parked_action_carries_a_key_that_derives_from_its_content() -> None:
    document, _ = planned(with_runs("a", "b"))
    actions = [verify(entry.action) for entry in document.pending_actions.values()]
    assert len({action.idempotency_key for action in actions}) == 2
    assert [action.serial for action in actions] == [1, 2]


def test_a_ready_worker_claims_the_run_in_the_commit_that_parks_its_first_execute() -> None:
    document, made = planned(with_ready_worker("a"))
    run = document.runs["a"]
    assert (run.state, run.attempts) == (RunState.RUNNING, 1)
    assert made.parks[0].type is ActionType.EXECUTE
    action = action_of(document.pending_actions[1])
    assert (action.run, action.step, action.attempt, action.token) == ("a", "main", 1, 1)


def test_a_refused_create_spends_no_budget_and_defers_its_run() -> None:
    from controller.provider.protocol import Rejected

    document, _ = planned(with_runs("a"))
    document = settled(document, 1, Rejected("quota"))
    run = document.runs["a"]
    assert (run.state, run.attempts, run.failures, run.defer_reason) == (RunState.QUEUED, 0, 0, Reason.CREATE_REFUSED)
    assert document.workers == {}
    assert document.pending_actions == {}


def test_a_create_planned_again_after_a_rejection_gets_another_key_and_assignment() -> None:
    from controller.provider.protocol import Rejected

    document, first = planned(with_runs("a"))
    document = settled(document, 1, Rejected("quota"))
    document, second = planned(document, now=NOW + 3_600_000)
    assert second.parks[0].type is ActionType.CREATE
    assert second.parks[0].key != first.parks[0].key
    assert document.workers[1].assignment == "a-2"


def test_a_step_that_succeeded_ends_its_run_and_frees_the_worker() -> None:
    document, key = with_running_step()
    document, _ = planned(document, look(document, seen(document, 1, steps=[ended(key, exit_code=0)])))
    assert "a" not in document.runs
    assert document.finished["a"].state is RunState.SUCCEEDED
    worker = document.workers[1]
    assert (worker.state, worker.run, worker.accepted, worker.settled) == (WorkerState.READY, None, (), (key,))
    assert violations(document) == ()


def test_folding_an_end_twice_changes_nothing_the_second_time() -> None:
    document, key = with_running_step()
    shown = seen(document, 1, steps=[ended(key, exit_code=0)])
    document, _ = planned(document, look(document, shown))
    again, second = planned(document, look(document, shown))
    assert second.edit.empty
    assert again is document


def test_the_next_action_tells_the_worker_which_ends_are_folded() -> None:
    document, key = with_running_step()
    document = with_runs("b", document=document)
    document, _ = planned(document, look(document, seen(document, 1, steps=[ended(key, exit_code=0)])))
    action = action_of(document.pending_actions[1])
    assert (action.type, action.run, action.settled) == (ActionType.EXECUTE, "b", (key,))
    document = settled(document, 1, Done())
    assert document.workers[1].settled == ()


def test_a_failed_life_goes_back_to_its_queue_under_backoff_and_then_is_dead() -> None:
    document, key = with_running_step(attempts=2)
    document, _ = planned(document, look(document, seen(document, 1, steps=[ended(key, exit_code=7)])))
    run = document.runs["a"]
    assert (run.state, run.failures, run.defer_reason) == (RunState.QUEUED, 1, Reason.RETRY_BACKOFF)
    later = NOW + 3_600_000
    document, made = planned(document, now=later, ground=Ground(Policy(slots=2, idle_ms=10**9), "fake"))
    document = settled(document, 1, Done(), now=later)
    shown = seen(document, 1, steps=[ended(made.parks[0].key, signal=9)])
    document, _ = planned(document, look(document, shown, at=later), now=later)
    run = document.runs["a"]
    assert (run.state, run.attempts, run.reason) == (RunState.FAILED, 2, Reason.ATTEMPTS_EXHAUSTED)
    assert run.last_error == "step main was killed by signal 9"


def test_a_worker_seen_gone_loses_its_run_after_its_step_ends_are_folded() -> None:
    document, key = with_running_step()
    gone = seen(document, 1, Seen.GONE, [ended(key, exit_code=0)])
    document, _ = planned(document, look(document, gone))
    assert document.finished["a"].state is RunState.SUCCEEDED
    assert document.workers[1].state is WorkerState.LOST


def test_a_lost_life_spends_the_crash_budget_and_not_the_failure_budget() -> None:
    document, _ = with_running_step()
    document, _ = planned(document, look(document, seen(document, 1, Seen.GONE)))
    run = document.runs["a"]
    assert (run.state, run.crashes, run.failures, run.reason) == (RunState.FAILED, 1, 0, Reason.CRASHES_EXHAUSTED)


def test_a_look_asked_for_before_the_slot_changed_says_nothing_about_it() -> None:
    document, _ = with_running_step()
    stale = look(document, seen(document, 1, Seen.GONE), revision=document.revision - 1)
    assert planned(document, stale)[1].edit.empty


def test_an_incomplete_look_changes_no_slot() -> None:
    document, _ = with_running_step()
    half = look(document, seen(document, 1, Seen.GONE), complete=False)
    assert planned(document, half)[1].edit.empty


def test_one_empty_look_writes_nothing_off_and_two_that_overlap_neither() -> None:
    document, _ = with_running_step()
    late = NOW + GROUND.policy.grace_ms
    assert planned(document, look(document))[1].edit.empty, "inside the grace time"
    document, _ = planned(document, look(document, at=late), now=late)
    assert document.workers[1].state is WorkerState.ASSIGNED
    overlapping = look(document, at=late, revision=document.revision - 1)
    assert planned(document, overlapping, now=late)[1].edit.empty
    soon = look(document, at=late + APART_MS)
    assert planned(document, soon, now=late + APART_MS)[1].edit.empty, "a listing that lags says the same twice"
    at = late + APART_MS + 2
    document, _ = planned(document, look(document, at=at), now=at)
    assert document.workers[1].state is WorkerState.LOST


def test_a_look_says_nothing_about_a_slot_with_a_pending_action() -> None:
    document, _ = planned(with_ready_worker("a"))
    assert planned(document, look(document, seen(document, 1, Seen.GONE)))[1].edit.empty


def test_a_cancel_of_a_running_step_is_planned_with_its_key_and_ends_the_run_when_done() -> None:
    document, key = with_running_step()
    run = replace(document.runs["a"], cancel_requested_at=NOW)
    document = replace(document, runs={"a": run})
    document, made = planned(document)
    assert made.parks[0].type is ActionType.CANCEL
    assert outcomes.target_of(action_of(document.pending_actions[1])) == key
    document = settled(document, 1, Done(step=ended(key, signal=15)))
    run = document.runs["a"]
    assert run.state is RunState.CANCELLED
    assert run.steps[0].attempts[0].signal == 15
    assert document.workers[1].state is WorkerState.RELEASED


def test_a_step_that_ended_well_before_its_cancel_took_effect_keeps_its_end_but_the_run_is_cancelled() -> None:
    document, key = with_running_step()
    document = replace(document, runs={"a": replace(document.runs["a"], cancel_requested_at=NOW)})
    document, _ = planned(document)
    document = settled(document, 1, Done(step=ended(key, exit_code=0)))
    run = document.runs["a"]
    assert (run.state, run.steps[0].state) == (RunState.CANCELLED, "succeeded")


def test_a_step_that_ended_well_before_its_worker_was_lost_under_a_cancel_keeps_its_end() -> None:
    document, key = with_running_step()
    document = replace(document, runs={"a": replace(document.runs["a"], cancel_requested_at=NOW)})
    document, _ = planned(document)
    gone = seen(document, 1, Seen.GONE, [ended(key, exit_code=0)])
    document = settled(document, 1, outcomes.WorkerLost(gone))
    assert document.runs["a"].state is RunState.CANCELLED
    assert document.runs["a"].steps[0].state is StepState.SUCCEEDED


def test_an_idle_worker_is_taken_down_to_the_last_record() -> None:
    document, key = with_running_step()
    document, _ = planned(document, look(document, seen(document, 1, steps=[ended(key, exit_code=0)])))
    late = NOW + GROUND.policy.idle_ms
    shown = [Seen.READY, Seen.DARK, Seen.GONE]
    types = []
    while document.workers:
        document, made = planned(document, look(document, seen(document, 1, shown.pop(0)), at=late), now=late)
        types.append(made.parks[0].type)
        document = settled(document, 1, Done(), now=late)
    assert types == [ActionType.DEALLOCATE, ActionType.DELETE_COMPUTE, ActionType.RESET]
    assert violations(document) == ()


def test_a_draining_fleet_takes_nothing_and_empties_itself() -> None:
    document = replace(with_ready_worker("a"), draining=True)
    _, made = planned(document)
    assert [park.type for park in made.parks] == [ActionType.DEALLOCATE]


def test_a_backoff_longer_than_its_policy_allows_is_over_since_the_clock_went_back() -> None:
    document = with_ready_worker("a")
    longest = GROUND.policy.retry.cap_ms
    run = replace(document.runs["a"], available_at=NOW + 10**10, longest_ms=longest, defer_reason=Reason.RETRY_BACKOFF)
    document, made = planned(replace(document, runs={"a": run}))
    assert made.parks[0].type is ActionType.EXECUTE


def test_a_run_submitted_for_later_waits_however_long() -> None:
    document = with_ready_worker("a")
    run = replace(document.runs["a"], available_at=NOW + 10**10, defer_reason=Reason.SUBMITTED_FOR_LATER)
    assert planned(replace(document, runs={"a": run}))[1].parks == ()


def test_an_end_before_the_recorded_start_is_kept_at_the_start() -> None:
    document, key = with_running_step()
    early = SeenStep(key, StepSeen.EXITED, exit_code=0, ended_at=NOW - 5_000)
    document, _ = planned(document, look(document, seen(document, 1, steps=[early])))
    (attempt,) = document.finished["a"].steps[0].attempts
    assert (attempt.started_at, attempt.ended_at) == (NOW, NOW)


def test_an_accepted_step_that_ended_nobody_knows_how_waits_for_a_look_and_then_costs_a_life_not_a_failure() -> None:
    document, made = planned(with_ready_worker("a"))
    nobody_knows = ended(made.parks[0].key)
    document = settled(document, 1, Done(step=nobody_knows))
    assert document.runs["a"].state is RunState.RUNNING
    document, _ = planned(document, look(document, seen(document, 1, Seen.GONE, [nobody_knows])))
    run = document.runs["a"]
    assert (run.crashes, run.failures) == (1, 0)


def test_a_clock_that_went_back_leaves_no_end_before_its_start() -> None:
    document, key = with_running_step()
    earlier = NOW - 7_200_000
    document, _ = planned(document, look(document, seen(document, 1, steps=[ended(key, exit_code=7)])), now=earlier)
    run = document.runs["a"]
    assert run.state is RunState.FAILED
    assert violations(document) == ()
