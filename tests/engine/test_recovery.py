"""Resume and surrender: what they refuse, what they leave behind, and that twice, at once or killed is still once."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.engine.recovery import Resumed, resume
from controller.model.action import action_of
from controller.model.errors import Conflict, NotFound
from controller.model.inventory import Look, Seen
from controller.model.policy import Policy, Release
from controller.model.reason import Reason
from controller.model.records import (
    ActionType,
    Document,
    Provider,
    Resource,
    RunState,
    Slot,
    Unrecorded,
    WorkerRef,
    WorkerState,
)
from controller.provider.fake import FakeProvider, Say
from controller.provider.protocol import Rejected
from tests.engine import operating as kit
from tests.engine.fleet import LINEAGE, Fleet
from tests.engine.operating import POINTS, Died, Place, at_once, look, run, seen, stone, worker

PROOF = Policy(slots=3, release=Release.PROOF)
STOPPED = worker()


def place(**sections: Any) -> Place:
    """Slot 1 has the stopped worker of run "a", which failed."""
    return Place(kit.document(STOPPED, **{"runs": (run(),), **sections}))


def resumed(at: Place, shown: Look | None = None, **how: Any) -> Resumed:
    how = {"reason": "new host", "by": "ops", **how}
    return resume(at.context, "a", look(seen(STOPPED)) if shown is None else shown, **how)


def test_a_resume_keeps_the_assignment_raises_the_generation_and_queues_the_failed_run() -> None:
    at = place()
    answer = resumed(at)
    made, entry = at.document.workers[1], at.document.pending_actions[1]
    assert (answer.slot, answer.generation, answer.retried, answer.parked) == (1, 2, True, entry)
    assert (made.state, made.assignment, made.generation, made.run) == (WorkerState.CREATING, "a-1", 2, "a")
    parked = action_of(entry)
    assert (parked.type, parked.generation, parked.run, parked.idempotency_key) == ("create", 2, "a", answer.key)
    assert parked.resources == kit.DATA
    assert at.document.runs["a"].state is RunState.QUEUED


def test_who_resumed_and_why_is_told_of_slot_and_run() -> None:
    at = place()
    resumed(at)
    assert [(e.event, e.reason, e.detail) for e in at.events("slot:1")] == [("resume", "resumed", "by ops: new host")]
    assert [(e.event, e.detail) for e in at.events("run:a")] == [("operator_retry", "by ops: new host")]


def test_a_run_that_waits_in_its_queue_is_left_there() -> None:
    at = place(runs=(run(RunState.QUEUED),))
    assert not resumed(at).retried
    assert at.events("run:a") == []


def test_a_run_that_succeeded_stays_ended_where_a_proof_is_asked_for() -> None:
    at = Place(kit.document(STOPPED, finished={"a": stone()}), PROOF)
    assert not resumed(at).retried
    assert at.document.workers[1].state is WorkerState.CREATING
    assert at.document.finished["a"].state is RunState.SUCCEEDED


def test_what_the_provider_remembers_of_keys_goes_with_the_park() -> None:
    answer = resumed(place(), key_ttl_ms=60_000)
    assert answer.parked is not None
    assert answer.parked.key_ttl_ms == 60_000


def test_a_lost_worker_is_resumed_once_a_look_shows_it_gone_with_its_disk() -> None:
    gone = worker(state=WorkerState.LOST)
    at = Place(kit.document(gone, runs=(run(),)))
    resumed(at, look(seen(gone, Seen.GONE, resources={"disk": kit.DATA["disk"]})))
    assert at.document.workers[1].generation == 2


OTHER = {"disk": Resource("d-1", "another"), "vm": kit.DATA["vm"]}
LOOKS = {
    "its compute is on": (look(seen(STOPPED, Seen.READY)), "the old compute is on"),
    "its compute is being made": (look(seen(STOPPED, Seen.CREATING)), "the old compute is being made"),
    "it is listed off and on": (look(seen(STOPPED), seen(STOPPED, Seen.READY)), "the old compute is on"),
    "it is not shown": (look(), "does not show the old worker at all"),
    "its disk is another": (look(seen(STOPPED, resources=OTHER)), "not what was recorded"),
    "it is gone, and its disk is another": (look(seen(STOPPED, Seen.GONE, resources=OTHER)), "not what was recorded"),
    "it is another": (look(seen(STOPPED, id="w-9")), "not what was recorded"),
    "none of its data is shown": (look(seen(STOPPED, resources={})), "shows none of the recorded resources"),
    "the listing is incomplete": (look(seen(STOPPED), complete=False), "listing is incomplete"),
    "its slot cannot be read": (look(seen(STOPPED), unreadable=(1,)), "cannot read slot 1"),
    "something else is in its slot": (
        look(seen(STOPPED), replace(seen(STOPPED, Seen.READY), assignment="x-1", id="x", resources={})),
        "has to be looked into first",
    ),
    "a later generation is shown": (
        look(seen(STOPPED), seen(STOPPED, Seen.READY, generation=2)),
        "has to be looked into first",
    ),
}


@pytest.mark.parametrize("case", LOOKS)
def test_no_compute_is_made_beside_what_may_live_or_for_data_that_may_be_another_s(case: str) -> None:
    at, (shown, words) = place(), LOOKS[case]
    before = at.document
    with pytest.raises(Conflict, match=words) as refusal:
        resumed(at, shown)
    assert at.document is before
    assert refusal.value.where
    assert refusal.value.next


def test_a_look_from_before_the_slot_changed_says_nothing_of_it() -> None:
    at = place(slots={1: Slot(changed=5)})
    with pytest.raises(Conflict, match="changed after the provider was asked"):
        resumed(at, look(seen(STOPPED), revision=4))
    assert at.document.pending_actions == {}


HELD = WorkerRef(2, "a-2", 1)
OTHER_WORKER = worker(2, WorkerState.ASSIGNED, resources={})
RECORDS: dict[str, tuple[Document, str]] = {
    "an action is pending": (
        kit.document(STOPPED, runs=(run(),), pending_actions={1: kit.pending(ActionType.DEALLOCATE)}),
        "its deallocate is pending",
    ),
    "a disowned action may have done anything": (
        kit.document(STOPPED, runs=(run(),), disowned=kit.disowned()),
        "an action of it was disowned",
    ),
    "a proof released it": (kit.document(worker(proof="f" * 64), runs=(run(),)), "released by a proof"),
    "another worker has the run": (
        kit.document(STOPPED, OTHER_WORKER, runs=(run(RunState.RUNNING, worker=HELD),)),
        "it is running",
    ),
    "another worker waits for the run": (
        kit.document(STOPPED, worker(2, WorkerState.ASSIGNED, resources={}), runs=(run(RunState.QUEUED),)),
        "another worker has it, or is made for it",
    ),
    "another worker is made for the run": (
        kit.document(
            STOPPED,
            worker(2, WorkerState.CREATING, run=None, reserved="a", resources={}),
            runs=(run(RunState.QUEUED),),
            pending_actions={2: kit.pending(slot=2, run="a")},
        ),
        "another worker has it, or is made for it",
    ),
    "a disowned create elsewhere was for the run": (
        kit.document(STOPPED, runs=(run(RunState.QUEUED),), disowned=kit.disowned(slot=2, run="a")),
        "another worker has it, or is made for it",
    ),
    "its worker is there": (kit.document(worker(state=WorkerState.ASSIGNED), runs=(run(),)), "its worker is assigned"),
    "the slot is cordoned": (kit.document(STOPPED, runs=(run(),), slots={1: Slot(cordoned=True)}), "it is cordoned"),
    "something unrecorded was seen in the slot": (
        kit.document(
            STOPPED, runs=(run(),), slots={1: Slot(unrecorded=(Unrecorded("x-1", 1, "x", "ready", kit.NOW),))}
        ),
        "something is there that no record knows",
    ),
    "the slot is draining": (
        kit.document(STOPPED, runs=(run(),), slots={1: Slot(cordoned=True, draining=True)}),
        "it is draining",
    ),
    "the fleet is draining": (replace(kit.document(STOPPED, runs=(run(),)), draining=True), "the fleet is draining"),
    "the breaker is open": (
        kit.document(
            STOPPED, runs=(run(),), providers={"test": Provider(failures=5, opened_at=kit.NOW, why="no disk")}
        ),
        "which fails: no disk",
    ),
    "nothing serves its queue": (kit.document(STOPPED, runs=(run(queue="other"),)), "does not serve its queue"),
    "it has left the document": (kit.document(STOPPED, finished={"a": stone()}), "nothing to go on with"),
}


@pytest.mark.parametrize("case", RECORDS)
def test_a_resume_is_refused_while(case: str) -> None:
    start, words = RECORDS[case]
    at = Place(start)
    with pytest.raises(Conflict, match=words) as refusal:
        resumed(at, slot=1)
    assert at.document is start
    assert refusal.value.where
    assert refusal.value.next


def test_a_slot_beyond_the_configured_ones_takes_nothing_new() -> None:
    at = Place(kit.document(worker(9), runs=(run(),)))
    with pytest.raises(Conflict, match="only 3 are configured"):
        resume(at.context, "a", look(seen(worker(9))))
    assert at.document.pending_actions == {}


def test_a_half_open_breaker_lets_a_resume_try_the_provider() -> None:
    at = place(providers={"test": Provider(failures=5, opened_at=kit.NOW, why="no disk")})
    at.clock.advance(31)
    assert resumed(at).key


def test_which_of_two_workers_has_to_be_said() -> None:
    two = worker(2, resources={})
    at = Place(kit.document(STOPPED, two, runs=(run(),)))
    with pytest.raises(Conflict, match="2 workers are assigned to run a") as refusal:
        resumed(at)
    assert refusal.value.where == "slot 1, slot 2"
    assert resumed(at, slot=1).slot == 1


def test_what_no_worker_has_cannot_be_resumed_and_what_nobody_knows_is_not_found() -> None:
    at = Place(kit.document(worker(run=None), runs=(run(),)))
    with pytest.raises(Conflict, match="no worker is assigned to run a"):
        resumed(at)
    with pytest.raises(Conflict, match="the worker of slot 1 is not assigned to run a"):
        resumed(at, slot=1)
    with pytest.raises(NotFound):
        resume(at.context, "b", look())


def test_a_dry_run_says_what_would_be_and_changes_nothing() -> None:
    at = place()
    before = at.document
    answer = resumed(at, dry_run=True)
    assert (answer.slot, answer.generation, answer.retried, answer.key, answer.parked) == (1, 2, True, "", None)
    assert at.document is before


def test_a_second_resume_is_refused_and_changes_nothing() -> None:
    at = place()
    resumed(at)
    after = at.document
    with pytest.raises(Conflict, match="its create is pending"):
        resumed(at)
    assert at.document is after


def test_two_resumes_at_once_are_one() -> None:
    at = place()
    won, late = at_once(at, lambda: resumed(at))
    assert isinstance(won, Resumed)
    assert isinstance(late, Conflict)
    assert at.document.workers[1].generation == 2
    assert at.document.counters.serial == 10


@pytest.mark.parametrize("point", POINTS)
def test_a_resume_that_was_killed_is_done_once_when_it_is_typed_again(point: str) -> None:
    at = place()
    at.dies_at(point)
    with pytest.raises(Died):
        resumed(at)
    committed = at.document.revision > 5
    assert committed == (point == "written")
    if not committed:
        resumed(at)
    else:
        with pytest.raises(Conflict, match="its create is pending"):
            resumed(at)
    assert at.document.workers[1].generation == 2
    assert [event.event for event in at.events("slot:1")] == ["resume"]


@pytest.fixture
def failed(tmp_path: Any) -> Fleet:
    """Run "a" failed on slot 1, whose worker is kept."""
    fleet = Fleet(tmp_path / "state", FakeProvider(LINEAGE, ends=1))
    fleet.policy = Policy(slots=3, retain_failed=True)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    return fleet


def resume_in(fleet: Fleet) -> Resumed:
    shown, _ = fleet.reconciler().look()
    assert shown is not None
    return resume(replace(fleet.context, policy=fleet.policy), "a", shown, by="ops")


def test_the_resumed_worker_itself_takes_the_run_on_the_disk_it_had(failed: Fleet) -> None:
    disk = failed.document.workers[1].resources["disk"]
    resume_in(failed)
    failed.provider.script(ActionType.CREATE, Say(Rejected("no other is wanted")), slot=2)
    failed.provider._ends = 0
    failed.reconciler().reconcile()
    done, made = failed.document.finished["a"], failed.document.workers[1]
    assert (done.state, done.worker) == (RunState.SUCCEEDED, WorkerRef(1, "a-1", 2))
    assert made.resources["disk"] == disk
    assert made.resources["vm"].id == "vm-1-a-1-2"
    assert list(failed.document.workers) == [1]


def test_a_resume_that_the_provider_rejects_leaves_worker_and_data_as_they_were(failed: Fleet) -> None:
    before = failed.document.workers[1]
    failed.provider.script(ActionType.CREATE, Say(Rejected("quota")))
    answer = resume_in(failed)
    failed.reconciler().sender.send(1, answer.key, parked=answer.parked)
    after = failed.document.workers[1]
    assert (after.state, after.generation, after.run) == (WorkerState.DEALLOCATED, 1, "a")
    assert after.resources == before.resources
    waiting = failed.document.runs["a"]
    assert (waiting.state, waiting.defer_reason) == (RunState.QUEUED, Reason.CREATE_REFUSED)
    assert failed.provider.workers[1].seen.state is Seen.DARK
