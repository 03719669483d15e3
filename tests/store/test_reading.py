"""Two processes on one directory: whoever has read it once reads only what is new, and never a half of anything."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from controller.model.errors import DocumentCorrupt, DocumentFault, HistoryAhead
from controller.model.records import Event
from controller.store import codec
from controller.store.accept import accept
from controller.store.file import FileStore
from controller.store.history import History
from tests.store import kit
from tests.store.test_file import make_old


class Killed(BaseException):
    pass


@pytest.fixture
def reader(directory: Path) -> FileStore:
    """Another process, which has read the document already."""
    store = kit.opened(directory)
    assert store.read().document.revision == 2
    return store


@pytest.fixture
def writer(directory: Path) -> FileStore:
    return kit.opened(directory)


def decoding_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*_: object) -> NoReturn:
        pytest.fail("the document was decoded again")

    monkeypatch.setattr(codec, "decode", decode)


def die_at_rename(monkeypatch: pytest.MonkeyPatch, store: FileStore) -> None:
    """Let *store* fold, and die with the next journal made and the document not replaced."""

    def die(*_: object) -> NoReturn:
        monkeypatch.setattr(os, "unlink", die)
        raise Killed

    with monkeypatch.context():
        monkeypatch.setattr(os, "rename", die)
        with pytest.raises(Killed):
            store.fold()
        monkeypatch.undo()


# following


def test_what_others_commit_is_read_from_the_journals_end_alone(
    reader: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.submit(kit.opened(directory), "r-2")
    expected = kit.opened(directory).read()
    decoding_nothing(monkeypatch)
    offsets: list[int] = []
    pread = os.pread

    def noting(fd: int, size: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".jsonl"):
            offsets.append(offset)
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", noting)
    assert reader.latest is not None
    end = reader.latest.end
    assert reader.read() == expected
    assert offsets
    assert min(offsets) >= end - 100, "no more than the seal of the last known line"


def test_a_holder_follows_without_decoding_too(
    reader: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.submit(kit.opened(directory), "r-2")
    decoding_nothing(monkeypatch)
    committed = kit.submit(reader, "r-3")
    monkeypatch.undo()
    assert kit.opened(directory).read().document == committed
    assert list(committed.runs) == ["r-1", "r-2", "r-3"]


@pytest.mark.parametrize("further", [False, True])
@pytest.mark.parametrize("holds", [False, True])
def test_a_fold_by_another_is_followed_and_no_record_that_is_known_is_decoded_again(
    reader: FileStore, directory: Path, further: bool, holds: bool
) -> None:
    known = reader.read().document.runs["r-1"]
    writer = kit.opened(directory)
    kit.submit(writer, "r-2")
    assert writer.fold()
    if further:
        kit.submit(writer, "r-3")
    assert reader.read() == kit.opened(directory).read()
    assert reader.read().document.runs["r-1"] is known
    if holds:
        assert kit.submit(reader, "r-4").runs["r-1"] is known
        assert writer.read() == reader.read()
    found = kit.opened(directory)
    assert list(found.read().document.runs) == list(reader.read().document.runs)
    assert found.history_fault() is None


def test_two_folds_by_another_are_followed(reader: FileStore, directory: Path) -> None:
    writer = kit.opened(directory)
    for name in ("r-2", "r-3"):
        kit.submit(writer, name)
        assert writer.fold()
    assert reader.read() == kit.opened(directory).read()
    assert kit.submit(reader, "r-4").revision == 5


def test_an_accepted_edit_is_not_taken_for_a_fold(reader: FileStore, directory: Path) -> None:
    kit.edit_file(directory, lambda content: content.update(draining=True))
    accept(kit.opened(directory), restore_pending=False, timeout=1)
    assert reader.read() == kit.opened(directory).read()
    assert reader.read().document.draining
    assert kit.submit(reader, "r-2").draining


def test_an_edit_that_was_put_back_leaves_nothing_in_who_had_read_it(
    reader: FileStore, writer: FileStore, directory: Path
) -> None:
    """A fold does not make the edited document, which somebody knew, a sound one."""
    assert writer.fold()
    sound = writer.path.read_bytes()
    kit.edit_file(directory, lambda content: content.update(draining=True))
    assert reader.read().edited
    writer.path.write_bytes(sound)
    other = kit.opened(directory)
    kit.submit(other, "r-2")
    assert other.fold()
    assert reader.read() == kit.opened(directory).read()
    assert not kit.submit(reader, "r-3").draining


def test_a_document_that_was_only_touched_is_the_same(reader: FileStore, directory: Path) -> None:
    before = reader.read()
    os.utime(reader.path)
    assert reader.read() == before
    assert kit.submit(reader, "r-2").revision == 3


def test_other_content_under_an_old_name_is_seen_at_the_next_look(
    reader: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_old(directory / "controller.json", monkeypatch)
    assert reader.read().document.fleet == "f"
    kit.edit_file(directory, lambda content: content.update(fleet="other"))
    assert (reader.read().document.fleet, reader.read().edited) == ("other", True)


# moments


def test_a_line_that_is_not_whole_is_never_seen(
    reader: FileStore, writer: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each byte of a commit's line a reader, old or new, finds the revision before it."""
    kit.submit(writer, "r-2")
    pwrite, seen = os.pwrite, []

    def slowly(fd: int, data: bytes, offset: int) -> int:
        if not os.readlink(f"/proc/self/fd/{fd}").endswith(".jsonl"):
            return pwrite(fd, data, offset)
        for at in range(0, len(data), 40):
            for store in (reader, kit.opened(directory)):
                snapshot = store.read()
                seen.append((snapshot.document.revision, snapshot.history_revision, snapshot.fork))
            pwrite(fd, data[at : at + 40], offset + at)
        return len(data)

    monkeypatch.setattr(os, "pwrite", slowly)
    kit.submit(writer, "r-3")
    assert len(seen) > 10
    assert set(seen) == {(3, 3, None)}
    assert (reader.read().document.revision, reader.read().torn) == (4, 0)


