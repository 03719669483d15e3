"""`state restore`: an earlier document takes the place of the one that stands there, or of one that is lost.

Not promised: that what was done since is undone. It is there still, and looks will show it.

Whatever stands there is kept under a name of its own first. The restore itself is one commit, the next after the last
that anything knows: so history goes on in one line, and a restore that was killed has happened or has not. Only a
history that cannot be read, or that ends elsewhere than the document, is set aside as a whole; killed in the middle of
that, nothing can be built upon what is left but by another restore.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from controller.model.errors import (
    Conflict,
    DocumentCorrupt,
    DocumentFault,
    DocumentMissing,
    EditedOutside,
    InvariantBroken,
    Refusal,
)
from controller.model.invariants import AT_REST, against_history, violations
from controller.model.records import INITIALISED, Document, Event, RunState
from controller.model.restore import RESTORED, Kind, Over, Since, gone_over, restored, since
from controller.store import backups, codec, copies, damage, disk, segments
from controller.store.file import FileHold, FileStore
from controller.store.reading import Reading

MANY: Final = 4
"""So many things that are gone back over are named in a refusal; a dry run names all."""


class Compared(Struct, frozen=True):
    """A document beside what stands there: whether it is of the same fleet, and what going back to it goes back over.

    `last` is the last revision that anything knows here. `same`: it is what stands there. `damaged`: history cannot be
    read whole, so that more may have happened than is known.
    """

    lineage: str
    same_lineage: bool
    same: bool
    last: int
    over: tuple[Over, ...]
    lost: Since
    damaged: bool = False

    @property
    def needs_word(self) -> bool:
        """Whether going back to it has to be acknowledged."""
        return bool(self.over) or self.damaged


class Restored(Struct, frozen=True):
    """What a restore did, or with a dry run would do. `changed` False: what stands there is what was to be restored.

    `kept` is the copy of what stood there; None: nothing did. `set_aside` are files of a history that this one does not
    go on from. `leases` are runs whose consumers are shut out.
    """

    document: Document
    changed: bool
    brought: Document
    compared: Compared
    kept: Path | None = None
    set_aside: tuple[Path, ...] = ()
    leases: tuple[str, ...] = ()


class _Known(Struct, frozen=True):
    """What a directory knows of what happened. `damaged`: its history cannot be gone on from as it is."""

    events: tuple[Event, ...]
    damaged: bool


def restore(
    store: FileStore,
    file: Path | None,
    *,
    epoch: str,
    acknowledge: bool,
    told: str = "",
    dry_run: bool = False,
    timeout: float,
) -> Restored:
    """Go on from the backup in *file*, or, without one, from the document that stands there though history is ahead.

    *epoch* is a new one, which no document had. *told* is who wants it and why, for history.

    Raises Refusal (another lineage; the document is a symbolic link), Conflict (it goes back over what may be out
    there, or history is damaged, without *acknowledge*), EditedOutside (what stands there was edited, and no file is
    named), InvariantBroken, DocumentFault (nothing there to accept; a file that is broken or of a newer schema), and
    what a hold raises. Then nothing has changed, but for a copy of the document that may have been kept.
    """
    brought = None if file is None else backups.read_backup(file).document
    if not store.directory.is_dir():
        raise DocumentMissing(
            f"there is no state directory {store.directory}",
            where=str(store.directory),
            next="look at --state-dir; if it is lost, make it, for yourself alone, and run this again",
        )
    with store.tenure(timeout, founding=True) as hold:
        reading = _reading(hold, needed=file is None)
        document = _sound(store, reading) if brought is None else brought
        standing = None if reading is None or reading.edited else reading.document
        known = _known(store, None if reading is None else reading.fork)
        compared = compare(document, standing, known.events, directory=store.directory, damaged=known.damaged)
        if reading is not None and reading.ahead is not None:  # of what was torn off, only the number can be read
            compared = replace(compared, last=max(compared.last, reading.ahead), same=False)
        where = str(file or store.path)
        _refuse_foreign(document, compared, where)
        if compared.same:
            return Restored(document, False, document, compared)
        made = go_on(store, document, standing, known.events, compared, epoch=epoch, file=file, told=told)
        leases = tuple(name for name, run in made.runs.items() if run.state is RunState.RUNNING and run.lease)
        if dry_run:
            return Restored(made, True, document, compared, leases=leases)
        if compared.needs_word and not acknowledge:
            raise _unacknowledged(compared, document, file)
        hold.check_lock()
        kept = _keep(store, reading)
        set_aside, reading = _prepared(store, hold, reading, made, damaged=known.damaged)
        made = hold.replace(reading, made)
        return Restored(made, True, document, compared, kept, set_aside, leases)


def compare(
    document: Document,
    standing: Document | None,
    events: tuple[Event, ...],
    *,
    directory: Path | None = None,
    damaged: bool = False,
) -> Compared:
    """*document* beside what stands there (None: nothing that can be built upon) and what history knows."""
    began = next((event.key for event in events if event.event == INITIALISED and event.key is not None), None)
    opened = None if began is not None or directory is None else damage.lineage(directory)
    lineage = began or (None if standing is None else standing.lineage) or opened or document.lineage
    lost = since(document, standing, events)
    last = max(lost.revision, 0 if standing is None else standing.revision)
    same = not damaged and last == document.revision and standing == document
    over = () if same else gone_over(document, lost)
    return Compared(lineage, document.lineage == lineage, same, last, over, lost, damaged)


def beside(document: Document, store: FileStore) -> Compared | None:
    """`compare` for whoever only reads; None: there is neither a document nor history to compare it with."""
    standing, fork = None, None
    if not store.directory.is_dir():
        return None
    try:
        snapshot = store.read()
        standing, fork = None if snapshot.edited else snapshot.document, snapshot.fork
    except DocumentFault:
        pass  # what can be said all the same is said
    known = _known(store, fork)
    if standing is None and not known.events:
        return None
    return compare(document, standing, known.events, directory=store.directory, damaged=known.damaged)


def go_on(
    store: FileStore,
    document: Document,
    standing: Document | None,
    events: tuple[Event, ...],
    compared: Compared,
    *,
    epoch: str,
    event: str = RESTORED,
    file: Path | None,
    told: str,
) -> Document:
    """The document that goes on from *document*, judged. Raises InvariantBroken."""
    where = "as it stood there" if file is None else f"from {file.name}"
    made = restored(
        document,
        standing,
        events,
        revision=compared.last + 1,
        now=store.clock.now_ms(),
        command=store.command,
        epoch=epoch,
        lost=compared.lost,
        event=event,
        detail="; ".join(filter(None, (where, told))),
    )
    _judge(made, events, str(file or store.path))
    return made


def named(over: Over) -> str:
    """What is gone back over, in words."""
    what = (
        f"worker {over.id} ({over.name})" if over.kind is Kind.WORKER else f"a parked {over.name}, key {over.id[:12]}"
    )
    return f"slot {over.slot}: {what}" + (", made since" if over.lost else "")


def _reading(hold: FileHold, *, needed: bool) -> Reading | None:
    """What stands there; None: nothing that can be read."""
    try:
        return hold.reading()
    except (DocumentMissing, DocumentCorrupt):
        if needed:
            raise
        return None


def _sound(store: FileStore, reading: Reading | None) -> Document:
    if reading is None or reading.edited:
        raise EditedOutside(
            "the document was edited by something else than controller",
            where=str(store.path),
            next="`controller fsck` judges it, `controller state accept` takes it over",
        )
    return reading.document


def _known(store: FileStore, fork: str | None) -> _Known:
    """What history tells, and what was set aside of an earlier one: of a broken one, every line that is whole."""
    damaged = fork is not None
    events: tuple[Event, ...] = ()
    try:
        events = store.past.events()
    except DocumentCorrupt:
        damaged = True
    with disk.reading(store.directory):
        events = (*damage.told(store.directory, whole=not damaged), *events)
    once = {(event.revision, event.n): event for event in events}
    return _Known(tuple(event for _, event in sorted(once.items(), key=lambda item: item[0])), damaged)


def _prepared(
    store: FileStore, hold: FileHold, reading: Reading | None, made: Document, *, damaged: bool
) -> tuple[tuple[Path, ...], Reading | None]:
    """Make room for the commit: a history that it cannot follow is set aside, what a crash tore off is cut off.

    Returns what was set aside, and what the commit takes the place of. What stands there was kept before.
    """
    directory, now = store.directory, store.clock.now_ms()
    moved: tuple[Path, ...] = ()
    end = None if damaged else store.past.end()
    if damaged or (end is not None and end.revision + 1 != made.revision):
        moved = damage.set_aside(directory, now=now)
    elif end is not None and end.file != segments.LEGACY:
        damage.cut(directory, end.file, end.offset, now=now)
    if reading is not None and not moved:
        return moved, hold.reading()
    with disk.storing(store.path):
        if os.path.lexists(store.path):
            os.unlink(store.path)
    return moved, None


def _refuse_foreign(document: Document, compared: Compared, where: str) -> None:
    if compared.same_lineage:
        return
    raise Refusal(
        f"it is of another fleet: its lineage is {document.lineage}, and here it is {compared.lineage}",
        where=where,
        next="nothing was changed; name the state directory that it is of with --state-dir",
    )


def _judge(document: Document, events: tuple[Event, ...], where: str) -> None:
    found = [violation for violation in violations(document) if violation.id not in AT_REST]
    found += against_history(document, events)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise InvariantBroken(
            f"the document is not restored: {found[0].id}: {found[0].what}{more}",
            where=f"{found[0].subject} in {where}",
            next="nothing was changed; take another backup: `controller state verify FILE` judges one",
        )


def _unacknowledged(compared: Compared, document: Document, file: Path | None) -> Conflict:
    first = "; ".join(named(over) for over in compared.over[:MANY])
    more = len(compared.over) - MANY
    words = "controller state restore" + ("" if file is None else f" {shlex.quote(str(file))}")
    why = f"goes back over what may be out there: {first}" + (f" and {more} more" if more > 0 else "")
    if not compared.over:
        why = "cannot be judged: history is damaged, and would be set aside"
    return Conflict(
        f"nothing was restored: going back from revision {compared.last} to {document.revision} {why}",
        where="" if file is None else str(file),
        next=f"{words} --dry-run tells all of it; {words} --acknowledge",
    )


def _keep(store: FileStore, reading: Reading | None) -> Path | None:
    """A copy of what stands there, under a name of its own. What no program of ours wrote is kept as it is."""
    if reading is not None and not reading.edited:
        stem, data = f"backup-{reading.document.revision}", codec.encode(reading.document)
    else:
        try:
            stem, data = "backup-damaged", backups.read_file(store.path)
        except DocumentFault:
            if os.path.lexists(store.path):
                raise
            return None
    return copies.keep_once(store.directory, stem, ".json", data, now=store.clock.now_ms())
