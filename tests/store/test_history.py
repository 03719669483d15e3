"""History as a store tells it: it misses nothing, repeats nothing and never runs ahead, whatever a crash tore."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.model.errors import DocumentCorrupt
from controller.store.file import FileStore
from tests.store import kit


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    kit.submit(kit.fleet(tmp_path / "s"), "r-1", "r-2", "r-3")
    return tmp_path / "s"


@pytest.fixture
def store(directory: Path) -> FileStore:
    return kit.opened(directory)


EXPECTED = [(1, 1), (2, 1), (2, 2), (2, 3)]


def told(store: FileStore) -> list[tuple[int, int]]:
    return [(event.revision, event.n) for event in store.history()]


def test_any_cut_of_the_last_commits_line_leaves_document_and_history_without_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("cut") / "s"
    kit.submit(kit.fleet(directory), "r-1", "r-2", "r-3")
    journal = kit.journal_of(directory)
    whole = journal.read_bytes()
    for cut in range(whole.index(b"\n") + 1, len(whole)):
        journal.write_bytes(whole[:cut])
        store = kit.opened(directory)
        assert (store.read().document.revision, told(store)) == (1, EXPECTED[:1]), cut
    journal.write_bytes(whole)
    assert told(kit.opened(directory)) == EXPECTED


@settings(max_examples=30)
@given(junk=st.binary(min_size=1, max_size=80).filter(lambda junk: b"\n" not in junk and not junk.endswith(b"\0")))
def test_a_torn_tail_of_anything_is_set_aside(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    directory = tmp_path_factory.mktemp("junk") / "s"
    kit.fleet(directory)
    with kit.journal_of(directory).open("ab") as file:
        file.write(junk)
    kit.submit(kit.opened(directory), "r-1")
    assert told(kit.opened(directory)) == [(1, 1), (2, 1), (2, 2)]
    assert [path.read_bytes() for path in directory.glob("torn-*")] == [junk]
    assert kit.opened(directory).history_fault() is None


def test_what_was_committed_before_a_fold_is_told_after_it(store: FileStore, directory: Path) -> None:
    for number in range(4, 7):
        kit.submit(store, f"r-{number}")
        assert store.fold()
    assert told(kit.opened(directory)) == [*EXPECTED, (3, 1), (4, 1), (5, 1)]
    assert [event.revision for event in store.history("run:r-5")] == [4]


def test_a_damaged_line_of_a_closed_journal_takes_history_and_nothing_else(store: FileStore, directory: Path) -> None:
    closed = kit.journal_of(directory)
    assert store.fold()
    closed.write_bytes(closed.read_bytes().replace(b'"r-2"', b'"r-9"'))
    assert kit.opened(directory).read().document.revision == 2
    kit.submit(kit.opened(directory), "r-4")
    fault = kit.opened(directory).history_fault()
    assert fault is not None
    assert "is not as it was written" in fault


def test_a_line_that_is_no_commit_is_named(store: FileStore, directory: Path) -> None:
    path = kit.journal_of(directory)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"garbage\n" + b"".join(lines[1:]))
    for ask in (store.read, store.history):
        with pytest.raises(DocumentCorrupt, match=f"the line at offset {len(lines[0])} ") as refusal:
            ask()
        assert refusal.value.where == str(path)


def test_a_long_commit_that_was_torn_is_none_and_whole_it_is_found_whole(store: FileStore, directory: Path) -> None:
    kit.submit(store, *(f"x-{number}" for number in range(2_000)))
    path = kit.journal_of(directory)
    whole = path.read_bytes()
    assert len(whole) > 1 << 18
    assert [event.n for event in kit.opened(directory).history() if event.revision == 3] == list(range(1, 2_001))
    path.write_bytes(whole[:-100_000])
    kit.submit(kit.opened(directory), "r-9")
    assert told(kit.opened(directory)) == [*EXPECTED, (3, 1), (3, 2)]


def test_a_reader_that_meets_a_commit_halfway_never_sees_history_ahead(store: FileStore, directory: Path) -> None:
    with store.hold(1) as hold:
        for number in range(20):
            snapshot = kit.opened(directory).read()
            assert snapshot.history_revision == snapshot.document.revision
            kit.submit_in(hold, f"x-{number}")


def test_refusals_in_a_file_of_junk_still_work(store: FileStore, directory: Path) -> None:
    (directory / "refusals.jsonl").write_bytes(b'junk\n{"what":"kept"}\n[1]\n\xff\n')
    assert [refusal["what"] for refusal in store.refusals(9)] == ["kept"]
    store.note_refusal("a", "b", "new", "fleet")
    assert [refusal["what"] for refusal in store.refusals(9)] == ["kept", "new"]
    (directory / "refusals.jsonl").unlink()
    (directory / "refusals.jsonl").mkdir()
    store.note_refusal("a", "b", "x" * 9_000, "\ud800")
    assert store.refusals(9) == ()
