"""What a look, or an answer, shows under a worker's name and is not that worker: it settles nothing, and what was left
behind counts as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from controller.engine import classify, outcomes
from controller.engine.abandon import Left, abandon
from controller.engine.adoption import adopt, condemn
from controller.engine.forget import forget
from controller.engine.pending import park
from controller.engine.recovery import resume
from controller.engine.release import release
from controller.model.action import action_of
from controller.model.edit import Draft, apply_edit
from controller.model.errors import Conflict
from controller.model.inventory import Inventory, Look, Seen, SeenStep, SeenWorker, StepSeen
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import (
    ActionType,
    Document,
    Proven,
    Resource,
    RunState,
    Worker,
    WorkerState,
)
from controller.provider.fake import DISK, VM, DoThenLose, FakeProvider, Say
from controller.provider.protocol import Done, Unknown
from tests.engine import operating as kit
from tests.engine.fleet import LINEAGE, Fleet
from tests.engine.operating import Place
from tests.engine.scenes import GROUND, NOW, look, planned, seen, settled, with_ready_worker, with_running_step

HOUR = 3_600_000
KEPT = Policy(slots=1, retain_failed=True)
DISK_1, VM_1, VM_2 = kit.DATA["disk"], kit.DATA["vm"], Resource("i-2", "y-2")
OTHER_DISK = Resource("d-1", "x-2")


def later(*shown: SeenWorker, at: int = NOW + HOUR) -> Look:
    """A look long after whatever was done."""
    return Look(1_000, at, at + 1, Inventory(True, shown))


def proof(document: Document, told: Look, slot: int = 1) -> outcomes.Evidence | None:
    entry = document.pending_actions[slot]
    policy = GROUND.policy
    return outcomes.evidence(document, slot, entry, action_of(entry), told, policy, told.ended_at)


# A resume


def resumed(shown: Mapping[str, Resource], state: Seen = Seen.DARK) -> tuple[Place, SeenWorker]:
    """A worker with a disk and a vm is resumed by a look that shows these; what its create is to be done with."""
    stopped = kit.worker(state=WorkerState.LOST if state is Seen.GONE else WorkerState.DEALLOCATED)
    at = Place(kit.document(stopped, runs=(kit.run(),)))
    resume(at.context, "a", kit.look(kit.seen(stopped, state, resources=shown)), reason="again", by="ops")
    anew = at.document.workers[1]
    return at, SeenWorker(1, kit.LINEAGE, anew.assignment, anew.generation, "w-2", Seen.READY, {})


@pytest.mark.parametrize(
    ("shown", "state", "asked", "gone"),
    [
        (kit.DATA, Seen.DARK, kit.DATA, None),
        ({"disk": DISK_1}, Seen.DARK, {"disk": DISK_1}, "vm i-1 (y-1)"),
        ({"disk": DISK_1}, Seen.GONE, {"disk": DISK_1}, "vm i-1 (y-1)"),
    ],
)
def test_a_resume_asks_for_what_a_look_still_shows_and_says_what_is_gone(
    shown: Mapping[str, Resource], state: Seen, asked: Mapping[str, Resource], gone: str | None
) -> None:
    at, _ = resumed(shown, state)
    assert action_of(at.document.pending_actions[1]).resources == asked
    assert at.document.workers[1].resources == kit.DATA
    (event,) = at.events("slot:1")
    assert event.detail == "by ops: again" + ("" if gone is None else f"; not there any more: {gone}")


ANSWERS: dict[str, tuple[Mapping[str, Resource], Mapping[str, Resource], str]] = {
    "another disk, and a new vm": (kit.DATA, {"disk": OTHER_DISK, "vm": VM_2}, "nothing of it is what was recorded"),
    "no disk": (kit.DATA, {"vm": VM_2}, "it has no disk, and d-1 (x-1) was there"),
    "no vm": (kit.DATA, {"disk": DISK_1}, "it has no vm, and i-1 (y-1) was there"),
    "nothing": (kit.DATA, {}, "it has no disk"),
    "another disk, where the vm is gone": ({"disk": DISK_1}, {"disk": OTHER_DISK, "vm": VM_1}, "nothing of it is what"),
    "no disk, where the vm is gone": ({"disk": DISK_1}, {"vm": VM_2}, "it has no disk, and d-1 (x-1) was there"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_a_resume_that_comes_back_without_its_data_is_not_taken(case: str) -> None:
    shown, made, why = ANSWERS[case]
    at, back = resumed(shown)
    back = replace(back, resources=made)
    entry = at.document.pending_actions[1]
    answer = outcomes.checked(action_of(entry), Done(worker=back))
    assert isinstance(answer, Unknown)
    assert why in answer.reason
    after = settled(at.document, 1, Done(worker=back))
    assert (after.workers[1].state, after.workers[1].resources) == (WorkerState.CREATING, kit.DATA)
    assert after.pending_actions[1].last_reason is Reason.UNKNOWN
    old = replace(at.document, pending_actions={1: replace(entry, key_ttl_ms=1_000)})
    assert proof(old, later(back)) is None


@pytest.mark.parametrize(
    ("shown", "made"),
    [
        (kit.DATA, {"disk": DISK_1, "vm": VM_2}),
        (kit.DATA, kit.DATA),
        (kit.DATA, {"disk": DISK_1, "vm": VM_2, "address": Resource("ip-1")}),
        ({"disk": DISK_1}, {"disk": DISK_1, "vm": VM_2}),
        ({"disk": DISK_1}, {"disk": Resource("d-1"), "vm": VM_2}),
    ],
)
def test_a_resume_that_comes_back_with_its_data_is_taken_by_an_answer_or_a_look(
    shown: Mapping[str, Resource], made: Mapping[str, Resource]
) -> None:
    at, back = resumed(shown)
    back = replace(back, resources=made)
    after = settled(at.document, 1, Done(worker=back))
    assert (after.workers[1].state, after.workers[1].resources) == (WorkerState.ASSIGNED, made)
    old = replace(at.document, pending_actions={1: replace(at.document.pending_actions[1], key_ttl_ms=1_000)})
    assert proof(old, later(back)) == Done(worker=back)


@pytest.mark.parametrize("left", [{}, {"disk": DISK_1}])
def test_a_resume_whose_compute_is_gone_again_is_settled_by_what_is_left(left: Mapping[str, Resource]) -> None:
    at, back = resumed(kit.DATA)
    old = replace(at.document, pending_actions={1: replace(at.document.pending_actions[1], key_ttl_ms=1_000)})
    gone = replace(back, state=Seen.GONE, resources=left)
    assert proof(old, later(gone)) == Done(worker=gone)


def test_a_resume_that_is_refused_leaves_all_that_was_recorded() -> None:
    at, _ = resumed({"disk": DISK_1})
    after = settled(at.document, 1, outcomes.NoEffect(Reason.PROVEN_ABSENT, "nothing came"))
    assert (after.workers[1].state, after.workers[1].resources) == (WorkerState.DEALLOCATED, kit.DATA)


def test_a_resume_that_came_back_with_another_disk_ends_as_disowned_when_an_operator_gives_it_up(kept: Fleet) -> None:
    """Also once it is too old to be sent again, though looks do speak of its slot."""
    parked = by_resume(kept, key_ttl_ms=60_000)
    kept.provider.script(ActionType.CREATE, DoThenLose(), slot=1)
    kept.sender.send(1, parked)
    other_disk(kept)
    kept.clock.advance(3_600)

    def give_up(*, unresolved: bool) -> Left:
        asked = lambda: kept.reconciler().look()[0]  # noqa: E731 - what abandon asks with
        return abandon(kept.sender, 1, parked, look=asked, reason="broken", by="ops", unresolved=unresolved).outcome

    assert give_up(unresolved=False) is Left.KEPT
    assert kept.document.workers[1].state is WorkerState.CREATING
    assert give_up(unresolved=True) is Left.DISOWNED
    assert (kept.document.workers[1].state, kept.document.workers[1].generation) == (WorkerState.DEALLOCATED, 1)


# One worker listed twice


TWICE = [(Seen.READY, Seen.GONE), (Seen.GONE, Seen.READY), (Seen.GONE, Seen.DARK), (Seen.DARK, Seen.GONE)]


@pytest.mark.parametrize("states", TWICE)
def test_a_worker_listed_twice_loses_no_life_whatever_the_order(states: tuple[Seen, ...]) -> None:
    document, key = with_running_step(attempts=2)
    running = [SeenStep(key, StepSeen.RUNNING)]
    told = look(document, *(seen(document, 1, state, running) for state in states))
    after, made = planned(document, told)
    assert (after.runs["a"].state, after.workers[1].state) == (RunState.RUNNING, WorkerState.ASSIGNED)
    assert made.retained == {1}
    assert made.parks == ()


@pytest.mark.parametrize("order", [1, -1])
def test_a_worker_listed_twice_with_other_steps_is_believed_in_neither(order: int) -> None:
    document, key = with_running_step()
    both = [
        seen(document, 1, steps=[SeenStep(key, StepSeen.EXITED, exit_code=7)]),
        seen(document, 1, steps=[SeenStep(key, StepSeen.RUNNING)]),
    ]
    after, made = planned(document, look(document, *both[::order]))
    assert after.runs["a"].state is RunState.RUNNING
    assert made.retained == {1}
    alike, _ = planned(document, look(document, both[0], both[0]))
    assert alike.runs["a"].state is RunState.FAILED


@pytest.mark.parametrize("states", TWICE)
def test_a_worker_listed_twice_settles_nothing_that_is_pending(states: tuple[Seen, ...]) -> None:
    document, _ = planned(with_ready_worker("a", attempts=2))
    entry = replace(document.pending_actions[1], rejected="no room")
    document = replace(document, pending_actions={1: entry})
    told = later(*(seen(document, 1, state) for state in states))
    assert proof(document, told) is None
    assert proof(document, later(seen(document, 1, Seen.GONE))) is not None


@pytest.mark.parametrize("states", TWICE)
def test_a_worker_listed_twice_proves_nothing_of_a_disowned_action(states: tuple[Seen, ...]) -> None:
    known = kit.document(disowned=kit.disowned())
    (key,) = known.disowned
    both = [kit.seen(kit.worker(), state, resources={}) for state in states]
    after, _ = planned(known, later(*both))
    assert after.disowned[key].proven is None
    after, _ = planned(known, later(both[0]))
    assert after.disowned[key].proven is not None


def test_what_was_not_shown_once_and_is_listed_twice_then_is_missed_for_the_first_time_again() -> None:
    document, _ = with_running_step()
    document, _ = planned(document, look(document, at=NOW + HOUR), now=NOW + HOUR)
    assert document.workers[1].absent is not None
    both = [seen(document, 1, state) for state in TWICE[0]]
    document, _ = planned(document, look(document, *both, at=NOW + 2 * HOUR), now=NOW + 2 * HOUR)
    assert document.workers[1].absent is None
    document, _ = planned(document, look(document, at=NOW + 3 * HOUR), now=NOW + 3 * HOUR)
    assert document.workers[1].state is WorkerState.ASSIGNED


# Another identity


def with_pending(kind: ActionType, known: Worker, *, recorded: bool = True) -> Document:
    draft = Draft(kit.document(known), now=NOW, command="test")
    park(draft, kind, known, key_ttl_ms=1_000)
    document = apply_edit(draft.document, draft.edit())
    return document if recorded else replace(document, workers={})


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (ActionType.DELETE_COMPUTE, Seen.GONE),
        (ActionType.DEALLOCATE, Seen.DARK),
        (ActionType.DEALLOCATE, Seen.GONE),
        (ActionType.RESET, Seen.READY),
    ],
)
def test_what_is_shown_under_another_identity_settles_nothing(kind: ActionType, state: Seen, recorded: bool) -> None:
    known = kit.worker(run=None)
    document = with_pending(kind, known, recorded=recorded)
    other = kit.seen(known, state, resources={**kit.DATA, "disk": OTHER_DISK})
    assert proof(document, later(other)) is None
    assert proof(document, later(kit.seen(known, state))) is not None


def test_an_absence_is_forgotten_when_something_is_shown_under_the_name() -> None:
    known = kit.worker(run=None)
    document = with_pending(ActionType.DEALLOCATE, known)
    first = proof(document, later())
    assert isinstance(first, outcomes.FirstAbsence)
    entry = replace(document.pending_actions[1], absent=first.span)
    document = replace(document, pending_actions={1: entry})
    other = kit.seen(known, Seen.GONE, id="w-9")
    assert proof(document, later(other, at=NOW + 2 * HOUR)) == outcomes.SeenAgain()


# What a disowned resume made


@pytest.fixture
def kept(tmp_path: Any) -> Fleet:
    """Run "a" failed in slot 1, whose worker is stopped and kept."""
    fleet = Fleet(tmp_path / "state", FakeProvider(LINEAGE, ends=1), slots=1)
    fleet.policy = KEPT
    fleet.submit("a")
    fleet.reconciler().reconcile()
    fleet.clock.advance(100)
    return fleet


def by_resume(fleet: Fleet, key_ttl_ms: int | None = None) -> str:
    """Its key."""
    shown = shown_of(fleet)
    return resume(replace(fleet.context, policy=fleet.policy), "a", shown, by="ops", key_ttl_ms=key_ttl_ms).key


def shown_of(fleet: Fleet) -> Look:
    shown, _ = fleet.reconciler().look()
    assert shown is not None
    return shown


def other_disk(fleet: Fleet) -> None:
    there = fleet.provider.workers[1]
    there.seen = replace(there.seen, resources={VM: there.seen.resources[VM], DISK: Resource("disk-9", "z")})


@pytest.fixture
def overtaken(kept: Fleet) -> Fleet:
    """Its resume was disowned, and made new compute all the same."""
    key = by_resume(kept)
    kept.provider.script(ActionType.CREATE, DoThenLose(), Say(Unknown("no route to host")), slot=1)
    kept.sender.send(1, key)
    left = abandon(kept.sender, 1, key, look=lambda: None, reason="closed", by="ops", unresolved=True)
    assert left.outcome is Left.DISOWNED
    kept.clock.advance(100)
    kept.reconciler().reconcile()
    return kept


def take_down(fleet: Fleet) -> None:
    context = replace(fleet.context, policy=fleet.policy)
    found = condemn(context, 1, shown_of(fleet), provider="fake", dry_run=True)
    assert found.kept
    condemn(context, 1, shown_of(fleet), provider="fake", identity=found.identity, reason="resumed in vain", by="ops")


def test_what_a_disowned_resume_made_waits_for_an_operator_and_is_told(overtaken: Fleet) -> None:
    document = overtaken.document
    (known,) = document.disowned.values()
    assert known.proven is Proven.PRESENT
    assert (document.workers[1].generation, document.workers[1].state) == (1, WorkerState.DEALLOCATED)
    assert [(each.assignment, each.generation) for each in document.slots[1].unrecorded] == [("a-1", 2)]
    (one,) = [each for each in classify.classify(document, shown_of(overtaken), 1) if each.slot == 1]
    assert (one.slot_class, one.reason) == (classify.SlotClass.RETAINED, Reason.UNRECORDED)
    with pytest.raises(Conflict, match="has a worker on record"):
        adopt(overtaken.context, 1, shown_of(overtaken), provider="fake", dry_run=True)


def test_what_a_disowned_resume_made_is_stopped_in_its_own_generation_and_keeps_the_data(overtaken: Fleet) -> None:
    disk, sent = overtaken.document.workers[1].resources[DISK], len(overtaken.provider.sends(1))
    take_down(overtaken)
    overtaken.reconciler().reconcile()
    assert [kind for _, kind, _ in overtaken.provider.sends(1)[sent:]] == [ActionType.DEALLOCATE]
    after, there = overtaken.document.workers[1], overtaken.provider.workers[1].seen
    assert (after.state, after.generation, after.run) == (WorkerState.DEALLOCATED, 2, "a")
    assert (there.state, there.generation) == (Seen.DARK, 2)
    assert after.resources[DISK] == there.resources[DISK] == disk
    assert overtaken.document.slots[1].unrecorded == ()
    (event,) = [each for each in overtaken.store.history("slot:1") if each.event == "generation_taken"]
    assert event.detail == "by ops: resumed in vain; generation 2 of a-1 in place of 1; its data is kept"


def test_the_kept_worker_can_be_resumed_again_then(overtaken: Fleet) -> None:
    take_down(overtaken)
    overtaken.reconciler().reconcile()
    overtaken.clock.advance(100)
    overtaken.provider._ends = 0
    overtaken.sender.send(1, by_resume(overtaken))
    overtaken.reconciler().reconcile()
    assert overtaken.document.finished["a"].worker is not None
    assert overtaken.document.finished["a"].worker.generation == 3


@pytest.mark.parametrize("before", [True, False])
def test_the_kept_worker_can_be_released_then_or_before(overtaken: Fleet, before: bool) -> None:
    context = replace(overtaken.context, policy=overtaken.policy)

    def let_go() -> None:
        release(context, "a", None, reason="done with it", by="ops")

    if before:
        let_go()
    take_down(overtaken)
    overtaken.reconciler().reconcile()
    if not before:
        let_go()
    for _ in range(3):
        overtaken.clock.advance(600)
        overtaken.reconciler().reconcile()
    assert overtaken.document.workers[1].assignment == "a-2", "its slot was free for the run, which was queued again"
    assert overtaken.provider.workers[1].seen.assignment == "a-2"


def test_a_later_generation_with_another_disk_is_not_taken_for_the_kept_worker(overtaken: Fleet) -> None:
    other_disk(overtaken)
    before = overtaken.document
    with pytest.raises(Conflict, match="its data is not what was recorded") as refusal:
        condemn(overtaken.context, 1, shown_of(overtaken), provider="fake", dry_run=True)
    assert refusal.value.where
    assert refusal.value.next
    assert overtaken.document == before


@pytest.mark.parametrize(
    "known",
    [
        kit.worker(state=WorkerState.ASSIGNED),
        kit.worker(state=WorkerState.READY, run=None),
        kit.worker(generation=3),
        kit.worker(assignment="a-7"),
    ],
)
def test_nothing_else_than_a_later_generation_of_a_stopped_worker_is_taken_down_beside_a_record(known: Worker) -> None:
    at = Place(kit.document(known))
    told = kit.look(kit.seen(kit.worker(), Seen.READY, generation=2, resources={"disk": DISK_1, "vm": VM_2}))
    with pytest.raises(Conflict, match="has a worker on record"):
        condemn(at.context, 1, told, provider="test", dry_run=True)


def test_while_a_disowned_resume_is_not_proven_its_generation_is_not_taken() -> None:
    at = Place(kit.document(kit.worker(), disowned=kit.disowned(generation=3)))
    told = kit.look(kit.seen(kit.worker(), Seen.READY, generation=2, resources={"disk": DISK_1, "vm": VM_2}))
    with pytest.raises(Conflict, match="was disowned"):
        condemn(at.context, 1, told, provider="test", dry_run=True)


# What is gone and has left data


LEFT = kit.seen(kit.worker(), Seen.GONE, assignment="a-30", id="w-30", resources={"disk": Resource("d-30", "z")})


def test_what_is_gone_and_left_a_disk_is_unrecorded() -> None:
    document = kit.document()
    (one,) = classify.classify(document, kit.look(LEFT), 1)
    assert (one.slot_class, one.reason, one.observed) == (classify.SlotClass.RETAINED, Reason.UNRECORDED, Seen.GONE)
    assert one.why == "the provider shows what is left of a-30 generation 1, which no record knows"
    after, made = planned(document, kit.look(LEFT))
    assert [each.id for each in after.slots[1].unrecorded] == ["w-30"]
    assert made.retained == {1}
    nothing = kit.look(replace(LEFT, resources={}))
    assert classify.unrecorded_in(document, nothing) == {}


@pytest.mark.parametrize(
    "known",
    [
        kit.worker(state=WorkerState.ASSIGNED),
        kit.worker(state=WorkerState.READY, run=None),
        kit.worker(),
        kit.worker(state=WorkerState.LOST),
        kit.worker(state=WorkerState.LOST, run=None),
        kit.worker(state=WorkerState.COMPUTE_REMOVED, run=None),
    ],
)
@pytest.mark.parametrize("beside", [(), (LEFT,)])
def test_a_recorded_worker_that_is_gone_is_judged_as_ever_and_what_another_left_holds_it_back_in_nothing(
    known: Worker, beside: tuple[SeenWorker, ...]
) -> None:
    document = kit.document(known)
    gone = kit.seen(known, Seen.GONE, resources={"disk": DISK_1})
    empty, whole = kit.look(replace(gone, resources={})), kit.look(gone, *beside)
    (was,), (now,) = classify.classify(document, empty, 1), classify.classify(document, whole, 1)
    assert (now.slot_class, classify.retained(document, whole)) == (was.slot_class, frozenset())
    assert beside or now.reason is was.reason
    assert now.unrecorded == beside


def test_the_data_of_a_worker_listed_under_the_generation_before_is_its_own() -> None:
    known = kit.worker(state=WorkerState.ASSIGNED, generation=2)
    document = kit.document(known)
    before = kit.seen(known, Seen.GONE, generation=1, resources={"disk": DISK_1})
    told = kit.look(kit.seen(known, Seen.READY), before)
    assert classify.unrecorded_in(document, told) == {}
    assert classify.retained(document, told) == frozenset()
    more = replace(before, resources={"disk": DISK_1, "vm": Resource("i-0")})
    assert classify.unrecorded_in(document, kit.look(more)) == {1: (more,)}


def test_a_disowned_create_that_is_gone_and_left_a_disk_is_proven_present() -> None:
    document = kit.document(disowned=kit.disowned(assignment="a-30"))
    (key,) = document.disowned
    after, _ = planned(document, later(LEFT))
    assert after.disowned[key].proven is Proven.PRESENT
    assert [each.id for each in after.slots[1].unrecorded] == ["w-30"]


def test_what_a_forgotten_worker_left_is_told_and_can_be_removed(kept: Fleet) -> None:
    kept.policy = Policy(slots=1)
    context = replace(kept.context, policy=kept.policy)
    release(context, "a", None, reason="done with it", by="ops")
    forget(context, 1, None, reason="account closed", by="ops")
    kept.provider.lose(1)
    kept.clock.advance(600)
    kept.reconciler().reconcile()
    assert [each.proven for each in kept.document.disowned.values()] == [Proven.PRESENT]
    assert [each.state for each in kept.document.slots[1].unrecorded] == ["gone"]
    with pytest.raises(Conflict, match="it is gone, not ready"):
        adopt(context, 1, shown_of(kept), provider="fake", identity=identity(kept, context))
    sent = len(kept.provider.sends(1))
    condemn(context, 1, shown_of(kept), provider="fake", identity=identity(kept, context), reason="left", by="ops")
    kept.reconciler().reconcile()
    asked = [kind for _, kind, _ in kept.provider.sends(1)[sent:]]
    assert asked == [ActionType.DELETE_COMPUTE, ActionType.RESET]
    assert kept.provider.workers == {}
    assert kept.document.workers == {}


def identity(fleet: Fleet, context: Any) -> str:
    found = condemn(context, 1, shown_of(fleet), provider="fake", dry_run=True)
    assert not found.kept
    return found.identity


def test_one_disk_left_in_two_slots_is_not_removed_for_either() -> None:
    at = Place(kit.document())
    told = kit.look(LEFT, replace(LEFT, slot=2, assignment="a-31", id="w-31"))
    with pytest.raises(Conflict, match="disk d-30 belongs to slot 2 as well"):
        condemn(at.context, 1, told, provider="test", dry_run=True)
    assert {each.reason for each in classify.classify(at.document, told, 2)} == {Reason.ID_TWICE}
