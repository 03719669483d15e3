"""What tests of the local provider share: a provider over a state directory, and the processes it made."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from controller.clock import SystemClock
from controller.model.process import Liveness, ProcessIdentity
from controller.provider.local.client import LocalProvider
from controller.provider.local.lock import try_lock
from controller.provider.local.memory import Accepted, Entry
from controller.provider.local.places import Places
from controller.provider.process import end_group, liveness
from tests.provider.contract import LINEAGE, Asker, until

CLOCK = SystemClock()


def provider(state_dir: Path, *, lineage: str = LINEAGE, deadline: float = 10.0, grace: float = 0.3) -> LocalProvider:
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return LocalProvider(
        state_dir,
        fleet="test",
        lineage=lineage,
        clock=CLOCK,
        environment={"PATH": os.environ["PATH"], "HOME": "/nowhere", "LANG": "C.UTF-8"},
        deadline=deadline,
        patience=min(1.0, deadline),
        grace=grace,
    )


@contextmanager
def workers(state_dir: Path) -> Iterator[Asker]:
    """Someone who asks a provider; whatever lives when he is done is ended by identity."""
    local = provider(state_dir)
    try:
        yield Asker(local, CLOCK)
    finally:
        local.close()
        sweep(state_dir)


@contextmanager
def hasty(state_dir: Path) -> Iterator[LocalProvider]:
    """A provider that gives up soon."""
    local = provider(state_dir, deadline=0.3)
    try:
        yield local
    finally:
        local.close()


def log_of(state_dir: Path, run: str, step: str, token: int, attempt: int) -> Path:
    """Where a worker keeps what that attempt writes."""
    return Path(Places(str(state_dir)).log(run, step, token, attempt))


def sweep(state_dir: Path) -> None:
    """End every process that is recorded under *state_dir*, supervisors first, those that are still starting too."""
    for directory in (state_dir / "workers").glob("[0-9]*-*"):
        until(CLOCK, lambda directory=directory: _is_swept(directory))  # type: ignore[misc] # its default is its type


def _is_swept(directory: Path) -> bool:
    for identity in [*supervisors(directory), *groups(directory)]:
        end_group(identity, CLOCK)
    try:
        lock = try_lock(str(directory))
    except FileNotFoundError:
        return True
    if lock is not None:
        os.close(lock)
    return lock is not None


def supervisors(directory: Path) -> list[ProcessIdentity]:
    with suppress(FileNotFoundError, msgspec.MsgspecError):
        return [msgspec.json.decode((directory / "pid").read_bytes(), type=ProcessIdentity)]
    return []


def groups(directory: Path) -> list[ProcessIdentity]:
    """The leaders of the process groups of every step that was accepted."""
    found = []
    memory = directory / "memory.jsonl"
    for line in memory.read_bytes().splitlines() if memory.exists() else ():
        with suppress(msgspec.MsgspecError):
            found += [
                entry.group for entry in msgspec.json.decode(line, type=list[Entry]) if isinstance(entry, Accepted)
            ]
    return found


def worker_directory(state_dir: Path, name: str = "1-a-1") -> Path:
    return state_dir / "workers" / name


def supervisor(state_dir: Path, name: str = "1-a-1") -> ProcessIdentity:
    (identity,) = supervisors(worker_directory(state_dir, name))
    return identity


def kill(identity: ProcessIdentity) -> None:
    """SIGKILL, and wait until it is gone."""
    assert liveness(identity) is Liveness.ALIVE
    os.kill(identity.pid, signal.SIGKILL)
    assert end_group(identity, CLOCK)


def nobody(identity: ProcessIdentity, deadline: int) -> None:
    """A local provider registers no process."""
    raise AssertionError((identity, deadline))
