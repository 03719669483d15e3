"""bin/bench measures, says so in one form, and the page names what it measures. How fast anything is, is no test."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.project.scripts import ROOT, load

bench = load("bench")
MEMBERS = {
    *("value", "unit", "beside", "aim", "met", "ours", "theirs", "measured_in", "more", "limits"),
    "reason",
}


def call(place: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "bin/bench"), "--quick", "--dir", str(place), *args],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **variables},
    )


def figures(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert done.returncode == 0, done
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    assert all(set(figure) == MEMBERS for figure in found.values())
    return found


def test_a_figure_is_a_ratio_beside_a_peer_and_nothing_is_left_behind(tmp_path: Path) -> None:
    done = call(tmp_path, "--only", "commit_16")
    figure = figures(done)["commit_16"]
    assert list(json.loads(done.stdout)) == ["commit_16"]
    assert figure["value"] == pytest.approx(figure["ours"] / figure["theirs"], abs=0.02, rel=0.01)
    assert figure["met"] is (figure["value"] <= figure["aim"])
    assert figure["reason"] is None
    assert "commit_16" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_several_names_are_measured_in_their_own_order(tmp_path: Path) -> None:
    found = figures(call(tmp_path, "--only", "read_10000", "--only", "commit_16"))
    assert list(found) == ["commit_16", "read_10000"]
    assert (found["read_10000"]["aim"], found["read_10000"]["met"]) == (None, None)


def test_a_figure_of_the_queue_has_both_peers_of_the_same_run(tmp_path: Path) -> None:
    found = figures(call(tmp_path, "--only", "enqueue_100", "--only", "cycle_100", "--only", "fused_100"))
    assert list(found) == ["enqueue_100", "cycle_100", "fused_100"]
    for figure in found.values():
        more = figure["more"]
        assert figure["measured_in"] == "ms"
        assert all(more[f"{who}_per_second"] > 0 for who in ("ours", "sqlite", "huey"))
        assert more["over_huey"] == pytest.approx(figure["ours"] / more["huey_ms"], abs=0.02, rel=0.01)
    plain, fused = found["cycle_100"], found["fused_100"]
    assert (fused["theirs"], fused["more"]["huey_ms"]) == (plain["theirs"], plain["more"]["huey_ms"])
    assert "over_sqlite_fused" in fused["more"]
    assert "over_sqlite_fused" not in plain["more"]
    assert list(tmp_path.iterdir()) == []


def test_discovery_is_measured_beside_itself_and_writes_nothing(tmp_path: Path) -> None:
    figure = figures(call(tmp_path, "--only", "discovery"))["discovery"]
    assert (figure["aim"], figure["measured_in"], figure["reason"]) == (2.0, "us", None)
    assert figure["met"] is (figure["value"] <= 2.0)


def test_a_peer_that_is_not_there_is_a_reason_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    figure = figures(call(tmp_path, "--only", "runs_1000_true", PATH=str(tmp_path / "empty")))["runs_1000_true"]
    assert (figure["value"], figure["met"], figure["ours"]) == (None, None, None)
    assert "apt-get install parallel" in figure["reason"]


@pytest.mark.parametrize("arguments", [("--only", "nonsense"), ("--dir", "/nonexistent")])
def test_what_cannot_be_meant_is_a_usage_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = call(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--only" not in arguments or all(name in done.stderr for name in bench.FIGURES)


def test_the_page_has_a_row_for_each_figure_with_its_aim() -> None:
    page = (ROOT / "docs/performance.md").read_text()
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\| `.*$", page, re.MULTILINE)]
    assert [row[0].strip("`") for row in rows] == list(bench.FIGURES)
    for row in rows:
        aim = bench.FIGURES[row[0].strip("`")].aim
        assert row[3] == ("none yet" if aim is None else f"at most {aim:g}")
