"""What the tests of the store share: edits, fleets on disk, and pending actions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec import Raw

from controller.clock import Clock, SystemClock
from controller.model import action
from controller.model.edit import Draft, Edit
from controller.model.process import ProcessIdentity
from controller.model.records import (
    ActionType,
    Document,
    PendingAction,
    Resource,
    Run,
    RunState,
    Step,
    Worker,
    WorkerRef,
    WorkerState,
)
from controller.provider.process import own_identity
from controller.store.create import initialise
from controller.store.file import FileStore
from controller.store.journal import parse_name
from controller.store.protocol import Hold, Store

NOW = 1_700_000_000_000
LINEAGE = "0b5d5a0c-3d4e-4b2a-9c55-000000000000"
ME = own_identity()
OTHER = ProcessIdentity(999_999, 5, "another-boot", "pid:[1]")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else, or mount")


def fleet(directory: Path, *, clock: Clock | None = None, command: str = "test") -> FileStore:
    """A new state directory at revision 1."""
    return initialise(
        directory,
        fleet="f",
        lineage=LINEAGE,
        config_text="# made by a test\n",
        clock=clock or SystemClock(),
        whoami=ME,
        command=command,
    )


def opened(directory: Path, *, clock: Clock | None = None, command: str = "test") -> FileStore:
    """Another store over the directory, as another process would have it."""
    return FileStore(directory, clock=clock or SystemClock(), whoami=ME, command=command)


def draft(document: Document, command: str = "test") -> Draft:
    return Draft(document, now=NOW, command=command)


def submitting(document: Document, *names: str) -> Edit:
    """An edit that adds one queued run for each name."""
    made = draft(document, "submit")
    for name in names:
        made.count("run")
        made.runs.put(name, Run(name, "fleet", made.count("sequence"), NOW, (Step("main", ("true",)),)))
        made.event(f"run:{name}", "submitted", None, "queued")
    return made.edit()


def submit(store: Store, *names: str, timeout: float = 10.0) -> Document:
    """A hold, a load and a commit that adds runs."""
    with store.hold(timeout) as hold:
        return submit_in(hold, *names)


def submit_in(hold: Hold, *names: str) -> Document:
    loaded = hold.load()
    return hold.commit(loaded, submitting(loaded.document, *names))


def saying(document: Document, event: str = "noted") -> Edit:
    """An edit that changes nothing but says something."""
    made = draft(document)
    made.event("fleet", event)
    return made.edit()


def parked(slot: int = 1, *, serial: int = 1, **fields: Any) -> PendingAction:
    """A create for *slot*, parked."""
    return PendingAction(action=create(slot, serial=serial)[1], parked_at=NOW, **fields)


def create(slot: int = 1, *, serial: int = 1, assignment: str = "a-1") -> tuple[str, Raw]:
    return action.mint(
        type=ActionType.CREATE,
        slot=slot,
        serial=serial,
        lineage=LINEAGE,
        epoch="",
        assignment=assignment,
        generation=1,
        resources={},
    )


def worker(slot: int = 1, state: WorkerState = WorkerState.CREATING, **fields: Any) -> Worker:
    return Worker(slot, f"a-{slot}", 1, "local", NOW, NOW, state, **fields)


def resource(name: str) -> Mapping[str, Resource]:
    return {"vm": Resource(name)}


def parking(document: Document, slot: int = 1) -> Edit:
    """An edit that parks a create for *slot*, its worker record with it."""
    made = draft(document, "reconcile")
    made.count("assignment")
    key, raw = create(slot, serial=made.count("serial"))
    made.workers.put(slot, worker(slot))
    made.pending.put(slot, PendingAction(action=raw, parked_at=NOW))
    made.event(f"slot:{slot}", "action.parked", key=key, action=raw)
    return made.edit()


def held_run(name: str = "r-1", slot: int = 1) -> tuple[Run, Worker]:
    """A running run and the worker that holds it."""
    reference = WorkerRef(slot, f"a-{slot}", 1)
    run = Run(
        name,
        "fleet",
        1,
        NOW,
        (Step("main", ("true",)),),
        RunState.RUNNING,
        attempts=1,
        worker=reference,
        started_at=NOW,
    )
    return run, worker(slot, WorkerState.ASSIGNED, run=name)


def edit_file(directory: Path, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Change the document as an operator with an editor does, at rest: valid JSON, and the digest left as it was."""
    opened(directory).fold()
    path = directory / "controller.json"
    content = json.loads(path.read_bytes())
    change(content)
    data = json.dumps(content, indent=2).encode()
    path.write_bytes(data)
    return data


def schema1(**fields: Any) -> bytes:
    """A document as schema 1 had it: one scalar `pending_action`, no map, no digest."""
    content: dict[str, Any] = {
        "schema": 1,
        "fleet": "f",
        "lineage": LINEAGE,
        "epoch": "",
        "revision": 7,
        "counters": {"run": 1, "sequence": 1, "serial": 1, "assignment": 1},
        "draining": False,
        "pending_action": None,
        "events": [{"revision": 7, "n": 1, "at": NOW, "command": "submit", "subject": "run:r-1", "event": "submitted"}],
        "runs": {
            "r-1": {
                "id": "r-1",
                "queue": "fleet",
                "sequence": 1,
                "created_at": NOW,
                "steps": [{"name": "main", "argv": ["true"]}],
            }
        },
        "workers": {},
        "slots": {},
        "queues": {},
        "providers": {},
        "finished": {},
        "disowned": {},
        "troubles": [],
    }
    return orjson.dumps(content | fields)


def legacy(directory: Path, data: bytes) -> FileStore:
    """A state directory that an older program left behind: nothing in it but the document."""
    directory.mkdir(mode=0o700)
    (directory / "controller.json").write_bytes(data)
    return opened(directory)


def schema1_reads(data: bytes) -> object:
    """What a schema-1 program makes of *data*: its pending action. It trusts its one scalar and nothing else."""
    content = json.loads(data)
    scalar = content["pending_action"]
    if scalar is None or isinstance(scalar, dict):
        return scalar
    raise ValueError(f"pending_action is neither null nor an action: {scalar!r}")


def files(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


def journals(directory: Path) -> list[str]:
    """The journals there, oldest first."""
    return sorted((path.name for path in directory.glob("journal-*.jsonl")), key=lambda name: parse_name(name) or ())


def journal_of(directory: Path) -> Path:
    """The journal that the document names."""
    return directory / str(json.loads((directory / "controller.json").read_bytes())["journal"]["file"])


def snapshot_of(directory: Path) -> dict[str, bytes]:
    """Every file of the store, to show that a refusal changed none of them. The lock's note is no part of the state."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }
