"""stdout carries one answer and nothing else, whatever terminal, environment or reader do. Cases C1, C2."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess

import pytest

from tests.behaviour.driver import Controller, Result
from tests.behaviour.faults import call, durable, locked, wait_until_open

NOISY = {"PYTHONWARNINGS": "default", "COLUMNS": "20", "FORCE_COLOR": "1", "PYTHONDEVMODE": "1"}
ANSWERS = (
    ("status",),
    ("show", "r-1"),
    ("show", "slot:1"),
    ("runs",),
    ("history",),
    ("fsck",),
    ("version",),
    ("submit", "--id", "x"),
    ("state", "accept"),
)


@pytest.fixture
def fleet(controller: Controller) -> Controller:
    controller.init()
    controller.run("submit", "--", "echo", "word " * 50, check=True)
    return controller


@pytest.mark.parametrize("command", ANSWERS, ids=" ".join)
def test_c2_every_answer_is_one_json_document_on_one_line(fleet: Controller, command: tuple[str, ...]) -> None:
    tail = ("--", "true") if command[0] == "submit" else ()
    done = fleet.run(*command, "--json", *tail, env=NOISY, check=True)
    verb = "state-accept" if command[0] == "state" else command[0]
    assert done.json()["schema"] == f"controller.{verb}/1"
    assert done.stdout.count("\n") == 1
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("args", "exit_code", "code"),
    [
        (("show", "nope"), 4, "not_found"),
        (("show", "slot:x"), 2, "usage"),
        (("nonsense",), 2, "usage"),
        (("status", "--nonsense"), 2, "usage"),
        (("submit",), 2, "usage"),
        (("runs", "--limit", "many"), 2, "usage"),
        (("withdraw",), 2, "usage"),
        (("state",), 2, "usage"),
        (("--nonsense", "status"), 2, "usage"),
        (("--lock-timeout", "5", "status"), 2, "usage"),
    ],
)
def test_c2_every_error_is_one_json_document_too(
    fleet: Controller, args: tuple[str, ...], exit_code: int, code: str
) -> None:
    done = fleet.run(*args, "--json", env=NOISY)
    assert done.exit == exit_code, str(done)
    error = done.json()["error"]
    assert set(error) == {"code", "what", "where", "next"}
    assert error["code"] == code
    assert error["what"]


def test_c2_errors_are_json_when_the_environment_asks_for_it(fleet: Controller) -> None:
    done = fleet.run("status", "--nonsense", env={"CONTROLLER_STATUS_JSON": "1"})
    assert (done.exit, done.json()["error"]["code"]) == (2, "usage")


def test_c2_a_corrupt_document_is_one_json_document(fleet: Controller) -> None:
    (fleet.state / "controller.json").write_bytes(b"{")
    assert fleet.json("status", exit=7, env=NOISY)["error"]["code"] == "document_corrupt"


def test_text_errors_say_what_where_and_what_next_on_stderr_alone(fleet: Controller) -> None:
    done = fleet.run("show", "slot:4000")
    assert done.stdout == ""
    first, second, third = done.stderr.splitlines()
    assert first.startswith("not found: ")
    assert second.startswith("  ")
    assert third.startswith("  next: ")


def test_c1_a_question_whose_answer_cannot_be_written_fails_quietly(fleet: Controller) -> None:
    for redirect, words in (("> /dev/full", "No space left"), (">&-", "closed")):
        done = shell(fleet, f'"$@" {redirect}', "status", "--json")
        assert done.exit == 8, str(done)
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_c1_a_reader_that_goes_away_costs_no_words(fleet: Controller) -> None:
    done = shell(fleet, '"$@" | true', "history")
    assert (done.exit, done.stderr) == (0, "")
    done = shell(fleet, 'set -o pipefail; "$@" --help | true')
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_an_answer_never_lands_in_a_file_that_took_the_place_of_a_closed_stdout(fleet: Controller) -> None:
    before = durable(fleet)
    done = shell(fleet, '"$@" <&- >&- 2>&-', "submit", "--id", "y", "--", "true")
    assert done.exit == 0
    assert fleet.json("show", "y")["run"]["id"] == "y"
    assert fleet.json("fsck")["ok"]
    assert durable(fleet) != before


def test_text_has_colour_on_a_terminal_alone_and_never_against_the_will(fleet: Controller) -> None:
    assert "\x1b" in on_terminal(fleet, "show", "nope")
    assert "\x1b" not in on_terminal(fleet, "show", "nope", env={"NO_COLOR": "1"})
    assert "\x1b" not in on_terminal(fleet, "--no-color", "show", "nope")
    assert "\x1b" not in fleet.run("show", "nope", env={"FORCE_COLOR": "1"}).stderr


def test_control_characters_of_users_reach_no_terminal(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "echo", "\x1b[2J\x07\u202e", check=True)
    for command in (("show", "r-1"), ("runs",), ("history",)):
        text = controller.run(*command, check=True).stdout
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
    assert r"\x1b[2J\x07\u202e" in controller.run("show", "r-1", check=True).stdout


def test_quiet_says_nothing_beside_the_answer(fleet: Controller) -> None:
    fleet.run("submit", "--id", "z", "--", "true", check=True)
    assert fleet.run("--quiet", "submit", "--id", "z", "--", "true", check=True).stderr == ""


def test_language_and_time_zone_change_nothing(fleet: Controller) -> None:
    plain = fleet.run("history", check=True).stdout
    assert fleet.run("history", check=True, env={"TZ": "Asia/Kathmandu", "LC_ALL": "C", "LANG": "C"}).stdout == plain


def test_every_command_has_help_with_an_example(controller: Controller) -> None:
    listed = controller.run("--help", check=True).stdout.partition("Commands:")[2]
    names = [line.split()[0] for line in listed.splitlines() if re.match(r"  \w", line)]
    assert {"init", "submit", "status", "show", "runs", "history", "withdraw", "fsck", "state", "version"} <= set(names)
    for name in names:
        command = (name, "accept") if name == "state" else (name,)
        text = controller.run(*command, "--help", check=True, env={"COLUMNS": "40"}).stdout
        assert re.search(rf"^  controller .*{name}", text, re.MULTILINE), text
    assert "Usage:" in controller.run().stderr
    assert controller.run().exit == 2


def test_an_interrupt_is_exit_130_without_a_traceback(fleet: Controller) -> None:
    lock = fleet.state / "controller.lock"
    with locked(lock):
        waiting = fleet.popen("submit", "--", "true")
        wait_until_open(waiting.pid, lock)
        os.killpg(waiting.pid, signal.SIGINT)
        stdout, stderr = waiting.communicate(timeout=30)
    assert (waiting.returncode, stdout) == (130, "")
    assert "Traceback" not in stderr
    assert "interrupted" in stderr


def test_a_failure_of_controller_itself_is_one_line_and_the_traceback_on_request(fleet: Controller) -> None:
    broken = (
        "import sys; import controller.engine.queue as queue\n"
        "queue.submit = lambda *_: 1 / 0\n"
        "from controller.cli.main import main; sys.exit(main())"
    )
    python, arguments = fleet.command()[0].replace("/controller", "/python"), fleet.command("submit", "--", "x")[1:]
    done = call(fleet, python, "-c", broken, *arguments)
    assert done.exit == 1
    assert "ZeroDivisionError" in done.stderr
    assert "CONTROLLER_TRACEBACK=1" in done.stderr
    assert "Traceback" not in done.stderr
    done = call(fleet, python, "-c", broken, *arguments, env={"CONTROLLER_TRACEBACK": "1"})
    assert (done.exit, "Traceback" in done.stderr) == (1, True)


def shell(controller: Controller, script: str, *args: str) -> Result:
    return call(controller, "bash", "-c", script, "bash", *controller.command(*args))


def on_terminal(controller: Controller, *args: str, env: dict[str, str] | None = None) -> str:
    """Everything that the command writes to a terminal."""
    parent, child = pty.openpty()
    try:
        done = subprocess.run(
            controller.command(*args),
            env={**controller.env, "TERM": "xterm", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=child,
            stderr=child,
            timeout=60,
            check=False,
        )
        assert done.returncode in {0, 4}
        return os.read(parent, 65536).decode()
    finally:
        os.close(child)
        os.close(parent)
