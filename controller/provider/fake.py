"""A scripted provider with a truth of its own, for tests of whoever sends to one.

Not promised: any likeness in timing; it never waits, but for ends that are to be pushed. Nothing here touches a
process or a file.

Left alone it is an honest provider: it honours keys, fences by assignment, generation, token and the resources that an
action names, and repeats step ends until they are settled. A worker is a `vm`, which computes and is another one in
each generation, and a `disk`, which stays until it is reset. What is gone is not listed.

`script` makes the next calls of one type (and slot) go wrong in one chosen way each; `calls` tells what was asked,
`done` which keys took effect, `workers` what is true.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw, Struct, structs

from controller.model.action import Action, CancelRequest
from controller.model.errors import ProviderFailed
from controller.model.inventory import Inventory, Seen, SeenStep, SeenWorker, StepSeen
from controller.model.process import ProcessIdentity
from controller.model.records import ActionType, Resource
from controller.provider.protocol import (
    Description,
    Done,
    IdentityRefused,
    News,
    Outcome,
    Pending,
    Pushed,
    Register,
    Rejected,
    Unknown,
)


class Say(Struct, frozen=True):
    """Answer *outcome*, do nothing, remember nothing."""

    outcome: Outcome


class DoThenLose(Struct, frozen=True):
    """Do it and remember the answer under its key, but the answer is lost."""

    reason: str = "the answer was lost"
    process_lives: bool = False


class LoseUndone(Struct, frozen=True):
    """The request is lost: nothing was done."""

    reason: str = "the request was lost"
    process_lives: bool = False


class Later(Struct, frozen=True):
    """Pending *times* times under this key, then as it would have been."""

    times: int = 1
    retry_after_ms: int = 1_000


class Before(Struct, frozen=True):
    """Call *hook* before anything is done. What it raises goes through, as if the caller died there."""

    hook: Callable[[Action], None]


class After(Struct, frozen=True):
    """Do it, then call *hook* before answering: raising here is dying with the answer on its way."""

    hook: Callable[[Action], None]


Behaviour = Say | DoThenLose | LoseUndone | Later | Before | After


class Call(Struct, frozen=True):
    """One call. Questions have only an op."""

    op: str
    type: ActionType | None = None
    slot: int | None = None
    key: str | None = None


class FakeWorker(Struct):
    """What is true of one worker. Its resources are those that exist: one without a `vm` is data alone."""

    seen: SeenWorker
    steps: dict[str, SeenStep]
    tokens: dict[str, int]

    def become(self, state: Seen, *, compute: bool = True) -> None:
        """In *state*, without its `vm` unless *compute*."""
        kept = {name: each for name, each in self.seen.resources.items() if compute or name != VM}
        self.seen = structs.replace(self.seen, state=state, resources=kept)


VM: Final = "vm"
"""The resource that computes."""
DISK: Final = "disk"
"""The resource that is data."""


class FakeProvider:
    """Thread-safe. *ends*: how every step ends as soon as it is accepted; None: it runs until `end_step`.

    *pushes*: ends of steps are told by `wait`, which waits for them, and no change that was asked for is news.

    *register*: the identity that `mutate` registers, as an adapter with processes does; None: it registers nothing.
    """

    kind = "fake"

    def __init__(
        self,
        lineage: str,
        *,
        ends: int | None = None,
        key_ttl_ms: int | None = None,
        register: tuple[ProcessIdentity, int] | None = None,
        pushes: bool = False,
    ) -> None:
        self._lineage = lineage
        self._ends = ends
        self._key_ttl_ms = key_ttl_ms
        self._register = register
        self.registers = register is not None
        self._lock = threading.RLock()
        self._answers: dict[str, Outcome] = {}
        self._later: dict[str, Later] = {}
        self._scripts: dict[tuple[ActionType, int | None], deque[Behaviour]] = defaultdict(deque)
        self._looks: deque[Inventory | ProviderFailed | Callable[[], None]] = deque()
        self._pushes = pushes
        self._pushed: list[Pushed] = []
        self._changed = False
        self._news = threading.Condition(self._lock)
        self.workers: dict[int, FakeWorker] = {}
        self.calls: list[Call] = []
        self.done: list[str] = []
        self.interrupted = False
        self.closed = False

    # What a test arranges and asks.

    def script(self, type: ActionType, *behaviours: Behaviour, slot: int | None = None) -> None:  # noqa: A002 - the wire's word
        """The next calls of *type* (for *slot*, which goes before any slot) behave so, one each."""
        with self._lock:
            self._scripts[type, slot].extend(behaviours)

    def script_look(self, *looks: Inventory | ProviderFailed | Callable[[], None]) -> None:
        """The next looks: given, raised, or true after a call of what is callable."""
        with self._lock:
            self._looks.extend(looks)

    def sends(self, slot: int | None = None) -> list[tuple[int | None, ActionType | None, str | None]]:
        """Slot, type and key of every send so far, in order."""
        with self._lock:
            return [(c.slot, c.type, c.key) for c in self.calls if c.op == "mutate" and slot in {None, c.slot}]

    def end_step(self, key: str, *, exit_code: int | None = None, signal: int | None = None) -> None:
        """The step of execute *key* ends so."""
        with self._lock:
            for slot, worker in self.workers.items():
                if key in worker.steps:
                    worker.steps[key] = SeenStep(key, StepSeen.EXITED, exit_code=exit_code, signal=signal)
                    self._tell_end(slot, worker.steps[key])
                    return
        raise KeyError(key)

    def push(self, slot: int, step: SeenStep) -> None:
        """Tell the next wait so, whether it is true or not."""
        with self._lock:
            self._pushed.append(Pushed(slot, step))
            self._news.notify_all()

    def _tell_end(self, slot: int, step: SeenStep) -> None:
        if self._pushes:
            self.push(slot, step)
        else:
            self._change()

    def _change(self) -> None:
        self._changed = True
        self._news.notify_all()

    def lose(self, slot: int) -> None:
        """The compute of *slot* dies: it is listed as gone, its running steps have an end that nobody knows."""
        with self._lock:
            worker = self.workers[slot]
            worker.become(Seen.GONE, compute=False)
            for key, step in worker.steps.items():
                if step.state is StepSeen.RUNNING:
                    worker.steps[key] = SeenStep(key, StepSeen.EXITED)
            self._change()

    def vanish(self, slot: int) -> None:
        """The worker of *slot* is not there any more, its disk included, and not listed."""
        with self._lock:
            del self.workers[slot]
            self._change()

    def switch(self, slot: int, *, on: bool) -> None:
        """Somebody switches the compute of *slot* on or off at the provider, past whoever asks here."""
        with self._lock:
            worker = self.workers[slot]
            if VM in worker.seen.resources:
                worker.become(Seen.READY if on else Seen.DARK)
                self._change()

    def truth(self) -> Inventory:
        with self._lock:
            listed = [structs.replace(w.seen, steps=tuple(w.steps.values())) for _, w in sorted(self.workers.items())]
            return Inventory(True, tuple(w for w in listed if w.lineage == self._lineage))

    # The contract.

    def describe(self) -> Description:
        with self._lock:
            self.calls.append(Call("describe"))
        return Description("fake", "1", tuple(t.value for t in ActionType), self._key_ttl_ms, wait=True)

    def inventory(self) -> Inventory:
        with self._lock:
            self.calls.append(Call("inventory"))
            look = self._looks.popleft() if self._looks else None
        if isinstance(look, Inventory):
            return look
        if isinstance(look, ProviderFailed):
            raise look
        if look is not None:
            look()
        return self.truth()

    def wait(self, seconds: float) -> News:
        with self._news:
            self.calls.append(Call("wait"))
            if self._pushes:
                self._news.wait_for(lambda: self._pushed or self._changed or self.interrupted, seconds)
            news = News(self._changed, tuple(self._pushed))
            self._changed, self._pushed = False, []
            return news

    def close(self) -> None:
        self.closed = True

    def interrupt(self) -> None:
        with self._news:
            self.interrupted = True
            self._news.notify_all()

    def mutate(self, action: Action, raw: Raw, register: Register) -> Outcome:  # noqa: ARG002 - it has no wire
        with self._lock:
            self.calls.append(Call("mutate", action.type, action.slot, action.idempotency_key))
            behaviour = self._next(action)
        if self._register is not None:
            register(*self._register)
        match behaviour:
            case Say(outcome):
                return outcome
            case LoseUndone(reason, process_lives):
                return Unknown(reason, process_lives)
            case DoThenLose(reason, process_lives):
                self._answer(action)
                return Unknown(reason, process_lives)
            case Before(hook):
                hook(action)
                return self._answer(action)
            case After(hook):
                answer = self._answer(action)
                hook(action)
                return answer
            case Later(times, retry_after_ms):
                with self._lock:
                    self._later[action.idempotency_key] = Later(times - 1, retry_after_ms)
                return Pending(retry_after_ms)
        return self._answer(action)

    def _next(self, action: Action) -> Behaviour | None:
        waiting = self._later.pop(action.idempotency_key, None)
        if waiting is not None and waiting.times > 0:
            return waiting
        if waiting is not None:
            return None
        for slot in (action.slot, None):
            if self._scripts[action.type, slot]:
                return self._scripts[action.type, slot].popleft()
        return None

    def _answer(self, action: Action) -> Outcome:
        """The answer of *action*: a known key's again, otherwise what doing it gives."""
        with self._lock:
            key = action.idempotency_key
            if key not in self._answers:
                self._answers[key] = self._do(action)
                if isinstance(self._answers[key], Done):
                    self.done.append(key)
                    if not self._pushes:
                        self._change()
            return self._answers[key]

    def _do(self, action: Action) -> Outcome:
        worker = self.workers.get(action.slot)
        same = worker is not None and worker.seen.assignment == action.assignment
        if action.type is ActionType.CREATE:
            return self._create(action, worker)
        if worker is None or not same:
            if action.type is ActionType.EXECUTE:
                return Rejected("that worker is not there")
            return Done(reason="that worker is not there")
        if worker.seen.generation != action.generation:
            return Rejected(f"that worker is at generation {worker.seen.generation}")
        if (other := _other_resource(action, worker.seen)) is not None:
            return other
        run, token = action.run or "", action.token or 0
        if action.type in _FENCED and None in (action.run, action.step, action.attempt, action.token):
            return Rejected(f"{action.type} names no run, step, attempt and token")
        if action.type in _FENCED:
            if token < worker.tokens.get(run, 0):
                return Rejected(f"token {token} of run {run} is stale")
            worker.tokens[run] = token
        for settled in action.settled:
            worker.steps.pop(settled, None)
        return self._perform(action, worker)

    def _create(self, action: Action, worker: FakeWorker | None) -> Outcome:
        """A new worker, or a new vm for the disk of one whose vm is off or gone."""
        named, key = action.resources.get(DISK), action.idempotency_key[:8]
        name = f"{action.slot}-{action.assignment}"
        disk = Resource(f"disk-{name}", key)
        if worker is None and named is not None:
            return Rejected(f"{named.id} is not there")
        if worker is not None:
            if worker.seen.assignment != action.assignment:
                return Rejected(f"the slot holds {worker.seen.assignment}")
            if worker.seen.generation >= action.generation:
                return Rejected(f"that worker is at generation {worker.seen.generation}")
            if worker.seen.state in {Seen.CREATING, Seen.READY}:
                return Rejected(f"that worker is {worker.seen.state.value}: it is not switched off")
            disk = worker.seen.resources[DISK]
            if named not in (None, disk):
                return IdentityRefused(f"the recorded {named} is not {disk}")
        seen = SeenWorker(
            action.slot,
            action.lineage,
            action.assignment,
            action.generation,
            f"fake-{name}",
            Seen.READY,
            {VM: Resource(f"vm-{name}-{action.generation}", key), DISK: disk},
        )
        self.workers[action.slot] = FakeWorker(seen, worker.steps if worker else {}, worker.tokens if worker else {})
        return Done(seen)

    def _perform(self, action: Action, worker: FakeWorker) -> Outcome:
        key = action.idempotency_key
        match action.type:
            case ActionType.EXECUTE:
                if worker.seen.state is not Seen.READY:
                    return Rejected(f"that worker is {worker.seen.state.value}")
                running = SeenStep(key, StepSeen.RUNNING)
                ended = SeenStep(key, StepSeen.EXITED, exit_code=self._ends)
                worker.steps[key] = running if self._ends is None else ended
                if self._ends is not None and self._pushes:
                    self.push(action.slot, ended)
                return Done(step=running)
            case ActionType.CANCEL:
                target = msgspec.json.decode(bytes(action.request), type=CancelRequest).target
                if target not in worker.steps:
                    return Done(reason="no such step")
                self._kill(worker, target, 15)
                return Done(step=worker.steps[target])
        for step in worker.steps:
            self._kill(worker, step, 9)
        state = Seen.GONE if worker.seen.state is Seen.GONE else Seen.DARK
        worker.become(state, compute=action.type is ActionType.DEALLOCATE)
        if action.type is ActionType.RESET:
            del self.workers[action.slot]
        return Done()

    def _kill(self, worker: FakeWorker, key: str, signal: int) -> None:
        if worker.steps[key].state is StepSeen.RUNNING:
            worker.steps[key] = SeenStep(key, StepSeen.EXITED, signal=signal)


def _other_resource(action: Action, seen: SeenWorker) -> IdentityRefused | None:
    """The refusal of an action that names something else than what is there. What is not there any more is no
    obstacle: deleting it is done.
    """
    for name, resource in action.resources.items():
        if seen.resources.get(name, resource) != resource:
            return IdentityRefused(f"the recorded {name} {resource.id} ({resource.immutable_id}) is not this worker's")
    return None


_FENCED: Final = frozenset({ActionType.EXECUTE, ActionType.CANCEL})
