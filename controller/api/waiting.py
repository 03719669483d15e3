"""Waiting until runs have ended, by serving the fleet meanwhile or by watching alone.

Not promised: that a run ends; that a time-out is kept to the second, since what the provider was asked is awaited.
Whatever ends a wait, every run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from controller.clock import Clock
from controller.engine.loop import Loop
from controller.engine.queue import find
from controller.engine.reconcile import SHORTEST_WAIT, Reconciler, Stop
from controller.engine.report import Report, helpless
from controller.model.errors import Conflict, NotDurable, StillRunning, Stuck
from controller.model.policy import Policy
from controller.model.records import Document, Run, Tombstone
from controller.model.run import is_terminal
from controller.store.protocol import Store


def all_ended(document: Document, runs: Sequence[str]) -> bool:
    """Raises NotFound."""
    return all(is_terminal(find(document, run).state) for run in runs)


def served(document: Document, runs: Sequence[str], policy: Policy) -> None:
    """Refuse to wait for what can never come. Raises NotFound, and Conflict for a run of another queue."""
    for each in runs:
        run = find(document, each)
        if not is_terminal(run.state) and run.queue not in policy.queues:
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
    began_with = store.read().document
    if all_ended(began_with, runs):
        return tuple(find(began_with, run) for run in runs)
    served(began_with, runs, reconciler.ground.policy)
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
        document = loop.seen or began_with
        late = timeout is not None and clock.monotonic() - began >= timeout
        if late or unsaved or stuck_at(document, runs, stuck, slots) is not None:
            loop.leave()
        each_turn(document)

    loop = Loop(reconciler, tell=hear, each_turn=turn)
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
            raise still_running(document, runs, timeout, how="wait --no-drive")
        clock.sleep(SHORTEST_WAIT)


def stuck_at(document: Document, runs: Sequence[str], stuck: Collection[int], slots: int) -> tuple[str, int] | None:
    """A run and its slot, once none of *runs* that has not ended can go on before an operator has settled something.

    *stuck*: slots that no send or look helps, besides those that the document shows to be so. A queued run goes on as
    long as one of the *slots* does, also if the worker that is made for it is refused.
    """
    refused = helpless(document, stuck)
    places: list[tuple[str, int]] = []
    for each in runs:
        run = find(document, each)
        if is_terminal(run.state):
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


def still_running(document: Document, runs: Sequence[str], timeout: float, how: str = "wait") -> StillRunning:
    left = [run for run in runs if not is_terminal(find(document, run).state)]
    states = ", ".join(f"{run} is {find(document, run).state}" for run in left)
    return StillRunning(
        f"not ended after {timeout:g} s: {states}",
        where=f"run {left[0]}",
        next=f"it goes on; controller {how} {' '.join(left)}",
    )