@pytest.mark.parametrize("moment", ["checkpoint", "journal", "directory"])
def test_a_fold_between_two_looks_of_one_read_changes_nothing_but_what_is_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A first reading meets a commit and a fold of another process behind its look at the document or the journal."""
    reader, writer = kit.opened(directory), kit.opened(directory)
    done: list[str] = []

    def meanwhile() -> None:
        if not done:
            done.append(moment)
            kit.submit(writer, "r-2")
            assert writer.fold()
            kit.submit(writer, "r-3")

    def before(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            meanwhile()
            return real(*args, **options)

        return call

    where = {"checkpoint": (reader._reader, "_with_journal"), "journal": (reader._reader, "_ahead")}
    target, name = where.get(moment, (reader._reader, "_stands"))
    monkeypatch.setattr(target, name, before(getattr(target, name)))
    snapshot = reader.read()
    assert done == [moment]
    assert snapshot.history_revision == snapshot.document.revision >= 2
    assert not snapshot.edited
    assert reader.read() == kit.opened(directory).read()


def test_a_fold_that_has_only_begun_is_no_newer_document(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next journal is there before the document names it, and opens at a revision that the reader had not seen."""
    reader, writer = kit.opened(directory), kit.opened(directory)
    later = History.later
    done: list[int] = []

    def meanwhile(past: History, revision: int, named: str) -> int | None:
        if past is reader.past and not done:
            done.append(revision)
            kit.submit(writer, "r-2")
            die_at_rename(monkeypatch, writer)
        return later(past, revision, named)

    monkeypatch.setattr(History, "later", meanwhile)
    snapshot = reader.read()
    monkeypatch.undo()
    assert done == [2]
    assert kit.journals(directory) == ["journal-1-0.jsonl", "journal-3-0.jsonl"]
    assert snapshot.history_revision == snapshot.document.revision
    assert kit.submit(reader, "r-3").revision == 4


# what is missing, and what came back


def test_a_journal_that_is_gone_is_named(reader: FileStore, directory: Path) -> None:
    name = kit.journal_of(directory).name
    (directory / name).unlink()
    before = kit.snapshot_of(directory)
    for store in (reader, kit.opened(directory)):
        for attempt in (store.read, lambda store=store: kit.submit(store, "r-2")):
            with pytest.raises(DocumentCorrupt, match=f"names {name}, which is not there") as refusal:
                attempt()
            assert refusal.value.where == str(directory / name)
    assert kit.snapshot_of(directory) == before


def test_a_journal_that_is_a_link_or_no_file_is_refused(directory: Path) -> None:
    path = kit.journal_of(directory)
    path.rename(directory / "elsewhere")
    path.symlink_to(directory / "elsewhere")
    with pytest.raises(DocumentFault, match=path.name):
        kit.opened(directory).read()
    path.unlink()
    path.mkdir()
    with pytest.raises(DocumentFault):
        kit.opened(directory).read()


