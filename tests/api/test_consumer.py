"""What a consumer does when the engine does not answer as it should. Programs are real; the engine is a script."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from selectors import PollSelector, SelectorKey
from typing import Any

import pytest
from msgspec.structs import replace

from controller.api import consumer as module
from controller.api import life
from controller.api.consumer import Consumer, Work
from controller.api.life import Told
from controller.clock import FakeClock
from controller.engine.leases import Completed
from controller.engine.queue import Context
from controller.model.errors import (
    Conflict,
    ControllerError,
    DocumentMissing,
    DurabilityFailed,
    LockBusy,
    StorageFailed,
    TransitionRefused,
)
from controller.model.reason import Reason
from controller.model.records import Lease, Run, RunState, new_document
from controller.provider.child import NotStarted
from controller.provider.process import own_identity
from controller.store.memory import MemoryDisk, MemoryStore
from controller.store.waiters import Waiters
from tests.behaviour.provider_program import wait_until

LEASE_MS = 1_000
STALE = TransitionRefused("token 1 is stale", why="stale_lease")
BUSY = LockBusy("the document is held")


class Engine:
    """Stands for `engine.leases`: keeps runs, notes what it is asked, and fails where a test wants it to.

    `failing` maps a verb to the errors of its next calls; each call that fails takes `seconds` on the clock.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.queued: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.errors: list[str] = []
        self.failing: dict[str, list[ControllerError]] = {}
        self.seconds = 0.0
        self.cancelled: set[str] = set()
        self.before: dict[str, Callable[[], None]] = {}

    def _ask(self, verb: str, run: str = "") -> None:
        self.asked.append((verb, run))
        self.before.get(verb, lambda: None)()
        errors = self.failing.get(verb)
        if errors:
            self.clock.advance(self.seconds)
            raise errors.pop(0)

    def run(self, name: str, **changes: Any) -> Run:
        deadline = round(self.clock.monotonic() * 1000) + LEASE_MS
        lease = Lease("me", "boot", deadline, LEASE_MS)
        run = Run(name, "default", 1, 0, (), state=RunState.RUNNING, attempts=1, lease=lease)
        if name in self.cancelled:
            run = replace(run, cancel_requested_at=1)
        return replace(run, **changes)

    def _take(self, count: int) -> tuple[Run, ...]:
        taken, self.queued = self.queued[:count], self.queued[count:]
        return tuple(self.run(name) for name in taken)

    def claim(self, _: Context, queue: str, *, count: int, **__: Any) -> tuple[Run, ...]:
        self._ask("claim")
        return self._take(count)

    def complete(self, _: Context, run: str, token: int, *, claim_next: bool) -> Completed:
        self._ask("complete", run)
        taken = self._take(1) if claim_next else ()
        return Completed(self.run(run, state=RunState.SUCCEEDED, lease=None), taken[0] if taken else None, False)

    def heartbeat(self, _: Context, run: str, token: int, *, lease_ms: int) -> Run:
        self._ask("heartbeat", run)
        return self.run(run)

    def retry(self, _: Context, run: str, token: int, *, error: str) -> Run:
        self._ask("retry", run)
        self.errors.append(error)
        return self.run(run, state=RunState.QUEUED, lease=None)

    def drain(self, _: Context, run: str, token: int) -> Run:
        self._ask("drain", run)
        state = RunState.CANCELLED if run in self.cancelled else RunState.QUEUED
        return self.run(run, state=state, lease=None, defer_reason=Reason.REQUEUED_AFTER_SHUTDOWN)

    @property
    def reports(self) -> list[str]:
        return [verb for verb, _ in self.asked if verb not in {"claim", "heartbeat"}]

    @property
    def beats(self) -> int:
        return sum(verb == "heartbeat" for verb, _ in self.asked)


