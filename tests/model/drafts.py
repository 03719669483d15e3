"""Small documents, drafts over them, and what a test reads from a draft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from controller.model.edit import Draft
from controller.model.errors import TransitionRefused
from controller.model.perform import (
    Given,
)
from controller.model.reason import Reason
from controller.model.records import (
    Document,
    Event,
    Lease,
    Run,
    RunState,
    Step,
    Tombstone,
    Worker,
    WorkerRef,
    WorkerState,
    new_document,
)

NOW = 1_700_000_000_000
HOLDER = WorkerRef(3, "a-1", 1)
LEASE = Lease("one", "boot", 5_000, 1_000)
FAILED = Given(token=1, reason=Reason.EXIT_CODE, error="exit 7", delay_ms=500)


def step(name: str = "main", *needs: str, **fields: Any) -> Step:
    return Step(name, ("true",), needs=needs, **fields)


def run(*steps: Step, **fields: Any) -> Run:
    return Run("r-1", "fleet", 1, NOW - 9_000, steps or (step(),), **fields)


def running(*steps: Step, **fields: Any) -> Run:
    fields = {"attempts": 1, "worker": HOLDER, "started_at": NOW - 1_000, **fields}
    return run(*steps, state=RunState.RUNNING, **fields)


def worker(state: WorkerState, **fields: Any) -> Worker:
    return Worker(3, "a-1", fields.pop("generation", 1), "local", NOW - 9_000, NOW - 9_000, state, **fields)


def document(
    *runs: Run, workers: Mapping[int, Worker] | None = None, finished: Mapping[str, Tombstone] | None = None
) -> Document:
    base = new_document("f", "l")
    return replace(base, runs={r.id: r for r in runs}, workers=workers or {}, finished=finished or {})


def draft_of(*runs: Run, **sections: Any) -> Draft:
    return Draft(document(*runs, **sections), now=NOW, command="test")


def after(draft: Draft, run_id: str = "r-1") -> Run:
    found = draft.runs.get(run_id)
    assert found is not None
    return found


def at(draft: Draft) -> Worker:
    found = draft.workers.get(3)
    assert found is not None
    return found


def events(draft: Draft) -> list[tuple[str, str | None, str | None, str | None, str | None]]:
    return [(e.event, e.step, e.from_, e.to, e.reason) for e in draft.edit().events]


def only_event(draft: Draft) -> Event:
    (event,) = draft.edit().events
    return event


def refused(draft: Draft, act: Any) -> TransitionRefused:
    before = draft.edit()
    with pytest.raises(TransitionRefused) as caught:
        act()
    assert draft.edit() == before
    return caught.value
