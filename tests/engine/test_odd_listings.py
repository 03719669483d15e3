"""Listings that are odd: very many things in one slot, slots that nobody can read, and ids that an old record lacks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from controller.engine.adoption import adopt, condemn
from controller.engine.planner import Ground
from controller.engine.status import build
from controller.model.errors import Conflict
from controller.model.inventory import Inventory, Look, Seen, SeenWorker
from controller.model.policy import Policy
from controller.model.records import MAX_UNRECORDED, Document, Resource, Slot, Unrecorded, Worker, WorkerState
from controller.store import codec
from tests.engine import operating as kit
from tests.engine.scenes import LINEAGE, NOW, look, planned, with_runs

GROUND = Ground(Policy(slots=2), "fake")
GRACE = GROUND.policy.grace_ms


def strangers(count: int) -> list[SeenWorker]:
    return [SeenWorker(2, LINEAGE, f"x-{n:05}", 1, f"vm-{n}", Seen.READY) for n in range(count)]


def observed(document: Document, shown: Sequence[SeenWorker], *, at: int = NOW) -> Document:
    return planned(document, look(document, *shown, at=at), ground=GROUND, now=at)[0]


def test_of_very_many_things_in_a_slot_the_first_few_are_kept_and_the_others_counted() -> None:
    crowd = strangers(10_000)
    document = observed(with_runs("a"), crowd)
    slot = document.slots[2]
    assert [each.assignment for each in slot.unrecorded] == [f"x-{n:05}" for n in range(MAX_UNRECORDED)]
    assert slot.unrecorded_more == 10_000 - MAX_UNRECORDED
    assert len(codec.encode(document)) < 10_000
    assert observed(document, crowd[::-1]).slots == document.slots, "whatever the order in which they are listed"
    assert observed(document, crowd[:9]).slots[2].unrecorded_more == 1
    assert observed(document, crowd[:8]).slots[2].unrecorded_more == 0


def test_a_crowded_slot_opens_only_when_two_looks_apart_show_none_of_the_crowd() -> None:
    crowd = strangers(20)
    document = observed(with_runs("a", "b"), crowd)
    late = NOW + 2 * GRACE
    # The few that were kept are gone, and others of the crowd stand for it.
    document = observed(document, crowd[8:], at=late)
    assert [each.id for each in document.slots[2].unrecorded] == [f"vm-{n}" for n in range(8, 16)]
    late += 2 * GRACE
    document = observed(document, (), at=late)
    assert len(document.slots[2].unrecorded) == MAX_UNRECORDED
    assert 2 not in document.pending_actions
    document = observed(document, (), at=late + 2 * GRACE)
    assert (document.slots[2].unrecorded, document.slots[2].unrecorded_more) == ((), 0)
    assert 2 in document.pending_actions, "a worker is made there now"


@pytest.mark.parametrize("verb", [adopt, condemn])
def test_a_crowd_can_neither_be_adopted_nor_deleted_and_the_refusal_names_a_few(verb: object) -> None:
    at = kit.Place(kit.document())
    shown = kit.look(*(replace(each, slot=1, lineage=at.document.lineage) for each in strangers(10_000)))
    with pytest.raises(Conflict, match="10000 things in slot 1") as refusal:
        verb(at.context, 1, shown, provider="test", dry_run=True)  # type: ignore[operator]
    assert "x-00007 generation 1" in refusal.value.where
    assert refusal.value.where.endswith("; and 9992 more")
    assert len(refusal.value.where) < 500
    assert "remove those there" in refusal.value.next


def test_status_tells_how_many_more_there_are_with_the_last_that_it_tells() -> None:
    document = observed(with_runs("a"), strangers(30))
    at = kit.Place(document)
    told = build(at.context.store.read(), slots=2, flights={}, refusals=(), now=NOW, policy=GROUND.policy).unrecorded
    assert [each.more for each in told] == [0] * (MAX_UNRECORDED - 1) + [22]


@pytest.mark.parametrize("complete", [True, False])
def test_a_slot_that_the_provider_cannot_read_gets_no_worker_and_the_others_do(complete: bool) -> None:
    document = with_runs("a", "b")
    told = Look(document.revision, NOW, NOW + 1, Inventory(complete, (), unreadable=(1,), troubles=("slot 1: odd",)))
    after, made = planned(document, told, ground=GROUND)
    assert [parked.slot for parked in made.parks] == [2]
    assert made.retained == {1}
    assert 1 not in after.slots or not after.slots[1].unrecorded


def test_a_document_that_holds_empty_ids_from_before_still_loads() -> None:
    resources = {"vm": Resource("", " ")}
    worker = Worker(1, "a-1", 1, "fake", NOW, NOW, WorkerState.READY, "", resources)
    noted = Slot(unrecorded=(Unrecorded("a-9", 1, "", "ready", NOW, resources),))
    document = kit.document(worker, slots={2: noted})
    assert codec.decode(codec.encode(document), "here").document == document
