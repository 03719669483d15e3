"""Reading the files of a history as the one chain of lines that they are.

Not promised: that what is read stays there: files are merged and dropped while others read. Whoever reads lists the
directory again when one is gone (`history` does).

A journal that holds nothing but its opening is stale unless the next file follows it, or, the last one, unless the
checkpoint names it: whoever made it was killed before the checkpoint was. Only the last file may end in something that
is no line: what was being written counts for nothing. Any other ends with its last line, or with zeros behind it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from controller.model.errors import DocumentCorrupt
from controller.model.records import Event
from controller.store import disk
from controller.store.journal import Opening, Placed, Scanned, corrupt, scan, unpadded
from controller.store.segments import Kind, Segment

CHECKPOINT: Final = "controller.json"
BLOCK: Final = 1 << 22
_HEADER: Final = 1 << 16
_SMALL: Final = 1 << 14
_OPENS: Final = b'{"journal":'
_NAMED: Final = re.compile(rb'"journal"\s*:\s*\{\s*"file"\s*:\s*"([^"\\]*)"')

T = TypeVar("T")


class _Said(Struct):
    """Of a line: what it said, and its seal."""

    revision: int
    events: tuple[Event, ...] = ()
    digest: str = ""


_TORN: Final = re.compile(rb'\{"revision":(\d{1,18}),')
_EVENT = msgspec.json.Decoder(Event)
_SAID = msgspec.json.Decoder(_Said)


class End(Struct, frozen=True):
    """A place in the chain: behind the line of that revision and digest, which ends at `offset` of the file `file`.

    Of the file from before there were journals, `digest` is that of all its bytes.
    """

    revision: int
    file: str
    digest: str
    offset: int = 0


class Head(Struct, frozen=True):
    """How a file begins. `previous` is the digest of the line that it follows, `digest` that of its first line.

    `lone`: there is no whole line behind that one.
    """

    segment: Segment
    opening: Opening | None = None
    lone: bool = False

    @property
    def name(self) -> str:
        return self.segment.name

    @property
    def previous(self) -> str:
        return "" if self.opening is None else self.opening.previous

    @property
    def digest(self) -> str:
        return "" if self.opening is None else self.opening.digest


@contextmanager
def reading(path: Path) -> Iterator[int]:
    """A descriptor of *path* for reading. Raises FileNotFoundError, NotOurs, DocumentCorrupt."""
    try:
        handle = disk.Handle(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        try:
            yield handle.fd
        finally:
            handle.close()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise disk.denied(error, path) or corrupt(disk.says(error), str(path)) from error


def named_journal(directory: Path) -> str | None:
    """The journal that the checkpoint names, "" if it names none; None: there is no checkpoint, or none to be read."""
    with suppress(FileNotFoundError, DocumentCorrupt), reading(directory / CHECKPOINT) as fd:
        found = _NAMED.search(os.pread(fd, _HEADER, 0)) or _NAMED.search(disk.read_all(fd))
        return "" if found is None else found[1].decode("utf-8", "replace")
    return None


def head_of(directory: Path, segment: Segment) -> Head:
    """How the file of *segment* begins. Raises FileNotFoundError, NotOurs, DocumentFault."""
    if segment.kind is Kind.LEGACY:
        return Head(segment)
    path = directory / segment.name
    with reading(path) as fd:
        size = _SMALL
        while True:
            data = os.pread(fd, size, 0)
            ended = len(data) < size or b"\0" in data
            written = data.partition(b"\0")[0]
            first = written.find(b"\n") + 1
            if first and (segment.kind is Kind.MERGED or ended or written.find(b"\n", first) >= 0):
                break
            if ended:
                break
            size *= 4
    lines = scan(written[:first], str(path)).lines if first else ()
    opening = lines[0].line if lines else None
    assert opening is None or isinstance(opening, Opening)  # noqa: S101 - what `scan` makes of a first line
    lone = segment.kind is Kind.JOURNAL and written.find(b"\n", first) < 0
    return Head(segment, opening, lone)


def backwards(directory: Path, segments: Sequence[Segment], named: str | None) -> Iterator[Head]:
    """The files that are in the chain, newest first: stale ones are left out.

    *named* is what `named_journal` says. Without a checkpoint a last opening that nothing follows counts: it may have
    been named.
    """
    follower: Head | None = None
    for segment in reversed(segments):
        head = head_of(directory, segment)
        if segment.kind is not Kind.LEGACY:
            if head.opening is None:
                if segment.kind is Kind.MERGED or head.name == named:
                    raise corrupt("no line that opens a journal stands at offset 0", str(directory / head.name))
                # Whoever made it was killed before anything was in it. If not, what follows it shows the gap.
                continue
            if head.lone and (
                follower.previous != head.digest if follower is not None else named not in (None, head.name)
            ):
                continue
        follower = head
        yield head


def lines(path: Path, after: End | None, *, offset: int = 0, last: bool) -> Iterator[Placed]:
    """The lines of a journal or a merged file from *offset* on, each proven: digest, chain and revision.

    *after* is the line before the first of them; None: whatever it follows is not there any more. *last*: there is no
    file behind this one, so what is not whole is left out. Raises FileNotFoundError, NotOurs, DocumentCorrupt,
    DocumentForeign.
    """
    where = str(path)
    digest, revision = (None, 0) if after is None else (after.digest, after.revision)
    stop: Scanned | None = None
    with reading(path) as fd:
        for start, piece in _pieces(fd, offset):
            if stop is not None:
                # A line that follows nothing may be the last one, of whoever wrote beside us, and no other.
                if stop.fork is not None and b"\n" in piece.partition(b"\0")[0]:
                    raise corrupt(f"the line at offset {stop.end} {stop.fork}, and others come behind it", where)
                if not last and unpadded(piece):
                    raise corrupt(f"something stands behind the zeros at offset {stop.end}", where)
                continue
            opens = piece.startswith(_OPENS)
            stop = scan(
                piece, where, offset=start, previous=None if opens else digest, revision=0 if opens else revision
            )
            if opens and stop.lines:
                _check_opening(stop.lines[0], digest, revision, where)
            yield from stop.lines
            digest, revision = stop.digest or digest, stop.revision or revision
            if not last and stop.fork is not None:
                raise corrupt(f"the line at offset {stop.end} {stop.fork}", where)
            if not last and stop.torn:
                raise corrupt(f"what stands at offset {stop.end} is no line, and the file was closed", where)
            if last and stop.end < start + len(piece) and stop.fork is None:
                return
            if stop.end == start + len(piece):
                stop = None


def _check_opening(placed: Placed, digest: str | None, revision: int, where: str) -> None:
    opening = placed.line
    if digest is None or not isinstance(opening, Opening):
        return
    place = f"the line at offset {placed.begin}"
    if opening.previous != digest:
        raise corrupt(f"{place} does not follow the history before it", where)
    first = opening.events[0] if opening.events else None
    found = opening.revision if first is None else first.revision
    # An old history may lack its last commit, or some of its events: an opening that has them begins with them.
    wanted = revision if first is None or first.n > 1 else revision + 1
    # Nothing is known of the revision behind an old history that is empty.
    if revision and found != wanted:
        raise corrupt(f"{place} is of revision {opening.revision}, after revision {revision}", where)


def _blocks(fd: int, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Whole lines, as many as a block holds, and where they begin; at last what is no whole line."""
    kept = b""
    while more := os.pread(fd, BLOCK, offset + len(kept)):
        data = kept + more
        end = data.rfind(b"\n") + 1
        if end:
            yield offset, data[:end]
        offset, kept = offset + end, data[end:]
    if kept:
        yield offset, kept


