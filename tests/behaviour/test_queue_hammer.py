"""Eight real processes hammer one directory through the library: nothing lost, nothing doubled, no waiter starved."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

from controller.api.handle import Controller as Library
from tests.behaviour.driver import Controller

CROWD = 8
SECONDS = 10
PATIENCE = 120

CONSUMER = """
import json, sys, time
from controller import Controller

state, who, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
submitted, claimed, done, waits = [], [], [], []
with Controller.open(state, lock_timeout=60) as fleet:
    queue = fleet.queue("work")
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    sys.stdin.readline()
    end = time.monotonic() + seconds
    held = None
    while time.monotonic() < end:
        began = time.monotonic()
        submitted.append(fleet.submit(payload=[who, len(submitted)], queue="work").id)
        if held is None:
            claim = queue.claim(owner=who, wait=30)
            held = claim.run if claim else None
            if held is None:
                continue
            claimed.append([held.id, held.attempts])
        answer = queue.complete(held.id, held.attempts, [who, held.id], claim_next=True)
        done.append([held.id, held.attempts])
        held = answer.next
        if held is not None:
            claimed.append([held.id, held.attempts])
        waits.append(time.monotonic() - began)
    if held is not None:
        queue.drain(held.id, held.attempts)
json.dump({"submitted": submitted, "claimed": claimed, "done": done, "longest": max(waits, default=None)}, sys.stdout)
"""


def test_eight_processes_hammer_one_directory_and_nothing_is_lost_doubled_or_starved(controller: Controller) -> None:
    controller.init()
    reports = hammered(controller)

    submitted = [run for report in reports for run in report["submitted"]]
    done = [run for report in reports for run, _ in report["done"]]
    assert len(set(submitted)) == len(submitted)
    assert max(Counter(done).values()) == 1, "a run was done twice"
    claims = Counter((run, token) for report in reports for run, token in report["claimed"])
    assert max(claims.values()) == 1, "two processes got one life of a run"
    assert all(report["done"] for report in reports), "one of them never got anything"
    share = sum(len(report["done"]) for report in reports) / CROWD
    assert min(len(report["done"]) for report in reports) >= share / 10, "one of them starved"

    with Library.open(controller.state) as library:
        left = [(claim.id, claim.token) for claim in library.queue("work").claim_many(1_000, owner="last")]
        for run, token in left:
            library.queue("work").complete(run, token)
        document = library.store.read().document
        events = library.store.history()
    assert sorted([*done, *(run for run, _ in left)]) == sorted(submitted)
    assert not document.runs
    assert sorted(document.finished) == sorted(submitted)
    ends = Counter(event.subject for event in events if event.event == "all_steps_done")
    assert ends == Counter(f"run:{run}" for run in submitted)
    claimed = Counter(event.subject for event in events if event.event == "claim")
    drained = Counter(event.subject for event in events if event.event == "shutdown_drain")
    assert claimed == ends + drained, "every life ended once, as its holder said"
    verdict = controller.json("fsck")
    assert (verdict["ok"], verdict["violations"]) == (True, [])
    assert not [path.name for path in controller.state.iterdir() if "tmp" in path.name]


def hammered(controller: Controller) -> list[Any]:
    """What each process says that it did. All begin together."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CONSUMER, str(controller.state), f"consumer-{number}", str(SECONDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=controller.env,
        )
        for number in range(CROWD)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [process.communicate(timeout=PATIENCE) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()
    for process, (_, stderr) in zip(started, answers, strict=True):
        assert process.returncode == 0, stderr
        assert stderr == ""
    return [json.loads(stdout) for stdout, _ in answers]
