"""A document that comes back: what a restore, or an import, makes of an earlier one. Pure.

Not promised: anything about revisions of which neither a document nor history is left. What was handed out in those is
not known here: only the new epoch keeps keys, assignments and ids of runs apart from it.

Three rules. What was handed out is never handed out again: counters and tokens only climb, and a new epoch goes into
whatever is minted from now on. What may be out there is never forgotten: what only the lost revisions knew of a slot
keeps it closed until looks have shown what is there. And nothing is sent on the strength of an old record: every action
that was parked belongs to an earlier epoch, which `engine.age` takes for too old to be sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Raw, Struct, UnsetType
from msgspec.structs import replace

from controller.model.action import decode
from controller.model.errors import BrokenAction
from controller.model.reason import Reason
from controller.model.records import (
    MAX_SLOTS,
    MAX_UNRECORDED,
    ActionType,
    Counters,
    Disowned,
    Document,
    Event,
    PendingAction,
    Proven,
    Run,
    RunState,
    Slot,
    Tombstone,
    Unrecorded,
    Worker,
    WorkerState,
)

RESTORED: Final = "restored"
"""The event of a document, and of each of its runs and slots, that was put back."""
_WORKER_STATES: Final = frozenset(state.value for state in WorkerState)
_PROVEN: Final = frozenset(proven.value for proven in Proven)
_PARKED_SINCE: Final = "it was parked in a revision that a restore went back over"


class Kind(StrEnum):
    PENDING = "pending_action"
    WORKER = "worker"


class Over(Struct, frozen=True):
    """Something that a restore goes back over, and that may be out there.

    `name` is the type of a parked action, or the state of a worker; `id` the key of the one, or the assignment of the
    other. `lost`: the document that is brought does not know it.
    """

    slot: int
    kind: Kind
    name: str
    id: str
    lost: bool


class Since(Struct, frozen=True):
    """What the revisions after the one that is brought left behind, and that one does not know.

    `revision` is the last that anything knows. `runs` are those that it will not have; `again` are those that went on
    meanwhile, and are put back to where they were.
    """

    revision: int
    pending: Mapping[int, PendingAction]
    workers: Mapping[int, Worker]
    disowned: Mapping[str, Disowned]
    runs: tuple[str, ...] = ()
    again: tuple[str, ...] = ()


def since(brought: Document, standing: Document | None, events: Iterable[Event]) -> Since:
    """What came after *brought*, by the document that stands there or, where that says less, by history alone."""
    later = [event for event in events if event.revision > brought.revision]
    last = max([brought.revision, *(event.revision for event in later)])
    named = [event.subject.removeprefix("run:") for event in later if event.subject.startswith("run:")]
    if standing is None or standing.revision < last:
        told, ended = _told(brought, later), frozenset[str]()
        moved = dict.fromkeys(named)
    else:
        told = Since(standing.revision, standing.pending_actions, standing.workers, standing.disowned)
        ended = frozenset(standing.finished)
        moved = dict.fromkeys([*named, *standing.runs])
        moved = {name: None for name in moved if standing.runs.get(name) != brought.runs.get(name)}
    known = {*brought.runs, *brought.finished, *ended}
    return replace(
        told,
        pending={n: entry for n, entry in told.pending.items() if not _is_parked(brought, n, entry)},
        workers={n: worker for n, worker in told.workers.items() if not _is_recorded(brought, worker)},
        runs=tuple(name for name in moved if name not in known),
        again=tuple(name for name in moved if name in brought.runs),
    )


def gone_over(brought: Document, lost: Since) -> tuple[Over, ...]:
    """What an operator has to take responsibility for, slot by slot; nothing: it can go back without a word."""
    found = [
        *_over(brought.pending_actions, brought.workers, lost=False),
        *_over(lost.pending, lost.workers, lost=True),
    ]
    return tuple(sorted(found, key=lambda over: (over.slot, over.lost, over.kind)))


def restored(
    brought: Document,
    standing: Document | None,
    events: Iterable[Event],
    *,
    revision: int,
    now: int,
    command: str,
    epoch: str,
    lost: Since | None = None,
    event: str = RESTORED,
    detail: str = "",
) -> Document:
    """The document of *revision* that goes on from *brought*, in a new *epoch*.

    *standing* is the document that it takes the place of (None: there is none that can be read), *events* all that
    history knows. *lost* is what `since` makes of these, if that is known already. *event* is what history says of it,
    with *detail*.

    A run that is running goes on being held: by its worker until a look says otherwise, by a consumer until its lease,
    which is one of an earlier epoch, is taken back. Either way its token is a new one, so nobody can report under the
    old one.
    """
    events = tuple(events)
    lost = since(brought, standing, events) if lost is None else lost
    tokens = _tokens(brought, standing, events)
    numbers = {*brought.slots, *brought.workers, *brought.pending_actions, *lost.pending, *lost.workers}
    numbers |= {slot for slot in map(_slot_of, events) if slot is not None}
    numbers |= set(() if standing is None else standing.slots)
    runs = {name: _run(run, tokens.get(name, 0)) for name, run in brought.runs.items()}
    pending = {n: _parked(entry, now) for n, entry in brought.pending_actions.items()}
    made = replace(
        brought,
        epoch=epoch,
        revision=revision,
        counters=_counters(brought, standing, events),
        runs=runs,
        workers={n: replace(w, absent=None, idle_since=None, dark_at=None) for n, w in brought.workers.items()},
        pending_actions=pending,
        slots={n: _slot(brought, standing, lost, n, revision, now) for n in sorted(numbers)},
        finished=_finished(brought, standing, tokens),
        disowned=_disowned(brought, lost, now),
    )
    back = (_at(lost.revision), _at(brought.revision))
    told = Event(revision, 0, now, command, "fleet", event, *back, key=epoch, detail=detail or None)
    told_of = (told, *_events(made, lost, now, command))
    return replace(made, events=tuple(replace(each, n=n) for n, each in enumerate(told_of, 1)))


def _at(revision: int) -> str:
    return f"revision {revision}"


def _over(pending: Mapping[int, PendingAction], workers: Mapping[int, Worker], *, lost: bool) -> Iterator[Over]:
    for slot, entry in pending.items():
        try:
            action = decode(entry.action)
        except BrokenAction:
            yield Over(slot, Kind.PENDING, "action", "", lost)
        else:
            yield Over(slot, Kind.PENDING, action.type, action.idempotency_key, lost)
    for slot, worker in workers.items():
        yield Over(slot, Kind.WORKER, worker.state, worker.assignment, lost)


def _is_parked(document: Document, slot: int, entry: PendingAction) -> bool:
    there = document.pending_actions.get(slot)
    return there is not None and bytes(there.action) == bytes(entry.action)


def _is_recorded(document: Document, worker: Worker) -> bool:
    there = document.workers.get(worker.slot)
    return there is not None and (there.assignment, there.generation) == (worker.assignment, worker.generation)


def _slot_of(event: Event) -> int | None:
    kind, _, number = event.subject.partition(":")
    return int(number) if kind == "slot" and number.isdecimal() and 1 <= int(number) <= MAX_SLOTS else None


class _Told:
    """What history tells of one slot, event by event."""

    def __init__(self, slot: int, brought: Document) -> None:
        self.slot = slot
        self.pending: PendingAction | None = brought.pending_actions.get(slot)
        self._brought = self.worker = brought.workers.get(slot)
        self.actions: dict[str, Raw] = {}
        if self.pending is not None:
            self._learn(self.pending.action)

    def hear(self, event: Event, disowned: dict[str, Disowned]) -> None:
        if not isinstance(event.action, UnsetType):
            self._learn(event.action)
        raw = self.actions.get(event.key or "")
        if event.event == "action.parked" and raw is not None:
            self.pending = PendingAction(raw, parked_at=event.at, sent_at=event.at)
        elif event.event in ("action.settled", "action.disowned") and self._is_pending(event.key):
            self.pending = None
        elif event.event == RESTORED:
            self.pending = None if raw is None else PendingAction(raw, parked_at=event.at, sent_at=event.at)
            self.worker = self._brought
        if event.event == "action.disowned" and raw is not None and event.key is not None:
            reason = event.reason or Reason.DISOWNED
            disowned[event.key] = Disowned(raw, event.at, reason, event.detail or "", sent_at=event.at)
        elif event.event == "disowned_proven" and event.key in disowned and event.to in _PROVEN:
            proven = Proven(event.to)
            disowned[event.key] = replace(disowned[event.key], proven=proven, proven_at=event.at, absent=None)
        if event.to in _WORKER_STATES:
            self._is(WorkerState(event.to), event)
        elif event.from_ in _WORKER_STATES and event.to is None:
            self.worker = None

    def _learn(self, raw: Raw) -> None:
        try:
            action = decode(raw)
        except BrokenAction:
            return
        self.actions[action.idempotency_key] = raw
        if self.worker is not None:
            self.worker = replace(self.worker, assignment=action.assignment, generation=action.generation)

    def _is(self, state: WorkerState, event: Event) -> None:
        known = self.worker
        if known is None:
            # Which one it is, the action tells that made it: its event follows in the same commit.
            known = Worker(self.slot, "", 0, "", created_at=event.at, changed_at=event.at)
        self.worker = replace(known, state=state, changed_at=event.at)

    def _is_pending(self, key: str | None) -> bool:
        raw = self.actions.get(key or "")
        return self.pending is not None and raw is not None and bytes(raw) == bytes(self.pending.action)


def _told(brought: Document, later: Sequence[Event]) -> Since:
    """What history alone tells of the slots, where no document of that time is left."""
    slots: dict[int, _Told] = {}
    disowned = dict(brought.disowned)
    for event in later:
        number = _slot_of(event)
        if number is not None:
            slots.setdefault(number, _Told(number, brought)).hear(event, disowned)
    pending = {n: told.pending for n, told in slots.items() if told.pending is not None}
    workers = {n: told.worker for n, told in slots.items() if told.worker is not None and told.worker.assignment}
    last = max([brought.revision, *(event.revision for event in later)])
    return Since(last, pending, workers, disowned)


def _tokens(brought: Document, standing: Document | None, events: Sequence[Event]) -> Mapping[str, int]:
    """The highest token that anything knows of each run."""
    highest: dict[str, int] = {}

    def know(name: str, token: int) -> None:
        highest[name] = max(highest.get(name, 0), token)

    for document in (brought, standing):
        for name, run in () if document is None else document.runs.items():
            know(name, run.attempts)
        for name, stone in () if document is None else document.finished.items():
            know(name, stone.token)
    for event in events:
        if event.token is not None and event.subject.startswith("run:"):
            know(event.subject.removeprefix("run:"), event.token)
    return highest


def _run(run: Run, highest: int) -> Run:
    """*run* under a token that nobody has. Queued and never taken, it still is: those lives were others'."""
    token = max(run.attempts, highest) + 1
    untouched = run.state is RunState.QUEUED and max(run.attempts, highest) <= run.earlier_lives
    return replace(run, attempts=token, earlier_lives=token if untouched else run.earlier_lives)


