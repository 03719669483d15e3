"""What fuzzing has found, each as small as it can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.api import graph
from controller.engine.fsck import check
from controller.model.errors import ControllerError, DocumentCorrupt, UsageFault
from controller.store import backups, exports
from controller.store.restore import restore
from tests.fuzz import mutate
from tests.fuzz.documents import status, whole
from tests.fuzz.mutate import Members, Verbatim
from tests.fuzz.worlds import Place, opened, world
from tests.store import kit

DEEP = "[" * 60_000 + "]" * 60_000


def put(place: Place, directory: Path, **files: bytes) -> Path:
    """The place with the document changed."""
    place.put(directory, {f"{name}.json": data for name, data in files.items()})
    return directory


def with_member(data: bytes, key: str, value: Any) -> bytes:
    """The document, sealed anew, with a member more, be it for the second time."""
    return mutate.document_laid_out(Members([*mutate.parsed(data), (key, value)]))


def with_value(data: bytes, key: str, value: Any) -> bytes:
    """The document, sealed anew, with another value."""
    return mutate.document_laid_out(Members([(k, value if k == key else v) for k, v in mutate.parsed(data)]))


def last_line(directory: Path, text: str) -> None:
    """Append a sealed line that follows the last one, with *text* among its members."""
    path = kit.journal_of(directory)
    data = path.read_bytes().rstrip(b"\0")
    last = json.loads(data.splitlines()[-1])
    content = f'{{"revision":{last["revision"] + 1},"at":1,"command":"x",{text},"previous":"{last["digest"]}"'
    path.write_bytes(data + mutate.sealed(content.encode(), b"")[0])


def test_a_number_of_thousands_of_digits_in_a_run_in_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="thousands of digits"):
        graph.read(b"attempts = " + b"9" * 5_000, source="run.toml", base=tmp_path)


def test_a_large_document_with_a_section_that_is_no_json_is_refused_as_corrupt(tmp_path: Path) -> None:
    place = world("large")
    data = mutate.document_sealed(place.files["controller.json"].replace(b'"r-5":{', b'"r-5":!', 1))
    store = opened(put(place, tmp_path / "s", controller=data))
    with pytest.raises(DocumentCorrupt):
        status(store, store.read())
    with pytest.raises(DocumentCorrupt):
        whole(store.read().document)
    with pytest.raises(DocumentCorrupt):
        check(store)


@pytest.mark.parametrize("value", ['"x"', DEEP, '{"state":"odd"}'])
def test_a_record_of_a_journal_that_is_none_is_refused_as_corrupt_when_it_is_counted(
    tmp_path: Path, value: str
) -> None:
    directory = put(world("journal"), tmp_path / "s")
    last_line(directory, f'"events":[],"runs":{{"r-1":{value}}}')
    store = opened(directory)
    with pytest.raises(DocumentCorrupt):
        status(store, store.read())


def test_events_of_a_journal_that_are_none_are_refused_as_corrupt(tmp_path: Path) -> None:
    directory = put(world("journal"), tmp_path / "s")
    last_line(directory, '"events":{}')
    store = opened(directory)
    for ask in (store.read, store.history, store.past.verify):
        with pytest.raises(DocumentCorrupt):
            ask()


def test_what_cannot_be_read_is_never_folded_into_the_document(tmp_path: Path) -> None:
    directory = put(world("journal"), tmp_path / "s")
    last_line(directory, '"events":[],"slots":{"1":{"a":1}}')
    store = opened(directory)
    revision = store.read().document.revision
    try:
        kit.submit(store, "more", timeout=1)
    except ControllerError:
        assert opened(directory).read().document.revision == revision
    store.close()
    assert opened(directory).read().document.revision >= revision


def test_a_second_schema_counts(tmp_path: Path) -> None:
    place = world("journal")
    data = with_member(place.files["controller.json"], "schema", Verbatim("9"))
    with pytest.raises(ControllerError):
        opened(put(place, tmp_path / "s", controller=data)).read()


@pytest.mark.parametrize("revision", ["-5", "1" + "0" * 18, "1" + "0" * 400])
def test_a_backup_of_a_revision_that_no_journal_can_be_named_for_is_refused(tmp_path: Path, revision: str) -> None:
    place = world("journal")
    before = put(place, tmp_path / "s")
    file = tmp_path / "backup.json"
    file.write_bytes(with_value(place.files["controller.json"], "revision", Verbatim(revision)))
    with pytest.raises(DocumentCorrupt):
        backups.read_backup(file)
    with pytest.raises(DocumentCorrupt):
        restore(opened(before), file, epoch="e", acknowledge=True, timeout=1)
    assert opened(before).read().document.revision == max(place.documents)


def test_an_export_that_nests_deeply_is_refused_as_corrupt(tmp_path: Path) -> None:
    file = tmp_path / "x.export"
    for data in (f'{{"export":1,"a":{DEEP}}}\n', f'{{"export":1}}\n{{"events":0,"digest":"","a":{DEEP}}}\n'):
        file.write_bytes(data.encode())
        with pytest.raises(DocumentCorrupt):
            exports.read_export(file)
