"""Every check of the catalogue is broken once, on a document that is sound otherwise, and found by its id alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from controller.engine.fsck import Verdict, check, in_words, repair
from controller.engine.fsck_history import WHOLE, judge
from controller.model.action import mint
from controller.model.checks import CHECKS, By, Check, judged_by
from controller.model.errors import DocumentCorrupt
from controller.model.reason import Reason
from controller.model.records import (
    MAX_SLOTS,
    MAX_TROUBLES,
    ActionType,
    Attempt,
    Disowned,
    Document,
    Event,
    PendingAction,
    Resource,
    RunState,
    Slot,
    Step,
    StepState,
    Trouble,
    Unrecorded,
    Worker,
    WorkerState,
)
from controller.model.restore import restored
from controller.store.protocol import Leftover
from tests.engine.fleet import Fleet
from tests.engine.fsck_world import LEASE, NOW, World, sound

SOUND = sound()
DOCUMENT = SOUND.document


def found(verdict: Verdict) -> list[tuple[Check, str]]:
    return [(violation.id, violation.subject) for violation in verdict.violations]


def run(name: str, **fields: Any) -> World:
    """The world with one run changed, and nothing known of what led there."""
    changed = replace(DOCUMENT.runs[name], **fields)
    return SOUND.late.having(runs={**DOCUMENT.runs, name: changed})


def steps(*listed: Step) -> World:
    """A queued run with these steps."""
    return run("r-5", steps=listed)


def step(name: str = "a", **fields: Any) -> Step:
    return Step(name, ("true",), **fields)


def stone(**fields: Any) -> World:
    changed = replace(DOCUMENT.finished["r-4"], **fields)
    return SOUND.late.having(finished={"r-4": changed})


def worker(at: int, **fields: Any) -> World:
    changed = replace(DOCUMENT.workers[at], **fields)
    return SOUND.late.having(workers={**DOCUMENT.workers, at: changed})


def another(slot: int, **fields: Any) -> Worker:
    return replace(Worker(slot, "a-3", 1, "p", NOW, NOW, WorkerState.LOST), **fields)


def beside(slot: int, **fields: Any) -> World:
    """The world with one worker more."""
    return SOUND.late.having(workers={**DOCUMENT.workers, slot: another(slot, **fields)})


def action(slot: int, serial: int, **fields: Any) -> PendingAction:
    raw = mint(
        type=fields.pop("type", ActionType.DELETE_COMPUTE),
        slot=slot,
        serial=serial,
        lineage="l",
        epoch="",
        assignment="a-2",
        generation=1,
        resources={},
        **fields,
    )
    return PendingAction(raw[1], parked_at=NOW)


def pending(slot: int, entry: PendingAction) -> World:
    return SOUND.late.having(pending_actions={slot: entry})


def tampered() -> PendingAction:
    entry = DOCUMENT.pending_actions[2]
    return replace(entry, action=Raw(bytes(entry.action).replace(b'"generation":1', b'"generation":2')))


def without(wanted: Callable[[Event], bool]) -> World:
    return replace(SOUND, events=tuple(event for event in SOUND.events if not wanted(event)))


OPEN = Attempt(1, NOW)
DONE = Attempt(1, NOW, ended_at=NOW + 1, reason=Reason.COMPLETED)
(DISOWNED,) = DOCUMENT.disowned.values()
LEASED = DOCUMENT.runs["r-6"]

BROKEN: dict[Check, list[tuple[str, World]]] = {
    Check.SCHEMA: [("fleet", SOUND.having(schema=1))],
    Check.SENTINEL: [("fleet", SOUND.having(pending_action="null"))],
    Check.DIGEST: [("fleet", replace(SOUND, seen={"edited": True}))],
    Check.REVISION: [
        ("fleet", replace(SOUND.having(revision=-1, events=()), events=(), seen={"history_revision": -1}))
    ],
    Check.EVENTS: [
        ("fleet", SOUND.having(events=())),
        ("fleet", SOUND.having(events=tuple(replace(event, n=event.n + 1) for event in DOCUMENT.events))),
    ],
    Check.TROUBLES: [("fleet", SOUND.having(troubles=(Trouble(NOW, Reason.UNKNOWN, "x"),) * (MAX_TROUBLES + 1)))],
    Check.RUN_ID: [("run:r-5", run("r-5", id="r-55"))],
    Check.RUN_TWICE: [
        (
            "run:r-3",
            SOUND.having(
                finished={
                    **DOCUMENT.finished,
                    "r-3": replace(
                        DOCUMENT.finished["r-4"], id="r-3", token=0, state=RunState.CANCELLED, reason=Reason.WITHDRAWN
                    ),
                }
            ),
        )
    ],
    Check.RUN_SEQUENCE: [("run:r-5", run("r-5", sequence=99))],
    Check.RUN_RANGE: [("run:r-5", run("r-5", max_attempts=0)), ("run:r-5", run("r-5", created_at=-1))],
    Check.RUN_REASON: [("run:r-3", run("r-3", reason=None)), ("run:r-4", stone(reason=None))],
    Check.RUN_OUTCOME: [
        (
            "run:r-3",
            run("r-3", state=RunState.SUCCEEDED, steps=(step(state=StepState.FAILED, reason=Reason.EXIT_CODE),)),
        ),
        ("run:r-4", stone(steps=(step(state=StepState.FAILED, reason=Reason.EXIT_CODE),))),
    ],
    Check.RUN_ENDED_STEP: [
        ("run:r-3", run("r-3", steps=(step(state=StepState.RUNNING, attempts=(OPEN,)),))),
        ("run:r-4", stone(steps=(step(state=StepState.RUNNING, attempts=(OPEN,)),))),
    ],
    Check.RUN_DEFER_REASON: [("run:r-5", run("r-5", defer_reason=None))],
    Check.RUN_HOLDER: [
        ("run:r-6", run("r-6", lease=None)),
        ("run:r-1", run("r-1", lease=LEASE)),
        ("run:r-5", run("r-5", lease=LEASE)),
    ],
    Check.RUN_TOKEN: [("run:r-6", run("r-6", attempts=0))],
    Check.RUN_WORKER: [("run:r-1", worker(1, generation=2))],
    Check.LEASE_RANGE: [
        ("run:r-6", run("r-6", lease=replace(LEASE, granted_ms=0))),
        ("run:r-6", run("r-6", lease=replace(LEASE, deadline_ms=0))),
    ],
    Check.PERMITS: [("fleet", SOUND.late.having(runs={**DOCUMENT.runs, "r-8": replace(LEASED, id="r-8")}))],
    Check.TIMES: [
        ("run:r-3", run("r-3", finished_at=NOW - 1)),
        ("run:r-4", stone(finished_at=NOW - 1)),
        (
            "run:r-3",
            run(
                "r-3",
                steps=(step(state=StepState.FAILED, reason=Reason.EXIT_CODE, attempts=(replace(DONE, ended_at=1),)),),
            ),
        ),
    ],
    Check.FINISHED_ID: [("run:r-4", stone(id="r-44"))],
    Check.FINISHED_STATE: [("run:r-4", stone(state=RunState.FAILED)), ("run:r-4", stone(state=RunState.QUEUED))],
    Check.STEP_NAMES: [("run:r-5", steps(step(), step()))],
    Check.STEP_NEEDS: [("run:r-5", steps(step(needs=("nobody",))))],
    Check.STEP_CYCLE: [("run:r-5", steps(step(needs=("b",)), step("b", needs=("a",))))],
    Check.STEP_ARGV: [("run:r-5", steps(Step("a", ())))],
    Check.STEP_RANGE: [("run:r-5", steps(step(timeout_ms=0))), ("run:r-5", steps(step(max_attempts=0)))],
    Check.STEP_REASON: [
        ("run:r-5", steps(step(state=StepState.SKIPPED))),
        ("run:r-4", stone(steps=(step(state=StepState.SUCCEEDED),))),
    ],
    Check.STEP_RUNNING_NEEDS: [
        ("run:r-6", run("r-6", steps=(step(), step("b", needs=("a",), state=StepState.RUNNING, attempts=(OPEN,)))))
    ],
    Check.STEP_ONE_ACTIVE: [
        ("run:r-6", run("r-6", steps=(step(state=StepState.RUNNING, attempts=(OPEN, replace(OPEN, n=2))),)))
    ],
    Check.STEP_ACTIVE_STATE: [
        ("run:r-5", steps(step(attempts=(OPEN,)))),
        ("run:r-6", run("r-6", steps=(step(state=StepState.RUNNING, attempts=(DONE,)),))),
    ],
    Check.STEP_ATTEMPTS: [("run:r-5", steps(step(attempts=(DONE, replace(DONE, n=3)))))],
    Check.WORKER_SLOT: [("slot:2", worker(2, slot=3))],
    Check.SLOT_BOUNDS: [
        (f"slot:{MAX_SLOTS + 1}", SOUND.having(slots={**DOCUMENT.slots, MAX_SLOTS + 1: Slot()})),
        ("slot:0", beside(0)),
    ],
    Check.WORKER_GENERATION: [("slot:2", worker(2, generation=0))],
    Check.WORKER_RUN: [("slot:3", beside(3, run="r-9")), ("slot:3", beside(3, state=WorkerState.ASSIGNED))],
    Check.WORKER_ID: [("slot:3", beside(3, id="w-1"))],
    Check.RESOURCE_OWNER: [("slot:3", beside(3, resources={"vm": Resource("i-1")}))],
    Check.UNRECORDED: [
        (
            "slot:4",
            SOUND.having(slots={**DOCUMENT.slots, 4: Slot(unrecorded=(Unrecorded("a-9", 1, "w-9", "ready", NOW),))}),
        ),
        ("slot:4", SOUND.having(slots={**DOCUMENT.slots, 4: Slot(unrecorded_more=3)})),
    ],
    Check.PENDING_ACTION: [("slot:2", pending(2, PendingAction(Raw(b"5"), parked_at=NOW)))],
    Check.PENDING_SLOT: [("slot:3", pending(3, DOCUMENT.pending_actions[2]))],
    Check.PENDING_KEY: [("slot:2", pending(2, tampered()))],
    Check.PENDING_SERIAL: [("slot:2", pending(2, action(2, 99)))],
    Check.PENDING_TOKEN: [
        ("slot:1", pending(1, action(1, 1, type=ActionType.EXECUTE, run="r-1", step="b", attempt=1, token=7)))
    ],
    Check.DISOWNED_KEY: [
        ("slot:3", SOUND.late.having(disowned={"k": DISOWNED})),
        ("fleet", SOUND.late.having(disowned={"k": Disowned(Raw(b"5"), NOW, Reason.UNKNOWN)})),
    ],
    Check.LINEAGE: [("fleet", SOUND.telling(lambda event: event.event == "initialised", key="another"))],
    Check.HISTORY_AHEAD: [("fleet", replace(SOUND, seen={"history_revision": DOCUMENT.revision + 1}))],
    Check.HISTORY_CHAIN: [
        ("fleet", replace(SOUND, fault="line 7 does not follow the line before it")),
        (
            "fleet",
            replace(SOUND, unreadable=DocumentCorrupt("the line at offset 5 is not one of ours", where="journal")),
        ),
    ],
    Check.HISTORY_CONTIGUOUS: [
        ("run:r-1", without(lambda event: event.event == "step_succeeded")),
        ("fleet", without(lambda event: event.event == "queue_paused")),
        ("fleet", replace(SOUND, events=SOUND.late.events + SOUND.late.events)),
        ("fleet", replace(SOUND, events=())),
        ("fleet", without(lambda event: event.revision > DOCUMENT.revision - 2)),
        ("fleet", SOUND.late.telling(lambda event: event.event == "queue_paused", n=2)),
    ],
    Check.HISTORY_MOVES: [
        ("slot:1", without(lambda event: event.event == "create_done")),
        ("run:r-3", SOUND.telling(lambda event: event.subject == "run:r-3" and event.n == 2, from_="running")),
        ("slot:1", SOUND.telling(lambda event: event.event == "create_done", from_="lost")),
        ("run:r-1", SOUND.telling(lambda event: event.event == "step_succeeded", from_="pending")),
    ],
    Check.HISTORY_STATE: [
        ("run:r-5", replace(SOUND, document=run("r-5", state=RunState.FAILED, reason=Reason.EXIT_CODE).document)),
        ("run:r-5", replace(SOUND, document=run("r-5", failures=1).document)),
        ("run:r-1", replace(SOUND, document=run("r-1", cancel_requested_at=NOW).document)),
        ("run:r-9", SOUND.having(runs={**DOCUMENT.runs, "r-9": replace(DOCUMENT.runs["r-5"], id="r-9")})),
        ("run:r-5", SOUND.having(runs={name: each for name, each in DOCUMENT.runs.items() if name != "r-5"})),
        ("run:r-4", SOUND.having(finished={})),
        ("run:r-8", SOUND.having(finished={"r-8": replace(DOCUMENT.finished["r-4"], id="r-8"), **DOCUMENT.finished})),
        ("slot:2", replace(SOUND, document=worker(2, state=WorkerState.LOST).document)),
        ("slot:5", replace(SOUND, document=beside(5).document)),
    ],
    Check.HISTORY_ACTIONS: [
        ("slot:2", SOUND.having(pending_actions={})),
        ("slot:2", SOUND.having(pending_actions={2: action(2, 3)})),
        ("slot:1", SOUND.having(pending_actions={**DOCUMENT.pending_actions, 1: action(1, 3)})),
        ("slot:9", SOUND.having(pending_actions={**DOCUMENT.pending_actions, 9: action(9, 3)})),
        ("slot:3", SOUND.having(disowned={})),
    ],
    Check.TOKEN_ORDER: [
        ("run:r-7", SOUND.telling(lambda event: event.event == "pruned" and event.subject == "run:r-7", token=0)),
    ],
    Check.TOKEN_HISTORY: [("run:r-6", replace(SOUND, document=run("r-6", attempts=0).document))],
    Check.COUNTER_HISTORY: [
        ("fleet", SOUND.having(counters=replace(DOCUMENT.counters, pruned=0))),
        ("fleet", SOUND.having(counters=replace(DOCUMENT.counters, assignment=2))),
    ],
}

BESIDE: dict[Check, tuple[Check, ...]] = {
    Check.TOKEN_HISTORY: (Check.RUN_TOKEN, Check.HISTORY_STATE),
}
"""What cannot be broken alone: a token below history's is not where the last event led, either."""


