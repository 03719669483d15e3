"""docs/controller.1 is what the commands' help says today, and what a wheel installs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from controller.cli.root import COMMANDS
from tests.project.scripts import ROOT

SCRIPT = ROOT / "bin" / "man-page"
PAGE = ROOT / "docs" / "controller.1"
RENDERERS = {
    "groff": ("-man", "-ww", "-Tutf8", "-P-cbou"),
    "mandoc": ("-Tutf8", "-Wwarning"),
}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def rendered(program: str) -> str:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    done = run(program, *RENDERERS[program], str(PAGE))
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_the_page_is_not_stale() -> None:
    done = run(sys.executable, str(SCRIPT), "--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "next: bin/man-page"


@pytest.mark.parametrize("program", RENDERERS)
def test_it_renders_without_a_warning(program: str) -> None:
    assert "SYNOPSIS" in rendered(program)


def test_it_has_the_sections_that_people_look_for_and_every_command_with_an_example() -> None:
    text = rendered("groff")
    assert re.findall(r"^[A-Z][A-Z ]+$", text, re.MULTILINE) == [
        *("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "COMMANDS", "EXIT STATUS", "ENVIRONMENT", "FILES")
    ]
    for name in COMMANDS:
        section = re.search(rf"^   controller {name} .*\n(?:\n|     .*\n)*", text, re.MULTILINE)
        assert section is not None, name
        assert name == "state" or re.search(rf"^ +controller .*\b{name}\b", section[0][20:], re.MULTILINE), name


def test_what_can_be_typed_can_be_copied() -> None:
    """Examples, options and variables keep their hyphens, quotes and backslashes, and are never broken at a hyphen."""
    text = rendered("groff")
    assert "--provider-command '/usr/local/bin/provider --region eu'" in text
    assert "\u2010" not in text
    assert "\u2019" not in text
    assert "CONTROLLER_STATUS_JSON=1" in text


def test_exit_codes_are_those_of_the_readme() -> None:
    text = rendered("groff").partition("EXIT STATUS")[2].partition("ENVIRONMENT")[0]
    told = re.findall(r"^\| (\d+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert re.findall(r"^       (\d+) ", text, re.MULTILINE) == told
    assert len(told) == len(set(told))


def test_a_wheel_installs_it(tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    assert done.returncode == 0, done
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as content:
        (name,) = [name for name in content.namelist() if name.endswith(".data/data/share/man/man1/controller.1")]
        assert content.read(name) == PAGE.read_bytes()
