"""Release proofs: what somebody has to say before a worker is released whose data was kept on purpose.

Not promised: that what a proof states is true. It is bound to one life, one worker and the identity of each of its
resources, so that what was said of one thing can never release another; whoever signs for it is on record.

A proof is a JSON object of exactly these members: `proof`, always `controller.release/1`; `lineage`; `run`; `token`,
the number of lives that the run has had; `slot`, `assignment`, `generation` and `worker`, the provider's id for it;
`resources`, by name the digest of each; and `statement`, one to 1000 characters, which history keeps. The digest of a
resource is `sha256:` and the SHA-256 of `{"id":"...","immutable_id":"..."}`: no white space, no newline at its end,
`immutable_id` empty where there is none. A shell computes it with

    printf '%s' '{"id":"vm-1","immutable_id":"4f2a"}' | sha256sum

A template has the digests and the statement left to be filled in, and does not say what they must come to: whoever
handled the resources knows that from them, and a digest copied from the document would prove nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from controller.engine.lifecycle import holds
from controller.engine.operators import assigned, in_slot, named, refuse_pending
from controller.model.action import digest
from controller.model.errors import (
    ProofConflicting,
    ProofIncomplete,
    ProofRefused,
    ProofStale,
    StrictError,
    TransitionRefused,
)
from controller.model.records import MAX_SLOTS, Document, Resource, Worker, WorkerState, is_visible
from controller.model.strict import strict_loads
from controller.model.transition import Why

FORMAT: Final = "controller.release/1"
PLACEHOLDER: Final = "FILL IN"
"""No text of a proof may hold this: it is where a template waits for somebody."""
COMPUTE: Final = """printf '%s' '{"id":"ID","immutable_id":"IMMUTABLE_ID"}' | sha256sum"""
"""What computes a digest in a shell; `sha256:` goes before the hexadecimal digits."""
LONGEST_STATEMENT: Final = 1000

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_WHOLE: Final = ("token", "slot", "generation")
_TEXTS: Final = ("proof", "lineage", "run", "assignment", "worker", "statement")
_MEMBERS: Final = (*_TEXTS, *_WHOLE, "resources")
_LARGEST: Final = 2**63 - 1


class Proof(Struct, frozen=True):
    """A proof whose shape was checked. What it says was not: `check` does that."""

    proof: str
    lineage: str
    run: str
    token: int
    slot: int
    assignment: str
    generation: int
    worker: str
    resources: Mapping[str, str]
    statement: str

    @property
    def digest(self) -> str:
        """Of its canonical bytes: the same whatever the order of its members and the white space in its file."""
        return f"sha256:{digest({name: getattr(self, name) for name in _MEMBERS})}"


def resource_digest(resource: Resource) -> str:
    """What a proof says of a resource that is exactly this one."""
    return f"sha256:{digest({'id': resource.id, 'immutable_id': resource.immutable_id})}"


def life_of(document: Document, run_id: str) -> int:
    """The token of the run's last life, also of a run that has left the document; 0 for one that is not known.

    Also for a worker that had an earlier life of it: what is proven of a worker's data must have been seen after
    whatever else became of the run.
    """
    run = document.runs.get(run_id)
    if run is not None:
        return run.attempts
    stone = document.finished.get(run_id)
    return 0 if stone is None else stone.token


def template(document: Document, run_id: str, slot: int | None = None) -> dict[str, Any]:
    """The proof that would release the worker which is assigned to the run, not filled in yet.

    Raises what `release` does where no proof could release it now.
    """
    worker = assigned(document, run_id, slot)
    check_free(document, worker, run_id)
    return {
        "proof": FORMAT,
        "lineage": document.lineage,
        "run": run_id,
        "token": life_of(document, run_id),
        "slot": worker.slot,
        "assignment": worker.assignment,
        "generation": worker.generation,
        "worker": worker.id,
        "resources": {
            name: f"{PLACEHOLDER}: sha256: and the digest of {name} {resource.id} as you found it"
            for name, resource in sorted(worker.resources.items())
        },
        "statement": f"{PLACEHOLDER}: who made sure that the data of this run may go, and how",
    }


def check_free(document: Document, worker: Worker, run_id: str) -> None:
    """Refuse while the record is not the truth yet, or the worker still has something to do for the run."""
    where = in_slot(worker.slot)
    refuse_pending(document, worker.slot, "released")
    if holds(worker, document.runs.get(run_id)):
        raise TransitionRefused(
            f"the worker of {where} still holds run {run_id}: release refused",
            why=Why.NOT_AVAILABLE,
            where=where,
            next=f"wait for the run's end, or controller cancel {run_id}",
        )
    if worker.state is WorkerState.ASSIGNED and worker.running is not None:
        # A released worker may get its next run at once: two steps would share it.
        raise TransitionRefused(
            f"a step of run {run_id} may still have a process in {where}: release refused",
            why=Why.NOT_AVAILABLE,
            where=where,
            next="controller reconcile --apply",
        )


def parse(data: bytes, where: str) -> Mapping[str, object]:
    """The one JSON object in *data*, strictly. Raises ProofRefused naming *where*, line and offset."""
    try:
        content = strict_loads(data, where=where)
    except StrictError as error:
        place = f"{where}, line {error.line}, offset {error.offset}"
        raise ProofRefused(f"not a proof: {error.problem}", where=place, next="mend that place") from error
    if not isinstance(content, dict):
        what = "not a proof: it is no JSON object"
        raise ProofRefused(what, where=where, next="controller release RUN --template writes one to fill in")
    return content


def read(content: Mapping[str, object]) -> Proof:
    """The proof in *content*. Raises ProofIncomplete naming every member that is missing, unknown or no such value."""
    faults = [*_faults(content)]
    if faults:
        raise ProofIncomplete(
            f"the proof is not complete: {'; '.join(faults)}",
            where="the proof",
            next=f"fill that in; the digest of a resource is that of {COMPUTE}",
        )
    return Proof(**{name: content[name] for name in _MEMBERS})  # type: ignore[arg-type] # each was checked above


def _faults(content: Mapping[str, object]) -> Iterator[str]:
    for name in _MEMBERS:
        if name not in content:
            yield f"{name} is missing"
        elif name == "resources":
            yield from _resource_faults(content[name])
        elif name in _WHOLE:
            value = content[name]
            # `True` is an int to Python, and is none to anybody who reads the file.
            if type(value) is not int or not 0 <= value <= (MAX_SLOTS if name == "slot" else _LARGEST):
                yield f"{name} is {_told(value)}, not a whole number that it could be"
        else:
            yield from _text_faults(name, content[name])
    unknown = sorted(repr(name) for name in content if name not in _MEMBERS)
    if unknown:
        yield f"{', '.join(unknown)} {'is no member' if len(unknown) == 1 else 'are no members'} of a proof"


def _text_faults(name: str, value: object) -> Iterator[str]:
    if not isinstance(value, str) or not _is_utf8(value):
        yield f"{name} is {_told(value)}, not a text"
    elif PLACEHOLDER in value:
        yield f"{name} is still a placeholder"
    elif name == "proof" and value != FORMAT:
        yield f"proof is {_told(value)}, not {FORMAT!r}"
    elif name == "statement" and (not is_visible(value) or len(value) > LONGEST_STATEMENT):
        yield f"statement must have 1 to {LONGEST_STATEMENT} characters, and one that can be seen"


def _resource_faults(value: object) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"resources is {_told(value)}, not an object"
        return
    for name, stated in value.items():
        if not isinstance(name, str) or not _is_utf8(name):
            yield f"a resource is called {_told(name)}"
        elif isinstance(stated, str) and PLACEHOLDER in stated:
            yield f"resources.{name} is still a placeholder"
        elif not isinstance(stated, str) or _DIGEST.fullmatch(stated) is None:
            yield f"resources.{name} is {_told(stated)}, not sha256: and 64 hexadecimal digits in lower case"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _told(value: object) -> str:
    """A value in a refusal, of which a file chose the length."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def check_subject(document: Document, run_id: str, slot: int | None, proof: Proof) -> None:
    """Whether the proof is about this fleet and run and, if one was named, this *slot*. Raises ProofConflicting."""
    faults = []
    if proof.lineage != document.lineage:
        faults.append(f"lineage is {_told(proof.lineage)}, and this fleet's is {document.lineage}")
    if proof.run != run_id:
        faults.append(f"run is {_told(proof.run)}, not {run_id}")
    if slot is not None and proof.slot != slot:
        faults.append(f"slot is {proof.slot}, not {slot}")
    if faults:
        raise _conflicting(faults, f"run {run_id}")


