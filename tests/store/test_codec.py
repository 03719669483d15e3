"""Bytes: readable, canonical, sealed; and a document that went through them is the same document."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw, Struct, inspect
from msgspec.structs import replace

from controller.model.edit import MAPS, apply_edit
from controller.model.errors import DocumentCorrupt, DocumentFault, DocumentForeign
from controller.model.mapping import Records
from controller.model.reason import Reason
from controller.model.records import (
    Counters,
    Document,
    Event,
    PendingAction,
    Priority,
    Queue,
    Run,
    Slot,
    Step,
    Tombstone,
    Trouble,
    new_document,
)
from controller.store import codec
from tests.store import kit

WHERE = "here"
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(min_value=-(2**63), max_value=2**64 - 1)
times = st.integers(min_value=0, max_value=2**50)
ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True)
plain = st.recursive(
    st.none()
    | st.booleans()
    | numbers.filter(lambda n: n < 2**63)
    | texts
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
raws = plain.map(lambda value: Raw(orjson.dumps(value)))
reasons = st.none() | st.sampled_from(Reason)
steps = st.builds(
    Step, name=ids, argv=st.lists(texts, max_size=3).map(tuple), env=st.dictionaries(texts, texts, max_size=2)
)
runs = st.builds(
    Run,
    id=ids,
    queue=ids,
    sequence=times,
    created_at=numbers,
    steps=st.lists(steps, max_size=2).map(tuple),
    priority=st.sampled_from(Priority),
    reason=reasons,
    last_error=st.none() | texts,
    payload=raws | st.just(UNSET),
)
events = st.builds(
    Event,
    revision=times,
    n=times,
    at=times,
    command=texts,
    subject=texts,
    event=texts,
    from_=st.none() | texts,
    reason=reasons,
    action=raws | st.just(UNSET),
)
tombstones = st.builds(
    Tombstone,
    id=ids,
    queue=ids,
    sequence=times,
    token=times,
    created_at=times,
    finished_at=times,
    state=st.just(Run("x", "q", 1, 1, ()).state),
    result=raws | st.just(UNSET),
)
slots = st.integers(min_value=1, max_value=10_000)


@st.composite
def documents(draw: st.DrawFn) -> Document:
    pending = {
        slot: PendingAction(action=kit.create(slot, serial=draw(st.integers(1, 9)))[1], parked_at=draw(times))
        for slot in draw(st.lists(slots, max_size=3, unique=True))
    }
    return replace(
        new_document(draw(texts), draw(texts)),
        revision=draw(times),
        counters=Counters(run=draw(times), serial=draw(times)),
        draining=draw(st.booleans()),
        events=tuple(draw(st.lists(events, max_size=3))),
        runs={run.id: run for run in draw(st.lists(runs, max_size=4))},
        pending_actions=pending,
        slots=draw(st.dictionaries(slots, st.builds(Slot, changed=times, cordoned=st.booleans()), max_size=3)),
        queues=draw(st.dictionaries(texts, st.builds(Queue, paused=st.booleans(), claims=times), max_size=3)),
        finished={found.id: found for found in draw(st.lists(tombstones, max_size=2))},
        troubles=tuple(
            draw(st.lists(st.builds(Trouble, at=times, reason=st.sampled_from(Reason), what=texts), max_size=2))
        ),
    )


@settings(max_examples=30)
@given(document=documents())
def test_a_document_comes_back_as_itself(document: Document) -> None:
    data = codec.encode(document)
    found = codec.decode(data, WHERE)
    assert found.document == document
    assert (found.edited, found.legacy) == (False, False)
    assert codec.encode(found.document) == data


@settings(max_examples=30)
@given(document=documents())
def test_edited_and_sealed_bytes_decode_to_the_same_document(document: Document) -> None:
    edited = codec.encode(document).replace(b'"digest":"', b' "digest":"')
    found = codec.decode(edited, WHERE)
    assert found.edited
    assert found.document == document


@settings(max_examples=30)
@given(document=documents(), data=st.data())
def test_any_changed_byte_is_edited_or_refused_never_taken_for_ours(document: Document, data: st.DataObject) -> None:
    sealed = bytearray(codec.encode(document))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != sealed[at]))
    with suppress(DocumentFault):
        assert codec.decode(bytes(sealed), WHERE).edited


def test_a_record_that_was_changed_under_the_old_digest_is_edited() -> None:
    sealed = codec.encode(new_document("builds", "l"))
    assert not codec.decode(sealed, WHERE).edited
    assert codec.decode(sealed.replace(b'"fleet":"builds"', b'"fleet":"guilds"'), WHERE).edited


@settings(max_examples=30)
@given(document=documents(), data=st.data())
def test_any_truncation_is_refused(document: Document, data: st.DataObject) -> None:
    sealed = codec.encode(document)
    cut = data.draw(st.integers(0, len(sealed) - 2))
    with pytest.raises(DocumentCorrupt):
        codec.decode(sealed[:cut], WHERE)


@given(junk=st.binary(max_size=300))
def test_junk_is_refused_with_a_typed_error(junk: bytes) -> None:
    with pytest.raises(DocumentFault):
        codec.decode(junk, WHERE)


def sample() -> Document:
    edit = kit.submitting(new_document("f", "l"), "r-1", "r-2")
    return apply_edit(new_document("f", "l"), edit)


def test_a_file_is_json_with_one_record_per_line_and_a_digest_over_what_precedes_it() -> None:
    data = codec.encode(sample())
    content = json.loads(data)
    assert list(content)[:4] == ["schema", "fleet", "lineage", "epoch"]
    assert list(content)[-1] == "digest"
    assert hashlib.sha256(data[: data.rindex(b',\n"digest"')]).hexdigest() == content["digest"]
    lines = data.splitlines()
    for name in ("r-1", "r-2"):
        assert len([line for line in lines if line.startswith(f'"{name}":'.encode())]) == 1


def test_slots_are_in_order_of_their_numbers_whatever_the_order_they_came_in() -> None:
    document = replace(sample(), slots={20: Slot(), 3: Slot(), 100: Slot()})
    assert list(json.loads(codec.encode(document))["slots"]) == ["3", "20", "100"]


def test_a_key_with_odd_characters_is_the_same_key_when_read_again() -> None:
    document = replace(sample(), queues={'a"\\\n\x7f': Queue(paused=True)})
    found = codec.decode(codec.encode(document), WHERE)
    assert (found.edited, found.document.queues) == (False, document.queues)


def test_white_space_inside_raw_members_costs_no_records() -> None:
    run = Run("r-1", "q", 1, 1, (), payload=Raw(b'{\r\n "a" : [1,\n2]}'))
    document = replace(sample(), runs={"r-1": run, "r-2": replace(run, id="r-2", payload=UNSET)})
    found = codec.decode(codec.encode(document), WHERE)
    assert not found.edited
    assert set(found.document.runs) == {"r-1", "r-2"}
    payload = found.document.runs["r-1"].payload
    assert isinstance(payload, Raw)
    assert msgspec.json.decode(bytes(payload)) == {"a": [1, 2]}


def resealed(change: Callable[[bytes], bytes]) -> bytes:
    """Sealed bytes whose digest is right and whose content is not: as a program with a bug would write them."""
    data = codec.encode(sample())
    body = change(data[: data.rindex(b',\n"digest"')])
    return body + b',\n"digest":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda body: body.replace(b'"schema":2', b'"schema":7'), DocumentForeign),
        (lambda body: body.replace(b'"schema":2', b'"schema":"2"'), DocumentCorrupt),
        (lambda body: body.replace(b'"id":"r-1"', b'"id":"r-1","colour":1'), DocumentCorrupt),
        (lambda body: body.replace(b'"superseded-by-pending-actions"', b'"x"'), DocumentCorrupt),
        (lambda body: body.replace(b'"slots":{}', b'"slots":{"10001":{}}'), DocumentCorrupt),
        (lambda body: body.replace(b'"slots":{}', b'"slots":' + b"[" * 100_000), DocumentCorrupt),
    ],
)
def test_a_right_digest_excuses_nothing(change: Callable[[bytes], bytes], error: type[DocumentFault]) -> None:
    with pytest.raises(error):
        codec.decode(resealed(change), WHERE)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"fleet":"f",', b"", "Object missing required field `fleet`"),
        (b'"id":"r-1",', b"", "Object missing required field `id` at $.runs.r-1 (line"),
        (
            b'"id":"r-1",',
            b'"id":"r-1","state":"sleeping",',
            "value 'sleeping' (allowed: queued, running, succeeded, failed, cancelled) at $.runs.r-1.state (line",
        ),
        (
            b'"argv":["true"]',
            b'"argv":["true"],"state":"x"',
            "(allowed: pending, running, succeeded, failed, skipped, cancelled) at $.runs.r-1.steps[0].state",
        ),
        (b'"troubles":[]', b'"troubles":[{"at":1,"reason":"odd","what":""}]', "unrecorded) at $.troubles[0].reason"),
    ],
)
def test_what_is_wrong_in_a_record_is_said_whole_with_the_values_that_are_allowed(
    old: bytes, new: bytes, says: str
) -> None:
    assert old in codec.encode(sample())
    with pytest.raises(DocumentCorrupt) as refusal:
        codec.decode(resealed(lambda body: body.replace(old, new, 1)), WHERE)
    assert says in refusal.value.what


def test_a_depth_that_only_we_could_write_never_ends_in_a_recursion_error() -> None:
    data = codec.encode(sample()).replace(b'"draining":false', b'"draining":' + b"[" * 200_000 + b"]" * 200_000)
    with pytest.raises(DocumentCorrupt, match="nested deeper than 64"):
        codec.decode(data, WHERE)


def kinds_of(found: inspect.Type) -> Iterator[inspect.Type]:
    """The type and every type below it."""
    yield found
    below: list[inspect.Type] = []
    match found:
        case inspect.StructType(fields=fields):
            below = [field.type for field in fields]
        case inspect.UnionType(types=types):
            below = list(types)
        case inspect.VarTupleType(item_type=item):
            below = [item]
        case inspect.DictType(key_type=key, value_type=value):
            below = [key, value]
    for each in below:
        yield from kinds_of(each)


@pytest.mark.parametrize("kind", [*MAPS.values(), Event, Counters, Trouble])
def test_json_as_it_came_lies_only_where_it_is_looked_for(kind: type[Struct]) -> None:
    """What is written without the strict reader's word is of types that cannot hold what only that reader refuses."""
    safe = (inspect.StructType, inspect.UnionType, inspect.VarTupleType, inspect.DictType, inspect.EnumType)
    plain = (inspect.IntType, inspect.StrType, inspect.BoolType, inspect.NoneType)
    whole = inspect.type_info(kind)
    assert isinstance(whole, inspect.StructType)
    for field in whole.fields:
        found = list(kinds_of(field.type))
        if any(isinstance(each, inspect.RawType) for each in found):
            assert field.name in codec._RAW_FIELDS[kind]
        else:
            assert all(isinstance(each, (*safe, *plain)) for each in found), field


