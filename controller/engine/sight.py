"""Of what a look may speak, and when two looks are two.

Not promised: that a look is right. An incomplete one says nothing at all, and none says anything of a slot whose worker
or pending action changed after the revision read before it was asked for.
"""

from __future__ import annotations

from typing import Final

from controller.model.action import Action
from controller.model.inventory import Look, SeenWorker
from controller.model.policy import Policy, still_waits
from controller.model.records import Document, Span, Worker

APART_MS: Final = 5_000
"""How far apart two looks must be, unless the grace time is shorter, to count as two."""


def speaks_of(look: Look, document: Document, slot: int) -> bool:
    """Whether *look* may say anything about *slot*."""
    known = document.slots.get(slot)
    if not look.complete or slot in look.inventory.unreadable:
        return False
    return known is None or known.changed <= look.revision


def seen_in(look: Look, lineage: str, one: Worker | Action) -> tuple[SeenWorker, ...]:
    """What the look shows under exactly that name. More than one: they differ, so that neither proves anything."""
    return look.named.get((lineage, one.slot, one.assignment, one.generation), ())


def grace_over(since: int, look: Look, policy: Policy) -> bool:
    """Whether *look* began a grace time after *since*. A clock that went back further than that strands nothing."""
    return not still_waits(since + policy.grace_ms, look.began_at, policy.grace_ms)


def second_absence(first: Span | None, look: Look, policy: Policy) -> bool:
    """Whether *look* is separate evidence from the look that *first* was.

    They cannot overlap: noting the first changed the slot, so a look that may speak of it was asked for after that
    commit. They must be a little apart as well, or a listing that lags says the same thing twice.
    """
    if first is None:
        return False
    apart = min(APART_MS, policy.grace_ms)
    return not still_waits(first.ended_at + apart, look.began_at, apart)
