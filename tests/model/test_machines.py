"""Every (state, event) of every machine over every combination of guards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from controller.model.reason import Reason
from controller.model.records import RunState, Step, StepState, WorkerState
from controller.model.run import (
    Aggregate,
    RunGuards,
    apply_run,
    is_active,
    is_report,
    is_retryable,
    is_terminal,
    next_run,
    parse_run_state,
    run_aggregate,
)
from controller.model.step import StepGuards, apply_step, next_step, parse_step_state
from controller.model.step import is_active as step_is_active
from controller.model.step import is_terminal as step_is_terminal
from controller.model.transition import KillProcessGroup, MintToken, Moved, Refused, RevokeLease, Trigger, Why, every
from controller.model.worker import (
    WorkerGuards,
    apply_worker,
    is_leaving,
    is_live,
    next_worker,
    parse_worker_state,
)

Q, R, OK, F, C = RunState.QUEUED, RunState.RUNNING, RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED
P, SR, SOK, SF = StepState.PENDING, StepState.RUNNING, StepState.SUCCEEDED, StepState.FAILED
SK, SC = StepState.SKIPPED, StepState.CANCELLED
W = WorkerState
T = Trigger


class Machine(NamedTuple):
    states: tuple[Any, ...]
    guards: type[Any]
    next: Callable[[Any, Trigger, Any], Any]
    fence: str | None
    legal: Mapping[tuple[Any, Trigger], set[Any]]
    """Written by hand from DESIGN section 6, not read from the code."""


RUN = Machine(
    tuple(RunState),
    RunGuards,
    next_run,
    "holder",
    {
        (Q, T.CLAIM): {R, C},
        (Q, T.DEFERRED): {Q},
        (Q, T.PROMOTED): {Q},
        (Q, T.CANCEL_OBSERVED): {C},
        (R, T.ALL_STEPS_DONE): {OK, F, C},
        (R, T.ATTEMPT_FAILED): {Q, F, C},
        (R, T.CANCEL_OBSERVED): {C},
        (R, T.LEASE_EXPIRED): {Q, F, C},
        (R, T.SHUTDOWN_DRAIN): {Q},
        (F, T.OPERATOR_RETRY): {Q},
        (C, T.OPERATOR_RETRY): {Q},
    },
)
STEP = Machine(
    tuple(StepState),
    StepGuards,
    next_step,
    None,
    {
        (P, T.STEP_STARTED): {SR},
        (P, T.UPSTREAM_FAILED): {SK},
        (P, T.CANCEL_OBSERVED): {SC},
        (SR, T.STEP_SUCCEEDED): {SOK},
        (SR, T.STEP_FAILED): {P, SF},
        (SR, T.CANCEL_OBSERVED): {SC},
        (SR, T.SHUTDOWN_DRAIN): {P},
        (SR, T.LEASE_EXPIRED): {P, SF},
    },
)
WORKER = Machine(
    (None, *WorkerState),
    WorkerGuards,
    next_worker,
    "current",
    {
        (None, T.PARK_CREATE): {W.CREATING},
        (None, T.ADOPT): {W.READY},
        (None, T.CONDEMN): {W.LOST},
        (W.CREATING, T.CREATE_DONE): {W.READY, W.ASSIGNED},
        (W.CREATING, T.CREATE_SETTLED): {None, W.DEALLOCATED, W.LOST},
        (W.READY, T.CLAIM): {W.ASSIGNED},
        (W.ASSIGNED, T.RELEASE): {W.RELEASED},
        (W.RELEASED, T.REUSE): {W.READY},
        (W.READY, T.DEALLOCATE): {W.DEALLOCATED},
        (W.ASSIGNED, T.DEALLOCATE): {W.DEALLOCATED},
        (W.RELEASED, T.DEALLOCATE): {W.DEALLOCATED},
        (W.DEALLOCATED, T.RELEASE): {W.DEALLOCATED},
        (W.LOST, T.RELEASE): {W.LOST},
        (W.DEALLOCATED, T.DEALLOCATE): {W.DEALLOCATED},
        (W.DEALLOCATED, T.RESUME): {W.CREATING},
        (W.LOST, T.RESUME): {W.CREATING},
        (W.DEALLOCATED, T.DELETE_COMPUTE): {W.COMPUTE_REMOVED},
        (W.LOST, T.DELETE_COMPUTE): {W.COMPUTE_REMOVED},
        (W.LOST, T.DEALLOCATE): {W.DEALLOCATED},
        (W.COMPUTE_REMOVED, T.RESET): {None},
        (W.READY, T.SEEN_GONE): {W.LOST},
        (W.ASSIGNED, T.SEEN_GONE): {W.LOST},
        **{(state, T.FORGET): {None} for state in (W.READY, W.RELEASED, W.DEALLOCATED, W.COMPUTE_REMOVED, W.LOST)},
        (W.RELEASED, T.SEEN_GONE): {W.LOST},
    },
)
machines = pytest.mark.parametrize("machine", [RUN, STEP, WORKER], ids=["run", "step", "worker"])
REASON_WHYS = {Why.MISSING_REASON_CODE, Why.MISSING_DEFER_REASON}


@pytest.fixture(scope="module")
def answers() -> Callable[[Machine], dict[tuple[Any, Trigger, Any], Any]]:
    known: dict[int, dict[tuple[Any, Trigger, Any], Any]] = {}

    def ask(machine: Machine) -> dict[tuple[Any, Trigger, Any], Any]:
        if id(machine) not in known:
            combinations = list(every(machine.guards))
            known[id(machine)] = {
                (state, trigger, guards): machine.next(state, trigger, guards)
                for state in machine.states
                for trigger in Trigger
                for guards in combinations
            }
        return known[id(machine)]

    return ask


Ask = Callable[[Machine], dict[tuple[Any, Trigger, Any], Any]]


@machines
def test_a_machine_goes_exactly_where_the_design_says(machine: Machine, answers: Ask) -> None:
    found: dict[tuple[Any, Trigger], set[Any]] = {}
    for (state, trigger, _), answer in answers(machine).items():
        if isinstance(answer, Moved):
            found.setdefault((state, trigger), set()).add(answer.to)
    assert found == machine.legal


@machines
def test_a_refusal_names_both_sides_and_demands_nothing(machine: Machine, answers: Ask) -> None:
    for (state, trigger, _), answer in answers(machine).items():
        if isinstance(answer, Refused):
            assert (answer.state, answer.event) == (state, trigger)
            assert answer.denied in machine.legal.get((state, trigger), set()) | {None}
            assert not hasattr(answer, "effects")


@machines
def test_a_refusal_of_what_could_lead_to_one_state_alone_denies_that_one(machine: Machine, answers: Ask) -> None:
    for (state, trigger, _), answer in answers(machine).items():
        if isinstance(answer, Refused) and len(machine.legal.get((state, trigger), ())) == 1:
            assert {answer.denied} == machine.legal[state, trigger]


@machines
def test_a_pair_that_leads_nowhere_is_illegal_or_stale(machine: Machine, answers: Ask) -> None:
    events = {trigger for _, trigger in machine.legal}
    for (state, trigger, guards), answer in answers(machine).items():
        if (state, trigger) in machine.legal:
            assert isinstance(answer, Moved) or answer.why is not Why.ILLEGAL_TRANSITION
        elif machine.fence and trigger in events and not getattr(guards, machine.fence):
            assert answer.why is Why.STALE_LEASE
        else:
            assert answer.why is Why.ILLEGAL_TRANSITION


@machines
def test_the_fence_is_read_before_anything_else(machine: Machine, answers: Ask) -> None:
    if machine.fence is None:
        assert all(getattr(answer, "why", None) is not Why.STALE_LEASE for answer in answers(machine).values())
        return
    events = {trigger for _, trigger in machine.legal}
    for (_, trigger, guards), answer in answers(machine).items():
        stale = isinstance(answer, Refused) and answer.why is Why.STALE_LEASE
        assert stale == (trigger in events and not getattr(guards, machine.fence))


@machines
def test_whom_the_fence_refuses_hears_where_a_holder_would_have_got(machine: Machine, answers: Ask) -> None:
    found = answers(machine)
    for (state, trigger, guards), answer in found.items():
        if isinstance(answer, Refused) and answer.why is Why.STALE_LEASE:
            held = found[state, trigger, replace(guards, **{machine.fence or "": True})]
            assert answer.denied == (held.to if isinstance(held, Moved) else held.denied)


@machines
def test_a_precondition_is_read_before_the_reason(machine: Machine, answers: Ask) -> None:
    found = answers(machine)
    for (state, trigger, guards), answer in found.items():
        if isinstance(answer, Refused) and answer.why not in REASON_WHYS:
            for reason in (None, Reason.CONCURRENCY, Reason.TIMED_OUT):
                assert found[state, trigger, replace(guards, reason=reason)] == answer


@machines
def test_a_missing_reason_is_the_only_thing_that_is_missing(machine: Machine, answers: Ask) -> None:
    found = answers(machine)
    for (state, trigger, guards), answer in found.items():
        if isinstance(answer, Refused) and answer.why in REASON_WHYS:
            with_reason = found[state, trigger, replace(guards, reason=Reason.CONCURRENCY)]
            assert isinstance(with_reason, Moved)
            assert with_reason.to == answer.denied


@machines
def test_every_guard_is_read_by_some_transition(machine: Machine, answers: Ask) -> None:
    found = answers(machine)
    unread = set(machine.guards.__struct_fields__)
    domain = {name: {getattr(guards, name) for _, _, guards in found} for name in unread}
    for (state, trigger, guards), answer in found.items():
        if (state, trigger) in machine.legal:
            for name in tuple(unread):
                if any(found[state, trigger, replace(guards, **{name: v})] != answer for v in domain[name]):
                    unread.discard(name)
        if not unread:
            break
    assert unread == set()


@machines
def test_a_demand_on_the_caller_comes_before_every_write(machine: Machine, answers: Ask) -> None:
    for answer in answers(machine).values():
        if isinstance(answer, Moved) and KillProcessGroup() in answer.effects:
            assert answer.effects.index(KillProcessGroup()) == 0
            assert answer.effects.count(KillProcessGroup()) == 1


def test_cancelling_what_runs_kills_first_and_what_does_not_run_kills_nothing() -> None:
    guards = RunGuards(reason=Reason.CANCELLED)
    kills = {state: next_run(state, T.CANCEL_OBSERVED, guards) for state in (Q, R)}
    assert [KillProcessGroup() in getattr(kills[state], "effects", ()) for state in (Q, R)] == [False, True]


def test_every_exit_from_running_revokes_and_only_a_claim_mints(answers: Ask) -> None:
    for (state, trigger, _), answer in answers(RUN).items():
        if isinstance(answer, Moved):
            assert (RevokeLease() in answer.effects) == (state is R)
            assert (MintToken() in answer.effects) == (trigger is T.CLAIM and answer.to is R)


def test_no_event_moves_a_step_that_has_ended(answers: Ask) -> None:
    for (state, _, _), answer in answers(STEP).items():
        if state in (SOK, SF, SK, SC):
            assert answer.why is Why.ILLEGAL_TRANSITION


def test_a_requested_cancel_wins_over_every_other_end_of_a_run(answers: Ask) -> None:
    ends = (T.CLAIM, T.ALL_STEPS_DONE, T.ATTEMPT_FAILED, T.LEASE_EXPIRED)
    for (_, trigger, guards), answer in answers(RUN).items():
        if trigger in ends and guards.cancel is not None and isinstance(answer, Moved):
            assert answer.to is C


def test_nothing_starts_once_a_cancel_is_requested() -> None:
    refused = next_step(P, T.STEP_STARTED, StepGuards(cancel_requested=True))
    assert refused == Refused(P, T.STEP_STARTED, SR, Why.CANCEL_REQUESTED)


def test_exactly_the_four_sets_are_closed() -> None:
    assert [state for state in RunState if is_terminal(state)] == [OK, F, C]
    assert [state for state in RunState if is_active(state)] == [R]
    assert [state for state in RunState if is_retryable(state)] == [F, C]
    assert [state for state in StepState if step_is_active(state)] == [P, SR]
    assert [state for state in StepState if step_is_terminal(state)] == [SOK, SF, SK, SC]
    assert [state for state in WorkerState if is_live(state)] == [W.READY, W.ASSIGNED, W.RELEASED]
    assert [state for state in WorkerState if is_leaving(state)] == [W.DEALLOCATED, W.COMPUTE_REMOVED, W.LOST]


def test_only_a_holders_reports_need_a_token() -> None:
    assert [trigger for trigger in Trigger if is_report(trigger)] == [
        T.ALL_STEPS_DONE,
        T.ATTEMPT_FAILED,
        T.SHUTDOWN_DRAIN,
        T.STEP_STARTED,
        T.STEP_SUCCEEDED,
        T.STEP_FAILED,
    ]


@pytest.mark.parametrize("text", ["", "Queued", " queued", "queued\n", "deferred", "dead", "None"])
def test_a_stored_name_is_read_strictly(text: str) -> None:
    for parse in (parse_run_state, parse_step_state, parse_worker_state):
        assert parse(text) == Refused(text, None, None, Why.UNKNOWN_STATE)


def test_every_stored_name_reads_back() -> None:
    assert all(parse_run_state(state.value) is state for state in RunState)
    assert all(parse_step_state(state.value) is state for state in StepState)
    assert all(parse_worker_state(state.value) is state for state in WorkerState)


@pytest.mark.parametrize(
    ("states", "found"),
    [
        ((), Aggregate.SUCCEEDED),
        ((SOK, SK), Aggregate.SUCCEEDED),
        ((SOK, SC, SK), Aggregate.CANCELLED),
        ((SC, SF, SOK), Aggregate.FAILED),
        ((SF, SC, P), Aggregate.ACTIVE),
        ((SF, SC, SR), Aggregate.ACTIVE),
    ],
)
def test_steps_amount_to_active_failed_cancelled_or_succeeded_in_that_order(
    states: tuple[StepState, ...], found: Aggregate
) -> None:
    assert run_aggregate(Step(str(n), ("true",), state=state) for n, state in enumerate(states)) is found


def test_a_folded_history_stops_at_its_first_refusal_with_what_it_earned() -> None:
    free, done = RunGuards(), RunGuards(steps=Aggregate.ACTIVE)
    folded = apply_run([(T.CLAIM, free), (T.ALL_STEPS_DONE, done), (T.ALL_STEPS_DONE, free)])
    assert folded.state is R
    assert folded.refused == Refused(R, T.ALL_STEPS_DONE, None, Why.STEPS_NOT_TERMINAL)
    assert folded.effects == next_run(Q, T.CLAIM, free).effects  # type: ignore[union-attr] # a claim that is free moves


def test_a_whole_history_is_folded_to_its_end() -> None:
    steps = apply_step([(T.STEP_STARTED, StepGuards()), (T.STEP_SUCCEEDED, StepGuards())])
    workers = apply_worker(
        [
            (trigger, WorkerGuards())
            for trigger in (T.PARK_CREATE, T.CREATE_DONE, T.CLAIM, T.RELEASE, T.DEALLOCATE, T.DELETE_COMPUTE, T.RESET)
        ]
    )
    assert (steps.state, steps.refused) == (SOK, None)
    assert (workers.state, workers.refused) == (None, None)


RUN_GUARDS = list(every(RunGuards))


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(Trigger), st.sampled_from(RUN_GUARDS)), max_size=12), st.integers(0, 12))
def test_folding_in_two_parts_is_folding_at_once(history: list[tuple[Trigger, RunGuards]], cut: int) -> None:
    whole, first = apply_run(history), apply_run(history[:cut])
    if first.refused is not None:
        assert whole == first
    else:
        rest = apply_run(history[cut:], first.state)
        assert (whole.state, whole.effects, whole.refused) == (
            rest.state,
            first.effects + rest.effects,
            rest.refused,
        )
