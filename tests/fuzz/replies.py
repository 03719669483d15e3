"""What a provider says, mutated: it is refused as a whole or taken, and never leaves a document that breaks a rule.

Through the reader of the wire first, as the `command` provider has it; what passes is applied in memory. A reply that
is refused is an unknown outcome: the action stays parked, and there is no other outcome of that send.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import orjson
from msgspec import Raw, Struct, structs, to_builtins

from controller.engine.pending import Sender, Sent
from controller.engine.planner import Ground
from controller.engine.reconcile import Reconciler, Stop
from controller.model.action import Action, action_of, verify
from controller.model.edit import MAPS
from controller.model.errors import ControllerError, ProviderFailed, TransitionRefused
from controller.model.invariants import violations
from controller.model.inventory import Inventory
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import ActionType, Document, Resource, WorkerState
from controller.provider import wire
from controller.provider.fake import FakeProvider, Say
from controller.provider.protocol import Outcome, Register, Unknown
from controller.store import codec
from tests.engine import operating, scenes
from tests.fuzz import mutate
from tests.fuzz.target import Case, Target, answered, must

LINEAGE = scenes.LINEAGE
POLICY = Policy(slots=2)


_ENDING = (ActionType.DEALLOCATE, ActionType.DELETE_COMPUTE)


class Scene(Struct, frozen=True):
    """A document in which slot 1 has an action parked, and what an honest provider says of it."""

    document: Document
    reply: bytes
    inventory: bytes

    @property
    def action(self) -> Action:
        return action_of(self.document.pending_actions[1])


class _Told(FakeProvider):
    """A provider whose next answer is what the wire makes of some bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__(LINEAGE)
        self.data = data
        self.refused: wire.BadReply | None = None
        self.asked = 0

    def mutate(self, action: Action, raw: Raw, register: Register) -> Outcome:
        self.asked += 1
        try:
            return wire.parse_outcome(self.data, action)
        except wire.BadReply as refused:
            self.refused = refused
            return Unknown(str(refused))


@cache
def stories() -> tuple[Scene, ...]:
    """One for each type of action."""
    creating, _ = scenes.planned(scenes.with_runs("a", "b", attempts=2), ground=Ground(POLICY, "fake"))
    ready = scenes.with_ready_worker("a", "b", attempts=2)
    executing, _ = scenes.planned(ready)
    running, key = scenes.with_running_step("a", attempts=2)
    made = [_scene(document, key) for document in (creating, executing)]
    for kind, state in (
        (ActionType.DEALLOCATE, WorkerState.RELEASED),
        (ActionType.DELETE_COMPUTE, WorkerState.DEALLOCATED),
        (ActionType.RESET, WorkerState.COMPUTE_REMOVED),
    ):
        known = operating.worker(1, state, resources={"vm": Resource("vm-1", "i"), "disk": Resource("d")})
        document = operating.document(known)
        entry = operating.pending(kind, 1, assignment=known.assignment, resources=known.resources)
        made.append(_scene(structs.replace(document, pending_actions={1: entry}), key))
    return (*made, _scene(running, key))


def _scene(document: Document, key: str) -> Scene:
    entry = document.pending_actions.get(1)
    action = None if entry is None else verify(entry.action)
    worker = document.workers[1]
    told: dict[str, Any] = {
        "slot": 1,
        "lineage": document.lineage,
        "assignment": worker.assignment,
        "generation": worker.generation,
        "id": worker.id or "w-1",
        "state": "ready" if action is None or action.type not in _ENDING else "dark",
        "resources": to_builtins(worker.resources) or {"vm": {"id": "vm-1", "immutable_id": "i-1"}},
        "steps": [{"idempotency_key": key, "state": "exited", "exit_code": 0, "signal": None, "ended_at": scenes.NOW}],
    }
    head = {"protocol": wire.PROTOCOL}
    reply = {
        **head,
        "op": "mutate",
        "slot": 1,
        "idempotency_key": "" if action is None else action.idempotency_key,
        "outcome": "done",
        "reason": "well",
        "retry_after_ms": 5_000,
        "worker": told,
    }
    if action is not None and action.type is ActionType.EXECUTE:
        step = {"idempotency_key": action.idempotency_key, "state": "running", "exit_code": None, "signal": None}
        reply |= {"step": step}
    other = {**told, "slot": 2, "assignment": "a-77", "id": "w-2", "steps": []}
    look = {**head, "op": "inventory", "complete": True, "workers": [told, other]}
    return Scene(document, orjson.dumps(reply), orjson.dumps(look))


DESCRIPTION = orjson.dumps(
    {
        "protocol": wire.PROTOCOL,
        "op": "describe",
        "name": "n",
        "version": "1",
        "types": [kind.value for kind in ActionType],
        "key_ttl_ms": 60_000,
        "wait": True,
    }
)


