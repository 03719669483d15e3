"""The durable memory of a worker: a line is there whole or it never happened."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from controller.model.inventory import SeenStep, StepSeen
from controller.model.process import ProcessIdentity
from controller.provider.local.memory import Accepted, Cleared, Dark, Ended, Fenced, Memory, MemoryCorrupt, Settled, Up

GROUP = ProcessIdentity(4_000_000, 1, "boot", "pid:[1]")


def accepted(key: str, token: int = 1) -> Accepted:
    return Accepted(key, "r-1", "main", 1, token, GROUP, 5)


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    (tmp_path / "memory.jsonl").touch()
    memory = Memory(str(tmp_path))
    memory.refresh()
    return memory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.jsonl"


def read(path: Path) -> Memory:
    fresh = Memory(str(path.parent))
    fresh.refresh()
    return fresh


def facts(memory: Memory) -> dict[str, object]:
    return {name: value for name, value in vars(memory).items() if not name.startswith("_")}


def test_what_was_appended_is_what_a_fresh_reader_folds(memory: Memory, path: Path) -> None:
    memory.append(Up(1, 1))
    memory.append(accepted("k1", 3))
    memory.append(Ended(SeenStep("k1", StepSeen.EXITED, 7)))
    memory.append(Cleared("k1"), sync=False)
    memory.append(Settled(("k1",)), accepted("k2", 4))
    memory.append(Fenced("k9", "r-2", 8), Dark(1, 9))
    fresh = read(path)
    assert facts(fresh) == facts(memory)
    assert (fresh.tokens, fresh.fenced, list(fresh.unsettled)) == ({"r-1": 4, "r-2": 8}, {"k9"}, ["k2"])
    assert (fresh.groups, fresh.up, fresh.dark, fresh.steps["k1"].exit_code) == ({"k2": GROUP}, 1, 1, 7)


def test_a_reader_that_looks_again_folds_only_what_is_new(memory: Memory, path: Path) -> None:
    reader = read(path)
    memory.append(accepted("k1"))
    reader.refresh()
    memory.append(Ended(SeenStep("k1", StepSeen.EXITED, 0)))
    reader.refresh()
    assert facts(reader) == facts(memory)


def test_a_torn_line_never_happened_and_the_next_writer_cuts_it_off(memory: Memory, path: Path) -> None:
    memory.append(accepted("k1"))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-1])
    reader = read(path)
    assert list(reader.steps) == ["k1"]
    reader.append(accepted("k2"))
    assert list(read(path).steps) == ["k1", "k2"]
    assert path.read_bytes().startswith(whole)


@pytest.mark.parametrize("line", [b"{}\n", b"\0\0\0\n", b"[]x\n", b'[{"record":"other"}]\n', b'[{"record":"up"}]\n'])
def test_a_line_that_is_not_ours_is_refused_with_its_place(memory: Memory, path: Path, line: bytes) -> None:
    memory.append(accepted("k1"))
    place = path.stat().st_size
    with path.open("ab") as file:
        file.write(line)
    with pytest.raises(MemoryCorrupt, match=f"at byte {place}"):
        read(path)


def test_a_write_that_fails_leaves_no_trace(memory: Memory, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.append(accepted("k1"))
    before, write = path.read_bytes(), os.write
    calls = []

    def full(descriptor: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) == 1:
            return write(descriptor, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            memory.append(accepted("k2"))
    assert path.read_bytes() == before
    assert not memory.broken
    memory.append(accepted("k3"))
    assert list(read(path).steps) == ["k1", "k3"]


def test_a_sync_that_fails_is_never_taken_for_done(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="Input/output"):
            memory.append(accepted("k1"))
    assert "k1" not in memory.steps
    with pytest.raises(OSError, match="could not be synced"):
        memory.append(accepted("k2"))
