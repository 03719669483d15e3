"""The fleet takes its runs by the same rules as consumers do: keys, pauses, layers and the fair turn."""

from __future__ import annotations

from msgspec.structs import replace

from controller.engine.discovery import FAIR, FINALISTS
from controller.engine.planner import Ground
from controller.engine.submission import Submission, add_run
from controller.model.edit import Draft, apply_edit
from controller.model.invariants import violations
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import (
    ActionType,
    Document,
    Priority,
    Queue,
    Run,
    RunState,
    Step,
    Worker,
    WorkerState,
    new_document,
)
from tests.engine.scenes import LINEAGE, NOW, planned


def with_submitted(*submissions: Submission) -> Document:
    draft = Draft(new_document("test", LINEAGE), now=NOW, command="submit")
    for submission in submissions:
        add_run(draft, replace(submission, steps=(Step("main", ("true",)),)))
    return apply_edit(draft.document, draft.edit())


def with_ready(document: Document, *slots: int) -> Document:
    """*document* with a worker in each of *slots* that holds nothing."""
    made = {n: Worker(n, f"a-{n}", 1, "fake", NOW, NOW, WorkerState.READY, id=f"w-{n}") for n in slots}
    return replace(document, workers=made)


def ground(slots: int, *queues: str) -> Ground:
    return Ground(Policy(slots=slots, queues=queues or ("fleet",)), "fake")


def taken(document: Document) -> list[str]:
    return [run.id for run in document.runs.values() if run.state is RunState.RUNNING]


def test_a_key_keeps_all_but_as_many_as_it_lets_from_workers_that_are_ready() -> None:
    runs = [Submission(id=name, concurrency_key="k", concurrency=2) for name in ("a", "b", "c")]
    document, _ = planned(with_ready(with_submitted(*runs), 1, 2, 3), ground=ground(3))
    assert taken(document) == ["a", "b"]
    assert violations(document) == ()


def test_no_worker_is_made_for_a_run_whose_key_is_full() -> None:
    runs = [Submission(id=name, concurrency_key="k") for name in ("a", "b", "c")]
    _, made = planned(with_submitted(*runs), ground=ground(3))
    assert [(park.type, park.run) for park in made.parks] == [(ActionType.CREATE, "a")]


def test_a_run_behind_those_whose_key_is_full_is_served() -> None:
    keyed = [Submission(id=f"k{n}", concurrency_key="k") for n in range(20)]
    document = with_submitted(*keyed, Submission(id="free", priority=Priority.BACKGROUND))
    document, _ = planned(with_ready(document, 1, 2), ground=ground(2))
    assert taken(document) == ["k0", "free"]


def test_a_run_that_waits_for_its_key_says_so_and_is_taken_once_it_is_free() -> None:
    document = with_submitted(*(Submission(id=name, concurrency_key="k") for name in ("a", "b")))
    document, _ = planned(with_ready(document, 1, 2), ground=ground(2))
    document, _ = planned(document, ground=ground(2))
    assert document.runs["b"].defer_reason is Reason.CONCURRENCY
    again, made = planned(document, ground=ground(2))
    assert made.edit.empty
    over = replace(document.runs["a"], state=RunState.FAILED, worker=None, reason=Reason.STEP_FAILED)
    document, _ = planned(replace(again, runs={**again.runs, "a": over}), ground=ground(2))
    assert taken(document) == ["b"]


def test_runs_that_wait_for_a_key_need_no_plan_each() -> None:
    document = with_ready(with_submitted(*(Submission(id=f"r{n}", concurrency_key="k") for n in range(200))), 1)
    for _ in range(3):
        document, _ = planned(document, ground=ground(1))
    assert [run.defer_reason for run in document.runs.values()].count(Reason.CONCURRENCY) == FINALISTS
    assert planned(document, ground=ground(1))[1].edit.empty


def test_nothing_is_taken_from_a_queue_that_is_paused() -> None:
    document = replace(with_submitted(Submission(id="a")), queues={"fleet": Queue(paused=True)})
    document, made = planned(with_ready(document, 1), ground=ground(2))
    assert taken(document) == []
    assert made.parks == ()


def test_another_queue_of_the_fleet_goes_on_while_one_is_paused() -> None:
    document = with_submitted(Submission(id="a"), Submission(id="b", queue="other"))
    document = with_ready(replace(document, queues={"fleet": Queue(paused=True)}), 1)
    document, _ = planned(document, ground=ground(1, "fleet", "other"))
    assert taken(document) == ["b"]


def test_each_claim_of_a_worker_is_counted_for_its_queue() -> None:
    document, _ = planned(with_ready(with_submitted(Submission(id="a"), Submission(id="b")), 1, 2), ground=ground(2))
    assert document.queues == {"fleet": Queue(claims=2)}


def fair_turn(*submissions: Submission) -> Document:
    document = replace(with_submitted(*submissions), queues={"fleet": Queue(claims=FAIR - 1)})
    return with_ready(document, 1)


def test_one_claim_in_sixteen_serves_the_run_that_has_waited_longest() -> None:
    document = fair_turn(
        Submission(id="old", priority=Priority.BACKGROUND), Submission(id="new", priority=Priority.CRITICAL)
    )
    document, _ = planned(document, ground=ground(1))
    assert taken(document) == ["old"]


def test_a_forced_run_does_not_count_as_waiting_longest() -> None:
    document = fair_turn(
        Submission(id="forced", priority=Priority.FORCED), Submission(id="late", priority=Priority.BACKGROUND)
    )
    document, _ = planned(document, ground=ground(1))
    assert taken(document) == ["late"]


def test_the_fair_turn_passes_over_a_run_whose_key_is_full() -> None:
    document = fair_turn(
        Submission(id="holds", concurrency_key="k"),
        Submission(id="blocked", concurrency_key="k", priority=Priority.BACKGROUND),
        Submission(id="next", priority=Priority.BACKGROUND),
        Submission(id="first", priority=Priority.CRITICAL),
    )
    held: Run = replace(document.runs["holds"], state=RunState.RUNNING, attempts=1)
    document, _ = planned(replace(document, runs={**document.runs, "holds": held}), ground=ground(1))
    assert taken(document) == ["holds", "next"]
