"""The strict reader: what JSON allows and we do not, refused with line and offset, whatever its size or depth."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controller.model.errors import StrictError
from controller.model.strict import MAX_DEPTH, MAX_INTEGER, MIN_INTEGER, strict_loads


def read(data: bytes) -> object:
    return strict_loads(data, where="test")


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"null", None),
        (b' {"a" : [1, -2.5, "x", true]}\r\n\t', {"a": [1, -2.5, "x", True]}),
        (str(MAX_INTEGER).encode(), MAX_INTEGER),
        (str(MIN_INTEGER).encode(), MIN_INTEGER),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b'"\\\\ud800"', "\\ud800"),
        (b'{"a":{"b":1},"b":[{"b":1},{"b":2}]}', {"a": {"b": 1}, "b": [{"b": 1}, {"b": 2}]}),
        (b'"[[[[{{{{"', "[[[[{{{{"),
        ('{"\u00e9":"\u2028"}'.encode(), {"\u00e9": "\u2028"}),
    ],
)
def test_what_is_strict_is_read(data: bytes, value: object) -> None:
    assert read(data) == value


REFUSED = [
    (b'{"a":1,"a":2}', "'a' twice in one object", 7),
    (b'{"a":1,"\\u0061":2}', "'a' twice in one object", 7),
    (b'[{"x":{}},{"b":1,"c":{"b":2},"b":3}]', "'b' twice in one object", 29),
    (b"[NaN]", "NaN is not JSON", 1),
    (b"[1,-Infinity]", "-Infinity is not JSON", 3),
    (b"[Infinity]", "Infinity is not JSON", 1),
    (b"{:" + b"[" * MAX_DEPTH, f"nested deeper than {MAX_DEPTH}", MAX_DEPTH + 1),
    (b"[1e999]", "a number beyond a double", 1),
    (b"18446744073709551616", "an integer beyond 64 bits", 0),
    (b"[-9223372036854775809]", "an integer beyond 64 bits", 1),
    (b"[" + b"9" * 10_000 + b"]", "an integer beyond 64 bits", 1),
    (b'{"a":"\\ud800"}', "a lone surrogate", 5),
    (b'{"\\udc00":1}', "a lone surrogate", 1),
    (b'"\\ud83dx"', "a lone surrogate", 0),
    (b"\xef\xbb\xbf{}", "byte-order mark", 0),
    (b'{"a":"\xff"}', "not UTF-8", 6),
    (b'"\xed\xa0\x80"', "not UTF-8", 1),
    (b"", "zero bytes", 0),
    (b" \n", "nothing but white space", 0),
    (b"\0" * 4096, "4096 bytes of NUL", 0),
    (b"{}}", "extra data", 2),
    (b"{}\0", "extra data", 2),
    (b"{} word", "extra data", 3),
    (b'{"a":[1,2', "ends too early", 9),
    (b"[01]", "delimiter", 2),
    (b"{'a':1}", "property name", 1),
    (b'"a\nb"', "control character", 2),
    (b"[1,]", "expecting value", 3),
    (b"\xa0", "not UTF-8", 0),
    ("\u00a01".encode(), "expecting value", 0),
]


@pytest.mark.parametrize(("data", "what", "offset"), REFUSED)
def test_what_is_not_strict_is_refused_where_it_stands(data: bytes, what: str, offset: int) -> None:
    with pytest.raises(StrictError) as refusal:
        read(data)
    assert what in refusal.value.problem
    assert refusal.value.offset == offset
    assert f"offset {offset}" in refusal.value.what


def test_lines_count_from_1_and_offsets_in_bytes() -> None:
    with pytest.raises(StrictError) as refusal:
        read('{"\u00e9":1,\n"b":1,\n"b":2}'.encode())
    assert (refusal.value.line, refusal.value.offset) == (3, 16)
    with pytest.raises(StrictError) as refusal:
        read(b"\n[1,\nNaN,\n1]\n")
    assert (refusal.value.line, refusal.value.offset, refusal.value.where) == (3, 5, "test")


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
@pytest.mark.parametrize("closed", [False, True])
def test_depth_never_ends_in_a_recursion_error(opening: bytes, closed: bool) -> None:
    data = opening * 200_000 + b"1"
    if closed:
        data += b"".join(b"]" if byte == ord("[") else b"}" for byte in reversed(opening * 200_000) if byte in b"[{")
    with pytest.raises(StrictError, match=f"nested deeper than {MAX_DEPTH}"):
        read(data)


def test_the_deepest_allowed_is_allowed() -> None:
    assert read(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    with pytest.raises(StrictError):
        read(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))
    with pytest.raises(StrictError):
        strict_loads(b"[[[]]]", where="test", depth=2)


@pytest.mark.parametrize("data", [b'"' + b'\\"' * 1_000_000, b'"' * 1_000_001, b"]" * 1_000_000, b'{"' * 500_000])
def test_hostile_bytes_cost_no_more_than_their_size(data: bytes) -> None:
    with pytest.raises(StrictError):
        read(data)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(MIN_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


@given(value=values, ascii_only=st.booleans())
def test_every_storable_value_is_read_as_itself(value: object, ascii_only: bool) -> None:
    assert read(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(junk=st.binary() | st.text('[]{}",:\\ud8001e-+.NaN \n').map(str.encode))
@example(junk=b'{"a":1' + b"," * 30)
def test_junk_is_read_or_refused_and_nothing_else(junk: bytes) -> None:
    refused = None
    value: object = None
    try:
        value = read(junk)
    except StrictError as error:
        refused = error
    if refused is None:
        assert value == json.loads(junk)
    else:
        assert 0 <= refused.offset <= len(junk)
        assert refused.line >= 1
    assert sys.getrecursionlimit() > MAX_DEPTH
