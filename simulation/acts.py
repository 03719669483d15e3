"""What people do in a story, and what befalls machines. Each is tried on whatever it fits, and may be refused.

Whoever releases data says so to the story first: that is what the world asks before anything is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from controller.engine import proof as proofs
from controller.engine import queue
from controller.engine.abandon import Left, abandon
from controller.engine.adoption import adopt, condemn
from controller.engine.classify import unrecorded_in
from controller.engine.cordon import cordon
from controller.engine.identity import identity_of
from controller.engine.proof import resource_digest
from controller.engine.recovery import resume, surrender
from controller.engine.release import release
from controller.engine.submission import Submission
from controller.engine.upkeep import set_paused
from controller.model.action import action_of
from controller.model.inventory import Look, Seen, SeenWorker
from controller.model.policy import Release
from controller.model.records import RunState, Step, Worker, WorkerState
from simulation.machines import Machine, Power
from simulation.seats import PROVIDER, Seat

if TYPE_CHECKING:
    from simulation.driver import Story

BY = "ops@example.org"
WHY = "as it happens"


def submit(story: Story, seat: Seat) -> None:
    whims = story.whims
    story.submitted += 1
    names = ["first", "second", "third"][: whims.number(1, 3)]
    steps = tuple(
        Step(
            name, ("true",), needs=tuple(names[n - 1 : n]) if whims.maybe(0.7) else (), max_attempts=whims.number(1, 2)
        )
        for n, name in enumerate(names)
    )
    key = whims.one_of(("", "", "", "k"))
    wanted = Submission(
        steps,
        id=f"r-{story.submitted}",
        max_attempts=whims.one_of((None, 1, 2)),
        delay_ms=whims.one_of((None, None, None, 5_000)),
        concurrency_key=key,
    )
    queue.submit(seat.context, [wanted])


def cancel(story: Story, seat: Seat) -> None:
    run = story.some_run(RunState.QUEUED, RunState.RUNNING, RunState.RUNNING)
    if run is not None and queue.cancel(seat.context, run).slot is not None and story.whims.maybe(0.5):
        story.reconcile(seat)


def retry(story: Story, seat: Seat) -> None:
    run = story.some_run(RunState.FAILED, RunState.CANCELLED)
    if run is not None:
        queue.retry(seat.context, run)


def withdraw(story: Story, seat: Seat) -> None:
    run = story.some_run(RunState.QUEUED)
    if run is not None:
        queue.withdraw(seat.context, run)


def drain(story: Story, seat: Seat) -> None:
    queue.set_draining(seat.context, not story.document.draining)


def pause(story: Story, seat: Seat) -> None:
    known = story.document.queues.get("fleet")
    set_paused(seat.context, "fleet", known is None or not known.paused)


def cordon_slot(story: Story, seat: Seat) -> None:
    slot = story.whims.number(1, story.policy.slots)
    known = story.document.slots.get(slot)
    on = known is None or not known.cordoned
    cordon(seat.context, slot, on=on, drain=on and story.whims.maybe(0.5), reason=WHY, by=BY)


def uncordon(seat: Seat, slot: int) -> None:
    cordon(seat.context, slot, on=False, reason=WHY, by=BY)


def resize(story: Story, _seat: Seat) -> None:
    """Other settings: fewer or more slots, another ceiling. Whoever runs takes them over."""
    story.policy = replace(
        story.policy, slots=story.whims.number(1, 4), most=story.whims.one_of((None, 1, 2, story.policy.most))
    )
    story.whims.tell(f"  {story.policy.slots} slots, at most {story.policy.most} workers")
    for other in story.seats.values():
        other.reconciler.adopt(story.policy)


# Recovery


def kept_workers(story: Story) -> list[Worker]:
    """Workers that are assigned to a run which they do not hold."""
    document = story.document
    return [
        worker
        for _, worker in sorted(document.workers.items())
        if worker.run is not None
        and not ((run := document.runs.get(worker.run)) and run.worker and run.worker.slot == worker.slot)
    ]


def release_one(story: Story, seat: Seat, worker: Worker | None = None) -> None:
    kept = kept_workers(story)
    if worker is None:
        if not kept:
            return
        worker = story.whims.one_of(kept)
    run = worker.run or ""
    with story.permits.saying(worker.assignment, run):
        if story.policy.release is Release.AUTO:
            release(seat.context, run, None, slot=worker.slot, reason=WHY, by=BY)
            return
        wanted = proofs.template(story.document, run, worker.slot)
        machine = story.world.find(worker.slot, worker.assignment)
        found = worker.resources if machine is None else machine.resources
        wanted["resources"] = {name: resource_digest(each) for name, each in found.items()}
        wanted["statement"] = "its data was copied"
        release(seat.context, run, wanted, reason=WHY, by=BY)


def release_wrongly(story: Story, seat: Seat) -> None:
    """A proof of something else: it must not release anything, so nobody is told that it may."""
    kept = kept_workers(story)
    if not kept or story.policy.release is Release.AUTO:
        return
    worker = story.whims.one_of(kept)
    wanted = proofs.template(story.document, worker.run or "", worker.slot)
    wanted["resources"] = {name: resource_digest(each) for name, each in worker.resources.items()}
    wanted["statement"] = "its data was copied"
    match story.whims.number(1, 4):
        case 1:
            wanted["generation"] += 1
        case 2:
            wanted["token"] -= 1
        case 3:
            wanted["resources"]["vm"] = "sha256:" + 64 * "0"
        case _:
            wanted["assignment"] = "a-999"
    release(seat.context, worker.run or "", wanted, reason=WHY, by=BY)


def surrender_one(story: Story, seat: Seat, worker: Worker | None = None) -> None:
    kept = [each for _, each in sorted(story.document.workers.items()) if each.run is not None]
    if worker is None:
        if not kept:
            return
        worker = story.whims.one_of(kept)
    look, _ = seat.reconciler.look()
    with story.permits.saying(worker.assignment, worker.run or ""):
        # Nobody says that a provider is gone for good, and what it had with it, while a machine is there.
        gone = story.world.find(worker.slot, worker.assignment) is None and story.whims.maybe(0.5)
        surrender(seat.context, worker.run or "", look, slot=worker.slot, reason=WHY, by=BY, unresolved=gone)


def resume_one(story: Story, seat: Seat, worker: Worker | None = None) -> None:
    stopped = [each for each in kept_workers(story) if each.state in (WorkerState.DEALLOCATED, WorkerState.LOST)]
    if worker is None:
        if not stopped:
            return
        worker = story.whims.one_of(stopped)
    looked = story.world.now
    look, failure = seat.reconciler.look()
    if look is None:
        raise failure or AssertionError
    shown = [seen for seen in look.inventory.workers if seen.assignment == worker.assignment]
    story.permits.looked.setdefault((worker.assignment, worker.generation + 1), looked)
    ttl = story.world.nature.key_ttl_ms
    done = resume(seat.context, worker.run or "", look, slot=worker.slot, reason=WHY, by=BY, key_ttl_ms=ttl)
    if not look.complete or not shown or any(seen.state in (Seen.READY, Seen.CREATING) for seen in shown):
        story.world.wrongs.append(f"{worker.run} was resumed on the strength of a look that shows {shown}")
    seat.reconciler.sender.send(done.slot, done.key, parked=done.parked)


def resume_live(story: Story, seat: Seat) -> None:
    """Somebody has turned on what an operator is about to make anew."""
    stopped = [each for each in kept_workers(story) if each.state in (WorkerState.DEALLOCATED, WorkerState.LOST)]
    for worker in stopped[:1]:
        machine = story.world.find(worker.slot, worker.assignment)
        if machine is not None and machine.power is Power.OFF and machine.compute:
            story.world.switch_on(machine)
            resume_one(story, seat, worker)


def abandon_one(story: Story, seat: Seat, slot: int | None = None) -> None:
    """Nobody believes any more that a pending action will ever apply, rightly or not."""
    parked = story.document.pending_actions
    if slot is None:
        if not parked:
            return
        slot = story.whims.one_of(sorted(parked))
    entry, sender = parked[slot], seat.reconciler.sender
    key = action_of(entry).idempotency_key
    unresolved = story.whims.maybe(0.3)
    too_old, calls = sender.waits_for_proof(story.document, entry), story.calls
    done = abandon(
        sender,
        slot,
        key,
        look=lambda: seat.reconciler.look()[0],
        reason=WHY,
        by=BY,
        unresolved=unresolved,
    )
    story.whims.tell(f"  {key[:6]} of slot {slot} is {done.outcome}: {done.detail}")
    too_old = too_old or sender.waits_for_proof(story.document, entry)
    if done.outcome in (Left.CLEARED, Left.DISOWNED) and story.calls == calls and not too_old:
        story.world.wrongs.append(f"{key[:6]} of slot {slot} was {done.outcome} without being sent again")


def settle_unrecorded(story: Story, seat: Seat) -> None:
    """Adopt or remove something that no record knows."""
    look, failure = seat.reconciler.look()
    if look is None:
        raise failure or AssertionError
    found = unrecorded_in(story.document, look)
    if not found:
        return
    slot = story.whims.one_of(sorted(found))
    settle_in(story, seat, slot, look, found[slot][0], take=story.whims.maybe(0.4))


def adopt_another(story: Story, seat: Seat) -> None:
    """What was looked at is replaced before somebody adopts it, or removes it: neither may be done."""
    first, _ = seat.reconciler.look()
    found = None if first is None else unrecorded_in(story.document, first)
    if not found:
        return
    slot = min(found)
    seen = found[slot][0]
    machine = story.world.find(slot, seen.assignment)
    if machine is None:
        return
    story.world.replace_disk(machine)
    look, _ = seat.reconciler.look()
    shown = [] if look is None else [each for each in look.inventory.workers if each.assignment == seen.assignment]
    if look is None or not shown or any(each.resources != machine.resources for each in shown):
        return  # it lags, or says nothing
    before = story.document
    try:
        settle_in(story, seat, slot, look, seen, take=story.whims.maybe(0.5))
    finally:
        there = story.document.workers.get(slot)
        if slot not in before.workers and there is not None and there.assignment == seen.assignment:
            story.world.wrongs.append(f"{machine.name} was settled though it had changed")


def settle_in(story: Story, seat: Seat, slot: int, look: Look, seen: SeenWorker, *, take: bool) -> None:
    identity = identity_of(seen.slot, seen.assignment, seen.generation, seen.id, seen.resources)
    if take:
        adopt(seat.context, slot, look, provider=PROVIDER, identity=identity, reason=WHY, by=BY)
        return
    with story.permits.saying(seen.assignment):
        condemn(seat.context, slot, look, provider=PROVIDER, identity=identity, reason=WHY, by=BY)


# What befalls machines


def befall(story: Story, _seat: Seat) -> None:
    """Something happens to a machine, or one appears."""
    world, whims = story.world, story.whims
    fates: dict[str, Callable[[Machine], None]] = {
        "vanishes": world.vanish,
        "is preempted": world.preempt,
        "is switched off": world.switch_off,
        "is switched on": world.switch_on,
        "becomes another": world.replace_disk,
    }
    weights = {"vanishes": 2, "is preempted": 2, "is switched off": 3, "is switched on": 2}
    if story.tampering:
        weights |= {"becomes another": 1, "a stray": 1, "a stranger": 1}
    fate = whims.weighed(weights)
    slot = whims.number(1, story.policy.slots)
    if fate == "a stray":
        machine = world.stray(slot)
        whims.tell(f"  {machine.name} ({machine.assignment}) appears in slot {slot}: nobody asked for it")
        return
    if fate == "a stranger":
        machine = world.stray(slot, lineage="another")
        whims.tell(f"  {machine.name} of another fleet appears in slot {slot}")
        return
    those = [each for each in world.machines if each.power in _FITS[fate]]
    if those:
        machine = whims.one_of(those)
        whims.tell(f"  {machine.name} ({machine.assignment}, slot {machine.slot}) {fate}")
        fates[fate](machine)


def silence(story: Story, _seat: Seat) -> None:
    """The provider answers nobody for a while."""
    seconds = story.whims.between(0.1, 2.0) * story.world.nature.grace
    story.whims.tell(f"  the provider is silent for {seconds:.1f} s")
    story.world.silent_until = story.world.now + seconds


_FITS: Mapping[str, tuple[Power, ...]] = {
    "vanishes": tuple(Power),
    "is preempted": (Power.ON,),
    "is switched off": (Power.ON,),
    "is switched on": (Power.OFF,),
    "becomes another": (Power.ON, Power.OFF),
}

Act = Callable[["Story", Seat], None]
PEOPLE: Mapping[str, tuple[float, Act]] = {
    "submit": (7, submit),
    "cancel": (4, cancel),
    "retry": (4, retry),
    "withdraw": (1, withdraw),
    "drain": (1, drain),
    "pause": (0.7, pause),
    "cordon": (2, cordon_slot),
    "resize": (0.7, resize),
    "release": (4, release_one),
    "release wrongly": (2, release_wrongly),
    "surrender": (2, surrender_one),
    "resume": (4, resume_one),
    "resume what is on": (1, resume_live),
    "abandon": (4, abandon_one),
    "adopt another": (1, adopt_another),
    "unrecorded": (2, settle_unrecorded),
    "befall": (7, befall),
    "silence": (0.7, silence),
}
