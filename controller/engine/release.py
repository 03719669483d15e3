"""Releasing a worker from a run that is over: what an operator, or whoever brings a proof, does in one commit.

Not promised: that the data goes at once, or at all: the planner then reuses the worker, or stops and removes it, as the
policy says; nothing here asks a provider.

A worker stays assigned after its run where the policy asks for a proof, or where its data was kept. Every refusal keeps
everything. What decides is the document that the hold loads which commits, so of two that bring the same proof one
releases, and the other hears that it is done.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from controller.engine.operators import assigned, told
from controller.engine.proof import Proof, check, check_free, check_place, check_subject, life_of, read
from controller.engine.queue import Context
from controller.model.errors import Conflict, ProofConflicting, ProofStale
from controller.model.perform import WorkerGiven, move_worker
from controller.model.policy import Release
from controller.model.reason import Reason
from controller.model.records import Document, Resource, RunState, Worker, WorkerState
from controller.model.transition import Trigger


class Released(Struct, frozen=True):
    """What was released from `run`, or would be. `changed` False: a dry run, or this proof has released it before.

    `state` is the worker's afterwards, None once its record is gone; `worker` the provider's id for it. `proof` is the
    proof's digest, "" without one; `run_state` None: the run was forgotten.
    """

    slot: int
    run: str
    changed: bool
    already: bool = False
    run_state: RunState | None = None
    state: WorkerState | None = None
    worker: str = ""
    resources: Mapping[str, Resource] = {}
    proof: str = ""


def release(
    context: Context,
    run_id: str,
    proof: Mapping[str, object] | None,
    *,
    slot: int | None = None,
    reason: str = "",
    by: str = "",
    dry_run: bool = False,
) -> Released:
    """Release the worker that is assigned to a run which it does not hold any more. *by* and *reason* are for history.

    Without a *proof* only where the policy, which must be known, asks for none, and *slot* must be named where several
    workers are assigned to the run; a proof names its slot itself. The proof that released a worker before releases
    nothing again, and is no error.

    Raises NotFound; ProofIncomplete, ProofStale, ProofConflicting; Conflict while an action of the slot is pending, and
    where no worker, or several, are meant; TransitionRefused while the worker holds the run.
    """
    brought = None if proof is None else read(proof)
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        document = loaded.document
        if brought is not None:
            check_subject(document, run_id, slot, brought)
            slot = brought.slot
            if _is_used(context, document, brought):
                return _used_up(document, brought)
            check_place(document, brought)
        worker = assigned(document, run_id, slot)
        check_free(document, worker, run_id)
        if brought is not None:
            check(document, worker, brought)
        else:
            _check_policy(context, run_id, worker)
        draft = context.draft(document)
        used = "" if brought is None else brought.digest
        given = WorkerGiven(
            reason=Reason.RELEASED,
            assignment=worker.assignment,
            generation=worker.generation,
            proven=True,
            token=life_of(document, run_id),
            detail=_detail(run_id, by, reason, brought),
        )
        moved = move_worker(draft, worker.slot, Trigger.RELEASE, given)
        draft.workers.put(worker.slot, replace(draft.workers.get(worker.slot) or worker, proof=used))
        if not dry_run:
            context.commit(hold, loaded, draft)
    return Released(
        slot=worker.slot,
        run=run_id,
        changed=not dry_run,
        run_state=_run_state(document, run_id),
        state=moved.to,
        worker=worker.id,
        resources=worker.resources,
        proof=used,
    )


def _check_policy(context: Context, run_id: str, worker: Worker) -> None:
    if context.policy is not None and context.policy.release is Release.AUTO:
        return
    raise Conflict(
        f"the worker of slot {worker.slot} is released by a proof that the data of run {run_id} may go",
        where='[fleet] release = "proof"',
        next=f"controller release {run_id} --template --slot {worker.slot}",
    )


def _is_used(context: Context, document: Document, proof: Proof) -> bool:
    """Whether this very proof has released its worker before, as the worker's record or history says.

    One that fits what is assigned now is not looked for: history is read for the others alone.
    """
    worker = document.workers.get(proof.slot)
    if worker is not None and worker.run == proof.run:
        try:
            check(document, worker, proof)
        except ProofStale:
            pass
        except ProofConflicting:
            return False
        else:
            return False
    elif worker is not None and worker.proof == proof.digest:
        return True
    said = _proven_by(proof)
    events = context.store.history(f"slot:{proof.slot}")
    return any(e.event == Trigger.RELEASE and e.detail is not None and e.detail.endswith(said) for e in events)


def _used_up(document: Document, proof: Proof) -> Released:
    """The answer to a proof that has released its worker before."""
    worker = document.workers.get(proof.slot)
    same = worker is not None and (worker.assignment, worker.generation) == (proof.assignment, proof.generation)
    return Released(
        slot=proof.slot,
        run=proof.run,
        changed=False,
        already=True,
        run_state=_run_state(document, proof.run),
        state=worker.state if worker is not None and same else None,
        worker=proof.worker,
        proof=proof.digest,
    )


def _run_state(document: Document, run_id: str) -> RunState | None:
    known = document.runs.get(run_id) or document.finished.get(run_id)
    return None if known is None else known.state


def _detail(run_id: str, by: str, reason: str, proof: Proof | None) -> str:
    """What history keeps. The proof's digest stands last, where no words of anybody can stand in for it."""
    if proof is None:
        return told(by, reason, f"run {run_id}")
    return told(by, reason, f"run {run_id}", f"stated: {proof.statement}") + _proven_by(proof)


def _proven_by(proof: Proof) -> str:
    return f"; proof {proof.digest}"
