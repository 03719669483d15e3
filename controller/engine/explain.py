"""Why a run or a slot is as it is, in words, with the events behind it. Read-only and pure.

Not promised: that the world still agrees. It explains the document; `status --live` looks at the provider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from controller.engine import standing
from controller.engine.classify import Classified
from controller.engine.demand import BINDING
from controller.engine.moves import Move, ask, moves_of
from controller.engine.planner import next_step
from controller.engine.queue import find
from controller.engine.slots import no_room, of_pending, of_record, of_slot
from controller.engine.standing import Surroundings
from controller.engine.story import Story, tell_run, tell_slot
from controller.model.codes import catalogue
from controller.model.errors import NotFound
from controller.model.reason import EXPLAINED, Reason
from controller.model.records import (
    MAX_SLOTS,
    Document,
    Event,
    Run,
    RunState,
    Step,
    StepState,
    Tombstone,
)
from controller.model.step import is_blocking
from controller.model.transition import Trigger, Why

__all__ = ["Explanation", "StepWord", "Surroundings", "explain_run", "explain_slot"]

MANY = 6
"""How many steps that have not succeeded are told."""


class StepWord(Struct, frozen=True):
    """Where one step stands, and `because` of what, in a sentence."""

    name: str
    state: StepState
    because: str


class Explanation(Struct, frozen=True):
    """`state` in one word, `because` in sentences, what to do `next`, and the events that led there, oldest first.

    `story` is what those events amount to, `moves` what could happen now, `steps` where those of a run stand (both
    empty for a slot). Each of `refusals` is a note with what its code `means` and what to do `next`.
    """

    subject: str
    state: str
    because: tuple[str, ...]
    next: tuple[str, ...]
    events: tuple[Event, ...]
    refusals: tuple[Mapping[str, object], ...]
    story: Story
    moves: tuple[Move, ...] = ()
    steps: tuple[StepWord, ...] = ()


def explain_run(document: Document, run_id: str, around: Surroundings) -> Explanation:
    """Explain a run, or what is left of one. Raises NotFound."""
    events = _known(document, around)
    found = _find(document, run_id, events)
    if isinstance(found, Tombstone):
        because, after = standing.left(found, around.now)
    else:
        because, after = _of_run(document, found, around, events)
    steps = tuple(StepWord(step.name, step.state, _of_step(step, found)) for step in found.steps)
    if len(steps) > 1:
        because += _steps_told(run_id, steps)
    return _explanation(
        f"run:{run_id}",
        found.state,
        because,
        after,
        around,
        events,
        story=tell_run(found, events),
        moves=moves_of(document, found, around.now, served=_servant(found, around), over=_is_over(found, around)),
        steps=steps,
    )


def explain_slot(
    document: Document, slot: int, around: Surroundings, live: Classified | None = None, *, silent: bool = False
) -> Explanation:
    """Explain a slot; *live* is what a look just now makes of it, if one was taken, and *silent* that the provider was
    asked for one in vain. Raises NotFound outside 1..MAX_SLOTS.
    """
    if not 1 <= slot <= MAX_SLOTS:
        raise NotFound(f"no slot {slot}", where=f"slots are 1..{MAX_SLOTS}", next="controller status")
    worker = document.workers.get(slot)
    state = "free" if worker is None else worker.state.value
    because, after = of_slot(document, slot, around, live, silent=silent)
    events = _known(document, around)
    return _explanation(f"slot:{slot}", state, because, after, around, events, story=tell_slot(worker, slot, events))


def _find(document: Document, run_id: str, events: Sequence[Event]) -> Run | Tombstone:
    last = events[-1] if events else None
    if last is not None and last.event == "pruned" and run_id not in document.runs and run_id not in document.finished:
        raise NotFound(
            f"run {run_id} had {last.from_} and was forgotten, since ended runs are not kept for ever",
            where=f"its last token was {last.token}",
            next=f"controller history {run_id}",
        )
    return find(document, run_id)


def _servant(found: Run | Tombstone, around: Surroundings) -> str:
    return "worker" if found.queue in around.queues else "consumer"


def _is_over(found: Run | Tombstone, around: Surroundings) -> bool:
    return isinstance(found, Run) and found.lease is not None and around.is_over(found.lease)


def _known(document: Document, around: Surroundings) -> tuple[Event, ...]:
    """The events that *document* may know of: what was committed after it was read is no contradiction to it."""
    return tuple(event for event in around.events if event.revision <= document.revision)


def _explanation(
    subject: str,
    state: str,
    because: Sequence[str],
    after: Sequence[str],
    around: Surroundings,
    events: tuple[Event, ...],
    *,
    story: Story,
    moves: tuple[Move, ...] = (),
    steps: tuple[StepWord, ...] = (),
) -> Explanation:
    refused = tuple(_in_words(refusal) for refusal in around.refusals if refusal.get("subject") == subject)
    wrong = [f"History and document do not agree: {sentence}." for sentence in story.disagreements]
    todo = ["controller fsck", *after] if wrong else after
    return Explanation(
        subject, state, (*wrong, *because), tuple(dict.fromkeys(todo)), events, refused, story, moves, steps
    )


def _in_words(refusal: Mapping[str, object]) -> Mapping[str, object]:
    code = catalogue().get(str(refusal.get("code")))
    if code is None:
        return refusal
    return {
        **refusal,
        "means": code.text,
        "next": code.next.replace("RUN", str(refusal["subject"]).removeprefix("run:")),
    }


def _of_step(step: Step, found: Run | Tombstone) -> str:
    steps = found.steps
    following = next_step(found) if isinstance(found, Run) else None
    reason = "" if step.reason is None else f": {EXPLAINED[step.reason].text}"
    states = {each.name: each.state for each in steps}
    missing = [(name, states.get(name)) for name in step.needs if states.get(name) is not StepState.SUCCEEDED]
    bad = [f"{name}, which it needs, {_ENDED[state]}" for name, state in missing if state and is_blocking(state)]
    match step.state:
        case StepState.SKIPPED if bad:
            return f"Step {step.name} is skipped, because step {bad[0]}."
        case StepState.PENDING if bad:
            return f"Step {step.name} cannot start in this life, because step {bad[0]}."
        case StepState.PENDING if missing:
            return f"Step {step.name} waits for {' and '.join(name for name, _ in missing)}."
        case StepState.PENDING if following is not None and step.name == following.name:
            return f"Step {step.name} is next."
        case StepState.PENDING:
            return f"Step {step.name} waits for its turn."
        case StepState.RUNNING:
            return f"Step {step.name} runs."
    return f"Step {step.name} {_ENDED[step.state]}{reason}."


_ENDED: Mapping[StepState, str] = {
    StepState.SUCCEEDED: "succeeded",
    StepState.FAILED: "failed",
    StepState.SKIPPED: "was skipped",
    StepState.CANCELLED: "was cancelled",
}


def _steps_told(run_id: str, steps: Sequence[StepWord]) -> list[str]:
    """Sentences on steps: what succeeded is counted, and of the rest the first few are told."""
    done = sum(step.state is StepState.SUCCEEDED for step in steps)
    rest = [step.because for step in steps if step.state is not StepState.SUCCEEDED]
    more = [f"({len(rest) - MANY} more steps; all: controller show {run_id})"] if len(rest) > MANY else []
    return [f"{done} of {len(steps)} steps have succeeded.", *rest[:MANY], *more]


def _of_run(document: Document, run: Run, around: Surroundings, events: Sequence[Event]) -> tuple[list[str], list[str]]:
    because: list[str] = []
    after: list[str] = []
    match run.state:
        case RunState.QUEUED:
            _of_queued(document, run, around, because, after)
        case RunState.RUNNING:
            _of_running(document, run, around, events, because, after)
        case RunState.FAILED | RunState.CANCELLED | RunState.SUCCEEDED:
            because, after = standing.ended(run, consumers=run.queue not in around.queues)
    if run.last_error is not None:
        because.append(f"Its last error: {run.last_error}.")
    if run.failures or run.crashes:
        because.append(
            f"{run.failures} of {run.max_attempts} allowed lives failed, {run.crashes} of {run.max_crashes} were lost."
        )
    return because, after


def _of_queued(document: Document, run: Run, around: Surroundings, because: list[str], after: list[str]) -> None:
    claim = ask(document, run, Trigger.CLAIM, around.now)
    consumers = run.queue not in around.queues
    if claim.refused is not None and claim.refused.why is Why.NOT_AVAILABLE:
        reason = run.defer_reason or Reason.SUBMITTED_FOR_LATER
        because += [f"{standing.due(run, around.now)}: {EXPLAINED[reason].text}.", EXPLAINED[reason].why]
        after.append(EXPLAINED[reason].next.replace("RUN", run.id))
        after += [f"controller queue promote {run.id}"] if consumers else []
        return
    if claim.state is RunState.CANCELLED:
        who = "claim" if consumers else "reconcile"
        because.append(f"A cancel was requested: the next {who} that would take it cancels it instead.")
        after.append(f"controller cancel {run.id}" if consumers else "controller reconcile --apply")
        return
    told, todo = (standing.in_line if consumers else standing.held_back)(document, run, around)
    because += told
    after += todo
    if told:
        return
    told, todo = no_room(document, around)
    made_for = [slot for slot, worker in document.workers.items() if worker.reserved == run.id]
    kept = [slot for slot, worker in document.workers.items() if worker.run == run.id and worker.state in BINDING]
    if kept:
        because.append(f"It waits for the worker in slot {kept[0]}, which has its data: nobody else takes it.")
        after.append(f"controller explain slot:{kept[0]}")
    if document.draining:
        because.append("The fleet is draining: it takes nothing new.")
        after.append("controller drain --off")
    elif made_for:
        because.append(f"A worker is being made for it in slot {made_for[0]}.")
        after.append(f"controller explain slot:{made_for[0]}")
    elif kept:
        after.append("controller reconcile --apply")
    elif told:
        because += told
        after += todo
    else:
        because.append("It is due and a slot is free: the next reconcile takes it.")
        after.append("controller reconcile --apply")


def _of_running(
    document: Document,
    run: Run,
    around: Surroundings,
    events: Sequence[Event],
    because: list[str],
    after: list[str],
) -> None:
    if run.lease is not None:
        told, todo = standing.held(run, run.lease, around, events)
        because += told
        after += todo
    if run.worker is None:
        return
    if run.cancel_requested_at is not None:
        because.append("A cancel was requested; it is over when its worker has ended its step's process group.")
        after.append("controller reconcile --apply")
    slot = run.worker.slot
    because.append(f"The worker in slot {slot} ({run.worker.assignment}) holds it under token {run.attempts}.")
    running = [step.name for step in run.steps if step.state is StepState.RUNNING]
    if running:
        because.append(f"Step {running[0]} runs; its end is folded in by the next reconcile after it.")
    entry = document.pending_actions.get(slot)
    if entry is not None:
        told, todo = of_pending(document, slot, entry, around)
        because += told
        after += todo
    elif not running:
        following = next_step(run)
        if following is not None and len(run.steps) == 1:
            because.append(f"Step {following.name} is next.")
        because += of_record(document, slot, around.now)[0]
    after.append("controller reconcile --apply")
