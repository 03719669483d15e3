"""The frozen records of the document, their ids and their limits.

Times are UTC milliseconds since 1970. Field order is the order in the file. A field at its default is left out of the
file; an unknown field is refused, never dropped. Nothing here checks a rule that spans records: see `invariants`.

Annotations are no text here, unlike elsewhere: msgspec would have to evaluate each of them whenever a program starts.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType, field

from controller.model.reason import Reason

SCHEMA: Final = 2
MAX_SLOTS: Final = 10_000
"""Bound of every slot number, and so of `pending_actions`. A constant: no setting can make a document unloadable."""
MAX_TROUBLES: Final = 20
MAX_UNRECORDED: Final = 8
"""How many things without a record are kept of one slot: however many there are, an operator begins with a few."""
INITIALISED: Final = "initialised"
"""The first event of a history. Its key is the lineage: what was made under one cannot pass for another's."""
SENTINEL: Final = "superseded-by-pending-actions"
"""What the schema-1 field `pending_action` holds for ever: a schema-1 reader refuses it instead of planning afresh."""
ID_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


ID_GRAMMAR: Final = "letters, digits, '.', '_' and '-', starting with a letter or digit, at most 64"
"""The same in words, for whoever chose something else."""


def is_id(text: str) -> bool:
    """Whether *text* is an id that a user may choose."""
    return ID_PATTERN.fullmatch(text) is not None


def is_visible(text: str) -> bool:
    """Whether anything of *text* can be seen: white space, controls and zero-width characters cannot."""
    return any(each.isprintable() and not each.isspace() for each in text)


class RunState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL: Final = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED})
"""States that a run leaves by an operator's retry alone."""


class StepState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


class WorkerState(StrEnum):
    CREATING = "creating"
    READY = "ready"
    ASSIGNED = "assigned"
    RELEASED = "released"
    DEALLOCATED = "deallocated"
    COMPUTE_REMOVED = "compute_removed"
    LOST = "lost"


class ActionType(StrEnum):
    CREATE = "create"
    EXECUTE = "execute"
    CANCEL = "cancel"
    DEALLOCATE = "deallocate"
    DELETE_COMPUTE = "delete_compute"
    RESET = "reset"


class Priority(StrEnum):
    """Layers, first served first."""

    FORCED = "forced"
    CRITICAL = "critical"
    SCHEDULED = "scheduled"
    NORMAL = "normal"
    BACKGROUND = "background"


