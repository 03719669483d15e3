"""Whatever tells of runs tells of those of consumers too, by the installed command."""

from __future__ import annotations

import json
import re
import signal

import pytest

from controller.model.codes import catalogue
from tests.behaviour.driver import Controller
from tests.behaviour.provider_program import wait_until

OVER = "Its lease ran out"


@pytest.fixture
def queue(controller: Controller) -> Controller:
    controller.init()
    return controller


def submit(controller: Controller, run: str, *args: str) -> None:
    controller.run("submit", "--id", run, *args, "--payload", '{"to":"ops"}', check=True)


def claim(controller: Controller, *args: str) -> None:
    assert controller.json("queue", "claim", "--owner", "one", *args)["runs"]


def explain(controller: Controller, run: str) -> tuple[str, list[str]]:
    """What it says to people, and its next steps."""
    answer = controller.json("explain", run)
    return " ".join(answer["because"]), answer["next"]


def test_a_run_that_waits_says_for_what_and_how_to_go_on(queue: Controller) -> None:
    submit(queue, "a")
    said, next_ = explain(queue, "a")
    assert "and no other is before it." in said
    assert "nobody has ever claimed from it." in said
    assert next_ == ["controller queue work --queue default -- COMMAND"]
    queue.run("queue", "pause", "default", check=True)
    text = queue.run("explain", "a", check=True).stdout
    assert re.search(r"Its queue default is paused since \d+ s, by `queue pause`: nothing of it is handed out\.", text)
    assert "next: controller queue resume default\n" in text
    queue.run("queue", "resume", "default", check=True)
    assert "paused" not in explain(queue, "a")[0]
    submit(queue, "b", "--delay", "2h")
    said, next_ = explain(queue, "b")
    assert "submitted for later" in said
    assert next_[-1] == "controller queue promote b"


def test_a_held_run_says_what_is_left_of_its_lease_and_once_it_is_over_how_it_is_taken_back(queue: Controller) -> None:
    submit(queue, "a", "--attempts", "2", "--concurrency-key", "mail")
    submit(queue, "b", "--concurrency-key", "mail")
    claim(queue, "--lease", "1h")
    said, next_ = explain(queue, "a")
    assert "one holds it under token 1. Its lease lasts another" in said
    assert next_ == ["controller wait --no-drive a"]
    assert "now a (held by one)" in explain(queue, "b")[0]
    queue.run("queue", "heartbeat", "a", "--token", "1", "--lease", "1ms", "--progress", '{"sent":1}', check=True)
    wait_until(lambda: OVER in explain(queue, "a")[0], "the end of the lease")
    said, next_ = explain(queue, "a")
    assert 'It said of its progress: {"sent":1}.' in said
    assert next_ == ["controller queue reap"]
    queue.run("queue", "reap", check=True)
    assert "its last holder was lost" in explain(queue, "a")[0]


def test_ended_runs_say_how_they_ended_and_the_story_agrees(queue: Controller) -> None:
    for run in ("done", "dead", "gone"):
        submit(queue, run)
    claim(queue, "--count", "3")
    queue.run("queue", "heartbeat", "done", "--token", "1", check=True)
    queue.run("queue", "complete", "done", "--token", "1", "--result", '{"sent":1}', check=True)
    queue.run("queue", "retry", "dead", "--token", "1", "--error", "no route", check=True)
    queue.run("queue", "discard", "gone", check=True)
    assert 'under token 1, with the result {"sent":1}.' in explain(queue, "done")[0]
    assert "Its last error: no route." in explain(queue, "dead")[0]
    assert "what it reports of it is refused since" in explain(queue, "gone")[0]
    for run in ("done", "dead", "gone"):
        answer = queue.json("explain", run)
        assert (answer["story"]["agrees"], answer["story"]["disagreements"]) == (True, []), run
    queue.json("queue", "complete", "gone", "--token", "1", exit=3)
    assert queue.json("explain", "gone")["refusals"][-1]["command"] == "queue complete"
    assert queue.json("fsck")["ok"]


