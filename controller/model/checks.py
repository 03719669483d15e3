"""Every check of the document and its history: the closed catalogue. Matched by member, never by text.

Not promised: that a document which passes them all is true. A check says what cannot be in one that controller wrote;
only a provider knows what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct


class Check(StrEnum):
    """The closed catalogue. Each member is explained in `CHECKS`."""

    # the document itself
    SCHEMA = "schema"
    SENTINEL = "sentinel"
    DIGEST = "digest"
    REVISION = "revision"
    EVENTS = "events"
    TROUBLES = "troubles"
    REVISION_STEP = "revision-step"
    COUNTER_LOWERED = "counter-lowered"
    # runs
    RUN_ID = "run-id"
    RUN_TWICE = "run-twice"
    RUN_SEQUENCE = "run-sequence"
    RUN_RANGE = "run-range"
    RUN_REASON = "run-reason"
    RUN_OUTCOME = "run-outcome"
    RUN_ENDED_STEP = "run-ended-step"
    RUN_DEFER_REASON = "run-defer-reason"
    RUN_HOLDER = "run-holder"
    RUN_TOKEN = "run-token"
    RUN_WORKER = "run-worker"
    LEASE_RANGE = "lease-range"
    PERMITS = "permits"
    TIMES = "times"
    FINISHED_ID = "finished-id"
    FINISHED_STATE = "finished-state"
    TOKEN_LOWERED = "token-lowered"
    # steps
    STEP_NAMES = "step-names"
    STEP_NEEDS = "step-needs"
    STEP_CYCLE = "step-cycle"
    STEP_ARGV = "step-argv"
    STEP_RANGE = "step-range"
    STEP_REASON = "step-reason"
    STEP_RUNNING_NEEDS = "step-running-needs"
    STEP_ONE_ACTIVE = "step-one-active"
    STEP_ACTIVE_STATE = "step-active-state"
    STEP_ATTEMPTS = "step-attempts"
    # workers and slots
    WORKER_SLOT = "worker-slot"
    SLOT_BOUNDS = "slot-bounds"
    WORKER_GENERATION = "worker-generation"
    WORKER_RUN = "worker-run"
    WORKER_ID = "worker-id"
    RESOURCE_OWNER = "resource-owner"
    UNRECORDED = "unrecorded"
    # actions
    PENDING_ACTION = "pending-action"
    PENDING_SLOT = "pending-slot"
    PENDING_KEY = "pending-key"
    PENDING_SERIAL = "pending-serial"
    PENDING_TOKEN = "pending-token"
    DISOWNED_KEY = "disowned-key"
    # history
    LINEAGE = "lineage"
    HISTORY_AHEAD = "history-ahead"
    HISTORY_CHAIN = "history-chain"
    HISTORY_CONTIGUOUS = "history-contiguous"
    HISTORY_MOVES = "history-moves"
    HISTORY_STATE = "history-state"
    HISTORY_ACTIONS = "history-actions"
    TOKEN_ORDER = "token-order"
    TOKEN_HISTORY = "token-history"
    COUNTER_HISTORY = "counter-history"


class Violation(Struct, frozen=True):
    """`id` names the check, `subject` is `run:R`, `slot:N` or `fleet`, `what` says what is wrong."""

    id: Check
    subject: str
    what: str


class By(StrEnum):
    """Who judges it: a commit what it touches, `state accept` and `fsck` everything."""

    COMMIT = "commit"
    ACCEPT = "accept"
    FSCK = "fsck"


_ALL: Final = (By.COMMIT, By.ACCEPT, By.FSCK)
_WHOLE: Final = (By.ACCEPT, By.FSCK)
_FSCK: Final = (By.FSCK,)
_COMMIT: Final = (By.COMMIT,)


class Checked(Struct, frozen=True):
    """How a check reads: `text` is what must hold, `why` what it means when it does not, `next` what a person does
    then. `judged`: by whom; the first two refuse what breaks it.
    """

    text: str
    why: str
    next: str
    judged: tuple[By, ...] = _ALL


_MEND: Final = (
    "Mend that by hand in the document and `controller state accept` it, or `controller state restore` a copy."
)
_BUG: Final = "Nothing was written. No command does this: report it."
_HISTORY: Final = (
    "Find out who wrote what: `controller history` has every event. Then `controller state restore` a copy."
)

CHECKS: Final[Mapping[Check, Checked]] = {
    Check.SCHEMA: Checked(
        "the document is of this program's schema",
        "Records of another schema would be taken for something that they are not.",
        _MEND,
    ),
    Check.SENTINEL: Checked(
        "the field pending_action holds the sentinel",
        "A program of schema 1 would read that nothing is pending, and plan over actions that may have been sent.",
        "Put the sentinel that docs/upgrading.md names back there, and `controller state accept` it.",
    ),
    Check.DIGEST: Checked(
        "the digest of the document matches its bytes",
        "Something else than controller wrote it: it was edited by hand, or it is damaged.",
        "If the edit was meant: `controller state accept`. If not: `controller state restore` a copy.",
        _FSCK,
    ),
    Check.REVISION: Checked("the revision is not below 0", "No commit leads there: it was edited.", _MEND),
    Check.EVENTS: Checked(
        "the document carries the events of its last commit, numbered from 1",
        "History could not say what the last commit changed.",
        _MEND,
    ),
    Check.TROUBLES: Checked("as many troubles are kept as there is room for", "No commit keeps more.", _MEND),
    Check.REVISION_STEP: Checked(
        "a commit makes the next revision", "One that skips or repeats a number would hide a commit.", _BUG, _COMMIT
    ),
    Check.COUNTER_LOWERED: Checked(
        "no commit lowers a counter", "Ids and serials would be handed out a second time.", _BUG, _COMMIT
    ),
    Check.RUN_ID: Checked("a run stands under its own id", "Whoever asks for one run would be told of another.", _MEND),
    Check.RUN_TWICE: Checked(
        "a run is live or has left, not both",
        "Whether it is still to be done depends on who looks where.",
        "`controller history RUN` says which it is. Take the other record out, and `controller state accept` it.",
        _WHOLE,
    ),
    Check.RUN_SEQUENCE: Checked(
        "a run's sequence was handed out", "A later run would get the same place in the order.", _MEND
    ),
    Check.RUN_RANGE: Checked(
        "budgets, counts and times of a run are numbers that a submit lets through",
        "Arithmetic on them would decide wrongly what is tried again.",
        _MEND,
    ),
    Check.RUN_REASON: Checked("a run that has ended has a reason", "Nobody could be told why it ended.", _MEND),
    Check.RUN_OUTCOME: Checked(
        "a succeeded run has no failed step; a failed one has a failed step or a reason of its own",
        "Its steps and its end tell different stories.",
        "`controller history RUN` says how its steps ended. Mend the one that is wrong; `controller state accept` it.",
    ),
    Check.RUN_ENDED_STEP: Checked(
        "a run that has ended has no running step",
        "A process of it may still be at work, and nothing will ever fold its end in.",
        "See what `controller show RUN` says of the step, and whether its process lives. Then mend the record by hand.",
    ),
    Check.RUN_DEFER_REASON: Checked(
        "a deferred run has a reason for that", "Nobody could be told what it waits for.", _MEND
    ),
    Check.RUN_HOLDER: Checked(
        "a running run has one holder, a worker or an outside consumer's lease; any other run has none",
        "Two may work on it, or nobody's end could ever end it.",
        "`controller explain RUN` says who held it last. Mend worker and lease by hand; `controller state accept` it.",
    ),
    Check.RUN_TOKEN: Checked(
        "a running run has been claimed", "Without a token nothing fences an earlier holder off.", _MEND
    ),
    Check.RUN_WORKER: Checked(
        "the worker that a run is held by says so too",
        "The end of the run would free another worker, or none.",
        "`controller explain RUN` and `explain slot:N` say what each has. Mend one; `controller state accept` it.",
    ),
    Check.LEASE_RANGE: Checked(
        "a lease has a length and an end that a claim gives",
        "It would never end, or has ended before it began.",
        _MEND,
        _WHOLE,
    ),
    Check.PERMITS: Checked(
        "no more runs of a concurrency key are running than its largest limit",
        "What the key stands for is used by more runs than it bears.",
        "Ask the holders of the runs that are named to give all but the allowed number back.",
        _WHOLE,
    ),
    Check.TIMES: Checked(
        "what happened later has the later time",
        "A clock was set back while it happened, or the times were edited. Nothing is decided by them.",
        "Look at the clock with `controller doctor`. The record itself is kept as it is.",
        _FSCK,
    ),
    Check.FINISHED_ID: Checked(
        "what is left of a run stands under its own id",
        "A late report would be answered with another run.",
        _MEND,
        _WHOLE,
    ),
    Check.FINISHED_STATE: Checked(
        "a run that left has succeeded or was discarded",
        "Runs in any other state stay in the document: this one would be lost.",
        "`controller history RUN` says how it ended. Mend its state by hand, and `controller state accept` it.",
        _WHOLE,
    ),
    Check.TOKEN_LOWERED: Checked(
        "no commit lowers a run's token", "An earlier holder could end what a later one works on.", _BUG, _COMMIT
    ),
    Check.STEP_NAMES: Checked(
        "no two steps of a run have one name", "Needs and ends would be taken for another's.", _MEND
    ),
    Check.STEP_NEEDS: Checked("what a step needs is a step of its run", "It could never start.", _MEND),
    Check.STEP_CYCLE: Checked("the needs of a run's steps go in no circle", "None of them could ever start.", _MEND),
    Check.STEP_ARGV: Checked("a step has a command", "There is nothing that could be started.", _MEND),
    Check.STEP_RANGE: Checked(
        "a step's timeout and number of attempts are at least 1", "It would end before it began.", _MEND
    ),
    Check.STEP_REASON: Checked(
        "a step that has ended has a reason", "Nobody could be told how it ended.", _MEND, _FSCK
    ),
    Check.STEP_RUNNING_NEEDS: Checked(
        "whatever a running step needs has succeeded",
        "It works on what is not there yet.",
        "`controller history RUN` says in what order they went. `controller cancel RUN` ends it; then retry it.",
    ),
    Check.STEP_ONE_ACTIVE: Checked("a step has one active attempt at most", "Its command may be running twice.", _MEND),
    Check.STEP_ACTIVE_STATE: Checked(
        "a step is running exactly while an attempt of it is active", "Its end would be waited for in vain.", _MEND
    ),
    Check.STEP_ATTEMPTS: Checked(
        "the attempts of a step are numbered 1, 2, 3", "One was lost: its end could not be told from another's.", _MEND
    ),
    Check.WORKER_SLOT: Checked("a worker stands under its own slot", "Another slot would be acted on.", _MEND),
    Check.SLOT_BOUNDS: Checked("slots are numbered from 1 to 10000", "No lock can be taken for any other.", _MEND),
    Check.WORKER_GENERATION: Checked(
        "generations of a worker begin at 1", "Looks could not be told from those of other compute.", _MEND
    ),
    Check.WORKER_RUN: Checked(
        "an assigned worker has a run, and a worker's run is there",
        "Nothing could ever free it.",
        "`controller explain slot:N` says what it had. Mend it by hand, and `controller state accept` it.",
    ),
    Check.WORKER_ID: Checked(
        "one id of a provider belongs to one worker", "What is done to one would be done to the other.", _MEND
    ),
    Check.RESOURCE_OWNER: Checked(
        "one resource belongs to one worker",
        "Deleting one worker would take the resource from the other.",
        "Find out at the provider whose it is, take it out of the other record, and `controller state accept` it.",
    ),
    Check.UNRECORDED: Checked(
        "the last look showed nothing that no record knows",
        "Something of this fleet is there, may cost money, and no record knows it.",
        "`controller adopt N` takes it into the document, `controller delete-unrecorded N` removes it.",
        _FSCK,
    ),
    Check.PENDING_ACTION: Checked(
        "a pending action can be read",
        "It is never sent, so nobody will find out what it did.",
        "`controller state accept --restore-pending` takes its bytes from history.",
    ),
    Check.PENDING_SLOT: Checked(
        "a pending action stands under its own slot", "It would be sent under another slot's lock.", _MEND
    ),
    Check.PENDING_KEY: Checked(
        "the key of a pending action derives from its content",
        "Its bytes were changed, so it is never sent: the provider may know that key for something else.",
        "`controller state accept --restore-pending` takes its bytes from history.",
    ),
    Check.PENDING_SERIAL: Checked(
        "the serial of a pending action was handed out", "A later action could get the same key.", _MEND
    ),
    Check.PENDING_TOKEN: Checked(
        "a pending action of a run carries the token that the run has",
        "Its answer would be folded into another life of the run.",
        "`controller explain slot:N` says what it is, and what ends it.",
    ),
    Check.DISOWNED_KEY: Checked(
        "a disowned action stands under the key that derives from its content",
        "Nobody could find out any more what it may have made.",
        "`controller history slot:N` has its bytes. Mend it by hand, and `controller state accept` it.",
    ),
    Check.LINEAGE: Checked(
        "history is of the fleet that the document is of",
        "The document was put into another fleet's directory: it would act on workers that are not its own.",
        "Look at --state-dir, and put each document back beside its own history.",
        _WHOLE,
    ),
    Check.HISTORY_AHEAD: Checked(
        "history knows no later revision than the document",
        "An older copy of the document was put back: working on it would do again what was done since.",
        "Put the newer document back, or `controller state restore` one that is meant to stand.",
        _FSCK,
    ),
    Check.HISTORY_CHAIN: Checked(
        "history can be read, and each line of it follows the one before",
        "A line was changed, lost or written by something else: what it said cannot be believed.",
        "Put a good copy of the file back. If its last line is wrong, `controller state restore` goes on before it.",
        _FSCK,
    ),
    Check.HISTORY_CONTIGUOUS: Checked(
        "history has every revision up to the document's, and every event of each, once",
        "Commits are missing from it: what they changed cannot be explained.",
        "Put a good copy of the file back. If there is none, nothing else is wrong: history begins behind the gap.",
        _FSCK,
    ),
    Check.HISTORY_MOVES: Checked(
        "each event in history is a move that its machine allows, from where the one before it led",
        "A transition has no event, or two, or was never allowed: something else wrote document or history.",
        _HISTORY,
        _FSCK,
    ),
    Check.HISTORY_STATE: Checked(
        "each run, step and worker is where its last event led, and nowhere without one",
        "A record was changed, made or lost without an event.",
        "`controller explain RUN`, or slot:N, says what led there. Mend the record, and `controller state accept` it.",
        _FSCK,
    ),
    Check.HISTORY_ACTIONS: Checked(
        "what was parked is pending until an event settles it, and what was disowned is kept for ever",
        "An action that may have been sent is forgotten, or one came back that was settled.",
        "`controller history slot:N` has its bytes. Look at the provider before anything else is done to that slot.",
        _FSCK,
    ),
    Check.TOKEN_ORDER: Checked(
        "in history the token of a run never goes back, and climbs by claims alone, one at a time",
        "Two lives of a run had one token: the earlier holder could end the later one.",
        _HISTORY,
        _FSCK,
    ),
    Check.TOKEN_HISTORY: Checked(
        "the token of a run is not below what history knows",
        "An earlier holder of it could end what a later one works on.",
        "Set its attempts to what history knows, and `controller state accept` it.",
        _WHOLE,
    ),
    Check.COUNTER_HISTORY: Checked(
        "no counter is below what history knows",
        "An id or a serial that history knows would be handed out once more.",
        "Set the counter to what history knows, and `controller state accept` it.",
        _WHOLE,
    ),
}
"""What every member means; total, which a test proves."""


def judged_by(who: By) -> frozenset[Check]:
    return frozenset(check for check, told in CHECKS.items() if who in told.judged)
