"""A document that comes back: nothing that was handed out is handed out again, nothing that may exist is forgotten."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.model.action import action_of
from controller.model.edit import Draft, apply_edit
from controller.model.invariants import against_history, violations
from controller.model.inventory import Seen, SeenWorker
from controller.model.reason import Reason
from controller.model.records import (
    Disowned,
    Document,
    Event,
    Lease,
    RunState,
    Span,
    Tombstone,
    Unrecorded,
    WorkerState,
)
from controller.model.restore import Kind, gone_over, restored, since
from controller.provider.protocol import Done
from tests.engine.scenes import LINEAGE, NOW, planned, settled, with_runs

LATER = NOW + 60_000


class Life:
    """A document and all of its history, revision by revision."""

    def __init__(self, *runs: str) -> None:
        self.at = [with_runs(*runs)]

    @property
    def now(self) -> Document:
        return self.at[-1]

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(event for document in self.at for event in document.events)

    def then(self, document: Document) -> Document:
        self.at.append(document)
        return document

    def plan(self) -> Document:
        return self.then(planned(self.now)[0])

    def done(self, slot: int = 1) -> Document:
        """The slot's pending action is answered with done."""
        action = action_of(self.now.pending_actions[slot])
        named = (slot, LINEAGE, action.assignment, action.generation, f"w-{action.serial}", Seen.READY)
        made = Done(worker=SeenWorker(*named)) if action.type == "create" else Done()
        return self.then(settled(self.now, slot, made))

    def edit(self, change: Any) -> Document:
        draft = Draft(self.now, now=NOW, command="test")
        change(draft)
        return self.then(apply_edit(self.now, draft.edit()))

    def submit(self, *runs: str) -> Document:
        return self.then(with_runs(*runs, document=self.now))

    def back(self, brought: Document, *, standing: bool = True, epoch: str = "e1") -> Document:
        made = restored(
            brought,
            self.now if standing else None,
            self.events,
            revision=self.now.revision + 1,
            now=LATER,
            command="state restore",
            epoch=epoch,
        )
        assert [each for each in violations(made) if each.id != "times"] == []
        assert against_history(made, (*self.events, *made.events)) == ()
        return made


def test_it_is_the_next_revision_in_the_new_epoch_and_says_so_in_one_event() -> None:
    life = Life("r-1")
    brought = life.now
    life.submit("r-2")
    made = life.back(brought)
    assert (made.revision, made.epoch) == (life.now.revision + 1, "e1")
    first = made.events[0]
    assert (first.subject, first.event, first.key) == ("fleet", "restored", "e1")
    assert (first.from_, first.to) == (f"revision {life.now.revision}", f"revision {brought.revision}")
    assert [event.n for event in made.events] == list(range(1, len(made.events) + 1))


@pytest.mark.parametrize("standing", [True, False], ids=["by the document", "by history alone"])
def test_no_counter_is_below_what_was_handed_out(standing: bool) -> None:
    life = Life("a")
    brought = life.now
    life.plan()
    life.done()
    life.submit("b", "r-17", "c")
    made = life.back(brought, standing=standing)
    if not standing:
        assert made.counters.run == 17
    assert made.counters.serial >= life.now.counters.serial == 1
    assert made.counters.assignment >= life.now.counters.assignment == 1
    assert made.counters.sequence == life.now.counters.sequence == 4


@pytest.mark.parametrize("standing", [True, False], ids=["by the document", "by history alone"])
def test_every_run_gets_a_token_past_the_highest_that_it_ever_had(standing: bool) -> None:
    life = Life("a")
    brought = life.now
    life.plan()
    life.done()
    life.plan()
    assert life.now.runs["a"].attempts == 1
    made = life.back(brought, standing=standing)
    run = made.runs["a"]
    assert (run.state, run.attempts) == (RunState.QUEUED, 2)
    assert run.attempts > run.earlier_lives, "it was taken once, and cannot be withdrawn as if it never was"


def test_a_run_that_nobody_ever_took_can_still_be_withdrawn() -> None:
    life = Life("a")
    brought = life.now
    life.submit("b")
    run = life.back(brought).runs["a"]
    assert (run.attempts, run.earlier_lives) == (1, 1)


