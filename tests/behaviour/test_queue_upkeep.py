"""queue: whoever looks after queues sees what is in them, takes back what was lost, takes away what nobody wants."""

from __future__ import annotations

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.provider_program import wait_until
from tests.behaviour.queueing import browsed, claim, submit


@pytest.fixture
def queue(controller: Controller) -> Controller:
    controller.init()
    return controller


def test_browse_goes_on_behind_a_run(queue: Controller) -> None:
    for _ in range(5):
        submit(queue)
    first = queue.json("queue", "browse", "pending", "--limit", "2")
    assert ([run["id"] for run in first["runs"]], first["next_after"]) == (["r-1", "r-2"], "r-2")
    page = queue.run("queue", "browse", "pending", "--limit", "2", check=True).stdout.splitlines()
    assert page[-1] == "... and more; next: controller queue browse pending --after r-2"
    last = queue.json("queue", "browse", "pending", "--after", "r-3")
    assert ([run["id"] for run in last["runs"]], last["next_after"]) == (["r-4", "r-5"], None)


def test_active_is_browsed_by_deadline_and_scheduled_by_due_time(queue: Controller) -> None:
    for lease in ("3h", "1h", "2h"):
        submit(queue)
        claim(queue, "--lease", lease)
    for delay in ("3h", "1h", "2h"):
        submit(queue, "--delay", delay)
    assert browsed(queue, "active") == ["r-2", "r-3", "r-1"]
    assert browsed(queue, "scheduled") == ["r-5", "r-6", "r-4"]
    page = queue.run("queue", "browse", "active", check=True).stdout
    assert page.split()[:6] == ["RUN", "QUEUE", "TOKEN", "OWNER", "LEASE", "WHAT"]
    assert "59m" in page


def test_size_is_a_bare_number_of_all_queues_or_of_one(queue: Controller) -> None:
    for name in ("a", "a", "b"):
        submit(queue, "--queue", name)
    assert queue.run("queue", "size", check=True).stdout == "3\n"
    assert queue.run("queue", "size", "pending", "--queue", "a", check=True).stdout == "2\n"
    assert queue.json("queue", "size", "dead") == {
        "schema": "controller.queue-size/1",
        "set": "dead",
        "queue": None,
        "size": 0,
    }


def test_list_tells_depth_and_who_serves_by_queue_and_layer(queue: Controller) -> None:
    submit(queue, "--queue", "mail", "--priority", "critical")
    submit(queue, "--queue", "mail", "--delay", "1h")
    queue.run("submit", "--", "true", check=True)
    queues = {each["queue"]: each for each in queue.json("queue", "list")["queues"]}
    assert {name: each["served_by"] for name, each in queues.items()} == {"mail": "consumers", "fleet": "fleet"}
    mail = queues["mail"]
    assert (mail["pending"], mail["scheduled"], mail["active"], mail["dead"]) == (1, 1, 0, 0)
    assert mail["oldest_wait_ms"] >= 0
    layers = {each["layer"]: (each["pending"], each["scheduled"]) for each in mail["layers"]}
    assert (layers["critical"], layers["normal"]) == ((1, 0), (0, 1))
    page = queue.run("queue", "list", check=True).stdout
    assert "critical" in page
    assert "consumers" in page


def test_reap_says_what_was_taken_from_whom(queue: Controller) -> None:
    assert queue.run("queue", "reap", check=True).stdout == "no lease has run out\n"
    submit(queue)
    claim(queue, "--lease", "1ms", "--owner", "sleepy")
    pages: list[str] = []

    def reap() -> bool:
        pages.append(queue.run("queue", "reap", check=True).stdout)
        return "sleepy" in pages[-1]

    wait_until(reap, "the lease runs out")
    assert pages[-1].splitlines()[1].split() == ["r-1", "dead", "sleepy", "1", "1", "of", "1"]
    assert queue.json("show", "r-1")["run"]["reason"] == "crashes_exhausted"


def test_discard_takes_a_run_away_for_good_and_shuts_its_holder_out(queue: Controller) -> None:
    submit(queue, "--id", "once")
    claim(queue)
    assert queue.run("queue", "discard", "once", check=True).stdout == "run once is discarded\n"
    assert queue.run("queue", "complete", "once", "--token", "1").exit == 3
    assert queue.run("retry", "once").exit == 3
    assert queue.json("queue", "size", "active")["size"] == 0
    run = queue.json("show", "once")["run"]
    assert (run["state"], run["reason"]) == ("cancelled", "discarded")
