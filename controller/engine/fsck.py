"""Proves, read-only, that the document obeys its invariants and that history tells the whole of it.

Not promised: anything that only the provider knows, but for what the last look of a reconcile left on record. `check`
asks nobody and changes nothing. `repair` puts right what a crash left behind and nobody can need, nothing else: no
record is ever mended here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from controller.engine.fsck_history import gaps, judge
from controller.engine.queue import Context
from controller.engine.status import Integrity, integrity_of
from controller.model.checks import CHECKS, By, Check, Violation
from controller.model.errors import DocumentFault
from controller.model.invariants import against_history, violations
from controller.model.records import Document, Event
from controller.store.protocol import Leftover, Snapshot, Store

_BY_STATES: Final = frozenset(
    {Check.HISTORY_CONTIGUOUS, Check.HISTORY_MOVES, Check.HISTORY_STATE, Check.HISTORY_ACTIONS, Check.TOKEN_ORDER}
)
"""What takes a history that this schema wrote."""
_BY_EVENTS: Final = _BY_STATES | {Check.LINEAGE, Check.TOKEN_HISTORY, Check.COUNTER_HISTORY}
"""What takes a history that can be read."""

TORN: Final = "torn_tail"
LEFT: Final[Mapping[str, tuple[str, str]]] = {
    TORN: ("what a crash left of a commit that never happened", "is kept aside"),
    "temporary": ("a file that nobody has finished", "is removed"),
    "stale_journal": ("a journal that nothing was committed to", "is removed"),
}
"""What may be left behind, and what a repair makes of it."""
_KEPT: Final = ("what was torn off a commit once", "stays until somebody removes it")
"""What anything else is: it is named, and no repair touches it."""


class Result(Struct, frozen=True):
    """What one check found. `passed` None: it was not judged, since what it takes could not be read."""

    id: Check
    text: str
    next: str
    passed: bool | None
    violations: tuple[Violation, ...]


class Verdict(Struct, frozen=True):
    """What fsck found: `violations` of all `checks`; none: document and history are sound.

    `leftovers` are no violations: the next command that changes anything copes with them.
    """

    revision: int
    runs: int
    workers: int
    events: int
    integrity: Integrity
    checks: tuple[Result, ...]
    violations: tuple[Violation, ...]
    leftovers: tuple[Leftover, ...]


def check(store: Store) -> Verdict:
    """Read everything and judge it. Raises DocumentFault when there is no readable document."""
    snapshot = store.read()
    document = snapshot.document
    integrity = integrity_of(snapshot)
    found = [*violations(document), *_unrecorded(document), *_broken_integrity(integrity, snapshot)]
    events: Sequence[Event] = ()
    skipped: frozenset[Check] = frozenset()
    try:
        events = store.history()
    except DocumentFault as error:
        found.append(Violation(Check.HISTORY_CHAIN, "fleet", f"{error.what}; {error.where}"))
        skipped = _BY_EVENTS
    else:
        # A commit may land between the two reads: what is newer than the snapshot is not judged against it.
        events = [event for event in events if event.revision <= document.revision]
        found += against_history(document, events)
        if snapshot.legacy:  # what an older schema kept is judged once it is migrated
            skipped = _BY_STATES
        else:
            found += [*gaps(events, document.revision), *judge(document, events)]
        fault = store.history_fault()
        if fault is not None:
            found.append(Violation(Check.HISTORY_CHAIN, "fleet", fault))
    results = tuple(_results(found, skipped))
    return Verdict(
        document.revision,
        len(document.runs),
        len(document.workers),
        len(events),
        integrity,
        results,
        tuple(found),
        store.leftovers(),
    )


def repair(context: Context) -> tuple[Leftover, ...]:
    """Put right what a crash left behind, each with an event, in one commit; what was done. Nothing: no commit.

    Raises what hold, load and commit raise.
    """
    if not _mendable(context.store):
        return ()
    with context.store.hold(context.lock_timeout) as hold:
        # What is there is asked before the load, which may put some of it right already.
        found = _mendable(context.store)
        loaded = hold.load()
        hold.sweep()
        # A torn tail is there until this commit sets it aside.
        left = {each.path for each in _mendable(context.store) if each.kind != TORN}
        done = tuple(each for each in found if each.path not in left)
        draft = context.draft(loaded.document)
        for each in done:
            draft.event("fleet", "repaired", detail=in_words(each))
        context.commit(hold, loaded, draft, forget=False)
    return done


def _mendable(store: Store) -> tuple[Leftover, ...]:
    return tuple(each for each in store.leftovers() if each.kind in LEFT)


def in_words(left: Leftover) -> str:
    """What was left, where, and what becomes of it."""
    what, then = LEFT.get(left.kind, _KEPT)
    return f"{what}, {left.size} bytes, {then}: {left.path}"


def _results(found: Sequence[Violation], skipped: frozenset[Check]) -> Iterator[Result]:
    broken: dict[Check, list[Violation]] = {}
    for violation in found:
        broken.setdefault(violation.id, []).append(violation)
    for each, told in CHECKS.items():
        if By.FSCK in told.judged:
            own = tuple(broken.get(each, ()))
            yield Result(each, told.text, told.next, None if each in skipped else not own, own)


def _unrecorded(document: Document) -> Iterator[Violation]:
    """Not the document's own fault, so no invariant: nothing may be refused for it."""
    for slot, known in sorted(document.slots.items()):
        for each in known.unrecorded:
            shown = f"{each.id or 'something'} ({each.assignment} generation {each.generation}, {each.state})"
            yield Violation(Check.UNRECORDED, f"slot:{slot}", f"the last look showed {shown}, which no record knows")
        if known.unrecorded_more:
            yield Violation(Check.UNRECORDED, f"slot:{slot}", f"the last look showed {known.unrecorded_more} more")


def _broken_integrity(integrity: Integrity, snapshot: Snapshot) -> Iterator[Violation]:
    revision = snapshot.document.revision
    if integrity.digest == "edited":
        what = "its digest does not match: something else than controller wrote the document"
        yield Violation(Check.DIGEST, "fleet", what)
    if integrity.history == "ahead":
        known = integrity.history_revision
        what = f"history knows revision {known}, the document is at {revision}: an old copy is back"
        yield Violation(Check.HISTORY_AHEAD, "fleet", what)
