"""Every invariant is broken once, by its name; and a commit is judged by what it touches alone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from controller.model import action
from controller.model.checks import By, Check, Violation, judged_by
from controller.model.edit import Draft
from controller.model.invariants import Touched, against_history, regressions, violations
from controller.model.reason import Reason
from controller.model.records import (
    INITIALISED,
    MAX_SLOTS,
    MAX_TROUBLES,
    ActionType,
    Attempt,
    Counters,
    Disowned,
    Document,
    Event,
    Lease,
    PendingAction,
    Resource,
    Run,
    RunState,
    Slot,
    Step,
    StepState,
    Tombstone,
    Trouble,
    Worker,
    WorkerRef,
    WorkerState,
    new_document,
)

NOW = 1_700_000_000_000
HELD = WorkerRef(1, "a-1", 1)


def key_and_bytes(slot: int = 1, serial: int = 1) -> tuple[str, Raw]:
    return action.mint(
        type=ActionType.CREATE,
        slot=slot,
        serial=serial,
        lineage="l",
        epoch="",
        assignment="a-1",
        generation=1,
        resources={},
    )


def execute(token: int) -> Raw:
    return action.mint(
        type=ActionType.EXECUTE,
        slot=1,
        serial=2,
        lineage="l",
        epoch="",
        assignment="a-1",
        generation=1,
        resources={},
        run="r-1",
        step="main",
        attempt=1,
        token=token,
    )[1]


def step(name: str = "main", **fields: Any) -> Step:
    return Step(name, ("true",), **fields)


def run(**fields: Any) -> Run:
    return replace(Run("r-1", "fleet", 1, NOW, (step(),)), **fields)


def running(**fields: Any) -> Run:
    return run(**{"state": RunState.RUNNING, "attempts": 1, "worker": HELD, "started_at": NOW + 1, **fields})


def leased(name: str, deadline: int = 1, granted: int = 1, **fields: Any) -> Run:
    """A run that a consumer holds."""
    return running(id=name, worker=None, lease=Lease("one", "boot", deadline, granted), **fields)


def worker(**fields: Any) -> Worker:
    return replace(Worker(1, "a-1", 1, "local", NOW, NOW, WorkerState.ASSIGNED, run="r-1"), **fields)


def document(**fields: Any) -> Document:
    """A sound document: a running run, the worker that holds it, and a pending action in slot 2."""
    base = replace(
        new_document("f", "l"),
        revision=1,
        counters=Counters(run=1, sequence=5, assignment=2, serial=5),
        events=(Event(1, 1, NOW, "test", "fleet", "made"),),
        runs={"r-1": running(steps=(step(state=StepState.RUNNING, attempts=(Attempt(1, NOW + 2),)),))},
        workers={1: worker()},
        pending_actions={2: PendingAction(action=key_and_bytes(2)[1], parked_at=NOW)},
        slots={1: Slot(), 2: Slot()},
    )
    return replace(base, **fields)


def tampered() -> Raw:
    return Raw(bytes(key_and_bytes(2)[1]).replace(b'"generation":1', b'"generation":2'))


DONE = Attempt(1, NOW, ended_at=NOW + 1)
OPEN = Attempt(1, NOW)
CASES: list[tuple[str, dict[str, Any]]] = [
    ("schema", {"schema": 1}),
    ("sentinel", {"pending_action": "x"}),
    ("revision", {"revision": -1, "events": ()}),
    ("events", {"events": ()}),
    ("events", {"events": (Event(1, 2, NOW, "test", "fleet", "made"),)}),
    ("events", {"events": (Event(2, 1, NOW, "test", "fleet", "made"),)}),
    ("troubles", {"troubles": tuple(Trouble(NOW, Reason.UNKNOWN, "x") for _ in range(21))}),
    ("slot-bounds", {"slots": {MAX_SLOTS + 1: Slot()}}),
    ("slot-bounds", {"workers": {1: worker(), 0: worker(slot=0, run=None, state=WorkerState.READY)}}),
    (
        "finished-id",
        {"finished": {"r-9": Tombstone("r-8", "q", 1, 1, NOW, NOW, RunState.SUCCEEDED, reason=Reason.COMPLETED)}},
    ),
    (
        "finished-state",
        {"finished": {"r-9": Tombstone("r-9", "q", 1, 1, NOW, NOW, RunState.FAILED, reason=Reason.COMPLETED)}},
    ),
    (
        "run-twice",
        {"finished": {"r-1": Tombstone("r-1", "q", 1, 1, NOW, NOW, RunState.SUCCEEDED, reason=Reason.COMPLETED)}},
    ),
    ("step-reason", {"runs": {"r-1": running(steps=(step(state=StepState.SUCCEEDED, attempts=(DONE,)),))}}),
    ("run-id", {"runs": {"r-1": running(), "r-2": run()}}),
    ("run-id", {"runs": {"r-1": running(), "-": run(id="-")}}),
    ("run-sequence", {"runs": {"r-1": running(sequence=6)}}),
    ("run-range", {"runs": {"r-1": running(max_attempts=-4)}}),
    ("run-range", {"runs": {"r-1": running(created_at=-1)}}),
    ("run-range", {"runs": {"r-1": running(failures=-1)}}),
    ("worker-generation", {"workers": {1: worker(), 2: worker(slot=2, state=WorkerState.LOST, generation=0)}}),
    ("run-reason", {"runs": {"r-1": running(), "r-2": run(id="r-2", state=RunState.CANCELLED)}}),
    ("run-outcome", {"runs": {"r-1": running(), "r-2": run(id="r-2", state=RunState.FAILED)}}),
    (
        "run-outcome",
        {
            "runs": {
                "r-1": running(),
                "r-2": run(
                    id="r-2", state=RunState.SUCCEEDED, reason=Reason.COMPLETED, steps=(step(state=StepState.FAILED),)
                ),
            }
        },
    ),
    (
        "run-ended-step",
        {
            "runs": {
                "r-1": running(),
                "r-2": run(
                    id="r-2",
                    state=RunState.FAILED,
                    reason=Reason.EXIT_CODE,
                    steps=(step(state=StepState.RUNNING, attempts=(OPEN,)),),
                ),
            }
        },
    ),
    ("run-defer-reason", {"runs": {"r-1": running(), "r-2": run(id="r-2", available_at=NOW)}}),
    ("run-holder", {"runs": {"r-1": running(worker=None)}}),
    ("run-holder", {"runs": {"r-1": running(lease=Lease("one", "boot", 1, 1))}}),
    ("run-holder", {"runs": {"r-1": run(worker=HELD)}}),
    ("run-token", {"runs": {"r-1": running(attempts=0)}}),
    ("run-worker", {"workers": {}}),
    ("run-worker", {"workers": {1: worker(generation=2)}}),
    ("run-worker", {"workers": {1: worker(run=None, state=WorkerState.READY)}}),
    ("worker-run", {"workers": {1: worker(), 3: worker(slot=3, run=None)}}),
    ("worker-run", {"workers": {1: worker(), 3: worker(slot=3, run="r-7")}}),
    ("worker-slot", {"workers": {1: worker(slot=2)}}),
    ("step-names", {"runs": {"r-1": running(steps=(step(), step()))}}),
    ("step-needs", {"runs": {"r-1": running(steps=(step(needs=("nobody",)),))}}),
    ("step-cycle", {"runs": {"r-1": running(steps=(step(needs=("b",)), step("b", needs=("main",))))}}),
    ("step-cycle", {"runs": {"r-1": running(steps=(step(needs=("main",)),))}}),
    (
        "step-running-needs",
        {
            "runs": {
                "r-1": running(steps=(step(), step("b", needs=("main",), state=StepState.RUNNING, attempts=(OPEN,))))
            }
        },
    ),
    (
        "step-one-active",
        {"runs": {"r-1": running(steps=(step(state=StepState.RUNNING, attempts=(OPEN, Attempt(2, NOW))),))}},
    ),
    ("step-active-state", {"runs": {"r-1": running(steps=(step(state=StepState.RUNNING, attempts=(DONE,)),))}}),
    ("step-active-state", {"runs": {"r-1": running(steps=(step(attempts=(OPEN,)),))}}),
    ("step-argv", {"runs": {"r-1": running(steps=(replace(step(), argv=()),))}}),
    ("step-range", {"runs": {"r-1": running(steps=(step(timeout_ms=0),))}}),
    ("step-attempts", {"runs": {"r-1": running(steps=(step(attempts=(DONE, replace(DONE, n=3))),))}}),
    ("times", {"runs": {"r-1": running(started_at=NOW - 1)}}),
    (
        "times",
        {
            "runs": {
                "r-1": running(),
                "r-2": run(id="r-2", state=RunState.CANCELLED, reason=Reason.CANCELLED, finished_at=NOW - 1),
            }
        },
    ),
    ("times", {"runs": {"r-1": running(steps=(step(attempts=(replace(DONE, ended_at=NOW - 1),)),))}}),
    ("lease-range", {"runs": {"r-1": running(), "r-2": leased("r-2", granted=0)}}),
    ("lease-range", {"runs": {"r-1": running(), "r-2": leased("r-2", deadline=0)}}),
    ("permits", {"runs": {name: leased(name, concurrency_key="k", concurrency=1) for name in ("r-2", "r-3")}}),
    ("pending-action", {"pending_actions": {2: PendingAction(action=Raw(b"5"), parked_at=NOW)}}),
    ("pending-key", {"pending_actions": {2: PendingAction(action=tampered(), parked_at=NOW)}}),
    ("pending-slot", {"pending_actions": {3: PendingAction(action=key_and_bytes(2)[1], parked_at=NOW)}}),
    ("pending-serial", {"pending_actions": {2: PendingAction(action=key_and_bytes(2, serial=6)[1], parked_at=NOW)}}),
    ("pending-token", {"pending_actions": {1: PendingAction(action=execute(2), parked_at=NOW)}}),
    (
        "resource-owner",
        {
            "workers": {
                1: worker(resources={"vm": Resource("i-1")}),
                3: worker(slot=3, run=None, state=WorkerState.READY, resources={"vm": Resource("i-1")}),
            }
        },
    ),
    (
        "worker-id",
        {"workers": {1: worker(id="w-1"), 3: worker(slot=3, run=None, state=WorkerState.READY, id="w-1")}},
    ),
    ("disowned-key", {"disowned": {"k": Disowned(key_and_bytes(2)[1], NOW, Reason.UNKNOWN)}}),
    ("disowned-key", {"disowned": {key_and_bytes(2)[0]: Disowned(tampered(), NOW, Reason.UNKNOWN)}}),
    ("disowned-key", {"disowned": {key_and_bytes(2)[0]: Disowned(Raw(b"5"), NOW, Reason.UNKNOWN)}}),
]


GOING_BACK = {"counter-lowered", "revision-step", "token-lowered"}
AGAINST_HISTORY = {"lineage", "token-history", "counter-history"}
"""What `regressions` finds, which takes two documents; and `against_history`, which takes events."""
BEYOND = {
    *("digest", "unrecorded", "history-ahead", "history-chain", "history-contiguous", "history-moves"),
    *("history-state", "history-actions", "token-order"),
}
"""What takes more than the records: see the tests of fsck."""


def test_a_sound_document_has_no_violation() -> None:
    assert violations(document()) == ()


def test_a_fleet_that_was_just_made_has_no_violation() -> None:
    new = new_document("f", "l")
    assert violations(new) == against_history(new, ()) == ()


def test_the_least_and_the_most_that_is_allowed_is_allowed() -> None:
    least = run(id="r-2", created_at=0, max_attempts=1, max_crashes=1, steps=(step(timeout_ms=1, max_attempts=1),))
    last = {MAX_SLOTS: worker(slot=MAX_SLOTS, run=None, state=WorkerState.READY)}
    sound = document(
        runs={**document().runs, "r-2": least},
        workers={1: worker(), **last},
        slots={1: Slot(), MAX_SLOTS: Slot()},
        pending_actions={MAX_SLOTS: PendingAction(action=key_and_bytes(MAX_SLOTS)[1], parked_at=NOW)},
        troubles=tuple(Trouble(NOW, Reason.UNKNOWN, "x") for _ in range(MAX_TROUBLES)),
    )
    assert violations(sound) == ()


def test_a_failed_run_whose_step_failed_lacks_nothing_but_its_reason() -> None:
    failed = run(id="r-2", state=RunState.FAILED, steps=(step(state=StepState.FAILED, reason=Reason.EXIT_CODE),))
    found = violations(document(runs={**document().runs, "r-2": failed}))
    assert [(violation.id, violation.subject) for violation in found] == [("run-reason", "run:r-2")]


@pytest.mark.parametrize(("name", "fields"), CASES)
def test_each_violation_is_found_by_name(name: str, fields: dict[str, Any]) -> None:
    found = violations(document(**fields))
    assert name in {violation.id for violation in found}
    assert all(violation.what and violation.subject for violation in found)


def test_history_knows_whose_it_is_and_what_was_handed_out() -> None:
    sound = document()
    parked = Event(1, 1, NOW, "test", "slot:1", "action.parked", action=key_and_bytes(serial=5)[1])
    claimed = Event(1, 2, NOW, "test", "run:r-1", "claim", token=1)
    began = Event(1, 1, NOW, "init", "fleet", INITIALISED, key=sound.lineage)
    assert against_history(sound, (began, parked, claimed)) == ()
    found = against_history(
        sound,
        (
            replace(began, key="another"),
            replace(parked, action=key_and_bytes(serial=6)[1]),
            replace(claimed, token=7),
        ),
    )
    assert {violation.id for violation in found} == AGAINST_HISTORY
    assert {violation.subject for violation in found} == {"fleet", "run:r-1"}
    assert all(violation.what for violation in found)


def test_runs_of_one_key_are_as_many_as_the_largest_of_their_limits_at_most() -> None:
    held = {f"r-{n}": leased(f"r-{n}", concurrency_key="k", concurrency=limit) for n, limit in ((2, 1), (3, 2))}
    others = {"r-4": leased("r-4", concurrency_key="other", concurrency=1), "r-5": leased("r-5"), "r-6": leased("r-6")}
    waiting = {"r-7": run(id="r-7", concurrency_key="k", concurrency=1)}
    sound = document(runs={**document().runs, **held, **others, **waiting})
    assert violations(sound) == ()
    third = leased("r-8", concurrency_key="k", concurrency=2)
    (found,) = violations(replace(sound, runs={**sound.runs, "r-8": third}))
    assert (found.id, found.subject) == ("permits", "fleet")
    assert found.what == "key k lets at most 2 run at once: r-2, r-3, r-8 are running"


def test_what_takes_a_look_at_every_run_refuses_no_commit() -> None:
    held = {f"r-{n}": leased(f"r-{n}", concurrency_key="k", concurrency=1) for n in (2, 3)}
    bad = document(runs={**document().runs, **held, "r-4": leased("r-4", granted=0)})
    assert {found.id for found in violations(bad)} == {"permits", "lease-range"}
    assert violations(bad, touched(runs=("r-2", "r-3", "r-4"))) == ()


def test_history_knows_the_tokens_of_runs_that_left_and_how_many_were_forgotten() -> None:
    stone = Tombstone("r-9", "q", 1, 2, NOW, NOW, RunState.SUCCEEDED)
    kept = document(finished={"r-9": stone}, counters=replace(document().counters, pruned=1))
    claimed = Event(1, 1, NOW, "test", "run:r-9", "claim", token=2)
    pruned = Event(1, 2, NOW, "test", "run:r-8", "pruned", token=7)
    assert against_history(kept, (claimed, pruned)) == ()
    found = against_history(kept, (replace(claimed, token=3), pruned, replace(pruned, subject="run:r-7")))
    assert [violation.what for violation in found] == [
        "token is 2, and history knows 3",
        "counter pruned is at 1, and history knows 2",
    ]


@pytest.mark.parametrize("assignment", ["a-3", "a-0f-3"])
def test_history_knows_from_creates_which_assignments_were_handed_out(assignment: str) -> None:
    made = action.mint(
        type=ActionType.CREATE,
        slot=1,
        serial=1,
        lineage="l",
        epoch="",
        assignment=assignment,
        generation=1,
        resources={},
    )
    parked = Event(1, 1, NOW, "test", "slot:1", "action.parked", action=made[1])
    assert [violation.what for violation in against_history(document(), (parked,))] == [
        "counter assignment is at 2, and history knows 3"
    ]
    assert against_history(document(counters=Counters(run=1, sequence=5, assignment=3, serial=5)), (parked,)) == ()


def test_an_assignment_that_ends_in_no_number_says_nothing_of_the_counter() -> None:
    made = action.mint(
        type=ActionType.CREATE,
        slot=1,
        serial=1,
        lineage="l",
        epoch="",
        assignment="mine",
        generation=1,
        resources={},
    )
    parked = Event(1, 1, NOW, "test", "slot:1", "action.parked", action=made[1])
    assert against_history(document(), (parked,)) == ()


def test_every_check_is_broken_by_some_case() -> None:
    assert {name for name, _ in CASES} == set(Check) - GOING_BACK - AGAINST_HISTORY - BEYOND
    assert judged_by(By.COMMIT) - judged_by(By.FSCK) == GOING_BACK


@pytest.mark.parametrize(
    ("name", "fields"), [case for case in CASES if "slots" not in case[1] and "finished" not in case[1]]
)
def test_a_commit_judges_what_the_catalogue_says_that_it_judges(name: str, fields: dict[str, Any]) -> None:
    bad = document(**fields)
    slots = frozenset({*bad.workers, *bad.pending_actions})
    refused = {
        found.id
        for found in violations(bad, Touched(frozenset(bad.runs), slots, slots, slots, frozenset(bad.disowned)))
    }
    assert refused == {found.id for found in violations(bad)} & judged_by(By.COMMIT)
    assert (name in refused) == (name in judged_by(By.COMMIT))


def test_what_is_left_of_a_run_is_judged_as_a_run_is() -> None:
    stone = Tombstone("r-9", "q", 1, 1, NOW, NOW, RunState.SUCCEEDED, reason=Reason.COMPLETED)
    assert violations(document(finished={"r-9": stone})) == ()
    failed = step(state=StepState.FAILED, reason=Reason.EXIT_CODE)
    broken = {
        "run-reason": replace(stone, reason=None),
        "run-outcome": replace(stone, steps=(failed,)),
        "run-ended-step": replace(stone, steps=(step(state=StepState.RUNNING, attempts=(OPEN,)),)),
        "step-attempts": replace(stone, steps=(step(attempts=(replace(DONE, n=2),)),)),
        "step-reason": replace(stone, steps=(step(state=StepState.SKIPPED),)),
        "times": replace(stone, finished_at=NOW - 1),
        "finished-state": replace(stone, state=RunState.FAILED),
    }
    for name, left in broken.items():
        assert [violation.id for violation in violations(document(finished={"r-9": left}))] == [name]


def touched(*, runs: tuple[str, ...] = (), slots: tuple[int, ...] = (), resources: tuple[int, ...] = ()) -> Touched:
    return Touched(frozenset(runs), frozenset(slots), frozenset(resources))


def test_a_run_leaves_running_only_without_a_pending_action_of_its_token() -> None:
    base = document(pending_actions={1: PendingAction(action=execute(1), parked_at=NOW)})
    assert violations(base) == ()
    draft = Draft(base, now=NOW, command="test")
    draft.runs.put("r-1", run(attempts=1))
    after = replace(base, runs={"r-1": run(attempts=1)}, workers={1: worker(run=None, state=WorkerState.RELEASED)})
    assert [found.id for found in violations(after, Touched.of(base, draft.edit()))] == ["pending-token"]


def test_an_action_of_an_earlier_epoch_has_the_token_that_the_run_had_before_the_restore() -> None:
    parked = {1: PendingAction(action=execute(7), parked_at=NOW)}
    assert [found.id for found in violations(document(pending_actions=parked))] == ["pending-token"]
    assert violations(document(pending_actions=parked, epoch="later")) == ()


def test_only_what_was_touched_is_judged() -> None:
    bad = document(runs={"r-1": running(attempts=0)}, workers={1: worker(slot=2)})
    assert {found.id for found in violations(bad, touched())} == set()
    assert {found.id for found in violations(bad, touched(runs=("r-1",)))} == {"run-token"}
    assert {found.id for found in violations(bad, touched(slots=(1,)))} == {"worker-slot"}


def test_a_clock_that_jumped_refuses_no_commit() -> None:
    back = document(runs={"r-1": running(started_at=NOW - 1)})
    assert violations(back, touched(runs=("r-1",))) == ()


def test_a_touched_run_brings_its_worker_and_a_touched_worker_its_run() -> None:
    base = document()
    draft = Draft(base, now=NOW, command="test")
    draft.workers.remove(1)
    assert Touched.of(base, draft.edit()) == touched(runs=("r-1",), slots=(1,))
    draft = Draft(base, now=NOW, command="test")
    draft.runs.put("r-1", run())
    assert Touched.of(base, draft.edit()) == touched(runs=("r-1",), slots=(1,))
    draft.runs.put("r-2", run(id="r-2"))
    draft.workers.put(3, worker(slot=3, run=None, state=WorkerState.READY))
    assert Touched.of(base, draft.edit()) == touched(runs=("r-1", "r-2"), slots=(1, 3))
    draft = Draft(base, now=NOW, command="test")
    draft.runs.put("r-2", run(id="r-2"))
    draft.workers.remove(1)
    assert Touched.of(base, draft.edit()) == touched(runs=("r-1", "r-2"), slots=(1,))


def test_resources_are_compared_only_when_they_changed() -> None:
    twins = {
        1: worker(resources={"vm": Resource("i-1")}),
        3: worker(slot=3, run=None, state=WorkerState.READY, resources={"vm": Resource("i-1")}),
    }
    base = document(workers=twins)
    draft = Draft(base, now=NOW, command="test")
    draft.workers.put(3, replace(twins[3], changed_at=NOW + 1))
    assert violations(base, Touched.of(base, draft.edit())) == ()
    draft.workers.put(3, replace(twins[3], resources={"vm": Resource("i-1"), "disk": Resource("d-1")}))
    assert [found.id for found in violations(base, Touched.of(base, draft.edit()))] == ["resource-owner"]


def test_a_commit_that_gives_two_slots_one_worker_id_is_found_at_the_slots_whose_id_changed_alone() -> None:
    twins = {1: worker(id="w-1"), 3: worker(slot=3, run=None, state=WorkerState.CREATING)}
    base = document(workers=twins)
    draft = Draft(base, now=NOW, command="test")
    draft.workers.put(3, replace(twins[3], state=WorkerState.READY, id="w-1"))
    changed = Touched.of(base, draft.edit())
    assert changed.ids == {3}
    after = document(workers={1: twins[1], 3: replace(twins[3], state=WorkerState.READY, id="w-1")})
    (found,) = violations(after, changed)
    assert (found.id, found.subject, found.what) == (
        "worker-id",
        "slot:3",
        "id w-1 belongs to the workers of slots 1 and 3",
    )
    elsewhere = {**after.workers, 3: replace(after.workers[3], provider="other")}
    assert violations(replace(after, workers=elsewhere), changed) == ()
    draft = Draft(after, now=NOW, command="test")
    draft.workers.put(3, replace(after.workers[3], changed_at=NOW + 1))
    assert violations(after, Touched.of(after, draft.edit())) == ()


def test_a_disowned_action_is_judged_when_it_is_put_there() -> None:
    key, raw = key_and_bytes(2)
    sound = document(disowned={key: Disowned(raw, NOW, Reason.UNKNOWN)})
    assert violations(sound) == ()
    bad = {"k": Disowned(raw, NOW, Reason.UNKNOWN)}
    draft = Draft(document(), now=NOW, command="test")
    draft.disowned.put("k", bad["k"])
    (found,) = violations(document(disowned=bad), Touched.of(document(), draft.edit()))
    assert (found.id, found.subject) == ("disowned-key", "slot:2")
    assert violations(document(disowned=bad), touched(runs=("r-1",), slots=(1, 2))) == ()


def test_a_circle_of_a_thousand_steps_needs_no_recursion() -> None:
    steps = tuple(step(f"s{n}", needs=(f"s{(n + 1) % 3_000}",)) for n in range(3_000))
    assert "step-cycle" in {found.id for found in violations(document(runs={"r-1": running(steps=steps)}))}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"counters": Counters(run=1, sequence=4, assignment=2, serial=5), "revision": 2}, "counter-lowered"),
        ({"revision": 3}, "revision-step"),
        ({"revision": 2, "runs": {"r-1": running(attempts=0)}}, "token-lowered"),
        ({"revision": 2, "runs": {"r-9": run(id="r-9", attempts=3)}}, "token-lowered"),
    ],
)
def test_what_may_not_go_back_is_named(fields: dict[str, Any], name: str) -> None:
    before = document(finished={"r-9": Tombstone("r-9", "q", 1, 4, NOW, NOW, RunState.SUCCEEDED)})
    found = regressions(before, replace(before, **fields), touched(runs=("r-1", "r-9")))
    assert [violation.id for violation in found] == [name]
    assert isinstance(found[0], Violation)
