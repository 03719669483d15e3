"""Whatever is committed, in whatever order and by whichever store: files and memory tell the same story."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from controller.clock import FakeClock
from controller.model.edit import Draft, Edit
from controller.model.errors import Refusal
from controller.model.reason import Reason
from controller.model.records import Document, Queue, Run, RunState, Slot, Step, WorkerState
from controller.store import codec
from controller.store.create import initialise
from controller.store.file import FileStore
from controller.store.memory import MemoryDisk, MemoryStore
from controller.store.protocol import Scope, Store
from tests.store import kit

names = st.sampled_from(["r-1", "r-2", "r-3"])
slots = st.integers(1, 3)
edits = st.tuples(
    st.sampled_from(
        ["submit", "fail", "drop", "worker", "reset", "park", "unpark", "pause", "trouble", "drain", "lower"]
    ),
    names,
    slots,
)


def drafted(document: Document, what: str, name: str, slot: int) -> Edit:
    """An edit that may be legal or not: both stores must judge it alike."""
    draft: Draft = kit.draft(document, what)
    run = document.runs.get(name)
    match what:
        case "submit":
            draft.runs.put(name, Run(name, "fleet", draft.count("sequence"), kit.NOW, (Step("main", ("true",)),)))
        case "fail" if run is not None:
            draft.runs.put(name, replace(run, state=RunState.FAILED, reason=Reason.EXIT_CODE if slot > 1 else None))
        case "drop":
            draft.runs.remove(name)
        case "worker":
            state = WorkerState.READY if slot > 1 else WorkerState.ASSIGNED
            draft.workers.put(slot, kit.worker(slot, state, resources=kit.resource(name)))
        case "reset":
            draft.workers.remove(slot)
        case "park":
            draft.pending.put(slot, kit.parked(slot, serial=draft.count("serial")))
        case "unpark":
            draft.pending.remove(slot)
        case "pause":
            draft.queues.put(name, Queue(paused=slot > 1))
            draft.slots.put(slot, Slot(cordoned=True))
        case "trouble":
            draft.trouble(Reason.UNKNOWN, name, slot=slot)
        case "drain":
            draft.draining = not document.draining
        case "lower":
            draft.counters = replace(draft.counters, sequence=0)
    if (what, slot) != ("drain", 3):
        draft.event(f"run:{name}", what)
    return draft.edit()


def tried(store: Store, steps: list[tuple[str, str, int]], scope: bool) -> list[str]:
    outcomes = []
    for what, name, slot in steps:
        with store.hold(1) as hold:
            loaded = hold.load()
            edit = drafted(loaded.document, what, name, slot)
            try:
                done = hold.commit(loaded, edit, scope=Scope(slot, name) if scope else None)
                outcomes.append(f"revision {done.revision}")
            except Refusal as refusal:
                outcomes.append(refusal.code)
    return outcomes


@settings(max_examples=40)
@given(steps=st.lists(edits, max_size=12), scope=st.booleans())
def test_files_and_memory_tell_the_same_story(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int]], scope: bool
) -> None:
    directory = tmp_path_factory.mktemp("story") / "s"
    clock = FakeClock()
    on_disk = initialise(
        directory, fleet="f", lineage=kit.LINEAGE, config_text="", clock=clock, whoami=kit.ME, command="init"
    )
    in_memory = MemoryStore(MemoryDisk(on_disk.read().document), clock=clock, whoami=kit.ME, command="init")
    assert tried(on_disk, steps, scope) == tried(in_memory, steps, scope)
    afresh = FileStore(directory, clock=clock, whoami=kit.ME, command="test")
    assert afresh.read().document == in_memory.read().document
    assert afresh.history() == in_memory.history()
    assert afresh.read().history_revision == in_memory.read().history_revision
    on_disk.close()
    data = afresh.path.read_bytes()
    named = codec.decode(data, str(afresh.path)).journal
    assert named is not None
    assert data == codec.encode(in_memory.read().document, named)
    assert afresh.history() == in_memory.history()