def test_a_sound_fleet_passes_every_check() -> None:
    verdict = SOUND.verdict()
    assert verdict.violations == ()
    assert [each.id for each in verdict.checks] == [check for check in Check if By.FSCK in CHECKS[check].judged]
    assert {each.passed for each in verdict.checks} == {True}
    assert SOUND.late.verdict().violations == ()


def test_every_check_that_fsck_judges_has_a_case_that_breaks_it() -> None:
    assert set(BROKEN) == judged_by(By.FSCK)
    assert all(BROKEN.values())


CASES = [
    pytest.param(check, *case, id=f"{check}-{n}") for check, cases in BROKEN.items() for n, case in enumerate(cases, 1)
]


@pytest.mark.parametrize(("check", "subject", "world"), CASES)
def test_what_breaks_one_check_is_found_by_its_id_and_by_no_other(check: Check, subject: str, world: World) -> None:
    verdict = world.verdict()
    assert {each for each in found(verdict) if each[0] not in BESIDE.get(check, ())} == {(check, subject)}
    assert all(violation.what for violation in verdict.violations)
    (result,) = (each for each in verdict.checks if each.id is check)
    assert (result.passed, result.text, result.next) == (False, CHECKS[check].text, CHECKS[check].next)
    assert result.violations == tuple(each for each in verdict.violations if each.id is check)
    assert {each.id for each in verdict.checks if each.passed is False} == {each for each, _ in found(verdict)}


