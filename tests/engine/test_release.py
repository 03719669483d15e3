"""Releasing workers that were kept: what a proof has to say, and that nothing less, and nothing twice, releases one."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from controller.clock import SystemClock
from controller.engine import proof as proofs
from controller.engine.queue import Context, cancel, retry
from controller.engine.release import Released, release
from controller.model.errors import (
    Conflict,
    NotFound,
    ProofConflicting,
    ProofIncomplete,
    ProofRefused,
    ProofStale,
    TransitionRefused,
)
from controller.model.policy import Policy, Release
from controller.model.records import ActionType, Event, Resource, Worker, WorkerState
from controller.provider.fake import FakeProvider, LoseUndone
from controller.provider.process import own_identity
from controller.store.file import FileStore
from tests.engine.fleet import LINEAGE, Fleet


def digest_of(resource: Resource) -> str:
    """As a person computes it with sha256sum, from what the provider shows."""
    text = f'{{"id":"{resource.id}","immutable_id":"{resource.immutable_id}"}}'
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def filled(fleet: Fleet, run: str, slot: int | None = None) -> dict[str, Any]:
    """A proof for the run's worker: the template, with what was seen at the provider itself."""
    made = proofs.template(fleet.document, run, slot)
    seen = fleet.provider.workers[made["slot"]].seen.resources
    made["resources"] = {name: digest_of(resource) for name, resource in seen.items()}
    made["statement"] = "ops@example.org copied the results"
    return made


def ruled(fleet: Fleet) -> Context:
    return structs.replace(fleet.context, policy=fleet.policy)


def released(fleet: Fleet, run: str, proof: Mapping[str, object] | None, **options: Any) -> Released:
    return release(ruled(fleet), run, proof, **options)


def event_of(fleet: Fleet, slot: int = 1) -> Event:
    return [event for event in fleet.context.store.history(f"slot:{slot}") if event.event == "release"][-1]


def states(fleet: Fleet) -> dict[int, tuple[WorkerState, str | None]]:
    return {slot: (worker.state, worker.run) for slot, worker in fleet.document.workers.items()}


def rewrite(fleet: Fleet, slot: int, **fields: Any) -> None:
    """Make the record of a worker read so, as no reconcile in a test can be made to leave it."""
    with fleet.context.store.hold(5.0) as hold:
        loaded = hold.load()
        draft = fleet.context.draft(loaded.document)
        draft.workers.put(slot, structs.replace(loaded.document.workers[slot], **fields))
        draft.event(f"slot:{slot}", "noted")
        hold.commit(loaded, draft.edit())


@pytest.fixture
def proving(fleet: Fleet) -> Fleet:
    """Run `a` has succeeded; its worker in slot 1 waits for its proof."""
    fleet.policy = structs.replace(fleet.policy, release=Release.PROOF)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    return fleet


@pytest.fixture
def failing(tmp_path: Path) -> Fleet:
    """Every step fails; the worker of a run that failed for good is stopped and kept."""
    fleet = Fleet(tmp_path / "failing", FakeProvider(LINEAGE, ends=1))
    fleet.policy = Policy(slots=3, retain_failed=True)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    assert states(fleet) == {1: (WorkerState.DEALLOCATED, "a")}
    return fleet


def test_a_proof_releases_the_worker_of_a_run_that_left_the_document_and_history_keeps_who_and_why(
    proving: Fleet,
) -> None:
    assert states(proving) == {1: (WorkerState.ASSIGNED, "a")}
    proof = filled(proving, "a")
    answer = released(proving, "a", proof, by="ops", reason="results are copied")
    assert (answer.slot, answer.changed, answer.already, answer.state) == (1, True, False, WorkerState.RELEASED)
    assert states(proving) == {1: (WorkerState.RELEASED, None)}
    assert proving.document.workers[1].proof == answer.proof
    said = event_of(proving)
    assert (said.reason, said.token) == ("released", 1)
    assert said.detail is not None
    assert said.detail.startswith("by ops: results are copied; run a; stated: ops@example.org copied the results; ")
    assert said.detail.endswith(f"; proof {answer.proof}")
    proving.submit("b")
    proving.reconciler().reconcile()
    assert states(proving) == {1: (WorkerState.ASSIGNED, "b")}


def test_the_digest_of_a_proof_is_that_of_its_canonical_bytes(proving: Fleet) -> None:
    proof = filled(proving, "a")
    canonical = json.dumps(proof, sort_keys=True, separators=(",", ":")).encode()
    backwards = dict(reversed(proof.items()))
    assert released(proving, "a", backwards).proof == f"sha256:{hashlib.sha256(canonical).hexdigest()}"


