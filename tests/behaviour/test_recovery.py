"""resume, surrender, adopt, delete-unrecorded, cordon, uncordon and drain SLOT, typed as an operator types them."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.driver import Controller, Result, Staying
from tests.behaviour.faults import durable
from tests.behaviour.provider_program import Program, wait_until

WHY = ("--reason", "it has to be")


def worker(controller: Controller, slot: int = 1) -> Mapping[str, Any]:
    """The slot's worker as recorded; empty without one."""
    found: Mapping[str, Any] = controller.json("show", f"slot:{slot}")["slot"]["worker"] or {}
    return found


def run(controller: Controller, run_id: str = "a") -> Mapping[str, Any]:
    found: Mapping[str, Any] = controller.json("show", run_id)["run"]
    return found


def events(controller: Controller, subject: str, command: str) -> list[tuple[str, str | None]]:
    history = controller.json("history", subject)["events"]
    return [(each["event"], each.get("detail")) for each in history if each["command"] == command]


def refused(controller: Controller, *args: str, exit: int = 3) -> Result:  # noqa: A002 - as in Result
    """What a refusal says; it has changed nothing."""
    before = durable(controller)
    result = controller.run(*args)
    assert result.exit == exit, str(result)
    assert durable(controller) == before, f"it was refused, and changed something\n{result}"
    return result


def until(controller: Controller, state: str | None, slot: int = 1) -> None:
    def there() -> bool:
        controller.run("reconcile", "--apply")
        return bool(worker(controller, slot).get("state") == state)

    wait_until(there, f"slot {slot} {state}")


def kept(controller: Controller) -> Program:
    """Run "a" has succeeded, its worker was stopped while it waited for its proof, and nobody has brought that."""
    program = Program(controller, slots=2)
    controller.configure("fleet", 'release = "proof"', 'idle_release = "1ms"', 'grace = "50ms"')
    program.submit("a")
    until(controller, "deallocated")
    return program


# resume


@pytest.fixture
def failed(controller: Controller) -> Controller:
    """Run "a" failed on a local worker, which is kept with what the run left in its directory."""
    controller.init("--slots", "2")
    controller.configure("fleet", "retain_failed = true")
    command = "test -e mark && exec true; echo x > mark; exit 7"
    controller.run("submit", "--id", "a", "--", "sh", "-c", command, check=True)
    until(controller, "deallocated")
    return controller


def test_a_failed_run_goes_on_with_what_it_left_on_the_very_worker_that_has_it(failed: Controller) -> None:
    resumed = failed.run("resume", "a", *WHY, "--confirm-resume")
    assert resumed.exit == 0, str(resumed)
    assert "new compute is made in slot 1, generation 2, and run a is queued again" in resumed.stdout
    wait_until(lambda: failed.run("reconcile", "--apply").exit == 0 and run(failed)["state"] == "succeeded", "its end")
    assert run(failed)["worker"] == {"slot": 1, "assignment": "a-1", "generation": 2}
    ((event, detail),) = events(failed, "run:a", "resume")
    assert event == "operator_retry"
    assert detail is not None
    assert detail.startswith("by ")
    assert detail.endswith(": it has to be")


def test_without_its_flag_a_resume_says_what_it_would_do_and_what_to_type(failed: Controller) -> None:
    said = refused(failed, "resume", "a", "--slot", "1", *WHY).stderr
    assert "nothing was done: new compute would be made in slot 1, generation 2" in said
    assert "next: controller resume a --slot 1 --reason 'it has to be' --confirm-resume" in said
    assert failed.json("status")["refusals"][-1]["subject"] == "run:a"


def test_a_dry_run_needs_no_flag_and_no_reason(failed: Controller) -> None:
    before = durable(failed)
    answer = failed.json("resume", "a", "--dry-run")
    assert answer == {
        "schema": "controller.resume/1",
        "run": "a",
        "slot": 1,
        "generation": 2,
        "idempotency_key": None,
        "retried": True,
        "dry_run": True,
    }
    assert "nothing was changed" in failed.run("resume", "a", "--dry-run", check=True).stdout
    assert durable(failed) == before


