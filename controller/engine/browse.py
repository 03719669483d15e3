"""What is in the queues, for whoever looks: one set in its order, how many there are, and a summary of all. Pure.

Not promised: that the next claim takes the first of `pending`: layers, fairness and keys decide that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from controller.engine.discovery import is_paused
from controller.model.errors import NotFound
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import Document, Lease, Priority, Run, RunState
from controller.model.views import View, view_of, waits_since


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
    runs = sorted(_those(document, view, now, queue), key=lambda run: _place(view, run))
    if after is None:
        return tuple(runs[:limit])
    last = document.runs.get(after) or document.finished.get(after)
    if last is None or (view in (View.ACTIVE, View.SCHEDULED) and last not in runs):
        raise NotFound(
            f"run {after} is not among those that are {view}",
            where="--after",
            next="leave --after out to begin again at the first",
        )
    if isinstance(last, Run):
        behind = (run for run in runs if _place(view, run) > _place(view, last))
    else:
        behind = (run for run in runs if run.sequence > last.sequence)
    return tuple(list(behind)[:limit])


def size(document: Document, view: View, now: int, *, queue: str | None = None) -> int:
    """How many runs are in the set, of *queue* or all."""
    return len(_those(document, view, now, queue))


def _those(document: Document, view: View, now: int, queue: str | None) -> list[Run]:
    runs = document.runs.values()
    return [run for run in runs if queue in (None, run.queue) and view_of(run, now) is view]


def _place(view: View, run: Run) -> tuple[int, int, int, str]:
    match view:
        case View.ACTIVE:
            return run.lease is None, 0 if run.lease is None else run.lease.deadline_ms, run.sequence, run.id
        case View.SCHEDULED:
            return 0, run.available_at or 0, run.sequence, run.id
        case View.PENDING | View.DEAD:
            return 0, 0, run.sequence, run.id


def queues(document: Document, policy: Policy, now: int) -> tuple[QueueSummary, ...]:
    """Every queue that has runs, was used, or is named by a setting; by name."""
    runs: dict[str, list[Run]] = {name: [] for name in (*policy.queues, *policy.by_queue, *document.queues)}
    for stone in document.finished.values():
        runs.setdefault(stone.queue, [])
    for run in document.runs.values():
        runs.setdefault(run.queue, []).append(run)
    return tuple(_summary(document, policy, now, name, of_queue) for name, of_queue in sorted(runs.items()))


def _summary(document: Document, policy: Policy, now: int, name: str, runs: Iterable[Run]) -> QueueSummary:
    by_layer: dict[Priority, list[Run]] = {layer: [] for layer in Priority}
    for run in runs:
        by_layer[run.priority].append(run)
    layers = tuple(_layer(layer, found, now) for layer, found in by_layer.items() if found)
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


def _layer(layer: Priority, runs: list[Run], now: int) -> LayerSummary:
    counts = Counter(view_of(run, now) for run in runs)
    waiting = [now - waits_since(run) for run in runs if view_of(run, now) is View.PENDING]
    return LayerSummary(
        layer,
        counts[View.PENDING],
        counts[View.SCHEDULED],
        counts[View.ACTIVE],
        counts[View.DEAD],
        max(0, *waiting) if waiting else None,
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
    runs = [run for run in document.runs.values() if run.queue == queue]
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
    for run in document.runs.values():
        if run.concurrency_key and run.state is RunState.RUNNING:
            found.setdefault(run.concurrency_key, []).append(run.id)
    return {key: tuple(sorted(ids)) for key, ids in found.items()}


def waits_for(run: Run, now: int, running: Mapping[str, tuple[str, ...]]) -> Reason | None:
    """Why a queued run is not handed out now, as things stand: its key is full, or what the record says."""
    full = run.concurrency_key and len(running.get(run.concurrency_key, ())) >= run.concurrency
    if view_of(run, now) is View.PENDING:
        return Reason.CONCURRENCY if full else None
    return run.defer_reason if run.state is RunState.QUEUED else None