def test_a_template_given_back_as_it_is_names_each_placeholder_and_keeps_everything(proving: Fleet) -> None:
    before = proving.bytes()
    with pytest.raises(ProofIncomplete) as refusal:
        released(proving, "a", proofs.template(proving.document, "a"))
    for name in ("resources.disk", "resources.vm", "statement"):
        assert f"{name} is still a placeholder" in refusal.value.what
    assert proving.bytes() == before


@pytest.mark.parametrize("left", ["vm", "disk", "statement"])
def test_a_template_filled_in_but_for_one_placeholder_names_that_one(proving: Fleet, left: str) -> None:
    template, proof = proofs.template(proving.document, "a"), filled(proving, "a")
    if left == "statement":
        proof["statement"] = f"ops: {template['statement']}"
    else:
        proof["resources"][left] = template["resources"][left]
    with pytest.raises(ProofIncomplete) as refusal:
        released(proving, "a", proof)
    assert refusal.value.what.count("placeholder") == 1
    assert f"{left} is still a placeholder" in refusal.value.what


def test_a_template_says_nothing_from_which_its_digests_could_be_copied(proving: Fleet) -> None:
    text = json.dumps(proofs.template(proving.document, "a"))
    for resource in proving.document.workers[1].resources.values():
        assert resource.id in text
        assert digest_of(resource) not in text
        assert f'"{resource.immutable_id}"' not in text


@pytest.mark.parametrize(
    "member",
    ["proof", "lineage", "run", "token", "slot", "assignment", "generation", "worker", "resources", "statement"],
)
def test_a_proof_without_one_of_its_members_releases_nothing(proving: Fleet, member: str) -> None:
    proof, before = filled(proving, "a"), proving.bytes()
    del proof[member]
    with pytest.raises(ProofIncomplete, match=f"{member} is missing"):
        released(proving, "a", proof)
    assert proving.bytes() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"note": 1}, "'note' is no member of a proof"),
        ({"a": 1, "b": 2}, "'a', 'b' are no members of a proof"),
        ({"proof": "controller.release/2"}, "proof is 'controller.release/2', not"),
        ({"token": True}, "token is True, not a whole number"),
        ({"token": 1.0}, "token is 1.0, not a whole number"),
        ({"token": "1"}, "token is '1', not a whole number"),
        ({"token": 2**63}, "token is 9223372036854775808, not a whole number"),
        ({"generation": -1}, "generation is -1, not a whole number"),
        ({"slot": 10_001}, "slot is 10001, not a whole number"),
        ({"slot": None}, "slot is None, not a whole number"),
        ({"worker": 7}, "worker is 7, not a text"),
        ({"lineage": "\ud800"}, r"lineage is '\\ud800', not a text"),
        ({"statement": "  "}, "statement must have 1 to 1000 characters"),
        ({"statement": " \u200b\u2060\ufeff\n"}, "one that can be seen"),
        ({"statement": "x" * 1001}, "statement must have 1 to 1000 characters"),
        ({"resources": []}, "resources is .*, not an object"),
        ({"resources": {"vm": {"id": "x"}}}, "resources.vm is .*, not sha256"),
        ({"resources": {"vm": "sha256:" + "A" * 64}}, "resources.vm is .*, not sha256"),
        ({"resources": {"vm": "sha256:" + "a" * 63}}, "resources.vm is .*, not sha256"),
        ({"resources": {"vm": "a" * 64}}, "resources.vm is .*, not sha256"),
    ],
    ids=str,
)
def test_a_proof_of_another_shape_releases_nothing(proving: Fleet, change: dict[str, object], said: str) -> None:
    proof, before = filled(proving, "a") | change, proving.bytes()
    with pytest.raises(ProofIncomplete, match=said):
        released(proving, "a", proof)
    assert proving.bytes() == before


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"lineage": "33333333-3333-4333-8333-333333333333"}, ProofConflicting, "lineage is"),
        ({"run": "b"}, ProofConflicting, "run is 'b', not a"),
        ({"slot": 2}, ProofConflicting, "slot is 2, and run a has its worker in slot 1"),
        ({"token": 0}, ProofStale, "token is 0, and run a has lived on to 1"),
        ({"token": 2}, ProofConflicting, "token is 2, and run a has had 1"),
        ({"assignment": "a-0"}, ProofStale, "assignment is 'a-0', and slot 1 has a-1"),
        ({"generation": 0}, ProofStale, "generation is 0, and the worker was made anew since: 1"),
        ({"generation": 2}, ProofConflicting, "generation is 2, and the worker's is 1"),
        ({"worker": "i-2"}, ProofConflicting, "worker is 'i-2', and slot 1 has 'fake-1-a-1'"),
    ],
    ids=str,
)
def test_a_proof_about_something_else_releases_nothing(
    proving: Fleet, change: dict[str, object], kind: type[ProofRefused], said: str
) -> None:
    proof, before = filled(proving, "a") | change, proving.bytes()
    with pytest.raises(kind, match=said) as refusal:
        released(proving, "a", proof)
    assert type(refusal.value) is kind
    assert proving.bytes() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda resources: resources.pop("disk"), "resource disk of the worker is missing"),
        (lambda resources: resources.update(nic=resources["vm"]), "resource 'nic' is none of the worker's"),
        (lambda resources: resources.update(vm=resources["disk"]), "resource vm is not the recorded one"),
        (lambda resources: resources.clear(), "disk of the worker is missing; resource vm of the worker is missing"),
    ],
    ids=["missing", "one too many", "another", "none"],
)
def test_a_proof_of_other_resources_releases_nothing(
    proving: Fleet, change: Callable[[dict[str, str]], object], said: str
) -> None:
    proof, before = filled(proving, "a"), proving.bytes()
    change(proof["resources"])
    with pytest.raises(ProofConflicting, match=said):
        released(proving, "a", proof)
    assert proving.bytes() == before