@pytest.mark.parametrize(
    ("verb", "word", "subject"),
    [("resume", "resume", "a"), ("surrender", "surrender", "a"), ("cordon", "cordon", "1"), ("drain", "drain", "1")],
)
def test_no_environment_confirms_or_gives_reasons(failed: Controller, verb: str, word: str, subject: str) -> None:
    name = f"CONTROLLER_{verb.upper()}"
    env = {f"{name}_CONFIRM_{word.upper()}": "1", f"{name}_CONFIRMED": "1", f"{name}_REASON": "inherited"}
    before = durable(failed)
    assert failed.run(verb, subject, env=env).exit == 3
    assert durable(failed) == before


def test_compute_that_is_on_is_not_made_twice(controller: Controller) -> None:
    program = kept(controller)
    (known,) = program.workers()
    (program.home / "workers" / "1.json").write_text(json.dumps({**known, "state": "ready"}))
    said = refused(controller, "resume", "a", *WHY, "--confirm-resume").stderr
    assert "the old compute is on" in said
    assert f"slot 1: a-1 generation 1 ({known['id']}) is ready" in said
    assert [kind for kind, *_ in program.calls()].count("create") == 1


def test_a_resume_that_is_killed_while_the_provider_works_is_finished_with_its_own_key(controller: Controller) -> None:
    program = kept(controller)
    program.next("create-1", {"wait_for": "go"})
    process = controller.popen("resume", "a", *WHY, "--confirm-resume")
    wait_until(lambda: len(creates(program)) == 2, "its create is asked for")
    process.kill()
    process.wait()
    refused(controller, "resume", "a", *WHY, "--confirm-resume")
    program.let("go")
    wait_until(lambda: controller.run("reconcile", "--apply").exit == 0 and not program.pending(), "its answer")
    assert worker(controller)["generation"] == 2
    first, *sent = creates(program)
    assert first not in sent
    assert len(set(sent)) == 1
    assert [made["generation"] for made in program.workers()] == [2]


def creates(program: Program) -> list[str]:
    """The keys of all creates that were sent, in order."""
    return [key for kind, _, key in program.calls() if kind == "create"]


def test_a_resume_that_is_rejected_leaves_all_as_it_was(controller: Controller) -> None:
    program = kept(controller)
    program.next("create-1", {"do": False, "reply": {"outcome": "rejected", "reason": "quota"}})
    done = controller.run("resume", "a", *WHY, "--confirm-resume")
    assert done.exit == 5, str(done)
    assert "rejected" in done.stdout
    assert (worker(controller)["state"], worker(controller)["generation"]) == ("deallocated", 1)
    assert program.pending() == {}
    assert program.workers()[0]["state"] == "dark"


# surrender


def test_what_is_lost_is_named_and_nothing_of_it_is_left(controller: Controller) -> None:
    program = kept(controller)
    known = program.workers()[0]
    said = refused(controller, "surrender", "a", *WHY, "--confirm-surrender").stderr
    assert "its release can still be proven" in said
    (program.home / "workers" / "1.json").write_text(json.dumps({**known, "resources": {}}))
    vm = f"vm {known['id']} ({known['resources']['vm']['immutable_id']})"
    assert f"given up: {vm}" in controller.run("surrender", "a", "--dry-run", check=True).stdout
    said = refused(controller, "surrender", "a", *WHY).stderr
    assert "next: controller surrender a --reason 'it has to be' --confirm-surrender" in said
    said = refused(controller, "surrender", "a", "--confirm-surrender", exit=2).stderr
    assert "say why" in said
    answer = controller.json("surrender", "a", *WHY, "--confirm-surrender")
    assert (answer["schema"], answer["lost"]) == (
        "controller.surrender/1",
        [f"worker {known['id']}", vm],
    )
    ((event, detail),) = events(controller, "slot:1", "surrender")
    assert event == "release"
    assert detail is not None
    assert detail.endswith(f": it has to be; lost: worker {known['id']}, {vm}")
    until(controller, None)
    assert program.workers() == []
    assert controller.json("fsck")["ok"]