def test_a_history_that_begins_late_is_sound_wherever_it_begins() -> None:
    for first in range(1, DOCUMENT.revision + 1):
        world = replace(SOUND, events=tuple(event for event in SOUND.events if event.revision >= first))
        assert world.verdict().violations == (), f"from revision {first}"


def test_a_document_is_judged_by_what_its_history_says_up_to_it_however_far_that_is() -> None:
    ahead = replace(DOCUMENT.events[0], revision=DOCUMENT.revision + 1, subject="run:r-5", event="pruned")
    assert replace(SOUND, events=(*SOUND.events, ahead)).verdict().violations == (), "a commit came in between"


def put_there(event: str, world: World) -> World:
    """The world after somebody has put its document there as it is, whole."""
    revision = world.document.revision + 1
    told = Event(revision, 1, NOW, "test", "fleet", event)
    return replace(world.having(revision=revision, events=(told,)), events=(*world.events, told))


@pytest.mark.parametrize("event", sorted(WHOLE))
def test_what_led_to_before_a_whole_document_was_put_there_says_nothing_of_states(event: str) -> None:
    changed = SOUND.having(
        runs={name: replace(run, failures=3) for name, run in DOCUMENT.runs.items() if name != "r-5"},
        workers={1: replace(DOCUMENT.workers[1], reason=Reason.IDLE)},
        pending_actions={},
        disowned={},
    )
    assert {check for check, _ in found(changed.verdict())} == {Check.HISTORY_STATE, Check.HISTORY_ACTIONS}
    assert put_there(event, changed).verdict().violations == ()


