"""What a reconcile, a replay or a turn of the loop did, and what it left behind."""

from __future__ import annotations

from collections.abc import Collection

from controller.engine.pending import Ended, Sent, ended_in
from controller.engine.planner import Parked, Plan
from controller.model.errors import ControllerError, SlotBusy
from controller.model.reason import Reason
from controller.model.records import Document


def helpless(document: Document, stuck: Collection[int]) -> frozenset[int]:
    """Slots that no send or look helps before an operator has settled them; *stuck* is what a report says of that."""
    refused = {
        number
        for number, entry in document.pending_actions.items()
        # One that an operator has given up is settled by looks.
        if entry.last_reason is Reason.IDENTITY_REFUSED and entry.rejected is None
    }
    return frozenset(refused.union(stuck))


class Report:
    """What a reconcile or replay did, and what it left behind."""

    def __init__(self) -> None:
        self.passes = 0
        self.parked: list[Parked] = []
        self.sent: list[Sent] = []
        self.ended: list[Ended] = []
        self.busy: dict[int, SlotBusy] = {}
        self.errors: list[ControllerError] = []
        self.stuck: set[int] = set()
        """Slots that no further reconcile helps: unreadable, or whose provider process nobody can prove gone."""
        self.converged = False
        self.interrupted = False

    @property
    def changed(self) -> bool:
        return bool(self.parked or self.sent or self.ended)

    def add_plan(self, planned: Plan) -> None:
        """Take in what a plan that was committed parks and ends."""
        self.parked += planned.parks
        self.ended += ended_in(planned.edit)

    def add(self, other: Report) -> None:
        """Take in what *other* holds."""
        self.parked += other.parked
        self.sent += other.sent
        self.ended += other.ended
        self.busy |= other.busy
        self.errors += other.errors
        self.stuck |= other.stuck

    def exit_code(self, document: Document) -> int:
        """The most serious of what happened: see the table of exit codes."""
        codes = {error.exit for error in self.errors}
        codes |= {sent.unsaved.exit for sent in self.sent if sent.unsaved is not None}
        if self.busy:
            codes.add(SlotBusy.exit)
        if self.refused(document):
            codes.add(5)
        return next((code for code in (1, 8, 7, 3, 5, 6) if code in codes), max(codes, default=0))

    def refused(self, document: Document) -> tuple[int, ...]:
        """Slots where a refused or unknown outcome was left behind. Work in progress is not trouble."""
        left = {slot for slot, entry in document.pending_actions.items() if entry.last_error is not None}
        final = (Reason.REJECTED, Reason.NOT_SENT, Reason.APPLY_FAILED)
        left |= {sent.slot for sent in self.sent if sent.reason in final}
        return tuple(sorted(left))
