"""init makes a state directory once, privately, and never over the traces of another."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import tomllib
from pathlib import Path

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.faults import CHANGES, call, document, run_dying, tree


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", ["000", "022", "077"])
def test_everything_is_private_whatever_the_umask(controller: Controller, umask: str) -> None:
    done = call(controller, "sh", "-c", 'umask "$0"; exec "$@"', umask, *controller.command("init"))
    assert done.exit == 0, str(done)
    assert mode(controller.state) == 0o700
    assert {path.name: oct(mode(path)) for path in controller.state.iterdir()} == dict.fromkeys(
        ("controller.json", "controller.toml", "controller.lock", "journal-1-0.jsonl"), "0o600"
    )


def test_a_second_init_is_refused_and_touches_nothing(controller: Controller) -> None:
    controller.init()
    before = tree(controller.state)
    answer = controller.json("init", exit=3)
    assert answer["error"]["code"] == "already_there"
    assert str(controller.state) in answer["error"]["where"]
    assert tree(controller.state) == before


SIGNS = ("history.jsonl", "history-1-9.jsonl", "journal-1-0.jsonl", "journal", "backup-schema1-9.json")


@pytest.mark.parametrize("sign", [*SIGNS, "workers", "slots"])
def test_a_directory_with_signs_of_an_earlier_life_is_refused(controller: Controller, sign: str) -> None:
    controller.state.mkdir()
    (controller.state / sign).touch()
    before = tree(controller.state)
    done = controller.run("init")
    assert done.exit == 3
    assert sign in done.stderr
    assert tree(controller.state) == before


def test_an_empty_directory_is_taken(controller: Controller) -> None:
    controller.state.mkdir(mode=0o755)
    answer = controller.json("init", "--fleet", "builds", "--slots", "7")
    assert (answer["schema"], answer["fleet"], answer["slots"], answer["provider"]) == (
        "controller.init/1",
        "builds",
        7,
        "local",
    )
    assert document(controller)["fleet"] == "builds"
    assert mode(controller.state) == 0o700


def test_two_documents_never_share_a_lineage(controller: Controller) -> None:
    controller.init()
    first = document(controller)["lineage"]
    controller.state = controller.home / "other"
    controller.init()
    assert document(controller)["lineage"] != first


def test_every_setting_of_the_written_file_may_be_uncommented(controller: Controller) -> None:
    controller.init()
    path = controller.state / "controller.toml"
    lines = path.read_text().splitlines()
    settings = [line.removeprefix("# ") if " = " in line or line.startswith("# [") else line for line in lines]
    assert tomllib.loads("\n".join(settings))["fleet"]["idle"] == "30s"
    path.write_text("\n".join(settings))
    controller.run("status", check=True)


def test_a_provider_command_is_split_as_a_shell_would_and_made_absolute(controller: Controller) -> None:
    program = controller.home / "a provider"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (controller.home / "script.py").touch()
    answer = controller.json("init", "--provider-command", "'./a provider' --region 'eu west'")
    assert answer["provider"] == "command"
    assert answer["provider_command"] == [str(program), "--region", "eu west"]
    controller.state = controller.home / "other"
    answer = controller.json(
        "init", "--provider", "command", "--provider-command", f"{shlex.quote(sys.executable)} script.py"
    )
    assert answer["provider_command"][1] == str(controller.home / "script.py")
    controller.run("status", check=True)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--provider", "command"], "--provider-command"),
        (["--provider", "local", "--provider-command", "true"], "--provider-command"),
        (["--provider-command", "no-such-program-anywhere"], "no-such-program-anywhere"),
        (["--provider-command", "'unfinished"], "--provider-command"),
        (["--provider-command", ""], "--provider-command"),
        (["--provider", "cloud"], "cloud"),
        (["--slots", "0"], "--slots"),
        (["--slots", "10001"], "--slots"),
        (["--fleet", "two words"], "two words"),
        (["--fleet", ""], "--fleet"),
    ],
)
def test_what_cannot_be_meant_makes_no_directory(controller: Controller, options: list[str], names: str) -> None:
    done = controller.run("init", *options)
    assert done.exit == 2, str(done)
    assert names in done.stderr
    assert not controller.state.exists()


def test_a_configuration_that_is_there_already_is_checked_and_kept(controller: Controller) -> None:
    controller.state.mkdir()
    path = controller.state / "controller.toml"
    path.write_text("[fleet]\nslots = 9\n")
    assert controller.json("init")["slots"] == 9
    assert path.read_text() == "[fleet]\nslots = 9\n"


def test_options_do_not_overwrite_a_configuration_that_is_there(controller: Controller) -> None:
    controller.state.mkdir()
    (controller.state / "controller.toml").write_text("[fleet]\nslots = 9\n")
    before = (controller.state / "controller.toml").read_bytes()
    assert controller.json("init", "--slots", "3", exit=3)["error"]["code"] == "already_there"
    assert (controller.state / "controller.toml").read_bytes() == before
    assert not (controller.state / "controller.json").exists()


@pytest.mark.parametrize("name", CHANGES)
def test_an_init_that_is_killed_leaves_a_document_or_is_completed_by_the_same_init(
    controller: Controller, name: str
) -> None:
    for nth in range(1, 20):
        controller.state = controller.home / f"state-{nth}"
        killed = run_dying(controller, name, nth, "init", "--slots", "3")
        if killed.exit == 0:
            break
        assert killed.exit == -9, str(killed)
        again = controller.run("init", "--slots", "3")
        assert again.exit in {0, 3}, str(again)
        status = controller.json("status")
        assert (status["revision"], status["slots"]) == (1, 3)
        assert controller.json("fsck")["ok"]
    else:
        pytest.fail("init never ended by itself")


def test_the_answer_for_people_names_what_was_made(controller: Controller) -> None:
    done = controller.init()
    assert str(controller.state) in done.stdout
    assert "next: controller submit" in done.stdout
    assert [event["event"] for event in controller.json("history")["events"]] == ["initialised"]
    assert os.listdir(controller.home) == ["state"]
