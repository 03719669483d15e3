"""The disk fills: after a provider call its answer is told and stays parked, before it nobody is asked. Case D4."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.faults import call, durable
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
        program = Program(controller)
        controller.run("submit", "--queue", "mail", "--payload", "1", check=True)
        yield program, disk / "filler"
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


def full_for(controller: Controller) -> str:
    """A shell loop that commits what is shortest until that fails: no commit fits into what the journal has already."""
    pause, resume = (shlex.join(controller.command("queue", verb, "mail")) for verb in ("pause", "resume"))
    return f"(exec >/dev/null 2>&1; while :; do {pause} || exit; {resume} || exit; done)"


def test_a_full_disk_at_park_time_asks_no_provider(full: tuple[Program, Path]) -> None:
    program, filler = full
    program.submit("a")
    fill(filler)
    assert call(program.controller, "sh", "-c", full_for(program.controller)).exit == 8
    before = durable(program.controller)
    result = program.controller.run("reconcile", "--apply", "--json")
    assert result.exit == 8, result
    assert program.calls() == []
    assert durable(program.controller) == before
    assert [path for path in program.controller.state.iterdir() if "tmp" in path.name] == []
    filler.unlink()
    program.controller.run("reconcile", "--apply", check=True)
    assert program.controller.json("show", "a")["run"]["state"] == "succeeded"


def test_a_disk_that_fills_during_a_create_leaves_it_parked_and_both_facts_are_told(full: tuple[Program, Path]) -> None:
    program, filler = full
    program.submit("a")
    fills = f"cat /dev/zero > {filler} 2>/dev/null; {full_for(program.controller)}; true"
    program.next("create", {"run": [["sh", "-c", fills]]})
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


CALLS = (
    *(("fsync", "EIO"), ("fdatasync", "EIO"), ("write", "EFBIG"), ("pwrite64", "ENOSPC"), ("rename", "EIO")),
    *(("fallocate", "ENOSPC"), ("ftruncate", "EIO")),
)
"""What saving asks of the system, and how it may refuse."""


@pytest.mark.parametrize(("syscall", "error"), CALLS)
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
