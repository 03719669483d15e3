"""The provider of a story: machines that exist and cost money, whatever anybody has on record.

Not promised: that it tells the truth. It honours keys while it remembers them, and its listings lag, its calls are slow
and its requests are under way for less than a grace time together; nothing else is certain. It does not refuse a second
machine for a slot: a tag is no lock. A clock that jumps ends what lags or is under way, for then nobody's wait proves
anything.

`wrongs` collects, at the moment of each effect, what must never happen whoever asked. Whether something may be deleted
is asked of `permits`, which knows what people have released.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from controller.clock import FakeClock
from controller.model.action import Action, CancelRequest
from controller.model.errors import ProviderFailed
from controller.model.inventory import Inventory
from controller.model.records import ActionType, Resource
from controller.provider.protocol import (
    Description,
    Done,
    IdentityRefused,
    NotSent,
    Outcome,
    Pending,
    Rejected,
    Unknown,
)
from simulation import listing
from simulation.machines import End, Machine, Power, Process, UnderWay
from simulation.setting import Nature
from simulation.whims import Whims


class Asked(Protocol):
    """Who is asked before something happens: why it must not, or None."""

    def delete(self, machine: Machine) -> str | None: ...
    def resume(self, machine: Machine, generation: int) -> str | None: ...
    def stop(self, machine: Machine) -> str | None: ...
    def execute(self, machine: Machine, action: Action) -> str | None: ...
    def is_missed(self, machine: Machine) -> bool: ...


class Remembered(NamedTuple):
    """The final answer of a key, or None while it is under way; and since when it is known."""

    outcome: Outcome | None
    since: float


class World:
    """Every call of it is one moment. `tick` must be called whenever the clock has moved."""

    def __init__(self, lineage: str, clock: FakeClock, whims: Whims, nature: Nature, permits: Asked) -> None:
        self.permits = permits
        self.lineage = lineage
        self.clock = clock
        self.whims = whims
        self.nature = nature
        self.machines: list[Machine] = []
        self.removed: list[Machine] = []
        self.memory: dict[str, Remembered] = {}
        self.begun: set[str] = set()
        self.asked: set[str] = set()
        self.doubted: set[str] = set()
        self.under_way: list[UnderWay] = []
        self.wrongs: list[str] = []
        self.effects: Counter[str] = Counter()
        self.made: Counter[tuple[str, int]] = Counter()
        self.executed: Counter[tuple[str, int, str, int]] = Counter()
        self.places: dict[str, tuple[Machine, int]] = {}
        self.slack = 0.0
        self._made = 0
        self.unreadable = (0, 0.0)
        self.silent_until = 0.0

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    @property
    def is_silent(self) -> bool:
        return self.now < self.silent_until and not self.whims.calm

    def find(self, slot: int, assignment: str) -> Machine | None:
        return next((m for m in self.machines if (m.slot, m.assignment) == (slot, assignment)), None)

    def is_busy(self) -> bool:
        """Whether something goes on that ends by itself."""
        return bool(self.moments())

    def moments(self) -> list[float]:
        """In how many seconds something happens by itself."""
        times = [each.at for each in self.under_way]
        for machine in self.machines:
            times += [machine.ready_at] if machine.power is Power.COMING else []
            times += [] if machine.leaving is None else [machine.leaving.at]
            times += [process.ends_at for process in machine.processes.values() if process.end is None]
        return [time - self.now for time in times]

    # What happens by itself, and what accidents do

    def tick(self) -> None:
        """Let time show: steps end, machines get ready or go, requests arrive."""
        for arrived in [each for each in self.under_way if each.at <= self.now]:
            self._arrives(arrived, arrived.settles_at)
        for machine in tuple(self.machines):
            self._moves_on(machine)

    def _arrives(self, arrived: UnderWay, settles_at: float) -> None:
        self.whims.tell(f"  {_short(arrived.action)} arrives only now")
        known = self._known(arrived.action.idempotency_key)
        self.under_way.remove(arrived)
        if known is None:
            self._do(arrived.action, settles_at)

    def _moves_on(self, machine: Machine) -> None:
        machine.moves_on(self.now)
        if machine.leaving is not None and machine.leaving.at <= self.now:
            self._leave(machine, machine.leaving)

    def jumped(self, back: float) -> None:
        """The wall clock was set: what lags or is under way is there. Keys are known for *back* seconds more."""
        self.slack += back
        for each in tuple(self.under_way):
            self._arrives(each, self.now)
        self.removed.clear()
        for machine in self.machines:
            machine.views.clear()
            machine.denied_until = 0.0

    def vanish(self, machine: Machine) -> None:
        """It is not there any more, nor its data."""
        machine.changes(self._lag())
        self._remove(machine)

    def preempt(self, machine: Machine) -> None:
        """Its compute is gone, its data is left."""
        machine.changes(self._lag())
        machine.end_all((None, None))
        machine.power, machine.compute = Power.GONE, False

    def switch_off(self, machine: Machine) -> None:
        machine.changes(self._lag())
        machine.end_all((None, 9))
        machine.turn_off(self.now)

    def switch_on(self, machine: Machine) -> None:
        machine.changes(self._lag())
        machine.power, machine.on_since = Power.ON, self.now

    def replace_disk(self, machine: Machine) -> None:
        """Something else is there under the same id now."""
        machine.changes(self._lag())
        self._made += 1
        vm = machine.resources["vm"]
        machine.resources = {**machine.resources, "vm": replace(vm, immutable_id=f"other-{self._made}")}

    def stray(self, slot: int, *, lineage: str | None = None) -> Machine:
        """A machine that nobody here asked for."""
        machine = self._machine(slot, lineage or self.lineage, f"x-{self._made + 1}", 1)
        machine.stray = True
        return machine

    def _lag(self) -> float:
        return self.now + self.whims.between(0.0, 0.9) * self.nature.grace

    # What is asked

    def describe(self) -> Description:
        # One of which nothing is known is taken to remember keys for ever.
        if self.nature.key_ttl_ms is None and self.whims.accident(
            {"no description": self.nature.looks.get("fails", 0.0)}
        ):
            raise ProviderFailed("the provider says nothing of itself")
        return Description("simulated", "1", tuple(t.value for t in ActionType), self.nature.key_ttl_ms)

    def inventory(self) -> Inventory:
        self.tick()
        return listing.take(self)

    def doubts(self, action: Action) -> None:
        """*action* is asked for: until its answer is heard, nobody knows what became of it."""
        key = action.idempotency_key
        if key in self.asked:
            self.doubted.add(key)
        self.asked.add(key)

    def knows(self, action: Action) -> None:
        """Its answer was heard."""
        self.asked.discard(action.idempotency_key)
        self.doubted.discard(action.idempotency_key)

    def mutate(self, action: Action, asked: float) -> Outcome:
        """Answer *action*, or not: its accidents are drawn here. Its deadline and grace count from *asked*."""
        self.tick()
        how = self.whims.accident(self.nature.sends)
        if self.is_silent:
            how = self.whims.one_of(("lost on its way", "answer lost"))
        if how is not None:
            self.whims.tell(f"  {_short(action)}: {how}")
        settles_at = asked + 0.9 * self.nature.grace
        key = action.idempotency_key
        known, doubted = self._known(key), key in self.doubted and action.type in _BY_LOOKS
        match how:
            case "lost on its way":
                return Unknown("the request was lost")
            case "answer lost":
                self._do(action, settles_at)
                return Unknown("the answer was lost")
            case "late":
                self.post(action, asked)
                return Unknown("the request is under way")
            case "refused though asked" if doubted and (known or any(u.action == action for u in self.under_way)):
                return Rejected("it was asked for already")
            case "refused":
                return self._refuse(action, Rejected("there is no room"))
            case "another answer":
                answer = self._do(action, settles_at)
                if isinstance(answer, Done) and answer.worker is not None:
                    return replace(answer, worker=replace(answer.worker, slot=action.slot + 1))
                return Unknown("noise")
            case "never binds":
                return self._refuse(action, IdentityRefused("that resource can never bind again"))
            case "not sent":
                return NotSent("the program is not there")
        return self._do(action, settles_at)

    def post(self, action: Action, asked: float) -> None:
        """*action* arrives later, though its sender may hear nothing, or not live any more."""
        at = asked + self.whims.between(0.05, 0.4) * self.nature.grace
        self.under_way.append(UnderWay(at, asked + 0.9 * self.nature.grace, action))

    # Doing

    def _known(self, key: str) -> Remembered | None:
        known = self.memory.get(key)
        ttl = self.nature.key_ttl_ms
        if known is None or ttl is None or any(each.action.idempotency_key == key for each in self.under_way):
            return known
        # What is sent again in time may arrive a little later than that.
        if self.now - known.since > ttl / 1000 + self.slack + 0.5 * self.nature.grace:
            del self.memory[key]
            self.begun.discard(key)
            return None
        return known

    def _refuse(self, action: Action, outcome: Outcome) -> Outcome:
        known = self._known(action.idempotency_key)
        if known is not None:
            return self._do(action, self.now)
        # A request of the same key that is under way comes to nothing: this key will have no effect.
        self.under_way = [each for each in self.under_way if each.action.idempotency_key != action.idempotency_key]
        self.memory[action.idempotency_key] = Remembered(outcome, self.now)
        return outcome

    def _do(self, action: Action, settles_at: float) -> Outcome:
        key = action.idempotency_key
        known = self._known(key)
        if known is not None and known.outcome is not None:
            return known.outcome
        outcome = self._perform(action, settles_at)
        since = self.now if known is None else known.since
        self.memory[key] = Remembered(None if isinstance(outcome, Pending) else outcome, since)
        return outcome

    def _begin(self, action: Action) -> bool:
        """Whether this is the moment at which it has its effect, not a question how it is getting on."""
        key = action.idempotency_key
        if key in self.begun:
            return False
        self.begun.add(key)
        self.effects[key] += 1
        if self.effects[key] > 1:
            self.wrongs.append(f"{_short(action)} was done twice")
        return True

    def _perform(self, action: Action, settles_at: float) -> Outcome:
        if action.lineage != self.lineage:
            return Rejected("that is another fleet's")
        there = [m for m in self.machines if (m.slot, m.assignment) == (action.slot, action.assignment)]
        machine = there[-1] if there else None
        if action.type is ActionType.CREATE:
            return self._create(action, machine, settles_at)
        if machine is None:
            return Rejected("no such machine") if action.type is ActionType.EXECUTE else Done(reason="no such machine")
        if machine.generation != action.generation:
            return Rejected(f"that machine is at generation {machine.generation}")
        bound = dict(action.resources)
        if bound and any(machine.resources.get(kind) != bound[kind] for kind in bound):
            return IdentityRefused("a resource is not the one that was recorded")
        if action.type in (ActionType.EXECUTE, ActionType.CANCEL):
            run, token = action.run or "", action.token or 0
            if token < machine.tokens.get(run, 0):
                return Rejected(f"token {token} of run {run} is stale")
            machine.tokens[run] = token
        for settled in action.settled:
            ended = machine.processes.get(settled)
            if ended is not None and ended.end is None:
                self.wrongs.append(f"{_short(action)} settles a step that runs")
            machine.processes.pop(settled, None)
        match action.type:
            case ActionType.EXECUTE:
                return self._execute(action, machine, settles_at)
            case ActionType.CANCEL:
                return self._cancel(action, machine)
        return self._take_down(action, machine, settles_at)

    def _create(self, action: Action, there: Machine | None, settles_at: float) -> Outcome:
        if there is not None and there.generation > action.generation:
            return Rejected(f"that machine is at generation {there.generation}")
        if action.generation > 1:
            if there is None:
                return Rejected("there is nothing to resume")
            if action.resources and action.resources.get("disk") != there.resources["disk"]:
                return IdentityRefused("its data is not what was recorded")
        if not self._begin(action):
            return Rejected("it is not there any more") if there is None else self._made_yet(there)
        for other in self.machines:
            if other.slot == action.slot and other is not there and other.compute and not other.stray:
                self.wrongs.append(f"{_short(action)} while {other.name} ({other.assignment}) is {other.power} there")
        self.made[action.assignment, action.generation] += 1
        if self.made[action.assignment, action.generation] > 1:
            self.wrongs.append(f"{action.assignment} generation {action.generation} was made twice")
        if action.generation > 1 and there is not None:
            refused = self.permits.resume(there, action.generation)
            if refused is not None:
                self.wrongs.append(f"{_short(action)}: {refused}")
            there.changes(settles_at)
            there.generation = action.generation
            there.compute, there.off_since = True, None
            self._made += 1
            there.resources = {**there.resources, "vm": Resource(f"vm-{self._made}", f"i-{self._made}")}
        else:
            there = self._machine(action.slot, action.lineage, action.assignment, action.generation)
            there.views.append((settles_at, None))
        wait = self.whims.between(0.0, self.nature.slow)
        there.ready_at = self.now + wait
        there.power, there.on_since = Power.COMING if wait > 0 else Power.ON, self.now
        return self._made_yet(there)

    def _made_yet(self, machine: Machine) -> Outcome:
        if machine.power is Power.COMING:
            return Pending(max(1, int((machine.ready_at - self.now) * 1000)), "it is being made")
        return Done(machine.seen())

    def _machine(self, slot: int, lineage: str, assignment: str, generation: int) -> Machine:
        self._made += 1
        n = self._made
        resources = {"vm": Resource(f"vm-{n}", f"i-{n}"), "disk": Resource(f"disk-{n}", f"d-{n}")}
        machine = Machine(n, slot, lineage, assignment, generation, resources)
        self.machines.append(machine)
        return machine

    def _execute(self, action: Action, machine: Machine, settles_at: float) -> Outcome:
        key, run = action.idempotency_key, action.run or ""
        there = machine.processes.get(key)
        if there is not None:
            return Done(step=there.shown())
        if machine.power is not Power.ON:
            return Rejected(f"that machine is {machine.power}")
        self._begin(action)
        life = (run, action.token or 0, action.step or "", action.attempt or 0)
        self.executed[life] += 1
        if self.executed[life] > 1:
            self.wrongs.append(f"step {life[2]} of {run}, token {life[1]}, attempt {life[3]} was executed twice")
        for other in self.machines:
            for process in other.processes.values():
                if process.end is None and (other is machine or process.run == run):
                    self.wrongs.append(f"{_short(action)} while a step of {process.run} runs in slot {other.slot}")
        refused = self.permits.execute(machine, action)
        if refused is not None:
            self.wrongs.append(f"{_short(action)}: {refused}")
        machine.changes(settles_at)
        how: End = (0, None)
        if self.whims.maybe(self.nature.failing):
            how = self.whims.one_of(((1, None), (7, None), (None, 9), (None, None)))
        ends_at = self.now + self.whims.between(0.0, self.nature.longest_step)
        machine.processes[key] = Process(key, run, life[1], ends_at, how)
        machine.data.add(run)
        self.places[run] = (machine, life[1])
        return Done(step=machine.processes[key].shown())

    def _cancel(self, action: Action, machine: Machine) -> Outcome:
        target = msgspec.json.decode(bytes(action.request), type=CancelRequest).target
        process = machine.processes.get(target)
        if process is None:
            return Done(reason="no such step")
        if process.end is None and process.dies_at is None:
            self._begin(action)
            process.dies_at = self.now + self.whims.between(0.0, 5.0)
        self._moves_on(machine)
        if process.end is None:
            return Pending(500, "it has not ended yet")
        return Done(step=process.shown())

    def _take_down(self, action: Action, machine: Machine, settles_at: float) -> Outcome:
        if machine.power is Power.COMING:
            return Pending(max(1, int((machine.ready_at - self.now) * 1000)), "it is still being made")
        if self._begin(action):
            refused = self.permits.stop(machine)
            if action.type is not ActionType.DEALLOCATE:
                refused = refused or self.permits.delete(machine)
            if refused is not None:
                self.wrongs.append(f"{_short(action)}: {refused}")
            wanted = UnderWay(self.now + self.whims.between(0.0, self.nature.slow), settles_at, action)
            # A request that arrives late does not take back what goes further.
            if machine.leaving is None or _FURTHER[machine.leaving.action.type] < _FURTHER[action.type]:
                machine.leaving = wanted
            self._moves_on(machine)
        if machine.leaving is not None:
            return Pending(max(1, int((machine.leaving.at - self.now) * 1000)), "it is under way")
        return Done()

    def _leave(self, machine: Machine, how: UnderWay) -> None:
        """What was asked for has come to its end: it is off, or has no compute any more, or is not there."""
        machine.changes(how.settles_at)
        machine.leaving = None
        machine.end_all((None, 9))
        if machine.power is not Power.GONE:
            machine.turn_off(self.now)
        if how.action.type is not ActionType.DEALLOCATE:
            machine.compute = False
            if self.nature.gone_when_removed:
                machine.power = Power.GONE
        if how.action.type is ActionType.RESET:
            self._remove(machine)

    def _remove(self, machine: Machine) -> None:
        self.machines.remove(machine)
        self.removed.append(machine)


_FURTHER = {ActionType.DEALLOCATE: 1, ActionType.DELETE_COMPUTE: 2, ActionType.RESET: 3}
_BY_LOOKS = frozenset({ActionType.CREATE, ActionType.EXECUTE})
"""Whose refusal after a send of unknown fate is not taken at its word."""


def _short(action: Action) -> str:
    return f"{action.type} {action.idempotency_key[:6]} of slot {action.slot}"