class Scene:
    """A consumer over the script."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.monkeypatch = monkeypatch
        self.clock = FakeClock()
        self.engine = Engine(self.clock)
        self.told: list[tuple[Told, str, str]] = []
        self.troubles: list[ControllerError] = []
        self.consumer: Consumer | None = None
        self.disk = MemoryDisk(new_document("test", "lineage"))
        monkeypatch.chdir(place)
        monkeypatch.setattr(module, "leases", self.engine)
        monkeypatch.setattr("controller.api.consumer.selectors.PollSelector", lambda: Hurried(self.clock))

    def serve(self, script: str, *runs: str, **options: Any) -> Consumer:
        self.engine.queued += runs
        options.setdefault("until_empty", True)
        work = Work("default", ("sh", "-c", script), "me", {"PATH": os.environ["PATH"]}, **options)
        store = MemoryStore(self.disk, clock=self.clock, whoami=own_identity(), command="test")
        context = Context(store, self.clock, "test")
        consumer = self.consumer = Consumer(
            context,
            Waiters(self.place),
            work,
            tell=lambda told, run, detail: self.told.append((told, run.id, detail)),
            trouble=self.troubles.append,
        )
        try:
            consumer.serve()
        finally:
            consumer.close()
        return consumer

    def stop(self) -> None:
        assert self.consumer is not None
        self.consumer.stop()

    def stop_and_go(self) -> None:
        self.stop()
        (self.place / "go").touch()

    @property
    def ends(self) -> list[tuple[Told, str]]:
        return [(told, run) for told, run, _ in self.told if told is not Told.STARTED]


class Hurried(PollSelector):
    """Sleeps a tenth of what it is told, while a clock goes on by all of it: programs are real, and need a moment."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        slept = 0.05 if timeout is None else min(timeout, 0.05)
        found = super().select(slept / 10)
        self.clock.advance(slept)
        return found


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


# --- Trouble with the document ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [BUSY, StorageFailed("no space"), DurabilityFailed("fsync"), DocumentMissing("gone")], ids=lambda e: e.code
)
def test_an_end_that_cannot_be_recorded_is_reported_again_until_it_is(scene: Scene, error: ControllerError) -> None:
    scene.engine.failing["complete"] = [error, error]
    consumer = scene.serve("exit 0", "a")
    assert scene.engine.reports == ["complete"] * 3
    assert scene.ends == [(Told.COMPLETED, "a")]
    assert consumer.counts[Told.COMPLETED] == 1
    assert scene.troubles == [error], "it is told once"


def test_a_completed_run_that_could_not_be_recorded_while_its_lease_lasted_is_told_loudly(scene: Scene) -> None:
    scene.engine.failing["complete"] = [BUSY] * 100
    scene.engine.seconds = 0.2
    consumer = scene.serve("exit 0", "a")
    ((_, _, detail),) = [told for told in scene.told if told[0] is Told.LOST]
    assert "exit code 0" in detail
    assert "could not be recorded" in detail
    assert consumer.counts[Told.LOST] == 1
    assert len(scene.engine.reports) > 2


def test_a_claim_that_finds_the_document_busy_is_made_again(scene: Scene) -> None:
    scene.engine.failing["claim"] = [BUSY, BUSY]
    scene.serve("exit 0", "a")
    assert scene.ends == [(Told.COMPLETED, "a")]


def test_a_document_that_is_busy_for_a_moment_is_no_trouble(scene: Scene) -> None:
    scene.engine.failing["complete"] = [BUSY]
    scene.serve("exit 0", "a")
    assert scene.ends == [(Told.COMPLETED, "a")]
    assert scene.troubles == []


def test_a_claim_that_is_refused_ends_it_once_what_runs_has_ended(scene: Scene) -> None:
    scene.engine.failing["claim"] = [Conflict("the fleet's")]
    with pytest.raises(Conflict):
        scene.serve("exit 0", "a")
    assert scene.engine.asked == [("claim", "")]


