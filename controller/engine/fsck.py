"""Proves, read-only, that the document obeys its invariants and that history tells the whole of it.

Not promised: anything that only the provider knows, but for what the last look of a reconcile left on record. fsck asks
nobody and repairs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from controller.engine.status import Integrity, integrity_of
from controller.model.errors import DocumentCorrupt
from controller.model.invariants import Violation, against_history, violations
from controller.model.records import Document, Event
from controller.store.protocol import Snapshot, Store


class Verdict(Struct, frozen=True):
    """What fsck found. `violations` empty: document and history are sound."""

    revision: int
    runs: int
    workers: int
    events: int
    integrity: Integrity
    violations: tuple[Violation, ...]


def check(store: Store) -> Verdict:
    """Read everything and judge it. Raises DocumentFault when there is no readable document."""
    snapshot = store.read()
    found: list[Violation] = [*violations(snapshot.document), *_unrecorded(snapshot.document)]
    events: Sequence[Event] = ()
    try:
        events = store.history()
    except DocumentCorrupt as error:
        found.append(Violation("history-readable", "fleet", error.what))
    else:
        # A commit may land between the two reads: what is newer than the snapshot is not judged against it.
        events = [event for event in events if event.revision <= snapshot.document.revision]
        if not snapshot.legacy:  # what an older schema kept is judged once it is migrated
            found.extend(gaps(events, snapshot.document.revision))
        found.extend(against_history(snapshot.document, events))
    fault = store.history_fault()
    if fault is not None and not any(violation.id.startswith("history") for violation in found):
        found.append(Violation("history-next", "fleet", f"the next command that changes anything is refused: {fault}"))
    integrity = integrity_of(snapshot)
    found.extend(_broken_integrity(integrity, snapshot))
    document = snapshot.document
    return Verdict(document.revision, len(document.runs), len(document.workers), len(events), integrity, tuple(found))


def gaps(events: Sequence[Event], revision: int) -> Iterator[Violation]:
    """Where history skips a revision or an event, or ends before *revision*. It may begin late: it can be set aside."""
    if not events:
        if revision > 0:
            yield Violation(
                "history-contiguous", "fleet", f"history is empty, and the document is at revision {revision}"
            )
        return
    before = events[0]
    if before.n != 1:
        yield Violation(
            "history-contiguous", "fleet", f"history begins at event {before.n} of revision {before.revision}"
        )
    for event in events[1:]:
        same = event.revision == before.revision
        if (event.n != before.n + 1) if same else (event.revision != before.revision + 1 or event.n != 1):
            yield Violation(
                "history-contiguous",
                event.subject,
                f"history goes from {before.revision}.{before.n} to {event.revision}.{event.n} (revision.event)",
            )
        before = event
    if before.revision != revision:
        yield Violation(
            "history-contiguous", "fleet", f"history ends at revision {before.revision}, the document is at {revision}"
        )


def _unrecorded(document: Document) -> Iterator[Violation]:
    """Not the document's own fault, so no invariant: nothing may be refused for it."""
    for slot, known in sorted(document.slots.items()):
        for each in known.unrecorded:
            shown = f"{each.id or 'something'} ({each.assignment} generation {each.generation}, {each.state})"
            yield Violation("unrecorded", f"slot:{slot}", f"the last look showed {shown}, which no record knows")
        if known.unrecorded_more:
            yield Violation("unrecorded", f"slot:{slot}", f"the last look showed {known.unrecorded_more} more")


def _broken_integrity(integrity: Integrity, snapshot: Snapshot) -> Iterator[Violation]:
    revision = snapshot.document.revision
    if integrity.digest == "edited":
        yield Violation(
            "digest", "fleet", "its digest does not match: something else than controller wrote the document"
        )
    if integrity.sentinel == "missing":
        yield Violation("sentinel", "fleet", "the field pending_action does not hold the sentinel")
    if integrity.history == "ahead":
        yield Violation(
            "history-ahead",
            "fleet",
            f"history knows revision {integrity.history_revision}, the document is at {revision}: an old copy is back",
        )
