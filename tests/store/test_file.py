"""The file store keeps the contract; and what only files can show: compare-and-swap, modes, links, strange bytes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.model.errors import (
    DocumentCorrupt,
    DocumentFault,
    DocumentForeign,
    DocumentMissing,
    EditedOutside,
    HistoryAhead,
    LockLost,
    Refusal,
    RevisionMoved,
)
from controller.store import disk
from controller.store.file import FileStore
from controller.store.protocol import Store
from tests.store import kit
from tests.store.contract import Make, StoreContract


class TestFileStore(StoreContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        kit.fleet(tmp_path / "s")
        return lambda: kit.opened(tmp_path / "s")

    def break_at(self, point: str, monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
        break_disk(point, monkeypatch)

    def mend(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()


def break_disk(point: str, monkeypatch: pytest.MonkeyPatch, number: int = errno.EIO) -> None:
    """Make the system fail at one point of a commit ("write" or "written") or of a fold ("document", "rename",
    "directory"), told apart by the file that the descriptor is open on.
    """

    def is_broken(fd: int) -> bool:
        name = Path(os.readlink(f"/proc/self/fd/{fd}"))
        match point:
            case "document":
                return ".tmp-" in name.name
            case "directory":
                return name.is_dir()
            case _:
                return name.name.startswith("journal-")

    def failing(real: Callable[..., Any], applies: bool) -> Callable[..., Any]:
        def call(fd: int, *rest: Any) -> Any:
            if applies and is_broken(fd):
                raise OSError(number, os.strerror(number))
            return real(fd, *rest)

        return call

    def no_rename(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", failing(os.pwrite, point == "write"))
    monkeypatch.setattr(os, "fdatasync", failing(os.fdatasync, point == "written"))
    monkeypatch.setattr(os, "fsync", failing(os.fsync, point in {"document", "directory"}))
    if point == "rename":
        monkeypatch.setattr(os, "rename", no_rename)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    kit.fleet(tmp_path / "s")
    return tmp_path / "s"


@pytest.fixture
def store(directory: Path) -> FileStore:
    return kit.opened(directory)


# compare-and-swap


@pytest.mark.parametrize("settled", [False, True])
def test_a_document_replaced_under_a_hold_is_not_overwritten(
    store: FileStore, directory: Path, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if settled:
        make_old(directory / "controller.json", monkeypatch)
    with store.hold(1) as hold:
        loaded = hold.load()
        data = (directory / "controller.json").read_bytes().replace(b'"revision":1,', b'"revision":5,')
        (directory / "new").write_bytes(data)
        (directory / "new").rename(directory / "controller.json")
        with pytest.raises(RevisionMoved) as refusal:
            hold.commit(loaded, kit.submitting(loaded.document, "r-1"))
    assert (refusal.value.loaded, refusal.value.found) == (1, 5)
    assert (directory / "controller.json").read_bytes() == data


def test_the_same_revision_with_other_content_has_moved(store: FileStore, directory: Path) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        path = directory / "controller.json"
        path.write_bytes(path.read_bytes().replace(b'"draining":false', b'"draining":true '))
        with pytest.raises(RevisionMoved, match="with other content") as refusal:
            hold.commit(loaded, kit.submitting(loaded.document, "r-1"))
    assert (refusal.value.loaded, refusal.value.found) == (1, 1)


def test_a_document_deleted_under_a_hold_stays_deleted(store: FileStore, directory: Path) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        (directory / "controller.json").unlink()
        with pytest.raises(RevisionMoved, match="found none"):
            hold.commit(loaded, kit.submitting(loaded.document, "r-1"))
    assert not (directory / "controller.json").exists()


def test_a_change_within_one_tick_of_the_inode_clock_is_seen(store: FileStore, directory: Path) -> None:
    """A document just written is compared by content: its change time may not move for a second write."""
    path = directory / "controller.json"
    with store.hold(1) as hold:
        loaded = hold.load()
        before = path.stat()
        data = path.read_bytes().replace(b'"fleet":"f"', b'"fleet":"g"')
        with path.open("r+b") as file:
            file.write(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_size == before.st_size
        with pytest.raises(RevisionMoved):
            hold.commit(loaded, kit.submitting(loaded.document, "r-1"))


def test_an_equal_identity_of_a_document_that_was_fresh_when_loaded_is_not_believed(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = directory / "controller.json"
    fresh = disk.identity(path.stat())._replace(ctime_ns=2**62)
    monkeypatch.setattr(disk, "identity", lambda _: fresh)
    with store.hold(1) as hold:
        loaded = hold.load()
        path.write_bytes(path.read_bytes().replace(b'"fleet":"f"', b'"fleet":"g"'))
        with pytest.raises(RevisionMoved):
            hold.commit(loaded, kit.submitting(loaded.document, "r-1"))


def test_a_document_moved_between_the_sync_and_the_rename_of_a_fold_is_not_overwritten(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.submit(store, "r-1")
    path = directory / "controller.json"
    other = path.read_bytes().replace(b'"revision":1,', b'"revision":8,')
    real = os.fsync

    def fsync(fd: int) -> None:
        real(fd)
        if ".tmp-" in os.readlink(f"/proc/self/fd/{fd}"):
            path.write_bytes(other)

    monkeypatch.setattr(os, "fsync", fsync)
    assert not store.fold()
    assert path.read_bytes() == other
    assert kit.files(directory) == {"controller.json", "controller.lock", "controller.toml", "journal-1-0.jsonl"}


def make_old(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the change time of *path* count as old, as it is after 20 ms: nobody waits for that here."""
    monkeypatch.setattr("controller.store.disk.SETTLED_NS", -(10**12))


