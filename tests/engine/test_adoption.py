"""Adopt and delete what no record knows: exactly what was seen, once, and nothing that belongs to anything else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from controller.engine.adoption import Found, adopt, condemn
from controller.engine.planner import Ground, plan
from controller.model.edit import apply_edit
from controller.model.errors import Conflict, NotFound, Refusal, UsageFault
from controller.model.inventory import Look, Seen, SeenStep, StepSeen
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import (
    ActionType,
    Document,
    Proven,
    Resource,
    RunState,
    Slot,
    Unrecorded,
    WorkerRef,
    WorkerState,
)
from tests.engine import operating as kit
from tests.engine.fleet import Fleet
from tests.engine.operating import POINTS, Died, Place, look, run, seen, stone, worker
from tests.engine.scenes import with_runs

STRAY = seen(worker(), Seen.READY, assignment="a-30", generation=2)
SHOWN = look(STRAY)
RUNNING = (SeenStep("k", StepSeen.RUNNING),)
VERBS = {"adopt": adopt, "condemn": condemn}
Verb = Callable[..., Found]


@pytest.fixture(params=VERBS)
def verb(request: pytest.FixtureRequest) -> Verb:
    return VERBS[request.param]


def settled(at: Place, verb: Verb, shown: Look = SHOWN, **how: Any) -> Found:
    """What the verb makes of slot 1, told the identity of what is shown."""
    if "identity" not in how:
        how["identity"] = identity(STRAY if not shown.inventory.workers else shown.inventory.workers[0])
    return verb(at.context, 1, shown, provider="test", **{"reason": "left over", "by": "ops", **how})


def identity(of: Any) -> str:
    """As a dry run tells it."""
    return adopt(
        Place(kit.document()).context, 1, look(replace(of, state=Seen.READY, steps=())), provider="test", dry_run=True
    ).identity


def test_what_is_adopted_is_the_ready_worker_of_its_slot() -> None:
    noted = Slot(unrecorded=(Unrecorded("a-30", 2, "w-1", "ready", kit.NOW),))
    at = Place(kit.document(slots={1: noted}))
    found = settled(at, adopt)
    made = at.document.workers[1]
    assert (made.state, made.assignment, made.generation, made.id) == (WorkerState.READY, "a-30", 2, "w-1")
    assert (made.resources, made.provider, made.run, made.reason) == (kit.DATA, "test", None, Reason.ADOPTED)
    assert (found.slot, found.assignment, found.state, found.running) == (1, "a-30", Seen.READY, 0)
    assert at.document.slots[1].unrecorded == ()
    (event,) = at.events("slot:1")
    assert (event.event, event.to, event.detail) == ("adopt", "ready", "by ops: left over")


def test_what_is_condemned_is_recorded_as_lost_with_its_exact_ids() -> None:
    at = Place(kit.document())
    settled(at, condemn)
    made = at.document.workers[1]
    assert (made.state, made.assignment, made.generation, made.id) == (WorkerState.LOST, "a-30", 2, "w-1")
    assert (made.resources, made.run, made.reason) == (kit.DATA, None, Reason.UNRECORDED)
    assert [(event.event, event.detail) for event in at.events("slot:1")] == [("condemn", "by ops: left over")]


def test_an_assignment_that_was_taken_in_is_never_handed_out_again(verb: Verb) -> None:
    at = Place(kit.document())
    settled(at, verb)
    later = with_runs("b", document=replace(at.document, workers={}))
    made = plan(later, None, Ground(Policy(slots=1), "test"), kit.NOW)
    assert apply_edit(later, made.edit).workers[1].assignment == "a-31"


@pytest.mark.parametrize("strange", ["b", "a-", "a-9-x", "a-99999999999999999999", "a-²"])
def test_an_assignment_that_no_counter_gives_moves_none(verb: Verb, strange: str) -> None:
    at = Place(kit.document())
    settled(at, verb, look(replace(STRAY, assignment=strange)))
    assert at.document.workers[1].assignment == strange
    assert at.document.counters.assignment == 9


def test_without_its_identity_nothing_is_done(verb: Verb) -> None:
    at = Place(kit.document())
    before = at.document
    found = settled(at, verb, identity=None, dry_run=True)
    assert (found.id, found.identity, found.resources) == ("w-1", identity(STRAY), kit.DATA)
    assert at.document is before
    with pytest.raises(UsageFault, match="identity of what is meant is missing"):
        settled(at, verb, identity=None)
    assert at.document is before


CHANGES: dict[str, dict[str, Any]] = {
    "its id": {"id": "w-2"},
    "its generation": {"generation": 3},
    "its assignment": {"assignment": "a-31"},
    "an immutable id": {"resources": {**kit.DATA, "disk": Resource("d-1", "x-2")}},
    "a resource more": {"resources": {**kit.DATA, "address": Resource("ip-1")}},
    "a resource less": {"resources": {"vm": kit.DATA["vm"]}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_since_it_was_looked_at_is_refused(verb: Verb, change: str) -> None:
    at = Place(kit.document())
    before = at.document
    with pytest.raises(Conflict, match="it has another identity"):
        settled(at, verb, look(replace(STRAY, **CHANGES[change])), identity=identity(STRAY))
    assert at.document is before


def other(**fields: Any) -> Any:
    return worker(2, WorkerState.READY, **{"run": None, "resources": {}, **fields})


REFUSED: dict[str, tuple[Document, Look, str]] = {
    "the slot has a worker": (kit.document(worker(run=None)), look(seen(worker())), "has a worker on record"),
    "an action is pending": (kit.document(pending_actions={1: kit.pending()}), SHOWN, "its create is pending"),
    "a disowned action is not settled": (kit.document(disowned=kit.disowned()), SHOWN, "was disowned"),
    "two things are there": (
        kit.document(),
        look(STRAY, replace(STRAY, assignment="a-31", id="w-3")),
        "shows 2 things",
    ),
    "the listing is incomplete": (kit.document(), look(STRAY, complete=False), "listing is incomplete"),
    "the slot cannot be read": (kit.document(), look(STRAY, unreadable=(1,)), "cannot read slot 1"),
    "the slot has changed since": (
        kit.document(slots={1: Slot(changed=5)}),
        look(STRAY, revision=4),
        "changed after the provider was asked",
    ),
    "its assignment is another slot's": (kit.document(other(assignment="a-30")), SHOWN, "on record for slot 2"),
    "its assignment is being made": (
        kit.document(pending_actions={2: kit.pending(slot=2, assignment="a-30")}),
        SHOWN,
        "on record for slot 2",
    ),
    "a run is held under its assignment": (
        kit.document(runs=(run(RunState.RUNNING, worker=WorkerRef(2, "a-30", 2)),)),
        SHOWN,
        "on record for slot 2",
    ),
    "its id is another's": (kit.document(other(id="w-1")), SHOWN, "id w-1 belongs to slot 2 as well"),
    "its disk is another's": (
        kit.document(other(resources={"disk": Resource("d-1")})),
        SHOWN,
        "disk d-1 belongs to slot 2 as well",
    ),
    "its id is shown twice": (
        kit.document(),
        look(STRAY, replace(STRAY, slot=2, resources={})),
        "id w-1 belongs to slot 2 as well",
    ),
    "its disk is shown twice": (
        kit.document(),
        look(STRAY, replace(STRAY, slot=2, id="w-3", resources={"disk": Resource("d-1")})),
        "disk d-1 belongs to slot 2 as well",
    ),
    "its tags are none": (kit.document(), look(replace(STRAY, assignment="")), "tags are none that controller gives"),
    "its generation is none": (kit.document(), look(replace(STRAY, generation=0)), "tags are none"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_neither_is_done_while(verb: Verb, case: str) -> None:
    start, shown, words = REFUSED[case]
    at = Place(start)
    with pytest.raises(Conflict, match=words) as refusal:
        settled(at, verb, shown)
    assert at.document is start
    assert refusal.value.where
    assert refusal.value.next


NOTHING = {
    "nothing is shown": look(),
    "it is gone": look(replace(STRAY, state=Seen.GONE, resources={})),
    "it is of another fleet": look(replace(STRAY, lineage="44444444-4444-4444-8444-444444444444")),
    "it is in another slot": look(replace(STRAY, slot=2)),
}


@pytest.mark.parametrize("case", NOTHING)
def test_where_nothing_is_without_a_record_nothing_is_found(verb: Verb, case: str) -> None:
    at = Place(kit.document())
    with pytest.raises(NotFound, match="nothing in slot 1 that no record knows"):
        settled(at, verb, NOTHING[case])
    assert at.document.workers == {}


USED: dict[str, tuple[Document, Look, str]] = {
    "its data is left": (kit.document(), look(replace(STRAY, state=Seen.GONE)), "it is gone, not ready"),
    "it is off": (kit.document(), look(replace(STRAY, state=Seen.DARK)), "it is dark, not ready"),
    "it is being made": (kit.document(), look(replace(STRAY, state=Seen.CREATING)), "it is creating, not ready"),
    "a step was done on it": (
        kit.document(),
        look(replace(STRAY, steps=(SeenStep("k", StepSeen.EXITED, 0),))),
        "a step was done on it, and it may hold what that left",
    ),
    "a step runs on it": (kit.document(), look(replace(STRAY, steps=RUNNING)), "a step runs on it"),
    "a run was done on it": (
        kit.document(finished={"b": stone("b", worker=WorkerRef(1, "a-30", 2))}),
        SHOWN,
        "run b was done on it",
    ),
}


@pytest.mark.parametrize("case", USED)
def test_what_cannot_take_a_run_at_once_is_not_adopted_and_can_be_removed(case: str) -> None:
    start, shown, words = USED[case]
    at = Place(start)
    with pytest.raises(Conflict, match=words) as refusal:
        settled(at, adopt, shown)
    assert "controller delete-unrecorded 1" in refusal.value.next
    assert at.document is start
    settled(at, condemn, shown)
    assert at.document.workers[1].state is WorkerState.LOST


def test_what_a_disowned_create_was_proven_to_have_made_is_taken_in_and_stays_on_record(verb: Verb) -> None:
    known = kit.disowned(assignment="a-30", generation=2, proven=Proven.PRESENT)
    at = Place(kit.document(disowned=known))
    settled(at, verb)
    assert at.document.workers[1].assignment == "a-30"
    assert at.document.disowned == known


def test_a_second_time_the_slot_has_a_worker(verb: Verb) -> None:
    at = Place(kit.document())
    settled(at, verb)
    after = at.document
    with pytest.raises(Conflict, match="has a worker on record"):
        settled(at, verb)
    assert at.document is after


def test_two_at_once_are_one() -> None:
    at, answers = Place(kit.document()), list[object]()
    together = threading.Barrier(2)

    def each(verb: Verb) -> None:
        together.wait()
        try:
            answers.append(settled(at, verb))
        except Refusal as refusal:
            answers.append(refusal)

    threads = [threading.Thread(target=each, args=(verb,)) for verb in VERBS.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {type(answer) for answer in answers} == {Found, Conflict}
    assert len(at.events("slot:1")) == 1


@pytest.mark.parametrize("point", POINTS)
def test_one_that_was_killed_is_done_once_when_it_is_typed_again(verb: Verb, point: str) -> None:
    at = Place(kit.document())
    at.dies_at(point)
    with pytest.raises(Died):
        settled(at, verb)
    if point == "written":
        with pytest.raises(Conflict, match="has a worker on record"):
            settled(at, verb)
    else:
        settled(at, verb)
    assert at.document.workers[1].assignment == "a-30"
    assert len(at.events("slot:1")) == 1


@pytest.fixture
def stray(fleet: Fleet) -> Fleet:
    """A worker of slot 1 is there that has done nothing yet, and the document knows nothing of it."""
    fleet.policy = Policy(slots=1, least=1)
    fleet.reconciler().reconcile()
    fleet.policy = Policy(slots=1)
    with fleet.context.store.hold(1) as hold:
        loaded = hold.load()
        draft = fleet.context.draft(loaded.document)
        draft.workers.remove(1)
        draft.event("slot:1", "forgotten_by_test")
        hold.commit(loaded, draft.edit())
    return fleet


def by_verb(fleet: Fleet, verb: Verb) -> None:
    shown, _ = fleet.reconciler().look()
    context = replace(fleet.context, policy=fleet.policy)
    found = verb(context, 1, shown, provider="fake", dry_run=True)
    verb(context, 1, shown, provider="fake", identity=found.identity, reason="left over")


def test_an_adopted_worker_takes_the_next_run(stray: Fleet) -> None:
    stray.submit("b")
    stray.reconciler().reconcile()
    assert stray.document.runs["b"].state is RunState.QUEUED, "nothing is planned where something unrecorded is"
    by_verb(stray, adopt)
    stray.reconciler().reconcile()
    assert stray.document.finished["b"].worker == WorkerRef(1, "a-1", 1)


def test_a_condemned_worker_is_stopped_and_removed_step_by_step_and_its_slot_is_free(stray: Fleet) -> None:
    sent = len(stray.provider.sends())
    by_verb(stray, condemn)
    stray.reconciler().reconcile()
    assert [kind for _, kind, _ in stray.provider.sends()[sent:]] == [
        ActionType.DEALLOCATE,
        ActionType.DELETE_COMPUTE,
        ActionType.RESET,
    ]
    assert stray.provider.workers == {}
    assert stray.document.workers == {}
