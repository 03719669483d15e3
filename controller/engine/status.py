"""Where the fleet stands: one snapshot, counted. Read-only; takes no lock.

Not promised: that anything counted here is still so when the answer is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from controller.engine.age import is_expired
from controller.engine.identity import identity_of, overtakes
from controller.engine.lifecycle import waits_for
from controller.model.action import action_of, decode, key_of
from controller.model.errors import BrokenAction
from controller.model.health import BreakerState, breaker_state, retry_at
from controller.model.mapping import Records
from controller.model.policy import Breaker, Policy
from controller.model.process import Liveness
from controller.model.reason import Reason
from controller.model.records import (
    SENTINEL,
    Disowned,
    Document,
    PendingAction,
    Proven,
    Resource,
    RunState,
    Trouble,
    WorkerState,
)
from controller.model.views import View, tally
from controller.provider.process import call_liveness, liveness
from controller.store.protocol import SlotNote, Snapshot, Store

LAST_REFUSALS = 5


class Flight(Struct, frozen=True):
    """A process at work on a slot's pending action: the provider's own, else the controller that holds the slot.

    `certain` False: it is of another pid namespace, or unreadable, so it may have ended.
    """

    pid: int
    process: str
    command: str
    since_at: int | None
    deadline_at: int | None
    certain: bool


class PendingMutation(Struct, frozen=True):
    """One parked action. `key_derives` False: its bytes were touched, so it never replays. `key_expired`: it is too old
    to be sent again, so looks settle it, or an operator.
    """

    slot: int
    type: str
    idempotency_key: str
    key_derives: bool
    run: str | None
    parked_at: int
    sends: int
    sent_at: int | None
    not_before: int | None
    last_error: str | None
    last_reason: str | None
    in_flight: bool
    flight: Flight | None
    key_expired: bool = False


class Cordoned(Struct, frozen=True):
    """A slot that takes nothing new; if `draining`, its worker is taken down as well."""

    slot: int
    draining: bool


class Unreleased(Struct, frozen=True):
    """A worker that is kept for a run it does not hold any more. `until_at`: it is stopped then if it stays idle."""

    slot: int
    run: str
    state: WorkerState
    since_at: int
    reason: Reason
    until_at: int | None


class Unrecorded(Struct, frozen=True):
    """What the last complete look showed of ours that no record knows. `identity` is what `adopt` is told.

    `beside`: the slot has a record as well, so that the thing can neither be adopted nor deleted from here. Later
    compute of a stopped worker on record is not beside it: `delete-unrecorded` takes that down. `more`, on the last of
    a slot: how many others there were.
    """

    slot: int
    assignment: str
    generation: int
    id: str
    state: str
    seen_at: int
    running: int
    resources: Mapping[str, Resource]
    identity: str
    beside: bool
    more: int = 0


class DisownedAction(Struct, frozen=True):
    """An action that can never apply. `proven` None: what it did is not known, so its slot takes nothing new."""

    slot: int | None
    type: str
    idempotency_key: str
    key_derives: bool
    run: str | None
    reason: Reason
    detail: str
    by: str
    disowned_at: int
    sent_at: int | None
    proven: Proven | None
    proven_at: int | None


class OpenBreaker(Struct, frozen=True):
    """A provider that nothing new is asked of. `retry_at`: when one action is tried; with the next, if that is past."""

    provider: str
    state: BreakerState
    failures: int
    why: str
    opened_at: int | None
    retry_at: int | None


class Integrity(Struct, frozen=True):
    """`digest`: ok, edited, none (a legacy document carries none). `sentinel`: ok, legacy, missing.

    `history`: ok, ahead (an older document was put back), forked (the journal's last line does not follow). Only of a
    legacy document: behind (its migration adds the last commit), missing. Of an edited one: behind, its revision was.
    """

    digest: str
    sentinel: str
    history: str
    history_revision: int | None

    @property
    def sound(self) -> bool:
        return self.digest != "edited" and self.sentinel != "missing" and self.history in {"ok", "behind"}


class _Ended(Struct, frozen=True):
    """As much of a tombstone as tells how the run ended."""

    state: RunState


class Status(Struct, frozen=True):
    """The answer `controller.status/1`. `runs` counts by view, `runs_by_state` and `workers` by state."""

    fleet: str
    lineage: str
    epoch: str
    revision: int
    document_schema: int
    draining: bool
    slots: int
    runs: Mapping[str, int]
    runs_by_state: Mapping[str, int]
    workers: Mapping[str, int]
    pending_mutations: tuple[PendingMutation, ...]
    disowned: int
    oldest_waiting_at: int | None
    oldest_waiting_ms: int | None
    troubles: tuple[Trouble, ...]
    refusals: tuple[Mapping[str, object], ...]
    integrity: Integrity
    now_at: int
    cordoned: tuple[Cordoned, ...] = ()
    unreleased: tuple[Unreleased, ...] = ()
    unrecorded: tuple[Unrecorded, ...] = ()
    disowned_actions: tuple[DisownedAction, ...] = ()
    breakers: tuple[OpenBreaker, ...] = ()
    paused_queues: tuple[str, ...] = ()


def build(
    snapshot: Snapshot,
    *,
    slots: int,
    flights: Mapping[int, Flight],
    refusals: Sequence[Mapping[str, object]],
    now: int,
    policy: Policy,
) -> Status:
    """The status of *snapshot*. *slots* and *policy* are what is configured; *flights* come from `flights_of`."""
    document = snapshot.document
    runs = tally(document.runs, now)
    states = Counter(runs.states)
    states.update(stone.state for _, stone in Records.of(document.finished).project(_Ended))
    workers = Counter(worker.state for worker in document.workers.values())
    return Status(
        fleet=document.fleet,
        lineage=document.lineage,
        epoch=document.epoch,
        revision=document.revision,
        document_schema=document.schema,
        draining=document.draining,
        slots=slots,
        runs={view.value: runs.views[view] for view in View},
        runs_by_state={state.value: states[state] for state in RunState},
        workers={state.value: workers[state] for state in WorkerState},
        pending_mutations=tuple(
            pending_mutation(document, slot, entry, flights.get(slot), now)
            for slot, entry in sorted(document.pending_actions.items())
        ),
        disowned=len(document.disowned),
        oldest_waiting_at=runs.oldest_at,
        oldest_waiting_ms=None if runs.oldest_at is None else max(now - runs.oldest_at, 0),
        troubles=document.troubles,
        refusals=tuple(refusals),
        integrity=integrity_of(snapshot),
        now_at=now,
        cordoned=tuple(Cordoned(n, each.draining) for n, each in sorted(document.slots.items()) if each.cordoned),
        unreleased=tuple(_unreleased(document, policy, now)),
        unrecorded=tuple(_unrecorded(document)),
        disowned_actions=tuple(_disowned(key, each) for key, each in document.disowned.items()),
        breakers=tuple(_breakers(document, policy.breaker, now)),
        paused_queues=tuple(sorted(name for name, queue in document.queues.items() if queue.paused)),
    )


def _unreleased(document: Document, policy: Policy, now: int) -> Iterator[Unreleased]:
    for slot, worker in sorted(document.workers.items()):
        wait = None if worker.run is None else waits_for(document, worker, policy, now)
        if wait is None or worker.run is None:
            continue
        run = document.runs.get(worker.run) or document.finished.get(worker.run)
        ended = None if run is None else run.finished_at
        since = worker.changed_at if ended is None else ended
        yield Unreleased(slot, worker.run, worker.state, since, wait.reason, wait.until)


def _unrecorded(document: Document) -> Iterator[Unrecorded]:
    for slot, known in sorted(document.slots.items()):
        for left, each in enumerate(known.unrecorded, 1 - len(known.unrecorded)):
            yield Unrecorded(
                slot=slot,
                assignment=each.assignment,
                generation=each.generation,
                id=each.id,
                state=each.state,
                seen_at=each.at,
                running=each.running,
                resources=each.resources,
                identity=identity_of(slot, each.assignment, each.generation, each.id, each.resources),
                beside=_is_beside(document, slot, each.assignment, each.generation),
                more=0 if left else known.unrecorded_more,
            )


def _is_beside(document: Document, slot: int, assignment: str, generation: int) -> bool:
    worker = document.workers.get(slot)
    known = worker is not None and not overtakes(worker, assignment, generation)
    return known or slot in document.pending_actions


def _disowned(key: str, each: Disowned) -> DisownedAction:
    """One disowned action. Never raises, whatever its bytes are."""
    try:
        action, derives = decode(each.action), key_of(each.action) == key
    except BrokenAction:
        action, derives = None, False
    return DisownedAction(
        slot=None if action is None else action.slot,
        type="unreadable" if action is None else action.type.value,
        idempotency_key=key,
        key_derives=derives,
        run=None if action is None else action.run,
        reason=each.reason,
        detail=each.detail,
        by=each.by,
        disowned_at=each.at,
        sent_at=each.sent_at,
        proven=each.proven,
        proven_at=each.proven_at,
    )


def _breakers(document: Document, breaker: Breaker, now: int) -> Iterator[OpenBreaker]:
    for name, known in sorted(document.providers.items()):
        state = breaker_state(known, breaker, now)
        if state is not BreakerState.CLOSED:
            yield OpenBreaker(name, state, known.failures, known.why, known.opened_at, retry_at(known, breaker))


def integrity_of(snapshot: Snapshot) -> Integrity:
    """What can be told of a snapshot alone."""
    document, known = snapshot.document, snapshot.history_revision
    if snapshot.fork is not None:
        history = "forked"
    elif known is None:
        # Before the first append there was none yet; later its absence is a loss.
        history = "behind" if document.revision <= 1 else "missing"
    elif known > document.revision:
        history = "ahead"
    else:
        history = "ok" if known == document.revision else "behind"
    if snapshot.legacy:
        sentinel = "legacy"
    else:
        sentinel = "ok" if document.pending_action == SENTINEL else "missing"
    digest = "edited" if snapshot.edited else "ok" if snapshot.digest else "none"
    return Integrity(digest, sentinel, history, known)


def flights_of(store: Store, slots: Iterable[int]) -> dict[int, Flight]:
    """Who is at work on these slots, as their lock files say. Takes no slot lock: asking must not make others busy."""
    found = ((slot, _flight(store.slot_note(slot))) for slot in slots)
    return {slot: flight for slot, flight in found if flight is not None}


def _flight(note: SlotNote) -> Flight | None:
    if note.provider is not None:
        state = call_liveness(note.provider)
        if state is not Liveness.GONE:
            certain = state is Liveness.ALIVE
            return Flight(note.provider.pid, "provider", note.command, note.since, note.deadline_at, certain)
    if note.controller is not None:
        state = liveness(note.controller)
        if state is not Liveness.GONE:
            certain = state is Liveness.ALIVE
            return Flight(note.controller.pid, "controller", note.command, note.since, None, certain)
    return None


def pending_mutation(
    document: Document, slot: int, entry: PendingAction, flight: Flight | None, now: int
) -> PendingMutation:
    """One parked action, as status and `show slot:N` tell it. Never raises, whatever its bytes are."""
    try:
        action = action_of(entry)
        kind, key, run = action.type.value, action.idempotency_key, action.run
        derives = key_of(entry.action) == key
    except BrokenAction:
        # Status must say even this much of bytes that nobody can read.
        kind, key, run, derives = "unreadable", "", None, False
    return PendingMutation(
        slot=slot,
        type=kind,
        idempotency_key=key,
        key_derives=derives,
        run=run,
        parked_at=entry.parked_at,
        sends=entry.sends,
        sent_at=entry.sent_at,
        not_before=entry.not_before,
        last_error=entry.last_error,
        last_reason=None if entry.last_reason is None else entry.last_reason.value,
        in_flight=flight is not None,
        flight=flight,
        key_expired=is_expired(document, entry, now),
    )
