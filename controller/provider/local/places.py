"""Where the local provider keeps things under the state directory, and the file that says who a worker is.

workers/SLOT-ASSIGNMENT/    worker.json lock memory.jsonl socket pid errors
logs/RUN/STEP.TOKEN.ATTEMPT.log    outlives the worker
scratch/RUN/                working directory of a run's steps; empty ones are removed when a step ends, others are kept
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from controller.model.records import Resource, is_id

LOCK: Final = "lock"
MEMORY: Final = "memory.jsonl"
SOCKET: Final = "socket"
PID: Final = "pid"
ERRORS: Final = "errors"
_WORKER: Final = "worker.json"


class WorkerFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Who a worker is. `key` is the create that made this generation; `environment` is what its steps start from.

    `immutable_id` is the directory's own, and the same in every generation.
    """

    fleet: str
    lineage: str
    slot: int
    assignment: str
    generation: int
    immutable_id: str
    key: str
    environment: Mapping[str, str]

    @property
    def id(self) -> str:
        return worker_name(self.slot, self.assignment)

    @property
    def directory(self) -> Resource:
        """Its data: the directory that was made for it, whatever else is put at that path later."""
        return Resource(self.id, self.immutable_id)


class Places:
    """Paths under one state directory. Makes nothing."""

    def __init__(self, state_dir: str) -> None:
        self.workers = os.path.join(state_dir, "workers")
        self.logs = os.path.join(state_dir, "logs")
        self.scratches = os.path.join(state_dir, "scratch")

    def worker(self, slot: int, assignment: str) -> str:
        """Raises ValueError for an assignment that is no id: it would name another place."""
        return os.path.join(self.workers, worker_name(slot, assignment))

    def log(self, run: str, step: str, token: int, attempt: int) -> str:
        return os.path.join(self.logs, _checked(run), f"{_checked(step)}.{token}.{attempt}.log")

    def scratch(self, run: str) -> str:
        return os.path.join(self.scratches, _checked(run))


def worker_name(slot: int, assignment: str) -> str:
    return f"{slot}-{_checked(assignment)}"


def is_worker_name(name: str) -> bool:
    slot, _, assignment = name.partition("-")
    return slot.isdecimal() and is_id(assignment)


def read_worker(directory: str) -> WorkerFile:
    """Raises OSError, or msgspec.MsgspecError when the file is not one of ours."""
    with open(os.path.join(directory, _WORKER), "rb") as file:
        return _WORKERS.decode(file.read())


def write_worker(directory: str, worker: WorkerFile) -> None:
    """Put *worker* in place of the old file, durably."""
    fresh = os.path.join(directory, f".{_WORKER}")
    write_file(fresh, msgspec.json.encode(worker))
    os.rename(fresh, os.path.join(directory, _WORKER))
    sync_directory(directory)


def make_worker_directory(directory: str, worker: WorkerFile) -> None:
    """Make a worker's directory whole or not at all: beside its place, then renamed. The caller holds the slot."""
    fresh = _beside(directory, "new")
    _remove(fresh)
    parent = os.path.dirname(directory)
    make_directory(parent)
    os.mkdir(fresh, 0o700)
    os.chmod(fresh, 0o700)
    for name in (LOCK, MEMORY):
        write_file(os.path.join(fresh, name), b"")
    write_worker(fresh, worker)
    os.rename(fresh, directory)
    sync_directory(parent)
    sync_directory(os.path.dirname(parent))


def remove_worker_directory(directory: str) -> None:
    """Remove the directory, whole, and what an interrupted making or removal left beside it."""
    _remove(_beside(directory, "new"))
    old = _beside(directory, "old")
    _remove(old)
    if os.path.lexists(directory):
        os.rename(directory, old)
        sync_directory(os.path.dirname(directory))
        _remove(old)


def _remove(directory: str) -> None:
    """Remove one of our own flat directories, if it is there."""
    if os.path.lexists(directory):
        for name in os.listdir(directory):
            os.unlink(os.path.join(directory, name))
        os.rmdir(directory)


def make_directory(path: str) -> None:
    """Make *path* and its missing parents, mode 0700 whatever the umask; one that stands keeps its mode. Not synced."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_directory(os.path.dirname(path))
        make_directory(path)
        return
    os.chmod(path, 0o700)


def write_file(path: str, content: bytes) -> None:
    """Write a file of our own, mode 0600, durably but for its name."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(directory: str, word: str) -> str:
    parent, name = os.path.split(directory)
    return os.path.join(parent, f".{word}-{name}")


def _checked(name: str) -> str:
    if not is_id(name):
        raise ValueError(f"{name!r} is not an id")
    return name


_WORKERS = msgspec.json.Decoder(WorkerFile)
