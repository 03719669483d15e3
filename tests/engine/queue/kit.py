"""One host with a queue on it: its disk, its clocks and boots, and the processes that come and go.

Every `Host.process` is a process of its own identity over the same disk. What a refusal must leave alone is `evidence`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import orjson
from msgspec import UNSET, Raw, json
from msgspec.structs import replace

from controller.clock import FakeClock
from controller.engine.queue import Context, submit
from controller.engine.submission import Submission
from controller.model.edit import Draft
from controller.model.errors import Refusal
from controller.model.policy import Backoff, Policy, QueuePolicy
from controller.model.process import ProcessIdentity
from controller.model.records import Document, Event, Queue, Run, Step, Tombstone, new_document
from controller.store import codec
from controller.store.create import initialise
from controller.store.file import FileStore
from controller.store.memory import MemoryDisk, MemoryStore
from controller.store.protocol import Store

__all__ = [
    "AFTER",
    "BEFORE",
    "UNSET",
    "Disk",
    "Files",
    "Host",
    "Killed",
    "Memory",
    "Refusal",
    "claimed_from",
    "payload",
    "policy",
    "replace",
    "restore",
    "rewrite",
    "steady",
    "step",
]

LINEAGE = "33333333-3333-4333-8333-333333333333"
NOW = 1_700_000_000_000
INIT = ProcessIdentity(1, 1, "boot-0", "pid:[1]")
BEFORE = ("write",)
"""Points of a commit at which a process that dies has changed nothing."""
AFTER = ("written",)
"""Points at which it has: only its answer is lost."""


class Killed(BaseException):
    """The process is no more. No handler of ordinary errors may see it."""


class Clocks(FakeClock):
    """A wall clock and a monotonic one. A reboot starts the monotonic one anew."""

    def reboot(self) -> None:
        self._monotonic = 7.0


class Disk(Protocol):
    """Where the document is, whichever store is over it."""

    @property
    def points(self) -> tuple[str, ...]:
        """Where `killing` can strike."""

    def store(self, clock: Clocks, whoami: ProcessIdentity) -> Store: ...

    def evidence(self) -> tuple[bytes, bytes]:
        """Document and history as somebody finds them who knows nothing yet, in bytes."""

    def twin(self) -> Disk:
        """Another disk with the same on it."""

    def killing(self, point: str) -> Any:
        """A context in which whoever reaches *point* is `Killed` there."""


class Memory:
    """A disk of one document in memory."""

    points = (*BEFORE, *AFTER)

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        event = Event(1, 1, NOW, "init", "fleet", "initialised", key=LINEAGE)
        self.disk = disk or MemoryDisk(replace(new_document("f", LINEAGE), revision=1, events=(event,)))

    def store(self, clock: Clocks, whoami: ProcessIdentity) -> Store:
        return MemoryStore(self.disk, clock=clock, whoami=whoami, command="test")

    def evidence(self) -> tuple[bytes, bytes]:
        return _evidence(self.store(Clocks(NOW), INIT))

    def twin(self) -> Disk:
        copy = MemoryDisk(self.disk.document)
        copy.events = list(self.disk.events)
        return Memory(copy)

    @contextmanager
    def killing(self, point: str) -> Iterator[None]:
        def fault(reached: str) -> None:
            if reached == point:
                raise Killed(point)

        self.disk.fault = fault
        try:
            yield
        finally:
            self.disk.fault = lambda _point: None


class Files:
    """A state directory. *home* is where twins of it may be made."""

    points = (*BEFORE, *AFTER)

    def __init__(self, home: Path, directory: Path | None = None) -> None:
        self.home = home
        self.directory = directory or home / "state"
        if directory is None:
            initialise(
                self.directory,
                fleet="f",
                lineage=LINEAGE,
                config_text="",
                clock=Clocks(NOW),
                whoami=INIT,
                command="init",
            )

    def store(self, clock: Clocks, whoami: ProcessIdentity) -> Store:
        return FileStore(self.directory, clock=clock, whoami=whoami, command="test")

    def evidence(self) -> tuple[bytes, bytes]:
        return _evidence(self.store(Clocks(NOW), INIT))

    def twin(self) -> Disk:
        copy = Path(tempfile.mkdtemp(dir=self.home)) / "state"
        shutil.copytree(self.directory, copy)
        return Files(self.home, copy)

    @contextmanager
    def killing(self, point: str) -> Iterator[None]:
        pwrite, fdatasync = os.pwrite, os.fdatasync

        def write(fd: int, data: bytes, offset: int) -> int:
            if point == "write" and _is_journal(fd):
                raise Killed(point)
            return pwrite(fd, data, offset)

        def sync(fd: int) -> None:
            if point == "written" and _is_journal(fd):
                raise Killed(point)
            fdatasync(fd)

        with mock.patch.object(os, "pwrite", write), mock.patch.object(os, "fdatasync", sync):
            yield


def _is_journal(fd: int) -> bool:
    return Path(os.readlink(f"/proc/self/fd/{fd}")).name.startswith("journal-")


def _evidence(store: Store) -> tuple[bytes, bytes]:
    return codec.encode(store.read().document), json.encode(store.history())


def policy(**queues: QueuePolicy) -> Policy:
    """Queue *a* keeps everything; what is in none of *queues* is treated as `steady` says."""
    return Policy(by_queue={"default": steady(), "a": steady(), **queues})


def steady(**fields: Any) -> QueuePolicy:
    """A policy without chance: a failed life waits exactly 1 s, then 2 s, up to 8 s."""
    return QueuePolicy(**{"backoff": Backoff(1_000, 8_000, jitter=0.0), **fields})


class Host:
    """This host: one disk, its clocks, its present boot."""

    def __init__(self, disk: Disk | None = None, chosen: Policy | None = None) -> None:
        self.disk: Disk = Memory() if disk is None else disk
        self.policy = policy() if chosen is None else chosen
        self.clock = Clocks(NOW)
        self.boot = 1
        self._started = 100

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    def process(self, disk: Disk | None = None) -> Context:
        """What a newly started process works with."""
        self._started += 1
        whoami = ProcessIdentity(self._started, self._started, self.boot_id, "pid:[1]")
        store = (disk or self.disk).store(self.clock, whoami)
        return Context(store, self.clock, "test", lock_timeout=5.0, policy=self.policy, boot_id=self.boot_id)

    def reboot(self) -> None:
        self.boot += 1
        self.clock.reboot()

    @property
    def mono_ms(self) -> int:
        return int(self.clock.monotonic() * 1000)

    @property
    def document(self) -> Document:
        return self.process().store.read().document

    def run(self, run_id: str) -> Run:
        return self.document.runs[run_id]

    def stone(self, run_id: str) -> Tombstone:
        return self.document.finished[run_id]

    def submit(self, *ids: str, queue: str = "a", **fields: Any) -> None:
        """Queue runs that have nothing but a payload, in this order."""
        made = [Submission(**{"steps": (), "payload": Raw(b"1"), **fields}, id=i, queue=queue) for i in ids]
        submit(self.process(), made)


def rewrite(host: Host, run: Run) -> None:
    """Put a record into the document that no verb would have made."""
    _written(host, lambda draft: draft.runs.put(run.id, run))


def claimed_from(host: Host, claims: Mapping[str, int]) -> None:
    """Let each queue have been claimed from so often."""
    for queue, count in claims.items():
        _written(host, lambda draft, queue=queue, count=count: draft.queues.put(queue, Queue(claims=count)))


def _written(host: Host, change: Callable[..., None]) -> None:
    with host.process().store.hold(5.0) as hold:
        loaded = hold.load()
        draft = Draft(loaded.document, now=host.clock.now_ms(), command="test")
        change(draft)
        draft.event("fleet", "rewritten")
        hold.commit(loaded, draft.edit())


def restore(host: Host) -> None:
    """Let the document go on under a new epoch, as after an old copy of it was put back and acknowledged."""
    assert isinstance(host.disk, Memory)
    disk = host.disk.disk
    assert disk.document is not None
    disk.document = replace(disk.document, epoch=f"{disk.document.epoch}e")


def step(name: str, *needs: str, attempts: int = 1) -> Step:
    return Step(name, ("true",), needs=needs, max_attempts=attempts)


def payload(value: object) -> Raw:
    return Raw(orjson.dumps(value))
