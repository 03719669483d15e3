"""What transitions of steps and workers write, and what any history of a run keeps."""

from __future__ import annotations

import pytest
from hypothesis import given as given_by
from hypothesis import settings
from hypothesis import strategies as st
from msgspec.structs import replace

from controller.model.edit import apply_edit
from controller.model.errors import ControllerError, TransitionRefused
from controller.model.perform import (
    Given,
    WorkerGiven,
    move_run,
    move_step,
    move_worker,
    request_cancel,
    skip_unreachable,
)
from controller.model.reason import Reason
from controller.model.records import (
    Resource,
    RunState,
    StepState,
    Tombstone,
    Worker,
    WorkerState,
)
from controller.model.transition import Trigger
from tests.model.drafts import (
    FAILED,
    HOLDER,
    NOW,
    after,
    at,
    draft_of,
    events,
    only_event,
    refused,
    run,
    running,
    step,
    worker,
)


class TestSteps:
    def test_a_start_opens_an_attempt_under_the_runs_token(self) -> None:
        draft = draft_of(running(attempts=7))
        move_step(draft, "r-1", "main", Trigger.STEP_STARTED, Given(token=7, worker=HOLDER, key="k", at=NOW - 5))
        started = after(draft).steps[0]
        (attempt,) = started.attempts
        assert (started.state, started.token) == (StepState.RUNNING, 7)
        assert (attempt.n, attempt.key, attempt.started_at, attempt.ended_at) == (1, "k", NOW - 5, None)
        event = only_event(draft)
        assert (event.subject, event.step, event.token, event.key) == ("run:r-1", "main", 7, "k")

    def test_an_end_is_kept_with_code_signal_and_time(self) -> None:
        draft = draft_of(running())
        move_step(draft, "r-1", "main", Trigger.STEP_STARTED, Given(token=1))
        killed = Given(token=1, signal=9, at=NOW + 3, reason=Reason.KILLED_BY_SIGNAL)
        assert move_step(draft, "r-1", "main", Trigger.STEP_FAILED, killed).to is StepState.FAILED
        (attempt,) = after(draft).steps[0].attempts
        assert (attempt.signal, attempt.exit_code, attempt.ended_at) == (9, None, NOW + 3)
        assert attempt.reason is after(draft).steps[0].reason is Reason.KILLED_BY_SIGNAL

    def test_a_failed_step_is_tried_again_within_the_life_while_attempts_are_left(self) -> None:
        draft = draft_of(running(step(max_attempts=2)))
        ends = []
        for _ in range(2):
            move_step(draft, "r-1", "main", Trigger.STEP_STARTED, Given(token=1))
            ends.append(move_step(draft, "r-1", "main", Trigger.STEP_FAILED, FAILED).to)
        assert ends == [StepState.PENDING, StepState.FAILED]
        assert [attempt.n for attempt in after(draft).steps[0].attempts] == [1, 2]

    def test_nothing_is_tried_again_once_a_cancel_is_requested(self) -> None:
        draft = draft_of(running(step(max_attempts=5)))
        move_step(draft, "r-1", "main", Trigger.STEP_STARTED, Given(token=1))
        request_cancel(draft, "r-1", Reason.CANCELLED)
        assert move_step(draft, "r-1", "main", Trigger.STEP_FAILED, FAILED).to is StepState.FAILED

    def test_nothing_starts_once_a_cancel_is_requested(self) -> None:
        draft = draft_of(running())
        request_cancel(draft, "r-1", Reason.CANCELLED)
        said = refused(draft, lambda: move_step(draft, "r-1", "main", Trigger.STEP_STARTED, Given(token=1)))
        assert said.why == "cancel_requested"

    def test_a_step_waits_for_what_it_needs(self) -> None:
        draft = draft_of(running(step("a"), step("b", "a")))
        said = refused(draft, lambda: move_step(draft, "r-1", "b", Trigger.STEP_STARTED, Given(token=1)))
        assert said.why == "not_available"
        assert said.what.startswith("step b of run r-1 is pending: step_started refused (not moved to running)")

    def test_a_drain_gives_the_attempt_back(self) -> None:
        draft = draft_of(running())
        move_step(draft, "r-1", "main", Trigger.STEP_STARTED, Given(token=1))
        move_step(draft, "r-1", "main", Trigger.SHUTDOWN_DRAIN, Given(token=1))
        assert (after(draft).steps[0].state, after(draft).steps[0].attempts) == (StepState.PENDING, ())

    @pytest.mark.parametrize(
        ("crashes", "cancelled", "to"),
        [(0, False, StepState.PENDING), (1, False, StepState.FAILED), (0, True, StepState.FAILED)],
    )
    def test_a_lost_step_is_given_back_only_if_its_run_outlives_the_loss(
        self, crashes: int, cancelled: bool, to: StepState
    ) -> None:
        draft = draft_of(running(crashes=crashes, max_crashes=2))
        move_step(draft, "r-1", "main", Trigger.STEP_STARTED, Given(token=1))
        if cancelled:
            request_cancel(draft, "r-1", Reason.CANCELLED)
        lost = Given(token=1, reason=Reason.WORKER_LOST)
        assert move_step(draft, "r-1", "main", Trigger.LEASE_EXPIRED, lost).to is to

    def test_a_finished_run_refuses_what_is_said_of_its_steps(self) -> None:
        stone = Tombstone("r-1", "q", 1, 2, NOW, NOW, RunState.SUCCEEDED, owner="one")
        draft = draft_of(finished={"r-1": stone})
        said = refused(draft, lambda: move_step(draft, "r-1", "main", Trigger.STEP_FAILED, Given(token=1)))
        assert said.why == "stale_lease"
        assert said.what.startswith("run r-1 is succeeded: step_failed refused: ")

    def test_everything_behind_a_failed_step_is_skipped_however_far_and_in_any_order(self) -> None:
        steps = (step("d", "c"), step("c", "b"), step("b", state=StepState.FAILED), step("other"))
        draft = draft_of(running(*steps))
        assert skip_unreachable(draft, "r-1") == ("c", "d")
        assert [s.state for s in after(draft).steps] == [
            StepState.SKIPPED,
            StepState.SKIPPED,
            StepState.FAILED,
            StepState.PENDING,
        ]
        assert [event[:2] for event in events(draft)] == [("upstream_failed", "c"), ("upstream_failed", "d")]
        assert skip_unreachable(draft, "r-1") == ()


