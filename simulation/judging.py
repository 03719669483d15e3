"""What must hold whenever all is quiet, and what must be left of a story at its end: nothing.

Not promised: that the first thing found is the worst. One wrong ends a story.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from controller.engine import disowned
from controller.engine.capacity import Headcount
from controller.engine.classify import Classified, classify, retained, unrecorded_in
from controller.engine.demand import BINDING
from controller.engine.discovery import is_paused
from controller.engine.fsck_history import gaps, judge
from controller.engine.identity import identity_matches
from controller.engine.lifecycle import waits_for
from controller.model.action import decode
from controller.model.edit import Draft
from controller.model.invariants import AT_REST, against_history, violations
from controller.model.inventory import Look, Seen
from controller.model.reason import Reason
from controller.model.records import Run, RunState, Slot, Worker, WorkerState
from controller.model.views import is_deferred
from simulation import acts
from simulation.machines import Machine, Power

if TYPE_CHECKING:
    from simulation.driver import Story


def at_rest(story: Story) -> str | None:
    """The first wrong at rest, in words; None: there is none."""
    return next(_wrongs(story, look_of(story)), None)


def look_of(story: Story) -> Look:
    """A look that shows the whole truth, now."""
    now = story.clock.now_ms()
    return Look(story.document.revision, now, now, story.world.inventory())


def _wrongs(story: Story, look: Look) -> Iterator[str]:
    document = story.document
    for broken in violations(document):
        if broken.id not in AT_REST or not story.jumped:
            yield f"invariant {broken.id} of {broken.subject}: {broken.what}"
    classes = {each.slot: each for each in classify(document, look, story.policy.slots)}
    left_alone = retained(document, look)
    for slot, entry in sorted(document.pending_actions.items()):
        if entry.last_reason is not Reason.IDENTITY_REFUSED and not _is_another(story, slot):
            yield f"slot {slot}: an action is pending at rest: {entry.last_reason}, {entry.last_error}"
    for slot, each in classes.items():
        yield from _recorded(story, slot, each, left_alone)
        if slot not in left_alone:
            yield from _explained(story, slot)
    for machine in story.world.machines:
        if machine.slot not in classes and machine.lineage == document.lineage:
            yield f"{machine.name} is in slot {machine.slot}, of which nothing is said"
    for run in document.runs.values():
        yield from _able(story, left_alone, run)


def _is_another(story: Story, slot: int) -> bool:
    """Whether what is under the name of the slot's worker is not what was recorded: then no look settles anything."""
    worker = story.document.workers.get(slot)
    machine = None if worker is None else story.world.find(slot, worker.assignment)
    return worker is not None and machine is not None and not identity_matches(worker, machine.seen())


def _history(story: Story) -> Iterator[str]:
    document, events = story.document, story.disk.events
    found = (*gaps(events, document.revision), *judge(document, events), *against_history(document, events))
    for each in found:
        yield f"history: {each.id} of {each.subject}: {each.what}"


def _recorded(story: Story, slot: int, classified: Classified, left_alone: frozenset[int]) -> Iterator[str]:
    """What is recorded in the slot is what exists there, or the difference is told."""
    document = story.document
    worker = document.workers.get(slot)
    known = document.slots.get(slot) or Slot()
    entry = document.pending_actions.get(slot)
    there = [m for m in story.world.machines if m.slot == slot and m.lineage == document.lineage]
    told = {(each.assignment, each.generation) for each in known.unrecorded}
    for machine in there:
        recorded = worker is not None and (worker.assignment, worker.generation) == (
            machine.assignment,
            machine.generation,
        )
        exists = machine.power is not Power.GONE
        if exists and not recorded and (machine.assignment, machine.generation) not in told and entry is None:
            yield f"{_of(machine)} exists, and nothing knows of it ({classified.reason})"
    for assignment, generation in told:
        if not any((m.assignment, m.generation) == (assignment, generation) for m in there):
            yield f"slot {slot}: {assignment} generation {generation} is told as unrecorded, and does not exist"
    if worker is not None and worker.state in (WorkerState.READY, WorkerState.ASSIGNED, WorkerState.RELEASED):
        its = [m for m in there if (m.assignment, m.generation) == (worker.assignment, worker.generation)]
        alive = any(m.power is Power.ON for m in its)
        if not alive and entry is None and slot not in left_alone:
            yield f"slot {slot}: {worker.assignment} is recorded as {worker.state}, and no such machine is on"
    if worker is not None and worker.state in (WorkerState.DEALLOCATED, WorkerState.LOST, WorkerState.COMPUTE_REMOVED):
        for machine in there:
            if machine.assignment == worker.assignment and machine.power in (Power.ON, Power.COMING):
                if entry is None and slot not in left_alone and not _is_given_up(story, worker):
                    yield f"{_of(machine)} is on, and recorded as {worker.state}"


