"""A claim's block: what its end does to the run, what interrupts it, and that nothing does afterwards."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from msgspec import Raw

from controller import (
    Busy,
    CancelRequested,
    Claim,
    LeaseLost,
    NotFound,
    Queue,
    Run,
    RunState,
    StepState,
    TransitionRefused,
    UsageFault,
)
from controller.api.interrupt import Interrupt, shielded
from controller.engine import leases
from controller.model.errors import LockBusy, StorageFailed
from controller.store.file import _held
from tests.api.claiming import LEASE, Beats, Scene, spin, wait_in_a_loop, within
from tests.store.kit import snapshot_of


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Queue `mail`, and its run `a` of two attempts. No heartbeats are left behind."""
    made = Scene(tmp_path / "state")
    made.submit("a", payload={"to": "ops"})
    yield made
    gc.collect()
    assert [each.name for each in threading.enumerate() if "heartbeats" in each.name] == []
    assert not _held


def claim(scene: Scene, beats: Beats | None = None) -> Claim:
    queue = scene.queue if beats is None else Queue(scene.controller, "mail", pause=beats)
    return queue.claim(owner="me", lease=LEASE)


def value(raw: object) -> object:
    assert isinstance(raw, Raw)
    return json.loads(bytes(raw))


def joined(held: Claim) -> None:
    """Wait until its heartbeats have ended by themselves."""
    assert held._thread is not None
    held._thread.join()


# How a block ends


def test_a_block_that_ends_completes_its_run(scene: Scene) -> None:
    with claim(scene) as held:
        assert (held.id, held.token, held.payload) == ("a", 1, {"to": "ops"})
        assert scene.run("a").state == "running"
    assert scene.stone("a").state == "succeeded"
    assert held.outcome == scene.stone("a")


def test_the_result_that_was_set_is_kept_with_the_run(scene: Scene) -> None:
    with claim(scene) as held:
        held.result = {"sent": [1, 2.5, None]}
    assert value(scene.stone("a").result) == {"sent": [1, 2.5, None]}


def test_an_exception_retries_the_run_and_propagates(scene: Scene) -> None:
    with pytest.raises(ZeroDivisionError), claim(scene):
        raise ZeroDivisionError("no\nsuch \udc80 thing")
    run = scene.run("a")
    assert (run.state, run.failures, run.crashes) == ("queued", 1, 0)
    assert run.last_error == "ZeroDivisionError: no\nsuch \\udc80 thing"


def test_an_exception_on_the_last_attempt_leaves_the_run_dead(scene: Scene) -> None:
    scene.submit("z", attempts=1, priority="critical")
    with pytest.raises(KeyError), claim(scene):
        raise KeyError("gone")
    assert (scene.run("z").state, scene.run("z").last_error) == ("failed", "KeyError: 'gone'")


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_the_program_gives_the_run_back_and_spends_nothing(scene: Scene, end: type[BaseException]) -> None:
    with pytest.raises(end), claim(scene):
        raise end
    run = scene.run("a")
    assert (run.state, run.failures, run.crashes) == ("queued", 0, 0)
    assert claim(scene).token == 2


