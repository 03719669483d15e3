"""What people write, mutated: settings, runs in files, payloads and release proofs.

Each is refused as what was typed, naming its place, or taken with what it says. No other exception, and nothing that
could not be stored.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import orjson

from controller.api import graph, options
from controller.api import settings as config
from controller.api.proof import read_proof
from controller.cli.values import json_value
from controller.engine import proof as proofs
from controller.engine.queue import submit
from controller.engine.release import Released, release
from controller.engine.submission import Submission
from controller.model.errors import Conflict, ControllerError, ProofRefused, Refusal, UsageFault
from controller.model.policy import Policy, Release
from controller.model.records import Document, Resource, WorkerState
from controller.store import codec
from tests.engine import operating
from tests.fuzz import mutate
from tests.fuzz.target import Case, Target, answered, must

# --- Settings ---------------------------------------------------------------------------------------------------------


@cache
def every_option() -> str:
    """The settings file of `init` with every option set, and a few queues."""
    lines = options.template(4, "command", ("/bin/true", "x")).splitlines()
    whole = [line.removeprefix("# ") if " = " in line or line.startswith("# [") else line for line in lines]
    return "\n".join(line for line in whole if line and not line.startswith("#"))


def settings_made(chance: Random) -> Case:
    text = every_option()
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        text = mutate.toml_changed(text, chance)
    data = mutate.as_bytes(text)
    if chance.randrange(8) == 0:
        data = mutate.scratched(data, chance)
    return Case("settings", "toml", {"controller.toml": data})


def check_settings(case: Case, home: Path) -> None:
    path = home / "controller.toml"
    path.write_bytes(case.files["controller.toml"] or b"")
    read = answered("settings", lambda: config.load(path, chosen=True))
    if isinstance(read, ControllerError):
        must(isinstance(read, UsageFault), f"settings refused as {type(read).__name__}", read.what)
        must(str(path) in read.where, "settings refused, and not where", read.where)
        _check_one_line(read)
        return
    policy = read.policy
    # What is taken means what it says, by a reader that is not ours.
    said = tomllib.loads(path.read_text())
    meant = said.get("fleet", {})
    for key, got in (("slots", policy.slots), ("min", policy.least), ("max", policy.most), ("queues", policy.queues)):
        asked = meant.get(key, got)
        must((tuple(asked) if isinstance(asked, list) else asked) == got, f"{key} is taken as something else", got)
    must(set(policy.by_queue) == set(said.get("queues", {})), "queues that nobody named", policy.by_queue.keys())
    must(
        tuple(said.get("provider", {}).get("command", ())) == read.provider.argv, "another program", read.provider.argv
    )
    most = policy.slots if policy.most is None else policy.most
    must(
        1 <= policy.slots <= 10_000 and 0 <= policy.least <= most <= policy.slots,
        "numbers that cannot all be meant",
        policy,
    )
    for backoff in (policy.retry, policy.create, policy.send, *(each.backoff for each in policy.by_queue.values())):
        must(0 <= backoff.initial_ms <= backoff.cap_ms <= options.LONGEST_MS, "a wait out of bounds", backoff)
        must(1 <= backoff.factor < float("inf"), "a factor out of bounds", backoff)
    must(read.provider.kind in options.KINDS, "a provider of no kind", read.provider.kind)
    must(msgspec.json.encode(read) != b"", "settings that cannot be shown")


def _check_one_line(error: ControllerError) -> None:
    """A refusal is text that can be written, and of bounded length."""
    for text in (error.what, error.where, error.next):
        must(len(text) < 3_000, "a refusal of any length", (len(text), text[:200]))


# --- Runs in files ----------------------------------------------------------------------------------------------------

GRAPH: dict[str, Any] = {
    "id": "r-9",
    "attempts": 2,
    "steps": [
        {"name": "a", "argv": ["true"], "env": {"A": "1"}, "cwd": "x", "timeout": "5s", "attempts": 3},
        {"name": "b", "argv": ["sh", "-c", "exit 1"], "needs": ["a"], "timeout": 2.5},
        {"name": "c", "argv": ["true"], "needs": ["a", "b"]},
    ],
}


def graph_made(chance: Random) -> Case:
    if chance.randrange(2):
        text = mutate.toml_of(GRAPH)
        for _ in range(chance.choice((0, 1, 1, 2))):
            text = mutate.toml_changed(text, chance)
        data = mutate.as_bytes(text)
    else:
        data = orjson.dumps(GRAPH)
        for _ in range(chance.choice((0, 1, 1, 2))):
            data = mutate.reshaped(data, chance)
    if chance.randrange(8) == 0:
        data = mutate.scratched(data, chance)
    return Case("graph", "a run in a file", {"run": data})


def check_graph(case: Case, home: Path) -> None:
    data = case.files["run"] or b""
    read = answered("submit --file", lambda: graph.read(data, source="stdin", base=home))
    if isinstance(read, Submission):
        _check_submitted(read)
    else:
        must(isinstance(read, UsageFault) and "stdin" in f"{read.where}", "a run refused, and not where", read)


def _check_submitted(submission: Submission) -> None:
    """What passes is stored as one run that is read again as what it is, or refused by name."""
    place = operating.Place(operating.document())
    done = answered("submit", lambda: submit(place.context, [submission]))
    if isinstance(done, ControllerError):
        must(isinstance(done, UsageFault | Refusal), f"a run refused as {type(done).__name__}", done)
        return
    must(len(done) == 1, "nothing was submitted", done)
    document = place.document
    back = codec.decode(codec.encode(document), "x").document
    must(dict(back.runs) == dict(document.runs) and len(back.runs) == 1, "submitted, and stored as something else")


PAYLOAD = {"a": [1, 2.5, None, True], "b": {"c": "é", "d": {}}, "e": "x" * 40}


def payload_made(chance: Random) -> Case:
    data = orjson.dumps(PAYLOAD)
    for _ in range(chance.choice((0, 1, 1, 2))):
        data = mutate.reshaped(data, chance) if chance.randrange(6) else mutate.scratched(data, chance)
    return Case("payload", "a payload", {"payload": data})


def check_payload(case: Case, home: Path) -> None:
    path = home / "payload"
    path.write_bytes(case.files["payload"] or b"")
    read = answered("--payload", lambda: json_value(f"@{path}", "--payload"))
    if isinstance(read, ControllerError):
        must(isinstance(read, UsageFault), f"a payload refused as {type(read).__name__}", read)
    else:
        _check_submitted(Submission(payload=read))


# --- Proofs -----------------------------------------------------------------------------------------------------------

KEPT = {"vm": Resource("vm-1", "i-1"), "disk": Resource("d-1")}


@cache
def kept() -> Document:
    """Run `a` has succeeded; its worker in slot 1 waits for its proof."""
    worker = operating.worker(1, WorkerState.ASSIGNED, run="a", id="w-1", resources=KEPT)
    return operating.document(worker, finished={"a": operating.stone("a")})


@cache
def proof() -> bytes:
    made = proofs.template(kept(), "a")
    made["resources"] = {name: proofs.resource_digest(each) for name, each in KEPT.items()}
    made["statement"] = "its data was copied"
    return orjson.dumps(made, option=orjson.OPT_INDENT_2)


def proof_made(chance: Random) -> Case:
    data = proof()
    for _ in range(chance.choice((0, 1, 1, 1, 2))):
        data = mutate.reshaped(data, chance) if chance.randrange(4) else mutate.scratched(data, chance)
    return Case("proof", "a proof", {"proof.json": data})


def check_proof(case: Case, home: Path) -> None:
    path = home / "proof.json"
    path.write_bytes(case.files["proof.json"] or b"")
    place = operating.Place(kept(), Policy(slots=3, release=Release.PROOF))
    done = answered("release --proof", lambda: release(place.context, "a", read_proof(path), by="x"))
    if isinstance(done, Released):
        same = _plain(case.files["proof.json"] or b"") == _plain(proof())
        must(same, "released by something that says otherwise", case.files["proof.json"])
        must(place.document.workers[1].state is WorkerState.RELEASED, "released, and not released")
        return
    must(isinstance(done, ProofRefused | Conflict), f"a proof refused as {type(done).__name__}", done)
    must(place.document is place.disk.document and place.document.workers == kept().workers, "refused, and changed")
    if isinstance(done, ControllerError):
        _check_one_line(done)


def _plain(data: bytes) -> Any:
    """What a proof says to anybody, but for the words of its statement, which are the signer's own."""
    content = msgspec.json.decode(data)
    return {**content, "statement": None} if isinstance(content, dict) else content


TARGETS = (
    Target("settings", settings_made, check_settings),
    Target("runs", graph_made, check_graph),
    Target("payloads", payload_made, check_payload),
    Target("proofs", proof_made, check_proof),
)
