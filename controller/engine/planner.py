"""What to do next: a pure function of the document, a look, the policy and the time.

Planning twice gives equal plans and changes nothing. A plan is one edit: what the look proved, and every action to
park, at most one a slot. Nothing is planned for a slot that has a pending action: its record is not the truth yet.
Compute and data are removed only with a look in hand that speaks of their slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from msgspec import Struct
from msgspec.structs import replace

from controller.engine import disowned, fold
from controller.engine.capacity import Headcount
from controller.engine.demand import Demand
from controller.engine.discovery import count_claim
from controller.engine.index import Index
from controller.engine.lifecycle import cools_until, holds, idled_long, is_worn, kept_for, let_go
from controller.engine.looks import Observed, observe
from controller.engine.pending import park
from controller.engine.sight import grace_over, speaks_of
from controller.model.action import STEP_KEY_VARIABLE, CancelRequest, ExecuteRequest, step_key
from controller.model.edit import Draft, Edit
from controller.model.health import BreakerState, breaker_state
from controller.model.inventory import Look
from controller.model.perform import Given, WorkerGiven, move_run, move_worker
from controller.model.policy import Policy, still_waits
from controller.model.reason import Reason
from controller.model.records import (
    MAX_SLOTS,
    ActionType,
    Document,
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
from controller.provider.protocol import Pushed


class Parked(Struct, frozen=True):
    """One action of a plan, and why."""

    slot: int
    type: ActionType
    key: str
    why: str
    run: str | None = None


class Plan(Struct, frozen=True):
    """`edit` holds everything; `parks` names the actions in it, in slot order.

    `retained` are slots that nothing may touch, by this look or the last one. `wants_look`: a removal waits for nothing
    but a look that was asked for now.
    """

    edit: Edit
    parks: tuple[Parked, ...]
    retained: frozenset[int] = frozenset()
    wants_look: bool = False


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
    retained: frozenset[int] = frozenset(),
    index: Index | None = None,
) -> Plan:
    """The next plan. Without a look, or with an incomplete one, nothing is concluded from absence, and what the last
    look *retained* stays so.

    *ends* are told by workers themselves and folded by their keys first. *changed*: nothing new is known of the runs
    that any other slot holds, so they are left out; None: every slot is planned for. *index*, if given, is that of
    *document*: without it one is made, which looks at every run.
    """
    draft = Draft(document, now=now, command=command)
    for end in ends:
        # How an end that nobody knows came about, a look has to say; and a pending action is settled before its slot.
        if end.slot not in draft.pending and not fold.unknowable(end.step):
            fold.end_step(draft, end.slot, end.step, ground.policy)
    observed = Observed(retained=retained)
    if look is not None and look.complete:
        observed = observe(draft, look, ground.policy)
        silent = frozenset(number for number in retained if not speaks_of(look, document, number))
        observed = replace(observed, retained=observed.retained | silent)
    if look is not None:  # something is there, and nobody knows what: it is not for a new worker to find out
        observed = replace(observed, retained=observed.retained.union(look.inventory.unreadable))
    closed = draft.draining or ground.only is not None
    demand = Demand(draft, ground.policy, index or Index(document.runs, ""), closed=closed)
    with closing(demand):
        turn = _Turn(draft, ground, look, observed, demand)
        parks = tuple(_parks(turn, changed))
    if parks:
        _remember(draft, ground)
    return Plan(draft.edit(), parks, observed.retained, turn.wants_look)


class _Turn:
    """One plan in the making."""

    def __init__(self, draft: Draft, ground: Ground, look: Look | None, observed: Observed, demand: Demand) -> None:
        self.draft = draft
        self.ground = ground
        self.look = look
        self.observed = observed
        self.demand = demand
        self.heads = Headcount(draft, ground.policy, self.is_closed)
        self.wants_look = False
        self._taken: frozenset[str] | None = None
        self._left = _allowance(draft, ground)
        self._disowned = disowned.blocked(draft)

    def may_plan(self, number: int) -> bool:
        """Whether an action may be parked for the slot at all."""
        draft, only = self.draft, self.ground.only
        if self._left <= 0 or number in draft.pending or number in self.observed.retained or only not in (None, number):
            return False
        if number in self._disowned:
            return False
        cap = max(self.ground.policy.send.cap_ms, self.ground.policy.create.cap_ms)
        return not still_waits(draft.slot(number).not_before, draft.now, cap)

    def is_closed(self, number: int) -> bool:
        """Whether the slot takes nothing new."""
        known = self.draft.slot(number)
        return known.cordoned or bool(known.unrecorded) or self.is_leaving(number)

    def is_leaving(self, number: int) -> bool:
        """Whether the slot's worker is taken down once its run has ended."""
        return self.draft.draining or self.draft.slot(number).draining or number > self.ground.policy.slots

    def look_at(self, number: int) -> Look | None:
        """The look, if it may say anything about the slot."""
        look = self.look
        return look if look is not None and speaks_of(look, self.draft.document, number) else None

    def may_remove(self, number: int) -> bool:
        """Whether a look says what there is to be removed. A look that is too old, or none, is asked for anew."""
        if self.look_at(number) is not None:
            return True
        known = self.draft.slots.get(number)
        if self.look is None or (known is not None and known.changed > self.look.revision):
            self.wants_look = True
        return False

    def fresh_assignment(self) -> str:
        """One that no worker has. The counter alone says so, but for a document that was edited by hand."""
        draft = self.draft
        if self._taken is None:
            self._taken = frozenset(worker.assignment for _, worker in draft.workers.items())
        epoch = f"{draft.document.epoch}-" if draft.document.epoch else ""
        while (assignment := f"a-{epoch}{draft.count('assignment')}") in self._taken:
            pass
        return assignment

    def parked(self, parked: Parked) -> Parked:
        self._left -= 1
        if parked.type is ActionType.CREATE:
            self.heads.made()
        elif parked.type is ActionType.DEALLOCATE and (worker := self.draft.workers.get(parked.slot)) is not None:
            self.heads.leaves(worker)
        return parked