class Record(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all records: immutable, strict, defaults left out of the file."""


class Attempt(Record, frozen=True):
    """One start of a step. `key` is the idempotency key of the execute action that asked for it ("" without one)."""

    n: int
    started_at: int
    key: str = ""
    ended_at: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: Reason | None = None


class Step(Record, frozen=True):
    """One ordered part of a run. `token` is the life of the run that this record belongs to; 0 before the first."""

    name: str
    argv: tuple[str, ...]
    state: StepState = StepState.PENDING
    needs: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    timeout_ms: int | None = None
    max_attempts: int = 1
    token: int = 0
    attempts: tuple[Attempt, ...] = ()
    reason: Reason | None = None


class WorkerRef(Record, frozen=True):
    """Which worker holds a run: exact, since slots are reused. The holder of a fleet run; it has no timed lease."""

    slot: int
    assignment: str
    generation: int


class Lease(Record, frozen=True):
    """An outside consumer's exclusive right to a run.

    `deadline_ms` is on the monotonic clock of the boot `boot_id`, at most `granted_ms` after the grant: wall clock
    jumps neither rob a live holder nor protect a dead one, and a reboot ends every lease. So does a restore of the
    document: `epoch` is the one that it was granted in.
    """

    owner: str
    boot_id: str
    deadline_ms: int
    granted_ms: int
    epoch: str = ""


class Handed(Record, frozen=True):
    """A run that its consumer got in the commit that ended another: a repeated report is answered with it again."""

    run: str
    token: int


class Run(Record, frozen=True):
    """A unit of work.

    `attempts` counts lives and is the fencing token: minted by `claim` alone, never lowered. `failures` and `crashes`
    are the two budgets, spent apart. Exactly one of `worker` and `lease` is set while running, neither otherwise.
    """

    id: str
    queue: str
    sequence: int
    created_at: int
    steps: tuple[Step, ...]
    state: RunState = RunState.QUEUED
    priority: Priority = Priority.NORMAL
    attempts: int = 0
    max_attempts: int = 1
    max_crashes: int = 1
    failures: int = 0
    crashes: int = 0
    deferrals: int = 0
    available_at: int | None = None
    longest_ms: int | None = None
    """Further away than this, `available_at` is over: the clock went back. None: it is a time that was chosen."""
    defer_reason: Reason | None = None
    waiting_since: int | None = None
    """Since when it waits for a holder, where nothing else says so. None: since it is due, or was submitted."""
    cancel_requested_at: int | None = None
    worker: WorkerRef | None = None
    lease: Lease | None = None
    started_at: int | None = None
    finished_at: int | None = None
    reason: Reason | None = None
    last_error: str | None = None
    payload: Raw | UnsetType = UNSET
    content: str = ""
    """SHA-256 of what was submitted: the same id with other content is a conflict."""
    earlier_lives: int = 0
    """Lives of earlier runs of this id: the first token of this one is one more."""
    concurrency_key: str = ""
    concurrency: int = 0
    """At most so many runs of the key are running once this one is; 0 without a key."""
    progress: Raw | UnsetType = UNSET
    """What the holder of this life said last of its progress."""
    reported: Reason | None = None
    """How the consumer that held the last life ended it; None: it did not, or no consumer held it."""
    next: Handed | None = None
    """What that consumer got with its last report."""


class Tombstone(Record, frozen=True):
    """What stays of a run that left the document: it succeeded, or was discarded (`state` is cancelled then).

    Answers late duplicates, `show` and, for one that succeeded, a repeated `submit --id`.
    """

    id: str
    queue: str
    sequence: int
    token: int
    created_at: int
    finished_at: int
    state: RunState
    content: str = ""
    worker: WorkerRef | None = None
    owner: str | None = None
    steps: tuple[Step, ...] = ()
    reason: Reason | None = None
    result: Raw | UnsetType = UNSET
    next: Handed | None = None


class Resource(Record, frozen=True):
    """One provider resource: deletion uses exact ids."""

    id: str
    immutable_id: str = ""


class Span(Record, frozen=True):
    """When a look was asked for and answered."""

    began_at: int
    ended_at: int


class Worker(Record, frozen=True):
    """What occupies a slot.

    `run` is the run that it is assigned to: it holds that one, or has data of it and is not released yet. `reserved` is
    the queued run a create was made for. `accepted` are keys of execute actions
    whose end is not folded yet; `settled` are folded ones that no action has told the worker about yet. `absent` is the
    first complete look in a row that did not show it. `running` is the accepted key whose step may still have a
    process.
    """

    slot: int
    assignment: str
    generation: int
    provider: str
    created_at: int
    changed_at: int
    state: WorkerState = WorkerState.CREATING
    id: str = ""
    resources: Mapping[str, Resource] = field(default_factory=dict)
    run: str | None = None
    reserved: str | None = None
    running: str | None = None
    accepted: tuple[str, ...] = ()
    settled: tuple[str, ...] = ()
    absent: Span | None = None
    reason: Reason | None = None
    runs: int = 0
    """How many runs it was given so far."""
    idle_since: Span | None = None
    """The first complete look in a row that showed it idle after its run had ended, not released yet."""
    dark_at: int | None = None
    """When a look first found its compute off: the cooldown runs from here, and never begins anew."""
    was: WorkerState | None = None
    """What it was before the resume that makes it anew; None: it is no resume."""
    proof: str = ""
    """SHA-256 of the proof that it was released by."""


class PendingAction(Record, frozen=True):
    """An action durably parked for its slot. `action` is its canonical bytes: decode it with `action.decode`.

    `sends` counts sends that may have begun. The park commit counts the parker's own first one, so a send is recorded
    before it happens, the first included, and the count is never below the truth.
    """

    action: Raw
    parked_at: int
    sends: int = 1
    unsure: int = 1
    """Sends since the last definite answer under this key. More than this one: an earlier send's fate is unknown."""
    sent_at: int | None = None
    not_before: int | None = None
    last_error: str | None = None
    last_reason: Reason | None = None
    rejected: str | None = None
    """The provider's final "no" that waits for looks to prove that an earlier send of unknown fate had no effect."""
    absent: Span | None = None
    """The first complete look that showed nothing of this action, once evidence is being gathered."""
    key_ttl_ms: int | None = None
    """How long after `parked_at` the provider, when this was parked, said it remembers keys. None: for ever."""


class Unrecorded(Record, frozen=True):
    """Something of our lineage that the last complete look showed in a slot, and that no record knows.

    What was seen, not what is true: it decides nothing but that the slot takes nothing new. `state` is the provider's
    word, `running` how many steps it lists as running, `at` when it was first seen.
    """

    assignment: str
    generation: int
    id: str
    state: str
    at: int
    resources: Mapping[str, Resource] = field(default_factory=dict)
    running: int = 0
    absent: Span | None = None
    """The first complete look in a row that did not show it."""


class Slot(Record, frozen=True):
    """`changed` is the revision that last changed the slot's worker or pending action: older looks say nothing of
    it.

    `cordoned`: it takes nothing new. `draining`: its worker is taken down as well, once its run has ended.
    """

    changed: int = 0
    cordoned: bool = False
    refusals: int = 0
    not_before: int | None = None
    draining: bool = False
    unrecorded: tuple[Unrecorded, ...] = ()
    """At most `MAX_UNRECORDED`, what the last look showed before what it did not show any more."""
    unrecorded_more: int = 0
    """How many more there were."""


class Queue(Record, frozen=True):
    """`claims` counts every claim of the queue: one in so many is the fair one (`engine.discovery`)."""

    paused: bool = False
    claims: int = 0


class Provider(Record, frozen=True):
    """What is remembered of a provider: how long it remembers keys, and its consecutive failures.

    `opened_at`: since when its circuit breaker is open, or when the last try of an open one failed; None: closed.
    `closed_at` is when it last closed, `why` what the last failure was.
    """

    key_ttl_ms: int | None = None
    failures: int = 0
    opened_at: int | None = None
    closed_at: int | None = None
    why: str = ""


class Proven(StrEnum):
    """What looks showed of what a disowned action may have made."""

    PRESENT = "present"
    ABSENT = "absent"


class Disowned(Record, frozen=True):
    """An action that can never apply, kept for ever so that what it may have made is not forgotten.

    `sent_at` is when it was last sent. `absent` is the first complete look that showed nothing of it; `proven` what
    looks have shown in the end, at `proven_at`. Until then its slot takes nothing new. `by` is who disowned it.
    """

    action: Raw
    at: int
    reason: Reason
    detail: str = ""
    by: str = ""
    sent_at: int | None = None
    absent: Span | None = None
    proven: Proven | None = None
    proven_at: int | None = None


class Trouble(Record, frozen=True):
    at: int
    reason: Reason
    what: str
    slot: int | None = None
    key: str = ""


class Event(Record, frozen=True, rename={"from_": "from"}):
    """One transition, as history keeps it. `subject` is `run:R`, `slot:N` or `fleet`; `n` counts from 1 in a commit."""

    revision: int
    n: int
    at: int
    command: str
    subject: str
    event: str
    from_: str | None = None
    to: str | None = None
    reason: Reason | None = None
    token: int | None = None
    key: str | None = None
    step: str | None = None
    detail: str | None = None
    action: Raw | UnsetType = UNSET


class Counters(Record, frozen=True):
    """What ids and serials are minted from, and how many ended runs were forgotten. Only ever raised."""

    run: int = 0
    sequence: int = 0
    assignment: int = 0
    serial: int = 0
    pruned: int = 0


class Document(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything durable. The digest is not a field: it belongs to the bytes (`store.codec`)."""

    schema: int
    fleet: str
    lineage: str
    epoch: str
    revision: int
    counters: Counters
    draining: bool
    pending_action: str
    events: tuple[Event, ...]
    runs: Mapping[str, Run] = field(default_factory=dict)
    workers: Mapping[int, Worker] = field(default_factory=dict)
    pending_actions: Mapping[int, PendingAction] = field(default_factory=dict)
    slots: Mapping[int, Slot] = field(default_factory=dict)
    queues: Mapping[str, Queue] = field(default_factory=dict)
    providers: Mapping[str, Provider] = field(default_factory=dict)
    finished: Mapping[str, Tombstone] = field(default_factory=dict)
    disowned: Mapping[str, Disowned] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()


def new_document(fleet: str, lineage: str) -> Document:
    """Revision 0 of a new fleet: what `init` commits as revision 1."""
    return Document(SCHEMA, fleet, lineage, "", 0, Counters(), False, SENTINEL, ())
