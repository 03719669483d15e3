"""What the command adapter does with processes: starting, recording, deadlines, pipes and groups."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controller.clock import SystemClock
from controller.model.errors import ProviderFailed
from controller.model.process import Liveness, ProcessIdentity
from controller.model.records import ActionType
from controller.provider.process import liveness
from controller.provider.protocol import Done, NotSent, Outcome, Unknown
from tests.provider.contract import Asker, until
from tests.provider.programs import (
    ask_create,
    asker,
    command,
    create,
    is_gone,
    nothing,
    python_program,
    script,
)

CLOCK = SystemClock()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Path]:
    """Where a program's child leaves its pid. It is gone after the test."""
    path = tmp_path / "child"
    yield path
    if path.exists() and not is_gone(pid := int(path.read_text())):
        os.kill(pid, signal.SIGKILL)


# Pipes and deadlines

HANG = "child()\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)"


def test_a_reply_counts_once_the_program_exited_whoever_still_holds_its_pipes(tmp_path: Path, child: Path) -> None:
    began = CLOCK.monotonic()
    outcome = ask_create(tmp_path, "child()\nprint(reply())")
    assert isinstance(outcome, Done)
    assert CLOCK.monotonic() - began < 5, "the child holds the pipe for a minute"
    assert not is_gone(int(child.read_text())), "what a program leaves behind after a definite answer lives on"


def test_past_the_deadline_the_whole_group_is_gone_and_the_fate_is_unknown(tmp_path: Path, child: Path) -> None:
    began = CLOCK.monotonic()
    outcome = ask_create(tmp_path, HANG, create=2.0)
    assert isinstance(outcome, Unknown)
    assert "no answer within 2 s" in outcome.reason
    assert not outcome.process_lives
    assert CLOCK.monotonic() - began < 10
    assert is_gone(int(child.read_text()))


def test_the_deadline_gives_a_program_time_to_clean_up(tmp_path: Path) -> None:
    body = """
def clean(*_):
    open("cleaned", "w")
    sys.exit(0)
signal.signal(signal.SIGTERM, clean)
print(reply(), flush=True)
time.sleep(60)
"""
    assert isinstance(ask_create(tmp_path, body, create=2.0), Unknown), "a reply at the deadline is too late"
    assert (tmp_path / "cleaned").exists()


def test_after_an_unknown_answer_nothing_of_the_group_goes_on(tmp_path: Path, child: Path) -> None:
    outcome = ask_create(tmp_path, "child()\nprint('oops')")
    assert isinstance(outcome, Unknown)
    assert not outcome.process_lives
    assert is_gone(int(child.read_text()))


def test_a_program_killed_after_it_created_is_unknown(tmp_path: Path) -> None:
    outcome = ask_create(tmp_path, "open('made', 'w')\nos.kill(os.getpid(), signal.SIGKILL)")
    assert isinstance(outcome, Unknown)
    assert "signal 9 (SIGKILL)" in outcome.reason
    assert (tmp_path / "made").exists()