def test_an_old_unchanged_document_is_not_read_again(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_old(directory / "controller.json", monkeypatch)
    with store.hold(1) as hold:
        loaded = hold.load()
        monkeypatch.setattr("controller.store.disk.read_all", lambda fd: pytest.fail("read again"))
        hold.commit(loaded, kit.submitting(loaded.document, "r-1"))
    monkeypatch.undo()
    assert store.read().document.revision == 2


# the lock


def test_a_lock_file_removed_under_a_hold_loses_the_lock(store: FileStore, directory: Path) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        (directory / "controller.lock").unlink()
        with pytest.raises(LockLost, match="removed or replaced"):
            hold.commit(loaded, kit.submitting(loaded.document, "r-1"))
    assert store.read().document.revision == 1
    kit.submit(store, "r-1")


def test_a_lock_lost_between_the_sync_and_the_rename_of_a_fold_writes_nothing(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        real(fd)
        if ".tmp-" in os.readlink(f"/proc/self/fd/{fd}"):
            (directory / "controller.lock").unlink()

    kit.submit(store, "r-1")
    before = kit.snapshot_of(directory)
    monkeypatch.setattr(os, "fsync", fsync)
    assert not store.fold()
    assert kit.snapshot_of(directory) == before


# modes, links, what is left behind


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    for number, umask in enumerate((0, 0o077, 0o777)):
        before = os.umask(umask)
        try:
            store = kit.fleet(tmp_path / f"s{number}")
            kit.submit(store, "r-1")
            with store.hold_slot(1):
                pass
            store.note_refusal("x", "y", "z", "fleet")
        finally:
            os.umask(before)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / f"s{number}").rglob("*")}
        assert stat.S_IMODE((tmp_path / f"s{number}").stat().st_mode) == 0o700
        assert modes.pop("slots") == 0o700
        assert set(modes.values()) == {0o600}, modes


@kit.needs_root
def test_a_fold_keeps_mode_and_group_for_document_and_journal(store: FileStore, directory: Path) -> None:
    path = directory / "controller.json"
    os.chown(path, -1, 4242)
    path.chmod(0o660)
    kit.submit(store, "r-1")
    assert store.fold()
    for made in (path, kit.journal_of(directory)):
        assert (stat.S_IMODE(made.stat().st_mode), made.stat().st_gid) == (0o660, 4242)


def test_a_symbolic_link_is_refused_up_front_and_still_reads(store: FileStore, directory: Path) -> None:
    path = directory / "controller.json"
    target = directory / "elsewhere.json"
    path.rename(target)
    path.symlink_to(target)
    with pytest.raises(Refusal, match="symbolic link"), store.hold(1):
        pass
    assert store.read().document.revision == 1
    assert path.is_symlink()
    assert kit.files(directory) == {
        "controller.json",
        "controller.lock",
        "controller.toml",
        "elsewhere.json",
        "journal-1-0.jsonl",
    }


def test_a_temporary_file_of_a_killed_process_is_removed_by_the_next_holder(store: FileStore, directory: Path) -> None:
    stale = directory / f".controller.json.tmp-{os.getpid()}-1"
    stale.write_bytes(b"half a docu")
    mine = directory / "notes.tmp-1"
    mine.write_bytes(b"keep")
    kit.submit(store, "r-1")
    assert not stale.exists()
    assert mine.exists()


