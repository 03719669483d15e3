"""Cordon, uncordon and drain of one slot: what they record, what a reconcile makes of it, and that twice is once."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.engine.cordon import cordon
from controller.engine.submission import slots_naming
from controller.model.errors import NotFound
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import MAX_SLOTS, ActionType, Proven, RunState, Slot, WorkerState
from tests.engine import operating as kit
from tests.engine.fleet import Fleet
from tests.engine.operating import POINTS, Died, Place, run, worker


def cordoned(at: Place, slot: int = 1, **how: Any) -> bool:
    return cordon(at.context, slot, **{"reason": "bad memory", "by": "ops", **how})


def test_a_cordon_is_recorded_with_who_and_why() -> None:
    at = Place(kit.document())
    assert cordoned(at)
    assert at.document.slots[1] == Slot(cordoned=True)
    (event,) = at.events("slot:1")
    assert (event.event, event.reason, event.detail) == ("cordoned", Reason.CORDONED, "by ops: bad memory")


def test_a_drain_is_a_cordon_that_also_gives_up_the_worker() -> None:
    at = Place(kit.document())
    assert cordoned(at, drain=True)
    assert at.document.slots[1] == Slot(cordoned=True, draining=True)
    assert [(event.event, event.reason) for event in at.events("slot:1")] == [("slot_draining", Reason.DRAINING)]


def test_what_is_so_already_is_left_alone() -> None:
    at = Place(kit.document())
    assert not cordoned(at, on=False)
    cordoned(at, drain=True)
    after = at.document
    assert not cordoned(at)
    assert not cordoned(at, drain=True)
    assert at.document is after, "a drained slot is cordoned: a cordon changes nothing in it"


def test_a_cordoned_slot_can_be_drained_and_both_are_lifted_at_once() -> None:
    at = Place(kit.document())
    assert [cordoned(at), cordoned(at, drain=True), cordoned(at, on=False)] == [True, True, True]
    assert at.document.slots[1] == Slot()
    assert [event.event for event in at.events("slot:1")] == ["cordoned", "slot_draining", "uncordoned"]


def test_lifting_also_forgets_that_the_provider_refused_to_bind_the_worker() -> None:
    refused = worker(reason=Reason.IDENTITY_REFUSED)
    at = Place(kit.document(refused, runs=(run(),), slots={1: Slot(cordoned=True)}))
    assert cordoned(at, on=False)
    assert at.document.workers[1].reason is None


@pytest.mark.parametrize("slot", [0, -1, MAX_SLOTS + 1])
def test_what_no_slot_can_be_is_not_found(slot: int) -> None:
    with pytest.raises(NotFound, match=f"there is no slot {slot}"):
        cordoned(Place(kit.document()), slot)


def test_a_slot_that_is_neither_configured_nor_on_record_is_not_found() -> None:
    at = Place(kit.document(worker(9), runs=(run(),), pending_actions={8: kit.pending(slot=8)}))
    with pytest.raises(NotFound, match="there is no slot 4: 3 are configured"):
        cordoned(at, 4)
    assert cordoned(at, 9)
    assert cordoned(at, 8)


def test_while_the_settings_cannot_be_read_any_slot_can_be_closed() -> None:
    at = Place(kit.document())
    assert cordon(replace(at.context, policy=None), 77)
    assert at.document.slots[77].cordoned


def test_a_pending_action_is_no_obstacle() -> None:
    at = Place(kit.document(pending_actions={1: kit.pending()}))
    assert cordoned(at)
    assert at.document.slots[1].cordoned
    assert list(at.document.pending_actions) == [1]


def test_a_dry_run_changes_nothing() -> None:
    at = Place(kit.document())
    before = at.document
    assert cordoned(at, dry_run=True)
    assert at.document is before


@pytest.mark.parametrize("point", POINTS)
def test_a_cordon_that_was_killed_is_there_once_it_is_typed_again(point: str) -> None:
    at = Place(kit.document())
    at.dies_at(point)
    with pytest.raises(Died):
        cordoned(at)
    assert cordoned(at) == (point != "written")
    assert [event.event for event in at.events("slot:1")] == ["cordoned"]


def set_slot(fleet: Fleet, slot: int, **how: Any) -> None:
    cordon(replace(fleet.context, policy=fleet.policy), slot, **how)


def test_a_cordoned_slot_gets_no_worker(fleet: Fleet) -> None:
    set_slot(fleet, 1)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    assert list(fleet.document.workers) == [2]


def test_the_worker_of_a_cordoned_slot_stays_and_takes_no_run(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.reconciler().reconcile()
    set_slot(fleet, 1)
    fleet.submit("b")
    fleet.reconciler().reconcile()
    assert {slot: known.state for slot, known in fleet.document.workers.items()} == {1: "ready", 2: "ready"}
    done = fleet.document.finished["b"].worker
    assert done is not None
    assert done.slot == 2


def test_a_drained_slot_ends_its_run_and_is_empty_then(fleet: Fleet) -> None:
    fleet.provider._ends = None
    fleet.submit("a")
    fleet.reconciler().reconcile()
    set_slot(fleet, 1, drain=True)
    fleet.reconciler().reconcile()
    assert fleet.document.runs["a"].state is RunState.RUNNING, "a drain ends no run"
    (key,) = fleet.document.workers[1].accepted
    fleet.provider.end_step(key, exit_code=0)
    fleet.reconciler().reconcile()
    assert fleet.document.workers == {}
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED


def test_uncordoned_it_takes_work_again(fleet: Fleet) -> None:
    fleet.policy = Policy(slots=1)
    set_slot(fleet, 1, drain=True)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    assert fleet.document.workers == {}
    set_slot(fleet, 1, on=False)
    fleet.reconciler().reconcile()
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED


# What a withdraw names


def test_every_slot_that_still_speaks_of_a_run_is_named() -> None:
    at = Place(
        kit.document(
            worker(5, WorkerState.CREATING, run=None, reserved="a", resources={}),
            worker(2, resources={}),
            worker(1, run=None),
            runs=(run(RunState.QUEUED),),
            pending_actions={
                4: kit.pending(ActionType.CANCEL, 4, run="a", step="main", attempt=1, token=1),
                3: kit.pending(slot=3, run="b"),
            },
            disowned={
                **kit.disowned(slot=7, run="a"),
                **kit.disowned(slot=8, run="a", proven=Proven.ABSENT),
                **kit.disowned(slot=9, run="b"),
            },
        )
    )
    assert slots_naming(at.context.draft(at.document), "a") == (2, 4, 5, 7)
