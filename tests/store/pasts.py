"""Histories made by hand: journals with commits, folds, merges and what a killed process leaves of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec

from controller.model.records import Event, new_document
from controller.store import journal
from controller.store.codec import Named, line_of
from controller.store.segments import LEGACY, merged_name

DAY = 86_400_000
NOW = 1_700_000_000_000
LINEAGE = "0b5d5a0c-3d4e-4b2a-9c55-000000000000"


class Past:
    """A state directory with nothing in it but a history. Revision *n* is committed at NOW + n unless `at` is set."""

    def __init__(self, directory: Path, *, legacy: int = 0) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.revision = legacy
        self.file = ""
        self.digest = ""
        self.events: list[Event] = []
        self.at: int | None = None
        if legacy:
            self.events = [self.event(revision, 1) for revision in range(1, legacy + 1)]
            data = b"".join(line_of(event) + b"\n" for event in self.events)
            (directory / LEGACY).write_bytes(data)
            self.file, self.digest = LEGACY, hashlib.sha256(data).hexdigest()

    def event(self, revision: int, n: int, subject: str = "fleet", detail: str | None = None) -> Event:
        return Event(
            revision, n, NOW + revision if self.at is None else self.at, "test", subject, "noted", detail=detail
        )

    @property
    def path(self) -> Path:
        return self.directory / self.file

    def opening(self, *, commits: bool = False, number: int = 0) -> str:
        """A journal with nothing but its opening, which no checkpoint names; its name."""
        revision = self.revision + commits
        events = (self.event(revision, 1),) if commits else ()
        document = msgspec.structs.replace(_DOCUMENT, revision=revision)
        after = Named(self.file, self.digest) if self.file else None
        line, _ = journal.opening(document, at=NOW + revision, command="test", events=events, after=after)
        name = journal.name_of(revision, number)
        (self.directory / name).write_bytes(line)
        return name

    def checkpoint(self, name: str) -> None:
        """Make the journal of that name the one that is written to."""
        line = msgspec.json.decode((self.directory / name).read_bytes().partition(b"\n")[0], type=journal.Opening)
        self.file, self.digest, self.revision = name, line.digest, line.revision
        self.events += line.events
        header = {"schema": 2, "fleet": "f", "journal": {"file": name, "digest": line.digest}, "runs": {}}
        (self.directory / "controller.json").write_text(json.dumps(header))

    def fold(self, *, commits: bool = False, number: int = 0) -> str:
        name = self.opening(commits=commits, number=number)
        self.checkpoint(name)
        return name

    def line(self, *subjects: str, detail: str | None = None) -> bytes:
        """The next commit, with an event for each of *subjects*, not written yet."""
        revision = self.revision + 1
        events = [self.event(revision, n, subject, detail) for n, subject in enumerate(subjects or ("fleet",), 1)]
        body = b'{"revision":%d,"at":%d,"command":"test","events":[%b]' % (
            revision,
            events[0].at,
            b",".join(map(line_of, events)),
        )
        line, self._digest = journal.commit_line(body, self.digest)
        self._told = events
        return line

    def commit(self, *subjects: str, detail: str | None = None) -> None:
        line = self.line(*subjects, detail=detail)
        with self.path.open("ab") as file:
            file.write(line)
        self.revision, self.digest = self.revision + 1, self._digest
        self.events += self._told

    def append(self, data: bytes, name: str = "") -> None:
        with (self.directory / (name or self.file)).open("ab") as file:
            file.write(data)

    def merge(self, *names: str) -> str:
        """A merged file of journals; the parts stay, as a kill leaves them."""
        first = journal.parse_name(names[0])
        assert first is not None
        data = b"".join((self.directory / name).read_bytes().rstrip(b"\0") for name in names)
        last = msgspec.json.decode(data.splitlines()[-1])["revision"]
        name = merged_name(first[0], last)
        (self.directory / name).write_bytes(data)
        return name

    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir() if path.name != "controller.json")


def folded(directory: Path, folds: int, commits: int = 3, *, legacy: int = 0) -> Past:
    """A history of so many journals with so many commits each; the last one is written to."""
    past = Past(directory, legacy=legacy)
    for number in range(folds):
        past.fold(commits=number == 0)
        for _ in range(commits):
            past.commit(f"run:r-{past.revision}", "slot:1")
    return past


_DOCUMENT = new_document("f", LINEAGE)
