"""A concurrency key of one is a lease on an entity: whatever ends its holder's life gives it back, in that commit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.engine import leases, upkeep
from controller.engine import queue as runs
from controller.engine.submission import Submission
from controller.model.reason import Reason
from controller.model.records import Run, RunState
from tests.engine.queue import kit
from tests.engine.queue.kit import Host


def completed(host: Host, run: Run) -> None:
    leases.complete(host.process(), run.id, run.attempts)


def failed(host: Host, run: Run) -> None:
    leases.fail(host.process(), run.id, run.attempts, error="no use", reason=Reason.INVALID_PAYLOAD)


def retried(host: Host, run: Run) -> None:
    leases.retry(host.process(), run.id, run.attempts, error="again", delay_ms=60_000)


def drained(host: Host, run: Run) -> None:
    """Given back, the run is first in line again; so somebody else must be let in front of it."""
    runs.cancel(host.process(), run.id)
    leases.drain(host.process(), run.id, run.attempts)


def cancelled(host: Host, run: Run) -> None:
    """The holder is asked, and hands the run in."""
    runs.cancel(host.process(), run.id)
    assert leases.claim(host.process(), "a", owner="other") == (), "its holder may still be at work"
    leases.complete(host.process(), run.id, run.attempts)
    assert host.run(run.id).state is RunState.CANCELLED


def crashed(host: Host, run: Run) -> None:
    host.clock.advance(60)
    assert [each.run.id for each in upkeep.reap(host.process())] == [run.id]


def rebooted(host: Host, run: Run) -> None:
    host.reboot()
    assert [each.run.id for each in upkeep.reap(host.process())] == [run.id]


def invalidated(host: Host, run: Run) -> None:
    kit.restore(host)
    assert [each.run.id for each in upkeep.reap(host.process())] == [run.id]


def discarded(host: Host, run: Run) -> None:
    leases.discard(host.process(), run.id)


def replaced(host: Host, run: Run) -> None:
    other = Submission((), id=run.id, queue="b", payload=kit.payload("other"), replace=True)
    runs.submit(host.process(), [other])
    assert host.run(run.id).state is RunState.QUEUED


@pytest.mark.parametrize(
    "end", [completed, failed, retried, drained, cancelled, crashed, rebooted, invalidated, discarded, replaced]
)
def test_a_key_is_free_again_in_the_commit_that_ends_its_holder(host: Host, end: Callable[[Host, Run], None]) -> None:
    known = host.process()
    host.submit("holder", concurrency_key="k", max_attempts=2, max_crashes=1)
    host.submit("waiting", concurrency_key="k")
    (holder,) = leases.claim(known, "a", owner="first", lease_ms=1_000)
    assert leases.claim(known, "a", owner="second") == ()
    end(host, holder)
    twin = Host(host.disk.twin())
    twin.boot = host.boot
    for context in (twin.process(), host.process() if end is rebooted else known):
        (got,) = leases.claim(context, "a", owner="second")
        assert (got.id, got.attempts) == ("waiting", 1)
    with pytest.raises(kit.Refusal) as refusal:
        leases.complete(host.process(), holder.id, holder.attempts)
    assert refusal.value.exit == 3


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_there_are_never_more_holders_of_a_key_than_permits(host: Host, limit: int) -> None:
    host.submit(*(f"a-{n}" for n in range(6)), concurrency_key="k", concurrency=limit)
    host.submit(*(f"b-{n}" for n in range(6)), queue="b", concurrency_key="k", concurrency=limit)
    known = host.process()
    held: list[Run] = []
    done = 0
    while done < 12:
        for queue in ("a", "b"):
            held += leases.claim(known, queue, owner="c", count=5)
        running = [run for run in host.document.runs.values() if run.state is RunState.RUNNING]
        assert len(running) == len(held) == min(limit, 12 - done)
        run = held.pop(0)
        leases.complete(known, run.id, run.attempts)
        done += 1


def test_a_key_holds_across_queues_and_every_permit_is_used(host: Host) -> None:
    host.submit("a-1", concurrency_key="k", concurrency=1)
    host.submit("b-1", queue="b", concurrency_key="k", concurrency=2)
    host.submit("b-2", queue="b", concurrency_key="k", concurrency=1)
    assert [run.id for run in leases.claim(host.process(), "a", owner="c")] == ["a-1"]
    got = leases.claim(host.process(), "b", owner="c", count=2)
    assert [run.id for run in got] == ["b-1"], "two may run once b-1 does; b-2 wants to run alone"


def test_the_next_of_a_key_can_come_in_the_very_commit_that_completes_its_holder(host: Host) -> None:
    host.submit("first", "second", concurrency_key="k")
    (first,) = leases.claim(host.process(), "a", owner="c")
    before = host.document.revision
    done = leases.complete(host.process(), first.id, first.attempts, claim_next=True)
    assert done.next is not None
    assert (done.next.id, host.document.revision) == ("second", before + 1)


def test_a_run_that_waits_for_its_key_is_not_stranded_by_a_clock_that_goes_back(host: Host) -> None:
    host.submit("first", "second", concurrency_key="k")
    known = host.process()
    (first,) = leases.claim(known, "a", owner="c", lease_ms=86_400_000)
    assert leases.claim(known, "a", owner="c") == ()
    host.clock.jump(-7_200)
    leases.complete(known, first.id, first.attempts)
    assert [run.id for run in leases.claim(host.process(), "a", owner="c")] == ["second"]


def test_a_run_whose_key_is_full_waits_without_spending_anything(host: Host) -> None:
    host.submit("first", "second", concurrency_key="k")
    leases.claim(host.process(), "a", owner="c")
    for _ in range(3):
        assert leases.claim(host.process(), "a", owner="c") == ()
    waiting = host.run("second")
    assert (waiting.attempts, waiting.failures, waiting.crashes, waiting.deferrals) == (0, 0, 0, 1)
