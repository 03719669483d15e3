"""The wire of the `command` provider: requests as bytes, replies as records. One JSON object each way.

Not promised: that a reply's words arrive whole; `reason` is for people, and is cut and made printable here.

A reply is strict before it is anything: what `strict_loads` refuses could not be stored, and what a record cannot
hold is refused, never coerced. Members that nobody here knows pass the strict reader and are then ignored, so a
provider may say more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Final, TypeVar

import msgspec
import orjson
from msgspec import Meta, Raw, Struct, field

from controller.model.action import Action, CancelRequest
from controller.model.inventory import Inventory, Seen, SeenStep, SeenWorker, StepSeen
from controller.model.records import MAX_SLOTS, ActionType, Resource, is_visible
from controller.model.strict import StrictError, strict_loads
from controller.provider.protocol import Description, Done, IdentityRefused, Outcome, Pending, Rejected

PROTOCOL: Final = "controller.provider/1"
MAX_REPLY: Final = 2 * 1024 * 1024
"""Bytes of stdout. Beyond it nobody answers, somebody floods."""
RETRY_AFTER_MS: Final = 1_000
MAX_RETRY_AFTER_MS: Final = 3_600_000
"""However far away a provider puts the next question, a typing error there strands nothing for longer than this."""
MAX_NAME: Final = 1_024
"""Characters of an id that goes into the document. An id is exact, so a longer one is refused and not cut."""
MAX_RESOURCES: Final = 64
_REASON: Final = 500
_TROUBLE: Final = 200
_TROUBLES: Final = 8
"""How many troubles of one look are told in full."""

T = TypeVar("T")


class BadReply(ValueError):
    """These bytes are not the reply that was asked for. Says which rule they break, in one printable line."""


def request(op: str, *, fleet: str, lineage: str, **members: object) -> bytes:
    """The request line of a question."""
    return orjson.dumps({"protocol": PROTOCOL, "op": op, "fleet": fleet, "lineage": lineage, **members}) + b"\n"


def mutate_request(raw: Raw, *, fleet: str, lineage: str) -> bytes:
    """The request line of a send. The action's stored bytes go in as they are: a replay must send what was parked."""
    head = orjson.dumps({"protocol": PROTOCOL, "op": "mutate", "fleet": fleet, "lineage": lineage})
    return head[:-1] + b',"action":' + bytes(raw) + b"}\n"


def excerpt(data: bytes | str, limit: int = 200, *, end: bool = False) -> str:
    """Any bytes as one bounded, printable line: no control characters, so no terminal can be steered by it.

    What was cut is marked; with *end* the last part is kept instead of the first.
    """
    if isinstance(data, bytes):
        part = data[-4 * limit :] if end else data[: 4 * limit]
        text = part.decode("utf-8", "backslashreplace")
        cut = len(part) < len(data)
    else:
        text, cut = data, False
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text.strip())
    if cut or len(plain) > limit:
        return "..." + plain[-limit:] if end else plain[:limit] + "..."
    return plain


def parse_outcome(data: bytes, action: Action) -> Outcome:
    """The outcome that *data* gives for *action*: done, pending, rejected or identity refused. Raises BadReply."""
    reply = _convert(_load(data, "mutate"), _Outcome)
    if reply.slot != action.slot:
        raise BadReply(f"the reply is for slot {reply.slot}, asked was slot {action.slot}")
    if reply.idempotency_key != action.idempotency_key:
        raise BadReply(f"the reply is for key {excerpt(reply.idempotency_key, 64)}, asked was {action.idempotency_key}")
    reason = excerpt(reply.reason or "", _REASON)
    match reply.outcome:
        case "done":
            return Done(_worker_of(reply.worker, action), _step_of(reply.step, action), reason)
        case "pending":
            after = RETRY_AFTER_MS if reply.retry_after_ms is None else reply.retry_after_ms
            if after < 0:
                raise BadReply(f"retry_after_ms is {after}, which is before now")
            return Pending(min(after, MAX_RETRY_AFTER_MS), reason)
        case "rejected":
            return Rejected(reason or "no reason given")
        case "identity_refused":
            return IdentityRefused(reason or "no reason given")
    raise BadReply(f"outcome {excerpt(reply.outcome, 64)!r} is none of done, pending, rejected, identity_refused")


