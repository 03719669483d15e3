"""Versions: a newer document is never written, an old one migrates whole, also when it is killed. Cases V1, V2."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from controller.model.records import Document
from tests.behaviour.driver import Controller
from tests.behaviour.faults import (
    CHANGES,
    document,
    durable,
    files,
    make_legacy,
    make_whole,
    on_disk,
    run_dying,
    write_document,
)

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
    content = on_disk(controller)
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
    data = write_document(controller, {**on_disk(controller), "schema": 3, "inventions": {"x": 1}})
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
    content = on_disk(controller)
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
    make_legacy(controller)
    good = on_disk(controller)
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
        data = write_document(controller, {**good, "pending_action": scalar})
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
    make_whole(controller)
    content = on_disk(controller)
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
        schema_1_pending(on_disk(controller))


def schema_1_pending(content: dict[str, Any]) -> dict[str, Any] | None:
    """What a schema-1 program does first, however lenient it is about all else: null means that nothing is pending."""
    pending = content["pending_action"]
    if pending is not None and not (isinstance(pending, dict) and "idempotency_key" in pending):
        raise ValueError(f"pending_action is neither null nor an action: {pending}")
    return pending


def test_a_document_of_schema_2_without_the_sentinel_is_refused(controller: Controller) -> None:
    controller.init()
    data = write_document(controller, {**on_disk(controller), "pending_action": None})
    done = controller.run("submit", "--", "true")
    assert done.exit == 7, str(done)
    assert SENTINEL in done.stderr
    assert (controller.state / "controller.json").read_bytes() == data


# --- The document from before the journal


class Whole(Document, frozen=True, forbid_unknown_fields=True):
    """A document as the program read it that wrote all of it with each commit."""

    digest: str = ""


def test_a_document_from_before_the_journal_is_read_as_it_is_and_migrated_by_the_first_change(
    controller: Controller,
) -> None:
    controller.init()
    controller.run("submit", "--id", "a", "--", "true", check=True)
    controller.run("withdraw", "a", check=True)
    told = controller.json("history")["events"]
    old = make_whole(controller)
    before = durable(controller)
    assert set(before) == {"controller.json", "history.jsonl"}
    assert controller.json("status")["revision"] == 3
    assert controller.json("show", "a")["run"]["state"] == "cancelled"
    assert controller.json("history")["events"] == told
    assert durable(controller) == before
    controller.run("submit", "--id", "b", "--", "true", check=True)
    assert [controller.json("show", run)["run"]["state"] for run in ("a", "b")] == ["cancelled", "queued"]
    assert (on_disk(controller)["schema"], on_disk(controller)["revision"]) == (2, 5)
    (backup,) = controller.state.glob("backup-whole-*.json")
    assert backup.read_bytes() == old
    assert durable(controller)["history.jsonl"] == before["history.jsonl"]
    after = controller.json("history")["events"]
    assert after[: len(told)] == told
    assert [event["event"] for event in after[len(told) :]] == ["migrated", "submitted"]
    assert controller.json("fsck")["ok"]


def test_whoever_wrote_whole_documents_reads_the_backup_and_refuses_what_became_of_it(controller: Controller) -> None:
    controller.init()
    make_whole(controller)
    controller.run("submit", "--", "true", check=True)
    (backup,) = controller.state.glob("backup-whole-*.json")
    assert msgspec.json.decode(backup.read_bytes(), type=Whole).revision == 1
    with pytest.raises(msgspec.ValidationError, match="unknown field `journal`"):
        msgspec.json.decode((controller.state / "controller.json").read_bytes(), type=Whole)


def test_the_backup_of_a_migration_is_an_older_copy_until_the_journals_are_moved_away(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--id", "a", "--", "true", check=True)
    make_whole(controller)
    assert controller.run("submit", "--id", "a", "--", "false").exit == 3, "what is refused migrates too"
    (backup,) = controller.state.glob("backup-whole-*.json")
    (controller.state / "controller.json").write_bytes(backup.read_bytes())
    assert controller.json("submit", "--", "true", exit=3)["error"]["code"] == "history_ahead"
    for path in (*controller.state.glob("journal-*"), *controller.state.glob("history-*-*")):
        path.rename(controller.home / path.name)
    controller.run("submit", "--id", "b", "--", "true", check=True)
    assert set(document(controller)["runs"]) == {"a", "b"}
    assert controller.json("fsck")["ok"]


# --- V2


@pytest.mark.parametrize("make", [make_legacy, make_whole])
@pytest.mark.parametrize("name", CHANGES)
def test_v2_killed_anywhere_a_migration_is_finished_later_and_its_backup_is_whole(
    controller: Controller, name: str, make: Callable[[Controller], bytes]
) -> None:
    controller.init()
    old = make(controller)
    template = controller.state
    for nth in range(1, 20):
        controller.state = controller.home / f"killed-{nth}"
        shutil.copytree(template, controller.state)
        done = run_dying(controller, name, nth, "submit", "--id", "first", "--", "true")
        if done.exit == 0:
            assert nth > 1, f"a migration makes no call of {name}: this test proves nothing"
            return
        assert done.exit == -9, str(done)
        if (controller.state / "controller.json").read_bytes() != old:
            assert backups(controller) == [old]
        for run in ("second", "third"):
            controller.run("submit", "--id", run, "--", "true", check=True)
        content = on_disk(controller)
        assert (content["schema"], content["pending_action"]) == (2, SENTINEL)
        assert set(content["runs"]) - {"first"} == {"second", "third"}
        assert backups(controller) == [old]
        assert not [left for left in files(controller.state) if "tmp" in left]
        told = controller.json("history")["events"]
        assert sorted({event["revision"] for event in told}) == list(range(1, content["revision"] + 1))
        assert [event["event"] for event in told].count("migrated") == 1
        assert controller.json("fsck")["ok"]
    pytest.fail("the migration never ended by itself")


def backups(controller: Controller) -> list[bytes]:
    return [backup.read_bytes() for backup in controller.state.glob("backup*")]
