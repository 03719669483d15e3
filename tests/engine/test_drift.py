"""Recorded beside observed says what reconcile will do about each slot, and does nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.engine.drift import Drift, drift
from controller.engine.planner import Ground, plan
from controller.model.edit import apply_edit
from controller.model.inventory import Look, Seen, SeenWorker
from controller.model.policy import Policy, Release
from controller.model.reason import Reason
from controller.model.records import Document, PendingAction, Resource, WorkerState
from tests.engine.scenes import GROUND, NOW, look, planned, seen, with_runs

HOUR = 3_600_000


def made(*runs: str, **fields: Any) -> Document:
    """A worker in slot 1, with these runs queued."""
    document, _ = planned(with_runs(*(runs or ("made",))))
    worker = replace(document.workers[1], state=WorkerState.READY, id="w-1", reserved=None, changed_at=NOW, **fields)
    waiting = {name: run for name, run in document.runs.items() if name in runs}
    return replace(document, workers={1: worker}, runs=waiting, pending_actions={}, slots={})


def told(
    document: Document, taken: Look, ground: Ground = GROUND, *, now: int = NOW, slot: int = 1, plans: bool = True
) -> Drift:
    made_ = plan(document, taken, ground, now) if plans else None
    (found,) = [each for each in drift(document, taken, made_, ground.policy, now) if each.slot == slot]
    return found


def shown(document: Document, state: Seen = Seen.READY, **fields: Any) -> SeenWorker:
    return replace(seen(document, 1, state), **fields)


def test_what_is_parked_is_told_with_its_why() -> None:
    document = made("r-1", "r-2")
    taken = look(document, shown(document))
    assert told(document, taken).will == "execute: step main is next"
    assert told(document, taken, slot=2).will == "create: run r-2 waits"
    assert told(document, taken, slot=2).recorded is None


def test_a_slot_that_needs_nothing_is_told_so() -> None:
    document = made()
    found = told(document, look(document, shown(document)))
    assert (found.recorded, found.observed, found.reason, found.will) == (
        WorkerState.READY,
        Seen.READY,
        Reason.AS_RECORDED,
        "nothing",
    )


@pytest.mark.parametrize(
    ("fields", "will"),
    [
        ({"resources": {"vm": Resource("i-2")}}, "nothing: a recorded resource has another identity"),
        ({"generation": 9}, "nothing: the provider shows another worker in its place"),
    ],
)
def test_what_is_retained_is_left_alone_whatever_waits(fields: dict[str, Any], will: str) -> None:
    document = made("r-1", resources={"vm": Resource("i-1")})
    found = told(document, look(document, shown(document, **fields)))
    assert found.slot_class.value == "retained-for-investigation"
    assert found.will == will


def test_something_unrecorded_is_shown_and_left_alone() -> None:
    document = made("r-1")
    stranger = SeenWorker(2, document.lineage, "a-9", 1, "w-9", Seen.READY)
    found = told(document, look(document, shown(document), stranger), slot=2)
    assert found.unrecorded == (stranger,)
    assert found.will == "nothing: there, and no record knows it"


def test_a_pending_action_is_settled_first() -> None:
    document, _ = planned(with_runs("r-1"))
    assert told(document, look(document)).will == "settle its create first"
    (entry,) = document.pending_actions.values()
    broken = PendingAction(type(entry.action)(b"5"), NOW)
    assert (
        told(replace(document, pending_actions={1: broken}), look(document)).will == "settle its pending action first"
    )


def test_a_change_of_the_record_is_told_when_nothing_is_parked() -> None:
    document = made(run="r-9")
    worker = replace(document.workers[1], state=WorkerState.ASSIGNED)
    document = replace(document, workers={1: worker})
    ground = Ground(Policy(slots=2, release=Release.PROOF), "fake")
    found = told(document, look(document, shown(document, Seen.GONE)), ground)
    assert (found.reason, found.will) == (Reason.DATA_LEFT, "record it as lost")


def test_what_a_worker_waits_for_is_told_and_for_how_long() -> None:
    document = made()
    worker = replace(document.workers[1], state=WorkerState.DEALLOCATED, dark_at=NOW)
    document = replace(document, workers={1: worker})
    ground = Ground(Policy(slots=2, cooldown_ms=2 * HOUR), "fake")
    taken = look(document, shown(document, Seen.DARK))
    assert told(document, taken, ground).will == "nothing for 2 h: stopped, and kept for its cooldown"
    assert told(document, taken, ground, now=NOW + 2 * HOUR).will == "delete_compute: deallocated"
    kept = replace(document, workers={1: replace(worker, run="r-9")})
    assert told(kept, taken, ground).will == "nothing: waits for its release proof"


def test_without_a_plan_nothing_is_told_of_what_will_be_done() -> None:
    document = made("r-1")
    found = told(document, look(document, shown(document)), plans=False)
    assert (found.reason, found.will) == (Reason.AS_RECORDED, "not known")


def test_an_incomplete_look_retains_nothing() -> None:
    document = made("r-1")
    found = told(document, look(document, shown(document, id="w-9"), complete=False))
    assert (found.slot_class.value, found.reason, found.observed) == ("clean-warm", Reason.LOOK_SILENT, Seen.READY)
    assert found.will == "execute: step main is next"


def test_asking_changes_nothing_and_twice_says_the_same() -> None:
    document = made("r-1")
    taken = look(document, shown(document))
    planned_ = plan(document, taken, GROUND, NOW)
    first = drift(document, taken, planned_, GROUND.policy, NOW)
    assert drift(document, taken, planned_, GROUND.policy, NOW) == first
    assert apply_edit(document, planned_.edit) == apply_edit(document, plan(document, taken, GROUND, NOW).edit)
