"""What `Records` tell without decoding a record: where two of them differ, and a few fields of each."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, Struct, json

from controller.model import mapping
from controller.model.mapping import Records, Source


class Number(Struct, frozen=True):
    value: int


Numbers = Records[str, Number]
Changes = dict[str, Number | Raw | None]


def never(raw: Raw) -> Number:
    raise AssertionError(f"{bytes(raw)!r} was decoded")


def undecoded(count: int) -> Numbers:
    text = json.encode({f"r{n}": Number(n) for n in range(count)})
    return Records.lazy(Source(never, str, text))


def raw(value: int) -> Raw:
    return Raw(json.encode(Number(value)))


def changed(numbers: Numbers, *, times: int, first: int = 0) -> Numbers:
    for n in range(first, first + times):
        numbers = numbers.after({f"new{n}": raw(n)})
    return numbers


def told(newer: Numbers, older: Numbers) -> list[str] | None:
    found = newer.differences(older)
    return None if found is None else sorted(found)


def test_a_map_is_no_other_than_itself() -> None:
    numbers = undecoded(100).after({"r1": raw(0)})
    assert told(numbers, numbers) == []


def test_what_was_changed_put_and_taken_away_since_is_told() -> None:
    older = undecoded(100).after({"r1": raw(0), "r2": None, "new": raw(1), "gone": raw(2)})
    newer = older.after({"r3": raw(9), "r2": raw(2), "new": raw(3), "gone": None, "r4": None})
    assert told(newer, older) == ["gone", "new", "r2", "r3", "r4"]
    assert told(older, newer) == ["gone", "new", "r2", "r3", "r4"]


def test_it_is_told_over_one_merge_what_changed_before_and_after_it() -> None:
    start = undecoded(100)
    older = changed(start, times=10)
    newer = changed(older, times=100, first=10)
    assert newer.differences(start) is not None
    assert told(newer, older) == sorted(f"new{n}" for n in range(10, 110))


def test_it_is_not_told_of_maps_that_were_not_made_of_each_other_or_too_long_ago() -> None:
    older = undecoded(100)
    assert undecoded(100).differences(older) is None
    assert changed(older, times=1000).differences(older) is None


def test_only_what_changed_since_the_last_merge_is_gone_through() -> None:
    numbers = undecoded(40_000)
    newer = changed(numbers, times=300)
    assert told(newer, changed(numbers, times=299)) is not None
    assert len(list(newer.differences(numbers) or ())) == 300


class Unreadable(Exception):
    pass


@pytest.mark.parametrize("touched", [False, True])
def test_what_cannot_be_read_is_told_by_a_projection_as_it_is_by_a_look_at_the_record(touched: bool) -> None:
    """The text as it came, and records of which one was looked at."""

    def read(raw: Raw) -> Number:
        if b"text" in bytes(raw):
            raise Unreadable(bytes(raw))
        return json.decode(raw, type=Number)

    numbers: Numbers = Records.lazy(Source(read, str, b'{"a":{"value":1},"b":{"value":"text"}}'))
    assert not touched or numbers["a"] == Number(1)
    with pytest.raises(Unreadable):
        list(numbers.project(Number))


STEPS = st.lists(
    st.dictionaries(st.integers(0, 12).map(str), st.one_of(st.none(), st.integers(0, 3)), max_size=4), max_size=60
)


@given(STEPS, STEPS, STEPS)
def test_nothing_that_is_another_is_left_out(
    shared: list[dict[str, int | None]], one: list[dict[str, int | None]], other: list[dict[str, int | None]]
) -> None:
    """Of two maps that were made of a third, and merge often."""

    def made(numbers: Numbers, steps: list[dict[str, int | None]]) -> Numbers:
        for step in steps:
            numbers = numbers.after({key: None if value is None else Number(value) for key, value in step.items()})
        return numbers

    source = Source(json.Decoder(Number).decode, str)
    with mock.patch.object(mapping, "_LEAST", 0):
        base = made(Records.of({str(n): Number(n) for n in range(8)}, source), shared)
        newer, older = made(base, one), made(base, other)
    found = told(newer, older)
    apart = {key for key in {*newer, *older} if newer.get(key) is not older.get(key)}
    assert found is None or (apart <= set(found) and len(found) == len(set(found)))
