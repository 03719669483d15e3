"""A crowd submits while others are killed: every acknowledged run is there exactly once, and the document is sound."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from tests.behaviour.driver import Controller, end_group
from tests.behaviour.faults import document

CROWD = 8
EACH = 6


def test_eight_submit_at_once_while_others_are_killed(controller: Controller) -> None:
    controller.init()
    chance = random.Random(1)
    over = threading.Event()
    killed: list[subprocess.Popen[str]] = []

    def submitter(who: int) -> list[str]:
        acknowledged = []
        for number in range(EACH):
            done = controller.run(
                "--lock-timeout", "2m", "submit", "--id", f"w{who}-{number}", "--", "true", timeout=180
            )
            assert done.exit == 0, str(done)
            acknowledged.append(done.stdout.strip())
        return acknowledged

    def victims() -> None:
        """Start commands and kill each at some point of its life."""
        number = 0
        while not over.is_set():
            victim = controller.popen("--lock-timeout", "2m", "submit", "--id", f"victim-{number}", "--", "true")
            number += 1
            over.wait(chance.uniform(0.02, 0.5))
            victim.send_signal(signal.SIGKILL)
            victim.communicate()
            killed.append(victim)

    with ThreadPoolExecutor(CROWD + 1) as pool:
        killer = pool.submit(victims)
        crowd = [pool.submit(submitter, who) for who in range(CROWD)]
        acknowledged = [run for future in crowd for run in future.result()]
        over.set()
        killer.result()

    assert len(acknowledged) == CROWD * EACH
    assert len(killed) > 3
    runs = document(controller)["runs"]
    assert set(acknowledged) <= set(runs)
    assert {run for run in runs if not run.startswith("victim-")} == set(acknowledged)
    finished = {f"victim-{number}" for number, victim in enumerate(killed) if victim.returncode == 0}
    assert finished <= set(runs)
    submitted = [event["subject"] for event in controller.json("history")["events"] if event["event"] == "submitted"]
    assert sorted(submitted) == sorted(f"run:{run}" for run in runs)
    verdict = controller.json("fsck")
    assert (verdict["ok"], verdict["violations"]) == (True, [])
    sequences = [run["sequence"] for run in runs.values()]
    assert len(set(sequences)) == len(sequences)
    assert not [path.name for path in controller.state.iterdir() if "tmp" in path.name]


def test_a_repeated_submit_after_a_kill_gives_the_run_that_is_there(controller: Controller) -> None:
    controller.init()
    for number in range(6):
        victim = controller.popen("submit", "--id", f"job-{number}", "--", "true")
        deadline = time.monotonic() + 30
        while victim.poll() is None and f"job-{number}" not in document(controller)["runs"]:
            assert time.monotonic() < deadline
        end_group(victim)
        victim.communicate()
        assert controller.run("submit", "--id", f"job-{number}", "--", "true", check=True).stdout == f"job-{number}\n"
    assert len(document(controller)["runs"]) == 6
    assert controller.json("fsck")["ok"]
