"""History in sentences: what led a run or a slot to where it is, and whether the document agrees with that.

Not promised: every event. Lives that went alike are told once, and the middle of a long story is left out; `history`
tells all. A story is no longer than a screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from controller.engine.retrace import RunPath, WorkerPath
from controller.model.reason import EXPLAINED, Reason
from controller.model.records import Event, Run, RunState, StepState, Tombstone, Worker, WorkerState
from controller.model.restore import RESTORED
from controller.model.transition import Trigger

_BEGINNINGS: Final = frozenset({Trigger.PARK_CREATE.value, Trigger.ADOPT.value, Trigger.CONDEMN.value})
"""Events by which a slot gets a worker."""
FIRST, LAST = 2, 8
"""How many sentences at both ends of a long story are told."""
MANY = 3
"""More steps than these that ended alike in one life are counted, not named."""


class Begins(StrEnum):
    """Where a story begins: with the record itself; later, what came before is not kept; or history tells nothing."""

    BEGINNING = "beginning"
    LATER = "later"
    NOWHERE = "nowhere"


class Told(Struct, frozen=True):
    """One sentence about what happened from `at` until `until` (UTC ms), first in `revision`."""

    revision: int
    at: int
    until: int
    what: str


class Story(Struct, frozen=True):
    """`state` is where the events lead (None: to no record); `agrees`: the document says the same, None if none lead
    anywhere. `disagreements` are sentences.
    """

    begins: Begins
    told: tuple[Told, ...]
    state: str | None
    agrees: bool | None
    disagreements: tuple[str, ...]


def tell_run(record: Run | Tombstone, events: Sequence[Event]) -> Story:
    """The story of a run from *events*, which must be its own, oldest first, none later than the document's revision.

    It begins where the run was last submitted, since an id may have been used before; or where a restore put it back:
    what came before does not lead to what it is.
    """
    start = next((n for n in reversed(range(len(events))) if events[n].event in ("submitted", RESTORED)), None)
    events = events[start or 0 :]
    whole = start is not None and events[0].event != RESTORED
    back = events[0] if start is not None and not whole else None
    events = events if back is None else events[1:]
    path, teller = RunPath(record, events, whole=whole), _RunTeller(record)
    if back is not None:
        teller.alone(back, f"A restore put the document back to an earlier revision, with the run {back.to}.")
    elif not whole and events:
        teller.alone(events[0], f"History begins here, with the run {path.state}: what came before is not kept.")
    for event in events:
        before = path.state
        path.hear(event)
        teller.hear(event, before, path.state, path.token)
    teller.close()
    return _story(whole, teller.told, path.state, path.wrong, path.differences() if events else (), record.id)


def tell_slot(worker: Worker | None, slot: int, events: Sequence[Event]) -> Story:
    """The story of the last worker of a slot, from *events* as for `tell_run`."""
    begins = (*_BEGINNINGS, RESTORED)
    start = next((n for n in reversed(range(len(events))) if events[n].event in begins), None)
    events = events[start or 0 :]
    whole = start is not None and events[0].event != RESTORED
    path, teller = WorkerPath(whole=whole), _Teller()
    moved = False
    for event in events:
        path.hear(event)
        moved = moved or event.event in _OF_WORKER
        _tell_of_worker(teller, event)
    recorded = None if worker is None else worker.state
    differences = (
        (f"worker: history says {path.state or 'none'}, the document says {recorded or 'none'}",)
        if moved and path.state is not recorded
        else ()
    )
    story = _story(whole, teller.told, path.state, path.wrong, differences, f"slot:{slot}")
    return story if moved else replace(story, begins=Begins.NOWHERE, state=None, agrees=None)


def _story(
    whole: bool,
    told: Sequence[_Entry],
    state: RunState | WorkerState | None,
    wrong: Sequence[str],
    differences: Sequence[str],
    subject: str,
) -> Story:
    if not told:
        return Story(Begins.NOWHERE, (), None, None, ())
    sentences = list(_merged(told))
    if len(sentences) > FIRST + LAST + 1:
        gap = sentences[FIRST:-LAST]
        left_out = f"({len(gap)} more; all: controller history {subject})"
        sentences[FIRST:-LAST] = [Told(gap[0].revision, gap[0].at, gap[-1].until, left_out)]
    found = (*wrong, *differences)
    begins = Begins.BEGINNING if whole else Begins.LATER
    return Story(begins, tuple(sentences), None if state is None else state.value, not found, found)


class _Entry(Struct, frozen=True):
    """One sentence to be: what is `alike` in neighbours becomes one. `life` is the number of a life, 0 for none."""

    alike: str
    life: int
    revision: int
    at: int
    until: int


class _Teller:
    def __init__(self) -> None:
        self.told: list[_Entry] = []

    def alone(self, event: Event, what: str) -> None:
        self.told.append(_Entry(what, 0, event.revision, event.at, event.at))


class _RunTeller(_Teller):
    """Collects what happened in one life until that ends."""

    def __init__(self, record: Run | Tombstone) -> None:
        super().__init__()
        self._record = record
        self._life: _Entry | None = None
        self._steps: list[tuple[str, str]] = []
        self._heard: list[int] = []
        """When the holder of this life sent heartbeats."""
        self._cancel = False

    def hear(self, event: Event, before: RunState, after: RunState, token: int | None) -> None:
        if before is RunState.RUNNING and self._life is None:
            self._begin(event)
        if event.step is not None:
            if self._life is not None:
                self._steps.append((_of_step(event), event.step))
        elif event.event == "cancel_requested" and before is RunState.RUNNING:
            self._cancel = True
        elif event.event == "heartbeat":
            self._heard.append(event.at)
        elif before is RunState.RUNNING and after is not RunState.RUNNING:
            self._end(event, after)
        elif after is RunState.RUNNING and before is not RunState.RUNNING:
            self._begin(event, token)
        elif before is not RunState.RUNNING and not _is_told_by_discard(event):
            self.alone(event, _of_queued(event, after))

    def close(self) -> None:
        """Tell of the life that has not ended."""
        life = self._life
        if life is None:
            return
        steps = self._of_steps()
        parts = [f"runs{_holder(self._record)}"]
        parts += [f"so far: {steps}"] if steps else []
        if self._heard:
            times = "1 heartbeat" if len(self._heard) == 1 else f"{len(self._heard)} heartbeats"
            parts.append(f"it sent {times}")
        parts += ["a cancel was requested"] if self._cancel else []
        until = max((life.until, *self._heard))
        self.told.append(replace(life, alike=f"{'; '.join(parts)}.", until=until))

    def _begin(self, event: Event, token: int | None = None) -> None:
        self._life = _Entry("", token or event.token or 0, event.revision, event.at, event.at)
        self._steps, self._heard, self._cancel = [], [], False

    def _end(self, event: Event, after: RunState) -> None:
        life = self._life or _Entry("", event.token or 0, event.revision, event.at, event.at)
        how = _ENDS.get(event.event, f"ended by {event.event}")
        if event.event == Trigger.ALL_STEPS_DONE and not self._record.steps:
            how = "was completed by its holder"
        elif event.reason in _DISCARDS:
            how = "was taken from its holder"
        elif event.event == Trigger.LEASE_EXPIRED and self._heard:
            how += " after it had sent heartbeats"
        cancel = "a cancel was requested" if self._cancel else ""
        parts = "; ".join(part for part in (cancel, event.detail or "", self._of_steps(event.detail)) if part)
        what = f"{how}: {parts}." if parts else f"{how}."
        reason = "" if event.reason is None else f": {EXPLAINED[event.reason].text}"
        if after is RunState.QUEUED:
            what += f" The run went back to its queue{reason}."
        elif after is RunState.FAILED:
            what += f" The run failed for good{reason}."
        elif after is RunState.CANCELLED and event.event != Trigger.CANCEL_OBSERVED:
            what += f" The run was cancelled{reason}."
        self.told.append(replace(life, alike=what, until=event.at))
        self._life = None

    def _of_steps(self, detail: str | None = None) -> str:
        """How the life's steps went. A lone step whose end *detail* tells is not told twice."""
        ended = [(how, name) for how, name in self._steps if how != _STARTED] or self._steps
        if detail is not None and len({name for _, name in self._steps}) == 1:
            return ""
        return ", ".join(_steps_alike(how, [name for _, name in same]) for how, same in groupby(ended, _how))


