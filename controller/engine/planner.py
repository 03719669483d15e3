"""What to do next: a pure function of the document, a look, the policy and the time.

Planning twice gives equal plans and changes nothing. A plan is one edit: what the look proved, and every action to
park, at most one a slot. Nothing is planned for a slot that has a pending action: its record is not the truth yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from controller.engine import fold
from controller.engine.discovery import FINALISTS, count_claim, is_fair_turn, is_paused
from controller.engine.index import order
from controller.engine.looks import observe
from controller.engine.pending import park
from controller.model.action import STEP_KEY_VARIABLE, CancelRequest, ExecuteRequest, step_key
from controller.model.edit import Draft, Edit
from controller.model.inventory import Look
from controller.model.perform import Given, WorkerGiven, move_run, move_worker
from controller.model.policy import Policy, still_waits
from controller.model.reason import Reason
from controller.model.records import (
    ActionType,
    Document,
    Priority,
    Provider,
    Run,
    RunState,
    Step,
    StepState,
    Worker,
    WorkerRef,
    WorkerState,
)
from controller.model.transition import Trigger
from controller.model.views import is_deferred, waits_since
from controller.provider.protocol import Pushed


class Parked(Struct, frozen=True):
    """One action of a plan, and why."""

    slot: int
    type: ActionType
    key: str
    why: str
    run: str | None = None


class Plan(Struct, frozen=True):
    """`edit` holds everything; `parks` names the actions in it, in slot order."""

    edit: Edit
    parks: tuple[Parked, ...]


class Ground(Struct, frozen=True):
    """What a plan stands on besides the document. `key_ttl_ms` is what the provider said of itself; None: for ever."""

    policy: Policy
    provider: str
    key_ttl_ms: int | None = None
    only: int | None = None
    """Plan this slot alone, and let it take no new run."""


def plan(
    document: Document,
    look: Look | None,
    ground: Ground,
    now: int,
    *,
    command: str = "reconcile",
    ends: Sequence[Pushed] = (),
    changed: frozenset[int] | None = None,
) -> Plan:
    """The next plan. Without a look, or with an incomplete one, nothing is concluded from absence.

    *ends* are told by workers themselves and folded by their keys first. *changed*: nothing new is known of the runs
    that any other slot holds, so they are left out; None: every slot is planned for.
    """
    draft = Draft(document, now=now, command=command)
    for end in ends:
        # How an end that nobody knows came about, a look has to say; and a pending action is settled before its slot.
        if end.slot not in draft.pending and not fold.unknowable(end.step):
            fold.end_step(draft, end.slot, end.step, ground.policy)
    returned = frozenset[int]() if look is None else observe(draft, look, ground.policy)
    parks = tuple(_parks(draft, ground, returned, changed))
    if parks:
        _remember(draft, ground)
    return Plan(draft.edit(), parks)


def changed_slots(before: Document, after: Document) -> frozenset[int] | None:
    """Slots whose worker, pending action or held run differ; None: something that matters to every slot does."""
    if (before.draining, before.lineage, before.epoch) != (after.draining, after.lineage, after.epoch):
        return None
    slots = {n for n, worker in after.workers.items() if _differs(before.workers.get(n), worker)}
    pending = after.pending_actions
    slots |= {
        n for n in before.pending_actions.keys() | pending.keys() if before.pending_actions.get(n) != pending.get(n)
    }
    slots |= {
        run.worker.slot
        for run in after.runs.values()
        if run.worker is not None and _differs(before.runs.get(run.id), run)
    }
    return frozenset(slots)


def _differs(before: Struct | None, after: Struct) -> bool:
    return before is not after and before != after


def next_due(document: Document, policy: Policy, now: int) -> int | None:
    """When, in UTC ms after *now*, something falls due that no event will tell; None: nothing waits for a time."""
    times = [run.available_at for run in document.runs.values() if run.available_at and run.state is RunState.QUEUED]
    times += [slot.not_before for slot in document.slots.values() if slot.not_before]
    times += [entry.not_before for entry in document.pending_actions.values() if entry.not_before]
    times += [w.changed_at + policy.idle_ms for w in document.workers.values() if w.state is WorkerState.READY]
    return min((at for at in times if at > now), default=None)


def _remember(draft: Draft, ground: Ground) -> None:
    """Keep what the provider said of its memory of keys, for when it cannot be asked."""
    known = draft.providers.get(ground.provider) or Provider()
    if known.key_ttl_ms != ground.key_ttl_ms:
        draft.providers.put(ground.provider, replace(known, key_ttl_ms=ground.key_ttl_ms))
        draft.event(
            "fleet", "provider_described", detail=f"{ground.provider} remembers keys for {ground.key_ttl_ms} ms"
        )


def _parks(draft: Draft, ground: Ground, returned: frozenset[int], changed: frozenset[int] | None) -> Iterator[Parked]:
    waiting = _Waiting(draft, ground)
    for number, worker in sorted(draft.workers.items()):
        untouched = changed is not None and number not in changed and worker.state is WorkerState.ASSIGNED
        if untouched or not _may_plan(draft, ground, number):
            continue
        if number in returned:
            why = "recorded as lost, but the provider shows it alive"
            yield _simple(draft, ground, worker, ActionType.DEALLOCATE, Reason.SEEN_GONE, why)
        else:
            yield from _for_worker(draft, ground, worker, waiting)
    if draft.draining:
        return
    creating = [w for n, w in draft.workers.items() if w.state is WorkerState.CREATING and _hopeful(draft, n)]
    made_for = {worker.reserved for worker in creating}
    coming = len(creating)
    served_elsewhere = [run for run in waiting.in_order() if run in made_for]
    unserved = [run for run in waiting.in_order() if run not in made_for]
    spare = max(0, coming - len(served_elsewhere))
    for number in range(1, ground.policy.slots + 1):
        if len(unserved) <= spare:
            return
        if number not in draft.workers and not draft.slot(number).cordoned and _may_plan(draft, ground, number):
            yield _create(draft, ground, number, unserved.pop(0))


def _may_plan(draft: Draft, ground: Ground, number: int) -> bool:
    if number in draft.pending or (ground.only is not None and ground.only != number):
        return False
    cap = max(ground.policy.send.cap_ms, ground.policy.create.cap_ms)
    return not still_waits(draft.slot(number).not_before, draft.now, cap)


def _hopeful(draft: Draft, number: int) -> bool:
    """Whether the slot's create may still come by itself. One of unknown fate may: a second would cost for nothing."""
    entry = draft.pending.get(number)
    return entry is None or (entry.rejected is None and entry.last_reason is not Reason.IDENTITY_REFUSED)


