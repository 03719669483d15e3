"""Ended runs are forgotten by age and by number, a few with each commit."""

from __future__ import annotations

from msgspec import Raw
from msgspec.structs import replace

from controller.engine import leases
from controller.engine.queue import cancel, retry, submit
from controller.engine.retention import AT_ONCE
from controller.engine.submission import Submission
from controller.engine.upkeep import tidy
from controller.model.action import mint
from controller.model.edit import Draft
from controller.model.invariants import violations
from controller.model.reason import Reason
from controller.model.records import ActionType, Disowned, Proven, Worker, WorkerState
from tests.engine.queue.kit import Host, Memory, policy, steady

DAY = 86_400


def host_that_keeps(**fields: int) -> Host:
    return Host(Memory(), policy(a=steady(**fields)))


def done(host: Host, *ids: str) -> None:
    host.submit(*ids)
    process = host.process()
    for run in leases.claim(process, "a", owner="c", count=len(ids)):
        leases.complete(process, run.id, run.attempts)


def test_a_run_that_succeeded_is_forgotten_once_its_time_is_over() -> None:
    host = host_that_keeps(retention_ms=DAY * 1000)
    done(host, "old")
    host.clock.advance(DAY - 1)
    host.submit("before")
    assert "old" in host.document.finished
    host.clock.advance(1)
    host.submit("after")
    assert "old" not in host.document.finished
    assert [event.subject for event in host.document.events if event.event == "pruned"] == ["run:old"]


def test_a_dead_run_is_forgotten_once_its_time_is_over() -> None:
    host = host_that_keeps(retention_ms=DAY * 1000)
    host.submit("dead", "called-off", "waits")
    process = host.process()
    (run,) = leases.claim(process, "a", owner="c")
    leases.fail(process, run.id, 1, error="no", reason=Reason.INVALID_PAYLOAD)
    cancel(process, "called-off")
    host.clock.advance(DAY)
    leases.claim(process, "a", owner="c")
    assert list(host.document.runs) == ["waits"]
    assert host.document.counters.pruned == 2


def test_the_oldest_beyond_the_number_to_keep_are_forgotten() -> None:
    host = host_that_keeps(retain=2)
    done(host, "one", "two", "three", "four")
    host.submit("next")
    assert list(host.document.finished) == ["three", "four"]


def test_what_this_very_commit_sends_back_does_not_count_as_ended() -> None:
    host = host_that_keeps(retain=2)
    host.submit("one", "two", "three")
    process = host.process()
    for run in leases.claim(process, "a", owner="c", count=3):
        leases.fail(process, run.id, 1, error="no", reason=Reason.INVALID_PAYLOAD)
    retry(process, "three")
    assert list(host.document.runs) == ["one", "two", "three"]


def test_another_queue_keeps_its_own_number() -> None:
    host = Host(Memory(), policy(a=steady(retain=1), b=steady(retain=5)))
    for queue in ("b", "a"):
        host.submit(*(f"{queue}-{n}" for n in range(3)), queue=queue)
        process = host.process()
        for run in leases.claim(process, queue, owner="c", count=3):
            leases.complete(process, run.id, run.attempts)
    host.submit("next")
    assert list(host.document.finished) == ["b-0", "b-1", "b-2", "a-2"]


def test_no_commit_forgets_more_than_a_few() -> None:
    host = host_that_keeps(retention_ms=DAY * 1000)
    ids = [f"r{n}" for n in range(AT_ONCE + 3)]
    done(host, *ids)
    host.clock.advance(DAY)
    host.submit("first")
    assert list(host.document.finished) == ids[AT_ONCE:]
    host.submit("second")
    assert list(host.document.finished) == []


def test_tidying_forgets_no_more_at_once_than_any_other_commit() -> None:
    host = host_that_keeps(retention_ms=DAY * 1000)
    ids = [f"r{n}" for n in range(AT_ONCE + 3)]
    done(host, *ids)
    host.clock.advance(DAY)
    assert tidy(host.process())
    assert list(host.document.finished) == ids[AT_ONCE:]


def test_whoever_did_not_read_the_settings_forgets_nothing() -> None:
    host = host_that_keeps(retention_ms=0, retain=0)
    done(host, "old")
    process = host.process()
    blind = type(process)(process.store, process.clock, "test", boot_id=process.boot_id)
    submit(blind, [Submission(payload=Raw(b"1"), queue="a")])
    assert "old" in host.document.finished


