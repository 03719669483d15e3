"""What becomes of a worker whose run is over: released, kept, stopped, cooled, removed, made anew."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.engine import fold
from controller.engine.lifecycle import Wait, waits_for
from controller.engine.outcomes import WorkerLost
from controller.engine.pending import park
from controller.engine.planner import Ground
from controller.model.edit import Draft, apply_edit
from controller.model.errors import TransitionRefused
from controller.model.inventory import Seen, SeenStep, StepSeen
from controller.model.perform import Given, WorkerGiven, move_run, move_worker
from controller.model.policy import Policy, Release
from controller.model.reason import Reason
from controller.model.records import ActionType, Document, RunState, Span, WorkerState
from controller.model.transition import Trigger
from controller.provider.protocol import Done, Rejected
from tests.engine.scenes import GROUND, NOW, ended, look, planned, seen, settled, with_running_step

HOUR = 3_600_000
PROOF = Ground(Policy(slots=2, release=Release.PROOF, idle_release_ms=HOUR), "fake")
RETAIN = Ground(Policy(slots=2, retain_failed=True), "fake")
COOL = Ground(Policy(slots=2, cooldown_ms=HOUR, idle_ms=0), "fake")


def after_its_run(ground: Ground, *, exit_code: int = 0, attempts: int = 1) -> Document:
    """Run a ended with *exit_code* in slot 1, a look has told so, and the plan that followed is parked."""
    document, key = with_running_step(attempts=attempts, ground=ground)
    told = look(document, seen(document, 1, steps=[ended(key, exit_code=exit_code)]))
    return planned(document, told, ground=ground)[0]


def seen_as(document: Document, state: Seen, at: int, ground: Ground) -> tuple[Document, list[ActionType]]:
    """The document after a plan whose look shows slot 1 in *state*, and what the plan parked."""
    document, made = planned(document, look(document, seen(document, 1, state), at=at), ground=ground, now=at + 1)
    return document, [parked.type for parked in made.parks]


def stopped(ground: Ground, **how: int) -> Document:
    """After its run slot 1 was idle for long enough, or its run failed: its deallocate was asked for and is done."""
    document = after_its_run(ground, **how)
    for at in (NOW, NOW + HOUR + 1):
        if 1 not in document.pending_actions:
            document, _ = seen_as(document, Seen.READY, at, ground)
    return settled(document, 1, Done(), now=NOW + HOUR + 1, ground=ground)


def test_without_a_proof_asked_for_a_worker_is_free_once_its_run_has_ended() -> None:
    worker = after_its_run(GROUND).workers[1]
    assert (worker.state, worker.run, worker.runs) == (WorkerState.READY, None, 1)


def test_a_worker_stays_assigned_until_its_release_is_proven() -> None:
    document = after_its_run(PROOF)
    worker = document.workers[1]
    assert "a" in document.finished
    assert (worker.state, worker.run) == (WorkerState.ASSIGNED, "a")
    assert waits_for(document, worker, PROOF.policy, NOW) == Wait(Reason.NOT_RELEASED, NOW + 1 + HOUR)


def test_no_proof_no_other_run() -> None:
    document = after_its_run(PROOF)
    draft = Draft(document, now=NOW, command="release")
    with pytest.raises(TransitionRefused) as refused:
        move_worker(draft, 1, Trigger.RELEASE, WorkerGiven(proven=False))
    assert refused.value.why == "not_available"


def test_a_worker_that_waits_for_its_proof_is_stopped_once_looks_saw_it_idle_for_long() -> None:
    document = after_its_run(PROOF)
    assert document.workers[1].idle_since is not None
    document, parks = seen_as(document, Seen.READY, NOW + HOUR, PROOF)
    assert parks == []
    document, parks = seen_as(document, Seen.READY, NOW + HOUR + 2, PROOF)
    assert parks == [ActionType.DEALLOCATE]
    document = settled(document, 1, Done(), ground=PROOF)
    worker = document.workers[1]
    assert (worker.state, worker.run, worker.reason) == (WorkerState.DEALLOCATED, "a", Reason.IDLE_RELEASE)


def test_a_worker_seen_busy_is_not_idle_and_its_time_begins_anew() -> None:
    document = after_its_run(PROOF)
    somebody = SeenStep("f" * 64, StepSeen.RUNNING)
    busy = look(document, seen(document, 1, Seen.READY, [somebody]), at=NOW + HOUR + 2)
    document, made = planned(document, busy, ground=PROOF, now=NOW + HOUR + 3)
    assert made.parks == ()
    assert document.workers[1].idle_since is None


def test_a_clock_that_went_back_stops_no_idle_worker_early_and_makes_its_time_no_longer() -> None:
    back = NOW - 10 * HOUR
    document, parks = seen_as(after_its_run(PROOF), Seen.READY, back, PROOF)
    assert parks == []
    document, parks = seen_as(document, Seen.READY, back + HOUR, PROOF)
    assert parks == []
    _, parks = seen_as(document, Seen.READY, back + HOUR + 1, PROOF)
    assert parks == [ActionType.DEALLOCATE]


def test_an_incomplete_look_finds_no_worker_idle_for_long() -> None:
    document, _ = seen_as(after_its_run(PROOF), Seen.READY, NOW, PROOF)
    late = NOW + HOUR + 2
    half = look(document, seen(document, 1), at=late, complete=False)
    assert planned(document, half, ground=PROOF, now=late)[1].parks == ()


@pytest.mark.parametrize("ground", [PROOF, RETAIN], ids=["proof", "retained"])
def test_what_was_stopped_unreleased_is_never_removed(ground: Ground) -> None:
    document = stopped(ground, exit_code=1)
    assert document.workers[1].state is WorkerState.DEALLOCATED
    for at in (NOW + 10 * HOUR, NOW + 1000 * HOUR):
        document, parks = seen_as(document, Seen.DARK, at, ground)
        assert parks == []
    assert document.workers[1].run == "a"


@pytest.mark.parametrize("trigger", [Trigger.DELETE_COMPUTE, Trigger.RESET])
def test_the_machine_removes_nothing_that_is_assigned(trigger: Trigger) -> None:
    draft = Draft(stopped(PROOF), now=NOW, command="reconcile")
    with pytest.raises(TransitionRefused):
        move_worker(draft, 1, trigger, WorkerGiven())


def test_the_worker_of_a_run_that_failed_is_stopped_and_kept_where_that_is_wanted() -> None:
    document = after_its_run(RETAIN, exit_code=3)
    assert document.runs["a"].state is RunState.FAILED
    document = settled(document, 1, Done(), ground=RETAIN)
    worker = document.workers[1]
    assert (worker.state, worker.run, worker.reason) == (WorkerState.DEALLOCATED, "a", Reason.RETAIN_FAILED)
    assert waits_for(document, worker, RETAIN.policy, NOW) == Wait(Reason.RETAIN_FAILED)


def test_the_worker_of_a_run_that_succeeded_is_not_retained() -> None:
    assert after_its_run(RETAIN).workers[1].state is WorkerState.READY


def test_a_kept_worker_takes_the_next_life_of_its_own_run() -> None:
    document = after_its_run(PROOF, exit_code=1, attempts=2)
    assert document.runs["a"].state is RunState.QUEUED
    later = NOW + HOUR
    document, made = planned(document, ground=PROOF, now=later)
    assert [(parked.slot, parked.type, parked.run) for parked in made.parks] == [(1, ActionType.EXECUTE, "a")]
    assert document.runs["a"].worker is not None
    assert (document.runs["a"].worker.slot, document.runs["a"].attempts) == (1, 2)


def test_nobody_else_takes_a_run_whose_worker_is_kept_for_it() -> None:
    document = after_its_run(PROOF, exit_code=1, attempts=2)
    doubted = replace(document.workers[1], absent=Span(NOW, NOW + 1))
    document = replace(document, workers={1: doubted})
    _, made = planned(document, ground=PROOF, now=NOW + HOUR)
    assert made.parks == ()


def test_a_lost_worker_with_data_that_is_not_released_keeps_its_assignment_and_is_not_removed() -> None:
    document, _ = with_running_step(attempts=1, ground=PROOF)
    document, parks = seen_as(document, Seen.GONE, NOW, PROOF)
    worker = document.workers[1]
    assert (worker.state, worker.run, parks) == (WorkerState.LOST, "a", [])
    assert document.runs["a"].state is RunState.FAILED
    assert waits_for(document, worker, PROOF.policy, NOW) == Wait(Reason.DATA_LEFT)


def test_a_lost_worker_nobody_has_to_release_is_removed() -> None:
    document, _ = with_running_step()
    document, parks = seen_as(document, Seen.GONE, NOW, GROUND)
    assert (document.workers[1].state, parks) == (WorkerState.LOST, [ActionType.DELETE_COMPUTE])
    document = settled(document, 1, Done())
    document, parks = seen_as(document, Seen.GONE, NOW, GROUND)
    assert (document.workers[1].state, parks) == (WorkerState.COMPUTE_REMOVED, [ActionType.RESET])


def test_nothing_is_removed_without_a_look_that_speaks_of_its_slot() -> None:
    document, _ = with_running_step()
    draft = Draft(document, now=NOW, command="reconcile")
    fold.lose(draft, 1, GROUND.policy)
    document = apply_edit(document, draft.edit())
    assert document.workers[1].state is WorkerState.LOST
    blind = planned(document)[1]
    old = planned(document, look(document, seen(document, 1, Seen.GONE), revision=document.revision - 1))[1]
    assert (blind.parks, blind.wants_look) == ((), True)
    assert (old.parks, old.wants_look) == ((), True)


class TestCooldown:
    def dark(self, at: int) -> Document:
        """Slot 1 was stopped for being idle, and a look at *at* is the first that finds it dark."""
        document = settled(after_its_run(COOL), 1, Done(), ground=COOL)
        assert document.workers[1].state is WorkerState.DEALLOCATED
        document, parks = seen_as(document, Seen.DARK, at, COOL)
        assert parks == []
        return document

    def test_it_runs_from_the_first_look_that_finds_compute_dark(self) -> None:
        document = self.dark(NOW + 500)
        wait = waits_for(document, document.workers[1], COOL.policy, NOW + 501)
        assert wait == Wait(Reason.COOLDOWN, NOW + 501 + HOUR)
        document, parks = seen_as(document, Seen.DARK, NOW + 499 + HOUR, COOL)
        assert parks == []
        _, parks = seen_as(document, Seen.DARK, NOW + 500 + HOUR, COOL)
        assert parks == [ActionType.DELETE_COMPUTE]

    def test_later_looks_do_not_begin_it_anew(self) -> None:
        document = self.dark(NOW + 500)
        for minutes in range(1, 60):
            document, parks = seen_as(document, Seen.DARK, NOW + minutes * 60_000, COOL)
            assert parks == []
        _, parks = seen_as(document, Seen.DARK, NOW + 501 + HOUR, COOL)
        assert parks == [ActionType.DELETE_COMPUTE]

    def test_it_runs_also_when_somebody_else_turned_the_compute_off(self) -> None:
        document, _ = with_running_step(attempts=1, ground=COOL)
        document, parks = seen_as(document, Seen.DARK, NOW + 500, COOL)
        worker = document.workers[1]
        assert (worker.state, worker.reason, worker.dark_at) == (
            WorkerState.DEALLOCATED,
            Reason.SEEN_DARK,
            NOW + 501,
        )
        assert parks == []

    def test_compute_that_is_not_there_any_more_cools_down_as_well(self) -> None:
        document = settled(after_its_run(COOL), 1, Done(), ground=COOL)
        for at in (NOW + 100_000, NOW + 200_000):
            document, made = planned(document, look(document, at=at), ground=COOL, now=at + 1)
            assert made.parks == ()
        assert document.workers[1].dark_at == NOW + 200_001

    def test_compute_that_is_not_there_any_more_cools_down_though_the_clock_went_back(self) -> None:
        document, back = self.dark(NOW + 500), NOW - 10 * HOUR
        document = replace(document, workers={1: replace(document.workers[1], changed_at=back - HOUR)})
        for at in (back, back + 100_000):
            document, made = planned(document, look(document, at=at), ground=COOL, now=at + 1)
            assert made.parks == ()
        assert document.workers[1].dark_at == back + 100_001

    def test_a_clock_that_went_back_makes_it_no_longer(self) -> None:
        back = NOW - 3 * HOUR
        document, parks = seen_as(self.dark(NOW + 500), Seen.DARK, back, COOL)
        assert parks == []
        _, parks = seen_as(document, Seen.DARK, back + HOUR, COOL)
        assert parks == [ActionType.DELETE_COMPUTE]


@pytest.mark.parametrize("state", [Seen.READY, Seen.CREATING])
def test_compute_that_is_on_again_is_stopped_again_and_stays_assigned(state: Seen) -> None:
    document, parks = seen_as(stopped(PROOF), state, NOW + 2 * HOUR, PROOF)
    assert parks == [ActionType.DEALLOCATE]
    document = settled(document, 1, Done(), ground=PROOF)
    worker = document.workers[1]
    assert (worker.state, worker.run, worker.reason) == (WorkerState.DEALLOCATED, "a", Reason.IDLE_RELEASE)


class TestMadeAnew:
    def resumed(self, ground: Ground = PROOF) -> Document:
        """The worker of slot 1, stopped after its run failed, is being made anew for that run, which was retried."""
        draft = Draft(stopped(ground, exit_code=1), now=NOW, command="resume")
        move_run(draft, "a", Trigger.OPERATOR_RETRY, Given(reason=Reason.OPERATOR_RETRY))
        move_worker(draft, 1, Trigger.RESUME, WorkerGiven())
        worker = draft.workers.get(1)
        assert worker is not None
        park(draft, ActionType.CREATE, worker, run="a")
        return apply_edit(draft.document, draft.edit())

    @pytest.mark.parametrize("ground", [PROOF, RETAIN], ids=["proof", "retained"])
    def test_it_keeps_its_assignment_under_the_next_generation_and_takes_that_run_alone(self, ground: Ground) -> None:
        document = self.resumed(ground)
        before = document.workers[1]
        assert (before.state, before.generation, before.run) == (WorkerState.CREATING, 2, "a")
        assert planned(document, ground=ground)[1].parks == ()
        document = settled(document, 1, Done(worker=seen(document, 1)), ground=ground)
        assert document.workers[1].state is WorkerState.ASSIGNED
        document, made = planned(document, ground=ground, now=NOW + HOUR)
        assert [(parked.slot, parked.type, parked.run) for parked in made.parks] == [(1, ActionType.EXECUTE, "a")]

    def test_one_that_is_refused_is_as_it_was(self) -> None:
        document = settled(self.resumed(), 1, Rejected("no room"), ground=PROOF)
        worker = document.workers[1]
        assert (worker.state, worker.generation, worker.run) == (WorkerState.DEALLOCATED, 1, "a")
        assert document.runs["a"].defer_reason is Reason.CREATE_REFUSED

    def test_its_run_may_be_over_by_then_and_then_it_waits_for_its_proof_again(self) -> None:
        draft = Draft(self.resumed(), now=NOW, command="cancel")
        move_run(draft, "a", Trigger.CANCEL_OBSERVED, Given(reason=Reason.CANCELLED))
        document = apply_edit(draft.document, draft.edit())
        document = settled(document, 1, Done(worker=seen(document, 1)), ground=PROOF)
        document, made = planned(document, ground=PROOF, now=NOW + HOUR)
        assert made.parks == ()
        assert waits_for(document, document.workers[1], PROOF.policy, NOW) == Wait(Reason.NOT_RELEASED)


def test_a_worker_whose_identity_was_refused_is_left_alone_while_its_slot_is_cordoned() -> None:
    document, _ = with_running_step()
    worker = replace(document.workers[1], reason=Reason.IDENTITY_REFUSED)
    cordoned = replace(document.slots[1], cordoned=True)
    document = replace(document, workers={1: worker}, slots={1: cordoned})
    asked = replace(document.runs["a"], cancel_requested_at=NOW)
    document = replace(document, runs={"a": asked})
    assert planned(document)[1].parks == ()
    assert waits_for(document, worker, GROUND.policy, NOW) == Wait(Reason.IDENTITY_REFUSED)
    lifted = replace(document, slots={1: replace(cordoned, cordoned=False)})
    assert [parked.type for parked in planned(lifted)[1].parks] == [ActionType.CANCEL]


def test_a_stopped_worker_that_came_back_and_is_gone_again_wedges_nothing() -> None:
    document, parks = seen_as(stopped(PROOF), Seen.READY, NOW + 2 * HOUR, PROOF)
    assert parks == [ActionType.DEALLOCATE]
    gone = seen(document, 1, Seen.GONE)
    document = settled(document, 1, WorkerLost(gone), ground=PROOF)
    worker = document.workers[1]
    assert (worker.state, worker.run) == (WorkerState.DEALLOCATED, "a")
    assert document.pending_actions == {}


def test_a_step_whose_end_nobody_can_know_is_lost_with_the_compute_that_was_switched_off() -> None:
    document, key = with_running_step()
    off = seen(document, 1, Seen.DARK, [SeenStep(key, StepSeen.EXITED)])
    document, _ = planned(document, look(document, off))
    run = document.runs["a"]
    assert (run.failures, run.crashes, run.reason) == (0, 1, Reason.CRASHES_EXHAUSTED)
    assert document.workers[1].accepted == ()
