"""Identities that lie, and clocks that do: nothing is signalled that is not provably ours. Case P6."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.driver import Controller, Result
from tests.behaviour.faults import call, on_disk, write_document
from tests.behaviour.provider_program import wait_until

PIDS = ("0", "-1", "1", "true", str(2**40))

_ANOTHER_TIME = """
import sys, time
real, shift = time.time_ns, int(sys.argv[1])
del sys.argv[1]
time.time_ns = lambda: real() + shift * 1_000_000_000
from controller.cli.main import main
sys.exit(main())
"""


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group and is none of ours to signal."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def serving(controller: Controller) -> Controller:
    """A fleet whose only worker runs `a`."""
    controller.init("--slots", "1")
    start(controller, "a")
    return controller


def start(controller: Controller, name: str) -> None:
    script = f"touch {name}.runs; until [ -e {name}.go ]; do sleep 0.02; done"
    controller.run("submit", "--id", name, "--cwd", ".", "--", "sh", "-c", script, check=True)
    controller.run("reconcile", "--apply", check=True)
    wait_until((controller.home / f"{name}.runs").exists, f"{name} runs")


def directory(controller: Controller) -> Path:
    (found,) = (controller.state / "workers").iterdir()
    return found


def supervisor(controller: Controller) -> int:
    pid: int = json.loads((directory(controller) / "pid").read_bytes())["pid"]
    return pid


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def state_of(controller: Controller, name: str) -> str:
    state: str = controller.json("show", name)["run"]["state"]
    return state


def edited(controller: Controller, resource: str, pid: str) -> dict[str, Any]:
    """The document, with another identity for the worker in slot 1."""
    content = on_disk(controller)
    worker = content["workers"]["1"]
    assert resource in worker["resources"], worker
    worker["resources"][resource] = {**worker["resources"][resource], "id": pid}
    return content


def at_another_time(controller: Controller, seconds: int, *args: str) -> Result:
    """Run the command under a wall clock that is so many seconds ahead."""
    own = (sys.executable, "-c", _ANOTHER_TIME, str(seconds))
    return call(controller, *own, *controller.command(*args)[1:])


@pytest.mark.parametrize(("resource", "pid"), [*(("process", pid) for pid in PIDS), ("directory", "0")])
def test_p6_a_recorded_worker_that_is_not_the_one_there_is_never_signalled_and_its_run_is_cancelled_once_it_is(
    serving: Controller, bystander: subprocess.Popen[bytes], resource: str, pid: str
) -> None:
    who, truth = supervisor(serving), on_disk(serving)
    write_document(serving, edited(serving, resource, pid))
    serving.run("state", "accept", check=True)
    for args in (("cancel", "a"), ("reconcile", "--apply"), ("replay-pending",)):
        assert "Traceback" not in serving.run(*args).stderr
    assert (lives(who), bystander.poll(), state_of(serving, "a")) == (True, None, "running")
    (shown,) = serving.json("status", "--live")["live"]["slots"]
    assert (shown["class"], shown["reason"]) == ("retained-for-investigation", "identity_changed")
    content = on_disk(serving)
    content["workers"]["1"]["resources"] = truth["workers"]["1"]["resources"]
    write_document(serving, content)
    serving.run("state", "accept", check=True)
    serving.run("reconcile", "--apply", check=True)
    assert (lives(who), bystander.poll(), state_of(serving, "a")) == (True, None, "cancelled")


@pytest.mark.parametrize("pid", [0, -1, 1, True, 2**40])
def test_p6_a_recorded_identity_that_is_no_identity_is_refused_with_its_place_and_nobody_is_signalled(
    serving: Controller, bystander: subprocess.Popen[bytes], pid: object
) -> None:
    who = supervisor(serving)
    content = edited(serving, "process", "")
    content["workers"]["1"]["resources"]["process"]["id"] = pid
    written = write_document(serving, content)
    for args in (("cancel", "a"), ("state", "accept"), ("reconcile", "--apply")):
        result = serving.run(*args)
        assert result.exit == 7, str(result)
        assert "resources" in result.stderr
        assert "Traceback" not in result.stderr
    assert (serving.state / "controller.json").read_bytes() == written
    assert (lives(who), bystander.poll()) == (True, None)


@pytest.mark.parametrize("seconds", [-600, 600])
def test_p6_a_wall_clock_that_moves_while_a_worker_runs_changes_nothing(serving: Controller, seconds: int) -> None:
    who, worker = supervisor(serving), serving.json("show", "slot:1")["slot"]["worker"]
    for _ in range(2):
        result = at_another_time(serving, seconds, "reconcile", "--apply")
        assert (result.exit, result.stderr) == (0, ""), str(result)
    assert serving.json("show", "slot:1")["slot"]["worker"] == worker
    assert (lives(who), state_of(serving, "a")) == (True, "running")
    (serving.home / "a.go").touch()

    def ended() -> bool:
        at_another_time(serving, seconds, "reconcile", "--apply")
        return state_of(serving, "a") == "succeeded"

    wait_until(ended, "the end of a")
    assert serving.json("show", "a")["run"]["token"] == 1, "it was done in its first life"
    assert supervisor(serving) == who


@pytest.mark.parametrize("seconds", [-600, 600])
def test_p6_a_cancel_under_another_clock_ends_the_step_and_no_more(serving: Controller, seconds: int) -> None:
    who = supervisor(serving)
    result = at_another_time(serving, seconds, "cancel", "a")
    assert result.exit == 0, str(result)
    assert state_of(serving, "a") == "cancelled"
    assert lives(who)
    start(serving, "b")
    assert supervisor(serving) == who, "its worker is as good as before"
