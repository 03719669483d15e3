"""An explanation reads as a person would say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from msgspec import Raw
from msgspec.structs import replace

from controller.engine.explain import Explanation, Surroundings, explain_run, explain_slot
from controller.engine.moves import in_words
from controller.engine.planner import Ground
from controller.engine.story import Begins
from controller.model.codes import catalogue
from controller.model.errors import NotFound
from controller.model.policy import Policy
from controller.model.reason import EXPLAINED, Reason
from controller.model.records import (
    ActionType,
    Document,
    Event,
    Lease,
    RunState,
    Slot,
    Step,
    StepState,
    Tombstone,
    Trouble,
    Worker,
    WorkerRef,
    WorkerState,
)
from controller.model.run import DEFER_REASONS
from controller.model.transition import Trigger, Why
from controller.provider.fake import Say
from controller.provider.protocol import Unknown
from tests.engine.fleet import Fleet
from tests.engine.scenes import NOW, planned, with_runs

ONE_SLOT = Ground(Policy(slots=1), "fake")
HOLDER = WorkerRef(1, "a-1", 1)


def around(
    *,
    slots: int = 1,
    now: int = NOW,
    events: Sequence[Event] = (),
    refusals: Sequence[Mapping[str, object]] = (),
    queues: tuple[str, ...] = ("fleet",),
) -> Surroundings:
    return Surroundings(events=events, refusals=refusals, notes={}, slots=slots, queues=queues, now=now)


def of_slot(document: Document) -> str:
    return " ".join(explain_slot(document, 1, around()).because)


def of_run(document: Document, run_id: str, slots: int = 1) -> str:
    return " ".join(explain_run(document, run_id, around(slots=slots)).because)


def explained(**fields: object) -> Explanation:
    """The explanation of a run that has one step and these fields."""
    document = with_runs("a", attempts=3)
    return explain_run(replace(document, runs={"a": replace(document.runs["a"], **fields)}), "a", around())


def could(found: Explanation) -> str:
    return "\n".join(in_words(found.moves))


def refusals(found: Explanation) -> dict[Trigger, Why | None]:
    return {move.event: move.refused for move in found.moves}


@pytest.mark.parametrize(("sends", "said"), [(0, "not sent yet."), (1, "sent once."), (2, "sent 2 times.")])
def test_a_parked_action_has_its_article_and_its_sends_in_words(sends: int, said: str) -> None:
    document, _ = planned(with_runs("a"), ground=ONE_SLOT)
    entry = replace(document.pending_actions[1], sends=sends)
    assert of_slot(replace(document, pending_actions={1: entry})).endswith(said)
    assert "A create is parked" in of_slot(document)


def test_an_execute_is_an_execute(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.EXECUTE, Say(Unknown("lost")))
    fleet.reconciler().reconcile()
    assert "An execute is parked for slot 1" in of_slot(fleet.document)


def test_one_slot_and_many_that_are_taken() -> None:
    document, _ = planned(with_runs("a", "b"), ground=ONE_SLOT)
    assert "The only slot is taken" in of_run(document, "b")
    document, _ = planned(with_runs("a", "b", "c"))
    assert "All 2 slots are taken" in of_run(document, "c", slots=2)


def test_failed_lives_are_counted_against_those_allowed() -> None:
    document = with_runs("a")
    run = replace(document.runs["a"], state=RunState.FAILED, failures=1, reason=Reason.STEP_FAILED)
    assert "1 of 1 allowed lives failed, 0 of 1 were lost." in of_run(replace(document, runs={"a": run}), "a")


# Every state of a run, and what could move it there.


def test_a_queued_run_that_is_due_may_be_taken_and_cancelled() -> None:
    found = explained()
    assert "the next reconcile takes it" in " ".join(found.because)
    assert could(found).splitlines()[:2] == [
        "A worker that takes it begins its life 1.",
        "`controller cancel a` cancels it at once.",
    ]
    assert refusals(found)[Trigger.CLAIM] is None
    assert refusals(found)[Trigger.OPERATOR_RETRY] is Why.ILLEGAL_TRANSITION
    assert refusals(found)[Trigger.ATTEMPT_FAILED] is Why.STALE_LEASE


@pytest.mark.parametrize("reason", sorted(DEFER_REASONS))
def test_every_deferral_says_why_how_long_and_what_next(reason: Reason) -> None:
    found = explained(available_at=NOW + 1_500, defer_reason=reason)
    assert found.because[:2] == (f"It waits another 2 s: {EXPLAINED[reason].text}.", EXPLAINED[reason].why)
    assert found.next == (EXPLAINED[reason].next.replace("RUN", "a"),)
    assert "Nobody takes it: not available yet, but in 2 s." in could(found)
    assert refusals(found)[Trigger.CLAIM] is Why.NOT_AVAILABLE


def test_a_deferral_that_is_over_waits_no_more() -> None:
    found = explained(available_at=NOW, defer_reason=Reason.RETRY_BACKOFF)
    assert "It waits" not in " ".join(found.because)
    assert refusals(found)[Trigger.CLAIM] is None


def test_a_queued_run_whose_cancel_was_requested_is_cancelled_instead_of_claimed() -> None:
    found = explained(cancel_requested_at=NOW, reason=Reason.CANCELLED)
    assert "cancels it instead" in " ".join(found.because)
    assert "No worker takes it any more" in could(found)


def test_a_run_of_consumers_is_not_for_the_fleet() -> None:
    document = with_runs("a")
    found = explain_run(document, "a", around(queues=("other",)))
    assert "Queue fleet is served by consumers, not by the fleet" in found.because[-1]


def test_a_draining_fleet_keeps_a_run_waiting() -> None:
    found = explain_run(replace(with_runs("a"), draining=True), "a", around())
    assert found.next == ("controller drain --off",)


def test_a_running_run_says_what_its_failure_and_its_loss_would_do() -> None:
    step = Step("main", ("true",), StepState.RUNNING)
    found = explained(state=RunState.RUNNING, attempts=1, worker=HOLDER, steps=(step,), failures=1)
    assert "The worker in slot 1 (a-1) holds it under token 1." in found.because
    assert refusals(found) == {
        Trigger.CLAIM: Why.ILLEGAL_TRANSITION,
        Trigger.CANCEL_OBSERVED: None,
        Trigger.ALL_STEPS_DONE: Why.STEPS_NOT_TERMINAL,
        Trigger.ATTEMPT_FAILED: None,
        Trigger.LEASE_EXPIRED: Why.LEASE_STILL_VALID,
        Trigger.OPERATOR_RETRY: Why.ILLEGAL_TRANSITION,
    }
    assert "It cannot end yet: a step has not ended (main)." in could(found)
    assert "A failure of this life sends it back to its queue: 1 of 3 allowed" in could(found)
    assert "Its holder's loss sends it back to its queue: 0 of 3 allowed" in could(found)


def test_a_last_life_says_that_its_failure_or_loss_is_the_end() -> None:
    found = explained(state=RunState.RUNNING, attempts=3, worker=HOLDER, failures=2, crashes=2)
    assert "A failure of this life is its end: 2 of 3" in could(found)
    assert "Its holder's loss is its end: 2 of 3" in could(found)


def test_a_running_run_that_is_to_be_cancelled_says_how_that_ends() -> None:
    found = explained(
        state=RunState.RUNNING, attempts=1, worker=HOLDER, cancel_requested_at=NOW, reason=Reason.CANCELLED
    )
    assert "A cancel was requested" in found.because[0]
    assert "The cancel that was requested ends it" in could(found)
    assert "A failure of this life makes it cancelled" in could(found)


def test_an_outside_holder_may_give_its_run_back() -> None:
    lease = Lease("one", "boot", 5_000, 1_000)
    found = explained(state=RunState.RUNNING, attempts=1, lease=lease)
    assert found.because[0] == "one holds it under token 1."
    assert "Given back by its holder, it is queued again" in could(found)


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED])
def test_only_an_operator_moves_a_run_that_ended_otherwise(state: RunState) -> None:
    steps = (Step("build", ("true",), StepState.SUCCEEDED), Step("test", ("true",), StepState.FAILED))
    found = explained(state=state, reason=Reason.STEP_FAILED, steps=steps, attempts=1)
    assert could(found).splitlines() == [
        "`controller retry a` queues it again; it keeps build and has its budgets anew.",
        "Refused (stale_lease; stale: the caller does not hold it): all_steps_done, attempt_failed, shutdown_drain.",
        "Refused (illegal_transition; that cannot happen in this state): claim, cancel_observed, lease_expired.",
    ]


def test_nothing_moves_a_run_that_succeeded() -> None:
    stone = Tombstone("a", "fleet", 1, 2, NOW, NOW, RunState.SUCCEEDED, reason=Reason.COMPLETED)
    document = replace(with_runs("b"), finished={"a": stone})
    found = explain_run(document, "a", around())
    assert found.state == "succeeded"
    assert "in its life 2" in found.because[0]
    assert could(found).startswith("Nothing moves it any more.\n")
    assert {move.refused for move in found.moves} == {Why.ILLEGAL_TRANSITION}


def test_a_run_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFound):
        explain_run(with_runs("a"), "b", around())


@pytest.mark.parametrize("reason", Reason)
def test_a_failed_run_says_why_for_every_reason(reason: Reason) -> None:
    found = explained(state=RunState.FAILED, reason=reason)
    assert EXPLAINED[reason].why in found.because
    assert found.next


# Steps.


def test_steps_say_which_is_next_which_failed_and_which_cannot_run_because_of_it() -> None:
    steps = (
        Step("build", ("true",), StepState.SUCCEEDED),
        Step("lint", ("true",), StepState.FAILED, reason=Reason.TIMED_OUT),
        Step("test", ("true",), StepState.SKIPPED, needs=("build", "lint")),
        Step("ship", ("true",), StepState.PENDING, needs=("test",)),
        Step("docs", ("true",), needs=("build",)),
        Step("more", ("true",), needs=("build",)),
        Step("last", ("true",), needs=("docs", "more")),
    )
    found = explained(state=RunState.RUNNING, attempts=1, worker=HOLDER, steps=steps)
    assert [step.because for step in found.steps] == [
        "Step build succeeded.",
        "Step lint failed: ran into its timeout.",
        "Step test is skipped, because step lint, which it needs, failed.",
        "Step ship cannot start in this life, because step test, which it needs, was skipped.",
        "Step docs is next.",
        "Step more waits for its turn.",
        "Step last waits for docs and more.",
    ]
    assert "1 of 7 steps have succeeded." in found.because
    assert "Step build succeeded." not in found.because


def test_many_steps_are_not_all_told() -> None:
    found = explained(steps=tuple(Step(f"s{n}", ("true",)) for n in range(50)))
    assert "(44 more steps; all: controller show a)" in found.because
    assert len(found.steps) == 50


# Slots.


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (WorkerState.CREATING, "is being made"),
        (WorkerState.READY, "is ready and idle"),
        (WorkerState.ASSIGNED, "is kept for run a, which is queued again"),
        (WorkerState.RELEASED, "is free of its run"),
        (WorkerState.DEALLOCATED, "is stopped"),
        (WorkerState.COMPUTE_REMOVED, "has no compute left"),
        (WorkerState.LOST, "is gone"),
    ],
)
def test_every_worker_state_has_words(state: WorkerState, says: str) -> None:
    worker = Worker(1, "a-1", 1, "fake", NOW, NOW, state, run="a", reason=Reason.RUN_ENDED)
    found = explain_slot(replace(with_runs("a"), workers={1: worker}), 1, around())
    assert found.state == state
    assert says in found.because[0]
    assert EXPLAINED[Reason.RUN_ENDED].why in found.because
    assert (found.moves, found.steps) == ((), ())


def test_a_free_slot_a_cordoned_one_and_one_that_was_refused() -> None:
    document = with_runs("a")
    assert of_slot(document) == "No worker is recorded in slot 1."
    assert "The configuration has 1 slot" in explain_slot(document, 2, around()).because[1]
    with pytest.raises(NotFound):
        explain_slot(document, 0, around())
    held = replace(
        document,
        slots={1: Slot(cordoned=True, refusals=2, not_before=NOW + 9_000)},
        troubles=(Trouble(NOW, Reason.REJECTED, "quota", 1),),
    )
    assert "The slot is cordoned" in of_slot(held)
    assert "2 times in a row; it is asked again in 9 s. It said: quota." in of_slot(held)


@pytest.mark.parametrize(
    "reason", [Reason.UNKNOWN, Reason.PENDING, Reason.NOT_SENT, Reason.IDENTITY_REFUSED, Reason.KEY_EXPIRED]
)
def test_every_outcome_that_stays_pending_says_why_it_does(reason: Reason) -> None:
    document, _ = planned(with_runs("a"), ground=ONE_SLOT)
    entry = replace(document.pending_actions[1], last_reason=reason, last_error="no route", not_before=NOW + 3_000)
    found = explain_slot(replace(document, pending_actions={1: entry}), 1, around())
    assert EXPLAINED[reason].why in found.because
    assert "Its last error: no route." in found.because
    assert "Reconcile sends it again in 3 s." in found.because
    assert found.next


def test_a_refusal_that_waits_for_proof_says_so() -> None:
    document, _ = planned(with_runs("a"), ground=ONE_SLOT)
    entry = replace(document.pending_actions[1], rejected="quota")
    found = explain_slot(replace(document, pending_actions={1: entry}), 1, around())
    assert "looks must show that it did not" in " ".join(found.because)
    assert found.next == ("controller reconcile --apply",)


def test_bytes_that_are_no_action_are_never_sent() -> None:
    document, _ = planned(with_runs("a"), ground=ONE_SLOT)
    entry = replace(document.pending_actions[1], action=Raw(b'{"type":"crate"}'))
    found = explain_slot(replace(document, pending_actions={1: entry}), 1, around())
    assert "It is never sent." in " ".join(found.because)
    assert found.next == ("controller fsck",)


# History and refusals.


def test_a_history_that_does_not_lead_to_the_record_comes_first_and_sends_people_to_fsck() -> None:
    document = with_runs("a")
    run = replace(document.runs["a"], state=RunState.FAILED, reason=Reason.STEP_FAILED)
    found = explain_run(replace(document, runs={"a": run}), "a", around(events=document.events))
    assert found.because[0] == (
        "History and document do not agree: state: history says queued, the document says failed."
    )
    assert found.next[0] == "controller fsck"
    assert found.story.agrees is False


def test_what_was_committed_after_the_document_was_read_is_no_contradiction() -> None:
    document = with_runs("a")
    later = Event(document.revision + 1, 1, NOW, "reconcile", "run:a", "claim", "queued", "running", token=1)
    found = explain_run(document, "a", around(events=[*document.events, later]))
    assert (found.story.agrees, found.events) == (True, document.events)


def test_a_run_that_history_knows_nothing_of_is_explained_by_its_record() -> None:
    found = explained(state=RunState.FAILED, reason=Reason.STEP_FAILED)
    assert (found.story.begins, found.story.agrees) == (Begins.NOWHERE, None)
    assert EXPLAINED[Reason.STEP_FAILED].why in found.because


@pytest.mark.parametrize("code", sorted(catalogue()))
def test_a_noted_refusal_has_words_for_its_code(code: str) -> None:
    note = {"at": NOW, "command": "cancel", "code": code, "what": "no", "subject": "run:a"}
    other = {**note, "subject": "run:b"}
    (found,) = explain_run(with_runs("a"), "a", around(refusals=[note, other])).refusals
    assert (found["means"], found["what"]) == (catalogue()[code].text, "no")
    assert found["next"] == catalogue()[code].next.replace("RUN", "a")


def test_a_noted_refusal_of_a_code_that_is_not_known_any_more_stays_as_it_is() -> None:
    note = {"code": "gone", "what": "no", "subject": "slot:1"}
    assert explain_slot(with_runs("a"), 1, around(refusals=[note])).refusals == (note,)


@pytest.mark.parametrize("state", RunState)
@pytest.mark.parametrize("requested", [None, NOW])
def test_every_move_of_every_state_is_told_in_a_sentence(state: RunState, requested: int | None) -> None:
    held = {"worker": HOLDER, "attempts": 1} if state is RunState.RUNNING else {}
    found = explained(state=state, cancel_requested_at=requested, **held)
    assert all(move.what.endswith(".") for move in found.moves)
    assert all((move.to is None) == (move.refused is not None) for move in found.moves)
