"""Small documents and looks for tests of the engine."""

from __future__ import annotations

from collections.abc import Iterable

from controller.engine.planner import Ground, Plan, plan
from controller.engine.submission import Submission, add_run
from controller.model.edit import Draft, apply_edit
from controller.model.inventory import Inventory, Look, Seen, SeenStep, SeenWorker
from controller.model.policy import Policy
from controller.model.records import Document, Step, new_document

LINEAGE = "11111111-1111-4111-8111-111111111111"
NOW = 1_700_000_000_000
GROUND = Ground(Policy(slots=2), "fake")


def with_runs(*ids: str, attempts: int = 1, document: Document | None = None) -> Document:
    """A document in which these runs of one step are queued."""
    draft = Draft(document or new_document("test", LINEAGE), now=NOW, command="submit")
    for run_id in ids:
        add_run(draft, Submission((Step("main", ("true",)),), id=run_id, max_attempts=attempts))
    return apply_edit(draft.document, draft.edit())


def planned(
    document: Document, look: Look | None = None, *, ground: Ground = GROUND, now: int = NOW
) -> tuple[Document, Plan]:
    """The document after the next plan, and the plan."""
    made = plan(document, look, ground, now)
    return (document if made.edit.empty else apply_edit(document, made.edit)), made


def look(
    document: Document, *workers: SeenWorker, at: int = NOW, complete: bool = True, revision: int | None = None
) -> Look:
    """A look begun and ended at *at*, asked for at the document's present revision."""
    return Look(document.revision if revision is None else revision, at, at + 1, Inventory(complete, workers))


def seen(document: Document, slot: int, state: Seen = Seen.READY, steps: Iterable[SeenStep] = ()) -> SeenWorker:
    """The slot's worker, exactly as recorded, in *state*."""
    worker = document.workers[slot]
    return SeenWorker(
        slot, document.lineage, worker.assignment, worker.generation, worker.id or f"w-{slot}", state, {}, tuple(steps)
    )
