"""An explanation reads as a person would say it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.engine.explain import Surroundings, explain_run, explain_slot
from controller.engine.planner import Ground
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import ActionType, Document, RunState
from controller.provider.fake import Say
from controller.provider.protocol import Unknown
from tests.engine.fleet import Fleet
from tests.engine.scenes import NOW, planned, with_runs

ONE_SLOT = Ground(Policy(slots=1), "fake")


def around(*, slots: int = 1, now: int = NOW) -> Surroundings:
    return Surroundings(events=(), refusals=(), notes={}, slots=slots, queues=("fleet",), now=now)


def of_slot(document: Document) -> str:
    return " ".join(explain_slot(document, 1, around()).because)


def of_run(document: Document, run_id: str, slots: int = 1) -> str:
    return " ".join(explain_run(document, run_id, around(slots=slots)).because)


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