def _allowance(draft: Draft, ground: Ground) -> int:
    """How many actions the circuit breaker lets be parked: all, none, or the one that tries the provider again."""
    known, breaker = draft.providers.get(ground.provider), ground.policy.breaker
    match breaker_state(known, breaker, draft.now):
        case BreakerState.CLOSED:
            return MAX_SLOTS
        case BreakerState.OPEN:
            return 0
        case BreakerState.HALF_OPEN:
            # What nobody has answered yet is the try, whenever it was parked: the clock may have gone back since.
            return 0 if any(each.last_reason is None for _, each in draft.pending.items()) else 1


def _remember(draft: Draft, ground: Ground) -> None:
    """Keep what the provider said of its memory of keys, for when it cannot be asked."""
    known = draft.providers.get(ground.provider) or Provider()
    if known.key_ttl_ms != ground.key_ttl_ms:
        draft.providers.put(ground.provider, replace(known, key_ttl_ms=ground.key_ttl_ms))
        draft.event(
            "fleet", "provider_described", detail=f"{ground.provider} remembers keys for {ground.key_ttl_ms} ms"
        )


def _parks(turn: _Turn, changed: frozenset[int] | None) -> Iterator[Parked]:
    draft = turn.draft
    for number, worker in sorted(draft.workers.items()):
        untouched = changed is not None and number not in changed and worker.state is WorkerState.ASSIGNED
        if not untouched and turn.may_plan(number):
            for parked in _for_worker(turn, worker):
                yield turn.parked(parked)
    if draft.draining or turn.ground.only is not None:
        return
    empty = [number for number in range(1, turn.ground.policy.slots + 1) if number not in draft.workers]
    if not empty:
        return
    creating = [w for n, w in draft.workers.items() if w.state is WorkerState.CREATING and _hopeful(draft, n)]
    made_for = {worker.reserved for worker in creating}
    coming = sum(worker.run is None for worker in creating)
    in_order = turn.demand.in_order()
    served_elsewhere = [run for run in in_order if run in made_for]
    unserved = [run for run in in_order if run not in made_for]
    spare = max(0, coming - len(served_elsewhere))
    for number in empty:
        needed = len(unserved) > spare
        if turn.heads.room == 0 or not (needed or turn.heads.lacking):
            return
        if not turn.is_closed(number) and turn.may_plan(number):
            yield turn.parked(_create(turn, number, unserved.pop(0) if needed else None))


