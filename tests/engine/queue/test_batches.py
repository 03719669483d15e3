"""Ends of many runs in one commit: each is judged for itself, and none is lost for another."""

from __future__ import annotations

import pytest
from msgspec import Raw

from controller.engine import leases
from controller.engine.batches import End, Judged, complete_many
from controller.engine.queue import Context, cancel
from controller.model.errors import NotFound, TransitionRefused, UsageFault
from controller.model.policy import MOST_CLAIMS
from controller.model.reason import Reason
from controller.model.records import Run, RunState
from controller.model.transition import Trigger, Why
from tests.engine.queue.kit import Host, payload, step


def held(context: Context, count: int, queue: str = "a", owner: str = "me") -> list[End]:
    return [End(run.id, run.attempts) for run in leases.claim(context, queue, owner=owner, count=count)]


def scene(count: int) -> tuple[Host, Context]:
    host = Host()
    host.submit(*(f"r{n}" for n in range(count)))
    return host, host.process()


def names(judged: tuple[Judged, ...]) -> list[str | None]:
    """Of each answer the run that came with it."""
    return [None if each.done is None or each.done.next is None else each.done.next.id for each in judged]


def why(judged: Judged) -> str:
    assert isinstance(judged.refused, TransitionRefused)
    return judged.refused.why


def test_ten_ends_are_one_commit_and_each_keeps_its_own_result() -> None:
    host, process = scene(10)
    ends = [End(each.run, each.token, payload(each.run)) for each in held(process, 10)]
    before = host.document.revision
    judged = complete_many(process, ends)
    assert host.document.revision == before + 1
    assert [each.done and each.done.run.id for each in judged] == [f"r{n}" for n in range(10)]
    assert [bytes(stone.result) for stone in host.document.finished.values() if isinstance(stone.result, Raw)] == [
        b'"r%d"' % n for n in range(10)
    ]


def test_nine_good_ends_are_not_lost_for_one_whose_run_another_has() -> None:
    host, process = scene(10)
    ends = held(process, 10)
    leases.drain(process, "r4", 1)
    leases.claim(process, "a", owner="other")
    judged = complete_many(process, ends)
    assert sorted(host.document.finished) == sorted(f"r{n}" for n in range(10) if n != 4)
    assert [n for n, each in enumerate(judged) if each.done is None] == [4]
    assert why(judged[4]) == Why.STALE_LEASE
    run = host.run("r4")
    assert run.lease is not None
    assert (run.lease.owner, run.attempts) == ("other", 2)


def test_a_report_that_is_refused_leaves_no_trace_in_document_or_history() -> None:
    host = Host()
    host.submit("graph", steps=(step("first"), step("second", "first")), payload=Raw(b"1"))
    host.submit("plain")
    process = host.process()
    ends = held(process, 2)
    judged = complete_many(process, ends)
    assert (why(judged[0]), judged[1].refused) == (Why.STEPS_NOT_TERMINAL, None)
    assert host.run("graph").state is RunState.RUNNING
    assert [event.subject for event in host.document.events] == ["run:plain"]


def test_a_batch_of_nothing_but_refusals_commits_nothing() -> None:
    host, process = scene(1)
    before = host.document.revision
    judged = complete_many(process, [End("r0", 1), End("nobody", 1)])
    assert why(judged[0]) == Why.STALE_LEASE
    assert isinstance(judged[1].refused, NotFound)
    assert host.document.revision == before


def test_what_was_reported_before_is_said_to_be_done_and_so_is_what_a_batch_names_twice() -> None:
    _, process = scene(2)
    ends = held(process, 2)
    leases.complete(process, "r0", 1)
    judged = complete_many(process, [*ends, ends[1]])
    assert [each.done is None for each in judged] == [True, False, True]
    for again in (judged[0], judged[2]):
        assert why(again) == Why.ILLEGAL_TRANSITION
        assert again.refused is not None
        assert "already done by you" in again.refused.where


def test_a_cancelled_run_ends_as_cancelled_among_others() -> None:
    host, process = scene(2)
    ends = held(process, 2)
    cancel(process, "r0")
    complete_many(process, ends)
    assert host.run("r0").state is RunState.CANCELLED
    assert host.stone("r1").state is RunState.SUCCEEDED