def test_what_runs_while_the_document_is_taken_away_is_given_its_grace_and_reported(scene: Scene) -> None:
    scene.engine.before["claim"] = lambda: setattr(scene.disk, "document", None)
    with pytest.raises(DocumentMissing):
        scene.serve("exit 0", "a", at_once=2, grace=1_000.0, until_empty=False)
    assert scene.ends == [(Told.COMPLETED, "a")]


# --- Heartbeats ------------------------------------------------------------------------------------------------------

GO = "until [ -e go ]; do sleep 0.01; done"


def test_a_heartbeat_that_fails_is_made_again_before_the_lease_is_over(scene: Scene) -> None:
    scene.engine.failing["heartbeat"] = [BUSY, BUSY]

    def beaten() -> None:
        if scene.engine.beats > 3:
            (scene.place / "go").touch()

    scene.engine.before["heartbeat"] = beaten
    scene.serve(GO, "a")
    assert scene.ends == [(Told.COMPLETED, "a")]


def test_a_lease_that_runs_out_unrenewed_ends_the_program_and_nothing_is_reported(scene: Scene) -> None:
    scene.engine.failing["heartbeat"] = [BUSY] * 100
    scene.engine.seconds = 0.2
    scene.serve(GO, "a")
    assert scene.ends == [(Told.LOST, "a")]
    assert scene.engine.reports == []


def test_a_stale_token_ends_the_program_and_the_next_run_is_taken(scene: Scene) -> None:
    scene.engine.failing["heartbeat"] = [STALE]
    scene.serve(f"test $CONTROLLER_RUN = b || {{ {GO}; }}", "a", "b")
    assert scene.ends == [(Told.LOST, "a"), (Told.COMPLETED, "b")]
    assert ("complete", "a") not in scene.engine.asked


def test_an_end_that_comes_too_late_is_told_as_lost(scene: Scene) -> None:
    scene.engine.failing["complete"] = [STALE]
    scene.serve("exit 0", "a")
    ((told, _, detail),) = [told for told in scene.told if told[0] is not Told.STARTED]
    assert told is Told.LOST
    assert detail == "exit code 0, but token 1 is stale"


REPEATED = TransitionRefused("refused", why="illegal_transition", where="already done by you, token 1")


@pytest.mark.parametrize(
    ("verb", "script", "told"), [("complete", "exit 0", Told.COMPLETED), ("retry", "exit 1", Told.FAILED)]
)
def test_a_report_that_was_recorded_though_it_failed_is_not_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, verb: str, script: str, told: Told
) -> None:
    ended = RunState.SUCCEEDED if told is Told.COMPLETED else RunState.FAILED
    monkeypatch.setattr(module, "find", lambda _, run: scene.engine.run(run, state=ended, lease=None))
    scene.engine.failing[verb] = [DurabilityFailed("fsync"), REPEATED]
    scene.serve(script, "a")
    assert scene.ends == [(told, "a")]