def _holder(record: Run | Tombstone) -> str:
    if record.worker is not None:
        return f" on the worker in slot {record.worker.slot} ({record.worker.assignment})"
    return f", held by {record.lease.owner}" if isinstance(record, Run) and record.lease is not None else ""


def _is_told_by_discard(event: Event) -> bool:
    """What was discarded out of its queue is cancelled first, in the same commit."""
    return event.event == Trigger.CANCEL_OBSERVED and event.reason in _DISCARDS


def _how(step: tuple[str, str]) -> str:
    return step[0]


def _steps_alike(how: str, names: Sequence[str]) -> str:
    different = list(dict.fromkeys(names))
    if len(different) > MANY:
        return f"{len(different)} steps {how}"
    times = f" {len(names)} times" if len(different) == 1 and len(names) > 1 else ""
    *front, last = different
    return f"steps {', '.join(front)} and {last} {how}" if front else f"step {last} {how}{times}"


_STARTED = "started"
_DISCARDS = (Reason.DISCARDED, Reason.REPLACED)
_ENDS = {
    Trigger.ALL_STEPS_DONE.value: "ended with its last step",
    Trigger.ATTEMPT_FAILED.value: "failed",
    Trigger.LEASE_EXPIRED.value: "was lost",
    Trigger.CANCEL_OBSERVED.value: "was cancelled",
    Trigger.SHUTDOWN_DRAIN.value: "was given back by its holder",
}


