"""Behind the last line of a journal: what a crash tore off, what a disk did not take, what another hand wrote. It is
kept or refused, and never written over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from controller.model.errors import DurabilityFailed, JournalForked, LockLost, RevisionMoved, StorageFailed
from controller.store import journal
from controller.store.file import FileStore
from tests.store import kit
from tests.store.test_file import break_disk
from tests.store.test_journal import append, body, last_digest

# torn tails


HALF: Final = b'{"revision":3,"at"'


@pytest.mark.parametrize(
    ("torn", "fresh"),
    [
        *((each, fresh) for each in (HALF, b"x", b"{" + b"y" * 9_000) for fresh in (False, True)),
        # A power cut may lose the first page of a line and keep the next one: nobody lives who read what was before.
        (b"\0\0" + HALF, True),
        (b"\0" * 5_000 + b'half of a line"}\n', True),
    ],
)
def test_a_torn_tail_is_kept_before_the_next_commit_which_says_so(directory: Path, torn: bytes, fresh: bool) -> None:
    store = kit.opened(directory)
    store.read()
    offset = append(directory, torn)
    name = f"torn-{kit.journal_of(directory).name.removesuffix('.jsonl')}-{offset}"
    store = kit.opened(directory) if fresh else store
    assert store.read().document.revision == 2
    assert [(each.kind, each.size) for each in store.leftovers()] == [("torn_tail", len(torn))]
    committed = kit.submit(store, "r-2")
    assert (directory / name).read_bytes() == torn
    assert [event.event for event in committed.events] == ["submitted", "torn_tail_kept"]
    assert (committed.events[1].n, name in (committed.events[1].detail or "")) == (2, True)
    found = kit.opened(directory)
    assert found.read().document == committed
    assert (found.read().torn, found.history_fault()) == (0, None)
    assert [(each.kind, Path(each.path).name) for each in found.leftovers()] == [("torn_kept", name)]


def test_a_keep_that_was_cut_short_loses_no_byte(directory: Path) -> None:
    """Whoever was killed while it kept a torn tail left some of it; the next one keeps all of it."""
    offset = append(directory, b"torn bytes")
    (directory / f"torn-{kit.journal_of(directory).name.removesuffix('.jsonl')}-{offset}").write_bytes(b"tor")
    kit.submit(kit.opened(directory), "r-2")
    assert b"torn bytes" in [path.read_bytes() for path in directory.glob("torn-*")]


def test_two_torn_tails_at_one_place_are_both_kept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(directory, b"first")
    with kit.opened(directory).hold(1) as hold:
        loaded = hold.load()
        break_disk("write", monkeypatch)
        with pytest.raises(StorageFailed):
            hold.commit(loaded, kit.submitting(loaded.document, "r-2"))
        monkeypatch.undo()
    append(directory, b"second")
    kit.submit(kit.opened(directory), "r-2")
    assert sorted(path.read_bytes() for path in directory.glob("torn-*")) == [b"first", b"second"]


def test_zeros_before_torn_bytes_hide_nothing_from_one_who_goes_on(store: FileStore, directory: Path) -> None:
    """Each commit of who read the journal before is found by the next one who reads it whole."""
    store.read()
    append(directory, b"\0\0garbage")
    for writer, name in ((store, "r-2"), (store, "r-3"), (kit.opened(directory), "r-4")):
        committed = kit.submit(writer, name)
        assert kit.opened(directory).read().document == committed
    assert list(kit.opened(directory).read().document.runs) == ["r-1", "r-2", "r-3", "r-4"]
    assert kit.opened(directory).history_fault() is None


def test_a_forked_line_is_kept_when_a_whole_document_takes_its_place(directory: Path) -> None:
    stray = journal.commit_line(body(3), "0" * 64)[0]
    offset = append(directory, stray)
    name = f"torn-{kit.journal_of(directory).name.removesuffix('.jsonl')}-{offset}"
    with kit.opened(directory).hold(1) as hold, pytest.raises(JournalForked):
        hold.load()
    store = kit.opened(directory)
    with store.tenure(1) as tenure:
        reading = tenure.reading()
        events = (replace(reading.document.events[0], revision=3, n=1, event="replaced"),)
        tenure.replace(reading, replace(reading.document, revision=3, events=events, draining=True))
    assert (directory / name).read_bytes() == stray
    assert kit.submit(kit.opened(directory), "r-2").draining
    found = kit.opened(directory)
    assert [(event.revision, event.event) for event in found.history()[2:]] == [
        (3, "replaced"),
        (3, "torn_tail_kept"),
        (4, "submitted"),
    ]
    assert found.history_fault() is None


@pytest.mark.parametrize("cut", ["new file", "written", "cut off"])
def test_killed_while_a_torn_tail_is_kept_the_next_one_keeps_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    append(directory, b"torn bytes")

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        monkeypatch.setattr(os, "unlink", die)
        raise Killed

    monkeypatch.setattr(os, {"new file": "write", "written": "ftruncate", "cut off": "pwrite"}[cut], dying(cut, die))
    with pytest.raises(Killed):
        kit.submit(kit.opened(directory), "r-2")
    monkeypatch.undo()
    committed = kit.submit(kit.opened(directory), "r-3")
    assert "torn bytes" in [path.read_text() for path in directory.glob("torn-*")]
    assert kit.opened(directory).read().document == committed
    assert kit.opened(directory).history_fault() is None


def dying(cut: str, die: Callable[..., None]) -> Callable[..., object]:
    """The call that dies: of *pwrite* only the one of the journal, since a lock's note is written so too."""
    if cut != "cut off":
        return die
    real = os.pwrite

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if "/journal-" in os.readlink(f"/proc/self/fd/{fd}"):
            die()
        return real(fd, data, offset)

    return pwrite