def test_a_resource_that_was_made_anew_under_its_name_is_not_the_recorded_one(proving: Fleet) -> None:
    vm = proving.document.workers[1].resources["vm"]
    proof = filled(proving, "a")
    proof["resources"]["vm"] = digest_of(structs.replace(vm, immutable_id="another"))
    with pytest.raises(ProofConflicting, match="resource vm is not the recorded one"):
        released(proving, "a", proof)


def test_a_proof_made_for_an_earlier_life_of_the_run_is_stale(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "state", FakeProvider(LINEAGE, ends=1))
    fleet.policy = structs.replace(fleet.policy, release=Release.PROOF)
    fleet.submit("a", attempts=2)
    fleet.reconciler().reconcile()
    earlier = filled(fleet, "a")
    fleet.clock.advance(fleet.policy.retry.cap_ms / 1000)
    fleet.reconciler().reconcile()
    assert (fleet.document.runs["a"].state, fleet.document.runs["a"].attempts) == ("failed", 2)
    assert states(fleet) == {1: (WorkerState.ASSIGNED, "a")}
    before = fleet.bytes()
    with pytest.raises(ProofStale, match="token is 1, and run a has lived on to 2"):
        released(fleet, "a", earlier)
    assert fleet.bytes() == before
    assert released(fleet, "a", earlier | {"token": 2}).changed


def test_a_proof_made_before_a_resume_is_stale(failing: Fleet) -> None:
    proof = filled(failing, "a")
    rewrite(failing, 1, generation=2)
    with pytest.raises(ProofStale, match="generation is 1, and the worker was made anew since: 2"):
        released(failing, "a", proof)


def test_nothing_is_released_from_a_worker_that_holds_the_run(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "state", FakeProvider(LINEAGE))
    fleet.policy = structs.replace(fleet.policy, release=Release.PROOF)
    fleet.submit("a")
    fleet.reconciler().reconcile()
    before = fleet.bytes()
    with pytest.raises(TransitionRefused, match="the worker of slot 1 still holds run a") as refusal:
        proofs.template(fleet.document, "a")
    assert refusal.value.next == "wait for the run's end, or controller cancel a"
    worker = fleet.document.workers[1]
    proof = {
        "proof": proofs.FORMAT,
        "lineage": LINEAGE,
        "run": "a",
        "token": 1,
        "slot": 1,
        "assignment": worker.assignment,
        "generation": worker.generation,
        "worker": worker.id,
        "resources": {name: digest_of(resource) for name, resource in worker.resources.items()},
        "statement": "too early",
    }
    with pytest.raises(TransitionRefused, match="the worker of slot 1 still holds run a"):
        released(fleet, "a", proof)
    assert fleet.bytes() == before


def test_a_worker_whose_step_may_still_have_a_process_is_not_released(proving: Fleet) -> None:
    proof = filled(proving, "a")
    rewrite(proving, 1, running="k", accepted=("k",))
    with pytest.raises(TransitionRefused, match="may still have a process in slot 1"):
        released(proving, "a", proof)


