"""Actions: one minted provider mutation each, immutable and self-hashed.

An action exists as canonical bytes: JSON with sorted keys and no white space. Its `idempotency_key` is the SHA-256 of
those bytes without that member, so an action whose bytes were touched proves it, and a replay sends exactly what was
parked. The serial comes from a document counter in the commit that parks it: two mints never share a key, however
alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from controller.model.errors import BrokenAction
from controller.model.records import MAX_SLOTS, ActionType, PendingAction, Resource, Run

STEP_KEY_VARIABLE: Final = "CONTROLLER_IDEMPOTENCY_KEY"


class Action(Struct, frozen=True, omit_defaults=True):
    """An action, decoded. `request` stays raw: what it means is between the planner and the provider.

    `run`, `step`, `attempt` and `token` are set for execute and cancel, and `run` alone for a create made for a run.
    """

    type: ActionType
    slot: int
    idempotency_key: str
    serial: int
    lineage: str
    epoch: str
    assignment: str
    generation: int
    request: Raw
    resources: Mapping[str, Resource]
    settled: tuple[str, ...] = ()
    run: str | None = None
    step: str | None = None
    attempt: int | None = None
    token: int | None = None


class ExecuteRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What an execute asks for. `cwd` None: a scratch directory of the run. `kill_grace_ms`: between TERM and KILL."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    timeout_ms: int | None
    kill_grace_ms: int


class CancelRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What a cancel asks for: the end of the step that the execute with key `target` started."""

    target: str
    kill_grace_ms: int


def canonical(content: object) -> bytes:
    """Canonical JSON bytes of plain values. Key order, float spelling and locale never change them."""
    import orjson

    return orjson.dumps(content, option=orjson.OPT_SORT_KEYS)


def digest(content: object) -> str:
    import hashlib

    return hashlib.sha256(canonical(content)).hexdigest()


def mint(
    *,
    type: ActionType,  # noqa: A002 - the wire's word
    slot: int,
    serial: int,
    lineage: str,
    epoch: str,
    assignment: str,
    generation: int,
    resources: Mapping[str, Resource],
    request: Struct | None = None,
    settled: tuple[str, ...] = (),
    run: str | None = None,
    step: str | None = None,
    attempt: int | None = None,
    token: int | None = None,
) -> tuple[str, Raw]:
    """The key and the canonical bytes of a new action. Raises ValueError for a slot out of bounds."""
    if not 1 <= slot <= MAX_SLOTS:
        raise ValueError(f"slot {slot} is outside 1..{MAX_SLOTS}")
    content: dict[str, Any] = {
        "type": type.value,
        "slot": slot,
        "serial": serial,
        "lineage": lineage,
        "epoch": epoch,
        "assignment": assignment,
        "generation": generation,
        "resources": msgspec.to_builtins(resources),
        "request": {} if request is None else msgspec.to_builtins(request),
        "settled": list(settled),
    }
    owner = {"run": run, "step": step, "attempt": attempt, "token": token}
    content |= {name: value for name, value in owner.items() if value is not None}
    key = digest(content)
    return key, Raw(canonical(content | {"idempotency_key": key}))


def step_key(lineage: str, run: Run, step: str) -> str:
    """What a step's command may deduplicate its own effects by: the same in every attempt and life of that step.

    The run's sequence is in it, so that a run which reuses the id of a forgotten one is not taken for it. Worker, token
    and epoch are not: on another worker, after a retry and after a restore these are still the same effects. No
    action's key: those differ between attempts.
    """
    return digest({"lineage": lineage, "run": run.id, "sequence": run.sequence, "step": step})


def key_of(raw: Raw | bytes) -> str:
    """The key that these bytes derive, whatever key they carry. Raises BrokenAction when they are not an object."""
    import orjson

    try:
        content = orjson.loads(bytes(raw))
    except orjson.JSONDecodeError as error:
        raise BrokenAction("not JSON") from error
    if not isinstance(content, dict):
        raise BrokenAction("not an object")
    content.pop("idempotency_key", None)
    return digest(content)


def decode(raw: Raw | bytes) -> Action:
    """The action in *raw*. Its key is not checked: `verify` does that. Raises BrokenAction."""
    try:
        return _DECODER.decode(bytes(raw))
    except msgspec.MsgspecError as error:
        raise BrokenAction(str(error)) from error


def verify(raw: Raw | bytes) -> Action:
    """The action in *raw*, whose key derives from its content and whose slot is in bounds. Raises BrokenAction."""
    action = decode(raw)
    if key_of(raw) != action.idempotency_key:
        raise BrokenAction(f"its key {action.idempotency_key[:12]} does not derive from its content")
    if not 1 <= action.slot <= MAX_SLOTS:
        raise BrokenAction(f"slot {action.slot} is outside 1..{MAX_SLOTS}")
    return action


def action_of(pending: PendingAction) -> Action:
    return decode(pending.action)


_DECODER = msgspec.json.Decoder(Action)
