"""One state directory with a queue for consumers, and heartbeats that happen when a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from controller import Claim, Controller, Queue, Run, Tombstone
from controller.clock import FakeClock
from controller.provider.process import own_identity
from controller.store.create import initialise

LINEAGE = "22222222-2222-4222-8222-222222222222"
LEASE = 30.0


class Beats:
    """How the heartbeats of one claim wait: until they are told to go on, or to stop."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._wanted = 0
        self._waits = 0

    def __call__(self, stop: threading.Event, seconds: float) -> bool:
        with self._changed:
            self._waits += 1
            self._changed.notify_all()
            while not self._wanted and not stop.is_set():
                self._changed.wait(0.002)
            if stop.is_set():
                return True
            self._wanted -= 1
            return False

    def go_on(self) -> None:
        """Let them wake once more, whenever that is."""
        with self._changed:
            self._wanted += 1
            self._changed.notify_all()

    def turn(self) -> None:
        """Let them wake, and wait until they wait again."""
        with self._changed:
            self._changed.wait_for(lambda: self._waits)
            before = self._waits
            self._wanted += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waits > before)


class Scene:
    """A fleet whose clock stands still. `controller` is for the test's thread, `another` for any other."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        initialise(
            directory,
            fleet="test",
            lineage=LINEAGE,
            config_text="",
            clock=self.clock,
            whoami=own_identity(),
            command="init",
        )
        self.directory = directory
        self.controller = self.another()
        self.beats = Beats()
        self.queue = Queue(self.controller, "mail", pause=self.beats)

    def another(self) -> Controller:
        return Controller(self.directory, clock=self.clock)

    def submit(self, *ids: str, attempts: int = 2, payload: Any = None, **how: Any) -> None:
        for each in ids:
            self.controller.submit(payload=payload, id=each, queue="mail", attempts=attempts, **how)

    def get(self, run: str) -> Run | Tombstone:
        return self.another().get(run)

    def run(self, run: str) -> Run:
        found = self.get(run)
        assert isinstance(found, Run)
        return found

    def stone(self, run: str) -> Tombstone:
        found = self.get(run)
        assert isinstance(found, Tombstone)
        return found

    def lose(self, run: str) -> None:
        """The lease of *run* ends, and another consumer takes it."""
        self.clock.advance(2 * LEASE)
        other = self.another().queue("mail")
        assert run in [each.run.id for each in other.reap()]
        assert other.claim(owner="another", lease=1000).id == run

    def cancel(self, run: str) -> None:
        """Somebody asks for a cancel, and it is time for a heartbeat."""
        assert self.another().cancel(run).state == "running"
        self.clock.advance(LEASE / 2)


def spin() -> None:
    """Work that passes byte codes and nothing else, until it is interrupted."""
    for _ in range(3_000_000_000):
        pass
    raise AssertionError("never interrupted")


def within(held: Claim, *work: Callable[[], object]) -> None:
    """A block that does this work, in order."""
    with held:
        for each in work:
            each()


def wait_in_a_loop(beats: Beats, held: Claim) -> None:
    """A block that waits in the call of a loop while heartbeats find something out, and is over then."""
    lines: SimpleQueue[None] = SimpleQueue()

    def feed() -> None:
        beats.turn()
        lines.put(None)

    feeder = threading.Thread(target=feed)
    try:
        with held:
            feeder.start()
            for _ in iter(lines.get, None):
                pass
    finally:
        feeder.join()
