"""What frees a run that slots still name: the refusal names a command, and that command is not refused itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from controller.engine.leases import discard
from controller.engine.planner import Ground, plan
from controller.engine.queue import cancel, submit, withdraw
from controller.engine.recovery import surrender
from controller.engine.release import release
from controller.engine.submission import Submission
from controller.model.errors import Conflict
from controller.model.inventory import Seen
from controller.model.policy import Policy, Release
from controller.model.reason import Reason
from controller.model.records import ActionType, RunState, Step, WorkerRef, WorkerState
from tests.engine import operating as kit
from tests.engine.operating import Place, look, run, seen, stone, worker

AUTO = Policy(slots=3, retain_failed=True)
PROOF = Policy(slots=3, release=Release.PROOF)


def replaced(at: Place) -> None:
    submit(at.context, [Submission((Step("main", ("other",)),), id="a", replace=True)])


VERBS: dict[str, Callable[[Place], Any]] = {
    "discard": lambda at: discard(at.context, "a"),
    "submit --replace": replaced,
    "withdraw": lambda at: withdraw(at.context, "a"),
}


def way_out(at: Place, verb: str) -> str:
    before = at.document
    with pytest.raises(Conflict, match="named by slot 1") as refusal:
        VERBS[verb](at)
    assert at.document is before
    return refusal.value.next


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", [WorkerState.ASSIGNED, WorkerState.DEALLOCATED, WorkerState.LOST])
def test_a_failed_run_whose_worker_is_kept_is_free_once_that_was_released(verb: str, state: WorkerState) -> None:
    at = Place(kit.document(worker(state=state), runs=(run(),)), AUTO)
    assert way_out(at, verb) == "controller release a --slot 1 --reason WHY --confirm-release"
    release(at.context, "a", None, slot=1, reason="seen enough")
    assert at.document.workers[1].run is None
    if verb != "withdraw":
        VERBS[verb](at)


@pytest.mark.parametrize("verb", ["discard", "submit --replace"])
def test_where_a_proof_is_asked_for_that_is_named_and_what_to_do_without_one(verb: str) -> None:
    lost = worker(state=WorkerState.LOST, absent=kit.BEFORE)
    at = Place(kit.document(lost, runs=(run(),)), PROOF)
    assert way_out(at, verb) == (
        "controller release a --slot 1 --template; "
        "if no proof can be made any more: controller surrender a --slot 1 --reason WHY --confirm-surrender"
    )
    surrender(at.context, "a", look(), slot=1, reason="its disk is gone")
    VERBS[verb](at)


def test_a_run_that_ended_well_is_replaced_once_its_worker_was_released() -> None:
    at = Place(kit.document(worker(state=WorkerState.ASSIGNED), finished={"a": stone()}), AUTO)
    assert way_out(at, "submit --replace") == "controller release a --slot 1 --reason WHY --confirm-release"
    release(at.context, "a", None, slot=1)
    replaced(at)
    assert at.document.runs["a"].state is RunState.QUEUED


@pytest.mark.parametrize("verb", VERBS)
def test_a_run_that_is_not_over_is_cancelled_first(verb: str) -> None:
    held = run(RunState.RUNNING, worker=WorkerRef(1, "a-1", 1), started_at=kit.NOW)
    at = Place(kit.document(worker(state=WorkerState.ASSIGNED), runs=(held,)), AUTO)
    assert way_out(at, verb) == "controller cancel a"
    cancel(at.context, "a")
    assert at.document.runs["a"].cancel_requested_at is not None


@pytest.mark.parametrize("verb", VERBS)
def test_what_only_a_pending_or_a_disowned_action_names_waits_for_a_look(verb: str) -> None:
    pending = kit.pending(run="a")
    documents = (
        kit.document(
            worker(state=WorkerState.CREATING, run=None, reserved="a"), runs=(run(),), pending_actions={1: pending}
        ),
        kit.document(runs=(run(),), disowned=kit.disowned(run="a")),
    )
    for document in documents:
        said = way_out(Place(document, AUTO), verb)
        assert said == "controller reconcile --apply; `controller explain slot:1` says what it waits for"


def test_a_stopped_worker_of_an_older_document_is_kept_until_it_is_released() -> None:
    """An earlier version left the run on a worker that was switched off, and removed the worker all the same."""
    old = worker(reason=Reason.SEEN_DARK)
    at = Place(kit.document(old, runs=(run(RunState.QUEUED, available_at=kit.NOW + 10**8),)), Policy(slots=1))
    shown, ground = look(seen(old, Seen.DARK)), Ground(Policy(slots=1), "test")
    assert plan(at.document, shown, ground, kit.NOW + 1).parks == ()
    release(at.context, "a", None, reason="from before")
    assert at.document.runs["a"].state is RunState.QUEUED
    made = plan(at.document, replace(shown, revision=2_000), ground, kit.NOW + 1)
    assert [(each.slot, each.type) for each in made.parks] == [(1, ActionType.DELETE_COMPUTE)]
