"""`state accept`: an operator takes over a document that was edited by hand.

Not promised: that history explains what the edit changed. It says that it was accepted, when and by which command.

Reads are served from an edited document; mutations are not, because nothing proves that the edit kept its rules.
Accepting judges it by every invariant and seals it as a new revision, so the edit itself can never be mistaken for one
of ours.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct, UnsetType, structs

from controller.model.action import verify
from controller.model.errors import BrokenAction, EditedOutside, HistoryAhead, InvariantBroken
from controller.model.invariants import AT_REST, against_history, violations
from controller.model.records import Document, Event, PendingAction
from controller.store import disk, journal
from controller.store.file import FileStore
from controller.store.migrations import back_up, lacking
from controller.store.reading import Reading


class Accepted(Struct, frozen=True):
    """`changed` is False when there was nothing to accept. `restored` are slots whose action came back from history.

    `newer` are the records (as `runs.r-1`) that commits behind the edited file had changed: they stand as committed,
    whatever the edit made of them.
    """

    document: Document
    changed: bool
    restored: tuple[int, ...] = ()
    newer: tuple[str, ...] = ()


def accept(store: FileStore, *, restore_pending: bool, timeout: float) -> Accepted:
    """Verify the edited document and reseal it as the next revision, event `fleet accepted`.

    A pending action whose key does not derive is refused, or with *restore_pending* gets back the bytes that its
    parking put into history under that slot and key. Raises InvariantBroken (naming the first violation), HistoryAhead,
    EditedOutside (its revision is not one that history can go on from) and what hold, load and commit raise.
    """
    with store.tenure(timeout) as hold:
        hold.check_lock()
        reading = hold.reading()
        if not reading.edited:
            document = hold.load().document
            hold.fold()  # so that who wants to edit has the current one to edit
            return Accepted(document, changed=False)
        edited = reading.document
        before = lacking(edited, store.past.events()) if reading.legacy else ()
        revision = _revision(store, reading, before)
        newer = _newer(reading)
        restored: Mapping[int, Raw] = _restored(store, edited) if restore_pending else {}
        pending = {
            slot: structs.replace(parked, action=restored[slot]) if slot in restored else parked
            for slot, parked in edited.pending_actions.items()
        }
        slots = ", ".join(map(str, restored))
        event = Event(
            revision + 1,
            1,
            store.clock.now_ms(),
            store.command,
            "fleet",
            "accepted",
            detail=f"pending actions restored from history: slots {slots}" if slots else None,
        )
        document = structs.replace(edited, revision=revision + 1, events=(event,), pending_actions=pending)
        _judge(store, document)
        if reading.legacy:
            back_up(store.path, reading.checkpoint.data, reading.checkpoint.decoded, now=store.clock.now_ms())
        hold.replace(reading, document, before=before)
        # Once more through the front door: what was accepted is what any command will find, and history has it.
        return Accepted(hold.load().document, changed=True, restored=tuple(restored), newer=newer)


def _revision(store: FileStore, reading: Reading, before: tuple[Event, ...]) -> int:
    """The revision to go on from. The edited number must fit history, which it cannot change; then history stays
    gapless.
    """
    known = before[-1].revision if before else _known(store, reading)
    if known is None or reading.document.revision == known:
        return reading.document.revision
    if reading.document.revision < known:
        raise HistoryAhead(
            f"history knows revision {known}, the edited document says {reading.document.revision}",
            where=str(store.path),
            next=f"put the newer document back, or, if only the number was edited, set it to {known}",
        )
    raise EditedOutside(
        f"the edited document says revision {reading.document.revision}, and history ends at {known}",
        where=str(store.path),
        next=f"set its revision back to {known}, then accept it again",
    )


def _newer(reading: Reading) -> tuple[str, ...]:
    """Records that the journal goes on to change, behind the document that was edited."""
    if reading.file is None:
        return ()
    with disk.reading(reading.file.path):
        data = disk.read_all(reading.file.handle.fd)
    lines = [each.line for each in journal.scan(data[: reading.end], str(reading.file.path)).lines]
    commits = [line for line in lines if isinstance(line, journal.Commit)]
    return tuple(
        dict.fromkeys(f"{name}.{key}" for line in commits for name, changes in line.sections() for key in changes)
    )


def _known(store: FileStore, reading: Reading) -> int | None:
    """The last revision that history knows."""
    if reading.ahead is not None or not reading.legacy:
        return reading.ahead or reading.revision
    end = store.past.end()
    return None if end is None else end.revision


def _judge(store: FileStore, document: Document) -> None:
    found = [violation for violation in violations(document) if violation.id not in AT_REST]
    found += against_history(document, store.past.events())
    if not found:
        return
    more = f" (and {len(found) - 1} more: see `controller fsck`)" if len(found) > 1 else ""
    hint = ", or take its bytes from history with --restore-pending" if found[0].id.startswith("pending-") else ""
    raise InvariantBroken(
        f"the edited document is not accepted: {found[0].id}: {found[0].what}{more}",
        where=f"{found[0].subject} in {store.path}",
        next=f"nothing was written; mend that by hand{hint}, then accept it again",
    )


def _restored(store: FileStore, document: Document) -> dict[int, Raw]:
    """Bytes from history for every pending action that does not verify, by slot and the key that it carries."""
    found: dict[int, Raw] = {}
    for slot, parked in document.pending_actions.items():
        if _verifies(slot, parked.action):
            continue
        key = _carried_key(parked)
        for event in store.past.events(f"slot:{slot}"):
            if event.key == key and not isinstance(event.action, UnsetType) and _verifies(slot, event.action, key):
                found[slot] = event.action
    return found


def _verifies(slot: int, action: Raw, key: str | None = None) -> bool:
    try:
        verified = verify(action)
    except BrokenAction:
        return False
    return verified.slot == slot and key in (None, verified.idempotency_key)


def _carried_key(parked: PendingAction) -> str | None:
    try:
        content = msgspec.json.decode(bytes(parked.action), type=dict[str, object])
    except msgspec.MsgspecError:
        return None
    key = content.get("idempotency_key")
    return key if isinstance(key, str) else None
