"""The conformance suite of providers: what every adapter must do, whatever it asks.

A suite subclasses `ProviderContract` and gives `make`. Where a provider has no real processes, it says so with
`real_processes` and ends its steps in `finish`; where compute can be lost, `lose` loses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller.clock import Clock, SystemClock
from controller.model.action import ExecuteRequest
from controller.model.inventory import Seen, StepSeen
from controller.model.process import Liveness
from controller.model.records import ActionType
from controller.provider.process import liveness
from controller.provider.protocol import Done, Provider, Rejected
from tests.provider.asker import LINEAGE, OTHER_LINEAGE, PATIENCE, SLEEP, TEARDOWN, Asker, Sent, until
from tests.provider.resuming import ResumeContract

__all__ = ["LINEAGE", "OTHER_LINEAGE", "PATIENCE", "SLEEP", "TEARDOWN", "Asker", "ProviderContract", "Sent", "until"]


class ProviderContract(ResumeContract):
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
        assert second[0].idempotency_key in ask.steps()

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
        assert ask.workers() == ()

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
        before = ask.workers()
        ask.done(sends[-1])
        assert ask.workers() == before

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