def test_an_id_that_was_discarded_and_submitted_again_is_told_of_its_last_life(queue: Controller) -> None:
    submit(queue, "a")
    claim(queue)
    queue.run("queue", "discard", "a", check=True)
    submit(queue, "a")
    text = queue.run("explain", "a", check=True).stdout
    assert "what led to queued; the document agrees" in text
    assert "Submitted; earlier runs of this id had lives up to 1." in text
    assert queue.json("fsck")["ok"]
    assert [event["event"] for event in queue.json("history", "a")["events"]].count("submitted") == 2


def test_lists_and_counts_have_runs_of_consumers_in_them(queue: Controller) -> None:
    submit(queue, "a")
    submit(queue, "b", "--delay", "2h")
    claim(queue)
    status = queue.json("status")
    assert (status["runs"]["active"], status["runs"]["scheduled"], status["runs"]["pending"]) == (1, 1, 0)
    assert status["oldest_waiting_at"] is None
    rows = {row["id"]: row for row in queue.json("runs")["runs"]}
    assert (rows["a"]["owner"], rows["a"]["slot"], rows["b"]["view"]) == ("one", None, "scheduled")
    queue.run("queue", "promote", "b", check=True)
    status = queue.json("status")
    assert status["runs"]["pending"] == 1
    assert status["oldest_waiting_ms"] < 60_000, "it waits since it was let in, not since it was to be due"
    checks = {check["name"]: check for check in queue.json("doctor")["checks"]}
    assert checks["document"]["state"] == "ok"


@pytest.mark.parametrize("follow", [[], ["--follow"]])
def test_logs_of_consumers_are_kept_by_consumers(queue: Controller, follow: list[str]) -> None:
    submit(queue, "a")
    claim(queue)
    text = queue.run("logs", *follow, "a")
    assert text.exit == 4
    assert "consumers keep their own logs" in text.stderr
    assert "controller show a" in text.stderr


def test_a_consumers_run_is_waited_for_without_driving_the_fleet(queue: Controller) -> None:
    submit(queue, "a")
    error = queue.json("wait", "a", exit=3)["error"]
    assert error["what"] == "run a is in queue default, which the fleet does not serve"
    assert error["next"] == "a consumer has to take it; to watch it: controller wait --no-drive a"
    late = queue.json("wait", "--no-drive", "--timeout", "50ms", "a", exit=6)["error"]
    assert late["next"] == "it goes on; controller wait --no-drive a"
    waiting = queue.popen("wait", "--no-drive", "--json", "a")
    claim(queue)
    queue.run("queue", "complete", "a", "--token", "1", check=True)
    out, _ = waiting.communicate(timeout=30)
    assert waiting.returncode == 0
    (run,) = json.loads(out)["runs"]
    assert (run["id"], run["state"]) == ("a", "succeeded")
    assert queue.json("wait", "a")["runs"], "what has ended needs nobody to drive it"


def test_whoever_stops_waiting_is_told_how_to_go_on(queue: Controller) -> None:
    submit(queue, "a")
    waiting = queue.popen("wait", "--no-drive", "a")
    assert waiting.stderr is not None
    said = waiting.stderr.readline()
    assert "nobody has ever claimed from it." in str(said)
    waiting.send_signal(signal.SIGINT)
    _, rest = waiting.communicate(timeout=30)
    assert waiting.returncode == 130
    assert "next: controller wait --no-drive a" in str(rest)


@pytest.mark.parametrize(
    "code",
    ["consumer_failed", "invalid_payload", "lease_expired", "discarded", "replaced", "lease_lost", "cancel_asked"],
)
def test_every_code_of_consumers_is_explained(controller: Controller, code: str) -> None:
    lines = controller.run("explain", "reason", code, check=True).stdout.splitlines()
    assert lines[0].startswith(f"{code} ({catalogue()[code].kind}")
    assert lines[2].startswith("next: ")
