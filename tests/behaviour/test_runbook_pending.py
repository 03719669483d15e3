"""Entries of docs/recovery.md about actions that stay parked: each state is made by a real fault, and left as typed."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.provider_program import Program, wait_until
from tests.behaviour.runbook_kit import book, key_of, program_of
from tests.docs.runbook import arguments, entries

REMOVE = entries()["something-unrecorded"].types[-1]


@pytest.fixture
def program(controller: Controller) -> Program:
    return program_of(controller)


def park(program: Program, how: dict[str, object]) -> str:
    """A create for run a is asked for and stays parked, since every answer goes so; its key."""
    program.submit("a")
    program.always("create", how)
    assert program.controller.run("reconcile", "--apply").exit == 5
    return key_of(program)


def test_an_unknown_outcome_is_sent_again_until_the_answer_is_definite(program: Program) -> None:
    key = park(program, {"instead": "not today", "do": False})
    with book(program.controller, "outcome-unknown-keeps-coming", RUN="a", N=1, KEY=key) as entry:
        assert "not today" in entry.sees()
        entry.explains(1, "it may or may not have done it")
        entry.fails("abandon", "stays parked", exit=5)
        entry.is_refused("withdraw", "slot 1")
        assert key_of(program) == key
        program.honest("create")
        entry.types("replay-pending")
        assert program.pending() == {}


def test_a_provider_program_that_is_missing_is_put_back_and_what_was_parked_is_sent_again(program: Program) -> None:
    key = park(program, {"die": True})
    path = program.controller.state / "controller.toml"
    text = path.read_text()
    command = next(line for line in text.splitlines() if line.startswith("command = "))
    path.write_text(text.replace(command, f'command = ["{program.controller.home}/gone"]'))
    program.controller.run("replay-pending")
    with book(program.controller, "the-provider-program-is-missing", RUN="a", N=1, KEY=key) as entry:
        entry.sees()
        entry.explains(1, "certainly nothing happened")
        entry.fails("abandon", "stays parked", exit=5)
        entry.types("doctor", exit=5)
        path.write_text(text)
        program.honest("create")
        entry.types("doctor")
        entry.types("replay-pending")
        entry.types("reconcile")
    assert len([did for did in program.calls("did") if did[0] == "create"]) == 1


def test_a_rejected_create_waits_and_is_asked_for_again_once_the_quota_is_raised(program: Program) -> None:
    program.submit("a")
    program.always("create", {"reply": {"outcome": "rejected", "reason": "quota of 4 machines"}, "do": False})
    assert program.controller.run("reconcile", "--apply").exit == 5
    with book(program.controller, "the-provider-rejects", RUN="a", N=1) as entry:
        assert "quota of 4 machines" in entry.sees()
        assert "quota of 4 machines" in entry.types("explain").stdout
        entry.is_refused("replay-pending", "nothing", exit=0)
        program.honest("create")
        wait_until(lambda: entry.becomes("a") == "succeeded", "the next create")
        entry.types("reconcile")


def test_a_refused_identity_is_abandoned_and_the_slot_is_taken_back_into_service(program: Program) -> None:
    program.submit("a")
    program.controller.run("reconcile", "--apply", check=True)
    program.controller.configure("fleet", 'idle = "1ms"')
    program.always("deallocate", {"reply": {"outcome": "identity_refused", "reason": "vm-1-1 is another"}, "do": False})
    assert program.controller.run("reconcile", "--apply").exit == 5
    with book(program.controller, "identity-refused", N=1, KEY=key_of(program)) as entry:
        entry.sees()
        entry.explains(1, "can never be bound again")
        entry.types("status --live")
        entry.is_refused(r"abandon N --key KEY --reason WHY`?$", "nothing was done")
        entry.types("abandon")
        assert program.pending() == {}
        shutil.rmtree(program.home / "workers")
        (program.home / "workers").mkdir()
        program.honest("deallocate")
        entry.types("uncordon")
        entry.until(None)


def test_an_expired_key_is_settled_by_looks_and_not_sent_again(program: Program) -> None:
    settings = program.controller.state / "controller.toml"
    soon = settings.read_text()
    settings.write_text(soon.replace('grace = "50ms"', 'grace = "1h"'))
    program.always("describe", {"reply": {"key_ttl_ms": 1}})
    key = park(program, {"instead": "", "do": False})
    with book(program.controller, "the-key-has-expired", RUN="a", N=1, KEY=key) as entry:
        entry.sees()
        entry.explains(1, "no longer remembers keys this old")
        calls = len(program.calls())
        entry.fails("abandon", "stays parked", exit=5)
        entry.fails("replay-pending", "trouble remains: slot 1", exit=5)
        assert len(program.calls()) == calls
        settings.write_text(soon)
        for name in ("create", "describe"):
            program.honest(name)
        entry.types("reconcile", exit=5)
        wait_until(lambda: "settled" in entry.types("abandon", exit=None).stdout, "two looks")


def test_a_provider_process_of_another_pid_namespace_is_declared_gone_by_an_operator(program: Program) -> None:
    program.submit("a")
    program.next("create", {"wait_for": "never", "do": False})
    jail = in_another_namespace(program.controller.command("reconcile", "--apply"), program)
    wait_until(lambda: program.calls() != [], "the call")
    jail.kill()
    jail.wait()
    with book(program.controller, "a-provider-process-of-another-pid-namespace", N=1, KEY=key_of(program)) as entry:
        entry.sees()
        entry.explains(1, "of another pid namespace")
        entry.fails("replay-pending", "if you know that it has ended: controller abandon 1 --key", exit=5)
        entry.fails("abandon", "another pid namespace", exit=5)
        entry.types("--provider-gone")
        program.controller.run("replay-pending")
        assert program.pending() == {}


def in_another_namespace(command: tuple[str, ...], program: Program) -> subprocess.Popen[bytes]:
    """*command* as a container would run it; whatever it starts dies with it."""
    prefix = ("unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), "--pid", "--fork")
    prefix = (*prefix, "--mount-proc", "--kill-child", "sh", "-c", '"$@"; exit', "sh")
    if shutil.which("unshare") is None or subprocess.run((*prefix, "true"), check=False).returncode != 0:
        pytest.skip("this host makes no pid namespaces")
    controller = program.controller
    return subprocess.Popen((*prefix, *command), cwd=controller.home, env=controller.env, stdout=subprocess.DEVNULL)


def test_a_result_that_no_record_can_take_is_disowned_and_what_it_made_is_found(controller: Controller) -> None:
    program = program_of(controller, slots=2)
    program.submit("a")
    controller.run("reconcile", "--apply", check=True)
    (taken,) = program.workers()
    program.submit("b", "c")
    program.always("create-2", {"instead": "", "do": True})
    controller.run("reconcile", "--apply")
    made = program.workers()[-1]
    program.always("create-2", {"reply": {"worker": made | {"resources": taken["resources"]}}})
    assert controller.run("replay-pending").exit == 3
    with book(controller, "a-result-that-cannot-be-recorded", N=2, KEY=key_of(program, 2)) as entry:
        entry.sees()
        entry.explains(2, "could not take the answer")
        entry.types("fsck")
        entry.types("replay-pending", exit=3)
        entry.is_refused("adopt", "is pending")
        entry.types("abandon")
        assert program.pending() == {}
        controller.run("reconcile", "--apply")
        entry.explains(2, "which no record knows")
        assert [worker["id"] for worker in program.workers()] == [taken["id"], made["id"]], "nothing was made twice"
        identity = controller.json("adopt", "2")["found"]["identity"]
        controller.run(*arguments(REMOVE, N=2, SHA=identity), check=True)
        entry.until(None, 2)


def test_of_a_provider_that_is_gone_for_good_everything_is_kept_on_record(controller: Controller) -> None:
    program = program_of(controller, 'release = "proof"', slots=2)
    program.submit("a")
    controller.run("reconcile", "--apply", check=True)
    program.submit("b")
    program.always("create", {"instead": "", "exit": 1, "do": False})
    controller.run("reconcile", "--apply")
    (controller.home / "provider.py").unlink()
    with book(controller, "the-provider-is-gone-for-good", RUN="a", N=2, KEY=key_of(program, 2)) as entry:
        entry.sees()
        entry.fails("abandon", "stays parked", exit=5)
        entry.fails("surrender", "gone for good", exit=5)
        entry.is_refused("forget", "is pending")
        entry.types("abandon")
        entry.explains(2, "Until looks show what it made, the slot takes nothing new.")
        entry.is_refused("forget", "assigned to run a", N=1)
        entry.types("surrender")
        assert "lost: worker vm-1-1" in controller.run("history", "slot:1", check=True).stdout
        entry.explains(1, "If it is gone for good, only an operator can go on.", live=True)
        change(controller, *ANOTHER)
        assert controller.run("reconcile", "--apply").exit == 3
        entry.explains(1, "The settings name provider local; command, which made its worker, is not asked.")
        entry.types("forget", N=1)
        assert entry.worker() == {}
        entry.explains(1, "Its worker was forgotten")
        assert "vm-1-1" in entry.types("status --live").stdout
        change(controller, 'release = "proof"', 'release = "auto"')
        entry.types("reconcile")
        wait_until(lambda: entry.becomes("b") == "succeeded", "what was disowned is proven not to be there")


ANOTHER = ('kind = "command"', 'kind = "local"')


def change(controller: Controller, before: str, after: str) -> None:
    path = controller.state / "controller.toml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
