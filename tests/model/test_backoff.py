"""Backoff is total, capped, and spread by chance that is given to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.model.backoff import ceiling_ms, delay_ms


class Chance:
    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def test_the_ceiling_doubles_from_the_first_wait_up_to_the_cap() -> None:
    found = [ceiling_ms(attempt, initial_ms=100, cap_ms=1_000) for attempt in (1, 2, 3, 4, 5, 6)]
    assert found == [100, 200, 400, 800, 1_000, 1_000]


def test_full_jitter_reaches_from_nothing_to_the_ceiling() -> None:
    waits = [delay_ms(3, initial_ms=100, cap_ms=1_000, generator=Chance(value)) for value in (0.0, 0.5, 0.999_999)]
    assert waits == [0, 200, 400]


def test_a_generator_that_says_one_does_not_exceed_the_cap() -> None:
    assert delay_ms(9, initial_ms=100, cap_ms=1_000, generator=Chance(1.0)) == 1_000


def test_an_attempt_before_the_first_waits_like_the_first() -> None:
    assert [ceiling_ms(attempt, initial_ms=100, cap_ms=1_000) for attempt in (0, -1, -(10**30))] == [100, 100, 100]


def test_a_huge_attempt_waits_the_cap() -> None:
    assert [ceiling_ms(10**power, initial_ms=1, cap_ms=60_000) for power in (6, 30, 400)] == [60_000] * 3


def test_the_factor_that_is_given_is_the_one_that_waits_grow_by() -> None:
    assert delay_ms(3, initial_ms=100, cap_ms=1_000, factor=3.0, generator=Chance(0.999_999)) == 900


@pytest.mark.parametrize(("initial", "cap"), [(100, 0), (0, 1_000)])
def test_a_first_wait_or_a_cap_of_nothing_waits_for_nothing(initial: int, cap: int) -> None:
    assert [ceiling_ms(attempt, initial_ms=initial, cap_ms=cap) for attempt in (1, 2, 9)] == [0, 0, 0]


def test_by_a_factor_of_one_no_wait_grows_however_late_the_attempt() -> None:
    assert [ceiling_ms(attempt, initial_ms=5, cap_ms=60, factor=1.0) for attempt in (1, 9, 10**400)] == [5, 5, 5]


@given(
    st.integers(),
    st.integers(-(2**63), 2**63),
    st.integers(-(2**63), 2**63),
    st.floats(-2, 1e9, allow_nan=False),
    st.floats(0, 1, exclude_max=True),
)
def test_every_wait_is_a_whole_number_from_zero_to_the_cap(
    attempt: int, initial: int, cap: int, factor: float, chance: float
) -> None:
    wait = delay_ms(attempt, initial_ms=initial, cap_ms=cap, factor=factor, generator=Chance(chance))
    assert type(wait) is int
    assert 0 <= wait <= max(0, cap)


@given(st.integers(-5, 200), st.integers(0, 10**6), st.integers(0, 10**9), st.floats(1, 10))
def test_a_later_attempt_never_has_a_lower_ceiling(attempt: int, initial: int, cap: int, factor: float) -> None:
    first, second = (ceiling_ms(n, initial_ms=initial, cap_ms=cap, factor=factor) for n in (attempt, attempt + 1))
    assert first <= second
