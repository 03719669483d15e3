"""History: every transition, one line each, appended after the commit that made it.

Not promised: that a line is there the moment its commit returns. The document carries the events of its own last
commit, and the next hold appends what a crash left out, before it commits anything else. So history misses nothing, and
since a line is written only once its document is durable, it never runs ahead: history that does proves that an older
document came back.

A missing history is no reason to refuse work: it begins again with what the document carries, and fsck says that
revisions before it are not there.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from controller.model.errors import DocumentCorrupt, HistoryAhead, HistoryBehind
from controller.model.records import Document, Event
from controller.store import disk
from controller.store.codec import line_of

_EVENT = msgspec.json.Decoder(Event)
_CHUNK: Final = 1 << 12
_TORN = re.compile(rb'\{"revision":(\d+),')


class Tail(Struct, frozen=True):
    """The end of the file: where complete lines end, the events of the last revision, and what a crash tore off."""

    end: int
    last: tuple[Event, ...]
    torn: bytes

    @property
    def revision(self) -> int | None:
        return self.last[-1].revision if self.last else None


class History:
    def __init__(self, path: Path) -> None:
        self.path = path

    def revision(self) -> int | None:
        """The last revision that history knows; None when it is missing, empty or unreadable. Never raises."""
        try:
            handle = disk.Handle(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
            return self._tail(handle.fd).revision
        except (OSError, DocumentCorrupt):
            return None

    def catch_up(self, document: Document, *, synced: bool) -> None:
        """Append what *document* carries and history lacks; only inside a hold, once *document* is durable.

        *synced*: this process knows that what is there is durable. Raises HistoryAhead, HistoryBehind (it could not be
        appended), DocumentCorrupt (its last line is not an event).
        """
        try:
            handle = self._open()
            tail = self._tail(handle.fd)
            missing = self._missing(document, tail)
            if tail.torn:
                os.ftruncate(handle.fd, tail.end)
            if missing or tail.torn or not synced:
                self._append(handle.fd, missing, tail.end)
        except OSError as error:
            raise self._behind(error) from error

    def fault(self, document: Document) -> str | None:
        """What `catch_up` would refuse of history as it stands, in words. Writes nothing."""
        try:
            handle = disk.Handle(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW))
            if not stat.S_ISREG(os.fstat(handle.fd).st_mode):
                return "it is not a regular file"
            self._missing(document, self._tail(handle.fd))
        except FileNotFoundError:
            return None
        except OSError as error:
            return disk.says(error)
        except (HistoryAhead, DocumentCorrupt) as error:
            return error.what
        return None

    def trim(self) -> None:
        """Take off what a crash tore, when nothing that a document carries completes it. Raises HistoryBehind."""
        try:
            handle = self._open()
            os.ftruncate(handle.fd, self._tail(handle.fd).end)
            os.fsync(handle.fd)
        except OSError as error:
            raise self._behind(error) from error

    def append(self, events: Sequence[Event]) -> None:
        """Append the events of a commit that is durable, inside the hold whose load caught up. Raises HistoryBehind."""
        try:
            handle = self._open()
            self._append(handle.fd, events, os.fstat(handle.fd).st_size)
        except OSError as error:
            raise self._behind(error) from error

    def events(self, document: Document | None, subject: str | None = None) -> tuple[Event, ...]:
        """All events, or those of *subject*, oldest first, with those that only *document* carries yet."""
        found, tail = self._read(subject)
        if document is not None and (tail.revision or 0) <= document.revision:
            known = len(tail.last) if tail.revision == document.revision else 0
            found += [event for event in document.events[known:] if subject in (None, event.subject)]
        return tuple(found)

    def _open(self) -> disk.Handle:
        return disk.opened(self.path, os.O_APPEND)

    def _append(self, fd: int, events: Sequence[Event], end: int) -> None:
        try:
            disk.write_all(fd, b"".join(line_of(event) + b"\n" for event in events))
            os.fsync(fd)
        except BaseException:
            # After a failed fsync the pages may count as clean and be lost; the lines are written anew, not synced
            # again.
            with suppress(OSError):
                os.ftruncate(fd, end)
            raise

    def _tail(self, fd: int) -> Tail:
        """Read backwards until the last revision's first event is in sight."""
        size = os.fstat(fd).st_size
        length = _CHUNK
        while True:
            start = max(size - length, 0)
            data = os.pread(fd, size - start, start)
            newline = data.rfind(b"\n")
            lines = data[: newline + 1].split(b"\n")[:-1]
            if start > 0:
                lines = lines[1:]
            last: list[Event] = []
            for line in reversed(lines):
                event = self._decoded(line, "its last line") if not last else _event_or_none(line)
                if last and (event is None or event.revision != last[0].revision):
                    return Tail(start + newline + 1, tuple(reversed(last)), data[newline + 1 :])
                if event is not None:
                    last.append(event)
            if start == 0:
                return Tail(newline + 1, tuple(reversed(last)), data[newline + 1 :])
            length *= 4

    def _missing(self, document: Document, tail: Tail) -> Sequence[Event]:
        """The events of *document* that history lacks. Raises HistoryAhead."""
        torn = _TORN.match(tail.torn)
        seen = max(tail.revision or 0, int(torn[1]) if torn is not None else 0)
        if seen > document.revision:
            raise self._ahead(f"history knows revision {seen}, the document is of revision {document.revision}")
        if tail.revision != document.revision or not document.events:
            return document.events
        known = len(tail.last)
        if tail.last != document.events[:known]:
            raise self._ahead(f"history has other events for revision {document.revision} than the document")
        return document.events[known:]

    def _ahead(self, what: str) -> HistoryAhead:
        return HistoryAhead(
            f"{what}: an older copy of the document was put back",
            where=str(self.path),
            next="put the newer one back",
        )

    def _behind(self, error: OSError) -> HistoryBehind:
        return HistoryBehind(
            f"the last commit stands, but its events could not be appended to history: {disk.says(error)}",
            where=str(self.path),
            next="make room or mend the file, then run it again; nothing is committed before history has caught up",
        )

    def _read(self, subject: str | None) -> tuple[list[Event], Tail]:
        try:
            handle = disk.Handle(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
            tail = self._tail(handle.fd)
            data = disk.read_all(handle.fd)[: tail.end]
        except FileNotFoundError:
            return [], Tail(0, (), b"")
        except OSError as error:
            raise disk.denied(error, self.path) or self._unreadable(disk.says(error)) from error
        if subject is None:
            return [self._decoded(line, f"line {n}") for n, line in enumerate(data.split(b"\n")[:-1], 1)], tail
        found = [self._decoded(data[begin:end], f"the line at offset {begin}") for begin, end in _lines(data, subject)]
        return [event for event in found if event.subject == subject], tail

    def _decoded(self, line: bytes, where: str) -> Event:
        try:
            return _EVENT.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._unreadable(f"{where} is not an event: {error}") from error

    def _unreadable(self, what: str) -> DocumentCorrupt:
        return DocumentCorrupt(
            f"history cannot be read: {what}",
            where=str(self.path),
            next="nothing was changed; set the file aside, and history begins again with the document's own events",
        )


def _lines(data: bytes, subject: str) -> Iterator[tuple[int, int]]:
    """Where lines begin and end that might be of *subject*: what decoding lets through is checked again.

    Nothing is split: a history of many years is looked through while others wait for the document.
    """
    wanted, end = msgspec.json.encode(subject), -1
    while (place := data.find(wanted, end + 1)) >= 0:
        begin, end = data.rfind(b"\n", 0, place) + 1, data.find(b"\n", place)
        yield begin, end
        if end < 0:
            return


def _event_or_none(line: bytes) -> Event | None:
    """Lines before the last one are judged when they are read, not when something is appended."""
    try:
        return _EVENT.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
