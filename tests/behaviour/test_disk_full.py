"""The disk fills: after a provider call its answer is told and stays parked, before it nobody is asked. Case D4."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.provider_program import Program

STRACE = shutil.which("strace")


@contextmanager
def failing(controller: Controller, syscall: str, error: str, when: str) -> Iterator[list[str]]:
    """The command under strace, whose chosen calls of *syscall* fail."""
    if STRACE is None:
        pytest.skip("strace is not installed")
    yield [
        STRACE, "-f", "-qq", "-o", str(controller.home / "trace"),
        "-e", f"trace={syscall}", "-e", f"inject={syscall}:error={error}:when={when}",
    ]  # fmt: skip


def small_disk(place: Path) -> bool:
    """Mount a file system of 200 KiB at *place*; False where that is not allowed."""
    place.mkdir()
    return subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)], check=False).returncode == 0


@pytest.fixture
def full(controller: Controller) -> Iterator[tuple[Program, Path]]:
    """A program whose controller keeps its state on a disk that a test can fill."""
    disk = controller.home / "disk"
    if not small_disk(disk):
        pytest.skip("mounting a small file system is not allowed here")
    controller.state = disk / "state"
    try:
        yield Program(controller), disk / "filler"
    finally:
        controller.close()
        subprocess.run(["umount", str(disk)], check=True)


def fill(filler: Path) -> None:
    """Leave not one block free."""
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return


def test_a_full_disk_at_park_time_asks_no_provider(full: tuple[Program, Path]) -> None:
    program, filler = full
    program.submit("a")
    before = (program.controller.state / "controller.json").read_bytes()
    fill(filler)
    result = program.controller.run("reconcile", "--apply", "--json")
    assert result.exit == 8, result
    assert program.calls() == []
    assert (program.controller.state / "controller.json").read_bytes() == before
    assert [path for path in program.controller.state.iterdir() if "tmp" in path.name] == []
    filler.unlink()
    program.controller.run("reconcile", "--apply", check=True)
    assert program.controller.json("show", "a")["run"]["state"] == "succeeded"


def test_a_disk_that_fills_during_a_create_leaves_it_parked_and_both_facts_are_told(full: tuple[Program, Path]) -> None:
    program, filler = full
    program.submit("a")
    program.next("create", {"run": [["sh", "-c", f"cat /dev/zero > {filler} 2>/dev/null; true"]]})
    result = program.controller.run("reconcile", "--apply")
    assert result.exit == 8, result
    told = result.stdout + result.stderr
    assert "vm-1" in told
    assert "could not be saved" in told
    key = program.pending()[1]["idempotency_key"]
    filler.unlink()
    program.controller.run("replay-pending", check=True)
    assert [call[2] for call in program.calls() if call[0] == "create"] == [key, key]
    assert len(program.workers()) == 1
    assert program.controller.json("show", "slot:1")["slot"]["worker"]["id"] == program.workers()[0]["id"]


@pytest.mark.parametrize(("syscall", "error"), [("fsync", "EIO"), ("write", "EFBIG"), ("rename", "EIO")])
def test_a_failing_system_call_at_any_save_loses_and_doubles_nothing(
    controller: Controller, syscall: str, error: str
) -> None:
    program = Program(controller)
    program.submit("a")
    for when in range(1, 12):
        with failing(controller, syscall, error, str(when)) as strace:
            subprocess.run(
                [*strace, *controller.command("reconcile", "--apply")],
                cwd=controller.home, env=controller.env, capture_output=True, check=False, timeout=60,
            )  # fmt: skip
        controller.run("status", check=True)
    controller.run("replay-pending")
    controller.run("reconcile", "--apply", check=True)
    assert controller.json("show", "a")["run"]["state"] == "succeeded"
    assert len([did for did in program.calls("did") if did[0] == "create"]) == 1
    assert len(program.workers()) == 1
    assert controller.run("fsck", check=True).exit == 0
