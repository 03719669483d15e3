"""The story of a slot tells what operators did there, and agrees with a worker that was resumed, kept or adopted."""

from __future__ import annotations

import pytest

from controller.engine.story import tell_slot
from controller.model.reason import Reason
from controller.model.records import Event, Worker, WorkerState

MADE = (("park_create", None, "creating"), ("create_done", "creating", "ready"), ("claim", "ready", "assigned"))
BACK = (("resume", "lost", "creating"), ("create_done", "creating", "assigned"))


def told(*steps: tuple[str, str | None, str | None], reason: Reason | None = None, detail: str = "") -> list[Event]:
    return [
        Event(n, 1, n, "reconcile", "slot:1", name, came, to, reason=reason, detail=detail or None)
        for n, (name, came, to) in enumerate(steps, 1)
    ]


def worker(state: WorkerState) -> Worker:
    return Worker(1, "a-1", 1, "fake", 0, 0, state)


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ((*MADE, ("seen_gone", "assigned", "lost"), *BACK), WorkerState.ASSIGNED),
        (
            (*MADE, ("deallocate", "assigned", "deallocated"), ("resume", "deallocated", "creating")),
            WorkerState.CREATING,
        ),
        ((*MADE, ("seen_gone", "assigned", "lost"), BACK[0], ("create_settled", "creating", "lost")), WorkerState.LOST),
        ((*MADE, ("seen_gone", "assigned", "lost"), ("release", "lost", "lost")), WorkerState.LOST),
        ((("adopt", None, "ready"),), WorkerState.READY),
        ((("condemn", None, "lost"), ("deallocate", "lost", "deallocated")), WorkerState.DEALLOCATED),
    ],
)
def test_a_worker_that_was_resumed_kept_or_adopted_has_a_history_that_agrees(
    steps: tuple[tuple[str, str | None, str | None], ...], state: WorkerState
) -> None:
    story = tell_slot(worker(state), 1, told(*steps, reason=Reason.RESUMED))
    assert story.disagreements == ()
    assert (story.state, story.agrees) == (state, True)


def test_a_resume_that_led_where_no_worker_goes_is_said_plainly() -> None:
    wrong = told(*MADE, ("seen_gone", "assigned", "lost"), BACK[0], ("create_done", "creating", "deallocated"))
    assert tell_slot(worker(WorkerState.DEALLOCATED), 1, wrong).disagreements != ()


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ("adopt", "A worker that no record knew was adopted (by one: found it)."),
        ("condemn", "A worker that no record knew is to be removed (by one: found it)."),
        ("cordoned", "The slot was cordoned (by one: found it)."),
        ("slot_draining", "The slot is drained (by one: found it)."),
        ("uncordoned", "The slot was taken into service again (by one: found it)."),
        ("provider_gone", "Somebody said that the provider's process is gone (by one: found it)."),
        ("abandoned", "Its action was abandoned (by one: found it)."),
    ],
)
def test_what_an_operator_did_is_told_with_who_and_why(event: str, says: str) -> None:
    to = {"adopt": "ready", "condemn": "lost"}.get(event)
    assert tell_slot(None, 1, told((event, None, to), detail="by one: found it")).told[-1].what == says


@pytest.mark.parametrize(
    "event",
    [
        "seen_absent",
        "seen_idle",
        "seen_dark",
        "unrecorded_seen",
        "disowned_proven",
        "disowned_unseen",
        "action.disowned",
    ],
)
def test_what_looks_showed_is_told(event: str) -> None:
    assert tell_slot(None, 1, told((event, None, None))).told != ()
