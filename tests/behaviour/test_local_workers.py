"""Real workers: what they run is collected exactly, and ends with every process. L5, P6 to P8, Q1, Q3."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from controller.provider.local import log
from tests.behaviour.driver import Controller, belongs
from tests.behaviour.provider_program import wait_until

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def local(controller: Controller) -> Controller:
    """A fleet of two local workers."""
    controller.init("--slots", "2")
    return controller


def start(controller: Controller, run_id: str, *argv: str, options: tuple[str, ...] = ()) -> None:
    """Submit *argv* and let a worker take it."""
    controller.run("submit", "--id", run_id, *options, "--", *argv, check=True)
    controller.run("reconcile", "--apply", check=True)


def run_of(controller: Controller, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = controller.json("show", run_id)["run"]
    return run


def collect(controller: Controller, run_id: str, *states: str) -> dict[str, Any]:
    """Reconcile until the run is in one of *states*; then the run."""

    def there() -> bool:
        controller.run("reconcile", "--apply")
        return run_of(controller, run_id)["state"] in states

    wait_until(there, f"{run_id} in {states}")
    return run_of(controller, run_id)


def ours(controller: Controller) -> list[int]:
    """Pids of every living process of this test."""
    found = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in found if pid != os.getpid() and belongs(pid, controller.home)]


def descriptors(pid: int) -> list[str]:
    """What the process has open; what it closes meanwhile is left out."""
    found = []
    for entry in (Path("/proc") / str(pid) / "fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(entry.readlink()))
    return found


def command_line(pid: int) -> bytes:
    """The process's command line; b"" when it has ended meanwhile."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return (Path("/proc") / str(pid) / "cmdline").read_bytes()
    return b""


def last_attempt(run: dict[str, Any]) -> dict[str, Any]:
    attempt: dict[str, Any] = run["steps"][0]["attempts"][-1]
    return attempt


def test_a_command_is_done_by_a_real_process_and_its_output_is_kept(local: Controller) -> None:
    start(local, "a", "sh", "-c", "echo out; echo err >&2; pwd")
    collect(local, "a", "succeeded")
    written = local.run("logs", "a", check=True).stdout
    assert "out\n" in written
    assert "err\n" in written
    assert str(local.home) not in written.splitlines() or "scratch" in written


# --- P7: exit status after a restart


@pytest.mark.parametrize(
    ("command", "code", "number"), [("sleep 1; exit 7", 7, None), ("sleep 1; kill -9 $$", None, 9)]
)
def test_p7_a_later_process_collects_how_a_step_ended(
    local: Controller, command: str, code: int | None, number: int | None
) -> None:
    start(local, "a", "sh", "-c", command)
    assert run_of(local, "a")["state"] == "running"
    run = collect(local, "a", "failed")
    attempt = last_attempt(run)
    assert (attempt["exit_code"], attempt["signal"]) == (code, number)


def test_p7_an_end_that_nobody_can_know_is_never_a_success(local: Controller) -> None:
    start(local, "a", "sleep", "60", options=("--attempts", "1"))
    (worker,) = (local.state / "workers").iterdir()
    supervisor = json.loads(worker.joinpath("pid").read_bytes())["pid"]
    os.kill(supervisor, signal.SIGKILL)
    run = collect(local, "a", "failed")
    assert run["crashes"] == 1
    assert "lost" in run["last_error"]


# --- Q1: crashes count


def test_q1_a_run_whose_worker_dies_each_time_is_dead_after_exactly_its_crash_budget(local: Controller) -> None:
    suicide = "echo life >> $HOME/lives; kill -9 $PPID; sleep 60"
    local.run("submit", "--id", "a", "--attempts", "3", "--", "sh", "-c", suicide, check=True)
    local.configure("backoff.retry", 'initial = "1ms"', 'cap = "1ms"')
    run = collect(local, "a", "failed")
    assert (run["attempts"], run["crashes"], run["failures"]) == (3, 3, 0)
    assert (local.home / "lives").read_text().splitlines() == ["life"] * 3


# --- P8: lifetimes


def test_p8_the_reader_of_a_reconcile_sees_its_end_though_the_step_runs_on(local: Controller) -> None:
    local.run("submit", "--id", "a", "--", "sleep", "60", check=True)
    line = f"{shlex.join(local.command('reconcile', '--apply'))} | cat"
    began = time.monotonic()
    subprocess.run(["sh", "-c", line], cwd=local.home, env=local.env, check=True, timeout=30, capture_output=True)
    assert time.monotonic() - began < 20, "cat waited for the step, which sleeps a minute"
    assert run_of(local, "a")["state"] == "running"
    local.run("reconcile", "--apply", check=True)
    assert run_of(local, "a")["state"] == "running"