def _pieces(fd: int, offset: int) -> Iterator[tuple[int, bytes]]:
    """Blocks, cut before each line that opens a journal. No string in JSON has a bare line feed."""
    for place, data in _blocks(fd, offset):
        begin = 0
        while (found := data.find(b"\n" + _OPENS, begin)) >= 0:
            yield place + begin, data[begin : found + 1]
            begin = found + 1
        yield place + begin, data[begin:]


def mentions(path: Path, subject: str | None) -> Generator[Event, None, End]:
    """The events, or those of *subject*, in a journal or a merged file that is closed; returns where that ends.

    Only lines that have its name in them are decoded, and none is proven: a history of years is looked through while
    others wait for the document. Raises FileNotFoundError, NotOurs, DocumentCorrupt.
    """
    where = str(path)
    tail, end = b"", 0
    with reading(path) as fd:
        for offset, data in _blocks(fd):
            for begin, stop in _lines_of(data, subject):
                line = _decoded(_SAID, data[begin:stop], f"the line at offset {offset + begin}", where)
                yield from (event for event in line.events if subject in (None, event.subject))
            written = unpadded(data)
            if written:
                tail, end = written[written.rfind(b"\n", 0, -1) + 1 :], offset + len(written)
    if not tail.endswith(b"\n"):
        raise corrupt(f"what stands at offset {end - len(tail)} is no line, and the file was closed", where)
    said = _decoded(_SAID, tail, f"the line at offset {end - len(tail)}", where)
    return End(said.revision, path.name, said.digest, end)


