"""submit: once its id is printed, a run is there, as it was given, exactly once."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

from tests.behaviour.driver import Controller
from tests.behaviour.faults import call, document, durable


def test_it_prints_the_id_and_nothing_else(controller: Controller) -> None:
    controller.init()
    done = controller.run("submit", "--", "make", "test")
    assert (done.exit, done.stdout, done.stderr) == (0, "r-1\n", "")
    assert document(controller)["runs"]["r-1"]["steps"][0]["argv"] == ["make", "test"]


def test_json_says_what_became_of_it(controller: Controller) -> None:
    controller.init()
    assert controller.json("submit", "--id", "nightly", "--", "true") == {
        "schema": "controller.submit/1",
        "run": "nightly",
        "created": True,
    }


def test_every_option_reaches_the_run(controller: Controller) -> None:
    controller.init()
    controller.run(
        *("submit", "--attempts", "3", "--timeout", "90s", "--cwd", "sub/..", "--env", "A=1", "--env", "B=x=y"),
        *("--", "env", "--json", "-x"),
        check=True,
    )
    run = controller.json("show", "r-1")["run"]
    assert (run["max_attempts"], run["max_crashes"]) == (3, 3)
    (step,) = run["steps"]
    assert step["argv"] == ["env", "--json", "-x"]
    assert (step["timeout_ms"], step["cwd"], step["env"]) == (90_000, str(controller.home), ["A", "B"])
    assert document(controller)["runs"]["r-1"]["steps"][0]["env"] == {"A": "1", "B": "x=y"}


def test_values_of_variables_are_shown_nowhere(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--env", "TOKEN=s3cr3t", "--", "true", check=True)
    for command in (["show", "r-1"], ["runs"], ["history"], ["status"], ["fsck"]):
        for args in (command, [*command, "--json"]):
            done = controller.run(*args, check=True)
            assert "s3cr3t" not in done.stdout + done.stderr
    wrong = controller.run("submit", "--env", "s3cr3t", "--", "true")
    assert wrong.exit == 2
    assert "s3cr3t" not in wrong.stdout + wrong.stderr


def test_the_same_id_with_the_same_content_is_the_same_run(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--id", "once", "--", "true", check=True)
    revision = document(controller)["revision"]
    again = controller.run("submit", "--id", "once", "--", "true", check=True)
    assert again.stdout == "once\n"
    assert "submitted before" in again.stderr
    assert controller.json("submit", "--id", "once", "--", "true")["created"] is False
    assert document(controller)["revision"] == revision


def test_the_same_id_with_other_content_is_a_conflict_and_is_noted(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--id", "once", "--", "true", check=True)
    before = durable(controller)
    error = controller.json("submit", "--id", "once", "--", "false", exit=3)["error"]
    assert (error["code"], "once" in error["what"], "controller show once" in error["next"]) == ("conflict", True, True)
    assert durable(controller) == before
    (refusal,) = controller.json("status")["refusals"]
    assert (refusal["command"], refusal["code"], refusal["subject"]) == ("submit", "conflict", "run:once")


def test_many_at_once_are_each_there_once(controller: Controller) -> None:
    controller.init()
    with ThreadPoolExecutor(6) as pool:
        ids = list(pool.map(lambda _: controller.run("submit", "--", "true", check=True).stdout.strip(), range(24)))
    assert len(set(ids)) == 24
    assert set(document(controller)["runs"]) == set(ids)
    assert controller.json("fsck")["ok"]


def test_a_full_stdout_does_not_change_what_was_done(controller: Controller) -> None:
    controller.init()
    for redirect in (">/dev/full", ">&-", "| true"):
        shell = 'set -o pipefail; "$@" ' + redirect
        done = call(controller, "bash", "-c", shell, "bash", *controller.command("submit", "--json", "--", "true"))
        assert done.exit == 0, str(done)
        assert "Traceback" not in done.stderr
    assert len(document(controller)["runs"]) == 3


def test_options_come_from_the_environment(controller: Controller) -> None:
    controller.init()
    env = {"CONTROLLER_SUBMIT_ATTEMPTS": "4", "CONTROLLER_SUBMIT_TIMEOUT": "5m"}
    controller.run("submit", "--", "true", env=env, check=True)
    run = controller.json("show", "r-1")["run"]
    assert (run["max_attempts"], run["steps"][0]["timeout_ms"]) == (4, 300_000)


def test_the_state_directory_comes_from_the_environment(controller: Controller) -> None:
    controller.init()
    program, *_ = controller.command()
    done = call(controller, program, "submit", "--", "true", env={"CONTROLLER_STATE_DIR": str(controller.state)})
    assert (done.exit, done.stdout) == (0, "r-1\n")
    other = controller.home / "elsewhere"
    other.mkdir()
    done = call(controller, program, "status", "--json", env={"CONTROLLER_STATE_DIR": os.path.relpath(other)})
    assert done.exit == 7
    assert "CONTROLLER_STATE_DIR" in json.loads(done.stdout)["error"]["where"]