def reply_made(chance: Random) -> Case:
    parked = [number for number, scene in enumerate(stories()) if 1 in scene.document.pending_actions]
    number = chance.choice(parked)
    data = stories()[number].reply
    if chance.randrange(3) == 0:
        outcome = chance.choice((b'"pending"', b'"rejected"', b'"identity_refused"'))
        data = data.replace(b'"done"', outcome)
    return Case(str(number), "reply", {"reply": _some(data, chance)})


def look_made(chance: Random) -> Case:
    number = chance.randrange(len(stories()))
    return Case(str(number), "inventory", {"inventory": _some(stories()[number].inventory, chance)})


def description_made(chance: Random) -> Case:
    return Case("0", "description", {"description": _some(DESCRIPTION, chance)})


def _some(data: bytes, chance: Random) -> bytes:
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
        data = mutate.reshaped(data, chance) if chance.randrange(6) else mutate.scratched(data, chance)
    return data


def check_reply(case: Case, _: Path) -> None:
    scene = stories()[int(case.world)]
    data = case.files["reply"] or b""
    provider = _Told(data)
    place = operating.Place(scene.document, POLICY)
    sender = Sender(place.context, provider, POLICY)
    key = scene.action.idempotency_key
    sent = answered("send", lambda: sender.send(1, key))
    must(isinstance(sent, Sent), "a send that raises because of its answer", sent)
    if not isinstance(sent, Sent):
        return
    # One that contradicts what is recorded is refused by a machine, and its action stays parked.
    if sent.reason is Reason.APPLY_FAILED and not isinstance(sent.unsaved, TransitionRefused):
        must(False, f"an answer that passes and cannot be applied: {_why(sent)}", sent)
    must(provider.asked == 1, "asked more than once", provider.asked)
    entry = place.document.pending_actions.get(1)
    if provider.refused is not None:
        _check_said(str(provider.refused))
        must(not sent.settled and sent.reason is Reason.UNKNOWN, "refused, and not unknown", sent)
        must(entry is not None and action_of(entry) == scene.action, "refused, and not parked any more", sent)
    elif sent.settled:
        must(entry is None, "settled, and still parked", sent)
        again = answered("send again", lambda: sender.send(1, key))
        must(isinstance(again, Sent) and again.settled and provider.asked == 1, "settled, and sent again", again)
    else:
        must(entry is not None and action_of(entry) == scene.action, "not settled, and not parked any more", sent)
    _check_document(place, scene.document)


def _why(sent: Sent) -> str:
    return type(sent.unsaved).__name__ + ": " + ("" if sent.unsaved is None else sent.unsaved.what[:60])


def check_look(case: Case, _: Path) -> None:
    scene = stories()[int(case.world)]
    data = case.files["inventory"] or b""
    provider = FakeProvider(LINEAGE)
    try:
        look: Inventory | None = wire.parse_inventory(data, scene.document.lineage)
    except wire.BadReply as refused:
        _check_said(str(refused))
        look = None
    provider.script_look(*([ProviderFailed("no")] * 3 if look is None else [look] * 3))
    for kind in ActionType:
        provider.script(kind, *[Say(Unknown("?"))] * 3)
    place = operating.Place(scene.document, POLICY)
    reconciler = Reconciler(
        Sender(place.context, provider, POLICY), Ground(POLICY, "fake", None, None), parallelism=1, stop=Stop()
    )
    report = answered("reconcile", reconciler.reconcile)
    for error in getattr(report, "errors", ()):
        must(error.exit != ControllerError.exit, "an error that nobody expected, of a look", repr(error))
    if look is not None:
        for worker in look.workers:
            must(1 <= worker.slot <= 10_000, "a worker nowhere", worker)
    _check_document(place, scene.document)


def check_description(case: Case, _: Path) -> None:
    try:
        told = wire.parse_description(case.files["description"] or b"")
    except wire.BadReply as refused:
        _check_said(str(refused))
        return
    must(len(told.name) <= 70 and len(told.version) <= 70, "a name of any length", told)
    must(told.key_ttl_ms is None or told.key_ttl_ms >= 0, "a time to live below 0", told)


def _check_said(text: str) -> None:
    """What is told to people is one printable line."""
    must(
        bool(text) and text.isprintable() and len(text) < 2_000,
        "a refusal that steers a terminal, or floods it",
        repr(text[:300]),
    )


def _check_document(place: operating.Place, start: Document) -> None:
    """No new violation, and every record can be written and read again."""
    document = place.document
    known = {(each.id, each.subject) for each in violations(start)}
    fresh = [each for each in violations(document) if (each.id, each.subject) not in known]
    must(not fresh, "an answer broke a rule", fresh)
    for name in MAPS:
        for record in getattr(document, name).values():
            answered("storable", partial(codec.storable, record))
    back = codec.decode(codec.encode(document), "x").document
    must(
        all(dict(getattr(back, name)) == dict(getattr(document, name)) for name in MAPS),
        "written and read, another one",
    )


TARGETS = (
    Target("replies", reply_made, check_reply),
    Target("looks", look_made, check_look),
    Target("descriptions", description_made, check_description),
)
