"""status, show and runs tell where everything stands, in text as in JSON, and exit 0 whatever they tell."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.faults import document, durable, make_whole, on_disk, write_document


def parked(controller: Controller, slot: int, **more: object) -> dict[str, Any]:
    """Write a worker being created and its parked action, as a crash leaves them; return the action."""
    content = on_disk(controller)
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
    content = on_disk(controller)
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
    controller.run("submit", "--", "true", check=True)
    (controller.state / "controller.json").write_bytes(older)
    text = controller.run("status", check=True).stdout
    assert "history knows revision 3, the document is of revision 2" in text, "its own journal has one commit more"
    assert "next: put the newer document back" in text
    write_document(controller, {**on_disk(controller), "draining": True})
    text = controller.run("status", check=True).stdout
    assert "was edited by something else than controller" in text
    assert "`controller state accept` takes it over" in text


def test_a_history_from_before_the_journal_that_is_gone_is_said_in_words(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    make_whole(controller)
    (controller.state / "history.jsonl").unlink()
    assert "history.jsonl is missing" in controller.run("status", check=True).stdout


def test_a_journal_that_is_gone_is_refused_by_name(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    journal = controller.state / on_disk(controller)["journal"]["file"]
    journal.unlink()
    before = durable(controller)
    for command in (("status",), ("show", "r-1"), ("submit", "--", "true"), ("state", "accept")):
        error = controller.json(*command, exit=7)["error"]
        assert error["code"] == "document_corrupt"
        assert str(journal) in error["where"]
        assert error["next"]
    assert durable(controller) == before


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
    content = on_disk(controller)
    content["pending_actions"]["1"]["last_reason"] = "identity_refused"
    write_document(controller, content)
    assert "--confirm-abandon" in controller.run("explain", "slot:1").stdout


AT = 1_700_000_000_000
"""Long ago for whoever reads the clock now."""


def standing(controller: Controller, **sections: Any) -> dict[str, Any]:
    """The answer of status once these sections are in the document."""
    write_document(controller, {**on_disk(controller), **sections})
    answer: dict[str, Any] = controller.json("status")
    return answer


def test_a_fleet_with_nothing_to_see_to_has_no_word_of_it(controller: Controller) -> None:
    controller.init()
    answer = controller.json("status")
    sections = ("cordoned", "unreleased", "unrecorded", "disowned_actions", "breakers", "paused_queues")
    assert [answer[name] for name in sections] == [[]] * len(sections)
    text = controller.run("status", check=True).stdout
    for word in ("cordoned", "not released", "unrecorded", "disowned", "breaker", "paused", "next:"):
        assert word not in text


def test_cordoned_and_draining_slots_and_paused_queues_are_told(controller: Controller) -> None:
    controller.init()
    slots = {"2": {"cordoned": True}, "4": {"cordoned": True, "draining": True}}
    answer = standing(controller, slots=slots, queues={"fleet": {"paused": True}})
    lift = [f"controller uncordon {slot} --reason WHY --confirm-uncordon" for slot in (2, 4)]
    assert answer["cordoned"] == [
        {"slot": 2, "draining": False, "next": [lift[0]]},
        {"slot": 4, "draining": True, "next": [lift[1]]},
    ]
    assert answer["paused_queues"] == ["fleet"]
    text = controller.run("status", check=True).stdout
    assert re.search(r"^cordoned +slot 2, slot 4 \(draining\)$", text, re.MULTILINE)
    assert re.search(r"^paused +queue fleet$", text, re.MULTILINE)
    assert f"  slot 2\n    next: {lift[0]}\n" in text


def kept(slot: int, run: str, state: str, **fields: object) -> dict[str, Any]:
    tags = {"slot": slot, "assignment": f"a-{slot}", "generation": 1, "provider": "local", "id": f"w-{slot}"}
    return {**tags, "created_at": AT, "changed_at": AT, "state": state, "run": run, **fields}


def test_workers_that_are_not_released_are_told_with_their_run_since_when_why_and_what_to_type(
    controller: Controller,
) -> None:
    controller.init("--slots", "4")
    controller.configure("fleet", 'release = "proof"')
    controller.run("submit", "--id", "a", "--", "true", check=True)
    run = document(controller)["runs"]["a"]
    ended = {**run, "state": "failed", "reason": "exit_code", "finished_at": AT + 5}
    workers = {
        "1": kept(1, "a", "assigned", idle_since={"began_at": AT, "ended_at": AT + 1}),
        "2": kept(2, "a", "deallocated", reason="idle_release"),
        "3": kept(3, "a", "lost"),
        "4": {name: value for name, value in kept(4, "a", "ready").items() if name != "run"},
    }
    answer = standing(controller, runs={"a": ended}, workers=workers)
    rows = [(each["slot"], each["run"], each["state"], each["since_at"]) for each in answer["unreleased"]]
    assert rows == [(slot, "a", workers[str(slot)]["state"], AT + 5) for slot in (1, 2, 3)]
    assert [each["reason"] for each in answer["unreleased"]] == ["not_released", "idle_release", "data_left"]
    assert [each["until_at"] is not None for each in answer["unreleased"]] == [True, False, False]
    assert all("controller release a --template > proof.json" in each["next"] for each in answer["unreleased"])
    text = controller.run("--exact-times", "status", check=True).stdout
    assert "not released: 3\n" in text
    since = "over 2023-11-14 22:13:20Z: "
    assert f"  slot 1: run a, assigned, {since}waits for its release proof (not_released)" in text
    assert f"  slot 3: run a, lost, {since}gone, but its data is not released (data_left)\n" in text
    assert "    next: controller release a --template > proof.json\n" in text


def test_what_was_seen_unrecorded_and_disowned_actions_are_told_whole(controller: Controller) -> None:
    controller.init()
    action = parked(controller, 2)
    key = action["idempotency_key"]
    seen = {"assignment": "a-9", "generation": 2, "id": "w\x1b9", "state": "dark", "at": AT, "running": 3}
    seen["resources"] = {"vm": {"id": "i-9", "immutable_id": "x-9"}}
    gone = {"action": action, "at": AT, "reason": "unknown", "detail": "closed", "by": "ops@example.org"}
    answer = standing(
        controller,
        workers={},
        pending_actions={},
        slots={"3": {"unrecorded": [seen], "unrecorded_more": 7}},
        disowned={key: gone, "0" * 64: {**gone, "proven": "absent", "proven_at": AT + 1, "sent_at": AT}},
    )
    (found,) = answer["unrecorded"]
    assert (found["slot"], found["assignment"], found["generation"], found["running"]) == (3, "a-9", 2, 3)
    assert (found["seen_at"], len(found["identity"]), found["more"]) == (AT, 64, 7)
    other, own = sorted(answer["disowned_actions"], key=lambda each: str(each["idempotency_key"]) == key)
    assert (own["slot"], own["type"], own["idempotency_key"], own["key_derives"]) == (2, "create", key, True)
    assert (own["proven"], own["by"], own["disowned_at"], own["next"] != []) == (None, "ops@example.org", AT, True)
    assert (other["proven"], other["proven_at"], other["key_derives"], other["next"]) == ("absent", AT + 1, False, [])
    assert answer["disowned"] == 2
    text = controller.run("status", check=True).stdout
    assert r"slot 3: w\x1b9 (a-9 generation 2), dark, vm i-9 x-9, 3 running steps" in text
    assert f"identity {found['identity']}; and 7 more in this slot" in text
    assert "unrecorded: 8, shown by the provider" in text
    assert f"what it did is not proven, key {key}\n" in text
    assert "proven absent" in text
    assert f"key {'0' * 64}  DOES NOT DERIVE FROM ITS CONTENT" in text
    found = controller.json("fsck", exit=5)["violations"]
    assert {("unrecorded", "slot:3"), ("disowned-key", "slot:2")} <= {(each["id"], each["subject"]) for each in found}


def test_a_breaker_that_is_not_closed_is_told_since_when_why_and_when_it_tries_again(controller: Controller) -> None:
    controller.init()
    open_ = {"failures": 7, "opened_at": 2 * AT, "why": "no \x1b answer"}
    half = {"failures": 5, "opened_at": AT, "why": "quota"}
    answer = standing(controller, providers={"far": open_, "test": half, "well": {"failures": 2}})
    (test,) = [each for each in answer["breakers"] if each["provider"] == "test"]
    assert (test["state"], test["failures"], test["opened_at"], test["retry_at"]) == ("half_open", 5, AT, AT + 30_000)
    assert (test["why"], test["next"]) == ("quota", ["controller doctor"])
    assert {each["provider"] for each in answer["breakers"]} == {"far", "test"}
    text = controller.run("--exact-times", "status", check=True).stdout
    assert "circuit breaker: nothing new is asked of a provider that fails" in text
    assert (
        "  provider test: half-open since 2023-11-14 22:13:20Z, 5 failures in a row, the last: quota; "
        "one action is tried next\n" in text
    )
    assert r"no \x1b answer" in text
