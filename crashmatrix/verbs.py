"""The commands of the matrix, each with what it is tried on. A verb is one line of the table at the end.

Not promised: anything about verbs that are not in it.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from controller.store.tidying import MOST_LOOSE
from crashmatrix import tracing
from crashmatrix.ground import Ground
from crashmatrix.tracing import Point
from tests.behaviour.faults import make_legacy, make_whole

RUN: Final = "subject"
"""The run that every command here is about."""
_NEVER_COMPLETE: Final = {"reply": {"complete": False}}


class Verb(NamedTuple):
    """One command. *prepare* makes what it is tried on; *words* are its own, given the place.

    *already*: the code of the error that says that it was done before; "": saying it again is no error. *steady*: it
    makes the same commits each time; else *promises* are the events that its answer promises. *finishes*: what it
    leaves is brought to its end by reconciling.
    """

    name: str
    prepare: Callable[[Ground], None]
    words: Callable[[Ground], tuple[str, ...]]
    already: str = ""
    steady: bool = True
    promises: frozenset[str] = frozenset()
    finishes: bool = False


def _plain(ground: Ground) -> None:
    """A fleet that knows a run already: what was acknowledged before must stay."""
    ground.found()
    ground.run("submit", "--id", "kept", "--queue", "kept", "--payload", "1", check=True)


def _with_run(*options: str) -> Callable[[Ground], None]:
    def prepare(ground: Ground) -> None:
        _plain(ground)
        ground.run("submit", "--id", RUN, "--attempts", "3", *options, "--payload", "1", check=True)

    return prepare


def _claimed(lease: str) -> Callable[[Ground], None]:
    def prepare(ground: Ground) -> None:
        _with_run()(ground)
        ground.run("queue", "claim", "--owner", "consumer", "--lease", lease, check=True)

    return prepare


def _fleet_run(ground: Ground) -> None:
    _plain(ground)
    ground.program.submit(RUN)


def _parked(ground: Ground) -> None:
    """A create that the provider has done, and died of: its answer is unknown."""
    _fleet_run(ground)
    ground.program.always("create", {"die": True})
    ground.run("reconcile", "--apply")
    ground.program.honest("create")


def _running(ground: Ground) -> None:
    """A run that a worker holds: its step goes on until it is cancelled."""
    _fleet_run(ground)
    ground.program.next("inventory", {}, {}, *[_NEVER_COMPLETE] * 10)
    ground.run("reconcile", "--apply")
    ground.program.honest("inventory")
    (worker,) = ground.program.workers()
    for step in worker["steps"]:
        step |= {"state": "running", "exit_code": None}
    (ground.program.home / "workers" / f"{worker['slot']}.json").write_text(json.dumps(worker))


def _legacy(ground: Ground) -> None:
    _plain(ground)
    make_legacy(ground)


def _whole(ground: Ground) -> None:
    """As a program from before the journal has left it."""
    _plain(ground)
    make_whole(ground)


def _backed_up(ground: Ground) -> None:
    """A copy of the document from before the run."""
    _plain(ground)
    ground.run("state", "backup", str(_backup(ground)), check=True)
    ground.run("submit", "--id", RUN, "--payload", "1", check=True)


def _backup(ground: Ground) -> Path:
    return ground.home / "backup.json"


def _restore(ground: Ground) -> tuple[str, ...]:
    return ("state", "restore", str(_backup(ground)), "--acknowledge", "--reason", "the disk was lost")


def _exported(ground: Ground) -> None:
    """All that a fleet knows in one file, and no state directory any more."""
    _with_run()(ground)
    ground.run("state", "export", str(_export(ground)), check=True)
    shutil.rmtree(ground.state)


def _export(ground: Ground) -> Path:
    return ground.home / "export.jsonl"


def _import(ground: Ground) -> tuple[str, ...]:
    return ("state", "import", str(_export(ground)))


def _tailed(ground: Ground) -> None:
    """A command was killed right after its commit: the document is behind its journal."""
    _plain(ground)
    _killed(ground, after=lambda point: point.call == "fdatasync" and "/journal-" in point.what)


def _stale(ground: Ground) -> None:
    """A command was killed in its fold: a journal that nothing names and a temporary file are left."""
    _plain(ground)
    _killed(ground, after=lambda point: point.call == "fsync" and point.what.endswith("/.controller.json.tmp"))


def _killed(ground: Ground, *, after: Callable[[Point], bool]) -> None:
    """Kill a submit at the first call behind one that *after* is true of."""
    words = ("submit", "--id", "killed", "--queue", "kept", "--payload", "1")
    log = ground.home.with_suffix(".trace")
    twin = ground.copy(ground.home.with_suffix(".twin"))
    twin.faulted(tracing.tracing(log), *words)
    points = tracing.points(tracing.read(log), twin.state)
    shutil.rmtree(twin.home)
    numbers = [number for number, point in enumerate(points, start=1) if after(point)]
    if not numbers or numbers[0] == len(points):
        raise AssertionError(f"no call comes after such a one: {[(point.call, point.what) for point in points]}")
    ground.faulted(tracing.injecting(log, points[numbers[0]], "KILL", ground.home, alone=True), *words)


def _torn(ground: Ground) -> None:
    """A part of a line stands behind the last commit, as a full disk or a power cut leaves it."""
    _plain(ground)
    named = json.loads((ground.state / "controller.json").read_bytes())["journal"]["file"]
    with (ground.state / named).open("ab") as file:
        file.write(b'{"revision":3,"at":1')


def _scattered(ground: Ground) -> None:
    """As many small journals as are left lying about: the next fold merges them."""
    _plain(ground)
    number = 0
    while len(list(ground.state.glob("journal-*.jsonl"))) <= MOST_LOOSE:
        number += 1
        ground.run("submit", "--id", f"kept-{number}", "--queue", "kept", "--payload", "1", check=True)


def _bare(ground: Ground) -> None:
    """A program, and no document yet."""
    ground.found()
    shutil.rmtree(ground.state)


def _command(ground: Ground) -> str:
    return shlex.join([sys.executable, "-S", str(ground.home / "provider.py"), str(ground.home / "provider")])


def _init(ground: Ground) -> tuple[str, ...]:
    return ("init", "--slots", "3", "--provider-command", _command(ground))


def _words(*words: str) -> Callable[[Ground], tuple[str, ...]]:
    return lambda ground: words  # noqa: ARG005 - these are the same in every place


_SUBMIT: Final = _words("submit", "--id", RUN, "--payload", "1")
_DONE: Final = "transition_refused"

VERBS: Final = (
    Verb("init", _bare, _init, already="already_there"),
    Verb("submit", _plain, _SUBMIT),
    Verb("reconcile", _fleet_run, _words("reconcile", "--apply"), steady=False, finishes=True),
    Verb("reconcile-parked", _parked, _words("reconcile", "--apply"), steady=False, finishes=True),
    Verb("replay-pending", _parked, _words("replay-pending"), steady=False, finishes=True),
    Verb("cancel", _with_run(), _words("cancel", RUN), already=_DONE),
    Verb(
        "cancel-running",
        _running,
        _words("cancel", RUN),
        already=_DONE,
        steady=False,
        promises=frozenset({"cancel_requested"}),
        finishes=True,
    ),
    Verb("queue-claim", _with_run(), _words("queue", "claim", "--owner", "consumer", "--lease", "1d")),
    Verb("queue-complete", _claimed("1d"), _words("queue", "complete", RUN, "--token", "1"), already=_DONE),
    Verb(
        "queue-retry",
        _claimed("1d"),
        _words("queue", "retry", RUN, "--token", "1", "--error", "wrong", "--delay", "1h"),
        already=_DONE,
    ),
    Verb("queue-reap", _claimed("1ms"), _words("queue", "reap")),
    Verb("state-backup", _with_run(), _words("state", "backup")),
    Verb("state-restore", _backed_up, _restore, steady=False, promises=frozenset({"restored"})),
    Verb("state-import", _exported, _import, already="already_there"),
    Verb("fold", _tailed, _SUBMIT),
    Verb("stale", _stale, _SUBMIT),
    Verb("torn", _torn, _SUBMIT),
    Verb("merge", _scattered, _SUBMIT),
    Verb("migrate-1", _legacy, _SUBMIT),
    Verb("migrate-whole", _whole, _SUBMIT),
)
