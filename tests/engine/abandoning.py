"""What tests of abandoning share: an action that is pending, who gives it up, and a process that dies on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from controller.clock import FakeClock
from controller.engine import outcomes
from controller.engine.abandon import Abandoned, abandon
from controller.engine.queue import Context
from controller.engine.reconcile import Stop
from controller.engine.recovery import resume
from controller.engine.sight import APART_MS
from controller.model.edit import Draft, apply_edit
from controller.model.errors import InvariantBroken
from controller.model.inventory import Look
from controller.model.policy import Policy, Release
from controller.model.records import INITIALISED, ActionType, new_document
from controller.provider.fake import Behaviour, FakeProvider
from controller.provider.process import own_identity
from controller.store.memory import MemoryDisk, MemoryStore
from tests.engine.fleet import LINEAGE, Fleet

C, E = ActionType.CREATE, ActionType.EXECUTE


class Died(BaseException):
    """The process ends here: nothing catches it."""


def look_of(fleet: Fleet) -> Look | None:
    return fleet.reconciler().look()[0]


def give_up(
    fleet: Fleet,
    key: str | None = None,
    *,
    slot: int = 1,
    look: Callable[[], Look | None] | None = None,
    unresolved: bool = False,
    provider_gone: bool = False,
    dry_run: bool = False,
) -> Abandoned:
    return abandon(
        fleet.sender,
        slot,
        fleet.action(slot).idempotency_key if key is None else key,
        look=look or (lambda: look_of(fleet)),
        reason="it never ends",
        by="ops@example.org",
        unresolved=unresolved,
        provider_gone=provider_gone,
        dry_run=dry_run,
    )


def parked(fleet: Fleet, *behaviours: Behaviour, type_: ActionType = C) -> str:
    """The key of an action of slot 1, pending after it was sent once and met the first of *behaviours*; the others come
    next.
    """
    fleet.provider.script(type_, *behaviours, slot=1)
    fleet.submit("a")
    for each in (C, E)[: 1 if type_ is C else 2]:
        plan(fleet)
        assert fleet.action(1).type is each
        fleet.sender.send(1, fleet.action(1).idempotency_key, parked=fleet.pending[1])
    return fleet.action(1).idempotency_key


def plan(fleet: Fleet) -> None:
    """Park what is next, with the time for which the provider says that it remembers keys."""
    reconciler = fleet.reconciler()
    reconciler.park(reconciler.look()[0])


@contextmanager
def taking_nothing() -> Iterator[None]:
    """Meanwhile the document can take no result: as where another record claims the same resource."""

    def refuse(*_: object, **__: object) -> None:
        raise InvariantBroken("resource-owner: vm vm-1 belongs to the workers of slots 1 and 2")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcomes, "_apply", refuse)
        yield


def told(fleet: Fleet, event: str = "abandoned") -> list[tuple[str | None, str | None]]:
    return [(each.key, each.detail) for each in fleet.context.store.history("slot:1") if each.event == event]


def past_grace(fleet: Fleet) -> None:
    fleet.clock.advance(fleet.policy.grace_ms / 1000 + 1)


def apart(fleet: Fleet) -> None:
    fleet.clock.advance(APART_MS / 1000 + 1)


def resuming(fleet: Fleet, *behaviours: Behaviour) -> str:
    """The key of the pending create of generation 2 for the worker whose data is kept in slot 1, sent once."""
    fleet.provider = FakeProvider(LINEAGE)
    fleet.policy = replace(fleet.policy, release=Release.PROOF)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    fleet.provider.lose(1)
    fleet.clock.advance(1)
    fleet.reconciler().reconcile()
    look = look_of(fleet)
    assert look is not None
    key = resume(fleet.context, "a", look, reason="go on", by="ops@example.org").key
    fleet.provider.script(C, *behaviours)
    fleet.sender.send(1, key, parked=fleet.pending[1])
    return key


class Remembered(Fleet):
    """A fleet over a store in memory, whose process can die at each point of each of its commits."""

    def __init__(self, provider: FakeProvider) -> None:
        self.provider = provider
        self.policy = Policy(slots=3)
        self.clock = FakeClock()
        self.stop = Stop()
        draft = Draft(new_document("test", LINEAGE), now=self.clock.now_ms(), command="init")
        draft.event("fleet", INITIALISED, key=LINEAGE)
        self.disk = MemoryDisk(apply_edit(draft.document, draft.edit()))

    @property
    def context(self) -> Context:
        store = MemoryStore(self.disk, clock=self.clock, whoami=own_identity(), command="test")
        return Context(store, self.clock, "test", lock_timeout=5.0)

    def die_at(self, n: int) -> None:
        """Die at the *n*-th point from here, and only there."""
        points = iter(range(n + 1))

        def count(_: str) -> None:
            if next(points, None) == n:
                raise Died

        self.disk.fault = count

    def rise(self) -> None:
        self.disk.fault = lambda _: None
        self.disk.kill(own_identity())