def _is_given_up(story: Story, worker: Worker) -> bool:
    """Whether nothing is asked for it any more, since it can never bind: that is told, until somebody uncordons it."""
    wait = waits_for(story.document, worker, story.policy, story.clock.now_ms())
    return wait is not None and wait.reason is Reason.IDENTITY_REFUSED


def _of(machine: Machine) -> str:
    return f"{machine.name} ({machine.assignment} generation {machine.generation}, slot {machine.slot})"


def _explained(story: Story, slot: int) -> Iterator[str]:
    """The slot is useful, free, or says what it waits for."""
    document = story.document
    worker = document.workers.get(slot)
    if worker is None or slot in document.pending_actions:
        return
    wait = waits_for(document, worker, story.policy, story.clock.now_ms())
    name = f"slot {slot}: {worker.assignment} is {worker.state} at rest"
    match worker.state:
        case WorkerState.READY:
            if _heads(story).is_spare(worker):
                yield f"{name}, and more than the least number are there"
        case WorkerState.ASSIGNED:
            run = document.runs.get(worker.run or "")
            able = run is not None and run.state is RunState.QUEUED  # and so judged by itself
            if wait is None and not able:
                yield f"{name} to {worker.run}, which is {'over' if run is None else run.state}, and waits for nothing"
        case WorkerState.CREATING | WorkerState.RELEASED | WorkerState.COMPUTE_REMOVED if wait is None:
            yield name
        case WorkerState.DEALLOCATED | WorkerState.LOST:
            if wait is None or wait.until is not None or wait.reason is Reason.COOLDOWN:
                yield f"{name}, and waits for {wait}"


def _able(story: Story, left_alone: frozenset[int], run: Run) -> Iterator[str]:
    """The run has ended, or says why it does not go on."""
    document, policy, now = story.document, story.policy, story.clock.now_ms()
    if run.state is RunState.RUNNING:
        slot = run.worker.slot if run.worker else 0
        worker = document.workers.get(slot)
        waits = worker is not None and waits_for(document, worker, policy, now) is not None
        if slot not in document.pending_actions and slot not in left_alone and not waits:
            yield f"{run.id} is running at rest in slot {slot}"
    if run.state is not RunState.QUEUED or document.draining or is_paused(document.queues.get(run.queue)):
        return
    if is_deferred(run, now):
        if run.defer_reason is not Reason.SUBMITTED_FOR_LATER:
            yield f"{run.id} is due in {(run.available_at or 0) - now} ms at rest"
        return
    open_slots = [slot for slot in range(1, policy.slots + 1) if _is_open(story, slot) and slot not in left_alone]
    its_own = [n for n, w in document.workers.items() if w.run == run.id and w.state in BINDING]
    if its_own:
        if its_own[0] in open_slots:
            yield f"{run.id} waits though its own worker, in slot {its_own[0]}, is there"
        return
    of_key = [each for each in document.runs.values() if run.concurrency_key == each.concurrency_key != ""]
    if run.concurrency and sum(each.state is RunState.RUNNING for each in of_key) >= run.concurrency:
        return
    room = _heads(story).room
    for slot in open_slots:
        there = document.workers.get(slot)
        if there is None and room > 0:
            yield f"{run.id} waits though slot {slot} is free"
        elif there is not None and there.state is WorkerState.READY:
            yield f"{run.id} waits though the worker of slot {slot} is ready"


def _heads(story: Story) -> Headcount:
    document, policy = story.document, story.policy

    def is_closed(slot: int) -> bool:
        known = document.slots.get(slot) or Slot()
        return known.cordoned or bool(known.unrecorded) or slot > policy.slots or document.draining

    return Headcount(Draft(document, now=story.clock.now_ms(), command="judge"), policy, is_closed)


def _is_open(story: Story, slot: int) -> bool:
    """Whether the slot takes something new."""
    document = story.document
    known = document.slots.get(slot) or Slot()
    closed = known.cordoned or known.unrecorded or slot in document.pending_actions
    return not closed and not disowned.blocks(document, slot)


# The end


def at_end(story: Story) -> str | None:
    """Let people settle everything; then nothing may be left. The first wrong, in words."""
    _open_all(story)
    for _ in range(40):
        story.settle()
        wrong = at_rest(story)
        if wrong is not None:
            return wrong
        helped = [_settle_slot(story, slot) for slot in _slots(story)]
        if not any(helped):
            later = [run.available_at or 0 for run in story.document.runs.values() if run.state is RunState.QUEUED]
            if not later or min(later) < story.clock.now_ms():
                return next(chain(_history(story), _left(story)), None)
            story.clock.advance((min(later) - story.clock.now_ms()) / 1000)
    return "people cannot settle it: it goes on and on"


