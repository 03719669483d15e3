"""Every code that an answer may carry, and what it means: reasons, what a machine refuses for, and errors.

Not promised: what happened to one run. A code says what such things have in common; `explain RUN` says the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from controller.model import errors as e
from controller.model.reason import EXPLAINED, Explained
from controller.model.refusal import REFUSALS

_FSCK: Final = "Run `controller fsck`: it names every rule that is broken and changes nothing."
_AGAIN: Final = "Run the command again; nothing was written."

ERRORS: Final[Mapping[type[e.ControllerError], Explained]] = {
    e.ControllerError: Explained(
        "controller itself failed",
        "Something happened that the program was not written for: a bug. What was accepted stands.",
        "Run it again with CONTROLLER_TRACEBACK=1 to see where, and report that.",
    ),
    e.StrictError: Explained(
        "not strict JSON",
        "Something that was read has duplicate keys, wrong types, broken text or more depth than anybody means.",
        "Mend what the error names, at the line that it names.",
    ),
    e.UsageFault: Explained(
        "what was typed or configured cannot be meant",
        "An option, an argument or a setting is unknown, missing or outside its bounds.",
        "See `controller --help`, or the line of controller.toml that the error names.",
    ),
    e.Refusal: Explained(
        "refused", "What was asked for may not be done now; document and history are as before.", "Do what it names."
    ),
    e.LockReentered: Explained(
        "this thread already holds the document",
        "A program that uses the library asked for a second hold inside the first one, which would wait for ever.",
        "Use the hold that is there, or leave it first.",
    ),
    e.LockLost: Explained(
        "the lock is no longer ours", "Somebody removed or replaced the lock file during the hold.", _AGAIN
    ),
    e.LockUnusable: Explained(
        "the lock cannot be taken",
        "Not because somebody holds it: its file cannot be opened or locked here.",
        "Mend permissions or the file system of the state directory, as the error names them.",
    ),
    e.NotOurs: Explained(
        "the state directory belongs to somebody else",
        "Writing there as another user would leave files that its owner cannot use.",
        "Run the command as the owner of the state directory.",
    ),
    e.FenceBroken: Explained(
        "the document was not loaded inside this hold",
        "A change that was made from an older load could undo what was committed since.",
        "Load inside the hold, make the change again, and commit that.",
    ),
    e.RevisionMoved: Explained(
        "the document on disk is not the loaded one",
        "Somebody wrote it without taking the lock, between load and commit.",
        _AGAIN,
    ),
    e.ScopeExceeded: Explained(
        "the edit touches what its caller may not touch",
        "The answer for one slot may change that slot, its worker and its run, and nothing else.",
        "A bug in whoever made the edit: report it.",
    ),
    e.InvariantBroken: Explained("the edit would break a rule of the document", "Nothing was written.", _FSCK),
    e.EditedOutside: Explained(
        "somebody else wrote the document",
        "Its digest does not match its bytes: it was edited by hand, or damaged.",
        "Check the edit with `controller fsck`, then seal it with `controller state accept`.",
    ),
    e.HistoryAhead: Explained(
        "history knows a later revision than the document",
        "An older copy of the document was put back; working on it would do again what was done since.",
        "Put the newer document back, or go on from this one: `controller state restore`.",
    ),
    e.JournalForked: Explained(
        "the journal's last line does not follow the one before it",
        "Something else than controller wrote it, or two programs did at once; what it says was never committed here.",
        "Find out what it was, then go on from the line before it: `controller state restore`.",
    ),
    e.AlreadyThere: Explained(
        "there is something already",
        "The directory holds a document, or what is left of one; a new one would forget its workers.",
        "Give another --state-dir, or use what is there: `controller status`.",
    ),
    e.SlotTaken: Explained(
        "the slot has a pending action already",
        "A second one over it would forget that the first may have to be sent again.",
        "Settle it first: `controller replay-pending`.",
    ),
    e.TransitionRefused: Explained(
        "a machine refused the event",
        "The run, step or worker is not in a state, or not held by somebody, that allows it.",
        "`controller explain RUN` says what is allowed now.",
    ),
    e.Conflict: Explained(
        "it conflicts with what is there",
        "The same id with other content, a run that something still holds, or another provider than its workers have.",
        "Choose another id, or end first what the refusal names.",
    ),
    e.ProofRefused: Explained(
        "no release proof can be taken from there",
        "It is a link, no regular file, too large, somebody else's, open for others to write, or no strict JSON.",
        "Mend what the error names; the worker and its data are kept.",
    ),
    e.ProofIncomplete: Explained(
        "the release proof is not complete",
        "A member is missing, unknown or of another type, or a placeholder of the template was left in it.",
        "Fill in what the error names, from what was seen of the resources themselves; everything is kept.",
    ),
    e.ProofStale: Explained(
        "the release proof is of an earlier time",
        "The run has lived on, or the slot got another worker, since it was made: it says nothing of what is there.",
        "`controller release RUN --template` writes what a new one has to say; everything is kept.",
    ),
    e.ProofConflicting: Explained(
        "the release proof is about something else",
        "Run, slot, worker or a resource in it is not what the document has: one of the two is wrong.",
        "Find out which: `controller show slot:N` says what is recorded. Everything is kept.",
    ),
    e.LeaseLost: Explained(
        "the lease of the run was lost",
        "It ran out before a heartbeat renewed it, or the run was taken from its holder on purpose.",
        "Stop working on it: what this holder reports from now on is refused. Another life of it may run already.",
    ),
    e.CancelRequested: Explained(
        "the run that is worked on shall be cancelled",
        "Somebody asked for it with `controller cancel`; its holder was told with a heartbeat.",
        "Stop working on it and give it back: it ends as cancelled.",
    ),
    e.NotFound: Explained(
        "no such thing",
        "No run, slot, step or code has that name; runs leave the document some time after their end.",
        "`controller runs` lists runs, `controller status` slots, `controller explain reason` codes.",
    ),
    e.ProviderFailed: Explained(
        "the provider did not answer a question",
        "It was asked what exists, not for a change: no slot changed because of it.",
        "Run the provider by hand with the question that the error names; the next reconcile asks again.",
    ),
    e.SlotUnproven: Explained(
        "nothing proves that an earlier provider call has ended",
        "Who was given the slot's action last cannot be read or seen from here, and it may still be at work.",
        "Make sure that it is gone, then do what the error names.",
    ),
    e.Exhausted: Explained(
        "the system gives no more threads",
        "A limit of processes or of memory is reached; nothing was asked of the provider, what is parked stays so.",
        "Look at `ulimit -u` and at the memory, then run it again.",
    ),
    e.SlotRetained: Explained(
        "what is shown in the slot is not what is recorded",
        "A complete look shows something there that no record knows, or that has another identity: nothing touches it.",
        "`controller explain slot:N --live` says what is there and what to type.",
    ),
    e.Stuck: Explained(
        "waiting does not help any more",
        "Its slot holds what no further send or look settles. Nothing is lost, and nothing moves by itself.",
        "Settle the slot as `controller explain` says, then wait again.",
    ),
    e.Busy: Explained("busy", "Somebody else is at work on it.", "Wait, or see who with `controller status`."),
    e.LockBusy: Explained(
        "somebody holds the document",
        "Another command was at work on it until the time to wait was over.",
        "Wait for the process that it names, or give a longer --lock-timeout.",
    ),
    e.StillRunning: Explained(
        "the time to wait was over before the run was",
        "Waiting drives a run but does not own it: the run goes on as if nobody had waited.",
        "Wait again with `controller wait RUN`, or look with `controller show RUN`.",
    ),
    e.SlotBusy: Explained(
        "somebody holds the slot",
        "Another command, or a provider process that outlived its command, is at work on it.",
        "Wait: `controller status` shows who, and until when.",
    ),
    e.DocumentFault: Explained("the document cannot be used", "Nothing was changed, and no provider was asked.", _FSCK),
    e.DocumentMissing: Explained(
        "there is no document",
        "The state directory has none, which does not mean that it is new: one may have been lost.",
        "Check --state-dir; a new one is made by `controller init`, a lost one put back from a backup.",
    ),
    e.DocumentCorrupt: Explained(
        "not a document, or a damaged one",
        "Its bytes do not obey the format: cut off, filled with zeros, or edited.",
        "Nothing was changed; put back a copy of it, or mend the place that the error names.",
    ),
    e.DocumentForeign: Explained(
        "a document of another schema",
        "Another version of the program wrote it, or something else has put its sentinel away.",
        "Use the version that wrote it, or a newer one.",
    ),
    e.BrokenAction: Explained(
        "not an action, or not the one that its key names",
        "The bytes of a pending action were changed, so they are never sent.",
        _FSCK,
    ),
    e.NotDurable: Explained(
        "could not be made durable",
        "The disk is full, read-only or failing.",
        "Make room or mend the disk, then run the command again.",
    ),
    e.StorageFailed: Explained(
        "could not be written",
        "Writing failed before the new document took its place: the old revision stands.",
        "Make room or mend the disk, then run the command again.",
    ),
    e.DurabilityFailed: Explained(
        "may or may not have been saved",
        "The new document is in place, but the disk did not confirm it; a power cut could take it back.",
        "See what stands with `controller status`; nothing was sent to a provider because of it.",
    ),
}
"""Keyed by the class, since its code and exit are told there; total, which a test proves."""

_INTERRUPTED: Final = Explained(
    "interrupted", "Somebody pressed Ctrl-C or sent a signal; accepted work goes on.", "See `controller status`."
)


class Kind(StrEnum):
    """What answers carry the code: records and events, a machine's no, or what a command failed with."""

    REASON = "reason"
    REFUSAL = "refusal"
    ERROR = "error"