class TestWorkers:
    def test_a_whole_life_from_nothing_to_nothing(self) -> None:
        draft = draft_of(run())
        made = WorkerGiven(assignment="a-1", provider="local", reserved="r-1", key="k")
        move_worker(draft, 3, Trigger.PARK_CREATE, made)
        assert at(draft) == Worker(3, "a-1", 1, "local", NOW, NOW, WorkerState.CREATING, reserved="r-1")
        vm = {"vm": Resource("i-1", "u-1")}
        move_worker(draft, 3, Trigger.CREATE_DONE, WorkerGiven(assignment="a-1", generation=1, id="w", resources=vm))
        assert (at(draft).state, at(draft).id, at(draft).resources) == (WorkerState.READY, "w", vm)
        move_run(draft, "r-1", Trigger.CLAIM, Given(worker=HOLDER))
        move_worker(draft, 3, Trigger.CLAIM, WorkerGiven(run="r-1", token=1))
        assert (at(draft).state, at(draft).run, at(draft).reserved) == (WorkerState.ASSIGNED, "r-1", None)
        held = refused(draft, lambda: move_worker(draft, 3, Trigger.RELEASE, WorkerGiven()))
        assert (held.why, held.where) == ("not_available", "assignment a-1, generation 1, holds run r-1")
        move_run(draft, "r-1", Trigger.CANCEL_OBSERVED, Given())
        path = [Trigger.RELEASE, Trigger.REUSE, Trigger.DEALLOCATE, Trigger.DELETE_COMPUTE, Trigger.RESET]
        seen = [move_worker(draft, 3, trigger, WorkerGiven(reason=Reason.IDLE)).to for trigger in path]
        assert seen == ["released", "ready", "deallocated", "compute_removed", None]
        assert 3 not in draft.workers
        subjects = [e for e in draft.edit().events if e.subject == "slot:3"]
        assert [(e.event, e.from_, e.to) for e in subjects] == [
            ("park_create", None, "creating"),
            ("create_done", "creating", "ready"),
            ("claim", "ready", "assigned"),
            ("release", "assigned", "released"),
            ("reuse", "released", "ready"),
            ("deallocate", "ready", "deallocated"),
            ("delete_compute", "deallocated", "compute_removed"),
            ("reset", "compute_removed", None),
        ]
        assert [(e.key, e.token) for e in subjects[:3]] == [("k", None), (None, None), (None, 1)]

    @pytest.mark.parametrize("given", [WorkerGiven(assignment="a-2"), WorkerGiven(generation=2)])
    def test_what_is_said_of_another_worker_moves_nothing(self, given: WorkerGiven) -> None:
        draft = draft_of(workers={3: worker(WorkerState.CREATING)})
        assert refused(draft, lambda: move_worker(draft, 3, Trigger.CREATE_DONE, given)).why == "stale_lease"

    def test_a_create_that_made_nothing_leaves_nothing_and_must_say_why(self) -> None:
        draft = draft_of(workers={3: worker(WorkerState.CREATING)})
        said = refused(draft, lambda: move_worker(draft, 3, Trigger.CREATE_SETTLED, WorkerGiven()))
        assert said.why == "missing_reason_code"
        move_worker(draft, 3, Trigger.CREATE_SETTLED, WorkerGiven(reason=Reason.REJECTED))
        assert 3 not in draft.workers

    def test_a_resume_that_made_nothing_restores_the_worker_as_it_was(self) -> None:
        before = worker(WorkerState.DEALLOCATED, id="w", run="r-1")
        draft = draft_of(workers={3: before})
        move_worker(draft, 3, Trigger.RESUME, WorkerGiven(assignment="a-1", generation=1))
        assert (at(draft).state, at(draft).generation) == (WorkerState.CREATING, 2)
        move_worker(draft, 3, Trigger.CREATE_SETTLED, WorkerGiven(reason=Reason.REJECTED))
        assert at(draft) == replace(before, changed_at=NOW)

    def test_a_worker_whose_run_went_back_to_its_queue_is_free(self) -> None:
        draft = draft_of(running(max_attempts=2), workers={3: worker(WorkerState.ASSIGNED, run="r-1")})
        move_run(draft, "r-1", Trigger.ATTEMPT_FAILED, FAILED)
        move_worker(draft, 3, Trigger.RELEASE, WorkerGiven())
        assert (at(draft).run, at(draft).reason) == (None, Reason.RUN_ENDED)

    def test_a_release_waits_for_its_proof(self) -> None:
        draft = draft_of(workers={3: worker(WorkerState.ASSIGNED)})
        said = refused(draft, lambda: move_worker(draft, 3, Trigger.RELEASE, WorkerGiven(proven=False)))
        assert said.why == "not_available"

    def test_a_reset_waits_for_the_end_of_every_accepted_step(self) -> None:
        draft = draft_of(workers={3: worker(WorkerState.COMPUTE_REMOVED, accepted=("k",))})
        said = refused(draft, lambda: move_worker(draft, 3, Trigger.RESET, WorkerGiven()))
        assert said.why == "not_available"
        move_worker(draft, 3, Trigger.RESET, WorkerGiven(data_gone=True))
        assert 3 not in draft.workers

    def test_a_worker_seen_gone_holds_and_expects_nothing(self) -> None:
        draft = draft_of(workers={3: worker(WorkerState.ASSIGNED, run="r-1", accepted=("k",))})
        move_worker(draft, 3, Trigger.SEEN_GONE, WorkerGiven())
        assert (at(draft).state, at(draft).run, at(draft).accepted) == (WorkerState.LOST, None, ())

    def test_a_create_that_is_pending_is_never_lost_to_a_look(self) -> None:
        draft = draft_of(workers={3: worker(WorkerState.CREATING)})
        said = refused(draft, lambda: move_worker(draft, 3, Trigger.SEEN_GONE, WorkerGiven()))
        assert said.why == "illegal_transition"

    def test_a_refusal_says_who_is_in_the_slot(self) -> None:
        empty = draft_of()
        nobody = refused(empty, lambda: move_worker(empty, 3, Trigger.RELEASE, WorkerGiven()))
        assert nobody.what.startswith("the worker of slot 3 is not there: release refused: ")
        assert nobody.where == "no worker there"
        free = draft_of(workers={3: worker(WorkerState.READY)})
        said = refused(free, lambda: move_worker(free, 3, Trigger.RELEASE, WorkerGiven()))
        assert said.what.startswith("the worker of slot 3 is ready: release refused: ")
        assert said.where == "assignment a-1, generation 1, holds no run"

    def test_a_claim_without_a_run_and_a_create_without_a_name_are_bugs(self) -> None:
        with pytest.raises(ControllerError):
            move_worker(draft_of(workers={3: worker(WorkerState.READY)}), 3, Trigger.CLAIM, WorkerGiven())
        with pytest.raises(ControllerError):
            move_worker(draft_of(), 3, Trigger.PARK_CREATE, WorkerGiven())