def test_the_next_runs_come_in_the_same_commit_for_the_same_owner_and_as_long() -> None:
    host, process = scene(5)
    runs = leases.claim(process, "a", owner="me", lease_ms=7_000, count=2)
    before = host.document.revision
    judged = complete_many(process, [End(run.id, 1) for run in runs], claim_next=2)
    assert host.document.revision == before + 1
    assert names(judged) == ["r2", "r3"]
    for name in ("r2", "r3"):
        lease = host.run(name).lease
        assert lease is not None
        assert (lease.owner, lease.granted_ms) == ("me", 7_000)


def test_no_more_runs_come_than_were_asked_for_nor_than_reports_were_accepted() -> None:
    host, process = scene(9)
    ends = held(process, 3)
    judged = complete_many(process, [*ends, End("nobody", 1)], claim_next=2)
    assert names(judged) == ["r3", "r4", None, None]
    judged = complete_many(process, [End("r3", 1), End("nobody", 1), End("r4", 9)], claim_next=9)
    assert names(judged) == ["r5", None, None]
    assert len([run for run in host.document.runs.values() if run.state is RunState.RUNNING]) == 2


def test_a_batch_whose_answer_was_lost_is_answered_with_the_same_runs_and_takes_no_others() -> None:
    host, process = scene(6)
    ends = held(process, 3)
    first = complete_many(process, ends, claim_next=2)
    before = host.document.revision
    again = complete_many(host.process(), ends, claim_next=2)
    assert names(again) == names(first) == ["r3", "r4", None]
    assert [each.done is not None and each.done.repeated for each in again] == [True, True, False]
    assert why(again[2]) == Why.ILLEGAL_TRANSITION
    assert host.document.revision == before


def test_each_queue_goes_on_with_its_own_and_each_owner_too() -> None:
    host = Host()
    for queue in ("a", "b"):
        host.submit(*(f"{queue}{n}" for n in range(4)), queue=queue)
    process = host.process()
    ends = [*held(process, 1, "a", "me"), *held(process, 1, "b", "you"), *held(process, 1, "a", "you")]
    judged = complete_many(process, ends, claim_next=3)
    assert names(judged) == ["a2", "b1", "a3"]
    owners = [run.lease.owner for name in names(judged) if name and (run := host.run(name)).lease]
    assert owners == ["me", "you", "you"]


def test_a_life_that_failed_by_its_steps_is_told_as_complete_tells_it() -> None:
    host = Host()
    host.submit("graph", steps=(step("first"), step("second", "first")), payload=Raw(b"1"), max_attempts=2)
    process = host.process()
    ends = held(process, 1)
    leases.step(process, "graph", "first", 1, Trigger.STEP_STARTED)
    leases.step(process, "graph", "first", 1, Trigger.STEP_FAILED, reason=Reason.STEP_FAILED)
    (judged,) = complete_many(process, ends)
    assert judged.done is not None
    assert isinstance(judged.done.run, Run)
    assert (judged.done.run.state, judged.done.run.failures) == (RunState.QUEUED, 1)


@pytest.mark.parametrize(
    ("ends", "claim_next"),
    [
        ([End("r0", 1), End("r0", 0)], 0),
        ([End("r0", 1, Raw(b'"' + b"x" * (1 << 20) + b'"'))], 0),
        ([End("r0", 1)] * (MOST_CLAIMS + 1), 0),
        ([End("r0", 1)], -1),
        ([End("r0", 1)], MOST_CLAIMS + 1),
    ],
)
def test_what_nobody_could_report_is_refused_whole(ends: list[End], claim_next: int) -> None:
    host, process = scene(1)
    held(process, 1)
    before = host.document
    with pytest.raises(UsageFault):
        complete_many(process, ends, claim_next=claim_next)
    assert host.document is before


def test_without_reports_there_is_nothing_to_answer() -> None:
    host, process = scene(1)
    assert complete_many(process, [], claim_next=3) == ()
    assert isinstance(host.run("r0"), Run)
    assert list(host.document.finished) == []
