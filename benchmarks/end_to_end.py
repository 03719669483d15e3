"""1 000 runs of `true` from submit to tombstone, beside GNU parallel and xargs.

Not promised: that these do the same: a joblog is not synced, xargs notes nothing, and neither outlives a crash.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from benchmarks.fleets import CLOCK, CONTROLLER, ENVIRONMENT, controller, opened
from benchmarks.measuring import OURS, Broken, Measured, Missing, longer, seconds_of, turns
from controller.engine.queue import Context, submit
from controller.engine.submission import Submission
from controller.model.records import Step
from controller.store.file import FileStore

PATIENCE = 120.0
_WORKERS = 4


@contextmanager
def _served(place: Path) -> Iterator[FileStore]:
    """A fleet of four local workers under a long-lived loop; nothing of it is left at the end."""
    state, log = place / "state", place / "log"
    ours = [CONTROLLER, "--state-dir", str(state), "--quiet"]
    controller(state, "init", "--slots", str(_WORKERS))()
    with log.open("wb") as output:
        command = [*ours, "run", "--interval", "10s"]
        loop = subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield opened(state)
        if loop.poll() is not None:
            raise Broken(f"the loop ended with {loop.returncode}: {log.read_text(errors='replace')[-500:]}")
    finally:
        loop.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            loop.wait(20)
        loop.kill()
        loop.wait()
        subprocess.run([*ours, "drain", "--all"], check=False, env=ENVIRONMENT, capture_output=True)


def _await_ends(store: FileStore, count: int) -> None:
    """Until *count* runs have left tombstones: a look each 10 ms, of a store that follows what is appended."""
    end = time.monotonic() + PATIENCE
    while len((document := store.read().document).finished) < count:
        if time.monotonic() > end:
            raise Broken(f"after {PATIENCE:.0f} s, {len(document.finished)} of {count} runs had succeeded")
        time.sleep(0.01)
    if len(document.finished) != count or len(document.workers) != _WORKERS:
        raise Broken(f"{len(document.finished)} tombstones, not {count}, or {len(document.workers)} workers, not 4")


def _submit(store: FileStore, count: int, *argv: str) -> None:
    submit(Context(store, CLOCK, "bench"), [Submission((Step("main", argv),))] * count)


def _ours(place: Path, count: int) -> float:
    with _served(place) as store:
        # Four at once, and long enough that each gets a worker of its own.
        _submit(store, _WORKERS, "sleep", "0.5")
        _await_ends(store, _WORKERS)
        began = time.perf_counter()
        _submit(store, count, "true")
        _await_ends(store, _WORKERS + count)
        return time.perf_counter() - began


def _theirs(command: Sequence[str], count: int) -> float:
    lines = "".join(f"{number}\n" for number in range(count))
    return seconds_of(partial(subprocess.run, command, check=True, input=lines, text=True, env=ENVIRONMENT))


def _parallel(parallel: str, place: Path, count: int) -> float:
    taken = _theirs([parallel, "--will-cite", "-j4", "--joblog", str(place / "joblog"), "true"], count)
    if len((place / "joblog").read_text().splitlines()) != count + 1:
        raise Broken("GNU parallel did not note every job")
    return taken


def runs(place: Path, quick: bool) -> Measured:
    parallel = shutil.which("parallel") or ""
    if not parallel or "GNU parallel" not in subprocess.check_output([parallel, "--version"], text=True):
        raise Missing("GNU parallel is not installed: apt-get install parallel")
    count = 20 if quick else 1000
    taken: dict[str, list[float]] = {OURS: [], "parallel": [], "xargs": []}
    for number, side in enumerate(turns(list(taken), 1 if quick else 5, seconds=90)):
        fresh = place / str(number)
        fresh.mkdir()
        if side == OURS:
            taken[side].append(_ours(fresh, count))
        elif side == "parallel":
            taken[side].append(_parallel(parallel, fresh, count))
        else:
            taken[side].append(_theirs(["xargs", "-n1", "-P4", "true"], count))
    values = {side: longer(taken, side, unit="s", factor=1) for side in ("parallel", "xargs")}
    return Measured(values, {"runs": count})
