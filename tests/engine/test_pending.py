"""The life of a pending action: park, send, apply, replay."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

from controller.engine.pending import Sender, park
from controller.engine.planner import Ground
from controller.engine.queue import cancel
from controller.engine.reconcile import Reconciler
from controller.engine.report import Report
from controller.engine.sight import APART_MS
from controller.model.action import Action, decode
from controller.model.edit import Draft
from controller.model.errors import ProviderFailed, SlotBusy, SlotTaken, StorageFailed
from controller.model.inventory import Inventory, Seen, SeenStep, SeenWorker, StepSeen
from controller.model.process import ProcessIdentity
from controller.model.reason import Reason
from controller.model.records import ActionType, RunState
from controller.provider.fake import After, Before, DoThenLose, FakeProvider, Later, LoseUndone, Say
from controller.provider.process import boot_id, own_identity, pid_namespace
from controller.provider.protocol import Done, IdentityRefused, NotSent, Pending, Rejected, Unknown
from controller.store import locks
from tests.engine.fleet import LINEAGE, Fleet


class Died(BaseException):
    """The process ends here: nothing catches it."""


def evidence(fleet: Fleet) -> bool:
    """Whether a first empty look is noted for slot 1."""
    return fleet.pending[1].absent is not None


def test_the_park_is_on_disk_before_the_provider_hears_anything_and_until_the_apply(fleet: Fleet) -> None:
    seen: list[tuple[str, str]] = []

    def look(moment: str, action: Action) -> None:
        stored = fleet.action(1).idempotency_key
        seen.append((moment, stored))
        assert stored == action.idempotency_key

    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, Before(lambda action: look("before", action)))
    fleet.provider.script(ActionType.EXECUTE, After(lambda action: look("after", action)))
    fleet.reconciler().reconcile()
    assert [moment for moment, _ in seen] == ["before", "after"]
    assert fleet.pending == {}


def test_parking_over_a_pending_action_is_refused(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.park()
    draft = Draft(fleet.document, now=0, command="test")
    with pytest.raises(SlotTaken, match="slot 1 has a pending create"):
        park(draft, ActionType.RESET, fleet.document.workers[1])


def test_two_parks_alike_in_everything_but_the_serial_have_different_keys(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.park()
    draft, worker = Draft(fleet.document, now=0, command="test"), fleet.document.workers[1]
    keys = []
    for _ in range(2):
        draft.pending.remove(1)
        keys.append(park(draft, ActionType.RESET, worker))
    first, second = (decode(event.action) for event in draft.edit().events if isinstance(event.action, Raw))
    assert keys == [first.idempotency_key, second.idempotency_key]
    assert replace(first, serial=second.serial, idempotency_key=keys[1]) == second
    assert keys[0] != keys[1]


def test_a_park_is_told_to_history_with_its_key_and_its_bytes(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.park()
    (parked,) = (event for event in fleet.store.history("slot:1") if event.event == "action.parked")
    assert (parked.key, parked.to) == (fleet.action(1).idempotency_key, ActionType.CREATE)
    assert isinstance(parked.action, Raw)
    assert bytes(parked.action) == bytes(fleet.pending[1].action)


def test_two_parked_actions_are_each_replayed_once_with_their_own_keys_in_slot_order(fleet: Fleet) -> None:
    fleet.submit("a", "b")
    fleet.park()
    keys = [fleet.action(slot).idempotency_key for slot in (1, 2)]
    report = fleet.reconciler(parallelism=8).replay()
    assert [key for _, _, key in fleet.provider.sends()] == keys
    assert [sent.slot for sent in sorted(report.sent, key=lambda s: s.slot)] == [1, 2]
    assert fleet.pending == {}


@pytest.mark.parametrize("moment", ["before it did it", "after it did it"])
def test_a_controller_that_dies_in_the_call_replays_the_same_key_and_one_worker_exists(
    fleet: Fleet, moment: str
) -> None:
    def die(_: Action) -> None:
        raise Died

    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, Before(die) if moment == "before it did it" else After(die))
    with pytest.raises(Died):
        fleet.reconciler().reconcile()
    key = fleet.action(1).idempotency_key
    assert fleet.reconciler().reconcile().exit_code(fleet.document) == 0
    creates = [k for _, type_, k in fleet.provider.sends() if type_ is ActionType.CREATE]
    assert creates == [key, key]
    assert list(fleet.provider.workers) == [1]
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED


def test_sends_are_counted_before_they_happen(fleet: Fleet) -> None:
    counts: list[int] = []

    def count(_: Action) -> None:
        counts.append(fleet.pending[1].sends)

    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, Before(count), Before(count))
    fleet.provider.script(ActionType.CREATE, Say(Unknown("noise")))
    fleet.park()
    fleet.reconciler().replay()
    assert counts == [2], "the park counted the send that its process never made"


def test_ten_replays_of_one_key_burn_no_attempt_of_the_run(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.EXECUTE, *[LoseUndone()] * 10)
    fleet.reconciler().reconcile()
    for _ in range(10):
        fleet.reconciler().replay()
    fleet.reconciler().reconcile()
    assert fleet.document.finished["a"].token == 1
    assert len({key for _, type_, key in fleet.provider.sends() if type_ is ActionType.EXECUTE}) == 1


def test_an_unknown_outcome_stays_parked_under_backoff_with_its_error_shown(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, DoThenLose("no answer within 600 s"))
    report = fleet.reconciler().reconcile()
    entry = fleet.pending[1]
    assert entry.last_error == "no answer within 600 s"
    assert entry.not_before is not None
    assert report.exit_code(fleet.document) == 5


def test_pending_is_not_trouble_and_the_replay_is_the_poll(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, Later(2, retry_after_ms=60_000))
    report = fleet.reconciler().reconcile()
    assert report.exit_code(fleet.document) == 0
    assert fleet.pending[1].last_reason is Reason.PENDING
    assert len(fleet.provider.sends()) == 1, "reconcile respects not_before"
    fleet.clock.advance(61)
    fleet.reconciler().reconcile()
    fleet.clock.advance(61)
    fleet.reconciler().reconcile()
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED


def test_a_rejection_unparks_at_once_when_no_earlier_send_is_unknown(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, Say(Rejected("quota")))
    report = fleet.reconciler().reconcile()
    assert fleet.pending == {}
    assert fleet.document.runs["a"].defer_reason is Reason.CREATE_REFUSED
    assert report.exit_code(fleet.document) == 5
    assert fleet.document.troubles[-1].reason is Reason.REJECTED


def test_a_polled_create_that_is_rejected_in_the_end_unparks_at_once(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, Say(Pending(60_000)), Say(Rejected("no capacity after all")))
    fleet.reconciler().reconcile()
    fleet.clock.advance(61)
    fleet.reconciler().reconcile()
    assert fleet.pending == {}


def test_a_create_rejected_after_an_unknown_send_waits_for_two_separate_empty_looks(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, Say(Unknown("lost")), Say(Rejected("quota")))
    fleet.reconciler().reconcile()
    fleet.reconciler().replay()
    assert fleet.pending[1].rejected == "quota"
    sends = len(fleet.provider.sends())
    fleet.reconciler().reconcile()
    assert not evidence(fleet), "inside the grace time an empty look proves nothing"
    fleet.clock.advance(fleet.policy.grace_ms / 1000 + 1)
    fleet.reconciler()._pass(Report())
    assert evidence(fleet)
    fleet.clock.advance(APART_MS / 1000 + 1)
    fleet.reconciler()._pass(Report())
    assert 1 not in fleet.pending or fleet.action(1).serial == 2, "proven absent: unparked"
    assert [s for s in fleet.provider.sends()[sends:] if s[2] == fleet.provider.sends()[0][2]] == []


def test_a_create_rejected_after_an_unknown_send_that_worked_is_adopted(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, DoThenLose(), Say(Rejected("name taken")))
    fleet.reconciler().reconcile()
    report = fleet.reconciler().replay()
    assert [sent.reason for sent in report.sent] == [Reason.REJECTED, Reason.DONE], "and a look shows it"
    fleet.reconciler().reconcile()
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED
    assert len(fleet.provider.done) == 2


def test_not_sent_unparks_only_when_no_earlier_send_exists(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, Say(NotSent("./p does not exist")))
    fleet.reconciler().reconcile()
    assert fleet.pending == {}
    fleet.clock.advance(3600)
    fleet.provider.script(ActionType.CREATE, Say(Unknown("lost")), Say(NotSent("./p does not exist")))
    fleet.reconciler().reconcile()
    fleet.reconciler().replay()
    assert fleet.pending[1].last_reason is Reason.NOT_SENT


def test_identity_refused_stays_and_reconcile_does_not_send_it_again(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, Say(IdentityRefused("that disk is another one now")))
    fleet.reconciler().reconcile()
    sends = len(fleet.provider.sends())
    report = fleet.reconciler().reconcile()
    assert len(fleet.provider.sends()) == sends
    assert report.exit_code(fleet.document) == 5


def test_a_create_that_is_done_with_a_worker_still_being_made_is_asked_again(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.park()
    action = fleet.action(1)
    made = SeenWorker(1, LINEAGE, action.assignment, 1, "w-1", Seen.CREATING)
    fleet.provider.script(ActionType.CREATE, Say(Done(worker=made)))
    sent = fleet.sender.send(1, action.idempotency_key)
    assert (sent.reason, sent.settled) == (Reason.PENDING, False)
    assert fleet.document.workers[1].state == "creating"
    fleet.clock.advance(2)
    fleet.reconciler().reconcile()
    assert fleet.document.workers[1].id == "fake-1-a-1"


def test_an_answer_about_another_worker_is_unknown(fleet: Fleet) -> None:
    def lie(action: Action) -> None:
        worker = fleet.provider.workers[action.slot]
        fleet.provider.script(ActionType.CREATE, Say(Done(replace(worker.seen, assignment="a-77"))))

    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, After(lie))
    fleet.provider.script(ActionType.CREATE, slot=2)
    fleet.submit("b")
    fleet.reconciler().reconcile()
    assert fleet.pending[2].last_reason is Reason.UNKNOWN
    assert "another worker" in (fleet.pending[2].last_error or "")


def test_an_apply_that_is_refused_leaves_the_action_parked_and_notes_the_trouble(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from controller.engine import outcomes
    from controller.model.errors import InvariantBroken

    def refuse(*_: object, **__: object) -> None:
        raise InvariantBroken("worker.resource: vm-1 belongs to slot 2")

    fleet.submit("a")
    monkeypatch.setattr(outcomes, "_apply", refuse)
    report = fleet.reconciler().reconcile()
    entry = fleet.pending[1]
    assert entry.last_reason is Reason.APPLY_FAILED
    assert fleet.document.troubles[-1].reason is Reason.APPLY_FAILED
    assert report.exit_code(fleet.document) == 3
    monkeypatch.undo()
    fleet.reconciler().replay()
    fleet.reconciler().reconcile()
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED


def test_a_slot_that_somebody_holds_is_reported_busy_and_the_others_are_served(fleet: Fleet) -> None:
    fleet.submit("a", "b")
    fleet.park()
    with fleet.store.hold_slot(1):
        report = fleet.reconciler().reconcile()
    assert list(report.busy) == [1]
    assert report.exit_code(fleet.document) == 6
    assert fleet.document.finished.keys() == {"a", "b"}, "slot 2 did both"
    assert list(fleet.pending) == [1]


def test_a_live_provider_process_of_an_earlier_call_makes_its_slot_busy(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.park()
    with fleet.store.hold_slot(1) as held:
        held.register(own_identity(), fleet.clock.now_ms() + 60_000, "key")
    sends = len(fleet.provider.sends())
    report = fleet.reconciler().replay()
    assert isinstance(report.busy[1], SlotBusy)
    assert len(fleet.provider.sends()) == sends


def test_a_provider_process_of_another_pid_namespace_is_not_taken_for_gone(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.park()
    with fleet.store.hold_slot(1) as held:
        held.register(ProcessIdentity(77, 1, boot_id(), "pid:[1]"), 0, "key")
    report = fleet.reconciler().replay()
    assert report.stuck == {1}
    assert report.exit_code(fleet.document) == 5, "waiting does not help, so cron must not take it for busy"
    assert fleet.provider.sends() == []


def test_a_slot_note_that_cannot_be_read_is_not_taken_for_nobody(fleet: Fleet) -> None:
    fleet.submit("a", "b")
    fleet.park()
    with fleet.store.hold_slot(1):
        pass
    (path,) = (fleet.directory / "slots").glob("*1.lock")
    path.write_bytes(b"\0" * 100)
    report = fleet.reconciler().reconcile()
    assert report.stuck == {1}
    assert "empty that file" in report.errors[0].next
    assert {slot for slot, _, _ in fleet.provider.sends()} == {2}
    assert path.read_bytes() == b"\0" * 100
    path.write_bytes(b"")
    fleet.reconciler().replay()
    assert fleet.pending == {}


def test_nothing_is_sent_when_the_slot_lock_file_was_removed_meanwhile(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    reread = Sender._reread

    def removing(self: Sender, *args: object) -> object:
        entry = reread(self, *args)  # type: ignore[arg-type]
        (path,) = (fleet.directory / "slots").glob("*1.lock")
        path.unlink()
        return entry

    fleet.submit("a")
    fleet.park()
    monkeypatch.setattr(Sender, "_reread", removing)
    report = fleet.reconciler().replay()
    assert [error.code for error in report.errors] == ["lock_lost"]
    assert fleet.provider.sends() == []


def test_a_dead_provider_process_is_no_obstacle(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.park()
    with fleet.store.hold_slot(1) as held:
        held.register(ProcessIdentity(2**22 - 1, 1, boot_id(), pid_namespace()), 0, "key")
    assert fleet.reconciler().replay().busy == {}
    assert fleet.pending == {}


def test_calls_for_one_slot_never_overlap_however_many_reconcile_at_once(fleet: Fleet) -> None:
    inside = threading.Semaphore(1)
    overlapped = threading.Event()

    def stay_a_while(_: Action) -> None:
        if not inside.acquire(blocking=False):
            overlapped.set()
        overlapped.wait(0.2)
        inside.release()

    fleet.submit("a")
    fleet.park()
    fleet.provider.script(ActionType.CREATE, *[Before(stay_a_while)] * 6)
    reconcilers = [fleet.reconciler() for _ in range(6)]
    for each in reconcilers:  # the fake clock goes on with every look at the lock: none of them shall give up
        each.sender = replace(each.sender, context=replace(each.sender.context, lock_timeout=1e9))
    threads = [threading.Thread(target=each.reconcile) for each in reconcilers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not overlapped.is_set()
    assert len(fleet.provider.done) == len(set(fleet.provider.done))


def test_an_accepted_execute_whose_answer_was_lost_is_settled_by_a_look_that_lists_its_key(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.EXECUTE, DoThenLose())
    fleet.reconciler().reconcile()
    assert fleet.pending == {} or fleet.pending[1].last_reason is Reason.UNKNOWN
    fleet.clock.advance(1)
    sends = len(fleet.provider.sends())
    fleet.reconciler().reconcile()
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED
    assert len(fleet.provider.sends()) <= sends + 1


def test_a_pending_execute_on_a_worker_seen_gone_ends_with_its_life_in_one_commit(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.EXECUTE, *[LoseUndone()] * 5)
    fleet.reconciler().reconcile()
    fleet.provider.lose(1)
    fleet.clock.advance(0.5)
    fleet.reconciler()._pass(Report())
    run = fleet.document.runs["a"]
    assert (run.state, run.crashes) == (RunState.FAILED, 1)
    together = {e.revision for e in fleet.store.history() if e.event in ("lease_expired", "seen_gone")}
    settled = {e.revision for e in fleet.store.history() if e.reason is Reason.WORKER_LOST and e.subject == "slot:1"}
    assert together == settled
    assert len(together) == 1


def test_a_create_is_never_settled_by_a_worker_seen_gone(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, *[LoseUndone()] * 5)
    fleet.provider.script_look(Inventory(True, ()))
    fleet.reconciler().reconcile()
    fleet.clock.advance(0.5)
    fleet.reconciler().reconcile()
    assert fleet.action(1).type is ActionType.CREATE


def test_an_action_older_than_the_providers_memory_of_keys_is_settled_by_looks_alone(fleet: Fleet) -> None:
    fleet.provider = type(fleet.provider)(LINEAGE, ends=0, key_ttl_ms=60_000)
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, DoThenLose())
    fleet.reconciler().reconcile()
    fleet.clock.advance(3600)
    creates = len(fleet.provider.sends())
    fleet.reconciler().reconcile()
    assert [type_ for _, type_, _ in fleet.provider.sends()[creates:]] == [ActionType.EXECUTE]
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED


def test_a_clock_behind_the_document_counts_as_past_the_providers_memory_of_keys(fleet: Fleet) -> None:
    fleet.provider = type(fleet.provider)(LINEAGE, ends=0, key_ttl_ms=60_000)
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, LoseUndone())
    fleet.reconciler().reconcile()
    fleet.clock.jump(-7200)
    sends = len(fleet.provider.sends())
    fleet.reconciler().replay()
    assert len(fleet.provider.sends()) == sends


def test_a_worker_that_vanished_ends_its_pending_execute_though_every_answer_is_unknown(fleet: Fleet) -> None:
    fleet.provider = type(fleet.provider)(LINEAGE)
    fleet.submit("a")
    fleet.provider.script(ActionType.EXECUTE, *[LoseUndone()] * 1000)
    fleet.reconciler().reconcile()
    fleet.provider.vanish(1)
    for _ in range(10):
        fleet.clock.advance(30)
        fleet.reconciler().reconcile()
    assert fleet.pending == {}
    assert fleet.document.runs["a"].reason is Reason.CRASHES_EXHAUSTED


def test_an_execute_rejected_after_an_unknown_send_waits_a_grace_time_before_a_look_disproves_it(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.EXECUTE, LoseUndone(), Say(Rejected("stopping")))
    fleet.reconciler().reconcile()
    fleet.reconciler().replay()
    key = fleet.action(1).idempotency_key
    fleet.clock.advance(1)
    fleet.reconciler().reconcile()
    assert fleet.action(1).idempotency_key == key, "the first send may still be on its way"
    fleet.clock.advance(fleet.policy.grace_ms / 1000)
    fleet.reconciler().reconcile()
    proof = [event for event in fleet.store.history("slot:1") if event.reason is Reason.PROVEN_ABSENT]
    assert [(event.event, event.key) for event in proof] == [("action.settled", key)]


def test_a_clock_that_went_back_strands_no_proof(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, Say(Unknown("lost")), Say(Rejected("quota")))
    fleet.reconciler().reconcile()
    fleet.reconciler().replay()
    fleet.clock.jump(-7200)
    for _ in range(3):
        fleet.clock.advance(APART_MS / 1000 + 1)
        fleet.reconciler().reconcile()
    assert 1 not in fleet.pending or fleet.action(1).serial > 1


def test_what_was_just_parked_is_sent_though_the_clock_went_back_behind_the_document(fleet: Fleet) -> None:
    fleet.provider = type(fleet.provider)(LINEAGE, ends=0, key_ttl_ms=600_000)
    fleet.submit("a")
    fleet.clock.jump(-7200)
    fleet.reconciler().reconcile()
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED


def test_how_long_a_provider_remembers_keys_is_known_also_when_it_cannot_be_asked(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def speechless() -> None:
        raise ProviderFailed("no answer")

    fleet.provider = type(fleet.provider)(LINEAGE, ends=0, key_ttl_ms=600_000)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    monkeypatch.setattr(fleet.provider, "describe", speechless)
    fleet.submit("b")
    fleet.provider.script(ActionType.EXECUTE, LoseUndone())
    fleet.reconciler().reconcile()
    assert fleet.pending[1].key_ttl_ms == 600_000


def test_an_apply_that_raises_what_nobody_foresaw_stops_no_other_slot(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from controller.engine import outcomes

    apply_create = outcomes._apply_create

    def broken(draft: Draft, action: Action, *more: object) -> None:
        if action.slot == 1:
            raise ZeroDivisionError("planted")
        apply_create(draft, action, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(outcomes, "_apply_create", broken)
    fleet.submit("a", "b")
    report = fleet.reconciler().reconcile()
    assert "b" in fleet.document.finished
    assert fleet.pending[1].last_reason is Reason.APPLY_FAILED
    assert "planted" in fleet.document.troubles[-1].what
    assert report.exit_code(fleet.document) == 1


def test_a_rejection_that_waits_for_proof_is_not_sent_again_by_a_stale_replay(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, Say(Unknown("lost")), Say(Rejected("quota")))
    fleet.reconciler().reconcile()
    key = fleet.action(1).idempotency_key
    fleet.sender.send(1, key)
    sends = len(fleet.provider.sends())
    sent = fleet.sender.send(1, key)
    assert (sent.reason, sent.settled) == (Reason.KEY_EXPIRED, False)
    assert len(fleet.provider.sends()) == sends


def test_two_absences_with_a_look_between_that_shows_the_worker_are_no_proof(fleet: Fleet) -> None:
    fleet.provider = type(fleet.provider)(LINEAGE)
    fleet.submit("a")
    fleet.provider.script(ActionType.EXECUTE, *[Say(Pending(3_000_000))] * 9)
    fleet.reconciler().reconcile()
    empty = Inventory(True, ())
    for look in (empty, None, None, empty):
        fleet.clock.advance(600)
        if look is not None:
            fleet.provider.script_look(look)
        fleet.reconciler()._pass(Report())
    assert fleet.document.workers[1].state == "assigned"
    assert fleet.document.runs["a"].crashes == 0


def test_a_worker_that_was_lost_came_back_and_goes_again_wedges_nothing(fleet: Fleet) -> None:
    fleet.provider = type(fleet.provider)(LINEAGE)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    truth = fleet.provider.truth()
    gone = replace(truth, workers=tuple(replace(worker, state=Seen.GONE) for worker in truth.workers))
    fleet.provider.script(ActionType.DELETE_COMPUTE, Say(Rejected("the worker still runs")))
    fleet.provider.script(ActionType.DEALLOCATE, *[LoseUndone()] * 50)
    fleet.provider.script_look(gone)
    fleet.reconciler().reconcile()
    fleet.clock.advance(600)
    fleet.reconciler().reconcile()
    assert fleet.action(1).type is ActionType.DEALLOCATE
    fleet.provider.lose(1)
    fleet.clock.advance(600)
    report = fleet.reconciler().reconcile()
    assert report.errors == []
    fleet.clock.advance(600)
    fleet.reconciler().reconcile()
    assert fleet.document.workers == {}


def test_a_worker_whose_clock_is_ahead_makes_no_key_too_old(fleet: Fleet) -> None:
    fleet.provider = type(fleet.provider)(LINEAGE, key_ttl_ms=3_600_000)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    (key,) = fleet.document.workers[1].accepted
    ahead = SeenStep(key, StepSeen.EXITED, exit_code=1, ended_at=fleet.clock.now_ms() + 600_000)
    fleet.provider.workers[1].steps[key] = ahead
    fleet.reconciler().reconcile()
    fleet.submit("b")
    fleet.provider.script(ActionType.EXECUTE, LoseUndone())
    fleet.reconciler().reconcile()
    sends = len(fleet.provider.sends())
    fleet.reconciler().replay()
    assert len(fleet.provider.sends()) == sends + 1


def test_a_cancel_that_is_done_without_saying_how_the_step_ended_leaves_nothing_to_wait_for(fleet: Fleet) -> None:
    fleet.provider = type(fleet.provider)(LINEAGE)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    cancel(fleet.context, "a")
    fleet.provider.workers[1].steps.clear()
    fleet.provider.script(ActionType.CANCEL, Say(Done()))
    fleet.reconciler().reconcile()
    assert fleet.document.runs["a"].state is RunState.CANCELLED
    fleet.clock.advance(fleet.policy.idle_ms / 1000 + 1)
    fleet.reconciler().reconcile()
    assert fleet.document.workers == {}


def test_an_answer_is_applied_though_the_slot_note_cannot_be_cleared(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise StorageFailed("no space left on the device")

    fleet.submit("a")
    monkeypatch.setattr(locks._SlotHold, "clear", full)
    report = fleet.reconciler().reconcile()
    assert report.errors == []
    assert fleet.document.finished["a"].state is RunState.SUCCEEDED


def test_a_replay_tells_what_is_wrong_with_the_look_that_it_needs(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.provider.script(ActionType.CREATE, Say(Unknown("lost")), Say(Rejected("quota")))
    fleet.reconciler().reconcile()
    fleet.provider.script_look(Inventory(False, ()))
    report = fleet.reconciler().replay()
    assert "incomplete" in report.errors[0].what


def test_a_first_send_that_comes_long_after_its_park_has_its_own_grace_time(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "state", FakeProvider(LINEAGE, key_ttl_ms=60_000), slots=2)
    fleet.submit("one", "two")
    fleet.provider.script(ActionType.CREATE, Before(lambda _action: fleet.clock.advance(130)), slot=1)
    fleet.provider.script(ActionType.CREATE, DoThenLose(), slot=2)
    empty = Inventory(True, ())
    # True while nothing is parked; then two that lag, 5 s apart, right after the create of slot 2 was done.
    fleet.provider.script_look(empty, Inventory(False, ()), empty, empty)
    reconciler = Reconciler(fleet.sender, Ground(fleet.policy, "fake", 60_000), parallelism=1)
    reconciler.park(reconciler.look()[0])
    slots = [(s, k, fleet.pending[s]) for s, k in reconciler.due(ignore_not_before=True)]
    for slot, key, parked in slots:
        reconciler.sender.send(slot, key, parked=parked)
    assert 2 in fleet.provider.workers
    fleet.provider.script_look(empty, empty, empty)
    for _ in range(3):
        look, _ = reconciler.look()
        if 2 in fleet.pending and look is not None:
            reconciler.sender.settle(2, fleet.action(2).idempotency_key, look)
        fleet.clock.advance(5.1)
    assert 2 in fleet.document.workers, "it was made 10 s ago, the grace time is 60 s, and its record is gone"