def test_one_changed_record_of_many_leaves_the_order_of_the_file() -> None:
    document = replace(sample(), slots={20: Slot(), 3: Slot(), 100: Slot()})
    read = codec.decode(codec.encode(document), WHERE).document
    changed = replace(read, slots=Records.of(read.slots).after({3: Slot(changed=7)}))
    plain = replace(document, slots={20: Slot(), 3: Slot(changed=7), 100: Slot()})
    assert codec.encode(changed) == codec.encode(plain)


# --- Large documents, whose records are decoded when they are touched ------------------------------------------------


def large(change: Callable[[bytes], bytes] = lambda body: body) -> bytes:
    """A sealed document of more than 256 KiB: 2500 runs, and a slot."""
    names = [f"r-{number}" for number in range(1, 2501)]
    document = apply_edit(new_document("f", "l"), kit.submitting(new_document("f", "l"), *names))
    data = codec.encode(replace(document, events=document.events[:1], slots={3: Slot(changed=1)}))
    assert len(data) > 1 << 18
    body = change(data[: data.rindex(b',\n"digest"')])
    return body + b',\n"digest":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def test_a_large_document_decodes_no_record_that_nobody_touches(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[object] = []

    class Noting:
        def decode(self, raw: Raw) -> None:
            decoded.append(raw)

    decoders: dict[type[Struct], object] = {**codec._RECORDS, Run: Noting()}
    monkeypatch.setattr(codec, "_RECORDS", decoders)
    found = codec.decode(large(), WHERE).document
    assert list(found.runs)[-1] == "r-2500"
    assert (len(found.runs), decoded) == (2500, [])


