"""Forward-only migrations of the document.

Not promised: a way back. The old file is kept under a unique name that nothing overwrites or prunes, and a program that
reads only the old schema refuses the new document: it finds a sentinel where it expects null or an action.

Schema 1 has one scalar `pending_action` for the whole fleet. It moves onto the map by the slot that the action itself
carries, its bytes and key untouched. Whatever contradicts that is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field, structs

from controller.model.action import Action, verify
from controller.model.errors import BrokenAction, DocumentCorrupt
from controller.model.records import (
    SCHEMA,
    SENTINEL,
    Counters,
    Disowned,
    Document,
    Event,
    PendingAction,
    Provider,
    Queue,
    Run,
    Slot,
    Tombstone,
    Trouble,
    Worker,
)
from controller.store import copies
from controller.store.codec import Decoded, said

_NULL: Final = b"null"


class _Schema1(Struct, frozen=True, forbid_unknown_fields=True):
    schema: int
    fleet: str
    lineage: str
    revision: int
    epoch: str = ""
    counters: Counters = Counters()
    draining: bool = False
    pending_action: Raw | UnsetType = UNSET
    events: tuple[Event, ...] = ()
    runs: Mapping[str, Run] = field(default_factory=dict)
    workers: Mapping[int, Worker] = field(default_factory=dict)
    pending_actions: Mapping[int, PendingAction] = field(default_factory=dict)
    slots: Mapping[int, Slot] = field(default_factory=dict)
    queues: Mapping[str, Queue] = field(default_factory=dict)
    providers: Mapping[str, Provider] = field(default_factory=dict)
    finished: Mapping[str, Tombstone] = field(default_factory=dict)
    disowned: Mapping[str, Disowned] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()
    digest: str = ""


_DECODER = msgspec.json.Decoder(_Schema1)


def migrated(data: bytes, where: str) -> Document:
    """The schema-2 document that schema-1 *data* stands for, at the same revision. Pure. Raises DocumentCorrupt."""
    try:
        old = _DECODER.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _refused(said(error, _Schema1), where) from error
    return Document(
        schema=SCHEMA,
        fleet=old.fleet,
        lineage=old.lineage,
        epoch=old.epoch,
        revision=old.revision,
        counters=old.counters,
        draining=old.draining,
        pending_action=SENTINEL,
        events=old.events,
        runs=old.runs,
        workers=old.workers,
        pending_actions=_placed(old, where),
        slots=old.slots,
        queues=old.queues,
        providers=old.providers,
        finished=old.finished,
        disowned=old.disowned,
        troubles=old.troubles,
    )


def _placed(old: _Schema1, where: str) -> Mapping[int, PendingAction]:
    """The map with the scalar's action in it."""
    scalar = old.pending_action
    if isinstance(scalar, UnsetType):
        raise _refused("$.pending_action is missing, which is not null", where, _SCALAR)
    if bytes(scalar) in (_NULL, msgspec.json.encode(SENTINEL)):
        return old.pending_actions
    try:
        action = verify(scalar)
    except BrokenAction as error:
        raise _refused(f"$.pending_action is neither null nor an action: {error}", where, _SCALAR) from error
    there = old.pending_actions.get(action.slot)
    if there is None:
        return {**old.pending_actions, action.slot: PendingAction(action=scalar, parked_at=_parked_at(old, action))}
    if not _same(there, action):
        raise _refused(f"$.pending_action and $.pending_actions.{action.slot} are two actions for one slot", where)
    return old.pending_actions


def _same(there: PendingAction, action: Action) -> bool:
    try:
        return verify(there.action).idempotency_key == action.idempotency_key
    except BrokenAction:
        return False


def _parked_at(old: _Schema1, action: Action) -> int:
    """When the action was parked, never later than the truth: an action counts as past its key's life too early or not
    at all.

    Schema 1 does not say. Its worker's record was made in the commit that parked a create and before any other action;
    with neither that nor the event, it counts as parked long ago.
    """
    for event in old.events:
        if event.key == action.idempotency_key:
            return event.at
    worker = old.workers.get(action.slot)
    return 0 if worker is None else worker.created_at


def committed(decoded: Decoded, *, now: int, command: str) -> Document:
    """The revision that makes a document migrated in memory durable. Looks from before it say nothing of parked
    slots.
    """
    document = decoded.document
    revision = document.revision + 1
    old, new = (f"schema {SCHEMA - 1}", f"schema {SCHEMA}") if decoded.legacy else ("whole documents", "journal")
    event = Event(revision, 1, now, command, "fleet", "migrated", old, new)
    slots = {
        slot: structs.replace(document.slots.get(slot) or Slot(), changed=revision) for slot in document.pending_actions
    }
    return structs.replace(document, revision=revision, events=(event,), slots={**document.slots, **slots})


def lacking(document: Document, known: Sequence[Event]) -> tuple[Event, ...]:
    """The events of its last commit that a killed program of before did not append to its history."""
    last = (known[-1].revision, known[-1].n) if known else (0, 0)
    return tuple(event for event in document.events if (event.revision, event.n) > last)


def back_up(path: Path, data: bytes, decoded: Decoded, *, now: int) -> Path:
    """Keep *data*, the bytes of *path* before a migration, durably under a name nobody has. Returns it. Raises
    StorageFailed.

    Bytes that an earlier, killed migration has kept already are not kept twice.
    """
    what = f"schema{SCHEMA - 1}" if decoded.legacy else "whole"
    stem = f"backup-{what}-{decoded.document.revision}"
    return copies.keep_once(path.parent, stem, ".json", data, now=now)


_MEND: Final = "mend that field by hand, or finish with the program that wrote it"
_SCALAR: Final = "put in pending_action what a backup has there: the whole action if one was parked, null if none was"


def _refused(what: str, where: str, mend: str = _MEND) -> DocumentCorrupt:
    return DocumentCorrupt(
        f"the schema-1 document cannot be migrated: {what}", where=where, next=f"nothing was written; {mend}"
    )
