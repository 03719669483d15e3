"""Guards of the store that only matter at a bad moment: a crash, a full disk, a stranger, a restore."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from controller.engine import leases, queue
from controller.engine.batches import End, complete_many
from controller.model.edit import Draft
from controller.model.errors import AlreadyThere, Conflict, DocumentCorrupt, StorageFailed, TransitionRefused
from controller.model.keep import Keep
from controller.model.reason import Reason
from controller.model.records import RunState, Worker, WorkerRef, WorkerState
from controller.model.transition import Trigger
from controller.store.accept import accept
from controller.store.copies import write
from controller.store.exports import export, read_export
from controller.store.file import FileStore
from controller.store.history import History
from tests.engine.queue.kit import Host, step
from tests.engine.queue.kit import restore as in_another_epoch
from tests.store import kit
from tests.store.pasts import NOW, folded
from tests.store.test_disk import synced


def changes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on: what is made, removed or renamed, and what is synced, in order; each by what kind of file it is."""
    done: list[str] = []

    def kind(path: str) -> str:
        name = Path(path).name
        return "temporary" if ".tmp-" in name else name.partition("-")[0] if "-" in name else name

    def noting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if name == "fsync":
                done.append(f"sync {kind(os.readlink(f'/proc/self/fd/{args[0]}'))}")
            elif name != "open" or args[1] & os.O_CREAT:
                done.append(f"{name} {kind(str(args[0]))}")
            return real(*args, **options)

        return call

    for name in ("open", "unlink", "rename", "fsync"):
        monkeypatch.setattr(os, name, noting(name, getattr(os, name)))
    return done


def tear(directory: Path, torn: bytes) -> None:
    path = kit.journal_of(directory)
    path.write_bytes(path.read_bytes().rstrip(b"\0") + torn)


# the journal