def test_where_no_proof_is_asked_for_it_names_the_release_that_will_do(failed: Controller) -> None:
    said = refused(failed, "surrender", "a", *WHY, "--confirm-surrender").stderr
    assert "run a needs no surrender" in said
    assert "next: controller release a --reason WHY --confirm-release" in said


def test_with_its_provider_gone_for_good_a_fleet_is_wound_up_by_two_commands(controller: Controller) -> None:
    program = Program(controller, slots=1)
    program.always("execute-1", {"do": False, "instead": "noise"})
    program.submit("a")
    controller.run("reconcile", "--apply")
    (controller.home / "provider.py").unlink()
    key = program.pending()[1]["idempotency_key"]
    said = controller.run("surrender", "a", *WHY, "--confirm-surrender")
    assert said.exit == 5, str(said)
    assert "--unresolved" in said.stderr
    said = refused(controller, "surrender", "a", "--unresolved", *WHY, "--confirm-surrender")
    assert "its execute is pending" in said.stderr
    controller.run("abandon", "1", "--key", key, "--unresolved", *WHY, "--confirm-abandon", check=True)
    answer = controller.json("surrender", "a", "--unresolved", *WHY, "--confirm-surrender")
    assert (answer["ended"], answer["unresolved"]) == (True, True)
    assert (run(controller)["state"], run(controller)["reason"]) == ("failed", "crashes_exhausted")
    assert (worker(controller)["state"], worker(controller).get("run")) == ("lost", None)
    assert controller.json("fsck", exit=None)["violations"] == []


def test_unresolved_is_refused_while_the_provider_answers(controller: Controller) -> None:
    kept(controller)
    said = refused(controller, "surrender", "a", "--unresolved", *WHY, "--confirm-surrender").stderr
    assert "the provider answers" in said


# abandon


def unknown(controller: Controller) -> tuple[Program, str]:
    """A create of unknown fate is parked for slot 1, under this key; it was never done."""
    program = Program(controller, slots=1)
    program.always("create-1", {"do": False, "instead": "noise"})
    program.submit("a")
    controller.run("reconcile", "--apply")
    return program, program.pending()[1]["idempotency_key"]


def test_an_action_that_nobody_answers_for_stays_and_that_is_trouble(controller: Controller) -> None:
    program, key = unknown(controller)
    said = refused(controller, "abandon", "1", "--key", key, *WHY).stderr
    assert "nothing was done: it would be sent again" in said
    assert f"controller abandon 1 --key {key} --reason 'it has to be' --confirm-abandon" in said
    assert controller.json("abandon", "1", "--key", key, "--dry-run")["outcome"] == "would_send"
    assert "say why" in refused(controller, "abandon", "1", "--key", key, "--confirm-abandon", exit=2).stderr
    answer = controller.json("abandon", "1", "--key", key[:12], *WHY, "--confirm-abandon", exit=5)
    assert (answer["outcome"], answer["idempotency_key"]) == ("kept", key)
    assert list(program.pending()) == [1]


def test_an_answer_that_can_be_recorded_is_and_typing_it_again_is_no_error(controller: Controller) -> None:
    program, key = unknown(controller)
    program.honest("create-1")
    done = controller.run("abandon", "1", "--key", key, *WHY, "--confirm-abandon")
    assert done.exit == 0, str(done)
    assert "was done after all, and is recorded" in done.stdout
    assert worker(controller)["id"] == program.workers()[0]["id"]
    again = controller.run("abandon", "1", "--key", key)
    assert again.exit == 0, str(again)
    assert "is settled already: nothing is pending" in again.stdout


