"""Folds: the document written anew and the next journal begun. They change nothing that anybody reads."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from controller.model.errors import AlreadyThere, HistoryAhead
from controller.store import checkpoint
from controller.store.file import FileStore
from tests.store import kit
from tests.store.test_file import break_disk

CALLS = ("open", "write", "pwrite", "fsync", "fdatasync", "rename", "unlink", "fchmod", "ftruncate", "posix_fallocate")


class Killed(BaseException):
    pass


@contextmanager
def killed_at(nth: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Die before the *nth* call that may change the disk, and do nothing more, as who is killed there. Gives the calls
    that were made.
    """
    made: list[str] = []
    with monkeypatch.context() as patch:
        for name in CALLS:
            real: Callable[..., Any] = getattr(os, name)

            def call(*args: Any, real: Callable[..., Any] = real, name: str = name, **options: Any) -> Any:
                if name == "open" and not (len(args) > 1 and args[1] & os.O_CREAT):
                    return real(*args, **options)
                if len(made) >= nth:
                    raise Killed
                made.append(name)
                return real(*args, **options)

            patch.setattr(os, name, call)
        yield made


def told(directory: Path) -> tuple[object, object]:
    store = kit.opened(directory)
    return store.read().document, store.history()


def test_a_fold_changes_nothing_that_is_read_and_the_document_is_current(store: FileStore, directory: Path) -> None:
    before = told(directory)
    assert store.fold()
    assert told(directory) == before
    content = json.loads(store.path.read_bytes())
    assert (content["revision"], list(content["runs"])) == (2, ["r-1"])
    assert kit.journals(directory) == ["journal-1-0.jsonl", "journal-2-0.jsonl"]
    assert kit.journal_of(directory).name == "journal-2-0.jsonl"
    assert store.history_fault() is None


def test_there_is_nothing_to_fold_in_twice(store: FileStore, directory: Path) -> None:
    assert store.fold()
    before = kit.snapshot_of(directory)
    assert not store.fold()
    assert not kit.opened(directory).fold()
    assert kit.snapshot_of(directory) == before


def test_killed_at_any_call_a_fold_leaves_what_was_read_and_the_next_holder_mends_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nth in range(60):
        directory = tmp_path / f"s{nth}"
        kit.submit(kit.fleet(directory), "r-1")
        before = told(directory)
        store, died = kit.opened(directory), True
        with killed_at(nth, monkeypatch) as made, suppress(Killed):
            died = not store.fold()
        assert told(directory) == before, made
        committed = kit.submit(kit.opened(directory), "r-2")
        found = kit.opened(directory)
        assert found.read().document == committed
        assert [event.revision for event in found.history()] == [1, 2, 3]
        assert (found.history_fault(), found.leftovers()) == (None, ()), made
        assert not [name for name in kit.files(directory) if ".tmp-" in name]
        if not died:
            assert "rename" in made
            assert nth > 8
            return
    pytest.fail("the fold never got to its end")