# a journal that moved under a hold


@pytest.mark.parametrize("how", ["removed", "replaced", "moved", "cut", "rewritten"])
def test_a_journal_that_is_another_now_takes_no_commit(store: FileStore, directory: Path, how: str) -> None:
    path = kit.journal_of(directory)
    whole = path.read_bytes()
    with store.hold(1) as hold:
        loaded = hold.load()
        match how:
            case "removed":
                path.unlink()
            case "replaced":
                (directory / "other").write_bytes(whole)
                (directory / "other").rename(path)
            case "moved":
                path.rename(directory / "elsewhere")
            case "cut":
                os.truncate(path, whole.index(b"\n") + 1)
            case _:
                opening = whole[: whole.index(b"\n") + 1]
                line = journal.commit_line(body(2, b'"draining":true'), json.loads(opening)["digest"])[0]
                path.write_bytes((opening + line).ljust(len(whole), b"\0"))
        before = kit.snapshot_of(directory)
        with pytest.raises(RevisionMoved):
            hold.commit(loaded, kit.submitting(loaded.document, "r-2"))
    assert kit.snapshot_of(directory) == before


def test_a_directory_moved_away_under_a_hold_takes_no_commit(store: FileStore, directory: Path) -> None:
    moved = directory.with_name("moved")
    before = kit.snapshot_of(directory)
    with suppress(LockLost), store.hold(1) as hold:
        loaded = hold.load()
        directory.rename(moved)
        with pytest.raises(LockLost):
            hold.commit(loaded, kit.submitting(loaded.document, "r-2"))
    assert kit.snapshot_of(moved) == before
    assert not directory.exists()


def test_a_line_that_somebody_wrote_meanwhile_is_not_written_over(store: FileStore, directory: Path) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        append(directory, journal.commit_line(body(3), last_digest(directory))[0])
        before = kit.journal_of(directory).read_bytes()
        with pytest.raises(RevisionMoved) as refusal:
            hold.commit(loaded, kit.submitting(loaded.document, "r-2"))
    assert (refusal.value.loaded, refusal.value.found) == (2, 3)
    assert kit.journal_of(directory).read_bytes() == before


def test_a_journal_cut_between_two_holds_is_read_as_it_is(store: FileStore, directory: Path) -> None:
    kit.submit(store, "r-2")
    lines_ = kit.journal_of(directory).read_bytes().rstrip(b"\0").splitlines(keepends=True)
    os.truncate(kit.journal_of(directory), sum(map(len, lines_[:2])))
    assert store.read().document == kit.opened(directory).read().document
    assert kit.submit(store, "r-3").revision == 3
    assert set(kit.opened(directory).read().document.runs) == {"r-1", "r-3"}


# disks


