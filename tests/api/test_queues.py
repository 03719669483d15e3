"""A queue as programs have it: what its methods answer and refuse, and what can be said when a run is submitted."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET, Raw

from controller import Conflict, Controller, LeaseLost, NotFound, Tombstone, TransitionRefused, UsageFault
from controller.clock import SystemClock
from tests.api.claiming import LEASE, Scene
from tests.store.kit import snapshot_of


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "state")


def value(raw: object) -> object:
    assert isinstance(raw, Raw)
    return json.loads(bytes(raw))


# The verbs


def test_a_run_goes_from_its_submission_to_its_tombstone(scene: Scene) -> None:
    scene.submit("a", payload={"to": "ops"})
    queue = scene.queue
    assert (queue.size(), queue.size("active"), [run.id for run in queue.browse("pending")]) == (1, 0, ["a"])
    held = queue.claim(owner="me", lease=LEASE)
    assert (queue.size(), queue.size("active"), [run.id for run in queue.browse("active")]) == (0, 1, ["a"])
    assert held.run.lease is not None
    assert (held.run.lease.owner, held.run.lease.granted_ms) == ("me", 30_000)
    done = queue.complete("a", held.token, {"sent": True})
    assert isinstance(done.run, Tombstone)
    assert (done.run.state, value(done.run.result), done.next) == ("succeeded", {"sent": True}, None)
    assert [queue.size(view) for view in ("pending", "active", "scheduled", "dead")] == [0, 0, 0, 0]


def test_a_result_may_be_null_and_is_told_from_none(scene: Scene) -> None:
    scene.submit("a", "b")
    with scene.queue.claim() as held:
        held.result = None
    with scene.queue.claim():
        pass
    assert value(scene.stone("a").result) is None
    assert not isinstance(scene.stone("b").result, Raw)


def test_a_stale_token_is_refused_and_the_holder_named(scene: Scene) -> None:
    scene.submit("a")
    held = scene.queue.claim(owner="me")
    with pytest.raises(TransitionRefused) as refusal:
        scene.queue.complete("a", 99)
    assert refusal.value.why == "stale_lease"
    assert "the current token is 1, held by me" in refusal.value.where
    held.complete()
    with pytest.raises(TransitionRefused, match="run a is succeeded") as refusal:
        scene.queue.complete("a", 1)
    assert "already done by you, token 1" in refusal.value.where
    with pytest.raises(NotFound):
        scene.queue.complete("b", 1)


def test_a_retried_run_is_scheduled_until_it_is_due_or_promoted(scene: Scene) -> None:
    scene.submit("a")
    held = scene.queue.claim()
    assert held.retry("try later", delay=60).state == "queued"
    assert (scene.queue.size(), scene.queue.size("scheduled")) == (0, 1)
    assert not scene.queue.claim()
    assert [run.id for run in scene.queue.promote("a")] == ["a"]
    assert scene.queue.claim().token == 2


def test_a_failed_run_is_dead_with_its_reason(scene: Scene) -> None:
    scene.submit("a")
    dead = scene.queue.fail("a", scene.queue.claim().token, "no such person", "invalid_payload")
    assert (dead.state, dead.reason, dead.last_error) == ("failed", "invalid_payload", "no such person")
    assert [run.id for run in scene.queue.browse("dead")] == ["a"]


def test_a_reason_that_no_holder_may_give_is_refused_with_a_guess(scene: Scene) -> None:
    scene.submit("a")
    held = scene.queue.claim()
    with pytest.raises(UsageFault, match=r"consumer_fail is no reason .*did you mean 'consumer_failed'") as fault:
        held.fail("x", "consumer_fail")
    assert "invalid_payload" in fault.value.next
    assert scene.run("a").state == "running"


def test_a_lost_run_is_taken_back_from_its_owner(scene: Scene) -> None:
    scene.submit("a")
    scene.queue.claim(owner="me", lease=LEASE)
    assert scene.queue.reap() == ()
    scene.clock.advance(LEASE)
    (reaped,) = scene.queue.reap()
    assert (reaped.run.id, reaped.owner, reaped.token, reaped.run.crashes) == ("a", "me", 1, 1)


def test_a_heartbeat_says_whether_a_cancel_was_requested(scene: Scene) -> None:
    scene.submit("a")
    held = scene.queue.claim(lease=LEASE)
    first = scene.queue.heartbeat("a", held.token, lease=600, progress=[1, "of", 3])
    assert first.lease is not None
    assert (first.lease.granted_ms, value(first.progress), first.cancel_requested_at) == (600_000, [1, "of", 3], None)
    scene.controller.cancel("a")
    assert scene.queue.heartbeat("a", held.token).cancel_requested_at is not None
    assert scene.queue.drain("a", held.token).state == "cancelled"


def test_steps_are_reported_one_by_one(scene: Scene) -> None:
    steps = [{"name": "one", "argv": ["true"]}, {"name": "two", "argv": ["true"], "needs": ["one"]}]
    scene.controller.submit(steps=steps, queue="mail", id="s")
    held = scene.queue.claim()
    scene.queue.step("s", "one", held.token, "started")
    run = scene.queue.step("s", "one", held.token, "failed", error="broken pipe", exit_code=7)
    assert (run.steps[0].state, run.last_error) == ("failed", "broken pipe")
    with pytest.raises(UsageFault, match="done does not happen to a step"):
        scene.queue.step("s", "one", held.token, "done")  # type: ignore[arg-type]


def test_many_runs_are_claimed_in_one_commit_in_their_order(scene: Scene) -> None:
    scene.submit("a", "b", "c")
    before = scene.controller.store.read().document.revision
    assert [held.id for held in scene.queue.claim_many(2)] == ["a", "b"]
    assert scene.controller.store.read().document.revision == before + 1
    assert [held.id for held in scene.queue.claim_many(2)] == ["c"]
    assert scene.queue.claim_many(2) == ()


def test_a_claim_that_waits_takes_what_is_there_and_takes_back_what_was_lost(scene: Scene) -> None:
    scene.submit("a", "b")
    scene.queue.claim(lease=LEASE)
    scene.clock.advance(LEASE)
    taken = [scene.queue.claim(wait=60) for _ in range(2)]
    assert sorted((held.id, held.token) for held in taken) == [("a", 2), ("b", 1)]


def test_a_claim_that_waits_in_vain_is_empty(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "waited")
    with Controller(scene.directory, clock=SystemClock()) as fleet:
        assert not fleet.queue("mail").claim(wait=0.01)


def test_a_paused_queue_hands_out_nothing(scene: Scene) -> None:
    with pytest.raises(NotFound, match="nobody has used a queue mail"):
        scene.queue.pause()
    scene.submit("a")
    assert (scene.queue.pause(), scene.queue.pause()) == (True, False)
    assert not scene.queue.claim()
    assert next(each for each in scene.controller.queues() if each.queue == "mail").paused
    assert (scene.queue.resume(), scene.queue.resume()) == (True, False)
    assert scene.queue.claim()


def test_a_discarded_run_is_gone_for_its_holder_too(scene: Scene) -> None:
    scene.submit("a")
    held = scene.queue.claim()
    assert scene.queue.discard("a").reason == "discarded"
    with pytest.raises(TransitionRefused) as refusal:
        scene.queue.complete("a", held.token)
    assert refusal.value.why == "stale_lease"


def test_the_fleets_queue_is_not_for_consumers(scene: Scene) -> None:
    scene.controller.submit(["true"])
    with pytest.raises(Conflict, match="queue fleet is the fleet's"):
        scene.controller.queue("fleet").claim()


@pytest.mark.parametrize(
    ("how", "where"),
    [
        ({"lease": 0}, "lease"),
        ({"lease": -1}, "lease"),
        ({"lease": float("nan")}, "lease"),
        ({"lease": 366 * 86_400}, "--lease"),
        ({"lease": True}, "lease"),
        ({"lease": "30s"}, "lease"),
        ({"wait": -1}, "wait"),
        ({"wait": float("inf")}, "wait"),
        ({"owner": ""}, "--owner"),
        ({"owner": "a\nb"}, "--owner"),
    ],
)
def test_a_claim_that_cannot_be_meant_is_refused_and_changes_nothing(
    scene: Scene, how: dict[str, Any], where: str
) -> None:
    scene.submit("a")
    with pytest.raises(UsageFault) as fault:
        scene.queue.claim(**how)
    assert fault.value.where == where
    assert scene.run("a").attempts == 0


@pytest.mark.parametrize("count", [0, -1, 1.5, True, 10**9])
def test_no_number_of_runs_but_a_whole_one_can_be_claimed(scene: Scene, count: Any) -> None:
    with pytest.raises(UsageFault, match="count cannot be that"):
        scene.queue.claim_many(count)


def test_a_name_that_no_queue_can_have_is_refused(scene: Scene) -> None:
    with pytest.raises(UsageFault, match="not the name of a queue"):
        scene.controller.queue("../mail")


def test_a_set_that_is_none_is_refused_with_a_guess(scene: Scene) -> None:
    with pytest.raises(UsageFault, match=r"there is no set pendin \(did you mean 'pending'\?\)"):
        scene.queue.size("pendin")


def test_a_configuration_that_cannot_be_meant_keeps_runs_from_being_claimed(scene: Scene) -> None:
    scene.submit("a")
    (scene.directory / "controller.toml").write_text("[fleet]\nslots = 0\n")
    with pytest.raises(UsageFault, match="slots cannot be 0"):
        scene.another().queue("mail").claim()


# Submitting


def submit(scene: Scene, **how: Any) -> Any:
    return scene.controller.submit(**{"payload": 1, "attempts": 2, **how})


def test_a_payload_alone_goes_to_the_queue_called_default(scene: Scene) -> None:
    assert submit(scene).queue == "default"
    assert scene.controller.submit(["true"]).queue == "fleet"
    with pytest.raises(Conflict, match="queue fleet is the fleet's"):
        submit(scene, queue="fleet")


def test_a_run_may_have_both_a_command_and_a_payload(scene: Scene) -> None:
    run = scene.controller.submit(["true"], payload=[None], queue="mail")
    held = scene.queue.claim()
    assert (held.id, held.payload, held.run.steps[0].argv) == (run.id, [None], ("true",))


def test_a_delay_and_a_time_say_when_a_run_is_due(scene: Scene) -> None:
    now = scene.clock.now_ms()
    in_an_hour = datetime.fromtimestamp(now / 1000, UTC) + timedelta(hours=1)
    elsewhere = in_an_hour.astimezone(timezone(timedelta(hours=-9)))
    for how in ({"delay": 3600}, {"at": now + 3_600_000}, {"at": in_an_hour}, {"at": elsewhere}):
        assert submit(scene, **how).available_at == now + 3_600_000
    assert submit(scene, delay=0).available_at is None


def test_budgets_priority_and_keys_arrive(scene: Scene) -> None:
    run = submit(scene, crashes=5, priority="critical", concurrency_key="ops", concurrency=3)
    assert (run.max_attempts, run.max_crashes, run.priority) == (2, 5, "critical")
    assert (run.concurrency_key, run.concurrency) == ("ops", 3)
    assert submit(scene, concurrency_key="two").concurrency == 1


def test_the_queues_policy_says_what_the_submitter_leaves_open(scene: Scene) -> None:
    (scene.directory / "controller.toml").write_text("[queues.mail]\nattempts = 7\ncrashes = 9\nlease = '5m'\n")
    fleet = scene.another()
    run = fleet.submit(payload=1, queue="mail")
    assert not isinstance(run, Tombstone)
    assert (run.max_attempts, run.max_crashes) == (7, 9)
    lease = fleet.queue("mail").claim().run.lease
    assert lease is not None
    assert lease.granted_ms == 300_000


def test_within_the_time_asked_for_the_same_content_is_the_same_run(scene: Scene) -> None:
    first = submit(scene, payload={"a": 1, "b": 2}, unique_for=60)
    assert submit(scene, payload={"b": 2, "a": 1}, unique_for=60).id == first.id
    assert submit(scene, payload={"b": 2, "a": 2}, unique_for=60).id != first.id
    scene.clock.advance(61)
    assert submit(scene, payload={"a": 1, "b": 2}, unique_for=60).id != first.id


def test_a_replaced_run_makes_way_and_shuts_its_holder_out(scene: Scene) -> None:
    scene.submit("a", payload="old")
    held = scene.queue.claim()
    with pytest.raises(Conflict):
        scene.submit("a", payload="new")
    scene.submit("a", payload="new", replace=True)
    again = scene.queue.claim()
    assert (again.payload, again.token) == ("new", 2)
    with pytest.raises(TransitionRefused):
        scene.queue.complete("a", held.token)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"payload": 1, "delay": 1, "at": 1}, "after a delay or at a time"),
        ({"payload": 1, "delay": -1}, "delay cannot be that"),
        ({"payload": 1, "at": datetime(2026, 12, 1)}, "at has no time zone"),  # noqa: DTZ001 - that is the fault
        ({"payload": 1, "at": "2026-12-01"}, "at cannot be that"),
        ({"payload": 1, "at": 1.5}, "at cannot be that"),
        ({"payload": 1, "at": -1}, "at cannot be that"),
        ({"payload": 1, "priority": "urgent"}, "urgent is no priority"),
        ({"payload": 1, "priority": "critcal"}, "did you mean 'critical'"),
        ({"payload": 1, "crashes": 0}, "crashes cannot be that"),
        ({"payload": 1, "attempts": 0}, "attempts cannot be that"),
        ({"payload": 1, "attempts": True}, "attempts cannot be that"),
        ({"payload": 1, "unique_for": 0}, "unique_for cannot be that"),
        ({"payload": 1, "replace": True}, "nothing to replace without an id"),
        ({"payload": 1, "concurrency": 2}, "concurrency is that of a key"),
        ({"payload": 1, "concurrency": 0, "concurrency_key": "k"}, "concurrency cannot be that"),
        ({"payload": 1, "concurrency_key": 3}, "concurrency_key cannot be that"),
        ({"payload": 1, "queue": ""}, "queue cannot be that"),
        ({"payload": 1, "timeout": 5}, "belong to a step"),
        ({"payload": {1, 2}}, "set is not JSON"),
        ({}, "a command, steps, or a payload"),
        ({"argv": ["true"], "steps": []}, "either a command or steps"),
    ],
)
def test_a_submission_that_cannot_be_meant_is_refused_and_changes_nothing(
    scene: Scene, how: dict[str, Any], said: str
) -> None:
    before = snapshot_of(scene.directory)
    with pytest.raises(UsageFault, match=said):
        scene.controller.submit(**how)
    assert snapshot_of(scene.directory) == before


# Many at once


def test_the_ends_of_many_claims_are_one_commit_and_one_that_was_lost_is_told_in_its_answer(scene: Scene) -> None:
    scene.submit("a", "b", "c")
    claims = scene.queue.claim_many(3, owner="me")
    scene.queue.drain("b", claims[1].token)
    before = scene.controller.store.read().document.revision
    answers = scene.queue.complete_many(claims, [1, 2, None])
    assert scene.controller.store.read().document.revision == before + 1
    assert [type(each.error) for each in answers] == [type(None), TransitionRefused, type(None)]
    assert [claim.outcome is not None for claim in claims] == [True, False, True]
    assert [value(scene.stone(name).result) for name in ("a", "c")] == [1, None]


def test_a_claim_whose_run_another_has_is_told_that_its_lease_is_lost(scene: Scene) -> None:
    scene.submit("a")
    claims = scene.queue.claim_many(1, owner="me")
    scene.queue.drain("a", 1)
    scene.queue.claim(owner="other")
    (answer,) = scene.queue.complete_many(claims)
    assert isinstance(answer.error, LeaseLost)
    assert (bool(answer.next), answer.claim) == (False, claims[0])


def test_the_next_claims_come_with_the_ends_and_the_results_that_were_set_are_kept(scene: Scene) -> None:
    scene.submit("a", "b", "c", "d")
    claims = scene.queue.claim_many(2, owner="me")
    claims[0].result = {"n": 1}
    first, second = scene.queue.complete_many(claims, claim_next=2)
    assert (first.next.id, second.next.id) == ("c", "d")
    assert value(scene.stone("a").result) == {"n": 1}
    assert scene.stone("b").result is UNSET
    first.next.complete()
    assert scene.stone("c").owner == "me"


def test_a_claim_that_was_reported_on_with_others_reports_nothing_at_the_end_of_its_block(scene: Scene) -> None:
    scene.submit("a")
    with scene.queue.claim() as claim:
        scene.queue.complete_many([claim], ["done"])
    assert value(scene.stone("a").result) == "done"


def test_what_cannot_be_reported_on_together_is_refused_before_anything_is(scene: Scene) -> None:
    scene.submit("a", "b")
    claims = scene.queue.claim_many(2)
    for wrong, results in ((claims, [1]), ([claims[0], claims[0]], None), (claims, [1, float("nan")])):
        with pytest.raises(UsageFault):
            scene.queue.complete_many(wrong, results)
    with pytest.raises(NotFound):
        scene.queue.complete_many([scene.queue.claim()])
    assert scene.queue.size("active") == 2