# bytes


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "zero length": lambda data: b"",
    "NULs": lambda data: b"\0" * 4096,
    "the first half": lambda data: data[: len(data) // 2],
    "a brace more": lambda data: data + b"}",
    "NULs at the end": lambda data: data + b"\0" * 512,
    "a byte-order mark": lambda data: b"\xef\xbb\xbf" + data,
    "not an object": lambda data: b"[]",
    "a wrong type": lambda data: data.replace(b'"revision":1,', b'"revision":"1",', 1),
    "a float": lambda data: data.replace(b'"revision":1,', b'"revision":1.0,', 1),
    "a key twice": lambda data: data.replace(b'"fleet":"f",', b'"fleet":"f","fleet":"g",', 1),
    "an integer beyond 64 bits": lambda data: data.replace(b'"revision":1,', b'"revision":18446744073709551616,', 1),
    "a lone surrogate": lambda data: data.replace(b'"fleet":"f",', b'"fleet":"\\ud800",', 1),
    "depth": lambda data: data.replace(b'"fleet":"f"', b'"fleet":' + b"[" * 70 + b"]" * 70, 1),
    "no sentinel": lambda data: data.replace(b'"superseded-by-pending-actions"', b"null", 1),
    "no schema": lambda data: data.replace(b'"schema":2,\n', b"", 1),
    "schema true": lambda data: data.replace(b'"schema":2,', b'"schema":true,', 1),
}


@pytest.mark.parametrize("how", BROKEN)
def test_broken_bytes_are_refused_and_left_as_they_are(store: FileStore, directory: Path, how: str) -> None:
    path = directory / "controller.json"
    data = BROKEN[how](path.read_bytes())
    path.write_bytes(data)
    before = kit.snapshot_of(directory)
    fresh = kit.opened(directory)
    with pytest.raises(DocumentCorrupt) as read:
        fresh.read()
    with fresh.hold(1) as hold, pytest.raises(DocumentCorrupt):
        hold.load()
    assert str(path) in read.value.where
    assert "offset" in read.value.what or "line" in read.value.what or "$" in read.value.what or how in UNPLACED
    assert kit.snapshot_of(directory) == before


UNPLACED = {"not an object", "no schema", "schema true"}


def test_a_wrong_record_is_named_with_its_path_and_line(store: FileStore, directory: Path) -> None:
    kit.submit(store, "r-1", "r-2")
    store.fold()
    path = directory / "controller.json"
    lines = path.read_bytes().split(b"\n")
    number = next(index for index, line in enumerate(lines, 1) if line.startswith(b'"r-2":'))
    path.write_bytes(path.read_bytes().replace(b'"id":"r-2"', b'"id":2'))
    with pytest.raises(DocumentCorrupt, match=rf"\$\.runs\.r-2\.id \(line {number}\)"):
        store.read()


def test_crlf_line_ends_load_as_edited(store: FileStore, directory: Path) -> None:
    path = directory / "controller.json"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert store.read().edited
    with store.hold(1) as hold, pytest.raises(EditedOutside):
        hold.load()


def test_an_edited_document_reads_and_is_not_built_upon(store: FileStore, directory: Path) -> None:
    data = kit.edit_file(directory, lambda content: content.update(fleet="other"))
    snapshot = store.read()
    assert snapshot.edited
    assert snapshot.document.fleet == "other"
    with store.hold(1) as hold, pytest.raises(EditedOutside, match="edited"):
        hold.load()
    assert (directory / "controller.json").read_bytes() == data


def test_a_newer_schema_is_refused_as_newer_and_both_are_named(store: FileStore, directory: Path) -> None:
    data = kit.edit_file(directory, lambda content: content.update(schema=3, quotas={"a": 1}))
    for attempt in (store.read, lambda: kit.submit(store, "r-1")):
        with pytest.raises(DocumentForeign, match=r"schema 3.*schemas 1 to 2"):
            attempt()
    assert (directory / "controller.json").read_bytes() == data


def test_an_unknown_field_in_a_record_is_refused_never_dropped(store: FileStore, directory: Path) -> None:
    kit.submit(store, "r-1")
    data = kit.edit_file(directory, lambda content: content["runs"]["r-1"].update(colour="red"))
    with pytest.raises(DocumentCorrupt, match="colour"):
        store.read()
    with pytest.raises(DocumentCorrupt, match=r"runs\.r-1"):
        kit.submit(store, "r-2")
    assert (directory / "controller.json").read_bytes() == data


