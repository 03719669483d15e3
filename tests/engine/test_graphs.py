"""Runs of several steps: in order of need, other branches after a failure, and what a retry keeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from controller.engine import queue
from controller.engine.explain import Surroundings, explain_run
from controller.engine.fsck import check
from controller.engine.submission import Submission
from controller.model.action import STEP_KEY_VARIABLE, Action, ExecuteRequest, step_key
from controller.model.reason import Reason
from controller.model.records import ActionType, Run, RunState, Step, StepState, Tombstone
from controller.provider.fake import Before, FakeProvider
from tests.engine.fleet import LINEAGE, Fleet

DIAMOND = (
    Step("publish", ("x",), needs=("build", "lint")),
    Step("fetch", ("x",), env={"A": "1"}),
    Step("lint", ("x",), needs=("fetch",)),
    Step("build", ("x",), needs=("fetch",)),
    Step("announce", ("x",), needs=("publish",)),
    Step("other", ("x",)),
)
"""Listed in another order than it can be done in."""


class Stage:
    """A fleet whose steps end as a test says; `asked` holds what its provider was asked to execute, in order."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.asked: list[Action] = []
        fleet.provider.script(ActionType.EXECUTE, *[Before(self.asked.append)] * 50)

    def submit(self, *steps: Step, attempts: int = 1) -> None:
        queue.submit(self.fleet.context, [Submission(steps, id="g", max_attempts=attempts)])

    def play(self, ends: Mapping[str, list[int]] | None = None) -> list[str]:
        """Serve until nothing runs. Each start of a step takes its next exit code, 0 when there is none left.

        Gives the names of the steps that were started, in order.
        """
        before = len(self.asked)
        left = {name: list(codes) for name, codes in (ends or {}).items()}
        while True:
            self.fleet.reconciler().reconcile()
            keys = [worker.running for worker in self.fleet.document.workers.values() if worker.running]
            if not keys:
                return [str(action.step) for action in self.asked[before:]]
            assert len(keys) == 1, "a run is worked on by one worker, one step at a time"
            codes = left.get(str(self.asked[-1].step)) or [0]
            self.fleet.provider.end_step(keys[0], exit_code=codes.pop(0))
            self.fleet.clock.advance(1)

    @property
    def run(self) -> Run | Tombstone:
        return queue.find(self.fleet.document, "g")

    def states(self) -> dict[str, str]:
        return {step.name: step.state.value for step in self.run.steps}

    def because(self) -> str:
        now = self.fleet.clock.now_ms()
        return " ".join(explain_run(self.fleet.document, "g", Surroundings((), (), {}, 3, ("fleet",), now)).because)

    def requests(self) -> list[ExecuteRequest]:
        return [msgspec.json.decode(bytes(action.request), type=ExecuteRequest) for action in self.asked]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(Fleet(tmp_path / "state", FakeProvider(LINEAGE)))


def test_steps_start_in_order_of_need_and_otherwise_as_listed(stage: Stage) -> None:
    stage.submit(*DIAMOND)
    assert stage.play() == ["fetch", "lint", "build", "publish", "announce", "other"]
    assert stage.run.state is RunState.SUCCEEDED
    assert not check(stage.fleet.store).violations


def test_a_failure_skips_all_that_is_behind_it_and_nothing_else(stage: Stage) -> None:
    stage.submit(*DIAMOND)
    assert stage.play({"lint": [3]}) == ["fetch", "lint", "build", "other"]
    assert stage.states() == {
        "publish": "skipped",
        "fetch": "succeeded",
        "lint": "failed",
        "build": "succeeded",
        "announce": "skipped",
        "other": "succeeded",
    }
    run = stage.run
    assert isinstance(run, Run)
    assert (run.state, run.reason, run.last_error) == (RunState.FAILED, Reason.STEP_FAILED, "step lint exited with 3")
    assert {step.reason for step in run.steps if step.state is StepState.SKIPPED} == {Reason.UPSTREAM_FAILED}
    told = stage.because()
    assert "Step publish is skipped, because step lint, which it needs, failed." in told
    assert "Step announce is skipped, because step publish, which it needs, was skipped." in told
    assert not check(stage.fleet.store).violations


def test_a_failed_step_is_tried_again_within_the_life_as_often_as_it_may_fail(stage: Stage) -> None:
    stage.submit(Step("a", ("x",), max_attempts=3), Step("b", ("x",), needs=("a",)))
    assert stage.play({"a": [1, 2]}) == ["a", "a", "a", "b"]
    assert (stage.run.state, len(stage.run.steps[0].attempts)) == (RunState.SUCCEEDED, 3)
    assert [(action.token, action.attempt) for action in stage.asked] == [(1, 1), (1, 2), (1, 3), (1, 1)]


