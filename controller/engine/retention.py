"""Forgetting: runs that have ended leave the document for good, by age and by number, a few with each commit.

Not promised: that a run is forgotten as soon as it may be. Nothing is, while any slot still names it.

History keeps an event of each, with its last token: an id that comes back goes on from there.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import islice

from controller.engine.ended import Ended, Named, Stones
from controller.engine.index import Index
from controller.model.edit import Draft
from controller.model.policy import Policy
from controller.model.records import Run, Tombstone

AT_ONCE = 16
"""So many are forgotten in one commit at most: no single one pays for all."""
_LOOKED_AT = 64


def prune(
    draft: Draft, policy: Policy, index: Index | None, stones: Stones | None = None, named: Named | None = None
) -> None:
    """Forget up to `AT_ONCE` ended runs whose time is over, or that are too many.

    *index*, of the draft's document, tells of those that failed or were cancelled; without it they are left alone.
    *stones*, of that document too, and *named* are what is known of it already.
    """
    stones = stones or Stones(draft.document.finished)
    sources = [stones.ended] if index is None else [stones.ended, index.ended]
    over = [(ended, queue) for ended in sources for queue in _over(draft, policy, ended)]
    if not over:
        return
    kept = (named or Named()).of(draft)
    found = (each for ended, queue in over for each in _of_queue(draft, policy, ended, queue, kept))
    for run in islice((run for run in found if not _hands_over(draft, run)), AT_ONCE):
        (draft.runs if isinstance(run, Run) else draft.finished).remove(run.id)
        token = run.attempts if isinstance(run, Run) else run.token
        draft.event(f"run:{run.id}", "pruned", run.state, None, token=token)
        draft.count("pruned")


def _over(draft: Draft, policy: Policy, ended: Ended) -> list[str]:
    """Queues whose earliest end is to be forgotten. Nothing but that one is looked at."""
    return sorted([queue for queue in ended.counts if _is_over(draft, policy, ended, queue)])


def _is_over(draft: Draft, policy: Policy, ended: Ended, queue: str) -> bool:
    rules = policy.of_queue(queue)
    return ended.is_over(queue, rules.retain, draft.now - rules.retention_ms)


def _of_queue(
    draft: Draft, policy: Policy, ended: Ended, queue: str, kept: Container[str]
) -> Iterator[Run | Tombstone]:
    """What of the queue is to be forgotten, the earliest ends first, as it stands in the document."""
    leaving = draft.runs.changes.keys() | draft.finished.changes.keys()
    rules = policy.of_queue(queue)
    before = draft.now - rules.retention_ms
    for run_id in ended.oldest(queue, _LOOKED_AT, most=rules.retain, before=before, kept=kept, leaving=leaving):
        run = draft.finished.get(run_id) or draft.runs.get(run_id)
        if run is not None:
            yield run


def _hands_over(draft: Draft, run: Run | Tombstone) -> bool:
    """Whether a repeated report on it must still be answered with the run that its holder got in its place."""
    if run.next is None:
        return False
    following = draft.runs.get(run.next.run)
    return following is not None and following.lease is not None and following.attempts == run.next.token
