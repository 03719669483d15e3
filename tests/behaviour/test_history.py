"""history tells every transition exactly once, in order, and fsck proves that none is missing."""

from __future__ import annotations

import json

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.faults import CHANGES, document, run_dying


def test_every_transition_has_one_event(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    controller.run("withdraw", "r-1", check=True)
    answer = controller.json("history")
    assert answer["schema"] == "controller.history/1"
    told = [(event["command"], event["subject"], event["event"]) for event in answer["events"]]
    assert told[:2] == [("init", "fleet", "initialised"), ("submit", "run:r-1", "submitted")]
    assert {(command, subject) for command, subject, _ in told[2:]} == {("withdraw", "run:r-1")}
    numbers = [(event["revision"], event["n"]) for event in answer["events"]]
    assert numbers == sorted(set(numbers))


def test_one_subject_alone(controller: Controller) -> None:
    controller.init()
    for _ in range(3):
        controller.run("submit", "--", "true", check=True)
    events = controller.json("history", "r-2")["events"]
    assert [event["subject"] for event in events] == ["run:r-2"]
    text = controller.run("history", "r-2", check=True).stdout
    assert "run:r-2" in text
    assert "run:r-1" not in text
    assert controller.json("history", "slot:1")["events"] == []
    assert controller.json("history", "nope", exit=4)["error"]["code"] == "not_found"


def test_a_refused_command_is_not_in_history(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--id", "x", "--", "true", check=True)
    before = controller.json("history")
    assert controller.run("submit", "--id", "x", "--", "false").exit == 3
    assert controller.json("history") == before


@pytest.mark.parametrize("name", CHANGES)
def test_killed_anywhere_a_submit_is_whole_or_not_at_all_and_history_misses_nothing(
    controller: Controller, name: str
) -> None:
    controller.init()
    for nth in range(1, 20):
        before = document(controller)["revision"]
        done = run_dying(controller, name, nth, "submit", "--", "true")
        assert document(controller)["revision"] - before in {0, 1}
        if done.exit == 0:
            break
        assert done.exit == -9, str(done)
        assert controller.json("fsck")["ok"]
    else:
        pytest.fail("submit never ended by itself")
    revision = document(controller)["revision"]
    lines = [json.loads(line) for line in (controller.state / "history.jsonl").read_text().splitlines()]
    assert [line["revision"] for line in lines] == list(range(1, revision + 1))
    assert {line["subject"] for line in lines[1:]} == {f"run:{run}" for run in document(controller)["runs"]}
    assert not [path.name for path in controller.state.iterdir() if "tmp" in path.name]


def test_fsck_finds_a_line_that_is_missing(controller: Controller) -> None:
    controller.init()
    for _ in range(3):
        controller.run("submit", "--", "true", check=True)
    path = controller.state / "history.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2] + lines[3:]))
    verdict = controller.json("fsck", exit=5)
    assert verdict["ok"] is False
    assert [violation["id"] for violation in verdict["violations"]] == ["history-contiguous"]
    assert "history-contiguous" in controller.run("fsck").stdout


def test_history_that_is_ahead_is_noticed_and_refused(controller: Controller) -> None:
    controller.init()
    old = (controller.state / "controller.json").read_bytes()
    controller.run("submit", "--", "true", check=True)
    controller.run("submit", "--", "true", check=True)
    (controller.state / "controller.json").write_bytes(old)
    error = controller.json("submit", "--", "true", exit=3)["error"]
    assert (error["code"], "put the newer one back" in error["next"]) == ("history_ahead", True)
    assert controller.json("status")["integrity"]["history"] == "ahead"
    assert "history ahead" in controller.run("status", check=True).stdout
    assert "history-ahead" in [violation["id"] for violation in controller.json("fsck", exit=5)["violations"]]
    assert (controller.state / "controller.json").read_bytes() == old


def test_fsck_tells_what_keeps_the_next_command_from_changing_anything(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--id", "a", "--", "true", check=True)
    path = controller.state / "history.jsonl"
    sound = path.read_bytes()
    kept = controller.state.parent / "kept.jsonl"
    for wrong in (sound.replace(b"run:a", b"run:b"), sound + b'{"revision":9,', None):
        if wrong is None:
            path.rename(kept)
            path.symlink_to(kept)
        else:
            path.write_bytes(wrong)
        assert controller.run("submit", "--", "true").exit in {3, 8}
        found = controller.json("fsck", exit=5)["violations"]
        assert any(violation["id"].startswith("history") for violation in found), found
        if wrong is not None:
            path.write_bytes(sound)
