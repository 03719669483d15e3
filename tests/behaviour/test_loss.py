"""Workers that are lost, and controllers that are: what was done meanwhile is collected, what was not is done again.

Real processes and real signals. A worker's supervisor is ended by SIGKILL, as the kernel does when memory is short.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.driver import Controller, Staying
from tests.behaviour.faults import run_dying
from tests.behaviour.provider_program import wait_until


@pytest.fixture
def local(controller: Controller) -> Controller:
    """A fleet of two local workers, which tries again soon."""
    controller.init("--slots", "2")
    controller.configure("backoff.retry", 'initial = "1ms"', 'cap = "1ms"')
    return controller


def submit(controller: Controller, name: str, end: str = "exit 0", *options: str) -> None:
    """A run that appends a line to the file *name* at each start, then waits for *name*.go, and ends with *end*."""
    script = f"echo begun; echo $$ >> {name}; until [ -e {name}.go ]; do sleep 0.02; done; echo ended; {end}"
    controller.run("submit", "--id", name, "--cwd", ".", *options, "--", "sh", "-c", script, check=True)


def runs(controller: Controller, *names: str, life: int = 1) -> None:
    wait_until(lambda: all(len(lives_of(controller, name)) >= life for name in names), f"life {life} of {names}")


def lives_of(controller: Controller, name: str) -> list[int]:
    """The pids of a run's lives so far."""
    path = controller.home / name
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def let(controller: Controller, *names: str) -> None:
    for name in names:
        (controller.home / f"{name}.go").touch()


def run_of(controller: Controller, name: str) -> dict[str, Any]:
    run: dict[str, Any] = controller.json("show", name)["run"]
    return run


def collect(controller: Controller, name: str, state: str) -> dict[str, Any]:
    """Reconcile until the run is in *state*; then the run."""

    def there() -> bool:
        controller.run("reconcile", "--apply")
        return bool(run_of(controller, name)["state"] == state)

    wait_until(there, f"{name} {state}")
    return run_of(controller, name)


def workers(controller: Controller) -> dict[str, int]:
    """The pid of each supervisor by the name of its worker."""
    found = {}
    for directory in (controller.state / "workers").iterdir():
        if (directory / "pid").exists():
            found[directory.name] = json.loads((directory / "pid").read_bytes())["pid"]
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in pids), f"the end of {pids}")


def leases_expired(controller: Controller, name: str) -> int:
    """How many lives of the run ended because their worker was lost."""
    told = controller.json("history", f"run:{name}")["events"]
    return len([event for event in told if event["event"] == "lease_expired" and event["step"] is None])


# --- Workers that are lost


def test_a_run_whose_worker_is_killed_goes_on_elsewhere_and_costs_it_a_crash_and_no_failure(local: Controller) -> None:
    submit(local, "a", "exit 0", "--attempts", "1", "--crashes", "2")
    local.run("reconcile", "--apply", check=True)
    runs(local, "a")
    ((lost, supervisor),) = workers(local).items()
    kill(supervisor)
    local.run("reconcile", "--apply")
    (first,) = lives_of(local, "a")[:1]
    assert not alive(first), "what the first life left is ended before the second begins"

    def again() -> bool:
        local.run("reconcile", "--apply")
        return len(lives_of(local, "a")) == 2

    wait_until(again, "a second life")
    run = run_of(local, "a")
    assert (run["state"], run["attempts"], run["crashes"], run["failures"]) == ("running", 2, 1, 0)
    assert lost not in workers(local)
    let(local, "a")
    collect(local, "a", "succeeded")
    assert leases_expired(local, "a") == 1
    assert len(lives_of(local, "a")) == 2
    assert local.run("fsck").stdout.endswith("clean\n")


def test_a_run_that_lost_its_last_life_is_dead_and_says_that_its_worker_was_lost(local: Controller) -> None:
    submit(local, "a")
    local.run("reconcile", "--apply", check=True)
    runs(local, "a")
    kill(*workers(local).values())
    run = collect(local, "a", "failed")
    assert (run["crashes"], run["failures"]) == (1, 0)
    assert "lost" in run["last_error"]
    assert leases_expired(local, "a") == 1


