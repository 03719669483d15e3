"""What cannot be meant is refused, saying what and where, and nothing is written."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.faults import tree

CONFIGS = {
    "an unknown option": ("[fleet]\nslotz = 4\n", ["slotz", "[fleet]", "did you mean 'slots'"]),
    "an unknown section": ("[fleat]\nslots = 4\n", ["fleat", "did you mean 'fleet'"]),
    "an unknown section below": ("[backoff.retries]\ncap = '1s'\n", ["backoff.retries", "backoff.retry"]),
    "an option outside any section": ("slots = 4\n", ["slots", "before any section"]),
    "a section that is a value": ("fleet = 4\n", ["fleet is a section"]),
    "too small": ("[fleet]\nslots = 0\n", ["slots cannot be 0", "[fleet] slots", "1 to 10000"]),
    "too large": ("[fleet]\nslots = 10001\n", ["slots cannot be 10001", "1 to 10000"]),
    "a truth for a number": ("[fleet]\nslots = true\n", ["slots cannot be true"]),
    "a float for a number": ("[fleet]\nslots = 4.0\n", ["slots cannot be 4.0"]),
    "text for a number": ('[fleet]\nslots = "4"\n', ['slots cannot be "4"']),
    "a bare number for a duration": ("[fleet]\nidle = 30\n", ["idle cannot be 30", "500ms"]),
    "a duration without unit": ('[fleet]\nidle = "30"\n', ['idle cannot be "30"', "500ms"]),
    "a duration beyond reason": ('[fleet]\nidle = "99999999999d"\n', ["idle cannot be", "3650d"]),
    "no queue": ("[fleet]\nqueues = []\n", ["at least one queue"]),
    "a queue outside the grammar": ('[fleet]\nqueues = ["a b"]\n', ["queues cannot be"]),
    "the same queue twice": ('[fleet]\nqueues = ["a", "a"]\n', ["different"]),
    "a kind that there is not": ('[provider]\nkind = "cloud"\n', ['kind cannot be "cloud"', '"local" or "command"']),
    "a command without its program": ('[provider]\nkind = "command"\n', ["[provider] command"]),
    "a program that is not absolute": ('[provider]\ncommand = ["prog"]\n', ["command cannot be", "absolute"]),
    "a command that is not words": ('[provider]\ncommand = "prog"\n', ["command cannot be"]),
    "a deadline of nothing": ('[provider.deadlines]\ncreate = "0s"\n', ["create cannot be"]),
    "a deadline for an unknown op": ('[provider.deadlines]\nmake = "1s"\n', ["make", "create"]),
    "a variable that is no text": ("[provider.env]\nTOKEN = 12345\n", ["TOKEN is not text"]),
    "a variable that is no name": ('[provider.env]\n"a b" = "x"\n', ["a b"]),
    "a cap below the first delay": ('[backoff.send]\ninitial = "1h"\n', ["cap is 1m", "[backoff.send]"]),
    "a factor below one": ("[backoff.send]\nfactor = 0.5\n", ["factor cannot be 0.5"]),
    "a factor that is no number": ("[backoff.send]\nfactor = nan\n", ["factor cannot be nan"]),
    "not TOML": ("[fleet\n", ["not TOML", "line 1"]),
    "twice the same": ("[fleet]\nslots = 1\nslots = 2\n", ["not TOML"]),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_that_cannot_be_meant(controller: Controller, name: str) -> None:
    text, words = CONFIGS[name]
    controller.init()
    path = controller.state / "controller.toml"
    path.write_text(text)
    before = tree(controller.state)
    done = controller.run("submit", "--", "true")
    assert done.exit == 2, str(done)
    assert str(path) in done.stderr
    for word in words:
        assert word in done.stderr, str(done)
    assert tree(controller.state) == before


def test_status_tells_of_such_a_configuration_and_the_rest_needs_none(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    (controller.state / "controller.toml").write_text("slots = 4\n")
    assert controller.json("status")["config_fault"]["code"] == "usage"
    for command in (("show", "r-1"), ("runs",), ("history",), ("fsck",), ("withdraw", "r-1"), ("state", "accept")):
        controller.run(*command, check=True)


def test_the_value_of_a_variable_is_not_repeated(controller: Controller) -> None:
    controller.init()
    (controller.state / "controller.toml").write_text("[provider.env]\nTOKEN = 918273645\n")
    assert "918273645" not in controller.run("status").stderr


def test_a_configuration_that_is_no_text_or_no_file(controller: Controller) -> None:
    controller.init()
    path = controller.state / "controller.toml"
    path.write_bytes(b"[fleet]\n# \xff\n")
    submit = ("submit", "--", "true")
    done = controller.run(*submit)
    assert (done.exit, "byte 10" in done.stderr) == (2, True)
    path.unlink()
    path.mkdir()
    assert controller.run(*submit).exit == 2
    assert controller.run("--config", "nowhere.toml", *submit).exit == 2
    assert "nowhere.toml" in controller.run("--config", "nowhere.toml", *submit).stderr


def test_a_configuration_elsewhere_is_used(controller: Controller) -> None:
    controller.init()
    (controller.home / "mine.toml").write_text("[fleet]\nslots = 77\n")
    done = controller.run("--config", "mine.toml", "status", "--json", check=True)
    assert done.json()["slots"] == 77
    done = controller.run("status", "--json", check=True, env={"CONTROLLER_CONFIG": str(controller.home / "mine.toml")})
    assert done.json()["slots"] == 77


def test_without_a_configuration_every_setting_has_its_default(controller: Controller) -> None:
    controller.init("--slots", "9")
    (controller.state / "controller.toml").unlink()
    assert controller.json("status")["slots"] == 4


TYPED = {
    "no command at all": (["submit"], ["nothing to run"]),
    "nothing behind the dashes": (["submit", "--"], ["nothing to run"]),
    "an empty command": (["submit", "--", ""], ["command"]),
    "an id outside the grammar": (["submit", "--id", "a b", "--", "true"], ["a b", "--id"]),
    "an empty id": (["submit", "--id", "", "--", "true"], ["--id"]),
    "an id that is a path": (["submit", "--id", "../x", "--", "true"], ["../x"]),
    "an id that is too long": (["submit", "--id", "x" * 65, "--", "true"], ["64"]),
    "no attempts": (["submit", "--attempts", "0", "--", "true"], ["--attempts"]),
    "attempts that are no number": (["submit", "--attempts", "two", "--", "true"], ["--attempts"]),
    "a timeout without unit": (["submit", "--timeout", "5", "--", "true"], ["--timeout", "500ms"]),
    "a timeout of nothing": (["submit", "--timeout", "0s", "--", "true"], ["--timeout"]),
    "a timeout below nothing": (["submit", "--timeout", "-5s", "--", "true"], ["--timeout"]),
    "a timeout beyond reason": (["submit", "--timeout", "999999999d", "--", "true"], ["3650d"]),
    "a variable without value": (["submit", "--env", "A", "--", "true"], ["NAME=VALUE"]),
    "a variable without name": (["submit", "--env", "=x", "--", "true"], ["NAME=VALUE"]),
    "an empty directory": (["submit", "--cwd", "", "--", "true"], ["--cwd"]),
    "a variable that is a step's own": (
        ["submit", "--env", "CONTROLLER_RUN=s3cr3t", "--", "true"],
        ["CONTROLLER_RUN is set for every step", "--env"],
    ),
    "steps and a command": (["submit", "--file", "x.toml", "--env", "A=1", "--", "true"], ["--file; argv, --env"]),
    "a file of no name": (["submit", "--file", ""], ["an empty path", "--file"]),
    "a file that is not there": (["submit", "--file", "x.toml"], ["x.toml", "No such file"]),
    "a file that is a directory": (["submit", "--file", "/"], ["Is a directory"]),
    "a lock timeout without unit": (["--lock-timeout", "5", "submit", "--", "true"], ["--lock-timeout"]),
    "a global option behind the command": (
        ["submit", "--lock-timeout", "5s", "--", "true"],
        ["--lock-timeout", "before the command"],
    ),
    "a command that there is not": (["sbumit", "--", "true"], ["sbumit", "did you mean 'submit'"]),
    "a command that is like none": (["bogus"], ["there is no command 'bogus'\n"]),
    "an option that is almost one": (["submit", "--attempt", "2", "--", "true"], ["did you mean '--attempts'"]),
    "JSON before the command": (["--json", "status"], ["--json goes after the command", "controller status --json"]),
    "a parallelism that is no number": (
        ["reconcile", "--parallelism", "abc"],
        ["--parallelism must be a whole number from 1 to 256"],
    ),
    "the same variable twice": (["submit", "--env", "A=1", "--env", "B=", "--env", "A=2", "--", "true"], ["A twice"]),
    "a slot out of bounds": (["show", "slot:10001"], ["10000"]),
    "a slot below bounds": (["show", "slot:0"], ["slot:0"]),
    "a slot in other digits": (["show", "slot:\u0663"], ["slot:"]),
    "a slot with a line in it": (["release", "a", "--slot", "1_0", "--template"], ["--slot", "'1_0' is not a slot"]),
    "a slot in wide digits": (["release", "a", "--slot", "\uff11", "--template"], ["--slot", "is not a slot"]),
    "a slot with its sign": (["replay-pending", "--slot", "+1", "--dry-run"], ["--slot", "'+1' is not a slot"]),
    "a slot with a space": (["replay-pending", "--slot", " 1", "--dry-run"], ["--slot", "' 1' is not a slot"]),
    "a limit with a line in it": (["runs", "--limit", "1_0"], ["--limit must be a whole number from 1 up"]),
    "a proof of too long a name": (["release", "a", "--proof", "a" * 300], ["no file has so long a name", "aaa...aaa"]),
    "no run": (["show", ""], ["run"]),
    "a state that there is not": (["runs", "--state", "happy"], ["happy"]),
    "no limit": (["runs", "--limit", "0"], ["--limit"]),
    "one argument too many": (["withdraw", "a", "b"], ["b"]),
}


@pytest.mark.parametrize("name", TYPED)
def test_a_command_line_that_cannot_be_meant(controller: Controller, name: str) -> None:
    args, words = TYPED[name]
    controller.init()
    before = tree(controller.state)
    done = controller.run(*args)
    assert done.exit == 2, str(done)
    for word in words:
        assert word in done.stderr + done.stdout, str(done)
    assert tree(controller.state) == before


@pytest.mark.parametrize("place", ["argv", "env", "cwd", "id"])
def test_text_that_is_not_text(controller: Controller, place: str) -> None:
    controller.init()
    before = tree(controller.state)
    options = {"argv": [], "env": [b"--env", b"A=\xff"], "cwd": [b"--cwd", b"/\xff"], "id": [b"--id", b"\xff"]}[place]
    argv = [b"--", b"echo", b"\xff" if place == "argv" else b"x"]
    for form in ([], [b"--json"]):
        command = [*map(os.fsencode, controller.command("submit")), *form, *options, *argv]
        done = subprocess.run(command, env=controller.env, capture_output=True, check=False, timeout=60)
        assert done.returncode == 2, done
        assert b"Traceback" not in done.stderr
        assert b'"usage"' in done.stdout if form else b"usage" in done.stderr
    assert tree(controller.state) == before


def test_a_state_directory_whose_name_is_not_text_works(controller: Controller) -> None:
    name = os.fsencode(controller.home) + b"/st\xffte"
    command = [os.fsencode(controller.command()[0]), b"--state-dir", name]
    for args in ([b"init", b"--json"], [b"submit", b"--", b"true"], [b"status"], [b"init", b"--json"]):
        done = subprocess.run([*command, *args], env=controller.env, capture_output=True, check=False, timeout=60)
        assert done.returncode in {0, 3}, done
        assert b"Traceback" not in done.stderr


def test_a_working_directory_that_is_gone(controller: Controller) -> None:
    gone = controller.home / "gone"
    gone.mkdir()
    script = 'cd "$0" && rmdir "$0" && exec "$@"'
    command = ("sh", "-c", script, str(gone), controller.command()[0], "status")
    done = subprocess.run(command, env=controller.env, capture_output=True, check=False, timeout=60)
    assert done.returncode == 2
    assert b"current directory is gone" in done.stderr
