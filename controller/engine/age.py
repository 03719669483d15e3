"""When an action is too old to be sent again.

Not promised: that its provider really forgot the key; that is its own word for how long it remembers them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct

from controller.model.action import action_of
from controller.model.errors import BrokenAction
from controller.model.mapping import Records
from controller.model.records import Document, PendingAction, Run, Span, Tombstone

V = TypeVar("V", bound=Struct)


def is_expired(document: Document, entry: PendingAction, now: int) -> bool:
    """Past the time for which its provider remembers keys. A clock behind any known time counts as past it.

    So does another epoch than the document's: a restore brought the action back, and what became of it since is known
    to nobody.
    """
    if document.epoch and _epoch_of(entry) != document.epoch:
        return True
    if entry.key_ttl_ms is None:
        return False
    return now - entry.parked_at > entry.key_ttl_ms or now < latest_time(document)


def _epoch_of(entry: PendingAction) -> str | None:
    try:
        return action_of(entry).epoch
    except BrokenAction:
        return None


def latest_time(document: Document) -> int:
    """The latest time of the past that the document knows, or knew when this process asked before.

    Asked again for the same document it costs nothing, and for one that follows, only what differs.
    """
    known = _asked[0] if _asked else None
    if known is None or known.document is not document:
        runs, stones = (None, None) if known is None else _since(known.document, document)
        if known is None or runs is None or stones is None:
            known = _Known(document, max(0, *_of_fleet(document), *_of_runs(document.runs, document.finished)))
        else:
            known = _Known(document, max(known.at, *_of_fleet(document), *_of_runs(runs, stones)))
        _asked[:] = [known]
    return known.at


class _Known(NamedTuple):
    document: Document
    at: int


_asked: Final[list[_Known]] = []


class _Attempt(Struct, frozen=True):
    started_at: int


class _Step(Struct, frozen=True):
    attempts: tuple[_Attempt, ...] = ()


class _Run(Struct, frozen=True):
    """As much of a run as tells its times."""

    created_at: int
    started_at: int | None = None
    finished_at: int | None = None
    cancel_requested_at: int | None = None
    steps: tuple[_Step, ...] = ()


class _Stone(Struct, frozen=True):
    finished_at: int


def _since(before: Document, after: Document) -> tuple[Mapping[str, Run] | None, Mapping[str, Tombstone] | None]:
    """Runs and tombstones that *after* has otherwise than *before*; None: it does not follow, or too much later."""
    if before.revision >= after.revision or (before.lineage, before.epoch) != (after.lineage, after.epoch):
        return None, None
    return _changed(before.runs, after.runs), _changed(before.finished, after.finished)


def _changed(before: Mapping[str, V], after: Mapping[str, V]) -> Mapping[str, V] | None:
    keys = () if after is before else Records.of(after).differences(Records.of(before))
    return None if keys is None else {key: after[key] for key in keys if key in after}


def _of_runs(runs: Mapping[str, Run], stones: Mapping[str, Tombstone]) -> Iterator[int]:
    for _, run in Records.of(runs).project(_Run):
        yield from (run.created_at, run.started_at or 0, run.finished_at or 0, run.cancel_requested_at or 0)
        # Not when an attempt ended: that is told by the worker's clock, which may be ahead of ours.
        yield from (attempt.started_at for step in run.steps for attempt in step.attempts)
    yield from (stone.finished_at for _, stone in Records.of(stones).project(_Stone))


def _of_fleet(document: Document) -> Iterator[int]:
    yield from (event.at for event in document.events)
    yield from (trouble.at for trouble in document.troubles)
    for disowned in document.disowned.values():
        yield from (disowned.at, disowned.sent_at or 0, disowned.proven_at or 0, _end(disowned.absent))
    for provider in document.providers.values():
        yield from (provider.opened_at or 0, provider.closed_at or 0)
    for worker in document.workers.values():
        yield from (worker.created_at, worker.changed_at, worker.dark_at or 0)
        yield from (_end(worker.absent), _end(worker.idle_since))
    for entry in document.pending_actions.values():
        yield from (entry.parked_at, entry.sent_at or 0, _end(entry.absent))


def _end(span: Span | None) -> int:
    return 0 if span is None else span.ended_at
