"""Reason codes: the closed catalogue of why something is as it is. Matched by member, never by text."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct


class Reason(StrEnum):
    """The closed catalogue. Each member is explained in `EXPLAINED`."""

    # deferrals
    CONCURRENCY = "concurrency"
    RETRY_BACKOFF = "retry_backoff"
    RECONCILED_AFTER_CRASH = "reconciled_after_crash"
    REQUEUED_AFTER_SHUTDOWN = "requeued_after_shutdown"
    CREATE_REFUSED = "create_refused"
    SUBMITTED_FOR_LATER = "submitted_for_later"
    # ends of steps and runs
    COMPLETED = "completed"
    EXIT_CODE = "exit_code"
    KILLED_BY_SIGNAL = "killed_by_signal"
    TIMED_OUT = "timed_out"
    NOT_STARTED = "not_started"
    END_UNKNOWN = "end_unknown"
    STEP_FAILED = "step_failed"
    UPSTREAM_FAILED = "upstream_failed"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    CRASHES_EXHAUSTED = "crashes_exhausted"
    WITHDRAWN = "withdrawn"
    CANCELLED = "cancelled"
    WORKER_LOST = "worker_lost"
    OPERATOR_RETRY = "operator_retry"
    CONSUMER_FAILED = "consumer_failed"
    INVALID_PAYLOAD = "invalid_payload"
    LEASE_EXPIRED = "lease_expired"
    DISCARDED = "discarded"
    REPLACED = "replaced"
    # outcomes of sends
    DONE = "done"
    PENDING = "pending"
    REJECTED = "rejected"
    NOT_SENT = "not_sent"
    UNKNOWN = "unknown"
    IDENTITY_REFUSED = "identity_refused"
    ALREADY_GONE = "already_gone"
    PROVEN_ABSENT = "proven_absent"
    KEY_EXPIRED = "key_expired"
    # workers and slots
    IDLE = "idle"
    DRAINING = "draining"
    REUSED = "reused"
    RUN_ENDED = "run_ended"
    SEEN_GONE = "seen_gone"
    SEEN_DARK = "seen_dark"
    APPLY_FAILED = "apply_failed"
    LOOK_FAILED = "look_failed"
    WORN_OUT = "worn_out"
    NOT_RELEASED = "not_released"
    RETAIN_FAILED = "retain_failed"
    IDLE_RELEASE = "idle_release"
    COOLDOWN = "cooldown"
    RELEASED = "released"
    SURRENDERED = "surrendered"
    RESUMED = "resumed"
    ADOPTED = "adopted"
    CORDONED = "cordoned"
    DISOWNED = "disowned"
    BREAKER_OPEN = "breaker_open"
    FLEET_FULL = "fleet_full"
    # what a look shows beside a record
    AS_RECORDED = "as_recorded"
    NO_WORKER = "no_worker"
    ACTION_PENDING = "action_pending"
    LOOK_SILENT = "look_silent"
    NOT_SHOWN = "not_shown"
    RETURNED = "returned"
    DATA_LEFT = "data_left"
    IDENTITY_CHANGED = "identity_changed"
    FOREIGN_TAG = "foreign_tag"
    ID_TWICE = "id_twice"
    UNRECORDED = "unrecorded"


class Explained(Struct, frozen=True):
    """How a reason reads: `text` in a line of status, `why` what led to it, `next` what a person does about it."""

    text: str
    why: str
    next: str


_WAIT: Final = "Nothing to do: it goes on by itself."
_AGAIN: Final = "`controller retry RUN` repeats the same command; for another: `controller submit --id NEW -- ...`."
"""A run keeps its command for ever: nothing can be mended in it but the world that it finds."""
_LOGS: Final = f"Read `controller logs RUN`. {_AGAIN}"

EXPLAINED: Final[Mapping[Reason, Explained]] = {
    Reason.CONCURRENCY: Explained(
        "waits for its concurrency key",
        "As many runs of this key are active as its limit allows.",
        "Nothing to do: it is claimable in the commit that ends one of them. `controller explain RUN` names them.",
    ),
    Reason.RETRY_BACKOFF: Explained(
        "waits before its next life",
        "A life failed and the failure budget is not spent, so it is tried again after a backoff.",
        "Wait: it is tried again by itself. Its last error says what failed.",
    ),
    Reason.RECONCILED_AFTER_CRASH: Explained(
        "queued again after its holder was lost",
        "Its holder is proven gone, or its lease ran out. That spent one of its crashes, and it has more.",
        _WAIT,
    ),
    Reason.REQUEUED_AFTER_SHUTDOWN: Explained(
        "given back by its holder",
        "Its holder shut down in order and gave the run back; that spends no budget.",
        _WAIT,
    ),
    Reason.CREATE_REFUSED: Explained(
        "waits because its worker was refused",
        "The provider refused the worker that was to be made for this run, or that worker was proven absent.",
        "Wait, or change what its last error names, such as a quota or a setting.",
    ),
    Reason.SUBMITTED_FOR_LATER: Explained(
        "submitted for later", "It was submitted with a time before which it is not due.", _WAIT
    ),
    Reason.COMPLETED: Explained("completed", "Every step ended well.", "Nothing to do."),
    Reason.EXIT_CODE: Explained("exited with a code other than 0", "The command itself said that it failed.", _LOGS),
    Reason.KILLED_BY_SIGNAL: Explained(
        "killed by a signal", "A signal that was not ours ended the command: memory ran out, or someone sent it.", _LOGS
    ),
    Reason.TIMED_OUT: Explained(
        "ran into its timeout",
        "The command ran longer than its timeout; the worker ended its process group.",
        "Raise --timeout in a new submit: `controller submit --id NEW --timeout 2h -- ...`.",
    ),
    Reason.NOT_STARTED: Explained(
        "could not be started",
        "The command was not found or not executable, or its interpreter or directory is missing.",
        f"Check the path; with `--cwd .` a new submit runs where you are. {_AGAIN}",
    ),
    Reason.END_UNKNOWN: Explained(
        "ended nobody knows how",
        "The worker lost sight of the command, so its exit code was never seen. Unknown is never taken for success.",
        "Find out what it did, then `controller retry RUN` if doing it again is safe.",
    ),
    Reason.STEP_FAILED: Explained("a step failed", "At least one step failed for good.", _LOGS),
    Reason.UPSTREAM_FAILED: Explained(
        "skipped: a step that it needs did not succeed",
        "A step that it needs failed, was skipped or was cancelled.",
        "See why that step ended so; `controller retry RUN` runs this one again too.",
    ),
    Reason.ATTEMPTS_EXHAUSTED: Explained(
        "failed as often as it may", "The last life that `--attempts` allows has failed.", _LOGS
    ),
    Reason.CRASHES_EXHAUSTED: Explained(
        "lost its holder as often as it may",
        "Its holder was lost as often as its crash budget allows; the run itself may be what ends its holders.",
        "See how each was lost with `controller history RUN`, then `controller retry RUN`.",
    ),
    Reason.WITHDRAWN: Explained(
        "withdrawn",
        "It was taken back before anybody took it.",
        "Nothing to do; `controller retry RUN` queues it again.",
    ),
    Reason.CANCELLED: Explained(
        "cancelled", "Somebody requested it.", "Nothing to do; `controller retry RUN` queues it again."
    ),
    Reason.WORKER_LOST: Explained(
        "its worker was lost",
        "A complete look showed that this very worker is gone.",
        "Nothing to do while the crash budget lasts; else `controller retry RUN`.",
    ),
    Reason.OPERATOR_RETRY: Explained(
        "sent back to its queue by an operator",
        "It had ended and was retried; succeeded steps are kept and the budgets start anew.",
        _WAIT,
    ),
    Reason.CONSUMER_FAILED: Explained(
        "its consumer reported a failure",
        "The program that held it said that this life failed, and with which error.",
        "Mend what its last error names. `controller retry RUN` queues it again.",
    ),
    Reason.INVALID_PAYLOAD: Explained(
        "its payload cannot be worked on",
        "The program that held it said that no other life would fare better with this payload.",
        "Submit it anew with another payload: `controller submit --id NEW --queue Q --payload JSON`.",
    ),
    Reason.LEASE_EXPIRED: Explained(
        "its holder's lease ran out",
        "The program that held it neither finished nor sent a heartbeat in time, or this host was rebooted.",
        "Nothing to do while the crash budget lasts; else find what ends its consumers, then `controller retry RUN`.",
    ),
    Reason.DISCARDED: Explained(
        "discarded",
        "Somebody took it out of its queue for good: `controller queue discard`.",
        "Nothing to do. It cannot be retried; the same id may be submitted again.",
    ),
    Reason.REPLACED: Explained(
        "replaced by another run of its id",
        "The id was submitted again with other content and --replace.",
        "Nothing to do: `controller show RUN` tells of the one that took its place.",
    ),
    Reason.DONE: Explained("done", "The provider did what was asked, and said so.", "Nothing to do."),
    Reason.PENDING: Explained(
        "not finished yet",
        "The provider accepted the action and says that it takes longer.",
        "Nothing to do: the same key is sent again when it asked to be.",
    ),
    Reason.REJECTED: Explained(
        "rejected by the provider",
        "The provider gave a final no: this key had and will have no effect.",
        "Read its words in `controller status`; a quota or a setting may need a change. It is planned again by itself.",
    ),
    Reason.NOT_SENT: Explained(
        "the provider program never started",
        "It is missing or not executable, or its interpreter is missing: certainly nothing happened.",
        "Install it, chmod +x it, or mend `[provider] command` in controller.toml.",
    ),
    Reason.UNKNOWN: Explained(
        "outcome unknown",
        "The provider was asked and gave no usable answer: it may or may not have done it.",
        "Run `controller replay-pending`: the same key is sent again until the answer is definite.",
    ),
    Reason.IDENTITY_REFUSED: Explained(
        "the recorded resource is not what is there now",
        "The provider says that what the document recorded can never be bound again.",
        "Find out at the provider what is there, then `controller abandon N --key KEY --reason WHY --confirm-abandon`; "
        "docs/recovery.md has the rest.",
    ),
    Reason.ALREADY_GONE: Explained(
        "was gone already",
        "What was to be deleted was not there any more, which is as good as deleted.",
        "Nothing to do.",
    ),
    Reason.PROVEN_ABSENT: Explained(
        "proven absent",
        "Two complete looks that did not overlap showed nothing of what may have been made.",
        "Nothing to do: it is planned again by itself.",
    ),
    Reason.KEY_EXPIRED: Explained(
        "too old to be sent again",
        "The provider no longer remembers keys this old, so sending it again could do it twice.",
        "Complete looks settle it; if they cannot, see `controller explain slot:N`.",
    ),
    Reason.IDLE: Explained("idle for too long", "No run needed the worker for the idle time.", "Nothing to do."),
    Reason.DRAINING: Explained(
        "drained",
        "An operator asked for it, of the fleet or of the slot: nothing new is taken.",
        "`controller drain --off` lifts it, or `controller uncordon N` for one slot.",
    ),
    Reason.REUSED: Explained("ready again", "Its run has ended and the worker is clean.", "Nothing to do."),
    Reason.RUN_ENDED: Explained("its run has ended", "The run that it was assigned to does not hold it.", _WAIT),
    Reason.SEEN_GONE: Explained(
        "seen gone",
        "A complete look showed that this very worker is gone.",
        "Nothing to do: what is left of it is deleted, and its run goes on by its crash budget.",
    ),
    Reason.SEEN_DARK: Explained(
        "seen switched off",
        "A complete look showed that the worker's compute is off though `controller` did not ask for it; data is kept.",
        "Nothing to do: the worker is taken down in order, and its run goes on by its crash budget.",
    ),
    Reason.APPLY_FAILED: Explained(
        "the result could not be recorded",
        "The provider answered, but the document could not take the answer: no space, or a broken invariant.",
        "Mend what the trouble names, then `controller replay-pending`: nothing is lost.",
    ),
    Reason.LOOK_FAILED: Explained(
        "the provider could not be asked what exists",
        "Its inventory failed or was incomplete; no slot was changed because of it.",
        "Run the provider's inventory by hand; the next reconcile looks again.",
    ),
    Reason.WORN_OUT: Explained(
        "has done as many runs as it may", "`[fleet] max_runs_per_worker` lets a worker do no more.", "Nothing to do."
    ),
    Reason.NOT_RELEASED: Explained(
        "waits for its release proof",
        'Its run is over and `[fleet] release = "proof"`: somebody has to prove first that its data may go.',
        "`controller release RUN --template` writes what the proof has to say; or `controller surrender RUN`.",
    ),
    Reason.RETAIN_FAILED: Explained(
        "kept because its run failed",
        "Its run failed for good and `[fleet] retain_failed` is on: it is stopped, and its data is kept.",
        "Look at its data, then `controller release RUN`; or go on with it: `controller resume RUN`.",
    ),
    Reason.IDLE_RELEASE: Explained(
        "stopped because it waited idle for its proof",
        "Complete looks saw it idle after its run for longer than `[fleet] idle_release`. Its data is kept.",
        "`controller release RUN --proof FILE` releases it; `controller resume RUN` starts it again.",
    ),
    Reason.COOLDOWN: Explained(
        "stopped, and kept for its cooldown",
        "Its compute is off; it is removed `[fleet] cooldown` after the first look that saw it off.",
        _WAIT,
    ),
    Reason.RELEASED: Explained(
        "released by an operator", "Somebody released it from its run: its data may go.", "Nothing to do."
    ),
    Reason.SURRENDERED: Explained(
        "surrendered by an operator",
        "Its release could not be proven any more; somebody took responsibility for what was lost.",
        "Nothing to do: `controller history slot:N` says who, why and what.",
    ),
    Reason.RESUMED: Explained(
        "made anew for its data", "Somebody asked for new compute where the data of a run was kept.", _WAIT
    ),
    Reason.ADOPTED: Explained(
        "adopted by an operator", "It was there without a record, and somebody took it into the document.", _WAIT
    ),
    Reason.CORDONED: Explained(
        "its slot is cordoned", "An operator said that the slot takes nothing new.", "`controller uncordon N` lifts it."
    ),
    Reason.DISOWNED: Explained(
        "disowned",
        "An action for the slot can never be settled, and what it did is not known: it is kept on record for ever.",
        "`controller reconcile` looks whether it made anything; `controller explain slot:N` says what is known.",
    ),
    Reason.BREAKER_OPEN: Explained(
        "the provider fails: nothing new is asked of it",
        "As many sends in a row have failed as `[provider.breaker]` allows.",
        "Mend the provider, as `controller status` says why it failed; it is tried again by itself.",
    ),
    Reason.FLEET_FULL: Explained(
        "there are as many workers as there may be", "`[fleet] max` lets no more be made at once.", _WAIT
    ),
    Reason.AS_RECORDED: Explained("record and provider agree", "A complete look showed it as it is recorded.", _WAIT),
    Reason.NO_WORKER: Explained("no worker is recorded or shown", "Neither the document nor the look has one.", _WAIT),
    Reason.ACTION_PENDING: Explained(
        "an action is pending",
        "Until it is settled the slot's record is not the truth yet, so nothing judges it.",
        _WAIT,
    ),
    Reason.LOOK_SILENT: Explained(
        "the look says nothing of it",
        "The look is incomplete, could not read the slot, or was asked for before the slot changed.",
        _WAIT,
    ),
    Reason.NOT_SHOWN: Explained(
        "the provider does not show it",
        "A complete look did not list the worker. Two that are apart must agree before it counts as gone.",
        _WAIT,
    ),
    Reason.RETURNED: Explained(
        "shown alive though it is recorded as stopped",
        "The document has it stopped, lost or removed, and a complete look shows its compute on.",
        "Nothing to do: it is stopped again, and its data is kept. If it was removed: remove it at the provider.",
    ),
    Reason.DATA_LEFT: Explained(
        "gone, but its data is not released",
        "Its compute is gone and the assignment is not over: what is left is neither adopted nor deleted.",
        "`controller resume RUN` makes new compute for it; `controller release RUN` or `surrender RUN` gives it up.",
    ),
    Reason.IDENTITY_CHANGED: Explained(
        "a recorded resource has another identity",
        "What the provider shows under the worker's name is not what was recorded: neither adopted nor deleted.",
        "Find out at the provider what it is. Once looks show the recorded worker gone, the slot goes on by itself.",
    ),
    Reason.FOREIGN_TAG: Explained(
        "the provider shows another worker in its place",
        "The slot shows an assignment or generation that is not the recorded one: neither adopted nor deleted.",
        "Find out at the provider which is right, and remove the other there.",
    ),
    Reason.ID_TWICE: Explained(
        "one id for two slots",
        "The provider shows the same worker or resource id in two slots: neither is touched.",
        "Find out at the provider what is there, and mend its listing.",
    ),
    Reason.UNRECORDED: Explained(
        "there, and no record knows it",
        "A complete look showed something of this fleet that the document does not have. It may cost money.",
        "`controller adopt N` takes it into the document, `controller delete-unrecorded N` removes it.",
    ),
}
"""What every member means; total, which a test proves."""
