"""Disks that fail: really full, limited, or made to fail; and what is synced when."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from controller.model.errors import DurabilityFailed, StorageFailed
from controller.store.file import FileStore
from tests.store import kit
from tests.store.test_file import break_disk
from tests.store.test_locks import run_as


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    kit.fleet(tmp_path / "s")
    return tmp_path / "s"


@pytest.fixture
def store(directory: Path) -> FileStore:
    return kit.opened(directory)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG])
def test_a_failure_names_path_and_error_and_leaves_no_temporary_file(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = kit.snapshot_of(directory)
    with store.hold(1) as hold:
        loaded = hold.load()
        break_disk("write", monkeypatch, number)
        with pytest.raises(StorageFailed, match=rf"journal-1-0\.jsonl.*{errno.errorcode[number]}"):
            hold.commit(loaded, kit.submitting(loaded.document, "r-1"))
        monkeypatch.undo()
    assert kit.snapshot_of(directory) == before


@pytest.mark.parametrize("point", ["document", "rename", "directory"])
def test_a_fold_that_fails_changes_nothing_that_counts(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    kit.submit(store, "r-1")
    before = kit.snapshot_of(directory)
    break_disk(point, monkeypatch)
    assert not store.fold()
    monkeypatch.undo()
    assert kit.snapshot_of(directory) == before
    kit.submit(store, "r-2")
    assert store.fold()
    assert [event.revision for event in kit.opened(directory).history()] == [1, 2, 3]


def test_a_file_size_limit_leaves_the_old_revision(directory: Path) -> None:
    program = """
            import resource, signal
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))
            kit.submit(store, *(f'r-{n}' for n in range(40)))"""
    before = kit.snapshot_of(directory)
    result = run_as(directory, program.strip())
    assert result.stdout.startswith("StorageFailed:"), result
    assert "EFBIG" in result.stdout
    assert kit.snapshot_of(directory) == before
    kit.submit(kit.opened(directory), "r-1")


def fill(path: Path) -> None:
    """Write until there is no room."""
    with path.open("wb", buffering=0) as ballast, suppress(OSError):
        while ballast.write(b"x" * 4096):
            pass


@kit.needs_root
def test_a_really_full_disk_loses_nothing_and_goes_on_once_there_is_room(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(mount)], check=False)
    if made.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        store = kit.fleet(mount / "s")
        kit.submit(store, "r-1")
        fill(mount / "ballast")
        before = kit.snapshot_of(mount / "s")
        # A small line fits into the last page that the journal has.
        with pytest.raises(StorageFailed, match="ENOSPC"):
            kit.submit(kit.opened(mount / "s"), *(f"x-{number}" for number in range(100)))
        assert not kit.opened(mount / "s").fold()
        assert kit.snapshot_of(mount / "s") == before
        assert not [name for name in kit.files(mount / "s") if ".tmp-" in name]
        (mount / "ballast").unlink()
        kit.submit(kit.opened(mount / "s"), "r-2")
        assert set(store.read().document.runs) == {"r-1", "r-2"}
        assert [event.revision for event in store.history()] == [1, 2, 3]
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)  # a store keeps what it read last open


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is synced from now on."""
    names: list[str] = []

    def noting(real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            names.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
            real(fd)

        return sync

    monkeypatch.setattr(os, "fsync", noting(os.fsync))
    monkeypatch.setattr(os, "fdatasync", noting(os.fdatasync))
    return names


def test_a_commit_syncs_its_journal_once(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        names = synced(monkeypatch)
        hold.commit(loaded, kit.submitting(loaded.document, "r-1"))
    assert names == ["journal-1-0.jsonl"]


def test_a_fold_syncs_the_journal_the_document_and_the_directory_before_and_after_the_rename(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.submit(store, "r-1")
    names = synced(monkeypatch)
    assert store.fold()
    assert names[0] == "journal-2-0.jsonl"
    assert names[1].startswith(".controller.json.tmp-")
    assert names[2:] == ["s", "s"]


def test_what_another_process_wrote_is_synced_before_it_is_built_upon(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Visible is not durable: its writer may have died between the rename and the sync."""
    kit.submit(kit.opened(directory), "r-1")
    names = synced(monkeypatch)
    with store.hold(1) as hold:
        hold.load()
        assert names == ["controller.json", "journal-1-0.jsonl", "s"]
        names.clear()
        hold.load()
        assert names == []


def test_what_this_process_made_durable_is_not_synced_again(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.submit(store, "r-1")
    names = synced(monkeypatch)
    with store.hold(1) as hold:
        hold.load()
    assert names == []


def test_reading_syncs_and_writes_nothing(store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: Any, **__: Any) -> None:
        pytest.fail("a reader wrote")

    for name in ("fsync", "fdatasync", "write", "pwrite", "rename", "replace", "mkdir", "unlink", "ftruncate"):
        monkeypatch.setattr(os, name, no)
    store.read()
    store.history()
    store.refusals(5)
    store.slot_note(1)


def test_after_a_failed_sync_all_of_it_is_written_anew(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Syncing a second time may report success for pages that were dropped: only a fresh file proves anything."""
    kit.submit(store, "r-1")
    with store.hold(1) as hold:
        loaded = hold.load()
        with monkeypatch.context() as patch:
            break_disk("written", patch)
            with pytest.raises(DurabilityFailed, match="EIO"):
                hold.commit(loaded, kit.submitting(loaded.document, "r-2"))
    before = (directory / "journal-1-0.jsonl").read_bytes()
    assert before.count(b"\n") == 2
    with kit.opened(directory).hold(1) as hold:
        assert set(hold.load().document.runs) == {"r-1"}
    assert (directory / "journal-1-0.jsonl").read_bytes() == before
    assert kit.journal_of(directory).name == "journal-2-0.jsonl"
    kit.submit(store, "r-3")
    assert [event.revision for event in store.history()] == [1, 2, 3]


def test_a_load_that_cannot_sync_is_not_durable(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.submit(kit.opened(directory), "r-1")

    def fsync(fd: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", fsync)
    with store.hold(1) as hold, pytest.raises(DurabilityFailed):
        hold.load()
    monkeypatch.undo()
    kit.submit(store, "r-2")
    assert set(store.read().document.runs) == {"r-1", "r-2"}


def test_a_rename_that_happened_and_reported_an_error_is_uncertain(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename

    def rename(source: Any, target: Any) -> None:
        real(source, target)
        raise OSError(errno.EIO, "broken")

    kit.submit(store, "r-1")
    monkeypatch.setattr(os, "rename", rename)
    with store.tenure(1) as tenure, pytest.raises(DurabilityFailed):
        tenure.fold()
    monkeypatch.undo()
    with store.hold(1) as hold:
        assert hold.load().document.revision == 2


def test_an_interrupt_during_a_commit_leaves_it_whole_or_absent(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pwrite", "fdatasync"):
        real = getattr(os, name)

        def interrupted(*args: Any, real: Any = real) -> Any:
            real(*args)
            raise KeyboardInterrupt

        before = store.read().document.revision
        with store.hold(1) as hold:
            loaded = hold.load()
            edit = kit.saying(loaded.document, name)
            with monkeypatch.context() as patch:
                patch.setattr(os, name, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    hold.commit(loaded, edit)
        assert not [found for found in kit.files(directory) if ".tmp-" in found]
        assert store.read().document.revision in {before, before + 1}
        kit.submit(store, f"r-{name}")
    revisions = [event.revision for event in store.history()]
    assert revisions == list(range(1, len(revisions) + 1))
