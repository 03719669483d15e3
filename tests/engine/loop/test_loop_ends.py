"""The long-lived loop: what ends it, what it goes on under, and several at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from controller.clock import SystemClock
from controller.engine.loop import Loop
from controller.model.action import action_of
from controller.model.errors import (
    DocumentCorrupt,
    EditedOutside,
    NotFound,
)
from controller.model.records import ActionType, Document, WorkerState
from controller.provider.fake import Before, FakeProvider, Say
from controller.provider.protocol import Description, Rejected
from tests.engine.fleet import LINEAGE, Fleet
from tests.engine.serving import Gate, Script, Serving, running

CREATE, EXECUTE = ActionType.CREATE, ActionType.EXECUTE


# Its end


def test_told_to_stop_it_parks_and_sends_nothing_more_and_saves_what_is_answered(fleet: Fleet, gate: Gate) -> None:
    fleet.provider.script(CREATE, Before(gate), slot=1)
    fleet.submit("a", "b", "c")
    serving = Serving(fleet, parallelism=1)

    def script() -> Script:
        yield gate.reached.is_set
        fleet.stop.set()
        yield serving.after(2)
        gate.open()

    serving.serve(script(), leaves=False)
    document = fleet.document
    assert [slot for slot, _, _ in fleet.provider.sends()] == [1]
    assert document.workers[1].state is WorkerState.READY
    assert sorted(document.pending_actions) == [2, 3]
    assert fleet.provider.interrupted


def test_told_to_leave_it_parks_nothing_more_and_sends_what_it_parked(fleet: Fleet, gate: Gate) -> None:
    fleet.provider.script(CREATE, Before(gate), slot=1)
    fleet.submit("a", "b", "c")
    serving = Serving(fleet, parallelism=1)

    def script() -> Script:
        yield gate.reached.is_set
        serving.loop.leave()
        gate.open()

    serving.serve(script(), leaves=False)
    assert {kind for _, kind, _ in fleet.provider.sends()} == {CREATE}
    assert fleet.document.pending_actions == {}
    assert [worker.state for worker in fleet.document.workers.values()] == [WorkerState.READY] * 3


def test_it_ends_once_the_document_is_what_was_waited_for(fleet: Fleet) -> None:
    fleet.submit("a")
    seen: list[int] = []

    def until(document: Document) -> bool:
        seen.append(document.revision)
        return "a" in document.finished

    Serving(fleet).serve(iter(()), until, leaves=False)
    assert "a" in fleet.document.finished
    assert seen == sorted(set(seen)), "every revision is asked about once"


def test_its_own_commit_that_ends_a_wait_ends_it_at_once(endless: Fleet) -> None:
    fleet, serving = endless, Serving(endless)
    fleet.submit("a")
    ended: list[int] = []

    def script() -> Script:
        yield running(fleet, "a")
        yield serving.after(3)
        fleet.provider.end_step(serving.key(1, EXECUTE), exit_code=0)
        ended.append(serving.turns)

    serving.serve(script(), lambda document: "a" in document.finished, leaves=False)
    assert serving.turns <= ended[0] + 2


def test_what_the_question_raises_ends_it_with_the_answers_that_were_out_saved(fleet: Fleet, gate: Gate) -> None:
    fleet.provider.script(CREATE, Before(gate), slot=1)
    fleet.submit("a", "b")

    def until(document: Document) -> bool:
        if gate.reached.is_set() and document.pending_actions:
            threading.Timer(0.1, gate.open).start()
            raise NotFound("no such run")
        return False

    serving = Serving(fleet)
    with pytest.raises(NotFound):
        serving.serve(iter(()), until, leaves=False)
    left = {action_of(entry).idempotency_key for entry in fleet.pending.values()}
    assert set(fleet.provider.done) >= {key for _, kind, key in fleet.provider.sends() if kind is CREATE}
    assert not left.intersection(fleet.provider.done)


def test_a_broken_document_ends_it(fleet: Fleet, gate: Gate) -> None:
    fleet.provider.script(CREATE, Before(gate), slot=1)
    fleet.submit("a")
    serving = Serving(fleet)

    def script() -> Script:
        yield gate.reached.is_set
        kept = fleet.bytes()
        (fleet.directory / "controller.json").write_bytes(kept[:100])
        gate.open()
        yield serving.after(100)

    with pytest.raises(DocumentCorrupt):
        serving.serve(script())
    assert (fleet.directory / "controller.json").stat().st_size == 100


def test_an_edited_document_ends_it_and_is_left_as_it_is(fleet: Fleet) -> None:
    serving = Serving(fleet)
    path = fleet.directory / "controller.json"

    def script() -> Script:
        yield serving.after(2)
        path.write_bytes(path.read_bytes().replace(b'"draining":false', b'"draining":true '))
        yield serving.after(100)

    with pytest.raises(EditedOutside):
        serving.serve(script())
    assert b'"draining":true ' in path.read_bytes()


# What it goes on under


def test_another_policy_is_planned_for_at_once(fleet: Fleet) -> None:
    fleet.provider.script(EXECUTE, *[Say(Rejected("not now"))] * 9)
    serving = Serving(fleet)
    more = replace(fleet.policy, slots=5)

    def script() -> Script:
        fleet.submit("a", "b", "c", "d", "e")
        yield lambda: len(fleet.provider.workers) == 3
        yield serving.after(2)
        serving.loop.adopt(more)
        yield lambda: len(fleet.provider.workers) == 5

    serving.serve(script())
    assert serving.asked("inventory") == 1


def test_another_policy_is_kept_though_the_provider_describes_itself_meanwhile(fleet: Fleet) -> None:
    serving = Serving(fleet)
    adopted = replace(fleet.policy, slots=7)
    answered = fleet.provider.describe()

    class Describing(FakeProvider):
        def describe(self) -> Description:
            serving.loop.adopt(adopted)
            return replace(answered, key_ttl_ms=99)

    fleet.provider.__class__ = Describing
    serving.reconciler.look()
    assert serving.reconciler.ground.policy is adopted
    assert serving.reconciler.ground.key_ttl_ms == 99


# Several at once


def test_two_loops_over_one_directory_run_each_run_once(tmp_path: Path) -> None:
    provider = FakeProvider(LINEAGE, ends=0, pushes=True)
    fleet = Fleet(tmp_path / "state", provider)
    fleet.clock = SystemClock()  # type: ignore[assignment] # nothing here moves it
    names = [f"r-{number}" for number in range(24)]
    fleet.submit(*names[:12])
    failed: list[BaseException] = []

    def serve() -> None:
        try:
            loop = Loop(fleet.reconciler(parallelism=4))
            loop.serve(lambda document: set(document.finished).issuperset(names))
        except BaseException as error:  # noqa: BLE001 - told by the test's own thread
            failed.append(error)

    loops = [threading.Thread(target=serve) for _ in range(2)]
    for loop in loops:
        loop.start()
    fleet.submit(*names[12:])
    for loop in loops:
        loop.join(30)
        assert not loop.is_alive()
    assert failed == []
    executed = [key for _, kind, key in provider.sends() if kind is EXECUTE]
    assert len([key for key in provider.done if key in executed]) == len(names)
    assert len(set(provider.done)) == len(provider.done)
    assert all(stone.token == 1 for stone in fleet.document.finished.values())
