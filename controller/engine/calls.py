"""What must be known of a slot's earlier provider call before the next one, or before its pending action is unparked.

Not promised: that a call which nobody can see has ended. Its process is unknown then, which is not gone; somebody has
to answer for that.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from controller.model.action import action_of
from controller.model.errors import BrokenAction, SlotBusy, SlotUnproven
from controller.model.process import Liveness
from controller.provider.process import call_liveness, end_group
from controller.store.protocol import SlotHold, SlotNote

if TYPE_CHECKING:
    from controller.engine.queue import Context

Disclaimed = Callable[[str], None]
"""Told in words what is taken for gone on somebody's word alone; must record that durably before it returns."""


def await_none(context: Context, slot: int, held: SlotHold, *, disclaimed: Disclaimed | None = None) -> None:
    """No provider process of an earlier call may live: calls for one slot never overlap. Waits for nothing.

    One past its deadline is ended with its group, identity checked. Raises SlotBusy for one that lives on, and
    SlotUnproven when nothing can tell, unless *disclaimed* is there to be told.
    """
    note = context.store.slot_note(slot)
    found = _obstacle(context, slot, note)
    if isinstance(found, SlotUnproven):
        if disclaimed is None:
            raise found
        # Whose word that is on is recorded first: the other way round, a crash would forget it.
        disclaimed(found.what)
    elif found is not None and not (
        _is_late(context, note) and note.provider and end_group(note.provider, context.clock)
    ):
        raise found
    if note.provider is not None or not note.readable:
        held.clear()


def check(context: Context, slot: int, *, disclaimed: bool = False) -> None:
    """Raise what `await_none` would, without the slot's lock, and end nothing: a late process is no obstacle."""
    note = context.store.slot_note(slot)
    found = _obstacle(context, slot, note)
    if isinstance(found, SlotUnproven) and not disclaimed:
        raise found
    if isinstance(found, SlotBusy) and not _is_late(context, note):
        raise found


def _obstacle(context: Context, slot: int, note: SlotNote) -> SlotBusy | SlotUnproven | None:
    """What keeps the slot from its next call, as far as anybody can see."""
    if not note.readable:
        return SlotUnproven(
            f"slot {slot}: its lock file cannot be read, so nothing proves that no provider process lives",
            where=note.where,
            next="make sure that no provider program works for this slot, then empty that file",
        )
    if note.provider is None:
        return None
    pid, where = note.provider.pid, f"slot {slot}, key {note.key[:12]}"
    match call_liveness(note.provider):
        case Liveness.GONE:
            return None
        case Liveness.UNKNOWN:
            return SlotUnproven(
                f"slot {slot}: provider process {pid} of another pid namespace may still live",
                where=where,
                next="run this where that process was started, such as in the same container" + _way_out(context, slot),
            )
        case Liveness.ALIVE:
            left = _left(context, note)
            told = "" if left == inf else f", deadline in {max(0.0, left):.0f} s"
            return SlotBusy(
                f"slot {slot}: its provider process still runs (pid {pid}{told})",
                where=where,
                next="nothing is lost: run the command again later",
            )


def _way_out(context: Context, slot: int) -> str:
    """What to type about the slot's pending action where nobody can see any more whether that process lives."""
    entry = context.store.read().document.pending_actions.get(slot)
    if entry is None:
        return ""
    try:
        key = action_of(entry).idempotency_key
    except BrokenAction:
        return ""
    typed = f"controller abandon {slot} --key {key} --provider-gone --reason WHY --confirm-abandon"
    return f"; if you know that it has ended: {typed}"


def _is_late(context: Context, note: SlotNote) -> bool:
    return _left(context, note) < 0


def _left(context: Context, note: SlotNote) -> float:
    """Seconds until the deadline of the call in *note*; for ever where it has none."""
    return inf if note.deadline is None else note.deadline - context.clock.monotonic()
