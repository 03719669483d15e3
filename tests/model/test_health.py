"""The circuit breaker of a provider opens, tries and closes, and changes at most once per dwell."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.model.health import BreakerState, breaker_state, failed, retry_at, succeeded
from controller.model.policy import Breaker
from controller.model.records import Provider

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
DWELL = 100
BREAKER = Breaker(failures=3, dwell_ms=DWELL)


def after(story: str, known: Provider | None = None) -> Provider:
    """The record after a story such as "F10 F20 r30 S40": a failure, another, one of a replay, a success, and when."""
    for told in story.split():
        kind, now = told[0], int(told[1:])
        if kind == "S":
            known = succeeded(known, BREAKER, now)
        else:
            known = failed(known, BREAKER, now, f"{kind} at {now}", replayed=kind == "r")
    assert known is not None
    return known


def states(known: Provider | None, *times: int) -> list[BreakerState]:
    return [breaker_state(known, BREAKER, now) for now in times]


def test_a_provider_that_nothing_is_known_of_is_asked() -> None:
    assert breaker_state(None, BREAKER, 5) is CLOSED
    assert retry_at(None, BREAKER) is None


def test_it_opens_at_so_many_failures_in_a_row_and_says_since_when_why_and_until_when() -> None:
    assert states(after("F1000 F1001"), 1001, 9999) == [CLOSED, CLOSED]
    known = after("F1000 F1001 F1002")
    assert known == Provider(failures=3, opened_at=1002, why="F at 1002")
    assert (states(known, 1002, 1101), retry_at(known, BREAKER)) == ([OPEN, OPEN], 1102)


def test_a_success_between_starts_the_count_anew() -> None:
    assert states(after("F1 F2 S3 F4 F5"), 5, 200) == [CLOSED, CLOSED]
    assert states(after("F1 F2 S3 F4 F5 F6"), 6) == [OPEN]


def test_once_its_dwell_is_over_one_action_is_tried() -> None:
    assert states(after("F1000 F1001 F1002"), 1101, 1102, 99_999) == [OPEN, HALF_OPEN, HALF_OPEN]


def test_a_success_of_the_try_closes_it() -> None:
    known = after("F1000 F1001 F1002 S1102")
    assert known == Provider(failures=0, closed_at=1102, why="F at 1002")
    assert (states(known, 1102), retry_at(known, BREAKER)) == ([CLOSED], None)


def test_a_failure_of_the_try_begins_another_dwell() -> None:
    known = after("F1000 F1001 F1002 F1500")
    assert (states(known, 1500, 1599, 1600), retry_at(known, BREAKER)) == ([OPEN, OPEN, HALF_OPEN], 1600)


def test_failures_while_it_is_open_are_counted_and_do_not_make_the_wait_longer() -> None:
    known = after("F1000 F1001 F1002 F1050 r1101")
    assert (known.failures, known.why, retry_at(known, BREAKER)) == (5, "r at 1101", 1102)


def test_an_action_that_is_sent_again_and_again_in_vain_does_not_keep_it_open() -> None:
    known = after("F1000 F1001 F1002 r1102 r1200 r1300")
    assert (known.failures, states(known, 1300)) == (6, [HALF_OPEN])
    assert states(after("F1301", known), 1301) == [OPEN]


def test_an_action_that_is_sent_again_opens_a_closed_one() -> None:
    assert states(after("r1 r2 r3"), 3) == [OPEN]


def test_a_success_within_the_dwell_lets_it_close_when_that_is_over() -> None:
    known = after("F1000 F1001 F1002 S1003")
    assert (known.failures, states(known, 1003, 1101, 1102)) == (0, [OPEN, OPEN, CLOSED])


def test_what_closed_by_itself_is_recorded_as_of_the_end_of_its_dwell() -> None:
    assert after("F1000 F1001 F1002 S1003 F5000") == Provider(failures=1, closed_at=1102, why="F at 5000")
    assert after("F1000 F1001 F1002 S1003 S5000") == Provider(closed_at=1102, why="F at 1002")
    assert states(after("F1000 F1001 F1002 S1003 F5000 F5000 F5000"), 5000) == [OPEN]


def test_a_failure_after_a_success_within_the_dwell_asks_for_a_try() -> None:
    known = after("F1000 F1001 F1002 S1003 r1004")
    assert (known.failures, states(known, 1101, 1102)) == (1, [OPEN, HALF_OPEN])


def test_what_closed_does_not_open_again_within_a_dwell_and_then_at_the_next_failure() -> None:
    known = after("F1000 F1001 F1002 S1200 F1201 F1202 F1203 F1299")
    assert (known.failures, states(known, 1299, 1300)) == (4, [CLOSED, CLOSED])
    assert states(after("F1300", known), 1300) == [OPEN]


def test_a_success_that_changes_nothing_gives_the_very_record() -> None:
    known = after("F1 S2")
    assert succeeded(known, BREAKER, 3) is known


def test_how_long_keys_are_remembered_is_kept() -> None:
    known = Provider(key_ttl_ms=7)
    assert after("F1 F2 F3", known).key_ttl_ms == after("F1 F2 F3 S200", known).key_ttl_ms == 7


@pytest.mark.parametrize("story", ["F9000", "S9000"])
def test_a_clock_that_jumped_back_asks_for_a_try_and_what_comes_of_it_waits_one_dwell(story: str) -> None:
    known = after("F8998 F8999 F9000")
    assert states(known, 500, 8999) == [HALF_OPEN, HALF_OPEN]
    known = after(story.replace("9000", "500"), known)
    assert (retry_at(known, BREAKER), states(known, 500, 599)) == (600, [OPEN, OPEN])
    assert states(known, 600) == [HALF_OPEN if story.startswith("F") else CLOSED]


def test_a_clock_that_jumped_back_since_it_closed_lets_it_open_after_one_dwell() -> None:
    known = after("F1000 F1001 F1002 S9000 F500 F501 F502 F599")
    assert states(known, 599, 600) == [CLOSED, CLOSED]
    assert states(after("F600", known), 600) == [OPEN]


def test_one_failure_may_be_enough_and_a_dwell_may_be_none() -> None:
    eager = Breaker(failures=1, dwell_ms=0)
    known = failed(None, eager, 5, "w")
    assert breaker_state(known, eager, 5) is HALF_OPEN
    assert breaker_state(succeeded(known, eager, 5), eager, 5) is CLOSED


# --- No flapping ----------------------------------------------------------------------------------------------------

KINDS = st.sampled_from("FFFrS")


@given(st.lists(st.tuples(KINDS, st.integers(0, 60)), max_size=80))
def test_seen_at_every_moment_it_changes_at_most_once_per_dwell(signal: list[tuple[str, int]]) -> None:
    known, now, seen = Provider(), 0, list[tuple[int, bool]]()
    for kind, wait in signal:
        seen += [(at, breaker_state(known, BREAKER, at) is CLOSED) for at in range(now, now + wait + 1)]
        now += wait
        known = after(f"{kind}{now}", known)
    seen += [(at, breaker_state(known, BREAKER, at) is CLOSED) for at in range(now, now + 3 * DWELL)]
    changes = [at for (_, before), (at, closed) in pairwise(seen) if closed != before]
    assert all(second - first >= DWELL for first, second in pairwise(changes))


@given(st.lists(st.tuples(KINDS, st.one_of(st.integers(0, 60), st.integers(-400, 400))), max_size=80))
def test_whatever_the_clock_does_it_shows_a_dwell_between_changes_and_nothing_waits_longer(
    signal: list[tuple[str, int]],
) -> None:
    known, now, lowest, waits = Provider(), 10_000, None, list[int]()
    for kind, wait in signal:
        now += wait
        before, known = known, after(f"{kind}{now}", known)
        assert breaker_state(known, BREAKER, now + DWELL) is not OPEN
        lowest = None if lowest is None else min(lowest, now)
        was, opened = before.opened_at is not None, known.opened_at is not None
        if was == opened:
            continue
        changed_at = known.opened_at if opened else known.closed_at
        assert changed_at is not None
        if lowest is not None:
            waits.append(changed_at - lowest)
        lowest = min(changed_at, now)
    assert all(waited >= DWELL for waited in waits)


@given(st.lists(st.tuples(KINDS, st.integers(-400, 400)), max_size=40), st.integers(-10_000, 10_000))
def test_a_provider_that_works_again_is_closed_after_one_success_and_one_dwell(
    signal: list[tuple[str, int]], then: int
) -> None:
    known, now = Provider(), 10_000
    for kind, wait in signal:
        now += wait
        known = after(f"{kind}{now}", known)
    known = after(f"S{now + then}", known)
    assert breaker_state(known, BREAKER, now + then + DWELL) is CLOSED


@given(st.lists(st.tuples(KINDS, st.integers(-400, 400)), max_size=40), st.integers(-10_000, 10_000))
def test_a_provider_that_fails_is_open_once_enough_failed_for_more_than_a_dwell(
    signal: list[tuple[str, int]], then: int
) -> None:
    known, now = Provider(), 10_000
    for kind, wait in signal:
        now += wait
        known = after(f"{kind}{now}", known)
    now += then
    known = after(f"F{now} F{now} F{now} F{now + DWELL}", known)
    assert breaker_state(known, BREAKER, now + DWELL) is OPEN
