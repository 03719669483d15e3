"""How a machine's refusal reads: what was refused, who holds what, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from controller.model.errors import TransitionRefused
from controller.model.reason import EXPLAINED, Explained, Reason
from controller.model.records import Run, RunState, Tombstone, Worker
from controller.model.transition import Refused, Trigger, Why

REFUSALS: Final[Mapping[Why, Explained]] = {
    Why.ILLEGAL_TRANSITION: Explained(
        "that cannot happen in this state",
        "Its state has no way to where the event leads: it has ended, or has not begun.",
        "See its state with `controller explain RUN`; nothing changed.",
    ),
    Why.NOT_AVAILABLE: Explained(
        "not available yet",
        "It waits for a time, for a step that it needs, or for a worker that still holds something.",
        "Wait: `controller explain RUN` says for what.",
    ),
    Why.MISSING_REASON_CODE: Explained(
        "a reason code is missing",
        "Something ends or is cancelled, and whoever reported it did not say why.",
        "Report it again with a reason code; `controller explain reason` lists them.",
    ),
    Why.MISSING_DEFER_REASON: Explained(
        "a deferral needs a defer reason",
        "A run may wait only for a reason that means waiting, and none was given.",
        "Report it again with one of the reasons for which a run waits; `controller explain reason` lists them.",
    ),
    Why.STEPS_NOT_TERMINAL: Explained(
        "a step has not ended",
        "A run ends after its last step; one of them is pending or running.",
        "Wait for the step, or cancel the run: `controller cancel RUN`.",
    ),
    Why.STALE_LEASE: Explained(
        "stale: the caller does not hold it",
        "It was given to another life since, so the result of an earlier one must not count.",
        "Nothing is lost. Drop this result; `controller show RUN` names the holder and its token.",
    ),
    Why.LEASE_STILL_VALID: Explained(
        "its holder's lease is still valid",
        "A run is taken from its holder only once that is proven gone, stopped or past its deadline.",
        "Wait for that proof; `controller reconcile --apply` looks.",
    ),
    Why.CANCEL_REQUESTED: Explained(
        "a cancel was requested",
        "Nothing of a run starts any more once somebody wants it cancelled.",
        "Start nothing; `controller reconcile --apply` ends it.",
    ),
    Why.UNKNOWN_STATE: Explained(
        "no such state",
        "What is stored is not the name of any state: another program, or another version, wrote it.",
        "Run `controller fsck`.",
    ),
}
"""What every code means to somebody who looks it up; total, which a test proves."""
_NEXT: Final[Mapping[Why, str]] = {
    Why.ILLEGAL_TRANSITION: "nothing changed; see `{see}`",
    Why.NOT_AVAILABLE: "nothing changed; try again once it is, see `{see}`",
    Why.MISSING_REASON_CODE: "say why, with a reason code",
    Why.MISSING_DEFER_REASON: "say why, with a defer reason",
    Why.STEPS_NOT_TERMINAL: "end or skip every step first, see `{see}`",
    Why.STALE_LEASE: "nothing is lost. Drop this result, or see `{see}`",
    Why.LEASE_STILL_VALID: "wait until it runs out or its holder is proven gone",
    Why.CANCEL_REQUESTED: "start nothing; report the run as cancelled",
    Why.UNKNOWN_STATE: "see `controller fsck`",
}


def of_run(
    run: Run, refused: Refused, token: int | None, now: int, *, step: str | None = None, asked: str | None = None
) -> TransitionRefused:
    """The refusal of a run's transition, or of its *step*'s. *token* is what was presented, if anything was.

    *asked* is what was asked for where that is no event. A holder that repeats the report which ended its life is told
    so: that it was heard is no reason to do anything, and "stale" is.
    """
    subject = f"run {run.id}" if step is None else f"step {step} of run {run.id}"
    where = _holder(run)
    if refused.why is Why.STALE_LEASE and token == run.attempts and run.reported is not None:
        where = _reported(run.reported, refused.event, token)
        refused = structs.replace(refused, denied=None, why=Why.ILLEGAL_TRANSITION)
    elif refused.why is Why.STALE_LEASE:
        presented = "no token was presented" if token is None else f"token {token} is stale"
        if token == run.attempts:
            held = run.worker is not None or run.lease is not None
            presented = f"token {token} was " + ("presented by another than its holder" if held else "taken back")
        where = f"{presented}; {where}"
    elif refused.why is Why.NOT_AVAILABLE and step is None and run.available_at is not None:
        where = f"due in {run.available_at - now} ms ({run.defer_reason}); {where}"
    return _refusal(subject, refused, where, f"controller show {run.id}", asked)


def _reported(reported: Reason, event: Trigger | None, token: int | None) -> str:
    """What a holder hears who reports once more: that it was heard, or that something else had ended its life."""
    text = EXPLAINED[reported].text
    match reported:
        case Reason.COMPLETED | Reason.CANCELLED:
            same = Trigger.ALL_STEPS_DONE
        case Reason.REQUEUED_AFTER_SHUTDOWN:
            same = Trigger.SHUTDOWN_DRAIN
        case _:
            same = Trigger.ATTEMPT_FAILED
    if event is same:
        return f"already done by you, token {token}: {text}"
    return f"you reported something else with token {token} before: {text}; this was not taken"


def of_worker(slot: int, worker: Worker | None, refused: Refused) -> TransitionRefused:
    """The refusal of a worker's transition."""
    where = "no worker there"
    if worker is not None:
        held = f"holds run {worker.run}" if worker.run else "holds no run"
        where = f"assignment {worker.assignment}, generation {worker.generation}, {held}"
    return _refusal(f"the worker of slot {slot}", refused, where, f"controller show slot:{slot}")