def test_p8_ctrl_c_to_the_foreground_group_leaves_the_step_running_and_elsewhere(local: Controller) -> None:
    local.run("submit", "--id", "a", "--", "sh", "-c", "pwd; exec sleep 60", check=True)
    process = local.popen("reconcile", "--apply")
    wait_until(lambda: run_of(local, "a")["state"] == "running", "the start of the step")
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert process.poll() is not None
    local.run("reconcile", "--apply", check=True)
    assert run_of(local, "a")["state"] == "running"
    wait_until(lambda: local.run("logs", "a").exit == 0, "its first line")
    assert local.run("logs", "a", check=True).stdout.strip() != str(local.home)


# --- L5: inherited descriptors


def test_l5_a_worker_and_its_step_hold_no_descriptor_of_the_document_or_of_a_lock(local: Controller) -> None:
    start(local, "a", "sleep", "60")
    held = [path for pid in ours(local) for path in descriptors(pid)]
    assert held
    own = (str(local.state / "workers"), str(local.state / "logs"))
    assert [path for path in held if path.startswith(str(local.state)) and not path.startswith(own)] == []
    local.run("--lock-timeout", "0ms", "submit", "--id", "b", "--", "true", check=True)
    local.run("reconcile", "--apply", check=True)
    collect(local, "b", "succeeded")


# --- P6: identity that lies


@pytest.mark.parametrize("pid", [0, -1, 1, True, 2**40])
def test_p6_a_recorded_group_that_is_not_provably_ours_is_never_signalled_and_the_others_go_on(
    local: Controller, pid: object
) -> None:
    bystander = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        start(local, "a", "sleep", "60")
        (worker,) = (local.state / "workers").iterdir()
        supervisor = json.loads((worker / "pid").read_bytes())["pid"]
        os.kill(supervisor, signal.SIGKILL)
        memory = (worker / "memory.jsonl").read_text()
        (group,) = re.findall(r'"group":\{"pid":(\d+)', memory)
        (worker / "memory.jsonl").write_text(memory.replace(f'"pid":{group}', f'"pid":{json.dumps(pid)}'))
        result = local.run("cancel", "a")
        assert result.exit in {0, 5}, str(result)
        assert "Traceback" not in result.stderr
        assert "memory.jsonl" in local.run("reconcile", "--apply").stdout
        start_more = local.run("submit", "--id", "b", "--", "true", check=True)
        assert start_more.stdout.strip() == "b"
        collect(local, "b", "succeeded")
        assert bystander.poll() is None
        assert (Path("/proc") / group).exists(), "what the record says has no standing to end it"
    finally:
        bystander.kill()
        bystander.wait()


# --- Cancel


def test_q3_a_cancel_ends_every_process_of_the_step_also_those_that_ignore_term(local: Controller) -> None:
    local.configure("fleet", 'kill_grace = "200ms"')
    start(local, "a", "sh", "-c", "trap '' TERM; sleep 61 & sleep 62 & echo ready; wait; sleep 63")
    wait_until(lambda: "ready" in local.run("logs", "a").stdout, "the start of its children")
    local.run("cancel", "a", check=True)
    run = collect(local, "a", "cancelled")
    assert run["reason"] == "cancelled"
    lines = [command_line(pid) for pid in ours(local)]
    assert not any(line.startswith(b"sleep\x006") for line in lines)
    assert local.run("cancel", "a").exit == 3
    assert local.run("fsck", check=True).exit == 0


