"""What a look proves about the workers it shows, or does not show. Pure: it only changes the draft.

A look says nothing about a slot whose worker or pending action changed after the revision read before it was asked for,
nor about a slot with a pending action (`pending.settle` reads looks for those), and an incomplete one says nothing at
all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from controller.engine import fold
from controller.model.edit import Draft
from controller.model.inventory import Look, Seen, SeenWorker
from controller.model.policy import Policy, still_waits
from controller.model.records import Document, Span, Worker, WorkerState
from controller.model.worker import is_live

APART_MS: Final = 5_000
"""How far apart two looks must be, unless the grace time is shorter, to count as two."""


def speaks_of(look: Look, document: Document, slot: int) -> bool:
    """Whether *look* may say anything about *slot*."""
    known = document.slots.get(slot)
    if not look.complete or slot in look.inventory.unreadable:
        return False
    return known is None or known.changed <= look.revision


def seen_in(look: Look, lineage: str, worker: Worker) -> SeenWorker | None:
    """The worker exactly as recorded, if the look shows it."""
    return next((seen for seen in look.inventory.workers if fold.shows(worker, lineage, seen)), None)


def grace_over(since: int, look: Look, policy: Policy) -> bool:
    """Whether *look* began a grace time after *since*. A clock that went back further than that strands nothing."""
    return not still_waits(since + policy.grace_ms, look.began_at, policy.grace_ms)


def second_absence(first: Span | None, look: Look, policy: Policy) -> bool:
    """Whether *look* is separate evidence from the look that *first* was.

    They cannot overlap: noting the first changed the slot, so a look that may speak of it was asked for after that
    commit. They must be a little apart as well, or a listing that lags says the same thing twice.
    """
    if first is None:
        return False
    apart = min(APART_MS, policy.grace_ms)
    return not still_waits(first.ended_at + apart, look.began_at, apart)


def observe(draft: Draft, look: Look, policy: Policy) -> frozenset[int]:
    """Fold what *look* proves into the draft, slot by slot: step ends first, then whether the worker is gone.

    Returns the slots whose worker is recorded as lost and yet shown alive: it must be stopped before it is removed.
    """
    if not look.complete:
        return frozenset()
    lineage = draft.document.lineage
    shown: Mapping[tuple[int, str, int], SeenWorker] = {
        (seen.slot, seen.assignment, seen.generation): seen
        for seen in look.inventory.workers
        if seen.lineage == lineage
    }
    returned = set()
    for number, worker in sorted(draft.workers.items()):
        if number not in draft.pending and speaks_of(look, draft.document, number):
            seen = shown.get((number, worker.assignment, worker.generation))
            if seen is not None and worker.state is WorkerState.LOST and seen.state in (Seen.CREATING, Seen.READY):
                returned.add(number)
            _observe_worker(draft, worker, seen, look, policy)
    return frozenset(returned)


def _observe_worker(draft: Draft, worker: Worker, seen: SeenWorker | None, look: Look, policy: Policy) -> None:
    if seen is None:
        _absent(draft, worker, look, policy)
        return
    if worker.absent is not None:
        draft.workers.put(worker.slot, replace(worker, absent=None))
        draft.event(f"slot:{worker.slot}", "seen_again", worker.state, worker.state)
    fold.fold_steps(draft, worker.slot, seen, policy)
    match seen.state:
        case Seen.GONE if is_live(worker.state):
            fold.lose(draft, worker.slot, policy)
        case Seen.GONE:
            _forget(draft, worker.slot)
        case Seen.DARK:
            fold.go_dark(draft, worker.slot, policy)
        case Seen.CREATING | Seen.READY:
            return


def _absent(draft: Draft, worker: Worker, look: Look, policy: Policy) -> None:
    """Absent means gone only when two looks that do not overlap say so, the first begun a grace time after a change."""
    if second_absence(worker.absent, look, policy):
        if is_live(worker.state):
            fold.lose(draft, worker.slot, policy)
        else:
            _forget(draft, worker.slot)
    elif worker.absent is None and grace_over(worker.changed_at, look, policy):
        if is_live(worker.state) or worker.accepted:
            draft.workers.put(worker.slot, replace(worker, absent=Span(look.began_at, look.ended_at)))
            draft.event(f"slot:{worker.slot}", "seen_absent", worker.state, worker.state)


def _forget(draft: Draft, slot: int) -> None:
    """The data is gone too: ends of what it accepted will never come."""
    worker = draft.workers.get(slot)
    if worker is not None and worker.accepted:
        draft.workers.put(slot, replace(worker, accepted=(), running=None, absent=None))
        draft.event(f"slot:{slot}", "ends_forgotten", worker.state, worker.state)
