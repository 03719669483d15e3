"""Small provider programs, most of them misbehaving, and a way to ask them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from controller.clock import SystemClock
from controller.model.process import ProcessIdentity
from controller.model.records import ActionType
from controller.provider.command import CommandProvider, Deadlines
from controller.provider.protocol import Outcome
from tests.provider.contract import LINEAGE, Asker

PRELUDE = """
import json, os, signal, subprocess, sys, time
request = json.loads(sys.stdin.read())
action = request.get("action", {})
key, slot = action.get("idempotency_key"), action.get("slot")
worker = {name: action.get(name) for name in ("slot", "lineage", "assignment", "generation")}
worker |= {"id": "w", "state": "ready"}
def reply(outcome="done", **members):
    answer = {"protocol": "controller.provider/1", "op": request["op"], "slot": slot, "idempotency_key": key}
    return json.dumps(answer | {"outcome": outcome} | members)
def child():
    # A process of the same group that holds every pipe.
    started = subprocess.Popen(["sleep", "60"])
    open("child.new", "w").write(str(started.pid))
    os.replace("child.new", "child")
    started.returncode = 0
"""


def python_program(directory: Path, body: str) -> tuple[str, ...]:
    """A program that has read its request and runs *body*."""
    path = directory / "program.py"
    path.write_text(PRELUDE + body)
    return (sys.executable, str(path))


def script(directory: Path, text: str, *, mode: int = 0o755) -> tuple[str, ...]:
    """An executable file that holds *text*."""
    path = directory / "program"
    path.write_text(text, newline="")
    path.chmod(mode)
    return (str(path),)


def command(
    argv: tuple[str, ...],
    directory: Path,
    *,
    lineage: str = LINEAGE,
    env: dict[str, str] | None = None,
    **seconds: float,
) -> CommandProvider:
    """A provider whose state directory is *directory*; *seconds* are deadlines by name."""
    return CommandProvider(
        argv,
        fleet="test",
        lineage=lineage,
        state_dir=directory,
        clock=SystemClock(),
        environment={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"} if env is None else env,
        deadlines=Deadlines(**seconds),
    )


def asker(argv: tuple[str, ...], directory: Path, **seconds: float) -> Asker:
    return Asker(command(argv, directory, lineage=LINEAGE, env=None, **seconds), SystemClock())


def create(asked: Asker) -> Outcome:
    return asked.once(asked.mint(ActionType.CREATE, 3))


def ask_create(directory: Path, body: str, **seconds: float) -> Outcome:
    """What a create gets from a program that runs *body*."""
    return create(asker(python_program(directory, body), directory, **seconds))


def nothing(_identity: ProcessIdentity, _deadline_at: int) -> None:
    """A register that keeps nothing."""


def state_of(pid: int) -> str | None:
    """The state letter of a process, None without one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_gone(pid: int) -> bool:
    return state_of(pid) in {None, "Z"}
