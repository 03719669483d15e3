"""Invariants of the document: named checks that commits, `state accept` and `fsck` share.

Not promised: anything that one document cannot show, such as tokens and revisions against history.

`violations(document)` judges everything; with `Touched` it judges only what an edit changed, so that a commit costs
what it changes. What `AT_REST` names is judged only with everything, and refuses nothing: a clock that jumped must not
stop work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct, UnsetType

from controller.model.action import decode, key_of
from controller.model.edit import Edit
from controller.model.errors import BrokenAction
from controller.model.graph import cycle
from controller.model.records import (
    INITIALISED,
    MAX_SLOTS,
    MAX_TROUBLES,
    SCHEMA,
    SENTINEL,
    TERMINAL,
    ActionType,
    Disowned,
    Document,
    Event,
    PendingAction,
    Run,
    RunState,
    StepState,
    Worker,
    WorkerState,
    is_id,
)

AT_REST = frozenset({"times"})


class Violation(Struct, frozen=True):
    """`id` names the check, `subject` is `run:R`, `slot:N` or `fleet`, `what` says what is wrong."""

    id: str
    subject: str
    what: str


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
    for name in before.counters.__struct_fields__:
        old, new = getattr(before.counters, name), getattr(after.counters, name)
        if new < old:
            found.append(Violation("counter-lowered", "fleet", f"counter {name} would go from {old} to {new}"))
    if after.revision != before.revision + 1:
        what = f"revision {before.revision} would be followed by {after.revision}"
        found.append(Violation("revision-step", "fleet", what))
    for name in sorted(touched.runs):
        run = after.runs.get(name)
        if run is None:
            continue
        token = max(
            before.runs[name].attempts if name in before.runs else 0,
            before.finished[name].token if name in before.finished else 0,
        )
        if run.attempts < token:
            what = f"token of run {name} would go from {token} to {run.attempts}"
            found.append(Violation("token-lowered", f"run:{name}", what))
    return tuple(found)


def against_history(document: Document, events: Iterable[Event]) -> tuple[Violation, ...]:
    """What history knows better than the document: whose it is, and what was handed out already."""
    found: dict[str, Violation] = {}
    counters = {"serial": 0, "assignment": 0, "pruned": 0}
    for event in events:
        if event.event == INITIALISED and event.key is not None and event.key != document.lineage:
            what = f"lineage is {document.lineage}, and history began with {event.key}"
            found["lineage"] = Violation("lineage", "fleet", what)
        token = _token_of(document, event.subject)
        if token is not None and event.token is not None and token < event.token:
            what = f"token is {token}, and history knows {event.token}"
            found[event.subject] = Violation("token-history", event.subject, what)
        counters["pruned"] += event.event == "pruned"
        for name, number in _handed_out(event):
            counters[name] = max(counters[name], number)
    for name, known in counters.items():
        if getattr(document.counters, name) < known:
            what = f"counter {name} is at {getattr(document.counters, name)}, and history knows {known}"
            found[name] = Violation("counter-history", "fleet", what)
    return tuple(found.values())


def _token_of(document: Document, subject: str) -> int | None:
    """The last token of the run that an event is about; None: it is about none, or the run is forgotten."""
    name = subject.removeprefix("run:")
    if name == subject:
        return None
    run, stone = document.runs.get(name), document.finished.get(name)
    return run.attempts if run is not None else None if stone is None else stone.token


def _handed_out(event: Event) -> Iterator[tuple[str, int]]:
    """What was taken from counters for the action that *event* parked."""
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


def _violations(document: Document, touched: Touched | None) -> Iterator[Violation]:
    yield from _header(document)
    runs: Iterable[str] = document.runs if touched is None else sorted(touched.runs)
    for name in runs:
        run = document.runs.get(name)
        if run is not None:
            yield from _run(document, name, run)
            if touched is None:
                yield from _times(run)
                yield from _lease(run)
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
        if key in document.disowned:
            yield from _disowned(key, document.disowned[key])
    resources, ids = (None, None) if touched is None else (touched.resources, touched.ids)
    for slot, what in _shared(document.workers, resources, _resources):
        yield Violation("resource-owner", f"slot:{slot}", what)
    for slot, what in _shared(document.workers, ids, _own_id):
        yield Violation("worker-id", f"slot:{slot}", what)
    if touched is None:
        yield from _permits(document.runs.values())
        for slot in document.slots:
            if not 1 <= slot <= MAX_SLOTS:
                yield Violation("slot-bounds", f"slot:{slot}", f"slot {slot} is outside 1..{MAX_SLOTS}")
        for name, tombstone in document.finished.items():
            if tombstone.id != name:
                yield Violation("finished-id", f"run:{name}", f"the tombstone of {name} is one of {tombstone.id}")


def _header(document: Document) -> Iterator[Violation]:
    if document.schema != SCHEMA:
        yield Violation("schema", "fleet", f"schema is {document.schema}, not {SCHEMA}")
    if document.pending_action != SENTINEL:
        yield Violation("sentinel", "fleet", f"pending_action does not hold {SENTINEL!r}")
    if document.revision < 0:
        yield Violation("revision", "fleet", f"revision is {document.revision}")
    if document.revision > 0 and not document.events:
        yield Violation("events", "fleet", f"revision {document.revision} carries no event")
    for n, event in enumerate(document.events, 1):
        if (event.revision, event.n) != (document.revision, n):
            what = f"event {n} of revision {document.revision} says that it is {event.n} of {event.revision}"
            yield Violation("events", "fleet", what)
    if len(document.troubles) > MAX_TROUBLES:
        yield Violation("troubles", "fleet", f"{len(document.troubles)} troubles; {MAX_TROUBLES} are kept")


def _run(document: Document, name: str, run: Run) -> Iterator[Violation]:
    subject = f"run:{name}"
    if run.id != name or not is_id(name):
        yield Violation("run-id", subject, f"the record under {name!r} is one of run {run.id!r}")
    if run.sequence > document.counters.sequence:
        what = f"sequence {run.sequence} was never handed out; the counter is at {document.counters.sequence}"
        yield Violation("run-sequence", subject, what)
    yield from _ranges(subject, run)
    if run.state in TERMINAL:
        yield from _ended(subject, run)
    if run.available_at is not None and run.defer_reason is None:
        yield Violation("run-defer-reason", subject, "deferred without a reason")
    holders = (run.worker is not None) + (run.lease is not None)
    if run.state is RunState.RUNNING and holders != 1:
        yield Violation("run-holder", subject, f"running with {holders} holders; one worker or one lease is needed")
    elif run.state is not RunState.RUNNING and holders:
        yield Violation("run-holder", subject, f"{run.state} and still held")
    if run.state is RunState.RUNNING and run.attempts < 1:
        yield Violation("run-token", subject, "running without ever having been claimed")
    if run.state is RunState.RUNNING and run.worker is not None:
        yield from _held(document, subject, run)
    yield from _steps(subject, run)


def _ranges(subject: str, run: Run) -> Iterator[Violation]:
    """Numbers and commands that no submit lets through."""
    numbers = {"max_attempts": run.max_attempts, "max_crashes": run.max_crashes, "created_at": run.created_at + 1}
    for name, value in numbers.items():
        if value < 1:
            yield Violation("run-range", subject, f"{name} cannot be {getattr(run, name)}")
    if run.attempts < 0 or run.failures < 0 or run.crashes < 0:
        yield Violation("run-range", subject, "attempts, failures and crashes cannot be below 0")
    for step in run.steps:
        if not step.argv or not step.argv[0]:
            yield Violation("step-argv", subject, f"step {step.name} has no command")
        if (step.timeout_ms is not None and step.timeout_ms < 1) or step.max_attempts < 1:
            yield Violation("step-range", subject, f"step {step.name} has a timeout or a number of attempts below 1")


def _ended(subject: str, run: Run) -> Iterator[Violation]:
    if run.reason is None:
        yield Violation("run-reason", subject, f"{run.state} without a reason")
    for step in run.steps:
        if step.state is StepState.RUNNING:
            yield Violation("run-ended-step", subject, f"{run.state} with step {step.name} running")
        if run.state is RunState.SUCCEEDED and step.state is StepState.FAILED:
            yield Violation("run-outcome", subject, f"succeeded with step {step.name} failed")
    failed = any(step.state is StepState.FAILED for step in run.steps)
    if run.state is RunState.FAILED and not failed and run.reason is None:
        yield Violation("run-outcome", subject, "failed with neither a failed step nor a reason of its own")


def _held(document: Document, subject: str, run: Run) -> Iterator[Violation]:
    reference = run.worker
    if reference is None:
        return
    worker = document.workers.get(reference.slot)
    if (
        worker is None
        or (worker.assignment, worker.generation) != (reference.assignment, reference.generation)
        or worker.run != run.id
    ):
        what = f"held by {reference.assignment} in slot {reference.slot}, which does not say so"
        yield Violation("run-worker", subject, what)


def _steps(subject: str, run: Run) -> Iterator[Violation]:
    steps = {step.name: step for step in run.steps}
    if len(steps) != len(run.steps):
        yield Violation("step-names", subject, "two steps of one name")
    for step in run.steps:
        unknown = [need for need in step.needs if need not in steps]
        if unknown:
            yield Violation("step-needs", subject, f"step {step.name} needs {unknown[0]}, which is no step")
        elif step.state is StepState.RUNNING:
            for need in step.needs:
                if steps[need].state is not StepState.SUCCEEDED:
                    what = f"step {step.name} is running and needs {need}, which is {steps[need].state}"
                    yield Violation("step-running-needs", subject, what)
        open_attempts = [attempt.n for attempt in step.attempts if attempt.ended_at is None]
        if len(open_attempts) > 1:
            what = f"step {step.name} has {len(open_attempts)} active attempts"
            yield Violation("step-one-active", subject, what)
        if (step.state is StepState.RUNNING) != bool(open_attempts):
            what = f"step {step.name} is {step.state} with {len(open_attempts) or 'no'} active attempt"
            yield Violation("step-active-state", subject, what)
        if [attempt.n for attempt in step.attempts] != list(range(1, len(step.attempts) + 1)):
            yield Violation("step-attempts", subject, f"attempts of step {step.name} are not numbered 1, 2, 3")
    if cycle({step.name: step.needs for step in run.steps}):
        yield Violation("step-cycle", subject, "the needs of its steps go in a circle")


def _times(run: Run) -> Iterator[Violation]:
    """At rest only. Every recorded pair in order."""
    pairs = [
        ("created", run.created_at, "started", run.started_at),
        ("started", run.started_at, "finished", run.finished_at),
    ]
    if run.started_at is None:
        pairs.append(("created", run.created_at, "finished", run.finished_at))
    for step in run.steps:
        pairs += [
            (f"attempt {attempt.n} of {step.name} started", attempt.started_at, "ended", attempt.ended_at)
            for attempt in step.attempts
        ]
    for earlier, first, later, second in pairs:
        if first is not None and second is not None and second < first:
            yield Violation("times", f"run:{run.id}", f"{earlier} at {first} and {later} before that, at {second}")


def _lease(run: Run) -> Iterator[Violation]:
    """At rest only. Numbers that no claim and no heartbeat lets through."""
    if run.lease is not None and (run.lease.granted_ms < 1 or run.lease.deadline_ms < 1):
        what = f"its lease of {run.lease.granted_ms} ms until {run.lease.deadline_ms} ms was granted by nobody"
        yield Violation("lease-range", f"run:{run.id}", what)


def _permits(runs: Iterable[Run]) -> Iterator[Violation]:
    """At rest only: a commit cannot tell without a look at every run. Who claims one counts, under the lock.

    Runs of one key may have different limits. The last of them that was claimed found fewer than its own.
    """
    running: dict[str, list[Run]] = {}
    for run in runs:
        if run.concurrency_key and run.state is RunState.RUNNING:
            running.setdefault(run.concurrency_key, []).append(run)
    for key, holders in running.items():
        most = max(run.concurrency for run in holders)
        if len(holders) > most:
            names = ", ".join(sorted(run.id for run in holders))
            yield Violation("permits", "fleet", f"key {key} lets at most {most} run at once: {names} are running")


def _worker(document: Document, slot: int, worker: Worker) -> Iterator[Violation]:
    subject = f"slot:{slot}"
    if worker.slot != slot:
        yield Violation("worker-slot", subject, f"the worker under slot {slot} is one of slot {worker.slot}")
    if not 1 <= slot <= MAX_SLOTS:
        yield Violation("slot-bounds", subject, f"slot {slot} is outside 1..{MAX_SLOTS}")
    if worker.generation < 1:
        yield Violation("worker-generation", subject, f"generation cannot be {worker.generation}")
    if worker.state is WorkerState.ASSIGNED and worker.run is None:
        yield Violation("worker-run", subject, "assigned without a run")
    if worker.run is None:
        return
    run = document.runs.get(worker.run)
    if run is None and worker.run not in document.finished:
        yield Violation("worker-run", subject, f"assigned to run {worker.run}, which is not there")


def _pending(document: Document, slot: int, parked: PendingAction) -> Iterator[Violation]:
    subject = f"slot:{slot}"
    try:
        action = decode(parked.action)
        derived = key_of(parked.action)
    except BrokenAction as error:
        yield Violation("pending-action", subject, f"its pending action cannot be read: {error}")
        return
    if action.slot != slot or not 1 <= slot <= MAX_SLOTS:
        yield Violation("pending-slot", subject, f"slot {slot} holds a pending action for slot {action.slot}")
    if derived != action.idempotency_key:
        what = f"key {action.idempotency_key[:12]} of its pending action does not derive from its content"
        yield Violation("pending-key", subject, what)
    if action.serial > document.counters.serial:
        what = f"serial {action.serial} was never handed out; the counter is at {document.counters.serial}"
        yield Violation("pending-serial", subject, what)
    if action.token is not None and action.run is not None and slot in document.workers:
        run = document.runs.get(action.run)
        if run is None or run.state is not RunState.RUNNING or run.attempts != action.token:
            what = f"its pending {action.type} carries token {action.token} of run {action.run}, not its present one"
            yield Violation("pending-token", subject, what)


def _disowned(key: str, record: Disowned) -> Iterator[Violation]:
    try:
        action, derived = decode(record.action), key_of(record.action)
    except BrokenAction as error:
        yield Violation("disowned-key", "fleet", f"the disowned action under key {key[:12]} cannot be read: {error}")
        return
    if derived != key or action.idempotency_key != key:
        what = f"key {key[:12]} of its disowned {action.type} does not derive from its content"
        yield Violation("disowned-key", f"slot:{action.slot}", what)


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
