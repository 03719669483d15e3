"""What a life costs: a failure spends failures, a crash spends crashes, a drain spends neither."""

from __future__ import annotations

import pytest

from controller.engine import leases, upkeep
from controller.engine import queue as runs
from controller.engine.queue import Context
from controller.model.errors import TransitionRefused
from controller.model.reason import Reason
from controller.model.records import RunState
from controller.model.transition import Trigger
from tests.engine.queue import kit
from tests.engine.queue.kit import Host


def live(host: Host) -> int:
    """The token of a new life of the run, however long its backoff is."""
    host.clock.advance(10)
    ((_, token),) = [(run.id, run.attempts) for run in leases.claim(host.process(), "a", owner="c", lease_ms=1_000)]
    return token


def crash(host: Host) -> None:
    live(host)
    host.clock.advance(1)
    upkeep.reap(host.process())


def test_a_failure_spends_failures_a_crash_spends_crashes_and_a_drain_neither(host: Host) -> None:
    host.submit("work", max_attempts=9, max_crashes=9)
    leases.retry(host.process(), "work", live(host), error="one")
    crash(host)
    crash(host)
    leases.drain(host.process(), "work", live(host))
    run = host.run("work")
    assert (run.attempts, run.failures, run.crashes, run.state) == (4, 1, 2, RunState.QUEUED)


def test_failed_as_often_as_it_may_it_is_dead_with_a_reason_of_its_own(host: Host) -> None:
    host.submit("work", max_attempts=2, max_crashes=9)
    leases.retry(host.process(), "work", live(host), error="one")
    leases.retry(host.process(), "work", live(host), error="two")
    run = host.run("work")
    assert (run.state, run.reason, run.last_error) == (RunState.FAILED, Reason.ATTEMPTS_EXHAUSTED, "two")
    assert (run.failures, run.crashes) == (2, 0)


def test_lost_as_often_as_it_may_it_is_dead_with_a_reason_of_its_own(host: Host) -> None:
    host.submit("work", max_attempts=9, max_crashes=2)
    crash(host)
    assert host.run("work").state is RunState.QUEUED
    crash(host)
    run = host.run("work")
    assert (run.state, run.reason, run.failures, run.crashes) == (RunState.FAILED, Reason.CRASHES_EXHAUSTED, 0, 2)


@pytest.mark.parametrize("order", ["crash first", "failure first"])
def test_neither_budget_pays_for_the_other(host: Host, order: str) -> None:
    host.submit("work", max_attempts=2, max_crashes=2)
    if order == "crash first":
        crash(host)
    leases.retry(host.process(), "work", live(host), error="one")
    if order == "failure first":
        crash(host)
    assert host.run("work").state is RunState.QUEUED, "one of each is spent, and one of each is left"
    for _ in range(5):
        leases.drain(host.process(), "work", live(host))
    assert host.run("work").state is RunState.QUEUED


def test_a_failure_that_its_holder_calls_final_ends_the_run_with_the_holders_reason(host: Host) -> None:
    host.submit("work", max_attempts=9)
    token = live(host)
    leases.fail(host.process(), "work", token, error="no such image", reason=Reason.INVALID_PAYLOAD)
    run = host.run("work")
    assert (run.state, run.reason, run.last_error) == (RunState.FAILED, Reason.INVALID_PAYLOAD, "no such image")


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_q1_a_run_that_ends_its_holder_each_time_has_exactly_as_many_lives_as_it_may(host: Host, attempts: int) -> None:
    host.submit("killer", max_attempts=attempts)
    lives = 0
    for _ in range(10):
        host.clock.advance(10)
        if leases.claim(host.process(), "a", owner="c", lease_ms=1_000):
            lives += 1
            host.clock.advance(1)
            upkeep.reap(host.process())
    run = host.run("killer")
    assert (lives, run.state, run.reason) == (attempts, RunState.FAILED, Reason.CRASHES_EXHAUSTED)


