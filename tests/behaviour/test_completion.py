"""Shells complete commands, options, choices, run ids and slots, and never get an error in the middle of a line."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

import pytest

from controller.cli.root import COMMANDS
from tests.behaviour.driver import COMMAND, Controller, Result
from tests.behaviour.faults import call, tree
from tests.behaviour.provider_program import Program

_BASH = r"""
source <(controller completion bash)
number=$1
shift
COMP_WORDS=("$@") COMP_CWORD=$number COMPREPLY=()
_controller_completion controller
echo "exit $?"
printf '%s\n' "${COMPREPLY[@]}"
"""


def path(controller: Controller) -> str:
    return f"{COMMAND.parent}:{controller.env['PATH']}"


def in_bash(controller: Controller, *words: str, env: Mapping[str, str] | None = None) -> list[str]:
    """What bash offers for the last of *words*, which are as bash splits a line; *env* overrides the fleet's place."""
    own = {"PATH": path(controller), "CONTROLLER_STATE_DIR": str(controller.state)}
    done = call(
        controller,
        *("bash", "--norc", "-c", _BASH, "bash", str(len(words)), "controller", *words),
        env={**own, **(env or {})},
    )
    assert (done.exit, done.stderr) == (0, ""), str(done)
    head, *offered = done.stdout.splitlines()
    assert head == "exit 0"
    return [word for word in offered if word]


def asked(controller: Controller, words: str, place: str, shell: str = "bash", **env: str) -> Result:
    """The command itself, asked as a shell's script asks it."""
    own = {"_CONTROLLER_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": place}
    return call(controller, str(COMMAND), env={**own, "CONTROLLER_STATE_DIR": str(controller.state), **env})


@pytest.fixture
def fleet(controller: Controller) -> Controller:
    """Runs `build` and `r-1`, not taken yet, and `bird`, cancelled; workers in no slot."""
    controller.init("--slots", "3")
    for name in ("build", "r-1", "bird"):
        controller.run("submit", "--id", name, "--", "true", check=True)
    controller.run("withdraw", "bird", check=True)
    return controller


@pytest.fixture
def slots(controller: Controller) -> Controller:
    """Slots 1 to 3 have something to tell."""
    program = Program(controller, slots=3)
    program.always("create", {"do": False, "instead": "nonsense"})
    program.submit("a", "b", "c")
    controller.run("reconcile", "--apply")
    return controller


def test_commands_complete_from_nothing_and_from_their_beginning(fleet: Controller) -> None:
    assert in_bash(fleet, "") == list(COMMANDS)
    assert in_bash(fleet, "re") == ["reconcile", "replay-pending", "retry", "release", "resume"]
    assert in_bash(fleet, "state", "") == ["accept", "backup", "export", "import", "restore", "verify"]
    assert in_bash(fleet, "nonsense") == []


def test_queues_their_verbs_sets_and_codes_complete(fleet: Controller) -> None:
    fleet.run("submit", "--queue", "mail", "--payload", "1", check=True)
    assert in_bash(fleet, "queue", "re") == ["retry", "reap", "resume"]
    assert in_bash(fleet, "queue", "claim", "--queue", "") == ["fleet", "mail"]
    assert in_bash(fleet, "queue", "pause", "m") == ["mail"]
    assert in_bash(fleet, "queue", "browse", "") == ["pending", "active", "scheduled", "dead"]
    assert in_bash(fleet, "queue", "complete", "b") == ["bird", "build"]
    assert "invalid_payload" in in_bash(fleet, "queue", "fail", "r-1", "--reason", "in")
    assert in_bash(fleet, "runs", "--queue", "ma") == ["mail"]


def test_options_of_the_root_and_of_commands_complete(fleet: Controller) -> None:
    assert in_bash(fleet, "--no") == ["--no-color"]
    assert in_bash(fleet, "--exact-times", "runs", "--") == ["--state", "--queue", "--limit", "--json", "--help"]
    assert in_bash(fleet, "reconcile", "--ap") == ["--apply"]


def test_choices_complete_also_after_an_equals_sign(fleet: Controller) -> None:
    assert in_bash(fleet, "completion", "") == ["bash", "zsh", "fish"]
    assert in_bash(fleet, "runs", "--state", "s") == ["succeeded", "scheduled"]
    assert in_bash(fleet, "runs", "--state", "=", "s") == ["succeeded", "scheduled"]
    assert "dead" in in_bash(fleet, "runs", "--state", "=")


@pytest.mark.parametrize("command", ["show", "cancel", "withdraw", "retry", "logs", "explain", "history"])
def test_run_ids_complete_the_newest_first(fleet: Controller, command: str) -> None:
    assert in_bash(fleet, command, "") == ["bird", "r-1", "build"]
    assert in_bash(fleet, command, "b") == ["bird", "build"]
    assert in_bash(fleet, command, "x") == []


