"""Abandon: which action is meant, who may end it, and several who try at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from controller.engine.abandon import Left
from controller.engine.queue import cancel
from controller.model.action import Action
from controller.model.errors import (
    Conflict,
    NotFound,
    SlotBusy,
    SlotUnproven,
    UsageFault,
)
from controller.model.process import ProcessIdentity
from controller.model.records import RunState
from controller.provider.fake import After, Before, FakeProvider, LoseUndone
from controller.provider.process import boot_id, own_identity
from tests.engine.abandoning import (
    E,
    give_up,
    parked,
    told,
)
from tests.engine.fleet import LINEAGE, Fleet

# Whose provider process nobody can see


def unseen(fleet: Fleet) -> None:
    with fleet.store.hold_slot(1) as held:
        held.register(ProcessIdentity(77, 1, boot_id(), "pid:[1]"), 0, "key")


def scribbled(fleet: Fleet) -> None:
    with fleet.store.hold_slot(1):
        pass
    (path,) = (fleet.directory / "slots").glob("*1.lock")
    path.write_bytes(b"\0" * 100)


@pytest.mark.parametrize("hide", [unseen, scribbled])
def test_a_provider_process_that_nobody_can_see_counts_as_gone_only_on_somebodys_word(
    fleet: Fleet, hide: Callable[[Fleet], None]
) -> None:
    key = parked(fleet, LoseUndone())
    hide(fleet)
    for dry_run in (True, False):
        with pytest.raises(SlotUnproven) as unproven:
            give_up(fleet, dry_run=dry_run)
        assert (f"abandon 1 --key {key} --provider-gone" in unproven.value.next) == (hide is unseen)
    assert len(fleet.provider.sends()) == 1
    assert give_up(fleet, provider_gone=True, dry_run=True).outcome is Left.WOULD_SEND
    assert told(fleet, "provider_gone") == []
    assert give_up(fleet, provider_gone=True).outcome is Left.APPLIED
    ((about, detail),) = told(fleet, "provider_gone")
    assert about == key
    assert "by ops@example.org: it never ends; slot 1: " in (detail or "")
    note = fleet.store.slot_note(1)
    assert (note.readable, note.provider) == (True, None)


def test_a_provider_process_that_provably_lives_is_refused_whatever_anybody_says(fleet: Fleet) -> None:
    parked(fleet, LoseUndone())
    with fleet.store.hold_slot(1) as held:
        held.register(own_identity(), fleet.clock.now_ms() + 60_000, "key")
    for dry_run in (True, False):
        with pytest.raises(SlotBusy, match="deadline in 60 s"):
            give_up(fleet, provider_gone=True, dry_run=dry_run)
    assert (len(fleet.provider.sends()), told(fleet, "provider_gone")) == (1, [])


# Which action is meant


def test_a_beginning_of_the_key_is_enough_but_not_too_little_of_it(fleet: Fleet) -> None:
    key = parked(fleet, LoseUndone())
    with pytest.raises(UsageFault, match="12 characters"):
        give_up(fleet, key[:11])
    assert give_up(fleet, key[:12]).key == key


def test_another_pending_action_is_named_and_left_alone(fleet: Fleet) -> None:
    key = parked(fleet, LoseUndone())
    with pytest.raises(Conflict, match=key):
        give_up(fleet, "0" * 64)
    assert len(fleet.provider.sends()) == 1


def test_twice_says_that_it_is_settled_and_sends_nothing(fleet: Fleet) -> None:
    key = parked(fleet, LoseUndone())
    give_up(fleet)
    answer = give_up(fleet, key[:12])
    assert (answer.outcome, answer.key) == (Left.SETTLED_BEFORE, key)
    assert len(fleet.provider.sends()) == 2


def test_twice_says_that_it_is_disowned_and_sends_nothing(fleet: Fleet) -> None:
    key = parked(fleet, *[LoseUndone()] * 2)
    give_up(fleet, unresolved=True, look=lambda: None)
    for dry_run in (True, False):
        answer = give_up(fleet, key[:12], unresolved=True, dry_run=dry_run)
        assert (answer.outcome, answer.key, answer.run) == (Left.DISOWNED_BEFORE, key, "a")
    assert len(fleet.provider.sends()) == 2


def test_a_key_that_nobody_knows_is_not_found(fleet: Fleet) -> None:
    with pytest.raises(NotFound, match="never had an action"):
        give_up(fleet, "0" * 64)
    with pytest.raises(NotFound):
        give_up(fleet, "0" * 64, slot=10_001)


def test_a_dry_run_says_what_would_be_and_changes_nothing(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE, ends=0, key_ttl_ms=600_000)
    parked(fleet, LoseUndone())
    before, calls = fleet.bytes(), len(fleet.provider.calls)
    assert give_up(fleet, dry_run=True).outcome is Left.WOULD_SEND
    fleet.clock.advance(3600)
    answer = give_up(fleet, dry_run=True)
    assert (answer.outcome, answer.pending) == (Left.WOULD_LOOK, True)
    assert (fleet.bytes(), len(fleet.provider.calls)) == (before, calls)


# At the same time


@pytest.mark.parametrize("hook", [Before, After])
def test_while_one_abandons_another_is_refused_as_busy_and_finds_it_settled_afterwards(
    fleet: Fleet, hook: type[Before | After]
) -> None:
    found: list[object] = []

    def other(action: Action) -> None:
        def try_it() -> None:
            try:
                found.append(give_up(fleet, action.idempotency_key))
            except SlotBusy as busy:
                found.append(busy)

        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()

    key = parked(fleet, LoseUndone(), hook(other))
    assert give_up(fleet).outcome is Left.APPLIED
    assert [type(each) for each in found] == [SlotBusy]
    assert give_up(fleet, key).outcome is Left.SETTLED_BEFORE
    assert len(fleet.provider.sends()) == 2


def test_many_at_once_end_it_once(fleet: Fleet) -> None:
    key = parked(fleet, *[LoseUndone()] * 20)
    found: list[str] = []

    def try_it() -> None:
        while True:
            try:
                found.append(give_up(fleet, key, unresolved=True, look=lambda: None).outcome)
            except SlotBusy:
                continue
            return

    threads = [threading.Thread(target=try_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [Left.DISOWNED_BEFORE] * 3 + [Left.DISOWNED]
    assert (len(told(fleet)), list(fleet.document.disowned)) == (1, [key])


def test_a_submit_in_the_middle_is_kept(fleet: Fleet) -> None:
    parked(fleet, LoseUndone(), Before(lambda _: fleet.submit("b")))
    assert give_up(fleet).outcome is Left.APPLIED
    assert set(fleet.document.runs) == {"a", "b"}


def test_a_cancel_in_the_middle_takes_effect(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)

    def take_back(_: Action) -> None:
        cancel(fleet.context, "a")

    parked(fleet, LoseUndone(), Before(take_back), type_=E)
    assert give_up(fleet).outcome is Left.APPLIED
    fleet.reconciler().reconcile()
    assert fleet.document.runs["a"].state is RunState.CANCELLED
