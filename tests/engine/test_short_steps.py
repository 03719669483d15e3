"""A step that has ended by the time its execute is answered has the times that it had."""

from __future__ import annotations

from pathlib import Path

from msgspec import Raw
from msgspec.structs import replace

from controller.model.action import Action
from controller.model.inventory import SeenStep, StepSeen
from controller.model.records import ActionType
from controller.provider.fake import FakeProvider
from controller.provider.protocol import Done, Outcome, Register
from tests.engine.fleet import LINEAGE, Fleet


def test_an_end_that_comes_with_the_answer_is_recorded_when_it_was(tmp_path: Path) -> None:
    """Not when its answer was applied, which may have waited for the document."""

    class Quick(FakeProvider):
        def mutate(self, action: Action, raw: Raw, register: Register) -> Outcome:
            outcome = super().mutate(action, raw, register)
            if action.type is not ActionType.EXECUTE or not isinstance(outcome, Done):
                return outcome
            fleet.clock.advance(5)
            ended = fleet.clock.now_ms()
            fleet.clock.advance(60)
            return replace(outcome, step=SeenStep(action.idempotency_key, StepSeen.EXITED, 0, ended_at=ended))

    fleet = Fleet(tmp_path / "state", FakeProvider(LINEAGE))
    fleet.provider = Quick(LINEAGE)
    fleet.submit("a")
    began = fleet.clock.now_ms()
    fleet.reconciler().reconcile()
    (attempt,) = fleet.document.finished["a"].steps[0].attempts
    assert attempt.ended_at is not None
    assert (attempt.started_at - began, attempt.ended_at - began) == (0, 5_000)