class Code(Struct, frozen=True):
    """One code. `exit` is that of a command which fails with it; None for reasons, which no command fails with."""

    code: str
    kind: Kind
    exit: int | None
    text: str
    why: str
    next: str


def catalogue() -> Mapping[str, Code]:
    """Every code: reasons, then refusals, then errors by exit code."""
    told = [_code(reason.value, Kind.REASON, None, explained) for reason, explained in EXPLAINED.items()]
    told += [_code(why.value, Kind.REFUSAL, e.Refusal.exit, explained) for why, explained in REFUSALS.items()]
    refused = [kind for kind in ERRORS if issubclass(kind, e.Refusal)]
    failed = sorted((kind for kind in ERRORS if kind not in refused), key=lambda kind: kind.exit)
    told += [_code(kind.code, Kind.REFUSAL, kind.exit, ERRORS[kind]) for kind in refused]
    told += [_code(kind.code, Kind.ERROR, kind.exit, ERRORS[kind]) for kind in failed]
    told.append(_code("interrupted", Kind.ERROR, 130, _INTERRUPTED))
    return {code.code: code for code in told}


def _code(code: str, kind: Kind, exit_code: int | None, explained: Explained) -> Code:
    return Code(code, kind, exit_code, explained.text, explained.why, explained.next)
