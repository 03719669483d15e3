"""queue: programs outside the fleet take runs, do them and report, and nobody loses or doubles one."""

from __future__ import annotations

import json
import signal
from functools import partial

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.faults import document
from tests.behaviour.provider_program import wait_until
from tests.behaviour.queueing import browsed, claim, submit, until_listed

MINUTE = 60_000


@pytest.fixture
def queue(controller: Controller) -> Controller:
    controller.init()
    return controller


# The six gates


def test_every_verb_answers(queue: Controller) -> None:
    answers = [queue.json("queue", "list"), queue.json("queue", "size"), queue.json("queue", "claim")]
    for _ in range(5):
        submit(queue, "--attempts", "2")
    queue.run("submit", "--queue", "default", "--id", "steps", "--", "true", check=True)
    token = ("--token", "1")
    claim(queue, "--count", "1")
    said = (
        ("heartbeat", "r-1", *token, "--progress", "1"),
        ("complete", "r-1", *token, "--claim-next"),
        ("retry", "r-2", *token, "--error", "x", "--delay", "1h"),
        ("promote", "r-2"),
        ("reap",),
        *(("browse", each) for each in ("pending", "active", "scheduled", "dead")),
        ("size", "dead"),
        ("claim",),
        ("fail", "r-2", "--token", "2", "--error", "x", "--reason", "consumer_failed"),
        ("claim",),
        ("drain", "r-3", *token),
        ("discard", "r-3"),
        ("pause", "default"),
        ("resume", "default"),
        ("claim", "--count", "3"),
        ("step", "steps", "main", *token, "started"),
        ("step", "steps", "main", *token, "succeeded"),
        ("complete", "steps", *token),
        ("list",),
    )
    answers += [queue.json("queue", *args) for args in said]
    named = [answer["schema"] for answer in answers]
    verbs = ("list", "size", "claim", *(args[0] for args in said))
    assert named == [f"controller.queue-{verb}/1" for verb in verbs]
    assert queue.json("fsck")["ok"]


def test_the_oldest_run_is_handed_out_with_a_lease_and_token_1_and_complete_retires_it(queue: Controller) -> None:
    submit(queue, "--id", "first", payload={"n": 1})
    submit(queue, "--id", "second")
    run = claim(queue, "--owner", "me")
    assert (run["run"], run["token"], run["owner"], run["payload"]) == ("first", 1, "me", {"n": 1})
    assert run["lease_ms"] == MINUTE
    assert 0 < run["remaining_ms"] <= MINUTE
    queue.run("queue", "complete", "first", "--token", "1", check=True)
    assert queue.json("show", "first")["run"]["state"] == "succeeded"
    assert claim(queue)["run"] == "second"
    queue.run("queue", "complete", "second", "--token", "1", check=True)
    assert [queue.json("queue", "size", each)["size"] for each in ("pending", "active", "scheduled", "dead")] == [0] * 4
    assert document(queue)["runs"] == {}


def test_a_stale_token_is_refused_naming_token_and_holder_whose_work_survives(queue: Controller) -> None:
    submit(queue)
    claim(queue, "--owner", "the holder")
    before = document(queue)
    error = queue.json("queue", "complete", "r-1", "--token", "99", exit=3)["error"]
    assert error["code"] == "transition_refused"
    assert "token 99 is stale" in error["where"]
    assert "the current token is 1, held by the holder" in error["where"]
    assert document(queue) == before
    assert queue.run("queue", "complete", "r-1", "--token", "1").exit == 0
    (refusal,) = queue.json("status")["refusals"]
    assert (refusal["command"], refusal["subject"]) == ("queue complete", "run:r-1")


def test_retry_parks_the_run_until_promote_moves_the_due_one_back_for_token_2(queue: Controller) -> None:
    for delay in ("1h", "1ms"):
        run = submit(queue, "--attempts", "2")
        assert claim(queue)["run"] == run
        queue.run("queue", "retry", run, "--token", "1", "--error", "away", "--delay", delay, check=True)
        if delay == "1h":
            assert (queue.run("queue", "size").stdout, browsed(queue, "scheduled")) == ("0\n", ["r-1"])
            assert queue.json("queue", "claim")["runs"] == []
    promoted = until_listed(queue, "queue", "promote")
    assert [(run["id"], run["view"]) for run in promoted] == [("r-2", "pending")]
    assert browsed(queue, "scheduled") == ["r-1"]
    taken = claim(queue)
    assert (taken["run"], taken["token"]) == ("r-2", 2)


