"""docs/provider-protocol.md: every example is what the program sends, or takes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from controller.model.action import Action, CancelRequest, ExecuteRequest, canonical, verify
from controller.model.records import ActionType
from controller.provider import wire
from controller.provider.command import Deadlines
from controller.provider.protocol import Description, Done, IdentityRefused, Pending, Rejected

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/provider-protocol.md").read_text()
BLOCKS = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
REQUESTS: list[dict[str, Any]] = [json.loads(block) for block in BLOCKS if "fleet" in json.loads(block)]
REPLIES: list[str] = [block for block in BLOCKS if "fleet" not in json.loads(block)]


def actions() -> dict[str, Action]:
    found = [verify(Raw(canonical(request["action"]))) for request in REQUESTS if request["op"] == "mutate"]
    return {action.idempotency_key: action for action in found}


def test_every_op_and_type_has_a_request_that_this_program_would_send() -> None:
    asked = set()
    for request in REQUESTS:
        op, fleet, lineage = request["op"], request["fleet"], request["lineage"]
        if op == "mutate":
            sent = wire.mutate_request(Raw(canonical(request["action"])), fleet=fleet, lineage=lineage)
        else:
            members = {name: request[name] for name in request if name == "timeout_ms"}
            sent = wire.request(op, fleet=fleet, lineage=lineage, **members)
        assert json.loads(sent) == request
        assert list(json.loads(sent)) == list(request)
        asked.add(op)
    assert asked == {"describe", "inventory", "wait", "mutate"}
    assert {action.type for action in actions().values()} == set(ActionType)


def test_the_requests_of_execute_and_cancel_are_whole() -> None:
    by_type = {action.type: action for action in actions().values()}
    execute, cancel = by_type[ActionType.EXECUTE], by_type[ActionType.CANCEL]
    msgspec.json.decode(bytes(execute.request), type=ExecuteRequest)
    target = msgspec.json.decode(bytes(cancel.request), type=CancelRequest).target
    assert target == execute.idempotency_key
    assert None not in {execute.run, execute.step, execute.attempt, execute.token}


def test_every_reply_is_taken_for_what_the_page_says_it_is() -> None:
    taken: set[object] = set()
    lineage = REQUESTS[0]["lineage"]
    for reply in REPLIES:
        data, content = reply.encode(), json.loads(reply)
        match content["op"]:
            case "mutate":
                action = actions()[content["idempotency_key"]]
                outcome = wire.parse_outcome(data, action)
                taken |= {type(outcome), action.type}
            case "inventory":
                look = wire.parse_inventory(data, lineage)
                assert len(look.workers) == len(content["workers"])
                taken.add("inventory")
            case "describe":
                assert isinstance(wire.parse_description(data), Description)
                taken.add("describe")
            case "wait":
                assert wire.parse_wait(data) is True
                taken.add("wait")
    outcomes = {Done, Pending, Rejected, IdentityRefused}
    assert taken == {"inventory", "describe", "wait", *outcomes, *ActionType}


def test_the_deadlines_on_the_page_are_the_defaults() -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+) \| (\d+) s \|$", PAGE, re.MULTILINE)
    told = {name: float(seconds) for names, seconds in rows for name in re.findall(r"[a-z_]+", names)}
    assert told == msgspec.to_builtins(Deadlines())


def test_the_bounds_on_the_page_are_the_programs() -> None:
    text = " ".join(PAGE.split())
    assert "at most 2 MiB" in text
    assert wire.MAX_REPLY == 2 * 1024 * 1024
    assert f"({wire.RETRY_AFTER_MS} if missing, an hour at most)" in text
    assert wire.MAX_RETRY_AFTER_MS == 3_600_000
    assert f"an id longer than {wire.MAX_NAME} characters, more than {wire.MAX_RESOURCES} resources" in text


def test_the_test_of_ones_own_provider_runs_as_pasted(tmp_path: Path) -> None:
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_mine.py").write_text(snippet)
    program = tmp_path / "bin" / "your-program"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{ROOT}/docs/examples/provider.py' \"$PWD/workers\"\n")
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "create or describe", "test_mine.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b[1-9]\d* passed", done.stdout)
