"""What a transition of a run writes: records, one event each, and nothing at all when it is refused."""

from __future__ import annotations

import pytest
from msgspec import Raw
from msgspec.structs import replace

from controller.model.errors import ControllerError, NotFound
from controller.model.perform import (
    Given,
    move_run,
    move_step,
    request_cancel,
    skip_unreachable,
)
from controller.model.reason import Reason
from controller.model.records import (
    RunState,
    StepState,
    Tombstone,
    WorkerRef,
)
from controller.model.transition import KillProcessGroup, Trigger
from controller.model.views import View, view_of
from tests.model.drafts import (
    FAILED,
    HOLDER,
    LEASE,
    NOW,
    after,
    draft_of,
    events,
    only_event,
    refused,
    run,
    running,
    step,
)


class TestClaim:
    def test_a_claim_mints_the_next_token_and_takes_the_run(self) -> None:
        draft = draft_of(run(attempts=4, deferrals=2, available_at=NOW, defer_reason=Reason.RETRY_BACKOFF))
        moved = move_run(draft, "r-1", Trigger.CLAIM, Given(worker=HOLDER))
        claimed = after(draft)
        assert moved.to is claimed.state is RunState.RUNNING
        assert (claimed.attempts, claimed.worker, claimed.lease, claimed.started_at) == (5, HOLDER, None, NOW)
        assert (claimed.available_at, claimed.defer_reason, claimed.deferrals) == (None, None, 0)
        event = only_event(draft)
        assert (event.subject, event.event, event.from_, event.to, event.token) == (
            "run:r-1",
            "claim",
            "queued",
            "running",
            5,
        )

    def test_a_consumer_claims_with_a_lease(self) -> None:
        draft = draft_of(run())
        move_run(draft, "r-1", Trigger.CLAIM, Given(lease=LEASE))
        assert (after(draft).worker, after(draft).lease) == (None, LEASE)

    def test_a_run_that_is_not_due_is_not_available_and_the_wait_is_named(self) -> None:
        draft = draft_of(run(available_at=NOW + 1, defer_reason=Reason.RETRY_BACKOFF))
        said = refused(draft, lambda: move_run(draft, "r-1", Trigger.CLAIM, Given(worker=HOLDER)))
        assert said.why == "not_available"
        assert said.where == "due in 1 ms (retry_backoff); the current token is 0, held by nobody"

    def test_a_refusal_for_another_reason_names_no_wait(self) -> None:
        draft = draft_of(run(available_at=NOW + 1, defer_reason=Reason.RETRY_BACKOFF))
        said = refused(draft, lambda: move_run(draft, "r-1", Trigger.LEASE_EXPIRED, Given()))
        assert (said.why, said.where) == ("illegal_transition", "the current token is 0, held by nobody")

    def test_a_run_whose_cancel_was_requested_is_cancelled_by_the_claim(self) -> None:
        draft = draft_of(run(available_at=NOW + 1))
        request_cancel(draft, "r-1", Reason.WITHDRAWN)
        assert move_run(draft, "r-1", Trigger.CLAIM, Given(worker=HOLDER)).to is RunState.CANCELLED
        assert (after(draft).attempts, after(draft).worker, after(draft).reason) == (0, None, Reason.WITHDRAWN)
        assert after(draft).steps[0].state is StepState.CANCELLED

    @pytest.mark.parametrize("given", [Given(), Given(worker=HOLDER, lease=LEASE)])
    def test_a_claim_by_nobody_or_by_two_is_a_bug(self, given: Given) -> None:
        with pytest.raises(ControllerError, match="exactly one"):
            move_run(draft_of(run()), "r-1", Trigger.CLAIM, given)


