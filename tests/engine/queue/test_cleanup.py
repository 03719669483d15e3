"""What is left when something ends: nothing that anybody could take for work, and nothing counted twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.engine import leases, upkeep
from controller.engine import queue as runs
from controller.engine.browse import size
from controller.engine.fsck import check
from controller.engine.submission import Submission
from controller.model.errors import Conflict, NotFound, TransitionRefused
from controller.model.reason import Reason
from controller.model.records import RunState, WorkerState
from controller.model.transition import Trigger
from controller.model.views import View
from controller.provider.fake import FakeProvider
from tests.engine.fleet import LINEAGE, Fleet
from tests.engine.queue import kit
from tests.engine.queue.kit import Host


def sizes(host: Host) -> dict[str, int]:
    now = host.clock.now_ms()
    return {str(view): size(host.document, view, now) for view in View if size(host.document, view, now)}


def test_a_cancel_leaves_nothing_to_claim_nothing_held_and_every_step_ended(host: Host) -> None:
    host.submit("queued", "held", steps=(kit.step("first"), kit.step("second", "first")), payload=kit.UNSET)
    runs.cancel(host.process(), "queued")
    leases.claim(host.process(), "a", owner="c", lease_ms=1_000)
    leases.step(host.process(), "held", "first", 1, Trigger.STEP_STARTED)
    runs.cancel(host.process(), "held")
    assert host.run("held").state is RunState.RUNNING, "its holder has to end it"
    with pytest.raises(TransitionRefused):
        leases.step(host.process(), "held", "second", 1, Trigger.STEP_STARTED)
    host.clock.advance(1)
    upkeep.reap(host.process())
    for name in ("queued", "held"):
        run = host.run(name)
        assert (run.state, run.lease, run.available_at, run.defer_reason) == (RunState.CANCELLED, None, None, None)
        assert {step.state for step in run.steps} == {"cancelled"}
        assert not [attempt for step in run.steps for attempt in step.attempts if attempt.ended_at is None]
    assert sizes(host) == {}
    assert leases.claim(host.process(), "a", owner="c", count=9) == ()
    assert check(host.process().store).violations == ()


@pytest.mark.parametrize("state", ["queued", "scheduled", "running", "dead", "cancelled"])
def test_a_run_that_is_discarded_leaves_nothing_but_its_tombstone(host: Host, state: str) -> None:
    host.submit("target", max_attempts=2, delay_ms=60_000 if state == "scheduled" else None)
    host.submit("other")
    if state in ("running", "dead"):
        leases.claim(host.process(), "a", owner="c")
    if state == "dead":
        leases.fail(host.process(), "target", 1, error="no", reason=Reason.CONSUMER_FAILED)
    if state == "cancelled":
        runs.cancel(host.process(), "target")
    stone = leases.discard(host.process(), "target")
    assert (stone.state, stone.reason) == (RunState.CANCELLED, Reason.DISCARDED)
    assert (list(host.document.runs), list(host.document.finished)) == (["other"], ["target"])
    assert sizes(host) == {"pending": 1}
    host.clock.advance(3_600)
    assert upkeep.reap(host.process()) == ()
    assert upkeep.promote(host.process()) == ()
    assert [run.id for run in leases.claim(host.process(), "a", owner="d", count=9)] == ["other"]
    with pytest.raises(TransitionRefused):
        leases.complete(host.process(), "target", 1)
    with pytest.raises(TransitionRefused):
        leases.discard(host.process(), "target")
    assert check(host.process().store).violations == ()


def test_what_is_not_there_cannot_be_discarded(host: Host) -> None:
    with pytest.raises(NotFound):
        leases.discard(host.process(), "nothing")


def test_a_run_that_succeeded_is_in_no_set_and_comes_back_by_no_verb(host: Host) -> None:
    host.submit("done")
    leases.claim(host.process(), "a", owner="c")
    leases.complete(host.process(), "done", 1, result=kit.payload({"rows": 3}))
    assert sizes(host) == {}
    for verb in (runs.cancel, runs.retry, leases.discard):
        with pytest.raises(TransitionRefused):
            verb(host.process(), "done")
    with pytest.raises((TransitionRefused, NotFound)):
        upkeep.promote(host.process(), ("done",))
    host.submit("done")
    assert list(host.document.runs) == []
    assert bytes(host.stone("done").result) == b'{"rows":3}'  # type: ignore[arg-type]


def test_the_same_work_is_queued_once_within_the_time_asked_for(host: Host) -> None:
    def submitted(value: int, queue: str = "a") -> str:
        wanted = Submission((), queue=queue, payload=kit.payload(value), unique_ms=60_000)
        return runs.submit(host.process(), [wanted])[0].run

    first = submitted(1)
    assert submitted(1) == first
    assert submitted(2) != first
    assert submitted(1, "b") != first
    leases.claim(host.process(), "a", owner="c")
    leases.complete(host.process(), first, 1)
    assert submitted(1) == first, "done is done, within that time"
    host.clock.advance(60)
    assert submitted(1) != first


def test_a_submission_of_several_counts_the_same_work_once(host: Host) -> None:
    wanted = Submission((), queue="a", payload=kit.payload(1), unique_ms=60_000)
    answers = runs.submit(host.process(), [wanted, wanted])
    assert [answer.created for answer in answers] == [True, False]
    assert len(host.document.runs) == 1


def test_no_slot_and_no_run_is_given_out_twice(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "state", FakeProvider(LINEAGE, ends=None), slots=3)
    fleet.submit(*(f"run-{n}" for n in range(7)))
    for _ in range(4):
        fleet.reconciler(parallelism=1).reconcile()
        workers = fleet.document.workers
        taken = [worker.run for worker in workers.values() if worker.state is WorkerState.ASSIGNED]
        assert len(set(taken)) == len(taken) == 3
        running = {run.id: run.worker for run in fleet.document.runs.values() if run.state is RunState.RUNNING}
        assert sorted(running) == sorted(str(run) for run in taken)
        assert len({worker.slot for worker in running.values() if worker is not None}) == 3


def test_neither_discard_nor_replace_takes_a_run_from_a_worker(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "state", FakeProvider(LINEAGE, ends=None), slots=1)
    fleet.submit("run-1")
    fleet.reconciler().reconcile()
    assert fleet.document.runs["run-1"].state is RunState.RUNNING
    before = fleet.bytes()
    with pytest.raises(Conflict):
        leases.discard(fleet.context, "run-1")
    other = Submission((kit.step("main"),), id="run-1", max_attempts=7, replace=True)
    with pytest.raises(Conflict):
        runs.submit(fleet.context, [other])
    for verb in (leases.complete, leases.drain, leases.heartbeat):
        with pytest.raises(Conflict):
            verb(fleet.context, "run-1", 1)
    assert fleet.bytes() == before
