"""State directories to measure in, as long as they are needed, and the commands that work on them.

Not promised: that anything stands behind the workers here. They are records.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Final

from msgspec import Raw, json
from msgspec.structs import replace

from benchmarks.peers import PAYLOAD
from controller.clock import SystemClock
from controller.engine.queue import Context, submit
from controller.engine.submission import Submission
from controller.model.edit import Draft
from controller.model.records import Worker, WorkerState
from controller.provider.process import own_identity
from controller.store.create import initialise
from controller.store.file import FileStore

CLOCK: Final = SystemClock()
ROOT: Final = Path(__file__).resolve().parent.parent
PYTHON: Final = sys.executable
CONTROLLER: Final = str(Path(sys.executable).with_name("controller"))
ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if not name.startswith(("CONTROLLER_", "PY"))}
RUN: Final = Submission(payload=Raw(json.encode(PAYLOAD)))
"""A queued run that takes about 340 bytes in the document: 150 of payload, which a consumer would get."""
WORKERS: Final = 16


def opened(directory: Path) -> FileStore:
    return FileStore(directory, clock=CLOCK, whoami=own_identity(), command="bench")


def stocked(place: Path, runs: int) -> Path:
    """A new state directory in *place*: a fleet of 16 idle workers, and so many queued runs in queue `default`.

    Made once for all figures of a run, and copied.
    """
    stock = place.parent / f"stock-{runs}"
    if not stock.exists():
        _stock(stock, runs)
    return Path(shutil.copytree(stock, place / "state"))


def _stock(directory: Path, runs: int) -> None:
    me, lineage = own_identity(), "00000000-0000-4000-8000-000000000000"
    store = initialise(
        directory, fleet="bench", lineage=lineage, config_text="", clock=CLOCK, whoami=me, command="bench"
    )
    change(store, _add_workers)
    if runs:
        submit(Context(store, CLOCK, "bench"), [RUN] * runs)
        change(store, touch)  # a document carries the events of its last commit: not those of 100 000 submits
    store.fold()


def _add_workers(draft: Draft) -> None:
    for slot in range(1, WORKERS + 1):
        name = f"a-{draft.count('assignment')}"
        worker = Worker(slot, name, 1, "local", draft.now, draft.now, WorkerState.READY, id=f"worker-{slot}")
        draft.workers.put(slot, worker)
        draft.event(f"slot:{slot}", "made")


def change(store: FileStore, make: Callable[[Draft], None], patience: float = 10.0) -> None:
    """The whole path of a commit: hold, load, draft, edit, commit."""
    with store.hold(patience) as hold:
        loaded = hold.load()
        draft = Draft(loaded.document, now=CLOCK.now_ms(), command="bench")
        make(draft)
        hold.commit(loaded, draft.edit())


def touch(draft: Draft) -> None:
    """Change one run of all, each its turn."""
    runs = draft.document.runs
    run = runs[f"r-{draft.document.revision % len(runs) + 1}"]
    draft.runs.put(run.id, replace(run, waiting_since=draft.now))
    draft.event(f"run:{run.id}", "touched")


def program(*command: str) -> Callable[[], object]:
    """Run *command* to its end each time it is called."""
    null = subprocess.DEVNULL
    return partial(subprocess.run, command, check=True, env=ENVIRONMENT, stdin=null, stdout=null)


def module(name: str, *arguments: str) -> Popen[str]:
    """A module of this package as a process of its own, with pipes to it and from it."""
    command = [PYTHON, "-m", f"benchmarks.{name}", *arguments]
    return Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=ROOT)


def controller(state: Path, *words: str) -> Callable[[], object]:
    return program(CONTROLLER, "--state-dir", str(state), *words)