def test_a_block_may_report_the_end_itself_and_what_comes_after_is_its_own(scene: Scene) -> None:
    with claim(scene) as held:
        assert held.fail("no such person", "invalid_payload").state == "failed"
    assert (scene.run("a").reason, scene.run("a").last_error) == ("invalid_payload", "no such person")
    scene.submit("b")
    held = claim(scene)
    with pytest.raises(ZeroDivisionError):
        within(held, lambda: held.complete({"done": True}), lambda: 1 // 0)
    assert value(scene.stone("b").result) == {"done": True}


def test_a_block_whose_run_was_reported_by_other_means_ends_quietly(scene: Scene) -> None:
    with claim(scene) as held:
        scene.another().queue("mail").retry(held.id, held.token, "by hand")
    assert scene.run("a").last_error == "by hand"
    scene.submit("b")
    with claim(scene) as held:
        scene.another().queue("mail").complete(held.id, held.token)
        scene.clock.advance(LEASE / 2)
        scene.beats.go_on()
        joined(held)
    assert scene.stone("b").state == "succeeded"


def test_a_result_that_is_no_json_is_refused_and_the_run_retried(scene: Scene) -> None:
    with pytest.raises(UsageFault, match="set is not JSON"), claim(scene) as held:
        held.result = {"a": {1, 2}}
    assert (scene.run("a").state, scene.run("a").failures) == ("queued", 1)


def test_a_block_that_leaves_steps_open_is_refused_and_the_run_retried(scene: Scene) -> None:
    steps = [{"name": "one", "argv": ["true"]}, {"name": "two", "argv": ["true"]}]
    scene.controller.submit(steps=steps, queue="mail", id="s", priority="critical", attempts=2)
    with pytest.raises(TransitionRefused) as refusal, claim(scene) as held:
        held.step("one", "started")
    assert refusal.value.why == "steps_not_terminal"
    assert (scene.run("s").state, scene.run("s").failures) == ("queued", 1)
    scene.controller.queue("mail").promote("s")
    with claim(scene) as held:
        for name in ("one", "two"):
            held.step(name, "started")
            held.step(name, "succeeded")
    assert [step.state for step in scene.stone("s").steps] == [StepState.SUCCEEDED, StepState.SUCCEEDED]


def test_the_next_run_is_claimed_in_the_same_commit_and_has_a_block_of_its_own(scene: Scene) -> None:
    scene.submit("b")
    done = []
    held = claim(scene)
    while held:
        with held:
            done.append(held.id)
            following = held.complete(claim_next=True)
        held = following
    assert done == ["a", "b"]
    assert (scene.stone("a").state, scene.stone("b").state) == ("succeeded", "succeeded")


def test_an_end_that_cannot_be_recorded_is_raised_and_may_be_reported_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object, **__: object) -> NoReturn:
        raise LockBusy("somebody holds it")

    with monkeypatch.context() as held_up:
        held_up.setattr(leases, "complete", busy)
        with pytest.raises(Busy), claim(scene) as held:
            pass
    assert scene.run("a").state == "running"
    held.complete()
    assert scene.stone("a").state == "succeeded"


