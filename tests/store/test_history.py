"""History misses nothing, repeats nothing and never runs ahead, whatever a crash tore."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.model.errors import DocumentCorrupt, HistoryAhead, HistoryBehind
from controller.store.file import FileStore
from tests.store import kit
from tests.store.test_file import break_disk


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    kit.submit(kit.fleet(tmp_path / "s"), "r-1", "r-2", "r-3")
    return tmp_path / "s"


@pytest.fixture
def store(directory: Path) -> FileStore:
    return kit.opened(directory)


EXPECTED = [(1, 1), (2, 1), (2, 2), (2, 3), (3, 1)]


def told(store: FileStore) -> list[tuple[int, int]]:
    return [(event.revision, event.n) for event in store.history()]


def test_any_cut_of_the_last_commits_lines_is_mended(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("cut") / "s"
    kit.submit(kit.fleet(directory), "r-1", "r-2", "r-3")
    whole = (directory / "history.jsonl").read_bytes()
    document = (directory / "controller.json").read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole) + 1):
        (directory / "history.jsonl").write_bytes(whole[:cut])
        (directory / "controller.json").write_bytes(document)
        assert told(kit.opened(directory)) == EXPECTED[:-1]
        with kit.opened(directory).hold(1) as hold:
            hold.load()
        assert (directory / "history.jsonl").read_bytes() == whole


@settings(max_examples=30)
@given(junk=st.binary(min_size=1, max_size=80).filter(lambda junk: b"\n" not in junk))
def test_a_torn_tail_of_anything_is_taken_off(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    directory = tmp_path_factory.mktemp("junk") / "s"
    store = kit.fleet(directory)
    with (directory / "history.jsonl").open("ab") as file:
        file.write(junk)
    kit.submit(store, "r-1")
    assert told(kit.opened(directory)) == [(1, 1), (2, 1)]
    assert junk not in (directory / "history.jsonl").read_bytes() or junk.isascii()


def test_a_torn_line_of_a_later_revision_is_history_ahead(store: FileStore, directory: Path) -> None:
    with (directory / "history.jsonl").open("ab") as file:
        file.write(b'{"revision":3,"n":1,"at"')
    before = kit.snapshot_of(directory)
    with store.hold(1) as hold, pytest.raises(HistoryAhead, match="revision 3"):
        hold.load()
    assert kit.snapshot_of(directory) == before


def test_a_failed_sync_takes_the_lines_off_and_writes_them_anew(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed fsync the pages may count as clean: syncing again would prove nothing."""
    before = (directory / "history.jsonl").read_bytes()
    real = os.fsync

    def fsync(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("history.jsonl"):
            raise OSError(errno.EIO, "broken")
        real(fd)

    with store.hold(1) as hold:
        loaded = hold.load()
        monkeypatch.setattr(os, "fsync", fsync)
        hold.commit(loaded, kit.saying(loaded.document))
        assert (directory / "history.jsonl").read_bytes() == before
        with pytest.raises(HistoryBehind, match="EIO"):
            hold.load()
        monkeypatch.undo()
        hold.load()
    assert told(store) == EXPECTED


def test_another_process_catches_up_or_is_told_that_it_cannot(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        break_disk("history", monkeypatch, errno.ENOSPC)
        hold.commit(loaded, kit.saying(loaded.document))
    with kit.opened(directory).hold(1) as hold, pytest.raises(HistoryBehind, match="ENOSPC"):
        hold.load()
    assert kit.opened(directory).read().document.revision == 3
    monkeypatch.undo()
    with kit.opened(directory).hold(1) as hold:
        hold.load()
    assert told(store) == EXPECTED


def test_a_deleted_history_begins_again_and_reads_say_so(store: FileStore, directory: Path) -> None:
    (directory / "history.jsonl").unlink()
    assert store.read().history_revision is None
    assert told(store) == EXPECTED[1:-1]
    with store.hold(1) as hold:
        loaded = hold.load()
        hold.commit(loaded, kit.saying(loaded.document))
    assert told(store) == EXPECTED[1:]


def test_a_line_that_is_no_event_is_named(store: FileStore, directory: Path) -> None:
    path = directory / "history.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"garbage\n" + b"".join(lines[1:]))
    with pytest.raises(DocumentCorrupt, match="line 2"):
        store.history()
    assert store.read().document.revision == 2


def test_a_long_last_commit_is_found_whole(store: FileStore, directory: Path) -> None:
    names = [f"x-{number}" for number in range(2_000)]
    kit.submit(store, *names)
    path = directory / "history.jsonl"
    assert path.stat().st_size > 1 << 17
    path.write_bytes(path.read_bytes()[:-100_000])
    kit.submit(kit.opened(directory), "r-9")
    assert [event.n for event in store.history() if event.revision == 3] == list(range(1, 2_001))


def test_a_reader_that_meets_a_commit_halfway_never_sees_history_ahead(store: FileStore, directory: Path) -> None:
    with store.hold(1) as hold:
        for number in range(20):
            snapshot = kit.opened(directory).read()
            assert (snapshot.history_revision or 0) <= snapshot.document.revision
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
