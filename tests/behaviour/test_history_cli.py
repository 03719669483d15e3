"""history follows what happens, tells from when on, and proves that nothing of it was changed."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from controller import Controller as Fleet
from tests.behaviour.driver import COMMAND, Controller


@pytest.fixture
def fleet(controller: Controller) -> Controller:
    controller.init()
    for name in ("a", "b"):
        controller.run("submit", "--id", name, "--", "true", check=True)
    return controller


@contextmanager
def following(controller: Controller, *args: str) -> Iterator[subprocess.Popen[str]]:
    command = [str(COMMAND), "--state-dir", str(controller.state), "history", "--follow", *args]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=controller.env, stdout=pipe, stderr=pipe, text=True) as follower:
        try:
            yield follower
        finally:
            follower.kill()


def test_verify_says_how_far_history_goes(fleet: Controller) -> None:
    answer = fleet.json("history", "verify")
    assert (answer["schema"], answer["ok"]) == ("controller.history-verify/1", True)
    assert (answer["first"], answer["last"], answer["events"]) == (1, 3, 3)
    assert "from revision 1 to 3" in fleet.run("history", "verify", check=True).stdout
    assert fleet.run("history", "verify", "--follow").exit == 2


def test_a_changed_byte_is_named_with_its_file(fleet: Controller) -> None:
    oldest = min(fleet.state.glob("journal-*.jsonl"), key=lambda path: int(path.name.split("-")[1]))
    oldest.write_bytes(oldest.read_bytes().replace(b'"submit"', b'"sabmit"', 1).replace(b'"init"', b'"unit"', 1))
    error = fleet.json("history", "verify", exit=7)["error"]
    assert (error["code"], error["where"]) == ("document_corrupt", str(oldest))
    assert "offset" in error["what"]


def test_only_from_a_time_or_a_revision_on(fleet: Controller) -> None:
    events = fleet.json("history")["events"]
    assert fleet.json("history", "--since", "1d")["events"] == events
    assert fleet.json("history", "--since", "2020-01-01T00:00:00Z", "--since-revision", "3")["events"] == events[2:]
    assert fleet.json("history", "--since", "2999-01-01T00:00:00Z")["events"] == []
    assert fleet.json("history", "fleet")["events"] == events[:1]
    for wrong in ("1x", "yesterday", "2020-01-01", "7"):
        assert fleet.run("history", "--since", wrong).exit == 2


def test_what_comes_is_told_once_and_an_interrupt_ends_it(fleet: Controller) -> None:
    with following(fleet, "--json") as follower:
        assert follower.stdout is not None
        told = [json.loads(follower.stdout.readline()) for _ in range(3)]
        for name in ("c", "d", "e"):
            fleet.run("submit", "--id", name, "--", "true", check=True)
            told.append(json.loads(follower.stdout.readline()))
        follower.send_signal(signal.SIGINT)
        rest, trouble = follower.communicate(timeout=30)
    assert (follower.returncode, rest, trouble) == (130, "", "")
    assert {event.pop("schema") for event in told} == {"controller.event/1"}
    assert told == fleet.json("history")["events"]


def test_one_subject_alone_is_followed_in_text(fleet: Controller) -> None:
    with following(fleet, "b") as follower:
        assert follower.stdout is not None
        assert "run:b" in follower.stdout.readline()
        fleet.run("withdraw", "a", check=True)
        fleet.run("withdraw", "b", check=True)
        line = follower.stdout.readline()
        follower.send_signal(signal.SIGINT)
        rest, _ = follower.communicate(timeout=30)
    assert "run:b" in line
    assert "run:a" not in line + rest


def test_a_reader_that_goes_away_ends_it(fleet: Controller) -> None:
    with following(fleet) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        follower.stdout.readline()
        follower.stdout.close()
        trouble = follower.stderr.read()
        ended = follower.wait(timeout=30)
    assert (ended, trouble) == (0, "")


def test_settings_decide_how_much_is_kept(controller: Controller) -> None:
    """They are asked once there are many files."""
    controller.init()
    config = controller.state / "controller.toml"
    config.write_text("[history]\nkeep = { bytes = 1 }\n")
    for number in range(40):
        with Fleet.open(controller.state) as fleet:
            fleet.submit(["true"], id=f"r{number}")
    controller.run("withdraw", "r1", check=True)
    proven = controller.json("history", "verify")
    assert proven["first"] > 2
    assert controller.json("fsck")["ok"]
    assert controller.json("history")["events"][0]["revision"] == proven["first"]
    assert controller.json("history", "r0")["events"] == []
    assert controller.json("show", "r0")["run"]["id"] == "r0"