def test_a_run_goes_on_being_held_by_its_worker_and_by_its_consumer_under_a_new_token() -> None:
    life = Life("a", "b")
    life.plan()
    life.done()
    life.plan()
    held = life.now.runs["a"]
    lease = Lease("one", "boot", 5_000, 1_000)
    life.edit(
        lambda draft: (
            draft.runs.put("b", replace(draft.runs.get("b"), state=RunState.RUNNING, attempts=1, lease=lease)),
            draft.event("run:b", "claim", "queued", "running", token=1),
        )
    )
    brought = life.now
    life.submit("c")
    made = life.back(brought)
    assert (made.runs["a"].state, made.runs["a"].worker) == (RunState.RUNNING, held.worker)
    assert made.runs["a"].attempts > held.attempts
    assert (made.runs["b"].lease, made.runs["b"].attempts) == (lease, 2)
    assert made.runs["b"].lease is not None
    assert made.runs["b"].lease.epoch != made.epoch, "so it is over"


def test_a_parked_action_keeps_its_bytes_and_is_no_entry_that_its_parker_knows() -> None:
    life = Life("a")
    brought = life.plan()
    life.submit("b")
    before, after = brought.pending_actions[1], life.back(brought).pending_actions[1]
    assert bytes(after.action) == bytes(before.action)
    assert (after.sends, after.unsure) == (before.sends + 1, before.unsure + 1)
    assert (after.sent_at, after.not_before) == (LATER, None), "it may have been sent until now"


def test_what_looks_did_not_show_before_is_no_evidence_any_more() -> None:
    life = Life("a")
    life.plan()
    life.done()
    span = Span(NOW - 9_000, NOW - 8_000)
    worker = life.now.workers[1]

    def doubt(draft: Draft) -> None:
        draft.workers.put(1, replace(worker, absent=span, idle_since=span, dark_at=NOW))
        draft.slots.put(2, replace(draft.slot(2), unrecorded=(Unrecorded("a-9", 1, "w", "ready", NOW, absent=span),)))
        key = "0" * 64
        draft.disowned.put(key, Disowned(life.at[1].pending_actions[1].action, NOW, Reason.DISOWNED, absent=span))
        draft.event("slot:1", "seen_absent")

    brought = life.edit(doubt)
    life.submit("b")
    made = restored(brought, life.now, life.events, revision=life.now.revision + 1, now=LATER, command="x", epoch="e1")
    again = made.workers[1]
    assert (again.absent, again.idle_since, again.dark_at) == (None, None, None)
    assert [each.absent for each in made.slots[2].unrecorded] == [None]
    assert [each.absent for each in made.disowned.values()] == [None]


def test_every_slot_that_anything_knows_of_is_changed_so_that_older_looks_say_nothing() -> None:
    life = Life("a", "b")
    brought = life.now
    life.plan()
    made = life.back(brought)
    assert {1, 2} <= set(made.slots)
    assert {slot.changed for slot in made.slots.values()} == {made.revision}


@pytest.mark.parametrize("standing", [True, False], ids=["by the document", "by history alone"])
def test_a_worker_of_lost_revisions_closes_its_slot(standing: bool) -> None:
    life = Life("a")
    brought = life.now
    life.plan()
    life.done()
    lost = life.now.workers[1]
    made = life.back(brought, standing=standing)
    assert 1 not in made.workers
    (known,) = made.slots[1].unrecorded
    assert (known.assignment, known.generation) == (lost.assignment, lost.generation)
    assert known.state == "ready"


@pytest.mark.parametrize("standing", [True, False], ids=["by the document", "by history alone"])
def test_an_action_that_was_parked_in_lost_revisions_is_disowned_and_so_never_forgotten(standing: bool) -> None:
    life = Life("a")
    brought = life.now
    life.plan()
    action = action_of(life.now.pending_actions[1])
    made = life.back(brought, standing=standing)
    assert made.pending_actions == {}
    assert bytes(made.disowned[action.idempotency_key].action) == bytes(life.now.pending_actions[1].action)
    told = [event for event in made.events if event.event == "action.disowned"]
    assert [(event.subject, event.key) for event in told] == [("slot:1", action.idempotency_key)]


@pytest.mark.parametrize("standing", [True, False], ids=["by the document", "by history alone"])
def test_what_was_disowned_in_lost_revisions_stays_so(standing: bool) -> None:
    life = Life("a")
    brought = life.plan()
    entry = life.now.pending_actions[1]
    key = action_of(entry).idempotency_key

    def disown(draft: Draft) -> None:
        draft.pending.remove(1)
        draft.workers.remove(1)
        draft.disowned.put(key, Disowned(entry.action, NOW, Reason.DISOWNED, "why"))
        draft.event("slot:1", "action.disowned", "create", reason=Reason.DISOWNED, key=key, detail="why")
        draft.event("slot:1", "create_settled", "creating", None)

    life.edit(disown)
    made = life.back(brought, standing=standing)
    assert made.disowned[key].detail == "why"
    assert made.disowned[key].proven is None


