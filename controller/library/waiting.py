"""Waiting until runs have ended, by serving the fleet meanwhile or by watching alone.

Not promised: that a run ends; that a time-out is kept to the second, since what the provider was asked is awaited.
Whatever ends a wait, every run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from controller.clock import Clock
from controller.engine.loop import INTERVAL, Loop
from controller.engine.queue import find
from controller.engine.reconcile import SHORTEST_WAIT, Reconciler, Stop
from controller.engine.report import Report
from controller.model.errors import Conflict, NotDurable, StillRunning, Stuck
from controller.model.policy import Policy
from controller.model.reason import Reason
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

    Raises NotFound, Conflict, StillRunning after *timeout* seconds, Stuck once no run can go on by itself, NotDurable
    when nothing can be saved, and what else `Loop.serve` raises.
    """
    store, clock = reconciler.sender.context.store, reconciler.sender.context.clock
    began = clock.monotonic()
    served(store.read().document, runs, reconciler.ground.policy)
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
        if late or unsaved or is_stuck(document, runs, stuck):
            loop.leave()
        each_turn(document)

    loop = Loop(reconciler, interval=INTERVAL, tell=hear, each_turn=turn)
    loop.serve(lambda document: all_ended(document, runs))
    document = store.read().document
    if not reconciler.stop and not all_ended(document, runs):
        if unsaved:
            raise unsaved[0]
        if is_stuck(document, runs, stuck):
            raise _stuck(document, runs, stuck)
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


def is_stuck(document: Document, runs: Sequence[str], stuck: Collection[int]) -> bool:
    """Whether none of *runs* that has not ended can go on before somebody settles its slot. *stuck*: such slots."""
    left = [run for run in runs if find(document, run).state not in ENDED]
    return bool(left) and all(_stuck_at(document, run, stuck) is not None for run in left)


def _stuck_at(document: Document, run: str, stuck: Collection[int]) -> int | None:
    for slot, worker in document.workers.items():
        if run in (worker.run, worker.reserved):
            entry = document.pending_actions.get(slot)
            if slot in stuck or (entry is not None and entry.last_reason is Reason.IDENTITY_REFUSED):
                return slot
    return None


def _stuck(document: Document, runs: Sequence[str], stuck: Collection[int]) -> Stuck:
    places = {run: _stuck_at(document, run, stuck) for run in runs}
    run, slot = next((run, slot) for run, slot in places.items() if slot is not None)
    entry = document.pending_actions.get(slot)
    said = f": {entry.last_error}" if entry is not None and entry.last_error else ""
    return Stuck(
        f"run {run} cannot go on by itself, since its slot {slot} waits for an operator{said}",
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
