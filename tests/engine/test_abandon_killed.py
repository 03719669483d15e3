"""Abandon, killed at each of its steps: one outcome, nothing stranded, nothing dropped that was not asked for."""

from __future__ import annotations

import pytest

from controller.engine.abandon import Abandoned, Left
from controller.model.action import Action, action_of
from controller.model.process import ProcessIdentity
from controller.model.records import ActionType, RunState
from controller.provider.fake import After, Before, Behaviour, DoThenLose, FakeProvider, LoseUndone, Say
from controller.provider.process import boot_id
from controller.provider.protocol import IdentityRefused, Pending, Rejected
from tests.engine.abandoning import (
    C,
    Died,
    E,
    Remembered,
    give_up,
    parked,
    past_grace,
    plan,
    taking_nothing,
)
from tests.engine.fleet import LINEAGE, Fleet

TTL = 600_000


class Story:
    """One abandon: what its action meets, how it is given up, and how it ends."""

    def __init__(
        self,
        left: Left,
        *behaviours: Behaviour,
        type_: ActionType = C,
        unresolved: bool = False,
        ttl: int | None = None,
    ) -> None:
        self.left = left
        self.behaviours = behaviours
        self.type = type_
        self.unresolved = unresolved
        self.ttl = ttl

    def begin(self) -> tuple[Remembered, str]:
        fleet = Remembered(FakeProvider(LINEAGE, key_ttl_ms=self.ttl))
        key = parked(fleet, *self.behaviours, type_=self.type)
        if self.ttl is not None:
            fleet.clock.advance(2 * TTL / 1000)
        return fleet, key

    def once(self, fleet: Fleet, key: str) -> Abandoned:
        look = (lambda: None) if self.unresolved else None
        return give_up(fleet, key, look=look, unresolved=self.unresolved)

    def finish(self, fleet: Fleet, key: str) -> Abandoned:
        """As an operator does: again, and again a while later, until it says that it is over."""
        while (answer := self.once(fleet, key)).outcome is Left.KEPT:
            past_grace(fleet)
        return answer


def again(first: Behaviour, *then: Behaviour) -> tuple[Behaviour, ...]:
    return (first, *then * 9)


refused, other_disk = Say(Rejected("quota")), Say(IdentityRefused("another disk"))
STORIES = {
    "applied": Story(Left.APPLIED, LoseUndone()),
    "applied at last": Story(Left.APPLIED, LoseUndone(), type_=E),
    "a final no": Story(Left.CLEARED, *again(Say(Pending(60_000)), refused)),
    "a final no after an unknown": Story(Left.CLEARED, *again(LoseUndone(), refused)),
    "a worker that binds no more": Story(Left.CLEARED, *again(other_disk, other_disk), type_=E),
    "one that binds no more after an unknown": Story(Left.CLEARED, *again(LoseUndone(), other_disk), type_=E),
    "a provider that is gone": Story(Left.DISOWNED, *again(LoseUndone(), LoseUndone()), unresolved=True),
    "one that is gone in an execute": Story(
        Left.DISOWNED, *again(LoseUndone(), LoseUndone()), type_=E, unresolved=True
    ),
    "too old": Story(Left.CLEARED, LoseUndone(), ttl=TTL),
    "too old, and there": Story(Left.APPLIED, DoThenLose(), ttl=TTL),
}


def standing(fleet: Fleet) -> object:
    document = fleet.document
    return (
        {n: action_of(entry).type for n, entry in document.pending_actions.items()},
        {key: (each.reason, each.by) for key, each in document.disowned.items()},
        {n: (worker.state, worker.reason, worker.run) for n, worker in document.workers.items()},
        {name: (run.state, run.defer_reason) for name, run in document.runs.items()},
        {n: slot.cordoned for n, slot in document.slots.items()},
    )


def ends_of(fleet: Fleet, key: str) -> list[str]:
    over = ("action.settled", "action.disowned")
    return [each.event for each in fleet.context.store.history("slot:1") if each.key == key and each.event in over]


@pytest.mark.parametrize("replays", [False, True], ids=["abandoned again", "replayed first"])
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_killed_at_any_step_it_ends_as_it_would_have_ended(story: Story, replays: bool) -> None:
    whole, key = story.begin()
    answer = story.finish(whole, key)
    assert answer.outcome is story.left
    deaths = 0
    while True:
        fleet, key = story.begin()
        sends = len(fleet.provider.sends())
        fleet.die_at(deaths)
        try:
            story.finish(fleet, key)
            break
        except Died:
            deaths += 1
        fleet.rise()
        if replays:
            fleet.reconciler().replay()
        left = story.finish(fleet, key).outcome
        assert left in (story.left, Left.SETTLED_BEFORE, Left.DISOWNED_BEFORE), deaths
        assert standing(fleet) == standing(whole), deaths
        assert len(ends_of(fleet, key)) == 1, "one outcome"
        asked = len(fleet.provider.sends()) - sends
        assert (asked == 0) == (story.ttl is not None), "nothing was dropped that was not asked for again"
        assert not fleet.disk.slots, "no lock is left"
    assert deaths >= 2, "before its one commit at least, and after it"


@pytest.mark.parametrize("hook", [Before, After])
@pytest.mark.parametrize("unresolved", [False, True])
def test_killed_in_the_call_it_ends_as_it_would_have_ended(hook: type[Before | After], unresolved: bool) -> None:
    def die(_: Action) -> None:
        raise Died

    fleet = Remembered(FakeProvider(LINEAGE, ends=0))
    key = parked(fleet, LoseUndone(), hook(die))
    with pytest.raises(Died):
        give_up(fleet, unresolved=unresolved)
    fleet.rise()
    assert give_up(fleet, unresolved=unresolved).outcome is Left.APPLIED
    assert [each for _, _, each in fleet.provider.sends()] == [key] * 3
    assert len(fleet.provider.done) == 1
    fleet.reconciler().reconcile()
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED


def test_killed_at_any_step_what_the_document_cannot_take_is_disowned_once() -> None:
    deaths = 0
    while True:
        fleet = Remembered(FakeProvider(LINEAGE))
        fleet.submit("a")
        plan(fleet)
        key = fleet.action(1).idempotency_key
        fleet.die_at(deaths)
        with taking_nothing():
            try:
                give_up(fleet)
                break
            except Died:
                deaths += 1
            fleet.rise()
            assert give_up(fleet, key).outcome in (Left.DISOWNED, Left.DISOWNED_BEFORE)
        assert (ends_of(fleet, key), list(fleet.document.disowned)) == (["action.disowned"], [key])
        assert len(fleet.provider.done) == 1
    assert deaths >= 6, "around three commits at least"


def test_killed_after_somebodys_word_was_recorded_the_word_is_asked_for_again() -> None:
    deaths = 0
    while True:
        fleet = Remembered(FakeProvider(LINEAGE))
        key = parked(fleet, LoseUndone())
        with fleet.context.store.hold_slot(1) as held:
            held.register(ProcessIdentity(77, 1, boot_id(), "pid:[1]"), 0, "key")
        fleet.die_at(deaths)
        try:
            give_up(fleet, provider_gone=True)
            break
        except Died:
            deaths += 1
        fleet.rise()
        assert give_up(fleet, key, provider_gone=True).outcome in (Left.APPLIED, Left.SETTLED_BEFORE)
        events = [each.event for each in fleet.context.store.history("slot:1")]
        assert events.index("provider_gone") < events.index("action.sent"), "recorded before anything was sent"
    assert deaths >= 8, "around four commits at least"
