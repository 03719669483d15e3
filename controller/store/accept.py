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
from controller.store.file import FileStore, Image
from controller.store.migrations import back_up


class Accepted(Struct, frozen=True):
    """`changed` is False when there was nothing to accept. `restored` are slots whose action came back from history."""

    document: Document
    changed: bool
    restored: tuple[int, ...] = ()


def accept(store: FileStore, *, restore_pending: bool, timeout: float) -> Accepted:
    """Verify the edited document and reseal it as the next revision, event `fleet accepted`.

    A pending action whose key does not derive is refused, or with *restore_pending* gets back the bytes that its
    parking put into history under that slot and key. Raises InvariantBroken (naming the first violation), HistoryAhead,
    EditedOutside (its revision is not one that history can go on from) and what hold, load and commit raise.
    """
    with store.tenure(timeout) as hold:
        hold.check_lock()
        image = store.image(follow=False, now_ns=0)
        if not image.decoded.edited:
            document = hold.load().document
            return Accepted(document, changed=False)
        revision = _revision(store, image)
        edited = image.decoded.document
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
        _complete_history(store, edited)
        if image.decoded.legacy:
            back_up(store.path, image.data, revision=edited.revision, now=store.clock.now_ms())
        hold.put(image, document)
        # Once more through the front door: what was accepted is what any command will find, and history has it.
        return Accepted(hold.load().document, changed=True, restored=tuple(restored))


def _revision(store: FileStore, image: Image) -> int:
    """The revision to go on from. The edited number must fit history, which it cannot change; then history stays
    gapless.
    """
    edited = image.decoded.document
    known = store.past.revision()
    if known is None or edited.revision == known:
        return edited.revision
    if edited.revision < known:
        raise HistoryAhead(
            f"history knows revision {known}, the edited document says {edited.revision}",
            where=str(store.past.path),
            next=f"put the newer document back, or, if only the number was edited, set it to {known}",
        )
    if edited.revision == known + 1 and _numbered(edited):
        return edited.revision
    raise EditedOutside(
        f"the edited document says revision {edited.revision}, and history ends at {known}",
        where=str(store.path),
        next=f"set its revision back to {known}, then accept it again",
    )


def _numbered(edited: Document) -> bool:
    """Whether the events that it carries can be those of its last commit."""
    carried = [(event.revision, event.n) for event in edited.events]
    return carried == [(edited.revision, n) for n in range(1, len(carried) + 1)]


def _complete_history(store: FileStore, edited: Document) -> None:
    """What a crash left out is appended from the edited document, unless its events were edited too."""
    try:
        if _numbered(edited):
            store.past.catch_up(edited, synced=False)
            return
    except HistoryAhead:
        pass  # Not ahead, which was refused before: history has other events for that revision, and it is right.
    store.past.trim()


def _judge(store: FileStore, document: Document) -> None:
    found = [violation for violation in violations(document) if violation.id not in AT_REST]
    found += against_history(document, store.past.events(None))
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
        for event in store.past.events(None, f"slot:{slot}"):
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
