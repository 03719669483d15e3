"""Reconcile until workers are gone that are to leave: those of the whole fleet, or that of one slot.

Not promised: an end. A worker goes once its run has ended and its cooldown is over; one that somebody has to release,
or settle, first is not waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from controller.engine.lifecycle import waits_for
from controller.engine.report import helpless
from controller.model.reason import Reason
from controller.model.records import Slot

if TYPE_CHECKING:
    from controller.engine.reconcile import Reconciler
    from controller.engine.report import Report
    from controller.model.policy import Policy
    from controller.model.records import Document

PAUSES: Final = (0.25, 5.0)
"""Seconds between looks while nothing changes: doubled from the first to the last."""
HOPELESS: Final = (1, 3, 7, 8)
"""Exit codes of what waiting does not mend."""


def left_in(document: Document, slot: int | None) -> frozenset[int]:
    """Slots that are not empty yet: all, or *slot* alone."""
    return frozenset(each for each in {*document.workers, *document.pending_actions} if slot in (None, each))


def is_wanted(document: Document, slot: int | None) -> bool:
    """Whether the drain still stands."""
    return document.draining if slot is None else (document.slots.get(slot) or Slot()).draining


def kept_in(document: Document, policy: Policy, now: int) -> frozenset[int]:
    """Slots whose worker stays until an operator has released it, or settled what it is."""
    waits = {number: waits_for(document, worker, policy, now) for number, worker in document.workers.items()}
    return frozenset(number for number, wait in waits.items() if wait is not None and wait.reason not in _BY_ITSELF)


_BY_ITSELF: Final = (Reason.COOLDOWN,)


def until_empty(
    reconciler: Reconciler,
    slot: int | None = None,
    *,
    tell: Callable[[Report, Document, Collection[int]], None] = lambda _report, _document, _left: None,
    deadline: float | None = None,
) -> tuple[Report, Document]:
    """Reconcile until nothing is left, the drain was lifted, or waiting cannot help; the last report and document.

    *tell* is called before each wait with what is left. *deadline* is on the clock's monotonic time. A report that was
    interrupted before it asked anything has the troubles of the one before it.
    """
    context = reconciler.sender.context
    pause = PAUSES[0]
    report: Report | None = None
    while True:
        before, report = report, reconciler.reconcile()
        if report.interrupted and before is not None:
            told = {error.what for error in report.errors}
            report.errors += [error for error in before.errors if error.what not in told]
            report.busy = before.busy | report.busy
        document = context.store.read().document
        left = left_in(document, slot)
        if not left or not is_wanted(document, slot) or report.interrupted:
            return report, document
        stuck = helpless(document, report.stuck) | kept_in(document, reconciler.ground.policy, context.clock.now_ms())
        if report.exit_code(document) in HOPELESS or stuck.issuperset(left):
            return report, document
        remaining = None if deadline is None else deadline - context.clock.monotonic()
        if remaining is not None and remaining <= 0:
            return report, document
        tell(report, document, left)
        pause = PAUSES[0] if report.sent else min(2 * pause, PAUSES[1])
        reconciler.wait(pause if remaining is None else min(pause, remaining))
