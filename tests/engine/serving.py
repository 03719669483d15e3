"""A loop that serves a `Fleet`, and a script that says turn by turn what a test waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from controller.engine.loop import Loop
from controller.engine.reconcile import Reconciler
from controller.engine.report import Report
from controller.model.action import Action
from controller.model.reason import Reason
from controller.model.records import ActionType, Document, RunState
from tests.engine.fleet import Fleet

Script = Iterator[Callable[[], bool]]
"""What has to come true before the script goes on, one after the other. Its end ends the serving."""


class Gate:
    """Holds up provider calls until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def __call__(self, _: Action | None = None) -> None:
        self.reached.set()
        assert self._open.wait(30), "nobody opened the gate"

    def open(self) -> None:
        self._open.set()


NEVER = 1e9
"""An interval that no test outlives: after the first look, nothing but news and changes wakes the loop."""


class Serving:
    """One loop. *tick*: seconds that the fleet's clock moves with every turn."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        interval: float = NEVER,
        tick: float = 0.0,
        parallelism: int = 4,
        reconciler: Reconciler | None = None,
    ) -> None:
        self.fleet = fleet
        self.tick = tick
        self.turns = 0
        self.reports: list[Report] = []
        self.reconciler = reconciler or fleet.reconciler(parallelism=parallelism)
        self.loop = Loop(self.reconciler, interval=interval, tell=self.reports.append, each_turn=self._turn)
        self._script: Script = iter(())
        self._until: Callable[[], bool] = lambda: True
        self._leaves = True
        self._deadline = 0.0

    def serve(self, script: Script, until: Callable[[Document], bool] | None = None, *, leaves: bool = True) -> None:
        """Serve to the end of *script*; without *leaves*, something else must end it."""
        self._script = script
        self._leaves = leaves
        self._deadline = time.monotonic() + 30
        self.loop.serve(until)
        left = next(self._script, None)
        assert left is None, "the loop ended before its script did"

    def _turn(self) -> None:
        self.turns += 1
        if self.tick:
            self.fleet.clock.advance(self.tick)
        assert time.monotonic() < self._deadline, f"after {self.turns} turns what the script waits for has not come"
        while self._until():
            following = next(self._script, None)
            if following is None:
                if self._leaves:
                    self.loop.leave()
                self._until = lambda: False
                return
            self._until = following

    def after(self, turns: int) -> Callable[[], bool]:
        """So many turns from now."""
        there = self.turns + turns
        return lambda: self.turns >= there

    def succeeded(self, *runs: str) -> Callable[[], bool]:
        """These runs have succeeded."""
        return lambda: {
            run for run, stone in self.fleet.document.finished.items() if stone.state is RunState.SUCCEEDED
        }.issuperset(runs)

    def asked(self, op: str) -> int:
        """How often the provider was asked so: `inventory`, `describe`, `wait`, `mutate`."""
        return [call.op for call in self.fleet.provider.calls].count(op)

    def key(self, slot: int, kind: ActionType) -> str:
        """The key of the last send of that type for the slot."""
        return next(key or "" for _, type_, key in reversed(self.fleet.provider.sends(slot)) if type_ is kind)

    @property
    def troubles(self) -> list[str]:
        """What was told to be wrong, in order."""
        return [error.what for report in self.reports for error in report.errors]


def submit_for_later(fleet: Fleet, run: str, seconds: float) -> None:
    """As a run waits that is not due."""
    fleet.submit(run)
    context = fleet.context
    with context.store.hold(5) as hold:
        loaded = hold.load()
        draft = context.draft(loaded.document)
        at = fleet.clock.now_ms() + round(seconds * 1000)
        queued = loaded.document.runs[run]
        draft.runs.put(run, replace(queued, available_at=at, defer_reason=Reason.SUBMITTED_FOR_LATER))
        draft.event(f"run:{run}", "deferred")
        hold.commit(loaded, draft.edit())


def running(fleet: Fleet, run: str) -> Callable[[], bool]:
    """The step of the run is known to run."""
    return lambda: (
        run in fleet.document.runs and any(step.state == "running" for step in fleet.document.runs[run].steps)
    )


def counted(serving: Serving, name: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a method of the reconciler was called."""
    calls, real = [0], getattr(serving.reconciler, name)

    def call(*args: object, **options: object) -> object:
        calls[0] += 1
        return real(*args, **options)

    monkeypatch.setattr(serving.reconciler, name, call)
    return calls
