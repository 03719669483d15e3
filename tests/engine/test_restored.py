"""After a restore: nothing of an earlier epoch is sent, looks settle it, and nobody reports under an old token."""

from __future__ import annotations

import pytest
from msgspec import Raw

from controller.engine import leases
from controller.engine.queue import cancel, submit
from controller.engine.story import tell_run, tell_slot
from controller.engine.submission import Submission
from controller.engine.upkeep import reap
from controller.model.action import action_of, decode
from controller.model.errors import TransitionRefused
from controller.model.reason import Reason
from controller.model.records import ActionType, Document, RunState, Step, WorkerState
from controller.provider.fake import DoThenLose, FakeProvider, LoseUndone
from controller.store.backups import back_up
from controller.store.restore import Restored, restore
from tests.engine.abandoning import C, E, apart, past_grace, plan
from tests.engine.fleet import LINEAGE, Fleet


class Backup:
    """A backup of *fleet* as it is now, to be put back."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.file = back_up(fleet.store, None).path
        self.times = 0

    def put_back(self) -> Restored:
        self.times += 1
        return restore(self.fleet.store, self.file, epoch=f"e{self.times}", acknowledge=True, timeout=1)


def moved_on(fleet: Fleet) -> None:
    """A revision that the restore goes back over."""
    fleet.submit("z")


def looked_twice(fleet: Fleet) -> None:
    """Two looks that count as two, both a grace time after whatever was sent last."""
    past_grace(fleet)
    fleet.reconciler().reconcile()
    apart(fleet)
    fleet.reconciler().reconcile()


def sent(fleet: Fleet, type_: ActionType) -> list[str | None]:
    assert isinstance(fleet.provider, FakeProvider)
    return [key for _, kind, key in fleet.provider.sends() if kind is type_]


def pending_key(document: Document, slot: int = 1) -> str:
    return action_of(document.pending_actions[slot]).idempotency_key


@pytest.mark.parametrize("done", [True, False], ids=["it was done", "it was not"])
def test_a_create_that_comes_back_is_never_sent_again_and_looks_settle_it(fleet: Fleet, done: bool) -> None:
    fleet.provider.script(C, DoThenLose() if done else LoseUndone())
    fleet.submit("a")
    plan(fleet)
    key = pending_key(fleet.document)
    fleet.sender.send(1, key, parked=fleet.pending[1])
    backup = Backup(fleet)
    moved_on(fleet)
    backup.put_back()
    fleet.reconciler().replay()
    fleet.reconciler().reconcile()
    assert sent(fleet, C).count(key) == 1
    looked_twice(fleet)
    looked_twice(fleet)
    assert sent(fleet, C).count(key) == 1
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED
    assert 1 not in fleet.pending
    assert len(sent(fleet, C)) == (1 if done else 2)


def test_whoever_has_just_parked_an_action_does_not_send_it_once_it_came_back(fleet: Fleet) -> None:
    fleet.submit("a")
    plan(fleet)
    parked = fleet.pending[1]
    backup = Backup(fleet)
    moved_on(fleet)
    backup.put_back()
    answer = fleet.sender.send(1, action_of(parked).idempotency_key, parked=parked)
    assert (answer.reason, answer.settled) == (Reason.KEY_EXPIRED, False)
    assert fleet.provider.sends() == []


def test_an_execute_that_was_accepted_is_known_by_its_key_and_its_step_is_not_done_twice(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    fleet.provider.script(E, DoThenLose())
    fleet.submit("a")
    for _ in (C, E):
        plan(fleet)
        fleet.sender.send(1, pending_key(fleet.document), parked=fleet.pending[1])
    key = pending_key(fleet.document)
    backup = Backup(fleet)
    moved_on(fleet)
    backup.put_back()
    token = fleet.document.runs["a"].attempts
    assert action_of(fleet.pending[1]).token != token
    past_grace(fleet)
    fleet.reconciler().reconcile()
    run = fleet.document.runs["a"]
    assert 1 not in fleet.pending
    assert [attempt.key for attempt in run.steps[0].attempts] == [key]
    fleet.provider.end_step(key, exit_code=0)
    fleet.reconciler().reconcile()
    assert fleet.document.finished["a"].token == token
    assert sent(fleet, E).count(key) == 1


def test_a_cancel_that_comes_back_is_settled_by_the_end_of_its_step(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    cancel(fleet.context, "a")
    fleet.provider.script(ActionType.CANCEL, DoThenLose())
    plan(fleet)
    fleet.sender.send(1, pending_key(fleet.document), parked=fleet.pending[1])
    backup = Backup(fleet)
    moved_on(fleet)
    backup.put_back()
    looked_twice(fleet)
    assert fleet.document.runs["a"].state is RunState.CANCELLED
    assert len(sent(fleet, ActionType.CANCEL)) == 1


def test_a_worker_that_was_removed_since_is_lost_by_two_looks_and_its_run_goes_on_elsewhere(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    fleet.submit("a", attempts=3)
    fleet.reconciler().reconcile()
    backup = Backup(fleet)
    fleet.provider.vanish(1)
    moved_on(fleet)
    backup.put_back()
    before = fleet.document.runs["a"]
    assert before.state is RunState.RUNNING
    looked_twice(fleet)
    worker = fleet.document.workers.get(1)
    assert worker is None or worker.state is not WorkerState.ASSIGNED
    assert fleet.document.runs["a"].crashes == 1


def test_what_was_made_in_lost_revisions_keeps_its_slot_closed_until_looks_say_that_it_is_gone(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    backup = Backup(fleet)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    lost = fleet.document.workers[1]
    backup.put_back()
    fleet.submit("b")
    fleet.reconciler().reconcile()
    assert list(fleet.document.workers) == [2]
    assert fleet.provider.workers[1].seen.assignment == lost.assignment
    (known,) = fleet.document.slots[1].unrecorded
    assert (known.assignment, known.state) == (lost.assignment, "ready"), "as a look shows it"
    fleet.provider.vanish(1)
    looked_twice(fleet)
    looked_twice(fleet)
    assert fleet.document.slots[1].unrecorded == ()
    fleet.submit("c")
    fleet.reconciler().reconcile()
    assert 1 in fleet.document.workers


def test_a_create_that_was_parked_in_lost_revisions_closes_its_slot_until_looks_show_what_came_of_it(
    fleet: Fleet,
) -> None:
    backup = Backup(fleet)
    fleet.provider.script(C, LoseUndone())
    fleet.submit("a")
    plan(fleet)
    fleet.sender.send(1, pending_key(fleet.document), parked=fleet.pending[1])
    key = pending_key(fleet.document)
    backup.put_back()
    fleet.submit("b")
    fleet.reconciler().reconcile()
    assert 1 not in fleet.document.workers
    assert fleet.document.disowned[key].proven is None
    looked_twice(fleet)
    looked_twice(fleet)
    assert fleet.document.disowned[key].proven == "absent"


def test_ids_that_are_minted_after_a_restore_have_its_epoch_in_them(fleet: Fleet) -> None:
    command = (Step("main", ("true",)),)
    (before,) = submit(fleet.context, [Submission(command)])
    backup = Backup(fleet)
    (lost,) = submit(fleet.context, [Submission(command)])
    backup.put_back()
    (first,) = submit(fleet.context, [Submission(command)])
    backup.put_back()
    (second,) = submit(fleet.context, [Submission(command)])
    assert [each.run for each in (before, lost, first)] == ["r-1", "r-2", "r-e1-3"]
    assert second.run.startswith("r-e2-")
    plan(fleet)
    action = decode(fleet.pending[1].action)
    assert action.assignment.startswith("a-e2-")
    assert action.epoch == "e2"


def test_what_ended_in_lost_revisions_is_not_done_again_under_its_id(fleet: Fleet) -> None:
    backup = Backup(fleet)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    backup.put_back()
    fleet.submit("a")
    assert (fleet.document.finished["a"].token, list(fleet.document.runs)) == (1, [])


def test_a_lost_run_that_nothing_is_left_of_begins_past_its_tokens_when_its_id_is_used_again(fleet: Fleet) -> None:
    fleet.provider = FakeProvider(LINEAGE)
    backup = Backup(fleet)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    assert fleet.document.runs["a"].attempts == 1
    backup.put_back()
    assert "a" not in fleet.document.runs
    fleet.submit("a")
    assert fleet.document.runs["a"].attempts == 1
    assert fleet.document.runs["a"].earlier_lives == 1


def test_a_consumer_from_before_is_shut_out_and_its_run_is_taken_back(fleet: Fleet) -> None:
    submit(fleet.context, [Submission((), id="m", queue="mail", payload=Raw(b"1"), max_attempts=3, max_crashes=3)])
    (run,) = leases.claim(fleet.context, "mail", owner="one", lease_ms=30_000)
    backup = Backup(fleet)
    moved_on(fleet)
    made = backup.put_back()
    assert made.leases == ("m",)
    with pytest.raises(TransitionRefused) as refused:
        leases.complete(fleet.context, "m", run.attempts)
    assert refused.value.why == "stale_lease"
    with pytest.raises(TransitionRefused):
        leases.heartbeat(fleet.context, "m", run.attempts)
    assert [each.run.id for each in reap(fleet.context)] == ["m"]
    assert fleet.document.runs["m"].state is RunState.QUEUED


def test_a_story_that_a_restore_interrupts_agrees_with_the_document(fleet: Fleet) -> None:
    fleet.submit("a")
    backup = Backup(fleet)
    fleet.reconciler().reconcile()
    assert "a" in fleet.document.finished
    backup.put_back()
    for _ in range(2):
        document = fleet.document
        record = document.runs.get("a") or document.finished["a"]
        story = tell_run(record, fleet.store.history("run:a"))
        assert (story.agrees, story.disagreements) == (True, ())
        assert "restore" in story.told[0].what
        slot = tell_slot(document.workers.get(2), 2, fleet.store.history("slot:2"))
        assert slot.disagreements == ()
        fleet.reconciler().reconcile()
    assert "a" in fleet.document.finished


def test_an_action_of_this_epoch_is_sent_as_ever(fleet: Fleet) -> None:
    backup = Backup(fleet)
    moved_on(fleet)
    backup.put_back()
    fleet.submit("a")
    fleet.provider.script(C, LoseUndone())
    plan(fleet)
    key = pending_key(fleet.document)
    fleet.sender.send(1, key, parked=fleet.pending[1])
    fleet.reconciler().replay()
    assert sent(fleet, C).count(key) == 2
