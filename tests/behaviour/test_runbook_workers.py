"""Entries of docs/recovery.md about workers that vanish, stop or are kept, real processes among them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

from tests.behaviour.driver import Controller
from tests.behaviour.provider_program import Program, wait_until
from tests.behaviour.runbook_kit import book, program_of


def local(controller: Controller, *fleet: str) -> None:
    """A fleet of one local worker, which notices soon what is not there."""
    controller.init("--slots", "1")
    controller.configure("fleet", 'grace = "50ms"', 'kill_grace = "100ms"', *fleet)


def run(controller: Controller, *argv: str, options: tuple[str, ...] = ()) -> None:
    controller.run("submit", "--id", "a", *options, "--", *argv, check=True)
    controller.run("reconcile", "--apply", check=True)


def kill_supervisor(controller: Controller) -> Path:
    (worker,) = (controller.state / "workers").iterdir()
    os.kill(json.loads((worker / "pid").read_bytes())["pid"], signal.SIGKILL)
    return worker


def fill_in(controller: Controller, resources: dict[str, Any]) -> None:
    """Do with the template what the page says: a digest for each resource, and who says so."""
    path = controller.home / "proof.json"
    proof = json.loads(path.read_text())
    for name, known in resources.items():
        text = json.dumps({"id": known["id"], "immutable_id": known["immutable_id"]}, separators=(",", ":"))
        proof["resources"][name] = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    proof["statement"] = "one copied it"
    path.write_text(json.dumps(proof))


def test_a_worker_that_vanished_is_cleared_away_and_its_run_tried_again(controller: Controller) -> None:
    local(controller)
    run(controller, "sh", "-c", "test -e $HOME/go || sleep 60")
    with book(controller, "a-worker-vanished", RUN="a", N=1) as entry:
        entry.is_refused("retry", "running|not over|already")
        kill_supervisor(controller)
        wait_until(lambda: entry.becomes("a") == "failed", "the loss of its worker")
        entry.sees()
        entry.until(None)
        (controller.home / "go").touch()
        entry.types("retry")
        entry.types("reconcile")
        wait_until(lambda: entry.becomes("a") == "succeeded", "its next life")
    assert controller.json("show", "a")["run"]["token"] == 2


def test_a_worker_that_somebody_switched_off_is_taken_down_and_its_run_goes_on(controller: Controller) -> None:
    program = program_of(controller, 'cooldown = "1d"')
    program.submit("a")
    controller.run("reconcile", "--apply", check=True)
    (first,) = program.workers()
    switch_off(program)
    with book(controller, "a-worker-was-switched-off", RUN="a", N=1) as entry:
        entry.types("reconcile")
        entry.sees()
        entry.is_refused("resume", "no worker is assigned|released")
        path = controller.state / "controller.toml"
        path.write_text(path.read_text().replace('cooldown = "1d"', ""))
        entry.until(None)
    assert first["assignment"] not in {worker["assignment"] for worker in program.workers()}


def switch_off(program: Program, slot: int = 1) -> None:
    path = program.home / "workers" / f"{slot}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"state": "dark"}))


def test_a_worker_that_waits_for_its_proof_is_released_by_one(controller: Controller) -> None:
    program = waiting_for_proof(controller)
    with book(controller, "a-worker-waits-for-its-release-proof", RUN="a", N=1) as entry:
        entry.sees()
        entry.explains(1, "somebody has to prove first that its data may go")
        entry.is_refused("--confirm-release", "proof")
        entry.types("--template")
        entry.is_refused("--proof", "still a placeholder")
        fill_in(controller, program.workers()[0]["resources"])
        entry.types("--proof")
        released(controller)
    assert controller.json("status")["unreleased"] == []


def waiting_for_proof(controller: Controller, *fleet: str) -> Program:
    """A fleet in which run a has ended, and the worker in slot 1 waits for its proof."""
    program = program_of(controller, 'release = "proof"', *fleet)
    program.submit("a")
    controller.run("reconcile", "--apply", check=True)
    wait_until(lambda: ended(controller) == "succeeded", "the end of run a")
    return program


def ended(controller: Controller, run: str = "a") -> str:
    controller.run("reconcile", "--apply")
    return str(controller.json("show", run)["run"]["state"])


def released(controller: Controller) -> None:
    """From here on workers are released by themselves: what comes after must not wait for another proof."""
    path = controller.state / "controller.toml"
    path.write_text(path.read_text().replace('release = "proof"', 'release = "auto"'))


def test_what_can_be_proven_no_more_is_surrendered_and_history_says_what_was_lost(controller: Controller) -> None:
    program = waiting_for_proof(controller)
    with book(controller, "the-proof-cannot-be-made", RUN="a", N=1) as entry:
        entry.is_refused("surrender", "live")
        (program.home / "workers" / "1.json").unlink()
        entry.until("lost")
        entry.sees()
        entry.explains(1, "neither adopted nor deleted")
        assert "vm-1-1" in entry.types("--dry-run").stdout
        entry.types("--confirm-surrender")
        assert "lost: worker vm-1-1" in controller.run("history", "slot:1", check=True).stdout
        released(controller)
        entry.until(None)


def test_an_idle_worker_without_its_proof_is_stopped_listed_and_can_be_resumed(controller: Controller) -> None:
    program = waiting_for_proof(controller, 'idle_release = "100ms"')
    with book(controller, "idle-release", RUN="a", N=1) as entry:
        entry.until("deallocated")
        entry.sees()
        entry.explains(1, "Complete looks saw it idle after its run")
        assert [worker["state"] for worker in program.workers()] == ["dark"], "it was stopped, not deleted"
        entry.is_refused("--confirm-release", "proof")
        entry.is_refused("surrender", "can still be proven")
        entry.types("resume")
        entry.until("deallocated")
        entry.types("--template")
        fill_in(controller, program.workers()[0]["resources"])
        entry.types("--proof")
        released(controller)
        entry.until(None)


def test_the_worker_of_a_failed_run_is_kept_to_look_at_and_gone_on_with(controller: Controller) -> None:
    local(controller, "retain_failed = true")
    run(controller, "sh", "-c", "echo life >> lives; exit 7")
    wait_until(lambda: ended(controller) == "failed", "the failure of run a")
    with book(controller, "a-failed-runs-worker-is-kept", RUN="a", N=1) as entry:
        entry.until("deallocated")
        entry.sees()
        entry.explains(1, "is stopped; its data is kept for run a, which has failed")
        left = controller.state / "scratch" / "a" / "lives"
        assert left.read_text().splitlines() == ["life"], "what it left is there to be looked at"
        entry.is_refused(r"release RUN`?$", "nothing was done")
        entry.types("resume")
        wait_until(lambda: bool(ended(controller)) and len(left.read_text().splitlines()) == 2, "its next life")
        entry.until("deallocated")
        entry.types("release")
        entry.until(None)


def test_a_run_is_resumed_on_its_data_after_its_worker_was_lost(controller: Controller) -> None:
    local(controller, 'release = "proof"')
    run(controller, "sh", "-c", "test -e mark || { touch mark; sleep 60; }; echo same > $HOME/found")
    with book(controller, "resume", RUN="a", N=1) as entry:
        entry.is_refused("resume", "running")
        kill_supervisor(controller)
        entry.until("lost")
        entry.sees()
        entry.explains(1, "neither adopted nor deleted")
        entry.types("resume")
        wait_until(lambda: ended(controller) == "succeeded", "its life on the same data")
        assert (controller.home / "found").exists()
        assert entry.worker()["generation"] == 2
        released(controller)


def test_a_stopped_worker_cools_down_from_when_it_was_first_seen_off(controller: Controller) -> None:
    program = program_of(controller, 'idle = "1ms"', 'cooldown = "1d"')
    program.submit("a")
    controller.run("reconcile", "--apply", check=True)
    with book(controller, "cooldown", RUN="a", N=1) as entry:
        entry.until("deallocated")
        entry.sees()
        entry.types("reconcile")
        assert "That is over in 23 h" in entry.types("explain").stdout
        entry.is_refused("resume", "no worker is assigned")
        path = controller.state / "controller.toml"
        path.write_text(path.read_text().replace('cooldown = "1d"', 'cooldown = "0s"'))
        entry.until(None)