def test_the_attempts_of_a_step_are_counted_anew_in_each_life_and_what_succeeded_is_kept(stage: Stage) -> None:
    stage.submit(Step("a", ("x",)), Step("b", ("x",), needs=("a",), max_attempts=2), attempts=2)
    assert stage.play({"b": [1, 1, 1]}) == ["a", "b", "b"]
    assert (stage.run.state, stage.states()) == (RunState.QUEUED, {"a": "succeeded", "b": "pending"})
    stage.fleet.clock.advance(3600)
    assert stage.play({"b": [1]}) == ["b", "b"]
    assert (stage.run.state, stage.asked[-1].token, stage.asked[-1].attempt) == (RunState.SUCCEEDED, 2, 2)


def test_an_operators_retry_keeps_what_succeeded_and_starts_the_rest_anew(stage: Stage) -> None:
    stage.submit(*DIAMOND)
    stage.play({"lint": [3]})
    queue.retry(stage.fleet.context, "g")
    states = stage.states()
    assert {name for name, state in states.items() if state == "succeeded"} == {"fetch", "build", "other"}
    assert {name for name, state in states.items() if state == "pending"} == {"lint", "publish", "announce"}
    assert all(not step.attempts for step in stage.run.steps if step.state is StepState.PENDING)
    assert stage.play() == ["lint", "publish", "announce"]
    assert stage.run.state is RunState.SUCCEEDED


def test_a_cancel_ends_what_runs_and_cancels_what_waits(stage: Stage) -> None:
    stage.submit(*DIAMOND)
    stage.fleet.reconciler().reconcile()
    stage.fleet.provider.end_step(str(stage.asked[-1].idempotency_key), exit_code=0)
    stage.fleet.reconciler().reconcile()
    queue.cancel(stage.fleet.context, "g")
    stage.fleet.reconciler().reconcile()
    assert stage.states() == dict.fromkeys(stage.states(), "cancelled") | {"fetch": "succeeded"}
    assert stage.run.state is RunState.CANCELLED
    queue.retry(stage.fleet.context, "g")
    assert stage.play() == ["lint", "build", "publish", "announce", "other"]


def test_a_failure_that_is_not_the_last_end_is_told_as_it_was(stage: Stage) -> None:
    """Of a step that could not be started, its exit code says nothing."""
    stage.submit(Step("a", ("nope",)), Step("b", ("x",)))
    stage.fleet.reconciler().reconcile()
    worker = stage.fleet.provider.workers[1]
    key = stage.asked[-1].idempotency_key
    stage.fleet.provider.end_step(key, exit_code=127)
    worker.steps[key] = msgspec.structs.replace(worker.steps[key], started=False)
    stage.play()
    run = stage.run
    assert isinstance(run, Run)
    assert (run.steps[0].reason, run.last_error) == (Reason.NOT_STARTED, "step a never started")


def test_the_key_of_a_step_is_its_own_over_attempts_lives_and_retries(stage: Stage) -> None:
    stage.submit(Step("a", ("x",), env={"A": "1"}, max_attempts=2), Step("b", ("x",)), attempts=2)
    stage.play({"a": [1, 1]})
    stage.fleet.clock.advance(3600)
    stage.play({"a": [1, 1]})
    queue.retry(stage.fleet.context, "g")
    stage.play()
    run = stage.run
    given = [(action.step, request.env) for action, request in zip(stage.asked, stage.requests(), strict=True)]
    wanted = {name: step_key(LINEAGE, as_run(run), name) for name in ("a", "b")}
    assert given == [
        (name, ({"A": "1"} if name == "a" else {}) | {STEP_KEY_VARIABLE: wanted[str(name)]}) for name, _ in given
    ]
    assert [name for name, _ in given] == ["a", "a", "b", "a", "a", "a"]
    assert {action.idempotency_key for action in stage.asked}.isdisjoint(wanted.values())
    assert wanted["a"] != wanted["b"]


def test_the_key_of_a_step_is_another_in_another_run_also_one_that_reuses_the_id() -> None:
    run = Run("g", "fleet", 1, 1, (Step("a", ("x",)),))
    others = [
        step_key(LINEAGE, run, "b"),
        step_key("33333333-3333-4333-8333-333333333333", run, "a"),
        step_key(LINEAGE, msgspec.structs.replace(run, sequence=2), "a"),
        step_key(LINEAGE, msgspec.structs.replace(run, id="h"), "a"),
    ]
    assert step_key(LINEAGE, run, "a") not in others
    assert len(set(others)) == 4
    assert step_key(LINEAGE, msgspec.structs.replace(run, attempts=7, failures=1), "a") == step_key(LINEAGE, run, "a")


def as_run(found: Run | Tombstone) -> Run:
    """A run of the same id and sequence: that is all its keys come from."""
    return Run(found.id, found.queue, found.sequence, found.created_at, found.steps)
