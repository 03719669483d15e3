"""What a look proves about the workers it shows, or does not show. Pure: it only changes the draft.

A look says nothing about a slot whose worker or pending action changed after the revision read before it was asked for,
nor about a slot with a pending action (`pending.settle` reads looks for those), and an incomplete one says nothing at
all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from controller.engine import classify, disowned, fold
from controller.engine.identity import identity_matches
from controller.engine.lifecycle import kept_for
from controller.engine.sight import grace_over, second_absence, seen_in, speaks_of
from controller.model.edit import Draft, foreseen
from controller.model.inventory import Look, Seen, SeenWorker, StepSeen
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import MAX_UNRECORDED, TERMINAL, Document, Span, Unrecorded, Worker, WorkerState
from controller.model.worker import is_live


class Observed(Struct, frozen=True):
    """What a plan must know of a look. `returned`: recorded as stopped or lost, and shown alive. `retained`: slots that
    nothing may touch, since what is shown there is not what is recorded.
    """

    returned: frozenset[int] = frozenset()
    retained: frozenset[int] = frozenset()


def observe(draft: Draft, look: Look, policy: Policy) -> Observed:
    """Fold what *look* proves into the draft, slot by slot: step ends first, then whether the worker is gone.

    Nothing is folded for a slot that is retained: what is shown there may be somebody else's; nor for a worker that is
    listed twice, and not alike.
    """
    if not look.complete:
        return Observed()
    document, lineage = draft.document, draft.document.lineage
    retained = classify.retained(document, look)
    disowned.observe(draft, look, policy)
    # What has just been proven to be there is unrecorded at once: between two looks nothing else would close its slot.
    _sight(draft, foreseen(document, draft.edit()) if draft.disowned.changes else document, look, policy)
    returned = set()
    for number, worker in sorted(draft.workers.items()):
        if number in draft.pending or not speaks_of(look, document, number):
            continue
        shown = seen_in(look, lineage, worker)
        seen = shown[0] if shown else None
        if len(shown) > 1 or (number in retained and not _is_itself_gone(worker, seen)):
            if shown:
                _seen_again(draft, worker)
            continue
        if seen is not None and worker.state in _STOPPED and seen.state in (Seen.CREATING, Seen.READY):
            returned.add(number)
        _observe_worker(draft, worker, seen, look, policy)
    return Observed(frozenset(returned), retained)


def _is_itself_gone(worker: Worker, seen: SeenWorker | None) -> bool:
    """Whether that very worker is shown gone: what else is there in its slot does not bring its run back."""
    return seen is not None and seen.state is Seen.GONE and identity_matches(worker, seen)


_STOPPED: Final = frozenset({WorkerState.DEALLOCATED, WorkerState.LOST})


def _sight(draft: Draft, document: Document, look: Look, policy: Policy) -> None:
    """Remember what the look shows of ours that *document* does not know, for whoever asks no provider.

    What is not shown any more is forgotten as a worker would be: by two looks apart, the first a grace time after it
    was first seen. A listing that lags would open a slot beside it otherwise.
    """
    found = classify.unrecorded_in(document, look)
    remembered = [number for number, slot in draft.slots.items() if slot.unrecorded]
    for number in sorted({*found, *remembered}):
        known = draft.slot(number)
        if number not in found and not speaks_of(look, document, number):
            continue
        before = {(each.assignment, each.generation): each for each in known.unrecorded}
        shown = {(seen.assignment, seen.generation): seen for seen in found.get(number, ())}
        now = [_unrecorded(seen, before.get(tag), draft.now) for tag, seen in shown.items()]
        now += _doubted(draft, look, number, [each for tag, each in before.items() if tag not in shown], policy)
        # To leave some out forgets nothing too early: as long as there are more, those that are kept close the slot.
        kept, more = tuple(now[:MAX_UNRECORDED]), max(0, len(now) - MAX_UNRECORDED)
        if (kept, more) != (known.unrecorded, known.unrecorded_more):
            changed = draft.document.revision + 1 if any(each.absent for each in kept) else known.changed
            draft.slots.put(number, replace(known, unrecorded=kept, unrecorded_more=more, changed=changed))
            names = ", ".join(f"{each.assignment} generation {each.generation} ({each.id})" for each in kept)
            names += f" and {more} more" if more else ""
            event = "unrecorded_seen" if kept else "unrecorded_settled"
            draft.event(f"slot:{number}", event, reason=Reason.UNRECORDED, detail=names or None)


def _unrecorded(seen: SeenWorker, before: Unrecorded | None, now: int) -> Unrecorded:
    return Unrecorded(
        assignment=seen.assignment,
        generation=seen.generation,
        id=seen.id,
        state=seen.state,
        at=now if before is None else before.at,
        resources=seen.resources,
        running=sum(step.state is StepSeen.RUNNING for step in seen.steps),
    )


def _doubted(
    draft: Draft, look: Look, number: int, missing: Iterable[Unrecorded], policy: Policy
) -> Iterator[Unrecorded]:
    """Those of *missing* that may be there still, though the look does not show them."""
    worker = draft.workers.get(number)
    tags = {(seen.assignment, seen.generation) for seen in look.inventory.workers if seen.slot == number}
    for each in missing:
        recorded = worker is not None and (worker.assignment, worker.generation) == (each.assignment, each.generation)
        if recorded or (each.assignment, each.generation) in tags or second_absence(each.absent, look, policy):
            continue
        first = each.absent is None and grace_over(each.at, look, policy)
        yield replace(each, absent=Span(look.began_at, look.ended_at)) if first else each


def _observe_worker(draft: Draft, worker: Worker, seen: SeenWorker | None, look: Look, policy: Policy) -> None:
    if seen is None:
        _absent(draft, worker, look, policy)
        return
    _seen_again(draft, worker)
    fold.fold_steps(draft, worker.slot, seen, policy)
    match seen.state:
        case Seen.GONE if is_live(worker.state):
            fold.lose(draft, worker.slot, policy)
        case Seen.GONE:
            _forget(draft, worker.slot)
            _darkened(draft, worker.slot, look, policy)
        case Seen.DARK:
            fold.go_dark(draft, worker.slot, policy)
            fold.fold_steps(draft, worker.slot, seen, policy)
            _darkened(draft, worker.slot, look, policy)
        case Seen.CREATING | Seen.READY:
            _idles(draft, worker.slot, seen, look, policy)


def _seen_again(draft: Draft, worker: Worker) -> None:
    """What an earlier look did not show proves nothing together with a later one."""
    if worker.absent is not None:
        draft.workers.put(worker.slot, replace(worker, absent=None))
        draft.event(f"slot:{worker.slot}", "seen_again", worker.state, worker.state)


def _idles(draft: Draft, slot: int, seen: SeenWorker, look: Look, policy: Policy) -> None:
    """Note the first look that shows a worker idle which waits for its proof; forget it once it is not idle."""
    worker = draft.workers.get(slot)
    if worker is None or worker.state is not WorkerState.ASSIGNED:
        return
    run = None if worker.run is None else draft.runs.get(worker.run)
    over = run is None or run.state in TERMINAL
    kept = over and kept_for(draft, worker, policy) is Reason.NOT_RELEASED
    idle = kept and seen.state is Seen.READY and all(step.state is not StepSeen.RUNNING for step in seen.steps)
    ahead = worker.idle_since is not None and worker.idle_since.ended_at > look.ended_at  # the clock went back
    if idle == (worker.idle_since is not None) and not ahead:
        return
    since = Span(look.began_at, look.ended_at) if idle else None
    draft.workers.put(slot, replace(worker, idle_since=since))
    draft.event(f"slot:{slot}", "seen_idle" if idle else "seen_busy", worker.state, worker.state)


def _darkened(draft: Draft, slot: int, look: Look, policy: Policy) -> None:
    """Note the first look that finds compute off, where a cooldown runs from it: one that ran never begins anew.

    Only a clock that went back moves it: a cooldown that began later than now would last longer than it may.
    """
    worker = draft.workers.get(slot)
    if worker is None or worker.state is not WorkerState.DEALLOCATED or not policy.cooldown_ms:
        return
    if worker.dark_at is None or worker.dark_at > look.ended_at:
        draft.workers.put(slot, replace(worker, dark_at=look.ended_at))
        draft.event(f"slot:{slot}", "seen_dark", worker.state, worker.state, reason=Reason.COOLDOWN)


def _absent(draft: Draft, worker: Worker, look: Look, policy: Policy) -> None:
    """Absent means gone only when two looks that do not overlap say so, the first begun a grace time after a change."""
    if worker.idle_since is not None:  # no look in a row any more
        worker = replace(worker, idle_since=None)
        draft.workers.put(worker.slot, worker)
        draft.event(f"slot:{worker.slot}", "seen_busy", worker.state, worker.state)
    undated = worker.dark_at is None or worker.dark_at > look.ended_at
    cools = worker.state is WorkerState.DEALLOCATED and undated and policy.cooldown_ms > 0
    kept = worker.run is not None  # then a surrender goes by what looks have shown before
    if second_absence(worker.absent, look, policy):
        if is_live(worker.state):
            fold.lose(draft, worker.slot, policy)
            draft.workers.put(worker.slot, replace(draft.workers.get(worker.slot) or worker, absent=worker.absent))
        else:
            _forget(draft, worker.slot)
            _darkened(draft, worker.slot, look, policy)
    elif worker.absent is None and grace_over(worker.changed_at, look, policy):
        if is_live(worker.state) or worker.accepted or cools or kept:
            draft.workers.put(worker.slot, replace(worker, absent=Span(look.began_at, look.ended_at)))
            draft.event(f"slot:{worker.slot}", "seen_absent", worker.state, worker.state)


def _forget(draft: Draft, slot: int) -> None:
    """The data is gone too: ends of what it accepted will never come."""
    worker = draft.workers.get(slot)
    if worker is not None and worker.accepted:
        draft.workers.put(slot, replace(worker, accepted=(), running=None))
        draft.event(f"slot:{slot}", "ends_forgotten", worker.state, worker.state)
