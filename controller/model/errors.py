"""Every exception that `controller` raises on purpose: one tree, matched by type and never by text.

ControllerError                      1  a bug, unless a subclass says otherwise
+-- UsageFault                       2  what was typed or configured cannot be meant
+-- Refusal                          3  a typed "no": nothing changed
|   +-- LockReentered                   this thread already holds the document
|   +-- LockLost                        the lock is no longer ours; nothing was written
|   +-- LockUnusable                    the lock cannot be taken, and not because somebody holds it
|   +-- NotOurs                         the state directory belongs to somebody else
|   +-- FenceBroken                     the document was not loaded inside this hold
|   +-- RevisionMoved                   the document on disk is not the loaded one
|   +-- ScopeExceeded                   the edit touches what its caller may not touch
|   +-- InvariantBroken                 the edit would introduce a violation
|   +-- EditedOutside                   somebody else wrote these bytes
|   +-- HistoryAhead                    history knows a later revision than the document
|   +-- JournalForked                   the journal's last line does not follow the one before it
|   +-- AlreadyThere                    init over something that exists
|   +-- SlotTaken                       the slot has a pending action already
|   +-- TransitionRefused               a machine said no
|   +-- Conflict                        the same id with other content; a run still held; a changed provider
|   +-- ProofRefused                    not a file that a release proof may be taken from, or no JSON
|   |   +-- ProofIncomplete             something of the proof is missing, unknown or not filled in
|   |   +-- ProofStale                  it was made for an earlier life, assignment or generation
|   |   +-- ProofConflicting            it is about something else than what it shall release
|   +-- LeaseLost                       the run that is worked on was given to another, or may be at any moment
|   +-- CancelRequested                 somebody wants the run that is worked on cancelled
+-- NotFound                         4  no such run or slot
+-- Busy                             6
|   +-- LockBusy                        somebody holds the document lock
|   +-- SlotBusy                        somebody holds the slot, or its provider process lives
|   +-- StillRunning                    what was waited for had not ended in time; it goes on
+-- DocumentFault                    7
|   +-- DocumentMissing                 there is none; that does not mean new
|   +-- DocumentCorrupt                 not a document, or not one that obeys its format
|   +-- DocumentForeign                 written by another schema than this program reads
|   +-- BrokenAction                    bytes that are no action, or not the one their key names
+-- NotDurable                       8
|   +-- StorageFailed                   could not be written; the old revision stands
|   +-- DurabilityFailed                may or may not have happened: reload
+-- SlotUnproven                     5  nothing can prove whether an earlier provider call of the slot has ended
+-- Exhausted                        5  the system gives no more threads; what was to be asked waits
+-- SlotRetained                     5  what is shown in a slot is not what is recorded: nothing touches it
+-- Stuck                            5  what was waited for needs an operator first
+-- ProviderFailed                   5  the provider did not answer a question (looks only; sends have outcomes)
"""

from __future__ import annotations

from typing import ClassVar


class ControllerError(Exception):
    """Base of the tree. `what` happened, `where`, and what to do `next`: each one line of plain text."""

    code: ClassVar[str] = "internal"
    exit: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", next: str = "") -> None:  # noqa: A002 - the word users see
        super().__init__(what)
        self.what = what
        self.where = where
        self.next = next


class StrictError(ControllerError):
    """Bytes that are not strict JSON (`model.strict`). `offset` counts bytes from 0, `line` from 1.

    Whoever read the bytes maps it: a document to DocumentCorrupt, a reply to an unknown outcome.
    """

    code = "not_strict_json"

    def __init__(self, what: str, *, where: str, offset: int, line: int) -> None:
        super().__init__(f"{what} (line {line}, offset {offset})", where=where)
        self.problem = what
        self.offset = offset
        self.line = line


class UsageFault(ControllerError):
    code = "usage"
    exit = 2


class Refusal(ControllerError):
    """Nothing changed: neither document nor history."""

    code = "refused"
    exit = 3


class LockReentered(Refusal):
    code = "lock_reentered"


class LockLost(Refusal):
    code = "lock_lost"


class LockUnusable(Refusal):
    code = "lock_unusable"