def test_nothing_judges_a_worker_whose_slot_has_a_pending_action(proving: Fleet) -> None:
    proof = filled(proving, "a")
    proving.provider.script(ActionType.DEALLOCATE, *[LoseUndone()] * 10)
    proving.clock.advance(proving.policy.idle_release_ms / 1000 + 1)
    proving.reconciler().reconcile()
    assert proving.action(1).type is ActionType.DEALLOCATE
    before = proving.bytes()
    for attempt in (lambda: released(proving, "a", proof), lambda: proofs.template(proving.document, "a")):
        with pytest.raises(Conflict, match="its deallocate is pending"):
            attempt()
    assert proving.bytes() == before


def test_the_same_proof_once_more_changes_nothing_and_is_no_error(proving: Fleet) -> None:
    proof = filled(proving, "a")
    first = released(proving, "a", proof)
    before = proving.bytes()
    again = released(proving, "a", proof)
    assert (again.changed, again.already, again.proof) == (False, True, first.proof)
    assert again.state is WorkerState.RELEASED
    assert proving.bytes() == before


def test_the_same_proof_is_known_when_its_worker_has_long_been_removed(proving: Fleet) -> None:
    proof = filled(proving, "a")
    first = released(proving, "a", proof)
    with proving.context.store.hold(5.0) as hold:
        loaded = hold.load()
        draft = proving.context.draft(loaded.document)
        draft.draining = True
        draft.event("fleet", "draining")
        hold.commit(loaded, draft.edit())
    proving.reconciler().reconcile()
    assert proving.document.workers == {}
    again = released(proving, "a", proof)
    assert (again.changed, again.already, again.state, again.proof) == (False, True, None, first.proof)


def test_another_proof_for_what_is_released_already_is_refused(proving: Fleet) -> None:
    proof = filled(proving, "a")
    released(proving, "a", proof)
    with pytest.raises(Conflict, match="not assigned to run a"):
        released(proving, "a", proof | {"statement": "somebody else did it"})


def test_a_statement_that_reads_like_the_end_of_another_proof_does_not_stand_in_for_it(proving: Fleet) -> None:
    proof = filled(proving, "a")
    forged = proof | {"statement": "forged"}
    words = f"; proof {proofs.read(forged).digest}"
    released(proving, "a", proof | {"statement": f"x{words}"}, by=f"x{words}", reason=f"x{words}")
    with pytest.raises(Conflict, match="not assigned to run a"):
        released(proving, "a", forged)


