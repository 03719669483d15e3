"""The part of the conformance suite that is about resume: new compute for data that is there.

A resume is a create of the same assignment in the next generation, naming the resources that were recorded. What
counts as data a suite need not say: it is what is still listed once the compute was deleted.
"""

from __future__ import annotations

import pytest
from msgspec import structs

from controller.model.inventory import Seen, SeenWorker, StepSeen
from controller.model.records import ActionType
from controller.provider.protocol import Done, IdentityRefused, Rejected
from tests.provider.asker import SLEEP, TEARDOWN, Asker, Sent

ENDINGS = ("switched off", "deleted", "lost")
"""How compute can end, and its data be left."""


class ResumeContract:
    def finish(self, ask: Asker, sent: Sent, exit_code: int) -> None:
        """End the step, where it does not end by itself."""

    def lose(self, ask: Asker) -> bool:
        """The compute of the one worker ends though nobody asked for that. False: that cannot be arranged here."""
        return False

    @pytest.fixture(params=ENDINGS)
    def left(self, request: pytest.FixtureRequest, ask: Asker) -> SeenWorker:
        """A worker as it was while it computed, whose compute has ended in one of these ways since."""
        ask.create()
        worker = ask.worker()
        if request.param == "lost":
            if not self.lose(ask):
                pytest.skip("its compute cannot be lost")
            return worker
        for kind in TEARDOWN[: 1 + ENDINGS.index(request.param)]:
            ask.done(ask.mint(kind, resources=worker.resources))
        return worker

    def resume(self, ask: Asker, worker: SeenWorker) -> Sent:
        return ask.create(generation=2, resources=worker.resources)

    def data_of(self, ask: Asker) -> set[str]:
        """The names of the resources that are data."""
        slot, assignment = 9, "a-9"
        ask.create(slot, assignment=assignment)
        for kind in TEARDOWN[:2]:
            ask.done(ask.mint(kind, slot, assignment=assignment))
        names = {name for worker in ask.workers() if worker.slot == slot for name in worker.resources}
        ask.done(ask.mint(ActionType.RESET, slot, assignment=assignment))
        return names

    def test_data_is_listed_under_its_identity_until_it_is_reset_and_compute_until_it_is_gone(self, ask: Asker) -> None:
        ask.create()
        whole = ask.worker().resources
        ask.done(ask.mint(ActionType.DEALLOCATE))
        ask.done(ask.mint(ActionType.DELETE_COMPUTE))
        data = ask.worker().resources
        assert data, "what is left is listed"
        assert dict(whole) == {**whole, **data}, "it is what it was"
        ask.done(ask.mint(ActionType.RESET))
        assert ask.workers() == ()

    def test_a_slot_that_is_used_again_has_other_data_whatever_it_is_called(self, ask: Asker) -> None:
        ask.create()
        first = ask.worker().resources
        for kind in TEARDOWN:
            ask.done(ask.mint(kind))
        ask.create(assignment="a-2")
        second = ask.worker().resources
        assert [name for name in first if second.get(name) == first[name]] == []

    def test_a_resume_makes_new_compute_for_the_same_data(self, ask: Asker, left: SeenWorker) -> None:
        data = self.data_of(ask)
        self.resume(ask, left)
        made = ask.worker()
        assert (made.assignment, made.generation, made.state) == (left.assignment, 2, Seen.READY)
        kept = {name for name, resource in made.resources.items() if left.resources.get(name) == resource}
        assert kept == data

    def test_a_resume_sent_again_makes_nothing_more(self, ask: Asker, left: SeenWorker) -> None:
        sent = self.resume(ask, left)
        made = ask.worker()
        ask.done(sent)
        assert ask.worker() == made

    def test_steps_of_the_generation_before_are_listed_until_they_are_settled(self, ask: Asker) -> None:
        ask.create()
        old = ask.execute(("sh", "-c", "exit 7"))
        ask.done(old)
        self.finish(ask, old, 7)
        end = ask.ended(old)
        ask.done(ask.mint(ActionType.DEALLOCATE))
        ask.create(generation=2)
        assert ask.step(old) == end
        new = ask.execute(SLEEP, run="r-2", generation=2, settled=(old[0].idempotency_key,))
        ask.done(new)
        assert set(ask.steps()) == {new[0].idempotency_key}

    @pytest.mark.parametrize("kind", TEARDOWN)
    def test_after_a_resume_what_was_meant_for_the_generation_before_ends_nothing(
        self, ask: Asker, kind: ActionType
    ) -> None:
        ask.create()
        ask.done(ask.mint(ActionType.DEALLOCATE))
        late = ask.mint(kind)
        ask.create(generation=2)
        running = ask.execute(SLEEP, generation=2)
        ask.done(running)
        assert isinstance(ask.settle(late), Rejected)
        assert (ask.worker().generation, ask.worker().state) == (2, Seen.READY)
        assert ask.step(running).state is StepSeen.RUNNING

    def test_after_a_resume_a_late_create_of_the_generation_before_makes_nothing(self, ask: Asker) -> None:
        first = ask.create()
        ask.done(ask.mint(ActionType.DEALLOCATE))
        ask.create(generation=2)
        made = ask.worker()
        for late in (first, ask.mint(ActionType.CREATE)):
            assert isinstance(ask.settle(late), (Done, Rejected)), "a known key gets its answer again"
            assert ask.worker() == made

    def test_after_a_resume_a_late_execute_of_the_generation_before_starts_nothing(self, ask: Asker) -> None:
        ask.create()
        late = ask.execute(SLEEP)
        ask.done(ask.mint(ActionType.DEALLOCATE))
        ask.create(generation=2)
        assert isinstance(ask.settle(late), Rejected)
        assert ask.steps() == {}

    def test_after_a_resume_a_known_execute_is_answered_and_not_done_again(self, ask: Asker) -> None:
        ask.create()
        old = ask.execute(("true",))
        ask.done(old)
        self.finish(ask, old, 0)
        end = ask.ended(old)
        ask.done(ask.mint(ActionType.DEALLOCATE))
        ask.create(generation=2)
        ask.done(old)
        assert ask.steps() == {old[0].idempotency_key: end}

    def test_a_resume_lowers_no_token(self, ask: Asker) -> None:
        ask.create()
        old = ask.execute(("true",), token=5)
        ask.done(old)
        self.finish(ask, old, 0)
        ask.ended(old)
        ask.done(ask.mint(ActionType.DEALLOCATE))
        ask.create(generation=2)
        late, current = ask.execute(SLEEP, token=4, generation=2), ask.execute(SLEEP, token=5, generation=2)
        assert isinstance(ask.settle(late), Rejected)
        ask.done(current)

    def test_a_resume_while_its_compute_is_on_is_rejected_and_changes_nothing(self, ask: Asker) -> None:
        ask.create()
        running = ask.execute(SLEEP)
        ask.done(running)
        worker = ask.worker()
        outcome = ask.settle(ask.mint(ActionType.CREATE, generation=2, resources=worker.resources))
        assert isinstance(outcome, Rejected)
        assert ask.worker() == worker

    def test_another_create_of_the_same_generation_is_rejected_and_switches_nothing_on(self, ask: Asker) -> None:
        ask.create()
        ask.done(ask.mint(ActionType.DEALLOCATE))
        assert isinstance(ask.settle(ask.mint(ActionType.CREATE)), Rejected)
        assert ask.worker().state is Seen.DARK

    def test_a_resume_for_other_data_is_refused_and_changes_nothing(self, ask: Asker) -> None:
        ask.create()
        whole = ask.worker().resources
        ask.done(ask.mint(ActionType.DEALLOCATE))
        dark = ask.worker()
        other = {name: structs.replace(each, immutable_id="another") for name, each in whole.items()}
        outcome = ask.settle(ask.mint(ActionType.CREATE, generation=2, resources=other))
        assert isinstance(outcome, (Rejected, IdentityRefused))
        assert ask.worker() == dark

    def test_a_resume_for_data_that_is_gone_is_rejected_and_makes_nothing(self, ask: Asker) -> None:
        ask.create()
        worker = ask.worker()
        for kind in TEARDOWN:
            ask.done(ask.mint(kind))
        outcome = ask.settle(ask.mint(ActionType.CREATE, generation=2, resources=worker.resources))
        assert isinstance(outcome, Rejected)
        assert ask.workers() == ()

    @pytest.mark.parametrize("kind", TEARDOWN)
    def test_a_teardown_that_names_another_resource_is_refused_and_ends_nothing(
        self, ask: Asker, kind: ActionType
    ) -> None:
        ask.create()
        worker = ask.worker()
        other = {name: structs.replace(each, immutable_id="another") for name, each in worker.resources.items()}
        outcome = ask.settle(ask.mint(kind, resources=other))
        assert isinstance(outcome, (Rejected, IdentityRefused))
        assert ask.worker() == worker