def _hopeful(draft: Draft, number: int) -> bool:
    """Whether the slot's create may still come by itself. One of unknown fate may: a second would cost for nothing."""
    entry = draft.pending.get(number)
    return entry is None or (entry.rejected is None and entry.last_reason is not Reason.IDENTITY_REFUSED)


def _for_worker(turn: _Turn, worker: Worker) -> Iterator[Parked]:
    draft, ground, number = turn.draft, turn.ground, worker.slot
    if worker.reason is Reason.IDENTITY_REFUSED and draft.slot(number).cordoned:
        return
    if number in turn.observed.returned:
        fresh = turn.look is None or not grace_over(worker.changed_at, turn.look, ground.policy)
        if fresh and worker.reason is not Reason.UNRECORDED:
            return  # a listing that lags shows what was stopped a moment ago
        why = f"recorded as {worker.state}, but the provider shows it alive"
        yield _simple(draft, ground, worker, ActionType.DEALLOCATE, worker.reason or Reason.RETURNED, why)
        return
    leaving, worn = turn.is_leaving(number), is_worn(worker, ground.policy)
    if worker.state is WorkerState.RELEASED and not (leaving or worn):
        move_worker(draft, number, Trigger.REUSE, WorkerGiven())
        worker = draft.workers.get(number) or worker
    match worker.state:
        case WorkerState.READY | WorkerState.RELEASED if leaving:
            yield _simple(draft, ground, worker, ActionType.DEALLOCATE, Reason.DRAINING, "drained")
        case WorkerState.READY | WorkerState.RELEASED if worn:
            why = f"has done {worker.runs} of {ground.policy.max_runs} runs"
            yield _simple(draft, ground, worker, ActionType.DEALLOCATE, Reason.WORN_OUT, why)
        case WorkerState.READY if turn.demand and not turn.is_closed(number) and worker.absent is None:
            yield from _claim(turn, worker)
        case WorkerState.READY if turn.heads.is_spare(worker):
            yield _simple(draft, ground, worker, ActionType.DEALLOCATE, Reason.IDLE, "idle")
        case WorkerState.ASSIGNED:
            yield from _continue(turn, worker)
        case WorkerState.DEALLOCATED | WorkerState.LOST if worker.run is None:
            if cools_until(worker, ground.policy, draft.now) is None and turn.may_remove(number):
                reason = worker.reason or Reason.RUN_ENDED
                yield _simple(draft, ground, worker, ActionType.DELETE_COMPUTE, reason, worker.state.value)
        case WorkerState.COMPUTE_REMOVED if not worker.accepted and turn.may_remove(number):
            yield _simple(draft, ground, worker, ActionType.RESET, Reason.RUN_ENDED, "compute removed")
        case _:
            return


def _claim(turn: _Turn, worker: Worker) -> Iterator[Parked]:
    """Give the worker the run that is next: its first execute is parked in the commit that claims it."""
    while (chosen := turn.demand.first()) is not None:
        turn.demand.take(chosen)
        if _takes(turn, worker, chosen):
            given = WorkerGiven(run=chosen.id, token=chosen.attempts + 1)
            move_worker(turn.draft, worker.slot, Trigger.CLAIM, given)
            yield from _continue(turn, turn.draft.workers.get(worker.slot) or worker)
            return