def test_what_a_program_reported_itself_is_what_counts(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = scene.engine.run("a", state=RunState.FAILED, lease=None)
    monkeypatch.setattr(module, "find", lambda *_: dead)
    scene.engine.failing["complete"] = [REPEATED]
    scene.serve("exit 0", "a")
    assert scene.ends == [(Told.FAILED, "a")]


def test_a_program_that_ends_well_before_all_steps_have_is_a_failure(scene: Scene) -> None:
    scene.engine.failing["complete"] = [TransitionRefused("open", why="steps_not_terminal")]
    scene.serve("exit 0", "a")
    assert scene.ends == [(Told.FAILED, "a")]
    assert scene.engine.errors == ["exit code 0, but a step has not ended"]


def test_a_requested_cancel_ends_the_program_and_then_the_run(scene: Scene) -> None:
    scene.engine.cancelled.add("a")
    scene.serve("trap 'exit 0' TERM; while :; do sleep 0.01; done", "a")
    assert scene.ends == [(Told.CANCELLED, "a")]
    assert scene.engine.reports == ["drain"]


# --- Starts ----------------------------------------------------------------------------------------------------------


def test_a_program_that_could_not_start_for_certain_fails_its_run(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "start", lambda *_: NotStarted("it is gone"))
    scene.serve("exit 0", "a")
    assert scene.ends == [(Told.FAILED, "a")]
    assert scene.engine.errors == ["not started: it is gone"]


def test_a_run_for_which_the_system_has_no_room_spends_no_budget(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "start", lambda *_: NotStarted("no room", passing=True))
    scene.serve("exit 0", "a")
    assert scene.ends == [(Told.GIVEN_BACK, "a")]


def test_a_run_that_is_claimed_while_it_is_told_to_stop_is_given_back_unstarted(scene: Scene) -> None:
    scene.engine.before["claim"] = scene.stop
    scene.serve("exit 0", "a", until_empty=False)
    assert scene.told == [(Told.GIVEN_BACK, "a", "not started")]


# --- Stops -----------------------------------------------------------------------------------------------------------


def test_the_next_run_is_not_claimed_with_a_completion_once_it_is_told_to_stop(scene: Scene) -> None:
    scene.engine.before["heartbeat"] = scene.stop_and_go
    scene.serve(GO, "a", "b", grace=1_000.0)
    assert scene.ends == [(Told.COMPLETED, "a")]
    assert scene.engine.queued == ["b"]


def test_an_end_on_its_own_within_the_grace_is_judged_as_ever(scene: Scene) -> None:
    scene.engine.before["heartbeat"] = scene.stop_and_go
    scene.serve(f"{GO}; exit 4", "a", grace=1_000.0)
    assert scene.ends == [(Told.FAILED, "a")]
    assert scene.engine.errors == ["exit code 4"]


def test_what_outlasts_term_is_killed_after_the_kill_grace(scene: Scene) -> None:
    def ready() -> None:
        if (scene.place / "ready").exists() and scene.consumer is not None and not scene.consumer._stops:
            scene.stop()

    scene.engine.before["heartbeat"] = ready
    scene.serve("trap '' TERM; touch ready; while :; do sleep 0.01; done", "a", grace=0.0, kill_grace=0.1)
    ((told, _, detail),) = [told for told in scene.told if told[0] is not Told.STARTED]
    assert (told, detail) == (Told.GIVEN_BACK, "killed by signal 9")


def test_a_third_stop_kills_at_once(scene: Scene) -> None:
    def ready() -> None:
        if (scene.place / "ready").exists():
            scene.stop()

    scene.engine.before["heartbeat"] = ready
    scene.serve("trap '' TERM; touch ready; while :; do sleep 0.01; done", "a", grace=1e9, kill_grace=1e9)
    assert scene.ends == [(Told.GIVEN_BACK, "a")]


def test_what_nobody_foresaw_leaves_no_program_behind(scene: Scene) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    scene.engine.before["heartbeat"] = fail
    with pytest.raises(ZeroDivisionError):
        scene.serve("echo $$ > pid; exec sleep 600", "a")
    pid = int((scene.place / "pid").read_text())
    wait_until(lambda: not alive(pid), "it is gone")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_after_it_is_closed_a_late_signal_writes_nowhere(scene: Scene) -> None:
    consumer = scene.serve("exit 0")
    assert consumer.wakeup == -1
    consumer.stop()


def test_a_byte_on_its_wakeup_wakes_it(scene: Scene) -> None:
    """What `signal.set_wakeup_fd` writes."""

    def interrupted(*_: object) -> None:
        scene.stop()

    previous = signal.signal(signal.SIGUSR1, interrupted)
    try:
        scene.engine.before["claim"] = lambda: os.kill(os.getpid(), signal.SIGUSR1)
        consumer = scene.serve("exit 0", until_empty=False)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert not any(consumer.counts.values())
