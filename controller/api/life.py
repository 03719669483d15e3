"""One life of a run in the hands of a consumer: its program, until when it is held, and what there is to report of it.

Not promised: that a program ends when it is asked to; it is killed then. Nothing here asks the engine for anything.

The caller must call `watch` whenever `due_at` has come or the program's notice is readable, and must not report a life
while it `runs` or `lingers`.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import inf
from typing import Final

from msgspec import UNSET

from controller.model.action import STEP_KEY_VARIABLE, step_key
from controller.model.records import Run
from controller.provider.child import Child, Ended, NotStarted, start

BEATS: Final = 3
"""Heartbeats in the time of a lease: two may fail before it is over."""
TICK: Final = 0.02
"""Between looks at a program that gives no notice of its exit, or at a group that was killed and is not gone."""
PATIENCE: Final = 2.0
"""How long a killed group is waited for. What is left after that cannot be ended by anybody."""


class Told(StrEnum):
    """What became of a run here. All but the first are ends of its life, and counted."""

    STARTED = "started"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    GIVEN_BACK = "given_back"
    LOST = "lost"


class Ask(StrEnum):
    """Why a program is not left to end by itself."""

    NOTHING = ""
    SHUTDOWN = "shutdown"
    CANCEL = "cancel"
    LOST = "lost"


class Life:
    """Held from a claim to its report. Times are seconds on the monotonic clock; those that never come are infinite."""

    def __init__(self, run: Run, now: float) -> None:
        self.run = run
        self.token = run.attempts
        self.ask = Ask.NOTHING
        self.why = ""
        """Why it was lost."""
        self.deadline = inf
        self.beat_at = inf
        self.child: Child | None = None
        self._unstarted: NotStarted | None = None
        self._ended: Ended | None = None
        self._term_at = inf
        self._kill_at = inf
        self._patience_at = inf
        self.hold_until(run, now)

    def hold_until(self, run: Run, now: float) -> None:
        """It is held as *run* says, which was granted *now*."""
        if run.lease is not None:
            self.run = run
            self.deadline = run.lease.deadline_ms / 1000
            self.beat_at = min(now + run.lease.granted_ms / 1000 / BEATS, self.deadline)

    @property
    def granted(self) -> float:
        """For how long it was held at its last renewal."""
        return 0.0 if self.run.lease is None else self.run.lease.granted_ms / 1000

    # What it is

    @property
    def runs(self) -> bool:
        return self.child is not None and self._ended is None

    @property
    def no_room(self) -> bool:
        """The system could not start its program, and may be able to later."""
        return self._unstarted is not None and self._unstarted.passing

    @property
    def means(self) -> Told:
        """What is to be reported. A program that was asked to end, and ended well all the same, has done its work."""
        if self._unstarted is not None:
            return Told.GIVEN_BACK if self.no_room else Told.FAILED
        if self._ended is not None and self._ended.well and self.ask is not Ask.CANCEL:
            return Told.COMPLETED
        return Told.GIVEN_BACK if self._ended is None or self.ask is not Ask.NOTHING else Told.FAILED

    @property
    def words(self) -> str:
        """How it ended, for people."""
        if self._unstarted is not None:
            return f"not started: {self._unstarted.why}"
        return "not started" if self._ended is None else self._ended.words

    def lingers(self, now: float) -> bool:
        """Whether somebody that the program left in its group is not gone yet: until then its work is not over."""
        if self.child is None or self._patience_at == inf:
            return False
        if now < self._patience_at and self.child.lingers():
            return True
        self._patience_at = inf
        return False

    def due_at(self, now: float, again_at: float) -> float:
        """When there is something to do for it, if the engine must not be asked before *again_at*."""
        if not self.runs:
            return now + TICK if self._patience_at != inf else min(again_at, self.deadline)
        notice = inf if self.child is None or self.child.fileno() is not None else now + TICK
        beat = inf if self.ask is Ask.LOST else min(max(self.beat_at, again_at), self.deadline)
        return min(notice, self._term_at, self._kill_at, beat)

    def is_beat_due(self, now: float, again_at: float) -> bool:
        return self.ask is not Ask.LOST and (now >= self.deadline or now >= max(self.beat_at, again_at))

    # What is done to it

    def start(self, argv: Sequence[str], environment: Mapping[str, str], lineage: str) -> None:
        """Start its program. Whether that worked is told by `runs`."""
        payload = b"" if self.run.payload is UNSET else bytes(self.run.payload)
        started = start(argv, payload, {**environment, **variables(self.run, lineage)})
        if isinstance(started, Child):
            self.child = started
        else:
            self._unstarted = started

    def watch(self, child: Child, now: float, kill_grace: float) -> bool:
        """Whether the program has ended. If it has not, the signals that are due are sent."""
        self._ended = child.collect()
        if self._ended is not None:
            self._patience_at = now + PATIENCE
            return True
        if now >= self._term_at:
            self._term_at, self._kill_at = inf, min(self._kill_at, now + kill_grace)
            if self.ask is Ask.NOTHING:
                self.ask = Ask.SHUTDOWN
            child.signal(signal.SIGTERM)
        if now >= self._kill_at:
            self._kill_at = inf
            child.signal(signal.SIGKILL)
        return False

    def end_at(self, moment: float) -> None:
        """Ask the program to end then, if nobody has asked it to end sooner."""
        if self._kill_at == inf:
            self._term_at = min(self._term_at, moment)

    def kill_at(self, moment: float) -> None:
        """End the program then, whether it was asked or not."""
        if self.ask is Ask.NOTHING:
            self.ask = Ask.SHUTDOWN
        self._term_at, self._kill_at = inf, min(self._kill_at, moment)

    def lose(self, why: str) -> None:
        """Somebody else may have the run from here on, so what is done here ends at once."""
        self.ask, self.why = Ask.LOST, why
        self._term_at = self._kill_at = inf
        if self.child is not None:
            self.child.signal(signal.SIGKILL)


def variables(run: Run, lineage: str) -> dict[str, str]:
    """What its program learns of a run. The step and its key are those of a run's only step; else the key is the run's
    own.
    """
    step = run.steps[0].name if len(run.steps) == 1 else ""
    given = {
        "CONTROLLER_QUEUE": run.queue,
        "CONTROLLER_RUN": run.id,
        "CONTROLLER_TOKEN": str(run.attempts),
        "CONTROLLER_ATTEMPT": str(run.attempts),
        STEP_KEY_VARIABLE: step_key(lineage, run, step),
    }
    return given | {"CONTROLLER_STEP": step} if step else given
