"""Small documents and looks for tests of the engine."""

from __future__ import annotations

from collections.abc import Iterable

from controller.engine import outcomes
from controller.engine.planner import Ground, Plan, plan
from controller.engine.submission import Submission, add_run
from controller.model.action import action_of
from controller.model.edit import Draft, apply_edit
from controller.model.inventory import Inventory, Look, Seen, SeenStep, SeenWorker, StepSeen
from controller.model.policy import Policy
from controller.model.records import Document, Step, new_document
from controller.provider.protocol import Done, Outcome

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


def settled(
    document: Document, slot: int, outcome: Outcome | outcomes.Evidence, *, now: int = NOW, ground: Ground = GROUND
) -> Document:
    """The document after an answer for, or a look's proof about, the slot's pending action was applied."""
    entry = document.pending_actions[slot]
    draft = Draft(document, now=now, command="reconcile")
    outcomes.settle(draft, slot, entry, action_of(entry), outcome, ground.policy)
    return apply_edit(document, draft.edit())


def with_ready_worker(*runs: str, attempts: int = 1, ground: Ground = GROUND) -> Document:
    """Slot 1 has a worker that was made for the first run, and nothing is parked."""
    document, _ = planned(with_runs(*runs, attempts=attempts), ground=ground)
    return settled(document, 1, Done(worker=seen(document, 1)), ground=ground)


def with_running_step(run: str = "a", attempts: int = 1, ground: Ground = GROUND) -> tuple[Document, str]:
    """Run *run* is running its only step in slot 1; the key that started it."""
    document, made = planned(with_ready_worker(run, attempts=attempts, ground=ground), ground=ground)
    return settled(document, 1, Done(), ground=ground), made.parks[0].key


def ended(key: str, **how: int) -> SeenStep:
    return SeenStep(key, StepSeen.EXITED, how.get("exit_code"), how.get("signal"))
