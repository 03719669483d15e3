"""Tables and lines for people: whole and plain unless a terminal says how wide it is, and then only words give way."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from controller.cli.tables import FREE, SHORTEST, TELLING, Table, cut, table, wrapped
from controller.cli.text import pairs, width

WORDS = "words that go on and on and never seem to come to an end"
RUNS = table(
    ("RUN", "STATE", "REASON", "COMMAND"),
    [
        ("r-1", "failed", "-", WORDS),
        ("an-id-of-a-user-that-is-rather-long", "queued (scheduled)", "timed_out", "true"),
    ],
)


def plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def columns(lines: list[str], heads: tuple[str, ...]) -> list[list[str]]:
    """The cells of lines of ASCII, read by where the heads stand."""
    starts = [lines[0].index(head) for head in heads]
    ends = [*starts[1:], None]
    return [[line[start:end].rstrip() for start, end in zip(starts, ends, strict=True)] for line in lines]


def test_a_table_that_is_iterated_is_whole_and_plain() -> None:
    lines = list(RUNS)
    assert lines == list(RUNS.lines())
    assert "\x1b" not in "".join(lines)
    assert columns(lines, RUNS.heads) == [list(RUNS.heads), *map(list, RUNS.rows)]


def test_an_indent_stands_before_every_line_and_counts_as_room() -> None:
    lines = list(table(("ID", "WHY"), [("1", WORDS)], indent="    ").lines(room=40))
    assert all(line.startswith("    ") and line[4] != " " for line in lines)
    assert max(map(width, lines)) == 40


def test_a_line_never_ends_in_blanks() -> None:
    assert list(table(("A", "B"), [("longer", ""), ("x", "y")])) == ["A       B", "longer", "x       y"]


def test_a_table_without_rows_is_its_heads() -> None:
    assert list(table(("A", "WHY"), []).lines(room=10)) == ["A  WHY"]


def test_only_running_text_is_cut_and_marked_where_something_is_missing() -> None:
    lines = list(RUNS.lines(room=90))
    assert max(map(width, lines)) == 90
    _, first, second = columns(lines, RUNS.heads)
    assert first[:3] == ["r-1", "failed", "-"]
    assert second == list(RUNS.rows[1])
    assert first[3].endswith("\u2026")
    assert WORDS.startswith(first[3][:-1])


def test_the_widest_column_of_running_text_gives_first() -> None:
    made = table(("ID", "WHY", "DETAIL"), [("1", "w" * 40, "d" * 20)])
    whole = 2 + 40 + 20 + 4
    for room in (whole, whole - 1, whole - 20):
        _, (_, why, detail) = columns(list(made.lines(room=room)), made.heads)
        assert (len(why), detail) == (40 - (whole - room), "d" * 20)
    _, (_, why, detail) = columns(list(made.lines(room=whole - 26)), made.heads)
    assert (len(why), len(detail)) == (17, 17)


def test_a_table_that_cannot_fit_stays_as_wide_as_it_must() -> None:
    for room in (0, 1, 20):
        lines = list(RUNS.lines(room=room))
        _, first, second = columns(lines, RUNS.heads)
        assert second[:2] == list(RUNS.rows[1][:2])
        assert (len(first[3]), second[3]) == (SHORTEST, "true")


@pytest.mark.parametrize("head", ["RUN", "STATE", "OUTCOME", "SLOT", "KEY", "AGE", "EVENT", "SUBJECT", "CHANGE"])
def test_ids_states_keys_and_numbers_are_never_cut(head: str) -> None:
    made = table((head, "WHY"), [("x" * 70, WORDS)])
    assert list(made.lines(room=60))[1].split()[0] == "x" * 70


def test_a_command_of_a_megabyte_is_cut_like_any_other() -> None:
    made = table(("RUN", "COMMAND"), [("r-1", "word " * 200_000)])
    assert [width(line) for line in made.lines(room=60)] == [12, 60]


@pytest.mark.parametrize(
    ("text", "wide"),
    [
        ("", 0),
        ("abc", 3),
        ("größer", 6),
        ("数", 2),
        ("\uff57", 2),
        ("e\u0301", 1),
        ("\u0301", 0),
        ("a\u20dd", 1),
        ("กั", 1),
        ("❤\ufe0f", 1),
        ("数e\u0301x", 4),
    ],
)
def test_wide_letters_count_twice_and_marks_on_others_not_at_all(text: str, wide: int) -> None:
    assert width(text) == wide


@pytest.mark.parametrize(
    ("text", "room", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abcd\u2026"),
        ("数数数", 6, "数数数"),
        ("数数数", 5, "数数\u2026"),
        ("数数数", 4, "数\u2026"),
        ("e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"),
        ("e\u0301e\u0301e\u0301", 2, "e\u0301\u2026"),
    ],
)
def test_text_is_cut_between_letters_by_the_columns_they_take(text: str, room: int, shown: str) -> None:
    assert cut(text, room) == shown
    assert width(cut(text, room)) <= room


def test_pairs_line_up_also_with_wide_names() -> None:
    assert list(pairs([("数", "x"), ("name", "y"), ("e\u0301", "")])) == ["数    x", "name  y", "e\u0301"]


CELLS = some.text(some.sampled_from("ab 数e\u0301-"), max_size=30)
STATES = some.sampled_from(("failed", "succeeded", "queued (pending)", "running", "no such state", "-", ""))


@given(some.lists(some.tuples(CELLS, STATES, CELLS), max_size=5), some.none() | some.integers(0, 80))
def test_colours_stand_around_cells_so_that_columns_line_up_as_without(
    rows: list[tuple[str, str, str]], room: int | None
) -> None:
    made = table(("ID", "STATE", "WHY"), rows, indent="  ")
    assert [plain(line) for line in made.lines(room=room, color=True)] == list(made.lines(room=room))


@given(some.lists(some.tuples(CELLS, CELLS, CELLS), max_size=5), some.integers(0, 80))
def test_a_table_is_no_wider_than_the_room_or_than_it_must_be(rows: list[tuple[str, str, str]], room: int) -> None:
    made = table(("ID", "WHY", "DETAIL"), rows)
    least = max(width(row[0]) for row in [made.heads, *rows]) + 2 * SHORTEST + 4
    assert max(map(width, made.lines(room=room))) <= max(room, least)


def test_a_colour_repeats_what_a_word_says_and_is_for_states_and_outcomes_alone() -> None:
    made = table(("STATE", "RUN", "WHY"), [("failed", "failed", "failed"), ("odd", "r-1", "-")])
    head, first, second = made.lines(color=True)
    assert head == "\x1b[1mSTATE\x1b[0m   \x1b[1mRUN\x1b[0m     \x1b[1mWHY\x1b[0m"
    assert first == "\x1b[31mfailed\x1b[0m  failed  failed"
    assert second == "odd     r-1     -"


def test_words_in_parentheses_do_not_change_the_colour_of_a_state() -> None:
    lines = list(table(("STATE", "RUN"), [("queued", "a"), ("queued (scheduled)", "b")]).lines(color=True))
    assert [line.partition("queued")[0] for line in lines[1:]] == ["\x1b[2m"] * 2


def test_no_column_is_both_cut_and_coloured() -> None:
    assert not set(FREE) & set(TELLING)


def test_a_line_that_fits_is_left_as_it_is() -> None:
    for line in ("", "  x   y", "a" * 20, "\x1b[1m" + "a" * 20 + "\x1b[0m"):
        assert list(wrapped(line, 20)) == [line]


def test_a_long_value_goes_on_under_its_beginning() -> None:
    assert list(wrapped("  name   one two three four", 20)) == ["  name   one two", "         three four"]


def test_a_long_sentence_goes_on_a_little_further_in() -> None:
    assert list(wrapped("  one two three four", 12)) == ["  one two", "    three", "    four"]


def test_a_value_that_begins_far_to_the_right_does_not_push_its_rest_there() -> None:
    assert list(wrapped("a long name of it  one two three", 22)) == ["a long name of it  one", "two three"]


def test_long_words_and_commands_in_backticks_stay_whole() -> None:
    key = "k" * 30
    assert list(wrapped(f"key  {key}: one two", 20)) == [f"key  {key}:", "     one two"]
    line = "next: type (`controller retry r-1`), then wait"
    assert list(wrapped(line, 34)) == ["next: type", "  (`controller retry r-1`), then", "  wait"]


def test_colour_takes_no_room() -> None:
    line = "\x1b[1mone two three\x1b[0m four"
    assert list(wrapped(line, 13)) == ["\x1b[1mone two three\x1b[0m", "  four"]


@given(some.text(some.sampled_from("ab `数:"), max_size=60), some.integers(1, 40))
def test_wrapping_loses_no_word_and_breaks_none(line: str, room: int) -> None:
    lines = list(wrapped(line, room))
    assert " ".join(lines).split() == line.split()
    for each in lines:
        assert width(each) <= room or len(re.sub("`[^`]*`", "x", each).split()) <= 1 or each == lines[0], each


def test_tables_are_values_that_may_be_written_twice() -> None:
    made = Table(("A",), (row for row in [("x",)]))
    assert list(made) == list(made) == ["A", "x"]
