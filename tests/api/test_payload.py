"""Values of programs as JSON: what is kept, and what is refused with its place instead of being bent."""

from __future__ import annotations

import json
from collections import OrderedDict
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from pathlib import PurePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from controller.api.payload import decoded, encoded
from controller.engine.submission import MOST_PAYLOAD
from controller.model.errors import UsageFault
from controller.model.strict import MAX_DEPTH, strict_loads

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


def text(value: Any) -> str:
    raw = encoded(value, "payload")
    assert isinstance(raw, Raw)
    return bytes(raw).decode()


@given(VALUES)
def test_every_json_value_comes_back_as_it_was_and_is_strict(value: Any) -> None:
    raw = encoded(value, "payload")
    assert decoded(raw) == value
    assert strict_loads(text(value).encode(), where="") == value


def test_members_are_kept_in_order_of_their_names() -> None:
    assert text({"b": 1, "a": {"d": 1, "c": 2}}) == '{"a":{"c":2,"d":1},"b":1}'


def test_what_is_a_text_a_number_a_list_or_a_dict_underneath_passes_for_that() -> None:
    value = OrderedDict(colour=Colour.RED, size=Size.LARGE, pair=(1, 2.5))
    assert json.loads(text(value)) == {"colour": "red", "size": 3, "pair": [1, 2.5]}


def test_no_value_is_told_from_null() -> None:
    assert encoded(UNSET, "result") is UNSET
    assert text(None) == "null"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def circle() -> Any:
    value: dict[str, Any] = {}
    value["a"] = value
    return value


@pytest.mark.parametrize(
    ("value", "problem", "place"),
    [
        (float("nan"), "nan is not JSON", "payload"),
        ({"a": [1, float("-inf")]}, "-inf is not JSON", "payload.a[1]"),
        ([2**64], "an integer beyond 64 bits", "payload[0]"),
        (-(2**63) - 1, "an integer beyond 64 bits", "payload"),
        ({"a": {1: 2}}, "a key that is int, not a text", "payload.a"),
        ({None: 2}, "a key that is NoneType, not a text", "payload"),
        ({"a": {1, 2}}, "set is not JSON", "payload.a"),
        (b"bytes", "bytes is not JSON", "payload"),
        ([datetime(2026, 12, 1, tzinfo=UTC)], "datetime is not JSON", "payload[0]"),
        (PurePath("/a"), "PurePosixPath is not JSON", "payload"),
        ("\ud800", "a lone surrogate", "payload"),
        ({"\ud800": 1}, "a lone surrogate", "payload"),
        (object(), "object is not JSON", "payload"),
    ],
)
def test_what_json_cannot_say_is_refused_with_its_place(value: Any, problem: str, place: str) -> None:
    with pytest.raises(UsageFault) as fault:
        encoded(value, "payload")
    assert (fault.value.what, fault.value.where) == (problem, place)


def test_depth_is_bounded_and_a_circle_is_deep() -> None:
    assert decoded(encoded(nested(MAX_DEPTH), "payload")) == nested(MAX_DEPTH)
    for value in (nested(MAX_DEPTH + 1), nested(100_000), circle()):
        with pytest.raises(UsageFault, match=f"nested deeper than {MAX_DEPTH}") as fault:
            encoded(value, "payload")
        assert len(fault.value.where) <= 203


def test_a_mebibyte_is_the_most() -> None:
    assert len(text("x" * (MOST_PAYLOAD - 2))) == MOST_PAYLOAD
    with pytest.raises(UsageFault, match="payload is larger than 1048576 bytes"):
        encoded("x" * (MOST_PAYLOAD - 1), "payload")
