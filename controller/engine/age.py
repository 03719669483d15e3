"""When an action is too old to be sent again.

Not promised: that its provider really forgot the key; that is its own word for how long it remembers them.
"""

from __future__ import annotations

from functools import lru_cache

from controller.model.records import Document, PendingAction, Span


def is_expired(document: Document, entry: PendingAction, now: int) -> bool:
    """Past the time for which its provider remembers keys. A clock behind any known time counts as past it."""
    if entry.key_ttl_ms is None:
        return False
    return now - entry.parked_at > entry.key_ttl_ms or now < latest_time(document)


def latest_time(document: Document) -> int:
    """The latest time of the past that the document knows. Asked again for the same document it costs nothing."""
    return _latest(_Same(document))


class _Same:
    """A document that is equal to itself alone: to compare two costs more than what is remembered of one."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.document is self.document

    def __hash__(self) -> int:
        return id(self.document)


@lru_cache(maxsize=1)
def _latest(same: _Same) -> int:
    document = same.document
    times = [event.at for event in document.events]
    times += [trouble.at for trouble in document.troubles]
    for disowned in document.disowned.values():
        times += [disowned.at, disowned.sent_at or 0, disowned.proven_at or 0, _end(disowned.absent)]
    for provider in document.providers.values():
        times += [provider.opened_at or 0, provider.closed_at or 0]
    for run in document.runs.values():
        times += [run.created_at, run.started_at or 0, run.finished_at or 0, run.cancel_requested_at or 0]
        # Not when an attempt ended: that is told by the worker's clock, which may be ahead of ours.
        times += [attempt.started_at for step in run.steps for attempt in step.attempts]
    for stone in document.finished.values():
        times.append(stone.finished_at)
    for worker in document.workers.values():
        times += [worker.created_at, worker.changed_at, worker.dark_at or 0]
        times += [_end(worker.absent), _end(worker.idle_since)]
    for entry in document.pending_actions.values():
        times += [entry.parked_at, entry.sent_at or 0, _end(entry.absent)]
    return max(times, default=0)


def _end(span: Span | None) -> int:
    return 0 if span is None else span.ended_at