class TestFence:
    @pytest.mark.parametrize("token", [0, 2, 99])
    def test_a_stale_token_is_refused_naming_holder_and_current_token(self, token: int) -> None:
        draft = draft_of(running(step(state=StepState.SUCCEEDED)))
        said = refused(draft, lambda: move_run(draft, "r-1", Trigger.ALL_STEPS_DONE, Given(token=token)))
        assert said.why == "stale_lease"
        assert "run r-1 is running: all_steps_done refused (not moved to succeeded)" in said.what
        assert said.where == f"token {token} is stale; the current token is 1, held by slot 3 since 22:13:19Z"
        assert said.next == "nothing is lost. Drop this result, or see `controller show r-1`"

    def test_the_holder_of_a_lease_is_named_with_the_time_of_day(self) -> None:
        midnight = NOW // 86_400_000 * 86_400_000
        draft = draft_of(running(worker=None, lease=LEASE, started_at=midnight + 3_600_000))
        said = refused(draft, lambda: move_run(draft, "r-1", Trigger.ALL_STEPS_DONE, Given(token=2)))
        assert said.where == "token 2 is stale; the current token is 1, held by one since 01:00:00Z"

    def test_the_right_token_from_another_worker_is_refused(self) -> None:
        draft = draft_of(running(step(state=StepState.SUCCEEDED)))
        given = Given(token=1, worker=WorkerRef(3, "a-1", 2))
        said = refused(draft, lambda: move_run(draft, "r-1", Trigger.ALL_STEPS_DONE, given))
        assert (said.why, "by another than its holder" in said.where) == ("stale_lease", True)

    def test_a_holder_that_gave_the_run_back_is_shut_out_at_once(self) -> None:
        draft = draft_of(running(step(state=StepState.SUCCEEDED)))
        move_run(draft, "r-1", Trigger.SHUTDOWN_DRAIN, Given(token=1, worker=HOLDER))
        said = refused(draft, lambda: move_run(draft, "r-1", Trigger.ALL_STEPS_DONE, Given(token=1, worker=HOLDER)))
        assert (said.why, "held by nobody" in said.where) == ("stale_lease", True)

    @pytest.mark.parametrize("trigger", [Trigger.ALL_STEPS_DONE, Trigger.ATTEMPT_FAILED, Trigger.SHUTDOWN_DRAIN])
    def test_a_holders_report_without_a_token_is_refused(self, trigger: Trigger) -> None:
        draft = draft_of(running(step(state=StepState.SUCCEEDED)))
        said = refused(draft, lambda: move_run(draft, "r-1", trigger, Given(reason=Reason.EXIT_CODE)))
        assert (said.why, "no token was presented" in said.where) == ("stale_lease", True)

    @pytest.mark.parametrize("state", [s for s in RunState if s not in {RunState.RUNNING, RunState.SUCCEEDED}])
    def test_a_stale_token_is_stale_whatever_the_state(self, state: RunState) -> None:
        draft = draft_of(run(state=state, attempts=2))
        said = refused(draft, lambda: move_run(draft, "r-1", Trigger.ALL_STEPS_DONE, Given(token=1)))
        assert said.why == "stale_lease"

    def test_a_step_is_fenced_on_its_run(self) -> None:
        draft = draft_of(running())
        said = refused(draft, lambda: move_step(draft, "r-1", "main", Trigger.STEP_STARTED, Given(token=2)))
        assert (said.why, said.where.startswith("token 2 is stale")) == ("stale_lease", True)
        assert said.what.startswith("step main of run r-1 is pending: step_started refused: ")

    def test_no_such_run_and_no_such_step_are_not_refusals(self) -> None:
        with pytest.raises(NotFound):
            move_run(draft_of(), "r-1", Trigger.CLAIM, Given(worker=HOLDER))
        with pytest.raises(NotFound):
            move_step(draft_of(), "r-1", "main", Trigger.STEP_STARTED, Given(token=1))
        with pytest.raises(NotFound):
            move_step(draft_of(running()), "r-1", "other", Trigger.STEP_STARTED, Given(token=1))
        with pytest.raises(NotFound):
            request_cancel(draft_of(), "r-1", Reason.CANCELLED)
        with pytest.raises(NotFound):
            skip_unreachable(draft_of(), "r-1")