class _Waiting:
    """The runs that the fleet may take now. What is taken, or a worker is made for, is handed out once."""

    def __init__(self, draft: Draft, ground: Ground) -> None:
        self._draft = draft
        self._due: dict[str, Run] = {}
        self._first: list[Run] = []
        self._running: Counter[str] = Counter()
        if draft.draining or ground.only is not None:
            return
        open_queues = {queue for queue in ground.policy.queues if not is_paused(draft.queues.get(queue))}
        for run_id, run in draft.runs.items():
            if run.state is RunState.QUEUED and run.queue in open_queues and not is_deferred(run, draft.now):
                self._due[run_id] = run
            elif run.state is RunState.RUNNING and run.concurrency_key:
                self._running[run.concurrency_key] += 1
        # More than can be served at once are of no use, and ordering them all costs more than everything else here.
        keyed = any(run.concurrency_key for run in self._due.values())
        most = len(self._due) if keyed else 2 * (ground.policy.slots + len(draft.document.workers))
        self._first = nsmallest(most, self._due.values(), key=order)
        self._defer_some()

    def __bool__(self) -> bool:
        return self.first() is not None

    def first(self) -> Run | None:
        """The one that is to be served next."""
        found = next(self._claimable(self._first), None)
        if found is None or not is_fair_turn(self._draft.queues.get(found.queue)):
            return found
        fair = (run for run in self._due.values() if run.queue == found.queue and run.priority is not Priority.FORCED)
        longest = min(self._claimable(fair), key=lambda run: (waits_since(run), run.sequence, run.id), default=None)
        return longest or found

    def take(self, run: Run) -> None:
        """*run* is claimed, or turned out to be cancelled."""
        del self._due[run.id]
        if run.concurrency_key:
            self._running[run.concurrency_key] += 1

    def in_order(self) -> list[str]:
        """All that could be taken at once, first served first."""
        permits, found = Counter(self._running), []
        for run in self._first:
            if run.id in self._due and _may_run(run, permits):
                permits[run.concurrency_key] += 1
                found.append(run.id)
        return found

    def _claimable(self, runs: Iterable[Run]) -> Iterator[Run]:
        return (run for run in runs if run.id in self._due and _may_run(run, self._running))

    def _defer_some(self) -> None:
        """Say of the first whose key is full that they wait for it."""
        for run in islice((run for run in self._first if not _may_run(run, self._running)), FINALISTS):
            if run.defer_reason is not Reason.CONCURRENCY:
                move_run(self._draft, run.id, Trigger.DEFERRED, Given(reason=Reason.CONCURRENCY))


