"""What readers, waiters and holders make of what they meet: nothing is passed over, and nobody is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.clock import FakeClock
from controller.model.errors import DocumentCorrupt, EditedOutside, LockBusy
from controller.store import codec
from controller.store.file import FileStore
from tests.store import kit
from tests.store.test_read_along import refused


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return kit.fleet(tmp_path / "s")


def with_extras(data: bytes) -> bytes:
    """Sealed, larger than what is decoded whole, with a section between `runs` and `workers` that nobody knows."""
    extras = b",\n".join(b'"k-%d":{"x":"%s"}' % (n, b"y" * 500) for n in range(700))
    data = data.replace(b'"workers":', b'"extras":{\n%b\n},\n"workers":' % extras)
    data = data[: data.rindex(b',\n"digest":')]
    return data + b',\n"digest":"%s"}\n' % hashlib.sha256(data).hexdigest().encode()


def test_an_unknown_section_of_a_large_document_is_refused_by_its_name_and_not_built_upon(store: FileStore) -> None:
    kit.submit(store, "r-1")
    assert store.fold()
    data = with_extras(store.path.read_bytes())
    assert len(data) > codec.WHOLE
    store.path.write_bytes(data)
    other = kit.opened(store.directory)
    with other.hold(1) as hold, pytest.raises(DocumentCorrupt, match="extras"):
        hold.load()
    assert store.path.read_bytes() == data


@pytest.mark.parametrize("waits", [False, True], ids=["a reader", "who waits for the lock"])
def test_a_line_undone_between_the_looks_at_journal_and_history_is_looked_at_again(
    store: FileStore, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = kit.journal_of(store.directory)
    before = journal.read_bytes()
    kit.submit(store, "r-1")
    reader = kit.opened(store.directory, clock=FakeClock())

    def later(revision: int, _named: str) -> int | None:
        if journal.read_bytes().rstrip(b"\0") == before:
            return None
        journal.write_bytes(before)  # its sync had failed; and what came instead was folded by now
        return revision + 1

    monkeypatch.setattr(reader.past, "later", later)
    if waits:
        reader._read_along()
        assert reader.latest is not None
        assert set(reader.latest.document.runs) == set()
    else:
        assert set(reader.read().document.runs) == set()


def test_a_commit_that_is_done_is_no_error_when_another_thread_forgets_what_it_read(store: FileStore) -> None:
    class Forgotten(FileStore):
        """At whose second look after a hold another thread's sync has failed."""

        over = False
        _found: Any = None

        @property
        def latest(self) -> Any:
            found, self._found = self._found, None if self.over else self._found
            return found

        @latest.setter
        def latest(self, found: Any) -> None:
            self._found = found

    other = Forgotten(store.directory, clock=store.clock, whoami=kit.ME, command="test")
    with other.hold(1) as hold:
        done = kit.submit_in(hold, "r-1")
        other.over = True
    assert done.revision == 2


@pytest.mark.parametrize(
    "damage", [lambda data: data.replace(b'"f"', b' "f"', 1), lambda data: data[:-10]], ids=["edited", "cut"]
)
def test_who_waits_does_not_go_through_what_others_wrote_and_tells_of_it_once_the_lock_is_had(
    store: FileStore, damage: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone_through: list[object] = []
    real = codec._strict

    def strict(data: bytes, where: str) -> dict[str, Any]:
        gone_through.append(where)
        return real(data, where)

    monkeypatch.setattr(codec, "_strict", strict)
    waiter = kit.opened(store.directory, clock=FakeClock())
    with store.hold(5):
        store.path.write_bytes(damage(store.path.read_bytes()))
        assert isinstance(refused(waiter), LockBusy)
    assert gone_through == []
    assert isinstance(refused(waiter), EditedOutside | DocumentCorrupt)
    assert gone_through != []
