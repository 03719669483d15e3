"""Records behave as a plain dict does, whatever is changed; and decode nothing that nobody touches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isqrt
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct

from controller.model import mapping
from controller.model.errors import DocumentCorrupt
from controller.model.mapping import Records, Source


class Item(Struct, frozen=True, forbid_unknown_fields=True):
    n: int
    text: str = ""


class Count(Struct, frozen=True):
    """What is wanted of an Item when all of them are counted."""

    n: int


ENCODE = msgspec.json.encode
KEYS = [f"k-{number}" for number in range(12)]
changes = st.lists(
    st.dictionaries(st.sampled_from(KEYS), st.one_of(st.none(), st.integers(0, 9)), max_size=5), max_size=12
)


class Decoder:
    """Decodes items and counts how often."""

    def __init__(self) -> None:
        self.decoded: list[bytes] = []

    def __call__(self, raw: Raw) -> Item:
        self.decoded.append(bytes(raw))
        return msgspec.json.decode(raw, type=Item)


def plain(count: int) -> dict[str, Item]:
    return {f"k-{number}": Item(number, "x" * (number % 3)) for number in range(count)}


def lazy(items: Mapping[str, Item], decode: Callable[[Raw], Item] | None = None) -> Records[str, Item]:
    text = ENCODE(items) if items else b""
    return Records.lazy(Source(decode or Decoder(), str, text))


def raw(item: Item) -> Raw:
    return Raw(ENCODE(item))


def changed(items: dict[str, Item], change: Mapping[str, Item | None]) -> None:
    """What a dict does with *change*."""
    for key, item in change.items():
        if item is None:
            items.pop(key, None)
        else:
            items[key] = item


def same(records: Records[str, Item], items: dict[str, Item]) -> bool:
    """True; anything that differs is asserted where it does."""
    assert list(records) == list(items)
    assert list(records.items()) == list(items.items())
    assert list(records.values()) == list(items.values())
    assert (len(records), records == items, bool(records)) == (len(items), True, bool(items))
    for key in (*KEYS, "k-absent"):
        assert (key in records) == (key in items)
        assert records.get(key) == items.get(key)
        if key not in items:
            with pytest.raises(KeyError):
                records[key]
    found = {
        key: entry if isinstance(entry, Item) else msgspec.json.decode(entry, type=Item)
        for key, entry in records.raw_items()
    }
    assert list(found.items()) == list(items.items())
    return True


@settings(max_examples=200)
@given(start=st.integers(0, 12), steps=changes, raws=st.booleans(), lazily=st.booleans(), least=st.integers(0, 6))
def test_any_changes_leave_what_they_leave_of_a_dict_in_the_same_order(
    start: int, steps: list[dict[str, int | None]], raws: bool, lazily: bool, least: int
) -> None:
    items = plain(start)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("controller.model.mapping._LEAST", least)
        records = lazy(items) if lazily else Records.of(items, Source(Decoder(), str))
        history = [(records, dict(items))]
        for step in steps:
            change = {key: None if n is None else Item(n) for key, n in step.items()}
            changed(items, change)
            given_: dict[str, Any] = {key: raw(each) if raws and each else each for key, each in change.items()}
            records = records.after(given_)
            history.append((records, dict(items)))
        assert all(same(each, was) for each, was in history)


def test_what_a_dict_was_made_of_is_not_changed_by_what_comes_after() -> None:
    items = plain(3)
    first = Records.of(items)
    second = first.after({"k-0": None, "k-9": Item(9)})
    items["k-1"] = Item(77)
    assert list(first) == ["k-0", "k-1", "k-2"]
    assert (first["k-1"], list(second)) == (Item(1, "x"), ["k-1", "k-2", "k-9"])


def test_no_change_is_the_same_map() -> None:
    records = lazy(plain(3))
    assert records.after({}) is records
    assert Records.of(records) is records


def test_neither_keys_nor_length_nor_absence_decode_a_record() -> None:
    decoder = Decoder()
    records = lazy(plain(5), decoder)
    assert (list(records), len(records), "k-4" in records, records.get("k-9")) == (KEYS[:5], 5, True, None)
    assert decoder.decoded == []


def test_a_record_is_decoded_when_it_is_touched_and_once_whichever_map_touches_it() -> None:
    decoder = Decoder()
    records = lazy(plain(5), decoder)
    later = records.after({"k-9": raw(Item(9)), "k-1": raw(Item(11))})
    assert later["k-3"] is records["k-3"]
    assert later["k-9"] is later["k-9"]
    assert later["k-1"] is later["k-1"]
    assert [msgspec.json.decode(each)["n"] for each in decoder.decoded] == [3, 9, 11]


def test_a_section_is_as_it_came_until_it_is_looked_at_or_changed() -> None:
    text = ENCODE(plain(5))
    records = lazy(plain(5))
    assert records.untouched == text
    assert records.after({}).untouched == text
    assert records.after({"k-9": Item(9)}).untouched == b""
    records = lazy(plain(5))
    assert "k-1" in records
    assert records.untouched == b""
    assert Records.of(plain(5)).untouched == b""


def test_what_nobody_touched_stays_as_its_bytes_came() -> None:
    decoder = Decoder()
    records = lazy(plain(4), decoder).after({"k-2": Item(22), "k-0": None})
    assert records["k-3"].n == 3
    found = dict(records.raw_items())
    assert [key for key, entry in found.items() if isinstance(entry, Raw)] == ["k-1"]
    assert (bytes(found["k-1"]), found["k-2"]) == (ENCODE(Item(1, "x")), Item(22))  # type: ignore[arg-type] # it is raw
    assert len(decoder.decoded) == 1


@pytest.mark.parametrize("touch", [False, True])
def test_a_projection_has_the_wanted_fields_in_order_and_keeps_nothing(touch: bool) -> None:
    decoder = Decoder()
    records = lazy(plain(4), decoder)
    if touch:
        records = records.after({"k-1": raw(Item(11)), "k-9": Item(9), "k-0": None})
        assert records["k-2"].n == 2
    told = [(key, each.n) for key, each in records.project(Count)]
    assert told == ([("k-1", 11), ("k-2", 2), ("k-3", 3), ("k-9", 9)] if touch else [(f"k-{n}", n) for n in range(4)])
    assert len(decoder.decoded) == touch
    assert bool(records.untouched) is not touch


def large(count: int) -> dict[str, Item]:
    """Items of several portions, of which one is longer than a portion, with text that looks like an end of a line."""
    return {f"k-{n}": Item(n, '},\n{"x":' * (20_000 if n == 700 else 20)) for n in range(count)}


def on_lines(items: Mapping[str, Item]) -> bytes:
    return b"{\n%b\n}" % b",\n".join(b"%b:%b" % (ENCODE(key), ENCODE(item)) for key, item in items.items())


@pytest.mark.parametrize(
    "layout",
    [on_lines, ENCODE, lambda items: msgspec.json.format(ENCODE(items), indent=1)],
    ids=["ours", "one", "many"],
)
def test_a_projection_of_many_has_each_once_however_they_are_laid_out(
    layout: Callable[[Mapping[str, Item]], bytes],
) -> None:
    items = large(1500)
    text = layout(items)
    assert len(text) > 8 * mapping._PORTION
    records: Records[str, Item] = Records.lazy(Source(Decoder(), str, memoryview(text)))
    assert [(key, each.n) for key, each in records.project(Count)] == [(key, item.n) for key, item in items.items()]


def test_a_projection_tells_of_a_wrong_record_behind_many_what_is_wrong_with_it() -> None:
    text = on_lines(large(1500)).replace(b'"k-1400":{"n":1400', b'"k-1400":{"n":"x"')
    records: Records[str, Item] = Records.lazy(Source(Decoder(), str, text))
    told: list[str] = []
    with pytest.raises(msgspec.ValidationError, match="Expected `int`, got `str`"):
        told.extend(key for key, _ in records.project(Count))
    assert told == [f"k-{n}" for n in range(1400)]


def test_a_projection_refuses_a_comma_with_nothing_behind_it() -> None:
    item = b'\n"k-1":{"n":1,"text":"%b"},\n'
    text = b"{%b  \n}" % (item % (b"x" * (mapping._PORTION - len(item % b""))))
    records: Records[str, Item] = Records.lazy(Source(Decoder(), str, text))
    with pytest.raises(DocumentCorrupt):
        list(records.project(Count))


def test_a_record_that_is_none_is_told_by_whoever_decodes_it_and_the_others_are_there() -> None:
    items = plain(2)
    records = Records.lazy(Source(Decoder(), str, ENCODE(items)[:-1] + b',"k-2":{"n":1,"colour":2}}'))
    assert records["k-1"] == items["k-1"]
    for touch in (lambda: records["k-2"], lambda: records.get("k-2"), lambda: list(records.values())):
        with pytest.raises(msgspec.ValidationError, match="colour"):
            touch()


def test_numbers_are_keys_of_sections_by_number() -> None:
    records: Records[int, Item] = Records.lazy(Source(Decoder(), int, b'{"20":{"n":1},"3":{"n":2}}'))
    assert list(records.after({7: raw(Item(3))})) == [20, 3, 7]


def test_raw_records_need_a_way_to_decode_them() -> None:
    records = Records.of(plain(2)).after({"k-5": raw(Item(5))})
    with pytest.raises(TypeError, match="raw"):
        records["k-5"]


def test_a_change_costs_what_changed_and_at_most_twice_the_root_of_the_rest() -> None:
    """What is kept beside the shared base stays small; once it is more, both are one base again, with nothing lost."""
    items = plain(10_000)
    records, merges, base = Records.of(items, Source(Decoder(), str)), 0, None
    for number in range(1_000):
        change: dict[str, Item | None] = {f"k-{number}": None, f"new-{number}": Item(number)}
        changed(items, change)
        records = records.after(change)
        assert len(records._changed) + len(records._added) <= 64 + 2 * isqrt(10_000)
        merges += base is not None and records._base is not base
        base = records._base
    assert 0 < merges < 20
    assert list(records.items()) == list(items.items())


def test_a_map_shows_what_is_in_it() -> None:
    assert repr(lazy({"k": Item(1)})) == "Records({'k': Item(n=1, text='')})"
