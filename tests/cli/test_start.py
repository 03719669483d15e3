"""Start-up: a command loads what it uses. A cold start is most of what a short command costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
import os, sys
from controller.cli import main
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
def tell(code):
    os.write(2, "\\n".join(sys.modules).encode())
    leave(code)
leave, os._exit = os._exit, tell
code = main.main()
tell(code)
"""


def loaded(*args: str, state: Path) -> set[str]:
    """What a process that ran this command has imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, "--state-dir", str(state), *args], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


@pytest.fixture
def state(tmp_path: Path) -> Path:
    place = tmp_path / "state"
    loaded("init", state=place)
    return place


DECIDING = {"controller.model.transition", "controller.model.run", "controller.model.perform"}
WRITING = {"controller.store.edits", "controller.model.invariants", "filelock"}
RARE = {
    "controller.store.migrations",
    "urllib.parse",
    "typing_extensions",
    "importlib.metadata",
    "traceback",
    "difflib",
}


def test_status_loads_nothing_that_writes_or_decides(state: Path) -> None:
    modules = loaded("status", "--json", state=state)
    assert "controller.engine.status" in modules
    unused = {"controller.cli.views", "controller.model.strict", "locale", "inspect", "orjson", "hashlib"}
    assert modules & (DECIDING | WRITING | RARE | unused) == set()


def test_submit_loads_nothing_that_moves_a_run(state: Path) -> None:
    modules = loaded("submit", "--", "true", state=state)
    assert modules >= WRITING
    unused = {"controller.store.migrations", "controller.provider.call", "urllib.parse", "typing_extensions"}
    assert modules & (DECIDING | unused) == set()


def test_help_loads_nothing_below_the_command_line(state: Path) -> None:
    modules = loaded("--help", state=state)
    below = ("controller.store", "controller.engine", "controller.provider")
    assert [name for name in modules if name.startswith(below)] == []
    assert modules & (DECIDING | WRITING | RARE) == set()
