"""A consumer: claims runs of a queue, does each by running one program, and reports how that ended.

Not promised: that a run's program runs once. What it did is reported under the run's token; if the lease was lost
before, somebody else has the run and does it again. Nor that a program ends when the consumer is killed with no
warning: it goes on until it ends by itself, and the run is given to another once its lease is over.

One thread decides everything: it sleeps until a program exits, a run is there, somebody calls `stop`, or a heartbeat or
a signal to a program is due. Trouble with the document (busy, not durable) is waited out, as long as a lease lasts.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from math import inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from controller.api.life import Ask, Life, Told
from controller.engine import leases, upkeep
from controller.engine.claiming import OTHERS_LOOK, SOONEST_LOOK, claimable, until_next
from controller.engine.queue import Context, find
from controller.model.errors import (
    Busy,
    Conflict,
    ControllerError,
    LockLost,
    NotDurable,
    NotFound,
    RevisionMoved,
    TransitionRefused,
)
from controller.model.reason import Reason
from controller.model.records import Run, RunState, Tombstone
from controller.model.transition import Why
from controller.store.waiters import Waiters, Waiting

_LOCK_SECONDS: Final = 1.0
"""How long the document is waited for at once: signals and other runs wait meanwhile."""
_PAUSES: Final = (0.05, 1.0)
"""Seconds between tries while there is trouble: doubled from the first to the last."""
_SILENCE: Final = 60.0
"""Seconds for which a trouble must have been over to be told again."""


class Work(Struct, frozen=True):
    """What a consumer is for. *environment* is what a program gets besides the variables of its run; times in seconds.

    `at_once`: how many runs may be held. `grace`: how long programs may go on by themselves after `stop`;
    `kill_grace`: between asking one to end (TERM) and ending it (KILL). `until_empty`: return once nothing runs and
    nothing is claimable.
    """

    queue: str
    argv: tuple[str, ...]
    owner: str
    environment: Mapping[str, str]
    at_once: int = 1
    lease_ms: int | None = None
    grace: float = 5.0
    kill_grace: float = 5.0
    until_empty: bool = False


def _told_of(run: Run | Tombstone, words: str) -> tuple[Told, str]:
    """What a run is after its report, and why if it did not succeed."""
    match run.state:
        case RunState.SUCCEEDED:
            return Told.COMPLETED, ""
        case RunState.CANCELLED:
            return Told.CANCELLED, words
        case RunState.QUEUED if isinstance(run, Run) and run.defer_reason is Reason.REQUEUED_AFTER_SHUTDOWN:
            return Told.GIVEN_BACK, words
        case RunState.QUEUED:
            return Told.FAILED, f"{words}; tried again"
        case _:
            return Told.FAILED, f"{words}; for good"


def _said(refusal: ControllerError) -> str:
    return f"{refusal.what}; {refusal.where}" if refusal.where else refusal.what


class Consumer:
    """`serve` works, in one thread, and `close` ends it; `stop` may be called from any, and by a signal's handler.

    `wakeup` is a descriptor that wakes it when a byte is written there: for `signal.set_wakeup_fd`, without which a
    signal that comes just before it falls asleep is heeded late.
    """

    def __init__(
        self,
        context: Context,
        waiters: Waiters,
        work: Work,
        *,
        tell: Callable[[Told, Run, str], None] = lambda *_: None,
        trouble: Callable[[ControllerError], None] = lambda _: None,
    ) -> None:
        self.work = work
        self.counts: dict[Told, int] = dict.fromkeys((told for told in Told if told is not Told.STARTED), 0)
        lease_ms = work.lease_ms or context.rules.of_queue(work.queue).lease_ms
        self._context = replace(context, lock_timeout=min(context.lock_timeout, _LOCK_SECONDS, lease_ms / 5_000))
        self._clock = context.clock
        self._waiters = waiters
        self._tell = tell
        self._trouble = trouble
        self._lives: list[Life] = []
        self._lineage = ""
        self._stops = 0
        self._heeded = 0
        self._fault: ControllerError | None = None
        self._wake, self.wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector = selectors.PollSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._waiter: Waiting | None = None
        self._line = ExitStack()
        self._owed = False
        """It was told of a run and has not looked yet."""
        self._looked = 0.0
        self._look_at = 0.0
        self._resume_at = 0.0
        """No claim before: the system had no room for a program."""
        self._empty = False
        self._again_at = 0.0
        self._pause = 0.0
        self._told: dict[str, float] = {}

    def stop(self) -> None:
        """Take nothing new, and return once nothing is held. Once more: programs are asked to end now; then killed."""
        self._stops += 1
        with suppress(OSError):  # full: it is awake already
            os.write(self.wakeup, b"\0")

    def serve(self) -> None:
        """Work until stopped, or until empty if that is wanted. Once.

        Raises what a claim is refused for, once what was held by then is reported: Conflict (the fleet's queue),
        UsageFault, DocumentFault.
        """
        self._lineage = self._context.store.read().document.lineage
        try:
            while not self._is_over():
                self._turn()
        finally:
            self._abandon()
        if self._fault is not None:
            raise self._fault

    # The turn

    def _turn(self) -> None:
        self._heed_stops()
        for life in tuple(self._lives):
            self._tend(life)
        self._take()
        if not self._is_over():
            self._rest()

    def _is_over(self) -> bool:
        return not self._lives and (bool(self._stops) or (self.work.until_empty and self._empty))

    def _heed_stops(self) -> None:
        """The first stop gives programs their grace, the second ends it, the third ends them."""
        if self._stops == self._heeded:
            return
        now = self._clock.monotonic()
        self._heeded = self._stops
        for life in self._lives:
            life.end_at(now + (self.work.grace if self._stops == 1 else 0.0))
            if self._stops > 2:
                life.kill_at(now)

    def _tend(self, life: Life) -> None:
        """Do what is due for one life: signals, a heartbeat, its end, its report."""
        now = self._clock.monotonic()
        if life.runs and life.child is not None:
            notice = life.child.fileno()
            if life.watch(life.child, now, self.work.kill_grace) and notice is not None:
                self._selector.unregister(notice)
        if life.runs:
            if life.is_beat_due(now, self._again_at):
                self._beat(life, now)
        elif not life.lingers(now):
            if life.ask is Ask.LOST:
                self._forget(life, Told.LOST, life.why)
            elif now >= min(self._again_at, life.deadline):
                self._report(life, now)

    # Asking the engine

    def _beat(self, life: Life, now: float) -> None:
        lease_ms = round(life.granted * 1000)
        try:
            run = leases.heartbeat(self._context, life.run.id, life.token, lease_ms=lease_ms)
        except (TransitionRefused, NotFound, Conflict) as refusal:
            life.lose(_said(refusal))
            return
        except ControllerError as error:
            self._hindered(error, life)
            if now >= life.deadline:
                life.lose(f"its lease ran out while it could not be renewed: {error.what}")
            return
        self._well()
        life.hold_until(run, now)
        if run.cancel_requested_at is not None and life.ask is not Ask.CANCEL:
            life.ask = Ask.CANCEL
            life.end_at(now)

    def _report(self, life: Life, now: float) -> None:
        """Tell the engine how a life ended, and forget it; or keep it, to be reported again, as long as it is held."""
        try:
            told, detail, following = self._told_engine(life)
        except (TransitionRefused, NotFound, Conflict) as refusal:
            self._forget(life, Told.LOST, f"{life.words}, but {_said(refusal)}")
            return
        except ControllerError as error:
            self._hindered(error, life)
            if now >= life.deadline:
                why = f"{life.words}, but that could not be recorded before its lease was over: {error.what}"
                self._forget(life, Told.LOST, why)
            return
        self._well()
        self._forget(life, told, detail)
        if following is not None:
            self._begin(following)

    def _told_engine(self, life: Life) -> tuple[Told, str, Run | None]:
        """Report one life: what it comes to, in a word and in words, and the run that was claimed in its place."""
        try:
            if life.means is Told.COMPLETED:
                done = leases.complete(self._context, life.run.id, life.token, claim_next=not self._stops)
                return (*_told_of(done.run, "a step failed"), done.next)
            return (*self._told_failure(life, life.words), None)
        except TransitionRefused as refusal:
            if refusal.why == Why.STEPS_NOT_TERMINAL:
                return (*self._told_failure(life, f"{life.words}, but a step has not ended"), None)
            if refusal.why != Why.ILLEGAL_TRANSITION:
                raise
            # Reported before under this very token: by a commit of which only its durability failed, or by the program.
            return (*_told_of(find(self._context.store.read().document, life.run.id), life.words), None)

    def _told_failure(self, life: Life, words: str) -> tuple[Told, str]:
        if life.means is Told.GIVEN_BACK:
            return _told_of(leases.drain(self._context, life.run.id, life.token), words)
        return _told_of(leases.retry(self._context, life.run.id, life.token, error=words), words)

    def _forget(self, life: Life, told: Told, detail: str) -> None:
        self._lives.remove(life)
        self.counts[told] += 1
        self._look_at, self._empty = 0.0, False
        if life.no_room:
            self._resume_at = self._clock.monotonic() + _PAUSES[1]
        self._tell(told, life.run, detail)

    def _hindered(self, error: ControllerError, life: Life | None = None) -> None:
        """Leave the document alone for a while, and tell of the trouble, unless it was told a while ago.

        That the document is busy is told once it lasts: among many consumers it is no trouble.
        """
        first, last = _PAUSES
        if life is not None:
            last = min(last, life.granted / 10)
        self._pause = min(max(2 * self._pause, first), last)
        self._again_at = self._clock.monotonic() + self._pause
        if isinstance(error, Busy) and self._pause < last:
            return
        if self._again_at - self._told.get(error.code, -inf) > _SILENCE:
            self._trouble(error)
        self._told[error.code] = self._again_at

    def _well(self) -> None:
        self._pause = self._again_at = 0.0

    # Taking runs

    def _take(self) -> None:
        """Claim what there is room for, once there is reason to."""
        room = self.work.at_once - len(self._lives)
        if self._stops or not room:
            self._leave_line()
        now = self._clock.monotonic()
        if self._stops or now < max(self._look_at, self._again_at, self._resume_at):
            return
        try:
            if room:
                self._look(room, now)
            else:
                # A queue that is never empty is never looked at: what others lost in it would wait for ever.
                upkeep.tidy(self._context)
                self._look_at = now + OTHERS_LOOK
        except (Busy, NotDurable, LockLost, RevisionMoved) as error:
            self._hindered(error)
        except ControllerError as error:
            self._fault = error
            self.stop()
        else:
            self._well()

    def _look(self, room: int, now: float) -> None:
        """Claim if there is anything, and stand in line while there is not enough. What stands in line looks first."""
        if self._waiter is None or (self.work.until_empty and not self._lives):
            room -= self._claim(room)
            if not room or self._is_over():
                return
            self._stand_in_line()
        elif not self._owed and now < self._looked + OTHERS_LOOK and not self._waiter.first():
            self._look_at = now + SOONEST_LOOK
            return
        self._owed = False
        before, self._looked = self._looked, now
        document = self._context.store.read().document
        if upkeep.needs_tidying(self._context, document) or claimable(self._context, document, self.work.queue):
            room -= self._claim(room)
            document = self._context.store.read().document
        # As in a claim that waits: of many moments in a row only one look comes early for each.
        soon = inf if now - before < SOONEST_LOOK else until_next(self._context, document)
        self._look_at = now + min(soon, SOONEST_LOOK) if room else 0.0

    def _claim(self, count: int) -> int:
        work = self.work
        taken = leases.claim(
            self._context, work.queue, owner=work.owner, lease_ms=work.lease_ms, count=count, tidy=True
        )
        self._empty = not taken
        for run in taken:
            self._begin(run)
        return len(taken)

    def _begin(self, run: Run) -> None:
        """Hold a run that was claimed, and start its program, unless it is too late for that."""
        life = Life(run, self._clock.monotonic())
        self._lives.append(life)
        if self._stops:
            return
        life.start(self.work.argv, self.work.environment, self._lineage)
        if life.child is not None:
            notice = life.child.fileno()
            if notice is not None:
                self._selector.register(notice, selectors.EVENT_READ)
            self._tell(Told.STARTED, run, f"process {life.child.pid}")

    # Sleeping

    def _stand_in_line(self) -> None:
        if self._waiter is not None:
            return
        self._waiter = self._line.enter_context(self._waiters.waiting(self.work.queue))
        if self._waiter.fileno() >= 0:
            self._selector.register(self._waiter.fileno(), selectors.EVENT_READ)

    def _leave_line(self) -> None:
        """Who cannot take a run must not be woken for one; and if that has happened, somebody else must be."""
        if self._waiter is None:
            return
        if self._waiter.fileno() >= 0:
            self._selector.unregister(self._waiter.fileno())
        self._waiter = None
        self._line.close()
        if self._owed:
            self._owed = False
            self._waiters.wake(self.work.queue, 1)

    def _rest(self) -> None:
        """Until something happens, or is due."""
        now = self._clock.monotonic()
        due = self._due_at(now)
        for key, _ in self._selector.select(None if due == inf else max(0.0, due - now)):
            if key.fd == self._wake:
                with suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            elif self._waiter is not None and key.fd == self._waiter.fileno():
                self._owed = self._waiter.wait(0) or self._owed
        if self._owed:
            self._look_at = 0.0

    def _due_at(self, now: float) -> float:
        times = [life.due_at(now, self._again_at) for life in self._lives]
        if not self._stops:
            times.append(max(self._look_at, self._again_at, self._resume_at))
        return min(times, default=inf)

    def _abandon(self) -> None:
        """Leave the line. Programs are left here only if something nobody foresaw was raised: they must not go on."""
        for life in self._lives:
            if life.child is not None:
                life.child.end()
        self._leave_line()

    def close(self) -> None:
        """Let go of descriptors. `wakeup` is nobody's afterwards, and `stop` does nothing."""
        self._selector.close()
        wake, self.wakeup = self.wakeup, -1
        os.close(wake)
        os.close(self._wake)