def test_zsh_and_fish_are_told_the_state_of_each_run(fleet: Controller) -> None:
    done = asked(fleet, "controller show b", "2", shell="zsh")
    assert (done.exit, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["plain", "bird", "cancelled", "plain", "build", "queued"]
    done = asked(fleet, "controller show b", "b", shell="fish")
    assert (done.exit, done.stderr) == (0, "")
    assert "cancelled" in done.stdout


def test_slots_complete_though_bash_splits_words_at_colons(slots: Controller) -> None:
    assert in_bash(slots, "show", "slot") == ["slot:1", "slot:2", "slot:3"]
    assert in_bash(slots, "show", "slot", ":") == ["1", "2", "3"]
    assert in_bash(slots, "show", "slot", ":", "2") == ["2"]
    assert in_bash(slots, "explain", "slot", ":", "9") == []
    assert in_bash(slots, "replay-pending", "--slot", "") == ["1", "2", "3"]
    assert in_bash(slots, "replay-pending", "--slot", "3") == ["3"]
    assert in_bash(slots, "replay-pending", "--slot", "=", "3") == ["3"]


def test_the_directory_is_the_one_that_the_line_names_or_the_environment(fleet: Controller) -> None:
    elsewhere = {"CONTROLLER_STATE_DIR": "/nowhere"}
    state = str(fleet.state)
    assert in_bash(fleet, "show", "b", env=elsewhere) == []
    assert in_bash(fleet, "--state-dir", state, "show", "b", env=elsewhere) == ["bird", "build"]
    assert in_bash(fleet, "--state-dir", "=", state, "show", "b", env=elsewhere) == ["bird", "build"]
    assert in_bash(fleet, "--state-dir", "/nowhere", "show", "b") == []


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff\x00", b'{"schema": 99}'])
def test_without_a_sound_document_nothing_is_said_and_nothing_written(fleet: Controller, content: bytes | None) -> None:
    document = fleet.state / "controller.json"
    if content is None:
        document.unlink()
    else:
        document.write_bytes(content)
    before = tree(fleet.home)
    for shell in ("bash", "zsh", "fish"):
        done = asked(fleet, "controller show ", "2", shell=shell)
        assert (done.exit, done.stdout, done.stderr) == (0, "", ""), str(done)
    assert in_bash(fleet, "re") == ["reconcile", "replay-pending", "retry", "release", "resume"]
    assert tree(fleet.home) == before


def test_asking_writes_nothing(fleet: Controller) -> None:
    before = tree(fleet.home)
    assert in_bash(fleet, "show", "") != []
    assert tree(fleet.home) == before


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("", ""),
        ("controller", "nonsense"),
        ("controller show ", "-7"),
        ("controller show ", "99999999999"),
        ("controller nonsense ", "2"),
        ("controller --nonsense show ", "3"),
        ("controller --lock-timeout nonsense nonsense ", "4"),
        ("controller show 'open", "2"),
        ("controller show \x1b[2J\udcff", "2"),
        ("controller state nonsense ", "3"),
        ("controller --help nonsense ", "3"),
        ("controller completion nonsense ", "3"),
    ],
)
def test_nonsense_on_the_line_is_answered_with_nothing(fleet: Controller, words: str, place: str) -> None:
    before = tree(fleet.home)
    done = asked(fleet, words, place)
    assert (done.exit, done.stderr) == (0, ""), str(done)
    assert all(line.startswith("plain,") for line in done.stdout.splitlines()), str(done)
    assert tree(fleet.home) == before


def test_an_empty_name_of_the_directory_is_answered_with_nothing(fleet: Controller) -> None:
    done = asked(fleet, "controller show ", "2", CONTROLLER_STATE_DIR="")
    assert (done.exit, done.stdout, done.stderr) == (0, "", ""), str(done)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_says_how_to_use_it_and_is_one_that_the_shell_can_read(controller: Controller, shell: str) -> None:
    script = controller.run("completion", shell, check=True).stdout
    assert script.startswith("# ")
    assert f"controller completion {shell}" in script.partition("\n_")[0] or shell == "fish"
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    file = controller.home / "script"
    file.write_text(script)
    done = call(controller, shell, "-n", str(file))
    assert (done.exit, done.stdout, done.stderr) == (0, "", "")


def test_paths_are_left_to_the_shell_and_one_that_it_would_expand_is_understood(fleet: Controller) -> None:
    for words, kind in (("--state-dir", "dir"), ("--config", "file"), ("submit --cwd", "dir"), ("submit --", "file")):
        done = asked(fleet, f"controller {words} ", str(len(words.split()) + 1))
        assert done.stdout == f"{kind},\n", str(done)
    for name in ("~/state", "$HOME/state"):
        assert in_bash(fleet, "--state-dir", name, "show", "bi", env={"CONTROLLER_STATE_DIR": "/nowhere"}) == ["bird"]
