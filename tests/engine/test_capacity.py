"""How many workers: up at once, down only after the idle time; cordons, drains, wear and the circuit breaker."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.engine.due import next_due
from controller.engine.planner import Ground, plan
from controller.model.edit import Draft, apply_edit
from controller.model.inventory import Seen
from controller.model.perform import WorkerGiven, move_worker
from controller.model.policy import Breaker, Policy
from controller.model.reason import Reason
from controller.model.records import (
    ActionType,
    Document,
    Provider,
    RunState,
    Slot,
    Unrecorded,
    Worker,
    WorkerState,
    new_document,
)
from controller.model.transition import Trigger
from controller.provider.protocol import Done
from tests.engine.scenes import GROUND, LINEAGE, NOW, ended, look, planned, seen, settled, with_running_step, with_runs

IDLE = 30_000
CREATE, EXECUTE, DEALLOCATE = ActionType.CREATE, ActionType.EXECUTE, ActionType.DEALLOCATE


def ground(**how: int | None) -> Ground:
    return Ground(Policy(**{"slots": 4, "idle_ms": IDLE, **how}), "fake")  # type: ignore[arg-type]


def fleet(*slots: int, at: int = NOW, document: Document | None = None) -> Document:
    """A document with a ready worker in each of *slots*, last changed at *at*."""
    made = {n: Worker(n, f"a-{n}", 1, "fake", at, at, WorkerState.READY, f"w-{n}") for n in slots}
    return replace(document or new_document("test", LINEAGE), workers=made)


def parks(document: Document, where: Ground, *, now: int = NOW) -> list[tuple[int, ActionType]]:
    return [(parked.slot, parked.type) for parked in planned(document, ground=where, now=now)[1].parks]


def test_runs_that_wait_get_workers_at_once_up_to_the_greatest_number() -> None:
    document = with_runs("a", "b", "c", "d")
    assert parks(document, ground(most=3)) == [(1, CREATE), (2, CREATE), (3, CREATE)]


def test_a_stopped_worker_counts_for_nothing() -> None:
    document = fleet(1, document=with_runs("a", "b"))
    kept = replace(document.workers[1], state=WorkerState.DEALLOCATED, run="old")
    assert parks(replace(document, workers={1: kept}), ground(most=2)) == [(2, CREATE), (3, CREATE)]


def test_the_least_number_is_kept_though_no_run_waits() -> None:
    assert parks(new_document("test", LINEAGE), ground(least=2)) == [(1, CREATE), (2, CREATE)]
    assert parks(fleet(1, 2), ground(least=2), now=NOW + 100 * IDLE) == []


def test_workers_for_runs_and_for_the_least_number_are_not_made_twice() -> None:
    assert parks(with_runs("a"), ground(least=2)) == [(1, CREATE), (2, CREATE)]


def test_idle_workers_go_after_the_idle_time_down_to_the_least_number() -> None:
    document = fleet(1, 2, 3)
    assert parks(document, ground(least=1), now=NOW + IDLE - 1) == []
    assert parks(document, ground(least=1), now=NOW + IDLE) == [(1, DEALLOCATE), (2, DEALLOCATE)]


def test_what_is_in_use_is_never_taken_down_for_a_smaller_number() -> None:
    document, _ = with_running_step(ground=ground())
    assert parks(document, ground(most=1, least=0), now=NOW + 100 * IDLE) == []


def test_a_draining_fleet_keeps_no_least_number() -> None:
    document = replace(fleet(1), draining=True)
    assert parks(document, ground(least=3)) == [(1, DEALLOCATE)]


def test_a_need_that_swings_faster_than_the_idle_time_takes_no_worker_down() -> None:
    where = ground()
    document, key = with_running_step(ground=where)
    downs, now = 0, NOW
    for n in range(40):
        now += IDLE // 2
        document, made = planned(
            document, look(document, seen(document, 1, steps=[ended(key, exit_code=0)]), at=now), ground=where, now=now
        )
        downs += sum(parked.type is DEALLOCATE for parked in made.parks)
        document = with_runs(f"r{n}", document=document)
        now += IDLE // 2 - 1
        document, made = planned(document, ground=where, now=now)
        (key,) = [parked.key for parked in made.parks if parked.type is EXECUTE]
        entry = document.pending_actions[1]
        assert entry.sends == 1
        document = settled(document, 1, Done(), now=now, ground=where)
    assert downs == 0


def test_of_idle_workers_at_most_one_change_comes_in_an_idle_time() -> None:
    where, document, changes = ground(), fleet(1), []
    for now in range(NOW, NOW + 5 * IDLE, 1_000):
        if parks(document, where, now=now) == [(1, DEALLOCATE)]:
            changes.append(now)
            document = fleet(1, at=now)
    assert changes == [NOW + n * IDLE for n in range(1, 5)]


class TestCordonAndDrain:
    def with_slot(self, document: Document, **how: bool) -> Document:
        return replace(document, slots={1: Slot(**how)})  # type: ignore[arg-type]

    def test_a_cordoned_slot_takes_nothing_new_and_keeps_its_worker(self) -> None:
        document = self.with_slot(fleet(1, document=with_runs("a")), cordoned=True)
        assert parks(document, ground(slots=1)) == []

    def test_a_cordoned_slot_gets_no_worker(self) -> None:
        assert parks(self.with_slot(with_runs("a"), cordoned=True), ground()) == [(2, CREATE)]

    def test_the_idle_worker_of_a_cordoned_slot_goes_after_the_idle_time(self) -> None:
        document = self.with_slot(fleet(1), cordoned=True)
        assert parks(document, ground(), now=NOW + IDLE) == [(1, DEALLOCATE)]

    def test_the_worker_of_a_draining_slot_goes_at_once(self) -> None:
        document = self.with_slot(fleet(1, document=with_runs("a")), cordoned=True, draining=True)
        assert parks(document, ground(slots=1)) == [(1, DEALLOCATE)]

    def test_a_draining_slot_lets_its_run_end(self) -> None:
        document, key = with_running_step()
        document = replace(document, slots={1: replace(document.slots[1], cordoned=True, draining=True)})
        assert parks(document, GROUND) == []
        told = look(document, seen(document, 1, steps=[ended(key, exit_code=0)]))
        made = planned(document, told)[1]
        assert [parked.type for parked in made.parks] == [DEALLOCATE]


class TestWear:
    def released(self, runs: int) -> Document:
        document = fleet(1, document=with_runs("b"))
        worn = replace(document.workers[1], state=WorkerState.RELEASED, runs=runs)
        return replace(document, workers={1: worn})

    @pytest.mark.parametrize(("done", "most", "then"), [(1, 0, EXECUTE), (9, 0, EXECUTE), (1, 2, EXECUTE)])
    def test_a_clean_worker_is_ready_again_while_it_may_do_another_run(
        self, done: int, most: int, then: ActionType
    ) -> None:
        assert parks(self.released(done), ground(slots=1, max_runs=most)) == [(1, then)]

    def test_a_worker_that_has_done_its_runs_is_taken_down(self) -> None:
        document, made = planned(self.released(2), ground=ground(slots=1, max_runs=2))
        assert [parked.type for parked in made.parks] == [DEALLOCATE]
        assert document.workers[1].reason is Reason.WORN_OUT

    def test_one_that_was_ready_when_the_number_was_lowered_takes_no_run_more(self) -> None:
        document = self.released(2)
        ready = replace(document, workers={1: replace(document.workers[1], state=WorkerState.READY)})
        document, made = planned(ready, ground=ground(slots=1, max_runs=2))
        assert [parked.type for parked in made.parks] == [DEALLOCATE]
        assert (document.workers[1].reason, document.runs["b"].state) == (Reason.WORN_OUT, RunState.QUEUED)

    def test_every_run_that_it_is_given_counts(self) -> None:
        draft = Draft(self.released(4), now=NOW, command="reconcile")
        move_worker(draft, 1, Trigger.REUSE, WorkerGiven())
        move_worker(draft, 1, Trigger.CLAIM, WorkerGiven(run="b"))
        worker = draft.workers.get(1)
        assert worker is not None
        assert worker.runs == 5


class TestBreaker:
    WHERE = replace(ground(), policy=replace(ground().policy, breaker=Breaker(failures=3, dwell_ms=60_000)))

    def after(self, failures: int, opened_at: int | None, document: Document | None = None) -> Document:
        known = Provider(failures=failures, opened_at=opened_at, why="no route")
        return replace(document or with_runs("a", "b", "c"), providers={"fake": known})

    def test_while_it_is_open_nothing_new_is_parked(self) -> None:
        assert parks(self.after(3, NOW), self.WHERE, now=NOW + 59_999) == []

    def test_a_plan_under_an_open_breaker_still_folds_what_a_look_shows(self) -> None:
        document, key = with_running_step(ground=self.WHERE)
        document = self.after(3, NOW, document)
        told = look(document, seen(document, 1, steps=[ended(key, exit_code=0)]))
        document, made = planned(document, told, ground=self.WHERE)
        assert made.parks == ()
        assert "a" in document.finished

    def test_after_the_dwell_one_action_is_tried_and_no_second_one_while_it_is_out(self) -> None:
        document = self.after(3, NOW)
        document, made = planned(document, ground=self.WHERE, now=NOW + 60_000)
        assert [(parked.slot, parked.type) for parked in made.parks] == [(1, CREATE)]
        assert parks(document, self.WHERE, now=NOW + 60_001) == []

    def test_a_closed_one_lets_everything_be_parked(self) -> None:
        assert len(parks(self.after(2, None), self.WHERE)) == 3

    def test_the_loop_plans_again_when_it_tries_again(self) -> None:
        assert next_due(self.after(3, NOW), self.WHERE.policy, NOW) == NOW + 60_000

    def test_another_provider_is_not_held_back(self) -> None:
        elsewhere = replace(self.WHERE, provider="other")
        assert len(parks(self.after(3, NOW), elsewhere)) == 3


def test_a_slot_that_shows_what_nobody_recorded_is_left_alone() -> None:
    document = with_runs("a")
    stranger = seen(fleet(1), 1, Seen.READY)
    document, made = planned(document, look(document, stranger), ground=ground())
    assert [(parked.slot, parked.type) for parked in made.parks] == [(2, CREATE)]
    assert made.retained == {1}
    (told,) = document.slots[1].unrecorded
    assert (told.assignment, told.id, told.state) == ("a-1", "w-1", "ready")
    again, made = planned(document, look(document, stranger), ground=ground())
    assert 1 not in {parked.slot for parked in made.parks}
    late = NOW + 2 * ground().policy.grace_ms
    doubted, made = planned(again, look(again, at=late), ground=ground(), now=late)
    assert [each.id for each in doubted.slots[1].unrecorded] == ["w-1"]
    assert 1 not in {parked.slot for parked in made.parks}
    gone, _ = planned(doubted, look(doubted, at=late + 10_000), ground=ground(), now=late + 10_000)
    assert gone.slots[1].unrecorded == ()


def test_one_look_that_lags_opens_no_slot_beside_what_was_just_seen_there() -> None:
    document = with_runs("a")
    stranger = seen(fleet(1), 1, Seen.CREATING)
    document, _ = planned(document, look(document, stranger), ground=ground(slots=1))
    document, made = planned(document, look(document, at=NOW + 1), ground=ground(slots=1), now=NOW + 2)
    assert made.parks == ()
    assert [each.id for each in document.slots[1].unrecorded] == ["w-1"]


def test_what_is_shown_gone_is_not_waited_for() -> None:
    document = with_runs("a")
    stranger = seen(fleet(1), 1, Seen.READY)
    document, _ = planned(document, look(document, stranger), ground=ground(slots=1))
    told = look(document, replace(stranger, state=Seen.GONE))
    document, made = planned(document, told, ground=ground(slots=1))
    assert document.slots[1].unrecorded == ()
    assert [parked.type for parked in made.parks] == [CREATE]


@pytest.mark.parametrize("state", WorkerState)
def test_what_the_last_look_retained_stays_so_until_the_next_one(state: WorkerState) -> None:
    document = fleet(1)
    document = replace(document, workers={1: replace(document.workers[1], state=state)})
    made = plan(document, None, ground(), NOW + 100 * IDLE, retained=frozenset({1}))
    assert made.parks == ()
    assert apply_edit(document, made.edit).workers == document.workers


def test_a_slot_in_which_something_unrecorded_was_seen_gets_no_worker_without_a_look_or_by_half_of_one() -> None:
    stranger = Unrecorded("a-9", 1, "w-9", "ready", NOW)
    document = replace(with_runs("a"), slots={1: Slot(unrecorded=(stranger,))})
    assert plan(document, None, ground(slots=1), NOW).parks == ()
    assert planned(document, look(document, complete=False), ground=ground(slots=1))[1].parks == ()


def test_a_run_whose_worker_is_gone_goes_on_though_a_stranger_is_in_its_slot() -> None:
    document, _ = with_running_step(attempts=2)
    stranger = replace(seen(document, 1), assignment="a-9", id="w-9")
    document, made = planned(document, look(document, seen(document, 1, Seen.GONE), stranger))
    assert document.workers[1].state is WorkerState.LOST
    assert document.runs["a"].crashes == 1
    assert (made.retained, made.parks) == (frozenset({1}), ())


def test_a_worker_with_a_stranger_beside_it_ends_its_run_and_takes_no_other() -> None:
    document, key = with_running_step()
    document = with_runs("b", document=document)
    stranger = replace(seen(document, 1), assignment="a-9", id="w-9")
    told = look(document, seen(document, 1, steps=[ended(key, exit_code=0)]), stranger)
    document, made = planned(document, told)
    assert "a" in document.finished
    assert [(parked.slot, parked.type) for parked in made.parks] == [(2, CREATE)]
