"""A colour repeats what a word says: of a state, an outcome, or a line that tells of trouble."""

from __future__ import annotations

import contextlib
import os
import pty

import pytest

from controller.cli import text
from controller.cli.output import Output
from controller.cli.tables import Facts
from controller.model.records import RunState, StepState

BARE = [("run", "r-1"), ("state", "failed: a step failed"), ("last error", "failed, too")]


@pytest.mark.parametrize(
    ("said", "color"),
    [
        ("succeeded", text.GREEN),
        ("failed: a step failed", text.RED),
        ("lost", text.RED),
        ("trouble: no answer", text.RED),
        ("running", text.YELLOW),
        ("creating", text.YELLOW),
        ("queued (scheduled)", text.DIM),
    ],
)
def test_a_state_is_coloured_and_what_is_said_about_it_is_not(said: str, color: str) -> None:
    word = said.split(" ", maxsplit=1)[0].rstrip(":")
    assert text.telling(said) == f"{color}{word}\x1b[0m{said.removeprefix(word)}"


@pytest.mark.parametrize("said", ["", "-", "troubles, the latest last", "failed-over", "run r-1 failed", " failed"])
def test_other_words_are_left_alone(said: str) -> None:
    assert text.telling(said) == said


def test_every_state_of_runs_and_steps_has_a_colour() -> None:
    for state in (*RunState, *StepState):
        assert text.telling(state.value) != state.value, state


def test_only_the_state_among_facts_is_coloured() -> None:
    plain = ["run         r-1", "state       failed: a step failed", "last error  failed, too"]
    assert list(Facts(BARE)) == plain
    assert list(Facts(BARE).lines(color=True)) == [
        plain[0],
        "state       \x1b[31mfailed\x1b[0m: a step failed",
        plain[2],
    ]


def test_facts_that_do_not_fit_go_on_below_with_their_colour() -> None:
    lines = list(Facts([("state", "failed: one two three")]).lines(room=20, color=True))
    assert lines == ["state  \x1b[31mfailed\x1b[0m: one", "       two three"]


def test_a_head_is_bold_and_one_of_what_is_wrong_red_too() -> None:
    output = Output(json=False, color=True)
    assert output.bold("troubles") == "\x1b[1mtroubles\x1b[0m"
    assert output.bold("troubles", wrong=True) == "\x1b[1m\x1b[31mtroubles\x1b[0m"
    assert Output(json=True, color=True).bold("troubles", wrong=True) == "troubles"


def everything(parent: int) -> bytes:
    """All that was written to the terminal, which nobody writes to any more; it comes in parts."""
    found = b""
    with contextlib.suppress(OSError):  # how a terminal says that this was all
        while part := os.read(parent, 4096):
            found += part
    os.close(parent)
    return found


def test_trouble_is_red_on_a_terminal_alone() -> None:
    page = ["trouble: no answer", "troubles, the latest last", "nothing else"]
    for color in (True, False):
        parent, child = pty.openpty()
        kept = [(number, os.dup(number)) for number in (1, 2)]
        try:
            for number, _ in kept:
                os.dup2(child, number)
            output = Output(json=False, color=color)
            output.answer("status", {}, page)
            output.warn(page[0])
        finally:
            for number, copy in kept:
                os.dup2(copy, number)
                os.close(copy)
            os.close(child)
        told = everything(parent).decode().replace("\r\n", "\n")
        first = "\x1b[31mtrouble\x1b[0m: no answer" if color else page[0]
        assert told == "\n".join([first, *page[1:], first, ""])