@pytest.mark.parametrize("event", sorted(WHOLE))
def test_a_token_is_never_forgotten_whatever_document_was_put_there(event: str) -> None:
    lowered = put_there(event, SOUND.having(runs={**DOCUMENT.runs, "r-2": replace(DOCUMENT.runs["r-2"], attempts=0)}))
    assert found(lowered.verdict()) == [(Check.TOKEN_HISTORY, "run:r-2")]
    climbed = replace(DOCUMENT.runs["r-2"], attempts=9, failures=9, max_attempts=9)
    assert put_there(event, SOUND.having(runs={**DOCUMENT.runs, "r-2": climbed})).verdict().violations == ()


@pytest.mark.parametrize("document", SOUND.earlier, ids=lambda document: f"revision {document.revision}")
@pytest.mark.parametrize("standing", [DOCUMENT, None], ids=["whole", "by history alone"])
def test_whatever_document_is_restored_only_what_may_be_out_there_is_told(
    document: Document, standing: Document | None
) -> None:
    revision = DOCUMENT.revision + 1
    made = restored(
        document, standing, SOUND.events, revision=revision, now=NOW, command="test", epoch="later", detail="copy"
    )
    world = World(made, (*SOUND.events, *made.events))
    assert {check for check, _ in found(world.verdict())} <= {Check.UNRECORDED}
    lost = world.having(pending_actions={}).verdict()
    told = [subject for check, subject in found(lost) if check is Check.HISTORY_ACTIONS]
    assert told == [f"slot:{slot}" for slot in sorted(made.pending_actions)], "what was put back is known to history"


