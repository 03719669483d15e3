"""What keeps queues going without any consumer: take back what was lost, let in what is due, forget what has ended
long ago; pause and resume.

Not promised: that anything of this happens by itself. `reconcile --apply`, `run`, `queue work` and a claim that waits
do it; a plain claim serves what is due as it is.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from controller.engine.index import Slim
from controller.engine.leases import check_queue
from controller.engine.queue import Context, is_over, live, lost
from controller.engine.retention import prune
from controller.model.edit import Draft
from controller.model.errors import NotFound, UsageFault
from controller.model.mapping import Records
from controller.model.perform import Given, move_run
from controller.model.records import Document, Queue, Run, RunState
from controller.model.transition import Trigger
from controller.model.views import is_deferred
from controller.store.protocol import Hold, Loaded

AT_ONCE = 100


class Reaped(Struct, frozen=True):
    """A run that was taken back, as it is now: queued, dead, or cancelled; from whom, and under which token."""

    run: Run
    owner: str
    token: int


def reap(context: Context, *, limit: int = AT_ONCE) -> tuple[Reaped, ...]:
    """Take back up to *limit* runs whose lease is over, the earliest deadline first; each is due at once.

    A lost life spends the crash budget; the last one that may be lost ends the run.
    """
    _check_limit(limit)
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        draft = context.draft(loaded.document)
        taken = take_back(context, draft, limit)
        after = context.commit(hold, loaded, draft)
    return tuple(Reaped(after.runs[run_id], owner, token) for run_id, owner, token in taken)


def take_back(context: Context, draft: Draft, limit: int) -> list[tuple[str, str, int]]:
    """As `reap`, in a draft: run, owner and token of each."""
    index, taken = context.index(draft.document), []
    for run_id in index.too_long(context.mono_ms, limit):
        _shorten(context, draft, run_id)
    for run_id in index.over(context.mono_ms, limit):
        run = draft.runs.get(run_id)
        if run is not None and run.lease is not None:
            owner = run.lease.owner
            told = lost(run.lease, over=is_over(run.lease, context, draft.document))
            move_run(draft, run_id, Trigger.LEASE_EXPIRED, told)
            taken.append((run_id, owner, run.attempts))
    return taken


def _shorten(context: Context, draft: Draft, run_id: str) -> None:
    """A lease that would last longer than it was granted for lasts as long as that from now on.

    Ending it at once would rob a holder whose clock is offset, as in a container; leaving it would protect a dead one.
    """
    run = draft.runs.get(run_id)
    if run is not None and run.lease is not None:
        deadline = context.mono_ms + run.lease.granted_ms
        draft.runs.put(run_id, replace(run, lease=replace(run.lease, deadline_ms=deadline)))
        draft.event(f"run:{run_id}", "lease_shortened", run.state, run.state, token=run.attempts)


def promote(context: Context, runs: Sequence[str] = (), *, limit: int = AT_ONCE) -> tuple[Run, ...]:
    """Let up to *limit* runs in that are due; or *runs*, whether they are due or not. Those that were let in.

    Raises NotFound and TransitionRefused for a named run that is not queued: then none is let in.
    """
    _check_limit(limit)
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        draft = context.draft(loaded.document)
        wanted = [live(loaded.document, each, "promoted").id for each in dict.fromkeys(runs)]
        let = let_in(draft, wanted or ripe(context, loaded.document, draft.now, limit))
        after = context.commit(hold, loaded, draft)
    return tuple(after.runs[run_id] for run_id in let)


def ripe(context: Context, document: Document, now: int, limit: int, *, without: Container[str] = ()) -> list[str]:
    """Runs that are due and still said to be waiting for that, in the order in which they fell due; those of queues in
    *without* left out.
    """
    index = context.index(document)
    index.ripen(now)
    due = (run_id for run_id in index.ripe(without) if not is_deferred(document.runs[run_id], now))
    return list(islice(due, limit))


def let_in(draft: Draft, runs: Sequence[str]) -> list[str]:
    """Promote queued *runs* that wait for a time or a key; the others among them wait for nothing."""
    let = []
    for run_id in runs:
        run = draft.runs.get(run_id)
        if run is None or run.state is not RunState.QUEUED or run.available_at is not None:
            move_run(draft, run_id, Trigger.PROMOTED, Given())
            let.append(run_id)
    return let


def tidied(context: Context, hold: Hold, loaded: Loaded) -> Loaded:
    """Take back what is lost and let in what is due, in a commit of their own if there is any. What to go on with."""
    draft = context.draft(loaded.document)
    take_back(context, draft, AT_ONCE)
    let_in(draft, _ripe_elsewhere(context, loaded.document, draft.now, AT_ONCE))
    _forget(context, draft)
    if draft.empty:
        return loaded
    context.commit(hold, loaded, draft, forget=False)
    return hold.load()


def tidy(context: Context) -> bool:
    """Take back what is lost and let in what is due, without a lock while there is nothing. Whether there was any."""
    document = context.store.read().document
    if not needs_tidying(context, document):
        return False
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        return tidied(context, hold, loaded) is not loaded


def needs_tidying(context: Context, document: Document) -> bool:
    index = context.index(document)
    lost = index.over(context.mono_ms, 1) or index.too_long(context.mono_ms, 1)
    if lost or _ripe_elsewhere(context, document, context.clock.now_ms(), 1):
        return True
    draft = context.draft(document)
    _forget(context, draft)
    return not draft.empty


def _forget(context: Context, draft: Draft) -> None:
    """What a fleet that only reconciles has to forget: no submit or claim comes by to do it."""
    if context.policy is not None:
        document, indexes = draft.document, context.indexes
        prune(draft, context.policy, context.index(document), indexes.stones(document), indexes.named)


def _ripe_elsewhere(context: Context, document: Document, now: int, limit: int) -> list[str]:
    """As `ripe`, without the fleet's own: it takes what is due as it is, and a commit to say so would tell nobody."""
    return ripe(context, document, now, limit, without=context.rules.queues)


def set_paused(context: Context, queue: str, on: bool) -> bool:
    """Hand out nothing of *queue* any more, or go on. False: it was so already.

    Raises NotFound for a queue that nobody has used and no setting names.
    """
    check_queue(queue)
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        if not _is_known(context, loaded.document, queue):
            raise NotFound(f"nobody has used a queue {queue}", where=f"queue {queue}", next="controller queue list")
        draft = context.draft(loaded.document)
        known = draft.queues.get(queue) or Queue()
        if known.paused == on:
            return False
        draft.queues.put(queue, replace(known, paused=on))
        draft.event("fleet", "queue_paused" if on else "queue_resumed", detail=queue)
        context.commit(hold, loaded, draft)
    return True


def _is_known(context: Context, document: Document, queue: str) -> bool:
    if queue in document.queues or queue in context.rules.by_queue or queue in context.rules.queues:
        return True
    if queue in context.indexes.stones(document).ended.counts:
        return True
    return any(run.queue == queue for _, run in Records.of(document.runs).project(Slim))


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise UsageFault("a limit is at least 1", where="--limit", next="give a number from 1 up")