def _takes(turn: _Turn, worker: Worker, run: Run) -> bool:
    """Claim *run* for the worker. False: it was cancelled instead."""
    holder = WorkerRef(worker.slot, worker.assignment, worker.generation)
    moved = move_run(turn.draft, run.id, Trigger.CLAIM, Given(worker=holder))
    if moved.to is RunState.RUNNING:
        count_claim(turn.draft, run.queue)
        if worker.idle_since is not None:
            turn.draft.workers.put(worker.slot, replace(worker, idle_since=None))
    return moved.to is RunState.RUNNING


def _continue(turn: _Turn, worker: Worker) -> Iterator[Parked]:
    """The next step of the run that the worker holds, or the end of the one it runs, if that is what is wanted."""
    draft, ground = turn.draft, turn.ground
    if worker.run is None or worker.absent is not None:
        return
    fold.advance(draft, worker.run, ground.policy)
    run = draft.runs.get(worker.run)
    if run is None or not holds(worker, run):
        yield from _after_run(turn, worker.slot)
    elif run.cancel_requested_at is not None:
        if worker.running is not None:
            yield _cancel(draft, ground, worker, run, worker.running)
    elif worker.running is None:
        step = next_step(run)
        if step is not None:
            yield _execute(draft, ground, worker, run, step)


def _after_run(turn: _Turn, slot: int) -> Iterator[Parked]:
    """What follows for a worker that does not hold its run: the run's next life, its release, or its being kept."""
    draft, policy = turn.draft, turn.ground.policy
    worker = draft.workers.get(slot)
    if worker is None or worker.state is not WorkerState.ASSIGNED or worker.running is not None:
        return
    run = None if worker.run is None else draft.runs.get(worker.run)
    if run is not None and run.state is RunState.QUEUED:
        # Its data is there, so nobody else takes it, and a cordon is no reason to strand it; a drain gives it back.
        if turn.is_leaving(slot):
            yield _simple(draft, turn.ground, worker, ActionType.DEALLOCATE, Reason.DRAINING, "drained")
        elif turn.demand.is_due_for(worker) and _takes(turn, worker, run):
            yield from _continue(turn, turn.draft.workers.get(slot) or worker)
        return
    let_go(draft, slot, policy)
    worker = draft.workers.get(slot) or worker
    if worker.state is not WorkerState.ASSIGNED:
        return
    if kept_for(draft, worker, policy) is Reason.RETAIN_FAILED:
        yield _simple(draft, turn.ground, worker, ActionType.DEALLOCATE, Reason.RETAIN_FAILED, "its run failed")
    elif (look := turn.look_at(slot)) is not None and idled_long(worker, look, policy):
        why = "idle, and not released yet"
        yield _simple(draft, turn.ground, worker, ActionType.DEALLOCATE, Reason.IDLE_RELEASE, why)


def next_step(run: Run) -> Step | None:
    """The first step in order whose needs have all succeeded; None while one runs, or when none is left."""
    if any(step.state is StepState.RUNNING for step in run.steps):
        return None
    succeeded = {step.name for step in run.steps if step.state is StepState.SUCCEEDED}
    return next((s for s in run.steps if s.state is StepState.PENDING and succeeded.issuperset(s.needs)), None)


def _create(turn: _Turn, number: int, run_id: str | None) -> Parked:
    draft, ground, assignment = turn.draft, turn.ground, turn.fresh_assignment()
    given = WorkerGiven(assignment=assignment, provider=ground.provider, reserved=run_id)
    move_worker(draft, number, Trigger.PARK_CREATE, given)
    made = draft.workers.get(number)
    assert made is not None, "the transition has just put it there"  # noqa: S101 - see `move_worker`
    key = park(draft, ActionType.CREATE, made, run=run_id, key_ttl_ms=ground.key_ttl_ms)
    why = f"at least {ground.policy.least} are kept" if run_id is None else f"run {run_id} waits"
    return Parked(number, ActionType.CREATE, key, why, run_id)


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
