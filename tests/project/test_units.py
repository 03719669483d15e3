"""The unit files in docs/systemd are ones that systemd takes, and none of them ends the workers."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from controller.provider.command import DEFAULT_DEADLINES

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "docs" / "systemd").iterdir())
SERVICES = [path for path in UNITS if path.suffix == ".service"]
COMMAND = Path(sys.executable).parent / "controller"
KNOWN = {
    "Unit": "Description Wants After",
    "Install": "WantedBy",
    "Timer": "OnBootSec OnUnitInactiveSec AccuracySec",
    "Service": "Type User StateDirectory StateDirectoryMode ExecStart ExecReload KillMode KillSignal TimeoutStopSec "
    "OOMPolicy Restart RestartSec RestartPreventExitStatus SuccessExitStatus",
}


def name(path: Path) -> str:
    return path.name


def read(path: Path) -> configparser.ConfigParser:
    """The file, strictly: a section or key that stands twice is refused."""
    parser = configparser.ConfigParser(strict=True, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign] # keys of units are in camel case
    parser.read_string(path.read_text())
    return parser


def test_there_are_a_service_a_oneshot_and_its_timer() -> None:
    assert [path.name for path in UNITS] == [
        *("controller-reconcile.service", "controller-reconcile.timer", "controller.service")
    ]


@pytest.mark.parametrize("path", UNITS, ids=name)
def test_every_section_and_key_is_one_that_was_meant(path: Path) -> None:
    unit = read(path)
    assert set(unit.sections()) <= set(KNOWN)
    for section in unit.sections():
        assert set(unit[section]) <= set(KNOWN[section].split())
        assert all(value for value in unit[section].values())


@pytest.mark.parametrize("path", UNITS, ids=name)
def test_systemd_takes_the_unit(path: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    for unit in UNITS:  # a timer is judged with its service; where `controller` is installed is the reader's business
        text = unit.read_text().replace("ExecStart=controller ", f"ExecStart={COMMAND} ")
        (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / path.name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, complaints(done.stderr.splitlines(), path)) == (0, [])


def complaints(lines: Iterable[str], path: Path) -> list[str]:
    """What is said of *path*. Units of the host are judged along, and are not ours."""
    return [line for line in lines if path.name in line or path.stem in line]


@pytest.mark.parametrize("path", SERVICES, ids=name)
def test_stopping_a_service_ends_no_worker(path: Path) -> None:
    service = read(path)["Service"]
    assert service["KillMode"] == "process"
    assert service["OOMPolicy"] == "continue"


@pytest.mark.parametrize("path", SERVICES, ids=name)
def test_a_stop_awaits_the_longest_call(path: Path) -> None:
    minutes = read(path)["Service"]["TimeoutStopSec"]
    assert minutes.endswith("min")
    longest = max(DEFAULT_DEADLINES.of(deadline) for deadline in DEFAULT_DEADLINES.__struct_fields__)
    assert int(minutes.removesuffix("min")) * 60 > longest


@pytest.mark.parametrize("path", UNITS, ids=name)
def test_the_page_that_explains_a_unit_names_it(path: Path) -> None:
    assert f"(systemd/{path.name})" in (ROOT / "docs" / "running.md").read_text()
