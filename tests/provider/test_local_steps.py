"""What a local worker does with a step: where it runs, what it sees, what is kept of it, who may end it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw

from controller.model.action import CancelRequest, canonical, decode, digest
from controller.model.inventory import SeenStep, StepSeen
from controller.model.records import ActionType
from controller.provider.local.client import LocalProvider
from controller.provider.local.log import HEAD, TAIL
from controller.provider.process import group_members
from controller.provider.protocol import Done, IdentityRefused, Pending, Rejected, Unknown
from tests.provider.contract import SLEEP, TEARDOWN, Asker, Sent, until
from tests.provider.local_kit import CLOCK, groups, kill, log_of, provider, supervisor, worker_directory, workers


@pytest.fixture
def ask(state: Path) -> Iterator[Asker]:
    with workers(state) as asker:
        asker.create()
        yield asker


def run(ask: Asker, *argv: str, **how: object) -> SeenStep:
    """The end of a step that runs *argv*."""
    sent = ask.execute(argv, **how)  # type: ignore[arg-type] # what `execute` takes
    ask.done(sent)
    return ask.ended(sent)


def changed(sent: Sent, **members: object) -> Sent:
    """The same action with other members, under the key that these make."""
    content = {**msgspec.json.decode(bytes(sent[1])), **members}
    del content["idempotency_key"]
    raw = Raw(canonical({**content, "idempotency_key": digest(content)}))
    return decode(raw), raw


def local(ask: Asker) -> LocalProvider:
    assert isinstance(ask.provider, LocalProvider)
    return ask.provider


# Where and how it runs


def test_a_step_finds_the_environment_it_was_promised_and_nothing_else(ask: Asker, state: Path) -> None:
    end = run(ask, "env", env={"MINE": "yes", "HOME": "/elsewhere", "CONTROLLER_RUN": "forged"}, token=4)
    seen = dict(line.split("=", 1) for line in log_of(state, "r-1", "main", 4, 1).read_text().splitlines())
    assert end.exit_code == 0
    assert seen == {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": "/elsewhere",
        "MINE": "yes",
        "CONTROLLER_RUN": "r-1",
        "CONTROLLER_STEP": "main",
        "CONTROLLER_ATTEMPT": "1",
        "CONTROLLER_TOKEN": "4",
    }


def test_a_step_runs_in_its_runs_scratch_directory_which_lasts_while_something_is_in_it(
    ask: Asker, state: Path
) -> None:
    run(ask, "sh", "-c", "pwd; echo one > kept")
    scratch = state / "scratch/r-1"
    assert log_of(state, "r-1", "main", 1, 1).read_text() == f"{scratch}\n"
    assert run(ask, "rm", "kept", token=2).exit_code == 0, "the next life of the run finds what the first one left"
    until(CLOCK, lambda: not scratch.exists())


def test_a_step_reads_nothing_from_its_input(ask: Asker) -> None:
    assert run(ask, "sh", "-c", "! read line").exit_code == 0


CASES: Mapping[str, tuple[tuple[str, ...], int, str]] = {
    "not in PATH": (("no-such-program",), 127, "not found: no-such-program (looked in PATH"),
    "not in scratch": (
        ("./x",),
        127,
        "not found: ./x (looked in the run's scratch directory; submit with --cwd . to run where you are)",
    ),
    "absolute": (("/no/such/program",), 127, "not found: /no/such/program"),
    "a directory": (("/tmp",), 126, "cannot run /tmp: Permission denied"),
    "NUL": (("echo\0",), 126, "cannot run"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_command_that_cannot_start_ends_at_once_and_says_why(ask: Asker, case: str) -> None:
    argv, code, words = CASES[case]
    end = run(ask, *argv)
    assert (end.started, end.exit_code, end.signal) == (False, code, None)
    assert end.reason.startswith(words)


def test_a_directory_that_is_not_there_is_named(ask: Asker, tmp_path: Path) -> None:
    end = run(ask, "true", cwd=tmp_path / "missing")
    assert (end.started, end.exit_code) == (False, 127)
    assert str(tmp_path / "missing") in end.reason


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("#!/no/interpreter\n", 0o755, "interpreter"),
        ("echo plain text\n", 0o755, "neither a program nor a script"),
        ("#!/bin/sh\n", 0o644, "Permission denied"),
    ],
)
def test_a_file_that_is_no_program_ends_with_126(ask: Asker, tmp_path: Path, text: str, mode: int, words: str) -> None:
    (tmp_path / "script").write_text(text)
    (tmp_path / "script").chmod(mode)
    end = run(ask, "./script", cwd=tmp_path)
    assert (end.started, end.exit_code) == (False, 126)
    assert words in end.reason


PLACES: Mapping[str, tuple[Mapping[str, tuple[str, int]], str, int, str]] = {
    "the first is run": (
        {"a": ("#!/bin/sh\nexit 3\n", 0o755), "b": ("#!/bin/sh\nexit 4\n", 0o755)},
        "{}/a:{}/b",
        3,
        "",
    ),
    "what may not be run is passed over": ({"a": ("", 0o644), "b": ("#!/bin/sh\nexit 4\n", 0o755)}, "{}/a:{}/b", 4, ""),
    "what is no program is not": ({"a": ("", 0o644), "b": ("text\n", 0o755)}, "{}/a:{}/b", 126, "Permission denied"),
    "a place inside the directory": ({"a": ("#!/bin/sh\nexit 3\n", 0o755), "b": ("", 0o644)}, "a:{}/b", 3, ""),
}
"""Files called `tool` by place, where they are looked for, how the step ends, and why."""


@pytest.mark.parametrize("case", PLACES)
def test_a_program_is_looked_for_in_the_order_of_its_path(ask: Asker, tmp_path: Path, case: str) -> None:
    files, path, code, words = PLACES[case]
    for place, (text, mode) in files.items():
        (tmp_path / place).mkdir()
        (tmp_path / place / "tool").write_text(text)
        (tmp_path / place / "tool").chmod(mode)
    end = run(ask, "tool", cwd=tmp_path, env={"PATH": path.replace("{}", str(tmp_path))})
    assert (end.exit_code, words in end.reason) == (code, True)


def test_what_a_step_leaves_in_its_group_is_ended_with_it(ask: Asker, state: Path) -> None:
    script = "trap '' TERM; (while :; do sleep 0.1; done) & exit 3"
    assert run(ask, "sh", "-c", script).exit_code == 3
    (group,) = groups(worker_directory(state))
    until(CLOCK, lambda: group_members(group.pid) == ())
    assert run(ask, "true", token=2).exit_code == 0


def test_a_second_step_waits_its_turn(ask: Asker) -> None:
    first, second = ask.execute(SLEEP, run="r-1"), ask.execute(("true",), run="r-2")
    ask.done(first)
    assert isinstance(ask.once(second), Pending)
    ask.done(ask.cancel(first))
    ask.done(second)
    assert ask.ended(second).exit_code == 0


# Logs


def test_a_log_has_both_outputs_and_outlives_its_worker(ask: Asker, state: Path) -> None:
    run(ask, "sh", "-c", "echo out; echo err >&2")
    for kind in TEARDOWN:
        ask.done(ask.mint(kind))
    assert log_of(state, "r-1", "main", 1, 1).read_text() == "out\nerr\n"


def test_a_log_is_bounded_and_keeps_the_beginning_and_the_end(ask: Asker, state: Path) -> None:
    end = run(ask, "sh", "-c", "echo first; yes | head -c 20000000; echo last")
    log = log_of(state, "r-1", "main", 1, 1).read_bytes()
    assert end.exit_code == 0, "a full log stops no step"
    assert HEAD + TAIL < len(log) < HEAD + TAIL + 500
    assert log.startswith(b"first\ny\n")
    assert log.endswith(b"y\nlast\n")
    assert b"bytes are left out here]" in log


def test_a_daemon_that_left_the_group_does_not_keep_the_step_from_ending(ask: Asker, tmp_path: Path) -> None:
    end = run(ask, "sh", "-c", "setsid sh -c 'while ! [ -e stop ]; do sleep 0.05; done' & exit 0", cwd=tmp_path)
    assert end.exit_code == 0
    assert run(ask, "true", token=2).exit_code == 0
    (tmp_path / "stop").touch()


# Fences


def test_a_cancel_that_comes_first_keeps_its_step_from_ever_starting(ask: Asker, state: Path) -> None:
    late = ask.execute(SLEEP)
    ask.done(ask.cancel(late))
    assert isinstance(ask.once(late), Rejected)
    assert groups(worker_directory(state)) == []


def test_a_cancel_of_a_gone_worker_ends_its_step_and_is_done(ask: Asker, state: Path) -> None:
    sent = ask.execute(SLEEP)
    ask.done(sent)
    (group,) = groups(worker_directory(state))
    kill(supervisor(state))
    ask.done(ask.cancel(sent))
    assert group_members(group.pid) == ()


def test_a_timeout_kills_a_step_that_does_not_listen(ask: Asker) -> None:
    end = run(ask, "sh", "-c", "trap '' TERM; while :; do sleep 0.05; done", timeout_ms=1_500)
    assert (end.timed_out, end.signal) == (True, 9)


def test_a_stopped_step_is_cancelled_all_the_same(ask: Asker) -> None:
    sent = ask.execute(("sh", "-c", "kill -STOP $$; sleep 600"))
    ask.done(sent)
    ask.done(ask.cancel(sent))
    assert ask.step(sent).signal == 15


def test_a_worker_that_an_earlier_release_recorded_under_another_name_still_takes_actions(ask: Asker) -> None:
    sent = ask.execute(SLEEP)
    ask.done(sent)
    (worker,) = ask.workers()
    directory = msgspec.to_builtins(worker.resources["directory"])
    ask.done(changed(ask.cancel(sent), resources={"vm": directory}))
    assert ask.step(sent).state is StepSeen.EXITED


@pytest.mark.parametrize("number", ["0", "-1", "1", "true", str(2**40)])
def test_a_cancel_that_names_another_resource_is_refused_and_ends_nothing(ask: Asker, number: str) -> None:
    sent = ask.execute(SLEEP)
    ask.done(sent)
    forged = changed(ask.cancel(sent), resources={"vm": {"id": number, "immutable_id": ""}})
    assert isinstance(ask.once(forged), IdentityRefused)
    assert ask.step(sent).state is StepSeen.RUNNING


def test_a_cancel_with_the_recorded_resources_is_done(ask: Asker) -> None:
    sent = ask.execute(SLEEP)
    ask.done(sent)
    (worker,) = ask.workers()
    ask.done(changed(ask.cancel(sent), resources=msgspec.to_builtins(worker.resources)))
    assert ask.step(sent).state is StepSeen.EXITED


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"argv": [], "env": {}, "cwd": None, "timeout_ms": None, "kill_grace_ms": 1},
        {"argv": ["true"], "env": {}, "cwd": None, "timeout_ms": 0.5, "kill_grace_ms": 1},
    ],
)
def test_a_request_that_cannot_be_meant_is_rejected(ask: Asker, request_: object) -> None:
    assert isinstance(ask.once(changed(ask.execute(SLEEP), request=request_)), Rejected)
    assert ask.steps() == {}


@pytest.mark.parametrize("member", ["run", "step"])
def test_a_name_that_leads_out_of_its_directory_is_rejected(ask: Asker, member: str) -> None:
    assert isinstance(ask.once(changed(ask.execute(SLEEP), **{member: "../../x"})), Rejected)
    assert isinstance(ask.once(changed(ask.execute(SLEEP), assignment="../x")), Rejected)


def test_a_second_worker_is_not_torn_down_under_a_living_supervisor(ask: Asker) -> None:
    for kind in (ActionType.DELETE_COMPUTE, ActionType.RESET):
        assert isinstance(ask.once(ask.mint(kind)), Rejected)
    assert len(ask.workers()) == 1


def test_a_create_under_another_key_does_not_take_the_worker_over(ask: Asker) -> None:
    assert isinstance(ask.once(ask.mint(ActionType.CREATE)), Rejected)


# Waiting


def test_the_end_of_a_step_wakes_a_wait(ask: Asker, tmp_path: Path) -> None:
    sent = ask.execute(("sh", "-c", "while ! [ -e go ]; do sleep 0.02; done"), cwd=tmp_path)
    ask.done(sent)
    assert not ask.provider.wait(0.05)
    threading.Timer(0.1, (tmp_path / "go").touch).start()
    began = CLOCK.monotonic()
    assert ask.provider.wait(60)
    assert CLOCK.monotonic() - began < 10
    assert ask.step(sent).exit_code == 0, "its end is in the look that follows"


def test_an_end_between_two_waits_wakes_the_second(ask: Asker) -> None:
    assert not ask.provider.wait(0.05)
    run(ask, "true")
    assert ask.provider.wait(60)
    assert not ask.provider.wait(0.05), "once"


def test_the_death_of_a_supervisor_wakes_a_wait(ask: Asker, state: Path) -> None:
    assert not ask.provider.wait(0.05)
    kill(supervisor(state))
    assert ask.provider.wait(60)


def test_a_wait_without_workers_ends_in_time(tmp_path: Path) -> None:
    empty = provider(tmp_path / "empty")
    assert not empty.wait(0.05)
    empty.close()


def test_an_interrupt_ends_a_call_in_flight_at_once(ask: Asker, state: Path, tmp_path: Path) -> None:
    sent = ask.execute(("sh", "-c", "trap '' TERM; touch deaf; while :; do sleep 0.05; done"), cwd=tmp_path)
    ask.done(sent)
    until(CLOCK, (tmp_path / "deaf").exists)
    slow = ask.cancel(sent)
    slow = changed(slow, request=msgspec.to_builtins(CancelRequest(sent[0].idempotency_key, 600_000)))
    patient = LocalProvider(
        state, fleet="test", lineage=ask.lineage, clock=CLOCK, environment={}, deadline=600, patience=600
    )
    threading.Timer(0.2, patient.interrupt).start()
    began = CLOCK.monotonic()
    assert isinstance(patient.mutate(*slow, lambda *_: None), Unknown)
    assert CLOCK.monotonic() - began < 10
    patient.close()
    ask.done(ask.cancel(sent))


def test_concurrent_sends_to_different_slots_all_take_effect(state: Path) -> None:
    with workers(state) as ask:
        sends = [ask.mint(ActionType.CREATE, slot, assignment=f"a-{slot}") for slot in range(1, 9)]
        outcomes: list[object] = []
        threads = [threading.Thread(target=lambda sent=sent: outcomes.append(ask.once(sent))) for sent in sends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [type(outcome) for outcome in outcomes] == [Done] * 8
        assert sorted(worker.slot for worker in ask.workers()) == list(range(1, 9))
