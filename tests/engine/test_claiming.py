"""Claims that wait: when a waiter looks, what it does when it is told, and what it never does. On a made-up clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from msgspec import Raw, structs

from controller.clock import FakeClock
from controller.engine import leases, upkeep
from controller.engine.claiming import OTHERS_LOOK, SOONEST_LOOK, claim_waiting
from controller.engine.queue import Context, submit
from controller.engine.submission import Submission
from controller.model.errors import Conflict, DocumentMissing, LockBusy
from controller.model.records import Run, new_document
from controller.provider.process import own_identity
from controller.store.memory import MemoryDisk, MemoryStore
from controller.store.protocol import Hold, Snapshot
from controller.store.waiters import Waiters, Waiting
from tests.store import kit

QUEUE = "default"


class Counting(MemoryStore):
    """Counts looks and holds, and can be held by somebody else for ever."""

    def __init__(self, disk: MemoryDisk, clock: FakeClock) -> None:
        super().__init__(disk, clock=clock, whoami=own_identity(), command="test")
        self.looks: list[float] = []
        self.holds = 0
        self.busy = False

    def read(self) -> Snapshot:
        self.looks.append(self.clock.monotonic())
        return super().read()

    def hold(self, timeout: float) -> AbstractContextManager[Hold]:
        self.holds += 1
        if self.busy:
            raise LockBusy("held", where="memory", next="wait")
        return super().hold(timeout)


class Line:
    """A line with one waiter in it whose time passes at once. Events happen at their seconds after the beginning."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.began = clock.monotonic()
        self.events: list[tuple[float, Callable[[], object]]] = []
        self.is_first = True
        self.deaf = False
        self.others = 0
        self.stood = 0
        self.left = True
        self.told = False
        self.woken: list[str] = []
        self.waits: list[float] = []

    def at(self, seconds: float, event: Callable[[], object]) -> None:
        self.events.append((self.began + seconds, event))

    @property
    def passed(self) -> float:
        return round(self.clock.monotonic() - self.began, 6)

    def anybody(self) -> bool:
        return not self.left or self.others > 0

    def wake(self, queue: str, most: int) -> int:
        self.woken += [queue] * most
        self.told = self.told or (queue == QUEUE and not self.left and not self.deaf)
        return most

    def waiting(self, queue: str) -> Line:
        assert queue == QUEUE
        return self

    def __enter__(self) -> Self:
        self.stood += 1
        self.left = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.left = True

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        ends = self.clock.monotonic() + seconds
        for event in sorted(self.events, key=lambda event: event[0]):
            if event[0] <= ends and not self.told:
                self.events.remove(event)
                self.clock.advance(max(0.0, event[0] - self.clock.monotonic()))
                event[1]()
        if not self.told:
            self.clock.advance(max(0.0, ends - self.clock.monotonic()))
        told, self.told = self.told, False
        return told

    def first(self) -> bool:
        return self.is_first

    def close(self) -> bool:
        self.left = True
        return False