class TestSuccess:
    def test_the_run_leaves_the_document_and_its_tombstone_stays(self) -> None:
        draft = draft_of(running(step(state=StepState.SUCCEEDED), content="c"))
        given = Given(token=1, worker=HOLDER, result=Raw(b"7"))
        assert move_run(draft, "r-1", Trigger.ALL_STEPS_DONE, given).to is RunState.SUCCEEDED
        assert "r-1" not in draft.runs
        stone = draft.finished.get("r-1")
        assert stone is not None
        assert (stone.token, stone.state, stone.finished_at, stone.worker) == (1, RunState.SUCCEEDED, NOW, HOLDER)
        assert (stone.reason, stone.content, stone.result) == (Reason.COMPLETED, "c", Raw(b"7"))
        assert (only_event(draft).to, only_event(draft).token) == ("succeeded", 1)

    def test_late_duplicates_are_told_apart(self) -> None:
        stone = Tombstone("r-1", "q", 1, 2, NOW, NOW, RunState.SUCCEEDED, owner="one")
        draft = draft_of(finished={"r-1": stone})
        mine, stale, nobodys = (
            refused(draft, lambda t=token: move_run(draft, "r-1", Trigger.ALL_STEPS_DONE, Given(token=t)))
            for token in (2, 1, None)
        )
        assert (mine.why, mine.where) == ("illegal_transition", "already done by you, token 2, at 22:13:20Z")
        assert (stale.why, stale.where) == (
            "stale_lease",
            "token 1 is stale; one completed it with token 2 at 22:13:20Z",
        )
        assert nobodys.why == "illegal_transition"
        again = refused(draft, lambda: move_run(draft, "r-1", Trigger.OPERATOR_RETRY, Given()))
        assert again.why == "illegal_transition"
        for said in (mine, stale, nobodys):
            assert said.what.startswith("run r-1 is succeeded: all_steps_done refused: ")

    def test_a_late_duplicate_hears_which_worker_completed_the_run(self) -> None:
        stone = Tombstone("r-1", "q", 1, 2, NOW, NOW, RunState.SUCCEEDED, worker=HOLDER)
        draft = draft_of(finished={"r-1": stone})
        said = refused(draft, lambda: move_run(draft, "r-1", Trigger.ALL_STEPS_DONE, Given(token=1)))
        assert said.where == "token 1 is stale; slot 3 completed it with token 2 at 22:13:20Z"

    def test_a_finished_run_refuses_a_cancel(self) -> None:
        stone = Tombstone("r-1", "q", 1, 2, NOW, NOW, RunState.SUCCEEDED, owner="one")
        draft = draft_of(finished={"r-1": stone})
        said = refused(draft, lambda: request_cancel(draft, "r-1", Reason.CANCELLED))
        assert said.why == "illegal_transition"
        assert said.what.startswith("run r-1 is succeeded: cancel_observed refused: ")
        assert said.where == "one completed it with token 2 at 22:13:20Z"

    def test_a_step_that_has_not_ended_holds_it_back(self) -> None:
        draft = draft_of(running(step(state=StepState.RUNNING)))
        said = refused(draft, lambda: move_run(draft, "r-1", Trigger.ALL_STEPS_DONE, Given(token=1)))
        assert said.why == "steps_not_terminal"

    def test_a_run_without_steps_succeeds(self) -> None:
        bare = replace(running(), steps=())
        assert move_run(draft_of(bare), "r-1", Trigger.ALL_STEPS_DONE, Given(token=1)).to is RunState.SUCCEEDED

    def test_steps_that_all_succeeded_end_cancelled_once_that_was_requested(self) -> None:
        draft = draft_of(running(step(state=StepState.SUCCEEDED)))
        request_cancel(draft, "r-1", Reason.CANCELLED)
        assert move_run(draft, "r-1", Trigger.ALL_STEPS_DONE, Given(token=1)).to is RunState.CANCELLED
        assert after(draft).steps[0].state is StepState.SUCCEEDED