def test_a_failed_life_waits_for_its_backoff_and_the_next_for_a_longer_one(host: Host) -> None:
    host.submit("work", max_attempts=9)
    for wait in (1, 2, 4, 8, 8):
        leases.retry(host.process(), "work", live(host), error="again")
        host.clock.advance(wait - 0.001)
        assert leases.claim(host.process(), "a", owner="c") == ()
        host.clock.advance(0.001)
        (run,) = leases.claim(host.process(), "a", owner="c")
        leases.drain(host.process(), run.id, run.attempts)


def test_a_retry_waits_as_long_as_its_holder_says(host: Host) -> None:
    host.submit("work", max_attempts=2)
    leases.retry(host.process(), "work", live(host), error="again", delay_ms=3_600_000)
    run = host.run("work")
    assert (run.defer_reason, run.available_at) == (Reason.RETRY_BACKOFF, host.clock.now_ms() + 3_600_000)


def test_an_operators_retry_starts_both_budgets_anew_and_the_token_goes_on(host: Host) -> None:
    host.submit("work", max_attempts=1, max_crashes=2)
    crash(host)
    leases.retry(host.process(), "work", live(host), error="one")
    assert host.run("work").state is RunState.FAILED
    runs.retry(host.process(), "work")
    run = host.run("work")
    assert (run.state, run.failures, run.crashes, run.attempts) == (RunState.QUEUED, 0, 0, 2)
    assert live(host) == 3


def test_a_cancel_that_was_requested_outlives_a_retry_of_its_holder(host: Host) -> None:
    host.submit("work", max_attempts=9)
    token = live(host)
    runs.cancel(host.process(), "work")
    leases.retry(host.process(), "work", token, error="again")
    run = host.run("work")
    assert (run.state, run.reason, run.last_error) == (RunState.CANCELLED, Reason.CANCELLED, "again")
    host.clock.advance(100)
    assert leases.claim(host.process(), "a", owner="c") == ()


@pytest.mark.parametrize("how", ["complete", "fail", "crash", "drain"])
def test_a_run_whose_cancel_was_requested_ends_cancelled_however_its_life_ends(host: Host, how: str) -> None:
    host.submit("work", max_attempts=9)
    token = live(host)
    runs.cancel(host.process(), "work")
    context: Context = host.process()
    match how:
        case "complete":
            leases.complete(context, "work", token)
        case "fail":
            leases.fail(context, "work", token, error="no", reason=Reason.CONSUMER_FAILED)
        case "crash":
            host.clock.advance(1)
            upkeep.reap(context)
        case "drain":
            leases.drain(context, "work", token)
            assert leases.claim(context, "a", owner="c") == ()
    run = host.run("work")
    assert (run.state, run.reason, run.lease) == (RunState.CANCELLED, Reason.CANCELLED, None)


def test_steps_that_succeeded_are_kept_and_an_interrupted_one_costs_nothing(host: Host) -> None:
    steps = (kit.step("first"), kit.step("second", "first"))
    host.submit("work", steps=steps, payload=kit.UNSET, max_attempts=3, max_crashes=3)
    token = live(host)
    leases.step(host.process(), "work", "first", token, Trigger.STEP_STARTED)
    leases.step(host.process(), "work", "first", token, Trigger.STEP_SUCCEEDED)
    leases.step(host.process(), "work", "second", token, Trigger.STEP_STARTED)
    host.clock.advance(1)
    upkeep.reap(host.process())
    first, second = host.run("work").steps
    assert (first.state, second.state, second.attempts) == ("succeeded", "pending", ())
    token = live(host)
    with pytest.raises(TransitionRefused) as refusal:
        leases.complete(host.process(), "work", token)
    assert refusal.value.why == "steps_not_terminal"
    leases.step(host.process(), "work", "second", token, Trigger.STEP_STARTED)
    leases.step(host.process(), "work", "second", token, Trigger.STEP_SUCCEEDED)
    leases.complete(host.process(), "work", token)
    assert host.stone("work").state is RunState.SUCCEEDED