def of_tombstone(stone: Tombstone, asked: str, token: int | None) -> TransitionRefused:
    """The refusal of whatever is asked of a run that left: "already done by you" is not "stale"."""
    holder = f"slot {stone.worker.slot}" if stone.worker else stone.owner or "its holder"
    trigger = None
    if stone.state is not RunState.SUCCEEDED:
        why = Why.ILLEGAL_TRANSITION if token is None else Why.STALE_LEASE
        refused = Refused(stone.state, trigger, None, why)
        gone = EXPLAINED[stone.reason or Reason.DISCARDED].text
        where = f"it was {gone} at {_clock(stone.finished_at)}; its last token was {stone.token}"
    elif token is not None and token != stone.token:
        refused = Refused(stone.state, trigger, None, Why.STALE_LEASE)
        where = f"token {token} is stale; {holder} completed it with token {stone.token} at {_clock(stone.finished_at)}"
    elif token is None:
        refused = Refused(stone.state, trigger, None, Why.ILLEGAL_TRANSITION)
        where = f"{holder} completed it with token {stone.token} at {_clock(stone.finished_at)}"
    else:
        refused = Refused(stone.state, trigger, None, Why.ILLEGAL_TRANSITION)
        where = f"already done by you, token {token}, at {_clock(stone.finished_at)}"
    return _refusal(f"run {stone.id}", refused, where, f"controller show {stone.id}", asked)


def _refusal(subject: str, refused: Refused, where: str, see: str, asked: str | None = None) -> TransitionRefused:
    denied = f" (not moved to {refused.denied})" if refused.denied else ""
    state = refused.state or "not there"
    what = f"{subject} is {state}: {asked or refused.event} refused{denied}: {REFUSALS[refused.why].text}"
    return TransitionRefused(what, why=refused.why, where=where, next=_NEXT[refused.why].format(see=see))


def _holder(run: Run) -> str:
    if run.worker is not None:
        holder = f"held by slot {run.worker.slot}"
    elif run.lease is not None:
        holder = f"held by {run.lease.owner}"
    else:
        return f"the current token is {run.attempts}, held by nobody"
    since = "" if run.started_at is None else f" since {_clock(run.started_at)}"
    return f"the current token is {run.attempts}, {holder}{since}"


def _clock(at: int) -> str:
    """Time of day, UTC. The day is in `show`; a time beyond any calendar must not break a refusal."""
    seconds = at // 1000 % 86_400
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"
