"""The journal's bytes: what is a line, what is torn, what is damage and what is somebody else's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.model.errors import DocumentCorrupt, DocumentForeign, JournalForked
from controller.model.records import Event, new_document
from controller.store import codec, journal
from controller.store.codec import Named
from controller.store.file import FileStore
from controller.store.journal import Opening
from tests.store import kit

WHERE = "/state/journal-1-0.jsonl"


def body(revision: int, *members: bytes, events: bytes | None = None) -> bytes:
    event = codec.line_of(Event(revision, 1, kit.NOW, "test", "fleet", "noted"))
    told = event if events is None else events
    return b",".join((b'{"revision":%d,"at":%d,"command":"test","events":[%b]' % (revision, kit.NOW, told), *members))


def opened() -> tuple[bytes, str]:
    document = new_document("f", kit.LINEAGE)
    return journal.opening(document, at=kit.NOW, command="init", events=(), after=Named("history.jsonl", "a" * 64))


def lines(count: int) -> list[bytes]:
    """An opening at revision 0 and commits 1 to *count*."""
    line, digest = opened()
    made = [line]
    for revision in range(1, count + 1):
        line, digest = journal.commit_line(body(revision), digest)
        made.append(line)
    return made


def append(directory: Path, *datas: bytes) -> int:
    """Write behind the last line of the journal in use. Returns where."""
    path = kit.journal_of(directory)
    whole = path.read_bytes().rstrip(b"\0")
    path.write_bytes(whole + b"".join(datas))
    return len(whole)


def last_digest(directory: Path) -> str:
    found = json.loads(kit.journal_of(directory).read_bytes().rstrip(b"\0").splitlines()[-1])["digest"]
    assert isinstance(found, str)
    return found


# scanning


def test_an_opening_says_where_history_before_it_ends_and_is_sealed() -> None:
    line, digest = opened()
    (placed,) = journal.scan(line, WHERE).lines
    assert isinstance(placed.line, Opening)
    assert (placed.line.previous_file, placed.line.previous, placed.line.digest) == ("history.jsonl", "a" * 64, digest)
    assert (placed.begin, placed.end) == (0, len(line))


def test_lines_are_read_back_in_order_with_their_places() -> None:
    made = lines(4)
    scanned = journal.scan(b"".join(made), WHERE)
    assert [each.line.revision for each in scanned.lines] == [0, 1, 2, 3, 4]
    assert [each.end - each.begin for each in scanned.lines] == [len(line) for line in made]
    assert (scanned.revision, scanned.end, scanned.torn, scanned.fork) == (4, sum(map(len, made)), b"", None)
    assert scanned.digest == scanned.lines[-1].line.digest


def test_a_journal_can_be_read_on_from_any_of_its_lines() -> None:
    made = lines(4)
    whole = journal.scan(b"".join(made), WHERE)
    at = whole.lines[2]
    on = journal.scan(b"".join(made[3:]), WHERE, offset=at.end, previous=at.line.digest, revision=at.line.revision)
    assert on.lines == whole.lines[3:]
    assert (on.end, on.digest, on.revision) == (whole.end, whole.digest, whole.revision)


@settings(max_examples=60)
@given(data=st.data())
def test_any_cut_leaves_the_whole_lines_before_it_and_the_rest_is_torn(data: st.DataObject) -> None:
    made = lines(3)
    whole = b"".join(made)
    cut = data.draw(st.integers(0, len(whole)))
    zeros = data.draw(st.sampled_from([0, 1, 4096]))
    scanned = journal.scan(whole[:cut] + b"\0" * zeros, WHERE)
    ends = [sum(map(len, made[: number + 1])) for number in range(4)]
    assert [each.end for each in scanned.lines] == [end for end in ends if end <= cut]
    assert whole[scanned.end : cut] == scanned.torn


def test_a_hole_in_the_last_line_makes_it_torn_not_damaged() -> None:
    made = lines(2)
    whole = b"".join(made)
    hole = whole[:-60] + b"\0" * 40 + whole[-20:]
    scanned = journal.scan(hole, WHERE)
    assert (scanned.revision, scanned.torn) == (1, hole[scanned.end :])


def test_a_whole_line_that_does_not_follow_is_a_fork_if_it_is_the_last() -> None:
    *made, _ = lines(3)
    for stray, why in (
        (journal.commit_line(body(3), "0" * 64)[0], "does not follow the line before it"),
        (
            journal.commit_line(body(5), journal.scan(b"".join(made), WHERE).digest)[0],
            "is of revision 5, after revision 2",
        ),
    ):
        scanned = journal.scan(b"".join(made) + stray, WHERE)
        assert (scanned.revision, scanned.fork, scanned.end) == (2, why, sum(map(len, made)))


def test_a_line_that_does_not_follow_with_others_behind_it_is_damage() -> None:
    made = lines(3)
    with pytest.raises(DocumentCorrupt, match=rf"offset {len(made[0])} does not follow.*others come behind") as refusal:
        journal.scan(made[0] + made[2] + made[3], WHERE)
    assert refusal.value.where == WHERE


@pytest.mark.parametrize("place", [0, 1, 2])
def test_any_changed_byte_of_a_whole_line_is_damage_wherever_it_stands(place: int) -> None:
    made = lines(2)
    offset = sum(map(len, made[:place]))
    for at in range(0, len(made[place]) - 1, 7):
        data = bytearray(b"".join(made))
        data[offset + at] ^= 0x20
        if data[offset + at] in b"\n\0":
            continue
        with pytest.raises(DocumentCorrupt, match=rf"the line at offset {offset} is not as it was written"):
            journal.scan(bytes(data), WHERE)


def resealed(content: bytes) -> bytes:
    return journal.sealed(content)[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda digest: body(1, b'"colour":"red"', b'"previous":"%b"' % digest),
        lambda digest: body(1, b'"counters":{"run":1,"colour":1}', b'"previous":"%b"' % digest),
        lambda digest: body(1, b'"runs":[]', b'"previous":"%b"' % digest),
        lambda digest: body(1),
    ],
)
def test_a_right_digest_excuses_nothing_in_a_line(change: Callable[[bytes], bytes]) -> None:
    line, digest = opened()
    with pytest.raises(DocumentCorrupt, match=rf"the line at offset {len(line)} is not one of ours"):
        journal.scan(line + resealed(change(digest.encode())), WHERE)


def test_a_commit_opens_no_journal_and_an_opening_stands_nowhere_else() -> None:
    made = lines(1)
    for data in (made[1], made[0] + made[0]):
        with pytest.raises(DocumentCorrupt, match="not one of ours"):
            journal.scan(data, WHERE)


@pytest.mark.parametrize("number", [2, 99])
def test_a_journal_of_a_later_format_is_foreign_and_both_are_named(number: int) -> None:
    line, _ = opened()
    content = line[: line.rindex(b',"digest"')].replace(b'{"journal":1', b'{"journal":%d,"colour":1' % number)
    with pytest.raises(DocumentForeign, match=f"format {number}; this program reads format 1"):
        journal.scan(resealed(content), WHERE)


@given(junk=st.binary(max_size=200))
def test_junk_is_torn_or_damage_and_never_anything_else(junk: bytes) -> None:
    line, _ = opened()
    try:
        scanned = journal.scan(line + junk, WHERE)
    except DocumentCorrupt:
        assert b"\n" in junk
    else:
        assert (len(scanned.lines), scanned.torn) == (1, junk.rstrip(b"\0"))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("journal-12-3.jsonl", (12, 3)),
        ("journal-12.jsonl", None),
        ("journal--1-0.jsonl", None),
        ("../journal-1-0.jsonl", None),
        ("journal-1-0.jsonl\n", None),
        ("history-1-2.jsonl", None),
    ],
)
def test_names_are_read_back_and_nothing_else_is_one(name: str, place: tuple[int, int] | None) -> None:
    assert journal.parse_name(name) == place
    if place is not None:
        assert journal.name_of(*place) == name


# what it means for who reads and who holds


def test_an_event_with_an_unknown_member_is_refused_with_its_place(store: FileStore, directory: Path) -> None:
    offset = append(
        directory, resealed(body(3, b'"previous":"%b"' % last_digest(directory).encode(), events=b'{"colour":1}'))
    )
    for attempt in (store.read, lambda: kit.submit(kit.opened(directory), "r-2")):
        with pytest.raises(DocumentCorrupt, match=rf"offset {offset} .*colour"):
            attempt()


@pytest.mark.parametrize("section", ["slots", "workers", "pending_actions"])
@pytest.mark.parametrize("slot", [0, 10_001])
def test_a_slot_out_of_bounds_is_refused_in_a_line_too(directory: Path, section: str, slot: int) -> None:
    member = b'"%b":{"%d":{}}' % (section.encode(), slot)
    append(directory, journal.commit_line(body(3, member), last_digest(directory))[0])
    with pytest.raises(DocumentCorrupt, match=rf"\$\.{section}\.{slot} is outside"):
        kit.opened(directory).read()


def test_a_record_with_an_unknown_member_is_refused_when_it_is_touched(directory: Path) -> None:
    line = journal.commit_line(body(3, b'"queues":{"q":{"colour":1},"p":{"paused":true}}'), last_digest(directory))[0]
    append(directory, line)
    document = kit.opened(directory).read().document
    assert document.queues["p"].paused
    with pytest.raises(DocumentCorrupt, match="colour"):
        document.queues["q"]


def test_a_fork_is_read_at_the_line_before_it_and_refused_to_a_holder(store: FileStore, directory: Path) -> None:
    stray = journal.commit_line(body(3), "0" * 64)[0]
    offset = append(directory, stray)
    before = kit.snapshot_of(directory)
    for reader in (store, kit.opened(directory)):
        snapshot = reader.read()
        assert (snapshot.document.revision, snapshot.fork) == (2, "does not follow the line before it")
        with reader.hold(1) as hold, pytest.raises(JournalForked, match="does not follow") as refusal:
            hold.load()
        assert refusal.value.where == f"{kit.journal_of(directory)}, offset {offset}"
        assert not reader.fold()
    assert kit.snapshot_of(directory) == before


def test_damage_in_the_middle_is_named_with_file_and_offset_and_left_alone(directory: Path) -> None:
    kit.submit(kit.opened(directory), "r-2")
    path = kit.journal_of(directory)
    opening, first, *rest = path.read_bytes().rstrip(b"\0").splitlines(keepends=True)
    path.write_bytes(opening + first.replace(b'"r-1"', b'"r-7"') + b"".join(rest))
    before = kit.snapshot_of(directory)
    store = kit.opened(directory)
    for attempt in (store.read, lambda: kit.submit(store, "r-3")):
        with pytest.raises(DocumentCorrupt, match=f"offset {len(opening)} is not as it was written") as refusal:
            attempt()
        assert refusal.value.where == str(path)
    assert kit.snapshot_of(directory) == before


@settings(max_examples=300)
@given(st.lists(st.sampled_from([b"\0", b"\0\0\0", b"a", b"\n"]), max_size=8).map(b"".join))
def test_space_taken_ahead_is_left_out_and_nothing_else(data: bytes) -> None:
    assert journal.unpadded(data) == data.rstrip(b"\0")
