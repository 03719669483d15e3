"""Which times of a document are known to be past, and which slots a change gives a reason to plan for."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.engine.age import is_expired, latest_time
from controller.engine.due import changed_slots
from controller.engine.planner import plan
from controller.model.edit import Draft, apply_edit
from controller.model.mapping import Records
from controller.model.perform import Given, move_run
from controller.model.reason import Reason
from controller.model.records import ActionType, Disowned, Proven, Provider, Span
from controller.model.transition import Trigger
from tests.engine import operating as kit
from tests.engine.scenes import NOW, with_runs
from tests.engine.test_lifecycle import HOUR, PROOF, after_its_run

LATER = kit.NOW + HOUR
SPAN = Span(LATER - 1, LATER)
RAW = kit.minted()[1]


def given_up(**fields: Any) -> dict[str, Disowned]:
    return {"k": Disowned(RAW, kit.NOW, Reason.DISOWNED, **fields)}


DOCUMENTS = {
    "a cooldown began": kit.document(kit.worker(dark_at=LATER)),
    "it was seen idle": kit.document(kit.worker(idle_since=SPAN)),
    "it was not seen": kit.document(kit.worker(absent=SPAN)),
    "a breaker opened": kit.document(providers={"test": Provider(opened_at=LATER)}),
    "a breaker closed": kit.document(providers={"test": Provider(closed_at=LATER)}),
    "a disowned action was sent": kit.document(disowned=given_up(sent_at=LATER)),
    "a disowned action was not seen": kit.document(disowned=given_up(absent=SPAN)),
    "a disowned action was proven": kit.document(disowned=given_up(proven=Proven.ABSENT, proven_at=LATER)),
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_a_clock_behind_any_time_that_the_document_knows_counts_as_past_the_memory_of_keys(case: str) -> None:
    document = DOCUMENTS[case]
    entry = replace(kit.pending(), key_ttl_ms=100 * HOUR)
    assert latest_time(document) == LATER
    assert is_expired(document, entry, LATER - 1)
    assert not is_expired(document, entry, LATER)


def test_what_was_found_out_of_one_document_is_never_said_of_another() -> None:
    earlier = kit.document()
    later = replace(earlier, providers={"test": Provider(opened_at=LATER)})
    assert [latest_time(each) for each in (earlier, later, earlier)] == [kit.NOW, LATER, kit.NOW]


def test_what_follows_a_document_is_asked_for_what_differs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = with_runs(*(f"r{number}" for number in range(200)))
    assert latest_time(before) == NOW
    draft = Draft(before, now=NOW + 1, command="cancel")
    move_run(draft, "r7", Trigger.CANCEL_OBSERVED, Given(reason=Reason.CANCELLED))
    looked_at: list[int] = []
    project = Records.project

    def counted(records: Records[str, Any], kind: type[Any]) -> Any:
        looked_at.append(len(records))
        return project(records, kind)

    monkeypatch.setattr(Records, "project", counted)
    assert latest_time(apply_edit(before, draft.edit())) == NOW + 1
    assert looked_at == [1, 0]


def test_a_retried_run_whose_worker_waits_for_it_is_planned_for_without_a_look() -> None:
    document = after_its_run(PROOF, exit_code=1)
    draft = Draft(document, now=NOW, command="retry")
    move_run(draft, "a", Trigger.OPERATOR_RETRY, Given(reason=Reason.OPERATOR_RETRY))
    after = apply_edit(document, draft.edit())
    assert changed_slots(document, after) == frozenset({1})
    made = plan(after, None, PROOF, NOW, changed=changed_slots(document, after))
    assert [(each.slot, each.type) for each in made.parks] == [(1, ActionType.EXECUTE)]


def test_a_change_of_what_no_worker_has_is_no_reason_to_plan_for_any_slot() -> None:
    document = kit.document(kit.worker(), runs=(kit.run(), kit.run(id="b")))
    after = replace(document, runs={**document.runs, "b": kit.run(id="b", failures=1)})
    assert changed_slots(document, after) == frozenset()
