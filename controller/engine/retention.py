"""Forgetting: runs that have ended leave the document for good, by age and by number, a few with each commit.

Not promised: that a run is forgotten as soon as it may be. Nothing is, while any slot still names it.

History keeps an event of each, with its last token: an id that comes back goes on from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice

from controller.engine.index import Index
from controller.model.action import action_of, decode
from controller.model.edit import Draft
from controller.model.errors import BrokenAction
from controller.model.policy import Policy
from controller.model.records import Run, Tombstone

AT_ONCE = 16
"""So many are forgotten in one commit at most: no single one pays for all."""
_LOOKED_AT = 64


def prune(draft: Draft, policy: Policy, index: Index | None) -> None:
    """Forget up to `AT_ONCE` ended runs whose time is over, or that are too many.

    *index*, of the draft's document, tells of those that failed or were cancelled; without it they are left alone.
    """
    found = islice(_of_finished(draft, policy), _LOOKED_AT)
    over = [*found, *(() if index is None else _of_runs(draft, policy, index))]
    if not over:
        return
    kept = _named(draft)
    free = (run for run in {run.id: run for run in over}.values() if run.id not in kept and not _hands_over(draft, run))
    for run in islice(free, AT_ONCE):
        (draft.runs if isinstance(run, Run) else draft.finished).remove(run.id)
        token = run.attempts if isinstance(run, Run) else run.token
        draft.event(f"run:{run.id}", "pruned", run.state, None, token=token)
        draft.count("pruned")


def _of_finished(draft: Draft, policy: Policy) -> Iterator[Tombstone]:
    """Tombstones to forget: too many of one queue, the earliest ends first; or too old.

    Not all are looked at for their age: the first, since the file keeps them in the order in which the runs ended, and
    some others, with each revision the next, since queues that are kept for longer stand before those that are not.
    """
    finished = draft.document.finished
    yield from _too_many(draft, policy)
    begin = draft.document.revision * _LOOKED_AT % max(1, len(finished))
    others = islice(finished.values(), begin, begin + _LOOKED_AT)
    for stone in chain(islice(finished.values(), _LOOKED_AT), others):
        old = stone.finished_at + policy.of_queue(stone.queue).retention_ms <= draft.now
        if old and draft.finished.get(stone.id) is stone:
            yield stone


def _too_many(draft: Draft, policy: Policy) -> Iterator[Tombstone]:
    finished = draft.document.finished
    if len(finished) <= min(rules.retain for rules in (policy.of_queue(""), *policy.by_queue.values())):
        return
    known = Counter(stone.queue for stone in finished.values())
    over = {queue: count - policy.of_queue(queue).retain for queue, count in known.items()}
    for stone in finished.values():
        if max(over.values(), default=0) <= 0:
            return
        if over[stone.queue] > 0 and draft.finished.get(stone.id) is stone:
            over[stone.queue] -= 1
            yield stone


def _of_runs(draft: Draft, policy: Policy, index: Index) -> Iterator[Run]:
    """Failed and cancelled runs to forget; the earliest ends of each queue first."""
    for queue, known in sorted(index.ended.items()):
        rules, count = policy.of_queue(queue), known
        for run_id in index.oldest_ended(queue, AT_ONCE):
            run = draft.runs.get(run_id)
            if run is None or run is not index.runs.get(run_id):
                continue
            if count > rules.retain or (run.finished_at or run.created_at) + rules.retention_ms <= draft.now:
                count -= 1
                yield run


def _hands_over(draft: Draft, run: Run | Tombstone) -> bool:
    """Whether a repeated report on it must still be answered with the run that its holder got in its place."""
    if run.next is None:
        return False
    following = draft.runs.get(run.next.run)
    return following is not None and following.lease is not None and following.attempts == run.next.token


def _named(draft: Draft) -> frozenset[str]:
    """Runs that a worker or a pending action names, or a disowned one that may have done anything."""
    named = {run for _, worker in draft.workers.items() for run in (worker.run, worker.reserved) if run is not None}
    for entry in [entry for _, entry in draft.pending.items()]:
        with suppress(BrokenAction):  # nothing that is broken here can be applied, so it names nothing either
            named |= {run for run in (action_of(entry).run,) if run is not None}
    for each in [each for _, each in draft.disowned.items() if each.proven is None]:
        with suppress(BrokenAction):
            named |= {run for run in (decode(each.action).run,) if run is not None}
    return frozenset(named)