def test_q3_a_cancel_between_the_park_of_an_execute_and_its_answer_leaves_no_process(local: Controller) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    start(local, "first", "true")
    collect(local, "first", "succeeded")
    local.run("submit", "--id", "a", "--", "sleep", "600", check=True)
    # The worker is there: the controller's first connection is for the execute, and it dies as it makes it.
    inject = ("-e", "trace=connect", "-e", "inject=connect:signal=KILL:when=1")
    subprocess.run(
        [strace, "-f", "-qq", "-o", str(local.home / "trace"), *inject, *local.command("reconcile", "--apply")],
        cwd=local.home,
        env=local.env,
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert [each["type"] for each in local.json("status")["pending_mutations"]] == ["execute"]
    local.run("cancel", "a", check=True)
    assert collect(local, "a", "cancelled")["attempts"] == 1
    lines = [command_line(pid) for pid in ours(local)]
    assert not any(line.startswith(b"sleep") for line in lines)
    assert local.run("fsck", check=True).exit == 0


def test_q3_a_run_that_ended_first_is_not_cancelled(local: Controller) -> None:
    start(local, "a", "true")
    collect(local, "a", "succeeded")
    refused = local.run("cancel", "a", "--json")
    assert refused.exit == 3
    assert run_of(local, "a")["state"] == "succeeded"


def test_a_step_that_outlives_its_timeout_is_ended_by_its_worker(local: Controller) -> None:
    start(local, "a", "sleep", "60", options=("--timeout", "300ms"))
    run = collect(local, "a", "failed")
    assert last_attempt(run)["reason"] == "timed_out"


def test_a_command_that_is_not_found_fails_and_suggests_where_to_look(local: Controller) -> None:
    start(local, "a", "./build.sh")
    run = collect(local, "a", "failed")
    assert last_attempt(run)["exit_code"] == 127
    assert "--cwd ." in run["last_error"]
    told = local.run("explain", "a", check=True).stdout
    assert "next: Check the path" in told
    assert "controller logs" not in told
    logs = local.run("logs", "a", check=True)
    assert (logs.stdout, logs.stderr) == ("", "run a wrote nothing\n")
    error = local.json("logs", "a", "--step", "x", exit=4)["error"]
    assert error["next"] == "controller logs a --step main"
    assert "step 'x'" in error["what"]
    assert "has started" not in error["what"]


def test_cwd_is_where_the_caller_stood(local: Controller) -> None:
    start(local, "a", "pwd", options=("--cwd", "."))
    collect(local, "a", "succeeded")
    assert local.run("logs", "a", check=True).stdout.strip() == str(local.home)


def test_a_failed_run_is_retried_by_hand_and_its_token_climbs(local: Controller) -> None:
    start(local, "a", "sh", "-c", "test -e $HOME/now")
    collect(local, "a", "failed")
    (local.home / "now").touch()
    local.run("retry", "a", check=True)
    run = collect(local, "a", "succeeded")
    assert run["token"] == 2
    assert local.run("retry", "a").exit == 3


def test_attempts_are_made_and_then_the_run_is_dead_with_its_last_error(local: Controller) -> None:
    local.configure("backoff.retry", 'initial = "1ms"', 'cap = "1ms"')
    start(local, "a", "sh", "-c", "exit 3", options=("--attempts", "2"))
    run = collect(local, "a", "failed")
    assert (run["attempts"], run["failures"], run["reason"]) == (2, 2, "attempts_exhausted")
    assert "exited with 3" in run["last_error"]
    assert local.run("logs", "a", "--all", "--json").json()["logs"][-1]["token"] == 2


def test_a_controller_killed_while_it_makes_a_worker_makes_no_second_one(local: Controller) -> None:
    local.run("submit", "--id", "a", "--", "true", check=True)
    process = local.popen("reconcile", "--apply")
    wait_until(lambda: (local.state / "workers").is_dir() and any((local.state / "workers").iterdir()), "a worker")
    process.kill()
    process.wait()
    collect(local, "a", "succeeded")
    assert len(list((local.state / "workers").iterdir())) == 1


def test_drain_lets_work_end_empties_the_fleet_and_leaves_no_process_behind(local: Controller) -> None:
    start(local, "a", "sleep", "1")
    local.run("submit", "--id", "b", "--", "true", check=True)
    local.run("drain", "--all", check=True)
    assert run_of(local, "a")["state"] == "succeeded"
    assert run_of(local, "b")["state"] == "queued"
    assert ours(local) == []
    assert list((local.state / "workers").iterdir()) == []
    local.run("reconcile", "--apply", check=True)
    assert run_of(local, "b")["state"] == "queued"
    local.run("drain", "--off", check=True)
    collect(local, "b", "succeeded")


def test_an_idle_worker_is_reused_and_then_torn_down(local: Controller) -> None:
    local.configure("fleet", 'idle = "1s"')
    start(local, "a", "true")
    collect(local, "a", "succeeded")
    start(local, "b", "true")
    collect(local, "b", "succeeded")
    creates = [event for event in local.json("history")["events"] if event["to"] == "create"]
    assert len(creates) == 1

    def gone() -> bool:
        local.run("reconcile", "--apply", check=True)
        return not any(local.json("status")["workers"].values())

    wait_until(gone, "the end of the idle worker")
    assert ours(local) == []


def test_a_very_long_state_directory_works(controller: Controller) -> None:
    controller.state = controller.home / ("d" * 120) / ("e" * 120) / "state"
    controller.init()
    start(controller, "a", "echo", "far away")
    collect(controller, "a", "succeeded")
    assert controller.run("logs", "a", check=True).stdout == "far away\n"


def test_values_of_variables_reach_the_command_and_are_shown_by_name_only(local: Controller) -> None:
    start(local, "a", "sh", "-c", 'test "$SECRET" = hush', options=("--env", "SECRET=hush"))
    collect(local, "a", "succeeded")
    shown = local.run("show", "a", check=True).stdout + local.run("show", "a", "--json", check=True).stdout
    assert "SECRET" in shown
    assert "hush" not in shown.replace("= hush", "")


def test_the_environment_of_a_step_is_what_help_and_readme_say(local: Controller) -> None:
    local.configure("provider", 'pass_env = ["PASSED"]')
    local.configure("provider.env", 'PATH = "/usr/bin:/bin"', 'SET = "file"', 'LANG = "file"')
    local.run("submit", "--id", "a", "--env", "LANG=typed", "--", "env", check=True)
    local.run("reconcile", "--apply", check=True, env={"PASSED": "yes", "OTHER": "no"})
    collect(local, "a", "succeeded")
    given = dict(line.split("=", 1) for line in local.run("logs", "a", check=True).stdout.splitlines())
    expected = {"PATH": "/usr/bin:/bin", "HOME": str(local.home), "LANG": "typed", "PASSED": "yes", "SET": "file"}
    expected |= {"CONTROLLER_STATE_DIR": str(local.state), "CONTROLLER_RUN": "a", "CONTROLLER_STEP": "main"}
    expected |= {"CONTROLLER_ATTEMPT": "1", "CONTROLLER_TOKEN": "1"}
    assert len(given.pop("CONTROLLER_IDEMPOTENCY_KEY")) == 64
    assert given == expected
    named = {*expected, "CONTROLLER_IDEMPOTENCY_KEY"} - {"PASSED", "SET"}
    for page in (local.run("submit", "--help", check=True).stdout, README.read_text()):
        assert [name for name in named if name not in page] == []


def test_the_bounds_of_a_log_are_the_ones_that_help_says(controller: Controller) -> None:
    page = " ".join(controller.run("logs", "--help", check=True).stdout.split())
    assert f"the first {log.HEAD >> 20} MiB and the last {log.TAIL >> 10} KiB" in page


def test_a_provider_kind_that_changed_while_its_workers_live_is_refused(local: Controller) -> None:
    start(local, "a", "true")
    path = local.state / "controller.toml"
    path.write_text(path.read_text().replace('kind = "local"', 'kind = "command"\ncommand = ["/bin/true"]'))
    error = local.json("reconcile", "--apply", exit=3)["error"]
    assert "slot 1" in error["where"]
    assert "drain --all" in error["next"]


def test_one_worker_that_cannot_be_read_hides_no_other_and_a_drain_ends_saying_so(local: Controller) -> None:
    (local.state / "workers").mkdir(mode=0o700)
    (local.state / "workers" / "2-x").mkdir()
    local.run("submit", "--id", "a", "--", "true", check=True)
    collect(local, "a", "succeeded")
    assert "2-x" in local.run("reconcile", "--apply").stdout
    drained = local.run("drain", "--all", timeout=30)
    assert not any(local.json("status")["workers"].values()), str(drained)


def test_a_state_directory_that_was_moved_takes_its_workers_along(local: Controller) -> None:
    start(local, "first", "true")
    collect(local, "first", "succeeded")
    moved = local.home / "elsewhere"
    local.state.rename(moved)
    old, local.state = local.state, moved
    start(local, "a", "sh", "-c", "echo here > mark; pwd")
    collect(local, "a", "succeeded")
    assert not old.exists()
    assert local.run("logs", "a", check=True).stdout.strip() == str(moved / "scratch" / "a")


def test_a_drain_that_is_lifted_meanwhile_ends_and_says_so(local: Controller) -> None:
    start(local, "a", "sleep", "60")
    process = local.popen("drain", "--all")
    wait_until(lambda: local.json("status")["draining"], "the start of the drain")
    local.run("drain", "--off", check=True)
    stdout, _ = process.communicate(timeout=30)
    assert "lifted" in stdout
