"""The checkpoint: the whole document written anew, and the journal that goes on from it; and what a crash may leave.

Not promised: that a fold which was killed leaves nothing. It leaves a temporary file, or a journal that no document
names and nobody wrote to: the next holder removes both.

    a temporary file, still empty                                 shows that what comes next is not finished
    the next journal, with nothing but its opening, synced        whoever reads now still reads the old pair
    the document naming it, in the temporary file, synced
    the directory, synced                                         no crash shows a document whose journal has no name
    rename                                                        the commit point, if the document is a commit
    the directory, synced

The old journal is left as it is: what it holds is history, and whoever reads it right now is at its last line.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Final

from controller.model.keep import Keep
from controller.model.records import Document, Event
from controller.store import codec, disk, journal, segments
from controller.store.protocol import Leftover
from controller.store.reading import Checkpoint, JournalFile, Reading

if TYPE_CHECKING:
    from controller.store.file import FileHold, FileStore

SMALL: Final = 1 << 20
"""Bytes of a document that is written anew at each clean exit, and the least that a journal may grow to."""
_FRACTION: Final = 4
"""A journal is folded in once it is a fourth of the document: what a cold reader replays stays the lesser part."""

_MANY: Final = 32
"""How many files of history there are before it is asked how much to keep."""
_TORN: Final = "torn-"
_UNFINISHED: Final = re.compile(r"\.(controller|torn|backup|history)[^/]*\.tmp-([0-9]+)")
"""What was being written, and by whom. A copy is made without the lock: it is left over once its maker is gone."""
MAX_NUMBER: Final = 1000


def is_small(reading: Reading) -> bool:
    return len(reading.checkpoint.data) <= SMALL


def outgrown(reading: Reading) -> bool:
    """Whether the journal has grown so much that it is time to fold."""
    return reading.end > max(SMALL, len(reading.checkpoint.data) // _FRACTION)


def write(hold: FileHold, expected: Reading | None, document: Document, *, events: tuple[Event, ...] = ()) -> Reading:
    """Put *document* in the place of *expected* (None: of none), with a journal of its own, durably.

    *events*: it is a commit itself, and its journal's opening keeps them. Raises LockLost, RevisionMoved,
    StorageFailed (nothing changed), DurabilityFailed.
    """
    store = hold.store
    path = store.path
    temporary = path.with_name(f"{disk.TEMPORARY}{os.getpid()}-{get_ident()}")
    made: Path | None = None
    after = _before(hold, expected)
    try:
        like = None if expected is None else os.fstat(expected.checkpoint.handle.fd)
        if expected is not None:
            sweep(store.directory, expected)
            if expected.torn:
                set_aside(store.directory, expected)
                expected.torn = b""
        # First of all, and durably: a journal that says what it committed, without one, was named by a document.
        handle = disk.create(temporary, like=like)
        if events:
            disk.sync_directory(store.directory)
    except OSError as error:
        raise disk.denied(error, path.parent) or disk.storage_failed(path, error) from error
    try:
        made, file = _next_journal(store.directory, document.revision, like)
        first, digest = journal.opening(
            document, at=store.clock.now_ms(), command=store.command, events=events, after=after
        )
        disk.write_all(file.fd, first)
        os.fsync(file.fd)
        named = codec.Named(made.name, digest)
        data = codec.encode(document, named)
        if len(data) <= codec.WHOLE:
            codec.decode(data, str(path))
        disk.write_all(handle.fd, data)
        os.fsync(handle.fd)
        disk.sync_directory(store.directory)
        hold.check_lock()
        hold.check_unmoved(expected)
        os.rename(temporary, path)
    except BaseException as error:
        if _happened(path, handle):  # an interrupt may come behind the rename as well: nothing may be removed then
            store.latest = store.durable = None
            if isinstance(error, OSError):
                raise hold.uncertain(error) from error
            raise
        if made is not None:
            with suppress(OSError):
                os.unlink(made)
                if events:
                    disk.sync_directory(store.directory)
        with suppress(OSError):
            os.unlink(temporary)
        if not isinstance(error, OSError):
            raise
        raise disk.storage_failed(path, error) from error
    store.durable = None
    try:
        disk.sync_directory(store.directory)
        identity = disk.identity(os.fstat(handle.fd))
    except OSError as error:
        raise hold.uncertain(error) from error
    hold.trusted()
    decoded = codec.Decoded(document, False, False, data[-67:-3].decode(), named)
    checkpoint = Checkpoint(handle, identity, data, decoded, settled=False)
    opened = JournalFile(file, made, made.name, writable=True)
    opened.allocated = len(first)
    reading = Reading(checkpoint, document, opened, end=len(first), digest=digest, revision=document.revision)
    store.latest = store.durable = reading
    return reading


def tidy(store: FileStore, before: Reading, folded: Reading) -> None:
    """After a fold: what history may lose, as the settings say. Raises StorageFailed."""
    pending = folded.document.pending_actions.values()
    needed_at = min((each.parked_at for each in pending), default=None)
    name = "" if folded.file is None else folded.file.name
    # Asking costs a short command more than its fold: only when there may be something to drop.
    many = len(segments.listed(store.directory)) > _MANY or outgrown(before)
    keep = store.keep() if many else Keep(None, None)
    store.past.tidy(keep, named=name, now=store.clock.now_ms(), needed_at=needed_at)


def _before(hold: FileHold, expected: Reading | None) -> codec.Named | None:
    """What the history before the next journal ends in; None: there is none."""
    if expected is not None and expected.file is not None and expected.ahead is None:
        return codec.Named(expected.file.name, expected.digest)
    end = hold.store.past.end()
    return None if end is None else codec.Named(end.file, end.digest)


def _next_journal(directory: Path, revision: int, like: os.stat_result | None) -> tuple[Path, disk.Handle]:
    """A new journal under a name that nobody has."""
    for number in range(MAX_NUMBER):
        path = directory / journal.name_of(revision, number)
        with suppress(FileExistsError):
            return path, disk.create(path, like=like, flags=os.O_RDWR)
    raise OSError(errno.EEXIST, f"{directory} holds too many journals of revision {revision}")


def _happened(path: Path, handle: disk.Handle) -> bool:
    """Whether a rename that reported an error took place all the same; also when nobody can tell."""
    try:
        return disk.same_file(path, handle.fd)
    except OSError:
        return True


def torn_name(directory: Path, reading: Reading) -> str:
    """Where to keep what stands behind the last good line: a name that nobody has, or that has these very bytes."""
    stem = "" if reading.file is None else reading.file.name.removesuffix(".jsonl")
    number = 0
    while True:
        name = f"{_TORN}{stem}-{reading.end}" + (f"-{number}" if number else "")
        try:
            if (directory / name).read_bytes() == reading.torn:
                return name
        except FileNotFoundError:
            return name
        number += 1


def set_aside(directory: Path, reading: Reading) -> None:
    """Keep what stands behind the last good line in a file of its own, then cut it off. Raises OSError, StorageFailed.

    Cut off durably before anything is written over it: half of an old line and half of a new one would pass for damage.
    """
    if reading.file is None:
        return
    disk.write_new(directory / torn_name(directory, reading), reading.torn)
    os.ftruncate(reading.file.handle.fd, reading.end)
    os.fsync(reading.file.handle.fd)
    reading.file.allocated = reading.end


def leftovers(directory: Path, reading: Reading | None) -> tuple[Leftover, ...]:
    """What a crash left in *directory*, and a holder may put right. Writes nothing."""
    found = []
    if reading is not None and reading.torn and reading.fork is None and reading.file is not None:
        found.append(Leftover("torn_tail", str(directory / reading.file.name), len(reading.torn)))
    with suppress(OSError):
        for name in sorted(os.listdir(directory)):
            kind = _stale(directory, name, reading)
            if kind:
                with suppress(OSError):
                    found.append(Leftover(kind, str(directory / name), os.stat(directory / name).st_size))
    return tuple(found)


def _stale(directory: Path, name: str, reading: Reading | None) -> str:
    """What kind of leftover a file is; "" if it is none."""
    unfinished = _UNFINISHED.match(name)
    if unfinished is not None:
        over = unfinished[1] in ("controller", "torn") or not os.path.exists(f"/proc/{unfinished[2]}")
        return "temporary" if over else ""
    if name.startswith(_TORN):
        return "torn_kept"
    place = journal.parse_name(name)
    if place is None or not _is_beyond(place, reading) or not journal.is_blank(directory / name):
        return ""
    return "stale_journal"


def _is_beyond(place: tuple[int, int], reading: Reading | None) -> bool:
    """Whether a journal of that name comes behind the one that counts: only a killed write can have made it.

    Others that hold nothing but their opening are links of the chain. What a document that may not be built upon seems
    to leave behind is the only trace of a newer one.
    """
    if reading is None:
        return True
    if reading.ahead is not None or reading.edited:
        return False
    named = None if reading.file is None else journal.parse_name(reading.file.name)
    return place > (named or (reading.document.revision, MAX_NUMBER))


def sweep(directory: Path, reading: Reading | None) -> tuple[Leftover, ...]:
    """Remove temporary files and journals that nobody wrote to: whoever made them held the lock, and died.

    Only for the holder. A torn tail stays until the next commit sets it aside, and what was kept of one stays for ever.
    Returns what was there.
    """
    found = leftovers(directory, reading)
    journals = [each for each in found if each.kind == "stale_journal"]
    with suppress(OSError):
        for each in journals:
            os.unlink(each.path)
        if journals:  # durably, and first: what is left of a killed write must not pass for one that was not
            disk.sync_directory(directory)
        for each in found:
            if each.kind == "temporary":
                os.unlink(each.path)
    return found