def parse_inventory(data: bytes, lineage: str) -> Inventory:
    """The look that *data* gives. Raises BadReply.

    Workers of other lineages are passed on where they can be read, since one may bear what is recorded here. An entry
    that may be ours and cannot be used makes its slot unreadable; where no slot can be told, the look is incomplete.
    """
    reply = _convert(_load(data, "inventory"), _Inventory)
    workers, unreadable, troubles = [], set(), []
    listed: set[tuple[int, str]] = set()
    complete = reply.complete
    for n, entry in enumerate(reply.workers):
        ours = not _is_anothers(entry, lineage)
        try:
            worker = _seen(_convert(entry, _Worker, f"workers[{n}]"), f"workers[{n}]")
            workers.append(worker)
            if ours and (worker.slot, worker.assignment) in listed:
                raise BadReply(f"workers[{n}]: assignment {excerpt(worker.assignment, 64)} is listed twice")
        except BadReply as error:
            if not ours:
                continue  # a whole account may be listed: what others' entries hold is not ours to judge
            slot = _slot_of(entry)
            complete = complete and slot is not None
            unreadable |= set() if slot is None else {slot}
            subject = "a slot that nobody can tell" if slot is None else f"slot {slot}"
            troubles.append(f"{subject} cannot be read: {excerpt(str(error), _TROUBLE)}")
        else:
            listed |= {(worker.slot, worker.assignment)} if ours else set()
    if len(troubles) > _TROUBLES:
        troubles[_TROUBLES:] = [f"and {len(troubles) - _TROUBLES} more entries that cannot be read"]
    return Inventory(complete, tuple(workers), tuple(sorted(unreadable)), tuple(troubles))


def _is_anothers(entry: object, lineage: str) -> bool:
    """Whether an entry says that it belongs to somebody else. One that says nothing may be ours."""
    told = entry.get("lineage") if isinstance(entry, dict) else None
    return isinstance(told, str) and told != lineage


def _slot_of(entry: object) -> int | None:
    """The slot that an entry names, though nothing else of it may be of use."""
    slot = entry.get("slot") if isinstance(entry, dict) else None
    return slot if type(slot) is int and 1 <= slot <= MAX_SLOTS else None


def parse_description(data: bytes) -> Description:
    reply = _convert(_load(data, "describe"), _Description)
    if reply.key_ttl_ms is not None and reply.key_ttl_ms < 0:
        raise BadReply(f"key_ttl_ms is {reply.key_ttl_ms}")
    name, version = excerpt(reply.name, 64), excerpt(reply.version, 64)
    return Description(name, version, tuple(reply.types), reply.key_ttl_ms, reply.wait)


def parse_wait(data: bytes) -> bool:
    return _convert(_load(data, "wait"), _Wait).changed


MAX_EXIT_CODE: Final = (1 << 32) - 1
MAX_SIGNAL: Final = 128
MAX_TIME: Final = 253_402_300_799_999
"""The end of the year 9999 in UTC ms."""


class _Resource(Struct):
    id: str
    immutable_id: str = ""


class _Step(Struct):
    idempotency_key: str
    state: StepSeen
    exit_code: Annotated[int, Meta(ge=0, le=MAX_EXIT_CODE)] | None = None
    signal: Annotated[int, Meta(ge=1, le=MAX_SIGNAL)] | None = None
    timed_out: bool = False
    started: bool = True
    reason: str | None = None
    ended_at: Annotated[int, Meta(ge=0, le=MAX_TIME)] | None = None


class _Worker(Struct):
    slot: int
    lineage: str
    assignment: str
    generation: int
    id: str
    state: Seen
    resources: dict[str, _Resource] = field(default_factory=dict)
    steps: list[_Step] = field(default_factory=list)


class _Outcome(Struct):
    slot: int
    idempotency_key: str
    outcome: str
    reason: str | None = None
    retry_after_ms: int | None = None
    worker: _Worker | None = None
    step: _Step | None = None


class _Inventory(Struct):
    complete: bool
    workers: list[object]


class _Description(Struct):
    name: str
    version: str
    types: list[str]
    key_ttl_ms: int | None = None
    wait: bool = False


class _Wait(Struct):
    changed: bool = True


