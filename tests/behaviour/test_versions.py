"""Versions: a newer document is never written, an old one migrates whole, also when it is killed. Cases V1, V2."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import Any

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.faults import CHANGES, document, files, make_legacy, run_dying, write_document

SENTINEL = "superseded-by-pending-actions"


def action_for(controller: Controller, slot: int, **more: object) -> dict[str, Any]:
    content: dict[str, Any] = {
        "type": "create",
        "slot": slot,
        "serial": 1,
        "lineage": document(controller)["lineage"],
        "epoch": "",
        "assignment": "a-1",
        "generation": 1,
        "resources": {},
        "request": {},
        "settled": [],
        **more,
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return content | {"idempotency_key": hashlib.sha256(canonical).hexdigest()}


def give_worker(controller: Controller, slot: int) -> None:
    """A worker that is being created in *slot*, as the document must have it for its action."""
    content = document(controller)
    content["workers"][str(slot)] = {
        "slot": slot,
        "assignment": "a-1",
        "generation": 1,
        "provider": "local",
        "created_at": 1_700_000_000_000,
        "changed_at": 1_700_000_000_000,
    }
    content["counters"] |= {"serial": 1, "assignment": 1}
    write_document(controller, content)


# --- V1


def test_v1_a_newer_schema_is_refused_naming_both_and_left_alone(controller: Controller) -> None:
    controller.init()
    data = write_document(controller, {**document(controller), "schema": 3, "inventions": {"x": 1}})
    for command in (("submit", "--", "true"), ("withdraw", "r-1"), ("state", "accept"), ("status",), ("fsck",)):
        error = controller.json(*command, exit=7)["error"]
        assert error["code"] == "document_foreign"
        assert "3" in error["what"]
        assert "2" in error["what"]
    assert (controller.state / "controller.json").read_bytes() == data


@pytest.mark.parametrize("place", ["document", "run", "step", "counters"])
def test_v1_an_unknown_field_is_never_dropped(controller: Controller, place: str) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    content = document(controller)
    run = content["runs"]["r-1"]
    {"document": content, "run": run, "step": run["steps"][0], "counters": content["counters"]}[place]["invention"] = 1
    data = write_document(controller, content)
    for command in (("submit", "--", "true"), ("state", "accept")):
        done = controller.run(*command)
        assert done.exit in {3, 7}, str(done)
        assert "invention" in done.stderr
        assert (controller.state / "controller.json").read_bytes() == data


# --- The legacy document


def test_a_document_of_schema_1_is_read_as_it_is_and_migrated_by_the_first_change(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    old = make_legacy(controller)
    assert controller.json("status")["integrity"]["sentinel"] == "legacy"
    assert controller.json("show", "r-1")["run"]["state"] == "queued"
    assert (controller.state / "controller.json").read_bytes() == old
    controller.run("submit", "--", "true", check=True)
    content = document(controller)
    assert (content["schema"], content["pending_action"], content["pending_actions"]) == (2, SENTINEL, {})
    assert set(content["runs"]) == {"r-1", "r-2"}
    (backup,) = controller.state.glob("backup*")
    assert backup.read_bytes() == old
    assert controller.json("fsck")["ok"]


def test_the_scalar_action_moves_to_its_own_slot_bytes_and_key_untouched(controller: Controller) -> None:
    controller.init()
    give_worker(controller, 3)
    action = action_for(controller, 3)
    make_legacy(controller, action)
    (pending,) = controller.json("status")["pending_mutations"]
    assert (pending["slot"], pending["idempotency_key"]) == (3, action["idempotency_key"])
    controller.run("submit", "--", "true", check=True)
    assert document(controller)["pending_actions"]["3"]["action"] == action
    assert controller.json("fsck")["ok"]


def test_a_scalar_that_is_no_action_or_not_for_a_slot_is_refused_before_anything_is_written(
    controller: Controller,
) -> None:
    controller.init()
    good = document(controller)
    bad: list[object] = [
        "something",
        17,
        {},
        [],
        {**action_for(controller, 1), "generation": 2},
        action_for(controller, 0),
        action_for(controller, 10_001),
    ]
    for scalar in bad:
        write_document(controller, good)
        data = make_legacy(controller, scalar)
        before = files(controller.state)
        for command in (("submit", "--", "true"), ("state", "accept"), ("status",)):
            done = controller.run(*command)
            assert done.exit == 7, f"{scalar}: {done}"
            assert "pending_action" in done.stderr
        assert (controller.state / "controller.json").read_bytes() == data
        assert files(controller.state) - {"refusals.jsonl"} == before - {"refusals.jsonl"}


def test_a_scalar_that_disagrees_with_the_map_is_refused(controller: Controller) -> None:
    controller.init()
    give_worker(controller, 1)
    scalar, mapped = action_for(controller, 1), action_for(controller, 1, serial=2)
    content = document(controller)
    content |= {"schema": 1, "pending_action": scalar}
    content["pending_actions"] = {"1": {"action": mapped, "parked_at": 1}}
    del content["digest"]
    data = write_document(controller, content)
    done = controller.run("submit", "--", "true")
    assert done.exit == 7, str(done)
    assert "slot" in done.stderr
    assert (controller.state / "controller.json").read_bytes() == data


def test_a_schema_1_reader_refuses_the_sentinel(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    with pytest.raises(ValueError, match=SENTINEL):
        schema_1_pending(document(controller))


def schema_1_pending(content: dict[str, Any]) -> dict[str, Any] | None:
    """What a schema-1 program does first, however lenient it is about all else: null means that nothing is pending."""
    pending = content["pending_action"]
    if pending is not None and not (isinstance(pending, dict) and "idempotency_key" in pending):
        raise ValueError(f"pending_action is neither null nor an action: {pending}")
    return pending


def test_a_document_of_schema_2_without_the_sentinel_is_refused(controller: Controller) -> None:
    controller.init()
    data = write_document(controller, {**document(controller), "pending_action": None})
    done = controller.run("submit", "--", "true")
    assert done.exit == 7, str(done)
    assert SENTINEL in done.stderr
    assert (controller.state / "controller.json").read_bytes() == data


# --- V2


@pytest.mark.parametrize("name", CHANGES)
def test_v2_killed_anywhere_a_migration_is_finished_later_and_its_backup_is_whole(
    controller: Controller, name: str
) -> None:
    controller.init()
    old = make_legacy(controller)
    template = controller.state
    for nth in range(1, 20):
        controller.state = controller.home / f"killed-{nth}"
        shutil.copytree(template, controller.state)
        done = run_dying(controller, name, nth, "submit", "--id", "first", "--", "true")
        if done.exit == 0:
            assert nth > 1, f"a migration makes no call of {name}: this test proves nothing"
            return
        assert done.exit == -9, str(done)
        if document(controller)["schema"] == 2:
            assert backups(controller) == [old]
        for run in ("second", "third"):
            controller.run("submit", "--id", run, "--", "true", check=True)
        content = document(controller)
        assert (content["schema"], content["pending_action"]) == (2, SENTINEL)
        assert set(content["runs"]) - {"first"} == {"second", "third"}
        assert backups(controller) == [old]
        assert not [left for left in files(controller.state) if "tmp" in left]
        lines = (controller.state / "history.jsonl").read_text().splitlines()
        revisions = {json.loads(line)["revision"] for line in lines}
        assert revisions == set(range(1, content["revision"] + 1))
    pytest.fail("the migration never ended by itself")


def backups(controller: Controller) -> list[bytes]:
    return [backup.read_bytes() for backup in controller.state.glob("backup*")]