def test_an_id_that_comes_back_goes_on_from_the_token_in_history() -> None:
    host = host_that_keeps(retention_ms=1)
    host.submit("job", max_attempts=3)
    process = host.process()
    for token in (1, 2):
        leases.claim(process, "a", owner="c")
        leases.retry(process, "job", token, error="again", delay_ms=0)
    leases.claim(process, "a", owner="c")
    leases.complete(process, "job", 3)
    host.clock.advance(1)
    host.submit("other")
    assert "job" not in host.document.finished
    host.submit("job", payload=Raw(b'"new"'))
    leases.complete(process, leases.claim(process, "a", owner="c")[0].id, 1)
    (again,) = leases.claim(process, "a", owner="c")
    assert (again.id, again.attempts) == ("job", 4)


def test_what_a_slot_still_names_is_kept() -> None:
    host = host_that_keeps(retention_ms=1)
    done(host, "named", "other")
    with host.process().store.hold(5.0) as hold:
        loaded = hold.load()
        draft = Draft(loaded.document, now=host.clock.now_ms(), command="test")
        draft.workers.put(1, Worker(1, "a-1", 1, "fake", 1, 1, WorkerState.RELEASED, run="named"))
        draft.event("slot:1", "made")
        hold.commit(loaded, draft.edit())
    host.clock.advance(1)
    host.submit("next")
    assert list(host.document.finished) == ["named"]
    assert violations(host.document) == ()


def test_what_an_action_names_that_may_have_done_anything_is_kept_until_that_is_known() -> None:
    host = host_that_keeps(retention_ms=DAY * 1000)
    done(host, "named")
    key, raw = mint(
        type=ActionType.EXECUTE,
        slot=1,
        serial=1,
        lineage=host.document.lineage,
        epoch="",
        assignment="a-1",
        generation=1,
        resources={},
        run="named",
    )
    given_up = Disowned(raw, 1, Reason.DISOWNED)
    for known, kept in ((given_up, ["named"]), (replace(given_up, proven=Proven.ABSENT, proven_at=1), [])):
        with host.process().store.hold(1) as hold:
            loaded = hold.load()
            draft = Draft(loaded.document, now=1, command="test")
            draft.disowned.put(key, known)
            draft.event("slot:1", "disowned_by_test")
            hold.commit(loaded, draft.edit())
        host.clock.advance(DAY)
        tidy(host.process())
        assert list(host.document.finished) == kept


def test_a_fleet_that_only_reconciles_forgets_too() -> None:
    host = host_that_keeps(retention_ms=1)
    host.submit("dead", "lives")
    process = host.process()
    leases.claim(process, "a", owner="c")
    leases.fail(process, "dead", 1, error="no", reason=Reason.INVALID_PAYLOAD)
    host.clock.advance(1)
    assert tidy(host.process())
    assert list(host.document.runs) == ["lives"]
    assert not tidy(host.process())


def test_a_queue_that_keeps_longer_does_not_hide_another_that_does_not() -> None:
    host = Host(Memory(), policy(a=steady(), b=steady(retention_ms=1)))
    for queue, many in (("a", 100), ("b", 3)):
        host.submit(*(f"{queue}-{n}" for n in range(many)), queue=queue)
        process = host.process()
        for run in leases.claim(process, queue, owner="c", count=many):
            leases.complete(process, run.id, 1)
    host.clock.advance(1)
    for n in range(3):
        host.submit(f"next-{n}")
    assert {stone.queue for stone in host.document.finished.values()} == {"a"}


def test_what_this_commit_sends_back_keeps_no_other_that_is_too_many() -> None:
    """The oldest is retried: of the four that ended three are left, one more than is kept."""
    host = host_that_keeps(retain=10)
    host.submit("one", "two", "three", "four")
    process = host.process()
    for run in leases.claim(process, "a", owner="c", count=4):
        leases.fail(process, run.id, 1, error="no", reason=Reason.INVALID_PAYLOAD)
        host.clock.advance(1)
    host.policy = policy(a=steady(retain=2))
    retry(replace(process, policy=host.policy), "one")
    assert list(host.document.runs) == ["one", "three", "four"]
