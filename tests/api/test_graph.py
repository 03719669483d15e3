"""Runs as they are written down: what is read, and what is refused with its place, whatever the way in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.api.graph import MOST_BYTES, read, submission
from controller.engine.queue import Context, submit
from controller.engine.submission import Submission, content_of
from controller.model.errors import UsageFault
from controller.model.graph import GIVEN_VARIABLES, MAX_STEPS, Misfit, cycle, misfit
from controller.model.records import Step

BASE = Path("/base/of")


def read_toml(text: str, **chosen: Any) -> Submission:
    return read(text.encode(), source="f.toml", base=BASE, toml=True, **chosen)


def step(members: str = "", *, name: str = "a") -> str:
    argv = "" if "argv" in members else 'argv = ["true"]'
    return f'[[steps]]\nname = "{name}"\n{argv}\n{members}\n'


def refused(text: str | bytes, **how: Any) -> tuple[str, str, str]:
    """What, where and what next."""
    with pytest.raises(UsageFault) as caught:
        read(text if isinstance(text, bytes) else text.encode(), source="f", base=BASE, **how)
    return caught.value.what, caught.value.where, caught.value.next


WHOLE = """
id = "deploy"
attempts = 2
[[steps]]
name = "build"
argv = ["make", "all"]
cwd = "../src"
env = { MODE = "fast" }
timeout = "90s"
[[steps]]
name = "ship"
argv = ["ship"]
needs = ["build"]
attempts = 3
cwd = "/srv"
"""
WHOLE_JSON = b"""
  {"id": "deploy", "attempts": 2, "steps": [
  {"name": "build", "argv": ["make", "all"], "cwd": "../src", "env": {"MODE": "fast"}, "timeout": "90s"},
  {"name": "ship", "argv": ["ship"], "needs": ["build"], "attempts": 3, "cwd": "/srv"}]}"""
STEPS = (
    Step("build", ("make", "all"), env={"MODE": "fast"}, cwd="/base/src", timeout_ms=90_000),
    Step("ship", ("ship",), needs=("build",), max_attempts=3, cwd="/srv"),
)


def test_every_member_arrives_and_json_says_the_same_as_toml() -> None:
    wanted = Submission(STEPS, id="deploy", max_attempts=2)
    assert read_toml(WHOLE) == wanted
    assert read(WHOLE_JSON, source="f", base=BASE) == wanted
    assert read(WHOLE.encode(), source="f", base=BASE) == wanted


def test_what_is_left_out_has_its_default() -> None:
    assert read_toml(step()) == Submission((Step("a", ("true",)),))


def test_the_command_line_says_what_the_file_leaves_open_and_may_repeat_it() -> None:
    assert read_toml(step(), id="x", attempts=4) == Submission((Step("a", ("true",)),), id="x", max_attempts=4)
    assert read_toml(WHOLE, id="deploy", attempts=2) == read_toml(WHOLE)


@pytest.mark.parametrize(("chosen", "member"), [({"id": "other"}, "id"), ({"attempts": 3}, "attempts")])
def test_a_command_line_that_contradicts_the_file_is_refused(chosen: dict[str, Any], member: str) -> None:
    what, where, _ = refused(WHOLE, **chosen)
    assert (what.startswith(f"{member} is "), where) == (True, f"f, {member}; --{member}")


TWO = step() + step('needs = ["{}"]', name="b")
WRONG: dict[str, tuple[str, str, str]] = {
    "nothing": ("", "there are no steps", "f"),
    "no steps": ("steps = []", "there are no steps", "f, steps"),
    "steps that are no list": ("steps = 3", "steps is no list", "f"),
    "a step that is no table": ('steps = ["a"]', "a step is a table", "f, steps[0]"),
    "an unknown member": (step() + "[extra]\n", "unknown member 'extra'", "f"),
    "a mistyped member": ("attemps = 2\n" + step(), "unknown member 'attemps' (did you mean 'attempts'?)", "f"),
    "a mistyped member of a step": (
        step("need = []"),
        "unknown member 'need' (did you mean 'needs'?)",
        "f, steps[0] 'a'",
    ),
    "an id that is a date": ("id = 2026-11-30\n" + step(), "id cannot be that", "f, id"),
    "an id outside the grammar": ('id = "../x"\n' + step(), "id cannot be that", "f, id"),
    "no attempts": ("attempts = 0\n" + step(), "attempts cannot be that", "f, attempts"),
    "attempts that are true": ("attempts = true\n" + step(), "attempts cannot be that", "f, attempts"),
    "a step without name": ('[[steps]]\nargv = ["true"]', "a step has no name", "f, steps[0]"),
    "a name that is a number": ('[[steps]]\nname = 1\nargv = ["true"]', "name cannot be that", "f, steps[0], name"),
    "a name outside the grammar": (step(name="a b"), "not a name for a step: 'a b'", "f, steps[0] 'a b', name"),
    "a step without command": ('[[steps]]\nname = "a"', "step a has no command", "f, steps[0] 'a', argv"),
    "an empty command": (step("argv = []"), "step a has no command", "f, steps[0] 'a', argv"),
    "a command of no name": (step('argv = [""]'), "step a has no command", "f, steps[0] 'a', argv"),
    "a command for a shell": (step('argv = "make all"'), "argv cannot be that", "f, steps[0] 'a', argv"),
    "a word that is a number": (step('argv = ["sleep", 1]'), "argv cannot be that", "f, steps[0] 'a', argv"),
    "a word with a NUL": (
        step(r'argv = ["x\u0000"]'),
        r"step a: 'x\x00' holds a NUL byte",
        "f, steps[0] 'a', argv",
    ),
    "needs that are one text": (step('needs = "b"'), "needs cannot be that", "f, steps[0] 'a', needs"),
    "an unknown need": (TWO.format("zz"), "it needs 'zz', and there is no such step", "f, steps[1] 'b', needs"),
    "a mistyped need": (
        step(name="fetch") + step('needs = ["ftech"]'),
        "it needs 'ftech', and there is no such step (did you mean 'fetch'?)",
        "f, steps[1] 'a', needs",
    ),
    "a need of itself": (step('needs = ["a"]'), "step a needs itself", "f, steps[0] 'a', needs"),
    "a need twice": (
        step() + step('needs = ["a", "a"]', name="b"),
        "it needs 'a' twice",
        "f, steps[1] 'b', needs",
    ),
    "a name twice": (step() + step(), "there are two steps called 'a'", "f, steps[1] 'a', name"),
    "a circle": (
        step('needs = ["c"]') + step('needs = ["a"]', name="b") + step('needs = ["b"]', name="c"),
        "steps need each other in a circle: a -> c -> b -> a",
        "f, steps[0] 'a', needs",
    ),
    "a circle behind good steps": (
        step(name="x") + step('needs = ["x", "b"]') + step('needs = ["a"]', name="b"),
        "steps need each other in a circle: a -> b -> a",
        "f, steps[1] 'a', needs",
    ),
    "a timeout that is a number": (step("timeout = 5"), "timeout cannot be that", "f, steps[0] 'a', timeout"),
    "a timeout without unit": (step('timeout = "5"'), "timeout cannot be that", "f, steps[0] 'a', timeout"),
    "a timeout of nothing": (step('timeout = "0s"'), "timeout cannot be that", "f, steps[0] 'a', timeout"),
    "attempts of a step": (step("attempts = 0"), "attempts cannot be that", "f, steps[0] 'a', attempts"),
    "an empty directory": (step('cwd = ""'), "cwd cannot be that", "f, steps[0] 'a', cwd"),
    "a variable that is a number": (step("env = { N = 424242 }"), "env cannot be that", "f, steps[0] 'a', env"),
    "a variable with an equals sign": (
        step('env = { "A=B" = "424242" }'),
        "not the name of a variable: 'A=B'",
        "f, steps[0] 'a', env",
    ),
    "a variable with a NUL": (
        step(r'env = { A = "424242\u0000" }'),
        "step a: the value of 'A' holds a NUL byte",
        "f, steps[0] 'a', env",
    ),
    "a variable that is a step's own": (
        step('env = { CONTROLLER_IDEMPOTENCY_KEY = "424242" }'),
        "CONTROLLER_IDEMPOTENCY_KEY is set for every step, by what it is",
        "f, steps[0] 'a', env",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_meant_is_refused_with_its_place_and_what_to_do(name: str) -> None:
    text, what, where = WRONG[name]
    found = refused(text)
    assert found[:2] == (what, where)
    assert found[2]
    assert "424242" not in " ".join(found), "the value of a variable may be a secret"


SYNTAX = {
    "TOML": (b"[[steps]]\nname = \n", True, "not TOML: Invalid value (at line 2, column 8)", "f"),
    "TOML that ends too early": (b'[[steps]]\nargv = ["a"', True, "not TOML: Unclosed array (at end of document)", "f"),
    "TOML too deep": (b"a = " + b"[" * 20_000, True, "not TOML: ", "f"),
    "no text": (b"[[steps]]\n\xff", True, "not UTF-8", "f, byte 10"),
    "JSON": (b'{"steps":\n [}', None, "not JSON: expecting value", "f, line 2, column 3"),
    "a key twice": (
        '{"id": "ü",\n "steps": [{"name": "ü", "argv": ["a"], "argv": []}]}'.encode(),
        None,
        "not JSON: the key 'argv' twice in one object",
        "f, line 2, column 41",
    ),
    "NaN": (b'{"attempts": NaN}', None, "not JSON: NaN is not JSON", "f, line 1, column 14"),
    "JSON too deep": (b'{"steps": ' + b"[" * 100, None, "not JSON: nested deeper than 64", "f, line 1, column 74"),
    "JSON by its name": (b"[[steps]]", False, "not JSON: ", "f, line 1, column"),
    "no table": (b"[]", False, "a run is a table with steps", "f"),
}


@pytest.mark.parametrize("name", SYNTAX)
def test_what_cannot_be_read_is_refused_with_line_and_column(name: str) -> None:
    data, toml, what, where = SYNTAX[name]
    found = refused(data, toml=toml)
    assert (found[0][: len(what)], found[1][: len(where)]) == (what, where)
    assert len(found[0]) < 200


def test_what_is_too_large_is_refused() -> None:
    assert refused(b"#" * (MOST_BYTES + 1))[0] == f"it is larger than {MOST_BYTES} bytes"
    many = "".join(step(name=f"s{n}") for n in range(MAX_STEPS + 1))
    assert refused(many)[:2] == (f"{MAX_STEPS + 1} steps are too many", "f, steps")
    assert len(read_toml("".join(step(name=f"s{n}") for n in range(MAX_STEPS))).steps) == MAX_STEPS


def test_a_chain_of_any_length_is_no_circle_and_a_long_circle_is_found() -> None:
    chain = {f"s{n}": [f"s{n - 1}"] if n else [] for n in range(MAX_STEPS)}
    assert cycle(chain) == ()
    assert len(cycle(chain | {"s0": [f"s{MAX_STEPS - 1}"]})) == MAX_STEPS
    assert cycle({"a": ["unknown"]}) == ()


def test_a_text_that_nobody_would_read_on_is_cut() -> None:
    what, where, _ = refused(step(name="x" * 5000))
    assert max(len(what), len(where)) < 200


def test_programs_give_the_same_steps_and_get_the_same_refusals() -> None:
    steps = [
        {"name": "build", "argv": ["make", "all"], "cwd": Path("/base/src"), "env": {"MODE": "fast"}, "timeout": "90s"},
        {"name": "ship", "argv": ("ship",), "needs": ["build"], "attempts": 3, "cwd": "/srv"},
    ]
    made = submission(steps=steps, id="deploy", attempts=2)
    assert made == Submission(STEPS, id="deploy", max_attempts=2)
    assert content_of(made) == content_of(read_toml(WHOLE))
    with pytest.raises(UsageFault) as caught:
        submission(steps=[steps[1]])
    assert caught.value.where == "submit, steps[0] 'ship', needs"


WRONG_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "a run is a command, steps, or a payload alone"),
    "both": ({"argv": ["a"], "steps": []}, "a run is either a command or steps"),
    "a command for a shell": ({"argv": "make all"}, "argv cannot be that"),
    "a word that is a number": ({"argv": ["sleep", 1]}, "argv cannot be that"),
    "a variable that is a number": ({"argv": ["a"], "env": {"N": 1}}, "env cannot be that"),
    "an empty directory": ({"argv": ["a"], "cwd": ""}, "cwd cannot be that"),
    "no time at all": ({"argv": ["a"], "timeout": 0.0001}, "timeout cannot be that"),
    "no number": ({"argv": ["a"], "timeout": float("nan")}, "timeout cannot be that"),
    "for ever": ({"argv": ["a"], "timeout": float("inf")}, "timeout cannot be that"),
    "a timeout beside steps": ({"steps": [{}], "timeout": 5}, "env, cwd and timeout belong to a step"),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_call_that_cannot_be_meant_is_refused(name: str) -> None:
    arguments, what = WRONG_CALLS[name]
    with pytest.raises(UsageFault) as caught:
        submission(**arguments)
    assert (caught.value.what, bool(caught.value.next)) == (what, True)


def test_a_command_takes_seconds_and_its_directory_is_made_absolute() -> None:
    made = submission(["make"], cwd=".", timeout=1.5, env={"A": "1"})
    assert made.steps == (Step("main", ("make",), env={"A": "1"}, cwd=str(Path.cwd()), timeout_ms=1500),)


def unfit(*steps: Step) -> Misfit:
    found = misfit(steps)
    assert found is not None
    return found


def test_whoever_makes_steps_meets_the_same_checks() -> None:
    assert unfit(Step("a", ("x",), max_attempts=0)).member == "attempts"
    assert unfit(Step("a", ("\ud800",))).what == r"step a: '\ud800' is not text"
    assert unfit(Step("a", ("x",), cwd="/\0")).member == "cwd"
    for variable in ("", *GIVEN_VARIABLES):
        assert unfit(Step("a", ("x",)), Step("b", ("x",), env={variable: "1"})).index == 1
    assert misfit(STEPS) is None


@pytest.mark.parametrize(
    ("steps", "where"),
    [
        ((Step("a", ("x",)), Step("b", ("x",), needs=("zz",))), "steps[1] 'b', needs"),
        ((Step("a", ("x",), env={"A=B": ""}),), "--env"),
        ((Step("a", ("x",), cwd="\0"),), "--cwd"),
        ((Step("a", ()),), ""),
    ],
)
def test_the_queue_refuses_them_before_it_asks_for_the_document(steps: tuple[Step, ...], where: str) -> None:
    nowhere: Any = None
    with pytest.raises(UsageFault) as caught:
        submit(Context(nowhere, nowhere, "test"), [Submission(steps)])
    assert caught.value.where == where
