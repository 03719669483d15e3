"""The long-lived loop: what it outlasts, how it tells of it, and how it rests."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import NoReturn

import pytest

from controller.model.action import Action
from controller.model.errors import (
    LockBusy,
    LockLost,
    ProviderFailed,
    StorageFailed,
)
from controller.model.inventory import Inventory
from controller.model.records import ActionType, RunState
from controller.provider.fake import After, Before, FakeProvider
from controller.provider.protocol import News
from controller.store import disk
from tests.engine.fleet import LINEAGE, Fleet
from tests.engine.serving import Gate, Script, Serving, running, submit_for_later

CREATE, EXECUTE = ActionType.CREATE, ActionType.EXECUTE
FAILED = ProviderFailed("the provider is away", where="test")


# Trouble


def test_a_provider_that_cannot_look_is_asked_for_nothing_new_but_for_what_is_parked(fleet: Fleet) -> None:
    fleet.provider.script_look(*[FAILED] * 3)
    fleet.submit("a")
    fleet.park()
    fleet.submit("b")
    serving = Serving(fleet, interval=10)

    def script() -> Script:
        yield lambda: not fleet.pending
        yield serving.after(3)
        assert fleet.provider.sends() == [(1, CREATE, fleet.provider.done[0])]
        assert fleet.document.runs["b"].state is RunState.QUEUED
        for _ in range(3):
            fleet.clock.advance(10)
            yield serving.after(2)
        yield serving.succeeded("a", "b")

    serving.serve(script())


def test_ends_that_are_pushed_wait_while_the_provider_cannot_look(endless: Fleet) -> None:
    fleet, serving = endless, Serving(endless, interval=10)
    fleet.submit("a")

    def script() -> Script:
        yield running(fleet, "a")
        fleet.provider.script_look(FAILED)
        fleet.clock.advance(10)
        yield lambda: bool(serving.troubles)
        fleet.provider.end_step(serving.key(1, EXECUTE), exit_code=0)
        yield serving.after(3)
        assert fleet.document.runs["a"].state is RunState.RUNNING
        fleet.clock.advance(10)
        yield serving.succeeded("a")

    serving.serve(script())


def test_trouble_is_told_once_while_it_lasts_and_again_after_it_was_over(fleet: Fleet) -> None:
    fleet.provider.script_look(*[FAILED] * 4)
    serving = Serving(fleet, interval=10)

    def script() -> Script:
        for looks in range(1, 7):
            yield lambda looks=looks: serving.asked("inventory") == looks  # type: ignore[misc] # its default is its type
            yield serving.after(2)
            assert serving.troubles == [FAILED.what]
            fleet.clock.advance(10)
        fleet.clock.advance(60)
        fleet.provider.script_look(FAILED)
        yield lambda: serving.troubles == [FAILED.what] * 2

    serving.serve(script())


def test_each_of_several_troubles_of_one_look_is_told(fleet: Fleet) -> None:
    fleet.provider.script_look(Inventory(True, (), (1, 2), ("worker 1-a-1 is unreadable", "worker 2-a-2 is too")))
    serving = Serving(fleet)

    def script() -> Script:
        yield lambda: bool(serving.troubles)

    serving.serve(script())
    assert serving.troubles == ["worker 1-a-1 is unreadable", "worker 2-a-2 is too"]


@pytest.mark.parametrize(
    "trouble", [LockBusy("held"), StorageFailed("full"), FAILED, LockLost("its file was removed")], ids=lambda e: e.code
)
def test_trouble_that_may_pass_is_outlasted(fleet: Fleet, trouble: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.submit("a", "b")
    serving = Serving(fleet)
    real, fails = serving.reconciler.park, [3]

    def park(*args: object, **options: object) -> object:
        if fails[0]:
            fails[0] -= 1
            for waiting in options.get("waiting", ()):  # type: ignore[attr-defined]
                waiting.settle(None)
            raise trouble
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(serving.reconciler, "park", park)

    def script() -> Script:
        yield lambda: fails[0] == 2
        yield serving.after(3)
        assert fails[0] == 2, "not tried again at once"
        serving.tick = 0.5
        yield serving.succeeded("a", "b")

    serving.serve(script())
    assert serving.troubles == [str(trouble)]
    assert serving.asked("inventory") == 1, "the look was not lost"


def test_a_full_disk_is_outlasted_and_nothing_is_asked_twice(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.submit("a", "b")
    full = [False]
    write = disk.write_at

    def maybe(descriptor: int, data: bytes, offset: int) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(descriptor, data, offset)

    def fill(_: Action) -> None:
        full[0] = True

    monkeypatch.setattr(disk, "write_at", maybe)
    fleet.provider.script(CREATE, After(fill), slot=1)
    serving = Serving(fleet)

    def script() -> Script:
        yield lambda: bool(serving.troubles)
        yield serving.after(2)
        assert 1 in fleet.pending
        serving.tick = 0.5
        yield serving.after(6)
        assert 1 in fleet.pending
        full[0] = False
        yield serving.succeeded("a", "b")

    serving.serve(script())
    assert len(fleet.provider.done) == len(set(fleet.provider.done)) == 4
    unsaved = [sent for report in serving.reports for sent in report.sent if sent.unsaved is not None]
    assert len({sent.key for sent in unsaved}) == len(unsaved) > 0


def test_a_look_that_fails_in_a_way_nobody_foresaw_is_told_and_tried_again(fleet: Fleet) -> None:
    def fail() -> NoReturn:
        raise ZeroDivisionError("by a bug")

    fleet.provider.script_look(fail)
    fleet.submit("a")
    serving = Serving(fleet, interval=10)

    def script() -> Script:
        yield lambda: bool(serving.troubles)
        fleet.clock.advance(10)
        yield serving.succeeded("a")

    serving.serve(script())
    assert "ZeroDivisionError" in serving.troubles[0]


def test_a_wait_that_fails_in_a_way_nobody_foresaw_leaves_looks(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: float) -> News:
        raise ZeroDivisionError("by a bug")

    monkeypatch.setattr(fleet.provider, "wait", fail)
    fleet.submit("a")
    serving = Serving(fleet, interval=10, tick=2.5)

    def script() -> Script:
        yield serving.succeeded("a")

    serving.serve(script())
    assert serving.asked("inventory") > 1, "looks go on"
    assert any("ZeroDivisionError" in trouble for trouble in serving.troubles), "and it is told"


def test_a_send_that_fails_in_a_way_nobody_foresaw_stays_parked_and_is_tried_again(fleet: Fleet) -> None:
    def fail(_: Action) -> NoReturn:
        raise ZeroDivisionError("by a bug")

    fleet.provider.script(CREATE, Before(fail), slot=1)
    fleet.submit("a", "b")
    serving = Serving(fleet, tick=0.25)

    def script() -> Script:
        yield serving.succeeded("a", "b")
        yield lambda: not fleet.pending

    serving.serve(script())
    assert "ZeroDivisionError" in serving.troubles[0]


def test_a_moment_that_passes_while_it_is_looked_at_crashes_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = Serving(fleet)
    submit_for_later(fleet, "a", 0.05)
    now_ms = fleet.clock.now_ms

    def passing() -> int:
        fleet.clock.jump(0.001)
        return now_ms()

    monkeypatch.setattr(fleet.clock, "now_ms", passing)

    def script() -> Script:
        yield serving.succeeded("a")

    serving.serve(script())
    assert serving.troubles == []


# Rest


@pytest.mark.parametrize("why", ["idle", "due", "failing", "looking", "held", "full"])
def test_it_turns_four_times_a_second_at_most_when_there_is_nothing_to_do(
    tmp_path: Path, gate: Gate, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(tmp_path / "state", FakeProvider(LINEAGE, ends=0, pushes=True))
    serving = Serving(fleet)
    match why:
        case "due":
            fleet.submit("a")
            fleet.provider.script(CREATE, Before(gate))
        case "failing":
            fleet.provider.script_look(*[FAILED] * 99)
        case "looking":
            fleet.provider.script_look(gate)
            fleet.submit("a")
        case "full":
            fleet.submit("a")
            monkeypatch.setattr(disk, "write_at", _refuse)

    def script() -> Script:
        yield serving.after(2)
        if why == "due":
            yield gate.reached.is_set
            fleet.clock.jump(-7_200)  # whatever was due lies two hours ahead, or behind
            yield serving.after(1)
            fleet.clock.jump(14_400)
            yield serving.after(1)
        if why == "held":
            held = fleet.context.store.hold(0)
            with held:
                began, turns = time.monotonic(), serving.turns
                yield lambda: time.monotonic() >= began + 0.6
                assert serving.turns - turns <= 4
            return
        began, turns = time.monotonic(), serving.turns
        yield lambda: time.monotonic() >= began + 0.6
        assert serving.turns - turns <= 4
        gate.open()

    serving.serve(script())


def _refuse(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")
