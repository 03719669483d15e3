"""The journal's bytes: one line per commit, sealed, each naming the line before it. And reading them back.

Not promised: anything about files (`store.file` appends, `store.history` keeps what is past); that a digest protects
against malice.

    {"journal":1,"fleet":"builds","lineage":L,"epoch":"","revision":7,"at":A,"command":"fold",
     "previous_file":"journal-5-0.jsonl","previous":"<digest of its last line>","digest":"<of this line>"}
    {"revision":8,"at":A,"command":"submit","events":[...],"counters":{...},"runs":{"r-1":{...},"r-2":null},
     "previous":"<digest of the line above>","digest":"<SHA-256 of every byte before the comma of this member>"}

The first line of a file opens it: `revision` is that of the checkpoint that names the file, and `events` are there only
if that checkpoint was itself a commit (init, a migration, an accepted edit, a restore). Every other line is a commit;
null means that a record left. A file may end in zeros, space that was taken ahead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from controller.model.edit import MAPS
from controller.model.errors import DocumentCorrupt, DocumentForeign
from controller.model.records import Counters, Document, Event, Trouble
from controller.store.codec import Named, line_of
from controller.store.digests import sha256

FORMAT: Final = 1
PREFIX: Final = "journal-"
_NAME = re.compile(r"journal-(\d{1,18})-(\d{1,9})\.jsonl")
_SEAL: Final = b',"digest":"%b"}'
_SEAL_SIZE: Final = len(_SEAL % b"") + 64


class Opening(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The first line of a journal. `previous_file` "" : there is no history before it."""

    journal: int
    fleet: str
    lineage: str
    epoch: str
    revision: int
    at: int
    command: str
    events: tuple[Event, ...] = ()
    previous_file: str = ""
    previous: str = ""
    digest: str = ""


class Commit(Struct, frozen=True, forbid_unknown_fields=True):
    """One commit as its line has it, with the sections that it changed. Records stay as they came until somebody
    touches them.
    """

    revision: int
    at: int
    command: str
    events: Raw
    previous: str
    digest: str
    counters: Counters | None = None
    draining: bool | None = None
    troubles: tuple[Trouble, ...] = ()
    runs: Mapping[str, Raw] | UnsetType = UNSET
    workers: Mapping[int, Raw] | UnsetType = UNSET
    pending_actions: Mapping[int, Raw] | UnsetType = UNSET
    slots: Mapping[int, Raw] | UnsetType = UNSET
    queues: Mapping[str, Raw] | UnsetType = UNSET
    providers: Mapping[str, Raw] | UnsetType = UNSET
    finished: Mapping[str, Raw] | UnsetType = UNSET
    disowned: Mapping[str, Raw] | UnsetType = UNSET

    def sections(self) -> Iterator[tuple[str, Mapping[Any, Raw]]]:
        """Each that it changed, by its name: what became of the records, null if they left."""
        for name in MAPS:
            changes = getattr(self, name)
            if changes is not UNSET:
                yield name, changes


class Placed(Struct, frozen=True):
    """A line, where it begins and where it ends in its file (the line feed included)."""

    line: Opening | Commit
    begin: int
    end: int


class Scanned(Struct, frozen=True):
    """What bytes of a journal hold: its good lines, and what comes behind them.

    `end` is where the last good line ends, `digest` its digest, `revision` its revision. `torn`: bytes behind it that
    are no line of it: not committed. `fork`: they are a whole, sealed line, and why it does not follow; None: they are
    not.
    """

    lines: tuple[Placed, ...]
    end: int
    digest: str
    revision: int
    torn: bytes = b""
    fork: str | None = None


_OPENING = msgspec.json.Decoder(Opening)
_COMMIT = msgspec.json.Decoder(Commit)
_EVENTS = msgspec.json.Decoder(tuple[Event, ...])


def name_of(revision: int, number: int) -> str:
    return f"{PREFIX}{revision}-{number}.jsonl"


def parse_name(name: str) -> tuple[int, int] | None:
    """The revision that a journal of that name opens at, and its number among those; None: no journal's name."""
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def sealed(content: bytes) -> tuple[bytes, str]:
    """The line of *content*, which is an object without its last brace; and its digest."""
    import hashlib

    digest = hashlib.sha256(content).hexdigest()
    return content + _SEAL % digest.encode() + b"\n", digest


