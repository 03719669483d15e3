"""Waiting until runs have ended, by serving the fleet meanwhile or by watching alone.

Not promised: that a run ends; that a time-out is kept to the second, since what the provider was asked is awaited.
Whatever ends a wait, every run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from controller.clock import Clock
from controller.engine.loop import INTERVAL, Loop
from controller.engine.queue import find
from controller.engine.reconcile import SHORTEST_WAIT, Reconciler, Stop
from controller.engine.report import Report
from controller.model.errors import Conflict, NotDurable, ProviderFailed, StillRunning, Stuck
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import Document, Run, RunState, Tombstone
from controller.store.protocol import Store

ENDED = (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)
SOON = 1.0
"""Seconds between looks just after something has changed, at a provider that tells no news."""


def all_ended(document: Document, runs: Sequence[str]) -> bool:
    """Raises NotFound."""
    return all(find(document, run).state in ENDED for run in runs)


def served(document: Document, runs: Sequence[str], policy: Policy) -> None:
    """Refuse to wait for what can never come. Raises NotFound, and Conflict for a run of another queue."""
    for each in runs:
        run = find(document, each)
        if run.state not in ENDED and run.queue not in policy.queues:
            raise Conflict(
                f"run {each} is in queue {run.queue}, which the fleet does not serve",
                where=f"run {each}; [fleet] queues = {', '.join(policy.queues)}",
                next=f"a consumer has to take it; to watch it: controller wait --no-drive {each}",
            )


def serve_until_ended(
    reconciler: Reconciler,
    runs: Sequence[str],
    *,
    timeout: float | None = None,
    tell: Callable[[Report], None] = lambda _: None,
    each_turn: Callable[[Document], None] = lambda _: None,
) -> tuple[Run | Tombstone, ...]:
    """Serve the fleet until *runs* have ended or the reconciler is told to stop; the runs as they are then.

    *tell* hears of what was done and of trouble that is waited out. The reconciler's provider is spent afterwards.
    Runs that have ended already cost no lock and no question to the provider.

    Raises NotFound, Conflict, StillRunning after *timeout* seconds, Stuck once no run can go on by itself, NotDurable
    when nothing can be saved, and what else `Loop.serve` raises.
    """
    store, clock = reconciler.sender.context.store, reconciler.sender.context.clock
    began = clock.monotonic()
    document = store.read().document
    if all_ended(document, runs):
        return tuple(find(document, run) for run in runs)
    served(document, runs, reconciler.ground.policy)
    slots = reconciler.ground.policy.slots
    unsaved: list[NotDurable] = []
    stuck: set[int] = set()

    def hear(report: Report) -> None:
        stuck.difference_update(sent.slot for sent in report.sent)
        stuck.update(report.stuck)
        unsaved.extend(error for error in report.errors if isinstance(error, NotDurable))
        report.errors = [error for error in report.errors if not isinstance(error, NotDurable)]
        tell(report)

    def turn() -> None:
        document = store.read().document
        late = timeout is not None and clock.monotonic() - began >= timeout
        if late or unsaved or stuck_at(document, runs, stuck, slots) is not None:
            loop.leave()
        loop.interval = pace.interval(document)
        each_turn(document)

    pace = _Pace(reconciler)
    loop = Loop(reconciler, interval=SOON, tell=hear, each_turn=turn)
    loop.serve(lambda document: all_ended(document, runs))
    document = store.read().document
    if not reconciler.stop and not all_ended(document, runs):
        if unsaved:
            raise unsaved[0]
        place = stuck_at(document, runs, stuck, slots)
        if place is not None:
            raise _stuck(document, *place)
        raise still_running(document, runs, timeout or 0.0)
    return tuple(find(document, run) for run in runs)


class _Pace:
    """How far apart looks are while somebody waits.

    A provider that pushes is looked at as rarely as by a service. Any other shows an end only to a look: there a wait
    for a short step must not take a service's whole interval, nor a wait of hours cost a look a second. So looks are
    as far apart as the last change is away.
    """

    def __init__(self, reconciler: Reconciler) -> None:
        self._clock = reconciler.sender.context.clock
        self._provider = reconciler.sender.provider
        self._pushes = False
        self._seen: Document | None = None
        self._changed_at = self._clock.monotonic()

    def interval(self, document: Document) -> float:
        now = self._clock.monotonic()
        if document is not self._seen:
            if self._seen is not None and not self._pushes:  # it was looked at before, so it has described itself
                with suppress(ProviderFailed):
                    self._pushes = self._provider.describe().wait
            self._seen, self._changed_at = document, now
        return INTERVAL if self._pushes else min(INTERVAL, max(SOON, now - self._changed_at))


def watch_until_ended(
    store: Store,
    clock: Clock,
    runs: Sequence[str],
    stop: Stop,
    *,
    timeout: float | None = None,
    each_turn: Callable[[Document], None] = lambda _: None,
) -> tuple[Run | Tombstone, ...]:
    """The same without serving: only reads. Whether anything drives the fleet is the caller's to know."""
    began = clock.monotonic()
    while True:
        document = store.read().document
        each_turn(document)
        if stop or all_ended(document, runs):
            return tuple(find(document, run) for run in runs)
        if timeout is not None and clock.monotonic() - began >= timeout:
            raise still_running(document, runs, timeout)
        clock.sleep(SHORTEST_WAIT)


def stuck_at(document: Document, runs: Sequence[str], stuck: Collection[int], slots: int) -> tuple[str, int] | None:
    """A run and its slot, once none of *runs* that has not ended can go on before an operator has settled something.

    *stuck*: slots that no send or look helps, besides those that the document shows to be so. A queued run goes on as
    long as one of the *slots* does, also if the worker that is made for it is refused.
    """
    refused = {n for n, entry in document.pending_actions.items() if entry.last_reason is Reason.IDENTITY_REFUSED}
    refused |= set(stuck)
    places: list[tuple[str, int]] = []
    for each in runs:
        run = find(document, each)
        if run.state in ENDED:
            continue
        held = run.worker.slot if isinstance(run, Run) and run.worker is not None else None
        if held is None and not refused.issuperset(range(1, slots + 1)):
            return None
        if held is not None and held not in refused:
            return None
        places.append((each, held or min(refused)))
    return places[0] if places else None


def _stuck(document: Document, run: str, slot: int) -> Stuck:
    entry = document.pending_actions.get(slot)
    said = f": {entry.last_error}" if entry is not None and entry.last_error else ""
    return Stuck(
        f"run {run} cannot go on by itself, since slot {slot} waits for an operator{said}",
        where=f"run {run}, slot {slot}",
        next=f"controller explain slot:{slot}",
    )


def still_running(document: Document, runs: Sequence[str], timeout: float) -> StillRunning:
    left = [run for run in runs if find(document, run).state not in ENDED]
    states = ", ".join(f"{run} is {find(document, run).state}" for run in left)
    return StillRunning(
        f"not ended after {timeout:g} s: {states}",
        where=f"run {left[0]}",
        next=f"it goes on; controller wait {' '.join(left)}",
    )
