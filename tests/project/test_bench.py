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

from benchmarks.measuring import Aim, Asked, Figure, Measured, Value
from benchmarks.telling import table, told
from tests.project.scripts import ROOT, load

bench = load("bench")
MEMBERS = {"reads", "values", "more", "limits", "reason"}
OF_VALUES = {"value", "unit", "beside", "aim", "met", "missed_by", "ours", "theirs", "measured_in"}
ROWS = [(name, value) for name, figure in bench.FIGURES.items() for value in figure.values]


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
    answer = json.loads(done.stdout)
    assert list(answer) == ["disk", "figures"]
    assert all(milliseconds > 0 for milliseconds in answer["disk"].values())
    found: dict[str, dict[str, Any]] = answer["figures"]
    for name, figure in found.items():
        assert set(figure) == MEMBERS
        assert list(figure["values"]) == list(bench.FIGURES[name].values)
        assert all(set(value) == OF_VALUES for value in figure["values"].values())
    return found


def one(limit: Aim | None, value: float) -> dict[str, Any]:
    """What is told of a figure of one value."""
    figure = Figure(lambda _place, _quick: Measured({}, {}), "", {"peer": Asked("a peer", limit)}, "")
    measured = Measured({"peer": Value(value, "times", value, 1.0, "ms")}, {})
    told_of: dict[str, Any] = told(figure, measured, None)["values"]["peer"]
    return told_of


def test_a_figure_is_a_ratio_beside_a_peer_and_nothing_is_left_behind(tmp_path: Path) -> None:
    done = call(tmp_path, "--only", "commit_16")
    found = figures(done)
    sqlite = found["commit_16"]["values"]["sqlite"]
    assert list(found) == ["commit_16"]
    assert sqlite["value"] == pytest.approx(sqlite["ours"] / sqlite["theirs"], rel=0.01)
    assert (sqlite["aim"], sqlite["met"]) == ({"at_most": 1.3}, sqlite["value"] <= 1.3)
    assert found["commit_16"]["values"]["append"]["aim"] is None
    assert "commit_16" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_several_names_are_measured_in_their_own_order(tmp_path: Path) -> None:
    found = figures(call(tmp_path, "--only", "read_100000", "--only", "commit_16"))
    assert list(found) == ["commit_16", "read_100000"]


def test_the_queue_is_told_in_runs_a_second_beside_both_peers_of_the_same_run(tmp_path: Path) -> None:
    names = ("enqueue_100", "cycle_100", "fused_100", "ten_100")
    found = figures(call(tmp_path, *(word for name in names for word in ("--only", name))))
    assert tuple(found) == names
    for figure in found.values():
        for value in figure["values"].values():
            assert value["measured_in"] == "runs/s"
            assert value["value"] == pytest.approx(value["ours"] / value["theirs"], rel=0.01)
        assert all(figure["more"][f"{who}_overall"] > 0 for who in ("ours", "sqlite", "huey"))
    plain, fused = found["cycle_100"]["values"], found["fused_100"]["values"]
    assert [fused[who]["theirs"] for who in ("sqlite", "huey")] == [plain[who]["theirs"] for who in ("sqlite", "huey")]
    assert fused["sqlite_fused"]["theirs"] != fused["sqlite"]["theirs"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["commit_flat", "processes_8", "status_cold_100000", "memory_100000", "discovery"])
def test_what_has_processes_of_its_own_or_no_peer_is_measured_and_cleaned_up(tmp_path: Path, name: str) -> None:
    figure = figures(call(tmp_path, "--only", name))[name]
    assert figure["reason"] is None
    assert all(value["value"] is not None and value["ours"] > 0 for value in figure["values"].values())
    assert list(tmp_path.iterdir()) == []


def test_a_peer_that_is_not_there_is_a_reason_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = call(tmp_path, "--only", "runs_1000_true", PATH=str(tmp_path / "empty"))
    figure = figures(done)["runs_1000_true"]
    parallel = figure["values"]["parallel"]
    assert (parallel["value"], parallel["met"], parallel["ours"]) == (None, None, None)
    assert "apt-get install parallel" in figure["reason"]
    assert "apt-get install parallel" in done.stderr


def test_the_table_is_the_answer_where_it_is_asked_for(tmp_path: Path) -> None:
    done = call(tmp_path, "--only", "commit_16", "--table")
    assert done.returncode == 0, done
    assert re.findall(r"^\| `(\w+)` (\w+) \|", done.stdout, re.MULTILINE) == [
        ("commit_16", "sqlite"),
        ("commit_16", "append"),
        ("commit_16", "append_ahead"),
    ]


@pytest.mark.parametrize(
    ("aim", "value", "met", "missed_by"),
    [
        (Aim(1.3), 1.3, True, 0),
        (Aim(1.3), 1.55, False, 0.25),
        (Aim(0.8, least=True), 0.8, True, 0),
        (Aim(0.8, least=True), 0.75, False, 0.05),
        (None, 7.0, None, None),
    ],
)
def test_an_aim_is_met_on_its_own_side_and_missed_by_so_much(
    aim: Aim | None, value: float, met: bool | None, missed_by: float | None
) -> None:
    assert (one(aim, value)["met"], one(aim, value)["missed_by"]) == (met, missed_by)


def test_a_row_says_what_is_aimed_at_and_by_how_much_that_is_missed() -> None:
    figure = Figure(lambda _place, _quick: Measured({}, {}), "", {"peer": Asked("a peer", Aim(2, least=True))}, "")
    measured = Measured({"peer": Value(1.5, "times", 3000.0, 2000.0, "runs/s")}, {})
    rows = table({"name": figure}, {"name": told(figure, measured, None)}).splitlines()
    assert rows[2] == "| `name` peer | 1.5 (3 000, 2 000 runs/s) | a peer | at least 2 | no, by 0.5 |"


@pytest.mark.parametrize("arguments", [("--only", "nonsense"), ("--dir", "/nonexistent")])
def test_what_cannot_be_meant_is_a_usage_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = call(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--only" not in arguments or all(name in done.stderr for name in bench.FIGURES)


def test_the_page_has_the_table_of_every_figure_and_its_words_agree_with_its_numbers() -> None:
    page = (ROOT / "docs/performance.md").read_text()
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\| `.*$", page, re.MULTILINE)]
    assert [row[0] for row in rows] == [f"`{name}` {value}" for name, value in ROWS]
    for row, (name, value) in zip(rows, ROWS, strict=True):
        asked = bench.FIGURES[name].values[value]
        assert row[2:4] == [asked.beside, "" if asked.aim is None else str(asked.aim)]
        if asked.aim is None:
            assert row[4] == ""
        else:
            spare = asked.aim.spare(float(row[1].split()[0]))
            assert row[4] == ("yes" if spare >= 0 else f"no, by {-spare:.3g}"), row