def _slots(story: Story) -> list[int]:
    document = story.document
    return sorted({*document.workers, *document.pending_actions, *document.slots})


def _open_all(story: Story) -> None:
    document = story.document
    if document.draining:
        seat = story.newcomer("operator")
        story.act(seat, "lifts the drain", lambda: acts.drain(story, seat))
    if is_paused(document.queues.get("fleet")):
        seat = story.newcomer("operator")
        story.act(seat, "lets the queue go on", lambda: acts.pause(story, seat))
    for slot, known in sorted(document.slots.items()):
        if known.cordoned:
            _uncordon(story, slot)


def _uncordon(story: Story, slot: int) -> None:
    seat = story.newcomer("operator")
    story.act(seat, f"uncordons {slot}", lambda: acts.uncordon(seat, slot))


def _settle_slot(story: Story, slot: int) -> bool:
    """Do one thing that helps a slot which helps itself no more. False: it needs none."""
    document, look = story.document, look_of(story)
    worker = document.workers.get(slot)
    if slot in document.pending_actions:
        return _abandon(story, slot)
    unknown = unrecorded_in(document, look).get(slot, ())
    if unknown and worker is None:
        seen = unknown[0]
        take = seen.state is Seen.READY and not seen.steps and story.whims.maybe(0.3)
        seat = story.newcomer("operator")
        what = f"settles {seen.id}, which is unrecorded in slot {slot}"
        done = story.act(seat, what, lambda: acts.settle_in(story, seat, slot, look, seen, take=take))
        return done or _remove_one(story, slot)
    if slot in retained(document, look) or unknown:
        return _remove_one(story, slot)
    if worker is None and (document.slots.get(slot) or Slot()).cordoned:
        _uncordon(story, slot)
        return True
    wait = None if worker is None else waits_for(document, worker, story.policy, story.clock.now_ms())
    return worker is not None and wait is not None and _help(story, worker, wait.reason)


def _abandon(story: Story, slot: int) -> bool:
    """What binds no more is given up; if that is refused, somebody removes what it is about."""
    seat = story.newcomer("operator")
    before = story.document
    done = story.act(seat, f"abandons what is pending in slot {slot}", lambda: acts.abandon_one(story, seat, slot))
    return (done and story.document is not before) or _remove_one(story, slot)


def _help(story: Story, worker: Worker, reason: Reason) -> bool:
    """Resume, release or surrender: one of them must do."""
    seat = story.newcomer("operator")
    if reason is Reason.IDENTITY_REFUSED:
        machine = story.world.find(worker.slot, worker.assignment)
        if machine is not None:
            story.whims.tell(f"  somebody removes {machine.name} at the provider")
            story.world.vanish(machine)
        _uncordon(story, worker.slot)
        return True
    ways = {
        "resumes": acts.resume_one,
        "releases": acts.release_one,
        "surrenders": acts.surrender_one,
    }
    first = story.whims.one_of(("resumes", "releases", "surrenders"))
    for what in (first, "releases", "surrenders", "resumes"):
        if story.act(seat, f"{what} {worker.run} in slot {worker.slot}", lambda: ways[what](story, seat, worker)):  # noqa: B023 - called at once
            return True
    return False


def _remove_one(story: Story, slot: int) -> bool:
    """Somebody removes at the provider what should not be there."""
    worker = story.document.workers.get(slot)
    those = [m for m in story.world.machines if m.slot == slot and m.lineage == story.document.lineage]
    strange = [m for m in those if worker is None or m.assignment != worker.assignment]
    for machine in strange or those:
        story.whims.tell(f"  somebody removes {machine.name} at the provider")
        story.world.vanish(machine)
        return True
    return False


def _left(story: Story) -> Iterator[str]:
    document, policy = story.document, story.policy
    for run in document.runs.values():
        if run.state in (RunState.QUEUED, RunState.RUNNING):
            yield f"{run.id} is {run.state} at the end"
    for slot, entry in document.pending_actions.items():
        yield f"slot {slot}: an action is pending at the end: {entry.last_error}"
    spare = policy.least
    for slot, worker in sorted(document.workers.items()):
        if worker.state is WorkerState.READY and spare > 0:
            spare -= 1
        else:
            yield f"slot {slot}: {worker.assignment} is {worker.state} at the end"
    ours = [m for m in story.world.machines if m.lineage == document.lineage]
    # What was never ours and is shown gone is nobody's business here: it is no presence.
    never = {decode(each.action).assignment for each in document.disowned.values()}
    there = [m for m in ours if m.power is not Power.GONE or not (m.stray or m.assignment in never)]
    if len(there) > policy.least:
        yield f"{_of(there[0])} exists at the end, {there[0].power}"
