"""The scaffold: what is pinned, what is declared, and what set-up says when it cannot go on."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.project.scripts import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = (ROOT / "requirements-dev.txt").read_text()


def name_of(requirement: str) -> str:
    return re.split(r"[<>=~!\[ ;]", requirement)[0].lower()


def test_the_requirements_name_no_index_and_no_host() -> None:
    assert not re.search(r"://|^\s*-", PINS.replace("    --hash=", ""), re.MULTILINE)


def test_every_requirement_is_pinned_with_hashes() -> None:
    entries = re.split(r"\n(?=[a-z0-9])", PINS.strip())
    assert [
        entry.splitlines()[0] for entry in entries if not re.match(r"[a-z0-9._-]+==\S+ \\\n    --hash=sha256:", entry)
    ] == []


@pytest.mark.parametrize("requirement", PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"])
def test_everything_declared_is_pinned(requirement: str) -> None:
    assert re.search(rf"^{re.escape(name_of(requirement))}==", PINS, re.MULTILINE)


def test_the_run_time_dependencies_are_these_four() -> None:
    assert sorted(map(name_of, PROJECT["dependencies"])) == ["click", "filelock", "msgspec", "orjson"]


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "controller/py.typed").is_file()


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A checkout without an environment, and in `path` the few programs that set-up needs besides Python."""
    for name in ("pyproject.toml", "requirements-dev.txt", "bin/setup"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "path").mkdir()
    for name in ("bash", "dirname", "cksum", "cat", "flock", "head", "grep"):
        program = shutil.which(name)
        if program:
            (tmp_path / "path" / name).symlink_to(program)
    return tmp_path


def set_up(bare: Path, python: str | None) -> subprocess.CompletedProcess[str]:
    if python is not None:
        (bare / "path/python3").write_text(f"#!{bare}/path/bash\n{python}\n")
        (bare / "path/python3").chmod(0o755)
    return subprocess.run(
        [str(bare / "path/bash"), str(bare / "bin/setup")],
        env={"PATH": str(bare / "path")},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_an_old_python_is_refused_by_its_version(bare: Path) -> None:
    done = set_up(bare, 'if [ "$1" = --version ]; then echo Python 3.9.2; else exit 1; fi')
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed, found: Python 3.9.2\n  next: " in done.stderr


def test_no_python_at_all_is_refused(bare: Path) -> None:
    done = set_up(bare, None)
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed, found: no python3 on the PATH\n  next: " in done.stderr


def test_a_python_without_venv_is_refused_with_what_to_install(bare: Path) -> None:
    done = set_up(bare, 'case "$2" in *ensurepip*) exit 1 ;; esac')
    assert done.returncode == 1
    assert "python3 has no venv module\n  next: install it" in done.stderr
    assert not (bare / ".venv").exists()
