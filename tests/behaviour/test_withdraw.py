"""withdraw takes back a run that no worker ever took, and nothing else."""

from __future__ import annotations

from tests.behaviour.driver import Controller
from tests.behaviour.faults import durable, on_disk, write_document


def test_a_queued_run_becomes_cancelled_because_it_was_withdrawn(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--id", "build", "--", "make", check=True)
    assert controller.json("withdraw", "build") == {
        "schema": "controller.withdraw/1",
        "run": "build",
        "state": "cancelled",
        "reason": "withdrawn",
    }
    run = controller.json("show", "build")["run"]
    assert (run["state"], run["reason"], run["steps"][0]["state"]) == ("cancelled", "withdrawn", "cancelled")
    assert controller.json("fsck")["ok"]


def test_text_says_what_became_of_it(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "make", check=True)
    assert controller.run("withdraw", "r-1", check=True).stdout == "run r-1 is cancelled: withdrawn\n"


def test_a_second_withdraw_is_refused_changes_nothing_and_is_noted(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "make", check=True)
    controller.run("withdraw", "r-1", check=True)
    before = durable(controller)
    error = controller.json("withdraw", "r-1", exit=3)["error"]
    assert (error["code"], error["what"]) == ("transition_refused", "run r-1 is withdrawn already")
    assert durable(controller) == before
    (refusal,) = controller.json("status")["refusals"]
    assert (refusal["command"], refusal["subject"]) == ("withdraw", "run:r-1")
    assert "r-1" in controller.run("status", check=True).stdout


def test_a_run_that_a_worker_is_made_for_is_refused_naming_the_slot(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "make", check=True)
    content = on_disk(controller)
    content["workers"]["3"] = {
        "slot": 3,
        "assignment": "a-1",
        "generation": 1,
        "provider": "local",
        "created_at": 1,
        "changed_at": 1,
        "state": "ready",
        "id": "w",
        "reserved": "r-1",
    }
    content["counters"]["assignment"] = 1
    write_document(controller, content)
    controller.run("state", "accept", check=True)
    done = controller.run("withdraw", "r-1")
    assert done.exit == 3
    assert "slot 3" in done.stderr
    assert controller.json("show", "r-1")["run"]["state"] == "queued"


def test_a_run_that_was_cancelled_is_cancelled_already(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "make", check=True)
    controller.run("cancel", "r-1", check=True)
    assert controller.json("withdraw", "r-1", exit=3)["error"]["what"] == "run r-1 is cancelled already"


def test_a_run_that_has_not_ended_needs_no_retry(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--id", "w", "--", "make", check=True)
    error = controller.json("retry", "w", exit=3)["error"]
    assert (error["code"], error["what"]) == ("transition_refused", "run w is queued already")


def test_an_unknown_run_is_exit_4(controller: Controller) -> None:
    controller.init()
    assert controller.json("withdraw", "nope", exit=4)["error"]["code"] == "not_found"


def test_a_slot_is_not_a_run(controller: Controller) -> None:
    controller.init()
    assert controller.json("withdraw", "slot:1", exit=2)["error"]["code"] == "usage"
