"""A cancel against an end, a delete of what is gone, and creates that come back as something else. Q3, Q5."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.faults import document
from tests.behaviour.provider_program import Program, wait_until


@pytest.fixture
def program(controller: Controller) -> Program:
    return Program(controller)


@pytest.fixture
def local(controller: Controller) -> Controller:
    controller.init("--slots", "1")
    return controller


def run_of(controller: Controller, name: str) -> dict[str, Any]:
    run: dict[str, Any] = controller.json("show", name)["run"]
    return run


def ends_of(controller: Controller, name: str) -> list[str]:
    """The states that the run came to in the end, one for each time."""
    told = [event for event in controller.json("history", f"run:{name}")["events"] if event["step"] is None]
    return [event["to"] for event in told if event["to"] in {"succeeded", "failed", "cancelled"}]


def did(program: Program) -> list[str]:
    """What the provider has done, in order."""
    return [kind for kind, *_ in program.calls("did")]


def is_empty(program: Program) -> bool:
    """No worker is left in the document or at the provider, after one more reconcile."""
    program.controller.run("reconcile", "--apply")
    return document(program.controller)["workers"] == {} and program.workers() == []


# --- Q3: cancel against end


def wait_for_start(controller: Controller, script: str, *options: str) -> None:
    controller.run("submit", "--id", "a", "--cwd", ".", *options, "--", "sh", "-c", script, check=True)
    controller.run("reconcile", "--apply", check=True)
    wait_until((controller.home / "runs").exists, "the start of a")


def test_q3_a_step_that_succeeds_though_it_is_being_cancelled_ends_its_run_cancelled_once(local: Controller) -> None:
    wait_for_start(local, "trap 'exit 0' TERM; touch runs; while :; do sleep 0.02; done", "--attempts", "3")
    local.run("cancel", "a", check=True)
    local.run("reconcile", "--apply", check=True)
    run = run_of(local, "a")
    assert (run["state"], run["attempts"], ends_of(local, "a")) == ("cancelled", 1, ["cancelled"])
    assert run["steps"][0]["attempts"][-1]["exit_code"] == 0, "the step's own record says how it really ended"


def test_q3_a_cancel_of_a_run_whose_end_nobody_has_collected_gives_it_one_end(local: Controller) -> None:
    wait_for_start(local, "touch runs; until [ -e go ]; do sleep 0.02; done; exit 3", "--attempts", "3")
    (directory,) = (local.state / "workers").iterdir()
    (local.home / "go").touch()
    wait_until(lambda: b'"record":"ended"' in (directory / "memory.jsonl").read_bytes(), "the end of the step")
    local.run("cancel", "a")
    local.run("reconcile", "--apply", check=True)
    run = run_of(local, "a")
    assert (run["state"], run["attempts"], ends_of(local, "a")) == ("cancelled", 1, ["cancelled"])
    assert run["steps"][0]["attempts"][-1]["exit_code"] == 3
    assert local.run("cancel", "a").exit == 3
    assert local.run("fsck").stdout.endswith("clean\n")


@pytest.mark.parametrize("fate", ["answered", "killed"])
def test_q3_a_cancel_between_the_park_of_a_create_and_its_answer_orphans_no_worker(program: Program, fate: str) -> None:
    controller = program.controller
    controller.configure("fleet", 'idle = "10ms"')
    program.submit("a")
    program.next("create", {"wait_for": "go"})
    process = controller.popen("reconcile", "--apply")
    wait_until(lambda: program.calls() != [], "the create")
    if fate == "killed":
        process.kill()
        process.wait()
    assert controller.run("cancel", "a").exit == 0
    assert run_of(controller, "a")["state"] == "cancelled"
    program.let("go")
    if fate == "answered":
        process.communicate(timeout=30)
    wait_until(lambda: is_empty(program), "the end of the worker that nobody needs")
    assert did(program) == ["create", "deallocate", "delete_compute", "reset"]
    assert ends_of(controller, "a") == ["cancelled"]
    assert controller.run("fsck").stdout.endswith("clean\n")


# --- Q5: already gone


@pytest.mark.parametrize("forgotten", [False, True])
def test_q5_a_controller_killed_between_a_delete_and_its_save_is_done_after_one_replay(
    program: Program, forgotten: bool
) -> None:
    controller = program.controller
    program.submit("a")
    controller.run("reconcile", "--apply", check=True)
    program.next("delete_compute", {"sleep_after": 1})
    process = controller.popen("drain", "--all")
    wait_until(lambda: "delete_compute" in did(program), "the delete")
    process.kill()
    process.wait()
    key = program.pending()[1]["idempotency_key"]
    if forgotten:  # the provider remembers nothing of it: to the key, it is as if it had never been there
        (program.home / "answers" / key).unlink()
        (program.home / "workers" / "1.json").unlink()
    wait_until(lambda: not program.pending()[1]["in_flight"], "the end of the provider's process")
    report = controller.json("replay-pending")
    assert [(sent["type"], sent["outcome"]) for sent in report["sent"]] == [("delete_compute", "done")]
    assert program.pending() == {}
    wait_until(lambda: is_empty(program), "the end of the worker")
    assert [call[2] for call in program.calls() if call[0] == "delete_compute"] == [key, key]


# --- Creates that come back as something else


def answer(program: Program, **others: object) -> dict[str, Any]:
    """What an honest program says of the worker in slot 2, but for *others*."""
    made = {"slot": 2, "lineage": document(program.controller)["lineage"], "assignment": "a-2", "generation": 1}
    made |= {"id": "vm-new", "state": "ready", "resources": {"vm": {"id": "vm-new", "immutable_id": "new"}}}
    return {"reply": {"worker": made | others}}


OTHERS: dict[str, dict[str, Any]] = {
    "another slot": {"slot": 1},
    "a slot that nobody has": {"slot": 3},
    "another lineage": {"lineage": "5f0c1a9e-3b1d-4c55-9a2f-8a4c1b7e2d10"},
    "another assignment": {"assignment": "a-1"},
    "another generation": {"generation": 2},
    "the resource of slot 1": {"resources": {"vm": {"id": "THE ONE IN SLOT 1", "immutable_id": "x"}}},
    "the worker id of slot 1": {"id": "THE ONE IN SLOT 1"},
}


@pytest.fixture
def beside(program: Program) -> Program:
    """A fleet with a worker in slot 1 that has done a run, and a run that needs another in slot 2."""
    program.submit("a")
    program.controller.run("reconcile", "--apply", check=True)
    program.controller.run("cordon", "1", "--reason", "as it is", "--confirm-cordon", check=True)
    program.submit("b")
    return program


@pytest.mark.parametrize("what", OTHERS)
def test_a_create_that_comes_back_as_something_else_is_not_believed_and_stays_parked_under_its_key(
    beside: Program, what: str
) -> None:
    controller = beside.controller
    (first,) = beside.workers()
    before = controller.json("show", "slot:1")["slot"]["worker"]
    lie = json.loads(json.dumps(answer(beside, **OTHERS[what])).replace("THE ONE IN SLOT 1", first["id"]))
    beside.always("create-2", lie)
    result = controller.run("reconcile", "--apply")
    assert result.exit in {3, 5}, str(result)  # 3: the document refused to take it
    assert "Traceback" not in result.stderr
    (entry,) = beside.pending().values()
    assert (entry["slot"], entry["type"]) == (2, "create")
    assert entry["last_error"], entry
    assert controller.json("show", "slot:1")["slot"]["worker"] == before
    assert controller.run("fsck").stdout.endswith("clean\n")
    beside.honest("create-2")
    controller.run("replay-pending", check=True)
    controller.run("reconcile", "--apply", check=True)
    assert run_of(controller, "b")["state"] == "succeeded"
    keys = {call[2] for call in beside.calls() if call[0] == "create" and call[1] == "2"}
    assert keys == {entry["idempotency_key"]}
    assert len(beside.workers()) == 2


def test_an_answer_to_a_create_under_another_slot_or_key_is_no_answer(beside: Program) -> None:
    controller = beside.controller
    for reply in ({"slot": 1}, {"idempotency_key": "0" * 64}):
        beside.always("create-2", {"reply": reply})
        assert controller.run("reconcile", "--apply").exit == 5
        assert controller.run("replay-pending").exit == 5
        assert list(beside.pending()) == [2]
    beside.honest("create-2")
    controller.run("replay-pending", check=True)
    controller.run("reconcile", "--apply", check=True)
    assert run_of(controller, "b")["state"] == "succeeded"
    assert did(beside).count("create") == 2
