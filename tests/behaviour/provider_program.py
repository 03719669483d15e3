"""A provider program with a truth of its own, whose next calls a test can make go wrong."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.behaviour.driver import Controller

_PROGRAM = r'''
import fcntl, json, os, signal, subprocess, sys, time
from pathlib import Path

home = Path(sys.argv[1])
request = json.loads(sys.stdin.read())
action = request.get("action", {})
key, slot, kind = action.get("idempotency_key"), action.get("slot"), action.get("type")


def log(text):
    with open(home / "calls", "a") as file:
        file.write(text + "\n")


def locked():
    file = open(home / "lock", "w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def behaviour():
    with locked():
        for name in (f"{kind}-{slot}", f"{kind}", request["op"]):
            path = home / "next" / name
            if path.exists():
                first, *rest = json.loads(path.read_text())
                path.write_text(json.dumps(rest)) if rest else path.unlink()
                return first
    return {}


def worker(state="ready"):
    path = home / "workers" / f"{slot}.json"
    return json.loads(path.read_text()) if path.exists() else None


def do():
    """Perform the action once per key; the answer is remembered."""
    with locked():
        answers = home / "answers" / key
        if answers.exists():
            return json.loads(answers.read_text())
        log(f"did {kind} {slot} {key}")
        path = home / "workers" / f"{slot}.json"
        answer = {"outcome": "done"}
        if kind == "create":
            made = {"slot": slot, "lineage": action["lineage"], "assignment": action["assignment"],
                    "generation": action["generation"], "id": f"vm-{slot}-{action['serial']}", "state": "ready",
                    "resources": {"vm": {"id": f"vm-{slot}-{action['serial']}", "immutable_id": key[:8]}}, "steps": []}
            known = worker()
            if known and known["assignment"] == action["assignment"]:  # a resume: the machine is switched on again
                made = known | {"generation": action["generation"], "state": "ready"}
            path.write_text(json.dumps(made))
            answer["worker"] = made
        elif path.exists():
            known = json.loads(path.read_text())
            known["steps"] = [s for s in known["steps"] if s["idempotency_key"] not in action["settled"]]
            if kind == "execute":
                known["steps"].append({"idempotency_key": key, "state": "exited", "exit_code": 0, "signal": None})
            if kind == "deallocate":
                known["state"] = "dark"
            if kind == "delete_compute":
                known["state"] = "gone"
            path.unlink() if kind == "reset" else path.write_text(json.dumps(known))
        answers.write_text(json.dumps(answer))
        return answer


log(f"{request['op']} {kind or '-'} {slot or '-'} {key or '-'}")
how = behaviour()
if "run" in how:
    for argv in how["run"]:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        with open(home / "ran", "a") as file:
            file.write(json.dumps([argv[-3:], done.returncode, done.stdout + done.stderr]) + "\n")
if "wait_for" in how:
    deadline = time.monotonic() + 60
    while not (home / how["wait_for"]).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
reply = {"protocol": "controller.provider/1", "op": request["op"]}
if request["op"] == "mutate":
    reply |= {"slot": slot, "idempotency_key": key}
    if how.get("do", True):
        reply |= do()
elif request["op"] == "inventory":
    workers = [json.loads(path.read_text()) for path in sorted((home / "workers").glob("*.json"))]
    reply |= {"complete": True, "workers": workers}
elif request["op"] == "describe":
    reply |= {"name": "test", "version": "1", "key_ttl_ms": None, "wait": False, "types":
              ["create", "execute", "cancel", "deallocate", "delete_compute", "reset"]}
reply |= how.get("reply", {})
if how.get("wrap"):
    for _ in range(how["wrap"]):
        reply["meta"] = {"meta": reply.get("meta")}
if how.get("die"):
    os.kill(os.getpid(), signal.SIGKILL)
if how.get("sleep_after"):
    time.sleep(how["sleep_after"])
body = how["instead"] if "instead" in how else json.dumps(reply)
sys.stdout.write(how.get("before", "") + body + how.get("after", ""))
sys.stdout.flush()
if how.get("leave"):
    subprocess.Popen(["sleep", str(how["leave"])])
log(f"answered {request['op']} {kind or '-'} {slot or '-'}")
sys.exit(how.get("exit", 0))
'''


class Program:
    """The program, and a controller that was initialised to use it."""

    def __init__(self, controller: Controller, *, slots: int = 3, deadlines: str = "") -> None:
        self.controller = controller
        self.home = controller.home / "provider"
        for name in ("workers", "answers", "next"):
            (self.home / name).mkdir(parents=True)
        script = controller.home / "provider.py"
        script.write_text(_PROGRAM)
        command = shlex.join([sys.executable, "-S", str(script), str(self.home)])
        controller.init("--slots", str(slots), "--provider-command", command)
        if deadlines:
            controller.configure("provider.deadlines", deadlines)

    def next(self, name: str, *behaviours: dict[str, Any]) -> None:
        """The next calls of an op, an action type, or a type and slot such as `create-2`, go so."""
        (self.home / "next" / name).write_text(json.dumps(behaviours))

    def always(self, name: str, behaviour: dict[str, Any]) -> None:
        """Every call goes so, until `next` or `honest` says otherwise: a replay under a short backoff does too."""
        self.next(name, *[behaviour] * 100)

    def honest(self, name: str) -> None:
        """From now on calls of this name go as they should."""
        (self.home / "next" / name).unlink(missing_ok=True)

    def calls(self, word: str = "mutate") -> list[list[str]]:
        """Lines of the call log that begin with *word*: op, type, slot, key; or what was `did` and `answered`."""
        path = self.home / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[1:] for line in lines if line.startswith(word + " ")]

    def workers(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted((self.home / "workers").glob("*.json"))]

    def submit(self, *ids: str) -> None:
        for run_id in ids:
            self.controller.run("submit", "--id", run_id, "--", "true", check=True)

    def pending(self) -> dict[int, dict[str, Any]]:
        """Pending mutations by slot, from the status of another process."""
        return {each["slot"]: each for each in self.controller.json("status")["pending_mutations"]}

    def let(self, name: str) -> None:
        """What waits for *name* goes on."""
        (self.home / name).touch()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Wait for something another process does; a failed assertion if it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.01)