def test_a_large_document_is_what_it_is_when_it_is_decoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    data = large()
    found = codec.decode(data, WHERE)
    monkeypatch.setattr(codec, "WHOLE", len(data))
    assert found == codec.decode(data, WHERE)


def test_what_nobody_touched_is_written_as_it_came_and_what_was_touched_too() -> None:
    data = large()
    found = codec.decode(data, WHERE).document
    assert codec.encode(found) == data
    assert found.runs["r-7"].id == "r-7"
    assert codec.encode(found) == data


def test_records_that_nobody_changed_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = codec.decode(large(), WHERE).document
    run = replace(found.runs["r-7"], last_error="changed")
    after = replace(found, runs=Records.of(found.runs).after({"r-7": run}))
    encoded: list[object] = []
    line_of = codec.line_of

    def noting(record: object) -> bytes:
        encoded.append(record)
        return line_of(record)

    monkeypatch.setattr(codec, "line_of", noting)
    data = codec.encode(after)
    assert encoded == [*after.events, run]
    assert codec.decode(data, WHERE).document == after


def test_a_wrong_record_of_a_large_document_is_told_when_it_is_touched() -> None:
    found = codec.decode(large(lambda body: body.replace(b'"id":"r-7"', b'"id":"r-7","colour":1')), WHERE)
    assert not found.edited
    assert found.document.runs["r-8"].id == "r-8"
    with pytest.raises(DocumentCorrupt, match="colour") as refusal:
        found.document.runs["r-7"]
    assert refusal.value.where == WHERE


@pytest.mark.parametrize("change", [(b'"slots":{\n"3"', b'"slots":{\n"10001"'), (b'"draining":false', b'"draining":0')])
def test_what_is_not_in_a_record_is_judged_at_once_in_a_large_document(change: tuple[bytes, bytes]) -> None:
    with pytest.raises(DocumentCorrupt):
        codec.decode(large(lambda body: body.replace(*change)), WHERE)


def test_a_large_document_that_was_edited_is_judged_whole() -> None:
    with pytest.raises(DocumentCorrupt, match=r"colour.*\$\.runs\.r-7"):
        codec.decode(large().replace(b'"id":"r-7"', b'"id":"r-7","colour":1'), WHERE)