def _of_step(event: Event) -> str:
    match event.event:
        case Trigger.STEP_STARTED:
            return _STARTED
        case Trigger.STEP_SUCCEEDED:
            return "succeeded"
        case Trigger.UPSTREAM_FAILED:
            return "skipped"
        case Trigger.CANCEL_OBSERVED:
            return "cancelled"
        case Trigger.STEP_FAILED if event.reason is not None:
            again = " (tried again)" if event.to == StepState.PENDING else ""
            return f"{EXPLAINED[event.reason].text}{again}"
        case Trigger.LEASE_EXPIRED | Trigger.SHUTDOWN_DRAIN if event.to == StepState.PENDING:
            return "given back"
    return f"{event.event}: {event.to}"


def _of_queued(event: Event, after: RunState) -> str:
    """A sentence about what happened to a run that nobody holds."""
    reason = "" if event.reason is None else f": {EXPLAINED[event.reason].text}"
    detail = f" ({event.detail})" if event.detail else ""
    match event.event:
        case "submitted" if event.token is not None:
            return f"Submitted{reason}; earlier runs of this id had lives up to {event.token}."
        case "submitted":
            return f"Submitted{reason}."
        case "discarded":
            return f"Taken out for good{reason}."
        case "cancel_requested":
            return "A cancel was requested."
        case Trigger.DEFERRED:
            return f"Deferred{reason}{detail}."
        case Trigger.PROMOTED:
            return "Made available."
        case Trigger.OPERATOR_RETRY:
            return f"{EXPLAINED[Reason.OPERATOR_RETRY].text.capitalize()}."
        case Trigger.CANCEL_OBSERVED | Trigger.CLAIM:
            return f"Ended in its queue{reason}."
    return f"{event.event} led to {after}{reason}{detail}."


_OF_WORKER = {
    Trigger.PARK_CREATE.value: "A worker was planned",
    Trigger.CREATE_DONE.value: "The worker was made",
    Trigger.CREATE_SETTLED.value: "The worker was not made",
    Trigger.CLAIM.value: "A run took it",
    Trigger.RELEASE.value: "It was freed",
    Trigger.REUSE.value: "It waits for the next run",
    Trigger.DEALLOCATE.value: "It was stopped",
    Trigger.DELETE_COMPUTE.value: "Its compute was removed",
    Trigger.RESET.value: "Its data was removed; the slot is free",
    Trigger.RESUME.value: "It is started again",
    Trigger.SEEN_GONE.value: "It was lost",
    Trigger.ADOPT.value: "A worker that no record knew was adopted",
    Trigger.CONDEMN.value: "A worker that no record knew is to be removed",
    Trigger.FORGET.value: "Its record was given up; the slot has no worker",
}
_SEEN: Final = {
    RESTORED: "A restore put the document back to an earlier revision",
    "seen_absent": "A look did not show it",
    "seen_again": "A look showed it again",
    "seen_idle": "Looks show it idle",
    "seen_busy": "Looks show it idle no more",
    "seen_dark": "A look found its compute off",
    "ends_forgotten": "Its data is gone too: no end of a step will come any more",
    "unrecorded_seen": "Something that no record knows was seen",
    "unrecorded_settled": "Nothing is seen any more that no record knows",
    "cordoned": "The slot was cordoned",
    "slot_draining": "The slot is drained",
    "uncordoned": "The slot was taken into service again",
    "provider_gone": "Somebody said that the provider's process is gone",
    "abandoned": "Its action was abandoned",
    "action.disowned": "An action was disowned",
    "disowned_unseen": "A look showed nothing of what was disowned",
    "disowned_seen_again": "A look showed it again",
    "disowned_proven": "What the disowned action did is proven",
}
"""What else is told of a slot."""


def _tell_of_worker(teller: _Teller, event: Event) -> None:
    reason = "" if event.reason is None else f": {EXPLAINED[event.reason].text}"
    detail = f" ({event.detail})" if event.detail else ""
    if event.event in _OF_WORKER:
        teller.alone(event, f"{_OF_WORKER[event.event]}{reason}{detail}.")
    elif event.event in _SEEN:
        teller.alone(event, f"{_SEEN[event.event]}{detail}.")
    elif event.event == "action.kept":
        teller.alone(event, f"The provider was asked ({event.from_}){reason}{detail}.")
    elif event.event == "action.settled" and event.reason is not Reason.DONE:
        teller.alone(event, f"What was asked ({event.from_}) is settled{reason}{detail}.")
    elif event.event == "trouble":
        teller.alone(event, f"Trouble{reason}{detail}.")


def _merged(told: Sequence[_Entry]) -> Iterator[Told]:
    """Sentences, neighbours that are alike made one."""
    key: Callable[[_Entry], tuple[bool, str]] = lambda entry: (entry.life > 0, entry.alike)  # noqa: E731 - typed here
    for _, same in groupby(told, key):
        group = list(same)
        yield Told(group[0].revision, group[0].at, group[-1].until, _sentence(group))


def _sentence(group: Sequence[_Entry]) -> str:
    first, last = group[0], group[-1]
    if first.life and first is last:
        return f"Life {first.life} {first.alike}"
    if first.life:
        between = "and" if len(group) == 2 else "to"
        return f"Lives {first.life} {between} {last.life} went alike; each {first.alike}"
    return first.alike if first is last else f"{len(group)} times: {first.alike}"