@pytest.mark.parametrize("section", ["pending_actions", "workers", "slots"])
@pytest.mark.parametrize("slot", ["0", "10001", "03", "-1"])
def test_slots_out_of_bounds_are_refused(store: FileStore, directory: Path, section: str, slot: str) -> None:
    kit.edit_file(directory, lambda content: content["slots"].update({slot: {}}))
    with pytest.raises(DocumentCorrupt):
        store.read()


def test_an_action_under_another_slot_is_refused(store: FileStore, directory: Path) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        hold.commit(loaded, kit.parking(loaded.document, 3))

    def move(content: dict[str, Any]) -> None:
        content["pending_actions"]["4"] = content["pending_actions"].pop("3")

    kit.edit_file(directory, move)
    with pytest.raises(DocumentCorrupt, match="is one for slot 3"):
        store.read()


def test_an_action_without_a_worker_record_stays_loadable(store: FileStore) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        draft = kit.draft(loaded.document)
        draft.pending.put(3, kit.parked(3, serial=draft.count("serial")))
        draft.event("slot:3", "action.parked")
        hold.commit(loaded, draft.edit())
    assert 3 in kit.opened(store.directory).read().document.pending_actions


# missing is not new


def test_a_deleted_document_is_refused_and_nothing_is_made(store: FileStore, directory: Path) -> None:
    (directory / "controller.json").unlink()
    before = kit.snapshot_of(directory)
    for attempt in (store.read, lambda: kit.submit(store, "r-1"), store.history):
        with pytest.raises(DocumentMissing, match=r"controller\.json does not exist"):
            attempt()
    assert kit.snapshot_of(directory) == before


def test_a_mistyped_directory_is_not_made(tmp_path: Path) -> None:
    store: Store = kit.opened(tmp_path / "typo")
    for attempt in (store.read, lambda: kit.submit(store, "r-1")):
        with pytest.raises(DocumentMissing, match="typo does not exist"):
            attempt()
    store.note_refusal("x", "y", "z", "fleet")
    with pytest.raises(DocumentMissing), store.hold_slot(1):
        pass
    assert not (tmp_path / "typo").exists()


def test_an_empty_directory_stays_empty(tmp_path: Path) -> None:
    store = kit.opened(tmp_path)
    with pytest.raises(DocumentMissing), store.hold(1):
        pass
    with pytest.raises(DocumentMissing), store.hold_slot(1):
        pass
    assert kit.files(tmp_path) == set()


def test_a_document_that_is_a_directory_or_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "controller.json").mkdir()
    with pytest.raises(DocumentFault):
        kit.opened(tmp_path).read()
    (tmp_path / "controller.json").rmdir()
    os.mkfifo(tmp_path / "controller.json")
    with pytest.raises(DocumentCorrupt, match="not a regular file"):
        kit.opened(tmp_path).read()


# an older document comes back


def test_an_older_document_is_noticed_by_history(store: FileStore, directory: Path) -> None:
    path = directory / "controller.json"
    old = path.read_bytes()
    for name in ("r-1", "r-2"):
        kit.submit(store, name)
        assert store.fold()
    path.write_bytes(old)
    fresh = kit.opened(directory)
    snapshot = fresh.read()
    assert (snapshot.document.revision, snapshot.history_revision, snapshot.edited) == (2, 3, False)
    with fresh.hold(1) as hold, pytest.raises(HistoryAhead, match=r"revision 3.*revision 2") as refusal:
        hold.load()
    assert "controller state restore" in refusal.value.next
    assert path.read_bytes() == old


def test_an_older_document_whose_journal_is_gone_still_reads_and_is_refused(store: FileStore, directory: Path) -> None:
    path = directory / "controller.json"
    old = path.read_bytes()
    kit.submit(store, "r-1")
    store.fold()
    kit.submit(store, "r-2")
    path.write_bytes(old)
    (directory / "journal-1-0.jsonl").unlink()
    fresh = kit.opened(directory)
    snapshot = fresh.read()
    assert (snapshot.document.revision, snapshot.history_revision, snapshot.legacy) == (1, 3, False)
    with fresh.hold(1) as hold, pytest.raises(HistoryAhead, match=r"revision 3.*revision 1"):
        hold.load()
    assert path.read_bytes() == old


def test_a_document_of_another_directory_does_not_go_with_the_journal_here(tmp_path: Path) -> None:
    for name in ("a", "b"):
        kit.submit(kit.fleet(tmp_path / name), f"r-{name}")
    (tmp_path / "a" / "controller.json").write_bytes((tmp_path / "b" / "controller.json").read_bytes())
    with kit.opened(tmp_path / "a").hold(1) as hold, pytest.raises(DocumentCorrupt, match="not the one"):
        hold.load()
