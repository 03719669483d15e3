"""A state directory as everybody may look at it: the document, history, notes and refusals, without the lock.

Not promised: that anything of it is durable, or will be there the next moment.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from controller.clock import Clock
from controller.model.errors import DocumentFault, DocumentMissing, Refusal
from controller.model.process import ProcessIdentity
from controller.model.records import Event
from controller.store import checkpoint, disk, refusals
from controller.store.history import History
from controller.store.locks import SlotLocks, unusable
from controller.store.protocol import Leftover, SlotHold, SlotNote, Snapshot
from controller.store.reading import Reader, Reading

DOCUMENT: Final = "controller.json"
LOCK: Final = "controller.lock"

SIGNS: Final = {"history.jsonl", "workers", "slots", "logs"}
"""What lies beside a document and nowhere else; journals, history and backups do too, by how they are called."""
SIGN_PREFIXES: Final = ("journal", "backup", "history")


class StateDirectory:
    """What `file.FileStore` is, but for its holds."""

    def __init__(self, directory: Path, *, clock: Clock, whoami: ProcessIdentity, command: str) -> None:
        self.directory = directory
        self.clock = clock
        self.whoami = whoami
        self.command = command
        self.path = directory / DOCUMENT
        self.past = History(directory)
        self.latest: Reading | None = None
        self._reader = Reader(directory, self.path, self.past)
        self._slots = SlotLocks(directory, clock=clock, whoami=whoami, command=command)

    @property
    def where(self) -> str:
        return str(self.directory)

    def read(self) -> Snapshot:
        reading = self.current()
        known = reading.ahead
        if known is None:
            known = reading.revision
            if reading.legacy:
                end = self.past.end()
                known = None if end is None else end.revision
        return Snapshot(
            reading.document,
            reading.edited,
            reading.legacy,
            known,
            reading.digest,
            len(reading.torn),
            reading.fork,
        )

    def current(
        self,
        *,
        follow: bool = True,
        now_ns: Callable[[], int] | None = None,
        writable: bool = False,
        hasty: bool = False,
    ) -> Reading:
        """What stands there now; only what is new is read. *now_ns*: a clock that is better than ours. *hasty*: a
        document that was edited counts as corrupt, since going through one takes long.

        Raises DocumentFault.
        """
        try:
            reading = self._reader.read(
                self.latest, now_ns=now_ns or self._now_ns, follow=follow, writable=writable, hasty=hasty
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            raise missing(self.directory) from error
        self.latest = reading
        return reading

    def _now_ns(self) -> int:
        return self.clock.now_ms() * 1_000_000

    def usable(self, *, founding: bool) -> tuple[int, int]:
        """Everything that can be refused before a lock file is made. Returns what the directory is."""
        try:
            status = os.stat(self.directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise missing(self.directory) from error
        except OSError as error:
            raise disk.denied(error, self.directory) or unusable(self.directory, error) from error
        disk.refuse_foreign_root(self.directory, status.st_uid)
        try:
            document = os.lstat(self.path)
        except FileNotFoundError as error:
            if not founding:
                raise missing(self.directory) from error
        except OSError as error:
            raise disk.denied(error, self.path) or unusable(self.path, error) from error
        else:
            if stat.S_ISLNK(document.st_mode):
                # Following it would put temporary file and rename in a directory that this lock does not guard.
                raise Refusal(
                    f"{self.path} is a symbolic link; a fold would replace the link, not the file",
                    where=str(self.path),
                    next="put the file itself there, or name its own directory with --state-dir",
                )
        return status.st_dev, status.st_ino

    def hold_slot(self, slot: int) -> AbstractContextManager[SlotHold]:
        self.usable(founding=False)
        return self._slots.hold(slot)

    def slot_note(self, slot: int) -> SlotNote:
        return self._slots.note(slot)

    def history(self, subject: str | None = None) -> tuple[Event, ...]:
        reading = self.current()
        if not reading.legacy:
            return self.past.events(subject)
        from controller.store.migrations import lacking

        known = self.past.events()
        events = (*known, *lacking(reading.document, known))
        return tuple(event for event in events if subject in (None, event.subject))

    def history_fault(self) -> str | None:
        reading = self.current()
        try:
            self.past.verify()
        except DocumentFault as error:
            return f"{error.what}; {error.where}"
        return None if reading.fork is None else f"the last line of its journal {reading.fork}"

    def leftovers(self) -> tuple[Leftover, ...]:
        reading = self.current()
        return checkpoint.leftovers(self.directory, reading)

    def note_refusal(self, command: str, code: str, what: str, subject: str) -> None:
        refusals.note(self.directory, self.clock.now_ms(), command, code, what, subject)

    def refusals(self, limit: int) -> tuple[dict[str, object], ...]:
        return refusals.last(self.directory, limit)


def missing(directory: Path) -> DocumentMissing:
    """Missing is not new: only where nothing is left of an earlier life is a new document what comes next."""
    there = directory.is_dir()
    try:
        names = set(os.listdir(directory)) if there else set()
    except OSError:
        names = {""}
    if names & SIGNS or any(name.startswith(SIGN_PREFIXES) for name in names):
        todo = f"put {DOCUMENT} back: what lies beside it belongs to it; or look at --state-dir"
    elif names:
        todo = f"look at --state-dir, put {DOCUMENT} back, or `controller init` a new fleet"
    else:
        todo = "`controller init` makes a new fleet there; if there should be one, look at --state-dir"
    return DocumentMissing(
        f"there is no document: {directory / DOCUMENT if there else directory} does not exist",
        where=str(directory),
        next=todo,
    )