def opening(
    document: Document, *, at: int, command: str, events: tuple[Event, ...], after: Named | None
) -> tuple[bytes, str]:
    """The first line of the journal that a checkpoint of *document* names, and its digest.

    *events* are those of the checkpoint, if it is itself a commit. *after* is the file that the history before it ends
    in, with the digest of that file's last line.
    """
    line = Opening(
        FORMAT,
        document.fleet,
        document.lineage,
        document.epoch,
        document.revision,
        at,
        command,
        events,
        "" if after is None else after.file,
        "" if after is None else after.digest,
    )
    return sealed(line_of(line)[:-1])


def commit_line(body: bytes, previous: str) -> tuple[bytes, str]:
    """The line of a commit whose members are *body* (see `store.edits`), and its digest."""
    return sealed(b'%b,"previous":"%b"' % (body, previous.encode()))


def events_of(placed: Placed, where: str) -> tuple[Event, ...]:
    """The events of one line of the file *where*. Raises DocumentCorrupt."""
    line = placed.line
    if isinstance(line, Opening):
        return line.events
    try:
        return _EVENTS.decode(line.events)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise corrupt(f"the line at offset {placed.begin} has no events of ours: {error}", where) from error


def scan(data: bytes, where: str, *, offset: int = 0, previous: str | None = None, revision: int = 0) -> Scanned:
    """The lines in *data*, which stands at *offset* of the file *where*.

    *previous* and *revision* are of the line before them; None: *data* begins with an opening. Raises DocumentCorrupt
    (with file and offset: a line that is whole and not one of ours, or one that does not follow while others come
    behind it) and DocumentForeign (a journal of a later format).
    """
    zeros = data.find(b"\0")
    written = data if zeros < 0 else data[:zeros]
    lines: list[Placed] = []
    begin, digested = 0, sha256(len(written))
    while (newline := written.find(b"\n", begin)) >= 0:
        line = _line(written[begin:newline], digested, where, offset + begin, first=previous is None)
        why = _strays(line, previous, revision)
        if why is not None:
            if newline + 1 < len(written):
                raise corrupt(f"the line at offset {offset + begin} {why}, and others come behind it", where)
            return Scanned(tuple(lines), offset + begin, previous or "", revision, unpadded(data[begin:]), why)
        lines.append(Placed(line, offset + begin, offset + newline + 1))
        begin, previous, revision = newline + 1, line.digest, line.revision
    return Scanned(tuple(lines), offset + begin, previous or "", revision, unpadded(data[begin:]))


def unpadded(data: bytes) -> bytes:
    """*data* without the zeros at its end. `bytes.rstrip` needs half a second for 100 MB of them."""
    zeros = data.find(b"\0")
    if zeros < 0:
        return data
    return data[:zeros] if data[zeros:] == bytes(len(data) - zeros) else data.rstrip(b"\0")


def is_blank(path: Path) -> bool:
    """Whether a journal holds nothing but its opening, or not even that whole: nothing was ever committed to it."""
    try:
        _, newline, behind = path.read_bytes().partition(b"\n")
    except OSError:
        return False
    return not newline or not unpadded(behind)


def corrupt(what: str, where: str) -> DocumentCorrupt:
    return DocumentCorrupt(
        f"the journal cannot be read: {what}",
        where=where,
        next="it was left as it is; put a good copy of it back, or `controller state restore` a backup",
    )


def _line(data: bytes, digested: Callable[[bytes], Any], where: str, offset: int, *, first: bool) -> Opening | Commit:
    if data[-_SEAL_SIZE:] != _SEAL % digested(data[:-_SEAL_SIZE]).hexdigest().encode():
        raise corrupt(f"the line at offset {offset} is not as it was written: its digest does not match", where)
    try:
        if not first:
            return _COMMIT.decode(data)
        found = msgspec.json.decode(data, type=dict[str, Any]).get("journal")
        if isinstance(found, int) and found > FORMAT:
            raise DocumentForeign(
                f"the journal is of format {found}; this program reads format {FORMAT}",
                where=where,
                next="use the newer controller that wrote it; nothing was changed",
            )
        return _OPENING.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise corrupt(f"the line at offset {offset} is not one of ours: {error}", where) from error


def _strays(line: Opening | Commit, previous: str | None, revision: int) -> str | None:
    """Why *line* does not follow the line of that digest and revision; None: it does."""
    if previous is None or isinstance(line, Opening):
        return None
    if line.previous != previous:
        return "does not follow the line before it"
    if line.revision != revision + 1:
        return f"is of revision {line.revision}, after revision {revision}"
    return None