GIVENS = st.builds(
    Given,
    token=st.sampled_from([None, 0, 0, 0, -1, 1]),
    reason=st.sampled_from([None, Reason.EXIT_CODE, Reason.EXIT_CODE, Reason.CONCURRENCY]),
    error=st.sampled_from([None, "text"]),
    delay_ms=st.sampled_from([None, 0, -1]),
    lease_over=st.booleans(),
    worker=st.just(HOLDER),
)
"""`token` is relative to the current one."""
TRIGGERS = list(Trigger)
OF_RUNS = TRIGGERS[: TRIGGERS.index(Trigger.STEP_STARTED)]
OF_STEPS = [
    Trigger.STEP_STARTED,
    Trigger.STEP_SUCCEEDED,
    Trigger.STEP_FAILED,
    Trigger.LEASE_EXPIRED,
    Trigger.SHUTDOWN_DRAIN,
]
LIVES = [Trigger.ALL_STEPS_DONE, Trigger.ATTEMPT_FAILED, Trigger.LEASE_EXPIRED, Trigger.SHUTDOWN_DRAIN]
CLAIM = st.tuples(st.just(""), st.just(Trigger.CLAIM), st.just(Given(worker=HOLDER)))
START = st.tuples(st.sampled_from(["a", "b"]), st.just(Trigger.STEP_STARTED), st.just(Given(token=0, worker=HOLDER)))
END = st.tuples(st.sampled_from(["a", "b"]), st.just(Trigger.STEP_SUCCEEDED), st.just(Given(token=0, worker=HOLDER)))
RETRY = st.tuples(st.just(""), st.just(Trigger.OPERATOR_RETRY), st.just(Given()))
MOVES = st.lists(
    st.one_of(
        CLAIM,
        CLAIM,
        START,
        END,
        RETRY,
        st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(OF_STEPS), GIVENS),
        st.tuples(st.just(""), st.sampled_from(LIVES), GIVENS),
        st.tuples(st.sampled_from(["", "", "", "a", "b", "skip", "cancel"]), st.sampled_from(OF_RUNS), GIVENS),
    ),
    min_size=25,
    max_size=50,
)