class NotOurs(Refusal):
    code = "not_ours"


class FenceBroken(Refusal):
    code = "fence_broken"


class RevisionMoved(Refusal):
    """The document on disk is not the one that was loaded. Same revision on both sides: the content differs."""

    code = "revision_moved"

    def __init__(self, loaded: int, found: int | None, *, where: str = "") -> None:
        super().__init__(
            f"the document moved while it was held: loaded revision {loaded}, found "
            + ("none" if found is None else f"{found}" + (" with other content" if found == loaded else "")),
            where=where,
            next="nothing was written; run the command again",
        )
        self.loaded = loaded
        self.found = found


class ScopeExceeded(Refusal):
    code = "scope_exceeded"


class InvariantBroken(Refusal):
    code = "invariant_broken"


class EditedOutside(Refusal):
    code = "edited_outside"


class HistoryAhead(Refusal):
    code = "history_ahead"


class JournalForked(Refusal):
    code = "journal_forked"


class AlreadyThere(Refusal):
    code = "already_there"


class SlotTaken(Refusal):
    code = "slot_taken"


class TransitionRefused(Refusal):
    """A machine refused an event. `why` is the refusal's code, such as `illegal_transition` or `stale_lease`."""

    code = "transition_refused"

    def __init__(self, what: str, *, why: str, where: str = "", next: str = "") -> None:  # noqa: A002 - as above
        super().__init__(what, where=where, next=next)
        self.why = why


class Conflict(Refusal):
    code = "conflict"


class ProofRefused(Refusal):
    """What was brought as a proof releases nothing: everything is kept."""

    code = "proof_refused"


class ProofIncomplete(ProofRefused):
    code = "proof_incomplete"


class ProofStale(ProofRefused):
    code = "proof_stale"


class ProofConflicting(ProofRefused):
    code = "proof_conflicting"


class LeaseLost(Refusal):
    """Stop working on the run: whatever is reported of it from now on is refused."""

    code = "lease_lost"


class CancelRequested(Refusal):
    """Stop working on the run, and say so: it ends as cancelled."""

    code = "cancel_asked"


class NotFound(ControllerError):
    code = "not_found"
    exit = 4


class ProviderFailed(ControllerError):
    """A question to the provider (`describe`, `inventory`, `wait`) got no usable answer; no slot changed."""

    code = "provider_failed"
    exit = 5


class SlotUnproven(ControllerError):
    """Waiting does not help, so this is not busy: somebody has to say what became of an earlier provider process."""

    code = "slot_unproven"
    exit = 5


class Exhausted(ControllerError):
    """Nothing was asked: what is parked stays so, and the next command goes on with it."""

    code = "exhausted"
    exit = 5


class SlotRetained(ControllerError):
    """Waiting does not help: somebody has to find out what is there, and which of the two is right."""

    code = "slot_retained"
    exit = 5


class Stuck(ControllerError):
    """What was waited for cannot go on by itself: an operator has to settle something first."""

    code = "stuck"
    exit = 5


class Busy(ControllerError):
    code = "busy"
    exit = 6


class LockBusy(Busy):
    """The document lock stayed held until the deadline. `holder` is what its holder wrote about itself."""

    code = "lock_busy"


class SlotBusy(Busy):
    code = "slot_busy"


class StillRunning(Busy):
    code = "still_running"


class DocumentFault(ControllerError):
    code = "document"
    exit = 7


class DocumentMissing(DocumentFault):
    code = "document_missing"


class DocumentCorrupt(DocumentFault):
    code = "document_corrupt"


class DocumentForeign(DocumentFault):
    code = "document_foreign"


class BrokenAction(DocumentFault):
    """These bytes are not an action, or not the one that their key names: they are never sent."""

    code = "broken_action"


class NotDurable(ControllerError):
    code = "not_durable"
    exit = 8


class StorageFailed(NotDurable):
    """Writing failed: the old revision stands and no temporary file is left."""

    code = "storage_failed"


class DurabilityFailed(NotDurable):
    """Syncing failed: the commit may or may not survive a power cut. Reload; send nothing."""

    code = "durability_failed"
