"""`release`: a worker that was kept for its run's data goes when somebody says so, and exactly that one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.driver import Controller, Result
from tests.behaviour.faults import CHANGES, document, durable, run_dying
from tests.behaviour.provider_program import Program, wait_until


@pytest.fixture
def program(controller: Controller) -> Program:
    """Run `a` has succeeded; its worker in slot 1 waits for its proof."""
    made = Program(controller, slots=2)
    controller.configure("fleet", 'release = "proof"')
    made.submit("a")
    controller.run("reconcile", "--apply", check=True)
    return made


def sha256sum(text: str) -> str:
    """As the runbook says to compute it."""
    done = subprocess.run(["sha256sum"], input=text, capture_output=True, text=True, check=True)
    return f"sha256:{done.stdout.split()[0]}"


def write_proof(program: Program, **members: object) -> Path:
    """The template, filled in from what is there at the provider, in a file that passes."""
    proof = json.loads(program.controller.run("release", "a", "--template", check=True).stdout)
    vm = next(each["resources"]["vm"] for each in program.workers() if each["slot"] == proof["slot"])
    proof["resources"]["vm"] = sha256sum(f'{{"id":"{vm["id"]}","immutable_id":"{vm["immutable_id"]}"}}')
    proof["statement"] = "ops@example.org copied the results"
    path = program.controller.home / "proof.json"
    path.write_text(json.dumps(proof | members, indent=1))
    path.chmod(0o600)
    return path


def worker_of(controller: Controller, slot: int = 1) -> Any:
    """Its record; None without one."""
    return document(controller)["workers"].get(str(slot))


def kept(program: Program, before: dict[str, bytes], done: Result) -> None:
    """It was refused, in words, and everything is as it was."""
    assert done.exit == 3, done
    assert "Traceback" not in done.stderr
    assert "next: " in done.stderr
    assert durable(program.controller) == before
    assert len(program.workers()) == 1


def test_a_worker_waits_for_its_proof_is_released_by_it_once_and_then_does_the_next_run(program: Program) -> None:
    controller = program.controller
    proof = write_proof(program)
    controller.run("reconcile", "--apply", check=True)
    assert [call[0] for call in program.calls("did")] == ["create", "execute"]
    answer = controller.json("release", "a", "--proof", "proof.json", "--reason", "results are copied")
    assert (answer["schema"], answer["run"], answer["slot"]) == ("controller.release/1", "a", 1)
    assert (answer["changed"], answer["state"]) == (True, "released")
    assert answer["resources"] == {"vm": answer["worker"]}
    said = next(e for e in controller.json("history", "slot:1")["events"] if e["event"] == "release")
    assert "results are copied" in said["detail"]
    assert "ops@example.org copied the results" in said["detail"]
    assert said["detail"].endswith(answer["proof"])
    program.submit("b")
    controller.run("reconcile", "--apply", check=True)
    assert [call[0] for call in program.calls("did")] == ["create", "execute", "execute"]
    before = durable(controller)
    again = controller.json("release", "a", "--proof", str(proof))
    assert (again["changed"], again["already"], again["proof"]) == (False, True, answer["proof"])
    assert "by this proof before" in controller.run("release", "a", "--proof", str(proof), check=True).stdout
    assert durable(controller) == before


def test_a_template_goes_to_a_file_says_beside_how_to_fill_it_in_and_does_not_pass_as_it_is(program: Program) -> None:
    controller, before = program.controller, durable(program.controller)
    template = controller.run("release", "a", "--template", check=True)
    assert "sha256sum" in template.stderr
    path = controller.home / "proof.json"
    path.write_text(template.stdout)
    path.chmod(0o600)
    done = controller.run("release", "a", "--proof", "proof.json")
    kept(program, before, done)
    assert "resources.vm is still a placeholder" in done.stderr
    assert "statement is still a placeholder" in done.stderr
    asked = controller.json("release", "a", "--template")
    assert asked["template"] == json.loads(template.stdout)
    assert controller.run("release", "a", "--template", "--proof", "proof.json").exit == 2


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"note": "x"}, "proof_incomplete"),
        ({"token": 1.0}, "proof_incomplete"),
        ({"token": 0}, "proof_stale"),
        ({"assignment": "a-0"}, "proof_stale"),
        ({"slot": 2}, "proof_conflicting"),
        ({"run": "b"}, "proof_conflicting"),
        ({"resources": {}}, "proof_conflicting"),
        ({"resources": {"vm": "sha256:" + 64 * "0"}}, "proof_conflicting"),
    ],
    ids=str,
)
def test_a_proof_that_does_not_fit_is_refused_with_what_is_wrong_in_it(
    program: Program, members: dict[str, object], code: str
) -> None:
    controller, path = program.controller, write_proof(program, **members)
    before = durable(controller)
    error = controller.json("release", "a", "--proof", str(path), exit=3)["error"]
    assert error["code"] == code
    assert next(iter(members)) in error["what"] or "resource vm" in error["what"]
    assert durable(controller) == before
    refusals = controller.json("status")["refusals"]
    assert [each["code"] for each in refusals] == [code]


def test_a_file_that_is_a_link_a_pipe_huge_open_to_others_or_broken_is_no_proof(program: Program) -> None:
    controller, proof = program.controller, write_proof(program)
    before, good = durable(controller), proof.read_bytes()
    (controller.home / "link").symlink_to(proof)
    os.mkfifo(controller.home / "pipe")
    for name, content in (("half", good.rstrip()[:-1]), ("mark", b"\xef\xbb\xbf" + good), ("latin", b'"\xe9"')):
        (controller.home / name).write_bytes(content)
    (controller.home / "huge").write_bytes(good + b" " * (1 << 20))
    (controller.home / "open").write_bytes(good)
    (controller.home / "open").chmod(0o666)
    for name in ("half", "mark", "latin", "huge"):
        (controller.home / name).chmod(0o600)
    for name, said in (
        ("link", "symbolic link"),
        ("pipe", "no regular file"),
        ("half", "ends too early"),
        ("mark", "byte-order mark"),
        ("latin", "not UTF-8"),
        ("huge", "larger than 65536 bytes"),
        ("open", "others may write to it (mode 0666)"),
    ):
        done = controller.run("release", "a", "--proof", name)
        kept(program, before, done)
        assert said in done.stderr
        assert str(controller.home / name) in done.stderr
    assert controller.run("release", "a", "--proof", "nowhere").exit == 2


def test_nothing_but_a_proof_releases_where_one_is_asked_for(program: Program) -> None:
    controller, before = program.controller, durable(program.controller)
    for options in ((), ("--confirm-release",), ("--dry-run",), ("--confirm-release", "--reason", "because")):
        done = controller.run("release", "a", *options)
        kept(program, before, done)
        assert "next: controller release a --template --slot 1" in done.stderr
    environment = {"CONTROLLER_RELEASE_CONFIRM_RELEASE": "1", "CONTROLLER_RELEASE_PROOF": str(write_proof(program))}
    kept(program, before, controller.run("release", "a", env=environment))


def test_a_dry_run_says_what_would_be_released_and_releases_nothing(program: Program) -> None:
    controller, proof = program.controller, write_proof(program)
    before = durable(controller)
    done = controller.run("release", "a", "--proof", str(proof), "--dry-run", check=True)
    assert "the worker of slot 1 would be released from run a" in done.stdout
    assert "nothing was changed" in done.stdout
    assert durable(controller) == before


def test_a_release_waits_until_the_run_is_over_and_no_action_is_pending(controller: Controller) -> None:
    program = Program(controller, slots=1)
    controller.configure("fleet", 'release = "proof"')
    program.submit("a")
    program.always("execute", {"instead": "not today", "do": False})
    controller.run("reconcile", "--apply")
    before = durable(controller)
    done = controller.run("release", "a", "--template")
    kept(program, before, done)
    assert "its execute is pending" in done.stderr
    assert "controller replay-pending --slot 1" in done.stderr


def test_a_proof_needs_no_settings_that_can_be_read(program: Program) -> None:
    controller, proof = program.controller, write_proof(program)
    controller.configure("fleet", "slotz = 3")
    assert controller.run("release", "a", "--confirm-release").exit == 2
    assert controller.json("release", "a", "--proof", str(proof))["changed"] is True


def test_two_that_bring_the_same_proof_at_once_release_once(program: Program) -> None:
    controller, proof = program.controller, write_proof(program)
    both = [controller.popen("release", "a", "--proof", str(proof), "--json") for _ in range(2)]
    answers = [json.loads(each.communicate(timeout=60)[0]) for each in both]
    assert [each.returncode for each in both] == [0, 0]
    assert sorted((each["changed"], each["already"]) for each in answers) == [(False, True), (True, False)]
    events = [each["event"] for each in controller.json("history", "slot:1")["events"]]
    assert events.count("release") == 1


@pytest.mark.parametrize("name", CHANGES)
def test_a_release_that_is_killed_at_any_point_is_made_once_by_the_next(program: Program, name: str) -> None:
    controller, proof = program.controller, write_proof(program)
    kills = 0
    while run_dying(controller, name, kills + 1, "release", "a", "--proof", str(proof)).exit < 0:
        kills += 1
        assert kills < 30
    assert kills or name in ("link", "unlink"), "a commit makes such calls"
    worker = worker_of(controller)
    assert worker is not None
    assert (worker["state"], worker.get("run")) == ("released", None)
    assert controller.json("release", "a", "--proof", str(proof))["already"] is True
    events = [each["event"] for each in controller.json("history", "slot:1")["events"]]
    assert events.count("release") == 1
    controller.run("fsck", check=True)


def test_the_process_kept_for_a_failed_run_is_released_with_the_command_that_the_refusal_names(
    controller: Controller,
) -> None:
    controller.init("--slots", "1")
    controller.configure("fleet", "retain_failed = true")
    controller.run("submit", "--id", "f", "--", "false", check=True)

    def is_stopped() -> bool:
        controller.run("reconcile", "--apply")
        worker = worker_of(controller)
        return worker is not None and worker["state"] == "deallocated"

    wait_until(is_stopped, "the end of the failed run's worker")
    before = durable(controller)
    asked = controller.json("release", "f", "--reason", "looked at it", exit=3)["error"]
    assert asked["what"].startswith("nothing was done: it would release the worker of slot 1 from run f")
    assert asked["next"] == "controller release f --reason 'looked at it' --confirm-release"
    assert durable(controller) == before
    done = controller.run("release", "f", "--reason", "looked at it", "--confirm-release", check=True)
    assert "next: controller reconcile --apply" in done.stdout
    controller.run("reconcile", "--apply", check=True)
    assert worker_of(controller) is None
    assert controller.json("release", "f", "--confirm-release", exit=3)["error"]["code"] == "conflict"
