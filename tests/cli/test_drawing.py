"""The drawing of a graph: each step below all that it needs, and lines that lead there."""

from __future__ import annotations

from typing import Any

import pytest

from controller.cli import views
from controller.cli.drawing import MARKS, WIDEST, drawing, in_order
from controller.cli.text import Times
from controller.model.reason import Reason
from controller.model.records import Attempt, Run, RunState, Step, StepState

NOW = 100_000
TIMES = Times(NOW)


def step(name: str, *needs: str, **fields: Any) -> Step:
    return Step(name, ("true",), needs=needs, **fields)


def ended(code: int | None = 0, signal: int | None = None) -> tuple[Attempt, ...]:
    return (Attempt(1, 1_000, "k", 3_500, code, signal, Reason.COMPLETED),)


DIAMOND = (
    step("publish", "build", "lint", state=StepState.SKIPPED, reason=Reason.UPSTREAM_FAILED),
    step("fetch", state=StepState.SUCCEEDED, attempts=ended()),
    step("lint", "fetch", state=StepState.FAILED, attempts=ended(3), max_attempts=2),
    step("build", "fetch", state=StepState.FAILED, attempts=ended(None, 9)),
    step("announce", "publish", state=StepState.SKIPPED, reason=Reason.UPSTREAM_FAILED),
    step("other", state=StepState.RUNNING, attempts=(Attempt(1, NOW - 4_000, "k"),)),
)


def test_a_diamond() -> None:
    assert list(drawing(DIAMOND, NOW)) == [
        "    STEP      STATE      TOOK  EXIT      TRIES   NEEDS",
        "+   fetch     succeeded  2.5s  0         1       -",
        "|x  lint      failed     2.5s  3         1 of 2  fetch",
        "x|  build     failed     2.5s  signal 9  1       fetch",
        "-'  publish   skipped    -     -         0       build, lint",
        "-   announce  skipped    -     -         0       publish",
        "*   other     running    4.0s  -         1       -",
    ]


def test_every_state_has_a_mark_of_its_own_that_any_terminal_can_show() -> None:
    assert set(MARKS) == set(StepState)
    assert len(set(MARKS.values())) == len(MARKS)
    assert "".join(MARKS.values()).isascii()


def test_a_step_stands_below_all_that_it_needs_and_otherwise_where_it_was_listed() -> None:
    steps = [step("d", "c"), step("c", "a"), step("b"), step("a"), step("e")]
    assert [each.name for each in in_order(steps)] == ["b", "a", "c", "d", "e"]


def test_steps_that_need_each_other_are_drawn_all_the_same() -> None:
    """An edited document may hold anything: what is wrong with it is for fsck to say."""
    steps = [step("a", "b"), step("b", "a"), step("c"), step("d", "unknown")]
    assert [each.name for each in in_order(steps)] == ["c", "a", "b", "d"]
    assert len(list(drawing(steps, NOW))) == 5


def test_a_line_stays_as_long_as_somebody_below_waits_for_it() -> None:
    """Read downwards: a column belongs to one step, from its mark to the last step that needs it."""
    steps = in_order([step(f"s{n}", *(f"s{m}" for m in range(n) if (n * 7 + m * 3) % 5 == 0)) for n in range(12)])
    head, *lines = drawing(steps, NOW)
    rows = [line[: head.index("STEP")] for line in lines]
    assert max(len(row.strip()) for row in rows) > 3, "a graph with several lines at once"
    column = {}
    for row, each in zip(rows, steps, strict=True):
        column[each.name] = row.index("o")
        below = steps[steps.index(each) + 1 :]
        last = [n for n, other in enumerate(below) if each.name in other.needs]
        for n in range(last[-1] + 1 if last else 0):
            place = rows[steps.index(each) + 1 + n][column[each.name]]
            assert place in ("|o'" if n == last[-1] else "|"), (each.name, below[n].name)


def test_a_graph_that_nobody_could_follow_is_drawn_without_lines() -> None:
    many = [step(f"s{n}") for n in range(WIDEST + 1)]
    rows = list(drawing([*many, step("all", *(each.name for each in many))], NOW))
    assert {row[:3] for row in rows[1:]} == {"o  "}


def test_a_name_cannot_act_on_the_terminal() -> None:
    """The grammar does not let it in; a document that was edited might."""
    assert "\x1b" not in "".join(drawing([step("\x1b[31m"), step("b", "\x1b[31m")], NOW))


def run(*steps: Step, **fields: Any) -> Run:
    return Run("r-1", "fleet", 1, 1, steps, **fields)


def page(shown: Run) -> str:
    parts = views.run_page(shown, TIMES)
    return "\n".join(part if isinstance(part, str) else "\n".join(part) for part in parts)


def test_a_run_of_one_step_needs_no_drawing() -> None:
    assert "STEP" not in page(run(step("main")))
    assert "\n".join(drawing(DIAMOND, NOW)) in page(run(*DIAMOND))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("publish", "step     publish, skipped: it needs build (failed), lint (failed)"),
        ("announce", "step     announce, skipped: it needs publish (skipped)"),
    ],
)
def test_a_skipped_step_names_the_needs_that_kept_it_from_starting(name: str, said: str) -> None:
    assert said in page(run(*DIAMOND, state=RunState.FAILED)).splitlines()


def test_a_step_that_was_skipped_with_its_whole_run_blames_no_need() -> None:
    alone = step("other", state=StepState.SKIPPED, reason=Reason.UPSTREAM_FAILED)
    lines = list(views.step_page(alone, (alone, step("a", state=StepState.FAILED)), TIMES))
    assert lines[0] == "step     other, skipped: the run was over before it could start"


def test_json_says_when_each_step_began_and_ended() -> None:
    steps = {each["name"]: each for each in views.run_whole(run(*DIAMOND), NOW)["steps"]}
    assert {name: (each["started_at"], each["finished_at"]) for name, each in steps.items()} == {
        "publish": (None, None),
        "fetch": (1_000, 3_500),
        "lint": (1_000, 3_500),
        "build": (1_000, 3_500),
        "announce": (None, None),
        "other": (NOW - 4_000, None),
    }
    again = step("a", state=StepState.PENDING, attempts=ended(1), max_attempts=2)
    whole = views.step_whole(again)
    assert (whole["started_at"], whole["finished_at"]) == (1_000, None)
