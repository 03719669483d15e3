"""A process that commits on demand: `python -m benchmarks.committing DIR`. Each line on stdin is one demand.

Not promised: anything to whoever is not `benchmarks.commits`.

    {"commits": 40}  or  {"seconds": 2.0}      the answer, on one line: the seconds of each commit, waits included
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

from benchmarks.fleets import change, module, opened, touch
from benchmarks.measuring import Broken, seconds_of
from controller.store.file import FileStore

PATIENCE = 60.0


def _commit(store: FileStore, commits: int | None = None, seconds: float | None = None) -> list[float]:
    end = None if seconds is None else time.perf_counter() + seconds
    taken: list[float] = []
    while len(taken) != commits and (end is None or time.perf_counter() < end):
        taken.append(seconds_of(lambda: change(store, touch, PATIENCE)))
    return taken


def main(directory: str) -> None:
    store = opened(Path(directory))
    change(store, touch, PATIENCE)
    _say("ready")
    for line in sys.stdin:
        _say(json.dumps(_commit(store, **json.loads(line))))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Committer:
    """Such a process. Several may be asked before the first is listened to."""

    def __init__(self, process: Popen[str]) -> None:
        self._process = process

    def ask(self, **demand: float) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(f"{json.dumps(demand)}\n")
            self._process.stdin.flush()

    def answer(self) -> list[float]:
        """The seconds of each commit."""
        line = self._line()
        if not line:
            raise Broken("a process that was to commit has ended")
        taken: list[float] = json.loads(line)
        return taken

    def await_start(self) -> None:
        if self._line() != "ready\n":
            raise Broken("a process that was to commit did not start")

    def _line(self) -> str:
        return "" if self._process.stdout is None else self._process.stdout.readline()

    def end(self) -> None:
        with self._process:
            self._process.kill()


@contextmanager
def committers(*directories: Path) -> Iterator[list[Committer]]:
    """One for each of *directories*, ready; they are ended with the block."""
    members: list[Committer] = []
    try:
        members.extend(Committer(module("committing", str(directory))) for directory in directories)
        for member in members:
            member.await_start()
        yield members
    finally:
        for member in members:
            member.end()


if __name__ == "__main__":
    main(sys.argv[1])
