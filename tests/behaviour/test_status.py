"""status, show and runs tell where everything stands, in text as in JSON, and exit 0 whatever they tell."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.faults import document, write_document


def parked(controller: Controller, slot: int, **more: object) -> dict[str, Any]:
    """Write a worker being created and its parked action, as a crash leaves them; return the action."""
    content = document(controller)
    action = {
        "type": "create",
        "slot": slot,
        "serial": slot,
        "lineage": content["lineage"],
        "epoch": "",
        "assignment": f"a-{slot}",
        "generation": 1,
        "resources": {},
        "request": {},
        "settled": [],
    }
    canonical = json.dumps(action, sort_keys=True, separators=(",", ":")).encode()
    action["idempotency_key"] = hashlib.sha256(canonical).hexdigest()
    content["workers"][str(slot)] = {
        "slot": slot,
        "assignment": f"a-{slot}",
        "generation": 1,
        "provider": "local",
        "created_at": 1_700_000_000_000,
        "changed_at": 1_700_000_000_000,
    }
    content["pending_actions"][str(slot)] = {"action": action, "parked_at": 1_700_000_000_000, **more}
    content["counters"] = {**content["counters"], "serial": slot, "assignment": slot}
    write_document(controller, content)
    return action


def test_a_new_fleet_in_json(controller: Controller) -> None:
    controller.init("--fleet", "builds", "--slots", "3")
    answer = controller.json("status")
    assert answer["schema"] == "controller.status/1"
    assert (answer["fleet"], answer["revision"], answer["slots"], answer["draining"]) == ("builds", 1, 3, False)
    assert answer["lineage"] == document(controller)["lineage"]
    assert answer["runs"] == {"pending": 0, "scheduled": 0, "active": 0, "dead": 0}
    assert answer["pending_mutations"] == []
    assert answer["oldest_waiting_ms"] is None
    assert answer["integrity"] == {"digest": "ok", "sentinel": "ok", "history": "ok", "history_revision": 1}


def test_waiting_runs_are_counted_and_the_oldest_is_aged(controller: Controller) -> None:
    controller.init()
    for _ in range(2):
        controller.run("submit", "--", "true", check=True)
    answer = controller.json("status")
    assert answer["runs"]["pending"] == 2
    assert answer["runs_by_state"]["queued"] == 2
    assert answer["oldest_waiting_at"] == controller.json("show", "r-1")["run"]["created_at"]
    assert answer["oldest_waiting_ms"] >= 0
    assert "2 pending; oldest waits" in controller.run("status", check=True).stdout


def test_a_pending_mutation_shows_whole_in_text_and_json(controller: Controller) -> None:
    controller.init()
    action = parked(controller, 2, sends=3, not_before=1_700_000_005_000, last_error="quota \x1b[31m exceeded")
    (pending,) = controller.json("status")["pending_mutations"]
    assert pending["slot"] == 2
    assert pending["type"] == "create"
    assert pending["idempotency_key"] == action["idempotency_key"]
    assert pending["key_derives"] is True
    assert (pending["parked_at"], pending["not_before"]) == (1_700_000_000_000, 1_700_000_005_000)
    assert pending["sends"] == 3
    assert pending["last_error"] == "quota \x1b[31m exceeded"
    assert pending["in_flight"] is False
    text = controller.run("status", check=True).stdout
    assert "pending mutations: 1" in text
    assert action["idempotency_key"] in text
    assert r"quota \x1b[31m exceeded" in text
    assert "\x1b" not in text
    shown = controller.json("show", "slot:2")["slot"]
    assert shown["pending_mutation"] == pending
    assert shown["worker"]["state"] == "creating"
    assert action["idempotency_key"] in controller.run("show", "slot:2", check=True).stdout


def test_an_action_whose_bytes_were_touched_still_shows(controller: Controller) -> None:
    controller.init()
    parked(controller, 1)
    content = document(controller)
    content["pending_actions"]["1"]["action"]["generation"] = 2
    write_document(controller, content)
    (pending,) = controller.json("status")["pending_mutations"]
    assert pending["key_derives"] is False
    assert "DOES NOT DERIVE" in controller.run("status", check=True).stdout


def test_show_tells_everything_about_a_run(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--id", "build", "--timeout", "5m", "--", "make", "two words", "a\nb", check=True)
    run = controller.json("show", "build")["run"]
    assert (run["id"], run["state"], run["view"], run["queue"]) == ("build", "queued", "pending", "fleet")
    assert run["steps"][0]["argv"] == ["make", "two words", "a\nb"]
    text = controller.run("show", "build", check=True).stdout
    assert r"make 'two words' 'a\nb'" in text
    assert "timeout" in text
    assert "5m" in text
    assert controller.json("show", "run:build")["run"] == run


def test_a_slot_that_nobody_used_is_shown_and_one_beyond_the_fleet_is_not_there(controller: Controller) -> None:
    controller.init("--slots", "3")
    assert controller.json("show", "slot:3")["slot"]["worker"] is None
    assert controller.json("show", "slot:4", exit=4)["error"]["code"] == "not_found"


def test_an_unknown_run_is_exit_4(controller: Controller) -> None:
    controller.init()
    error = controller.json("show", "nope", exit=4)["error"]
    assert (error["code"], error["next"]) == ("not_found", "controller runs")


def test_runs_lists_the_newest_first_by_state_and_view(controller: Controller) -> None:
    controller.init()
    for name in ("one", "two", "three"):
        controller.run("submit", "--id", name, "--", "echo", name, check=True)
    controller.run("withdraw", "two", check=True)

    def ids(*options: str) -> list[str]:
        return [run["id"] for run in controller.json("runs", *options)["runs"]]

    assert ids() == ["three", "two", "one"]
    assert ids("--state", "queued") == ids("--state", "pending") == ["three", "one"]
    assert ids("--state", "cancelled") == ["two"]
    assert ids("--state", "dead") == []
    limited = controller.json("runs", "--limit", "1")
    assert ([run["id"] for run in limited["runs"]], limited["total"]) == (["three"], 3)
    assert "2 older ones" in controller.run("runs", "--limit", "1", check=True).stdout
    assert "no runs are dead" in controller.run("runs", "--state", "dead", check=True).stdout


@pytest.mark.parametrize("content", ["x [[", None])
def test_a_configuration_that_cannot_be_read_hides_nothing(controller: Controller, content: str | None) -> None:
    controller.init()
    controller.run("submit", "--id", "a", "--", "true", check=True)
    path = controller.state / "controller.toml"
    path.unlink()
    if content is None:
        os.mkfifo(path)
    else:
        path.write_text(content)
    assert controller.json("status")["config_fault"]["code"] == "usage"
    assert "trouble" in controller.run("status", check=True).stderr
    assert controller.json("explain", "a")["config_fault"]["code"] == "usage"
    controller.run("explain", "slot:1", check=True)
    controller.run("show", "slot:1", check=True)
    assert controller.run("submit", "--", "true").exit == 2


def test_a_document_that_was_edited_or_is_older_than_history_says_so_in_words_and_what_next(
    controller: Controller,
) -> None:
    controller.init()
    older = (controller.state / "controller.json").read_bytes()
    controller.run("submit", "--", "true", check=True)
    assert "edited" not in controller.run("status", check=True).stdout
    (controller.state / "controller.json").write_bytes(older)
    text = controller.run("status", check=True).stdout
    assert "history knows revision 2, the document is of revision 1" in text
    assert "next: put the newer document back" in text
    write_document(controller, {**document(controller), "draining": True})
    text = controller.run("status", check=True).stdout
    assert "was edited by something else than controller" in text
    assert "`controller state accept` takes it over" in text


def test_a_history_that_is_gone_is_said_in_words(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    (controller.state / "history.jsonl").unlink()
    assert "history.jsonl is missing" in controller.run("status", check=True).stdout


def test_ended_runs_alone_are_none_waiting_or_active(controller: Controller) -> None:
    controller.init()
    assert re.search(r"^runs +none$", controller.run("status", check=True).stdout, re.MULTILINE)
    controller.run("submit", "--", "true", check=True)
    controller.run("withdraw", "r-1", check=True)
    assert re.search(r"^runs +none waiting or active$", controller.run("status", check=True).stdout, re.MULTILINE)
    assert "1 run in the document (succeeded runs have left it)" in controller.run("fsck", check=True).stdout


def test_explain_counts_in_words(controller: Controller) -> None:
    controller.init("--slots", "1")
    parked(controller, 1, sends=1)
    assert "A create is parked for slot 1" in (text := controller.run("explain", "slot:1", check=True).stdout)
    assert "sent once." in text
    content = document(controller)
    content["pending_actions"]["1"]["last_reason"] = "identity_refused"
    write_document(controller, content)
    assert "next: Remove or rename the worker at the provider" in controller.run("explain", "slot:1").stdout