def test_tombstones_stay_but_for_runs_that_come_back_to_life() -> None:
    life = Life("a")
    brought = life.now

    def end(draft: Draft) -> None:
        for name in ("a", "b"):
            stone = Tombstone(name, "fleet", 1, 3, NOW, NOW, RunState.SUCCEEDED, reason=Reason.COMPLETED)
            draft.runs.remove(name)
            draft.finished.put(name, stone)
            draft.event(f"run:{name}", "all_steps_done", "running", "succeeded", token=3)

    life.submit("b")
    life.edit(end)
    made = life.back(brought)
    assert set(made.finished) == {"b"}
    assert made.runs["a"].attempts == 4


def test_an_old_tombstone_never_has_a_token_below_what_history_knows() -> None:
    life = Life()
    stone = Tombstone("a", "fleet", 1, 1, NOW, NOW, RunState.SUCCEEDED, reason=Reason.COMPLETED)
    brought = life.edit(lambda draft: (draft.finished.put("a", stone), draft.event("run:a", "pruned", token=1)))
    life.edit(lambda draft: draft.event("run:a", "claim", "queued", "running", token=7))
    assert life.back(brought).finished["a"].token == 7


def test_a_second_restore_of_the_same_document_hands_out_nothing_twice() -> None:
    life = Life("a")
    brought = life.plan()
    life.done()
    life.then(life.back(brought, epoch="e1"))
    first = life.now
    life.submit("b", "c")
    second = life.back(brought, epoch="e2")
    assert second.epoch == "e2"
    assert second.runs["a"].attempts > first.runs["a"].attempts
    for name in ("run", "sequence", "assignment", "serial"):
        assert getattr(second.counters, name) >= getattr(life.now.counters, name)
    assert second.pending_actions[1].sends == brought.pending_actions[1].sends + 1


def test_what_is_gone_back_over_is_named_slot_by_slot_with_who_knows_of_it() -> None:
    life = Life("a", "b")
    life.plan()
    brought = life.done(1)
    life.plan()
    life.done(2)
    over = gone_over(brought, since(brought, life.now, life.events))
    told = [(each.slot, each.kind, each.name, each.lost) for each in over]
    assert (1, Kind.WORKER, "ready", False) in told
    assert (2, Kind.PENDING, "create", False) in told
    assert (1, Kind.PENDING, "execute", True) in told


def test_nothing_is_gone_back_over_where_there_are_neither_workers_nor_parked_actions() -> None:
    life = Life("a")
    brought = life.now
    life.submit("b")
    lost = since(brought, life.now, life.events)
    assert gone_over(brought, lost) == ()
    assert lost.runs == ("b",)
    assert lost.again == ()


@pytest.mark.parametrize("standing", [True, False], ids=["by the document", "by history alone"])
def test_a_worker_that_was_removed_in_order_since_is_not_among_them(standing: bool) -> None:
    life = Life("a")
    brought = life.now

    def come_and_go(draft: Draft) -> None:
        for event, from_, to in (
            ("park_create", None, "creating"),
            ("create_done", "creating", "ready"),
            ("reset", "compute_removed", None),
        ):
            draft.event("slot:1", event, from_, to)

    life.edit(come_and_go)
    lost = since(brought, life.now if standing else None, life.events)
    assert gone_over(brought, lost) == ()


def test_a_run_that_went_on_meanwhile_is_told_as_one_that_is_back_where_it_was() -> None:
    life = Life("a", "b")
    brought = life.now
    life.edit(
        lambda draft: (
            draft.runs.put("b", replace(draft.runs.get("b"), state=RunState.CANCELLED, reason=Reason.CANCELLED)),
            draft.event("run:b", "cancel_observed", "queued", "cancelled"),
        )
    )
    assert since(brought, life.now, life.events).again == ("b",)
    assert since(brought, None, life.events).again == ("b",)


def test_an_older_document_that_stands_there_says_less_than_history() -> None:
    life = Life("a")
    brought = life.now
    life.plan()
    life.done()
    lost = since(brought, brought, life.events)
    assert lost.revision == life.now.revision
    assert lost.workers[1].state is WorkerState.READY