def told_tokens(*events: tuple[str, str, int | None]) -> list[str]:
    """What is told of the order of one run's tokens, over events one commit each."""
    listed = [
        Event(revision, 1, NOW, "test", subject, event, to="running" if event == "claim" else None, token=token)
        for revision, (subject, event, token) in enumerate(events, 1)
    ]
    found = judge(SOUND.document, listed)
    return [violation.what for violation in found if violation.id is Check.TOKEN_ORDER]


RUN = "run:r-1"
FIRST = ((RUN, "submitted", None), (RUN, "claim", 1), (RUN, "attempt_failed", 1))


def test_tokens_climb_by_claims_alone_one_at_a_time() -> None:
    assert told_tokens(*FIRST, (RUN, "claim", 2), (RUN, "heartbeat", 2)) == []
    assert told_tokens((RUN, "submitted", 4), (RUN, "claim", 5)) == []
    assert told_tokens(*FIRST, (RUN, "claim", 3)) == ["claim (revision 4) has token 3, after token 1"]
    assert told_tokens(*FIRST, (RUN, "claim", 1)) == ["claim (revision 4) has token 1, after token 1"]
    assert told_tokens(*FIRST, (RUN, "deferred", 2)) == ["deferred (revision 4) has token 2, after token 1"]
    assert told_tokens(*FIRST, (RUN, "pruned", 1), (RUN, "submitted", 1), (RUN, "claim", 2)) == []
    assert told_tokens(*FIRST, (RUN, "pruned", 1), FIRST[0]) == ["submitted (revision 5) has token 0, after token 1"]


