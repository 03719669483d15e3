"""Pending actions as answers: plain values for JSON, and the lines that say the same to people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import to_builtins

from controller.cli import text
from controller.cli.text import Times, shown
from controller.engine.age import is_expired
from controller.engine.slots import commands
from controller.engine.status import PendingMutation
from controller.model.action import action_of
from controller.model.errors import BrokenAction
from controller.model.reason import EXPLAINED, Reason
from controller.model.records import Document

_EXPIRED = f"{EXPLAINED[Reason.KEY_EXPIRED].text}: looks settle it"


def pending_whole(pending: PendingMutation) -> dict[str, Any]:
    """One entry of `pending_mutations` for programs. `next`: what to type, of one that is too old to be sent again."""
    slot, key = pending.slot, pending.idempotency_key
    after = commands(Reason.KEY_EXPIRED, slot=slot, key=key) if pending.key_expired else []
    body: dict[str, Any] = to_builtins(pending)
    return {**body, "next": after}


def pending_page(pending: Mapping[str, Any], times: Times) -> Iterator[str]:
    """One entry of `pending_mutations` for people, whole."""
    lines = [
        ("slot", f"{pending['slot']}: {pending['type']}" + (f" for run {pending['run']}" if pending["run"] else "")),
        ("key", pending["idempotency_key"] + ("" if pending["key_derives"] else "  DOES NOT DERIVE FROM ITS CONTENT")),
        ("parked", times.told(pending["parked_at"])),
        ("sends", str(pending["sends"])),
    ]
    if pending["sent_at"] is not None:
        lines.append(("last sent", times.told(pending["sent_at"])))
    if pending["not_before"] is not None:
        lines.append(("not before", times.told(pending["not_before"])))
    if pending["last_reason"]:
        lines.append(("last outcome", EXPLAINED[Reason(pending["last_reason"])].text))
    if pending["key_expired"]:
        lines.append(("sent again", f"no: {_EXPIRED}"))
    if pending["last_error"]:
        lines.append(("last error", shown(pending["last_error"])))
    lines.append(("in flight", _flight(pending["flight"], times)))
    yield from text.pairs(lines)
    yield from (f"next: {line}" for line in pending["next"])


def _flight(flight: Mapping[str, Any] | None, times: Times) -> str:
    if flight is None:
        return "no"
    words = f"yes, {flight['process']} pid {flight['pid']}"
    if flight["command"]:
        words += f" ({shown(flight['command'])})"
    if flight["since_at"] is not None:
        words += f" since {times.told(flight['since_at'])}"
    if flight["deadline_at"] is not None:
        words += f", deadline {times.told(flight['deadline_at'])}"
    return words if flight["certain"] else f"{words}; it cannot be seen from here"


def waiting_whole(document: Document, now: int, *, only: int | None) -> list[dict[str, Any]]:
    """Actions that are not sent again, of all slots or of *only*. One that is expired has what to type `next`."""
    return list(_waiting(document, now, only))


def _waiting(document: Document, now: int, only: int | None) -> Iterator[dict[str, Any]]:
    for slot, entry in sorted(document.pending_actions.items()):
        expired = is_expired(document, entry, now)
        if only not in (None, slot) or not (expired or entry.rejected is not None):
            continue
        try:
            key = action_of(entry).idempotency_key
        except BrokenAction:
            continue
        reason = Reason.KEY_EXPIRED if expired else Reason.REJECTED
        after = commands(reason, slot=slot, key=key)
        yield {"slot": slot, "idempotency_key": key, "key_expired": expired, "next": after}


def waiting_page(waiting: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for each in waiting:
        why = _EXPIRED if each["key_expired"] else "looks settle it"
        yield f"slot {each['slot']}  key {each['idempotency_key']}  is not sent again: {why}"
        yield from (f"  next: {line}" for line in each["next"])