def test_a_step_whose_processes_are_killed_failed_and_its_worker_goes_on(local: Controller) -> None:
    submit(local, "a", "exit 0", "--attempts", "2", "--crashes", "1")
    local.run("reconcile", "--apply", check=True)
    runs(local, "a")
    before = workers(local)
    (first,) = lives_of(local, "a")
    os.killpg(first, signal.SIGKILL)

    def again() -> bool:
        local.run("reconcile", "--apply")
        return len(lives_of(local, "a")) == 2

    wait_until(again, "a second life")
    run = run_of(local, "a")
    assert (run["crashes"], run["failures"]) == (0, 1)
    assert "killed by signal 9" in run["last_error"]
    assert workers(local) == before
    let(local, "a")
    collect(local, "a", "succeeded")


def test_a_lost_worker_takes_nothing_from_the_others(local: Controller) -> None:
    submit(local, "a", "exit 0", "--crashes", "2")
    submit(local, "b")
    local.run("reconcile", "--apply", check=True)
    runs(local, "a", "b")
    slot = local.json("show", "a")["run"]["worker"]["slot"]
    before = workers(local)
    lost = next(name for name in before if name.startswith(f"{slot}-"))
    kill(before[lost])
    let(local, "a", "b")
    collect(local, "a", "succeeded")
    collect(local, "b", "succeeded")
    assert len(lives_of(local, "b")) == 1
    assert leases_expired(local, "b") == 0


# --- Controllers that are lost


@pytest.mark.parametrize("kind", ["run", "reconcile"])
def test_a_controller_that_comes_after_a_killed_one_collects_how_everything_ended(
    controller: Controller, kind: str
) -> None:
    controller.init("--slots", "4")
    ends = {"good": "exit 0", "seven": "exit 7", "killed": "kill -9 $$", "long": "exit 0"}
    for name, end in ends.items():
        submit(controller, name, end)
    if kind == "run":
        first = controller.popen("run")
        runs(controller, *ends)
    else:  # as cron would: one is killed at its work, the next does the rest, and none is there when they end
        first = controller.popen("reconcile", "--apply")
        wait_until(lambda: any(lives_of(controller, name) for name in ends), "the first step")
    first.kill()
    first.wait()
    if kind == "reconcile":
        controller.run("reconcile", "--apply", check=True)
        runs(controller, *ends)
    let(controller, "good", "seven", "killed")
    for name in ("good", "seven", "killed"):
        (pid,) = lives_of(controller, name)
        wait_until(lambda pid=pid: not alive(pid), f"the end of {name}")  # type: ignore[misc] # its default is its type
    if kind == "run":
        later = Staying(controller.popen("run"))
        wait_until(
            lambda: all(
                run_of(controller, name)["state"] in {"succeeded", "failed"} for name in ends if name != "long"
            ),
            "all that has ended is collected",
        )
        let(controller, "long")
        wait_until(lambda: run_of(controller, "long")["state"] == "succeeded", "the end of long")
        assert later.end(signal.SIGTERM).exit == 0
    else:
        collect(controller, "good", "succeeded")
        let(controller, "long")
        collect(controller, "long", "succeeded")
    seven, killed = run_of(controller, "seven"), run_of(controller, "killed")
    assert seven["steps"][0]["attempts"][-1]["exit_code"] == 7
    assert killed["steps"][0]["attempts"][-1]["signal"] == signal.SIGKILL
    assert (seven["crashes"], killed["crashes"]) == (0, 0)
    for name in ends:
        assert controller.run("logs", name, check=True).stdout == "begun\nended\n"
        assert len(lives_of(controller, name)) == 1, "nothing is done twice"
    creates = [event for event in controller.json("history")["events"] if event["to"] == "create"]
    assert len(creates) == 4
    assert controller.run("fsck").stdout.endswith("clean\n")


