"""A switch driven by a threshold changes at most once per dwell."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.model.errors import UsageFault
from controller.model.hysteresis import Switch, Threshold, observe

LEVELS = Threshold(start=10, stop=4, dwell_ms=1_000)


def test_it_goes_on_at_start_and_off_at_stop_and_stays_between() -> None:
    switch, seen = Switch(), []
    for now, level in enumerate([9, 10, 7, 5, 4, 7, 9, 10]):
        switch = observe(LEVELS, switch, level, now * 10_000)
        seen.append(switch.on)
    assert seen == [False, True, True, True, False, False, False, True]


def test_within_the_dwell_it_stays_as_it_was() -> None:
    on = observe(LEVELS, Switch(), 10, 0)
    assert observe(LEVELS, on, 0, 999) is on
    assert observe(LEVELS, on, 0, 1_000) == Switch(on=False, since=1_000)


def test_a_level_that_changes_nothing_leaves_the_very_switch() -> None:
    on = observe(LEVELS, Switch(), 10, 0)
    assert observe(LEVELS, on, 7, 5_000) is on


def test_without_a_dwell_it_may_change_again_at_the_same_moment() -> None:
    eager = Threshold(start=10, stop=4, dwell_ms=0)
    assert observe(eager, observe(eager, Switch(), 10, 5), 0, 5) == Switch(on=False, since=5)


@given(st.lists(st.tuples(st.sampled_from([0, 3, 4, 5, 9, 10, 11]), st.integers(0, 400)), max_size=60))
def test_a_signal_around_its_threshold_does_not_flap(signal: list[tuple[int, int]]) -> None:
    switch, now, changes = Switch(), 0, []
    for level, wait in signal:
        now += wait
        after = observe(LEVELS, switch, level, now)
        if after.on != switch.on:
            changes.append(now)
        switch = after
    assert all(second - first >= LEVELS.dwell_ms for first, second in pairwise(changes))


def test_a_clock_that_jumped_back_waits_one_dwell_at_most() -> None:
    on = observe(LEVELS, Switch(), 10, 7_200_000)
    back = observe(LEVELS, on, 0, 100)
    assert (back.on, observe(LEVELS, back, 0, 1_099).on, observe(LEVELS, back, 0, 1_100).on) == (True, True, False)


@given(st.lists(st.tuples(st.sampled_from([0, 3, 4, 5, 9, 10, 11]), st.integers(-3_000, 900)), max_size=60))
def test_a_clock_that_jumps_makes_no_change_early_and_no_wait_long(signal: list[tuple[int, int]]) -> None:
    """*lowest* is the least that the clock showed since the last change: it has run for a dwell from there."""
    switch, now, lowest = Switch(), 100_000, None
    for level, wait in signal:
        now += wait
        after = observe(LEVELS, switch, level, now)
        assert observe(LEVELS, after, 0, now + LEVELS.dwell_ms).on is False
        assert observe(LEVELS, after, 10, now + LEVELS.dwell_ms).on is True
        lowest = now if lowest is None else min(lowest, now)
        if after.on != switch.on:
            assert switch.since is None or now - lowest >= LEVELS.dwell_ms
            lowest = now
        switch = after


@pytest.mark.parametrize(("start", "stop", "dwell"), [(4, 4, 0), (4, 5, 0), (4, 1, -1)])
def test_levels_that_would_flap_are_refused(start: float, stop: float, dwell: int) -> None:
    with pytest.raises(UsageFault):
        Threshold(start, stop, dwell)
