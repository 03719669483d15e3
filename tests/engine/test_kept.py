"""Workers that are kept: drained, cordoned, counted, resumed, retained, shown by listings that lag."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from controller.api.emptying import until_empty
from controller.engine.planner import Ground, plan
from controller.engine.queue import set_draining
from controller.engine.recovery import resume
from controller.engine.submission import Submission, add_run
from controller.model.edit import Draft, apply_edit
from controller.model.errors import Conflict, ProviderFailed
from controller.model.inventory import Inventory, Look, Seen, SeenStep, StepSeen
from controller.model.perform import Given, move_run
from controller.model.policy import Policy, Release
from controller.model.reason import Reason
from controller.model.records import (
    ActionType,
    Document,
    Priority,
    Provider,
    Resource,
    RunState,
    Slot,
    Step,
    WorkerState,
)
from controller.model.transition import Trigger
from controller.provider.fake import FakeProvider
from controller.provider.protocol import Done, Pushed, Rejected
from tests.engine import operating as kit
from tests.engine.fleet import LINEAGE, Fleet
from tests.engine.operating import Place
from tests.engine.scenes import GROUND, NOW, look, planned, seen, settled, with_ready_worker, with_runs
from tests.engine.test_lifecycle import HOUR, PROOF, after_its_run, seen_as

DEALLOCATE = ActionType.DEALLOCATE


def test_a_run_that_replaces_one_that_ended_never_gets_the_unreleased_worker_of_that_one() -> None:
    document = after_its_run(PROOF)
    assert ("a" in document.finished, document.workers[1].run) == (True, "a")
    draft = Draft(document, now=NOW, command="submit")
    with pytest.raises(Conflict, match="named by slot 1"):
        add_run(draft, Submission((Step("main", ("other",)),), id="a", replace=True))


@pytest.mark.parametrize("silent", ["cannot be read", "is too old"])
def test_what_a_look_retained_stays_so_while_a_later_one_says_nothing_of_it(silent: str) -> None:
    document = with_ready_worker("a")
    worker = replace(document.workers[1], resources={"vm": Resource("i-1", "A")}, reserved=None)
    document = replace(document, workers={1: worker})
    other = replace(seen(document, 1), resources={"vm": Resource("i-1", "B")})
    document, made = planned(document, look(document, other))
    assert made.retained == {1}
    told = Look(document.revision, NOW, NOW + 1, Inventory(True, (), unreadable=(1,)))
    if silent == "is too old":
        document = replace(document, slots={1: Slot(changed=document.revision)})
        told = look(document, other, revision=document.revision - 1)
    again = plan(document, told, GROUND, NOW + 2, retained=made.retained)
    assert [parked.type for parked in again.parks if parked.slot == 1] == []
    assert again.retained == {1}


def test_a_resume_that_came_to_nothing_leaves_cooldown_and_reason_as_they_were() -> None:
    worker = kit.worker(dark_at=kit.NOW - HOUR, reason=Reason.RETAIN_FAILED)
    policy = Policy(slots=3, retain_failed=True, cooldown_ms=2 * HOUR)
    at = Place(kit.document(worker, runs=(kit.run(),)), policy)
    resume(at.context, "a", kit.look(kit.seen(worker)), reason="x", by="ops")
    after = settled(at.document, 1, Rejected("quota")).workers[1]
    assert (after.state, after.generation) == (WorkerState.DEALLOCATED, 1)
    assert (after.dark_at, after.reason) == (worker.dark_at, Reason.RETAIN_FAILED)


def test_a_resume_makes_no_more_workers_than_there_may_be() -> None:
    worker, other = kit.worker(), kit.worker(2, WorkerState.READY, run=None, resources={}, id="w-2")
    at = Place(kit.document(worker, other, runs=(kit.run(),)), Policy(slots=3, most=1, retain_failed=True))
    shown = kit.look(kit.seen(worker), kit.seen(other, Seen.READY))
    with pytest.raises(Conflict, match="as many workers as there may be"):
        resume(at.context, "a", shown, reason="x", by="ops")


def waiting_for_its_next_life() -> Document:
    """Run a failed once and is queued again, kept for its worker in slot 1."""
    document = after_its_run(PROOF, exit_code=1, attempts=3)
    assert (document.runs["a"].state, document.workers[1].state) == (RunState.QUEUED, WorkerState.ASSIGNED)
    return document


@pytest.mark.parametrize("how", ["slot", "fleet", "fewer slots"])
def test_a_drained_worker_whose_run_waits_is_stopped_and_its_data_is_kept(how: str) -> None:
    document, ground, slot = waiting_for_its_next_life(), PROOF, 1
    if how == "slot":
        document = replace(document, slots={1: replace(document.slots[1], cordoned=True, draining=True)})
    elif how == "fleet":
        document = replace(document, draining=True)
    else:
        ground, slot = replace(PROOF, policy=replace(PROOF.policy, slots=1)), 2
        document = replace(document, workers={2: replace(document.workers[1], slot=2)}, slots={})
    document, made = planned(document, look(document, seen(document, slot)), ground=ground)
    assert [(parked.slot, parked.type) for parked in made.parks] == [(slot, DEALLOCATE)]
    worker = settled(document, slot, Done(), ground=ground).workers[slot]
    assert (worker.state, worker.run) == (WorkerState.DEALLOCATED, "a")


def test_once_its_worker_was_drained_the_run_goes_on_elsewhere() -> None:
    document = waiting_for_its_next_life()
    document = replace(document, slots={1: replace(document.slots[1], cordoned=True, draining=True)})
    document = settled(planned(document, ground=PROOF)[0], 1, Done(), ground=PROOF)
    _, made = planned(document, ground=PROOF, now=NOW + HOUR)
    assert [(parked.slot, parked.type, parked.run) for parked in made.parks] == [(2, ActionType.CREATE, "a")]


def test_a_cordon_keeps_no_run_from_its_own_worker() -> None:
    document = waiting_for_its_next_life()
    document = replace(document, slots={1: replace(document.slots[1], cordoned=True)})
    _, made = planned(document, ground=PROOF, now=NOW + HOUR)
    assert [(parked.slot, parked.type, parked.run) for parked in made.parks] == [(1, ActionType.EXECUTE, "a")]


def test_the_worker_of_a_cordoned_slot_is_none_of_the_least_number() -> None:
    ground = Ground(Policy(slots=2, least=1, most=1, idle_ms=1_000), "fake")
    document = with_ready_worker("a", ground=ground)
    document = replace(document, runs={}, slots={1: replace(document.slots[1], cordoned=True)})
    document = with_runs("b", document=document)
    _, made = planned(document, ground=ground, now=NOW + 1_000)
    assert [(parked.slot, parked.type) for parked in made.parks] == [(1, DEALLOCATE)]


def test_a_permit_goes_to_a_kept_run_though_another_worker_comes_first() -> None:
    draft = Draft(kit.document(), now=NOW, command="submit")
    step = (Step("main", ("true",)),)
    add_run(draft, Submission(step, id="old", concurrency_key="k", priority=Priority.FORCED, max_attempts=3))
    add_run(draft, Submission(step, id="new", concurrency_key="k"))
    document = apply_edit(draft.document, draft.edit())
    ready = kit.worker(1, WorkerState.READY, run=None, resources={})
    kept = kit.worker(2, WorkerState.ASSIGNED, run="old", resources={}, id="w-2")
    document, made = planned(replace(document, workers={1: ready, 2: kept}), ground=PROOF)
    assert [(parked.slot, parked.run) for parked in made.parks] == [(2, "old")]
    assert document.runs["new"].defer_reason is Reason.CONCURRENCY


def test_a_permit_does_not_wait_for_a_run_that_no_slot_takes_while_the_slot_is_kept_for_another() -> None:
    draft = Draft(kit.document(), now=NOW, command="submit")
    step = (Step("main", ("true",)),)
    add_run(draft, Submission(step, id="first", concurrency_key="k", priority=Priority.FORCED))
    add_run(draft, Submission(step, id="kept", concurrency_key="k", max_attempts=3))
    document = apply_edit(draft.document, draft.edit())
    worker = kit.worker(1, WorkerState.ASSIGNED, run="kept", resources={})
    one = replace(PROOF, policy=replace(PROOF.policy, slots=1))
    document, made = planned(replace(document, workers={1: worker}), ground=one)
    assert [(parked.slot, parked.run) for parked in made.parks] == [(1, "kept")]
    assert document.runs["first"].defer_reason is Reason.CONCURRENCY


def test_with_a_proof_asked_for_the_worker_of_a_failed_run_is_stopped_at_once_where_that_is_wanted() -> None:
    policy = Policy(slots=2, release=Release.PROOF, retain_failed=True, idle_release_ms=HOUR)
    document = after_its_run(Ground(policy, "fake"), exit_code=1)
    assert list(document.pending_actions) == [1]
    assert document.workers[1].reason is Reason.RETAIN_FAILED


def test_idle_time_before_another_life_does_not_count() -> None:
    document = after_its_run(PROOF, exit_code=1)
    assert document.workers[1].idle_since is not None
    at = NOW + HOUR
    draft = Draft(document, now=at, command="retry")
    move_run(draft, "a", Trigger.OPERATOR_RETRY, Given(reason=Reason.OPERATOR_RETRY))
    document = apply_edit(document, draft.edit())
    document, made = planned(document, ground=PROOF, now=at)
    (execute,) = made.parks
    document = settled(document, 1, Done(), now=at, ground=PROOF)
    end = Pushed(1, SeenStep(execute.key, StepSeen.EXITED, exit_code=0))
    document = apply_edit(document, plan(document, None, PROOF, at + 5, ends=(end,)).edit)
    assert "a" in document.finished
    _, parks = seen_as(document, Seen.READY, at + 10, PROOF)
    assert parks == []


def test_a_look_that_does_not_show_a_worker_breaks_the_row_of_those_that_saw_it_idle() -> None:
    document = after_its_run(PROOF)
    at = NOW + HOUR
    document, _ = planned(document, look(document, at=at), ground=PROOF, now=at)
    assert document.workers[1].idle_since is None
    _, parks = seen_as(document, Seen.READY, at + 60_000, PROOF)
    assert parks == []


def test_a_clock_that_went_back_lets_one_action_try_a_failing_provider() -> None:
    ground = Ground(Policy(slots=5), "fake")
    known = Provider(failures=9, opened_at=NOW + HOUR, why="no answer")
    document, tries = replace(with_runs(*"abcde"), providers={"fake": known}), 0
    for n in range(3):
        document, made = planned(document, look(document), ground=ground, now=NOW + n)
        tries += len(made.parks)
    assert tries == 1


class Lagging(FakeProvider):
    """Its listing shows what was stopped as on."""

    def inventory(self) -> Inventory:
        told = super().inventory()
        return Inventory(True, tuple(replace(w, state=Seen.READY) if w.state is Seen.DARK else w for w in told.workers))


def test_a_listing_that_lags_has_nothing_stopped_twice(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "state", Lagging(LINEAGE, ends=1), slots=1)
    fleet.policy = replace(fleet.policy, retain_failed=True)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    assert [type_ for _, type_, _ in fleet.provider.sends()].count(DEALLOCATE) == 1


def test_nothing_is_removed_that_a_listing_shows_on_though_it_was_stopped(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "state", Lagging(LINEAGE, ends=0), slots=1)
    fleet.policy = replace(fleet.policy, idle_ms=0)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    assert fleet.document.workers[1].state is WorkerState.DEALLOCATED
    assert ActionType.DELETE_COMPUTE not in [type_ for _, type_, _ in fleet.provider.sends()]


def test_a_drain_does_not_wait_for_what_only_an_operator_ends(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "state", FakeProvider(LINEAGE, ends=0), slots=1)
    fleet.policy = replace(fleet.policy, release=Release.PROOF)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    set_draining(fleet.context, True)
    waits: list[object] = []
    _, document = until_empty(fleet.reconciler(), tell=lambda _report, _document, left: waits.append(left))
    assert (waits, document.workers[1].run) == ([], "a")


def test_a_drain_that_is_interrupted_while_it_waits_still_has_the_troubles_of_its_last_look(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "state", FakeProvider(LINEAGE), slots=1)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    set_draining(fleet.context, True)
    reconciler = fleet.reconciler()
    fleet.provider.script_look(ProviderFailed("it does not answer"))
    report, _ = until_empty(reconciler, tell=lambda *_: reconciler.stop.set())
    assert report.interrupted
    assert [error.what for error in report.errors] == ["it does not answer"]