def test_what_is_disowned_closes_its_slot_and_is_kept_on_record(controller: Controller) -> None:
    program, key = unknown(controller)
    program.always("inventory", {"instead": "noise"})
    done = controller.run("abandon", "slot:1", "--key", key, "--unresolved", *WHY, "--confirm-abandon")
    assert done.exit == 0, str(done)
    assert "is disowned: kept on record" in done.stdout
    assert program.pending() == {}
    assert controller.json("show", "slot:1")["slot"]["worker"] is None
    program.honest("inventory")
    lifted = controller.run("uncordon", "1", "--confirm-uncordon")
    assert lifted.exit == 0, str(lifted)
    said = refused(controller, "adopt", "1").stderr
    assert "was disowned" in said


# adopt, delete-unrecorded


def stray(program: Program, slot: int = 2, **fields: Any) -> None:
    """Something of this fleet that its document does not know."""
    lineage = program.controller.json("status")["lineage"]
    made = {
        "slot": slot,
        "lineage": lineage,
        "assignment": "a-40",
        "generation": 1,
        "id": "vm-stray",
        "state": "ready",
        "resources": {"vm": {"id": "vm-stray", "immutable_id": "x1"}},
        "steps": [],
        **fields,
    }
    (program.home / "workers" / f"{slot}.json").write_text(json.dumps(made))


def test_without_its_flag_adopt_tells_what_there_is_and_the_command_that_takes_it(controller: Controller) -> None:
    program = Program(controller)
    stray(program)
    before = durable(controller)
    found = controller.json("adopt", "2")
    assert (found["dry_run"], found["found"]["id"], found["found"]["state"]) == (True, "vm-stray", "ready")
    assert durable(controller) == before
    page = controller.run("adopt", "slot:2", check=True).stdout
    assert "vm-stray (x1)" in page
    then = f"controller adopt 2 --identity {found['found']['identity']} --reason WHY --confirm-adopt"
    assert f"next: {then}" in page
    assert found["next"] == then
    adopted = controller.run(*then.split()[1:])
    assert adopted.exit == 0, str(adopted)
    assert (worker(controller, 2)["state"], worker(controller, 2)["id"]) == ("ready", "vm-stray")
    again = refused(controller, *then.split()[1:]).stderr
    assert "slot 2 has a worker on record" in again
    program.submit("a")
    controller.run("reconcile", "--apply", check=True)
    assert run(controller)["worker"]["assignment"] == "a-40"


def test_what_is_not_what_was_seen_is_left_alone(controller: Controller) -> None:
    program = Program(controller)
    stray(program)
    identity = controller.json("delete-unrecorded", "2")["found"]["identity"]
    stray(program, resources={"vm": {"id": "vm-stray", "immutable_id": "x2"}})
    for verb, confirm in (("adopt", "--confirm-adopt"), ("delete-unrecorded", "--confirm-delete")):
        said = refused(controller, verb, "2", "--identity", identity, *WHY, confirm).stderr
        assert "it has another identity" in said
    assert [each["id"] for each in program.workers()] == ["vm-stray"]


def test_what_is_deleted_goes_by_its_exact_ids_and_frees_its_slot(controller: Controller) -> None:
    program = Program(controller)
    stray(program)
    identity = controller.json("delete-unrecorded", "2")["found"]["identity"]
    said = refused(controller, "delete-unrecorded", "2", "--identity", identity, "--confirm-delete", exit=2).stderr
    assert "say why" in said
    said = refused(controller, "delete-unrecorded", "2", *WHY, "--confirm-delete", exit=2).stderr
    assert "give --identity SHA" in said
    answer = controller.json("delete-unrecorded", "2", "--identity", identity, *WHY, "--confirm-delete")
    assert [sent["type"] for sent in answer["report"]["sent"]] == ["deallocate", "delete_compute", "reset"]
    assert program.workers() == []
    assert worker(controller, 2) == {}
    assert controller.json("fsck")["ok"]


