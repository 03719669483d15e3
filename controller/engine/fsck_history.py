"""What history proves: that each event is a move, that each record is where its last event led, and that tokens climb.

Not promised: anything about what came before history's last gap, or before somebody put a whole document there
(`WHOLE`): events before that say nothing of states, and of tokens only how high they were.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from controller.engine.retrace import RunPath, WorkerPath
from controller.model.action import action_of
from controller.model.checks import Check, Violation
from controller.model.errors import BrokenAction
from controller.model.records import INITIALISED, Document, Event, RunState
from controller.model.restore import RESTORED
from controller.model.transition import Trigger

WHOLE: Final = frozenset({"migrated", "accepted", RESTORED, "imported"})
"""Events of the fleet after which the records are what somebody put there, whatever events led to before."""
_UNPARKED: Final = frozenset({"action.settled", "action.disowned"})


class Kept(Struct, frozen=True):
    """The events by which records can be judged. `whole`: they begin with the fleet, so nothing is without one."""

    events: Sequence[Event]
    whole: bool


def judge(document: Document, events: Sequence[Event]) -> Iterator[Violation]:
    """Judge *document* by *events*, which must be oldest first and end with its revision."""
    yield from _tokens(events)
    kept = kept_of(events)
    if not kept.events or kept.events[-1].revision != document.revision:
        return
    runs: dict[str, list[Event]] = {}
    slots: dict[int, list[Event]] = {}
    for event in kept.events:
        kind, _, name = event.subject.partition(":")
        if kind == "run":
            runs.setdefault(name, []).append(event)
        elif kind == "slot" and name.isdecimal():
            slots.setdefault(int(name), []).append(event)
    for run_id, told in runs.items():
        yield from _run(document, run_id, told)
    for slot, told in sorted(slots.items()):
        yield from _worker(document, slot, told, whole=kept.whole)
        yield from _actions(document, slot, told, whole=kept.whole)
    if kept.whole:
        yield from _untold(document, runs.keys(), slots.keys())


def gaps(events: Sequence[Event], revision: int) -> Iterator[Violation]:
    """Where history skips or repeats a revision or an event, or ends before *revision*. It may begin late: what is old
    can be set aside.
    """
    check = Check.HISTORY_CONTIGUOUS
    if not events:
        if revision > 0:
            yield Violation(check, "fleet", f"history is empty, and the document is at revision {revision}")
        return
    first, last = events[0], events[-1]
    if first.n != 1:
        yield Violation(check, "fleet", f"history begins at event {first.n} of revision {first.revision}")
    for before, event in pairwise(events):
        if not _follows(before, event):
            numbers = f"{before.revision}.{before.n} to {event.revision}.{event.n}"
            yield Violation(check, event.subject, f"history goes from {numbers} (revision.event)")
    if last.revision != revision:
        what = f"history ends at revision {last.revision}, the document is at {revision}"
        yield Violation(check, "fleet", what)


def kept_of(events: Sequence[Event]) -> Kept:
    """What follows the last gap, or begins with the last whole document that was put there."""
    begin = 0
    for place, (before, event) in enumerate(pairwise(events), 1):
        if _is_whole(event) or not _follows(before, event):
            begin = place
    whole = begin == 0 and bool(events) and events[0].event == INITIALISED
    return Kept(events[begin:], whole)


def _is_whole(event: Event) -> bool:
    return event.event in WHOLE and event.subject == "fleet"


def _follows(before: Event, event: Event) -> bool:
    if event.revision == before.revision:
        return event.n == before.n + 1
    return event.revision == before.revision + 1 and event.n == 1


def _run(document: Document, run_id: str, events: Sequence[Event]) -> Iterator[Violation]:
    """A run from where it was submitted last: an id may have been used before."""
    subject = f"run:{run_id}"
    begin = next((place for place in reversed(range(len(events))) if events[place].event == "submitted"), None)
    own = events[begin or 0 :]
    record = document.runs.get(run_id) or document.finished.get(run_id)
    forgotten = own[-1].event == "pruned"
    if record is None:
        if not forgotten:
            what = f"history says that it is {own[-1].to}, and the document does not have it"
            yield Violation(Check.HISTORY_STATE, subject, what)
        return
    if forgotten:
        yield Violation(Check.HISTORY_STATE, subject, "history says that it was forgotten, and the document has it")
        return
    path = RunPath(record, own, whole=begin is not None)
    for event in own:
        path.hear(event)
    for what in path.wrong:
        yield Violation(Check.HISTORY_MOVES, subject, what)
    for what in path.differences():
        yield Violation(Check.HISTORY_STATE, subject, what)


def _worker(document: Document, slot: int, events: Sequence[Event], *, whole: bool) -> Iterator[Violation]:
    path = WorkerPath(whole=whole)
    moved = whole
    for event in events:
        path.hear(event)
        moved = moved or event.event in _MOVES
    for what in path.wrong:
        yield Violation(Check.HISTORY_MOVES, f"slot:{slot}", what)
    worker = document.workers.get(slot)
    recorded = None if worker is None else worker.state
    if moved and path.state is not recorded:
        what = f"worker: history says {path.state or 'none'}, the document says {recorded or 'none'}"
        yield Violation(Check.HISTORY_STATE, f"slot:{slot}", what)


_MOVES: Final = frozenset(trigger.value for trigger in Trigger)


def _actions(document: Document, slot: int, events: Sequence[Event], *, whole: bool) -> Iterator[Violation]:
    """What is parked in a slot, and what was disowned of it."""
    subject, known, parked = f"slot:{slot}", whole, None
    for event in events:
        if event.event == "action.parked":
            if parked is not None:
                what = f"key {_short(event.key)} was parked over {_short(parked)}, of which nothing is settled"
                yield Violation(Check.HISTORY_ACTIONS, subject, what)
            known, parked = True, event.key
        elif event.event == RESTORED:
            known, parked = True, event.key
        elif event.event in _UNPARKED:
            # One of a key that was never parked is made to be disowned, and says nothing of what is pending.
            if event.key == parked or (not known and event.event == "action.settled"):
                known, parked = True, None
            if event.event == "action.disowned" and event.key not in document.disowned:
                what = f"key {_short(event.key)} was disowned, and the document has forgotten it"
                yield Violation(Check.HISTORY_ACTIONS, subject, what)
    if not known:
        return
    entry = document.pending_actions.get(slot)
    try:
        key = None if entry is None else action_of(entry).idempotency_key
    except BrokenAction:
        return
    if key != parked:
        told = "nothing is pending" if parked is None else f"key {_short(parked)} is pending"
        has = "nothing" if key is None else f"key {_short(key)}"
        yield Violation(Check.HISTORY_ACTIONS, subject, f"history says that {told}, the document has {has}")


def _short(key: str | None) -> str:
    return (key or "")[:12]


def _untold(document: Document, runs: Collection[str], slots: Collection[int]) -> Iterator[Violation]:
    """Records that no event made, of a history that begins with the fleet."""
    for run_id in (*document.runs, *document.finished):
        if run_id not in runs:
            yield Violation(Check.HISTORY_STATE, f"run:{run_id}", "no event made it: history knows nothing of it")
    for slot in document.workers:
        if slot not in slots:
            what = "no event made its worker: history knows nothing of the slot"
            yield Violation(Check.HISTORY_STATE, f"slot:{slot}", what)
    for slot in document.pending_actions:
        if slot not in slots:
            what = "history does not know that anything is pending"
            yield Violation(Check.HISTORY_ACTIONS, f"slot:{slot}", what)


def _tokens(events: Sequence[Event]) -> Iterator[Violation]:
    """The token of every run over all that is kept, whoever put a document there in between."""
    highest: dict[str, int] = {}
    certain: set[str] = set()
    before: Event | None = None
    for event in events:
        if _is_whole(event) or (before is not None and not _follows(before, event)):
            certain.clear()
        before = event
        if not event.subject.startswith("run:") or (event.token is None and event.event != "submitted"):
            continue
        run, token = event.subject, event.token or 0
        last = highest.get(run, token)
        follows = token == last + _climbs(event) if run in certain else token >= last
        if not follows:
            what = f"{event.event} (revision {event.revision}) has token {token}, after token {last}"
            yield Violation(Check.TOKEN_ORDER, run, what)
        highest[run] = max(token, last)
        certain.add(run)


def _climbs(event: Event) -> int:
    return 1 if event.event == Trigger.CLAIM and event.to == RunState.RUNNING and event.step is None else 0