def test_the_second_of_two_failures_is_death_with_the_last_error_in_submission_order(queue: Controller) -> None:
    for run in ("b", "a"):
        submit(queue, "--id", run, "--attempts", "2")
    for token, order in (("1", ("b", "a")), ("2", ("a", "b"))):
        assert [run["token"] for run in queue.json("queue", "claim", "--count", "2")["runs"]] == [int(token)] * 2
        for run in order:
            error = f"error {token} of {run}"
            queue.run("queue", "retry", run, "--token", token, "--error", error, "--delay", "0s", check=True)
    assert browsed(queue, "dead") == ["b", "a"]
    dead = queue.json("show", "b")["run"]
    assert (dead["state"], dead["last_error"], dead["failures"]) == ("failed", "error 2 of b", 2)
    assert dead["reason"] == "attempts_exhausted"
    assert "error 2 of b" in queue.run("queue", "browse", "dead", check=True).stdout


def test_a_lease_that_runs_out_gives_an_orphan_and_its_first_holder_is_refused(queue: Controller) -> None:
    submit(queue, "--attempts", "2")
    claim(queue, "--lease", "40ms", "--owner", "zombie")
    (orphan,) = until_listed(queue, "queue", "reap")
    assert (orphan["id"], orphan["owner"], orphan["token"], orphan["view"]) == ("r-1", "zombie", 1, "pending")
    assert claim(queue, "--owner", "heir")["token"] == 2
    error = queue.json("queue", "complete", "r-1", "--token", "1", exit=3)["error"]
    assert "token 1 is stale; the current token is 2, held by heir" in error["where"]
    assert queue.json("show", "r-1")["run"]["state"] == "running"
    assert queue.json("fsck")["ok"]


# Claiming


def test_nothing_to_claim_is_no_failure(queue: Controller) -> None:
    answer = queue.json("queue", "claim", "--queue", "never-used", "--owner", "me")
    assert answer == {
        "schema": "controller.queue-claim/1",
        "queue": "never-used",
        "owner": "me",
        "runs": [],
        "why": "nobody has used a queue never-used",
        "next": "controller queue list",
    }
    assert queue.run("queue", "claim", check=True).stdout == (
        "nothing to claim: nobody has used a queue default\nnext: controller queue list\n"
    )
    assert document(queue)["queues"] == {}


def test_text_says_what_was_claimed_and_what_to_type_next(queue: Controller) -> None:
    submit(queue, payload={"to": "ops"})
    lines = queue.run("queue", "claim", check=True).stdout.splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["RUN", "TOKEN", "LEASE", "WHAT"],
        ["r-1", "1", lines[1].split()[2], '{"to":"ops"}'],
    ]
    assert lines[2] == "next: controller queue complete r-1 --token 1"
    done = queue.run(*lines[2].split()[2:], check=True)
    assert done.stdout == "run r-1 has succeeded\n"


def test_an_owner_is_who_called_unless_it_says(queue: Controller) -> None:
    submit(queue)
    host, _, pid = claim(queue)["owner"].rpartition(":")
    assert host
    assert pid.isdecimal()


def test_count_takes_several_in_order_and_priority_goes_before_age(queue: Controller) -> None:
    for run, priority in (("a", "background"), ("b", "normal"), ("c", "forced"), ("d", "normal")):
        submit(queue, "--id", run, "--priority", priority)
    taken = queue.json("queue", "claim", "--count", "3")["runs"]
    assert [run["run"] for run in taken] == ["c", "b", "d"]
    assert {run["token"] for run in taken} == {1}


def test_claiming_with_wait_gets_what_is_submitted_meanwhile(queue: Controller) -> None:
    process = queue.popen("queue", "claim", "--wait", "30s", "--json")
    submit(queue, "--id", "late")
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert [run["run"] for run in json.loads(stdout)["runs"]] == ["late"]


