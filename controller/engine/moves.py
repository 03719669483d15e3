"""What could move a run now, and where: the run machine itself is asked, with the guards that the document gives.

Not promised: that anybody will do it, nor what a reconcile makes of a free slot. Nothing here moves anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from controller.engine.standing import span
from controller.model.edit import Draft
from controller.model.given import Given, run_guards
from controller.model.perform import skip_unreachable
from controller.model.reason import Reason
from controller.model.records import Document, Run, RunState, StepState, Tombstone
from controller.model.refusal import REFUSALS
from controller.model.run import Aggregate, apply_run, is_active, is_report, run_aggregate
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


def ask(document: Document, run: Run, trigger: Trigger, now: int, *, over: bool = False) -> Folded[RunState]:
    """The machine's answer to *trigger* now, brought by whoever may bring it: the holder, an operator, a reconcile.

    *over*: the lease of the consumer that holds it has run out.
    """
    draft = Draft(document, now=now, command="explain")
    if run.lease is not None and trigger is Trigger.ALL_STEPS_DONE:
        run, trigger = _as_completed(draft, run)
    reports = is_report(trigger) and is_active(run.state)
    given = Given(
        token=run.attempts if reports else None,
        worker=run.worker if reports else None,
        reason=_ASKED.get(trigger),
        lease_over=over,
    )
    events = [(trigger, run_guards(draft, run, trigger, given))]
    if trigger is Trigger.SHUTDOWN_DRAIN and run.cancel_requested_at is not None:
        events.append((Trigger.CANCEL_OBSERVED, run_guards(draft, run, Trigger.CANCEL_OBSERVED, Given())))
    return apply_run(events, run.state)


def _as_completed(draft: Draft, run: Run) -> tuple[Run, Trigger]:
    """What `queue complete` makes of a run before it ends it (`leases.complete`), and by which event it does."""
    if len(run.steps) == 1 and run.steps[0].state in (StepState.PENDING, StepState.RUNNING):
        return replace(run, steps=()), Trigger.ALL_STEPS_DONE
    skip_unreachable(draft, run.id)
    run = draft.runs.get(run.id) or run
    failed = run_aggregate(run.steps) is Aggregate.FAILED and run.cancel_requested_at is None
    return run, Trigger.ATTEMPT_FAILED if failed else Trigger.ALL_STEPS_DONE


def moves_of(
    document: Document, found: Run | Tombstone, now: int, *, served: str = "worker", over: bool = False
) -> tuple[Move, ...]:
    """What each event would do to the run, in a fixed order. *served*: by a worker or a consumer; *over* as for `ask`.

    Nothing moves what has left the document.
    """
    moves = []
    for trigger in _ASKED:
        if trigger is Trigger.SHUTDOWN_DRAIN and isinstance(found, Run) and found.worker is not None:
            continue  # only an outside consumer gives its run back
        if isinstance(found, Tombstone):
            moves.append(
                Move(trigger, None, Why.ILLEGAL_TRANSITION, _refused(found, trigger, Why.ILLEGAL_TRANSITION, None, now))
            )
            continue
        folded = ask(document, found, trigger, now, over=over)
        if folded.refused is None:
            what = _moved(found, trigger, folded.state, served, over=over)
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


def _moved(run: Run, trigger: Trigger, to: RunState, served: str, *, over: bool) -> str:
    match trigger:
        case Trigger.CLAIM if to is RunState.RUNNING:
            return f"A {served} that takes it begins its life {run.attempts + 1}."
        case Trigger.CLAIM:
            return f"No {served} takes it any more: a cancel was requested, so it is cancelled instead."
        case Trigger.CANCEL_OBSERVED if run.state is RunState.QUEUED:
            return f"`controller cancel {run.id}` cancels it at once."
        case Trigger.CANCEL_OBSERVED if over:
            return f"`controller cancel {run.id}` takes it back and cancels it at once."
        case Trigger.CANCEL_OBSERVED:
            asked = run.cancel_requested_at is not None
            who = "The cancel that was requested" if asked else f"`controller cancel {run.id}`"
            ended = "has ended what runs" if run.lease is None else "was told with a heartbeat and gives it back"
            return f"{who} ends it once its holder {ended}."
        case Trigger.ALL_STEPS_DONE if run.lease is not None:
            return f"Completed by its holder, it is {to}."
        case Trigger.LEASE_EXPIRED:
            return f"`controller queue reap` {_leads(to)}: {run.crashes} of {run.max_crashes} allowed were lost so far."
        case Trigger.ALL_STEPS_DONE:
            return f"Its steps have ended: told by its holder, that makes it {to}."
        case Trigger.ATTEMPT_FAILED:
            return (
                f"A failure of this life {_leads(to)}: {run.failures} of {run.max_attempts} allowed have failed so far."
            )
        case Trigger.SHUTDOWN_DRAIN if to is RunState.QUEUED:
            return "Given back by its holder, it is queued again, and no budget is spent."
        case Trigger.SHUTDOWN_DRAIN:
            return f"Given back by its holder, it is {to}, since that was requested."
        case Trigger.OPERATOR_RETRY:
            kept = [step.name for step in run.steps if step.state is StepState.SUCCEEDED]
            begins = "begins with its first step and " if run.steps else ""
            steps = f"keeps {' and '.join(kept)} and " if kept else begins
            return f"`controller retry {run.id}` queues it again; it {steps}has its budgets anew."
    return f"{trigger} {_leads(to)}."


def _refused(found: Run | Tombstone, trigger: Trigger, why: Why, denied: RunState | None, now: int) -> str:
    match why:
        case Why.STEPS_NOT_TERMINAL:
            open_ = [s.name for s in found.steps if s.state in (StepState.PENDING, StepState.RUNNING)]
            return f"It cannot end yet: {REFUSALS[why].text} ({', '.join(open_[:4])}{', ...' if open_[4:] else ''})."
        case Why.NOT_AVAILABLE if isinstance(found, Run) and found.available_at is not None:
            return f"Nobody takes it: {REFUSALS[why].text}, but in {span(found.available_at - now)}."
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
