"""History that cannot be read any more: what its lines still tell, and how it is set aside so that another can begin.

Not promised: that everything in it is found. A line that is not as it was written tells nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from controller.model.errors import DocumentFault
from controller.model.records import Event
from controller.store import chain, copies, disk, segments
from controller.store.journal import unpadded

DAMAGED: Final = "backup-damaged-"
"""What was set aside is called so: a sign that a fleet was here, and no part of its history."""


class _Line(Struct):
    """What matters of a line, be it a commit, the opening of a journal, or a single event."""

    events: tuple[Event, ...] = ()


_LINE = msgspec.json.Decoder(_Line)
_EVENT = msgspec.json.Decoder(Event)


def told(directory: Path, *, whole: bool) -> tuple[Event, ...]:
    """The events in what was set aside earlier, and, unless it can be read *whole*, in every file of history.

    Oldest first, each once. Raises OSError.
    """
    names = [path.name for path in sorted(directory.glob(f"{DAMAGED}*.jsonl"))]
    if not whole:
        names += [segment.name for segment in segments.listed(directory)]
    found = {(event.revision, event.n): event for name in names for event in _told_in(directory / name)}
    return tuple(event for _, event in sorted(found.items(), key=lambda item: item[0]))


def _told_in(path: Path) -> Iterator[Event]:
    for line in path.read_bytes().replace(b"\0", b"").split(b"\n"):
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            events = _LINE.decode(line).events
            yield from events or ((_EVENT.decode(line),) if line.startswith(b'{"revision":') else ())


def lineage(directory: Path) -> str | None:
    """Whose history lies in *directory*, by the first of its journals; None: it does not say."""
    with suppress(OSError, DocumentFault):
        for segment in segments.whole(directory):
            opening = chain.head_of(directory, segment).opening
            if opening is not None:
                return opening.lineage
    return None


def set_aside(directory: Path, *, now: int) -> tuple[Path, ...]:
    """Give every file of history another name, so that none of it is one any more. Only for the holder.

    Killed in the middle, the rest is still history, and the document names a journal that is not there: nothing is
    built upon that. Raises StorageFailed.
    """
    moved = []
    with disk.storing(directory):
        for segment in segments.listed(directory):
            stem = f"{DAMAGED}{segment.name.removesuffix('.jsonl')}"
            target = copies.fresh(directory, stem, ".jsonl", now=now, source=directory / segment.name)
            os.unlink(directory / segment.name)
            moved.append(target)
        disk.sync_directory(directory)
    return tuple(moved)


def cut(directory: Path, name: str, offset: int, *, now: int) -> Path | None:
    """Keep what stands behind *offset* in a journal, then cut it off, so that the file can be closed. Only for the
    holder, and for what no commit is in. Raises StorageFailed.
    """
    path = directory / name
    with disk.storing(path):
        handle = disk.Handle(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
        behind = unpadded(disk.read_all(handle.fd)[offset:])
        if not behind:
            return None
        kept = copies.keep(directory, f"torn-{name.removesuffix('.jsonl')}-{offset}", "", behind, now=now)
        os.ftruncate(handle.fd, offset)
        os.fsync(handle.fd)
    return kept
