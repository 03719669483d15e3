"""Invariants of the document: named checks that commits, `state accept` and `fsck` share.

Not promised: anything that one document cannot show, such as tokens and revisions against history.

`violations(document)` judges everything; with `Touched` it judges only what an edit changed, so that a commit costs
what it changes. `checks` has the catalogue, and who judges what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from controller.model.action import decode, key_of
from controller.model.checks import By, Check, Violation, judged_by
from controller.model.edit import Edit
from controller.model.errors import BrokenAction
from controller.model.records import (
    INITIALISED,
    MAX_SLOTS,
    MAX_TROUBLES,
    SCHEMA,
    SENTINEL,
    Disowned,
    Document,
    Event,
    PendingAction,
    RunState,
    Worker,
    WorkerState,
)
from controller.model.restore import handed_out
from controller.model.run_invariants import at_rest, of_finished, of_run, permits

__all__ = ["AT_REST", "Check", "Touched", "Violation", "against_history", "regressions", "violations"]

AT_REST = judged_by(By.FSCK) - judged_by(By.ACCEPT)
"""What `fsck` alone judges: it refuses nothing."""


class Touched(Struct, frozen=True):
    """What an edit changed: all that is judged before a commit. `resources` and `ids` are slots whose worker's
    resources, or own id, changed.
    """

    runs: frozenset[str]
    slots: frozenset[int]
    resources: frozenset[int]
    ids: frozenset[int] = frozenset()
    disowned: frozenset[str] = frozenset()

    @classmethod
    def of(cls, document: Document, edit: Edit) -> Touched:
        """A touched run brings the worker that holds it, a touched worker its run: the rules between them join both."""
        runs = {*edit.runs, *edit.finished}
        slots = {*edit.workers, *edit.pending_actions}
        resources, ids = set(), set()
        for slot, new in edit.workers.items():
            old = document.workers.get(slot)
            runs |= {worker.run for worker in (old, new) if worker is not None and worker.run is not None}
            if new is not None and new.resources and (old is None or old.resources != new.resources):
                resources.add(slot)
            if new is not None and new.id and (old is None or old.id != new.id):
                ids.add(slot)
        for name, changed in edit.runs.items():
            held = (document.runs.get(name), changed)
            slots |= {run.worker.slot for run in held if run is not None and run.worker is not None}
        disowned = frozenset(edit.disowned)
        return cls(frozenset(runs), frozenset(slots), frozenset(resources), frozenset(ids), disowned)


def violations(document: Document, touched: Touched | None = None) -> tuple[Violation, ...]:
    """Every violation among the *touched* records, or in the whole document."""
    return tuple(_violations(document, touched))


def regressions(before: Document, after: Document, touched: Touched) -> tuple[Violation, ...]:
    """What no commit may lower: counters, the token of a run, the revision."""
    found = []
    for name in before.counters.__struct_fields__ if after.counters is not before.counters else ():
        old, new = getattr(before.counters, name), getattr(after.counters, name)
        if new < old:
            found.append(Violation(Check.COUNTER_LOWERED, "fleet", f"counter {name} would go from {old} to {new}"))
    if after.revision != before.revision + 1:
        what = f"revision {before.revision} would be followed by {after.revision}"
        found.append(Violation(Check.REVISION_STEP, "fleet", what))
    for name in sorted(touched.runs):
        run = after.runs.get(name)
        if run is None:
            continue
        earlier, stone = before.runs.get(name), before.finished.get(name)
        token = max(0 if earlier is None else earlier.attempts, 0 if stone is None else stone.token)
        if run.attempts < token:
            what = f"token of run {name} would go from {token} to {run.attempts}"
            found.append(Violation(Check.TOKEN_LOWERED, f"run:{name}", what))
    return tuple(found)


def against_history(document: Document, events: Iterable[Event]) -> tuple[Violation, ...]:
    """What history knows better than the document: whose it is, and what was handed out already."""
    found: dict[str, Violation] = {}
    counters = {"serial": 0, "assignment": 0, "pruned": 0}
    for event in events:
        if event.event == INITIALISED and event.key is not None and event.key != document.lineage:
            what = f"lineage is {document.lineage}, and history began with {event.key}"
            found["lineage"] = Violation(Check.LINEAGE, "fleet", what)
        token = _token_of(document, event.subject)
        if token is not None and event.token is not None and token < event.token:
            what = f"token is {token}, and history knows {event.token}"
            found[event.subject] = Violation(Check.TOKEN_HISTORY, event.subject, what)
        counters["pruned"] += event.event == "pruned"
        for name, number in handed_out(event):
            counters[name] = max(counters[name], number)
    for name, known in counters.items():
        if getattr(document.counters, name) < known:
            what = f"counter {name} is at {getattr(document.counters, name)}, and history knows {known}"
            found[name] = Violation(Check.COUNTER_HISTORY, "fleet", what)
    return tuple(found.values())


def _token_of(document: Document, subject: str) -> int | None:
    """The last token of the run that an event is about; None: it is about none, or the run is forgotten."""
    name = subject.removeprefix("run:")
    if name == subject:
        return None
    run, stone = document.runs.get(name), document.finished.get(name)
    return run.attempts if run is not None else None if stone is None else stone.token


def _violations(document: Document, touched: Touched | None) -> Iterator[Violation]:
    yield from _header(document)
    runs: Iterable[str] = document.runs if touched is None else sorted(touched.runs)
    for name in runs:
        run = document.runs.get(name)
        if run is not None:
            yield from of_run(document, name, run)
            if touched is None:
                yield from at_rest(run)
    workers: Iterable[int] = document.workers if touched is None else sorted(touched.slots)
    for slot in workers:
        worker = document.workers.get(slot)
        if worker is not None:
            yield from _worker(document, slot, worker)
    pending: Iterable[int] = document.pending_actions if touched is None else sorted(touched.slots)
    for slot in pending:
        parked = document.pending_actions.get(slot)
        if parked is not None:
            yield from _pending(document, slot, parked)
    for key in document.disowned if touched is None else sorted(touched.disowned):
        record = document.disowned.get(key)
        if record is not None:
            yield from _disowned(key, record)
    resources, ids = (None, None) if touched is None else (touched.resources, touched.ids)
    for slot, what in _shared(document.workers, resources, _resources):
        yield Violation(Check.RESOURCE_OWNER, f"slot:{slot}", what)
    for slot, what in _shared(document.workers, ids, _own_id):
        yield Violation(Check.WORKER_ID, f"slot:{slot}", what)
    if touched is None:
        yield from permits(document.runs.values())
        for slot in document.slots:
            if not 1 <= slot <= MAX_SLOTS:
                yield Violation(Check.SLOT_BOUNDS, f"slot:{slot}", f"slot {slot} is outside 1..{MAX_SLOTS}")
        for name, tombstone in document.finished.items():
            yield from of_finished(document, name, tombstone)


def _header(document: Document) -> Iterator[Violation]:
    if document.schema != SCHEMA:
        yield Violation(Check.SCHEMA, "fleet", f"schema is {document.schema}, not {SCHEMA}")
    if document.pending_action != SENTINEL:
        yield Violation(Check.SENTINEL, "fleet", f"pending_action does not hold {SENTINEL!r}")
    if document.revision < 0:
        yield Violation(Check.REVISION, "fleet", f"revision is {document.revision}")
    if document.revision > 0 and not document.events:
        yield Violation(Check.EVENTS, "fleet", f"revision {document.revision} carries no event")
    for n, event in enumerate(document.events, 1):
        if (event.revision, event.n) != (document.revision, n):
            what = f"event {n} of revision {document.revision} says that it is {event.n} of {event.revision}"
            yield Violation(Check.EVENTS, "fleet", what)
    if len(document.troubles) > MAX_TROUBLES:
        yield Violation(Check.TROUBLES, "fleet", f"{len(document.troubles)} troubles; {MAX_TROUBLES} are kept")


def _worker(document: Document, slot: int, worker: Worker) -> Iterator[Violation]:
    subject = f"slot:{slot}"
    if worker.slot != slot:
        yield Violation(Check.WORKER_SLOT, subject, f"the worker under slot {slot} is one of slot {worker.slot}")
    if not 1 <= slot <= MAX_SLOTS:
        yield Violation(Check.SLOT_BOUNDS, subject, f"slot {slot} is outside 1..{MAX_SLOTS}")
    if worker.generation < 1:
        yield Violation(Check.WORKER_GENERATION, subject, f"generation cannot be {worker.generation}")
    if worker.state is WorkerState.ASSIGNED and worker.run is None:
        yield Violation(Check.WORKER_RUN, subject, "assigned without a run")
    if worker.run is None:
        return
    run = document.runs.get(worker.run)
    if run is None and worker.run not in document.finished:
        yield Violation(Check.WORKER_RUN, subject, f"assigned to run {worker.run}, which is not there")


def _pending(document: Document, slot: int, parked: PendingAction) -> Iterator[Violation]:
    subject = f"slot:{slot}"
    try:
        action = decode(parked.action)
        derived = key_of(parked.action)
    except BrokenAction as error:
        yield Violation(Check.PENDING_ACTION, subject, f"its pending action cannot be read: {error}")
        return
    if action.slot != slot or not 1 <= slot <= MAX_SLOTS:
        yield Violation(Check.PENDING_SLOT, subject, f"slot {slot} holds a pending action for slot {action.slot}")
    if derived != action.idempotency_key:
        what = f"key {action.idempotency_key[:12]} of its pending action does not derive from its content"
        yield Violation(Check.PENDING_KEY, subject, what)
    if action.serial > document.counters.serial:
        what = f"serial {action.serial} was never handed out; the counter is at {document.counters.serial}"
        yield Violation(Check.PENDING_SERIAL, subject, what)
    # A restore gives every run a new token, and sends nothing of an earlier epoch any more.
    lives = action.epoch == document.epoch and slot in document.workers
    if action.token is not None and action.run is not None and lives:
        run = document.runs.get(action.run)
        if run is None or run.state is not RunState.RUNNING or run.attempts != action.token:
            what = f"its pending {action.type} carries token {action.token} of run {action.run}, not its present one"
            yield Violation(Check.PENDING_TOKEN, subject, what)


def _disowned(key: str, record: Disowned) -> Iterator[Violation]:
    try:
        action, derived = decode(record.action), key_of(record.action)
    except BrokenAction as error:
        yield Violation(
            Check.DISOWNED_KEY, "fleet", f"the disowned action under key {key[:12]} cannot be read: {error}"
        )
        return
    if derived != key or action.idempotency_key != key:
        what = f"key {key[:12]} of its disowned {action.type} does not derive from its content"
        yield Violation(Check.DISOWNED_KEY, f"slot:{action.slot}", what)


def _shared(
    workers: Mapping[int, Worker], changed: frozenset[int] | None, names: Callable[[Worker], Iterator[tuple[str, str]]]
) -> Iterator[tuple[int, str]]:
    """Ids that two workers have. Looks at all workers, but only when such an id of one changed."""
    if changed is not None and not changed:
        return
    holders: dict[tuple[str, str, str], int] = {}
    for slot, worker in workers.items():
        for kind, name in names(worker):
            other = holders.setdefault((worker.provider, kind, name), slot)
            if other != slot and (changed is None or slot in changed or other in changed):
                yield slot, f"{kind} {name} belongs to the workers of slots {other} and {slot}"


def _resources(worker: Worker) -> Iterator[tuple[str, str]]:
    return ((kind, resource.id) for kind, resource in worker.resources.items())


def _own_id(worker: Worker) -> Iterator[tuple[str, str]]:
    if worker.id:
        yield "id", worker.id
