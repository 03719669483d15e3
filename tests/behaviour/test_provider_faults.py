"""What a provider program can do wrong, and that unknown is never failed. Cases P1 to P5, D2, Q5."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.provider_program import Program, wait_until


@pytest.fixture
def program(controller: Controller) -> Program:
    return Program(controller)


def processes_of(program: Program) -> list[str]:
    """Command lines of living processes that name the provider's home."""
    from pathlib import Path

    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(program.home) in line:
                found.append(line)
    return found


# --- P1: the controller is killed, its provider lives on


def test_p1_a_slot_whose_provider_outlived_its_controller_is_busy_and_then_replayed_with_the_same_key(
    program: Program,
) -> None:
    program.submit("a")
    program.next("create", {"wait_for": "go"})
    process = program.controller.popen("reconcile", "--apply")
    wait_until(lambda: program.calls() != [], "the call")
    process.kill()
    process.wait()
    busy = program.controller.run("replay-pending", "--json")
    assert busy.exit == 6, busy
    assert busy.json()["busy"][0]["slot"] == 1
    assert len(program.calls()) == 1
    status = program.pending()[1]
    assert (status["in_flight"], status["flight"]["process"]) == (True, "provider")
    program.let("go")
    wait_until(lambda: not program.pending()[1]["in_flight"], "the end of the provider's process")
    program.controller.run("replay-pending", check=True)
    assert len({call[2] for call in program.calls() if call[0] == "create"}) == 1
    assert len(program.workers()) == 1


def test_p1_a_provider_past_its_deadline_is_ended_with_its_group_before_the_replay(controller: Controller) -> None:
    program = Program(controller, deadlines='create = "2s"')
    program.submit("a")
    program.next("create", {"wait_for": "never", "run": []})
    process = program.controller.popen("reconcile", "--apply")
    wait_until(lambda: program.calls() != [], "the call")
    process.kill()
    process.wait()
    wait_until(lambda: program.controller.run("replay-pending").exit == 0, "the replay after the deadline")
    assert processes_of(program) == []
    assert [did[0] for did in program.calls("did")][:1] == ["create"]


# --- P2: pipes held open


def test_p2_an_answer_is_taken_though_a_child_holds_the_pipe(program: Program) -> None:
    program.submit("a")
    program.next("create", {"leave": 60})
    began = time.monotonic()
    program.controller.run("reconcile", "--apply", check=True)
    assert program.pending() == {}
    assert time.monotonic() - began < 30, "nothing waited for the child, which sleeps a minute"


def test_p2_a_program_that_hangs_is_ended_with_its_children_at_its_deadline(controller: Controller) -> None:
    program = Program(controller, deadlines='create = "1s"')
    program.submit("a")
    program.always("create", {"leave": 60, "sleep_after": 60, "do": False})
    report = program.controller.json("reconcile", "--apply", exit=5)
    assert report["sent"][0]["outcome"] == "unknown"
    assert list(program.pending()) == [1]
    wait_until(lambda: processes_of(program) == [], "the end of the whole group")


# --- P3: unknown is not failed


@pytest.mark.parametrize("fate", [{"die": True}, {"sleep_after": 60}])
def test_p3_what_was_made_before_the_answer_was_lost_is_adopted_under_the_same_key(
    controller: Controller, fate: dict[str, Any]
) -> None:
    program = Program(controller, deadlines='create = "1s"')
    program.submit("a")
    program.next("create", fate)
    program.controller.run("reconcile", "--apply")
    program.controller.run("replay-pending")
    program.controller.run("reconcile", "--apply")
    assert len({call[2] for call in program.calls() if call[0] == "create"}) == 1
    assert len(program.workers()) == 1
    assert program.controller.json("show", "a")["run"]["state"] == "succeeded"


def test_p3_a_program_whose_interpreter_is_missing_was_never_started_and_nothing_stays_parked(
    controller: Controller,
) -> None:
    script = controller.home / "broken"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    controller.init("--provider-command", str(script))
    controller.run("submit", "--id", "a", "--", "true", check=True)
    result = controller.run("reconcile", "--apply", "--json")
    assert result.exit == 5, result
    told = json.dumps(result.json())
    assert "/no/such/interpreter" in told
    assert "never started" in told
    assert controller.json("status")["pending_mutations"] == []
    assert controller.json("show", "a")["run"]["state"] == "queued"