def _may_run(run: Run, running: Mapping[str, int]) -> bool:
    """Whether the run's key, if it has one, lets one run more."""
    return not run.concurrency_key or running.get(run.concurrency_key, 0) < run.concurrency


def _for_worker(draft: Draft, ground: Ground, worker: Worker, waiting: _Waiting) -> Iterator[Parked]:
    cordoned = draft.slot(worker.slot).cordoned or worker.slot > ground.policy.slots
    if worker.state is WorkerState.RELEASED and not (draft.draining or cordoned):
        move_worker(draft, worker.slot, Trigger.REUSE, WorkerGiven())
        worker = draft.workers.get(worker.slot) or worker
    match worker.state:
        case WorkerState.READY if waiting and not cordoned and worker.absent is None:
            yield from _claim(draft, ground, worker, waiting)
        case WorkerState.READY if draft.draining or cordoned:
            yield _simple(draft, ground, worker, ActionType.DEALLOCATE, Reason.DRAINING, "drained")
        case WorkerState.READY if not 0 <= draft.now - worker.changed_at < ground.policy.idle_ms:
            yield _simple(draft, ground, worker, ActionType.DEALLOCATE, Reason.IDLE, "idle")
        case WorkerState.RELEASED:
            yield _simple(draft, ground, worker, ActionType.DEALLOCATE, Reason.DRAINING, "drained")
        case WorkerState.ASSIGNED:
            yield from _continue(draft, ground, worker)
        case WorkerState.DEALLOCATED | WorkerState.LOST:
            reason = worker.reason or Reason.RUN_ENDED
            yield _simple(draft, ground, worker, ActionType.DELETE_COMPUTE, reason, worker.state.value)
        case WorkerState.COMPUTE_REMOVED if not worker.accepted:
            yield _simple(draft, ground, worker, ActionType.RESET, Reason.RUN_ENDED, "compute removed")
        case _:
            return


def _claim(draft: Draft, ground: Ground, worker: Worker, waiting: _Waiting) -> Iterator[Parked]:
    """Give the worker the run that is next: its first execute is parked in the commit that claims it."""
    while (chosen := waiting.first()) is not None:
        run_id = chosen.id
        waiting.take(chosen)
        holder = WorkerRef(worker.slot, worker.assignment, worker.generation)
        moved = move_run(draft, run_id, Trigger.CLAIM, Given(worker=holder))
        if moved.to is not RunState.RUNNING:
            continue
        count_claim(draft, chosen.queue)
        run = draft.runs.get(run_id)
        given = WorkerGiven(run=run_id, token=None if run is None else run.attempts)
        move_worker(draft, worker.slot, Trigger.CLAIM, given)
        yield from _continue(draft, ground, draft.workers.get(worker.slot) or worker)
        return


