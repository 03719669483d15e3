"""What people have allowed, and what the world asks before anything happens to a machine.

Not promised: what the document says of it; whoever releases data says so here first, and takes it back when refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from controller.model.action import Action, decode
from controller.model.errors import ControllerError, DurabilityFailed
from controller.model.policy import Release
from controller.model.reason import Reason
from controller.model.records import Run, RunState, Worker, WorkerState
from simulation.machines import Machine, Power

if TYPE_CHECKING:
    from simulation.driver import Story

Said = tuple[str, str]
"""That the data of a run on an assignment may go; or, with run "", whatever an assignment is."""


class Permits:
    """`looked`: when somebody looked who then had an assignment made anew, by assignment and new generation."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._said: set[Said] = set()
        self.looked: dict[tuple[str, int], float] = {}

    @contextmanager
    def saying(self, assignment: str, run: str = "") -> Iterator[None]:
        """Somebody says that it may go; unless that is refused."""
        said = (run, assignment)
        known = said in self._said
        self._said.add(said)
        try:
            yield
        except ControllerError as error:
            # After a failed sync it may have been said all the same.
            if not known and not isinstance(error, DurabilityFailed):
                self._said.discard(said)
            raise

    def _is_released(self, machine: Machine, run: str) -> bool:
        return not self._said.isdisjoint({(run, machine.assignment), ("", machine.assignment)})

    def delete(self, machine: Machine) -> str | None:
        """Why its compute or data must not be removed."""
        story, policy = self._story, self._story.policy
        worker = story.document.workers.get(machine.slot)
        if worker is None or worker.assignment != machine.assignment:
            return f"{machine.assignment} is not on record in slot {machine.slot}"
        if worker.run is not None:
            return f"{machine.assignment} is assigned to {worker.run}"
        if any(key in machine.processes for key in worker.accepted):
            return f"{machine.assignment} has ends of steps that nobody has taken in"
        for run in sorted(machine.data):
            if self._is_released(machine, run):
                continue
            if policy.release is Release.PROOF:
                return f"nobody released its data of {run}"
            found = story.document.runs.get(run)
            last = story.world.places.get(run) == (machine, 0 if found is None else found.attempts)
            if policy.retain_failed and found is not None and found.state is RunState.FAILED and last:
                return f"{run} failed, and its data is to be kept"
        return self._cools(machine, worker)

    def _cools(self, machine: Machine, worker: Worker) -> str | None:
        story = self._story
        cools = worker.state is WorkerState.DEALLOCATED and worker.reason is not Reason.UNRECORDED
        if not cools or not machine.compute or machine.power is not Power.OFF or story.jumped:
            return None
        off = story.clock.monotonic() - (machine.off_since or 0.0)
        return f"it is off for {off:.1f} s only" if off < story.policy.cooldown_ms / 1000 - 0.01 else None

    def resume(self, machine: Machine, generation: int) -> str | None:
        """Why no new compute must be made for its data. One that was switched on after the look is nobody's fault."""
        looked = self.looked.get((machine.assignment, generation))
        if machine.power not in (Power.ON, Power.COMING):
            return None
        # The listing that somebody looked at may have lagged.
        if looked is None or machine.on_since + self._story.world.nature.grace < looked:
            return f"{machine.assignment} is made anew while its compute is on"
        return None

    def stop(self, machine: Machine) -> str | None:
        """Why its compute must not be stopped."""
        for process in machine.processes.values():
            run = self._story.document.runs.get(process.run)
            if process.end is None and run is not None and _holds(run, machine, process.token):
                if run.cancel_requested_at is None:
                    return f"a step of {run.id} runs there, and nobody cancelled it"
        return None

    def execute(self, machine: Machine, action: Action) -> str | None:
        """Why it must not be given that step."""
        if self._story.policy.release is Release.PROOF:
            for run in sorted(machine.data - {action.run}):
                if not self._is_released(machine, run):
                    return f"another run is given a worker whose data of {run} nobody released"
        return None

    def is_missed(self, machine: Machine) -> bool:
        """Whether an absence of it is on record, or of what was there before it."""
        document = self._story.document
        worker, entry = document.workers.get(machine.slot), document.pending_actions.get(machine.slot)
        known = [worker and worker.absent, entry and entry.absent]
        known += [each.absent for each in document.disowned.values() if decode(each.action).slot == machine.slot]
        slot = document.slots.get(machine.slot)
        known += [] if slot is None else [each.absent for each in slot.unrecorded]
        return any(known)


def _holds(run: Run, machine: Machine, token: int) -> bool:
    held = run.worker
    return (
        run.state is RunState.RUNNING
        and run.attempts == token
        and held is not None
        and (held.slot, held.assignment, held.generation) == (machine.slot, machine.assignment, machine.generation)
    )