def test_a_retry_that_cannot_be_recorded_hides_no_exception(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise StorageFailed("the disk is full")

    monkeypatch.setattr(leases, "retry", full)
    with pytest.raises(ZeroDivisionError) as raised, claim(scene):
        raise ZeroDivisionError
    assert raised.value.__notes__ == ["controller: run a could not be given back: the disk is full"]


# Nothing claimed


def test_an_empty_claim_is_false_and_its_block_does_nothing(scene: Scene) -> None:
    first = claim(scene)
    before = snapshot_of(scene.directory)
    with claim(scene) as nothing:
        assert not nothing
        assert nothing.payload is None
        nothing.check()
        with pytest.raises(NotFound, match="nothing was claimed"):
            _ = nothing.run
    assert snapshot_of(scene.directory) == before
    assert first


def test_an_empty_claims_block_hides_no_exception(scene: Scene) -> None:
    first = claim(scene)
    with pytest.raises(ZeroDivisionError), claim(scene):
        raise ZeroDivisionError
    assert first.id == "a"


def test_a_claim_is_for_one_block(scene: Scene) -> None:
    held = claim(scene)
    with held:
        pass
    with pytest.raises(UsageFault, match="for one block"), held:
        pass


# Heartbeats


def test_heartbeats_renew_the_lease_every_third_of_it(scene: Scene) -> None:
    with claim(scene) as held:
        for _ in range(9):
            scene.clock.advance(LEASE / 3)
            scene.beats.turn()
            assert scene.another().queue("mail").reap() == ()
        lease = held.run.lease
        assert lease is not None
        assert lease.deadline_ms == round((scene.clock.monotonic() + LEASE) * 1000)
    assert scene.stone("a").token == 1


def test_a_block_that_begins_late_has_its_first_heartbeat_at_once(scene: Scene) -> None:
    held = claim(scene)
    scene.clock.advance(LEASE * 0.9)
    with held:
        scene.beats.turn()
        scene.clock.advance(LEASE * 0.9)
        assert scene.another().queue("mail").reap() == ()
    assert scene.stone("a").state == "succeeded"


def test_a_heartbeat_of_the_block_keeps_its_progress(scene: Scene) -> None:
    with claim(scene) as held:
        held.heartbeat(progress={"percent": 40})
        assert value(scene.run("a").progress) == {"percent": 40}


@pytest.mark.parametrize("trouble", [LockBusy, StorageFailed])
def test_a_heartbeat_that_cannot_be_recorded_is_tried_again_until_the_lease_must_be_over(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, trouble: type[LockBusy | StorageFailed]
) -> None:
    began = scene.clock.monotonic()
    asked = []

    def hindered(*_: object, **__: object) -> NoReturn:
        asked.append(scene.clock.monotonic() - began)
        raise trouble("not now")

    def seconds_pass() -> None:
        for _ in range(29):
            scene.clock.advance(1)
            scene.beats.turn()
            held.check()
        assert asked == [10, 13, 16, 19, 22, 25, 28]
        scene.clock.advance(1)

    held = claim(scene)
    monkeypatch.setattr(leases, "heartbeat", hindered)
    with pytest.raises(LeaseLost, match="lease of run a ran out while it could not be renewed: not now") as lost:
        within(held, seconds_pass, scene.beats.go_on, spin)
    assert asked[-1] == LEASE
    assert "run a, token 1" in lost.value.where
    assert scene.run("a").state == "running"  # nothing was reported: whoever reaps it says what becomes of it


def test_a_heartbeat_that_was_hindered_once_is_none_the_worse(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def hindered(*_: object, **__: object) -> NoReturn:
        raise LockBusy("not now")

    with claim(scene):
        with monkeypatch.context() as hindrance:
            hindrance.setattr(leases, "heartbeat", hindered)
            scene.clock.advance(LEASE / 2)
            scene.beats.turn()
        scene.clock.advance(LEASE / 4)
        scene.beats.turn()
        scene.clock.advance(LEASE / 2)
        assert scene.another().queue("mail").reap() == ()
    assert scene.stone("a").state == "succeeded"


# Interruptions


def test_a_lost_lease_raises_in_a_block_that_is_busy_and_nothing_is_reported(scene: Scene) -> None:
    with pytest.raises(LeaseLost, match="run a is running") as lost:
        within(claim(scene), lambda: scene.lose("a"), scene.beats.go_on, spin)
    assert type(lost.value).__name__ == "LeaseLost"
    assert (lost.value.code, lost.value.exit) == ("lease_lost", 3)
    run = scene.run("a")
    assert run.lease is not None
    assert (run.lease.owner, run.attempts, run.failures, run.crashes) == ("another", 2, 0, 1)


def test_a_requested_cancel_raises_in_the_block_and_the_run_ends_as_cancelled(scene: Scene) -> None:
    with pytest.raises(CancelRequested, match="run a is to be cancelled"):
        within(claim(scene), lambda: scene.cancel("a"), scene.beats.go_on, spin)
    run = scene.run("a")
    assert (run.state, run.reason, run.failures) == ("cancelled", "cancelled", 0)


def test_check_raises_what_heartbeats_have_found_out(scene: Scene) -> None:
    held = claim(scene)
    held.check()
    scene.cancel("a")
    held.check()  # nobody has found out yet
    held.heartbeat()
    with pytest.raises(CancelRequested):
        held.check()
    with pytest.raises(CancelRequested):
        within(held, held.check)
    assert scene.run("a").state == "cancelled"


def test_what_check_raised_is_not_raised_again(scene: Scene) -> None:
    raised: list[CancelRequested] = []

    def work() -> None:
        scene.cancel("a")
        with shielded():
            scene.beats.turn()
            try:
                held.check()
            except CancelRequested as error:
                raised.append(error)
        for _ in range(100_000):
            pass
        held.drain()

    held = claim(scene)
    within(held, work)
    assert len(raised) == 1
    assert scene.run("a").state == "cancelled"


def test_a_block_that_swallows_the_interruption_does_not_pass_for_done(scene: Scene) -> None:
    def swallow() -> None:
        with pytest.raises((CancelRequested, LeaseLost)):
            scene.beats.turn()

    with pytest.raises(CancelRequested):
        within(claim(scene), lambda: scene.cancel("a"), swallow)
    assert scene.run("a").state == "cancelled"
    scene.submit("b")
    with pytest.raises(LeaseLost):
        within(claim(scene), lambda: scene.lose("b"), swallow)
    assert scene.run("b").attempts == 2


def test_a_block_that_says_itself_that_it_stops_hears_no_more_of_it(scene: Scene) -> None:
    with claim(scene) as held:
        scene.cancel("a")
        with pytest.raises(CancelRequested):
            scene.beats.turn()
        assert held.drain().state == "cancelled"
    assert held.outcome == scene.run("a")


def test_a_block_that_a_cancel_did_not_reach_in_time_ends_as_cancelled(scene: Scene) -> None:
    with pytest.raises(CancelRequested):
        within(claim(scene), lambda: scene.cancel("a"))
    assert scene.run("a").state == "cancelled"


def test_a_block_that_finished_for_another_holder_has_lost_its_lease(scene: Scene) -> None:
    held = claim(scene)
    held.result = "too late"
    with pytest.raises(LeaseLost, match="run a is running") as lost:
        within(held, lambda: scene.lose("a"))
    assert "token 1 is stale; the current token is 2, held by another" in lost.value.where
    run = scene.run("a")
    assert (run.state, run.attempts) == ("running", 2)


def test_a_block_whose_run_was_discarded_has_lost_its_lease(scene: Scene) -> None:
    def discard() -> None:
        scene.another().queue("mail").discard("a")
        scene.clock.advance(LEASE / 2)

    with pytest.raises(LeaseLost):
        within(claim(scene), discard, scene.beats.go_on, spin)
    assert scene.stone("a").reason == "discarded"


def test_every_report_of_a_claim_whose_lease_was_lost_raises_that(scene: Scene) -> None:
    held = claim(scene)
    scene.lose("a")
    reports = (
        held.complete,
        held.heartbeat,
        held.drain,
        lambda: held.retry("no"),
        lambda: held.fail("no"),
        lambda: held.step("main", "started"),
    )
    for report in reports:
        with pytest.raises(LeaseLost):
            report()
    assert scene.run("a").attempts == 2


def test_an_interruption_that_comes_at_the_door_of_the_exit_ends_the_run_all_the_same(scene: Scene) -> None:
    """A block may wait where no byte code passes before the exit is called; Python does not call that again."""
    held = claim(scene)
    scene.cancel("a")
    with pytest.raises(CancelRequested):
        wait_in_a_loop(scene.beats, held)
    assert not held._left
    scene.beats.go_on()
    joined(held)
    assert scene.run("a").state == "cancelled"


def test_a_lease_that_is_lost_while_a_cancel_is_heeded_outdoes_it(scene: Scene) -> None:
    def clean_up() -> None:
        with pytest.raises(CancelRequested):
            scene.beats.turn()
        scene.clock.advance(LEASE)
        assert [each.run.state for each in scene.another().queue("mail").reap()] == ["cancelled"]

    with pytest.raises(LeaseLost, match="run a is cancelled"):
        within(claim(scene), lambda: scene.cancel("a"), clean_up, scene.beats.go_on, spin)


def test_a_lease_that_was_given_up_is_not_renewed_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def hindered(*_: object, **__: object) -> NoReturn:
        raise LockBusy("not now")

    def give_up() -> None:
        with monkeypatch.context() as hindrance:
            hindrance.setattr(leases, "heartbeat", hindered)
            scene.clock.advance(LEASE)
            with pytest.raises(LeaseLost):
                scene.beats.turn()
        scene.clock.advance(LEASE)
        scene.beats.turn()

    held = claim(scene)
    granted = held.run.lease
    with pytest.raises(LeaseLost):
        within(held, give_up)
    assert scene.run("a").lease == granted


# Never afterwards


def test_what_is_found_out_during_the_last_report_is_not_raised(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    drain = leases.drain

    def found_out(*arguments: Any) -> Run:
        assert held._holding is not None
        held._holding.interrupt.want(held._holding.cancelled())
        return drain(*arguments)

    held = claim(scene)
    monkeypatch.setattr(leases, "drain", found_out)
    within(held, held.drain, lambda: sum(range(100_000)))
    assert scene.run("a").state == "queued"


def test_what_arrives_inside_the_exit_has_arrived_in_the_block(scene: Scene) -> None:
    held = claim(scene)
    holding, me = held._holding, threading.get_ident()
    assert holding is not None
    locked = threading.Event()

    def find_out() -> None:
        thread = holding.interrupt._thread
        assert thread is not None
        with thread.lock:
            locked.set()
            while sys._current_frames()[me].f_code is not Interrupt.end.__code__:
                pass
            holding.interrupt._keep(holding.cancelled())
            thread.settle()

    finder = threading.Thread(target=find_out)
    with pytest.raises(CancelRequested) as arrived:
        within(held, finder.start, locked.wait)
    finder.join()
    assert arrived.value is holding.interrupt.arrived
    assert scene.run("a").state == "queued"  # nobody had asked for it: this one was made up


def test_nothing_is_raised_after_the_block(scene: Scene) -> None:
    """Heartbeats find out about a cancel while the block ends; whatever that raises must be raised by the block."""
    scene.controller.queue("mail").discard("a")
    arrived = 0
    for number in range(60):
        run = f"r{number}"
        scene.submit(run)
        beats = Beats()
        held = claim(scene, beats)
        scene.cancel(run)
        try:
            with held:
                beats.go_on()
                for _ in range(2_000 * number):
                    pass
        except CancelRequested:
            arrived += 1
        for _ in range(50_000):
            pass
        if not held._left:
            beats.go_on()
            joined(held)
        assert scene.run(run).state == "cancelled"
    assert arrived == 60


def test_a_hold_of_the_block_is_not_interrupted_half_way(scene: Scene) -> None:
    reached: list[str] = []

    def hold() -> None:
        with scene.controller.store.hold(5):
            assert holding is not None
            holding.interrupt.want(holding.cancelled())
            for _ in range(100_000):
                pass
            reached.append("the end of the hold")
        reached.append("beyond")

    held = claim(scene)
    holding = held._holding
    with pytest.raises(CancelRequested):
        within(held, hold)
    assert reached == ["the end of the hold"]
    scene.submit("b")


# Several


def test_an_inner_block_is_interrupted_without_the_outer_one(scene: Scene) -> None:
    scene.submit("b")
    inner_beats = Beats()

    def lose_the_inner() -> None:
        for _ in range(2):
            scene.clock.advance(LEASE * 0.75)
            outer.heartbeat()
        assert [each.run.id for each in scene.another().queue("mail").reap()] == ["b"]

    with claim(scene) as outer:
        with pytest.raises(LeaseLost, match="run b"):
            within(claim(scene, inner_beats), lose_the_inner, inner_beats.go_on, spin)
        outer.check()
    assert scene.stone("a").state == "succeeded"
    assert (scene.run("b").state, scene.run("b").crashes, scene.run("b").failures) == ("queued", 1, 0)


def test_an_outer_block_that_is_interrupted_gives_the_inner_ones_run_back(scene: Scene) -> None:
    scene.submit("b")
    outer, inner = claim(scene), claim(scene, Beats())
    scene.cancel("a")
    with pytest.raises(CancelRequested, match="run a"):
        within(outer, lambda: within(inner, scene.beats.go_on, spin))
    assert scene.run("a").state == "cancelled"
    assert (scene.run("b").state, scene.run("b").crashes, scene.run("b").failures) == ("queued", 0, 0)


def test_an_outer_interruption_at_the_door_of_the_inner_exit_gives_the_inner_run_back(scene: Scene) -> None:
    scene.submit("b")
    outer, inner = claim(scene), claim(scene, Beats())
    scene.cancel("a")
    with pytest.raises(CancelRequested, match="run a"):
        within(outer, lambda: wait_in_a_loop(scene.beats, inner))
    assert not inner._left
    assert scene.run("a").state == "cancelled"
    assert (scene.run("b").state, scene.run("b").crashes, scene.run("b").failures) == ("queued", 0, 0)
    joined(inner)


def test_each_thread_is_interrupted_for_its_own_run(scene: Scene) -> None:
    scene.submit("b", "c")
    ended: dict[str, str] = {}
    working = threading.Barrier(4)
    beats: dict[str, Beats] = {}
    turns = threading.Lock()

    def consume() -> None:
        own = Beats()
        queue = Queue(scene.another(), "mail", pause=own)
        with turns:
            held = queue.claim(lease=LEASE)
        beats[held.id] = own
        try:
            with held:
                working.wait()
                if held.id == "b":
                    spin()
                working.wait()
        except (LeaseLost, CancelRequested) as error:
            ended[held.id] = type(error).__name__
            working.wait()
        else:
            ended[held.id] = "completed"

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    working.wait()
    scene.cancel("b")
    beats["b"].go_on()
    working.wait()
    for thread in threads:
        thread.join()
    assert ended == {"a": "completed", "b": "CancelRequested", "c": "completed"}
    assert {run: scene.get(run).state for run in ("a", "b", "c")} == {
        "a": RunState.SUCCEEDED,
        "b": RunState.CANCELLED,
        "c": RunState.SUCCEEDED,
    }


def test_a_claim_that_was_dropped_in_its_block_is_given_back(scene: Scene) -> None:
    held = claim(scene)
    held.__enter__()
    heartbeats = held._thread
    assert heartbeats is not None
    scene.beats.turn()
    del held
    gc.collect()
    scene.beats.go_on()
    heartbeats.join()
    run = scene.run("a")
    assert (run.state, run.failures, run.crashes) == ("queued", 0, 0)


def test_a_claim_whose_thread_ended_in_its_block_is_given_back(scene: Scene) -> None:
    kept = []

    def begin() -> None:
        kept.append(Queue(scene.another(), "mail", pause=scene.beats).claim(lease=LEASE).__enter__())

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    scene.beats.go_on()
    joined(kept[0])
    assert scene.run("a").state == "queued"


def test_a_fork_that_unwinds_says_nothing_of_the_block(scene: Scene) -> None:
    child = None
    try:
        with claim(scene):
            child = os.fork()
            if child == 0:
                raise SystemExit
            os.waitpid(child, 0)
            assert scene.run("a").state == "running"
    finally:
        if child == 0:
            os._exit(0)
    assert scene.stone("a").state == "succeeded"
