"""Simulated processes: one is a pid, what it has in memory, and a way to disk and provider that it may die on.

Not promised: two at the very same moment. One runs while another is held up at a place where a real one could be:
before a lock, in a call of the provider, before or after a look.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from msgspec import Raw

from controller.engine.pending import Sender
from controller.engine.planner import Ground
from controller.engine.queue import Context
from controller.engine.reconcile import Reconciler
from controller.model.action import Action
from controller.model.inventory import Inventory
from controller.model.process import ProcessIdentity
from controller.provider.protocol import Description, News, Outcome, Register, Unknown
from controller.store.memory import MemoryDisk, MemoryStore
from controller.store.protocol import Hold, SlotHold, Snapshot

if TYPE_CHECKING:
    from simulation.driver import Story

PROVIDER = "simulated"


class Died(BaseException):
    """The process is killed here. No handler of the engine's sees it: it is no Exception."""


class SeatStore(MemoryStore):
    """The store as one process reaches it."""

    def __init__(self, seat: Seat, disk: MemoryDisk, command: str) -> None:
        super().__init__(disk, clock=seat.story.clock, whoami=seat.whoami, command=command)
        self._seat = seat

    def read(self) -> Snapshot:
        self._seat.check_alive()
        return super().read()

    def hold(self, timeout: float) -> AbstractContextManager[Hold]:
        self._seat.pause("waits for the document")
        return super().hold(timeout)

    @contextmanager
    def hold_slot(self, slot: int) -> Iterator[SlotHold]:
        self._seat.pause(f"takes slot {slot}")
        with super().hold_slot(slot) as held:
            yield held


class Reach:
    """The provider as one process reaches it."""

    kind = PROVIDER
    registers = False

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    def describe(self) -> Description:
        self._seat.check_alive()
        return self._seat.story.world.describe()

    def inventory(self) -> Inventory:
        self._seat.pause("is about to look")
        inventory = self._seat.story.world.inventory()
        self._seat.pause("has looked")
        return inventory

    def mutate(self, action: Action, raw: Raw, register: Register) -> Outcome:  # noqa: ARG002 - it has no wire
        seat, world = self._seat, self._seat.story.world
        seat.story.calls += 1
        asked = world.now
        seat.calls(action)
        if world.now - asked > 0.5 * world.nature.grace:
            return Unknown("its deadline passed before it was asked")
        world.doubts(action)
        outcome = world.mutate(action, asked)
        seat.pause("has its answer")
        if not isinstance(outcome, Unknown):
            world.knows(action)
        return outcome

    def wait(self, seconds: float) -> News:  # noqa: ARG002 - nothing in a story waits for news
        return News()

    def close(self) -> None:
        return

    def interrupt(self) -> None:
        return


class Seat:
    """One process of the story, alive until it dies on one of its ways."""

    def __init__(self, story: Story, name: str, pid: int) -> None:
        self.story = story
        self.name = name
        self.alive = True
        self.whoami = ProcessIdentity(pid, pid, "simulated", "simulated")
        self.store = SeatStore(self, story.disk, name)
        self.context = Context(self.store, story.clock, name, lock_timeout=0.05, policy=story.policy)
        self.provider = Reach(self)
        sender = Sender(self.context, self.provider, story.policy)
        ground = Ground(story.policy, PROVIDER, None)
        self.reconciler = Reconciler(sender, ground, parallelism=1)

    def check_alive(self) -> None:
        """A process that died does nothing more, whatever its stack still unwinds."""
        if not self.alive:
            raise Died

    def die(self, where: str) -> None:
        self.story.whims.tell(f"  {self.name} dies: {where}")
        self.alive = False
        self.story.disk.kill(self.whoami)
        raise Died

    def pause(self, where: str) -> None:
        """A place where it may die, or where others go on while it is held up."""
        self.check_alive()
        match self.story.whims.accident(self.story.weather.pauses):
            case "dies":
                self.die(where)
            case "is overtaken":
                self.story.overtake(self, where)
            case "is held up":
                self.story.pass_time(f"  {self.name} is held up: {where}")
        self.check_alive()

    def calls(self, action: Action) -> None:
        """It is about to ask for *action*; one that dies here may have asked already."""
        self.check_alive()
        match self.story.whims.accident(self.story.weather.calls):
            case "dies before it asks":
                self.die("before it asks")
            case "dies while it asks":
                self.story.world.doubts(action)
                self.story.world.post(action, self.story.world.now)
                self.die("while it asks")
            case "is overtaken":
                self.story.overtake(self, "in a call")
            case "is held up":
                self.story.pass_time(f"  {self.name} is held up in a call", 0.4)
        self.check_alive()