def check_place(document: Document, proof: Proof) -> None:
    """Raise ProofConflicting where the run's workers are in other slots than the proof's."""
    slots = sorted(slot for slot, worker in document.workers.items() if worker.run == proof.run)
    if slots and proof.slot not in slots:
        raise _conflicting(
            [f"slot is {proof.slot}, and run {proof.run} has its worker in {named(slots)}"], named(slots)
        )


def check(document: Document, worker: Worker, proof: Proof) -> None:
    """Whether the proof is of exactly *worker*, as it is now. Raises ProofStale, and else ProofConflicting, naming each
    difference.
    """
    life, where = life_of(document, proof.run), in_slot(worker.slot)
    stale = []
    if proof.token < life:
        stale.append(f"token is {proof.token}, and run {proof.run} has lived on to {life}")
    if proof.assignment != worker.assignment:
        stale.append(f"assignment is {_told(proof.assignment)}, and {where} has {worker.assignment}")
    elif proof.generation < worker.generation:
        stale.append(f"generation is {proof.generation}, and the worker was made anew since: {worker.generation}")
    if stale:
        raise ProofStale(
            f"the proof is not of what is there now: {'; '.join(stale)}",
            where=where,
            next=f"controller release {proof.run} --template --slot {worker.slot}",
        )
    faults = []
    if proof.token > life:
        faults.append(f"token is {proof.token}, and run {proof.run} has had {life}")
    if proof.generation > worker.generation:
        faults.append(f"generation is {proof.generation}, and the worker's is {worker.generation}")
    if proof.worker != worker.id:
        faults.append(f"worker is {_told(proof.worker)}, and {where} has {worker.id!r}")
    for name in sorted({*worker.resources, *proof.resources}):
        recorded = worker.resources.get(name)
        if name not in proof.resources:
            faults.append(f"resource {name} of the worker is missing")
        elif recorded is None:
            faults.append(f"resource {_told(name)} is none of the worker's")
        elif proof.resources[name] != resource_digest(recorded):
            faults.append(f"resource {name} is not the recorded one")
    if faults:
        raise _conflicting(faults, where)


def _conflicting(faults: list[str], where: str) -> ProofConflicting:
    return ProofConflicting(
        f"the proof is about something else: {'; '.join(faults)}",
        where=where,
        next="find out which of the two is wrong; everything is kept",
    )
