"""The conformance suite of providers: what every adapter must do, whatever it asks.

A suite subclasses `ProviderContract` and gives `make`. Where a provider has no real processes, it says so with
`real_processes` and ends its steps in `finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw

from controller.clock import Clock, SystemClock
from controller.model.action import Action, CancelRequest, ExecuteRequest, decode, mint
from controller.model.inventory import Seen, SeenStep, SeenWorker, StepSeen
from controller.model.process import Liveness, ProcessIdentity
from controller.model.records import ActionType
from controller.provider.process import liveness
from controller.provider.protocol import Done, Outcome, Pending, Provider, Rejected, Unknown

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
            resources={},
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
    ) -> Sent:
        request = ExecuteRequest(argv, env or {}, None if cwd is None else str(cwd), timeout_ms, 300)
        return self.mint(
            ActionType.EXECUTE, assignment=assignment, generation=generation, request=request, run=run, token=token
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

    def create(self, slot: int = 1, *, assignment: str = "a-1", generation: int = 1) -> Sent:
        """A worker, made and ready. One that is slow to start is asked for again, under its key, as the engine does."""
        sent = self.mint(ActionType.CREATE, slot, assignment=assignment, generation=generation)
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


class ProviderContract:
    real_processes = True
    """Steps are real processes, which a test can watch."""

    @pytest.fixture
    def clock(self) -> Clock:
        return SystemClock()

    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[str], Provider]:
        """Makes providers of a given lineage over one and the same truth."""
        raise NotImplementedError

    @pytest.fixture
    def ask(self, make: Callable[[str], Provider], clock: Clock) -> Iterator[Asker]:
        asker = Asker(make(LINEAGE), clock)
        yield asker
        asker.empty()

    def finish(self, ask: Asker, sent: Sent, exit_code: int) -> None:
        """End the step, where it does not end by itself."""

    # Questions

    def test_it_describes_a_name_and_every_type_of_action(self, ask: Asker) -> None:
        description = ask.provider.describe()
        assert description.name
        assert set(description.types) == {t.value for t in ActionType}

    def test_a_fleet_without_workers_has_a_complete_and_empty_look(self, ask: Asker) -> None:
        look = ask.provider.inventory()
        assert (look.complete, look.workers) == (True, ())

    def test_a_worker_of_another_lineage_is_not_listed(
        self, ask: Asker, make: Callable[[str], Provider], clock: Clock
    ) -> None:
        other = Asker(make(OTHER_LINEAGE), clock, OTHER_LINEAGE)
        other.create(slot=2)
        try:
            assert ask.workers() == ()
            assert [w.lineage for w in other.workers()] == [OTHER_LINEAGE]
        finally:
            other.empty()

    # Create

    def test_a_created_worker_is_listed_under_its_exact_identity(self, ask: Asker) -> None:
        ask.create(slot=3, assignment="a-9", generation=2)
        (worker,) = ask.workers()
        assert (worker.slot, worker.lineage, worker.assignment, worker.generation) == (3, LINEAGE, "a-9", 2)
        assert worker.id

    def test_a_create_sent_again_makes_no_second_worker_and_gets_the_same_answer(self, ask: Asker) -> None:
        sent = ask.create()
        listed = ask.workers()
        assert isinstance(ask.once(sent), Done)
        assert [(w.slot, w.id) for w in ask.workers()] == [(w.slot, w.id) for w in listed]

    def test_a_create_over_another_worker_is_rejected_and_leaves_it(self, ask: Asker) -> None:
        ask.create(assignment="a-1")
        assert isinstance(ask.settle(ask.mint(ActionType.CREATE, assignment="a-2")), Rejected)
        assert [w.assignment for w in ask.workers()] == ["a-1"]

    # Execute

    def test_an_execute_is_done_while_its_step_still_runs(self, ask: Asker) -> None:
        ask.create()
        sent = ask.execute(SLEEP)
        ask.done(sent)
        assert ask.step(sent).state is StepSeen.RUNNING

    def test_a_step_that_ends_is_listed_with_its_exit_code(self, ask: Asker) -> None:
        ask.create()
        sent = ask.execute(("sh", "-c", "exit 7"))
        ask.done(sent)
        self.finish(ask, sent, 7)
        end = ask.ended(sent)
        assert (end.exit_code, end.signal) == (7, None)

    def test_an_end_is_repeated_until_an_action_lists_it_as_settled(self, ask: Asker) -> None:
        ask.create()
        first, second = ask.execute(("true",)), ask.execute(SLEEP, run="r-2")
        ask.done(first)
        self.finish(ask, first, 0)
        assert ask.ended(first) == ask.step(first)
        key = first[0].idempotency_key
        second = ask.mint(
            ActionType.EXECUTE,
            request=ExecuteRequest(SLEEP, {}, None, None, 300),
            settled=(key,),
            run="r-2",
            token=1,
        )
        ask.done(second)
        assert set(ask.steps()) == {second[0].idempotency_key}

    def test_an_execute_sent_again_after_it_was_settled_starts_nothing(self, ask: Asker) -> None:
        ask.create()
        first = ask.execute(("true",))
        ask.done(first)
        self.finish(ask, first, 0)
        ask.ended(first)
        request = ExecuteRequest(SLEEP, {}, None, None, 300)
        settled = (first[0].idempotency_key,)
        ask.done(ask.mint(ActionType.EXECUTE, request=request, settled=settled, run="r-2", token=1))
        ask.once(first)
        assert first[0].idempotency_key not in ask.steps()

    def test_a_step_runs_once_however_often_its_key_is_sent(self, ask: Asker, tmp_path: Path) -> None:
        self.needs_processes()
        ask.create()
        sent = ask.execute(("sh", "-c", 'echo ran >> "$OUT"'), env={"OUT": str(tmp_path / "out")})
        for _ in range(3):
            ask.done(sent)
        ask.ended(sent)
        ask.done(sent)
        assert (tmp_path / "out").read_text() == "ran\n"

    def test_a_step_runs_where_it_was_told_to(self, ask: Asker, tmp_path: Path) -> None:
        self.needs_processes()
        ask.create()
        sent = ask.execute(("sh", "-c", "pwd > here"), cwd=tmp_path)
        ask.done(sent)
        assert ask.ended(sent).exit_code == 0
        assert (tmp_path / "here").read_text().strip() == str(tmp_path.resolve())

    def test_a_step_that_a_signal_ends_is_listed_with_the_signal(self, ask: Asker) -> None:
        self.needs_processes()
        ask.create()
        sent = ask.execute(("sh", "-c", "kill -9 $$"))
        ask.done(sent)
        end = ask.ended(sent)
        assert (end.exit_code, end.signal) == (None, 9)

    def test_a_command_that_does_not_exist_ends_with_127(self, ask: Asker) -> None:
        self.needs_processes()
        ask.create()
        sent = ask.execute(("no-such-command-anywhere",))
        ask.done(sent)
        assert ask.ended(sent).exit_code == 127

    def test_the_worker_itself_ends_a_step_at_its_timeout(self, ask: Asker) -> None:
        self.needs_processes()
        ask.create()
        sent = ask.execute(SLEEP, timeout_ms=100)
        ask.done(sent)
        end = ask.ended(sent)
        assert (end.timed_out, end.exit_code, end.signal) == (True, None, 15)

    # Fences

    def test_an_execute_for_a_worker_that_is_not_there_is_rejected(self, ask: Asker) -> None:
        assert isinstance(ask.settle(ask.execute(SLEEP)), Rejected)

    @pytest.mark.parametrize(("assignment", "generation"), [("a-2", 1), ("a-1", 2), ("a-1", 0)])
    def test_an_execute_for_another_assignment_or_generation_is_rejected(
        self, ask: Asker, assignment: str, generation: int
    ) -> None:
        ask.create()
        outcome = ask.settle(ask.execute(SLEEP, assignment=assignment, generation=generation))
        assert isinstance(outcome, Rejected), outcome
        assert ask.steps() == {}

    def test_an_execute_with_a_token_below_the_runs_highest_is_rejected(self, ask: Asker) -> None:
        ask.create()
        late = ask.execute(SLEEP, token=1)
        newer = ask.execute(("true",), token=2)
        ask.done(newer)
        self.finish(ask, newer, 0)
        ask.ended(newer)
        assert isinstance(ask.settle(late), Rejected)
        assert set(ask.steps()) == {newer[0].idempotency_key}

    def test_tokens_of_different_runs_are_not_compared(self, ask: Asker) -> None:
        ask.create()
        first, second = ask.execute(("true",), run="r-1", token=5), ask.execute(("true",), run="r-2", token=1)
        ask.done(first)
        self.finish(ask, first, 0)
        ask.ended(first)
        ask.done(second)

    def test_a_reset_for_another_assignment_leaves_the_worker(self, ask: Asker) -> None:
        ask.create()
        for kind in TEARDOWN:
            ask.settle(ask.mint(kind, assignment="a-0"))
        assert [(w.assignment, w.state) for w in ask.workers()] == [("a-1", Seen.READY)]

    # Cancel

    def test_a_cancel_is_done_once_no_process_of_the_step_is_left(self, ask: Asker, tmp_path: Path) -> None:
        self.needs_processes()
        ask.create()
        script = 'sleep 600 & echo "$! $$" > pids.new; mv pids.new pids; wait'
        sent = ask.execute(("sh", "-c", script), cwd=tmp_path)
        ask.done(sent)
        until(ask.clock, (tmp_path / "pids").exists)
        ask.done(ask.cancel(sent))
        states = [_state(int(pid)) for pid in (tmp_path / "pids").read_text().split()]
        assert set(states) <= {None, "Z"}

    def test_a_cancel_ends_a_step_that_does_not_listen(self, ask: Asker, tmp_path: Path) -> None:
        self.needs_processes()
        ask.create()
        script = "trap '' TERM; touch deaf; while :; do sleep 0.05; done"
        sent = ask.execute(("sh", "-c", script), cwd=tmp_path)
        ask.done(sent)
        until(ask.clock, (tmp_path / "deaf").exists)
        ask.done(ask.cancel(sent))
        end = ask.step(sent)
        assert (end.state, end.exit_code, end.signal) == (StepSeen.EXITED, None, 9)

    def test_a_cancelled_step_is_listed_as_ended(self, ask: Asker) -> None:
        ask.create()
        sent = ask.execute(SLEEP)
        ask.done(sent)
        ask.done(ask.cancel(sent))
        assert ask.step(sent).state is StepSeen.EXITED
        assert ask.step(sent).exit_code is None

    def test_a_cancel_of_a_step_that_ended_keeps_how_it_ended(self, ask: Asker) -> None:
        ask.create()
        sent = ask.execute(("sh", "-c", "exit 7"))
        ask.done(sent)
        self.finish(ask, sent, 7)
        ask.ended(sent)
        ask.done(ask.cancel(sent))
        assert ask.step(sent).exit_code == 7

    def test_a_cancel_with_a_stale_token_is_rejected_and_ends_nothing(self, ask: Asker) -> None:
        ask.create()
        sent = ask.execute(SLEEP, token=2)
        ask.done(sent)
        assert isinstance(ask.settle(ask.cancel(sent, token=1)), Rejected)
        assert ask.step(sent).state is StepSeen.RUNNING

    # Teardown

    @pytest.mark.parametrize("kind", TEARDOWN)
    def test_deleting_what_is_already_gone_is_done(self, ask: Asker, kind: ActionType) -> None:
        ask.done(ask.mint(kind))

    def test_a_deallocated_worker_is_dark_and_its_steps_have_ended(self, ask: Asker) -> None:
        ask.create()
        sent = ask.execute(SLEEP)
        ask.done(sent)
        ask.done(ask.mint(ActionType.DEALLOCATE))
        (worker,) = ask.workers()
        assert worker.state is Seen.DARK
        assert [step.state for step in worker.steps] == [StepSeen.EXITED]

    def test_a_reset_worker_is_not_listed_and_its_slot_can_be_used_again(self, ask: Asker) -> None:
        ask.create()
        for kind in TEARDOWN:
            ask.done(ask.mint(kind))
        assert ask.workers() == ()
        ask.create(assignment="a-2")
        assert [w.assignment for w in ask.workers()] == ["a-2"]

    @pytest.mark.parametrize("kind", TEARDOWN)
    def test_a_teardown_sent_again_is_done_again(self, ask: Asker, kind: ActionType) -> None:
        ask.create()
        sends = [ask.mint(k) for k in TEARDOWN[: TEARDOWN.index(kind) + 1]]
        for sent in sends:
            ask.done(sent)
        ask.done(sends[-1])

    # Being asked

    def test_a_send_registers_its_process_with_a_deadline_if_the_provider_says_so(self, ask: Asker) -> None:
        if not ask.provider.registers:
            ask.create()
            assert ask.registered == []
            return
        before = ask.clock.now_ms()
        ask.create()
        identity, deadline = ask.registered[0]
        assert liveness(identity) is not Liveness.UNKNOWN
        assert deadline > before

    def needs_processes(self) -> None:
        if not self.real_processes:
            pytest.skip("its steps are no processes")


def _state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
