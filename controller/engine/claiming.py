"""Claims that wait, and who is woken for what a commit brought.

Not promised: that whoever is woken gets a run, or that the one that has waited longest gets it: whoever asks in the
meantime is served first. A wake-up that is lost costs a quarter of a second, or two seconds if the waiter that should
look by itself is stopped. Nothing is lost with a waiter, since being woken takes nothing from the queue.

Looks take no lock. A waiter takes the document's lock once a look shows something to claim, to take back or to let in.
The longest waiting looks for all of them, as often as is allowed: each looking by itself would cost more the more there
are, and bring them all to the lock at the same moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from math import inf
from typing import Final, Protocol

from controller.engine import leases, upkeep
from controller.engine.discovery import Finder, is_paused
from controller.engine.index import Index, Slim
from controller.engine.queue import Context
from controller.model.edit import Edit
from controller.model.errors import ControllerError
from controller.model.mapping import Records
from controller.model.records import Document, Run, RunState
from controller.model.views import is_deferred

SOONEST_LOOK: Final = 0.25
"""Seconds between looks of the longest waiting, and at most that between two questions whether to stop."""
OTHERS_LOOK: Final = 2.0
_LEAST_WAIT: Final = 0.001


class Waiting(Protocol):
    """One waiter, as `store.waiters` has it."""

    def wait(self, seconds: float) -> bool: ...

    def first(self) -> bool: ...

    def close(self) -> bool: ...


class Waiters(Protocol):
    """All waiters, as `store.waiters` has them."""

    def waiting(self, queue: str) -> AbstractContextManager[Waiting]: ...

    def anybody(self) -> bool: ...

    def wake(self, queue: str, most: int) -> int: ...


def claim_waiting(
    context: Context,
    waiters: Waiters,
    queue: str,
    *,
    owner: str,
    lease_ms: int | None,
    count: int,
    wait_ms: int,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Run, ...]:
    """As `leases.claim`, tidying first; while there is nothing, wait up to *wait_ms* for it. Empty: still nothing.

    *stop* is asked four times a second, so also soon after a signal, whose handler does not end a wait by itself.
    Raises what `leases.claim` and `Store.read` raise, at whatever moment of the wait.
    """

    def claim() -> tuple[Run, ...]:
        return leases.claim(context, queue, owner=owner, lease_ms=lease_ms, count=count, tidy=True)

    ends = context.clock.monotonic() + wait_ms / 1000
    runs = claim()
    if not runs and wait_ms > 0 and not stop():
        with waiters.waiting(queue) as waiter:
            runs = _Wait(context, waiters, waiter, queue, claim, stop).until(ends)
            if runs:
                # What it is chosen for from here on is seen by the look below.
                waiter.close()
    if runs and waiters.anybody():
        with suppress(ControllerError):  # whoever has runs must hear of them, whatever else is the matter
            if claimable(context, context.store.read().document, queue) is not None:
                waiters.wake(queue, 1)
    return runs


class _Wait:
    """One wait in line, from standing in it to the claim or the end of patience."""

    def __init__(
        self,
        context: Context,
        waiters: Waiters,
        waiter: Waiting,
        queue: str,
        claim: Callable[[], tuple[Run, ...]],
        stop: Callable[[], bool],
    ) -> None:
        self._context = context
        self._waiters = waiters
        self._waiter = waiter
        self._queue = queue
        self._claim = claim
        self._stop = stop
        self._looked = 0.0
        self._moment = inf

    def until(self, ends: float) -> tuple[Run, ...]:
        """Look, then wait for a notification or the time of the next look, and so on."""
        owed = False
        try:
            runs = self._look()
            while not runs:
                now = self._context.clock.monotonic()
                if now >= ends:
                    return ()
                unasked = min(self._next_look(), ends)
                owed = self._waiter.wait(max(_LEAST_WAIT, min(SOONEST_LOOK, unasked - now)))
                if self._stop():
                    return ()
                if owed or self._context.clock.monotonic() >= unasked:
                    runs = self._look()
                    owed = False
            return runs
        finally:
            if owed:
                # It was told of something and did not come to look: somebody else must.
                self._waiters.wake(self._queue, 1)

    def _next_look(self) -> float:
        """When to look unasked, on the monotonic clock."""
        if not self._waiter.first():
            return self._looked + OTHERS_LOOK
        return min(self._moment, self._looked + SOONEST_LOOK)

    def _look(self) -> tuple[Run, ...]:
        context = self._context
        before, self._looked = self._looked, context.clock.monotonic()
        document = context.store.read().document
        if upkeep.needs_tidying(context, document) or claimable(context, document, self._queue) is not None:
            runs = self._claim()
            if runs:
                return runs
            document = context.store.read().document
        # Times of other queues count too, and many runs may be due in a row: only one look comes early for a time.
        early = self._looked - before < SOONEST_LOOK - _LEAST_WAIT
        self._moment = inf if early else self._looked + until_next(context, document)
        return ()


def claimable(context: Context, document: Document, queue: str) -> Run | None:
    """The run that a claim would get now. Nothing is changed: the draft that it is found with is thrown away."""
    if is_paused(document.queues.get(queue)):
        return None
    with Finder(context.index(document), context.draft(document), queue) as finder:
        return finder.next()


def until_next(context: Context, document: Document) -> float:
    """Seconds until the next run falls due or the next lease runs out."""
    index = context.index(document)
    due, deadline = index.next_due(), index.next_deadline()
    waits = [inf]
    if due is not None:
        waits.append((due - context.clock.now_ms()) / 1000)
    if deadline is not None:
        waits.append(deadline / 1000 - context.clock.monotonic())
    return max(0.0, min(waits))


def notify(
    waiters: Waiters, before: Document, after: Document, edit: Edit, index: Callable[[], Index] | None = None
) -> None:
    """Wake whoever waits for what *edit* of *before*, committed as *after*, has brought. Never waits."""
    for queue, most in wakes(before, after, edit, index).items():
        waiters.wake(queue, most)


def wakes(before: Document, after: Document, edit: Edit, index: Callable[[], Index] | None = None) -> Mapping[str, int]:
    """How many waiters of which queue *edit* of *before*, which made *after*, gives something to do.

    As many as runs that may be claimed now and could not before: those that were submitted, sent back or let in; in
    each queue one for each time that a concurrency key was given back for which runs wait there; and all that are
    pending in a queue that was resumed. Runs that merely fell due wake nobody here: no commit brought that.

    Costs what the edit costs. *index* gives that of *after*, for runs with a key: without it one is made, and as for a
    resumed queue every run is looked at, once.
    """
    if not edit.events:
        return {}
    now = edit.events[-1].at
    fresh = [run for run in edit.runs.values() if run is not None and _is_new(run, before.runs.get(run.id), now)]
    freed = Counter(key for run_id in edit.runs for key in _given_back(before.runs.get(run_id), after.runs.get(run_id)))
    paused = {queue for queue in edit.queues if is_paused(before.queues.get(queue))}
    resumed = {queue for queue in paused if not is_paused(after.queues.get(queue))}
    keys = freed.keys() | {run.concurrency_key for run in fresh if run.concurrency_key}
    found = Counter(run.queue for run in fresh if not run.concurrency_key)
    if keys or resumed:
        if keys:
            found.update(_with_keys(Index(after.runs, "") if index is None else index(), fresh, freed, keys, now))
        for queue in resumed:
            every = Records.of(after.runs).project(Slim)
            found[queue] = sum(_is_pending(run, now) for _, run in every if run.queue == queue)
    return {queue: most for queue, most in sorted(found.items()) if most > 0 and not is_paused(after.queues.get(queue))}


def _with_keys(index: Index, fresh: Iterable[Run], freed: Counter[str], keys: set[str], now: int) -> Mapping[str, int]:
    """Of runs with one of *keys*: as many of each queue as are new, or as permits were given back, if more were; and no
    more than the key lets run.
    """
    index.ripen(now)
    new = Counter((run.queue, run.concurrency_key) for run in fresh if run.concurrency_key)
    found: Counter[str] = Counter()
    for key in keys:
        room: dict[str, int] = {}
        for queue, most in index.waiting_for(key):
            room[queue] = max(room.get(queue, 0), most)
        for queue, most in room.items():
            wanted = max(new[queue, key], freed[key])
            found[queue] += max(0, min(wanted, most - index.running(key)))
    return found


def _is_new(run: Run, before: Run | None, now: int) -> bool:
    """Whether it may be claimed as far as it goes by itself, and could not before."""
    if not _is_pending(run, now):
        return False
    if before is None or before.sequence != run.sequence:
        return True  # a replacement has the id of another run, and may be in another queue
    return before.state is not RunState.QUEUED or before.available_at is not None


def _is_pending(run: Run | Slim, now: int) -> bool:
    return run.state is RunState.QUEUED and not is_deferred(run, now)


def _given_back(before: Run | None, after: Run | None) -> Iterable[str]:
    """The concurrency key that a run held and holds no more."""
    if before is None or before.state is not RunState.RUNNING or not before.concurrency_key:
        return ()
    kept = after is not None and after.state is RunState.RUNNING and after.concurrency_key == before.concurrency_key
    return () if kept else (before.concurrency_key,)