@pytest.mark.parametrize("event", sorted(WHOLE))
def test_behind_a_whole_document_tokens_may_have_climbed_and_never_gone_back(event: str) -> None:
    put = ("fleet", event, None)
    assert told_tokens(*FIRST, put, (RUN, "claim", 7), (RUN, "heartbeat", 7)) == []
    assert told_tokens(*FIRST, put, (RUN, "heartbeat", 0)) == ["heartbeat (revision 5) has token 0, after token 1"]
    assert told_tokens(*FIRST, put, (RUN, "claim", 7), (RUN, "claim", 9)) != []


def test_what_was_made_to_be_disowned_says_nothing_of_what_is_pending() -> None:
    (key,) = DOCUMENT.disowned
    revision = DOCUMENT.revision + 1
    told = Event(revision, 1, NOW, "test", "slot:2", "action.disowned", key=key)
    world = replace(SOUND.having(revision=revision, events=(told,)), events=(*SOUND.events, told))
    assert world.verdict().violations == ()
    assert replace(world, events=world.events[-1:]).verdict().violations == ()


def test_an_action_that_was_parked_over_another_is_told() -> None:
    settled = SOUND.telling(lambda event: event.event == "action.settled", event="action.kept")
    parked = next(event for event in SOUND.events if event.event == "action.parked" and event.subject == "slot:2")
    twice = settled.telling(lambda event: event is parked, subject="slot:1")
    told = [each.what for each in twice.verdict().violations if each.id is Check.HISTORY_ACTIONS]
    assert f"key {(parked.key or '')[:12]} was parked over" in told[0]


def test_what_cannot_be_judged_is_neither_passed_nor_failed() -> None:
    unreadable = replace(SOUND, unreadable=DocumentCorrupt("not an event", where="history")).verdict()
    assert {each.id for each in unreadable.checks if each.passed is None} == {
        *(Check.LINEAGE, Check.HISTORY_CONTIGUOUS, Check.HISTORY_MOVES, Check.HISTORY_STATE, Check.HISTORY_ACTIONS),
        *(Check.TOKEN_ORDER, Check.TOKEN_HISTORY, Check.COUNTER_HISTORY),
    }
    assert [each.what for each in unreadable.violations] == ["not an event; history"]
    legacy = replace(SOUND, events=SOUND.events[::2], seen={"legacy": True}).verdict()
    assert legacy.violations == ()
    assert {each.id for each in legacy.checks if each.passed is None} == {
        *(Check.HISTORY_CONTIGUOUS, Check.HISTORY_MOVES, Check.HISTORY_STATE, Check.HISTORY_ACTIONS),
        Check.TOKEN_ORDER,
    }


def test_an_action_that_cannot_be_read_is_told_as_such_alone() -> None:
    broken = SOUND.having(pending_actions={2: PendingAction(Raw(b"5"), parked_at=NOW)})
    assert found(broken.verdict()) == [(Check.PENDING_ACTION, "slot:2")]


def test_leftovers_are_told_and_break_nothing() -> None:
    left = (Leftover("torn_tail", "/state/journal-1-0.jsonl", 12),)
    verdict = replace(SOUND, left=left).verdict()
    assert (verdict.violations, verdict.leftovers) == ((), left)


def test_a_repair_takes_no_lock_where_nothing_is_left(fleet: Fleet) -> None:
    before = fleet.bytes()
    with fleet.store.hold(5):
        assert repair(fleet.context) == ()
    assert fleet.bytes() == before


def test_a_repair_is_one_commit_with_an_event_for_each_thing_that_was_left(fleet: Fleet) -> None:
    places = [fleet.store.directory / f".controller.json.tmp-{number}" for number in (1, 2)]
    for place in places:
        place.write_bytes(b"{")
    revision = fleet.document.revision
    done = repair(fleet.context)
    assert [(left.kind, left.path) for left in done] == [("temporary", str(place)) for place in places]
    assert (fleet.document.revision, [place.exists() for place in places]) == (revision + 1, [False, False])
    told = [(event.subject, event.event, event.detail) for event in fleet.document.events]
    assert told == [("fleet", "repaired", in_words(left)) for left in done]
    assert check(fleet.store).violations == ()
