"""`explain` answers for what happened, for what could happen, and for every code, by the installed command."""

from __future__ import annotations

from functools import partial

import pytest

from controller.model.codes import catalogue
from tests.behaviour.driver import Controller
from tests.behaviour.faults import on_disk, write_document
from tests.behaviour.provider_program import wait_until


def test_a_run_that_failed_and_was_retried_tells_its_whole_story(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--id", "a", "--", "sh", "-c", "exit 7", check=True)
    wait_until(partial(has_failed, controller), "the failure of a")
    text = controller.run("explain", "a", check=True).stdout
    assert text.startswith("run:a is failed\n")
    assert "Life 1 failed: step main exited with 7. The run failed for good: a step failed." in text
    assert "`controller retry a` queues it again" in text
    controller.run("retry", "a", check=True)
    answer = controller.json("explain", "a")
    assert [told["what"] for told in answer["story"]["told"]][-1] == "Sent back to its queue by an operator."
    assert (answer["story"]["state"], answer["story"]["agrees"], answer["state"]) == ("queued", True, "queued")
    moves = {move["event"]: (move["to"], move["refused"]) for move in answer["moves"]}
    assert moves["claim"] == ("running", None)
    assert moves["operator_retry"] == (None, "illegal_transition")
    assert answer["steps"] == [{"name": "main", "state": "pending", "because": "Step main is next."}]
    text = controller.run("explain", "slot:1", check=True).stdout
    assert "what led to" in text
    assert "A worker was planned." in text


def has_failed(controller: Controller) -> bool:
    controller.run("reconcile", "--apply", check=True)
    return bool(controller.json("show", "a")["run"]["state"] == "failed")


def test_an_answer_keeps_the_members_that_it_had(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--id", "a", "--", "true", check=True)
    answer = controller.json("explain", "a")
    assert answer["schema"] == "controller.explain/1"
    assert {"subject", "state", "because", "next", "events", "refusals", "config_fault"} <= set(answer)


def test_a_refused_command_is_told_with_what_its_code_means(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--id", "a", "--", "true", check=True)
    controller.json("retry", "a", exit=3)
    (refusal,) = controller.json("explain", "a")["refusals"]
    assert (refusal["command"], refusal["code"]) == ("retry", "transition_refused")
    assert refusal["means"] == "a machine refused the event"
    text = controller.run("explain", "a", check=True).stdout
    assert "refused: retry: run a is queued already" in text
    assert "transition_refused: a machine refused the event. `controller explain a` says" in text


def test_a_document_that_history_contradicts_says_so_and_what_next(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--id", "a", "--", "true", check=True)
    sound = (controller.state / "controller.json").read_bytes()
    content = on_disk(controller)
    content["runs"]["a"]["state"] = "running"
    write_document(controller, content)
    text = controller.run("explain", "a", check=True).stdout
    assert "state: history says queued, the document says running" in text
    assert "next: controller fsck\n" in text
    (controller.state / "controller.json").write_bytes(sound)
    (controller.state / "journal-1-0.jsonl").unlink()
    assert controller.json("history")["events"] == [], "what led there was in that file"
    assert controller.json("explain", "a")["because"]


def test_every_code_is_listed_and_explained_without_a_document(controller: Controller) -> None:
    text = controller.run("explain", "reason", check=True).stdout
    assert {line.split()[0] for line in text.splitlines()[1:]} == set(catalogue())
    codes = controller.json("explain", "reason")["codes"]
    assert [code["code"] for code in codes] == list(catalogue())
    assert set(codes[0]) == {"code", "kind", "exit", "text", "why", "next"}


@pytest.mark.parametrize(
    ("code", "head"),
    [
        ("timed_out", "timed_out (reason): ran into its timeout"),
        ("stale_lease", "stale_lease (refusal, exit 3): stale: the caller does not hold it"),
        ("lock_busy", "lock_busy (error, exit 6): somebody holds the document"),
    ],
)
def test_one_code_is_explained_in_words_and_in_json(controller: Controller, code: str, head: str) -> None:
    lines = controller.run("explain", "reason", code, check=True).stdout.splitlines()
    assert lines[0] == head
    assert lines[2].startswith("next: ")
    answer = controller.json("explain", "reason", code)
    assert (answer["schema"], answer["subject"]) == ("controller.explain/1", f"reason:{code}")
    assert f"  {answer['code']['why']}" == lines[1]


def test_a_code_that_there_is_not_is_not_found_and_a_near_one_is_named(controller: Controller) -> None:
    error = controller.json("explain", "reason", "timed-out", exit=4)["error"]
    assert error == {
        "code": "not_found",
        "what": "there is no code 'timed-out' (did you mean 'timed_out'?)",
        "where": "",
        "next": "controller explain reason",
    }
    assert "did you mean" not in controller.json("explain", "reason", "", exit=4)["error"]["what"]
    assert controller.json("explain", "a", "timed_out", exit=2)["error"]["code"] == "usage"


def test_a_run_that_is_called_reason_is_reached_by_its_kind(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--id", "reason", "--", "true", check=True)
    assert controller.json("explain", "run:reason")["subject"] == "run:reason"
    assert "codes" in controller.json("explain", "reason")
