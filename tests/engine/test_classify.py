"""Every slot is in exactly one class, by what record and look say together; and hands are kept off what is not ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from controller.engine.classify import (
    Classified,
    SlotClass,
    classify,
    retained,
    unrecorded_in,
)
from controller.engine.identity import identity_matches, identity_of
from controller.model import action
from controller.model.inventory import Inventory, Look, Seen, SeenStep, SeenWorker, StepSeen
from controller.model.reason import Reason
from controller.model.records import (
    ActionType,
    Disowned,
    Document,
    PendingAction,
    Proven,
    Resource,
    Slot,
    Unrecorded,
    Worker,
    WorkerState,
    new_document,
)

LINEAGE = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"
NOW = 1_700_000_000_000
VM = {"vm": Resource("i-1", "x-1")}


def worker(slot: int = 1, state: WorkerState = WorkerState.READY, **fields: Any) -> Worker:
    given_ = {"assignment": f"a-{slot}", "generation": 1, "id": f"w-{slot}", **fields}
    return Worker(slot=slot, provider="test", created_at=NOW, changed_at=NOW, state=state, **given_)


def seen(slot: int = 1, state: Seen = Seen.READY, **fields: Any) -> SeenWorker:
    given_ = {"lineage": LINEAGE, "assignment": f"a-{slot}", "generation": 1, "id": f"w-{slot}", **fields}
    return SeenWorker(slot=slot, state=state, **given_)


def document(*workers: Worker, revision: int = 5, **sections: Any) -> Document:
    base = new_document("test", LINEAGE)
    return replace(base, revision=revision, workers={each.slot: each for each in workers}, **sections)


def look(*shown: SeenWorker, complete: bool = True, revision: int = 5, unreadable: tuple[int, ...] = ()) -> Look:
    return Look(revision, NOW, NOW + 1, Inventory(complete, shown, unreadable))


def one(known: Document, taken: Look, slot: int = 1, slots: int = 2) -> Classified:
    (found,) = [each for each in classify(known, taken, slots) if each.slot == slot]
    return found


def said(known: Document, taken: Look, slot: int = 1) -> tuple[str, str, bool]:
    """Class and reason of a slot, and whether hands are kept off it."""
    found = one(known, taken, slot)
    return found.slot_class.value, found.reason.value, slot in retained(known, taken)


def minted(kind: ActionType = ActionType.CREATE, slot: int = 1, assignment: str = "a-1", generation: int = 1) -> Any:
    return action.mint(
        type=kind,
        slot=slot,
        serial=1,
        lineage=LINEAGE,
        epoch="",
        assignment=assignment,
        generation=generation,
        resources={},
    )[1]


def disowned(proven: Proven | None = None, **fields: Any) -> Mapping[str, Disowned]:
    return {"k": Disowned(minted(**fields), NOW, Reason.UNKNOWN, proven=proven)}


OWNED = {"run": "r-1"}


@pytest.mark.parametrize(
    ("state", "fields", "shown", "expected"),
    [
        (WorkerState.READY, {}, Seen.READY, ("clean-warm", "as_recorded")),
        (WorkerState.READY, {}, Seen.CREATING, ("clean-warm", "as_recorded")),
        (WorkerState.READY, {}, Seen.DARK, ("deallocated", "seen_dark")),
        (WorkerState.READY, {}, Seen.GONE, ("orphaned-safe-to-delete", "seen_gone")),
        (WorkerState.READY, {}, None, ("clean-warm", "not_shown")),
        (WorkerState.RELEASED, {}, Seen.READY, ("clean-warm", "as_recorded")),
        (WorkerState.RELEASED, {}, Seen.GONE, ("orphaned-safe-to-delete", "seen_gone")),
        (WorkerState.ASSIGNED, OWNED, Seen.READY, ("assigned", "as_recorded")),
        (WorkerState.ASSIGNED, OWNED, Seen.DARK, ("deallocated", "seen_dark")),
        (WorkerState.ASSIGNED, OWNED, Seen.GONE, ("retained-for-investigation", "data_left")),
        (WorkerState.ASSIGNED, OWNED, None, ("assigned", "not_shown")),
        (WorkerState.CREATING, {}, Seen.CREATING, ("creating", "as_recorded")),
        (WorkerState.CREATING, {}, None, ("creating", "not_shown")),
        (WorkerState.DEALLOCATED, {}, Seen.DARK, ("deallocated", "as_recorded")),
        (WorkerState.DEALLOCATED, {}, Seen.READY, ("deallocated", "returned")),
        (WorkerState.DEALLOCATED, OWNED, Seen.READY, ("deallocated", "returned")),
        (WorkerState.DEALLOCATED, OWNED, Seen.DARK, ("deallocated", "as_recorded")),
        (WorkerState.DEALLOCATED, OWNED, Seen.GONE, ("retained-for-investigation", "data_left")),
        (WorkerState.DEALLOCATED, {}, Seen.GONE, ("orphaned-safe-to-delete", "seen_gone")),
        (WorkerState.COMPUTE_REMOVED, {}, None, ("orphaned-safe-to-delete", "as_recorded")),
        (WorkerState.COMPUTE_REMOVED, {}, Seen.DARK, ("orphaned-safe-to-delete", "as_recorded")),
        (WorkerState.LOST, {}, None, ("orphaned-safe-to-delete", "as_recorded")),
        (WorkerState.LOST, {}, Seen.READY, ("orphaned-safe-to-delete", "returned")),
        (WorkerState.LOST, OWNED, None, ("retained-for-investigation", "data_left")),
        (WorkerState.LOST, OWNED, Seen.GONE, ("retained-for-investigation", "data_left")),
        (WorkerState.LOST, OWNED, Seen.READY, ("retained-for-investigation", "returned")),
    ],
)
def test_a_worker_shown_as_itself_has_the_class_that_record_and_look_agree_on(
    state: WorkerState, fields: dict[str, Any], shown: Seen | None, expected: tuple[str, str]
) -> None:
    known = document(worker(state=state, **fields))
    taken = look(*([] if shown is None else [seen(state=shown)]))
    found = one(known, taken)
    assert (found.slot_class.value, found.reason.value) == expected
    assert (found.recorded, found.observed) == (state, shown)


def test_compute_that_was_removed_and_is_shown_alive_keeps_its_record() -> None:
    known = document(worker(state=WorkerState.COMPUTE_REMOVED))
    assert said(known, look(seen())) == ("retained-for-investigation", "returned", True)
    assert said(known, look(seen(state=Seen.GONE))) == ("orphaned-safe-to-delete", "as_recorded", False)


def test_data_that_waits_for_an_operator_is_retained_but_not_kept_from_the_planner() -> None:
    known = document(worker(state=WorkerState.LOST, run="r-1"))
    assert said(known, look()) == ("retained-for-investigation", "data_left", False)
    alive = look(seen())
    assert said(known, alive) == ("retained-for-investigation", "returned", False)


@pytest.mark.parametrize(
    ("recorded", "shown", "matches"),
    [
        ({"id": "w-1"}, {"id": "w-2"}, False),
        ({"id": ""}, {"id": "w-2"}, True),
        ({"id": "w-1"}, {"id": ""}, True),
        ({"resources": VM}, {"resources": VM}, True),
        ({"resources": VM}, {"resources": {"vm": Resource("i-2", "x-1")}}, False),
        ({"resources": VM}, {"resources": {"vm": Resource("i-1", "x-2")}}, False),
        ({"resources": VM}, {"resources": {"vm": Resource("i-1")}}, True),
        ({"resources": VM}, {"resources": {"disk": Resource("d-1")}}, True),
        ({"resources": {**VM, "disk": Resource("d-1")}}, {"resources": {**VM, "disk": Resource("d-2")}}, False),
        ({"resources": {}}, {"resources": VM}, True),
    ],
)
def test_an_identity_matches_when_nothing_that_both_know_differs(
    recorded: dict[str, Any], shown: dict[str, Any], matches: bool
) -> None:
    assert identity_matches(worker(**recorded), seen(**shown)) is matches
    known, taken = document(worker(**recorded)), look(seen(**shown))
    assert said(known, taken) == (
        ("clean-warm", "as_recorded", False) if matches else ("retained-for-investigation", "identity_changed", True)
    )
    assert unrecorded_in(known, taken) == {}


def test_a_changed_identity_is_said_with_both_sides() -> None:
    known = document(worker(resources=VM))
    assert one(known, look(seen(resources={"vm": Resource("i-1", "x-9")}))).why == (
        "vm i-1 (x-1) is recorded, and i-1 (x-9) is shown"
    )
    assert one(known, look(seen(id="w-9", state=Seen.GONE))).reason is Reason.IDENTITY_CHANGED


@pytest.mark.parametrize("fields", [{"assignment": "a-9"}, {"generation": 2}])
def test_another_assignment_or_generation_in_its_place_is_a_foreign_tag(fields: dict[str, Any]) -> None:
    known, taken = document(worker()), look(seen(**{"id": "w-9", **fields}))
    assert said(known, taken) == ("retained-for-investigation", "foreign_tag", True)
    assert "instead of a-1 generation 1" in one(known, taken).why
    assert said(known, look(seen(state=Seen.GONE), *taken.inventory.workers))[1:] == ("foreign_tag", True)


@pytest.mark.parametrize("fields", [{"assignment": "a-9"}, {"generation": 2}])
def test_beside_the_worker_itself_it_is_unrecorded_and_holds_nothing_back(fields: dict[str, Any]) -> None:
    stranger = seen(**{"id": "w-9", **fields})
    known, taken = document(worker()), look(seen(), stranger)
    assert said(known, taken) == ("clean-warm", "unrecorded", False)
    assert one(known, taken).observed is Seen.READY
    assert unrecorded_in(known, taken) == {1: (stranger,)}
    assert one(known, taken).unrecorded == (stranger,)
    gone = look(seen(), replace(stranger, state=Seen.GONE))
    assert unrecorded_in(known, gone) == {}


def test_a_stranger_with_the_ids_of_the_worker_itself_holds_its_slot_back() -> None:
    known, taken = document(worker()), look(seen(), seen(assignment="a-9"))
    assert said(known, taken) == ("retained-for-investigation", "foreign_tag", True)


def test_in_a_free_slot_and_beyond_the_configured_ones_it_is_unrecorded() -> None:
    known, taken = document(), look(seen(2), seen(9, Seen.DARK))
    assert [(each.slot, each.slot_class.value, each.reason.value) for each in classify(known, taken, 2)] == [
        (1, "free", "no_worker"),
        (2, "retained-for-investigation", "unrecorded"),
        (9, "retained-for-investigation", "unrecorded"),
    ]
    assert retained(known, taken) == {2, 9}
    assert {slot: [each.id for each in those] for slot, those in unrecorded_in(known, taken).items()} == {
        2: ["w-2"],
        9: ["w-9"],
    }


def test_what_is_gone_and_has_left_nothing_is_no_presence() -> None:
    known, taken = document(), look(seen(state=Seen.GONE))
    assert said(known, taken) == ("free", "no_worker", False)
    assert unrecorded_in(known, taken) == {}


def test_another_lineage_is_passed_over() -> None:
    known, taken = document(worker()), look(seen(lineage=OTHER, id="w-9"), seen(2, lineage=OTHER))
    assert said(known, taken) == ("clean-warm", "not_shown", False)
    assert said(known, taken, 2) == ("free", "no_worker", False)
    assert [each.slot for each in classify(known, look(seen(7, lineage=OTHER)), 2)] == [1, 2]


@pytest.mark.parametrize("fields", [{"id": "w-1"}, {"id": "w-9", "resources": VM}])
@pytest.mark.parametrize("tag", [{"lineage": OTHER}, {"slot": 2, "assignment": "a-2"}])
def test_what_is_recorded_here_and_shown_under_another_tag_is_a_foreign_tag(
    fields: dict[str, Any], tag: dict[str, Any]
) -> None:
    known, taken = document(worker(resources=VM)), look(seen(**fields, **tag))
    assert said(known, taken) == ("retained-for-investigation", "foreign_tag", True)
    assert "recorded here, is shown as" in one(known, taken).why
    assert said(known, look(seen(state=Seen.GONE), *taken.inventory.workers))[1:] == ("foreign_tag", True)


def test_a_reused_name_with_another_immutable_id_is_another_thing() -> None:
    known = document(worker(resources=VM))
    taken = look(seen(resources=VM), seen(2, lineage=OTHER, resources={"vm": Resource("i-1", "x-2")}))
    assert said(known, taken) == ("clean-warm", "as_recorded", False)


@pytest.mark.parametrize("fields", [{"id": "w-1"}, {"resources": VM}])
def test_one_id_for_two_slots_keeps_hands_off_both(fields: dict[str, Any]) -> None:
    known = document(worker(resources=VM), worker(2))
    taken = look(seen(resources=VM), seen(2, **fields))
    assert said(known, taken) == ("retained-for-investigation", "id_twice", True)
    assert said(known, taken, 2) == ("retained-for-investigation", "id_twice", True)
    assert "is shown in slot 1 and in slot 2" in one(known, taken).why
    free = document(worker(resources=VM))
    assert said(free, taken, 2) == ("retained-for-investigation", "id_twice", True)
    assert [each.slot for each in one(free, taken, 2).unrecorded] == [2]


def test_one_worker_shown_twice_in_two_states_is_believed_in_neither() -> None:
    known, taken = document(worker()), look(seen(), seen(state=Seen.GONE))
    assert said(known, taken) == ("retained-for-investigation", "id_twice", True)
    assert one(known, taken).why == "the provider shows a-1 generation 1 more than once: as gone and as ready"
    other = look(seen(), seen(id="w-9"))
    assert said(known, other) == ("retained-for-investigation", "id_twice", True)
    assert set(unrecorded_in(known, other)) == {1}
    assert said(known, look(seen(), seen())) == ("clean-warm", "as_recorded", False)


def test_a_pending_action_is_not_judged_and_knows_what_it_makes() -> None:
    parked = {1: PendingAction(minted(), NOW)}
    known = document(worker(state=WorkerState.CREATING, id=""), pending_actions=parked)
    taken = look(seen(state=Seen.CREATING))
    assert said(known, taken) == ("creating", "action_pending", False)
    assert unrecorded_in(known, taken) == {}
    orphan = document(pending_actions=parked)
    assert said(orphan, taken) == ("creating", "action_pending", False)
    assert unrecorded_in(orphan, taken) == {}
    stranger = seen(assignment="a-9", id="w-9")
    assert unrecorded_in(orphan, look(stranger)) == {1: (stranger,)}
    later = document(pending_actions={1: PendingAction(minted(ActionType.RESET), NOW)})
    assert said(later, taken) == ("retained-for-investigation", "action_pending", False)


def test_a_resume_knows_what_it_is_made_from() -> None:
    parked = {1: PendingAction(minted(generation=2), NOW)}
    resumed = worker(state=WorkerState.CREATING, generation=2, was=WorkerState.DEALLOCATED, run="r-1")
    known = document(resumed, pending_actions=parked)
    assert unrecorded_in(known, look(seen(state=Seen.DARK))) == {}
    assert set(unrecorded_in(known, look(seen(generation=3)))) == {1}


def test_a_disowned_action_holds_a_free_slot_until_it_is_proven() -> None:
    known = document(disowned=disowned())
    assert said(known, look()) == ("retained-for-investigation", "disowned", False)
    assert said(known, look(seen())) == ("retained-for-investigation", "disowned", False)
    assert one(known, look(seen())).observed is Seen.READY
    assert said(known, look(complete=False)) == ("retained-for-investigation", "disowned", False)
    assert unrecorded_in(known, look(seen())) == {}
    stranger = look(seen(assignment="a-9"))
    assert said(known, stranger) == ("retained-for-investigation", "unrecorded", True)
    assert said(document(disowned=disowned(Proven.ABSENT)), look()) == ("free", "no_worker", False)
    present = document(disowned=disowned(Proven.PRESENT))
    assert said(present, look(seen())) == ("retained-for-investigation", "unrecorded", True)


def test_a_disowned_action_says_so_beside_its_worker() -> None:
    known = document(worker(), disowned=disowned(kind=ActionType.EXECUTE))
    assert said(known, look(seen())) == ("clean-warm", "disowned", False)
    assert said(known, look(seen(id="w-9"))) == ("retained-for-investigation", "identity_changed", True)
    far = document(disowned=disowned(slot=8))
    assert [each.slot for each in classify(far, look(), 2)] == [1, 2, 8]


STRANGE = (seen(id="w-9"), seen(2))


@pytest.mark.parametrize(
    ("taken", "slots"),
    [
        (look(*STRANGE, complete=False), {}),
        (look(*STRANGE, revision=4), {1: Slot(changed=5), 2: Slot(changed=5)}),
        (look(*STRANGE, unreadable=(1, 2)), {}),
    ],
)
def test_a_look_that_may_not_speak_of_a_slot_decides_nothing(taken: Look, slots: dict[int, Slot]) -> None:
    known = document(worker(), slots=slots)
    assert said(known, taken) == ("clean-warm", "look_silent", False)
    assert said(known, taken, 2) == ("free", "look_silent", False)
    assert retained(known, taken) == set()
    assert unrecorded_in(known, taken) == {}
    assert one(known, taken).observed is Seen.READY


def test_a_silent_look_leaves_what_an_earlier_one_showed() -> None:
    known = document(slots={1: Slot(unrecorded=(Unrecorded("a-9", 1, "w-9", "ready", NOW),))})
    assert said(known, look(complete=False)) == ("retained-for-investigation", "unrecorded", False)
    assert said(known, look()) == ("free", "no_worker", False)


def test_an_identity_stands_for_exactly_its_parts() -> None:
    parts: dict[str, Any] = {"slot": 1, "assignment": "a-1", "generation": 1, "id": "w-1", "resources": VM}
    whole = identity_of(**parts)
    assert len(whole) == 64
    assert whole == identity_of(**{**parts, "resources": dict(VM)})
    others: list[dict[str, Any]] = [
        {"slot": 2},
        {"assignment": "a-2"},
        {"generation": 2},
        {"id": "w-2"},
        {"resources": {}},
        {"resources": {"vm": Resource("i-1")}},
        {"resources": {"vm": Resource("i-2", "x-1")}},
        {"resources": {"disk": Resource("i-1", "x-1")}},
    ]
    assert len({whole, *(identity_of(**{**parts, **other}) for other in others)}) == len(others) + 1


IDS = st.sampled_from(("", "w-1", "w-2", "w-3"))
RESOURCES = st.dictionaries(
    st.sampled_from(("vm", "disk")),
    st.builds(Resource, st.sampled_from(("i-1", "i-2")), st.sampled_from(("", "x-1", "x-2"))),
    max_size=2,
)
SLOTS = st.integers(1, 4)
ASSIGNMENTS = st.sampled_from(("a-1", "a-2", "a-3"))
GENERATIONS = st.integers(1, 3)
STEPS = st.lists(
    st.builds(SeenStep, st.sampled_from(("k-1", "k-2")), st.sampled_from(tuple(StepSeen))), max_size=2
).map(tuple)


@st.composite
def workers(draw: st.DrawFn, slot: int) -> Worker:
    return worker(
        slot,
        draw(st.sampled_from(tuple(WorkerState))),
        assignment=draw(ASSIGNMENTS),
        generation=draw(GENERATIONS),
        id=draw(IDS),
        resources=draw(RESOURCES),
        run=draw(st.sampled_from((None, "r-1"))),
        was=draw(st.sampled_from((None, WorkerState.DEALLOCATED))),
    )


@st.composite
def documents(draw: st.DrawFn) -> Document:
    known = [draw(workers(slot)) for slot in sorted(draw(st.sets(SLOTS)))]
    acts = st.builds(minted, st.sampled_from(tuple(ActionType)), SLOTS, ASSIGNMENTS, GENERATIONS)
    broken = st.just(minted()).map(lambda raw: type(raw)(b'{"type": "create"}'))
    parked = {slot: PendingAction(draw(acts | broken), NOW) for slot in draw(st.sets(SLOTS, max_size=2))}
    proven = st.sampled_from((None, *Proven))
    gone = {
        f"k-{n}": Disowned(draw(acts | broken), NOW, Reason.UNKNOWN, proven=draw(proven))
        for n in range(draw(st.integers(0, 2)))
    }
    slots = {slot: Slot(changed=draw(st.integers(3, 6))) for slot in draw(st.sets(SLOTS))}
    return document(*known, pending_actions=parked, disowned=gone, slots=slots)


SEEN = st.builds(
    SeenWorker,
    SLOTS,
    st.sampled_from((LINEAGE, LINEAGE, LINEAGE, OTHER)),
    ASSIGNMENTS,
    GENERATIONS,
    IDS,
    st.sampled_from(tuple(Seen)),
    RESOURCES,
    STEPS,
)


@given(
    documents(),
    st.lists(SEEN, max_size=5),
    st.booleans(),
    st.integers(3, 6),
    st.sets(SLOTS, max_size=1).map(tuple),
    st.randoms(use_true_random=False),
)
def test_any_document_and_look_give_every_slot_one_class_whatever_the_order(
    known: Document, shown: list[SeenWorker], complete: bool, revision: int, unreadable: tuple[int, ...], chance: Any
) -> None:
    taken = look(*shown, complete=complete, revision=revision, unreadable=unreadable)
    found = classify(known, taken, 2)
    numbers = [each.slot for each in found]
    assert numbers == sorted(set(numbers))
    ours = {each.slot for each in shown if each.lineage == LINEAGE}
    assert {1, 2, *known.workers, *known.pending_actions, *ours} <= set(numbers)
    assert all(each.slot_class in SlotClass and each.why for each in found)
    chance.shuffle(shown)
    shuffled = look(*shown, complete=complete, revision=revision, unreadable=unreadable)
    assert classify(known, shuffled, 2) == found
    assert retained(known, shuffled) == retained(known, taken)
    assert unrecorded_in(known, shuffled) == unrecorded_in(known, taken)


@given(documents(), st.lists(SEEN, max_size=5), st.booleans(), st.integers(3, 6), st.sets(SLOTS, max_size=1).map(tuple))
def test_hands_are_kept_off_exactly_what_a_look_that_speaks_shows_to_be_wrong(
    known: Document, shown: list[SeenWorker], complete: bool, revision: int, unreadable: tuple[int, ...]
) -> None:
    taken = look(*shown, complete=complete, revision=revision, unreadable=unreadable)
    kept = retained(known, taken)
    unknown = unrecorded_in(known, taken)
    for each in classify(known, taken, 2):
        record = known.slots.get(each.slot)
        speaks = complete and each.slot not in unreadable and (record is None or record.changed <= revision)
        settled = speaks and each.slot not in known.pending_actions
        wrong = {Reason.IDENTITY_CHANGED, Reason.FOREIGN_TAG, Reason.ID_TWICE, Reason.UNRECORDED}
        if each.recorded is WorkerState.COMPUTE_REMOVED:
            wrong.add(Reason.RETURNED)
        assert (each.slot in kept) is (settled and each.slot_class is SlotClass.RETAINED and each.reason in wrong)
        assert each.unrecorded == unknown.get(each.slot, ())
        assert not (each.unrecorded and not speaks)
        beside = each.recorded is not None and each.reason is not Reason.FOREIGN_TAG
        assert not (settled and each.unrecorded) or each.slot in kept or beside
        itself = known.workers.get(each.slot)
        if settled and itself is not None:
            name = (LINEAGE, each.slot, itself.assignment, itself.generation)
            named = [s for s in shown if (s.lineage, s.slot, s.assignment, s.generation) == name]
            assert not named or any(identity_matches(itself, s) for s in named) or each.slot in kept
