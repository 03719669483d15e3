"""The catalogue of reasons is closed, and every member is explained."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.model.reason import EXPLAINED, Reason
from controller.model.records import RunState, StepState, Tombstone
from controller.model.run import DEFER_REASONS
from controller.model.views import advice
from tests.model.drafts import NOW, run, step


def test_every_reason_is_explained() -> None:
    assert set(EXPLAINED) == set(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_an_explanation_says_what_and_why_and_what_next(reason: Reason) -> None:
    explained = EXPLAINED[reason]
    assert explained.text
    assert "\n" not in explained.text
    assert explained.why.endswith(".")
    assert explained.next.endswith(".")


def test_no_two_reasons_read_alike() -> None:
    assert len({explained.text for explained in EXPLAINED.values()}) == len(Reason)


def test_the_defer_reasons_are_the_designs_six() -> None:
    assert sorted(DEFER_REASONS) == [
        "concurrency",
        "create_refused",
        "reconciled_after_crash",
        "requeued_after_shutdown",
        "retry_backoff",
        "submitted_for_later",
    ]


@pytest.mark.parametrize("reason", Reason)
def test_no_advice_names_what_there_is_not_or_cannot_work(reason: Reason) -> None:
    explained = EXPLAINED[reason]
    said = f"{explained.text} {explained.why} {explained.next}"
    for word in ("mend the command", "recovery page"):
        assert word not in said


@pytest.mark.parametrize("ended", [Reason.STEP_FAILED, Reason.ATTEMPTS_EXHAUSTED])
@pytest.mark.parametrize(
    ("how", "says", "not_said"),
    [
        (Reason.EXIT_CODE, "`controller logs r-1`", "--timeout"),
        (Reason.NOT_STARTED, "Check the path", "logs"),
        (Reason.TIMED_OUT, "Raise --timeout", "logs"),
    ],
)
def test_what_to_do_about_a_failed_run_follows_from_how_its_step_failed(
    ended: Reason, how: Reason, says: str, not_said: str
) -> None:
    failed = run(step("a", state=StepState.SUCCEEDED), step("b", state=StepState.FAILED, reason=how))
    told = advice(replace(failed, state=RunState.FAILED, reason=ended)) or ""
    assert says in told
    assert not_said not in told
    assert "controller submit --id NEW" in told


def test_a_run_that_waits_is_advised_by_why_it_waits() -> None:
    waiting = run(available_at=NOW, defer_reason=Reason.CREATE_REFUSED)
    assert advice(waiting) == EXPLAINED[Reason.CREATE_REFUSED].next.replace("RUN", "r-1")


def test_only_a_step_that_failed_says_how_a_run_failed() -> None:
    before = step("a", state=StepState.SUCCEEDED, reason=Reason.COMPLETED)
    failed = run(before, step("b", state=StepState.FAILED, reason=Reason.TIMED_OUT))
    told = advice(replace(failed, state=RunState.FAILED, reason=Reason.STEP_FAILED))
    assert told == EXPLAINED[Reason.TIMED_OUT].next.replace("RUN", "r-1")


def test_what_nothing_has_happened_to_or_nothing_explains_needs_no_advice() -> None:
    assert advice(run()) is None
    assert advice(Tombstone("r-1", "q", 1, 2, NOW, NOW, RunState.SUCCEEDED)) is None
