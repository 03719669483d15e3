"""The scripted provider goes wrong exactly as told, and is honest otherwise."""

from __future__ import annotations

import pytest

from controller.clock import FakeClock
from controller.model.action import Action
from controller.model.errors import ProviderFailed
from controller.model.inventory import Inventory, Seen, StepSeen
from controller.model.records import ActionType
from controller.provider.fake import After, Before, DoThenLose, FakeProvider, Later, LoseUndone, Say
from controller.provider.process import own_identity
from controller.provider.protocol import Done, Pending, Rejected, Unknown
from tests.provider.contract import LINEAGE, Asker, Sent

CREATE = ActionType.CREATE


class CallerDied(Exception):
    pass


def die(_: Action) -> None:
    raise CallerDied


@pytest.fixture
def fake() -> FakeProvider:
    return FakeProvider(LINEAGE)


@pytest.fixture
def ask(fake: FakeProvider) -> Asker:
    return Asker(fake, FakeClock())


@pytest.fixture
def create(ask: Asker) -> Sent:
    return ask.mint(CREATE)


def test_a_lost_answer_was_done_and_comes_with_the_same_key(fake: FakeProvider, ask: Asker, create: Sent) -> None:
    fake.script(CREATE, DoThenLose(process_lives=True))
    assert ask.once(create) == Unknown("the answer was lost", process_lives=True)
    assert set(fake.workers) == {1}
    assert isinstance(ask.once(create), Done)
    assert fake.done == [create[0].idempotency_key]
    assert fake.sends(1) == [(1, CREATE, create[0].idempotency_key)] * 2


def test_a_lost_request_did_nothing(fake: FakeProvider, ask: Asker, create: Sent) -> None:
    fake.script(CREATE, LoseUndone())
    assert isinstance(ask.once(create), Unknown)
    assert not fake.workers
    assert isinstance(ask.once(create), Done)


def test_what_is_said_neither_does_nor_remembers(fake: FakeProvider, ask: Asker, create: Sent) -> None:
    fake.script(CREATE, Say(Rejected("quota")))
    assert ask.once(create) == Rejected("quota")
    assert isinstance(ask.once(create), Done)


def test_later_is_pending_for_that_key_alone(fake: FakeProvider, ask: Asker, create: Sent) -> None:
    fake.script(CREATE, Later(2, 700))
    assert [ask.once(create) for _ in range(2)] == [Pending(700)] * 2
    assert isinstance(ask.once(ask.mint(CREATE, 2, assignment="a-2")), Done)
    assert isinstance(ask.once(create), Done)


def test_a_slots_script_goes_before_the_types(fake: FakeProvider, ask: Asker, create: Sent) -> None:
    fake.script(CREATE, LoseUndone("any"))
    fake.script(CREATE, LoseUndone("slot 1"), slot=1)
    assert [ask.once(create) for _ in range(2)] == [Unknown("slot 1"), Unknown("any")]


def test_a_caller_can_die_before_and_after_the_deed(fake: FakeProvider, ask: Asker, create: Sent) -> None:
    fake.script(CREATE, Before(die), After(die))
    with pytest.raises(CallerDied):
        ask.once(create)
    assert not fake.workers
    with pytest.raises(CallerDied):
        ask.once(create)
    assert set(fake.workers) == {1}


def test_looks_can_be_given_refused_and_hooked(fake: FakeProvider, ask: Asker, create: Sent) -> None:
    ask.done(create)
    fake.script_look(Inventory(False, ()), ProviderFailed("down"), lambda: fake.lose(1))
    assert not fake.inventory().complete
    with pytest.raises(ProviderFailed, match="down"):
        fake.inventory()
    assert [worker.state for worker in fake.inventory().workers] == [Seen.GONE]
    fake.vanish(1)
    assert fake.inventory() == Inventory(True, ())


def test_what_is_gone_is_not_listed_and_what_is_left_is(fake: FakeProvider, ask: Asker, create: Sent) -> None:
    ask.done(create)
    assert set(ask.worker().resources) == {"vm", "disk"}
    fake.lose(1)
    assert (ask.worker().state, set(ask.worker().resources)) == (Seen.GONE, {"disk"})
    fake.switch(1, on=True)
    assert ask.worker().state is Seen.GONE, "there is no vm to switch on"
    fake.vanish(1)
    assert ask.workers() == ()


def test_somebody_else_can_switch_a_worker_off_and_on_again(fake: FakeProvider, ask: Asker, create: Sent) -> None:
    ask.done(create)
    before = ask.worker()
    fake.switch(1, on=False)
    assert (ask.worker().state, ask.worker().resources) == (Seen.DARK, before.resources)
    fake.switch(1, on=True)
    assert ask.worker() == before


def test_steps_can_end_by_themselves(create: Sent) -> None:
    ask = Asker(FakeProvider(LINEAGE, ends=3), FakeClock())
    ask.done(create)
    sent = ask.execute(("false",))
    ask.done(sent)
    assert (ask.step(sent).state, ask.step(sent).exit_code) == (StepSeen.EXITED, 3)


def test_a_wait_tells_of_changes_once(fake: FakeProvider, ask: Asker, create: Sent) -> None:
    assert not fake.wait(5)
    ask.done(create)
    assert fake.wait(5)
    assert not fake.wait(5)


def test_it_registers_what_it_was_given(create: Sent) -> None:
    ask = Asker(FakeProvider(LINEAGE, register=(own_identity(), 99)), FakeClock())
    ask.done(create)
    assert ask.registered == [(own_identity(), 99)]
