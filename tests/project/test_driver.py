"""The driver of the behaviour tests leaves no process behind, and ends none that is not its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.behaviour.driver import Controller, belongs, end_all_below, with_json


@contextmanager
def started(*command: str, cwd: Path, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A detached process that is up: it has answered."""
    shell = ["sh", "-c", 'echo up; exec "$@"', "sh", *command]
    process = subprocess.Popen(shell, cwd=cwd, env=env, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_what_names_inherits_or_works_in_the_place_is_ended(tmp_path: Path) -> None:
    env = {"PATH": "/usr/bin:/bin"}
    named = started("sh", "-c", "sleep 300; :", f"{tmp_path}/state", cwd=Path("/"), env=env)
    heir = started("sleep", "300", cwd=Path("/"), env={**env, "HOME": str(tmp_path)})
    inside = started("sleep", "300", cwd=tmp_path, env=env)
    with named as first, heir as second, inside as third:
        end_all_below(tmp_path)
        assert [process.wait(10) for process in (first, second, third)] == [-9, -9, -9]


def test_a_place_whose_name_only_begins_the_same_is_left_alone(tmp_path: Path) -> None:
    mine, other = tmp_path / "test_1", tmp_path / "test_10"
    mine.mkdir()
    other.mkdir()
    with started("sleep", "300", cwd=other, env={"PATH": "/usr/bin:/bin", "HOME": str(other)}) as process:
        assert belongs(process.pid, other)
        end_all_below(mine)
        assert process.poll() is None


def test_json_is_asked_for_before_a_bare_double_dash() -> None:
    assert with_json(("submit", "--", "echo", "--")) == ("submit", "--json", "--", "echo", "--")
    assert with_json(("status",)) == ("status", "--json")


def test_settings_of_the_caller_do_not_reach_the_command(tmp_path: Path) -> None:
    driver = Controller(tmp_path)
    assert set(driver.env) <= {"PATH", "TMPDIR", "TZ", "HOME", "LANG"}
    assert driver.command("status")[1:] == ("--state-dir", str(tmp_path / "state"), "status")
