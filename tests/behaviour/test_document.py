"""The document: missing is not new, broken bytes are left as they are, links and modes are kept. Cases D1, D3, D5."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.faults import call, files, on_disk, tree, write_document

WRITES = (("submit", "--", "true"), ("withdraw", "r-1"), ("state", "accept"))
QUESTIONS = (("status",), ("fsck",), ("show", "r-1"), ("runs",))


def contents(controller: Controller) -> dict[str, bytes]:
    return {name: entry[3] for name, entry in tree(controller.state).items() if name != "controller.lock"}


# --- D1: missing is not new


def test_d1_a_document_that_is_gone_is_refused_by_everything_and_not_made_anew(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    (controller.state / "controller.json").unlink()
    before = contents(controller)
    for command in (*WRITES, *QUESTIONS):
        error = controller.json(*command, exit=7)["error"]
        assert error["code"] == "document_missing"
        assert str(controller.state) in error["where"]
        assert error["next"]
    assert controller.run("init").exit == 3
    assert contents(controller) == before


@pytest.mark.parametrize("command", [*WRITES, *QUESTIONS, ("history",)])
def test_d1_a_typo_in_the_state_directory_makes_no_directory(controller: Controller, command: tuple[str, ...]) -> None:
    controller.state = controller.home / "tpyo" / "state"
    done = controller.run(*command)
    assert done.exit == 7, str(done)
    assert str(controller.state) in done.stderr
    assert "next: " in done.stderr
    assert os.listdir(controller.home) == []


def test_d1_only_where_nothing_is_left_is_a_new_document_what_comes_next(controller: Controller) -> None:
    def next_of() -> str:
        return str(controller.json("status", exit=7)["error"]["next"])

    assert next_of().startswith("`controller init`")
    controller.state.mkdir()
    assert next_of().startswith("`controller init`")
    (controller.state / "notes").touch()
    assert "put controller.json back, or `controller init`" in next_of()
    (controller.state / "history.jsonl").touch()
    assert next_of().startswith("put controller.json back")
    assert "init" not in next_of()


def test_d1_an_environment_that_points_nowhere_is_named(controller: Controller) -> None:
    program, *_ = controller.command()
    done = call(controller, program, "submit", "--", "true", env={"CONTROLLER_STATE_DIR": "/nowhere/at/all"})
    assert done.exit == 7
    assert "/nowhere/at/all (from CONTROLLER_STATE_DIR)" in done.stderr
    assert "next: " in done.stderr
    empty = call(controller, program, "status", env={"CONTROLLER_STATE_DIR": ""})
    assert empty.exit == 2
    assert "CONTROLLER_STATE_DIR" in empty.stderr


def test_d1_an_empty_mount_point_stays_empty(controller: Controller) -> None:
    controller.state.mkdir()
    for command in (*WRITES, *QUESTIONS):
        assert controller.run(*command).exit == 7
    assert os.listdir(controller.state) == []


# --- D3: broken bytes

BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda good: b"",
    "NULs": lambda good: bytes(4096),
    "half": lambda good: good[: len(good) // 2],
    "one brace more": lambda good: good + b"}",
    "NULs behind": lambda good: good + bytes(100),
    "byte-order mark": lambda good: b"\xef\xbb\xbf" + good,
    "not UTF-8": lambda good: good.replace(b"fleet", b"fl\xff\xfet", 1),
    "a list": lambda good: b"[" + good + b"]",
    "null": lambda good: b"null\n",
    "twice the same key": lambda good: good.replace(b'"schema":2', b'"schema":2,"schema":2', 1),
    "NaN": lambda good: good.replace(b'"revision":2', b'"revision":NaN', 1),
    "a float": lambda good: good.replace(b'"revision":2', b'"revision":2.0', 1),
    "2^64": lambda good: good.replace(b'"revision":2', b'"revision":18446744073709551616', 1),
    "too deep": lambda good: good.replace(b'"runs":{', b'"runs":{"x":' + b"[" * 300 + b"]" * 300 + b",", 1),
}


@pytest.mark.parametrize("name", BROKEN)
def test_d3_broken_bytes_are_refused_with_file_and_place_and_left_alone(controller: Controller, name: str) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    path = controller.state / "controller.json"
    good = path.read_bytes()
    broken = BROKEN[name](good)
    assert broken != good
    path.write_bytes(broken)
    before = contents(controller)
    for command in (*WRITES, *QUESTIONS) if name == "half" else (WRITES[0], QUESTIONS[0]):
        done = controller.run(*command)
        assert done.exit == 7, str(done)
        assert str(path) in done.stderr
        assert "Traceback" not in done.stderr
    assert contents(controller) == before


def test_d3_line_ends_of_another_system_are_read_and_count_as_an_edit(controller: Controller) -> None:
    controller.init()
    path = controller.state / "controller.json"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert controller.json("status")["integrity"]["digest"] == "edited"
    controller.run("state", "accept", check=True)
    controller.run("submit", "--", "true", check=True)


# --- D5: links, modes, owners


def test_d5_a_link_is_refused_or_followed_and_nothing_is_left_behind(controller: Controller) -> None:
    controller.init()
    path = controller.state / "controller.json"
    elsewhere = controller.home / "elsewhere.json"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    done = controller.run("submit", "--", "true")
    assert path.is_symlink()
    if done.exit == 0:
        assert elsewhere.read_bytes() != before
    else:
        assert done.exit == 3, str(done)
        assert str(path) in done.stderr
        assert elsewhere.read_bytes() == before
    assert not [name for name in files(controller.state) if "tmp" in name]
    assert files(controller.home) == {"state", "elsewhere.json"}
    controller.run("status", check=True)


def test_d5_mode_and_group_are_kept(controller: Controller) -> None:
    controller.init()
    path = controller.state / "controller.json"
    path.chmod(0o660)
    group = 12_345 if os.geteuid() == 0 else os.getgroups()[-1]
    os.chown(path, -1, group)
    controller.run("submit", "--", "true", check=True)
    journal = controller.state / on_disk(controller)["journal"]["file"]
    for status in (path.stat(), journal.stat()):
        assert (stat.S_IMODE(status.st_mode), status.st_gid) == (0o660, group)
    assert not [name for name in files(controller.state) if "tmp" in name]


# --- Outside edits


def test_an_edited_document_reads_and_refuses_change_until_it_is_accepted(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    content = on_disk(controller)
    content["runs"]["r-1"]["max_attempts"] = 5
    edited = write_document(controller, content)
    error = controller.json("submit", "--", "true", exit=3)["error"]
    assert (error["code"], "controller state accept" in error["next"]) == ("edited_outside", True)
    assert (controller.state / "controller.json").read_bytes() == edited
    assert controller.json("status")["integrity"]["digest"] == "edited"
    assert "digest edited" in controller.run("status", check=True).stdout
    assert "digest" in [violation["id"] for violation in controller.json("fsck", exit=5)["violations"]]
    assert controller.json("state", "accept") == {
        "schema": "controller.state-accept/1",
        "revision": 3,
        "changed": True,
        "restored_slots": [],
        "newer_records": [],
    }
    controller.run("submit", "--", "true", check=True)
    assert controller.json("show", "r-1")["run"]["max_attempts"] == 5
    assert controller.json("fsck")["ok"]


def test_an_edit_that_breaks_a_rule_is_not_accepted(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    content = on_disk(controller)
    content["runs"]["r-1"]["state"] = "running"
    edited = write_document(controller, content)
    error = controller.json("state", "accept", exit=3)["error"]
    assert error["code"] == "invariant_broken"
    assert "run:r-1" in error["where"] + error["what"]
    assert (controller.state / "controller.json").read_bytes() == edited
    assert controller.json("fsck", exit=5)["ok"] is False


def test_accepting_what_is_sealed_changes_nothing(controller: Controller) -> None:
    controller.init()
    before = contents(controller)
    assert controller.json("state", "accept")["changed"] is False
    assert contents(controller) == before


def test_a_lineage_that_was_edited_is_no_edit_but_another_fleet(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    path = controller.state / "controller.json"
    before = path.read_bytes()
    lineage = json.loads(before)["lineage"]
    path.write_bytes(before.replace(lineage.encode(), b"11111111-1111-4111-8111-111111111111"))
    edited = path.read_bytes()
    error = controller.json("state", "accept", exit=3)["error"]
    assert "lineage" in error["what"]
    assert path.read_bytes() == edited