def _load(data: bytes, op: str) -> Mapping[str, object]:
    if not data.strip():
        raise BadReply("the reply is empty")
    try:
        reply = strict_loads(data, where="reply")
    except StrictError as error:
        kind = "cannot be stored" if _is_one_document(data) else "is not one JSON object"
        raise BadReply(f"the reply {kind}: {excerpt(str(error), _REASON)}") from error
    if not isinstance(reply, dict):
        raise BadReply("the reply is JSON, but not an object")
    for name, wanted in (("protocol", PROTOCOL), ("op", op)):
        if reply.get(name) != wanted:
            raise BadReply(f"the reply's {name} is {excerpt(repr(reply.get(name)), 64)}, asked was {wanted!r}")
    return reply


def _is_one_document(data: bytes) -> bool:
    """Whether a lenient reader takes *data*: then it is no noise, but has something in it that may not be kept."""
    try:
        json.loads(data, parse_int=str)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


def _convert(value: object, kind: type[T], where: str = "reply") -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadReply(f"{where}: {excerpt(str(error), _REASON)}") from error


def _worker_of(entry: _Worker | None, action: Action) -> SeenWorker | None:
    if entry is None:
        return None
    worker = _seen(entry, "worker")
    for name in ("lineage", "slot", "assignment", "generation"):
        got, asked = getattr(worker, name), getattr(action, name)
        if got != asked:
            raise BadReply(f"the reply's worker has {name} {excerpt(str(got), 64)}, asked was {asked}")
    return worker


def _step_of(entry: _Step | None, action: Action) -> SeenStep | None:
    if entry is None:
        return None
    asked = action.idempotency_key
    if action.type is ActionType.CANCEL:
        try:
            asked = msgspec.json.decode(bytes(action.request), type=CancelRequest).target
        except msgspec.MsgspecError as error:
            raise BadReply("the reply has a step, and the cancel that was sent names no target") from error
    if entry.idempotency_key != asked:
        raise BadReply(f"the reply's step has key {excerpt(entry.idempotency_key, 64)}, asked was {asked}")
    return _seen_step(entry, "step")


def _seen(entry: _Worker, where: str) -> SeenWorker:
    if not 1 <= entry.slot <= MAX_SLOTS:
        raise BadReply(f"{where}: slot {entry.slot} is outside 1..{MAX_SLOTS}")
    if entry.generation < 0:
        raise BadReply(f"{where}: generation {entry.generation} is below 0")
    if len(entry.resources) > MAX_RESOURCES:
        raise BadReply(f"{where}: cannot be stored: more than {MAX_RESOURCES} resources")
    if len(entry.assignment) > MAX_NAME or len(entry.lineage) > MAX_NAME:
        raise BadReply(f"{where}: cannot be stored: a tag of more than {MAX_NAME} characters")
    names = [entry.id, *entry.resources]
    for resource in entry.resources.values():
        names += [resource.id, *([resource.immutable_id] if resource.immutable_id else [])]
    if not all(is_visible(name) for name in names):
        raise BadReply(f"{where}: an id or the name of a resource is empty")
    if any(len(name) > MAX_NAME for name in names):
        raise BadReply(f"{where}: cannot be stored: an id of more than {MAX_NAME} characters")
    steps = tuple(_seen_step(step, f"{where}.steps[{n}]") for n, step in enumerate(entry.steps))
    if len({step.idempotency_key for step in steps}) < len(steps):
        raise BadReply(f"{where}: two steps have one idempotency_key")
    resources = {name: Resource(resource.id, resource.immutable_id) for name, resource in entry.resources.items()}
    return SeenWorker(
        entry.slot, entry.lineage, entry.assignment, entry.generation, entry.id, entry.state, resources, steps
    )


def _seen_step(entry: _Step, where: str) -> SeenStep:
    """A step whose end is not contradictory: one that runs has no end, and one end is a code or a signal."""
    if entry.exit_code is not None and entry.signal is not None:
        raise BadReply(f"{where}: both exit_code and signal")
    if entry.state is StepSeen.RUNNING and (entry.exit_code is not None or entry.signal is not None):
        raise BadReply(f"{where}: running, and yet it has an end")
    return SeenStep(
        entry.idempotency_key,
        entry.state,
        exit_code=entry.exit_code,
        signal=entry.signal,
        timed_out=entry.timed_out,
        started=entry.started,
        reason=excerpt(entry.reason or "", _REASON),
        ended_at=entry.ended_at,
    )
