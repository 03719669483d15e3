"""A document in memory with a worker whose run is over, and what is needed to judge it: for operators' verbs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from controller.clock import FakeClock
from controller.engine.queue import Context
from controller.model import action
from controller.model.edit import Draft
from controller.model.errors import Refusal
from controller.model.inventory import Inventory, Look, Seen, SeenWorker
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import (
    ActionType,
    Counters,
    Disowned,
    Document,
    Event,
    PendingAction,
    Resource,
    Run,
    RunState,
    Span,
    Step,
    StepState,
    Tombstone,
    Worker,
    WorkerState,
    new_document,
)
from controller.provider.process import own_identity
from controller.store.memory import MemoryDisk, MemoryStore

LINEAGE = "33333333-3333-4333-8333-333333333333"
NOW = 1_700_000_000_000
DATA = {"disk": Resource("d-1", "x-1"), "vm": Resource("i-1", "y-1")}


BEFORE = Span(NOW - 60_000, NOW - 59_000)
"""A look long before the others."""


class Died(BaseException):
    """The process ends here: nothing catches it."""


def worker(slot: int = 1, state: WorkerState = WorkerState.DEALLOCATED, **fields: Any) -> Worker:
    """A worker that is assigned to run "a" and has its data."""
    known = {"assignment": f"a-{slot}", "generation": 1, "id": f"w-{slot}", "run": "a", "resources": DATA, **fields}
    return Worker(slot=slot, provider="test", created_at=NOW, changed_at=NOW, state=state, **known)


def run(state: RunState = RunState.FAILED, **fields: Any) -> Run:
    step = StepState.PENDING if state is RunState.QUEUED else StepState.FAILED
    ended = {} if state in (RunState.QUEUED, RunState.RUNNING) else {"finished_at": NOW, "reason": Reason.STEP_FAILED}
    known = {"state": state, "attempts": 1, "steps": (Step("main", ("true",), state=step),), **ended, **fields}
    return Run(**{"id": "a", "queue": "fleet", "sequence": 1, "created_at": NOW, **known})


def stone(run_id: str = "a", **fields: Any) -> Tombstone:
    return Tombstone(run_id, "fleet", 1, 1, NOW, NOW, RunState.SUCCEEDED, **fields)


def document(*workers: Worker, runs: tuple[Run, ...] = (), **sections: Any) -> Document:
    event = Event(5, 1, NOW, "test", "fleet", "initialised", key=LINEAGE)
    return replace(
        new_document("test", LINEAGE),
        revision=5,
        counters=Counters(sequence=9, assignment=9, serial=9),
        events=(event,),
        runs={each.id: each for each in runs},
        workers={each.slot: each for each in workers},
        **sections,
    )


def seen(known: Worker, state: Seen = Seen.DARK, **fields: Any) -> SeenWorker:
    told = {"id": known.id, "resources": known.resources, **fields}
    tags = {"assignment": known.assignment, "generation": known.generation}
    return SeenWorker(**{"slot": known.slot, "lineage": LINEAGE, "state": state, **tags, **told})


def look(*shown: SeenWorker, complete: bool = True, revision: int = 1_000, unreadable: tuple[int, ...] = ()) -> Look:
    return Look(revision, NOW, NOW + 1, Inventory(complete, shown, unreadable))


def minted(kind: ActionType = ActionType.CREATE, slot: int = 1, **fields: Any) -> tuple[str, Any]:
    known = {"assignment": f"a-{slot}", "generation": 1, "serial": 1, "resources": {}, **fields}
    return action.mint(type=kind, slot=slot, lineage=LINEAGE, epoch="", **known)


def pending(kind: ActionType = ActionType.CREATE, slot: int = 1, **fields: Any) -> PendingAction:
    return PendingAction(minted(kind, slot, **fields)[1], parked_at=NOW)


def disowned(kind: ActionType = ActionType.CREATE, slot: int = 1, **fields: Any) -> dict[str, Disowned]:
    key, raw = minted(kind, slot, **{name: each for name, each in fields.items() if name != "proven"})
    return {key: Disowned(raw, NOW, Reason.DISOWNED, proven=fields.get("proven"))}


class Place:
    """A store in memory, and one process that works on it."""

    def __init__(self, start: Document, policy: Policy | None = None) -> None:
        self.disk = MemoryDisk(start)
        self.clock = FakeClock()
        self.policy = Policy(slots=3, retain_failed=True) if policy is None else policy

    @property
    def context(self) -> Context:
        """What one more process would have."""
        store = MemoryStore(self.disk, clock=self.clock, whoami=own_identity(), command="test")
        return Context(store, self.clock, "test", lock_timeout=5.0, policy=self.policy)

    @property
    def document(self) -> Document:
        assert self.disk.document is not None
        return self.disk.document

    def change(self, how: Callable[[Draft], None]) -> None:
        """Commit what *how* does to a draft."""
        with self.context.store.hold(1) as hold:
            loaded = hold.load()
            draft = self.context.draft(loaded.document)
            how(draft)
            draft.event("fleet", "changed_by_test")
            hold.commit(loaded, draft.edit())

    def events(self, subject: str) -> list[Event]:
        return [event for event in self.context.store.history(subject) if event.command == "test" and event.detail]

    def dies_at(self, point: str) -> None:
        """The next commit ends its process at that point. Locks are a kernel's: they are free then."""

        def fault(name: str) -> None:
            if name == point:
                self.disk.fault = lambda _point: None
                raise Died

        self.disk.fault = fault


POINTS = ("write", "written")
"""Everything that a commit passes, in order."""


def at_once(at: Place, verb: Callable[[], object]) -> list[object]:
    """What two threads get that do the same at the same time."""
    answers: list[object] = []
    together = threading.Barrier(2)

    def each() -> None:
        together.wait()
        try:
            answers.append(verb())
        except Refusal as refusal:
            answers.append(refusal)

    threads = [threading.Thread(target=each) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(answers, key=lambda answer: isinstance(answer, Refusal))