@pytest.mark.parametrize("name", ["../journal-1-0.jsonl", "controller.json", "", "journal-1-0.jsonl\\n"])
def test_a_name_that_is_no_journals_is_not_opened(directory: Path, name: str) -> None:
    data = (directory / "controller.json").read_bytes().replace(b"journal-1-0.jsonl", name.encode())
    (directory / "controller.json").write_bytes(data)
    with pytest.raises(DocumentCorrupt, match="no journal's name"):
        kit.opened(directory).read()


def test_a_journal_that_the_document_no_longer_names_is_never_written_to(
    reader: FileStore, writer: FileStore, directory: Path
) -> None:
    kit.submit(writer, "r-2")
    old = kit.journal_of(directory)
    assert writer.fold()
    closed = old.read_bytes().rstrip(b"\0")
    for store in (reader, writer, kit.opened(directory)):
        kit.submit(store, f"r-{store.read().document.revision + 1}")
    assert old.read_bytes().rstrip(b"\0") == closed
    assert kit.opened(directory).read().document.revision == 6


def test_an_older_document_under_one_who_knows_the_newer_is_refused_and_the_newer_goes_on(
    writer: FileStore, directory: Path
) -> None:
    assert writer.fold()
    old = writer.path.read_bytes()
    for name in ("r-2", "r-3"):
        kit.submit(writer, name)
        assert writer.fold()
    new = writer.path.read_bytes()
    writer.path.write_bytes(old)
    with writer.hold(1) as hold, pytest.raises(HistoryAhead):
        hold.load()
    with writer.tenure(1) as hold:
        assert hold.sweep() == (), "what it leaves behind belongs to the newer one"
    writer.path.write_bytes(new)
    assert kit.submit(writer, "r-4").revision == 5
    assert kit.opened(directory).history_fault() is None


def test_a_document_from_before_the_journal_stays_behind_its_history_at_every_look(tmp_path: Path) -> None:
    """One who looks twice knows of what is ahead both times, and a holder is refused both times."""
    store = kit.legacy(tmp_path / "s", kit.schema1())
    event = codec.line_of(Event(9, 1, kit.NOW, "test", "fleet", "noted"))
    (tmp_path / "s" / "history.jsonl").write_bytes(event + b"\n")
    before = kit.snapshot_of(tmp_path)
    for _ in range(2):
        snapshot = store.read()
        assert (snapshot.legacy, snapshot.document.revision, snapshot.history_revision) == (True, 7, 9)
        with store.hold(1) as hold, pytest.raises(HistoryAhead, match="revision 9"):
            hold.load()
    assert kit.snapshot_of(tmp_path) == before


def test_while_another_commits_and_folds_each_look_is_of_one_whole_revision_and_none_goes_back(directory: Path) -> None:
    store, reader, over = kit.opened(directory), kit.opened(directory), threading.Event()
    seen: list[tuple[int, int | None, str | None]] = []
    failed: list[BaseException] = []

    def look() -> None:
        try:
            while not over.is_set():
                snapshot = reader.read()
                seen.append((snapshot.document.revision, snapshot.history_revision, snapshot.fork))
        except BaseException as error:  # noqa: BLE001 - looked at below
            failed.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for number in range(2, 42):
            kit.submit(store, f"r-{number}")
            if number % 5 == 0:
                assert store.fold()
    finally:
        over.set()
        thread.join()
    assert failed == []
    assert seen == sorted(seen, key=lambda each: each[0])
    assert {(revision == known, fork) for revision, known, fork in seen} == {(True, None)}
    assert reader.read() == kit.opened(directory).read()


def test_a_large_document_is_followed_and_its_wrong_record_told_when_it_is_touched(directory: Path) -> None:
    kit.submit(kit.opened(directory), *(f"x-{number}" for number in range(3_000)))
    assert kit.opened(directory).fold()
    path = directory / "controller.json"
    data = path.read_bytes().replace(b'"id":"x-7"', b'"id":"x-7","colour":1')
    path.write_bytes(data)
    body = data[: data.rindex(b',\n"digest"')]
    path.write_bytes(body + b',\n"digest":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n')
    store = kit.opened(directory)
    kit.submit(store, "r-2")
    document = store.read().document
    assert document.runs["x-8"].id == "x-8"
    with pytest.raises(DocumentCorrupt, match="colour") as refusal:
        document.runs["x-7"]
    assert refusal.value.where == str(path)
