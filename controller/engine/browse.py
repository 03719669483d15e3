"""What is in the queues, for whoever looks: one set in its order, how many there are, and a summary of all. Pure.

Not promised: that the next claim takes the first of `pending`: layers, fairness and keys decide that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Final

from msgspec import Struct

from controller.engine.discovery import is_paused
from controller.engine.index import Slim
from controller.model.errors import NotFound
from controller.model.mapping import Records
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import Document, Lease, Priority, Run, RunState
from controller.model.views import View, is_deferred, tallied, view_of

_STATES: Final[Mapping[View, RunState]] = {
    View.PENDING: RunState.QUEUED,
    View.SCHEDULED: RunState.QUEUED,
    View.ACTIVE: RunState.RUNNING,
    View.DEAD: RunState.FAILED,
}


class _Queued(Struct, frozen=True):
    """As much of a tombstone as tells of its queue."""

    queue: str


class LayerSummary(Struct, frozen=True):
    """How many runs of one layer are in each set, and for how many ms the one that waits longest has waited."""

    layer: Priority
    pending: int
    scheduled: int
    active: int
    dead: int
    oldest_wait_ms: int | None


class QueueSummary(Struct, frozen=True):
    """As `LayerSummary`, of all layers of one queue, and of each that has any run. `served_by`: fleet or consumers."""

    queue: str
    served_by: str
    paused: bool
    pending: int
    scheduled: int
    active: int
    dead: int
    oldest_wait_ms: int | None
    layers: tuple[LayerSummary, ...]


def browse(
    document: Document, view: View, now: int, *, queue: str | None = None, limit: int = 50, after: str | None = None
) -> tuple[Run, ...]:
    """Up to *limit* runs of the set, of *queue* or all: active ones by lease deadline, those of workers last; scheduled
    ones by due time; the others in the order of their submission.

    *after*: what comes behind that run. Raises NotFound for one that is in no such place any more: start again.
    """
    runs = _those(document, view, now, queue)
    if after is not None:
        last = document.runs.get(after) or document.finished.get(after)
        if last is None or (view in (View.ACTIVE, View.SCHEDULED) and all(run.id != after for run in runs)):
            raise NotFound(
                f"run {after} is not among those that are {view}",
                where="--after",
                next="leave --after out to begin again at the first",
            )
        if isinstance(last, Run):
            place = _place(view, last)
            runs = [run for run in runs if _place(view, run) > place]
        else:
            runs = [run for run in runs if run.sequence > last.sequence]
    return tuple(document.runs[run.id] for run in nsmallest(limit, runs, key=lambda run: _place(view, run)))


def size(document: Document, view: View, now: int, *, queue: str | None = None) -> int:
    """How many runs are in the set, of *queue* or all."""
    return len(_those(document, view, now, queue))


def _those(document: Document, view: View, now: int, queue: str | None) -> list[Run | Slim]:
    state = _STATES[view]
    runs = [run for run in _slim(document) if run.state is state and (queue is None or run.queue == queue)]
    if state is not RunState.QUEUED:
        return runs
    later = view is View.SCHEDULED
    return [run for run in runs if (run.available_at is not None and is_deferred(run, now)) is later]


def _slim(document: Document) -> Iterator[Run | Slim]:
    """All runs, none of which is decoded whole for it."""
    return (run for _, run in Records.of(document.runs).project(Slim))


def _place(view: View, run: Run | Slim) -> tuple[int, int, int, str]:
    match view:
        case View.ACTIVE:
            return run.lease is None, 0 if run.lease is None else run.lease.deadline_ms, run.sequence, run.id
        case View.SCHEDULED:
            return 0, run.available_at or 0, run.sequence, run.id
        case View.PENDING | View.DEAD:
            return 0, 0, run.sequence, run.id


def queues(document: Document, policy: Policy, now: int) -> tuple[QueueSummary, ...]:
    """Every queue that has runs, was used, or is named by a setting; by name."""
    names = {*policy.queues, *policy.by_queue, *document.queues}
    names |= {stone.queue for _, stone in Records.of(document.finished).project(_Queued)}
    runs: defaultdict[tuple[str, Priority], list[Run | Slim]] = defaultdict(list)
    for run in _slim(document):
        runs[run.queue, run.priority].append(run)
    names |= {queue for queue, _ in runs}
    return tuple(_summary(document, policy, now, name, runs) for name in sorted(names))


def _summary(
    document: Document,
    policy: Policy,
    now: int,
    name: str,
    runs: Mapping[tuple[str, Priority], Sequence[Run | Slim]],
) -> QueueSummary:
    layers = tuple(_layer(layer, runs[name, layer], now) for layer in Priority if (name, layer) in runs)
    waits = [layer.oldest_wait_ms for layer in layers if layer.oldest_wait_ms is not None]
    return QueueSummary(
        queue=name,
        served_by="fleet" if name in policy.queues else "consumers",
        paused=is_paused(document.queues.get(name)),
        pending=sum(layer.pending for layer in layers),
        scheduled=sum(layer.scheduled for layer in layers),
        active=sum(layer.active for layer in layers),
        dead=sum(layer.dead for layer in layers),
        oldest_wait_ms=max(waits, default=None),
        layers=layers,
    )


def _layer(layer: Priority, runs: Sequence[Run | Slim], now: int) -> LayerSummary:
    _, views, oldest_at = tallied(runs, now)
    return LayerSummary(
        layer,
        views[View.PENDING],
        views[View.SCHEDULED],
        views[View.ACTIVE],
        views[View.DEAD],
        None if oldest_at is None else max(0, now - oldest_at),
    )


def why_nothing(
    document: Document, policy: Policy, queue: str, now: int, is_over: Callable[[Lease], bool]
) -> tuple[str, str]:
    """Why a claim of *queue* got nothing, and what to do about it, in words; each may be empty."""
    found = next((each for each in queues(document, policy, now) if each.queue == queue), None)
    if found is None:
        return f"nobody has used a queue {queue}", "controller queue list"
    if found.paused:
        return f"{queue} is paused, {found.pending} pending", f"controller queue resume {queue}"
    runs = [run for run in _slim(document) if run.queue == queue]
    over = sum(run.lease is not None and is_over(run.lease) for run in runs)
    if over:
        return f"leases of {queue} that ran out, and nobody took the runs back: {over}", "controller queue reap"
    running = holders(document)
    full = [run for run in runs if waits_for(run, now, running) is Reason.CONCURRENCY]
    if full:
        key = full[0].concurrency_key
        held = ", ".join(running.get(key, ()))
        return f"runs of {queue} that wait for a key: {len(full)}; {key} is held by {held}", ""
    if found.scheduled:
        return f"runs of {queue} that are not due yet: {found.scheduled}", "controller queue browse scheduled"
    return "", ""


def holders(document: Document) -> Mapping[str, tuple[str, ...]]:
    """The running runs of each concurrency key, by id."""
    found: dict[str, list[str]] = {}
    for run in _slim(document):
        if run.concurrency_key and run.state is RunState.RUNNING:
            found.setdefault(run.concurrency_key, []).append(run.id)
    return {key: tuple(sorted(ids)) for key, ids in found.items()}


def waits_for(run: Run | Slim, now: int, running: Mapping[str, tuple[str, ...]]) -> Reason | None:
    """Why a queued run is not handed out now, as things stand: its key is full, or what the record says."""
    full = run.concurrency_key and len(running.get(run.concurrency_key, ())) >= run.concurrency
    if view_of(run, now) is View.PENDING:
        return Reason.CONCURRENCY if full else None
    return run.defer_reason if run.state is RunState.QUEUED else None
