"""Parked actions: durable before the provider hears of them, replayed once each with their own keys, never doubled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from functools import partial
from typing import Any

import pytest

from controller.model.reason import EXPLAINED, Reason
from tests.behaviour.driver import Controller
from tests.behaviour.faults import document, durable
from tests.behaviour.provider_program import Program, wait_until


@pytest.fixture
def program(controller: Controller) -> Program:
    return Program(controller)


def parked(controller: Controller) -> dict[str, Any]:
    """What the store holds, read past the command."""
    pending: dict[str, Any] = document(controller)["pending_actions"]
    return pending


def park_and_die(program: Program, *runs: str) -> None:
    """A controller parks a create for each run and is killed while the provider has done nothing yet."""
    program.submit(*runs)
    program.next("create", *[{"wait_for": "never", "do": False, "die": True}] * len(runs))
    process = program.controller.popen("reconcile", "--apply")
    wait_until(lambda: len(parked(program.controller)) == len(runs), "the park")
    wait_until(lambda: len(program.calls()) == len(runs), "the calls")
    process.kill()
    process.wait()
    program.let("never")
    wait_until(lambda: not in_flight(program), "the end of the provider's processes")


def in_flight(program: Program) -> bool:
    return any(each["in_flight"] for each in program.pending().values())


def executes_are(program: Program, count: int) -> bool:
    return len([call for call in program.calls() if call[0] == "execute"]) == count


def test_two_parked_actions_are_each_replayed_exactly_once_with_their_own_keys_in_slot_order(program: Program) -> None:
    park_and_die(program, "a", "b")
    keys = {slot: each["idempotency_key"] for slot, each in program.pending().items()}
    before = len(program.calls())
    report = program.controller.json("replay-pending", "--parallelism", "1")
    assert [call[1:] for call in program.calls()[before:]] == [["1", keys[1]], ["2", keys[2]]]
    assert [sent["outcome"] for sent in report["sent"]] == ["done", "done"]
    assert [did[2] for did in program.calls("did")] == [keys[1], keys[2]]
    assert program.pending() == {}


def test_the_park_is_in_the_file_before_and_after_a_provider_that_dies_in_the_middle(program: Program) -> None:
    program.submit("a")
    program.always("create", {"wait_for": "go", "do": True, "die": True})
    process = program.controller.popen("reconcile", "--apply", "--json")
    wait_until(lambda: program.calls() != [], "the call")
    before = parked(program.controller)["1"]
    assert before["action"]["idempotency_key"] == program.calls()[0][2]
    program.let("go")
    stdout, _ = process.communicate(timeout=30)
    after = parked(program.controller)["1"]
    assert after["action"] == before["action"]
    assert "killed" in after["last_error"] or "signal" in after["last_error"]
    assert process.returncode == 5, stdout


def test_the_unpark_happens_after_the_apply_and_a_failed_apply_leaves_the_action(program: Program) -> None:
    program.submit("a", "b")
    program.controller.run("reconcile", "--apply", check=True)
    taken = program.workers()[0]["resources"]
    program.submit("c", "d", "e")
    program.always("create-3", {"reply": {"worker": {}}})
    program.controller.run("reconcile", "--apply")
    assert 3 in program.pending()
    made = program.workers()[-1]
    program.always("create-3", {"reply": {"worker": made | {"resources": taken}}})
    refused = program.controller.run("replay-pending")
    assert refused.exit == 3, refused
    assert program.pending()[3]["last_error"] is not None
    assert [did for did in program.calls("did") if did[1] == "3" and did[0] == "create"] != []
    program.honest("create-3")
    assert program.controller.run("replay-pending", check=True).exit == 0
    assert program.pending() == {}


def test_reconcile_replays_first_and_last_and_leaves_the_map_empty(program: Program) -> None:
    park_and_die(program, "a", "b")
    report = program.controller.json("reconcile", "--apply")
    assert [sent["slot"] for sent in report["sent"][:2]] == [1, 2]
    assert report["pending_mutations"] == 0
    runs = program.controller.json("runs")["runs"]
    assert {run["state"] for run in runs} == {"succeeded"}
    creates = [did for did in program.calls("did") if did[0] == "create"]
    assert len(creates) == len(program.workers()) == 2


def test_what_stays_parked_says_why_in_text_as_in_json(program: Program) -> None:
    program.submit("a")
    program.always("create", {"instead": "not today", "do": False})
    assert program.controller.run("reconcile", "--apply").exit == 5
    entry = program.pending()[1]
    assert "not today" in entry["last_error"]
    text = program.controller.run("status", check=True).stdout
    assert entry["idempotency_key"][:12] in text
    assert "not today" in text
    explained = program.controller.run("explain", "slot:1", check=True).stdout
    assert "not today" in explained


def test_logs_of_a_command_provider_are_the_providers(program: Program) -> None:
    program.submit("a")
    program.controller.run("reconcile", "--apply", check=True)
    error = program.controller.json("logs", "a", exit=4)["error"]
    assert error["what"] == "logs of a command provider are kept by the provider, not here"
    assert "controller logs" not in error["next"]


def test_replay_pending_ignores_the_backoff_that_reconcile_respects(program: Program) -> None:
    program.submit("a")
    program.next("create", {"reply": {"outcome": "pending", "retry_after_ms": 600_000}, "do": False})
    program.controller.run("reconcile", "--apply", check=True)
    program.controller.run("reconcile", "--apply", check=True)
    assert len(program.calls()) == 1
    program.controller.run("replay-pending", check=True)
    assert len(program.calls()) == 2


def test_a_dry_run_and_a_plan_send_and_change_nothing(program: Program) -> None:
    program.submit("a")
    before = durable(program.controller)
    plan = program.controller.json("reconcile")
    assert [(each["slot"], each["type"], each["run"]) for each in plan["plan"]] == [(1, "create", "a")]
    program.controller.run("replay-pending", "--dry-run", check=True)
    assert durable(program.controller) == before
    assert program.calls() == []


def test_replaying_one_slot_leaves_the_others(program: Program) -> None:
    park_and_die(program, "a", "b")
    program.controller.run("replay-pending", "--slot", "2", check=True)
    assert list(program.pending()) == [1]


def test_a_controller_killed_ten_times_between_answer_and_save_burns_no_attempt(program: Program) -> None:
    program.submit("a")
    program.next("execute", *[{"wait_for": f"go{n}"} for n in range(10)])
    for n in range(10):
        process = program.controller.popen("reconcile", "--apply")
        wait_until(partial(executes_are, program, n + 1), f"execute {n}")
        process.kill()
        process.wait()
        program.let(f"go{n}")
        wait_until(lambda: not in_flight(program), "the end of the provider's process")
        assert program.pending()[1]["sends"] == n + 1
    program.controller.run("replay-pending", check=True)
    program.controller.run("reconcile", "--apply", check=True)
    shown = program.controller.json("show", "a")["run"]
    assert (shown["state"], shown["token"]) == ("succeeded", 1)
    assert len({call[2] for call in program.calls() if call[0] == "execute"}) == 1


def test_the_first_signal_parks_nothing_more_and_awaits_answers(program: Program) -> None:
    program.submit("a", "b", "c")
    program.next("create", {"wait_for": "go"})
    process = program.controller.popen("reconcile", "--apply", "--json", "--parallelism", "1")
    wait_until(lambda: program.calls() != [], "the first call")
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: program.calls("describe") != [] and process.poll() is None, "the wait for the answer")
    program.let("go")
    stdout, _ = process.communicate(timeout=30)
    report = json.loads(stdout)
    assert process.returncode == 130
    assert report["interrupted"]
    assert [sent["outcome"] for sent in report["sent"]] == ["done"]
    assert len(program.calls()) == 1
    program.controller.run("reconcile", "--apply", check=True)
    assert len([did for did in program.calls("did") if did[0] == "create"]) == 3


def test_the_second_signal_ends_it_at_once_and_what_was_asked_stays_parked(program: Program) -> None:
    program.submit("a")
    program.next("create", {"wait_for": "never"})
    process = program.controller.popen("reconcile", "--apply")
    wait_until(lambda: program.calls() != [], "the call")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "once more to stop at once" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    wait_until(lambda: not in_flight(program), "the end of the provider's process")
    assert list(program.pending()) == [1]


def test_a_call_of_over_two_seconds_is_shown_on_a_terminal_and_stdout_holds_the_answer_alone(program: Program) -> None:
    program.submit("a")
    program.next("create", {"wait_for": "go"})
    mine, theirs = os.openpty()
    process = subprocess.Popen(
        program.controller.command("reconcile", "--apply"),
        cwd=program.controller.home,
        env=program.controller.env,
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    while b"slot 1" not in shown:
        shown += os.read(mine, 4096)
    program.let("go")
    stdout, _ = process.communicate(timeout=30)
    os.close(mine)
    assert b"asking the provider" in shown
    assert stdout.startswith(b"SLOT")
    assert b"asking" not in stdout


def test_output_that_nobody_reads_stops_no_work(program: Program) -> None:
    program.submit("a", "b", "c")
    command = " ".join(program.controller.command("reconcile", "--apply"))
    for ending in ("| head -c 1 > /dev/null", "> /dev/full", ">&-"):
        status = os.system(f"cd {program.controller.home} && {command} {ending} 2> {program.home}/errors")
        assert "Traceback" not in (program.home / "errors").read_text(), ending
        assert status == 0, ending
    assert program.pending() == {}
    assert len([did for did in program.calls("did") if did[0] == "create"]) == len(program.workers())
    assert {run["state"] for run in program.controller.json("runs")["runs"]} == {"succeeded"}


def test_reconciles_that_pile_up_each_end_report_the_busy_slot_and_serve_the_others(program: Program) -> None:
    program.submit("a")
    program.next("create", {"wait_for": "go"})
    hanging = program.controller.popen("reconcile", "--apply")
    wait_until(lambda: program.calls() != [], "the call that hangs")
    program.submit("b")
    others = [program.controller.popen("reconcile", "--apply", "--json") for _ in range(10)]
    reports = [json.loads(other.communicate(timeout=60)[0]) for other in others]
    assert {other.returncode for other in others} == {6}
    for report in reports:
        about = next(busy["what"] for busy in report["busy"] if busy["slot"] == 1)
        assert "pid" in about
    assert program.controller.json("show", "b")["run"]["state"] == "succeeded"
    program.let("go")
    hanging.communicate(timeout=30)
    assert hanging.returncode == 0
    assert len([did for did in program.calls("did") if did[0] == "create"]) == 2


def test_withdraw_names_every_slot_that_still_names_the_run(program: Program) -> None:
    program.submit("a")
    program.always("create", {"instead": "noise"})
    program.controller.run("reconcile", "--apply")
    error = program.controller.json("withdraw", "a", exit=3)["error"]
    assert "slot 1" in error["what"]


def test_status_live_shows_recorded_beside_observed(program: Program) -> None:
    program.submit("a")
    program.controller.run("reconcile", "--apply", check=True)
    live = program.controller.json("status", "--live")["live"]
    assert live["slots"][0]["recorded"] == "ready"
    assert live["slots"][0]["observed"] == "ready"
    assert live["slots"][0]["class"] == "clean-warm"
    assert live["slots"][1]["class"] == "free"


def test_a_pending_action_that_was_edited_is_never_sent_whatever_is_typed(program: Program) -> None:
    park_and_die(program, "a")
    program.submit("b")  # whatever ends well leaves the file as the document is
    path = program.controller.state / "controller.json"
    calls, sound = len(program.calls()), path.read_bytes()
    assert sound.count(b'"type":"create"') == 1
    path.write_bytes(sound.replace(b'"type":"create"', b'"type":"crate"'))
    for command in (("reconcile",), ("reconcile", "--apply"), ("replay-pending",), ("replay-pending", "--dry-run")):
        assert program.controller.json(*command, exit=3)["error"]["code"] == "edited_outside"
    for command in (("status",), ("explain", "slot:1"), ("show", "slot:1")):
        program.controller.json(*command)
    assert len(program.calls()) == calls


@pytest.mark.parametrize("command", [("cancel", "a"), ("drain", "--all")])
def test_a_configuration_that_cannot_be_meant_is_refused_before_anything_changes(
    program: Program, command: tuple[str, ...]
) -> None:
    program.submit("a")
    before = durable(program.controller)
    program.controller.configure("fleet", "slotz = 3")
    assert program.controller.run(*command).exit == 2
    assert durable(program.controller) == before


def test_an_action_that_is_too_old_is_said_not_to_be_sent_again(controller: Controller) -> None:
    program = Program(controller, slots=1)
    program.always("describe", {"reply": {"key_ttl_ms": 1}})
    program.always("create", {"instead": "", "do": False})
    program.submit("a")
    assert controller.run("reconcile", "--apply").exit == 5
    (pending,) = controller.json("status")["pending_mutations"]
    key = pending["idempotency_key"]
    typed = ["controller reconcile --apply", f"controller abandon 1 --key {key} --reason WHY --confirm-abandon"]
    assert (pending["key_expired"], pending["next"]) == (True, typed)
    waiting = [{"slot": 1, "idempotency_key": key, "key_expired": True, "next": typed}]
    assert controller.json("replay-pending", "--dry-run")["waiting_for_looks"] == waiting
    assert controller.json("replay-pending", exit=5)["waiting_for_looks"] == waiting
    assert controller.json("show", "slot:1")["slot"]["pending_mutation"]["next"] == typed
    for command in ("status", "replay-pending"):
        page = controller.run(command).stdout
        assert f"{EXPLAINED[Reason.KEY_EXPIRED].text}: looks settle it" in page
        assert all(f"next: {line}" in page for line in typed)
