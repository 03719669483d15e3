"""Runs of several steps, by real processes: in order of need, skipped behind a failure, kept by a retry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.faults import call, document
from tests.behaviour.provider_program import wait_until

FAILS_ONCE = "test -e mended || { touch mended; exit 3; }"
KEY = 'echo "$CONTROLLER_STEP $CONTROLLER_TOKEN $CONTROLLER_ATTEMPT $CONTROLLER_IDEMPOTENCY_KEY" >>keys;'


@pytest.fixture
def local(controller: Controller) -> Iterator[Controller]:
    controller.init()
    (controller.home / "work").mkdir()
    yield controller
    controller.run("drain", "--all", check=True)


def step(name: str, script: str, *needs: str, **members: object) -> dict[str, object]:
    """A step that notes its name where all steps of its run work, and then does *script*."""
    argv = ["sh", "-c", f"echo {name} >>order; {script}"]
    return {"name": name, "argv": argv, "needs": list(needs), "cwd": "work", **members}


def write(controller: Controller, *steps: dict[str, object], **top: object) -> str:
    (controller.home / "graph.json").write_text(json.dumps({**top, "steps": steps}))
    return "graph.json"


def order(controller: Controller) -> list[str]:
    path = controller.home / "work" / "order"
    return path.read_text().split() if path.exists() else []


def states(controller: Controller, run: str) -> dict[str, str]:
    return {each["name"]: each["state"] for each in show(controller, run)["steps"]}


def show(controller: Controller, run: str) -> dict[str, Any]:
    found: dict[str, Any] = controller.json("show", run)["run"]
    return found


def serve_until_failed(controller: Controller, run: str) -> None:
    def failed() -> bool:
        controller.run("reconcile", "--apply", check=True)
        return bool(show(controller, run)["state"] == "failed")

    wait_until(failed, f"the failure of {run}")


def test_a_diamond_runs_in_order_of_need(local: Controller) -> None:
    """Listed backwards; directories are those beside the file, wherever the command is typed."""
    steps = [step("d", "", "b", "c"), step("c", "", "a"), step("b", "", "a"), step("a", "sleep 0.1")]
    answer = local.json("submit", "--wait", "--file", write(local, *steps, id="diamond"))
    assert [(run["id"], run["state"]) for run in answer["runs"]] == [("diamond", "succeeded")]
    assert order(local) == ["a", "c", "b", "d"]
    run = show(local, "diamond")
    times = {each["name"]: (each["started_at"], each["finished_at"]) for each in run["steps"]}
    assert times["a"][1] <= min(times["b"][0], times["c"][0])
    assert max(times["b"][1], times["c"][1]) <= times["d"][0]
    assert local.json("fsck")["ok"]
    (row,) = local.run("runs", check=True).stdout.splitlines()[1:]
    assert row.endswith("(and 3 more steps)")


def test_a_failure_skips_what_is_behind_it_and_a_retry_keeps_what_succeeded(local: Controller) -> None:
    steps = [
        step("fetch", ""),
        step("lint", FAILS_ONCE, "fetch"),
        step("build", "", "fetch"),
        step("publish", "", "build", "lint"),
        step("announce", "", "publish"),
    ]
    done = local.run("submit", "--wait", "--file", write(local, *steps, id="g"))
    assert (done.exit, order(local)) == (9, ["fetch", "lint", "build"])
    assert "run g failed: step lint exited with 3" in done.stderr
    page = local.run("show", "g", check=True).stdout
    drawn = {words[1]: words for words in map(str.split, page.splitlines()) if len(words) > 5}
    assert drawn["lint"][0::2][:3] == ["|x", "failed", "3"]
    assert drawn["publish"][:3] == ["-'", "publish", "skipped"]
    assert "publish, skipped: it needs lint (failed)" in page
    assert "announce, skipped: it needs publish (skipped)" in page
    assert "because step lint, which it needs, failed" in local.run("explain", "g", check=True).stdout

    local.run("retry", "g", check=True)
    kept = {"fetch": "succeeded", "build": "succeeded"}
    assert states(local, "g") == {"lint": "pending", "publish": "pending", "announce": "pending"} | kept
    local.run("wait", "g", check=True)
    assert order(local) == ["fetch", "lint", "build", "lint", "publish", "announce"]
    assert set(states(local, "g").values()) == {"succeeded"}


def test_the_key_of_a_step_is_the_same_in_every_attempt_and_life_and_after_a_retry(local: Controller) -> None:
    steps = [step("a", f"{KEY} exit 1", attempts=2), step("b", KEY)]
    local.configure("backoff.retry", 'initial = "10ms"', 'cap = "20ms"')
    local.run("submit", "--file", write(local, *steps, attempts=2), check=True)
    serve_until_failed(local, "r-1")
    local.run("retry", "r-1", check=True)
    serve_until_failed(local, "r-1")
    local.run("submit", "--file", "graph.json", check=True)
    serve_until_failed(local, "r-2")
    lines = [line.split() for line in (local.home / "work" / "keys").read_text().splitlines()]
    lives = [(name, token, attempt) for name, token, attempt, _ in lines]
    assert lives[:7] == [
        *(("a", "1", "1"), ("a", "1", "2"), ("b", "1", "1")),
        *(("a", "2", "1"), ("a", "2", "2")),
        *(("a", "3", "1"), ("a", "3", "2")),
    ]
    first = {name: {key for each, *_, key in lines[:7] if each == name} for name in "ab"}
    second = {key for *_, key in lines[9:]}
    assert (len(first["a"]), len(first["b"])) == (1, 1)
    assert first["a"] != first["b"]
    assert second
    assert second.isdisjoint(first["a"] | first["b"])
    keys = {attempt["key"] for each in show(local, "r-1")["steps"] for attempt in each["attempts"]}
    assert keys.isdisjoint(first["a"] | first["b"])


def test_a_cancel_cancels_what_waits(local: Controller) -> None:
    local.run("submit", "--id", "x", "--file", write(local, step("a", "exec sleep 60"), step("b", "", "a")), check=True)
    local.run("reconcile", "--apply", check=True)
    local.run("cancel", "x", check=True)
    local.run("wait", "x")
    assert states(local, "x") == {"a": "cancelled", "b": "cancelled"}
    assert order(local) == ["a"]


def test_stdin_is_read_as_either_and_means_the_current_directory(controller: Controller) -> None:
    controller.init()
    toml = 'attempts = 2\n[[steps]]\nname = "a"\nargv = ["true"]\ncwd = "sub"\n'
    written = '\n {"attempts": 2, "steps": [{"name": "a", "argv": ["true"], "cwd": "sub"}]}'
    first = controller.run("submit", "--file", "-", "--id", "x", stdin=toml, check=True)
    again = controller.run("submit", "--file", "-", "--id", "x", stdin=written, check=True)
    assert (first.stdout, again.stdout) == ("x\n", "x\n")
    assert "submitted before" in again.stderr
    run = show(controller, "x")
    assert (run["max_attempts"], run["steps"][0]["cwd"]) == (2, str(controller.home / "sub"))


def test_a_file_can_be_named_by_the_environment(controller: Controller) -> None:
    controller.init()
    env = {"CONTROLLER_SUBMIT_FILE": write(controller, step("a", "")), "CONTROLLER_SUBMIT_ID": "named"}
    assert controller.run("submit", env=env, check=True).stdout == "named\n"


GOOD = '[[steps]]\nname = "a"\nargv = ["true"]\n'
REFUSED: dict[str, tuple[str, list[str]]] = {
    "nothing": ("", ["there are no steps"]),
    "syntax": ("[[steps]]\nname = \n", ["not TOML", "line 2, column 8"]),
    "a circle": (
        f'{GOOD}needs = ["b"]\n[[steps]]\nname = "b"\nargv = ["true"]\nneeds = ["a"]\n',
        ["in a circle: a -> b -> a", "g.toml, steps[0] 'a', needs"],
    ),
    "an unknown need": (
        f'{GOOD}[[steps]]\nname = "b"\nargv = ["true"]\nneeds = ["aa"]\n',
        ["it needs 'aa', and there is no such step", "g.toml, steps[1] 'b', needs"],
    ),
    "a shell": ('[[steps]]\nname = "a"\nargv = "make all"\n', ["there is no shell", "g.toml, steps[0] 'a', argv"]),
    "a secret": (f"{GOOD}env = {{ TOKEN = 31337 }}\n", ["env cannot be that", "g.toml, steps[0] 'a', env"]),
    "a contradiction": (f'id = "x"\n{GOOD}', ["id is 'x' there and 'mine' on the command line", "--id"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused_and_changes_nothing(controller: Controller, name: str) -> None:
    text, words = REFUSED[name]
    controller.init()
    path = controller.home / "g.toml"
    path.write_text(text)
    before = sorted((each, each.read_bytes()) for each in controller.state.rglob("*") if each.is_file())
    done = controller.run("submit", "--id", "mine", "--file", "g.toml")
    assert (done.exit, done.stdout) == (2, "")
    for word in words:
        assert word in done.stderr, str(done)
    assert "31337" not in done.stderr
    assert controller.json("submit", "--id", "mine", "--file", "g.toml", exit=2)["error"]["code"] == "usage"
    assert sorted((each, each.read_bytes()) for each in controller.state.rglob("*") if each.is_file()) == before


def test_a_conflict_is_noted_for_the_run_that_the_file_names(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--file", write(controller, step("a", ""), id="g"), check=True)
    assert controller.run("submit", "--file", write(controller, step("b", ""), id="g")).exit == 3
    (refusal,) = controller.json("status")["refusals"]
    assert (refusal["code"], refusal["subject"]) == ("conflict", "run:g")
    assert [each["name"] for each in document(controller)["runs"]["g"]["steps"]] == ["a"]


def test_a_stdin_that_is_closed_is_no_bug(controller: Controller) -> None:
    controller.init()
    done = call(controller, "sh", "-c", 'exec "$@" <&-', "sh", *controller.command("submit", "--file", "-"))
    assert done.exit == 2, str(done)


def test_the_example_runs(local: Controller) -> None:
    example = Path(__file__).parents[2] / "docs" / "examples" / "graph.toml"
    done = local.run("submit", "--wait", "--file", str(example), check=True)
    assert "published once under" in done.stdout
