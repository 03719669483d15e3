"""What the steps of a run wrote, as it comes. Only reads.

Not promised: anything of a command provider's steps, whose logs are kept by that provider; what a log leaves out.

A log holds the first part of what its step wrote, and its last part once the step has ended: it only ever grows, so
reading on from where one was gives each byte once. What a step wrote before its end is there before its end is told.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from controller.model.errors import ControllerError, NotFound
from controller.store.disk import denied

_PART = 1 << 20


class Log(Struct, frozen=True):
    """One attempt of one step: `token` is the life of the run, `attempt` counts within it."""

    step: str
    token: int
    attempt: int
    path: str
    size: int


def logs_of(state_dir: Path, run: str, steps: Sequence[str]) -> list[Log]:
    """The logs that are there: by step in the order of *steps*, then by life and attempt. Raises NotOurs, NotFound."""
    directory = state_dir / "logs" / run
    try:
        found = list(_found(directory))
    except OSError as error:
        raise _unreadable(error, directory) from error
    found.sort(key=lambda log: (steps.index(log.step) if log.step in steps else len(steps), log.token, log.attempt))
    return found


def _found(directory: Path) -> Iterator[Log]:
    if not directory.is_dir():
        return
    for path in directory.iterdir():
        parts = path.name.rsplit(".", 3)
        if len(parts) == 4 and parts[3] == "log" and parts[1].isdecimal() and parts[2].isdecimal():
            with suppress(FileNotFoundError):
                yield Log(parts[0], int(parts[1]), int(parts[2]), str(path), path.stat().st_size)


def read_from(log: Log, offset: int) -> Iterator[bytes]:
    """What is in *log* from *offset* on, in parts; nothing if it is gone. Raises NotOurs, NotFound."""
    try:
        with open(log.path, "rb", buffering=0) as file:
            while part := os.pread(file.fileno(), _PART, offset):
                offset += len(part)
                yield part
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unreadable(error, Path(log.path)) from error


def _unreadable(error: OSError, path: Path) -> ControllerError:
    return denied(error, path) or NotFound(f"what steps wrote cannot be read: {error.strerror}", where=str(path))


class Following:
    """Reads the logs of one run, those of *step* alone if given, from the first byte that was not read yet."""

    def __init__(self, state_dir: Path, run: str, steps: Sequence[str], *, step: str | None = None) -> None:
        self._state_dir = state_dir
        self._run = run
        self._steps = steps
        self._step = step
        self._read: dict[str, int] = {}

    def read_new(self) -> Iterator[tuple[Log, bytes]]:
        """What was written since the last call, in parts, log by log: first those that were read before, then others
        by life and in the order of the run's steps. A part counts as read once the next one is asked for.

        Raises NotOurs, NotFound.
        """
        found = logs_of(self._state_dir, self._run, self._steps)
        found.sort(key=lambda log: log.token)
        known = {log.path: log for log in found if self._step in (None, log.step)}
        old = [path for path in self._read if path in known]
        for path in (*old, *(path for path in known if path not in self._read)):
            log = known[path]
            offset = self._read.setdefault(path, 0)
            if log.size > offset:
                for part in read_from(log, offset):
                    yield log, part
                    self._read[path] += len(part)
