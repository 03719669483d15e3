"""The provider of a story keeps to what it promises, and notices what must never happen."""

from __future__ import annotations

import pytest

from controller.clock import FakeClock
from controller.engine.sight import APART_MS
from controller.model.action import Action, CancelRequest, ExecuteRequest, decode, mint
from controller.model.inventory import Seen
from controller.model.records import ActionType
from controller.provider.protocol import Done, IdentityRefused, Pending, Rejected, Unknown
from simulation.machines import Machine
from simulation.setting import Nature
from simulation.whims import Whims
from simulation.world import World

LINEAGE = "22222222-2222-4222-8222-222222222222"
GRACE = 10.0


class Anybody:
    """Allows everything but what a test forbids."""

    def __init__(self) -> None:
        self.forbidden: str | None = None
        self.missed = False

    def delete(self, machine: Machine) -> str | None:
        return self.forbidden

    def resume(self, machine: Machine, generation: int) -> str | None:
        return self.forbidden

    def stop(self, machine: Machine) -> str | None:
        return None

    def execute(self, machine: Machine, action: Action) -> str | None:
        return None

    def is_missed(self, machine: Machine) -> bool:
        return self.missed


class Place:
    """A world without accidents, but for those that a test asks for."""

    def __init__(self, nature: Nature) -> None:
        self.clock = FakeClock()
        self.whims = Whims(1)
        self.permits = Anybody()
        self.world = World(LINEAGE, self.clock, self.whims, nature, self.permits)
        self._serial = 0

    def mint(
        self, kind: ActionType, *, request: ExecuteRequest | CancelRequest | None = None, generation: int = 1
    ) -> Action:
        self._serial += 1
        fenced = {"run": "r-1", "step": "main", "attempt": 1, "token": 1} if request is not None else {}
        there = self.world.find(1, "a-1")
        _, raw = mint(
            type=kind,
            slot=1,
            serial=self._serial,
            lineage=LINEAGE,
            epoch="",
            assignment="a-1",
            generation=generation,
            resources={} if there is None else there.resources,
            request=request,
            **fenced,  # type: ignore[arg-type] # what an execute and a cancel carry
        )
        return decode(raw)

    def ask(self, action: Action) -> Done | Pending | Rejected | Unknown | IdentityRefused:
        answer = self.world.mutate(action, self.world.now)
        assert isinstance(answer, Done | Pending | Rejected | Unknown | IdentityRefused)
        return answer

    def execute(self) -> Action:
        return self.mint(ActionType.EXECUTE, request=ExecuteRequest(("true",), {}, None, None, 0))

    @property
    def machine(self) -> Machine:
        (machine,) = self.world.machines
        return machine


@pytest.fixture
def place() -> Place:
    return Place(Nature(grace=GRACE, key_ttl_ms=60_000, failing=0.0))


def test_a_key_is_done_once_and_answered_from_memory(place: Place) -> None:
    action = place.mint(ActionType.CREATE)
    first, second = place.ask(action), place.ask(action)
    assert isinstance(first, Done)
    assert first == second
    assert len(place.world.machines) == 1
    assert place.world.wrongs == []


def test_a_key_that_was_forgotten_is_done_again_and_that_is_noticed(place: Place) -> None:
    action = place.mint(ActionType.CREATE)
    place.ask(action)
    place.clock.advance(60 + GRACE)
    place.ask(action)
    assert len(place.world.machines) == 2
    assert any("was done twice" in wrong for wrong in place.world.wrongs)
    assert "a-1 generation 1 was made twice" in place.world.wrongs


def test_an_answer_that_is_lost_leaves_what_was_done() -> None:
    place = Place(Nature(grace=GRACE, sends={"answer lost": 1.0}))
    assert isinstance(place.ask(place.mint(ActionType.CREATE)), Unknown)
    assert place.machine.assignment == "a-1"


def test_a_late_request_arrives_within_the_grace_time() -> None:
    place = Place(Nature(grace=GRACE, sends={"late": 1.0}))
    place.ask(place.mint(ActionType.CREATE))
    assert place.world.machines == []
    place.clock.advance(GRACE)
    place.world.tick()
    assert place.machine.assignment == "a-1"


def test_a_listing_omits_a_machine_that_was_just_made_and_not_one_of_a_grace_time_ago() -> None:
    place = Place(Nature(grace=GRACE, looks={"lags": 1.0}))
    place.ask(place.mint(ActionType.CREATE))
    shown = [len(place.world.inventory().workers) for _ in range(20)]
    place.clock.advance(GRACE)
    later = [len(place.world.inventory().workers) for _ in range(20)]
    assert set(shown) == {0, 1}
    assert set(later) == {1}


def test_a_listing_that_lies_does_so_for_less_than_counts_as_two_looks() -> None:
    place = Place(Nature(grace=GRACE, looks={"lies": 0.5}))
    place.ask(place.mint(ActionType.CREATE))
    while place.world.inventory().workers:
        place.clock.advance(0.1)
    place.permits.missed = True
    place.clock.advance(APART_MS / 1000)
    assert {len(place.world.inventory().workers) for _ in range(20)} == {1}


def test_a_step_runs_for_a_while_and_ends_by_itself(place: Place) -> None:
    place.ask(place.mint(ActionType.CREATE))
    step = place.execute()
    place.ask(step)
    assert place.machine.processes[step.idempotency_key].end is None
    place.clock.advance(30)
    (worker,) = place.world.inventory().workers
    (seen,) = worker.steps
    assert (seen.idempotency_key, seen.exit_code) == (step.idempotency_key, 0)


def test_two_steps_at_once_are_noticed(place: Place) -> None:
    place.ask(place.mint(ActionType.CREATE))
    place.ask(place.execute())
    place.ask(place.execute())
    assert any("while a step of r-1 runs" in wrong for wrong in place.world.wrongs)
    assert any("was executed twice" in wrong for wrong in place.world.wrongs)


def test_what_nobody_released_is_deleted_and_that_is_noticed(place: Place) -> None:
    place.ask(place.mint(ActionType.CREATE))
    place.permits.forbidden = "nobody released it"
    place.ask(place.mint(ActionType.DELETE_COMPUTE))
    assert [wrong.rpartition(": ")[2] for wrong in place.world.wrongs] == ["nobody released it"]


def test_another_machine_under_the_same_name_is_not_taken_down(place: Place) -> None:
    place.ask(place.mint(ActionType.CREATE))
    deallocate = place.mint(ActionType.DEALLOCATE)
    place.world.replace_disk(place.machine)
    assert isinstance(place.ask(deallocate), IdentityRefused)
    (worker,) = place.world.inventory().workers
    assert worker.state is Seen.READY


def test_a_resumed_machine_keeps_its_disk_and_gets_another_vm(place: Place) -> None:
    place.ask(place.mint(ActionType.CREATE))
    before = dict(place.machine.resources)
    place.ask(place.mint(ActionType.DEALLOCATE))
    place.ask(place.mint(ActionType.CREATE, generation=2))
    assert (place.machine.generation, place.machine.resources["disk"]) == (2, before["disk"])
    assert place.machine.resources["vm"] != before["vm"]
    assert place.world.wrongs == []
