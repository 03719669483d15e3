"""Abandon: a pending action that can never apply is asked for once more, and ended only by an answer or by looks."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.engine.abandon import Left
from controller.engine.disowned import blocks
from controller.model.errors import (
    ProviderFailed,
    SlotBusy,
    StorageFailed,
)
from controller.model.inventory import Inventory, Look
from controller.model.reason import Reason
from controller.model.records import ActionType, RunState, WorkerState
from controller.provider.fake import Before, DoThenLose, FakeProvider, LoseUndone, Say
from controller.provider.process import own_identity
from controller.provider.protocol import Done, IdentityRefused, NotSent, Pending, Rejected, Unknown
from controller.store.file import FileHold
from tests.engine.abandoning import (
    C,
    E,
    apart,
    give_up,
    parked,
    past_grace,
    resuming,
    taking_nothing,
    told,
)
from tests.engine.fleet import LINEAGE, Fleet

# What the answer says


def test_nothing_is_abandoned_without_being_sent_again_with_its_own_key(fleet: Fleet) -> None:
    key = parked(fleet, Say(IdentityRefused("another disk")), Say(IdentityRefused("another disk")))
    sends = fleet.provider.sends(1)
    answer = give_up(fleet)
    assert answer.outcome is Left.CLEARED
    assert fleet.provider.sends(1)[len(sends) :] == [(1, C, key)]


def test_the_send_is_counted_before_it_happens_and_says_who_wants_it_and_why(fleet: Fleet) -> None:
    counts: list[int] = []
    key = parked(fleet, LoseUndone(), Before(lambda _: counts.append(fleet.pending[1].sends)))
    give_up(fleet)
    assert counts == [2]
    assert told(fleet, "action.sent") == [(key, "send 2; by ops@example.org: it never ends; to be abandoned")]


def test_an_action_that_applies_now_is_applied_like_any_other(fleet: Fleet) -> None:
    parked(fleet, LoseUndone())
    answer = give_up(fleet)
    assert (answer.outcome, answer.reason, answer.run) == (Left.APPLIED, Reason.DONE, "a")
    assert fleet.document.workers[1].state is WorkerState.READY
    fleet.reconciler().reconcile()
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED
    assert told(fleet) == []


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Unknown("no answer"), Reason.UNKNOWN),
        (NotSent("no program"), Reason.NOT_SENT),
        (Pending(60_000), Reason.PENDING),
    ],
)
def test_what_is_not_definite_keeps_it_parked_and_says_so(
    fleet: Fleet, outcome: Unknown | NotSent | Pending, reason: Reason
) -> None:
    key = parked(fleet, LoseUndone(), Say(outcome))
    answer = give_up(fleet)
    assert (answer.outcome, answer.reason, answer.sends) == (Left.KEPT, reason, 2)
    assert fleet.action(1).idempotency_key == key
    assert told(fleet) == []


def test_a_create_that_was_refused_for_good_is_cleared_and_its_run_is_deferred(fleet: Fleet) -> None:
    key = parked(fleet, Say(Pending(60_000)), Say(Rejected("quota")))
    answer = give_up(fleet)
    assert (answer.outcome, answer.reason, answer.detail) == (Left.CLEARED, Reason.REJECTED, "quota")
    assert (fleet.pending, fleet.document.workers) == ({}, {})
    assert fleet.document.runs["a"].defer_reason is Reason.CREATE_REFUSED
    assert told(fleet) == [(key, "by ops@example.org: it never ends; cleared")]


def test_a_create_whose_resource_can_never_bind_is_cleared_and_made_anew_under_another_key(fleet: Fleet) -> None:
    key = parked(fleet, Say(IdentityRefused("another disk")), Say(IdentityRefused("another disk")))
    assert give_up(fleet).reason is Reason.IDENTITY_REFUSED
    assert not fleet.document.slots[1].cordoned
    fleet.clock.advance(3600)
    fleet.reconciler().reconcile()
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED
    assert fleet.provider.sends()[2][2] != key


def test_an_execute_whose_worker_can_never_bind_is_cleared_and_not_asked_again_until_somebody_says_so(
    fleet: Fleet,
) -> None:
    key = parked(fleet, Say(IdentityRefused("another disk")), Say(IdentityRefused("another disk")), type_=E)
    assert give_up(fleet).outcome is Left.CLEARED
    document = fleet.document
    assert document.slots[1].cordoned
    assert document.workers[1].reason is Reason.IDENTITY_REFUSED
    assert document.runs["a"].state is RunState.RUNNING
    assert told(fleet) == [(key, "by ops@example.org: it never ends; cleared")]
    sends = len(fleet.provider.sends())
    fleet.clock.advance(3600)
    fleet.reconciler().reconcile()
    assert len(fleet.provider.sends()) == sends
    assert fleet.pending == {}


def test_a_set_aside_worker_that_is_lost_gives_its_run_back(fleet: Fleet) -> None:
    parked(fleet, Say(IdentityRefused("another disk")), Say(IdentityRefused("another disk")), type_=E)
    give_up(fleet)
    fleet.provider.lose(1)
    fleet.clock.advance(1)
    fleet.reconciler().reconcile()
    assert fleet.document.runs["a"].reason is Reason.CRASHES_EXHAUSTED


def test_a_resume_whose_disk_can_never_bind_leaves_the_worker_as_it_was_and_set_aside(fleet: Fleet) -> None:
    key = resuming(fleet, *[Say(IdentityRefused("another disk"))] * 2)
    give_up(fleet)
    worker = fleet.document.workers[1]
    assert (worker.state, worker.generation, worker.reason) == (WorkerState.LOST, 1, Reason.IDENTITY_REFUSED)
    assert fleet.document.slots[1].cordoned
    assert [each for each, _ in told(fleet)] == [key]


# After an earlier send of unknown fate


def first_absence(fleet: Fleet) -> bool:
    return fleet.pending[1].absent is not None


@pytest.mark.parametrize("outcome", [Rejected("quota"), IdentityRefused("another disk")])
def test_a_create_of_unknown_fate_is_cleared_only_by_two_empty_looks_a_grace_time_after_its_last_send(
    fleet: Fleet, outcome: Rejected | IdentityRefused
) -> None:
    key = parked(fleet, LoseUndone(), Say(outcome))
    assert give_up(fleet).outcome is Left.KEPT
    sends = len(fleet.provider.sends())
    assert give_up(fleet).outcome is Left.KEPT, "a look inside the grace time proves nothing"
    assert not first_absence(fleet)
    past_grace(fleet)
    assert give_up(fleet).outcome is Left.KEPT, "one look is not two"
    assert first_absence(fleet)
    assert give_up(fleet).outcome is Left.KEPT, "a look that is not apart is the same look"
    apart(fleet)
    answer = give_up(fleet)
    assert (answer.outcome, answer.reason) == (Left.CLEARED, Reason.PROVEN_ABSENT)
    assert len(fleet.provider.sends()) == sends, "the final no was said: nothing is sent again"
    assert [each for each, _ in told(fleet)] == [key, key]
    assert fleet.document.workers == {}


@pytest.mark.parametrize("outcome", [Rejected("name taken"), IdentityRefused("another disk")])
def test_a_create_of_unknown_fate_that_a_look_shows_is_recorded(
    fleet: Fleet, outcome: Rejected | IdentityRefused
) -> None:
    parked(fleet, DoThenLose(), Say(outcome))
    answer = give_up(fleet)
    assert (answer.outcome, answer.detail.startswith("a look shows it")) == (Left.APPLIED, True)
    assert fleet.document.workers[1].state is WorkerState.READY


@pytest.mark.parametrize("outcome", [Rejected("stopping"), IdentityRefused("another disk")])
def test_an_execute_of_unknown_fate_is_cleared_once_a_look_omits_its_key(
    fleet: Fleet, outcome: Rejected | IdentityRefused
) -> None:
    parked(fleet, LoseUndone(), Say(outcome), type_=E)
    assert give_up(fleet).outcome is Left.KEPT
    past_grace(fleet)
    answer = give_up(fleet)
    assert (answer.outcome, answer.reason) == (Left.CLEARED, Reason.PROVEN_ABSENT)
    worker, set_aside = fleet.document.workers[1], isinstance(outcome, IdentityRefused)
    assert (worker.reason is Reason.IDENTITY_REFUSED, fleet.document.slots[1].cordoned) == (set_aside, set_aside)
    assert fleet.document.runs["a"].state is RunState.RUNNING


def test_an_execute_of_unknown_fate_that_a_look_lists_is_accepted(fleet: Fleet) -> None:
    parked(fleet, DoThenLose(), Say(IdentityRefused("another disk")), type_=E)
    answer = give_up(fleet)
    assert answer.outcome is Left.APPLIED
    fleet.reconciler().reconcile()
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED


def test_what_was_given_up_is_cleared_by_an_ordinary_reconcile_as_well(fleet: Fleet) -> None:
    key = parked(fleet, LoseUndone(), Say(IdentityRefused("another disk")), type_=E)
    give_up(fleet)
    past_grace(fleet)
    fleet.reconciler().reconcile()
    assert fleet.pending == {}
    assert fleet.document.workers[1].reason is Reason.IDENTITY_REFUSED
    assert told(fleet)[0][0] == key


def test_a_worker_that_a_look_shows_gone_ends_its_execute_whatever_the_answer(fleet: Fleet) -> None:
    parked(fleet, *[LoseUndone()] * 9, type_=E)
    fleet.provider.lose(1)
    answer = give_up(fleet)
    assert (answer.outcome, answer.reason) == (Left.CLEARED, Reason.WORKER_LOST)
    assert [ended.run for ended in answer.ended] == ["a"]
    assert fleet.document.runs["a"].reason is Reason.CRASHES_EXHAUSTED


@pytest.mark.parametrize("type_", [C, E])
def test_past_its_providers_memory_nothing_is_sent_and_two_looks_stand_in(fleet: Fleet, type_: ActionType) -> None:
    fleet.provider = FakeProvider(LINEAGE, ends=0, key_ttl_ms=600_000)
    parked(fleet, LoseUndone(), type_=type_)
    sends = len(fleet.provider.sends())
    fleet.clock.advance(3600)
    answers = [give_up(fleet)]
    while answers[-1].outcome is Left.KEPT:
        apart(fleet)
        answers.append(give_up(fleet))
    assert [each.outcome for each in answers] == [Left.KEPT] * (1 if type_ is C else 0) + [Left.CLEARED]
    assert len(fleet.provider.sends()) == sends
    assert len(told(fleet)) == 1


def test_past_its_providers_memory_what_a_look_shows_is_recorded(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE, ends=0, key_ttl_ms=600_000)
    parked(fleet, DoThenLose())
    fleet.clock.advance(3600)
    assert give_up(fleet).outcome is Left.APPLIED
    assert len(fleet.provider.sends()) == 1


# A result that the document cannot take


def test_a_create_that_the_document_cannot_take_is_disowned_with_every_id(fleet: Fleet) -> None:
    fleet.submit("a")
    with taking_nothing():
        fleet.reconciler().reconcile()
        key = fleet.action(1).idempotency_key
        answer = give_up(fleet)
    made = fleet.provider.workers[1].seen
    record = fleet.document.disowned[key]
    assert (answer.outcome, answer.reason) == (Left.DISOWNED, Reason.APPLY_FAILED)
    assert (record.reason, record.by, record.proven) == (Reason.APPLY_FAILED, "ops@example.org", None)
    for named in (made.id, *(resource.id for resource in made.resources.values()), "resource-owner"):
        assert named in record.detail
    assert (fleet.pending, fleet.document.workers) == ({}, {})
    assert fleet.document.runs["a"].defer_reason is Reason.CREATE_REFUSED
    assert blocks(fleet.document, 1)
    assert [event for event, _ in told(fleet)] == [key]
    assert len(fleet.provider.done) == 1


def test_two_records_that_claim_one_resource_are_never_made_by_abandoning(fleet: Fleet) -> None:
    fleet.submit("a", "b")
    fleet.park()
    fleet.sender.send(1, fleet.action(1).idempotency_key)
    first = fleet.provider.workers[1].seen
    action = fleet.action(2)
    twin = replace(first, slot=2, assignment=action.assignment)
    fleet.provider.script(C, Say(Done(twin)), Say(Done(twin)))
    fleet.sender.send(2, action.idempotency_key)
    assert fleet.pending[2].last_reason is Reason.APPLY_FAILED
    assert give_up(fleet, slot=2).outcome is Left.DISOWNED
    assert list(fleet.document.workers) == [1]
    assert "resource-owner" in fleet.document.disowned[action.idempotency_key].detail


def test_a_resume_that_the_document_cannot_take_is_disowned_and_its_worker_is_as_it_was(fleet: Fleet) -> None:
    key = resuming(fleet, LoseUndone())
    with taking_nothing():
        assert give_up(fleet).outcome is Left.DISOWNED
    worker = fleet.document.workers[1]
    assert (worker.state, worker.generation, worker.run) == (WorkerState.LOST, 1, "a")
    assert list(fleet.document.disowned) == [key]


def test_a_disowned_execute_leaves_its_run_running_and_held(fleet: Fleet) -> None:
    parked(fleet, LoseUndone(), type_=E)
    with taking_nothing():
        assert give_up(fleet).outcome is Left.DISOWNED
    run = fleet.document.runs["a"]
    assert run.state is RunState.RUNNING
    assert run.worker is not None
    assert fleet.document.workers[1].run == "a"


def test_past_its_providers_memory_a_create_that_looks_show_and_the_document_cannot_take_is_disowned(
    fleet: Fleet,
) -> None:
    fleet.provider = FakeProvider(LINEAGE, ends=0, key_ttl_ms=600_000)
    key = parked(fleet, DoThenLose())
    fleet.clock.advance(3600)
    with taking_nothing():
        assert give_up(fleet).outcome is Left.DISOWNED
    assert fleet.document.disowned[key].reason is Reason.APPLY_FAILED
    assert len(fleet.provider.sends()) == 1


def test_a_full_disk_is_nothing_that_the_document_cannot_take(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = FileHold.commit
    key = parked(fleet, LoseUndone())

    def full(self: FileHold, loaded: object, edit: object, **more: object) -> object:
        if fleet.provider.done:
            raise StorageFailed("no space left on the device")
        return commit(self, loaded, edit, **more)  # type: ignore[arg-type] # what it takes

    with monkeypatch.context() as patch:
        patch.setattr(FileHold, "commit", full)
        answer = give_up(fleet)
    assert (answer.outcome, isinstance(answer.unsaved, StorageFailed)) == (Left.KEPT, True)
    assert fleet.document.disowned == {}
    assert give_up(fleet, key).outcome is Left.APPLIED


# A provider that is gone for good


@pytest.mark.parametrize("outcome", [Unknown("no route to host"), NotSent("no program")])
def test_what_nobody_answers_for_any_more_is_sent_once_more_and_then_disowned(
    fleet: Fleet, outcome: Unknown | NotSent
) -> None:
    key = parked(fleet, LoseUndone(), Say(outcome))
    answer = give_up(fleet, unresolved=True, look=lambda: None)
    assert (answer.outcome, answer.reason) == (Left.DISOWNED, Reason.DISOWNED)
    assert [each for _, _, each in fleet.provider.sends()] == [key, key]
    record = fleet.document.disowned[key]
    assert (record.reason, record.by, outcome.reason in record.detail) == (Reason.DISOWNED, "ops@example.org", True)
    assert fleet.document.workers == {}
    assert blocks(fleet.document, 1)
    assert fleet.document.troubles[-1].reason is Reason.DISOWNED


@pytest.mark.parametrize(
    ("outcome", "left"),
    [(None, Left.APPLIED), (Rejected("quota"), Left.KEPT), (Pending(60_000), Left.KEPT)],
)
def test_with_an_answer_an_unresolved_abandon_does_what_that_says(
    fleet: Fleet, outcome: Rejected | Pending | None, left: Left
) -> None:
    parked(fleet, LoseUndone(), *([] if outcome is None else [Say(outcome)]))
    assert give_up(fleet, unresolved=True, look=lambda: None).outcome is left
    assert fleet.document.disowned == {}


def test_an_unresolved_abandon_believes_a_look_before_it_disowns(fleet: Fleet) -> None:
    parked(fleet, *[LoseUndone()] * 9, type_=E)
    fleet.provider.lose(1)
    assert give_up(fleet, unresolved=True).reason is Reason.WORKER_LOST
    assert fleet.document.disowned == {}


def test_what_is_too_old_to_be_sent_is_disowned_only_while_no_look_can_be_had(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE, ends=0, key_ttl_ms=600_000)
    key = parked(fleet, LoseUndone())
    fleet.clock.advance(3600)
    assert give_up(fleet, unresolved=True).outcome is Left.KEPT, "a first look says so; another must"
    fleet.provider.script_look(Inventory(False, ()))
    assert give_up(fleet, unresolved=True).outcome is Left.DISOWNED
    assert list(fleet.document.disowned) == [key]
    assert len(fleet.provider.sends()) == 1


def test_a_look_that_fails_is_no_look(fleet: Fleet) -> None:
    def speechless() -> Look | None:
        raise ProviderFailed("no answer")

    parked(fleet, *[LoseUndone()] * 2)
    assert give_up(fleet, unresolved=True, look=speechless).outcome is Left.DISOWNED


def test_nothing_is_disowned_while_a_provider_process_works_on_it(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE, register=(own_identity(), fleet.clock.now_ms() + 60_000))
    fleet.submit("a")
    fleet.park()
    key = fleet.action(1).idempotency_key
    fleet.provider.script(C, LoseUndone(process_lives=True))
    answer = give_up(fleet, unresolved=True, look=lambda: None)
    assert (answer.outcome, "still runs" in answer.detail) == (Left.KEPT, True)
    with pytest.raises(SlotBusy):
        give_up(fleet, key, unresolved=True, provider_gone=True)
    assert fleet.action(1).idempotency_key == key