def test_space_is_taken_ahead_and_its_zeros_are_nothing(store: FileStore, directory: Path) -> None:
    for number in range(2, 5):
        kit.submit(store, f"r-{number}")
    data = kit.journal_of(directory).read_bytes()
    assert data.endswith(b"\0" * 4096)
    other = kit.opened(directory)
    assert (other.read().torn, len(other.read().document.runs)) == (0, 4)
    for name, writer in (("r-5", other), ("r-6", store), ("r-7", other)):
        kit.submit(writer, name)
    assert len(kit.journal_of(directory).read_bytes()) == len(data), "what is there is used first"
    assert kit.opened(directory).read().document == store.read().document
    assert kit.opened(directory).history_fault() is None


def test_a_commit_is_one_write_and_one_sync_of_the_journal(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.submit(store, "r-2")
    kit.submit(store, "r-3")
    calls: list[str] = []
    for name in ("pwrite", "fdatasync", "fsync", "ftruncate", "rename", "write"):
        real = getattr(os, name)

        def call(fd: int, *rest: object, name: str = name, real: Callable[..., object] = real) -> object:
            if not os.readlink(f"/proc/self/fd/{fd}").endswith(".lock"):
                calls.append(name)
            return real(fd, *rest)

        monkeypatch.setattr(os, name, call)
    kit.submit(store, "r-4")
    assert calls == ["pwrite", "fdatasync"]


def test_after_a_failed_sync_the_line_is_taken_back_and_the_next_commit_is_in_a_fresh_journal(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kit.journal_of(directory)
    whole = first.read_bytes().rstrip(b"\0")
    with store.hold(1) as hold:
        loaded = hold.load()
        break_disk("written", monkeypatch)
        with pytest.raises(DurabilityFailed):
            hold.commit(loaded, kit.submitting(loaded.document, "r-2"))
        monkeypatch.undo()
        assert first.read_bytes() == whole
    kit.submit(store, "r-3")
    assert kit.journal_of(directory) != first
    assert first.read_bytes() == whole
    found = kit.opened(directory)
    assert set(found.read().document.runs) == {"r-1", "r-3"}
    assert [event.revision for event in found.history()] == [1, 2, 3]


def test_a_journal_that_was_given_up_after_a_failed_sync_keeps_its_place_in_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold nothing but its opening, and what that says was committed all the same."""
    store = kit.fleet(tmp_path / "s")
    for number in range(3):
        with store.hold(1) as hold:
            loaded = hold.load()
            with monkeypatch.context() as patch:
                break_disk("written", patch)
                with pytest.raises(DurabilityFailed):
                    hold.commit(loaded, kit.submitting(loaded.document, f"no-{number}"))
    kit.submit(store, "r-1")
    kit.submit(kit.opened(tmp_path / "s"), "r-2")
    found = kit.opened(tmp_path / "s")
    assert [event.event for event in found.history()] == ["initialised", "submitted", "submitted"]
    assert found.history_fault() is None


def fail_and_leave_it(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of r-2 whose sync fails, and whose line cannot be taken back."""

    def no(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with store.hold(1) as hold:
        loaded = hold.load()
        break_disk("written", monkeypatch)
        monkeypatch.setattr(os, "ftruncate", no)
        with pytest.raises(DurabilityFailed):
            hold.commit(loaded, kit.submitting(loaded.document, "r-2"))
        monkeypatch.undo()


def test_what_could_not_be_taken_back_either_may_or_may_not_have_happened_and_is_written_anew(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_and_leave_it(store, monkeypatch)
    kit.submit(store, "r-3")
    found = kit.opened(directory)
    assert set(found.read().document.runs) == {"r-1", "r-2", "r-3"}
    assert found.history_fault() is None


def test_what_was_torn_behind_a_failed_sync_is_kept_when_the_document_is_written_anew(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal that is given up then is closed with its last line, not with what is none."""
    fail_and_leave_it(store, monkeypatch)
    append(directory, b"torn bytes")
    kit.submit(store, "r-3")
    assert [path.read_bytes() for path in directory.glob("torn-*")] == [b"torn bytes"]
    found = kit.opened(directory)
    assert set(found.read().document.runs) == {"r-1", "r-2", "r-3"}
    assert found.history_fault() is None