def _parked(entry: PendingAction, now: int) -> PendingAction:
    """The entry as nobody has it who parked it: it may have been sent again, until now, and nobody knows how often.

    Two looks that show nothing of it must both come after that.
    """
    why = entry.last_reason or Reason.KEY_EXPIRED
    return replace(
        entry,
        sends=entry.sends + 1,
        unsure=entry.unsure + 1,
        sent_at=now,
        not_before=None,
        last_reason=why,
        absent=None,
    )


def _finished(brought: Document, standing: Document | None, tokens: Mapping[str, int]) -> Mapping[str, Tombstone]:
    """What ended is not forgotten, but for runs that come back to life."""
    later = {} if standing is None else standing.finished
    stones = {**brought.finished, **{name: stone for name, stone in later.items() if name not in brought.runs}}
    return {name: replace(stone, token=max(stone.token, tokens.get(name, 0))) for name, stone in stones.items()}


def _slot(brought: Document, standing: Document | None, lost: Since, number: int, revision: int, now: int) -> Slot:
    """Changed now, so that no older look speaks of it; closed by what may be there and is not recorded any more."""
    known = brought.slots.get(number) or Slot()
    there = [replace(each, absent=None) for each in known.unrecorded]
    later = None if standing is None else standing.slots.get(number)
    if later is not None:
        there += [replace(each, absent=None) for each in later.unrecorded]
    worker = lost.workers.get(number)
    if worker is not None:
        named = (worker.assignment, worker.generation, worker.id, worker.state.value)
        there.append(Unrecorded(*named, at=now, resources=worker.resources))
    recorded = brought.workers.get(number)
    tags = {(each.assignment, each.generation): each for each in there}
    if recorded is not None:
        tags.pop((recorded.assignment, recorded.generation), None)
    kept = tuple(tags.values())[-MAX_UNRECORDED:]
    more = max(known.unrecorded_more, 0 if later is None else later.unrecorded_more, len(tags) - len(kept))
    return replace(known, changed=revision, unrecorded=kept, unrecorded_more=more)


