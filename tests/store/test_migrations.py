"""Schema 1 becomes schema 2: bytes and key untouched, the old file kept, nothing written when anything contradicts."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from controller.model.action import digest, verify
from controller.model.errors import DocumentCorrupt, EditedOutside, StorageFailed
from controller.model.records import MAX_SLOTS, SENTINEL
from controller.store import codec
from controller.store.accept import accept
from tests.store import kit


def backups(directory: Path) -> list[Path]:
    return sorted(directory.glob("backup-schema1-*.json"))


def without_journals(directory: Path) -> None:
    for path in directory.glob("journal-*.jsonl"):
        path.unlink()


def action_for(slot: int) -> tuple[str, dict[str, Any]]:
    """An action whose key derives, for any slot: `mint` refuses those out of bounds."""
    _, raw = kit.create(3)
    content = orjson.loads(bytes(raw)) | {"slot": slot}
    del content["idempotency_key"]
    return digest(content), content | {"idempotency_key": digest(content)}


def test_null_becomes_the_sentinel_and_an_old_reader_refuses_it_loudly(tmp_path: Path) -> None:
    data = kit.schema1()
    store = kit.legacy(tmp_path / "s", data)
    assert kit.schema1_reads(data) is None
    with store.hold(1) as hold:
        document = hold.load().document
    assert (document.schema, document.revision, document.pending_action) == (2, 8, SENTINEL)
    assert set(document.runs) == {"r-1"}
    with pytest.raises(ValueError, match="neither null nor an action"):
        kit.schema1_reads((tmp_path / "s" / "controller.json").read_bytes())
    assert [event.event for event in store.history()] == ["submitted", "migrated"]
    assert store.history_fault() is None
    assert [path.read_bytes() for path in backups(tmp_path / "s")] == [data]
    assert kit.schema1_reads(backups(tmp_path / "s")[0].read_bytes()) is None


def test_an_action_moves_under_its_own_slot_with_bytes_and_key_untouched(tmp_path: Path) -> None:
    key, raw = kit.create(3)
    data = kit.schema1().replace(b'"pending_action":null', b'"pending_action":' + bytes(raw))
    store = kit.legacy(tmp_path / "s", data)
    seen = store.read()
    assert seen.legacy
    assert not seen.edited
    with store.hold(1) as hold:
        document = hold.load().document
    assert set(document.pending_actions) == {3}
    parked = document.pending_actions[3]
    assert bytes(parked.action) == bytes(raw)
    assert (parked.sends, parked.parked_at) == (1, 0)
    assert document.slots[3].changed == document.revision
    assert key.encode() in (tmp_path / "s" / "controller.json").read_bytes()
    assert kit.opened(tmp_path / "s").read().document == document


def test_a_parked_time_is_never_later_than_the_park(tmp_path: Path) -> None:
    _, raw = kit.create(3)
    worker = {"slot": 3, "assignment": "a-1", "generation": 1, "provider": "local", "created_at": 55, "changed_at": 99}
    store = kit.legacy(tmp_path / "s", kit.schema1(pending_action=orjson.loads(bytes(raw)), workers={"3": worker}))
    assert store.read().document.pending_actions[3].parked_at == 55


def test_readers_migrate_in_memory_only(tmp_path: Path) -> None:
    store = kit.legacy(tmp_path / "s", kit.schema1())
    before = kit.snapshot_of(tmp_path)
    snapshot = store.read()
    assert snapshot.legacy
    assert snapshot.document.revision == 7
    assert len(store.history()) == 1
    assert kit.snapshot_of(tmp_path) == before


BAD: dict[str, dict[str, Any]] = {
    "a number": {"pending_action": 5},
    "a word": {"pending_action": "park"},
    "an empty object": {"pending_action": {}},
    "a list": {"pending_action": []},
    "false": {"pending_action": False},
    "a touched action": {"pending_action": action_for(3)[1] | {"generation": 2}},
    "slot 0": {"pending_action": action_for(0)[1]},
    "a slot too high": {"pending_action": action_for(MAX_SLOTS + 1)[1]},
    "disagrees": {
        "pending_action": action_for(3)[1],
        "pending_actions": {"3": {"action": orjson.loads(bytes(kit.create(3, serial=9)[1])), "parked_at": 1}},
    },
    "unknown field": {"colour": "red"},
}


@pytest.mark.parametrize("case", BAD)
def test_what_contradicts_is_refused_before_anything_is_written(tmp_path: Path, case: str) -> None:
    store = kit.legacy(tmp_path / "s", kit.schema1(**BAD[case]))
    before = kit.snapshot_of(tmp_path)
    with pytest.raises(DocumentCorrupt, match="cannot be migrated"):
        store.read()
    with store.hold(1) as hold, pytest.raises(DocumentCorrupt):
        hold.load()
    assert kit.snapshot_of(tmp_path) == before


def test_a_scalar_that_is_no_action_says_what_belongs_there(tmp_path: Path) -> None:
    store = kit.legacy(tmp_path / "s", kit.schema1(pending_action="park"))
    with pytest.raises(DocumentCorrupt) as refusal:
        store.read()
    assert "backup" in refusal.value.next
    assert "the whole action if one was parked, null if none was" in refusal.value.next


def test_a_missing_scalar_is_not_null(tmp_path: Path) -> None:
    store = kit.legacy(tmp_path / "s", kit.schema1().replace(b'"pending_action":null,', b""))
    with pytest.raises(DocumentCorrupt, match="missing, which is not null"):
        store.read()


def test_a_map_entry_that_agrees_is_kept(tmp_path: Path) -> None:
    _, raw = kit.create(3)
    entry = {"action": orjson.loads(bytes(raw)), "parked_at": 44, "sends": 5}
    fields = {"pending_action": orjson.loads(bytes(raw)), "pending_actions": {"3": entry}}
    store = kit.legacy(tmp_path / "s", kit.schema1(**fields))
    assert store.read().document.pending_actions[3].sends == 5


def test_a_schema_2_document_without_the_sentinel_is_refused(tmp_path: Path) -> None:
    store = kit.legacy(tmp_path / "s", kit.schema1(schema=2))
    with pytest.raises(DocumentCorrupt, match="must be 'superseded"):
        store.read()


def test_a_schema_2_document_with_another_word_in_the_place_of_the_sentinel_is_refused(tmp_path: Path) -> None:
    store = kit.legacy(tmp_path / "s", kit.schema1(schema=2, pending_action="superseded"))
    with pytest.raises(DocumentCorrupt, match="must be 'superseded-by"):
        store.read()


def test_a_schema_1_document_whose_digest_is_wrong_counts_as_edited(tmp_path: Path) -> None:
    store = kit.legacy(tmp_path / "s", kit.schema1(digest="0" * 64))
    assert store.read().edited
    with store.hold(1) as hold, pytest.raises(EditedOutside):
        hold.load()
    assert backups(tmp_path / "s") == []
    accept(store, restore_pending=False, timeout=1)
    assert store.read().document.revision == 8
    assert len(backups(tmp_path / "s")) == 1


def test_a_backup_never_overwrites_and_the_same_bytes_are_kept_once(tmp_path: Path) -> None:
    data = kit.schema1()
    store = kit.legacy(tmp_path / "s", data)
    with store.hold(1) as hold:
        hold.load()
    first = backups(tmp_path / "s")
    without_journals(tmp_path / "s")
    (tmp_path / "s" / "controller.json").write_bytes(data)
    with kit.opened(tmp_path / "s").hold(1) as hold:
        hold.load()
    assert backups(tmp_path / "s") == first
    other = kit.schema1(fleet="other")
    without_journals(tmp_path / "s")
    (tmp_path / "s" / "controller.json").write_bytes(other)
    with kit.opened(tmp_path / "s").hold(1) as hold:
        hold.load()
    assert [path.read_bytes() for path in backups(tmp_path / "s")] in ([data, other], [other, data])
    assert all(re.fullmatch(r"backup-schema1-7-\d{8}T\d{6}Z-\d+\.json", path.name) for path in backups(tmp_path / "s"))


def test_without_a_backup_there_is_no_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = kit.schema1()
    store = kit.legacy(tmp_path / "s", data)
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with store.hold(1) as hold, pytest.raises(StorageFailed, match="ENOSPC"):
        hold.load()
    assert (tmp_path / "s" / "controller.json").read_bytes() == data
    assert not [name for name in kit.files(tmp_path / "s") if ".tmp-" in name]


def whole(directory: Path, *, lacks: bool) -> bytes:
    """A directory as a program left it that wrote whole documents and a history beside them; *lacks*: its last commit
    did not get into that any more. Returns the document's bytes.
    """
    store = kit.fleet(directory)
    kit.submit(store, "r-1")
    kit.submit(store, "r-2")
    events = store.history()
    data = codec.encode(store.read().document)
    without_journals(directory)
    (directory / "controller.json").write_bytes(data)
    lines = [codec.line_of(event) + b"\n" for event in events[: -1 if lacks else None]]
    (directory / "history.jsonl").write_bytes(b"".join(lines))
    return data


@pytest.mark.parametrize("lacks", [False, True])
def test_a_whole_document_from_before_the_journal_is_kept_and_gone_on_from(tmp_path: Path, lacks: bool) -> None:
    directory = tmp_path / "s"
    data = whole(directory, lacks=lacks)
    seen = kit.opened(directory).read()
    assert (seen.legacy, seen.edited, seen.document.revision) == (True, False, 3)
    past = (directory / "history.jsonl").read_bytes()
    assert len(kit.opened(directory).history()) == 3
    kit.submit(kit.opened(directory), "r-3")
    (kept,) = directory.glob("backup-whole-3-*.json")
    assert kept.read_bytes() == data
    assert (directory / "history.jsonl").read_bytes() == past
    store = kit.opened(directory)
    assert [event.event for event in store.history()] == ["initialised", *["submitted"] * 2, "migrated", "submitted"]
    assert store.history_fault() is None
    assert not store.read().legacy


@pytest.mark.parametrize("lacks", [False, True])
def test_an_edited_document_from_before_the_journal_is_accepted_and_loses_no_event(tmp_path: Path, lacks: bool) -> None:
    directory = tmp_path / "s"
    data = whole(directory, lacks=lacks).replace(b'"draining":false', b'"draining":true')
    (directory / "controller.json").write_bytes(data)
    accepted = accept(kit.opened(directory), restore_pending=False, timeout=1)
    assert (accepted.document.revision, accepted.document.draining) == (4, True)
    store = kit.opened(directory)
    assert [event.event for event in store.history()] == ["initialised", "submitted", "submitted", "accepted"]
    assert store.history_fault() is None


class Killed(BaseException):
    pass


def test_a_migration_killed_at_any_write_finishes_when_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies before the 1st, 2nd, ... nth call that changes the disk, and leaves it as it is; then runs twice more."""
    data = kit.schema1(pending_action=orjson.loads(bytes(kit.create(3)[1])))
    for nth in range(1, 100):
        directory = tmp_path / f"s{nth}"
        store = kit.legacy(directory, data)
        left = nth
        with monkeypatch.context() as patch:
            for name in ("write", "fsync", "rename", "unlink", "link", "ftruncate"):
                real = getattr(os, name)

                def call(*args: Any, real: Any = real) -> Any:
                    nonlocal left
                    left -= 1
                    if left <= 0:
                        raise Killed
                    return real(*args)

                patch.setattr(os, name, call)
            try:
                with store.hold(1) as hold:
                    hold.load()
                died = False
            except Killed:
                died = True
        # A backup is there, whole, before the document changes.
        if (directory / "controller.json").read_bytes() != data:
            assert [path.read_bytes() for path in backups(directory)] == [data]
        for _ in range(2):
            with kit.opened(directory).hold(1) as hold:
                document = hold.load().document
                assert (document.revision, set(document.pending_actions)) == (8, {3})
        assert [path.read_bytes() for path in backups(directory)] == [data]
        assert [event.event for event in kit.opened(directory).history()] == ["submitted", "migrated"]
        assert not [name for name in kit.files(directory) if ".tmp-" in name]
        if not died:
            assert nth > 8
            return
    pytest.fail("the migration never got to its end")


def test_raw_bytes_with_line_feeds_stay_one_record_per_line(tmp_path: Path) -> None:
    pretty = orjson.dumps(orjson.loads(bytes(kit.create(3)[1])), option=orjson.OPT_INDENT_2)
    data = kit.schema1().replace(b'"pending_action":null', b'"pending_action":' + pretty)
    store = kit.legacy(tmp_path / "s", data)
    with store.hold(1) as hold:
        parked = hold.load().document.pending_actions[3]
    assert bytes(parked.action) == pretty.replace(b"\n", b" ")
    assert verify(parked.action).idempotency_key == orjson.loads(pretty)["idempotency_key"]
    lines = (tmp_path / "s" / "controller.json").read_bytes().split(b"\n")
    assert len([line for line in lines if line.startswith(b'"3":')]) == 2  # pending action and slot
    assert not kit.opened(tmp_path / "s").read().edited
