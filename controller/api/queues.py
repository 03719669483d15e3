"""`Queue`: one queue of a fleet, for programs that take runs from it and do them themselves. Each method is what the
command `queue ...` of its name does.

Not promised: that a run is done once. A consumer may do its work and die before it says so; another does it again then.

`claim` is what most programs need; see `claims.Claim`. The methods that take a run and its token are for those that
keep both themselves.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from controller.api import amounts
from controller.api.claims import Claim, Happened, Reported, complete_many, failure, step_trigger
from controller.api.heartbeats import Pause
from controller.api.payload import encoded
from controller.engine import leases, upkeep
from controller.engine.browse import browse, size
from controller.model.policy import MOST_CLAIMS
from controller.model.reason import Reason
from controller.model.records import Run, Tombstone
from controller.model.views import View

if TYPE_CHECKING:
    from controller.api.handle import Controller


class Queue:
    """Made by `Controller.queue`. For one thread, as its `Controller`.

    What changes something raises Conflict for a queue of the fleet, or a run that a worker holds; reports raise
    TransitionRefused for a token that is stale, or whose life has ended, and NotFound.
    """

    def __init__(self, controller: Controller, name: str, *, pause: Pause = threading.Event.wait) -> None:
        """*pause* is how heartbeats of claims wait."""
        leases.check_queue(name)
        self.name = name
        self._controller = controller
        self._pause = pause

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    # Taking runs

    def claim(self, *, owner: str | None = None, lease: float | None = None, wait: float = 0) -> Claim:
        """The next run that is due, or an empty claim, which is false.

        *owner* is who holds it, for people: by default this host and process. *lease* is for how many seconds nobody
        else gets it, by default what the queue's policy says: what is not renewed by then may be taken back. With
        *wait*, in seconds, other consumers' lost runs are taken back first, and if there is none it is waited for one.
        """
        claims = self.claim_many(1, owner=owner, lease=lease, wait=wait)
        return claims[0] if claims else Claim(self._controller, None)

    def claim_many(
        self, count: int, *, owner: str | None = None, lease: float | None = None, wait: float = 0
    ) -> tuple[Claim, ...]:
        """As `claim`, up to *count* runs in one commit, in the order in which they are due. Not waited for more than
        the first.
        """
        context = self._controller.ruled
        owner = f"{os.uname().nodename}:{os.getpid()}" if owner is None else owner
        lease_ms = None if lease is None else amounts.milliseconds(lease, "lease")
        wait_ms = amounts.milliseconds(wait, "wait", zero=True)
        amounts.count(count, "count", MOST_CLAIMS)
        if wait_ms:
            from controller.engine.claiming import claim_waiting
            from controller.store.waiters import Waiters

            waiters = Waiters(self._controller.state_dir, clock=self._controller.clock)
            runs = claim_waiting(
                context, waiters, self.name, owner=owner, lease_ms=lease_ms, count=count, wait_ms=wait_ms
            )
        else:
            runs = leases.claim(context, self.name, owner=owner, lease_ms=lease_ms, count=count)
        return tuple(Claim(self._controller, run, pause=self._pause) for run in runs)

    # Reports

    def complete(self, run: str, token: int, result: Any = UNSET, *, claim_next: bool = False) -> leases.Completed:
        """The run is done; *result*, any JSON value, is kept with it. See `Claim.complete`."""
        kept = encoded(result, "result")
        return leases.complete(self._controller.ruled, run, token, result=kept, claim_next=claim_next)

    def complete_many(
        self, claims: Sequence[Claim], results: Sequence[Any] | None = None, *, claim_next: int = 0
    ) -> tuple[Reported, ...]:
        """As `Claim.complete` of each, in one commit; *results* has one for each claim, by default its `result`.

        Each is judged for itself: what `complete` would raise for a run that another may have is the `error` of its
        answer, and the others are recorded. With *claim_next* up to so many claims have the `next` run of their queue,
        taken in the same commit. Raises UsageFault, and then nothing was recorded.
        """
        return complete_many(self._controller, claims, results, claim_next)

    def retry(self, run: str, token: int, error: str, *, delay: float | None = None) -> Run:
        """This life failed. See `Claim.retry`."""
        delay_ms = None if delay is None else amounts.milliseconds(delay, "delay", zero=True)
        return leases.retry(self._controller.ruled, run, token, error=error, delay_ms=delay_ms)

    def fail(self, run: str, token: int, error: str, reason: Reason | str = Reason.CONSUMER_FAILED) -> Run:
        """This life failed, and no other would fare better. See `Claim.fail`."""
        return leases.fail(self._controller.ruled, run, token, error=error, reason=failure(reason))

    def heartbeat(self, run: str, token: int, *, lease: float | None = None, progress: Any = UNSET) -> Run:
        """Renew the lease, for *lease* seconds from now, or for as long as it was granted before. A cancel was
        requested once `cancel_requested_at` of the answer is set.
        """
        lease_ms = None if lease is None else amounts.milliseconds(lease, "lease")
        return leases.heartbeat(
            self._controller.ruled, run, token, lease_ms=lease_ms, progress=encoded(progress, "progress")
        )

    def drain(self, run: str, token: int) -> Run:
        """Give the run back, without having failed."""
        return leases.drain(self._controller.ruled, run, token)

    def step(
        self,
        run: str,
        name: str,
        token: int,
        happened: Happened,
        *,
        error: str | None = None,
        reason: Reason | str | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
    ) -> Run:
        """A step of the run started, succeeded or failed."""
        code = None if reason is None else failure(reason)
        return leases.step(
            self._controller.ruled,
            run,
            name,
            token,
            step_trigger(happened),
            error=error,
            reason=code,
            exit_code=exit_code,
            signal=signal,
        )

    # Looking after it

    def promote(self, *runs: str, limit: int = upkeep.AT_ONCE) -> tuple[Run, ...]:
        """Let in *runs*, whether they are due or not; or up to *limit* that are due, of every queue."""
        return upkeep.promote(self._controller.ruled, runs, limit=limit)

    def reap(self, *, limit: int = upkeep.AT_ONCE) -> tuple[upkeep.Reaped, ...]:
        """Take back up to *limit* runs whose lease is over, of every queue."""
        return upkeep.reap(self._controller.ruled, limit=limit)

    def pause(self) -> bool:
        """Hand out nothing any more; who holds a run keeps it. False: it was so already. Raises NotFound."""
        return upkeep.set_paused(self._controller.ruled, self.name, True)

    def resume(self) -> bool:
        """Hand out runs again. False: it was so already. Raises NotFound."""
        return upkeep.set_paused(self._controller.ruled, self.name, False)

    def discard(self, run: str) -> Tombstone:
        """Take a run out of the fleet for good, whatever its state. A consumer that holds it has lost it."""
        return leases.discard(self._controller.ruled, run)

    # Looking at it. Takes no lock.

    def browse(self, view: View | str, *, limit: int = 50, after: str | None = None) -> tuple[Run, ...]:
        """Runs that are pending, active (by deadline), scheduled (by due time) or dead; else in order of submission.

        *after*: those behind that run. Raises UsageFault for another view.
        """
        controller = self._controller
        amounts.count(limit, "limit", sys.maxsize)
        return browse(
            controller.store.read().document,
            view_of(view),
            controller.clock.now_ms(),
            queue=self.name,
            limit=limit,
            after=after,
        )

    def size(self, view: View | str = View.PENDING) -> int:
        """How many runs are pending, active, scheduled or dead. Raises UsageFault for another view."""
        controller = self._controller
        return size(controller.store.read().document, view_of(view), controller.clock.now_ms(), queue=self.name)


def view_of(view: View | str) -> View:
    """Raises UsageFault."""
    from controller.api.words import meant
    from controller.model.errors import UsageFault

    try:
        return View(view)
    except ValueError:
        known = [each.value for each in View]
        what = f"there is no set {view!s}{meant(str(view), known)}"
        raise UsageFault(what, where="view", next=f"give one of {', '.join(known)}") from None
