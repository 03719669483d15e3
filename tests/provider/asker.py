"""Asks a provider as an engine does: the same key again until there is an answer that settles it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import Raw

from controller.clock import Clock
from controller.model.action import Action, CancelRequest, ExecuteRequest, decode, mint
from controller.model.inventory import Seen, SeenStep, SeenWorker, StepSeen
from controller.model.process import ProcessIdentity
from controller.model.records import ActionType, Resource
from controller.provider.protocol import Done, Outcome, Pending, Provider, Unknown

LINEAGE = "0b6c1de4-6a0f-4c2e-9d53-3d2f3d1d9a01"
OTHER_LINEAGE = "0b6c1de4-6a0f-4c2e-9d53-3d2f3d1d9a02"
PATIENCE = 20.0
"""Seconds until a case gives up; none takes them unless it fails."""

Sent = tuple[Action, Raw]


def until(clock: Clock, condition: Callable[[], bool]) -> None:
    """Return once *condition* holds; fail the test when it does not come to hold."""
    deadline = clock.monotonic() + PATIENCE
    while not condition():
        assert clock.monotonic() < deadline, "this did not come true"
        clock.sleep(0.02)


class Asker:
    """Mints actions for one lineage and asks a provider, as an engine does: the same key again while it is pending."""

    def __init__(self, provider: Provider, clock: Clock, lineage: str = LINEAGE) -> None:
        self.provider = provider
        self.clock = clock
        self.lineage = lineage
        self.registered: list[tuple[ProcessIdentity, int]] = []
        self._serial = 0

    def mint(
        self,
        type: ActionType,  # noqa: A002 - the wire's word
        slot: int = 1,
        *,
        assignment: str = "a-1",
        generation: int = 1,
        request: msgspec.Struct | None = None,
        settled: tuple[str, ...] = (),
        resources: Mapping[str, Resource] | None = None,
        run: str | None = None,
        token: int | None = None,
    ) -> Sent:
        self._serial += 1
        of_step = run is not None and token is not None
        _, raw = mint(
            type=type,
            slot=slot,
            serial=self._serial,
            lineage=self.lineage,
            epoch="",
            assignment=assignment,
            generation=generation,
            resources=resources or {},
            request=request,
            settled=settled,
            run=run,
            step="main" if of_step else None,
            attempt=1 if of_step else None,
            token=token,
        )
        return decode(raw), raw

    def execute(
        self,
        argv: tuple[str, ...],
        *,
        run: str = "r-1",
        token: int = 1,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout_ms: int | None = None,
        assignment: str = "a-1",
        generation: int = 1,
        settled: tuple[str, ...] = (),
    ) -> Sent:
        request = ExecuteRequest(argv, env or {}, None if cwd is None else str(cwd), timeout_ms, 300)
        return self.mint(
            ActionType.EXECUTE,
            assignment=assignment,
            generation=generation,
            request=request,
            settled=settled,
            run=run,
            token=token,
        )

    def cancel(self, target: Sent, *, token: int = 1) -> Sent:
        request = CancelRequest(target[0].idempotency_key, 300)
        return self.mint(ActionType.CANCEL, request=request, run="r-1", token=token)

    def once(self, sent: Sent) -> Outcome:
        return self.provider.mutate(*sent, lambda identity, deadline: self.registered.append((identity, deadline)))

    def settle(self, sent: Sent) -> Outcome:
        deadline = self.clock.monotonic() + PATIENCE
        while True:
            outcome = self.once(sent)
            if not isinstance(outcome, Pending):
                return outcome
            assert self.clock.monotonic() < deadline, f"pending for ever: {outcome}"
            self.clock.sleep(min(outcome.retry_after_ms, 200) / 1000)

    def done(self, sent: Sent) -> Done:
        outcome = self.settle(sent)
        assert isinstance(outcome, Done), outcome
        return outcome

    def create(
        self,
        slot: int = 1,
        *,
        assignment: str = "a-1",
        generation: int = 1,
        resources: Mapping[str, Resource] | None = None,
    ) -> Sent:
        """A worker, made and ready. One that is slow to start is asked for again, under its key, as the engine does."""
        sent = self.mint(ActionType.CREATE, slot, assignment=assignment, generation=generation, resources=resources)
        deadline = self.clock.monotonic() + PATIENCE
        while not isinstance(outcome := self.settle(sent), Done):
            assert isinstance(outcome, Unknown), outcome
            assert self.clock.monotonic() < deadline, f"unknown for ever: {outcome}"
        until(self.clock, lambda: any(w.slot == slot and w.state is Seen.READY for w in self.workers()))
        return sent

    def workers(self) -> tuple[SeenWorker, ...]:
        look = self.provider.inventory()
        assert look.complete
        return look.workers

    def steps(self) -> dict[str, SeenStep]:
        return {step.idempotency_key: step for worker in self.workers() for step in worker.steps}

    def step(self, sent: Sent) -> SeenStep:
        return self.steps()[sent[0].idempotency_key]

    def worker(self) -> SeenWorker:
        """The only one that is listed."""
        (worker,) = self.workers()
        return worker

    def ended(self, sent: Sent) -> SeenStep:
        key = sent[0].idempotency_key
        until(self.clock, lambda: key in (steps := self.steps()) and steps[key].state is StepSeen.EXITED)
        return self.step(sent)

    def empty(self) -> None:
        """Take everything down that is listed."""
        for worker in self.workers():
            for kind in (ActionType.DEALLOCATE, ActionType.DELETE_COMPUTE, ActionType.RESET):
                self.done(self.mint(kind, worker.slot, assignment=worker.assignment, generation=worker.generation))


TEARDOWN = (ActionType.DEALLOCATE, ActionType.DELETE_COMPUTE, ActionType.RESET)
SLEEP = ("sleep", "600")
