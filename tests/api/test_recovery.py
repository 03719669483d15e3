"""`Controller.recovery`: the verbs of operators, for programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller import Conflict, Controller, NotFound, RunState, UsageFault
from controller.api.operator import operator
from controller.model.records import WorkerState


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Controller]:
    """Run "a" has failed on a local worker, which was stopped and is kept with what the run left."""
    Controller.init(tmp_path / "state", slots=2).close()
    path = tmp_path / "state" / "controller.toml"
    path.write_text(path.read_text().replace("[fleet]\n", "[fleet]\nretain_failed = true\n", 1))
    with Controller.open(tmp_path / "state") as opened:
        opened.submit(["sh", "-c", "test -e mark && exec true; echo x > mark; exit 7"], id="a")
        opened.wait("a", timeout=60)
        opened.reconcile()
        yield opened
        opened.recovery.drain(1, timeout=0)  # a supervisor that was started anew ends


def stopped(fleet: Controller) -> WorkerState:
    return fleet.store.read().document.workers[1].state


def test_a_failed_run_is_resumed_and_succeeds_on_the_same_data(fleet: Controller) -> None:
    assert stopped(fleet) is WorkerState.DEALLOCATED
    resumed = fleet.recovery.resume("a", reason="the host is mended")
    assert (resumed.slot, resumed.generation, resumed.retried) == (1, 2, True)
    (ended,) = fleet.wait("a", timeout=60)
    assert ended.state is RunState.SUCCEEDED
    assert ended.worker is not None
    assert ended.worker.generation == 2


def test_a_kept_worker_is_released_and_goes(fleet: Controller) -> None:
    with pytest.raises(Conflict, match="needs no surrender"):
        fleet.recovery.surrender("a", reason="it has to be")
    assert fleet.recovery.release("a", reason="seen enough").slot == 1
    fleet.reconcile()
    assert 1 not in fleet.store.read().document.workers


def test_a_worker_is_forgotten_once_no_run_has_it_and_its_provider_is_not_the_configured_one(
    fleet: Controller, tmp_path: Path
) -> None:
    with pytest.raises(Conflict, match="assigned to run a"):
        fleet.recovery.forget(1, reason="gone")
    fleet.recovery.release("a", reason="seen enough")
    with pytest.raises(Conflict, match="the provider answers"):
        fleet.recovery.forget(1, reason="gone")
    path = tmp_path / "state" / "controller.toml"
    path.write_text(path.read_text().replace('kind = "local"', 'kind = "command"\ncommand = ["/gone"]'))
    with Controller.open(tmp_path / "state") as other:
        assert other.recovery.forget(1, reason="gone", dry_run=True).key == ""
        left = other.recovery.forget(1, reason="gone")
        assert (left.provider, list(other.store.read().document.disowned)) == ("local", [left.key])


def test_a_dry_run_changes_nothing(fleet: Controller) -> None:
    before = fleet.store.read().document.revision
    assert fleet.recovery.resume("a", dry_run=True).generation == 2
    assert fleet.recovery.cordon(1, dry_run=True)
    assert not fleet.recovery.drain(1, dry_run=True)
    assert fleet.store.read().document.revision == before


def test_what_gives_something_up_needs_a_reason(fleet: Controller) -> None:
    with pytest.raises(UsageFault, match="say why"):
        fleet.recovery.surrender("a", reason="")
    with pytest.raises(UsageFault, match="say why"):
        fleet.recovery.abandon(1, "0" * 64, reason="")
    with pytest.raises(UsageFault, match="say why"):
        fleet.recovery.forget(1, reason="")
    with pytest.raises(UsageFault, match="say why"):
        fleet.recovery.delete_unrecorded(1, "0" * 64)


def test_what_is_not_there_is_not_found(fleet: Controller) -> None:
    for verb in (fleet.recovery.adopt, fleet.recovery.delete_unrecorded):
        with pytest.raises(NotFound):
            verb(2)
    with pytest.raises(NotFound):
        fleet.recovery.forget(2, reason="gone")
    with pytest.raises(NotFound):
        fleet.recovery.resume("b")
    with pytest.raises(NotFound):
        fleet.recovery.cordon(3)


def test_a_slot_is_closed_emptied_and_opened(fleet: Controller) -> None:
    assert fleet.recovery.cordon(1, reason="bad memory")
    assert not fleet.recovery.cordon(1)
    assert not fleet.recovery.drain(1, timeout=0), "what is kept does not go by itself"
    fleet.recovery.release("a")
    assert fleet.recovery.drain(1, timeout=60)
    assert fleet.recovery.uncordon(1)
    known = fleet.store.read().document.slots[1]
    assert (known.cordoned, known.draining) == (False, False)


def test_history_names_whoever_runs_the_program(fleet: Controller) -> None:
    fleet.recovery.cordon(1, reason="bad memory")
    (event,) = [each for each in fleet.store.history("slot:1") if each.event == "cordoned"]
    assert event.detail == f"by {operator()}: bad memory"
    assert operator()
