"""What must hold of each commit, whoever makes it: it is judged by the document before it.

Not promised: that what a commit does is a good idea; only that it is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from controller.engine import disowned
from controller.model.action import decode
from controller.model.health import BreakerState, breaker_state
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import ActionType, Document, Event, Slot, Worker, WorkerState
from controller.model.transition import Trigger
from simulation.machines import Power
from simulation.seats import PROVIDER

if TYPE_CHECKING:
    from simulation.driver import Story

_THERE = (WorkerState.CREATING, WorkerState.READY, WorkerState.ASSIGNED, WorkerState.RELEASED)


def wrong_with(story: Story, policy: Policy, before: Document, after: Document) -> str | None:
    """What the commit that made *after* of *before* under *policy* must not have done; None: nothing."""
    return next(_wrongs(story, policy, before, after), None)


def _wrongs(story: Story, policy: Policy, before: Document, after: Document) -> Iterator[str]:
    for event in after.events:
        if event.subject.startswith("slot:"):
            yield from _of_slot(story, policy, before, after, event, int(event.subject.removeprefix("slot:")))
    yield from _breaker(story, before, after)


def _of_slot(story: Story, policy: Policy, before: Document, after: Document, event: Event, slot: int) -> Iterator[str]:
    worker = after.workers.get(slot)
    known = before.slots.get(slot) or Slot()
    name = f"{event.command}, slot {slot}: {event.to or event.event}"
    if event.event == "action.parked" and event.to in (ActionType.CREATE, ActionType.EXECUTE):
        yield from _something_new(story, policy, before, after, event, slot)
    takes = event.event == Trigger.CLAIM or (event.event == "action.parked" and event.to == ActionType.CREATE)
    if takes and known.unrecorded and (after.slots.get(slot) or Slot()).unrecorded:
        yield f"{name} beside something unrecorded"
    if event.event == Trigger.CLAIM and worker is not None:
        if 0 < policy.max_runs < worker.runs:
            yield f"{name}: run {worker.runs} of at most {policy.max_runs}"
        if known.cordoned or before.draining or slot > policy.slots:
            yield f"{name}: a slot that takes nothing new takes {worker.run}"
    yield from _believed_absent(story, before, event, slot, name)
    if event.event == Trigger.DEALLOCATE and event.from_ is not None and before.workers.get(slot) is not None:
        yield from _kept(before, after, slot, name)


def _believed_absent(story: Story, before: Document, event: Event, slot: int, name: str) -> Iterator[str]:
    """Nothing that is there is taken to be gone, or never to have been; nor is it forgotten once it was told of."""
    there = {
        (machine.assignment, machine.generation): machine
        for machine in story.world.machines
        if machine.slot == slot and machine.lineage == before.lineage and machine.power is not Power.GONE
    }
    worker, entry = before.workers.get(slot), before.pending_actions.get(slot)
    if event.event == Trigger.SEEN_GONE and worker is not None:
        if (worker.assignment, worker.generation) in there:
            yield f"{name}, and {worker.assignment} generation {worker.generation} is there"
    if event.event == "action.settled" and event.reason is Reason.PROVEN_ABSENT and entry is not None:
        action = decode(entry.action)
        made = action.type is ActionType.CREATE and (action.assignment, action.generation) in there
        if made or (action.type is ActionType.EXECUTE and story.world.effects[action.idempotency_key]):
            yield f"{name} is proven to have had no effect, and it had one"
    if event.event == "unrecorded_settled":
        for unknown in (before.slots.get(slot) or Slot()).unrecorded:
            recorded = worker is not None and worker.assignment == unknown.assignment
            if (unknown.assignment, unknown.generation) in there and not recorded:
                yield f"{name}, and {unknown.assignment} is there"


def _something_new(
    story: Story, policy: Policy, before: Document, after: Document, event: Event, slot: int
) -> Iterator[str]:
    name = f"{event.command}, slot {slot}: {event.to}"
    entry = after.pending_actions.get(slot)
    if entry is None:
        return
    action = decode(entry.action)
    known = before.slots.get(slot) or Slot()
    if disowned.blocks(before, slot) and disowned.blocks(after, slot):
        yield f"{name} is parked though an action of the slot is disowned and not proven"
    now = story.clock.now_ms()
    if breaker_state(before.providers.get(PROVIDER), policy.breaker, now) is BreakerState.OPEN:
        yield f"{name} is parked while the breaker is open"
    if event.to != ActionType.CREATE:
        return
    if known.cordoned or before.draining or slot > policy.slots:
        yield f"{name} is parked in a slot that takes nothing new"
    there = sum(worker.state in _THERE for worker in after.workers.values())
    if action.generation == 1 and there > max(policy.ceiling, _there(before)):
        yield f"{name}: {there} workers, and there may be {policy.ceiling}"


def _there(document: Document) -> int:
    return sum(worker.state in _THERE for worker in document.workers.values())


def _kept(before: Document, after: Document, slot: int, name: str) -> Iterator[str]:
    """Stopping gives nothing up."""
    old, new = before.workers[slot], after.workers.get(slot)
    if _is_kept(old) and (new is None or new.run != old.run):
        yield f"{name}: it is no longer assigned to {old.run}"


def _is_kept(worker: Worker) -> bool:
    return worker.state is WorkerState.DEALLOCATED and worker.run is not None


def _breaker(story: Story, before: Document, after: Document) -> Iterator[str]:
    """It opens and closes at most once a dwell, unless the clock was set."""
    old, new = before.providers.get(PROVIDER), after.providers.get(PROVIDER)
    was, is_ = old is not None and old.opened_at is not None, new is not None and new.opened_at is not None
    if was == is_:
        return
    assert new is not None, "nothing forgets a provider"  # noqa: S101 - one that was open is known
    # One that closed by itself is recorded as closed later, with the time at which it was.
    at = (new.opened_at if is_ else new.closed_at) or 0
    if at - story.switched_at < story.policy.breaker.dwell_ms and not story.jumped:
        yield f"the breaker is {'opened' if is_ else 'closed'} again after {at - story.switched_at} ms"
    story.switched_at = at
