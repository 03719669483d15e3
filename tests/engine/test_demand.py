"""What a plan looks at of the runs that wait, and that it leaves their index as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

from controller.engine.index import Index
from controller.engine.planner import plan
from controller.engine.submission import Submission
from controller.model.edit import Draft, apply_edit
from controller.model.mapping import Records
from controller.model.perform import Given, WorkerGiven, move_run, move_worker
from controller.model.records import Document, RunState, WorkerRef
from controller.model.transition import Trigger
from controller.provider.fake import FakeProvider
from tests.engine.fleet import Fleet
from tests.engine.scenes import LINEAGE, NOW
from tests.engine.test_planner_queues import ground, taken, with_ready, with_submitted


def decoded(document: Document) -> int:
    """How many runs were decoded whole, of a document that was just read."""
    return sum(not isinstance(entry, Raw) for _, entry in Records.of(document.runs).raw_items())


@pytest.mark.parametrize("waiting", [100, 2_000])
def test_a_plan_decodes_the_runs_that_it_takes_and_two_more_however_many_wait(tmp_path: Path, waiting: int) -> None:
    fleet = Fleet(tmp_path / "state", FakeProvider(LINEAGE), slots=3)
    fleet.submit(*(f"r{number}" for number in range(waiting)))
    context = fleet.context
    document = context.store.read().document
    made = plan(document, None, ground(3), NOW, index=context.index(document))
    assert [park.run for park in made.parks] == ["r0", "r1", "r2"]
    assert decoded(document) <= 2 * 3 + 1


def test_runs_behind_a_full_key_are_not_looked_at_one_by_one() -> None:
    free = [Submission(id=name) for name in ("x", "y")]
    document = with_submitted(*(Submission(id=f"k{n}", concurrency_key="k") for n in range(500)), *free)
    document = with_running(with_ready(document, 1, 2, 3), "k0")
    index = Index(document.runs, "")
    looked = CountingRuns(index.runs)
    made = plan(replace(document, runs=looked), None, ground(3), NOW, index=following(index, looked))
    assert [park.run for park in made.parks if park.run != "k0"] == ["x", "y"]
    assert len(looked.asked) <= 20


def test_a_plan_that_comes_to_nothing_leaves_the_index_as_it_was() -> None:
    keyed = (Submission(id=f"k{n}", concurrency_key="k", concurrency=2) for n in range(4))
    document = with_ready(with_submitted(*keyed, Submission(id="free")), 1, 2, 3)
    index = Index(document.runs, "")
    first = plan(document, None, ground(3), NOW, index=index)
    again = plan(document, None, ground(3), NOW, index=index)
    assert again == first == plan(document, None, ground(3), NOW)
    assert taken(apply_edit(document, first.edit)) == ["k0", "k1", "free"]


class CountingRuns(dict[str, object]):
    """Runs that note which of them were asked for."""

    def __init__(self, runs: object) -> None:
        super().__init__(runs)  # type: ignore[call-overload] # a mapping of runs
        self.asked: set[str] = set()

    def get(self, key: str, default: object = None) -> object:
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> object:
        self.asked.add(key)
        return super().__getitem__(key)


def following(index: Index, runs: CountingRuns) -> Index:
    index.runs = runs  # type: ignore[assignment] # the same runs
    return index


def with_running(document: Document, run: str) -> Document:
    """*document* with *run* claimed by the worker of slot 1."""
    draft = Draft(document, now=NOW, command="reconcile")
    worker = document.workers[1]
    move_run(draft, run, Trigger.CLAIM, Given(worker=WorkerRef(1, worker.assignment, worker.generation)))
    move_worker(draft, 1, Trigger.CLAIM, WorkerGiven(run=run, token=1))
    after = apply_edit(document, draft.edit())
    assert after.runs[run].state is RunState.RUNNING
    return after
