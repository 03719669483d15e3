"""The durable memory of a worker: every key it accepted, how each step ended, the highest token of each run.

Not promised: that it shrinks. It is kept until the worker is reset.

One line is one append: a JSON array of records, with a newline at its end. Only the holder of the worker's lock
appends; anybody may read meanwhile. A line without its newline was never finished, so it never happened: readers pass
over it, the next writer cuts it off. A line that was written whole but could not be synced leaves the memory
`broken`: its worker must stop, since nobody can tell what a power cut would leave.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from controller.model.inventory import SeenStep, StepSeen
from controller.model.process import ProcessIdentity
from controller.provider.local.places import MEMORY

_HIGHEST_PID = 1 << 22


class Up(Struct, frozen=True, tag="up", tag_field="record"):
    """A supervisor of this generation answers on the socket: `process`."""

    generation: int
    at: int
    process: ProcessIdentity | None = None


class Accepted(Struct, frozen=True, tag="accepted", tag_field="record"):
    """An execute. `group` leads the process group whose command starts after this line is durable."""

    key: str
    run: str
    step: str
    attempt: int
    token: int
    group: ProcessIdentity
    at: int


class Ended(Struct, frozen=True, tag="ended", tag_field="record"):
    step: SeenStep


class Cleared(Struct, frozen=True, tag="cleared", tag_field="record"):
    """No process is left of the group of the step with this key."""

    key: str


class Fenced(Struct, frozen=True, tag="fenced", tag_field="record"):
    """A cancel came before the execute that it names. That execute, if it still comes, is refused."""

    target: str
    run: str
    token: int


class Settled(Struct, frozen=True, tag="settled", tag_field="record"):
    """The ends of these are folded into the document: looks need not repeat them."""

    keys: tuple[str, ...]


class Dark(Struct, frozen=True, tag="dark", tag_field="record"):
    """This generation was deallocated: no supervisor of it will ever run again."""

    generation: int
    at: int


Entry = Up | Accepted | Ended | Cleared | Fenced | Settled | Dark


class MemoryCorrupt(Exception):
    """These bytes were not written by us."""


class Memory:
    """The memory in *directory*, folded. Call `refresh` before reading it.

    `up` and `dark` are generations; `used` says that the one that is up accepted something since, `process` is the
    supervisor that said last that it is up. `steps` has every key ever accepted, `unsettled` those that looks still
    list, `groups` the process groups that may have members, `tokens` the highest token seen by run, `fenced` executes
    that were cancelled before they came. Keys, tokens and fences are the data's, not a generation's: a new one starts
    with all of them.
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, MEMORY)
        self.broken = False
        self._forget()

    def _forget(self) -> None:
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self.steps: dict[str, SeenStep] = {}
        self.groups: dict[str, ProcessIdentity] = {}
        self.unsettled: dict[str, None] = {}
        self.tokens: dict[str, int] = {}
        self.fenced: set[str] = set()
        self.up: int | None = None
        self.dark: int | None = None
        self.process: ProcessIdentity | None = None
        self.used = False

    def listed(self) -> tuple[SeenStep, ...]:
        """The steps that a look shows."""
        return tuple(self.steps[key] for key in self.unsettled)

    def refresh(self) -> None:
        """Fold what was appended since. Raises OSError or MemoryCorrupt."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            facts = os.fstat(descriptor)
            identity = (facts.st_dev, facts.st_ino)
            if identity != self._identity or facts.st_size < self._offset:
                self._forget()
                self._identity = identity
            fresh = os.pread(descriptor, facts.st_size - self._offset, self._offset)
        finally:
            os.close(descriptor)
        whole = fresh[: fresh.rfind(b"\n") + 1]
        for line in whole.splitlines(keepends=True):
            try:
                entries = _LINES.decode(line)
                for entry in entries:
                    self._fold(entry)
            except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, ValueError) as error:
                where = f"{self._path} at byte {self._offset}"
                self._forget()
                raise MemoryCorrupt(f"{where}: {error}") from error
            self._offset += len(line)

    def append(self, *entries: Entry, sync: bool = True) -> None:
        """Record *entries*, all or none. Only the holder of the worker's lock may. Without *sync* a power cut may
        undo it.

        Raises OSError: nothing is recorded; or, when `broken` is set, it may be.
        """
        if not entries:
            return
        if self.broken:
            raise OSError("the memory of this worker could not be synced before")
        line = msgspec.json.encode(entries) + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size != self._offset:
                os.ftruncate(descriptor, self._offset)
            _write(descriptor, line, self._offset)
            if sync:
                try:
                    os.fdatasync(descriptor)
                except BaseException:
                    self.broken = True
                    raise
        finally:
            os.close(descriptor)
        self._offset += len(line)
        for entry in entries:
            self._fold(entry)

    def _fold(self, entry: Entry) -> None:
        match entry:
            case Accepted():
                if not 1 < entry.group.pid <= _HIGHEST_PID:
                    raise ValueError(f"no step is ever led by pid {entry.group.pid}")
                self.steps[entry.key] = SeenStep(entry.key, StepSeen.RUNNING)
                self.groups[entry.key] = entry.group
                self.unsettled[entry.key] = None
                self.used = True
                self._raise_token(entry.run, entry.token)
            case Ended():
                self.steps[entry.step.idempotency_key] = entry.step
            case Cleared():
                self.groups.pop(entry.key, None)
            case Fenced():
                self.fenced.add(entry.target)
                self._raise_token(entry.run, entry.token)
            case Settled():
                for key in entry.keys:
                    self.unsettled.pop(key, None)
            case Up():
                self.used = self.used and self.up == entry.generation
                self.up = entry.generation
                self.process = entry.process
            case Dark():
                self.dark = entry.generation

    def _raise_token(self, run: str, token: int) -> None:
        self.tokens[run] = max(token, self.tokens.get(run, 0))

    def settles(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Those of *keys* that looks still list and need not: they ended, and that is folded into the document."""
        return tuple(key for key in keys if key in self.unsettled and self.steps[key].state is StepSeen.EXITED)


def _write(descriptor: int, line: bytes, start: int) -> None:
    """Write all of *line* or take back what was written of it."""
    done = 0
    try:
        while done < len(line):
            done += os.write(descriptor, line[done:])
    except BaseException:
        os.ftruncate(descriptor, start)
        raise


_LINES = msgspec.json.Decoder(list[Entry])