def _disowned(brought: Document, lost: Since, now: int) -> Mapping[str, Disowned]:
    """What is kept for ever, and what was parked in lost revisions: it may have been sent, and is not any more."""
    kept = {key: replace(each, absent=None) for key, each in {**brought.disowned, **lost.disowned}.items()}
    for entry in lost.pending.values():
        key = _key(entry)
        if key is not None:
            kept.setdefault(key, Disowned(entry.action, now, Reason.DISOWNED, _PARKED_SINCE, sent_at=now))
    return kept


def _counters(brought: Document, standing: Document | None, events: Sequence[Event]) -> Counters:
    """No counter below what any document, or history, knows to have been handed out."""
    names = Counters.__struct_fields__
    known = [brought.counters] + ([] if standing is None else [standing.counters])
    highest = {name: max(getattr(each, name) for each in known) for name in names}
    submitted = 0
    for event in events:
        number = event.subject.removeprefix("run:").rpartition("-")[2]
        if event.subject.startswith("run:r-") and number.isdecimal():
            highest["run"] = max(highest["run"], int(number))
        submitted += event.event == "submitted" and event.revision > brought.revision
        for name, taken in handed_out(event):
            highest[name] = max(highest[name], taken)
    # Each submitted run took one sequence number, and an event does not say which.
    highest["sequence"] = max(highest["sequence"], brought.counters.sequence + submitted)
    highest["pruned"] = max(highest["pruned"], sum(event.event == "pruned" for event in events))
    return Counters(**highest)


