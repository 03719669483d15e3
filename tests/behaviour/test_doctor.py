"""doctor: what is wrong with a host or a state directory is found before work is lost to it, and nothing is changed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.behaviour.driver import Controller, Result
from tests.behaviour.faults import locked
from tests.behaviour.provider_program import wait_until


def lines(result: Result) -> dict[str, str]:
    """The line of each check, by its name."""
    return {line[6:].split("  ")[0]: line for line in result.stdout.splitlines()[:-1]}


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.suffix != ".lock"}


@pytest.fixture
def fleet(controller: Controller) -> Controller:
    controller.init()
    controller.configure("provider.env", 'PATH = "/usr/bin:/bin"')
    return controller


def test_a_healthy_fleet_exits_0_and_says_what_was_looked_at(fleet: Controller) -> None:
    before = contents(fleet.state)
    page = fleet.run("doctor", check=True)
    answer = fleet.json("doctor")
    assert answer["schema"] == "controller.doctor/1"
    assert answer["worst"] in {"ok", "warn"}
    assert [check["name"] for check in answer["checks"]] == list(lines(page))
    assert all(set(check) == {"name", "state", "found", "next"} for check in answer["checks"])
    assert all((check["state"] == "ok") is (check["next"] == "") for check in answer["checks"])
    assert lines(page)["document"] == "ok    document     revision 1, digest ok, runs: 0, workers: 0, pending: 0"
    assert "0 failed" in page.stdout.splitlines()[-1]
    assert contents(fleet.state) == before
    assert "\x1b" not in page.stdout


def test_three_faults_are_three_lines_with_what_to_do_and_exit_5(fleet: Controller) -> None:
    fleet.state.chmod(0o777)
    (fleet.state / "controller.json").write_bytes(b"{")
    fleet.configure("fleet", 'slotz = "many"')
    done = fleet.run("doctor")
    assert done.exit == 5, str(done)
    told = {name: line for name, line in lines(done).items() if line.startswith("FAIL")}
    assert set(told) == {"directory", "document", "settings"}
    assert f"next: chmod o-w {fleet.state}" in told["directory"]
    assert "did you mean 'slots'?" in told["settings"]
    assert all("; next: " in line for line in told.values())
    assert done.stderr == ""
    answer = fleet.json("doctor", exit=5)
    assert answer["worst"] == "fail"
    assert {check["name"] for check in answer["checks"] if check["state"] == "fail"} == set(told)


def test_without_a_state_directory_init_comes_next_and_nothing_is_made(controller: Controller) -> None:
    done = controller.run("doctor")
    assert done.exit == 5
    assert "next: `controller init` makes a new fleet there" in lines(done)["directory"]
    assert not controller.state.exists()


def test_a_held_lock_is_a_warning_that_does_not_wait(fleet: Controller) -> None:
    with locked(fleet.state / "controller.lock"):
        done = fleet.run("--lock-timeout", "1h", "doctor", check=True)
    assert lines(done)["lock"].startswith("warn  lock         the document is held by ")


def test_an_end_takes_the_provider_program_that_is_being_asked_along(fleet: Controller) -> None:
    program = fleet.home / "provider"
    program.write_text("#!/bin/sh\necho $$ > asked\nexec sleep 600\n")
    program.chmod(0o755)
    fleet.configure("provider", 'kind = "command" #', f'command = ["{program}"]')
    text = (fleet.state / "controller.toml").read_text()
    (fleet.state / "controller.toml").write_text(text.replace('\nkind = "local"\n', "\n"))
    asking = fleet.popen("doctor")
    asked = fleet.state / "asked"
    wait_until(lambda: asked.exists() and asked.read_text().endswith("\n"), "the program is asked")
    asking.send_signal(signal.SIGTERM)
    _, stderr = asking.communicate(timeout=30)
    assert asking.returncode == 130, stderr
    process = Path("/proc") / asked.read_text().strip() / "stat"
    assert not process.exists() or ") Z " in process.read_text()
