"""Where the fleet stands: one snapshot, counted. Read-only; takes no lock.

Not promised: that anything counted here is still so when the answer is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from controller.model.action import action_of, key_of
from controller.model.errors import BrokenAction
from controller.model.process import Liveness
from controller.model.records import SENTINEL, PendingAction, Run, RunState, Trouble, WorkerState
from controller.model.views import View, view_of, waits_since
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
    """One parked action. `key_derives` False: its bytes were touched, so it never replays."""

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


class Integrity(Struct, frozen=True):
    """`digest`: ok, edited, none (a legacy document carries none). `sentinel`: ok, legacy, missing.

    `history`: ok, behind (its last commit is appended by the next), ahead, missing.
    """

    digest: str
    sentinel: str
    history: str
    history_revision: int | None

    @property
    def sound(self) -> bool:
        return self.digest != "edited" and self.sentinel != "missing" and self.history in {"ok", "behind"}


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


def build(
    snapshot: Snapshot,
    *,
    slots: int,
    flights: Mapping[int, Flight],
    refusals: Sequence[Mapping[str, object]],
    now: int,
) -> Status:
    """The status of *snapshot*. *slots* is what is configured; *flights* come from `flights_of`."""
    document = snapshot.document
    states = Counter(run.state for run in document.runs.values())
    states.update(stone.state for stone in document.finished.values())
    views = Counter(view_of(run, now) for run in document.runs.values())
    workers = Counter(worker.state for worker in document.workers.values())
    waiting = _oldest(document.runs.values(), now)
    return Status(
        fleet=document.fleet,
        lineage=document.lineage,
        epoch=document.epoch,
        revision=document.revision,
        document_schema=document.schema,
        draining=document.draining,
        slots=slots,
        runs={view.value: views[view] for view in View},
        runs_by_state={state.value: states[state] for state in RunState},
        workers={state.value: workers[state] for state in WorkerState},
        pending_mutations=tuple(
            pending_mutation(slot, entry, flights.get(slot)) for slot, entry in sorted(document.pending_actions.items())
        ),
        disowned=len(document.disowned),
        oldest_waiting_at=waiting,
        oldest_waiting_ms=None if waiting is None else max(now - waiting, 0),
        troubles=document.troubles,
        refusals=tuple(refusals),
        integrity=integrity_of(snapshot),
        now_at=now,
    )


def integrity_of(snapshot: Snapshot) -> Integrity:
    """What can be told of a snapshot alone. History may lack the last commit: the next hold appends that one."""
    document, known = snapshot.document, snapshot.history_revision
    if known is None:
        # Before the first append there is none yet; later its absence is a loss.
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


def pending_mutation(slot: int, entry: PendingAction, flight: Flight | None) -> PendingMutation:
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
    )


def _oldest(runs: Iterable[Run], now: int) -> int | None:
    """Since when the run that waited longest could have started."""
    return min((waits_since(run) for run in runs if view_of(run, now) is View.PENDING), default=None)
