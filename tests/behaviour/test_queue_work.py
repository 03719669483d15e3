"""`controller queue work`: runs are claimed, done by a program, and reported; signals, cancels and lost leases."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.driver import Controller, Result, Staying
from tests.behaviour.faults import document, durable
from tests.behaviour.provider_program import wait_until


class Consumer(Staying):
    """A `queue work` of this test that runs a shell script."""

    def __init__(self, controller: Controller, script: str, *options: str, env: dict[str, str] | None = None) -> None:
        super().__init__(controller.popen("queue", "work", *options, "--", "sh", "-c", script, env=env))


@pytest.fixture
def queue(controller: Controller) -> Controller:
    controller.init()
    controller.configure("fleet", 'kill_grace = "500ms"')
    return controller


def submit(controller: Controller, name: str, payload: Any = None, *options: str) -> None:
    controller.run("submit", "--id", name, "--payload", json.dumps(payload), *options, check=True)


def work(controller: Controller, script: str, *options: str) -> Result:
    """Do all that there is with a shell script."""
    return controller.run("queue", "work", "--until-empty", *options, "--", "sh", "-c", script, check=True)


def appears(path: Path) -> None:
    wait_until(path.exists, f"{path.name} appears")


BLOCKS = "touch $CONTROLLER_RUN.runs; until [ -e go ]; do sleep 0.02; done"
STUBBORN = "trap 'touch told' TERM; touch $CONTROLLER_RUN.runs; while :; do sleep 0.02; done"
OBLIGING = "trap 'exit 3' TERM; touch $CONTROLLER_RUN.runs; while :; do sleep 0.02; done"


# --- One run after the other -----------------------------------------------------------------------------------------


def test_each_run_is_done_with_its_payload_on_stdin_and_completed(queue: Controller) -> None:
    submit(queue, "a", {"to": "ä", "n": 1})
    submit(queue, "b", [2])
    done = work(queue, "cat > $CONTROLLER_RUN.json")
    assert json.loads((queue.home / "a.json").read_text()) == {"to": "ä", "n": 1}
    assert json.loads((queue.home / "b.json").read_text()) == [2]
    assert set(document(queue)["finished"]) == {"a", "b"}
    assert done.stdout == "2 completed, 0 failed, 0 cancelled, 0 given back, 0 lost\n"


def test_the_answer_counts_and_stdout_carries_nothing_else(queue: Controller) -> None:
    submit(queue, "good")
    submit(queue, "bad")
    script = "echo noise; echo more >&2; test $CONTROLLER_RUN = good"
    done = queue.run("queue", "work", "--until-empty", "--json", "--", "sh", "-c", script)
    assert done.exit == 0
    answer = done.json()
    assert answer["schema"] == "controller.queue-work/1"
    assert {key: answer[key] for key in ("queue", "completed", "failed", "given_back", "lost", "signal")} == {
        "queue": "default",
        "completed": 1,
        "failed": 1,
        "given_back": 0,
        "lost": 0,
        "signal": None,
    }
    assert done.stderr.count("noise") == done.stderr.count("more") == 2


def test_a_line_tells_of_each_start_and_each_end_and_quiet_of_none(queue: Controller) -> None:
    submit(queue, "good")
    submit(queue, "bad")
    said = work(queue, "test $CONTROLLER_RUN = good").stderr
    assert "run good, life 1: started" in said
    assert "run good, life 1: completed" in said
    assert "run bad, life 1: failed: exit code 1; for good" in said
    submit(queue, "again")
    quiet = queue.run("--quiet", "queue", "work", "--until-empty", "--", "true", check=True)
    assert quiet.stdout == quiet.stderr == ""
    assert "again" in document(queue)["finished"]


def test_a_program_knows_its_run_and_nothing_of_the_consumer_or_of_who_started_it(queue: Controller) -> None:
    submit(queue, "mine", None, "--queue", "mail")
    outer = {"CONTROLLER_STEP": "outer", "CONTROLLER_RUN": "outer", "CONTROLLER_TOKEN": "77", "KEPT": "yes"}
    options = {"CONTROLLER_QUEUE_WORK_QUEUE": "mail", "CONTROLLER_QUEUE_WORK_UNTIL_EMPTY": "1"}
    queue.run("queue", "work", "--", "sh", "-c", "env > env", env=outer | options, check=True)
    env = dict(line.partition("=")[::2] for line in (queue.home / "env").read_text().splitlines())
    ours = {name: value for name, value in env.items() if name.startswith("CONTROLLER_")}
    assert len(ours.pop("CONTROLLER_IDEMPOTENCY_KEY")) == 64
    assert ours == {
        "CONTROLLER_STATE_DIR": str(queue.state),
        "CONTROLLER_QUEUE": "mail",
        "CONTROLLER_RUN": "mine",
        "CONTROLLER_TOKEN": "1",
        "CONTROLLER_ATTEMPT": "1",
    }
    assert env["KEPT"] == "yes"


def test_the_idempotency_key_is_the_same_in_every_life_and_another_for_another_run(queue: Controller) -> None:
    queue.configure("backoff.retry", 'initial = "1ms"', 'cap = "1ms"')
    submit(queue, "twice", None, "--attempts", "2")
    submit(queue, "other")
    consumer = Consumer(
        queue,
        "echo $CONTROLLER_RUN $CONTROLLER_ATTEMPT $CONTROLLER_IDEMPOTENCY_KEY >> keys; test $CONTROLLER_RUN = other",
    )
    left = {"run twice, life 2: failed", "run other, life 1: completed"}
    while left:
        line = consumer.says("run ")
        left = {text for text in left if text not in line}
    assert consumer.end(signal.SIGTERM).exit == 0
    lives = [line.split() for line in (queue.home / "keys").read_text().splitlines()]
    keys = {(run, int(attempt)): key for run, attempt, key in lives}
    assert set(keys) == {("twice", 1), ("twice", 2), ("other", 1)}
    assert keys["twice", 1] == keys["twice", 2] != keys["other", 1]


def test_a_program_may_call_controller_for_its_run(queue: Controller) -> None:
    submit(queue, "mine", None)
    command = queue.command()[0]
    script = (
        f'{command} queue heartbeat "$CONTROLLER_RUN" --token "$CONTROLLER_TOKEN" --progress 7 && {command} show mine'
    )
    assert "run mine, life 1: completed" in work(queue, script).stderr


def test_a_program_that_never_reads_a_large_payload_holds_nothing_up(queue: Controller) -> None:
    path = queue.home / "payload"
    path.write_text(json.dumps("x" * 900_000))
    queue.run("submit", "--id", "large", "--payload", f"@{path}", check=True)
    work(queue, "exit 0")
    assert "large" in document(queue)["finished"]


@pytest.mark.parametrize(
    ("script", "error"), [("exit 7", "exit code 7"), ("kill -9 $$", "killed by signal 9")], ids=["code", "signal"]
)
def test_any_other_end_is_a_failure_and_is_told_as_it_was(queue: Controller, script: str, error: str) -> None:
    submit(queue, "bad")
    assert work(queue, script).stdout.startswith("0 completed, 1 failed")
    run = document(queue)["runs"]["bad"]
    assert (run.get("state", "queued"), run["last_error"]) == ("failed", error)


def test_a_failed_run_with_budget_left_waits_for_its_next_life(queue: Controller) -> None:
    submit(queue, "twice", None, "--attempts", "2")
    assert "run twice, life 1: failed: exit code 1; tried again" in work(queue, "exit 1").stderr
    run = document(queue)["runs"]["twice"]
    assert (run.get("state", "queued"), run["defer_reason"], run["failures"]) == ("queued", "retry_backoff", 1)


def test_a_run_that_comes_later_is_taken_at_once(queue: Controller) -> None:
    consumer = Consumer(queue, "touch $CONTROLLER_RUN.done")
    submit(queue, "first")
    consumer.says("run first, life 1: completed")
    submit(queue, "second")
    consumer.says("run second, life 1: completed")
    assert consumer.end(signal.SIGTERM).exit == 0


def test_the_next_run_is_claimed_in_the_commit_that_completes_the_one_before(queue: Controller) -> None:
    for name in ("a", "b", "c"):
        submit(queue, name)
    before = document(queue)["revision"]
    work(queue, "true")
    # One claim, two completions that claim, one that finds nothing.
    assert document(queue)["revision"] - before == 4


def test_jobs_is_how_many_run_at_once(queue: Controller) -> None:
    for name in ("a", "b", "c"):
        submit(queue, name)
    consumer = Consumer(queue, BLOCKS, "--jobs", "2", "--until-empty")
    appears(queue.home / "a.runs")
    appears(queue.home / "b.runs")
    states = {name: run.get("state", "queued") for name, run in document(queue)["runs"].items()}
    assert states == {"a": "running", "b": "running", "c": "queued"}
    (queue.home / "go").touch()
    assert consumer.end().stdout.startswith("3 completed")


def test_a_lease_is_renewed_for_as_long_as_the_program_runs(queue: Controller) -> None:
    def deadline() -> int:
        return int(document(queue)["runs"]["long"]["lease"]["deadline_ms"])

    submit(queue, "long")
    consumer = Consumer(queue, BLOCKS, "--lease", "300ms", "--until-empty")
    appears(queue.home / "long.runs")
    first = deadline()
    wait_until(lambda: deadline() >= first + 900, "it is renewed, again and again")
    assert queue.json("queue", "reap")["runs"] == []
    (queue.home / "go").touch()
    assert consumer.end().stdout.startswith("1 completed")
    assert document(queue)["finished"]["long"]["token"] == 1


def test_what_a_program_leaves_running_is_ended_before_its_run_is_completed(queue: Controller) -> None:
    submit(queue, "leaves")
    work(queue, "(trap '' TERM; while :; do sleep 0.02; done) & echo $! > left")
    left = int((queue.home / "left").read_text())
    assert not os.path.exists(f"/proc/{left}") or "Z" in Path(f"/proc/{left}/stat").read_text().rpartition(")")[2]


def test_no_descriptor_of_the_consumer_is_inherited(queue: Controller) -> None:
    submit(queue, "looks")
    work(queue, "ls -l /proc/$$/fd > fds")
    found = (queue.home / "fds").read_text()
    assert str(queue.state) not in found
    assert sum(" -> " in line for line in found.splitlines()) <= 4


# --- What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [(), ("no-such-program-here",), ("./no-such-file",), ("./plain",)])
def test_a_program_that_cannot_be_run_is_refused_before_anything_is_claimed(
    queue: Controller, argv: tuple[str, ...]
) -> None:
    (queue.home / "plain").write_text("#!/bin/sh\n")
    submit(queue, "waits")
    before = durable(queue)
    done = queue.run("queue", "work", "--", *argv)
    assert done.exit == 2, str(done)
    assert durable(queue) == before


@pytest.mark.parametrize(
    "options", [("--lease", "0s"), ("--lease", "365d"), ("--jobs", "0"), ("--queue", "no name"), ("--owner", "")]
)
def test_options_that_cannot_be_meant_are_refused(queue: Controller, options: tuple[str, ...]) -> None:
    before = durable(queue)
    done = queue.run("queue", "work", *options, "--", "true")
    assert done.exit in (2, 3), str(done)
    assert "Traceback" not in done.stderr
    assert durable(queue) == before


def test_the_queue_of_the_fleet_is_refused(queue: Controller) -> None:
    done = queue.run("queue", "work", "--queue", "fleet", "--", "true")
    assert done.exit == 3, str(done)


def test_which_queues_are_the_fleets_is_as_the_settings_say(queue: Controller) -> None:
    queue.configure("fleet", 'queues = ["build"]')
    assert queue.run("queue", "work", "--queue", "build", "--", "true").exit == 3
    done = queue.run("queue", "work", "--queue", "fleet", "--until-empty", "--", "true", check=True)
    assert done.stdout.startswith("0 completed")


def test_the_lease_and_the_backoff_are_those_of_the_queue(queue: Controller) -> None:
    settings = queue.state / "controller.toml"
    chosen = '[queues.default]\nlease = "3h"\n[queues.default.backoff]\ninitial = "1h"\ncap = "1h"\njitter = 0\n'
    settings.write_text(settings.read_text() + chosen)
    submit(queue, "only", None, "--attempts", "2")
    seen = queue.home / "seen"
    look = f"{shlex.join(queue.command('queue', 'browse', 'active', '--json'))} > {seen}; exit 1"
    queue.run("queue", "work", "--until-empty", "--", "sh", "-c", look, check=True)
    (held,) = json.loads(seen.read_text())["runs"]
    assert 2 * 3_600_000 < held["remaining_ms"] <= 3 * 3_600_000
    run = document(queue)["runs"]["only"]
    assert run["available_at"] - run["started_at"] >= 3_600_000


def test_a_missing_document_is_told_as_such(controller: Controller) -> None:
    assert controller.run("queue", "work", "--", "true").exit == 7


def test_a_program_that_vanishes_is_a_failure_of_the_run(queue: Controller) -> None:
    program = queue.home / "program"
    program.write_text(f"#!/bin/sh\nrm {program}\n")
    program.chmod(0o755)
    submit(queue, "first")
    submit(queue, "second")
    done = queue.run("queue", "work", "--until-empty", "--", str(program), check=True)
    assert done.stdout.startswith("1 completed, 1 failed")
    assert "not started" in document(queue)["runs"]["second"]["last_error"]


# --- Cancels and lost leases -----------------------------------------------------------------------------------------


def test_a_cancel_ends_the_program_and_then_the_run(queue: Controller) -> None:
    submit(queue, "stopped", None, "--attempts", "2")
    consumer = Consumer(queue, OBLIGING, "--lease", "600ms")
    appears(queue.home / "stopped.runs")
    queue.run("cancel", "stopped", check=True)
    consumer.says("run stopped, life 1: cancelled")
    run = document(queue)["runs"]["stopped"]
    assert (run.get("state", "queued"), run["attempts"], run.get("failures", 0)) == ("cancelled", 1, 0)
    assert consumer.end(signal.SIGTERM).exit == 0


def test_a_program_that_ignores_a_cancel_is_killed(queue: Controller) -> None:
    submit(queue, "stubborn")
    consumer = Consumer(queue, STUBBORN, "--lease", "600ms")
    appears(queue.home / "stubborn.runs")
    queue.run("cancel", "stubborn", check=True)
    consumer.says("run stubborn, life 1: cancelled")
    assert (queue.home / "told").exists()
    assert document(queue)["runs"]["stubborn"]["state"] == "cancelled"
    assert consumer.end(signal.SIGTERM).exit == 0


def test_a_lost_lease_ends_the_program_and_nothing_is_reported(queue: Controller) -> None:
    submit(queue, "taken", None, "--attempts", "2")
    consumer = Consumer(queue, STUBBORN, "--lease", "300ms")
    appears(queue.home / "taken.runs")
    consumer.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: queue.json("queue", "reap")["runs"] != [], "its lease is over")
    (taken,) = queue.json("queue", "claim", "--lease", "10m")["runs"]
    assert taken["token"] == 2
    consumer.process.send_signal(signal.SIGCONT)
    consumer.says("run taken, life 1: lost")
    run = document(queue)["runs"]["taken"]
    assert (run.get("state", "queued"), run["attempts"]) == ("running", 2)
    assert not (queue.home / "told").exists()
    done = consumer.end(signal.SIGTERM)
    assert done.stdout == "0 completed, 0 failed, 0 cancelled, 0 given back, 1 lost\n"
    queue.run("queue", "complete", "taken", "--token", "2", check=True)


def test_a_run_that_was_discarded_meanwhile_is_ended_and_the_next_is_taken(queue: Controller) -> None:
    submit(queue, "unwanted")
    consumer = Consumer(queue, "test $CONTROLLER_RUN = next || { " + STUBBORN + "; }", "--lease", "300ms")
    appears(queue.home / "unwanted.runs")
    queue.run("queue", "discard", "unwanted", check=True)
    consumer.says("run unwanted, life 1: lost")
    submit(queue, "next")
    consumer.says("run next, life 1: completed")
    assert consumer.end(signal.SIGTERM).exit == 0


def test_a_consumer_that_is_killed_loses_nothing(queue: Controller) -> None:
    submit(queue, "orphan", None, "--attempts", "2")
    first = Consumer(queue, BLOCKS, "--lease", "300ms")
    appears(queue.home / "orphan.runs")
    first.process.kill()
    second = Consumer(queue, "touch again")
    second.says("run orphan, life 2: completed")
    assert second.end(signal.SIGTERM).exit == 0


# --- Signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)])
def test_an_idle_consumer_ends_at_once(queue: Controller, number: int, code: int) -> None:
    consumer = Consumer(queue, "true")
    submit(queue, "first")
    consumer.says("completed")
    assert consumer.end(number, patience=5).exit == code


def test_a_hangup_that_whoever_started_it_ignores_is_ignored(queue: Controller) -> None:
    submit(queue, "first")
    ignoring = "trap '' HUP; exec \"$@\""
    command = queue.command("queue", "work", "--", "sh", "-c", "touch $CONTROLLER_RUN.done")
    process = subprocess.Popen(("sh", "-c", ignoring, "sh", *command), cwd=queue.home, env=queue.env, text=True)
    try:
        appears(queue.home / "first.done")
        process.send_signal(signal.SIGHUP)
        submit(queue, "second")
        appears(queue.home / "second.done")
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def test_a_program_that_ends_well_within_its_grace_completes_its_run_and_nothing_new_is_taken(
    queue: Controller,
) -> None:
    submit(queue, "first")
    submit(queue, "second")
    consumer = Consumer(queue, BLOCKS, "--grace", "1m")
    appears(queue.home / "first.runs")
    consumer.process.send_signal(signal.SIGTERM)
    consumer.says("stopping")
    (queue.home / "go").touch()
    done = consumer.end()
    assert done.exit == 0
    assert done.stdout.startswith("1 completed, 0 failed, 0 cancelled, 0 given back")
    assert document(queue)["runs"]["second"].get("attempts", 0) == 0


@pytest.mark.parametrize("script", [OBLIGING, STUBBORN], ids=["obliging", "stubborn"])
def test_a_program_that_outlasts_its_grace_is_ended_and_its_run_given_back(queue: Controller, script: str) -> None:
    submit(queue, "long")
    consumer = Consumer(queue, script, "--grace", "0s")
    appears(queue.home / "long.runs")
    done = consumer.end(signal.SIGTERM)
    assert done.exit == 0
    assert done.stdout == "0 completed, 0 failed, 0 cancelled, 1 given back, 0 lost\n"
    run = document(queue)["runs"]["long"]
    assert (run.get("state", "queued"), run["attempts"]) == ("queued", 1)
    assert run.get("failures", 0) == run.get("crashes", 0) == 0
    assert "run long, life 2: completed" in work(queue, "true").stderr


def test_a_second_signal_cuts_the_grace_short(queue: Controller) -> None:
    submit(queue, "long")
    consumer = Consumer(queue, OBLIGING, "--grace", "10m")
    appears(queue.home / "long.runs")
    consumer.process.send_signal(signal.SIGINT)
    consumer.says("stopping")
    done = consumer.end(signal.SIGINT)
    assert done.exit == 130
    assert "1 given back" in done.stdout


def test_an_interrupt_at_the_keyboard_is_not_for_the_programs(queue: Controller) -> None:
    """The terminal sends it to the whole foreground group."""
    submit(queue, "first")
    consumer = Consumer(queue, BLOCKS, "--grace", "1m")
    appears(queue.home / "first.runs")
    os.killpg(consumer.process.pid, signal.SIGINT)
    consumer.says("stopping")
    (queue.home / "go").touch()
    done = consumer.end()
    assert done.exit == 130
    assert done.stdout.startswith("1 completed")