def test_of_two_that_bring_the_same_proof_at_once_one_releases_and_the_other_hears_that_it_is_done(
    proving: Fleet,
) -> None:
    proof, start = filled(proving, "a"), threading.Barrier(4)
    answers: list[Released] = []

    def bring() -> None:
        # A fake clock's waits are over at once, so that whoever comes second would not wait for the first.
        store = FileStore(proving.directory, clock=SystemClock(), whoami=own_identity(), command="test")
        context = Context(store, SystemClock(), "test", lock_timeout=60.0, policy=proving.policy)
        start.wait()
        answers.append(release(context, "a", proof))

    threads = [threading.Thread(target=bring) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted((answer.changed, answer.already) for answer in answers) == [(False, True)] * 3 + [(True, False)]
    assert [e.event for e in proving.context.store.history("slot:1")].count("release") == 1


def test_a_dry_run_judges_all_and_changes_nothing(proving: Fleet) -> None:
    proof, before = filled(proving, "a"), proving.bytes()
    answer = released(proving, "a", proof, dry_run=True)
    assert (answer.changed, answer.state) == (False, WorkerState.RELEASED)
    with pytest.raises(ProofConflicting):
        released(proving, "a", proof | {"worker": "i-2"}, dry_run=True)
    assert proving.bytes() == before


def test_without_a_proof_nothing_is_released_where_one_is_asked_for_or_nobody_knows(proving: Fleet) -> None:
    before = proving.bytes()
    for context in (ruled(proving), proving.context):
        with pytest.raises(Conflict, match="is released by a proof") as refusal:
            release(context, "a", None)
        assert refusal.value.next == "controller release a --template --slot 1"
    assert proving.bytes() == before


def test_a_worker_kept_for_its_failed_run_is_released_without_a_proof_and_then_removed(failing: Fleet) -> None:
    answer = released(failing, "a", None, by="ops", reason="looked at")
    assert (answer.changed, answer.state, answer.proof) == (True, WorkerState.DEALLOCATED, "")
    assert states(failing) == {1: (WorkerState.DEALLOCATED, None)}
    assert event_of(failing).detail == "by ops: looked at; run a"
    failing.reconciler().reconcile()
    assert failing.document.workers == {}
    assert failing.provider.workers == {}
    with pytest.raises(Conflict, match="no worker is assigned to run a"):
        released(failing, "a", None)


def test_a_proof_is_judged_as_strictly_where_none_is_asked_for(failing: Fleet) -> None:
    proof = filled(failing, "a")
    with pytest.raises(ProofConflicting):
        released(failing, "a", proof | {"worker": "i-2"})
    assert released(failing, "a", proof).changed


def test_a_lost_worker_stays_lost_when_it_is_released_and_then_it_is_removed(proving: Fleet) -> None:
    proof = filled(proving, "a")
    proving.provider.lose(1)
    proving.reconciler().reconcile()
    assert states(proving) == {1: (WorkerState.LOST, "a")}
    assert released(proving, "a", proof).state is WorkerState.LOST
    assert states(proving) == {1: (WorkerState.LOST, None)}
    proving.reconciler().reconcile()
    assert proving.document.workers == {}


def second_failure(fleet: Fleet) -> None:
    """Run `a` has failed once more, on another worker: both are kept."""
    retry(fleet.context, "a")
    fleet.reconciler().reconcile()
    assert states(fleet) == {1: (WorkerState.DEALLOCATED, "a"), 2: (WorkerState.DEALLOCATED, "a")}


def test_where_several_workers_are_kept_for_one_run_the_slot_must_be_named(failing: Fleet) -> None:
    second_failure(failing)
    before = failing.bytes()
    for attempt in (lambda: released(failing, "a", None), lambda: proofs.template(failing.document, "a")):
        with pytest.raises(Conflict) as refusal:
            attempt()
        assert refusal.value.where == "slot 1, slot 2"
    with pytest.raises(Conflict, match="the worker of slot 3 is not assigned to run a"):
        released(failing, "a", None, slot=3)
    assert failing.bytes() == before
    assert released(failing, "a", None, slot=2).slot == 2
    assert states(failing) == {1: (WorkerState.DEALLOCATED, "a"), 2: (WorkerState.DEALLOCATED, None)}


def test_a_proof_names_its_slot_itself_and_no_other(failing: Fleet) -> None:
    second_failure(failing)
    proof = filled(failing, "a", 2)
    with pytest.raises(ProofConflicting, match="slot is 2, not 1"):
        released(failing, "a", proof, slot=1)
    assert released(failing, "a", proof).slot == 2
    assert states(failing)[1] == (WorkerState.DEALLOCATED, "a")


def test_a_release_without_a_proof_leaves_none_of_an_earlier_one(failing: Fleet) -> None:
    rewrite(failing, 1, proof="sha256:earlier")
    released(failing, "a", None)
    assert failing.document.workers[1].proof == ""


def test_a_worker_without_resources_is_proven_by_the_rest(proving: Fleet) -> None:
    rewrite(proving, 1, resources={})
    proof = filled(proving, "a") | {"resources": {}}
    assert released(proving, "a", proof).changed


def test_a_run_that_waits_for_its_next_life_lets_its_worker_be_released_and_says_that_it_waits(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "state", FakeProvider(LINEAGE, ends=1))
    fleet.policy = structs.replace(fleet.policy, release=Release.PROOF)
    fleet.submit("a", attempts=2)
    fleet.reconciler().reconcile()
    answer = released(fleet, "a", filled(fleet, "a"))
    assert (answer.changed, answer.run_state) == (True, "queued")
    assert fleet.document.runs["a"].state == "queued"
    assert states(fleet) == {1: (WorkerState.RELEASED, None)}


def test_a_run_that_no_worker_is_assigned_to_has_nothing_to_release(fleet: Fleet) -> None:
    fleet.submit("a")
    with pytest.raises(Conflict, match="no worker is assigned to run a"):
        released(fleet, "a", None)
    with pytest.raises(NotFound):
        released(fleet, "nope", None)
    cancel(fleet.context, "a")
    with pytest.raises(Conflict, match="no worker is assigned to run a"):
        proofs.template(fleet.document, "a")


def test_a_digest_is_of_utf8_as_it_is(proving: Fleet) -> None:
    odd = Resource('vm-"ä"\\', "ß")
    rewrite(proving, 1, resources={"vm": odd})
    text = '{"id":"vm-\\"ä\\"\\\\","immutable_id":"ß"}'
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    assert proofs.resource_digest(odd) == digest
    worker: Worker = proving.document.workers[1]
    proof = proofs.template(proving.document, "a") | {"resources": {"vm": digest}, "statement": "seen"}
    assert worker.resources == {"vm": odd}
    assert released(proving, "a", proof).changed
