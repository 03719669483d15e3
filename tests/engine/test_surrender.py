"""Surrender: what it refuses, what it leaves behind, and that twice, at once or killed is still once."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.engine.looks import observe
from controller.engine.recovery import Surrendered, surrender
from controller.model.edit import Draft
from controller.model.errors import Conflict
from controller.model.inventory import Inventory, Look, Seen, SeenWorker
from controller.model.policy import Policy, Release
from controller.model.reason import Reason
from controller.model.records import (
    ActionType,
    Resource,
    RunState,
    Span,
    WorkerRef,
    WorkerState,
)
from tests.engine import operating as kit
from tests.engine.operating import POINTS, Died, Place, at_once, look, run, seen, stone, worker

PROOF = Policy(slots=3, release=Release.PROOF)
STOPPED = worker()
OTHER = {"disk": Resource("d-1", "another"), "vm": kit.DATA["vm"]}


def surrendered(at: Place, shown: Look | None, **how: Any) -> Surrendered:
    return surrender(at.context, "a", shown, **{"reason": "disk broken", "by": "ops", **how})


def lost(state: WorkerState = WorkerState.LOST, **fields: Any) -> Place:
    """Its run has succeeded and its proof was never made; then it was lost: looks before the next did not show it."""
    known = {"absent": kit.BEFORE, **fields}
    return Place(kit.document(worker(state=state, **known), finished={"a": stone()}), PROOF)


def test_a_surrender_lets_go_of_the_worker_and_names_all_that_was_lost() -> None:
    at = lost()
    answer = surrendered(at, look())
    assert answer == Surrendered(1, "a", ("worker w-1", "disk d-1 (x-1)", "vm i-1 (y-1)"), ended=False)
    left = at.document.workers[1]
    assert (left.state, left.run, left.reason) == (WorkerState.LOST, None, Reason.SURRENDERED)
    (event,) = at.events("slot:1")
    assert (event.event, event.reason) == ("release", Reason.SURRENDERED)
    assert event.detail == "by ops: disk broken; lost: worker w-1, disk d-1 (x-1), vm i-1 (y-1)"


def test_what_is_left_of_a_stopped_worker_is_given_up_when_part_of_it_is_gone() -> None:
    at = lost(WorkerState.DEALLOCATED)
    surrendered(at, look(seen(STOPPED, resources={"vm": kit.DATA["vm"]})))
    assert (at.document.workers[1].state, at.document.workers[1].run) == (WorkerState.DEALLOCATED, None)


def test_a_proof_of_another_disk_cannot_be_made_so_it_is_given_up() -> None:
    at = lost(WorkerState.DEALLOCATED)
    assert surrendered(at, look(seen(STOPPED, resources=OTHER))).lost == (
        "worker w-1",
        "disk d-1 (x-1)",
        "vm i-1 (y-1)",
    )


SILENT = {
    "an ordinary release needs no proof": (
        Place(kit.document(STOPPED, runs=(run(),))).document,
        Policy(slots=3, retain_failed=True),
        look(),
        "needs no surrender",
    ),
    "all that was recorded is shown": (lost().document, PROOF, look(seen(STOPPED)), "can still be proven"),
    "its compute is on": (lost().document, PROOF, look(seen(STOPPED, Seen.READY)), "its compute is live"),
    "its compute is being made": (lost().document, PROOF, look(seen(STOPPED, Seen.CREATING)), "its compute is live"),
    "compute of a later generation is on": (
        lost().document,
        PROOF,
        look(seen(STOPPED, Seen.READY, generation=2)),
        "compute of another generation is live",
    ),
    "one look alone does not show it": (
        lost(WorkerState.ASSIGNED).document,
        PROOF,
        look(),
        "its worker is assigned as far as the document knows",
    ),
    "one look alone does not show a stopped one": (
        lost(WorkerState.DEALLOCATED, absent=None).document,
        PROOF,
        look(),
        "two that are apart must agree",
    ),
    "one look alone does not show what was shown gone with its disk": (
        lost(absent=None).document,
        PROOF,
        look(),
        "two that are apart must agree",
    ),
    "the look before was the same one": (
        lost(absent=Span(kit.NOW - 2, kit.NOW - 1)).document,
        PROOF,
        look(),
        "two that are apart must agree",
    ),
    "no look has been folded yet": (
        lost(WorkerState.ASSIGNED).document,
        PROOF,
        look(seen(STOPPED, resources={})),
        "its worker is assigned as far as the document knows",
    ),
    "the provider did not answer": (lost().document, PROOF, None, "did not say what there is"),
    "the listing is incomplete": (lost().document, PROOF, look(complete=False), "listing is incomplete"),
    "an action is pending": (
        replace(lost().document, pending_actions={1: kit.pending(ActionType.DEALLOCATE)}),
        PROOF,
        look(),
        "its deallocate is pending",
    ),
    "a disowned action may have made anything": (
        replace(lost().document, disowned=kit.disowned(generation=2)),
        PROOF,
        look(),
        "was disowned",
    ),
    "its run is running": (
        kit.document(worker(state=WorkerState.ASSIGNED), runs=(run(RunState.RUNNING, worker=WorkerRef(1, "a-1", 1)),)),
        PROOF,
        look(),
        "it is running",
    ),
}


@pytest.mark.parametrize("case", SILENT)
def test_a_surrender_is_refused_while(case: str) -> None:
    start, policy, shown, words = SILENT[case]
    at = Place(start, policy)
    with pytest.raises(Conflict, match=words) as refusal:
        surrendered(at, shown)
    assert at.document is start
    assert refusal.value.where
    assert refusal.value.next


def test_a_surrender_in_a_dry_run_changes_nothing() -> None:
    at = lost()
    before = at.document
    assert surrendered(at, look(), dry_run=True).lost
    assert at.document is before


def test_a_second_surrender_is_refused() -> None:
    at = lost()
    surrendered(at, look())
    after = at.document
    with pytest.raises(Conflict, match="no worker is assigned to run a"):
        surrendered(at, look())
    assert at.document is after


def test_two_surrenders_at_once_are_one() -> None:
    at = lost()
    won, late = at_once(at, lambda: surrendered(at, look()))
    assert isinstance(won, Surrendered)
    assert isinstance(late, Conflict)
    assert [event.event for event in at.events("slot:1")] == ["release"]


@pytest.mark.parametrize("point", POINTS)
def test_a_surrender_that_was_killed_is_done_once_when_it_is_typed_again(point: str) -> None:
    at = lost()
    at.dies_at(point)
    with pytest.raises(Died):
        surrendered(at, look())
    if point == "written":
        with pytest.raises(Conflict, match="no worker is assigned"):
            surrendered(at, look())
    else:
        surrendered(at, look())
    assert at.document.workers[1].run is None
    assert [event.event for event in at.events("slot:1")] == ["release"]


def holding(policy: Policy = PROOF, **fields: Any) -> Place:
    held = run(RunState.RUNNING, worker=WorkerRef(1, "a-1", 1), started_at=kit.NOW, **fields)
    return Place(kit.document(worker(state=WorkerState.ASSIGNED), runs=(held,)), policy)


@pytest.mark.parametrize("policy", [PROOF, Policy(slots=3)], ids=["proof", "auto"])
def test_with_its_provider_gone_for_good_a_running_run_spends_a_crash_and_goes_on_elsewhere(policy: Policy) -> None:
    at = holding(policy, max_crashes=2)
    answer = surrendered(at, None, unresolved=True)
    after, left = at.document.runs["a"], at.document.workers[1]
    assert answer.ended
    assert (after.state, after.crashes, after.worker) == (RunState.QUEUED, 1, None)
    assert after.last_error == (
        "worker in slot 1 was surrendered by ops: disk broken; lost: worker w-1, disk d-1 (x-1), vm i-1 (y-1)"
    )
    assert (left.state, left.run, left.running, left.reason) == (WorkerState.LOST, None, None, Reason.SURRENDERED)


def test_a_run_that_spent_its_last_crash_so_is_dead() -> None:
    at = holding(max_crashes=1)
    surrendered(at, None, unresolved=True)
    assert (at.document.runs["a"].state, at.document.runs["a"].reason) == (RunState.FAILED, Reason.CRASHES_EXHAUSTED)


def test_unresolved_is_refused_when_the_provider_answers_after_all() -> None:
    at = holding()
    with pytest.raises(Conflict, match="the provider answers") as refusal:
        surrendered(at, look(seen(STOPPED, Seen.READY)), unresolved=True)
    assert "without --unresolved" in refusal.value.next
    assert at.document.runs["a"].state is RunState.RUNNING


ON = [seen(STOPPED, Seen.READY), seen(STOPPED, Seen.CREATING), seen(STOPPED, Seen.READY, generation=2)]


@pytest.mark.parametrize("on", ON, ids=["on", "being made", "another generation"])
@pytest.mark.parametrize("how", [{"complete": False}, {"unreadable": (1,)}], ids=["incomplete", "unreadable"])
def test_unresolved_is_refused_when_any_look_at_all_shows_its_compute_on(how: dict[str, Any], on: SeenWorker) -> None:
    at = holding(max_crashes=2)
    with pytest.raises(Conflict, match="the provider answers") as refusal:
        surrendered(at, look(on, **how), unresolved=True)
    assert refusal.value.where == f"slot 1: a-1 generation {on.generation} (w-1) is {on.state}"
    assert at.document.runs["a"].state is RunState.RUNNING


def fold(at: Place, shown: Look) -> None:
    """What a reconcile makes of that look."""

    def with_look(draft: Draft) -> None:
        observe(draft, shown, PROOF)

    at.change(with_look)


@pytest.mark.parametrize("state", [WorkerState.ASSIGNED, WorkerState.DEALLOCATED, WorkerState.LOST])
def test_what_two_looks_apart_do_not_show_can_be_surrendered_and_the_refusal_says_how_to_get_there(
    state: WorkerState,
) -> None:
    at = lost(state, absent=None)
    with pytest.raises(Conflict) as refusal:
        surrendered(at, look())
    assert refusal.value.next.startswith("controller reconcile --apply")
    later = [Look(1_000, at_ms, at_ms, Inventory(True, ())) for at_ms in (kit.NOW + 3_600_000, kit.NOW + 7_200_000)]
    for each in later:
        fold(at, each)
    surrendered(at, replace(later[-1], revision=2_000))
    assert at.document.workers[1].run is None


def test_a_stopped_worker_that_is_seen_again_is_not_surrendered_by_the_looks_before() -> None:
    at = lost(WorkerState.DEALLOCATED, absent=None)
    later = [Look(1_000, kit.NOW + n * 3_600_000, kit.NOW + n * 3_600_000, Inventory(True, ())) for n in (1, 2, 3)]
    fold(at, later[0])
    assert at.document.workers[1].absent is not None
    again = replace(later[1], inventory=Inventory(True, (seen(STOPPED),)))
    fold(at, again)
    with pytest.raises(Conflict, match="two that are apart must agree"):
        surrendered(at, later[2])


@pytest.mark.parametrize("shown", [look(complete=False), look(unreadable=(1,))], ids=["incomplete", "unreadable"])
def test_an_answer_that_says_nothing_of_the_slot_is_none(shown: Look) -> None:
    at = lost()
    surrendered(at, shown, unresolved=True)
    assert at.document.workers[1].run is None


def test_unresolved_waits_for_no_disowned_action_but_for_a_pending_one() -> None:
    at = Place(replace(lost().document, disowned=kit.disowned(generation=2)), PROOF)
    surrendered(at, None, unresolved=True)
    assert at.document.workers[1].run is None
    at = Place(replace(lost().document, pending_actions={1: kit.pending(ActionType.DEALLOCATE)}), PROOF)
    with pytest.raises(Conflict, match="is pending"):
        surrendered(at, None, unresolved=True)


def test_where_no_proof_is_asked_for_unresolved_is_no_way_round_a_release() -> None:
    at = Place(kit.document(STOPPED, runs=(run(),)))
    with pytest.raises(Conflict, match="needs no surrender") as refusal:
        surrendered(at, None, unresolved=True)
    assert refusal.value.next == "controller release a --reason WHY --confirm-release"
