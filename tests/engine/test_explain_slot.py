"""What is the matter with a slot, why, and the same commands as docs/recovery.md, for every situation of that page."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from controller.engine.classify import Classified, SlotClass
from controller.engine.explain import Explanation, Surroundings, explain_run, explain_slot
from controller.engine.status import Flight
from controller.model.action import mint
from controller.model.inventory import Seen
from controller.model.policy import Breaker, Policy, Release
from controller.model.process import ProcessIdentity
from controller.model.reason import EXPLAINED, Reason
from controller.model.records import (
    ActionType,
    Disowned,
    Document,
    Proven,
    Provider,
    RunState,
    Slot,
    Span,
    Unrecorded,
    Worker,
    WorkerRef,
    WorkerState,
)
from controller.store.protocol import SlotNote
from tests.docs.runbook import entries, filled
from tests.engine.scenes import NOW, planned, with_runs

MINUTE = 60_000
PROOF = Policy(slots=1, release=Release.PROOF)


def kept(state: WorkerState = WorkerState.ASSIGNED, ended: RunState = RunState.FAILED, **fields: Any) -> Document:
    """Run a has ended, and the worker in slot 1 is still assigned to it."""
    worker = Worker(1, "a-1", 1, "fake", NOW - MINUTE, NOW - MINUTE, state, id="w-1", run="a", **fields)
    document = with_runs("a")
    run = replace(document.runs["a"], state=ended, attempts=1, finished_at=NOW)
    return replace(document, runs={"a": run}, workers={1: worker})


def parked(**fields: Any) -> tuple[Document, str]:
    """A create is parked for slot 1; its key."""
    document, made = planned(with_runs("a"))
    entry = replace(document.pending_actions[1], **fields)
    return replace(document, pending_actions={1: entry}), made.parks[0].key


def explained(
    document: Document, policy: Policy | None = None, live: Classified | None = None, **fields: Any
) -> Explanation:
    policy = policy or Policy(slots=1)
    around = Surroundings((), (), fields.pop("notes", {}), policy.slots, policy.queues, NOW, policy=policy, **fields)
    return explain_slot(document, 1, around, live)


def on_page(found: Explanation, entry: str, **values: object) -> bool:
    """Whether the entry of the page types all that is to be typed next."""
    typed = {filled(line, **values) for line in entries()[entry].allows}
    told = {filled(each) for each in found.next}
    return told != set() and told <= typed


@pytest.mark.parametrize(
    ("reason", "entry"),
    [
        (Reason.UNKNOWN, "outcome-unknown-keeps-coming"),
        (Reason.NOT_SENT, "the-provider-program-is-missing"),
        (Reason.IDENTITY_REFUSED, "identity-refused"),
        (Reason.APPLY_FAILED, "a-result-that-cannot-be-recorded"),
    ],
)
def test_a_parked_action_says_why_it_stays_and_what_the_page_says_to_type(reason: Reason, entry: str) -> None:
    document, key = parked(sends=3, last_reason=reason, last_error="no answer")
    found = explained(document)
    assert EXPLAINED[reason].why in found.because
    assert "Its last error: no answer." in found.because
    assert on_page(found, entry, RUN="a", N=1, KEY=key)


def test_a_rejected_action_that_waits_for_looks_is_reconciled() -> None:
    document, _ = parked(sends=2, rejected="quota", last_reason=Reason.REJECTED)
    found = explained(document)
    assert "looks must show that it did not" in " ".join(found.because)
    assert found.next == ("controller reconcile --apply",)


def test_an_action_older_than_the_providers_memory_is_not_said_to_be_sent_again() -> None:
    document, key = parked(parked_at=NOW - MINUTE, key_ttl_ms=1_000, last_reason=Reason.UNKNOWN)
    found = explained(document)
    assert EXPLAINED[Reason.KEY_EXPIRED].why in found.because
    assert "controller replay-pending" not in found.next
    assert on_page(found, "the-key-has-expired", RUN="a", N=1, KEY=key)


def test_a_provider_process_of_another_pid_namespace_is_told_and_who_may_declare_it_gone() -> None:
    document, key = parked(last_reason=Reason.UNKNOWN)
    found = explained(document, flights={1: Flight(7, "provider", "reconcile", NOW, NOW, certain=False)})
    assert "Provider process 7 of another pid namespace was given it, and may still live." in found.because
    assert on_page(found, "a-provider-process-of-another-pid-namespace", N=1, KEY=key)


def test_a_provider_process_that_lives_is_waited_for_and_nobody_is_told_to_abandon_it() -> None:
    document, _ = parked()
    found = explained(document, flights={1: Flight(7, "provider", "reconcile", NOW, NOW, certain=True)})
    assert "Provider process 7 works on it; until that ends nothing is sent." in found.because
    assert found.next == ("controller status",)


def test_the_process_that_was_given_an_action_last_is_named() -> None:
    document, key = parked()
    note = SlotNote(provider=ProcessIdentity(7, 1, "boot", "ns"), key=key)
    assert "Provider process 7 was given it last." in explained(document, notes={1: note}).because


def test_a_lock_file_that_cannot_be_read_is_named_with_what_to_make_sure_of() -> None:
    document, _ = parked()
    found = explained(document, notes={1: SlotNote(readable=False, where="locks/slot-1")})
    assert "locks/slot-1 cannot be read" in " ".join(found.because)
    assert found.next == ("make sure that no provider program works for slot 1, then empty locks/slot-1",)


@pytest.mark.parametrize(
    ("state", "reason", "policy", "entry"),
    [
        (WorkerState.ASSIGNED, None, PROOF, "a-worker-waits-for-its-release-proof"),
        (WorkerState.DEALLOCATED, Reason.IDLE_RELEASE, PROOF, "idle-release"),
        (WorkerState.DEALLOCATED, Reason.RETAIN_FAILED, Policy(retain_failed=True), "a-failed-runs-worker-is-kept"),
        (WorkerState.LOST, Reason.SEEN_GONE, PROOF, "resume"),
    ],
)
def test_a_worker_that_is_kept_says_for_which_run_why_and_what_ends_that(
    state: WorkerState, reason: Reason | None, policy: Policy, entry: str
) -> None:
    found = explained(kept(state, reason=reason), policy)
    assert "kept for run a, which has failed." in found.because[0]
    assert on_page(found, entry, RUN="a", N=1)
    assert "controller reconcile --apply" not in found.next


@pytest.mark.parametrize(
    ("ended", "fate"), [(RunState.CANCELLED, "was cancelled"), (RunState.SUCCEEDED, "has succeeded")]
)
def test_what_became_of_the_run_that_a_worker_is_kept_for_is_told(ended: RunState, fate: str) -> None:
    assert f"kept for run a, which {fate}." in explained(kept(ended=ended), PROOF).because[0]


def test_a_worker_that_idles_without_its_proof_says_when_it_is_stopped() -> None:
    idle = Span(NOW - MINUTE, NOW)
    found = explained(kept(idle_since=idle), replace(PROOF, idle_release_ms=MINUTE))
    assert "If it stays idle it is stopped in 60 s, not removed." in found.because


def test_a_worker_that_holds_its_run_is_said_to_hold_it() -> None:
    document = kept(ended=RunState.RUNNING)
    run = replace(document.runs["a"], worker=WorkerRef(1, "a-1", 1))
    found = explained(replace(document, runs={"a": run}), PROOF)
    assert found.because[0].endswith("holds run a.")
    assert found.next == ()


def test_a_stopped_worker_cools_down_until_it_is_removed() -> None:
    worker = Worker(1, "a-1", 1, "fake", NOW, NOW, WorkerState.DEALLOCATED, id="w-1", dark_at=NOW)
    found = explained(replace(with_runs(), workers={1: worker}), Policy(slots=1, cooldown_ms=MINUTE))
    assert EXPLAINED[Reason.COOLDOWN].why in found.because
    assert "That is over in 60 s." in found.because
    assert found.next == ()


def test_a_resume_is_told_as_one() -> None:
    document = kept(WorkerState.CREATING, RunState.QUEUED, was=WorkerState.LOST, reason=Reason.RESUMED)
    found = explained(document)
    assert "is being made anew for run a, which is queued again." in found.because[0]


@pytest.mark.parametrize(
    ("reason", "entry"),
    [
        (Reason.IDENTITY_CHANGED, "a-resource-has-another-identity"),
        (Reason.FOREIGN_TAG, "a-foreign-tag"),
        (Reason.ID_TWICE, "one-id-for-two-slots"),
    ],
)
def test_what_a_look_shows_beside_the_record_is_told_when_there_was_one(reason: Reason, entry: str) -> None:
    worker = Worker(1, "a-1", 1, "fake", NOW, NOW, WorkerState.READY, id="w-1")
    document = replace(with_runs(), workers={1: worker})
    live = Classified(1, worker.state, Seen.READY, SlotClass.RETAINED, reason, "vm is vm-9, not vm-1", ())
    found = explained(document, live=live)
    assert "A look just now: vm is vm-9, not vm-1." in found.because
    assert EXPLAINED[reason].why in found.because
    assert on_page(found, entry, N=1)


def test_a_look_that_agrees_gives_nothing_to_do() -> None:
    worker = Worker(1, "a-1", 1, "fake", NOW, NOW, WorkerState.READY, id="w-1")
    live = Classified(1, worker.state, Seen.READY, SlotClass.CLEAN_WARM, Reason.AS_RECORDED, "they agree", ())
    assert explained(replace(with_runs(), workers={1: worker}), live=live).next == ()


def test_a_look_does_not_judge_a_record_that_a_pending_action_owns() -> None:
    document, _ = parked()
    live = Classified(1, None, Seen.READY, SlotClass.RETAINED, Reason.ID_TWICE, "vm-1 twice", ())
    assert "A look just now" not in " ".join(explained(document, live=live).because)


def test_something_unrecorded_is_named_since_when_with_the_two_ways_out() -> None:
    seen = Unrecorded("a-9", 1, "vm-9", "ready", NOW - MINUTE, running=2)
    found = explained(replace(with_runs(), slots={1: Slot(unrecorded=(seen,), unrecorded_more=7)}))
    assert "It shows 7 more in this slot." in found.because
    assert (
        "The provider shows vm-9 (a-9 generation 1, ready), with 2 running steps, which no record knows, since 60 s."
        in found.because
    )
    assert on_page(found, "something-unrecorded", N=1)


@pytest.mark.parametrize(
    ("proven", "says"),
    [
        (None, "Until looks show what it made, the slot takes nothing new."),
        (Proven.ABSENT, "Looks have shown that it made nothing."),
        (Proven.PRESENT, "Looks have shown what it made."),
    ],
)
def test_a_disowned_action_says_by_whom_and_what_looks_have_shown(proven: Proven | None, says: str) -> None:
    document, key = parked()
    disowned = Disowned(
        document.pending_actions[1].action, NOW, Reason.DISOWNED, "it is gone", "ops@example.org", proven=proven
    )
    found = explained(replace(document, pending_actions={}, workers={}, disowned={key: disowned}))
    assert f"Its create (key {key[:12]}) was disowned by ops@example.org: it is gone." in found.because
    assert says in found.because
    if proven is None:
        assert on_page(found, "the-provider-is-gone-for-good", N=1, KEY=key)


def test_a_disowned_action_of_another_slot_is_not_told() -> None:
    document, key = parked()
    disowned = {key: Disowned(document.pending_actions[1].action, NOW, Reason.DISOWNED)}
    document = replace(document, pending_actions={}, workers={}, disowned=disowned)
    around = Surroundings((), (), {}, 2, ("fleet",), NOW, policy=Policy(slots=2))
    assert explain_slot(document, 2, around).because == ("No worker is recorded in slot 2.",)


@pytest.mark.parametrize(("draining", "says"), [(False, "nothing new."), (True, "taken down once its run has ended.")])
def test_a_cordoned_slot_says_so_and_what_lifts_it(draining: bool, says: str) -> None:
    found = explained(replace(with_runs(), slots={1: Slot(cordoned=True, draining=draining)}))
    assert any(sentence.startswith("The slot is cordoned") and sentence.endswith(says) for sentence in found.because)
    assert on_page(found, "cordon-drain-uncordon", N=1)


def test_an_open_breaker_says_since_when_why_and_when_it_tries_again() -> None:
    known = Provider(failures=5, opened_at=NOW - 10_000, why="no answer")
    document = replace(with_runs("a"), providers={"fake": known})
    policy = Policy(slots=1, breaker=Breaker(failures=5, dwell_ms=30_000))
    found = explained(document, policy, provider="fake")
    assert "Provider fake failed 5 times in a row, the last time 10 s ago: no answer." in found.because
    assert "One action is tried again in 20 s." in found.because
    assert on_page(found, "the-breaker-is-open")
    around = Surroundings((), (), {}, 1, ("fleet",), NOW, policy=policy, provider="fake")
    assert EXPLAINED[Reason.BREAKER_OPEN].why in explain_run(document, "a", around).because


def test_a_free_slot_says_that_there_are_as_many_workers_as_may_be() -> None:
    worker = Worker(2, "a-2", 1, "fake", NOW, NOW, WorkerState.CREATING)
    document = replace(with_runs("a"), workers={2: worker})
    policy = Policy(slots=2, most=1)
    assert EXPLAINED[Reason.FLEET_FULL].why in explained(document, policy).because
    around = Surroundings((), (), {}, 2, ("fleet",), NOW, policy=policy)
    assert "`[fleet] max` lets no more be made at once." in " ".join(explain_run(document, "a", around).because)


def test_a_run_behind_slots_that_do_nothing_says_what_those_wait_for() -> None:
    document = kept()
    document = with_runs("b", document=document)
    around = Surroundings((), (), {}, 1, ("fleet",), NOW, policy=PROOF)
    found = explain_run(document, "b", around)
    assert "The only slot is taken; it is served when one is free." in found.because
    assert f"In slot 1: {EXPLAINED[Reason.NOT_RELEASED].text}." in found.because
    assert found.next == ("controller explain slot:1",)


def test_an_idle_worker_leaves_room_for_a_run() -> None:
    worker = Worker(1, "a-1", 1, "fake", NOW, NOW, WorkerState.READY, id="w-1")
    document = replace(with_runs("a"), workers={1: worker})
    around = Surroundings((), (), {}, 1, ("fleet",), NOW, policy=Policy(slots=1))
    assert "the next reconcile takes it" in " ".join(explain_run(document, "a", around).because)


def idle(state: WorkerState = WorkerState.LOST) -> Document:
    return replace(with_runs(), workers={1: Worker(1, "a-1", 1, "fake", NOW, NOW, state, id="w-1")})


def unanswered(document: Document, policy: Policy, provider: str = "") -> tuple[str, ...]:
    """What is to be typed next of slot 1, whose provider was asked in vain."""
    around = Surroundings((), (), {}, 1, ("fleet",), NOW, policy=policy, provider=provider)
    return explain_slot(document, 1, around, silent=True).next


def test_of_a_provider_that_does_not_answer_what_to_type_is_told_should_it_be_gone_for_good() -> None:
    document, key = parked(last_reason=Reason.UNKNOWN)
    assert unanswered(document, PROOF)[-1].startswith(f"controller abandon 1 --key {key} --unresolved --reason WHY")
    assert unanswered(kept(), PROOF)[-1] == "controller surrender a --unresolved --reason WHY --confirm-surrender"
    assert unanswered(kept(), Policy(slots=1))[-1] == "controller release a --reason WHY --confirm-release"
    assert unanswered(idle(), PROOF)[-1] == "controller forget 1 --reason WHY --confirm-forget"
    assert not any("forget" in each for each in unanswered(with_runs(), PROOF)), "nothing is on record"


def test_a_worker_of_another_kind_of_provider_than_the_settings_name_says_so_without_a_look() -> None:
    found = explained(idle(), provider="local")
    assert "The settings name provider local; fake, which made its worker, is not asked." in found.because
    assert found.next[-1] == "controller forget 1 --reason WHY --confirm-forget"
    assert 'set kind = "fake" under [provider] again' in explained(kept(), PROOF, provider="local").next
    assert not any("forget" in each for each in explained(idle(), provider="fake").next)


@pytest.mark.parametrize(
    ("proven", "says"),
    [
        (None, "Until looks show whether it is there, the slot takes nothing new."),
        (Proven.ABSENT, "Looks have shown that it is not there."),
        (Proven.PRESENT, "Looks have shown that it is there."),
    ],
)
def test_a_worker_that_was_forgotten_is_told_as_one(proven: Proven | None, says: str) -> None:
    raw = mint(
        type=ActionType.DELETE_COMPUTE, slot=1, serial=1, lineage="l", epoch="", assignment="a-1", generation=1,
        resources={},
    )  # fmt: skip
    record = Disowned(raw[1], NOW, Reason.DISOWNED, "worker w-1", "ops", proven=proven)
    found = explained(replace(with_runs(), disowned={raw[0]: record}))
    assert "Its worker was forgotten by ops: worker w-1." in found.because
    assert says in found.because
