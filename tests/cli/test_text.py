"""Text for people is safe on a terminal and says the same everywhere."""

from __future__ import annotations

import pytest

from controller.api import words
from controller.cli import tables, text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain words", "plain words"),
        ("größer 数", "größer 数"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\x9b2J", r"\x9b2J"),
        ("\u202eevil", r"\u202eevil"),
        ("\udcff", r"\udcff"),
        ("\u2028", r"\u2028"),
    ],
)
def test_what_a_terminal_would_act_on_is_escaped(given: str, shown: str) -> None:
    assert text.shown(given) == shown


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (-5, "0ms"),
        (0, "0ms"),
        (999, "999ms"),
        (1000, "1.0s"),
        (1_999, "1.9s"),
        (9_999, "9.9s"),
        (10_000, "10s"),
        (61_500, "1m 1s"),
        (7_500_000, "2h 5m"),
        (86_400_000, "1d"),
        (90_061_000, "1d 1h"),
    ],
)
def test_a_length_of_time_has_its_two_largest_units(ms: int, said: str) -> None:
    assert text.duration(ms) == said


@pytest.mark.parametrize(("ms", "spelled"), [(0, "0ms"), (1500, "1500ms"), (90_000, "90s"), (3_600_000, "1h")])
def test_a_duration_is_spelled_exactly(ms: int, spelled: str) -> None:
    assert words.spelled(ms) == spelled


def test_times_that_no_calendar_has_are_shown_as_numbers() -> None:
    assert text.moment(0) == "1970-01-01 00:00:00Z"
    assert text.moment(-1) == "-1 ms"
    assert text.moment(1 << 62) == f"{1 << 62} ms"
    assert text.Times(1_000).told(5_000) == "in 4.0s"
    assert text.Times(1_000, exact=True).told(5_000) == "1970-01-01 00:00:05Z"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("sbumit", " (did you mean 'submit'?)"),
        ("log", " (did you mean 'logs'?)"),
        ("bogus", ""),
        ("list", ""),
        ("", ""),
    ],
)
def test_only_a_near_match_is_suggested(typed: str, said: str) -> None:
    assert words.meant(typed, ["init", "submit", "status", "logs"]) == said


def test_columns_line_up_also_with_wide_letters() -> None:
    assert list(tables.table(("A", "B"), [("数", "x"), ("abc", "")])) == ["A    B", "数   x", "abc"]