def handed_out(event: Event) -> Iterator[tuple[str, int]]:
    """What was taken from counters for the action that *event* parked: the counter's name, and the number."""
    if isinstance(event.action, UnsetType):
        return
    try:
        action = decode(event.action)
    except BrokenAction:
        return
    yield "serial", action.serial
    number = action.assignment.rpartition("-")[2]
    if action.type is ActionType.CREATE and number.isdecimal():
        yield "assignment", int(number)


def _events(made: Document, lost: Since, now: int, command: str) -> Iterator[Event]:
    """One for each run and slot: where it was put back to. And one for what was parked and is disowned now."""
    revision = made.revision
    for name, run in made.runs.items():
        yield Event(revision, 0, now, command, f"run:{name}", RESTORED, to=run.state, token=run.attempts)
    for slot in sorted({*made.workers, *made.pending_actions, *lost.workers, *lost.pending}):
        subject, worker, before = f"slot:{slot}", made.workers.get(slot), lost.workers.get(slot)
        entry, gone = made.pending_actions.get(slot), lost.pending.get(slot)
        states = (None if before is None else before.state, None if worker is None else worker.state)
        detail = None if before is None else f"{before.assignment} generation {before.generation} is not recorded now"
        key = None if entry is None else _key(entry)
        yield Event(revision, 0, now, command, subject, RESTORED, *states, key=key, detail=detail)
        left = None if gone is None else _key(gone)
        if gone is not None and left is not None:
            yield Event(
                revision,
                0,
                now,
                command,
                subject,
                "action.disowned",
                reason=Reason.DISOWNED,
                key=left,
                detail=_PARKED_SINCE,
                action=gone.action,
            )


def _key(entry: PendingAction) -> str | None:
    try:
        return decode(entry.action).idempotency_key
    except BrokenAction:
        return None
