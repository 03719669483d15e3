"""Reading what stands there: the checkpoint, and the journal that goes on from it.

Not promised: that what was read is durable, or that it may be built upon: `store.file` judges that inside a hold.

Takes no lock and writes nothing. A reader may meet a fold: the checkpoint it read is replaced, or the journal that this
names is gone. Then it starts over, a few times at most. Nobody ever changes a line that is there, so a journal that
could be opened is consistent up to its last whole line.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

from msgspec import Raw, Struct, structs

from controller.model.mapping import Records
from controller.model.records import MAX_TROUBLES, Document
from controller.store import codec, disk, journal
from controller.store.history import History
from controller.store.journal import Commit, Opening, Placed

_ATTEMPTS: Final = 5
_CHUNK: Final = 1 << 16


class Checkpoint:
    """One reading of `controller.json`. Its descriptor stays open, so its inode number cannot come back as another
    file.

    `settled`: its change time was old enough when it was read that equal identity proves equal content.
    """

    __slots__ = ("data", "decoded", "handle", "identity", "settled")

    def __init__(
        self, handle: disk.Handle, identity: disk.Identity, data: bytes, decoded: codec.Decoded, *, settled: bool
    ) -> None:
        self.handle = handle
        self.identity = identity
        self.data = data
        self.decoded = decoded
        self.settled = settled


class JournalFile:
    """An open journal. `link` is what the kernel says its path is: another word there, and it was moved or removed.

    The file itself is never asked for its times: a commit after that would have to write its inode too.
    """

    __slots__ = ("allocated", "appended", "handle", "link", "name", "path", "writable")

    def __init__(self, handle: disk.Handle, path: Path, name: str, *, writable: bool) -> None:
        self.handle = handle
        self.name = name
        self.path = path
        self.writable = writable
        self.link = self._path()
        self.allocated = 0
        """Where the space ends that is known to be taken."""
        self.appended = 0
        """How many lines this process appended."""

    @property
    def in_place(self) -> bool:
        return self._path() == self.link

    def _path(self) -> str:
        try:
            return os.readlink(f"/proc/self/fd/{self.handle.fd}")
        except OSError:
            return ""


class Reading(Struct, eq=False):
    """What stands there at one moment, unjudged.

    `begin`, `end`, `digest` and `revision` are those of the journal's last good line (of the document, without a
    journal). `torn`: bytes behind it that are no line of it. `fork`: they are a whole line, and why it does not follow.
    `ahead`: a later revision that some other file of the directory knows.
    """

    checkpoint: Checkpoint
    document: Document
    file: JournalFile | None
    begin: int = 0
    end: int = 0
    digest: str = ""
    revision: int = 0
    torn: bytes = b""
    fork: str | None = None
    ahead: int | None = None

    @property
    def edited(self) -> bool:
        return self.checkpoint.decoded.edited

    @property
    def legacy(self) -> bool:
        """From before the journal, or of an older schema still."""
        return self.checkpoint.decoded.journal is None

    @property
    def seal(self) -> bytes:
        """What stands before `end` in the journal."""
        return b'%b"}\n' % self.digest.encode()

    def grown(self, document: Document, *, end: int, digest: str) -> Reading:
        """The same, with one more line."""
        revision = document.revision
        return structs.replace(
            self, document=document, begin=self.end, end=end, digest=digest, revision=revision, torn=b"", fork=None
        )

    def found(self, scanned: journal.Scanned, lines: tuple[Placed, ...], where: str) -> Reading:
        """The same, with *lines* of what was found in the journal."""
        return structs.replace(
            self,
            document=replayed(self.document, lines, where),
            begin=scanned.lines[-1].begin if scanned.lines else self.begin,
            end=scanned.end,
            digest=scanned.digest,
            revision=scanned.revision,
            torn=scanned.torn,
            fork=scanned.fork,
            ahead=self.ahead if self.ahead is not None and self.ahead > scanned.revision else None,
        )


class _Moved(Exception):
    """What was read is not what stands there any more."""


class Reader:
    """Reads one state directory. Pass what was read before: only what is new is read again."""

    def __init__(self, directory: Path, path: Path, past: History) -> None:
        self.directory = directory
        self.path = path
        self.past = past

    def read(
        self,
        known: Reading | None,
        *,
        now_ns: Callable[[], int],
        follow: bool,
        writable: bool = False,
        hasty: bool = False,
    ) -> Reading:
        """What stands there. *now_ns* tells how old a change time is. *writable*: for a holder, who may append.
        *hasty*: for who has no time to go through a document that was edited.

        Raises DocumentFault; FileNotFoundError and NotADirectoryError when there is no document.
        """
        for attempt in range(_ATTEMPTS):
            checkpoint = self._checkpoint(known, now_ns, follow=follow, hasty=hasty)
            last = attempt == _ATTEMPTS - 1
            try:
                reading = self._with_journal(checkpoint, known, writable=writable)
                if known is not None and reading.checkpoint is known.checkpoint:
                    return reading
                reading.ahead = self._ahead(reading)
                if reading.ahead is not None and reading.file is not None:
                    # Commits, and a fold that has not come to its rename, may have come between the two looks.
                    reading = self._tail(reading, checkpoint, writable=writable)
            except (_Moved, FileNotFoundError):
                if last:
                    return self._without(checkpoint)
                known = None
                continue
            if self._stands(checkpoint):
                return reading
            if last:  # whole, if not the latest; and what seems to be ahead of it is what came meanwhile
                reading.ahead = None
                return reading
            known = reading
        raise AssertionError("the last attempt returns or raises")

    def _without(self, checkpoint: Checkpoint) -> Reading:
        """A document whose journal is gone: an old one that came back, or one that lost what was committed since."""
        document, named = checkpoint.decoded.document, checkpoint.decoded.journal
        ahead = self.past.later(document.revision, "")
        if ahead is None:
            name = "" if named is None else named.file
            raise journal.corrupt(f"{self.path} names {name}, which is not there", str(self.directory / name))
        digest = checkpoint.decoded.digest
        return Reading(checkpoint, document, None, digest=digest, revision=document.revision, ahead=ahead)

    def _checkpoint(self, known: Reading | None, now_ns: Callable[[], int], *, follow: bool, hasty: bool) -> Checkpoint:
        old = None if known is None else known.checkpoint
        if old is not None and old.settled and self._stands(old):
            return old
        now = now_ns()  # before the file is looked at: while a large one is read, more of it may come
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
            handle = disk.Handle(os.open(self.path, flags))
            status = os.fstat(handle.fd)
            if not stat.S_ISREG(status.st_mode):
                raise codec.corrupt("it is not a regular file", str(self.path))
            identity = disk.identity(status)
            data = disk.read_all(handle.fd)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise disk.denied(error, self.path) or disk.unreadable(self.path, error) from error
        settled = identity.ctime_ns <= now - disk.SETTLED_NS
        if old is not None and old.identity == identity and old.data == data:
            old.settled = settled
            return old
        if old is not None and old.data == data:
            return Checkpoint(handle, identity, old.data, old.decoded, settled=settled)
        decoded = codec.decode(data, str(self.path), hasty=hasty)
        return Checkpoint(handle, identity, data, decoded, settled=settled)

    def _stands(self, checkpoint: Checkpoint) -> bool:
        try:
            return disk.identity(os.stat(self.path)) == checkpoint.identity
        except OSError:
            return False

    def _with_journal(self, checkpoint: Checkpoint, known: Reading | None, *, writable: bool) -> Reading:
        named = checkpoint.decoded.journal
        if named is None:
            if known is not None and known.checkpoint is checkpoint:
                return known
            document = checkpoint.decoded.document
            return Reading(checkpoint, document, None, digest=checkpoint.decoded.digest, revision=document.revision)
        if known is not None and known.file is not None and known.file.in_place:
            if known.checkpoint.decoded is checkpoint.decoded:
                return self._tail(known, checkpoint, writable=writable)
            if not checkpoint.decoded.edited and not known.edited:
                folded = self._folded(known, checkpoint, named, writable=writable)
                if folded is not None:
                    return folded
        return self._whole(checkpoint, named, writable=writable)

    def _tail(self, known: Reading, checkpoint: Checkpoint, *, writable: bool = False) -> Reading:
        """What others appended to a journal that is open here."""
        file = known.file
        if file is None:
            raise _Moved
        if writable and not file.writable:
            file = self._reopened(file)
        try:
            # What is torn may begin with zeros, and where they end nobody can tell but who read the whole file.
            still = bool(known.torn) and self._is_still_torn(known, file)
            seal = known.seal
            data = seal if still else disk.read_behind(file.handle.fd, seal, known.end - len(seal), _CHUNK)
        except OSError as error:
            raise disk.unreadable(file.path, error) from error
        if not data.startswith(seal):
            raise _Moved
        data = journal.unpadded(data[len(seal) :])
        same = known.file is file and known.checkpoint is checkpoint
        here = known if same else structs.replace(known, checkpoint=checkpoint, file=file)
        if still or not (data or known.torn):
            return here
        where = str(file.path)
        scanned = journal.scan(data, where, offset=known.end, previous=known.digest, revision=known.revision)
        return here.found(scanned, scanned.lines, where)

    @staticmethod
    def _is_still_torn(known: Reading, file: JournalFile) -> bool:
        behind = os.pread(file.handle.fd, len(known.torn) + 1, known.end)
        return journal.unpadded(behind) == known.torn

    def _whole(self, checkpoint: Checkpoint, named: codec.Named, *, writable: bool) -> Reading:
        file, scanned, _ = self._begun(checkpoint, named, writable=writable)
        opened = Reading(checkpoint, checkpoint.decoded.document, file)
        return opened.found(scanned, scanned.lines[1:], str(file.path))

    def _folded(self, known: Reading, checkpoint: Checkpoint, named: codec.Named, *, writable: bool) -> Reading | None:
        """The reading after a fold by somebody else, without decoding again what is known; None: it was no plain fold.

        The new journal says which line it goes on from. If that is the last of the old one, the checkpoint between them
        is the document that was known there.
        """
        old = self._tail(known, known.checkpoint)
        if old.file is None or old.torn or old.fork is not None:
            return None
        file, scanned, first = self._begun(checkpoint, named, writable=writable)
        before = (old.file.name, old.digest, old.document.revision)
        if first.events or (first.previous_file, first.previous, first.revision) != before:
            return None
        return Reading(checkpoint, old.document, file).found(scanned, scanned.lines[1:], str(file.path))

    def _begun(
        self, checkpoint: Checkpoint, named: codec.Named, *, writable: bool
    ) -> tuple[JournalFile, journal.Scanned, Opening]:
        """The journal that *checkpoint* names: open, what it holds, and its first line."""
        file, data = self._opened(named.file, writable=writable)
        scanned = journal.scan(data, str(file.path))
        return file, scanned, self._check_opening(checkpoint, named, scanned, str(file.path))

    def _reopened(self, file: JournalFile) -> JournalFile:
        """The same file for a holder, who may append."""
        with disk.reading(file.path):
            handle = disk.Handle(os.open(file.path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW))
            status = os.fstat(handle.fd)
            if not os.path.samestat(status, os.fstat(file.handle.fd)):
                raise _Moved
        opened = JournalFile(handle, file.path, file.name, writable=True)
        opened.allocated = status.st_size
        return opened

    def _opened(self, name: str, *, writable: bool) -> tuple[JournalFile, bytes]:
        path = self.directory / name
        if journal.parse_name(name) is None:
            raise journal.corrupt(f"the document names {name!r}, which is no journal's name", str(self.path))
        try:
            flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
            handle = disk.Handle(os.open(path, flags))
            if not stat.S_ISREG(os.fstat(handle.fd).st_mode):
                raise journal.corrupt("it is not a regular file", str(path))
            data = disk.read_all(handle.fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise disk.denied(error, path) or disk.unreadable(path, error) from error
        file = JournalFile(handle, path, name, writable=writable)
        file.allocated = len(data)
        return file, data

    def _check_opening(
        self, checkpoint: Checkpoint, named: codec.Named, scanned: journal.Scanned, where: str
    ) -> Opening:
        document = checkpoint.decoded.document
        first = scanned.lines[0].line if scanned.lines else None
        if not isinstance(first, Opening) or first.digest != named.digest:
            raise journal.corrupt("its first line is not the one that the document names", where)
        if first.revision != document.revision and not checkpoint.decoded.edited:
            raise journal.corrupt(
                f"it goes on from revision {first.revision}, the document is of revision {document.revision}", where
            )
        return first

    def _ahead(self, reading: Reading) -> int | None:
        named = "" if reading.file is None else reading.file.name
        return self.past.later(reading.revision, named)


def replayed(document: Document, lines: tuple[Placed, ...], where: str) -> Document:
    """*document* after the commits of *lines*, of the file *where*. Raises DocumentCorrupt."""
    commits = [each.line for each in lines if isinstance(each.line, Commit)]
    if not commits:
        return document
    by_section: dict[str, list[Mapping[Any, Raw]]] = {}
    for line in commits:
        for name, changes in line.sections():
            by_section.setdefault(name, []).append(changes)
    changed: dict[str, Any] = {}
    for name, each in by_section.items():
        if name in codec.BY_SLOT:
            codec.check_slots(name, chain.from_iterable(each), where)
        changed[name] = _after(Records.of(getattr(document, name)), each)
    counters = [line.counters for line in commits if line.counters is not None]
    draining = [line.draining for line in commits if line.draining is not None]
    troubles = [trouble for line in commits for trouble in line.troubles]
    last = commits[-1]
    return structs.replace(
        document,
        revision=last.revision,
        events=journal.events_of(lines[-1], where),
        counters=counters[-1] if counters else document.counters,
        draining=draining[-1] if draining else document.draining,
        troubles=(*document.troubles, *troubles)[-MAX_TROUBLES:],
        **changed,
    )


def _after(records: Records[Any, Any], changes: list[Mapping[Any, Raw]]) -> Records[Any, Any]:
    """All changes at once, but in pieces where a record comes back after it left: then it stands last."""
    together: dict[Any, Raw | None] = {}
    for each in changes:
        for key, raw in each.items():
            record = None if bytes(raw) == b"null" else raw
            if record is not None and key in together and together[key] is None:
                records, together = records.after(together), {}
            together[key] = record
    return records.after(together)
