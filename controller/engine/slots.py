"""What is the matter with a slot, in sentences, and what to type about it: as docs/recovery.md says it. Pure.

Not promised: that the provider agrees. What only a look shows is told when the caller brings what the look made of the
slot. Commands are complete but for WHY, which only whoever types them knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controller.engine.age import is_expired
from controller.engine.capacity import Headcount
from controller.engine.classify import Classified
from controller.engine.lifecycle import holds, waits_for
from controller.engine.standing import Surroundings, Words, span
from controller.model.action import Action, action_of
from controller.model.edit import Draft
from controller.model.errors import BrokenAction
from controller.model.health import BreakerState, breaker_state, retry_at
from controller.model.policy import Policy, Release
from controller.model.reason import EXPLAINED, Reason
from controller.model.records import (
    ActionType,
    Disowned,
    Document,
    PendingAction,
    Proven,
    RunState,
    Slot,
    Worker,
    WorkerState,
)

MANY: Final = 5
"""How many slots are named."""

_RELEASE: Final = "controller release {run} --reason WHY --confirm-release"
_RESUME: Final = "controller resume {run} --reason WHY --confirm-resume"
_SURRENDER: Final = "controller surrender {run} --reason WHY --confirm-surrender"
_PROVE: Final = (
    "controller release {run} --template > proof.json",
    "controller release {run} --proof proof.json",
)
_ABANDON: Final = "controller abandon {slot} --key {key} --reason WHY --confirm-abandon"
_UNRESOLVED: Final = " --unresolved --reason"
_FORGET: Final = "controller forget {slot} --reason WHY --confirm-forget"
_APPLY: Final = "controller reconcile --apply"
_TYPED: Final[Mapping[Reason, tuple[str, ...]]] = {
    Reason.UNKNOWN: ("controller replay-pending",),
    Reason.PENDING: ("controller replay-pending",),
    Reason.NOT_SENT: ("controller doctor", "controller replay-pending"),
    Reason.REJECTED: (_APPLY,),
    Reason.KEY_EXPIRED: (_APPLY, _ABANDON),
    Reason.IDENTITY_REFUSED: ("controller status --live", _ABANDON),
    Reason.APPLY_FAILED: ("controller fsck", "controller replay-pending", _ABANDON),
    Reason.CORDONED: ("controller uncordon {slot} --reason WHY --confirm-uncordon",),
    Reason.DISOWNED: (_APPLY, "controller status --live"),
    Reason.BREAKER_OPEN: ("controller doctor",),
    Reason.UNRECORDED: ("controller adopt {slot}", "controller delete-unrecorded {slot}"),
    Reason.IDENTITY_CHANGED: ("controller status --live", _APPLY),
    Reason.FOREIGN_TAG: ("controller status --live", _APPLY),
    Reason.ID_TWICE: ("controller status --live", _APPLY),
    Reason.RETURNED: (_APPLY,),
    Reason.NOT_SHOWN: (_APPLY,),
    Reason.SEEN_GONE: (_APPLY,),
    Reason.SEEN_DARK: (_APPLY,),
}
"""What is typed about each; what is not here needs nothing, or goes on by itself."""


def commands(reason: Reason, *, slot: int, key: str = "") -> list[str]:
    """What to type about *reason*, in order. What needs a key is left out without one."""
    shown = (each for each in _TYPED.get(reason, ()) if key or "{key}" not in each)
    return [each.format(slot=slot, key=key) for each in shown]


def ways_out(worker: Worker, policy: Policy) -> list[str]:
    """What ends, or takes up again, the assignment of a worker whose run is over."""
    stopped, lost = worker.state is WorkerState.DEALLOCATED, worker.state is WorkerState.LOST
    if policy.release is Release.PROOF:
        shown = (*_PROVE, *((_RESUME,) if stopped or lost else ()), *((_SURRENDER,) if lost else ()))
    else:
        shown = (_RELEASE, _RESUME) if stopped or lost else (_APPLY,)
    return [each.format(run=worker.run) for each in shown]


def gone_for_good(document: Document, slot: int, policy: Policy) -> list[str]:
    """What to type next about a slot whose provider will never answer again; nothing: nothing is on record."""
    worker, entry = document.workers.get(slot), document.pending_actions.get(slot)
    if entry is not None:
        try:
            key = action_of(entry).idempotency_key
        except BrokenAction:
            return []
        return [_ABANDON.replace(" --reason", _UNRESOLVED).format(slot=slot, key=key)]
    if worker is None:
        return []
    if worker.run is None:
        return [_FORGET.format(slot=slot)]
    ends = policy.release is Release.AUTO and not holds(worker, document.runs.get(worker.run))
    typed = _RELEASE if ends else _SURRENDER.replace(" --reason", _UNRESOLVED)
    return [typed.format(run=worker.run)]


def of_slot(
    document: Document, slot: int, around: Surroundings, live: Classified | None, *, silent: bool = False
) -> Words:
    """What is to be said of *slot*, the most pressing first. *live*: what a look just now makes of it; *silent*: one
    was asked for, and there is none.
    """
    worker, entry = document.workers.get(slot), document.pending_actions.get(slot)
    told, todo = ([], []) if worker is not None else _empty(document, slot, around)
    if worker is not None:
        told.append(of_worker(document, worker))
        if worker.reason is not None:
            told.append(EXPLAINED[worker.reason].why)
    for more in (
        _pending(document, slot, entry, around),
        _live(slot, entry, live),
        _unrecorded(document.slots.get(slot) or Slot(), slot, around),
        _disowned(document, slot),
        of_record(document, slot, around.now),
        _waits(document, worker, entry, around),
        _breaker(document, worker, around),
        _unanswered(document, slot, around, silent),
    ):
        told += [each for each in more[0] if each not in told]
        todo += more[1]
    return told, todo


def _unanswered(document: Document, slot: int, around: Surroundings, silent: bool) -> Words:
    """What is left to do where the slot's provider does not answer, or the settings name another one."""
    worker = document.workers.get(slot)
    foreign = worker is not None and around.provider not in ("", worker.provider)
    typed = gone_for_good(document, slot, around.policy) if silent or foreign else []
    if not typed:
        return [], []
    if worker is not None and foreign:
        told = f"The settings name provider {around.provider}; {worker.provider}, which made its worker, is not asked."
        if typed[0].startswith(("controller abandon", "controller surrender")):
            typed = [f'set kind = "{worker.provider}" under [provider] again', *typed]
        return [told, "If that one is gone for good, only an operator can empty the slot."], typed
    return ["The provider does not say what there is. If it is gone for good, only an operator can go on."], typed