def test_a_worker_that_was_lost_while_no_controller_lived_is_found_lost_by_the_next(local: Controller) -> None:
    submit(local, "a", "exit 0", "--crashes", "2")
    submit(local, "b", "exit 3")
    service = local.popen("run")
    runs(local, "a", "b")
    service.kill()
    service.wait()
    slot = run_of(local, "a")["worker"]["slot"]
    kill(next(pid for name, pid in workers(local).items() if name.startswith(f"{slot}-")))
    let(local, "b")
    later = Staying(local.popen("run"))
    runs(local, "a", life=2)
    let(local, "a")
    wait_until(lambda: run_of(local, "a")["state"] == "succeeded", "the end of a")
    wait_until(lambda: run_of(local, "b")["state"] == "failed", "the end of b")
    assert later.end(signal.SIGTERM).exit == 0
    assert run_of(local, "b")["steps"][0]["attempts"][-1]["exit_code"] == 3
    assert leases_expired(local, "a") == 1
    (first, _) = lives_of(local, "a")
    assert not alive(first)
    assert local.run("fsck").stdout.endswith("clean\n")


def test_a_step_that_ended_before_its_worker_was_killed_is_collected_as_it_ended(local: Controller) -> None:
    submit(local, "a", "exit 0", "--crashes", "1")
    local.run("reconcile", "--apply", check=True)
    runs(local, "a")
    ((name, supervisor),) = workers(local).items()
    let(local, "a")
    memory = local.state / "workers" / name / "memory.jsonl"
    wait_until(lambda: re.search(rb'"record":"ended"', memory.read_bytes()) is not None, "the record of its end")
    kill(supervisor)
    collect(local, "a", "succeeded")
    assert len(lives_of(local, "a")) == 1
    assert leases_expired(local, "a") == 0


# --- New compute for what is left


@pytest.fixture
def left(local: Controller) -> Controller:
    """A fleet whose run `a` failed with its worker, which is kept until it is released."""
    local.configure("fleet", 'release = "proof"')
    submit(local, "a")
    local.run("reconcile", "--apply", check=True)
    runs(local, "a")
    kill(*workers(local).values())
    collect(local, "a", "failed")
    return local


RESUME = ("resume", "a", "--reason", "its data is good", "--confirm-resume")


def goes_on(controller: Controller, name: str) -> None:
    """The run's second life is on the worker *name*, in its next generation, and nothing is there twice."""

    def again() -> bool:
        controller.run("reconcile", "--apply")
        return len(lives_of(controller, "a")) == 2

    wait_until(again, "a second life")
    assert list(workers(controller)) == [name]
    worker = controller.json("show", "slot:1")["slot"]["worker"]
    assert (worker["state"], worker["generation"]) == ("assigned", 2)
    let(controller, "a")
    collect(controller, "a", "succeeded")
    creates = [event for event in controller.json("history")["events"] if event["to"] == "create"]
    assert len(creates) == 2
    assert len(lives_of(controller, "a")) == 2
    assert controller.run("fsck").stdout.endswith("clean\n")


def test_a_lost_worker_is_resumed_on_its_own_data(left: Controller) -> None:
    (directory,) = (left.state / "workers").iterdir()
    before = directory.stat().st_ino
    left.run(*RESUME, check=True)
    goes_on(left, directory.name)
    assert directory.stat().st_ino == before


def test_a_resume_whose_controller_is_killed_as_it_makes_the_process_is_finished_by_the_next(left: Controller) -> None:
    (directory,) = (left.state / "workers").iterdir()
    assert run_dying(left, "posix_spawn", 1, *RESUME).exit == -signal.SIGKILL
    (pending,) = left.json("status")["pending_mutations"]
    left.run("replay-pending", check=True)
    keys = {event["key"] for event in left.json("history")["events"] if event["to"] == "create"}
    assert pending["idempotency_key"] in keys
    goes_on(left, directory.name)


def test_a_resume_while_the_worker_lives_is_refused_and_leaves_it_alone(local: Controller) -> None:
    local.configure("fleet", 'release = "proof"')
    submit(local, "a")
    local.run("reconcile", "--apply", check=True)
    runs(local, "a")
    before = workers(local)
    result = local.run(*RESUME)
    assert result.exit == 3, str(result)
    assert (workers(local), run_of(local, "a")["state"]) == (before, "running")
