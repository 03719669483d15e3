"""A story is the history put to the machines again: it arrives at the record, or says plainly that it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from controller.engine.queue import cancel, retry, submit, withdraw
from controller.engine.story import FIRST, LAST, Begins, Story, tell_run, tell_slot
from controller.engine.submission import Submission
from controller.model.edit import Draft, apply_edit
from controller.model.perform import Given, move_run, move_step
from controller.model.reason import Reason
from controller.model.records import ActionType, Document, Event, Lease, Run, RunState, Step, StepState, Tombstone
from controller.model.transition import Trigger
from controller.provider.fake import FakeProvider, Later, Say
from controller.provider.protocol import Rejected, Unknown
from tests.engine.fleet import LINEAGE, Fleet
from tests.engine.scenes import NOW, with_runs

HOUR = 3600


def steps(*names: str) -> tuple[Step, ...]:
    """A chain: each needs the one before."""
    return tuple(Step(name, ("true",), needs=names[max(n - 1, 0) : n]) for n, name in enumerate(names))


def reconcile(fleet: Fleet, *, times: int = 1) -> None:
    for _ in range(times):
        fleet.reconciler().reconcile()
        fleet.clock.advance(HOUR)


def end(fleet: Fleet, code: int) -> None:
    for worker in list(fleet.document.workers.values()):
        for key in worker.accepted:
            fleet.provider.end_step(key, exit_code=code)
    reconcile(fleet)


def succeed(fleet: Fleet) -> None:
    fleet.submit("a")
    reconcile(fleet)
    end(fleet, 0)


def fail_and_succeed(fleet: Fleet) -> None:
    fleet.submit("a", attempts=4)
    for code in (7, 7, 0):
        reconcile(fleet)
        end(fleet, code)


def fail_for_good_and_be_retried(fleet: Fleet) -> None:
    fleet.submit("a", attempts=2)
    for code in (7, 8):
        reconcile(fleet)
        end(fleet, code)
    retry(fleet.context, "a")
    reconcile(fleet)
    end(fleet, 9)


def lose_every_life(fleet: Fleet) -> None:
    fleet.submit("a", attempts=3)
    for _ in range(3):
        reconcile(fleet)
        fleet.provider.lose(1)
        reconcile(fleet)


def lose_one_life(fleet: Fleet) -> None:
    fleet.submit("a", attempts=3)
    reconcile(fleet)
    fleet.provider.lose(1)
    reconcile(fleet)


def be_cancelled_in_the_queue(fleet: Fleet) -> None:
    fleet.submit("a")
    cancel(fleet.context, "a")


def be_withdrawn_and_retried(fleet: Fleet) -> None:
    fleet.submit("a")
    withdraw(fleet.context, "a")
    retry(fleet.context, "a")


def be_cancelled_while_running(fleet: Fleet) -> None:
    fleet.submit("a")
    reconcile(fleet)
    cancel(fleet.context, "a")
    reconcile(fleet)


def be_asked_to_end(fleet: Fleet) -> None:
    fleet.submit("a")
    reconcile(fleet)
    cancel(fleet.context, "a")


def be_lost_while_a_cancel_is_wanted(fleet: Fleet) -> None:
    fleet.submit("a", attempts=3)
    reconcile(fleet)
    cancel(fleet.context, "a")
    fleet.provider.lose(1)
    reconcile(fleet)


def be_refused_a_worker(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, *[Say(Rejected("quota"))] * 3)
    reconcile(fleet, times=2)


def be_answered_late(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, Later(3))
    fleet.provider.script(ActionType.EXECUTE, Say(Unknown("lost")))
    reconcile(fleet, times=4)
    end(fleet, 0)


def fail_in_the_middle(fleet: Fleet) -> None:
    submit(fleet.context, [Submission(steps("build", "test", "ship", "tell"), id="a", max_attempts=2)])
    for code in (0, 3, 0, 0):
        reconcile(fleet)
        end(fleet, code)


def skip_the_rest_and_be_retried(fleet: Fleet) -> None:
    submit(fleet.context, [Submission(steps("build", "test", "ship"), id="a")])
    for code in (0, 3):
        reconcile(fleet)
        end(fleet, code)
    retry(fleet.context, "a")
    reconcile(fleet)


def try_a_step_again_within_a_life(fleet: Fleet) -> None:
    submit(fleet.context, [Submission((Step("main", ("true",), max_attempts=3),), id="a")])
    for code in (1, 1, 0):
        reconcile(fleet)
        end(fleet, code)


LIVES = [
    succeed,
    fail_and_succeed,
    fail_for_good_and_be_retried,
    lose_every_life,
    lose_one_life,
    be_cancelled_in_the_queue,
    be_withdrawn_and_retried,
    be_cancelled_while_running,
    be_asked_to_end,
    be_lost_while_a_cancel_is_wanted,
    be_refused_a_worker,
    be_answered_late,
    fail_in_the_middle,
    skip_the_rest_and_be_retried,
    try_a_step_again_within_a_life,
]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """One slot; steps run until a test ends them."""
    return Fleet(tmp_path / "state", FakeProvider(LINEAGE), slots=1)


def record(document: Document) -> Run | Tombstone:
    return document.runs.get("a") or document.finished["a"]


def of(fleet: Fleet) -> tuple[Run | Tombstone, tuple[Event, ...]]:
    return record(fleet.document), fleet.context.store.history("run:a")


def said(story: Story) -> str:
    return "\n".join(told.what for told in story.told)


@pytest.mark.parametrize("live", LIVES)
def test_the_history_of_a_run_leads_to_its_record(fleet: Fleet, live: Callable[[Fleet], None]) -> None:
    live(fleet)
    found, events = of(fleet)
    story = tell_run(found, events)
    assert story.disagreements == ()
    assert (story.begins, story.agrees, story.state) == (Begins.BEGINNING, True, found.state)


@pytest.mark.parametrize("live", LIVES)
def test_a_history_whose_beginning_is_not_kept_leads_there_too(fleet: Fleet, live: Callable[[Fleet], None]) -> None:
    live(fleet)
    found, events = of(fleet)
    revisions = sorted({event.revision for event in events})
    for first in revisions[1:]:
        story = tell_run(found, [event for event in events if event.revision >= first])
        assert story.disagreements == (), f"from revision {first}"
        assert (story.begins, story.state) == (Begins.LATER, found.state)
        assert story.told[0].what.startswith("History begins here")


@pytest.mark.parametrize("live", LIVES)
def test_the_history_of_a_slot_leads_to_its_worker(fleet: Fleet, live: Callable[[Fleet], None]) -> None:
    live(fleet)
    events = fleet.context.store.history("slot:1")
    worker = fleet.document.workers.get(1)
    story = tell_slot(worker, 1, events)
    assert story.disagreements == ()
    assert story.state == (None if worker is None else worker.state)
    for kept in range(len(events)):
        assert tell_slot(worker, 1, events[kept:]).disagreements == ()


@pytest.mark.parametrize("live", LIVES)
def test_a_record_that_says_otherwise_is_named(fleet: Fleet, live: Callable[[Fleet], None]) -> None:
    live(fleet)
    found, events = of(fleet)
    for wrong in set(RunState) - {found.state}:
        story = tell_run(replace(found, state=wrong), events)
        assert story.agrees is False
        assert f"state: history says {found.state}, the document says {wrong}" in story.disagreements


def test_no_event_is_a_story_of_nothing() -> None:
    document = with_runs("a")
    assert tell_run(document.runs["a"], ()) == Story(Begins.NOWHERE, (), None, None, ())
    assert tell_slot(None, 1, ()) == Story(Begins.NOWHERE, (), None, None, ())


def test_lives_that_went_alike_are_told_once(fleet: Fleet) -> None:
    fleet.submit("a", attempts=6)
    for code in (7, 7, 7, 7, 8, 0):
        reconcile(fleet)
        end(fleet, code)
    told = [each.what for each in tell_run(*of(fleet)).told]
    back = "The run went back to its queue: waits before its next life."
    assert told == [
        "Submitted.",
        f"Lives 1 to 4 went alike; each failed: step main exited with 7. {back}",
        f"Life 5 failed: step main exited with 8. {back}",
        "Life 6 ended with its last step: step main succeeded.",
    ]


def test_a_long_story_stays_a_screen(fleet: Fleet) -> None:
    fleet.submit("a", attempts=40)
    for code in range(1, 21):
        reconcile(fleet)
        end(fleet, code)
    story = tell_run(*of(fleet))
    assert len(story.told) == FIRST + LAST + 1
    assert story.told[FIRST].what == "(11 more; all: controller history a)"
    assert story.told[-1].what.startswith("Life 20 failed: step main exited with 20.")


@pytest.mark.parametrize(
    ("live", "says"),
    [
        (
            lose_one_life,
            "Life 1 was lost: worker in slot 1 was lost. The run went back to its queue: queued again after",
        ),
        (lose_every_life, "The run failed for good: lost its holder as often as it may."),
        (be_cancelled_in_the_queue, "A cancel was requested.\nEnded in its queue: cancelled."),
        (be_withdrawn_and_retried, "Ended in its queue: withdrawn.\nSent back to its queue by an operator."),
        (be_cancelled_while_running, "Life 1 was cancelled: a cancel was requested; step main cancelled."),
        (
            be_asked_to_end,
            "Life 1 runs on the worker in slot 1 (a-1); so far: step main started; a cancel was requested.",
        ),
        (be_refused_a_worker, "2 times: Deferred: waits because its worker was refused (quota)."),
        (
            fail_in_the_middle,
            "step build succeeded, step test exited with a code other than 0, steps ship and tell skipped",
        ),
        (try_a_step_again_within_a_life, "step main exited with a code other than 0 (tried again) 2 times, step main"),
    ],
)
def test_what_happened_is_told_in_words(fleet: Fleet, live: Callable[[Fleet], None], says: str) -> None:
    live(fleet)
    assert says in said(tell_run(*of(fleet)))


def test_an_outside_holder_gives_its_run_back() -> None:
    document = with_runs("a", attempts=3)
    events: list[Event] = list(document.events)
    lease = Lease("one", "boot", 5_000, 1_000)
    held = Given(token=1)
    for act in (
        lambda draft: move_run(draft, "a", Trigger.CLAIM, Given(lease=lease)),
        lambda draft: move_step(draft, "a", "main", Trigger.STEP_STARTED, held),
        lambda draft: move_run(draft, "a", Trigger.SHUTDOWN_DRAIN, replace(held, delay_ms=5)),
    ):
        draft = Draft(document, now=NOW, command="test")
        act(draft)
        document = apply_edit(document, draft.edit())
        events += document.events
    story = tell_run(document.runs["a"], events)
    assert (story.agrees, story.state) == (True, "queued")
    assert "was given back by its holder: step main given back." in said(story)


def event(name: str, came: str | None, to: str | None, **more: object) -> Event:
    return replace(Event(2, 1, NOW, "test", "run:a", name, came, to), **more)


SUBMITTED = event("submitted", None, "queued", revision=1)
CLAIMED = event("claim", "queued", "running", token=1)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        (
            [SUBMITTED, event("operator_retry", "queued", "queued")],
            "which is refused: that cannot happen in this state",
        ),
        ([SUBMITTED, event("cancel_observed", "queued", "cancelled")], "(missing_reason_code)"),
        ([SUBMITTED, event("deferred", "queued", "queued")], "(missing_defer_reason)"),
        ([SUBMITTED, CLAIMED, event("all_steps_done", "running", "succeeded")], "(steps_not_terminal)"),
        ([SUBMITTED, CLAIMED, replace(CLAIMED, from_="queued")], "from queued, but what came before led to running"),
        ([SUBMITTED, event("claim", "queued", "failed", token=1)], "led to failed, but it leads to running"),
        ([SUBMITTED, event("claim", "queued", "flying")], "there is no state 'flying'"),
        ([SUBMITTED, event("step_started", "pending", "running", step="main", from_="done")], "no state 'done'"),
        (
            [SUBMITTED, CLAIMED, event("step_succeeded", "pending", "succeeded", step="main")],
            "history says that step_succeeded of step main (revision 2) led to succeeded, which is refused",
        ),
        (
            [SUBMITTED, CLAIMED, event("shutdown_drain", "running", "queued"), CLAIMED],
            "gave token 1 after token 1: tokens only climb",
        ),
        ([SUBMITTED, CLAIMED], "state: history says running, the document says queued"),
        ([SUBMITTED, CLAIMED], "last life: history says 1, the document says 0"),
    ],
)
def test_an_event_that_its_machine_refuses_is_said_plainly(events: Sequence[Event], says: str) -> None:
    story = tell_run(with_runs("a").runs["a"], events)
    assert story.agrees is False
    assert says in "\n".join(story.disagreements)


def test_budgets_that_do_not_match_what_was_spent_are_named() -> None:
    found = replace(with_runs("a").runs["a"], failures=2)
    (told,) = tell_run(found, [SUBMITTED]).disagreements
    assert told == "failed lives: history says 0, the document says 2"


def test_a_step_that_says_otherwise_is_named() -> None:
    found = replace(with_runs("a").runs["a"], steps=(Step("main", ("true",), StepState.SUCCEEDED),))
    assert tell_run(found, [SUBMITTED]).disagreements == (
        "step main: history says pending, the document says succeeded",
    )


def test_an_id_that_was_used_before_has_the_story_of_its_last_run() -> None:
    gone = [SUBMITTED, CLAIMED, event("step_started", "pending", "running", step="main")]
    again = replace(SUBMITTED, revision=9)
    story = tell_run(with_runs("a").runs["a"], [*gone, again])
    assert (story.agrees, [told.what for told in story.told]) == (True, ["Submitted."])


def test_a_worker_event_that_cannot_be_is_said_plainly() -> None:
    made = replace(event("park_create", None, "creating"), subject="slot:1")
    wrong = replace(event("reuse", "creating", "ready", reason=Reason.REUSED), subject="slot:1")
    story = tell_slot(None, 1, [made, wrong])
    assert story.agrees is False
    assert "which is refused: that cannot happen in this state (illegal_transition)" in story.disagreements[0]
    assert story.disagreements[-1] == "worker: history says ready, the document says none"
