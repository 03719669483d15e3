"""What sends say of their provider's health: counted with the trouble, in one commit, and only where it matters."""

from __future__ import annotations

import threading

import pytest
from msgspec.structs import replace

from controller.model.health import BreakerState, breaker_state
from controller.model.reason import Reason
from controller.model.records import ActionType, Provider
from controller.provider.fake import LoseUndone, Say
from controller.provider.protocol import IdentityRefused, NotSent, Outcome, Pending, Rejected, Unknown
from tests.engine.abandoning import C, parked, plan
from tests.engine.fleet import Fleet


def health(fleet: Fleet) -> Provider:
    return fleet.document.providers.get("fake") or Provider()


def told(fleet: Fleet) -> list[str]:
    words = ("provider_failed", "provider_answered", "breaker_opened", "breaker_closed")
    return [each.event for each in fleet.store.history("fleet") if each.event in words]


def send(fleet: Fleet, slot: int = 1) -> None:
    fleet.sender.send(slot, fleet.action(slot).idempotency_key)


def test_an_honest_provider_costs_no_commit_and_leaves_no_record(fleet: Fleet) -> None:
    fleet.submit("a")
    plan(fleet)
    revision = fleet.document.revision
    fleet.sender.send(1, fleet.action(1).idempotency_key, parked=fleet.pending[1])
    assert fleet.document.revision == revision + 1, "its apply alone"
    fleet.reconciler().reconcile()
    assert fleet.document.providers == {}


@pytest.mark.parametrize(
    ("outcome", "failures"),
    [
        (Unknown("no answer"), 1),
        (NotSent("no program"), 1),
        (Rejected("quota"), 0),
        (Pending(60_000), 0),
        (IdentityRefused("another disk"), 0),
    ],
)
def test_what_a_create_is_answered_counts(fleet: Fleet, outcome: Outcome, failures: int) -> None:
    parked_or_gone(fleet, outcome, C)
    assert health(fleet).failures == failures


def test_a_no_ends_the_row_of_failures_since_the_provider_answers(fleet: Fleet) -> None:
    parked_or_gone(fleet, Unknown("no answer"), C)
    assert health(fleet).failures == 1
    fleet.provider.script(C, Say(Rejected("quota")))
    fleet.reconciler().replay()
    assert health(fleet).failures == 0


def parked_or_gone(fleet: Fleet, outcome: Outcome, type_: ActionType) -> None:
    fleet.provider.script(type_, Say(outcome))
    fleet.submit("a")
    for _ in range(1 if type_ is C else 2):
        plan(fleet)
        fleet.sender.send(1, fleet.action(1).idempotency_key, parked=fleet.pending[1])


def test_an_action_that_was_not_sent_is_noted_with_its_trouble_in_one_commit(fleet: Fleet) -> None:
    fleet.provider.script(C, Say(NotSent("no program")))
    fleet.submit("a")
    plan(fleet)
    revision = fleet.document.revision
    fleet.sender.send(1, fleet.action(1).idempotency_key, parked=fleet.pending[1])
    assert fleet.document.revision == revision + 2, "the apply, and one more"
    assert (health(fleet).failures, health(fleet).why) == (1, "no program")
    assert fleet.document.troubles[-1].reason is Reason.NOT_SENT


def test_failures_in_a_row_open_the_breaker_and_a_success_after_its_dwell_closes_it(fleet: Fleet) -> None:
    breaker = fleet.policy.breaker
    parked(fleet, *[LoseUndone(f"no answer {n}") for n in range(breaker.failures)])
    for _ in range(breaker.failures - 1):
        assert breaker_state(health(fleet), breaker, fleet.clock.now_ms()) is BreakerState.CLOSED
        send(fleet)
    assert breaker_state(health(fleet), breaker, fleet.clock.now_ms()) is BreakerState.OPEN
    assert health(fleet).why == f"no answer {breaker.failures - 1}"
    fleet.clock.advance(breaker.dwell_ms / 1000 + 1)
    send(fleet)
    assert health(fleet).failures == 0
    assert breaker_state(health(fleet), breaker, fleet.clock.now_ms()) is BreakerState.CLOSED
    assert told(fleet) == ["provider_failed"] * (breaker.failures - 1) + ["breaker_opened", "breaker_closed"]


def test_a_success_begins_the_count_anew(fleet: Fleet) -> None:
    parked(fleet, LoseUndone(), Say(Pending(1)), LoseUndone())
    send(fleet)
    send(fleet)
    assert health(fleet).failures == 1
    assert told(fleet) == ["provider_failed", "provider_answered", "provider_failed"]


def test_a_replay_that_fails_is_no_try_of_a_half_open_breaker(fleet: Fleet) -> None:
    breaker = fleet.policy.breaker
    parked(fleet, *[LoseUndone()] * (breaker.failures + 1))
    for _ in range(breaker.failures - 1):
        send(fleet)
    opened = health(fleet).opened_at
    fleet.clock.advance(breaker.dwell_ms / 1000 + 1)
    send(fleet)
    assert health(fleet).opened_at == opened
    assert breaker_state(health(fleet), breaker, fleet.clock.now_ms()) is BreakerState.HALF_OPEN


def test_failures_of_several_threads_are_all_counted(fleet: Fleet) -> None:
    fleet.submit("a", "b", "c")
    plan(fleet)
    fleet.provider.script(C, *[LoseUndone()] * 3)
    # The fake clock goes on with every look at the lock: none of them shall give up.
    patient = replace(fleet.sender, context=replace(fleet.context, lock_timeout=1e9))
    keys = {slot: fleet.action(slot).idempotency_key for slot in (1, 2, 3)}
    threads = [threading.Thread(target=patient.send, args=each) for each in keys.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert health(fleet).failures == 3