def test_nothing_unrecorded_is_exit_4(controller: Controller) -> None:
    Program(controller)
    assert controller.json("adopt", "2", exit=4)["error"]["code"] == "not_found"


def test_a_provider_that_does_not_answer_is_trouble_and_nothing_changes(controller: Controller) -> None:
    program = kept(controller)
    program.always("inventory", {"instead": "noise"})
    before = durable(controller)
    for line in (("resume", "a"), ("surrender", "a"), ("adopt", "2"), ("delete-unrecorded", "2")):
        answer = controller.json(*line, exit=5)
        assert answer["error"]["code"] == "provider_failed", line
    assert durable(controller) == before


# cordon, uncordon, drain SLOT


def test_a_cordoned_slot_says_so_takes_nothing_and_is_lifted(controller: Controller) -> None:
    program = Program(controller, slots=2)
    said = refused(controller, "cordon", "1").stderr
    assert "nothing was done: slot 1 would take nothing new" in said
    assert "next: controller cordon 1 --reason WHY --confirm-cordon" in said
    assert controller.json("cordon", "1", *WHY, "--confirm-cordon") == {
        "schema": "controller.cordon/1",
        "slot": 1,
        "changed": True,
        "dry_run": False,
        "cordoned": True,
        "draining": False,
    }
    assert "was cordoned already; nothing was changed" in controller.run("cordon", "slot:1", check=True).stdout
    program.submit("a")
    controller.run("reconcile", "--apply", check=True)
    assert run(controller)["worker"]["slot"] == 2
    assert controller.json("uncordon", "1", "--confirm-uncordon")["changed"]
    assert not controller.json("uncordon", "1")["changed"]
    assert [event for event, _ in events(controller, "slot:1", "cordon")] == ["cordoned"]


def test_a_slot_that_is_not_there_is_exit_4_and_what_is_no_slot_is_exit_2(controller: Controller) -> None:
    controller.init("--slots", "2")
    assert controller.json("cordon", "3", exit=4)["error"]["what"].startswith("there is no slot 3: 2 are configured")
    for wrong in ("0", "10001", "run:1", "x"):
        assert controller.json("cordon", wrong, exit=2)["error"]["code"] == "usage"


def test_settings_that_cannot_be_read_keep_no_slot_in_service(controller: Controller) -> None:
    controller.init("--slots", "2")
    (controller.state / "controller.toml").write_text("[fleet\n")
    assert controller.json("cordon", "1", "--confirm-cordon")["changed"]


def test_a_drain_of_one_slot_waits_for_its_run_and_leaves_the_others(controller: Controller) -> None:
    controller.init("--slots", "2")
    for run_id in ("a", "b"):
        controller.run("submit", "--id", run_id, "--", "sleep", "60", check=True)
    controller.run("reconcile", "--apply", check=True)
    assert "next: controller drain 1 --reason WHY --confirm-drain" in refused(controller, "drain", "1").stderr
    draining = Staying(controller.popen("drain", "1", "--confirm-drain"))
    assert "run a (end it with `controller cancel a`)" in draining.says("slot 1: ")
    controller.run("cancel", "a", check=True)
    ended = draining.end()
    assert ended.exit == 0, str(ended)
    assert ended.stdout == "slot 1 is empty, and takes nothing new; to lift that: controller uncordon 1\n"
    assert worker(controller, 1) == {}
    assert run(controller, "b")["state"] == "running"


def test_a_drain_says_what_only_an_operator_can_end_and_does_not_wait_for_it(controller: Controller) -> None:
    kept(controller)
    ended = controller.run("drain", "1", "--confirm-drain")
    assert ended.exit == 5, str(ended)
    assert "left: slot 1: stopped because it waited idle for its proof" in ended.stdout
    assert "`controller explain slot:1`" in ended.stdout
    answer = controller.json("drain", "1", "--confirm-drain", exit=5)
    assert (answer["draining"], answer["empty"], len(answer["left"])) == (True, False, 1)


