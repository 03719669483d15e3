"""The long-lived loop: what wakes it, and what it does slot by slot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from controller.engine.queue import cancel
from controller.model.action import Action
from controller.model.inventory import SeenStep, StepSeen
from controller.model.records import ActionType, RunState, WorkerState
from controller.provider.fake import After, Before, FakeProvider, Later
from controller.provider.protocol import Description
from tests.engine.fleet import LINEAGE, Fleet
from tests.engine.serving import Gate, Script, Serving, counted, running, submit_for_later

CREATE, EXECUTE = ActionType.CREATE, ActionType.EXECUTE


# What it does


def test_it_serves_what_is_submitted_while_it_runs_from_one_look(fleet: Fleet) -> None:
    serving = Serving(fleet)

    def script() -> Script:
        yield serving.after(2)
        fleet.submit("a", "b", "c", "d")
        yield serving.succeeded("a", "b", "c", "d")

    serving.serve(script())
    assert fleet.pending == {}
    assert len(fleet.provider.done) == len(set(fleet.provider.done))
    assert serving.asked("inventory") == 1
    assert serving.troubles == []


def test_an_end_that_was_folded_is_forgotten_though_its_slot_is_busy(fleet: Fleet) -> None:
    runs = [f"r{number}" for number in range(30)]
    fleet.submit(*runs)
    serving, kept = Serving(fleet), [0]

    def over() -> bool:
        kept.append(len(serving.loop._ends))
        return serving.succeeded(*runs)()

    serving.serve(iter([over]))
    assert max(kept) <= 3, "at most one for each slot"


def test_every_send_is_told_once_whoever_applied_its_answer(fleet: Fleet) -> None:
    runs = [f"r{number}" for number in range(30)]
    fleet.submit(*runs)
    serving = Serving(fleet)
    serving.serve(iter([serving.succeeded(*runs)]))
    told = sorted(sent.key for report in serving.reports for sent in report.sent)
    assert told == sorted(str(key) for _, _, key in fleet.provider.sends())


def test_a_pushed_end_is_folded_and_the_next_run_begun_without_a_look(endless: Fleet) -> None:
    fleet, serving = endless, Serving(endless)
    fleet.policy = replace(fleet.policy, slots=1)
    serving.loop.adopt(fleet.policy)
    fleet.submit("a", "b")

    def script() -> Script:
        yield running(fleet, "a")
        fleet.provider.end_step(serving.key(1, EXECUTE), exit_code=0)
        yield running(fleet, "b")
        assert "a" in fleet.document.finished
        fleet.provider.end_step(serving.key(1, EXECUTE), exit_code=3)
        yield lambda: fleet.document.runs["b"].state is RunState.FAILED

    serving.serve(script())
    assert serving.asked("inventory") == 1


def test_an_end_that_comes_before_the_answer_to_its_execute_is_folded_after_it(fleet: Fleet, gate: Gate) -> None:
    fleet.provider.script(EXECUTE, After(gate))
    fleet.submit("a")
    serving = Serving(fleet)

    def script() -> Script:
        yield gate.reached.is_set
        yield serving.after(3)
        assert fleet.document.runs["a"].state is RunState.RUNNING
        gate.open()
        yield serving.succeeded("a")

    serving.serve(script())
    assert serving.asked("inventory") == 1


def test_an_end_that_waits_for_an_answer_keeps_nobody_busy(
    fleet: Fleet, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.provider.script(EXECUTE, After(gate))
    fleet.submit("a")
    serving = Serving(fleet)
    plans = counted(serving, "park", monkeypatch)

    def script() -> Script:
        yield gate.reached.is_set
        yield serving.after(2)
        before = plans[0]
        yield serving.after(4)
        assert plans[0] == before
        gate.open()
        yield serving.succeeded("a")

    serving.serve(script())


def test_an_end_that_nobody_can_know_is_left_to_a_look(endless: Fleet) -> None:
    fleet, serving = endless, Serving(endless, interval=5)
    fleet.submit("a")

    def script() -> Script:
        yield running(fleet, "a")
        key = serving.key(1, EXECUTE)
        fleet.provider.push(1, SeenStep(key, StepSeen.EXITED))
        yield serving.after(4)
        assert fleet.document.runs["a"].state is RunState.RUNNING
        fleet.provider.workers[1].steps[key] = SeenStep(key, StepSeen.EXITED)
        fleet.clock.advance(5)
        yield lambda: fleet.document.runs["a"].state is RunState.FAILED

    serving.serve(script())


def test_an_end_that_was_folded_already_changes_nothing(endless: Fleet) -> None:
    fleet, serving = endless, Serving(endless)
    fleet.submit("a")

    def script() -> Script:
        yield running(fleet, "a")
        key = serving.key(1, EXECUTE)
        fleet.provider.end_step(key, exit_code=0)
        yield serving.succeeded("a")
        before = fleet.bytes()
        fleet.provider.push(1, SeenStep(key, StepSeen.EXITED, exit_code=1))
        fleet.provider.push(2, SeenStep("of nobody", StepSeen.EXITED, exit_code=1))
        yield serving.after(3)
        assert fleet.bytes() == before

    serving.serve(script())


def test_news_that_something_changed_is_looked_into_at_once(endless: Fleet) -> None:
    fleet, serving = endless, Serving(endless)
    fleet.submit("a")

    def script() -> Script:
        yield running(fleet, "a")
        fleet.provider.lose(1)
        yield lambda: (fleet.document.runs["a"].last_error or "").endswith("was lost")

    serving.serve(script())
    assert serving.asked("inventory") == 2


def test_a_cancel_of_another_process_is_seen_without_a_look(endless: Fleet) -> None:
    fleet, serving = endless, Serving(endless)
    fleet.submit("a", "b")

    def script() -> Script:
        yield lambda: running(fleet, "a")() and running(fleet, "b")()
        cancel(fleet.context, "a")
        yield lambda: fleet.document.runs["a"].state is RunState.CANCELLED
        assert fleet.document.runs["b"].state is RunState.RUNNING

    serving.serve(script())
    assert serving.asked("inventory") == 1


def test_a_look_is_repeated_after_the_interval_and_not_before(fleet: Fleet) -> None:
    serving = Serving(fleet, interval=10)

    def script() -> Script:
        yield lambda: serving.asked("inventory") == 1
        fleet.clock.advance(9.9)
        yield serving.after(3)
        assert serving.asked("inventory") == 1
        fleet.clock.advance(0.1)
        yield lambda: serving.asked("inventory") == 2

    serving.serve(script())


def test_one_that_tells_no_news_is_looked_at_soon_after_a_send_and_then_ever_later(endless: Fleet) -> None:
    class Silent(FakeProvider):
        def describe(self) -> Description:
            return replace(super().describe(), wait=False)

    fleet = endless
    fleet.provider = Silent(LINEAGE)
    fleet.submit("a", "b")
    serving = Serving(fleet, interval=10)

    def script() -> Script:
        yield lambda: running(fleet, "a")() and running(fleet, "b")()
        looks = serving.asked("inventory")
        for pause in (0.5, 0.5, 1, 2, 4, 8, 10, 10):
            fleet.clock.advance(pause - 0.1)
            yield serving.after(2)
            assert serving.asked("inventory") == looks, pause
            fleet.clock.advance(0.1)
            looks += 1
            yield lambda looks=looks: serving.asked("inventory") == looks  # type: ignore[misc] # its default is its type
        fleet.provider.end_step(serving.key(1, EXECUTE), exit_code=0)
        fleet.clock.advance(10)
        yield serving.succeeded("a")

    serving.serve(script())


def test_what_falls_due_wakes_it_without_any_event(fleet: Fleet) -> None:
    serving = Serving(fleet)
    submit_for_later(fleet, "a", 60)

    def script() -> Script:
        yield serving.after(4)
        assert fleet.provider.sends() == []
        fleet.clock.advance(60)
        yield serving.succeeded("a")
        assert fleet.document.workers[1].state is not WorkerState.LOST
        fleet.clock.advance(fleet.policy.idle_ms / 1000)
        yield lambda: not fleet.document.workers

    serving.serve(script())
    looks_before_it_removes_anything = 2
    assert serving.asked("inventory") == 1 + looks_before_it_removes_anything


def test_what_falls_due_while_a_plan_is_committed_is_not_forgotten(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_for_later(fleet, "a", 60)
    serving = Serving(fleet)
    park = serving.reconciler.park

    def slowly(*args: Any, **named: Any) -> Any:
        planned = park(*args, **named)
        fleet.clock.advance(60 if fleet.clock.now_ms() == began else 0)
        return planned

    began = fleet.clock.now_ms()
    monkeypatch.setattr(serving.reconciler, "park", slowly)

    def script() -> Script:
        yield serving.succeeded("a")

    serving.serve(script())
    assert serving.asked("inventory") == 1


def test_a_create_that_asks_for_patience_is_asked_again_when_it_said_so(fleet: Fleet) -> None:
    fleet.provider.script(CREATE, Later(2, 5_000))
    fleet.submit("a")
    serving = Serving(fleet)

    def script() -> Script:
        for asked in (1, 2):
            yield lambda asked=asked: len(fleet.provider.sends(1)) == asked  # type: ignore[misc] # its default is its type
            yield serving.after(3)
            assert len(fleet.provider.sends(1)) == asked
            fleet.clock.advance(5)
        yield serving.succeeded("a")

    serving.serve(script())
    assert len({key for _, kind, key in fleet.provider.sends() if kind is CREATE}) == 1


def test_two_answers_that_come_while_it_is_busy_are_one_revision_with_what_follows(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.submit("a", "b", "c")
    serving = Serving(fleet)

    def script() -> Script:
        yield serving.succeeded("a", "b", "c")

    serving.serve(script())
    # 2 by init and submit, then: creates; answers and executes; answers and ends. More only if answers came apart.
    assert fleet.document.revision <= 2 + 1 + 3 + 3 + 3


# Slots stand alone


def test_a_slow_slot_delays_no_other(fleet: Fleet, gate: Gate) -> None:
    fleet.provider.script(CREATE, Before(gate), slot=1)
    fleet.submit("a", "b", "c", "d")
    serving = Serving(fleet)

    def script() -> Script:
        yield gate.reached.is_set
        yield serving.succeeded("b", "c", "d")
        assert fleet.action(1).type is CREATE
        gate.open()
        # Its run may have been served by another slot meanwhile; the worker is there all the same.
        yield lambda: not fleet.pending
        assert 1 in fleet.document.workers

    serving.serve(script())


def test_a_slot_is_never_asked_twice_at_once(tmp_path: Path) -> None:
    asking: set[int] = set()
    overlaps: list[int] = []

    class Watched(FakeProvider):
        def mutate(self, action: Action, *rest: object) -> object:  # type: ignore[override]
            overlaps.extend(asking & {action.slot})
            asking.add(action.slot)
            try:
                return super().mutate(action, *rest)  # type: ignore[arg-type]
            finally:
                asking.discard(action.slot)

    fleet = Fleet(tmp_path / "state", Watched(LINEAGE, ends=0, pushes=True))
    names = [f"r-{number}" for number in range(30)]
    fleet.submit(*names)
    serving = Serving(fleet)

    def script() -> Script:
        yield serving.succeeded(*names)

    serving.serve(script())
    assert overlaps == []
    assert not any(report.busy for report in serving.reports)
    assert not any(sent.unsaved for report in serving.reports for sent in report.sent)
    assert len(fleet.provider.done) == len(fleet.provider.sends()) == 33


def test_more_slots_than_threads_are_all_served(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "state", FakeProvider(LINEAGE, ends=0, pushes=True), slots=12)
    names = [f"r-{number}" for number in range(24)]
    fleet.submit(*names)
    serving = Serving(fleet, parallelism=1)

    def script() -> Script:
        yield serving.succeeded(*names)

    serving.serve(script())
    assert len(fleet.provider.done) == len(set(fleet.provider.done))


def test_what_was_parked_before_it_began_is_replayed_at_once(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.park()
    key = fleet.action(1).idempotency_key
    serving = Serving(fleet)

    def script() -> Script:
        yield serving.succeeded("a")

    serving.serve(script())
    assert fleet.provider.sends(1)[0] == (1, CREATE, key)


def test_what_others_park_is_theirs_to_send_for_a_second(fleet: Fleet) -> None:
    serving = Serving(fleet)

    def script() -> Script:
        yield serving.after(2)
        fleet.submit("a")
        fleet.park()
        key = fleet.action(1).idempotency_key
        yield serving.after(3)
        assert fleet.provider.sends() == []
        fleet.clock.advance(1)
        yield serving.succeeded("a")
        assert fleet.provider.sends(1)[0] == (1, CREATE, key)

    serving.serve(script())


def test_a_slot_that_another_process_serves_is_tried_again_a_second_later(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.park()
    serving = Serving(fleet)

    def script() -> Script:
        with fleet.context.store.hold_slot(1):
            yield serving.after(4)
            assert fleet.provider.sends() == []
        yield serving.after(4)
        assert fleet.provider.sends() == []
        fleet.clock.advance(1)
        yield serving.succeeded("a")

    serving.serve(script())
    assert serving.troubles == []
