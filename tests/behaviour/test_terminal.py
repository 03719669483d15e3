"""On a terminal answers fit, have colour, and say what takes long; anywhere else they are whole and plain."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import pytest

from controller.cli.text import width
from tests.behaviour.driver import Controller
from tests.behaviour.faults import call, locked
from tests.behaviour.provider_program import Program

COLUMNS, ROWS = 60, 20
LONG = "long"
"""A run whose command is wider than any terminal here."""
KEY = re.compile(r"[0-9a-f]{64}")
MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ")
AGE = re.compile(r"\b\d[\d.]*(?:ms|s|m|h)\b")


class Terminal:
    """A command whose stdout and stderr are one terminal of this many columns."""

    def __init__(
        self, controller: Controller, *args: str, env: Mapping[str, str] | None = None, columns: int = COLUMNS
    ) -> None:
        self._parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        self._process = subprocess.Popen(
            controller.command(*args),
            cwd=controller.home,
            env={**controller.env, "TERM": "xterm", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=child,
            stderr=child,
        )
        os.close(child)
        self.text = ""
        self.exit: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._parent)

    def until(self, wanted: str, patience: float = 30) -> None:
        """Read on until *wanted*, an expression, was written; a failed assertion if it never is."""
        deadline = time.monotonic() + patience
        while not re.search(wanted, self.text):
            assert time.monotonic() < deadline, f"never written: {wanted}\n{self.text!r}"
            assert self._read(deadline - time.monotonic()), f"ended without {wanted}\n{self.text!r}"

    def end(self, patience: float = 60) -> Self:
        """Read all that the command still writes, and await its end."""
        deadline = time.monotonic() + patience
        while self._read(deadline - time.monotonic()):
            assert time.monotonic() < deadline, f"not done after {patience} s\n{self.text!r}"
        self.exit = self._process.wait(patience)
        return self

    def screen(self) -> list[str]:
        """What is to be seen in the end: lines, with what was rewritten or cleared gone. Colours left out."""
        lines, column = [""], 0
        for token in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|[^\x1b]", self.text):
            if token == "\r":
                column = 0
            elif token == "\n":
                lines.append("")
                column = 0
            elif token == "\x1b[K":
                lines[-1] = lines[-1][:column]
            elif len(token) == 1:
                lines[-1] = lines[-1][:column] + token + lines[-1][column + 1 :]
                column += 1
        return lines

    def _read(self, patience: float) -> bool:
        if not select.select([self._parent], [], [], max(patience, 0))[0]:
            return True
        try:
            data = os.read(self._parent, 65536)
        except OSError:  # how a terminal says that nobody writes to it any more
            return False
        self.text += data.decode()
        return bool(data)


def on_terminal(
    controller: Controller, *args: str, env: Mapping[str, str] | None = None, columns: int = COLUMNS
) -> Terminal:
    with Terminal(controller, *args, env=env, columns=columns) as terminal:
        return terminal.end()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """Runs in several states, one with a long command; a slot with trouble; a plan. For questions alone."""
    driver = Controller(tmp_path_factory.mktemp("fleet"))
    try:
        program = Program(driver, slots=2)
        refusal = {"outcome": "rejected", "detail": "no room " * 20, "code": "capacity"}
        noise = {"do": False, "instead": "no JSON at all: " + "words " * 40}
        program.next("create-1", {"do": False, "reply": refusal}, *[noise] * 100)
        driver.run("submit", "--id", LONG, "--env", "NAME=x", "--", "echo", "word " * 40, check=True)
        program.submit("short")
        driver.run("reconcile", "--apply")
        program.always("create", noise)
        driver.run("submit", "--id", "next", "--", "sh", "-c", "one; " * 30, check=True)
        program.submit("other", "third")
        driver.run("reconcile", "--apply")
        for n in range(20):
            if 1 in program.pending():
                break
            program.submit(f"more-{n}", f"extra-{n}")  # the backoff of slot 1 was not over
            driver.run("reconcile", "--apply")
        driver.run("show", "nope")
        driver.run("withdraw", "short")
        yield driver
    finally:
        driver.close()


QUESTIONS = (
    ("runs",),
    ("status",),
    ("show", LONG),
    ("show", "next"),
    ("show", "slot:1"),
    ("reconcile",),
    ("explain", "slot:1"),
    ("fsck",),
)


@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_no_line_is_wider_than_the_terminal_except_where_an_id_is(fleet: Controller, question: tuple[str, ...]) -> None:
    terminal = on_terminal(fleet, *question)
    assert terminal.exit == 0
    lines = [line for line in terminal.screen() if not KEY.search(line)]
    if question[0] == "explain":  # its table of events has columns that are never cut
        lines = lines[: next((n for n, line in enumerate(lines) if line.startswith("REVISION")), None)]
    assert len(lines) > 1
    assert [line for line in lines if width(line) > COLUMNS] == []


@pytest.mark.parametrize("question", [("status",), ("show", LONG), ("show", "slot:1")], ids=" ".join)
def test_lines_that_do_not_fit_lose_no_word(fleet: Controller, question: tuple[str, ...]) -> None:
    narrow = on_terminal(fleet, "--exact-times", *question).screen()
    whole = fleet.run("--exact-times", *question, check=True).stdout
    assert max(map(len, whole.splitlines())) > COLUMNS
    assert " ".join(narrow).split() == whole.split()


def test_ids_and_states_are_whole_and_the_cut_command_is_marked(fleet: Controller) -> None:
    lines = on_terminal(fleet, "runs").screen()
    (line,) = [line for line in lines if line.startswith(LONG)]
    assert line.endswith("\u2026")
    rows = fleet.json("runs")["runs"]
    for columns in (COLUMNS, 10):
        lines = on_terminal(fleet, "runs", columns=columns).screen()[1:-1]
        assert [line.split()[:2] for line in lines] == [[row["id"], row["state"]] for row in rows]
    assert "word " * 40 in fleet.run("runs", check=True).stdout


def test_the_columns_that_the_environment_names_win(fleet: Controller) -> None:
    def widest(columns: str) -> int:
        return max(map(width, on_terminal(fleet, "runs", env={"COLUMNS": columns}).screen()))

    assert widest("100") == 100
    for nonsense in ("", "0", "-5", "wide", "9" * 5000):
        assert widest(nonsense) <= COLUMNS


@pytest.mark.parametrize(
    ("args", "env"),
    [
        (("--no-color", "runs"), {}),
        (("runs",), {"CONTROLLER_NO_COLOR": "1"}),
        (("runs",), {"NO_COLOR": "1"}),
        (("runs",), {"TERM": "dumb"}),
        (("runs",), {"NO_COLOR": "1", "FORCE_COLOR": "1"}),
    ],
)
def test_there_is_no_colour_against_the_will(fleet: Controller, args: tuple[str, ...], env: dict[str, str]) -> None:
    assert "\x1b" not in on_terminal(fleet, *args, env=env).text


def test_a_terminal_has_colour_which_says_nothing_that_the_words_do_not(fleet: Controller) -> None:
    coloured = on_terminal(fleet, "--exact-times", "runs")
    assert "\x1b[1mRUN\x1b[0m" in coloured.text
    assert coloured.screen() == on_terminal(fleet, "--exact-times", "--no-color", "runs").screen()


@pytest.mark.parametrize("question", [("runs",), ("status",)], ids=" ".join)
def test_a_pipe_gets_it_plain_and_whole_whatever_the_environment_says(
    fleet: Controller, question: tuple[str, ...]
) -> None:
    env = {"FORCE_COLOR": "1", "COLUMNS": "20", "TERM": "xterm", "CLICOLOR_FORCE": "1"}
    answer = fleet.run("--exact-times", *question, env=env, check=True).stdout
    assert "\x1b" not in answer
    assert answer == fleet.run("--exact-times", *question, check=True).stdout


def test_json_on_a_terminal_is_one_plain_line_whatever_the_environment_says(fleet: Controller) -> None:
    text = on_terminal(fleet, "runs", "--json", env={"FORCE_COLOR": "1", "COLUMNS": "20"}).text
    assert "\x1b" not in text
    assert text.replace("\r\n", "\n") == fleet.run("runs", "--json", check=True).stdout


@pytest.mark.parametrize("question", [("runs",), ("show", LONG), ("show", "slot:1")], ids=" ".join)
def test_times_are_ages_unless_moments_are_asked_for(fleet: Controller, question: tuple[str, ...]) -> None:
    ages = fleet.run(*question, check=True).stdout
    assert AGE.search(ages)
    assert not MOMENT.search(ages)
    exact = fleet.run("--exact-times", *question, check=True).stdout
    assert MOMENT.search(exact)
    assert " ago" not in exact
    assert fleet.run(*question, env={"CONTROLLER_EXACT_TIMES": "1"}, check=True).stdout == exact


def test_history_is_always_exact(fleet: Controller) -> None:
    told = fleet.run("history", check=True).stdout
    assert told == fleet.run("--exact-times", "history", check=True).stdout
    head, *lines = told.splitlines()
    assert "TIME" in head
    assert all(MOMENT.search(line) for line in lines)


def test_what_a_provider_takes_long_for_is_told_in_one_line_that_is_gone_in_the_end(controller: Controller) -> None:
    program = Program(controller, slots=1)
    program.next("create-1", {"wait_for": "go"})
    program.submit("r-1")
    with Terminal(controller, "reconcile", "--apply") as terminal:
        terminal.until(r"\r\x1b\[Kasking the provider: slot 1: create \(2 s\)")
        terminal.until(r"\r\x1b\[Kasking the provider: slot 1: create \(3 s\)")
        assert "\n" not in terminal.text
        assert len(terminal.screen()) == 1
        program.let("go")
        terminal.end()
    assert terminal.exit == 0
    seen = terminal.screen()
    assert seen[0].split() == ["SLOT", "ACTION", "RUN", "OUTCOME", "DETAIL"]
    assert "asking" not in "".join(seen)


def test_whom_the_document_is_waited_for_is_told_on_a_terminal_alone(controller: Controller) -> None:
    controller.init()
    submit = ("--lock-timeout", "1m", "submit")
    held = ExitStack()
    held.enter_context(locked(controller.state / "controller.lock"))
    with (
        held,
        Terminal(controller, *submit, "--id", "a", "--", "true", columns=100) as terminal,
        Terminal(controller, "--quiet", *submit, "--id", "q", "--", "true", columns=100) as quiet,
        Terminal(controller, *submit, "--json", "--id", "j", "--", "true", columns=100) as json,
        Terminal(controller, *submit, "--id", "d", "--", "true", env={"TERM": "dumb"}, columns=100) as dumb,
    ):
        piped = controller.popen(*submit, "--id", "p", "--", "true")
        terminal.until(r"\r\x1b\[Kwaiting for the document \(2 s\): held by pid \d+ \(init\)")
        terminal.until(r"waiting for the document \(4 s\)")  # by now the others would have said it too
        held.close()
        for each in (terminal, quiet, json, dumb):
            assert each.end().exit == 0
        stdout, stderr = piped.communicate(timeout=60)
    assert (stdout, stderr) == ("p\n", "")
    assert terminal.screen() == ["a", ""]
    assert quiet.text == "q\r\n"
    assert dumb.text == "d\r\n"
    assert "waiting" not in json.text


def test_quiet_says_nothing_at_all_of_what_is_done(controller: Controller) -> None:
    program = Program(controller, slots=1)
    program.submit("a", "b", "c1", "c2", "c3", "c4")
    to_cancel = iter(("c1", "c2", "c3", "c4"))
    for command in (("cancel",), ("reconcile", "--apply"), ("replay-pending",), ("drain", "--all"), ("drain", "--off")):

        def words(command: tuple[str, ...] = command) -> tuple[str, ...]:
            return (*command, next(to_cancel)) if command == ("cancel",) else command

        done = controller.run("--quiet", *words(), check=True)
        assert (done.stdout, done.stderr) == ("", ""), str(done)
        assert on_terminal(controller, "--quiet", *words()).text == ""
        assert controller.run(*words(), check=True).stdout
        assert controller.json("--quiet", *words())["schema"] == f"controller.{command[0]}/1"


def test_quiet_says_nothing_of_a_running_run_that_is_cancelled(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "sleep", "600", check=True)
    controller.run("reconcile", "--apply", check=True)
    done = controller.run("--quiet", "cancel", "r-1", check=True)
    assert (done.stdout, done.stderr) == ("", ""), str(done)
    assert controller.json("show", "r-1")["run"]["cancel_requested_at"] is not None


def test_quiet_does_not_keep_trouble_back(controller: Controller) -> None:
    program = Program(controller, slots=1)
    program.submit("a")
    program.always("create", {"do": False, "instead": "nonsense"})
    for command in (("reconcile", "--apply"), ("replay-pending",)):
        done = controller.run("--quiet", *command)
        assert done.exit == 5, str(done)
        assert "trouble remains: slot 1" in done.stdout


def test_quiet_answers_questions(fleet: Controller) -> None:
    for question in (("reconcile",), ("replay-pending", "--dry-run"), ("runs",), ("status",)):
        assert fleet.run("--quiet", *question, check=True).stdout


def test_a_command_that_asks_the_provider_needs_no_stderr(controller: Controller) -> None:
    controller.init()
    for command in (("reconcile", "--apply"), ("status", "--live")):
        done = call(controller, "bash", "-c", '"$@" 2>&-', "bash", *controller.command(*command))
        assert done.exit == 0, str(done)
        assert done.stdout