def test_lines_that_others_appended_to_a_known_journal_are_synced_before_they_are_built_upon(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their writer may have died between the write and the sync."""
    kit.submit(store, "r-2")
    kit.submit(kit.opened(directory), "r-3")
    names = synced(monkeypatch)
    with store.hold(1) as hold:
        assert list(hold.load().document.runs) == ["r-1", "r-2", "r-3"]
        assert names == [kit.journal_of(directory).name]


def test_a_torn_tail_is_cut_off_durably_before_a_line_is_written_in_its_place(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of an old line and half of a new one, as a power cut may leave them, would pass for damage."""
    tear(directory, b"half of a line")
    calls: list[str] = []
    for name in ("ftruncate", "fsync", "pwrite"):
        real: Callable[..., Any] = getattr(os, name)

        def noting(fd: int, *rest: Any, name: str = name, real: Callable[..., Any] = real) -> Any:
            if os.readlink(f"/proc/self/fd/{fd}").endswith(kit.journal_of(directory).name):
                calls.append(name)
            return real(fd, *rest)

        monkeypatch.setattr(os, name, noting)
    with store.hold(1) as hold:
        loaded = hold.load()
        calls.clear()
        hold.commit(loaded, kit.submitting(loaded.document, "r-2"))
    assert calls == ["ftruncate", "fsync", "pwrite"]


def test_half_a_line_that_a_full_disk_left_is_cut_off_again(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kit.journal_of(directory)
    before = path.read_bytes()
    real = os.pwrite
    written: list[int] = []

    def filling(fd: int, data: bytes, offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}") != str(path):
            return real(fd, data, offset)
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(real(fd, data[:40], offset))
        return written[0]

    with store.hold(1) as hold:
        loaded = hold.load()
        monkeypatch.setattr(os, "pwrite", filling)
        with pytest.raises(StorageFailed, match="ENOSPC"):
            hold.commit(loaded, kit.submitting(loaded.document, "r-2"))
        monkeypatch.undo()
    assert written == [40]
    assert path.read_bytes().rstrip(b"\0") == before.rstrip(b"\0")
    assert kit.opened(directory).leftovers() == ()


@pytest.mark.parametrize("folded", [False, True], ids=["made in the journal", "in the document"])
def test_a_record_that_left_and_came_back_is_last_for_whoever_replays_both_commits_at_once(
    store: FileStore, directory: Path, folded: bool
) -> None:
    kit.submit(store, "r-2")
    if folded:
        assert store.fold()
    run = store.read().document.runs["r-1"]
    for name in ("discarded", "submitted"):
        with store.hold(1) as hold:
            loaded = hold.load()
            draft = kit.draft(loaded.document)
            if name == "discarded":
                draft.runs.remove("r-1")
            else:
                draft.runs.put("r-1", run)
            draft.event("run:r-1", name)
            hold.commit(loaded, draft.edit())
    assert list(store.read().document.runs) == ["r-2", "r-1"]
    assert list(kit.opened(directory).read().document.runs) == ["r-2", "r-1"]


# what a power cut may reorder


def test_a_whole_document_that_is_a_commit_is_half_written_durably_before_its_journal_is_there(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that says what it committed, and no document half written beside it, was named."""
    kit.edit_file(directory, lambda content: content.update(draining=True))
    done = changes(monkeypatch)
    assert accept(kit.opened(directory), restore_pending=False, timeout=1).changed
    begin = done.index("open temporary")
    assert done[begin : begin + 3] == ["open temporary", "sync s", "open journal"]


def test_a_journal_of_a_killed_write_is_gone_durably_before_the_document_half_written_beside_it(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left alone, it would pass for one that was named."""
    (directory / "journal-3-0.jsonl").write_bytes(b'{"journal":1')
    (directory / ".controller.json.tmp-1-1").write_bytes(b"half")
    with store.tenure(1) as hold:
        done = changes(monkeypatch)
        assert len(hold.sweep()) == 2
    assert done == ["unlink journal", "sync s", "unlink temporary"]


def test_parts_of_a_merged_file_go_once_its_name_is_durable_whoever_gave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = folded(tmp_path / "s", 4)
    past.merge(*[name for name in past.names() if name != past.file][:2])
    done = changes(monkeypatch)
    History(past.directory).tidy(Keep(None, None), named=past.file, now=NOW, needed_at=None)
    assert done == ["sync s", "unlink journal", "unlink journal"]


def test_each_file_of_history_is_dropped_durably_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A history without a file in the middle would be a broken one."""
    past = folded(tmp_path / "s", 3)
    done = changes(monkeypatch)
    History(past.directory).tidy(Keep(0, 0), named=past.file, now=NOW * 2, needed_at=None)
    assert done == ["unlink journal", "sync s"] * 2


# what a lost document leaves


def test_a_journal_that_lost_its_document_is_no_init_that_was_killed(tmp_path: Path) -> None:
    """It may hold nothing but its opening; only a document half written beside it tells that it never was named."""
    kit.fleet(tmp_path / "s")
    (tmp_path / "s" / "controller.json").unlink()
    before = kit.snapshot_of(tmp_path / "s")
    with pytest.raises(AlreadyThere, match=r"journal-1-0\.jsonl"):
        kit.fleet(tmp_path / "s")
    assert kit.snapshot_of(tmp_path / "s") == before


def test_a_commit_of_a_whole_document_that_was_killed_is_no_later_revision(tmp_path: Path) -> None:
    """Its journal opens with that commit; its document, half written, shows that it was never made."""
    past = folded(tmp_path / "s", 2)
    past.opening(commits=True)
    history = History(past.directory)
    assert history.later(past.revision, past.file) == past.revision + 1
    (past.directory / ".controller.json.tmp-1-1").write_bytes(b"half")
    assert history.later(past.revision, past.file) is None


@pytest.mark.parametrize("parked", [False, True])
def test_a_fold_drops_no_history_that_a_pending_action_needs(
    directory: Path, monkeypatch: pytest.MonkeyPatch, parked: bool
) -> None:
    monkeypatch.setattr("controller.store.checkpoint._MANY", 0)
    store = kit.opened(directory)
    store.keep = lambda: Keep(0, 0)
    if parked:
        with store.hold(1) as hold:
            loaded = hold.load()
            hold.commit(loaded, kit.parking(loaded.document))
    kit.submit(store, "r-2")
    assert store.fold()
    assert ([event.revision for event in store.history()] == [1, 2, 3, 4]) is parked


# what somebody touched


def test_an_export_whose_history_was_touched_is_refused(store: FileStore, tmp_path: Path) -> None:
    """The document in it has a digest of its own; its events have only that of the whole export."""
    data = export(store)[0]
    place = data.rindex(b'"submitted"')
    assert data.count(b"\n", 0, place) > 2, "in a line of history"
    touched = data[:place] + b'"commanded"' + data[place + len(b'"submitted"') :]
    with pytest.raises(DocumentCorrupt, match="digest does not match"):
        read_export(write(tmp_path / "e.jsonl", touched))
    assert read_export(write(tmp_path / "whole.jsonl", data)).held.document == store.read().document


# after a restore


def test_a_lease_of_an_earlier_epoch_is_over_whatever_the_clock_says() -> None:
    """Its holder is shut out, so that a cancel need not wait for anybody."""
    host = Host()
    host.submit("held", "kept")
    leases.claim(host.process(), "a", owner="c", count=2)
    assert queue.cancel(host.process(), "kept").state is RunState.RUNNING
    in_another_epoch(host)
    assert queue.cancel(host.process(), "held").state is RunState.CANCELLED


# batches


def test_a_batch_ends_no_run_that_a_worker_holds() -> None:
    """What that did is told by its provider alone."""
    host = Host()
    host.submit("work")
    leases.claim(host.process(), "a", owner="c")
    taken = replace(host.run("work"), lease=None, worker=WorkerRef(1, "a-1", 1))
    with host.process().store.hold(5.0) as hold:
        loaded = hold.load()
        draft = Draft(loaded.document, now=host.clock.now_ms(), command="test")
        draft.workers.put(1, Worker(1, "a-1", 1, "fake", 1, 1, WorkerState.ASSIGNED, run="work"))
        draft.runs.put("work", taken)
        draft.event("run:work", "rewritten")
        hold.commit(loaded, draft.edit())
    before = host.document
    (judged,) = complete_many(host.process(), [End("work", 1)])
    assert isinstance(judged.refused, Conflict)
    assert host.document == before


def test_a_refused_report_of_a_batch_leaves_nothing_of_what_it_had_begun() -> None:
    """A step that can never start is skipped before it shows that another one is not done yet."""
    host = Host()
    host.submit("graph", steps=(step("first"), step("second", "first"), step("third")))
    host.submit("plain")
    process = host.process()
    ends = [End(run.id, run.attempts) for run in leases.claim(process, "a", owner="c", count=2)]
    leases.step(process, "graph", "first", 1, Trigger.STEP_STARTED)
    leases.step(process, "graph", "first", 1, Trigger.STEP_FAILED, reason=Reason.STEP_FAILED)
    before = host.run("graph")
    refused, done = complete_many(process, ends)
    assert isinstance(refused.refused, TransitionRefused)
    assert done.done is not None
    assert host.run("graph") == before
    assert [event.subject for event in host.document.events] == ["run:plain"]