def _empty(document: Document, slot: int, around: Surroundings) -> Words:
    told, todo = [f"No worker is recorded in slot {slot}."], []
    if slot > around.slots:
        slots = "1 slot" if around.slots == 1 else f"{around.slots} slots"
        told.append(f"The configuration has {slots}: none is made here.")
    elif Headcount(_draft(document, around), around.policy).room == 0:
        told.append(EXPLAINED[Reason.FLEET_FULL].why)
    if document.draining:
        told.append("The fleet is draining: it takes nothing new.")
        todo.append("controller drain --off")
    return told, todo


def of_worker(document: Document, worker: Worker) -> str:
    """What the record says of a worker."""
    made = f"Worker {worker.id or '(no id yet)'} of {worker.provider}, assignment {worker.assignment}"
    kept = None if worker.run is None else f"for run {worker.run}, which {_fate(document, worker.run)}"
    match worker.state:
        case WorkerState.CREATING if worker.was is not None:
            return f"{made}, is being made anew {kept}."
        case WorkerState.CREATING:
            return f"{made}, is being made" + (f" for run {worker.reserved}." if worker.reserved else ".")
        case WorkerState.ASSIGNED if kept is not None and not holds(worker, document.runs.get(worker.run or "")):
            return f"{made}, is kept {kept}."
        case WorkerState.ASSIGNED:
            return f"{made}, holds run {worker.run}."
        case WorkerState.READY:
            return f"{made}, is ready and idle."
        case WorkerState.RELEASED:
            return f"{made}, is free of its run."
        case WorkerState.DEALLOCATED if kept is not None:
            return f"{made}, is stopped; its data is kept {kept}."
        case WorkerState.DEALLOCATED:
            return f"{made}, is stopped; its compute is removed next."
        case WorkerState.COMPUTE_REMOVED:
            return f"{made}, has no compute left; its data is removed next."
        case WorkerState.LOST if kept is not None:
            return f"{made}, is gone; what is left of it is kept {kept}."
        case WorkerState.LOST:
            return f"{made}, is gone; what is left of it is removed next."


def _fate(document: Document, run_id: str) -> str:
    """What became of a run that its worker does not hold any more."""
    run = document.runs.get(run_id) or document.finished.get(run_id)
    if run is None:
        return "is forgotten"
    match run.state:
        case RunState.QUEUED:
            return "is queued again"
        case RunState.RUNNING:
            return "runs elsewhere"
        case RunState.SUCCEEDED:
            return "has succeeded"
        case RunState.FAILED:
            return "has failed"
        case RunState.CANCELLED:
            return "was cancelled"


