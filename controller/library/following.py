"""What the steps of a run wrote, as it comes. Only reads.

Not promised: anything of a command provider's steps, whose logs are kept by that provider; what a log leaves out.

A log holds the first part of what its step wrote, and its last part once the step has ended: it only ever grows, so
reading on from where one was gives each byte once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

_PART = 1 << 20


class Log(Struct, frozen=True):
    """One attempt of one step: `token` is the life of the run, `attempt` counts within it."""

    step: str
    token: int
    attempt: int
    path: str
    size: int


def logs_of(state_dir: Path, run: str, steps: Sequence[str]) -> list[Log]:
    """The logs that are there: by step in the order of *steps*, then by life and attempt."""
    found = list(_found(state_dir / "logs" / run))
    found.sort(key=lambda log: (steps.index(log.step) if log.step in steps else len(steps), log.token, log.attempt))
    return found


def _found(directory: Path) -> Iterator[Log]:
    if not directory.is_dir():
        return
    for path in directory.iterdir():
        parts = path.name.rsplit(".", 3)
        if len(parts) == 4 and parts[3] == "log" and parts[1].isdecimal() and parts[2].isdecimal():
            yield Log(parts[0], int(parts[1]), int(parts[2]), str(path), path.stat().st_size)


class Following:
    """Reads the logs of one run, those of *step* alone if given, from the first byte that was not read yet."""

    def __init__(self, state_dir: Path, run: str, steps: Sequence[str], *, step: str | None = None) -> None:
        self._state_dir = state_dir
        self._run = run
        self._steps = steps
        self._step = step
        self._read: dict[str, int] = {}

    def read_new(self) -> Iterator[tuple[Log, bytes]]:
        """What was written since the last call, log by log in the order in which they began, in parts."""
        found = logs_of(self._state_dir, self._run, self._steps)
        found.sort(key=lambda log: log.token)
        known = {log.path: log for log in found if self._step in (None, log.step)}
        for path in (
            *(path for path in self._read if path in known),
            *(path for path in known if path not in self._read),
        ):
            yield from self._rest_of(known[path])

    def _rest_of(self, log: Log) -> Iterator[tuple[Log, bytes]]:
        offset = self._read.setdefault(log.path, 0)
        if log.size <= offset:
            return
        with open(log.path, "rb", buffering=0) as file:
            while part := os.pread(file.fileno(), _PART, offset):
                offset += len(part)
                self._read[log.path] = offset
                yield log, part