def test_a_wait_that_is_interrupted_leaves_nothing_behind(queue: Controller) -> None:
    process = queue.popen("queue", "claim", "--wait", "1h")
    waiters = queue.state / "waiters"
    wait_until(lambda: waiters.is_dir() and any(waiters.iterdir()), "it stands in line")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in stderr) == (130, False), stderr
    assert list(waiters.iterdir()) == []
    submit(queue)
    assert claim(queue)["token"] == 1


def test_a_fleet_queue_is_not_for_consumers(queue: Controller) -> None:
    queue.run("submit", "--", "true", check=True)
    error = queue.json("queue", "claim", "--queue", "fleet", exit=3)["error"]
    assert "fleet" in error["what"]
    error = queue.json("submit", "--queue", "fleet", "--payload", "1", exit=3)["error"]
    assert "fleet" in error["what"]
    assert list(document(queue)["runs"]) == ["r-1"]


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(queue: Controller) -> None:
    submit(queue)
    assert queue.json("queue", "pause", "default") == {
        "schema": "controller.queue-pause/1",
        "queue": "default",
        "paused": True,
        "changed": True,
    }
    assert queue.json("queue", "claim")["runs"] == []
    assert queue.run("queue", "pause", "default", check=True).stdout.startswith("queue default is paused already\n")
    assert "paused" in queue.run("queue", "list", check=True).stdout
    queue.run("queue", "resume", "default", check=True)
    assert claim(queue)["run"] == "r-1"


# Reporting


def test_a_result_is_kept_and_shown(queue: Controller) -> None:
    submit(queue)
    claim(queue, "--owner", "me")
    queue.run("queue", "complete", "r-1", "--token", "1", "--result", '{"sent": 17}', check=True)
    run = queue.json("show", "r-1")["run"]
    assert (run["result"], run["owner"], run["token"]) == ({"sent": 17}, "me", 1)
    assert '{"sent":17}' in queue.run("show", "r-1", check=True).stdout


def test_what_is_done_is_told_from_what_is_stale_and_from_what_never_was(queue: Controller) -> None:
    submit(queue)
    claim(queue)
    queue.run("queue", "complete", "r-1", "--token", "1", check=True)
    again = queue.json("queue", "complete", "r-1", "--token", "1", exit=3)["error"]
    assert "already done by you, token 1" in again["where"]
    stale = queue.json("queue", "complete", "r-1", "--token", "2", exit=3)["error"]
    assert "token 2 is stale" in stale["where"]
    assert queue.json("queue", "complete", "r-9", "--token", "1", exit=4)["error"]["code"] == "not_found"


def test_claim_next_gives_the_same_next_run_when_it_is_repeated(queue: Controller) -> None:
    for _ in range(3):
        submit(queue)
    claim(queue)
    report = ("queue", "complete", "r-1", "--token", "1", "--claim-next")
    first, again = queue.json(*report), queue.json(*report)
    assert (first["repeated"], again["repeated"]) == (False, True)
    assert [answer["next"]["run"] for answer in (first, again)] == ["r-2", "r-2"]
    assert [answer["next"]["token"] for answer in (first, again)] == [1, 1]
    assert browsed(queue, "pending") == ["r-3"]


def test_claim_next_of_an_empty_queue_is_nothing(queue: Controller) -> None:
    submit(queue)
    claim(queue)
    done = queue.run("queue", "complete", "r-1", "--token", "1", "--claim-next", check=True)
    assert done.stdout == "run r-1 has succeeded\nnothing to claim\n"


def test_fail_is_death_whatever_was_left(queue: Controller) -> None:
    submit(queue, "--attempts", "9")
    claim(queue)
    args = ("--token", "1", "--error", "no such address", "--reason", "invalid_payload")
    done = queue.run("queue", "fail", "r-1", *args, check=True)
    assert done.stdout.startswith("run r-1 is dead: its payload cannot be worked on; 1 of 9 failures\n")
    run = queue.json("show", "r-1")["run"]
    assert (run["state"], run["view"], run["reason"]) == ("failed", "dead", "invalid_payload")
    assert run["last_error"] == "no such address"