def of_pending(document: Document, slot: int, entry: PendingAction, around: Surroundings) -> Words:
    """What is known of a parked action, and how it is settled."""
    try:
        action = action_of(entry)
    except BrokenAction as broken:
        return [f"What is parked for slot {slot} is no action: {broken.what}. It is never sent."], ["controller fsck"]
    key = action.idempotency_key
    article = "An" if action.type[0] in "aeiou" else "A"
    sent = {0: "not sent yet", 1: "sent once"}.get(entry.sends, f"sent {entry.sends} times")
    told = [f"{article} {action.type} is parked for slot {slot} (key {key[:12]}), {sent}."]
    reason = entry.last_reason
    if entry.rejected is not None:
        told.append("The provider refused it, but an earlier send may have worked: looks must show that it did not.")
        reason = Reason.REJECTED
    elif is_expired(document, entry, around.now):
        told.append(EXPLAINED[Reason.KEY_EXPIRED].why)
        reason = Reason.KEY_EXPIRED
    elif reason is not None:
        told.append(EXPLAINED[reason].why)
    if entry.last_error is not None:
        told.append(f"Its last error: {entry.last_error}.")
    if entry.not_before is not None and entry.not_before > around.now:
        told.append(f"Reconcile sends it again in {(entry.not_before - around.now + 999) // 1000} s.")
    in_flight, instead = _flight(slot, action, around)
    todo = commands(reason or Reason.UNKNOWN, slot=slot, key=key)
    return told + in_flight, instead or todo


def _flight(slot: int, action: Action, around: Surroundings) -> Words:
    """What works on the action, and what is to be typed instead of anything else: nothing: nothing does."""
    key = action.idempotency_key
    note, flight = around.notes.get(slot), around.flights.get(slot)
    if note is not None and not note.readable:
        return [f"The slot's lock file {note.where} cannot be read, so nothing proves that no provider works."], [
            f"make sure that no provider program works for slot {slot}, then empty {note.where}"
        ]
    if flight is not None and flight.process == "provider":
        if flight.certain:
            return [f"Provider process {flight.pid} works on it; until that ends nothing is sent."], [
                "controller status"
            ]
        told = f"Provider process {flight.pid} of another pid namespace was given it, and may still live."
        gone = _ABANDON.replace(" --reason", " --provider-gone --reason").format(slot=slot, key=key)
        return [told, "Until somebody says that it is gone, nothing is sent for the slot."], [gone]
    if flight is None and note is not None and note.provider is not None and note.key == key:
        return [f"Provider process {note.provider.pid} was given it last."], []
    return [], []


def _pending(document: Document, slot: int, entry: PendingAction | None, around: Surroundings) -> Words:
    return ([], []) if entry is None else of_pending(document, slot, entry, around)


def _live(slot: int, entry: PendingAction | None, live: Classified | None) -> Words:
    """What a look says that the record does not. Nothing judges a record that a pending action owns."""
    if live is None or entry is not None:
        return [], []
    told = [f"A look just now: {live.why}.", EXPLAINED[live.reason].why]
    return told, commands(live.reason, slot=slot)


def _unrecorded(record: Slot, slot: int, around: Surroundings) -> Words:
    if not record.unrecorded:
        return [], []
    told = []
    for each in record.unrecorded:
        named = f"{each.id or 'something'} ({each.assignment} generation {each.generation}, {each.state})"
        steps = f", with {each.running} running steps" if each.running else ""
        told.append(f"The provider shows {named}{steps}, which no record knows, since {span(around.now - each.at)}.")
    if record.unrecorded_more:
        told.append(f"It shows {record.unrecorded_more} more in this slot.")
    return [*told, EXPLAINED[Reason.UNRECORDED].why], commands(Reason.UNRECORDED, slot=slot)


def _disowned(document: Document, slot: int) -> Words:
    """Actions for the slot that can never be settled; one that no look has proven yet holds the slot back."""
    told, todo = [], []
    for key, each in document.disowned.items():
        kind = _kind_for(each, slot)
        if kind is None:
            continue
        by = f" by {each.by}" if each.by else ""
        # Only what keeps a worker that was forgotten was never sent.
        forgotten = kind == ActionType.DELETE_COMPUTE and each.sent_at is None
        what = "Its worker was forgotten" if forgotten else f"Its {kind} (key {key[:12]}) was disowned"
        told.append(f"{what}{by}: {each.detail or EXPLAINED[each.reason].text}.")
        match each.proven:
            case None:
                why = "It may be there and cost money." if forgotten else EXPLAINED[Reason.DISOWNED].why
                it = "whether it is there" if forgotten else "what it made"
                told += [why, f"Until looks show {it}, the slot takes nothing new."]
                todo += commands(Reason.DISOWNED, slot=slot)
            case Proven.ABSENT:
                told.append(f"Looks have shown that it {'is not there' if forgotten else 'made nothing'}.")
            case Proven.PRESENT:
                told.append(f"Looks have shown {'that it is there' if forgotten else 'what it made'}.")
    return told, todo