class Scene:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.disk = MemoryDisk(new_document("test", "lineage"))
        self.store = Counting(self.disk, self.clock)
        self.line = Line(self.clock)
        self.context = Context(self.store, self.clock, "test", boot_id="boot")

    @property
    def others(self) -> Context:
        """Another process: what it commits wakes who waits."""
        store = MemoryStore(self.disk, clock=self.clock, whoami=kit.OTHER, command="other")
        waiters: Any = self.line
        return Context(store, self.clock, "other", boot_id="boot", waiters=waiters)

    def submit(self, *ids: str, **fields: Any) -> None:
        chosen: dict[str, Any] = {"queue": QUEUE, "max_attempts": 3, "payload": Raw(b"{}")} | fields
        submit(self.others, [Submission(id=each, **chosen) for each in ids])

    def taken_by_another(self, lease: float = 60.0, **fields: Any) -> Run:
        """Some run that another consumer got, and how long its lease lasts."""
        self.submit("taken", **fields)
        (run,) = leases.claim(self.others, QUEUE, owner="other", lease_ms=round(lease * 1000))
        self.line.woken.clear()
        return run

    def claim(self, wait: float = 0.0, count: int = 1, stop: Callable[[], bool] = lambda: False) -> tuple[Run, ...]:
        self.store.looks.clear()
        self.store.holds = 0
        wait_ms = round(wait * 1000)
        return claim_waiting(
            self.context, self.line, QUEUE, owner="me", lease_ms=60_000, count=count, wait_ms=wait_ms, stop=stop
        )

    def claimed(self, wait: float = 0.0, count: int = 1) -> list[str]:
        return [run.id for run in self.claim(wait, count)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


class TestWithoutWaiting:
    def test_what_is_there_is_claimed_at_once(self, scene: Scene) -> None:
        scene.submit("a", "b")
        assert scene.claimed(wait=10) == ["a"]
        assert (scene.line.passed, scene.line.stood, scene.store.looks) == (0, 0, [])

    def test_nothing_is_answered_at_once_to_whoever_does_not_wait(self, scene: Scene) -> None:
        assert scene.claimed() == []
        assert (scene.line.passed, scene.line.stood) == (0, 0)

    def test_a_queue_of_the_fleet_is_refused_at_once(self, scene: Scene) -> None:
        with pytest.raises(Conflict):
            claim_waiting(scene.context, scene.line, "fleet", owner="me", lease_ms=None, count=1, wait_ms=10_000)
        assert (scene.line.passed, scene.line.stood) == (0, 0)

    def test_what_others_lost_is_taken_back_first(self, scene: Scene) -> None:
        scene.taken_by_another(lease=1)
        scene.clock.advance(1)
        (run,) = scene.claim()
        assert (run.id, run.attempts) == ("taken", 2)


class TestANotification:
    def test_is_followed_at_once(self, scene: Scene) -> None:
        scene.line.is_first = False
        scene.line.at(3.1, lambda: scene.submit("a"))
        assert scene.claimed(wait=10) == ["a"]
        assert (scene.line.passed, scene.line.left) == (3.1, True)

    def test_for_what_another_has_taken_takes_no_lock(self, scene: Scene) -> None:
        scene.line.is_first = False
        scene.line.at(0.1, lambda: scene.line.wake(QUEUE, 1))
        assert scene.claimed(wait=1) == []
        assert (scene.line.passed, scene.store.holds) == (1, 1)

    def test_between_the_first_try_and_the_place_in_line_is_not_missed(self, scene: Scene) -> None:
        """Nobody is told of what came before it stood in line: it looks once it does."""
        stands = scene.line.waiting

        def late(queue: str) -> Line:
            scene.submit("a")
            return stands(queue)

        scene.line.waiting = late  # type: ignore[method-assign]
        assert scene.claimed(wait=10) == ["a"]
        assert scene.line.passed == 0

    def test_in_the_last_moment_is_followed_too(self, scene: Scene) -> None:
        scene.line.is_first = False
        scene.line.at(1.0, lambda: scene.submit("a"))
        assert scene.claimed(wait=1) == ["a"]

    def test_of_a_resumed_queue_is_followed(self, scene: Scene) -> None:
        scene.submit("a")
        upkeep.set_paused(scene.others, QUEUE, True)
        scene.line.is_first = False
        scene.line.at(0.7, lambda: upkeep.set_paused(scene.others, QUEUE, False))
        assert scene.claimed(wait=10) == ["a"]
        assert (scene.line.passed, scene.store.holds) == (0.7, 2)

    def test_of_a_key_that_was_given_back_is_followed(self, scene: Scene) -> None:
        taken = scene.taken_by_another(concurrency_key="k")
        scene.submit("a", concurrency_key="k")
        scene.line.is_first = False
        scene.line.at(0.7, lambda: leases.complete(scene.others, taken.id, 1))
        assert scene.claimed(wait=10) == ["a"]
        assert scene.line.passed == 0.7

    def test_that_comes_for_what_it_has_found_itself_wakes_nobody_else(self, scene: Scene, tmp_path: Path) -> None:
        """It looks after it was chosen and before it is told."""
        waiters = Waiters(tmp_path, clock=scene.clock)
        others = structs.replace(scene.others, waiters=waiters)

        class Late(Waiting):
            def __enter__(self) -> Self:
                super().__enter__()
                submit(others, [Submission(id="a", payload=Raw(b"1"))])
                return self

        class Lately(Waiters):
            def waiting(self, queue: str) -> Waiting:
                return Late(self, queue)

        line = Lately(tmp_path, clock=scene.clock)
        later = FakeClock()
        later.advance(1)
        with Waiters(tmp_path, clock=later).waiting(QUEUE) as second:
            runs = claim_waiting(scene.context, line, QUEUE, owner="me", lease_ms=None, count=1, wait_ms=5_000)
            assert [run.id for run in runs] == ["a"]
            assert not second.wait(0)


class TestALostNotification:
    def test_costs_the_longest_waiting_a_quarter_of_a_second(self, scene: Scene) -> None:
        scene.line.deaf = True
        scene.line.at(3.1, lambda: scene.submit("a"))
        assert scene.claimed(wait=10) == ["a"]
        assert 3.1 < scene.line.passed <= 3.1 + SOONEST_LOOK

    def test_costs_the_others_two_seconds(self, scene: Scene) -> None:
        """For when the longest waiting is stopped, or was woken and died."""
        scene.line.deaf, scene.line.is_first = True, False
        scene.line.at(3.1, lambda: scene.submit("a"))
        assert scene.claimed(wait=10) == ["a"]
        assert 3.1 < scene.line.passed <= 3.1 + OTHERS_LOOK

    def test_costs_whoever_comes_to_the_front_no_more_than_the_longest_waiting(self, scene: Scene) -> None:
        scene.line.deaf, scene.line.is_first = True, False
        scene.line.at(4.3, lambda: setattr(scene.line, "is_first", True))
        scene.line.at(4.4, lambda: scene.submit("a"))
        assert scene.claimed(wait=10) == ["a"]
        assert scene.line.passed <= 4.4 + SOONEST_LOOK

    def test_is_made_good_for_the_next_by_whoever_claims(self, scene: Scene) -> None:
        scene.line.others = 1
        scene.submit("a", "b", "c")
        scene.line.woken.clear()
        assert (scene.claimed(wait=1), scene.line.woken) == (["a"], [QUEUE])
        assert (scene.claimed(wait=1, count=2), scene.line.woken) == (["b", "c"], [QUEUE])

    def test_is_not_looked_for_where_nobody_waits(self, scene: Scene) -> None:
        scene.submit("a", "b")
        assert (scene.claimed(wait=1), scene.store.looks) == (["a"], [])

    def test_is_not_made_up_for_runs_that_nobody_may_claim(self, scene: Scene) -> None:
        scene.line.others = 1
        scene.submit("a", concurrency_key="k")
        scene.submit("full", concurrency_key="k")
        scene.submit("later", delay_ms=1_000)
        scene.submit("elsewhere", queue="other")
        scene.line.woken.clear()
        assert (scene.claimed(wait=1), scene.line.woken) == (["a"], [])

    def test_is_not_worth_losing_what_was_claimed(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        def gone() -> Snapshot:
            raise DocumentMissing("there is no document", where="memory", next="look")

        scene.line.others = 1
        scene.submit("a", "b")
        monkeypatch.setattr(scene.store, "read", gone)
        assert scene.claimed(wait=1) == ["a"]


class TestLooking:
    def test_the_longest_waiting_looks_four_times_a_second(self, scene: Scene) -> None:
        assert scene.claimed(wait=10) == []
        gaps = [after - before for before, after in pairwise(scene.store.looks)]
        assert min(gaps) >= SOONEST_LOOK - 1e-6
        assert 39 <= len(scene.store.looks) <= 41
        assert scene.store.holds == 1

    def test_the_others_look_every_two_seconds(self, scene: Scene) -> None:
        scene.line.is_first = False
        assert scene.claimed(wait=11) == []
        gaps = [after - before for before, after in pairwise(scene.store.looks)]
        assert min(gaps[:-1]) >= OTHERS_LOOK - 1e-6
        assert len(scene.store.looks) == 7

    def test_a_run_that_falls_due_is_claimed_right_then(self, scene: Scene) -> None:
        scene.submit("a", delay_ms=2_690)
        assert scene.claimed(wait=10) == ["a"]
        assert scene.line.passed == pytest.approx(2.69, abs=0.0011)

    def test_a_run_that_another_lost_is_claimed_right_then(self, scene: Scene) -> None:
        scene.taken_by_another(lease=2.69)
        (run,) = scene.claim(wait=10)
        assert (run.id, run.attempts) == ("taken", 2)
        assert scene.line.passed == pytest.approx(2.69, abs=0.0021)

    def test_a_heartbeat_puts_that_off(self, scene: Scene) -> None:
        scene.taken_by_another(lease=1)
        scene.line.at(0.9, lambda: leases.heartbeat(scene.others, "taken", 1, lease_ms=2_000))
        (run,) = scene.claim(wait=10)
        assert scene.line.passed == pytest.approx(2.9, abs=0.0021)
        assert run.attempts == 2

    def test_a_lease_of_an_earlier_boot_is_over_already(self, scene: Scene) -> None:
        scene.taken_by_another()
        scene.context = structs.replace(scene.context, boot_id="later")
        (run,) = scene.claim(wait=10)
        assert (run.attempts, scene.line.passed) == (2, 0)

    def test_however_many_runs_of_another_queue_fall_due_it_looks_no_more_than_once_early(self, scene: Scene) -> None:
        for number in range(100):
            scene.submit(f"e{number}", queue="other", delay_ms=1_000 + 10 * number)
        upkeep.set_paused(scene.others, "other", True)
        assert scene.claimed(wait=4) == []
        looks = scene.store.looks
        most = max(sum(1 for other in looks if 0 <= other - each < SOONEST_LOOK - 1e-6) for each in looks)
        assert most <= 4  # two looks, of which each was followed by a claim that let a run in, and a look after it

    def test_what_falls_due_does_not_bring_the_others_to_the_lock(self, scene: Scene) -> None:
        scene.submit("a", delay_ms=2_100)
        scene.line.is_first = False
        assert scene.claimed(wait=10) == ["a"]
        assert scene.line.passed == pytest.approx(2 * OTHERS_LOOK)

    def test_a_wall_clock_that_was_set_moves_nothing(self, scene: Scene) -> None:
        scene.line.at(1.0, lambda: scene.clock.jump(-7_200))
        scene.line.at(2.0, lambda: scene.clock.jump(14_400))
        assert scene.claimed(wait=5) == []
        assert scene.line.passed == pytest.approx(5)

    def test_a_paused_queue_is_not_claimed_from(self, scene: Scene) -> None:
        scene.submit("a")
        upkeep.set_paused(scene.others, QUEUE, True)
        assert (scene.claimed(wait=3), scene.store.holds) == ([], 1)


class TestTheEnd:
    def test_comes_when_it_was_to_come(self, scene: Scene) -> None:
        assert scene.claimed(wait=3.3) == []
        assert scene.line.passed == pytest.approx(3.3)
        assert scene.line.left

    def test_stopping_is_asked_for_at_least_once_a_second(self, scene: Scene) -> None:
        scene.line.is_first = False
        began, asked = scene.clock.monotonic(), [scene.clock.monotonic()]

        def stop() -> bool:
            asked.append(scene.clock.monotonic())
            return scene.clock.monotonic() - began >= 5

        assert scene.claim(wait=100, stop=stop) == ()
        assert max(after - before for before, after in pairwise(asked)) <= 1
        assert scene.line.passed <= 6

    def test_who_is_to_stop_before_it_waits_does_not_wait(self, scene: Scene) -> None:
        assert scene.claim(wait=100, stop=lambda: True) == ()
        assert (scene.line.passed, scene.line.stood) == (0, 0)

    def test_who_is_told_and_stopped_at_once_tells_the_next(self, scene: Scene) -> None:
        stopped = threading.Event()
        scene.line.others = 1

        def both() -> None:
            stopped.set()
            scene.submit("a")

        scene.line.at(0.6, both)
        assert scene.claim(wait=100, stop=stopped.is_set) == ()
        assert scene.line.woken == [QUEUE, QUEUE]

    def test_who_is_told_and_cannot_look_tells_the_next(self, scene: Scene) -> None:
        scene.line.others = 1

        def both() -> None:
            scene.store.busy = True
            scene.submit("a")

        scene.line.at(0.6, both)
        with pytest.raises(LockBusy):
            scene.claim(wait=100)
        assert (scene.line.woken, scene.line.left) == ([QUEUE, QUEUE], True)