def test_a_program_that_does_not_read_its_whole_request_may_still_answer(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("""
import json, os, re
head = os.read(0, 4096).decode()
os.close(0)
key = re.search('"idempotency_key":"([0-9a-f]+)"', head).group(1)
answer = {"protocol": "controller.provider/1", "op": "mutate", "slot": 1, "idempotency_key": key, "outcome": "done"}
print(json.dumps(answer))
""")
    asked = asker((sys.executable, str(path)), tmp_path)
    assert isinstance(asked.once(asked.execute(("true",), env={"BIG": "x" * 1_000_000})), Done)


def test_a_child_that_floods_the_pipe_after_the_program_ends_the_call(tmp_path: Path, child: Path) -> None:
    body = """
started = subprocess.Popen(["sh", "-c", "yes >&2 & yes"])
open("child", "w").write(str(started.pid))
started.returncode = 0
time.sleep(0.2)
"""
    outcome = ask_create(tmp_path, body)
    assert isinstance(outcome, Unknown)
    assert not outcome.process_lives
    assert is_gone(int(child.read_text()))


def test_a_lost_exit_status_is_not_taken_for_success(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        outcome = ask_create(tmp_path, "print(reply()); sys.exit(1)")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert isinstance(outcome, Unknown)
    assert "SIGCHLD" in outcome.reason


# Recording


def test_a_process_is_recorded_with_its_deadline_before_it_gets_its_request(tmp_path: Path) -> None:
    provider = command(python_program(tmp_path, "open('got', 'w')\nprint(reply())"), tmp_path, create=30.0)
    asked = Asker(provider, CLOCK)
    seen: list[tuple[bool, Liveness, int]] = []

    def register(identity: ProcessIdentity, deadline_at: int) -> None:
        seen.append(((tmp_path / "got").exists(), liveness(identity), deadline_at))

    before = CLOCK.now_ms()
    assert isinstance(provider.mutate(*asked.mint(ActionType.CREATE, 3), register), Done)
    assert [(got, alive) for got, alive, _ in seen] == [(False, Liveness.ALIVE)]
    assert before + 30_000 <= seen[0][2] <= CLOCK.now_ms() + 30_000


def test_a_process_that_cannot_be_recorded_gets_no_request(tmp_path: Path) -> None:
    provider = command(script(tmp_path, "#!/bin/sh\nread line && touch got\nsleep 60\n"), tmp_path)
    recorded: list[ProcessIdentity] = []

    def register(identity: ProcessIdentity, deadline_at: int) -> None:
        recorded.append(identity)
        raise OSError("disk full")

    outcome = provider.mutate(*Asker(provider, CLOCK).mint(ActionType.CREATE, 3), register)
    assert isinstance(outcome, NotSent)
    assert "disk full" in outcome.reason
    assert liveness(recorded[0]) is Liveness.GONE
    assert not (tmp_path / "got").exists()


def test_a_program_that_exits_before_it_is_asked_is_recorded_and_unknown(tmp_path: Path) -> None:
    asked = asker(script(tmp_path, "#!/bin/sh\nexit 0\n"), tmp_path)
    for _ in range(5):
        assert isinstance(create(asked), Unknown)
    assert len(asked.registered) == 5


# Surroundings


def test_a_program_has_its_own_session_the_given_environment_and_the_state_directory(tmp_path: Path) -> None:
    text = "#!/bin/sh\nread line\nenv > env\npwd > pwd\ncut -d' ' -f5,6 /proc/$$/stat > group\n"
    env = {"PATH": os.environ["PATH"], "MINE": "1"}
    asked = Asker(command(script(tmp_path, text), tmp_path, env=env), CLOCK)
    create(asked)
    given = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert {name: value for name, value in given.items() if name not in {"PWD", "OLDPWD", "SHLVL", "_"}} == env
    assert Path((tmp_path / "pwd").read_text().strip()) == tmp_path.resolve()
    pid = asked.registered[0][0].pid
    assert (tmp_path / "group").read_text().split() == [str(pid), str(pid)]


def test_a_program_inherits_no_descriptor_of_ours_not_even_an_inheritable_one(tmp_path: Path) -> None:
    body = """
held = [int(name) for name in os.listdir("/proc/self/fd")]
held = [fd for fd in held if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}")]
open("fds", "w").write(repr(held))
print(reply())
"""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        assert isinstance(ask_create(tmp_path, body), Done)
    finally:
        os.close(descriptor)
    assert (tmp_path / "fds").read_text() == "[]"


def test_calls_for_different_slots_run_at_the_same_time(tmp_path: Path) -> None:
    body = """
open(f"here-{slot}", "w")
while sum(name.startswith("here-") for name in os.listdir(".")) < 4: time.sleep(0.01)
print(reply())
"""
    asked = asker(python_program(tmp_path, body), tmp_path)
    sends = [asked.mint(ActionType.CREATE, slot) for slot in range(1, 5)]
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(asked.once, sends))
    assert [type(outcome) for outcome in outcomes] == [Done] * 4


# Starting


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("#!/no/such/interpreter\n", "exists, but its interpreter /no/such/interpreter does not"),
        ("#!/usr/bin/env no-such-interpreter\n", "exists, but its interpreter no-such-interpreter is not on the PATH"),
        ("#!/usr/bin/env -S no-such-interpreter -u\n", "exists, but its interpreter no-such-interpreter is not on"),
        (
            "#!/bin/sh\r\n",
            "exists, but its interpreter /bin/sh\\r (its first line ends with a carriage return) does not",
        ),
        ("#!/usr/bin/env sh\r\n", "interpreter sh\\r (its first line ends with a carriage return) is not on the PATH"),
        ("echo no interpreter line\n", "has no interpreter line"),
    ],
)
def test_a_program_whose_interpreter_is_wrong_was_never_started(tmp_path: Path, text: str, says: str) -> None:
    outcome = create(asker(script(tmp_path, text), tmp_path))
    assert isinstance(outcome, NotSent)
    assert "never started" in outcome.reason
    assert says in outcome.reason


