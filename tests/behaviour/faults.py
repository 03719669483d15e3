"""What goes wrong around a command: it dies at an exact point, a lock is held, rights are missing."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.clock import SystemClock
from controller.provider.process import own_identity
from controller.store import codec, segments
from controller.store.file import FileStore
from tests.behaviour.driver import Controller, Result

_DIES = """
import os, signal, sys
name, nth = sys.argv[1], int(sys.argv[2])
del sys.argv[1:3]
real, calls = getattr(os, name), 0
def dying(*args, **options):
    global calls
    answer = real(*args, **options)
    calls += name != "open" or bool(args[1] & os.O_CREAT)
    if calls == nth:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer
setattr(os, name, dying)
from controller.cli.main import main
sys.exit(main())
"""

CHANGES = ("open", "write", "pwrite", "rename", "link", "unlink")
"""Calls that change what another process finds on disk, as the store makes them.

A process that dies right after one of them leaves what it would leave just before the next: no other point differs.
"""


def call(controller: Controller, *command: str, env: Mapping[str, str] | None = None, timeout: float = 60) -> Result:
    """Run any program as the driver runs the command: same directory, environment and rules."""
    done = subprocess.run(
        command,
        cwd=controller.home,
        env={**controller.env, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    return Result(command, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def run_dying(controller: Controller, name: str, nth: int, *args: str) -> Result:
    """Run the command; SIGKILL hits it right after its *nth* call of `os.NAME`."""
    own = (sys.executable, "-c", _DIES, name, str(nth))
    return call(controller, *own, *controller.command(*args)[1:])


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """The kernel lock on *path* is held, as another process would hold it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def wait_until_open(pid: int, path: Path, patience: float = 30) -> None:
    """Until the process *pid* has *path* open."""
    deadline = time.monotonic() + patience
    while True:
        links = []
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                links.append(os.readlink(entry))
            except OSError:
                continue
        if str(path) in links:
            return
        assert time.monotonic() < deadline, f"process {pid} never opened {path}"
        time.sleep(0.005)


def plain_rights(*prefix: str) -> tuple[str, ...]:
    """What to put before a command so that it obeys modes of files: nothing for a user, no capabilities for root."""
    if os.geteuid() != 0:
        return prefix
    if shutil.which("setpriv") is None:
        pytest.skip("root obeys no modes, and there is no setpriv to change that")
    return ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", *prefix)


def store_of(controller: Controller) -> FileStore:
    """The store over its state directory, for what no command tells."""
    return FileStore(controller.state, clock=SystemClock(), whoami=own_identity(), command="test")


def document(controller: Controller) -> dict[str, Any]:
    """The document as it stands, whoever lives or was killed: `controller.json` and what its journal adds."""
    content: dict[str, Any] = json.loads(codec.encode(store_of(controller).read().document))
    return content


def on_disk(controller: Controller) -> dict[str, Any]:
    """`controller.json` itself, as whoever edits it sees it: the document at rest, one behind its journal otherwise."""
    content: dict[str, Any] = json.loads((controller.state / "controller.json").read_bytes())
    return content


def durable(controller: Controller) -> dict[str, bytes]:
    """Every byte of document and history, by file: what no refused command and no question changes."""
    names = ["controller.json", *(segment.name for segment in segments.listed(controller.state))]
    return {name: (controller.state / name).read_bytes() for name in names}


def write_document(controller: Controller, content: Mapping[str, object]) -> bytes:
    """Put *content* there as an editor would, in place; return its bytes."""
    data = json.dumps(content).encode()
    (controller.state / "controller.json").write_bytes(data)
    return data


def make_whole(controller: Controller) -> bytes:
    """Turn the directory into what a program from before the journal leaves: every commit wrote the whole document, and
    its events into `history.jsonl`. Return the document's bytes.
    """
    store = store_of(controller)
    events, stands = store.history(), store.read().document
    for segment in segments.listed(controller.state):
        (controller.state / segment.name).unlink()
    (controller.state / segments.LEGACY).write_bytes(b"".join(codec.line_of(event) + b"\n" for event in events))
    data = codec.encode(stands)
    (controller.state / "controller.json").write_bytes(data)
    return data


def make_legacy(controller: Controller, pending: object = None) -> bytes:
    """Turn the directory into a schema-1 program's: one scalar, no digest of ours. Return the document's bytes."""
    make_whole(controller)
    content = on_disk(controller)
    content |= {"schema": 1, "pending_action": pending}
    del content["pending_actions"], content["digest"]
    return write_document(controller, content)


def tree(place: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Everything below *place*: mode, size, change time and content of each file, so that any touch shows."""
    found = {}
    for path in sorted([place, *place.rglob("*")]):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(place))] = (status.st_mode, status.st_size, status.st_mtime_ns, data)
    return found


def files(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}