def _continue(draft: Draft, ground: Ground, worker: Worker) -> Iterator[Parked]:
    """The next step of the run that the worker holds, or the end of the one it runs, if that is what is wanted."""
    if worker.run is None or worker.absent is not None:
        return
    fold.advance(draft, worker.run, ground.policy)
    run = draft.runs.get(worker.run)
    if run is None or not fold.held_by(run, worker):
        left = draft.workers.get(worker.slot)
        if left is not None and left.state is WorkerState.ASSIGNED and left.running is None:
            move_worker(draft, worker.slot, Trigger.RELEASE, WorkerGiven())
        return
    if run.cancel_requested_at is not None:
        if worker.running is not None:
            yield _cancel(draft, ground, worker, run, worker.running)
    elif worker.running is None:
        step = next_step(run)
        if step is not None:
            yield _execute(draft, ground, worker, run, step)


def next_step(run: Run) -> Step | None:
    """The first step in order whose needs have all succeeded; None while one runs, or when none is left."""
    if any(step.state is StepState.RUNNING for step in run.steps):
        return None
    succeeded = {step.name for step in run.steps if step.state is StepState.SUCCEEDED}
    return next((s for s in run.steps if s.state is StepState.PENDING and succeeded.issuperset(s.needs)), None)


def _create(draft: Draft, ground: Ground, number: int, run_id: str) -> Parked:
    assignment = _fresh_assignment(draft)
    given = WorkerGiven(assignment=assignment, provider=ground.provider, reserved=run_id)
    move_worker(draft, number, Trigger.PARK_CREATE, given)
    made = draft.workers.get(number)
    assert made is not None, "the transition has just put it there"  # noqa: S101 - see `move_worker`
    key = park(draft, ActionType.CREATE, made, run=run_id, key_ttl_ms=ground.key_ttl_ms)
    return Parked(number, ActionType.CREATE, key, f"run {run_id} waits", run_id)


def _fresh_assignment(draft: Draft) -> str:
    """An assignment that no worker has. The counter alone says so, but for a document that was edited by hand."""
    taken = {worker.assignment for _, worker in draft.workers.items()}
    epoch = f"{draft.document.epoch}-" if draft.document.epoch else ""
    while (assignment := f"a-{epoch}{draft.count('assignment')}") in taken:
        pass
    return assignment


def _execute(draft: Draft, ground: Ground, worker: Worker, run: Run, step: Step) -> Parked:
    # In the request, not left to workers: every provider passes it on, and what already runs need not know of it.
    env = {**step.env, STEP_KEY_VARIABLE: step_key(draft.document.lineage, run, step.name)}
    request = ExecuteRequest(step.argv, env, step.cwd, step.timeout_ms, ground.policy.kill_grace_ms)
    return _for_step(draft, ground, worker, run, step, request)


def _cancel(draft: Draft, ground: Ground, worker: Worker, run: Run, target: str) -> Parked:
    """The step that *target* started; one that was cancelled before its start could be recorded is the next in
    order.
    """
    step = next((s for s in run.steps if s.attempts and s.attempts[-1].key == target), None) or next_step(run)
    return _for_step(draft, ground, worker, run, step, CancelRequest(target, ground.policy.kill_grace_ms))


def _for_step(
    draft: Draft, ground: Ground, worker: Worker, run: Run, step: Step | None, request: ExecuteRequest | CancelRequest
) -> Parked:
    execute = isinstance(request, ExecuteRequest)
    attempts = 0 if step is None else len(step.attempts)
    kind = ActionType.EXECUTE if execute else ActionType.CANCEL
    key = park(
        draft,
        kind,
        worker,
        request=request,
        run=run.id,
        step=None if step is None else step.name,
        attempt=attempts + 1 if execute else max(attempts, 1),
        token=run.attempts,
        key_ttl_ms=ground.key_ttl_ms,
    )
    why = f"step {step.name} is next" if execute and step is not None else "cancel requested"
    return Parked(worker.slot, kind, key, why, run.id)


def _simple(draft: Draft, ground: Ground, worker: Worker, kind: ActionType, reason: Reason, why: str) -> Parked:
    draft.workers.put(worker.slot, replace(worker, reason=reason))
    key = park(draft, kind, worker, key_ttl_ms=ground.key_ttl_ms)
    return Parked(worker.slot, kind, key, why)