def test_killed_at_any_call_an_init_is_completed_by_the_same_init(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nth in range(60):
        directory, died = tmp_path / f"s{nth}", True
        with killed_at(nth, monkeypatch) as made, suppress(Killed):
            kit.fleet(directory)
            died = False
        if died:
            with suppress(AlreadyThere) if "rename" in made else nullcontext():
                kit.fleet(directory)
        found = kit.opened(directory)
        assert kit.submit(found, "r-1").revision == 2
        assert [event.event for event in found.history()] == ["initialised", "submitted"]
        assert (found.history_fault(), kit.opened(directory).leftovers()) == (None, ())
        if not died:
            assert nth > 10
            return
    pytest.fail("the init never got to its end")


def test_an_interrupt_behind_the_rename_takes_nothing_away(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = told(directory)
    rename = os.rename

    def interrupted(*args: Any) -> None:
        rename(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.fold()
    monkeypatch.undo()
    assert told(directory) == before
    assert kit.submit(store, "r-2").revision == 3
    assert kit.opened(directory).history_fault() is None


@pytest.mark.parametrize("point", ["document", "rename", "directory"])
def test_a_fold_that_fails_says_so_changes_nothing_and_works_again(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    before = told(directory)
    break_disk(point, monkeypatch)
    assert not store.fold()
    monkeypatch.undo()
    assert told(directory) == before
    assert kit.submit(store, "r-2").revision == 3
    assert store.fold()
    found = kit.opened(directory)
    assert found.read().document.revision == 3
    assert (found.history_fault(), found.leftovers()) == (None, ())


def test_a_fold_waits_for_nobody(store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held by another, it is not done, and no clock is asked to pass the time."""
    monkeypatch.setattr(store.clock, "sleep", lambda _: pytest.fail("it waited"), raising=False)
    answers: list[bool] = []
    before = kit.snapshot_of(directory)
    with kit.opened(directory).hold(1):
        thread = threading.Thread(target=lambda: answers.append(store.fold()))
        thread.start()
        thread.join()
        assert not kit.opened(directory).fold(), "and not by the one who holds it"
    assert answers == [False]
    assert kit.snapshot_of(directory) == before
    assert store.fold()


@pytest.mark.parametrize("how", ["edited", "torn", "forked", "ahead", "legacy", "missing"])
def test_what_may_not_be_built_upon_is_not_folded(tmp_path: Path, how: str) -> None:
    directory = tmp_path / "s"
    store = kit.fleet(directory)
    kit.submit(store, "r-1")
    store.fold()
    old = store.path.read_bytes()
    kit.submit(store, "r-2")
    journal = kit.journal_of(directory)
    match how:
        case "edited":
            store.path.write_bytes(old.replace(b'"draining":false', b'"draining":true'))
        case "torn":
            journal.write_bytes(journal.read_bytes().rstrip(b"\0") + b"half")
        case "forked":
            data = journal.read_bytes().rstrip(b"\0")
            journal.write_bytes(data + data.splitlines(keepends=True)[-1])
        case "ahead":
            store.fold()
            kit.submit(store, "r-3")
            journal.write_bytes(journal.read_bytes()[: journal.read_bytes().index(b"\n") + 1])
            store.path.write_bytes(old)
        case "legacy":
            journal.unlink()
            store.path.write_bytes(kit.schema1())
        case _:
            store.path.unlink()
    before = kit.snapshot_of(directory)
    assert not kit.opened(directory).fold()
    assert kit.snapshot_of(directory) == before


def test_an_older_document_is_refused_before_anything_that_is_left_over_is_removed(
    store: FileStore, directory: Path
) -> None:
    assert store.fold()
    old = store.path.read_bytes()
    for name in ("r-2", "r-3"):
        kit.submit(store, name)
        assert store.fold()
    new = store.path.read_bytes()
    store.path.write_bytes(old)
    other = kit.opened(directory)
    with other.hold(1) as hold, pytest.raises(HistoryAhead):
        hold.load()
    with other.tenure(1) as tenure:
        tenure.sweep()
    store.path.write_bytes(new)
    assert kit.opened(directory).read().document.revision == 4


# when


def test_close_folds_what_was_committed_here_and_nothing_else(store: FileStore, directory: Path) -> None:
    before = store.path.read_bytes()
    store.read()
    store.close()
    assert store.path.read_bytes() == before, "it only read"
    kit.submit(store, "r-2")
    store.close()
    folded = store.path.read_bytes()
    assert json.loads(folded)["revision"] == 3
    kit.submit(kit.opened(directory), "r-3")
    store.close()
    assert store.path.read_bytes() == folded, "what others commit is theirs to fold"


def test_close_folds_what_was_committed_before_the_hold_failed(store: FileStore) -> None:
    def fail() -> None:
        with store.hold(1) as hold:
            kit.submit_in(hold, "r-2")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    store.close()
    assert json.loads(store.path.read_bytes())["revision"] == 3


def test_close_leaves_a_large_document_as_it_is(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.submit(store, *(f"x-{number}" for number in range(40)))
    assert store.fold()
    before = store.path.read_bytes()
    monkeypatch.setattr(checkpoint, "SMALL", len(before) - 1)
    kit.submit(store, "r-2")
    store.close()
    assert store.path.read_bytes() == before
    monkeypatch.setattr(checkpoint, "SMALL", len(before))
    store.close()
    assert store.path.read_bytes() != before


def test_a_journal_that_has_outgrown_the_document_is_folded_in_by_who_committed(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SMALL", 4_000)
    for number in range(2, 40):
        kit.submit(store, f"r-{number}")
    assert len(kit.journals(directory)) > 1
    assert kit.journal_of(directory).stat().st_size < 4_000 + (1 << 20) + 4_000
    found = kit.opened(directory)
    assert (found.read().document.revision, found.history_fault()) == (40, None)
    assert [event.revision for event in found.history()] == list(range(1, 41))


# what a crash leaves


def test_leftovers_are_told_and_only_a_holder_removes_them(store: FileStore, directory: Path) -> None:
    stale = directory / "journal-9-0.jsonl"
    stale.write_bytes(b'{"journal":1')
    temporary = directory / ".controller.json.tmp-1-1"
    temporary.write_bytes(b"half")
    before = kit.snapshot_of(directory)
    found = {(each.kind, Path(each.path).name, each.size) for each in store.leftovers()}
    assert found == {("stale_journal", stale.name, 12), ("temporary", temporary.name, 4)}
    assert kit.snapshot_of(directory) == before
    with store.tenure(1) as hold:
        assert {(each.kind, Path(each.path).name, each.size) for each in hold.sweep()} == found
    assert store.leftovers() == ()
    assert kit.files(directory) == {"controller.json", "controller.lock", "controller.toml", "journal-1-0.jsonl"}


def test_a_journal_with_a_line_in_it_is_never_a_leftover(store: FileStore, directory: Path) -> None:
    kept = directory / "journal-1-7.jsonl"
    kept.write_bytes(kit.journal_of(directory).read_bytes())
    with store.tenure(1) as hold:
        hold.sweep()
    assert kept.exists()


def test_the_next_journal_takes_a_name_that_nobody_has(store: FileStore, directory: Path) -> None:
    kit.submit(store, "r-2")
    taken = directory / "journal-3-0.jsonl"
    taken.write_bytes(b"{}\nsomebody's\n")
    assert store.fold()
    assert kit.journal_of(directory).name == "journal-3-1.jsonl"
    assert taken.read_bytes() == b"{}\nsomebody's\n"


def test_what_is_synced_when_a_fold_renames_is_all_that_it_names(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No crash may show a document whose journal is not there: both, and their names, are durable first."""
    done: list[str] = []
    fsync, rename = os.fsync, os.rename

    def syncing(fd: int) -> None:
        fsync(fd)
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        done.append("directory" if path.is_dir() else "document" if ".tmp-" in path.name else path.name)

    def renaming(*args: Any) -> None:
        rename(*args)
        done.append("rename")

    store.read()
    kit.submit(store, "r-2")
    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "rename", renaming)
    assert store.fold()
    first = done[: done.index("rename")]
    assert {"journal-3-0.jsonl", "document"} <= set(first)
    assert first[-1] == "directory"
    assert done[done.index("rename") + 1] == "directory"


def test_closed_journals_lose_the_zeros_that_were_taken_ahead(store: FileStore, directory: Path) -> None:
    for number in range(2, 5):
        kit.submit(store, f"r-{number}")
    old = kit.journal_of(directory)
    assert old.stat().st_size > 1 << 20
    assert store.fold()
    assert old.read_bytes().endswith(b"}\n")