def _kind_for(each: Disowned, slot: int) -> str | None:
    """The type of a disowned action of *slot*; None: it is another's, or cannot be read."""
    try:
        action = action_of(PendingAction(each.action, parked_at=each.at))
    except BrokenAction:
        return None
    return action.type.value if action.slot == slot else None


def of_record(document: Document, slot: int, now: int) -> Words:
    """What holds a slot back, besides its worker and pending action."""
    known = document.slots.get(slot)
    if known is None:
        return [], []
    told: list[str] = []
    todo: list[str] = []
    if known.cordoned:
        down = "; its worker is taken down once its run has ended" if known.draining else ""
        told.append(f"The slot is cordoned: it takes nothing new{down}.")
        todo += commands(Reason.CORDONED, slot=slot)
    if known.refusals:
        wait = max(0, (known.not_before or now) - now + 999) // 1000
        times = "once" if known.refusals == 1 else f"{known.refusals} times in a row"
        told.append(f"The provider refused what slot {slot} asked for {times}; it is asked again in {wait} s.")
        last = next((trouble for trouble in reversed(document.troubles) if trouble.slot == slot), None)
        if last is not None:
            told.append(f"It said: {last.what}.")
    return told, todo


def _waits(document: Document, worker: Worker | None, entry: PendingAction | None, around: Surroundings) -> Words:
    """What keeps the worker from its next move, until when, and what to type."""
    if worker is None or entry is not None:
        return [], []
    wait = waits_for(document, worker, around.policy, around.now)
    if wait is None:
        moves = worker.state not in (WorkerState.READY, WorkerState.ASSIGNED)
        return [], [_APPLY] if moves else []
    told = [EXPLAINED[wait.reason].why]
    if wait.until is not None and wait.until > around.now:
        left = span(wait.until - around.now)
        stopped = f"If it stays idle it is stopped in {left}, not removed."
        told.append(stopped if wait.reason is Reason.NOT_RELEASED else f"That is over in {left}.")
    return told, commands(wait.reason, slot=worker.slot) if worker.run is None else ways_out(worker, around.policy)


def _breaker(document: Document, worker: Worker | None, around: Surroundings) -> Words:
    """Which provider is asked for nothing new, since when, why, and until when."""
    name = around.provider if worker is None else worker.provider
    known, breaker = document.providers.get(name), around.policy.breaker
    if known is None or breaker_state(known, breaker, around.now) is BreakerState.CLOSED:
        return [], []
    since = "" if known.opened_at is None else f" {span(around.now - known.opened_at)} ago"
    told = [f"Provider {name} failed {known.failures} times in a row, the last time{since}: {known.why}."]
    at = retry_at(known, breaker)
    again = "now" if at is None or at <= around.now else f"in {span(at - around.now)}"
    told += [EXPLAINED[Reason.BREAKER_OPEN].why, f"One action is tried again {again}."]
    return told, commands(Reason.BREAKER_OPEN, slot=0)


def no_room(document: Document, around: Surroundings) -> Words:
    """Why no worker can take or be made for a run that is due; nothing: one can."""
    ready = (n for n, worker in document.workers.items() if worker.state is WorkerState.READY)
    if any(n not in document.pending_actions and not (document.slots.get(n) or Slot()).cordoned for n in ready):
        return [], []
    if around.slots <= len(document.workers):
        those = "The only slot is taken" if around.slots == 1 else f"All {around.slots} slots are taken"
        told = [f"{those}; it is served when one is free."]
    elif Headcount(_draft(document, around), around.policy).room == 0:
        told = [f"{EXPLAINED[Reason.FLEET_FULL].why} It is served when a worker is free."]
    else:
        return _breaker(document, None, around)
    kept: dict[Reason, list[int]] = {}
    for slot, worker in sorted(document.workers.items()):
        wait = None if slot in document.pending_actions else waits_for(document, worker, around.policy, around.now)
        if wait is not None:
            kept.setdefault(wait.reason, []).append(slot)
    for reason, numbers in kept.items():
        named = ", ".join(map(str, numbers[:MANY])) + (f" and {len(numbers) - MANY} more" if numbers[MANY:] else "")
        told.append(f"In {'slot' if len(numbers) == 1 else 'slots'} {named}: {EXPLAINED[reason].text}.")
    return told, [f"controller explain slot:{numbers[0]}" for numbers in kept.values()] or ["controller status"]


def _draft(document: Document, around: Surroundings) -> Draft:
    return Draft(document, now=around.now, command="explain")
