"""A sound document with the whole history that made it, each record moved by the machines; and a store that shows them.

What is in it: r-1 runs on the worker of slot 1, its second step; r-2 failed; r-3 was cancelled in its queue; r-4 has
succeeded; r-5 is deferred; r-6 is held by a consumer; r-7 was forgotten and submitted again; r-8 was forgotten; slot
2 has a create that is pending, and one of slot 3 was disowned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from msgspec import Struct
from msgspec.structs import replace

from controller.engine import disowned
from controller.engine.fsck import Verdict, check
from controller.engine.outcomes import unpark
from controller.engine.pending import park
from controller.engine.submission import Submission, add_run
from controller.model.action import action_of
from controller.model.edit import Draft, apply_edit
from controller.model.errors import ControllerError
from controller.model.perform import Given, WorkerGiven, move_run, move_step, move_worker
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import (
    INITIALISED,
    ActionType,
    Document,
    Event,
    Lease,
    Resource,
    Step,
    WorkerRef,
    new_document,
)
from controller.model.transition import Trigger
from controller.store.protocol import Leftover, Snapshot, Store

NOW: Final = 1_700_000_000_000
LEASE: Final = Lease("one", "boot", 5_000, 1_000)
HELD: Final = WorkerRef(1, "a-1", 1)


class World(Struct, frozen=True):
    """A document and its history. `seen`: what a store's snapshot says besides; `fault`: of history's chain."""

    document: Document
    events: tuple[Event, ...]
    seen: Mapping[str, Any] = {}
    fault: str | None = None
    unreadable: ControllerError | None = None
    left: tuple[Leftover, ...] = ()
    earlier: tuple[Document, ...] = ()
    """The document after each commit, the last one included."""

    @property
    def late(self) -> World:
        """History begins with the last commit: nothing is known of what led there."""
        return replace(self, events=tuple(event for event in self.events if event.revision == self.document.revision))

    def having(self, **fields: Any) -> World:
        return replace(self, document=replace(self.document, **fields))

    def telling(self, wanted: Callable[[Event], bool], **fields: Any) -> World:
        """The one event that *wanted* finds, told otherwise."""
        (place,) = (place for place, event in enumerate(self.events) if wanted(event))
        told = replace(self.events[place], **fields)
        return replace(self, events=(*self.events[:place], told, *self.events[place + 1 :]))

    # A store, as far as `check` asks one

    def read(self) -> Snapshot:
        known = {"history_revision": self.document.revision, "digest": "0" * 64}
        return Snapshot(self.document, **{**known, **self.seen})

    def history(self, subject: str | None = None) -> tuple[Event, ...]:
        if self.unreadable is not None:
            raise self.unreadable
        return tuple(event for event in self.events if subject in (None, event.subject))

    def history_fault(self) -> str | None:
        return self.fault

    def leftovers(self) -> tuple[Leftover, ...]:
        return self.left

    def verdict(self) -> Verdict:
        return check(cast("Store", self))


class _Making:
    def __init__(self) -> None:
        self.document = new_document("f", "l")
        self.events: list[Event] = []
        self.now = NOW
        self.earlier: list[Document] = []

    def commit(self, *changes: Callable[[Draft], object]) -> None:
        self.now += 1_000
        draft = Draft(self.document, now=self.now, command="test")
        for change in changes:
            change(draft)
        self.document = apply_edit(self.document, draft.edit())
        self.events += self.document.events
        self.earlier.append(self.document)


def _submit(name: str, **fields: Any) -> Callable[[Draft], object]:
    return lambda draft: add_run(draft, Submission(id=name, **fields))


def _run(name: str, trigger: Trigger, **given: Any) -> Callable[[Draft], object]:
    return lambda draft: move_run(draft, name, trigger, Given(**given))


def _step(name: str, step: str, trigger: Trigger, **given: Any) -> Callable[[Draft], object]:
    return lambda draft: move_step(draft, name, step, trigger, Given(token=1, **given))


def _worker(slot: int, trigger: Trigger, **given: Any) -> Callable[[Draft], object]:
    return lambda draft: move_worker(draft, slot, trigger, WorkerGiven(**given))


def _create(slot: int) -> Callable[[Draft], object]:
    def change(draft: Draft) -> None:
        given = WorkerGiven(assignment=f"a-{draft.count('assignment')}", provider="p")
        move_worker(draft, slot, Trigger.PARK_CREATE, given)
        worker = draft.workers.get(slot)
        assert worker is not None
        park(draft, ActionType.CREATE, worker)

    return change


def _made(draft: Draft) -> None:
    unpark(draft, 1, action_of(draft.document.pending_actions[1]), Reason.DONE)
    given = WorkerGiven(id="w-1", resources={"vm": Resource("i-1")})
    move_worker(draft, 1, Trigger.CREATE_DONE, given)


def _disown(draft: Draft) -> None:
    entry = draft.document.pending_actions[3]
    disowned.record(draft, entry, action_of(entry), Reason.UNKNOWN, "gone", by="test", policy=Policy())


def _forget(name: str) -> Callable[[Draft], object]:
    """As `retention` does it, whose time is not this story's."""

    def change(draft: Draft) -> None:
        stone = draft.document.finished[name]
        draft.finished.remove(name)
        draft.event(f"run:{name}", "pruned", stone.state, None, token=stone.token)
        draft.count("pruned")

    return change


def sound() -> World:
    making = _Making()
    making.commit(lambda draft: draft.event("fleet", INITIALISED, key="l"))
    two = (Step("a", ("true",)), Step("b", ("true",), needs=("a",)))
    making.commit(_submit("r-1", steps=two), *(_submit(f"r-{n}", queue="q") for n in (2, 3, 4, 5)))
    making.commit(*(_submit(f"r-{n}", queue="q", concurrency_key="k" if n == 6 else "") for n in (6, 7, 8)))
    making.commit(_create(1))
    making.commit(_made)
    making.commit(
        _run("r-1", Trigger.CLAIM, worker=HELD),
        _worker(1, Trigger.CLAIM, run="r-1"),
        _step("r-1", "a", Trigger.STEP_STARTED, worker=HELD),
    )
    making.commit(
        _step("r-1", "a", Trigger.STEP_SUCCEEDED, worker=HELD), _step("r-1", "b", Trigger.STEP_STARTED, worker=HELD)
    )
    making.commit(*(_run(f"r-{n}", Trigger.CLAIM, lease=LEASE) for n in (2, 4, 6, 7, 8)))
    making.commit(
        _run("r-2", Trigger.ATTEMPT_FAILED, token=1, reason=Reason.CONSUMER_FAILED),
        _run("r-3", Trigger.CANCEL_OBSERVED, reason=Reason.WITHDRAWN),
        _run("r-5", Trigger.DEFERRED, reason=Reason.CONCURRENCY, delay_ms=5_000),
        _run("r-7", Trigger.ALL_STEPS_DONE, token=1),
        _run("r-8", Trigger.ALL_STEPS_DONE, token=1),
    )
    making.commit(_create(2))
    making.commit(_create(3))
    making.commit(_disown)
    making.commit(_forget("r-7"), _forget("r-8"))
    making.commit(lambda draft: add_run(draft, Submission(id="r-7", queue="q"), token=1))
    making.commit(_run("r-4", Trigger.ALL_STEPS_DONE, token=1))
    making.commit(lambda draft: draft.event("fleet", "queue_paused", detail="q"))
    return World(making.document, tuple(making.events), earlier=tuple(making.earlier))
