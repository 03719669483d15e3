"""Leases and tokens: one owner at a time, and whoever is no owner any more changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.engine import leases, upkeep
from controller.engine import queue as runs
from controller.engine.queue import Context
from controller.engine.submission import Submission
from controller.model.errors import Conflict, NotFound, TransitionRefused, UsageFault
from controller.model.policy import LONGEST_LEASE_MS
from controller.model.reason import Reason
from controller.model.records import RunState
from controller.model.transition import Trigger
from tests.engine.queue import kit
from tests.engine.queue.kit import Host

Report = Callable[[Context, str, int], object]


def complete(context: Context, run: str, token: int) -> object:
    return leases.complete(context, run, token)


def complete_and_claim(context: Context, run: str, token: int) -> object:
    return leases.complete(context, run, token, claim_next=True)


def retry(context: Context, run: str, token: int) -> object:
    return leases.retry(context, run, token, error="late")


def fail(context: Context, run: str, token: int) -> object:
    return leases.fail(context, run, token, error="late", reason=Reason.CONSUMER_FAILED)


def beat(context: Context, run: str, token: int) -> object:
    return leases.heartbeat(context, run, token)


def drain(context: Context, run: str, token: int) -> object:
    return leases.drain(context, run, token)


def start(context: Context, run: str, token: int) -> object:
    return leases.step(context, run, "first", token, Trigger.STEP_STARTED)


REPORTS = [complete, complete_and_claim, retry, fail, beat, drain, start]


def refused(host: Host, report: Report, run: str, token: int) -> TransitionRefused:
    """The refusal, and nothing was changed by it."""
    before = host.disk.evidence()
    with pytest.raises(TransitionRefused) as refusal:
        report(host.process(), run, token)
    assert host.disk.evidence() == before
    return refusal.value


@pytest.mark.parametrize("report", REPORTS)
def test_of_two_leases_on_one_run_only_the_later_counts_whatever_the_earlier_reports(
    host: Host, report: Report
) -> None:
    host.submit("work", max_attempts=2, max_crashes=2, steps=(kit.step("first"),), payload=kit.UNSET)
    leases.claim(host.process(), "a", owner="slow", lease_ms=40)
    host.clock.advance(0.04)
    upkeep.reap(host.process())
    (run,) = leases.claim(host.process(), "a", owner="quick")
    assert (run.attempts, run.lease and run.lease.owner) == (2, "quick")
    no = refused(host, report, "work", 1)
    assert no.why == "stale_lease"
    assert "token 1 is stale" in no.where
    assert "the current token is 2, held by quick" in no.where


def test_no_two_processes_own_a_run_however_they_ask_for_it(host: Host) -> None:
    host.submit("only")
    known = [host.process() for _ in range(4)]
    got = [run for context in known for run in leases.claim(context, "a", owner="c", count=3)]
    assert [run.id for run in got] == ["only"]


def test_a_token_that_was_never_handed_out_is_refused_and_the_holder_goes_on(host: Host) -> None:
    host.submit("work")
    (run,) = leases.claim(host.process(), "a", owner="c")
    no = refused(host, complete, "work", 99)
    assert no.why == "stale_lease"
    assert "the current token is 1, held by c" in no.where
    assert leases.complete(host.process(), "work", run.attempts).next is None
    assert host.stone("work").token == 1


@pytest.mark.parametrize("report", REPORTS)
def test_who_has_done_it_is_told_so_and_who_has_not_is_stale(host: Host, report: Report) -> None:
    host.submit("work")
    leases.claim(host.process(), "a", owner="c")
    leases.complete(host.process(), "work", 1, result=kit.payload(5))
    assert refused(host, report, "work", 7).why == "stale_lease"
    no = refused(host, report, "work", 1)
    assert (no.why, "already done by you, token 1" in no.where) == ("illegal_transition", True)


@pytest.mark.parametrize("report", REPORTS)
def test_a_run_that_is_not_there_is_told_from_one_that_is_done(host: Host, report: Report) -> None:
    before = host.disk.evidence()
    with pytest.raises(NotFound) as refusal:
        report(host.process(), "nothing", 1)
    assert (refusal.value.exit, host.disk.evidence()) == (4, before)


@pytest.mark.parametrize("report", REPORTS)
def test_a_run_that_nobody_holds_takes_no_report(host: Host, report: Report) -> None:
    host.submit("work")
    assert refused(host, report, "work", 1).why == "stale_lease"
    before = host.disk.evidence()
    for token in (0, -1, 1 << 70):
        with pytest.raises(UsageFault):
            report(host.process(), "work", token)
    assert host.disk.evidence() == before


@pytest.mark.parametrize("end", [retry, fail, drain])
def test_a_life_that_its_holder_ended_takes_no_second_report(host: Host, end: Report) -> None:
    host.submit("work", max_attempts=3)
    leases.claim(host.process(), "a", owner="c")
    end(host.process(), "work", 1)
    for report in (complete, retry, fail, drain, beat):
        assert refused(host, report, "work", 1).why in ("illegal_transition", "stale_lease")


def test_q2_the_zombie_that_comes_back_finds_its_run_in_other_hands(host: Host) -> None:
    host.submit("work", max_crashes=2)
    zombie = host.process()
    leases.claim(zombie, "a", owner="zombie", lease_ms=1_000)
    host.clock.advance(1)
    (reaped,) = upkeep.reap(host.process())
    assert (reaped.owner, reaped.token, reaped.run.state) == ("zombie", 1, RunState.QUEUED)
    leases.claim(host.process(), "a", owner="living")
    with pytest.raises(TransitionRefused, match="stale"):
        leases.complete(zombie, "work", 1)
    leases.complete(host.process(), "work", 2, result=kit.payload("right"))
    with pytest.raises(TransitionRefused) as refusal:
        leases.complete(zombie, "work", 1, result=kit.payload("wrong"))
    assert refusal.value.why == "stale_lease"
    assert bytes(host.stone("work").result) == b'"right"'  # type: ignore[arg-type]


def test_a_lease_that_ran_out_is_still_its_holders_until_somebody_takes_it(host: Host) -> None:
    host.submit("work")
    leases.claim(host.process(), "a", owner="late", lease_ms=40)
    host.clock.advance(5)
    assert leases.claim(host.process(), "a", owner="other") == ()
    leases.complete(host.process(), "work", 1)
    assert upkeep.reap(host.process()) == ()
    assert host.stone("work").owner == "late"


def test_a_heartbeat_keeps_a_lease_and_says_what_was_asked_meanwhile(host: Host) -> None:
    host.submit("work")
    leases.claim(host.process(), "a", owner="c", lease_ms=1_000)
    for _ in range(5):
        host.clock.advance(0.9)
        assert upkeep.reap(host.process()) == ()
        assert leases.heartbeat(host.process(), "work", 1, progress=kit.payload(3)).cancel_requested_at is None
    runs.cancel(host.process(), "work")
    assert leases.heartbeat(host.process(), "work", 1).cancel_requested_at is not None
    assert bytes(host.run("work").progress) == b"3"  # type: ignore[arg-type]


def test_a_valid_lease_is_not_taken_a_moment_before_its_deadline(host: Host) -> None:
    host.submit("work", max_crashes=2)
    leases.claim(host.process(), "a", owner="c", lease_ms=1_000)
    host.clock.advance(0.999)
    assert upkeep.reap(host.process()) == ()
    host.clock.advance(0.001)
    assert [each.run.id for each in upkeep.reap(host.process())] == ["work"]


@pytest.mark.parametrize("hours", [-2, 2])
def test_q4_a_wall_clock_that_jumps_neither_robs_a_living_holder_nor_protects_a_dead_one(
    host: Host, hours: int
) -> None:
    host.submit("work", max_crashes=2)
    leases.claim(host.process(), "a", owner="c", lease_ms=60_000)
    host.clock.jump(hours * 3_600)
    assert upkeep.reap(host.process()) == ()
    leases.heartbeat(host.process(), "work", 1)
    host.clock.advance(60)
    assert [each.run.id for each in upkeep.reap(host.process())] == ["work"]
    assert [run.attempts for run in leases.claim(host.process(), "a", owner="d")] == [2]


@pytest.mark.parametrize("hours", [-2, 2])
def test_q4_a_run_that_went_back_to_its_queue_is_not_stranded_by_a_wall_clock_that_jumps(
    host: Host, hours: int
) -> None:
    host.submit("failed", "lost", "drained", max_attempts=3, max_crashes=3)
    for run in leases.claim(host.process(), "a", owner="c", count=3, lease_ms=1_000):
        if run.id == "failed":
            leases.retry(host.process(), run.id, 1, error="again")
        elif run.id == "drained":
            leases.drain(host.process(), run.id, 1)
    host.clock.advance(1)
    upkeep.reap(host.process())
    host.clock.jump(hours * 3_600)
    host.clock.advance(8)
    got = leases.claim(host.process(), "a", owner="d", count=3)
    assert [(run.id, run.attempts) for run in got] == [("failed", 2), ("lost", 2), ("drained", 2)]


def test_q4_a_reboot_ends_every_lease_whatever_the_new_boots_clock_says(host: Host) -> None:
    host.submit("short", "long", max_crashes=2)
    host.clock.advance(-900)  # a clock that has run for 100 s
    leases.claim(host.process(), "a", owner="c", count=2, lease_ms=86_400_000)
    host.reboot()
    assert {each.run.id for each in upkeep.reap(host.process())} == {"short", "long"}


def test_q4_a_lease_stamped_in_the_future_lasts_no_longer_than_it_was_granted_for(host: Host) -> None:
    """No holder on this clock can have got that. From the first look on it is a lease like any other."""
    host.submit("work", max_crashes=2)
    (run,) = leases.claim(host.process(), "a", owner="c", lease_ms=1_000)
    assert run.lease is not None
    later = kit.replace(run.lease, deadline_ms=run.lease.deadline_ms + 86_400_000)
    kit.rewrite(host, kit.replace(run, lease=later))
    assert upkeep.reap(host.process()) == (), "its holder may be alive, on a clock of its own"
    host.clock.advance(0.999)
    assert upkeep.reap(host.process()) == ()
    host.clock.advance(0.001)
    assert [each.run.id for each in upkeep.reap(host.process())] == ["work"]


@pytest.mark.parametrize("lease", [0, -1, LONGEST_LEASE_MS + 1, 365 * 86_400_000])
def test_a_lease_of_no_time_or_of_a_year_is_refused(host: Host, lease: int) -> None:
    host.submit("work")
    before = host.disk.evidence()
    with pytest.raises(UsageFault):
        leases.claim(host.process(), "a", owner="c", lease_ms=lease)
    assert host.disk.evidence() == before
    leases.claim(host.process(), "a", owner="c")
    before = host.disk.evidence()
    with pytest.raises(UsageFault):
        leases.heartbeat(host.process(), "work", 1, lease_ms=lease)
    assert host.disk.evidence() == before


@pytest.mark.parametrize(
    ("state", "verb"),
    [
        ("queued", runs.retry),
        ("queued", lambda context, run: leases.discard(context, f"{run}-not-there")),
        ("running", runs.retry),
        ("running", runs.withdraw),
        ("running", lambda context, run: upkeep.promote(context, (run,))),
        ("dead", runs.cancel),
        ("dead", runs.withdraw),
        ("dead", lambda context, run: upkeep.promote(context, (run,))),
        ("cancelled", runs.cancel),
        ("cancelled", runs.withdraw),
        ("cancelled", lambda context, run: upkeep.promote(context, (run,))),
        ("done", runs.cancel),
        ("done", runs.retry),
        ("done", runs.withdraw),
        ("done", leases.discard),
        ("done", lambda context, run: upkeep.promote(context, (run,))),
        ("discarded", runs.cancel),
        ("discarded", runs.retry),
        ("discarded", leases.discard),
    ],
)
def test_what_cannot_happen_to_a_run_in_its_state_is_refused_and_changes_nothing(
    host: Host, state: str, verb: Callable[[Context, str], object]
) -> None:
    host.submit("work")
    if state in ("running", "dead", "done"):
        leases.claim(host.process(), "a", owner="c")
    match state:
        case "dead":
            leases.fail(host.process(), "work", 1, error="no", reason=Reason.CONSUMER_FAILED)
        case "cancelled":
            runs.cancel(host.process(), "work")
        case "done":
            leases.complete(host.process(), "work", 1)
        case "discarded":
            leases.discard(host.process(), "work")
    before = host.disk.evidence()
    with pytest.raises((TransitionRefused, NotFound)) as refusal:
        verb(host.process(), "work")
    assert refusal.value.exit in (3, 4)
    assert host.disk.evidence() == before


def test_a_holder_that_completes_a_cancelled_run_twice_is_told_that_it_has_done_so(host: Host) -> None:
    host.submit("work")
    leases.claim(host.process(), "a", owner="c")
    runs.cancel(host.process(), "work")
    leases.complete(host.process(), "work", 1)
    assert host.run("work").state is RunState.CANCELLED
    no = refused(host, complete, "work", 1)
    assert (no.why, "already done by you, token 1" in no.where) == ("illegal_transition", True)


def test_what_the_fleet_serves_is_not_given_to_consumers(host: Host) -> None:
    runs.submit(host.process(), [Submission((kit.step("main"),), id="fleets")])
    before = host.disk.evidence()
    with pytest.raises(Conflict):
        leases.claim(host.process(), "fleet", owner="c")
    with pytest.raises(Conflict):
        runs.submit(host.process(), [Submission((), queue="fleet", payload=kit.payload(1))])
    assert host.disk.evidence() == before


def test_a_reused_id_never_hears_of_a_token_again(host: Host) -> None:
    host.submit("work", max_crashes=3)
    for token in (1, 2):
        (run,) = leases.claim(host.process(), "a", owner="c", lease_ms=40)
        assert run.attempts == token
        host.clock.advance(1)
        upkeep.reap(host.process())
    leases.discard(host.process(), "work")
    host.submit("work", payload=kit.payload("other"))
    (run,) = leases.claim(host.process(), "a", owner="c")
    assert run.attempts == 3
    assert refused(host, complete, "work", 2).why == "stale_lease"


def test_a_repeated_report_hands_out_the_same_next_run_while_that_lease_lives(host: Host) -> None:
    host.submit("first", "second", "third", max_crashes=2)
    leases.claim(host.process(), "a", owner="c", lease_ms=1_000)
    done = leases.complete(host.process(), "first", 1, claim_next=True)
    assert done.next is not None
    before = host.disk.evidence()
    for _ in range(2):
        again = leases.complete(host.process(), "first", 1, claim_next=True)
        assert again.repeated
        assert again.next is not None
        assert (again.next.id, again.next.attempts, again.next.state) == ("second", 1, RunState.RUNNING)
    assert host.disk.evidence() == before
    host.clock.advance(1)
    upkeep.reap(host.process())
    assert "already done by you, token 1" in refused(host, complete_and_claim, "first", 1).where
    assert [run.id for run in leases.claim(host.process(), "a", owner="d", count=3)] == ["second", "third"]
