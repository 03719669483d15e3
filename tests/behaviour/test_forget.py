"""forget, typed as an operator types it: a provider that is gone for good, and the fleet that goes on without it."""

from __future__ import annotations

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.faults import durable
from tests.behaviour.provider_program import Program, wait_until

WHY = ("--reason", "the account was closed")


@pytest.fixture
def program(controller: Controller) -> Program:
    """Run "a" has succeeded on the worker of slot 1, which is idle; looks are believed soon."""
    program = Program(controller, slots=1)
    controller.configure("fleet", 'grace = "50ms"')
    program.submit("a")
    controller.run("reconcile", "--apply", check=True)
    return program


def gone(program: Program) -> None:
    (program.controller.home / "provider.py").unlink()


def test_without_its_flag_it_says_what_would_be_given_up_and_while_the_provider_answers_it_is_refused(
    program: Program,
) -> None:
    controller = program.controller
    before = durable(controller)
    answers = controller.run("forget", "1", *WHY, "--confirm-forget")
    assert (answers.exit, "the provider answers" in answers.stderr) == (3, True), str(answers)
    gone(program)
    said = controller.run("forget", "slot:1", *WHY)
    assert said.exit == 3, str(said)
    assert "nothing was done: the record of the worker of slot 1 (a-1 generation 1 of command) would be" in said.stderr
    assert "next: controller forget 1 --reason 'the account was closed' --confirm-forget" in said.stderr
    assert "say why" in controller.run("forget", "1", "--confirm-forget").stderr
    dry = controller.run("forget", "1", "--dry-run", check=True).stdout
    assert "may be left, and cost money: worker vm-1-1" in dry
    assert controller.json("forget", "2", *WHY, "--confirm-forget", exit=4)["error"]["code"] == "not_found"
    assert durable(controller) == before


def test_a_fleet_whose_provider_is_gone_is_wound_up_by_three_commands_and_goes_on_with_another(
    controller: Controller,
) -> None:
    program = Program(controller, slots=1)
    controller.configure("fleet", 'grace = "50ms"')
    program.always("execute-1", {"do": False, "instead": "noise"})
    program.submit("a")
    controller.run("reconcile", "--apply")
    key = program.pending()[1]["idempotency_key"]
    gone(program)
    assert f"abandon 1 --key {key} --unresolved" in controller.run("forget", "1", *WHY, "--confirm-forget").stderr
    controller.run("abandon", "1", "--key", key, "--unresolved", *WHY, "--confirm-abandon", check=True)
    assert "controller surrender a" in controller.run("forget", "1", *WHY, "--confirm-forget").stderr
    controller.run("surrender", "a", "--unresolved", *WHY, "--confirm-surrender", check=True)
    path = controller.state / "controller.toml"
    path.write_text(path.read_text().replace('kind = "command"', 'kind = "local"'))
    kept = controller.run("reconcile", "--apply")
    assert (kept.exit, "controller forget 1 --reason WHY --confirm-forget" in kept.stderr) == (3, True), str(kept)
    answer = controller.json("forget", "1", *WHY, "--confirm-forget")
    assert answer == {
        "schema": "controller.forget/1",
        "slot": 1,
        "assignment": "a-1",
        "generation": 1,
        "provider": "command",
        "left": ["worker vm-1-1", f"vm vm-1-1 ({program.workers()[0]['resources']['vm']['immutable_id']})"],
        "idempotency_key": answer["idempotency_key"],
        "dry_run": False,
    }
    assert controller.run("forget", "1", *WHY, "--confirm-forget").exit == 4
    assert "Its worker was forgotten" in " ".join(controller.json("explain", "slot:1")["because"])
    controller.run("submit", "--id", "b", "--", "true", check=True)

    def done() -> bool:
        controller.run("reconcile", "--apply")
        return bool(controller.json("show", "b")["run"]["state"] == "succeeded")

    wait_until(done, "the run on the other provider")
    assert controller.run("fsck", check=True).stdout.endswith("clean\n")
    kept_for_ever = {each["type"]: each["proven"] for each in controller.json("status")["disowned_actions"]}
    assert kept_for_ever == {"execute": "absent", "delete_compute": "absent"}
    assert "vm-1-1" in controller.run("status", check=True).stdout


def test_one_that_was_there_after_all_is_found_and_removed(program: Program) -> None:
    controller, script = program.controller, program.controller.home / "provider.py"
    text = script.read_text()
    gone(program)
    controller.run("forget", "1", *WHY, "--confirm-forget", check=True)
    script.write_text(text)
    controller.run("reconcile", "--apply")
    assert [each["id"] for each in controller.json("status")["unrecorded"]] == ["vm-1-1"]
    identity = controller.json("delete-unrecorded", "1")["found"]["identity"]
    controller.run("delete-unrecorded", "1", "--identity", identity, *WHY, "--confirm-delete", check=True)
    assert (program.workers(), controller.json("fsck")["ok"]) == ([], True)