def test_what_is_retried_by_an_operator_is_for_its_consumers_again(queue: Controller) -> None:
    submit(queue, "--queue", "mail")
    claim(queue, "--queue", "mail")
    done = queue.run("queue", "retry", "r-1", "--token", "1", "--error", "x", check=True)
    assert done.stdout.startswith("run r-1 is dead: ")
    assert queue.run("retry", "r-1", check=True).stdout.splitlines() == [
        "run r-1 is queued again",
        "next: controller queue claim --queue mail",
    ]
    assert claim(queue, "--queue", "mail")["token"] == 2


def test_an_error_that_is_no_text_is_kept_escaped(queue: Controller) -> None:
    submit(queue)
    claim(queue)
    queue.run("queue", "retry", "r-1", "--token", "1", "--error", "bad \udcff byte\x1b[31m", check=True)
    assert queue.json("show", "r-1")["run"]["last_error"] == "bad \\udcff byte\x1b[31m"
    assert "\x1b" not in queue.run("show", "r-1", check=True).stdout


def test_a_heartbeat_renews_the_lease_and_keeps_progress(queue: Controller) -> None:
    submit(queue)
    claim(queue, "--owner", "me")
    told = queue.json("queue", "heartbeat", "r-1", "--token", "1", "--lease", "2h", "--progress", "[12, 17]")
    assert (told["owner"], told["lease_ms"], told["cancel_requested"]) == ("me", 120 * MINUTE, False)
    run = queue.json("show", "r-1")["run"]
    assert (run["progress"], run["lease"]["granted_ms"]) == ([12, 17], 120 * MINUTE)
    assert run["lease"]["remaining_ms"] > 119 * MINUTE
    page = queue.run("show", "r-1", check=True).stdout
    assert "held by me, token 1, 1h 59m left" in page
    assert "[12,17]" in page


def test_a_heartbeat_says_that_a_cancel_was_requested_and_the_run_ends_cancelled(queue: Controller) -> None:
    submit(queue, "--attempts", "5")
    claim(queue)
    assert "its holder is told with its next heartbeat" in queue.run("cancel", "r-1", check=True).stdout
    assert queue.json("queue", "heartbeat", "r-1", "--token", "1")["cancel_requested"]
    lines = queue.run("queue", "heartbeat", "r-1", "--token", "1", check=True).stdout.splitlines()
    assert lines[1] == "its cancel was requested: stop working on it"
    queue.run(*lines[2].split()[2:], check=True)
    assert queue.json("show", "r-1")["run"]["state"] == "cancelled"
    assert queue.json("queue", "size", "active")["size"] == 0


def test_a_drain_spends_no_budget(queue: Controller) -> None:
    submit(queue)
    for token in ("1", "2", "3"):
        claim(queue)
        queue.run("queue", "drain", "r-1", "--token", token, check=True)
    run = queue.json("show", "r-1")["run"]
    assert (run["state"], run["failures"], run["crashes"], run["attempts"]) == ("queued", 0, 0, 3)


def test_a_run_with_steps_is_reported_step_by_step(queue: Controller) -> None:
    graph = {"steps": [{"name": "a", "argv": ["true"]}, {"name": "b", "argv": ["true"], "needs": ["a"]}]}
    (queue.home / "graph.json").write_text(json.dumps(graph))
    queue.run("submit", "--queue", "mine", "--file", "graph.json", check=True)
    assert [step["name"] for step in claim(queue, "--queue", "mine")["steps"]] == ["a", "b"]
    say = partial(queue.json, "queue", "step", "r-1")
    token = ("--token", "1")
    say("a", *token, "started")
    assert queue.run("queue", "complete", "r-1", *token).exit == 3
    assert say("a", *token, "succeeded")["left"] == ["b"]
    say("b", *token, "started")
    told = say("b", *token, "succeeded")
    assert (told["step"]["state"], told["left"]) == ("succeeded", [])
    queue.run("queue", "complete", "r-1", *token, check=True)
    assert queue.json("show", "r-1")["run"]["state"] == "succeeded"


def test_reports_are_taken_also_while_the_settings_cannot_be_read(queue: Controller) -> None:
    submit(queue)
    claim(queue)
    (queue.state / "controller.toml").write_text("slots = 4\n")
    assert queue.run("queue", "claim").exit == 2
    queue.run("queue", "heartbeat", "r-1", "--token", "1", check=True)
    queue.run("queue", "complete", "r-1", "--token", "1", check=True)