@settings(max_examples=300)
@given_by(MOVES)
def test_any_history_keeps_the_run_whole(moves: list[tuple[str, Trigger, Given]]) -> None:
    """Tokens come from claims alone; a run is held exactly while it runs; an ended one has no open step."""
    draft = draft_of(run(step("a", max_attempts=2), step("b", "a"), max_attempts=2, max_crashes=2))
    for target, trigger, relative in moves:
        before = draft.edit()
        token = after(draft).attempts
        given = relative if relative.token is None else replace(relative, token=token + relative.token)
        try:
            if target == "cancel":
                request_cancel(draft, "r-1", Reason.CANCELLED)
            elif target == "skip":
                skip_unreachable(draft, "r-1")
            elif target:
                move_step(draft, "r-1", target, trigger, given)
            else:
                move_run(draft, "r-1", trigger, given)
        except TransitionRefused:
            assert draft.edit() == before
        if "r-1" in draft.finished:
            assert apply_edit(draft.document, draft.edit()).finished["r-1"].token == token
            return
        found = after(draft)
        new = draft.edit().events[len(before.events) :]
        assert found.attempts - token == sum((e.event, e.to) == ("claim", "running") for e in new)
        assert (found.worker is not None) == (found.state is RunState.RUNNING)
        for each in found.steps:
            opened = [attempt for attempt in each.attempts if attempt.ended_at is None]
            assert len(opened) == (each.state is StepState.RUNNING)
            assert [attempt.n for attempt in each.attempts] == list(range(1, len(each.attempts) + 1))
            if found.state in {RunState.FAILED, RunState.CANCELLED}:
                assert each.state not in {StepState.PENDING, StepState.RUNNING}