def not_started(argv: tuple[str, ...], directory: Path, env: dict[str, str] | None = None) -> str:
    outcome = create(Asker(command(argv, directory, env=env), CLOCK))
    assert isinstance(outcome, NotSent), outcome
    assert "never started" in outcome.reason
    return outcome.reason


def test_a_program_that_does_not_exist_was_never_started(tmp_path: Path) -> None:
    assert f"{tmp_path}/none does not exist" in not_started((f"{tmp_path}/none",), tmp_path)
    assert "no-such-program is not on the PATH" in not_started(("no-such-program",), tmp_path)


def test_a_program_that_may_not_be_executed_was_never_started(tmp_path: Path) -> None:
    assert "may not be executed (mode 0644)" in not_started(script(tmp_path, "#!/bin/sh\n", mode=0o644), tmp_path)
    (tmp_path / "folder").mkdir()
    assert "folder is a directory" in not_started((f"{tmp_path}/folder",), tmp_path)


def test_a_question_to_a_program_that_cannot_be_started_says_what_to_mend(tmp_path: Path) -> None:
    unusable = [(f"{tmp_path}/none",), script(tmp_path, "#!/bin/sh\n", mode=0o644)]
    for argv in unusable:
        with pytest.raises(ProviderFailed) as failure:
            command(argv, tmp_path).inventory()
        assert failure.value.next == "install it, chmod +x it, or mend [provider] command in controller.toml"
    with pytest.raises(ProviderFailed) as failure:
        command(script(tmp_path, "#!/bin/sh\nexit 3\n"), tmp_path).inventory()
    assert "by hand" in failure.value.next


def test_the_trouble_with_a_program_may_be_its_interpreter(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    argv = script(tmp_path, f"#!{plain}\n")
    assert f"the interpreter {plain} of {argv[0]} may not be executed (mode 0644)" in not_started(argv, tmp_path)
    plain.chmod(0o755)
    assert f"{argv[0]} exists, but its interpreter {plain} is no program" in not_started(argv, tmp_path)
    plain.write_text("#!/no/such/interpreter\n")
    assert f"{argv[0]} exists, but its interpreter /no/such/interpreter does not" in not_started(argv, tmp_path)


def test_what_the_system_cannot_take_was_never_started(tmp_path: Path) -> None:
    argv = script(tmp_path, "#!/bin/sh\n")
    assert "larger than the system allows" in not_started((*argv, "x" * 4_000_000), tmp_path)
    assert "cannot be passed to the system" in not_started((*argv, "a\0b"), tmp_path)
    missing = tmp_path / "missing"
    assert f"its working directory {missing} cannot be used" in not_started(argv, missing)


def test_a_question_to_a_program_that_cannot_start_fails(tmp_path: Path) -> None:
    with pytest.raises(ProviderFailed, match="never started"):
        command(("no-such-program",), tmp_path).inventory()


@pytest.mark.parametrize("line", ["#!/usr/bin/env sh", "#!/usr/bin/env -S sh -e", "#! /bin/sh"])
def test_a_good_interpreter_line_is_not_suspected(tmp_path: Path, line: str) -> None:
    assert not isinstance(create(asker(script(tmp_path, f"{line}\nexit 0\n"), tmp_path)), NotSent)


# Interrupting


def test_an_interrupt_ends_calls_in_flight_and_begins_no_more(tmp_path: Path, child: Path) -> None:
    asked = asker(python_program(tmp_path, HANG), tmp_path)
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(create(asked)))
    thread.start()
    until(CLOCK, child.exists)
    began = CLOCK.monotonic()
    asked.provider.interrupt()
    thread.join()
    assert CLOCK.monotonic() - began < 10
    (outcome,) = outcomes
    assert isinstance(outcome, Unknown)
    assert "interrupted" in outcome.reason
    assert not outcome.process_lives
    assert is_gone(int(child.read_text()))
    assert isinstance(create(asked), NotSent)
    assert not asked.provider.wait(10.0)
    with pytest.raises(ProviderFailed, match="interrupted"):
        asked.provider.inventory()


def test_whatever_goes_wrong_in_a_send_is_an_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = command(python_program(tmp_path, "print(reply())"), tmp_path)
    monkeypatch.setattr("controller.provider.wire.parse_outcome", lambda *_: 1 // 0)
    outcome = provider.mutate(*Asker(provider, CLOCK).mint(ActionType.CREATE, 3), nothing)
    assert isinstance(outcome, Unknown)
    assert "ZeroDivisionError" in outcome.reason
