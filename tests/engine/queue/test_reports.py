"""What a report may be made of, and what still answers one that is made again."""

from __future__ import annotations

from typing import Any

import pytest

from controller.engine import leases
from controller.model.edit import Draft
from controller.model.errors import Conflict, NotFound, TransitionRefused, UsageFault
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import Worker, WorkerRef, WorkerState
from tests.engine.queue.kit import Host, Memory, policy, replace, steady


def held(host: Host) -> None:
    host.submit("work", max_attempts=3)
    leases.claim(host.process(), "a", owner="c")


@pytest.mark.parametrize("error", [b"bytes", None, 7])
def test_an_error_that_is_no_text_is_refused_and_changes_nothing(host: Host, error: Any) -> None:
    held(host)
    before = host.disk.evidence()
    with pytest.raises(UsageFault):
        leases.retry(host.process(), "work", 1, error=error)
    assert host.disk.evidence() == before


@pytest.mark.parametrize("token", [True, "1", 1.0, None, 0, -1, 2**63])
def test_what_cannot_be_a_token_is_refused_and_changes_nothing(host: Host, token: Any) -> None:
    held(host)
    before = host.disk.evidence()
    with pytest.raises(UsageFault):
        leases.complete(host.process(), "work", token)
    assert host.disk.evidence() == before


def test_bytes_that_are_no_text_are_spelled_out_in_an_error(host: Host) -> None:
    held(host)
    leases.fail(host.process(), "work", 1, error="no file \udcff", reason=Reason.INVALID_PAYLOAD)
    assert host.run("work").last_error == "no file \\udcff"


def test_a_long_error_is_cut_and_says_so(host: Host) -> None:
    held(host)
    leases.retry(host.process(), "work", 1, error="x" * 5_000)
    error = host.run("work").last_error or ""
    assert error.startswith("x" * 4_000)
    assert error.endswith("(cut, of 5000 characters)")


def test_a_repeated_report_is_answered_though_what_ended_may_be_forgotten() -> None:
    host = Host(Memory(), policy(a=steady(retain=0)))
    host.submit("one", "two")
    process = host.process()
    leases.claim(process, "a", owner="c")
    leases.complete(process, "one", 1, claim_next=True)
    host.submit("other")
    again = leases.complete(process, "one", 1, claim_next=True)
    assert again.repeated
    assert again.next is not None
    assert (again.next.id, again.next.attempts) == ("two", 1)


def test_what_ended_is_forgotten_once_the_run_that_was_handed_over_is_done() -> None:
    host = Host(Memory(), policy(a=steady(retain=0)))
    host.submit("one", "two")
    process = host.process()
    leases.claim(process, "a", owner="c")
    leases.complete(process, "one", 1, claim_next=True)
    leases.complete(process, "two", 1)
    host.submit("other")
    host.submit("another")
    with pytest.raises(NotFound):
        leases.complete(process, "one", 1, claim_next=True)


def test_nothing_is_handed_over_from_a_queue_that_has_become_the_fleets(host: Host) -> None:
    host.submit("one", "two")
    process = host.process()
    leases.claim(process, "a", owner="c")
    now_the_fleets = replace(process, policy=Policy(queues=("fleet", "a")))
    done = leases.complete(now_the_fleets, "one", 1, claim_next=True)
    assert done.next is None
    assert host.run("two").state == "queued"


def test_a_stale_token_is_stale_also_once_a_worker_has_the_run(host: Host) -> None:
    held(host)
    taken = replace(host.run("work"), attempts=2, lease=None, worker=WorkerRef(1, "a-1", 1))
    with host.process().store.hold(5.0) as hold:
        loaded = hold.load()
        draft = Draft(loaded.document, now=host.clock.now_ms(), command="test")
        draft.workers.put(1, Worker(1, "a-1", 1, "fake", 1, 1, WorkerState.ASSIGNED, run="work"))
        draft.runs.put("work", taken)
        draft.event("run:work", "rewritten")
        hold.commit(loaded, draft.edit())
    with pytest.raises(TransitionRefused) as stale:
        leases.complete(host.process(), "work", 1)
    assert stale.value.why == "stale_lease"
    with pytest.raises(Conflict):
        leases.complete(host.process(), "work", 2)
