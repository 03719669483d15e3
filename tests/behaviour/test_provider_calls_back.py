"""During its call a provider program runs `controller` itself. Case L4."""

from __future__ import annotations

import json

from tests.behaviour.driver import COMMAND, Controller
from tests.behaviour.provider_program import Program


def test_l4_a_provider_that_reads_submits_and_cancels_during_its_call_deadlocks_nothing(controller: Controller) -> None:
    program = Program(controller)
    program.submit("a")
    back = [str(COMMAND), "--state-dir", str(controller.state)]
    program.next(
        "create",
        {"run": [[*back, "status", "--json"], [*back, "submit", "--id", "b", "--", "true"], [*back, "cancel", "a"]]},
    )
    controller.run("reconcile", "--apply", check=True)
    ran = [json.loads(line) for line in (program.home / "ran").read_text().splitlines()]
    assert [exit_code for _, exit_code, _ in ran] == [0, 0, 0], ran
    assert json.loads(ran[0][2])["pending_mutations"][0]["in_flight"]
    assert controller.json("show", "a")["run"]["state"] == "cancelled"
    assert controller.json("show", "b")["run"]["state"] == "succeeded"
    assert len(program.workers()) == 1
    assert controller.json("status")["pending_mutations"] == []
    assert controller.run("fsck", check=True).exit == 0


def test_l4_a_cancel_of_the_run_whose_step_is_being_started_takes_effect(controller: Controller) -> None:
    program = Program(controller)
    program.submit("a")
    back = [str(COMMAND), "--state-dir", str(controller.state)]
    program.next("execute", {"run": [[*back, "cancel", "a"]]})
    controller.run("reconcile", "--apply", check=True)
    assert controller.json("show", "a")["run"]["state"] == "cancelled"
    assert controller.run("fsck", check=True).exit == 0