class TestFailure:
    def test_a_failed_life_with_budget_left_waits_and_keeps_what_succeeded(self) -> None:
        done = step("a", state=StepState.SUCCEEDED, token=1)
        draft = draft_of(running(done, step("b", state=StepState.FAILED, token=1), max_attempts=2))
        assert move_run(draft, "r-1", Trigger.ATTEMPT_FAILED, FAILED).to is RunState.QUEUED
        waiting = after(draft)
        assert (waiting.failures, waiting.crashes, waiting.worker, waiting.attempts) == (1, 0, None, 1)
        assert (waiting.available_at, waiting.defer_reason) == (NOW + 500, Reason.RETRY_BACKOFF)
        assert waiting.last_error == "exit 7"
        assert waiting.steps == (done, step("b"))
        assert view_of(waiting, NOW) is View.SCHEDULED

    def test_the_last_life_that_may_fail_is_dead(self) -> None:
        draft = draft_of(running(step(state=StepState.FAILED), failures=1, max_attempts=2))
        assert move_run(draft, "r-1", Trigger.ATTEMPT_FAILED, FAILED).to is RunState.FAILED
        dead = after(draft)
        assert (dead.failures, dead.reason, dead.last_error) == (2, Reason.ATTEMPTS_EXHAUSTED, "exit 7")
        assert (dead.worker, dead.finished_at, view_of(dead, NOW)) == (None, NOW, View.DEAD)

    def test_an_only_life_says_how_it_failed(self) -> None:
        draft = draft_of(running(step(state=StepState.FAILED)))
        move_run(draft, "r-1", Trigger.ATTEMPT_FAILED, FAILED)
        assert after(draft).reason is Reason.EXIT_CODE

    def test_a_holder_may_say_that_another_life_is_no_use(self) -> None:
        draft = draft_of(running(max_attempts=5))
        move_run(draft, "r-1", Trigger.ATTEMPT_FAILED, replace(FAILED, final=True))
        assert (after(draft).state, after(draft).reason) == (RunState.FAILED, Reason.EXIT_CODE)

    def test_a_dead_run_leaves_no_step_open(self) -> None:
        draft = draft_of(running(step("a"), step("b")))
        move_step(draft, "r-1", "a", Trigger.STEP_STARTED, Given(token=1))
        move_run(draft, "r-1", Trigger.ATTEMPT_FAILED, FAILED)
        assert [s.state for s in after(draft).steps] == [StepState.FAILED, StepState.SKIPPED]
        assert [event[:2] for event in events(draft)] == [
            ("step_started", "a"),
            ("step_failed", "a"),
            ("upstream_failed", "b"),
            ("attempt_failed", None),
        ]

    def test_the_steps_of_a_failed_life_end_when_its_holder_says(self) -> None:
        draft = draft_of(running())
        move_step(draft, "r-1", "main", Trigger.STEP_STARTED, Given(token=1, at=NOW - 9))
        move_run(draft, "r-1", Trigger.ATTEMPT_FAILED, replace(FAILED, at=NOW - 5))
        (attempt,) = after(draft).steps[0].attempts
        assert (attempt.started_at, attempt.ended_at) == (NOW - 9, NOW - 5)

    def test_the_key_that_a_failure_was_reported_under_is_told(self) -> None:
        draft = draft_of(running(max_attempts=2))
        move_run(draft, "r-1", Trigger.ATTEMPT_FAILED, replace(FAILED, key="k"))
        assert (only_event(draft).key, only_event(draft).detail) == ("k", "exit 7")

    def test_a_failure_without_a_reason_is_refused(self) -> None:
        draft = draft_of(running())
        said = refused(draft, lambda: move_run(draft, "r-1", Trigger.ATTEMPT_FAILED, Given(token=1)))
        assert said.why == "missing_reason_code"

    def test_a_life_that_fails_after_a_cancel_was_requested_is_not_tried_again(self) -> None:
        draft = draft_of(running(max_attempts=9))
        request_cancel(draft, "r-1", Reason.CANCELLED)
        assert move_run(draft, "r-1", Trigger.ATTEMPT_FAILED, FAILED).to is RunState.CANCELLED
        assert after(draft).reason is Reason.CANCELLED


