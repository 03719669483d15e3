"""Waiting until runs have ended, by serving the fleet meanwhile or by watching alone.

Not promised: that a run ends. A time-out, or a stop, leaves every run going.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.clock import Clock
from controller.engine.loop import INTERVAL, Loop
from controller.engine.queue import find
from controller.engine.reconcile import SHORTEST_WAIT, Reconciler, Stop
from controller.engine.report import Report
from controller.model.errors import Conflict, StillRunning
from controller.model.policy import Policy
from controller.model.records import Document, Run, RunState, Tombstone
from controller.store.protocol import Store

ENDED = (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)


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
                next="wait without serving the fleet: `controller wait --no-drive RUN`",
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

    The reconciler's provider is spent afterwards. Raises NotFound, Conflict, StillRunning after *timeout* seconds, and
    what `Loop.serve` raises.
    """
    store, clock = reconciler.sender.context.store, reconciler.sender.context.clock
    began = clock.monotonic()
    served(store.read().document, runs, reconciler.ground.policy)

    def turn() -> None:
        if timeout is not None and clock.monotonic() - began >= timeout:
            loop.leave()
        each_turn(store.read().document)

    loop = Loop(reconciler, interval=INTERVAL, tell=tell, each_turn=turn)
    loop.serve(lambda document: all_ended(document, runs))
    document = store.read().document
    if not reconciler.stop and not all_ended(document, runs):
        raise still_running(document, runs, timeout or 0.0)
    return tuple(find(document, run) for run in runs)


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


def still_running(document: Document, runs: Sequence[str], timeout: float) -> StillRunning:
    left = [run for run in runs if find(document, run).state not in ENDED]
    states = ", ".join(f"{run} is {find(document, run).state}" for run in left)
    return StillRunning(
        f"not ended after {timeout:g} s: {states}",
        where=f"run {left[0]}",
        next=f"it goes on; controller wait {' '.join(left)}",
    )