def test_p3_a_program_that_is_gone_between_a_look_and_a_create_was_never_started_and_nothing_stays_parked(
    program: Program,
) -> None:
    script = program.controller.home / "provider.py"
    program.submit("a")
    wrapper = program.controller.home / "wrapper"
    wrapper.write_text(f"#!{sys.executable}\n{script.read_text()}")
    wrapper.chmod(0o755)
    path = program.controller.state / "controller.toml"
    words = json.dumps([str(wrapper), str(program.home)])
    path.write_text(
        "".join(
            f"command = {words}\n" if line.startswith("command = ") else line
            for line in path.read_text().splitlines(True)
        )
    )
    program.next("inventory", {"run": [["mv", str(wrapper), f"{wrapper}.away"]]})
    result = program.controller.run("reconcile", "--apply")
    assert "never started" in result.stdout
    assert program.pending() == {}
    assert program.controller.json("show", "a")["run"]["defer_reason"] == "create_refused"


# --- P4: noise


@pytest.mark.parametrize(
    "noise",
    [
        {"before": "starting up...\n"},
        {"after": " done"},
        {"after": "{}"},
        {"instead": ""},
        {"instead": "[]"},
        {"exit": 1},
        {"instead": "\x1b[31mred\x07\x00" * 1000},
    ],
    ids=["a log line first", "a word after", "two documents", "nothing", "a list", "exit 1", "escapes"],
)
def test_p4_noise_around_an_answer_is_unknown_parked_and_shown_bounded_and_escaped(
    program: Program, noise: dict[str, Any]
) -> None:
    program.submit("a")
    program.always("create", noise)
    assert program.controller.run("reconcile", "--apply").exit == 5
    error = program.pending()[1]["last_error"]
    assert error
    assert len(error) < 3000
    assert error.isprintable()
    program.honest("create")
    program.controller.run("replay-pending", check=True)
    assert len(program.workers()) == 1


# --- P5: incomplete listings


@pytest.mark.parametrize(
    "listing",
    [
        {"reply": {"workers": []}},
        {"reply": {"workers": [], "complete": False}},
        {"instead": "error", "exit": 1},
    ],
    ids=["empty", "half", "an error"],
)
def test_p5_one_look_that_lacks_what_was_just_made_makes_and_writes_off_nothing(
    program: Program, listing: dict[str, Any]
) -> None:
    program.submit("a")
    program.controller.run("reconcile", "--apply", check=True)
    worker = program.controller.json("show", "slot:1")["slot"]["worker"]
    program.always("inventory", listing)
    for _ in range(3):
        program.controller.run("reconcile", "--apply")
    assert program.controller.json("show", "slot:1")["slot"]["worker"] == worker
    assert len([did for did in program.calls("did") if did[0] == "create"]) == 1


# --- D2: answers that cannot be stored


@pytest.mark.parametrize("meta", ["deep", "huge"])
def test_d2_an_answer_that_cannot_be_stored_is_refused_cleanly_however_often_it_comes(
    program: Program, meta: str
) -> None:
    unstorable: dict[str, Any] = {"wrap": 300} if meta == "deep" else {"reply": {"meta": 2**64}}
    program.submit("a", "b")
    program.always("create-1", unstorable)
    program.controller.run("reconcile", "--apply")
    key = program.pending()[1]["idempotency_key"]
    for _ in range(3):
        result = program.controller.run("replay-pending")
        assert result.exit == 5, result
        assert "Traceback" not in result.stderr
    entry = program.pending()[1]
    assert entry["idempotency_key"] == key
    assert "slot 1" in entry["last_error"]
    assert key in entry["last_error"]
    assert program.controller.json("show", "b")["run"]["state"] == "succeeded"
    assert len([did for did in program.calls("did") if did[:2] == ["create", "1"]]) == 1


# --- Q5: already gone, not ready yet


def test_q5_a_delete_whose_answer_was_lost_is_done_after_one_replay(program: Program) -> None:
    program.submit("a")
    program.controller.run("reconcile", "--apply", check=True)
    program.next("delete_compute", {"die": True})
    program.controller.run("drain", "--all")
    program.controller.run("replay-pending")
    assert program.controller.run("drain", "--all").exit == 0
    assert program.workers() == []
    assert len({call[2] for call in program.calls() if call[0] == "delete_compute"}) == 1


def test_q5_a_delete_that_the_provider_is_not_ready_for_stays_parked_with_a_delay(program: Program) -> None:
    program.submit("a")
    program.controller.run("reconcile", "--apply", check=True)
    later = {"do": False, "reply": {"outcome": "pending", "retry_after_ms": 600_000, "reason": "still creating"}}
    program.next("deallocate", later)
    process = program.controller.popen("drain", "--all")
    wait_until(lambda: any(call[0] == "deallocate" for call in program.calls()), "the deallocate")
    wait_until(lambda: program.pending().get(1, {}).get("not_before") is not None, "its delay")
    process.terminate()
    process.communicate(timeout=30)
    entry = program.pending()[1]
    assert entry["not_before"] > entry["parked_at"] + 500_000
    assert entry["last_error"] is None