def running(controller: Controller) -> Staying:
    """A drain of slot 1 that waits for the run in there."""
    controller.init("--slots", "1")
    controller.run("submit", "--id", "a", "--", "sleep", "60", check=True)
    controller.run("reconcile", "--apply", check=True)
    draining = Staying(controller.popen("drain", "1", "--confirm-drain"))
    draining.says("slot 1: ")
    return draining


def test_a_drain_is_over_when_somebody_lifts_it(controller: Controller) -> None:
    draining = running(controller)
    controller.run("uncordon", "1", "--confirm-uncordon", check=True)
    ended = draining.end()
    assert "the drain was lifted by somebody else meanwhile" in ended.stdout


def test_a_drain_that_is_interrupted_stands(controller: Controller) -> None:
    assert running(controller).end(signal.SIGINT).exit == 130
    assert controller.json("drain", "1", "--dry-run")["draining"]


def test_a_drain_ends_with_its_time_and_says_what_it_waits_for(controller: Controller) -> None:
    controller.init("--slots", "1")
    controller.run("submit", "--id", "a", "--", "sleep", "60", check=True)
    controller.run("reconcile", "--apply", check=True)
    for args in (("1", "--confirm-drain"), ("--all",)):
        answer = controller.json("drain", *args, "--timeout", "1ms", exit=5)
        assert (answer["draining"], answer["empty"], answer["interrupted"]) == (True, False, False)
        assert answer["left"] == ["slot 1: run a (end it with `controller cancel a`)"]
    assert "left: slot 1: run a" in controller.run("drain", "--all", "--timeout", "1ms").stdout


@pytest.mark.parametrize("which", [("1", "--confirm-drain"), ("--all",)], ids=["slot", "all"])
def test_an_interrupted_drain_still_says_that_the_provider_does_not_answer(
    controller: Controller, which: tuple[str, ...]
) -> None:
    program = Program(controller, slots=1)
    program.submit("a")
    controller.run("reconcile", "--apply", check=True)
    program.always("inventory", {"exit": 3})
    before = len(program.calls("inventory"))
    draining = Staying(controller.popen("drain", *which, "--json"))
    wait_until(lambda: len(program.calls("inventory")) >= before + 2, "a second pass, after a first one with trouble")
    ended = draining.end(signal.SIGINT)
    assert ended.exit == 130, str(ended)
    answer = ended.json()
    assert (answer["interrupted"], answer["empty"]) == (True, False)
    (error,) = answer["errors"]
    assert error["code"] == "provider_failed"
    assert "inventory" in error["what"]


def test_drain_is_told_one_way(controller: Controller) -> None:
    controller.init()
    for args in (
        (),
        ("1", "--all"),
        ("1", "--off"),
        ("--all", "--off"),
        ("--all", "--reason", "x"),
        ("--off", "--dry-run"),
    ):
        assert controller.json("drain", *args, exit=2)["error"]["code"] == "usage"


def test_an_empty_slot_is_drained_at_once(controller: Controller) -> None:
    controller.init("--slots", "2")
    answer = controller.json("drain", "2", "--confirm-drain")
    assert (answer["slot"], answer["changed"], answer["draining"], answer["empty"]) == (2, True, True, True)
    answer = controller.json("drain", "2")
    assert (answer["changed"], answer["empty"]) == (False, True)


def test_every_verb_shows_its_flag_in_its_help(controller: Controller) -> None:
    flags = {
        "resume": "--confirm-resume",
        "surrender": "--confirm-surrender",
        "abandon": "--confirm-abandon",
        "forget": "--confirm-forget",
        "adopt": "--confirm-adopt",
        "delete-unrecorded": "--confirm-delete",
        "cordon": "--confirm-cordon",
        "uncordon": "--confirm-uncordon",
        "drain": "--confirm-drain",
    }
    for verb, flag in flags.items():
        page = controller.run(verb, "--help", check=True).stdout
        assert all(each in page for each in (flag, "--reason TEXT", "--dry-run")), page
    assert not Path(controller.state).exists()
