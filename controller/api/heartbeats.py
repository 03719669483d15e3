"""The heartbeats of one claim: what renews its lease while its block works, and finds out that it must stop.

Not promised: that a lease is renewed in time on a host that stands still; then it is lost, and its block is told.

It has a thread of its own, a store of its own and no reference to its claim. So a claim that was dropped with its block
unfinished is noticed, and its run given back, instead of being held as long as the program lives.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from controller.api.interrupt import Interrupt
from controller.clock import Clock
from controller.engine import leases
from controller.engine.queue import Context
from controller.model.errors import CancelRequested, ControllerError, LeaseLost, NotFound, TransitionRefused
from controller.model.records import Run
from controller.model.transition import Why

if TYPE_CHECKING:
    from controller.api.claims import Claim

Pause = Callable[[threading.Event, float], bool]
"""Waits for so many seconds, or until the event is set; whether it is. `threading.Event.wait`, but for tests."""

_SOON: Final = 0.05
"""Seconds from an exception that was sent to a look at where it arrived; each later one comes after twice as long."""


class Holding:
    """One life of one run, as its claim and its heartbeats share it.

    `turn` is held while anything is reported; `ended` says that nothing is to be reported any more.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.token = run.attempts
        self.interrupt = Interrupt()
        self.turn = threading.Lock()
        self.ended = False

    @property
    def pause(self) -> float:
        """Seconds between heartbeats."""
        return 0.0 if self.run.lease is None else self.run.lease.granted_ms / 3000

    def seconds_left(self, clock: Clock) -> float:
        """How long nobody else can have the run, without another heartbeat."""
        return 0.0 if self.run.lease is None else self.run.lease.deadline_ms / 1000 - clock.monotonic()

    def renewed(self, run: Run) -> None:
        """Take note of what a heartbeat answered."""
        self.run = run
        if run.cancel_requested_at is not None:
            self.interrupt.want(self.cancelled())

    def lost(self, refusal: ControllerError) -> LeaseLost:
        """What a holder is told whose report was refused."""
        return LeaseLost(
            refusal.what,
            where=refusal.where,
            next="stop, and drop what was done: another holder does it again, or nobody wants it any more",
        )

    def cancelled(self) -> CancelRequested:
        return CancelRequested(
            f"run {self.run.id} is to be cancelled",
            where=f"run {self.run.id}, token {self.token}",
            next="stop: leaving the block, or a drain, ends it as cancelled",
        )

    def beat(self, context: Context) -> float:
        """Renew the lease, or find out why not. Seconds until the next one."""
        with self.turn:
            if self.ended:
                return self.pause
            try:
                self.renewed(leases.heartbeat(context, self.run.id, self.token))
            except (NotFound, TransitionRefused) as refusal:
                if was_reported(refusal):
                    self.ended = True
                else:
                    self.interrupt.want(self.lost(refusal))
            except ControllerError as trouble:
                return self._try_again(trouble, context.clock)
        return self.pause

    def _try_again(self, trouble: ControllerError, clock: Clock) -> float:
        left = self.seconds_left(clock)
        if left > 0:
            return min(self.pause / 4, left)
        what = f"the lease of run {self.run.id} ran out while it could not be renewed: {trouble.what}"
        late = LeaseLost(what, where=f"run {self.run.id}, token {self.token}; {trouble.where}", next=trouble.next)
        self.interrupt.want(self.lost(late))
        return self.pause

    def give_back(self, context: Context) -> None:
        """End this life without an answer of its block, unless it has ended, or belongs to another by now."""
        self.interrupt.end()
        with self.turn:
            if not self.ended and not isinstance(self.interrupt.error, LeaseLost):
                with suppress(ControllerError):  # its lease runs out, then
                    leases.drain(context, self.run.id, self.token)
            self.ended = True


def was_reported(refusal: ControllerError) -> bool:
    """Whether a holder was refused because it had ended its life itself."""
    return isinstance(refusal, TransitionRefused) and refusal.why == Why.ILLEGAL_TRANSITION


def attend(claim: weakref.ref[Claim], holding: Holding, context: Context, stop: threading.Event, pause: Pause) -> None:
    """Send heartbeats until told to *stop*. The body of the thread."""
    clock, interrupt = context.clock, holding.interrupt
    # A third after the claim, not after the block began: it may have begun late.
    wait, look = max(0.0, holding.seconds_left(clock) - 2 * holding.pause), _SOON
    beat_at = clock.monotonic() + wait
    while not pause(stop, wait):
        block = claim()
        if block is None or block.missed_its_exit() or not interrupt.has_thread():
            holding.give_back(context)
            return
        del block
        if clock.monotonic() >= beat_at and not isinstance(interrupt.error, LeaseLost):
            beat_at = clock.monotonic() + holding.beat(context)
        if holding.ended:
            return
        wait = max(0.0, beat_at - clock.monotonic())
        if interrupt.error is not None:
            wait, look = min(look, holding.pause), 2 * look