class TestLoss:
    OVER = Given(lease_over=True, reason=Reason.WORKER_LOST, delay_ms=10)

    def test_a_valid_lease_is_not_taken(self) -> None:
        draft = draft_of(running())
        said = refused(draft, lambda: move_run(draft, "r-1", Trigger.LEASE_EXPIRED, Given()))
        assert said.why == "lease_still_valid"

    def test_a_lost_life_spends_a_crash_and_gives_its_attempts_back(self) -> None:
        draft = draft_of(running(step("a"), step("b", state=StepState.SUCCEEDED), max_crashes=2))
        move_step(draft, "r-1", "a", Trigger.STEP_STARTED, Given(token=1, key="k"))
        assert move_run(draft, "r-1", Trigger.LEASE_EXPIRED, self.OVER).to is RunState.QUEUED
        waiting = after(draft)
        assert (waiting.crashes, waiting.failures, waiting.worker) == (1, 0, None)
        assert (waiting.available_at, waiting.defer_reason) == (NOW + 10, Reason.RECONCILED_AFTER_CRASH)
        assert [(s.state, s.attempts) for s in waiting.steps] == [(StepState.PENDING, ()), (StepState.SUCCEEDED, ())]

    def test_the_last_loss_is_poison(self) -> None:
        draft = draft_of(running(step("a"), step("b")))
        move_step(draft, "r-1", "a", Trigger.STEP_STARTED, Given(token=1, key="k"))
        assert move_run(draft, "r-1", Trigger.LEASE_EXPIRED, self.OVER).to is RunState.FAILED
        dead = after(draft)
        assert (dead.reason, dead.crashes) == (Reason.CRASHES_EXHAUSTED, 1)
        assert [(s.state, s.reason) for s in dead.steps] == [
            (StepState.FAILED, Reason.WORKER_LOST),
            (StepState.SKIPPED, Reason.UPSTREAM_FAILED),
        ]

    def test_a_last_loss_that_nobody_explains_is_the_workers(self) -> None:
        draft = draft_of(running())
        move_step(draft, "r-1", "main", Trigger.STEP_STARTED, Given(token=1))
        move_run(draft, "r-1", Trigger.LEASE_EXPIRED, Given(lease_over=True))
        assert after(draft).steps[0].reason is Reason.WORKER_LOST

    def test_the_steps_of_a_last_loss_say_why_it_was_lost(self) -> None:
        draft = draft_of(running())
        move_step(draft, "r-1", "main", Trigger.STEP_STARTED, Given(token=1))
        move_run(draft, "r-1", Trigger.LEASE_EXPIRED, Given(lease_over=True, reason=Reason.TIMED_OUT))
        assert after(draft).steps[0].reason is Reason.TIMED_OUT

    def test_failures_do_not_spend_crashes(self) -> None:
        draft = draft_of(running(failures=5, max_attempts=9, max_crashes=2))
        assert move_run(draft, "r-1", Trigger.LEASE_EXPIRED, self.OVER).to is RunState.QUEUED

    def test_a_loss_after_a_cancel_was_requested_cancels(self) -> None:
        draft = draft_of(running(max_crashes=9))
        request_cancel(draft, "r-1", Reason.CANCELLED)
        assert move_run(draft, "r-1", Trigger.LEASE_EXPIRED, self.OVER).to is RunState.CANCELLED

    def test_a_drain_spends_neither_budget_and_is_claimable_at_once(self) -> None:
        draft = draft_of(running())
        move_run(draft, "r-1", Trigger.SHUTDOWN_DRAIN, Given(token=1))
        drained = after(draft)
        assert (drained.failures, drained.crashes, view_of(drained, NOW)) == (0, 0, View.PENDING)


