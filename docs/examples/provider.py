#!/usr/bin/env python3
"""A provider to start from: workers are directories under ROOT on this Linux host, steps are real processes.

    controller init --provider command --provider-command "python3 provider.py ROOT"

What it does not do: limit the size of a step's log or the number of steps at once; start a step again after a reboot
(it is then reported as exited, how is unknowable); find a process that left its step's process group; give steps a
user or limits of their own; give steps a grace time in `deallocate`; answer `wait`.

A worker's data is its directory. Its compute is no more than the leave to run steps there; it has an identity of its
own all the same, as a machine has, so that a resume can be told from what was there before.

Everything is written durably before it is answered. A step has begun once its wrapper has linked the file `began`: of
two wrappers, or a wrapper and a cancel, only one can, so no step starts twice. The wrapper outlives this program, and
writes how the step ended before anybody asks.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TYPES = ["create", "execute", "cancel", "deallocate", "delete_compute", "reset"]
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
Json = dict[str, Any]


def load(path: Path) -> Any:
    with contextlib.suppress(FileNotFoundError):
        return json.loads(path.read_text())
    return None


def save(path: Path, content: object, *, once: bool = False) -> bool:
    """Write whole and durably; with *once*, False if somebody was first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        file.write(json.dumps(content))
        file.flush()
        os.fsync(file.fileno())
    try:
        (os.link if once else os.replace)(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    for directory in path.parents[:4]:
        descriptor = os.open(directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return True


def stat(pid: object) -> list[str]:
    """What /proc says of a process from its state on, [] when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def alive(step: Path) -> bool:
    """Whether a process of the step is left, its wrapper included. Its group's number may be somebody else's by now."""
    group, started, boot = load(step / "began") or (0, 0, "")
    leader = stat(group)
    if boot != BOOT or (leader and int(leader[19]) != started):
        return False
    found = (stat(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return any(fields and fields[0] not in "ZX" and int(fields[2]) == group for fields in found)


def run_step(step: Path) -> None:
    """The wrapper: leads the step's session and process group."""
    if not save(step / "began", [os.getpid(), int(stat("self")[19]), BOOT], once=True):
        return
    signal.signal(signal.SIGTERM, lambda *_: None)  # is meant for the step; the wrapper has its end to write
    ask, log = load(step / "request.json"), (step / "log").open("ab")
    timeout, end, null = ask["timeout_ms"], Json(), subprocess.DEVNULL
    try:
        child = subprocess.Popen(
            ask["argv"], cwd=ask["cwd"], env=os.environ | ask["env"], stdin=null, stdout=log, stderr=log
        )
        try:
            child.wait(timeout and timeout / 1000)
        except subprocess.TimeoutExpired:
            end["timed_out"] = True
            os.killpg(0, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(ask["kill_grace_ms"] / 1000)
            child.kill()
        status = child.wait()
        end |= {"exit_code": status} if status >= 0 else {"signal": -status}
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        end |= {"exit_code": code, "started": False, "reason": str(error)}
    save(step / "end", end | {"ended_at": time.time_ns() // 1_000_000}, once=True)
    os.killpg(0, signal.SIGKILL)  # and whatever the step left behind


def stopped(step: Path, grace_ms: int) -> bool:
    """TERM, and KILL once the grace time is over. True when no process of the step is left and its end is written."""
    never_began = save(step / "began", [0, 0, ""], once=True)
    patience = time.monotonic() + 0.5
    while alive(step):
        group, term = load(step / "began")[0], load(step / "term")
        with contextlib.suppress(ProcessLookupError):
            if term is None:
                save(step / "term", time.monotonic())
                os.killpg(group, signal.SIGTERM)
            elif time.monotonic() - term >= grace_ms / 1000:
                os.killpg(group, signal.SIGKILL)
        if time.monotonic() > patience:
            return False
        time.sleep(0.01)
    killed = {"signal": 9} if load(step / "term") else {}  # TERM does not end the wrapper: without an end it was KILL
    save(step / "end", {"started": False, "reason": "stopped before it began"} if never_began else killed, once=True)
    return True


def step_seen(step: Path) -> Json:
    end = load(step / "end")
    if end is None and not alive(step):
        end = load(step / "end") or {}  # it ended just now, or nobody can tell how
    return {"idempotency_key": step.name, "state": "running" if end is None else "exited", **(end or {})}


def worker_seen(home: Path, worker: Json) -> Json:
    steps = [step_seen(began.parent) for began in sorted(home.glob("steps/*/began"))]
    return worker | {"id": f"{worker['slot']}-{worker['assignment']}", "steps": steps}


def accept(home: Path, action: Json) -> Json:
    """Have the step begun by a wrapper that outlives this program: what has not begun would never begin."""
    step, run = home / "steps" / action["idempotency_key"], home / "work" / action["run"]
    run.mkdir(parents=True, exist_ok=True)
    save(step / "request.json", action["request"] | {"cwd": action["request"]["cwd"] or str(run)})
    wrapper = [sys.executable, __file__, "--step", str(step)]
    null, patience = subprocess.DEVNULL, time.monotonic() + 10
    subprocess.Popen(wrapper, stdin=null, stdout=null, stderr=null, start_new_session=True)
    while not (step / "began").exists():
        if time.monotonic() > patience:
            return {"outcome": "pending"}
        time.sleep(0.005)
    return {"outcome": "done", "step": step_seen(step)}


def create(action: Json, home: Path, worker: Json | None) -> Json:
    """A new worker, or new compute for the data of one whose compute is off: that is a resume."""
    named, key = action["resources"].get("data"), action["idempotency_key"]
    data, tokens = {"id": str(home), "immutable_id": key}, {}
    if worker is None and named:
        return {"outcome": "rejected", "reason": f"{named['id']} is not there"}
    if worker and worker["key"] != key:
        holds = f"{worker['assignment']}, generation {worker['generation']}, {worker['state']}"
        older = worker["assignment"] == action["assignment"] and worker["generation"] < action["generation"]
        if not older or worker["state"] == "ready":
            return {"outcome": "rejected", "reason": f"the slot holds {holds}"}
        data, tokens = worker["resources"]["data"], worker["tokens"]
        if named not in (None, data):
            return {"outcome": "identity_refused", "reason": f"the data here is {data}"}
    if not worker or worker["key"] != key:
        worker = {name: action[name] for name in ("slot", "lineage", "assignment", "generation")}
        compute = {"id": f"{home}/{action['generation']}", "immutable_id": key}
        worker |= {"key": key, "state": "ready", "tokens": tokens, "resources": {"data": data, "compute": compute}}
        save(home / "worker.json", worker)
    return {"outcome": "done", "worker": worker_seen(home, worker)}


def perform(action: Json, home: Path, worker: Json | None) -> Json:
    kind, ask = action["type"], action["request"]
    if kind == "create":
        return create(action, home, worker)
    same = worker is not None and worker["assignment"] == action["assignment"]
    if worker is None or not same:
        return {"outcome": "rejected" if kind == "execute" else "done", "reason": "that worker is not there"}
    if worker["generation"] != action["generation"]:
        return {"outcome": "rejected", "reason": f"that worker is at generation {worker['generation']}"}
    for name, recorded in action["resources"].items():
        if worker["resources"].get(name, recorded) != recorded:  # what is gone is no obstacle: deleting it is done
            return {"outcome": "identity_refused", "reason": f"the {name} here is {worker['resources'][name]}"}
    if kind in {"execute", "cancel"}:
        if action["token"] < worker["tokens"].get(action["run"], 0):
            return {"outcome": "rejected", "reason": f"token {action['token']} of run {action['run']} is stale"}
        worker["tokens"][action["run"]] = action["token"]
        save(home / "worker.json", worker)
    for key in action["settled"]:
        shutil.rmtree(home / "steps" / key, ignore_errors=True)
    if kind == "execute":
        return accept(home, action) if worker["state"] == "ready" else {"outcome": "rejected", "reason": "not ready"}
    steps = [home / "steps" / ask["target"]] if kind == "cancel" else sorted(home.glob("steps/*"))
    grace_ms = ask["kill_grace_ms"] if kind == "cancel" else 0
    if not all([stopped(step, grace_ms) for step in steps if step.exists()]):  # noqa: C419 - all of them, at once
        return {"outcome": "pending", "retry_after_ms": 200}
    if kind == "cancel":
        return {"outcome": "done", "step": step_seen(steps[0])} if steps[0].exists() else {"outcome": "done"}
    if kind == "delete_compute":
        worker["resources"].pop("compute", None)
    save(home / "worker.json", worker | {"state": "dark"})
    if kind == "reset":
        trash = home.rename(home.with_name(f".{home.name}.{action['idempotency_key']}"))
        shutil.rmtree(trash, ignore_errors=True)
    return {"outcome": "done"}


def mutate(action: Json, mine: Path) -> Json:
    """A known key gets its answer again, until a reset forgets the worker and all that it was told."""
    home, key = mine / str(action["slot"]), action["idempotency_key"]
    mine.mkdir(parents=True, exist_ok=True)
    with (mine / f"{action['slot']}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a call that outlived its controller may still be at it
        answer: Json = load(home / "answers" / key) or perform(action, home, load(home / "worker.json"))
        if answer["outcome"] != "pending" and (home / "worker.json").exists():
            save(home / "answers" / key, answer)
    return {"slot": action["slot"], "idempotency_key": key, **answer}


def main() -> None:
    request = json.load(sys.stdin)
    mine, op = Path(sys.argv[1]).absolute() / request["lineage"], request["op"]
    if op == "describe":
        reply: Json = {"name": "example", "version": "1", "types": TYPES, "key_ttl_ms": None, "wait": False}
    elif op == "inventory":
        homes = [(path.parent, load(path)) for path in sorted(mine.glob("[0-9]*/worker.json"))]
        reply = {"complete": True, "workers": [worker_seen(home, worker) for home, worker in homes if worker]}
    elif op == "mutate":
        reply = mutate(request["action"], mine)
    else:
        sys.exit(f"unknown op {op}")
    print(json.dumps({"protocol": "controller.provider/1", "op": op, **reply}))


if __name__ == "__main__":
    run_step(Path(sys.argv[2])) if sys.argv[1] == "--step" else main()
