"""What could move a run now, and where: the run machine itself is asked, with the guards that the document gives.

Not promised: that anybody will do it, nor what a reconcile makes of a free slot. Nothing here moves anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from controller.model.edit import Draft
from controller.model.given import Given, run_guards
from controller.model.reason import Reason
from controller.model.records import Document, Run, RunState, StepState, Tombstone
from controller.model.refusal import REFUSALS
from controller.model.run import RunGuards, apply_run, is_active, is_report
from controller.model.transition import Folded, Trigger, Why

_ASKED: Final[Mapping[Trigger, Reason | None]] = {
    Trigger.CLAIM: None,
    Trigger.CANCEL_OBSERVED: None,
    Trigger.ALL_STEPS_DONE: None,
    Trigger.ATTEMPT_FAILED: Reason.STEP_FAILED,
    Trigger.LEASE_EXPIRED: Reason.WORKER_LOST,
    Trigger.SHUTDOWN_DRAIN: None,
    Trigger.OPERATOR_RETRY: Reason.OPERATOR_RETRY,
}
"""Each with the reason that it would come with. Deferral and promotion keep a run where it is, so they move nothing."""


class Move(Struct, frozen=True):
    """What *event* would do: lead `to` a state, or be `refused`; `what` says it in a sentence."""

    event: Trigger
    to: RunState | None
    refused: Why | None
    what: str


def ask(document: Document, run: Run, trigger: Trigger, now: int) -> Folded[RunState]:
    """The machine's answer to *trigger* now, brought by whoever may bring it: the holder, an operator, a reconcile."""
    reports = is_report(trigger) and is_active(run.state)
    given = Given(
        token=run.attempts if reports else None, worker=run.worker if reports else None, reason=_ASKED.get(trigger)
    )
    guards = run_guards(Draft(document, now=now, command="explain"), run, trigger, given)
    return apply_run([(trigger, guards)], run.state)


def moves_of(document: Document, found: Run | Tombstone, now: int) -> tuple[Move, ...]:
    """What each event would do to the run, in a fixed order."""
    moves = []
    for trigger in _ASKED:
        if trigger is Trigger.SHUTDOWN_DRAIN and isinstance(found, Run) and found.worker is not None:
            continue  # only an outside consumer gives its run back
        if isinstance(found, Tombstone):
            folded = apply_run([(trigger, RunGuards(reason=_ASKED[trigger]))], found.state)
        else:
            folded = ask(document, found, trigger, now)
        if folded.refused is None:
            what = _moved(found, trigger, folded.state) if isinstance(found, Run) else ""
            moves.append(Move(trigger, folded.state, None, what))
        else:
            denied = folded.refused.denied
            what = _refused(found, trigger, folded.refused.why, denied if isinstance(denied, RunState) else None, now)
            moves.append(Move(trigger, None, folded.refused.why, what))
    return tuple(moves)


def in_words(moves: Sequence[Move]) -> Iterator[str]:
    """One sentence for each that is possible, or impossible only now; one for all that this state never allows."""
    possible = [move.what for move in moves if move.refused not in _NEVER]
    yield from possible or ["Nothing moves it any more."]
    for why in _NEVER:
        refused = [move.event.value for move in moves if move.refused is why]
        if refused:
            yield f"Refused ({why}; {REFUSALS[why].text}): {', '.join(refused)}."


_NEVER: Final = (Why.STALE_LEASE, Why.ILLEGAL_TRANSITION)


def _moved(run: Run, trigger: Trigger, to: RunState) -> str:
    match trigger:
        case Trigger.CLAIM if to is RunState.RUNNING:
            return f"A worker that takes it begins its life {run.attempts + 1}."
        case Trigger.CLAIM:
            return "No worker takes it any more: a cancel was requested, so it is cancelled instead."
        case Trigger.CANCEL_OBSERVED if run.state is RunState.QUEUED:
            return f"`controller cancel {run.id}` cancels it at once."
        case Trigger.CANCEL_OBSERVED:
            asked = run.cancel_requested_at is not None
            who = "The cancel that was requested" if asked else f"`controller cancel {run.id}`"
            return f"{who} ends it once its holder has ended what runs."
        case Trigger.ALL_STEPS_DONE:
            return f"Its steps have ended: told by its holder, that makes it {to}."
        case Trigger.ATTEMPT_FAILED:
            return (
                f"A failure of this life {_leads(to)}: {run.failures} of {run.max_attempts} allowed have failed so far."
            )
        case Trigger.SHUTDOWN_DRAIN:
            return "Given back by its holder, it is queued again, and no budget is spent."
        case Trigger.OPERATOR_RETRY:
            kept = [step.name for step in run.steps if step.state is StepState.SUCCEEDED]
            steps = f"keeps {' and '.join(kept)} and" if kept else "begins with its first step and"
            return f"`controller retry {run.id}` queues it again; it {steps} has its budgets anew."
    return f"{trigger} {_leads(to)}."


def _refused(found: Run | Tombstone, trigger: Trigger, why: Why, denied: RunState | None, now: int) -> str:
    match why:
        case Why.STEPS_NOT_TERMINAL:
            open_ = [s.name for s in found.steps if s.state in (StepState.PENDING, StepState.RUNNING)]
            return f"It cannot end yet: {REFUSALS[why].text} ({', '.join(open_[:4])}{', ...' if open_[4:] else ''})."
        case Why.NOT_AVAILABLE if isinstance(found, Run) and found.available_at is not None:
            return f"No worker takes it: {REFUSALS[why].text}, but in {(found.available_at - now + 999) // 1000} s."
        case Why.LEASE_STILL_VALID if denied is not None:
            lost = f"{found.crashes} of {found.max_crashes} allowed were lost so far" if isinstance(found, Run) else ""
            return f"Nobody else gets it: {REFUSALS[why].text}. Its holder's loss {_leads(denied)}: {lost}."
    return f"{trigger} is refused: {REFUSALS[why].text}."


def _leads(to: RunState) -> str:
    match to:
        case RunState.QUEUED:
            return "sends it back to its queue"
        case RunState.FAILED:
            return "is its end"
    return f"makes it {to}"