class TestCancel:
    def test_a_request_is_one_event_and_asking_again_is_none(self) -> None:
        draft = draft_of(running())
        assert request_cancel(draft, "r-1", Reason.CANCELLED)
        assert not request_cancel(draft, "r-1", Reason.WITHDRAWN)
        assert events(draft) == [("cancel_requested", None, "running", "running", Reason.CANCELLED)]
        assert (after(draft).cancel_requested_at, after(draft).state) == (NOW, RunState.RUNNING)
        assert (only_event(draft).subject, only_event(draft).token) == ("run:r-1", 1)

    def test_a_run_that_ended_otherwise_refuses_it(self) -> None:
        draft = draft_of(run(state=RunState.FAILED))
        said = refused(draft, lambda: request_cancel(draft, "r-1", Reason.CANCELLED))
        assert said.why == "illegal_transition"
        assert said.what.startswith("run r-1 is failed: cancel_observed refused: ")
        assert not request_cancel(draft_of(run(state=RunState.CANCELLED)), "r-1", Reason.CANCELLED)

    def test_a_queued_run_is_cancelled_with_all_its_steps_in_one_draft(self) -> None:
        draft = draft_of(run(step("a", state=StepState.SUCCEEDED), step("b"), step("c"), available_at=NOW + 9))
        moved = move_run(draft, "r-1", Trigger.CANCEL_OBSERVED, Given(reason=Reason.WITHDRAWN))
        assert KillProcessGroup() not in moved.effects
        assert [s.state for s in after(draft).steps] == [
            StepState.SUCCEEDED,
            StepState.CANCELLED,
            StepState.CANCELLED,
        ]
        assert (after(draft).available_at, after(draft).reason) == (None, Reason.WITHDRAWN)
        assert events(draft) == [
            ("cancel_observed", "b", "pending", "cancelled", Reason.WITHDRAWN),
            ("cancel_observed", "c", "pending", "cancelled", Reason.WITHDRAWN),
            ("cancel_observed", None, "queued", "cancelled", Reason.WITHDRAWN),
        ]

    def test_a_running_run_demands_the_kill_first(self) -> None:
        draft = draft_of(running())
        move_step(draft, "r-1", "main", Trigger.STEP_STARTED, Given(token=1, key="k"))
        moved = move_run(draft, "r-1", Trigger.CANCEL_OBSERVED, Given())
        assert (moved.effects[0], moved.to) == (KillProcessGroup(), RunState.CANCELLED)
        (attempt,) = after(draft).steps[0].attempts
        assert (attempt.ended_at, attempt.reason, after(draft).worker) == (NOW, Reason.CANCELLED, None)

    def test_the_reason_of_the_request_is_the_reason_of_the_end(self) -> None:
        draft = draft_of(running())
        request_cancel(draft, "r-1", Reason.DRAINING)
        move_run(draft, "r-1", Trigger.CANCEL_OBSERVED, Given())
        assert after(draft).reason is Reason.DRAINING


class TestQueue:
    def test_a_deferral_waits_for_its_reason(self) -> None:
        draft = draft_of(run(deferrals=1))
        move_run(draft, "r-1", Trigger.DEFERRED, Given(reason=Reason.CREATE_REFUSED, delay_ms=7))
        deferred = after(draft)
        assert (deferred.available_at, deferred.defer_reason, deferred.deferrals) == (
            NOW + 7,
            Reason.CREATE_REFUSED,
            2,
        )
        move_run(draft, "r-1", Trigger.PROMOTED, Given())
        assert (after(draft).available_at, after(draft).defer_reason) == (None, None)

    @pytest.mark.parametrize("reason", [None, Reason.EXIT_CODE])
    def test_a_deferral_without_a_defer_reason_is_refused(self, reason: Reason | None) -> None:
        draft = draft_of(run())
        said = refused(draft, lambda: move_run(draft, "r-1", Trigger.DEFERRED, Given(reason=reason)))
        assert said.why == "missing_defer_reason"

    def test_a_negative_delay_is_due_now(self) -> None:
        draft = draft_of(run())
        move_run(draft, "r-1", Trigger.DEFERRED, Given(reason=Reason.CONCURRENCY, delay_ms=-5))
        assert after(draft).available_at == NOW

    def test_exactly_now_is_due(self) -> None:
        assert view_of(run(available_at=NOW), NOW) is View.PENDING
        assert view_of(run(available_at=NOW + 1), NOW) is View.SCHEDULED
        assert view_of(run(state=RunState.CANCELLED), NOW) is None
        assert view_of(running(), NOW) is View.ACTIVE

    @pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED])
    def test_an_operators_retry_clears_budgets_and_cancel_but_never_the_token(self, state: RunState) -> None:
        done = step("a", state=StepState.SUCCEEDED, token=3)
        ended = run(
            done,
            step("b", state=StepState.FAILED, token=4),
            state=state,
            attempts=4,
            failures=2,
            crashes=1,
            cancel_requested_at=1,
            finished_at=2,
            reason=Reason.CANCELLED,
            last_error="why",
        )
        draft = draft_of(ended)
        move_run(draft, "r-1", Trigger.OPERATOR_RETRY, Given())
        again = after(draft)
        assert (again.state, again.attempts, again.steps) == (RunState.QUEUED, 4, (done, step("b")))
        assert (again.failures, again.crashes, again.cancel_requested_at, again.finished_at) == (0, 0, None, None)
        assert (again.reason, again.last_error) == (None, "why")
        assert only_event(draft).reason is Reason.OPERATOR_RETRY
