"""Where a run stands in its queue, in sentences, and what to do next: what holds it back, who has it, what is left.

Not promised: that the next claim takes the first in line, since every so many claims serve the one that has waited
longest; that a holder whose lease lasts is alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import UNSET, Raw, Struct, UnsetType

from controller.engine.browse import holders, waits_for
from controller.engine.discovery import is_paused
from controller.engine.index import LAYERS, order
from controller.engine.leases import remaining_ms
from controller.engine.status import Flight
from controller.model.policy import Policy
from controller.model.reason import EXPLAINED, Reason
from controller.model.records import Document, Event, Lease, Queue, Run, RunState, Tombstone
from controller.model.views import View, advice, view_of, waits_since
from controller.store.disk import stamp
from controller.store.protocol import SlotNote

MANY: Final = 3
"""How many holders of a key are named."""
MOST_SHOWN: Final = 200
"""How many characters of what a consumer said are told."""
_UNITS: Final = (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000))
_LAST_YEAR_MS: Final = 253_402_300_799_999
_RETURNED: Final = {
    Reason.RETRY_BACKOFF: "its last life failed",
    Reason.RECONCILED_AFTER_CRASH: "its last holder was lost",
    Reason.REQUEUED_AFTER_SHUTDOWN: "its last holder gave it back",
}
_LOGGED: Final = frozenset(
    {Reason.ATTEMPTS_EXHAUSTED, Reason.STEP_FAILED, Reason.EXIT_CODE, Reason.KILLED_BY_SIGNAL, Reason.CONSUMER_FAILED}
)
"""Ends for which the advice is to read what the run wrote."""

Words = tuple[list[str], list[str]]
"""Sentences, and what to do next."""


class Surroundings(Struct, frozen=True):
    """What is told besides the document: the subject's history, the last refusals, and slot lock notes by slot.

    `now` is UTC ms; `mono_ms` is on the monotonic clock of the boot `boot_id` ("": leases are not told of). `paused` is
    the event by which the run's queue was paused. `flights` are what works on pending actions, by slot; `policy` and
    `provider` what is configured.
    """

    events: Sequence[Event]
    refusals: Sequence[Mapping[str, object]]
    notes: Mapping[int, SlotNote]
    slots: int
    queues: tuple[str, ...]
    now: int
    mono_ms: int = 0
    boot_id: str = ""
    paused: Event | None = None
    flights: Mapping[int, Flight] = {}
    policy: Policy = Policy()
    provider: str = ""

    def is_over(self, lease: Lease) -> bool:
        """Whether the lease is over, as far as the caller can know."""
        return bool(self.boot_id) and remaining_ms(lease, self.boot_id, self.mono_ms) == 0


def span(ms: int) -> str:
    """A length of time in a sentence, such as `90 s` or `3 h`: seconds are rounded up, larger units down."""
    for unit, size in _UNITS:
        if ms >= 2 * size:
            return f"{ms // size} {unit}"
    return f"{(max(ms, 0) + 999) // 1000} s"


def due(run: Run, now: int) -> str:
    """How long a queued run waits for its time, and until when."""
    at = run.available_at or now
    until = f" (until {stamp(at)})" if at - now >= _UNITS[-1][1] and at <= _LAST_YEAR_MS else ""
    return f"It waits another {span(at - now)}{until}"


def held_back(document: Document, run: Run, around: Surroundings) -> Words:
    """What keeps a run that is due from whoever serves its queue; nothing: nothing does."""
    told, todo = [], []
    if is_paused(document.queues.get(run.queue)):
        event = around.paused
        since = "" if event is None else f" since {span(around.now - event.at)}, by `{event.command}`"
        told.append(f"Its queue {run.queue} is paused{since}: nothing of it is handed out.")
        todo.append(f"controller queue resume {run.queue}")
    if run.concurrency_key:
        running = holders(document).get(run.concurrency_key, ())
        if waits_for(run, around.now, {run.concurrency_key: running}) is Reason.CONCURRENCY:
            named = ", ".join(f"{each} ({_holder(document.runs[each])})" for each in running[:MANY])
            more = f" and {len(running) - MANY} more" if len(running) > MANY else ""
            most = f"{run.concurrency} of its runs {'runs' if run.concurrency == 1 else 'run'} at once"
            told.append(f"It waits for its concurrency key {run.concurrency_key}: at most {most}, now {named}{more}.")
            todo.append(f"controller explain {running[0]}")
    return told, todo


def in_line(document: Document, run: Run, around: Surroundings) -> Words:
    """Where a run that is due stands in a queue of consumers, and whether anybody takes from that."""
    told, todo = held_back(document, run, around)
    if run.defer_reason in _RETURNED:
        told.insert(0, f"It is due again: {_RETURNED[run.defer_reason]}.")
    waited, before = span(around.now - waits_since(run)), _before(document, run, around.now)
    told.append(f"In queue {run.queue}, layer {run.priority}, it has waited {waited}, and {before} before it.")
    served = f"Queue {run.queue} is served by consumers, not by the fleet"
    if not (document.queues.get(run.queue) or Queue()).claims:
        told.append(f"{served}, and nobody has ever claimed from it.")
    else:
        active = sum(each.queue == run.queue and each.state is RunState.RUNNING for each in document.runs.values())
        told.append(f"{served}, who hold {_runs(active) if active else 'none'} of it now.")
    return told, todo or [f"controller queue work --queue {run.queue} -- COMMAND"]


def _before(document: Document, run: Run, now: int) -> str:
    """How many runs that could be claimed come before this one."""
    running, own = holders(document), order(run)
    line = [
        each
        for each in document.runs.values()
        if each.queue == run.queue and view_of(each, now) is View.PENDING and waits_for(each, now, running) is None
    ]
    same = sum(each.priority is run.priority and order(each) < own for each in line)
    earlier = sum(LAYERS[each.priority] < LAYERS[run.priority] for each in line)
    parts = [f"{_runs(same)} of its layer"] if same else []
    parts += [f"{_runs(earlier)} of earlier layers"] if earlier else []
    if not parts:
        return "no other is"
    return f"{' and '.join(parts)} {'is' if same + earlier == 1 else 'are'}"


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def _holder(run: Run) -> str:
    if run.lease is not None:
        return f"held by {run.lease.owner}"
    return "running" if run.worker is None else f"in slot {run.worker.slot}"


def held(run: Run, lease: Lease, around: Surroundings, events: Sequence[Event]) -> Words:
    """What is known of a run that a consumer holds. *events* are those of the run, oldest first."""
    over = around.is_over(lease)
    beats = [event for event in events if event.event == "heartbeat" and event.token == run.attempts]
    told = []
    if run.cancel_requested_at is not None:
        asked = next((event for event in reversed(events) if event.event == "cancel_requested"), None)
        heard = asked is not None and bool(beats) and beats[-1].revision > asked.revision
        hears = "was told with a heartbeat since" if heard else "is told with its next heartbeat"
        ago = span(around.now - run.cancel_requested_at)
        told.append(f"A cancel was requested {ago} ago; its holder {hears}.")
    told.append(f"{lease.owner} holds it under token {run.attempts}.")
    if around.boot_id:
        told.append(_lease(lease, around))
    if beats:
        told.append(f"Its last heartbeat came {span(around.now - beats[-1].at)} ago.")
    elif events and run.started_at is not None:
        told.append(f"No heartbeat came since it was claimed, {span(around.now - run.started_at)} ago.")
    if run.progress is not UNSET:
        told.append(f"It said of its progress: {shown(run.progress)}.")
    return told, ["controller queue reap" if over else f"controller wait --no-drive {run.id}"]


def _lease(lease: Lease, around: Surroundings) -> str:
    if not around.is_over(lease):
        left = remaining_ms(lease, around.boot_id, around.mono_ms)
        return f"Its lease lasts another {span(left)} of {span(lease.granted_ms)}, unless a heartbeat renews it."
    ended = "Its lease was granted before this host was rebooted, so it is over"
    if lease.boot_id == around.boot_id:
        ended = f"Its lease ran out {span(around.mono_ms - lease.deadline_ms)} ago"
    return f"{ended}; until somebody takes the run back, its holder may still complete it."


def shown(content: Raw | UnsetType) -> str:
    """JSON that a consumer gave, cut to what a sentence bears."""
    text = "null" if isinstance(content, UnsetType) else bytes(content).decode()
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}... (cut)"


def ended(run: Run, *, consumers: bool) -> Words:
    """How a run ended that is still in the document. *consumers*: they serve its queue, and keep their own logs."""
    told = [] if run.reason is None else [EXPLAINED[run.reason].why]
    told += _handed(run)
    what_next = advice(run)
    if consumers and run.state is RunState.FAILED and run.reason in _LOGGED:
        told.append("What it wrote is kept by its consumer, if anywhere.")
        return told, [f"controller retry {run.id}", f"controller queue discard {run.id}"]
    return told, [] if what_next is None else [what_next]


def left(stone: Tombstone, now: int) -> Words:
    """What is left of a run that is not in the document any more."""
    ago = span(now - stone.finished_at)
    if stone.state is not RunState.SUCCEEDED:
        reason = stone.reason or Reason.DISCARDED
        told = [f"It was {EXPLAINED[reason].text} {ago} ago and left the document; this much is kept of it."]
        told.append(EXPLAINED[reason].why)
        if stone.owner is not None:
            told.append(f"{stone.owner} held it under token {stone.token}; what it reports of it is refused since.")
        return told, [EXPLAINED[reason].next.replace("RUN", stone.id)]
    told = [f"It has {stone.state} in its life {stone.token} and left the document; this much is kept of it."]
    if stone.owner is not None:
        said = "and left no result" if stone.result is UNSET else f"with the result {shown(stone.result)}"
        told.append(f"{stone.owner} completed it {ago} ago under token {stone.token}, {said}.")
    return told + _handed(stone), []


def _handed(ended: Run | Tombstone) -> list[str]:
    if ended.next is None:
        return []
    return [f"With the report of its end its holder got run {ended.next.run}, under token {ended.next.token}."]
