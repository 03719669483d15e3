"""Waiting for runs and following what they write, with real workers: `submit --wait`, `wait`, `logs --follow`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.faults import durable
from tests.behaviour.provider_program import Program, wait_until

GATED = "echo begun; read line < $HOME/gate; echo $line; exit ${code:-0}"
"""Says that it has begun, and ends only when the test has opened the gate."""


@pytest.fixture
def local(controller: Controller) -> Controller:
    """A fleet of two local workers whose failed runs are tried again at once, and a gate."""
    controller.init("--slots", "2")
    controller.configure("backoff.retry", 'initial = "20ms"', 'cap = "20ms"')
    os.mkfifo(controller.home / "gate")
    return controller


def open_gate(controller: Controller, word: str = "ended") -> None:
    """Let the step that waits at the gate, or that comes to it, go on; it says *word*."""
    (controller.home / "gate").write_text(f"{word}\n")


def state_of(controller: Controller, run: str) -> str:
    state: str = controller.json("show", run)["run"]["state"]
    return state


def finish(process: subprocess.Popen[str], exit_code: int) -> tuple[str, str]:
    """What it still wrote; a failed assertion if it exits with anything else."""
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == exit_code, f"exit {process.returncode}\n{stdout}\n{stderr}"
    return stdout, stderr


def begin(controller: Controller, *options: str) -> subprocess.Popen[str]:
    """Submit run `a`, which waits at the gate, and wait for it; returns once its output has come through."""
    waiter = controller.popen("submit", "--id", "a", "--wait", *options, "--", "sh", "-c", GATED)
    assert waiter.stdout is not None
    assert waiter.stdout.readline() == "begun\n"
    return waiter


# submit --wait


def test_submit_wait_serves_the_run_shows_what_it_writes_and_exits_with_its_end(local: Controller) -> None:
    good = local.run("submit", "--wait", "--id", "a", "--", "sh", "-c", "echo out; echo err >&2; printf partial")
    assert (good.exit, good.stdout) == (0, "out\nerr\npartial")
    assert "run a succeeded" in good.stderr
    bad = local.run("submit", "--wait", "--id", "b", "--", "sh", "-c", "echo out; exit 7")
    assert (bad.exit, bad.stdout) == (9, "out\n")
    assert "run b failed: step main exited with 7" in bad.stderr
    assert "controller retry b" in bad.stderr
    told = local.json("submit", "--wait", "--id", "c", "--", "sh", "-c", "echo out; exit 7", exit=9)
    assert told["schema"] == "controller.wait/1"
    assert [(run["id"], run["state"], run["reason"]) for run in told["runs"]] == [("c", "failed", "step_failed")]


def test_output_comes_before_the_end_and_all_of_it_before_the_command_exits(local: Controller) -> None:
    waiter = begin(local)
    assert waiter.poll() is None
    assert state_of(local, "a") == "running"
    open_gate(local)
    stdout, stderr = finish(waiter, 0)
    assert stdout == "ended\n"
    assert "run a succeeded" in stderr


def test_the_step_that_output_comes_from_is_named_when_there_are_several(local: Controller) -> None:
    graph = local.home / "graph.json"
    steps = [{"name": "build", "argv": ["echo", "1"]}, {"name": "test", "argv": ["echo", "2"], "needs": ["build"]}]
    graph.write_text(json.dumps({"id": "a", "steps": steps}))
    result = local.run("submit", "--wait", "--file", str(graph), check=True)
    assert result.stdout == "1\n2\n"
    headers = [line for line in result.stderr.splitlines() if line.startswith("---")]
    assert headers == [f"--- run a, step {step}, life 1, attempt 1" for step in ("build", "test")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_the_run_going_and_says_how_to_come_back(local: Controller, number: signal.Signals) -> None:
    waiter = begin(local)
    waiter.send_signal(number)
    _, stderr = finish(waiter, 130)
    assert "run a goes on; next: controller wait a" in stderr
    assert state_of(local, "a") == "running"
    again = local.popen("wait", "a")
    open_gate(local)
    stdout, _ = finish(again, 0)
    assert stdout.splitlines()[0] == "run a succeeded"


def test_a_waiter_that_is_killed_takes_nothing_with_it(local: Controller) -> None:
    waiter = begin(local)
    waiter.kill()
    finish(waiter, -signal.SIGKILL)
    again = local.popen("wait", "--follow", "a")
    open_gate(local)
    stdout, _ = finish(again, 0)
    assert stdout == "begun\nended\n"


def test_what_cannot_be_shown_changes_nothing_about_the_run_or_the_exit_code(local: Controller) -> None:
    line = shlex.join(local.command("submit", "--wait", "--id", "a", "--", "sh", "-c", "echo out; exit 7"))
    full = subprocess.run(
        ["sh", "-c", f"{line} > /dev/full"],
        cwd=local.home,
        env=local.env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert full.returncode == 9, full.stderr
    assert full.stderr.count("could not be written") == 1
    assert "run a failed" in full.stderr


# wait


def test_two_waits_and_reconciles_beside_them_are_no_trouble_to_each_other(local: Controller) -> None:
    for run in ("a", "b"):
        script = f"echo {run}; until test -e $HOME/open; do sleep 0.05; done"
        local.run("submit", "--id", run, "--", "sh", "-c", script, check=True)
    waiters = [local.popen("wait", "--follow", "a", "b") for _ in range(2)]
    for _ in range(3):
        assert local.run("reconcile", "--apply").exit in (0, 6)
    (local.home / "open").touch()
    wait_until(lambda: all(each.poll() is not None for each in waiters), "both waits end")
    for waiter in waiters:
        stdout, stderr = finish(waiter, 0)
        assert sorted(stdout.split()) == ["a", "b"]
        assert "run a succeeded" in stderr
        assert "trouble" not in stderr
    assert [run["attempts"] for run in local.json("runs")["runs"]] == [1, 1]


def test_one_that_failed_among_several_makes_it_exit_with_9(local: Controller) -> None:
    local.run("submit", "--id", "a", "--", "true", check=True)
    local.run("submit", "--id", "b", "--", "false", check=True)
    assert local.run("wait", "a", "b").exit == 9
    assert local.run("wait", "a").exit == 0
    assert local.run("wait", "a", "nobody").exit == 4


def test_what_has_ended_is_told_at_once_whatever_the_settings_and_the_workers_are(local: Controller) -> None:
    local.run("submit", "--wait", "--id", "a", "--", "echo", "out", check=True)
    (local.state / "controller.toml").write_text("nonsense")
    before = durable(local)
    result = local.run("wait", "a")
    assert (result.exit, result.stdout) == (0, "run a succeeded\n"), result
    assert local.run("wait", "--follow", "a").stdout == "out\n"
    assert durable(local) == before


def test_a_time_out_exits_with_6_and_leaves_the_run_going(local: Controller) -> None:
    local.run("submit", "--id", "a", "--", "sh", "-c", GATED, check=True)
    local.run("reconcile", "--apply", check=True)
    late = local.run("wait", "--timeout", "100ms", "a")
    assert late.exit == 6
    assert "not ended after 0.1 s: a is running" in late.stderr
    assert "it goes on; controller wait a" in late.stderr
    assert local.json("wait", "--timeout", "100ms", "a", exit=6)["error"]["code"] == "still_running"
    assert state_of(local, "a") == "running"


def test_without_driving_it_only_watches(local: Controller) -> None:
    local.run("submit", "--id", "a", "--", "true", check=True)
    before = durable(local)
    assert local.run("wait", "--no-drive", "--timeout", "600ms", "a").exit == 6
    watcher = local.popen("wait", "--no-drive", "a")
    stopped = local.popen("wait", "--no-drive", "--follow", "a")
    assert durable(local) == before
    assert watcher.poll() is None
    stopped_by(stopped, signal.SIGTERM, "run a stays queued; next: controller wait --no-drive a")
    local.run("wait", "a", check=True)
    assert finish(watcher, 0)[0] == "run a succeeded\n"


def stopped_by(process: subprocess.Popen[str], number: signal.Signals, words: str) -> None:
    """*number* makes it exit with 130 and say *words*; sent once it heeds it."""
    status = Path(f"/proc/{process.pid}/status")

    def heeds() -> bool:
        caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)

    wait_until(heeds, f"it heeds {number.name}")
    process.send_signal(number)
    _, stderr = finish(process, 130)
    assert words in stderr


def test_what_a_run_waits_for_is_told_once(local: Controller) -> None:
    local.run("drain", "--all", check=True)
    waiter = local.popen("submit", "--wait", "--id", "a", "--", "true")
    assert waiter.stderr is not None
    told = [waiter.stderr.readline() for _ in range(2)]
    assert told == ["run a\n", "run a waits: The fleet is draining: it takes nothing new.\n"]
    local.run("drain", "--off", check=True)
    _, stderr = finish(waiter, 0)
    assert "draining" not in stderr


def test_trouble_with_the_provider_is_told_and_waited_out(controller: Controller) -> None:
    program = Program(controller)
    program.always("inventory", {"instead": "not json"})
    waiter = controller.popen("submit", "--wait", "--id", "a", "--", "true")
    assert waiter.stderr is not None
    assert waiter.stderr.readline() == "run a\n"
    assert waiter.stderr.readline().startswith("trouble: ")
    program.honest("inventory")
    waiter.send_signal(signal.SIGINT)
    _, stderr = finish(waiter, 130)
    assert "run a stays queued; next: controller wait a" in stderr
    program.next("create", {"do": False, "reply": {"outcome": "rejected", "reason": "no quota today"}})
    controller.configure("backoff.create", 'initial = "20ms"', 'cap = "20ms"')
    result = controller.run("wait", "a")
    assert (result.exit, result.stdout) == (0, "run a succeeded\n"), result
    assert result.stderr.count("no quota today") == 1


def test_a_second_interrupt_ends_it_though_the_provider_has_not_answered(controller: Controller) -> None:
    program = Program(controller)
    program.next("create", {"wait_for": "never"})
    waiter = controller.popen("submit", "--wait", "--id", "a", "--", "true")
    wait_until(lambda: any(call[0] == "create" for call in program.calls()), "the create is asked for")
    waiter.send_signal(signal.SIGINT)
    assert waiter.stderr is not None
    assert waiter.stderr.readline() == "run a\n"
    assert "once more to stop at once" in waiter.stderr.readline()
    waiter.send_signal(signal.SIGINT)
    finish(waiter, 130)
    assert controller.run("wait", "a").exit == 0
    assert len({key for kind, _, key in program.calls() if kind == "create"}) == 1


# logs --follow


def test_logs_are_followed_through_every_life_until_the_run_has_ended(local: Controller) -> None:
    script = "echo life $CONTROLLER_TOKEN; read line < $HOME/gate; echo $line; test $line = ended"
    local.run("submit", "--id", "a", "--attempts", "2", "--", "sh", "-c", script, check=True)
    follower = local.popen("logs", "--follow", "a")
    waiter = local.popen("wait", "a")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "life 1\n"
    open_gate(local, "failed")
    assert [follower.stdout.readline() for _ in range(2)] == ["failed\n", "life 2\n"]
    open_gate(local, "ended")
    stdout, stderr = finish(follower, 0)
    assert stdout == "ended\n"
    assert stderr == "--- run a, step main, life 2, attempt 1\n"
    finish(waiter, 0)


def test_a_reader_that_goes_away_ends_the_following_quietly(local: Controller) -> None:
    waiter = begin(local)
    line = shlex.join(local.command("logs", "-f", "a"))
    piped = subprocess.run(
        ["sh", "-c", f"{{ {line}; echo exit $? >&2; }} | head -n 1"],
        cwd=local.home,
        env=local.env,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (piped.stdout, piped.stderr) == ("begun\n", "exit 0\n")
    assert state_of(local, "a") == "running"
    open_gate(local)
    finish(waiter, 0)
    with open("/dev/full", "wb") as full:
        command = local.command("logs", "-f", "a")
        assert subprocess.run(command, env=local.env, stdout=full, timeout=30, check=False).returncode == 8


def test_what_there_is_nothing_to_follow_of_is_refused(local: Controller) -> None:
    local.run("submit", "--id", "a", "--", "true", check=True)
    assert local.json("logs", "--follow", "a", exit=2)["error"]["code"] == "usage"
    local.run("withdraw", "a", check=True)
    result = local.run("logs", "--follow", "a")
    assert result.exit == 4
    assert "no step of run a has started yet" in result.stderr