def _lines_of(data: bytes, subject: str | None) -> Iterator[tuple[int, int]]:
    """Where whole lines begin and end that might be of *subject*: what decoding lets through is checked again."""
    wanted = b"" if subject is None else msgspec.json.encode(subject)
    begin = 0
    while (place := data.find(wanted, begin)) >= 0:
        begin, end = data.rfind(b"\n", 0, place) + 1 if wanted else begin, data.find(b"\n", place)
        if end < 0:
            return
        yield begin, end
        begin = end + 1


def legacy(path: Path, subject: str | None = None, *, offset: int = 0) -> Iterator[tuple[Event, int, int]]:
    """The events of the file from before there were journals, and where each line begins and ends.

    A last line that is not whole was never there. Raises FileNotFoundError, NotOurs, DocumentCorrupt.
    """
    where = str(path)
    with reading(path) as fd:
        for place, data in _blocks(fd, offset):
            for begin, end in _lines_of(data, subject):
                event = _decoded(_EVENT, data[begin:end], f"the line at offset {place + begin}", where)
                if subject in (None, event.subject):
                    yield event, place + begin, place + end + 1


def torn_revision(path: Path) -> int:
    """The revision in the unfinished last line of that file, which was committed before it was written; 0: there is
    none. Raises FileNotFoundError, NotOurs, DocumentCorrupt.
    """
    with reading(path) as fd:
        size = os.fstat(fd).st_size
        found = _TORN.match(os.pread(fd, size, 0).rpartition(b"\n")[2])
    return 0 if found is None else int(found[1])


def digest_of(path: Path) -> tuple[str, int]:
    """SHA-256 of all bytes of a file, and how many they are. Raises FileNotFoundError, NotOurs, DocumentCorrupt."""
    import hashlib

    seal, offset = hashlib.sha256(), 0
    with reading(path) as fd:
        while data := os.pread(fd, BLOCK, offset):
            seal.update(data)
            offset += len(data)
    return seal.hexdigest(), offset


def last_line(path: Path) -> tuple[bytes, int]:
    """The last line of a closed file and where it ends; b"" if it does not end in a line, and zeros. Reads backwards.

    Raises FileNotFoundError, NotOurs, DocumentCorrupt.
    """
    with reading(path) as fd:
        end = os.fstat(fd).st_size
        data = b""
        while end and not data:
            begin = max(end - _SMALL, 0)
            data = unpadded(os.pread(fd, end - begin, begin))
            end = begin + len(data)
        if not data.endswith(b"\n"):
            return b"", end
        begin = end - len(data)
        while (newline := data.rfind(b"\n", 0, -1)) < 0 and begin:
            before = max(begin - len(data), 0)
            data = os.pread(fd, begin - before, before) + data
            begin = before
        return data[newline + 1 :], end


def _decoded(decoder: msgspec.json.Decoder[T], line: bytes, place: str, where: str) -> T:
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise corrupt(f"{place} is not one of ours: {error}", where) from error
