"""bin/behaviour-shards: no behaviour test is ever in no shard, or in two, without a refusal that says so."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.project.scripts import ROOT, load

shards = load("behaviour-shards")
TEST = "def test_it() -> None:\n    assert True\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project of three behaviour tests and the script, with this project's environment."""
    for folder in ("bin", "tests/behaviour"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "bin/behaviour-shards", tmp_path / "bin")
    (tmp_path / "bin/setup").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "bin/setup").chmod(0o755)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for name in "abc":
        (tmp_path / f"tests/behaviour/test_{name}.py").write_text(TEST)
    write(tmp_path, "tests/behaviour/test_a.py\t1\ntests/behaviour/test_b.py\t2.5\ntests/behaviour/test_c.py\t2\n")
    return tmp_path


def write(tree: Path, table: str) -> None:
    (tree / "tests/behaviour/durations.tsv").write_bytes(table.encode())


def call(tree: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tree / "bin/behaviour-shards"), *args]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


def refused(tree: Path, shards: int = 2) -> str:
    """What --check says; fails if it has nothing to say, or not what to do next."""
    done = call(tree, "--check", str(shards))
    assert done.returncode == 1, done
    assert "\n  next: " in done.stderr
    return done.stderr


def table(**seconds: str) -> dict[str, Decimal]:
    return {name: Decimal(value) for name, value in seconds.items()}


def files(dealt: tuple[tuple[int, tuple[str, ...], Decimal], ...]) -> list[tuple[str, ...]]:
    return [shard[1] for shard in dealt]


class TestDeal:
    def test_the_longest_goes_first_and_each_to_the_least_loaded(self) -> None:
        assert files(shards.deal(table(a="1", b="5", c="3", d="2"), 2)) == [("b", "a"), ("c", "d")]

    def test_equal_lengths_are_dealt_by_path(self) -> None:
        assert files(shards.deal(table(z="1", y="1", x="1"), 3)) == [("x",), ("y",), ("z",)]

    def test_on_equal_load_the_lowest_shard_gets_it(self) -> None:
        assert files(shards.deal(table(a="2", b="2", c="1", d="1"), 2)) == [("a", "c"), ("b", "d")]

    def test_loads_are_compared_exactly(self) -> None:
        # In binary floating point 0.1 + 0.2 is more than 0.3, and d would go to the second shard.
        assert files(shards.deal(table(a="0.3", b="0.2", c="0.1", d="0.1"), 2)) == [("a", "d"), ("b", "c")]

    @given(
        st.dictionaries(st.text("abc", min_size=1), st.decimals("0.01", 99, places=2), min_size=1),
        st.integers(1, 9),
        st.randoms(use_true_random=False),
    )
    def test_the_order_of_the_rows_does_not_matter_and_every_file_is_dealt_once(
        self, seconds: dict[str, Decimal], count: int, shuffle: random.Random
    ) -> None:
        dealt = shards.deal(seconds, count)
        rows = list(seconds.items())
        shuffle.shuffle(rows)
        assert shards.deal(dict(rows), count) == dealt
        assert sorted(path for shard in dealt for path in shard.files) == sorted(seconds)
        assert [shard.number for shard in dealt] == list(range(1, count + 1))
        assert all(shard.files for shard in dealt[: len(seconds)])


class TestCheck:
    def test_a_sound_tree_passes_with_a_line_per_shard(self, tree: Path) -> None:
        done = call(tree, "--check", "2")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "shard 1/2      2.50 s  1 file\nshard 2/2      3.00 s  2 files\n"

    def test_an_empty_shard_is_refused(self, tree: Path) -> None:
        assert "shard 4/4 is empty: there are only 3 behaviour test files" in refused(tree, 4)

    def test_a_file_without_a_row_is_refused(self, tree: Path) -> None:
        (tree / "tests/behaviour/test_new.py").write_text(TEST)
        assert "missing row for tests/behaviour/test_new.py" in refused(tree)

    def test_a_row_without_a_file_is_refused(self, tree: Path) -> None:
        (tree / "tests/behaviour/test_b.py").unlink()
        assert "stale row for tests/behaviour/test_b.py" in refused(tree)

    def test_a_second_row_for_a_file_is_refused_with_both_lines(self, tree: Path) -> None:
        write(tree, (tree / "tests/behaviour/durations.tsv").read_text() + "tests/behaviour/test_a.py\t1\n")
        assert "durations.tsv:4: duplicate row for tests/behaviour/test_a.py, first on line 1" in refused(tree)

    @pytest.mark.parametrize(
        "row",
        [
            "",
            "tests/behaviour/test_a.py",
            "tests/behaviour/test_a.py 1",
            "tests/behaviour/test_a.py\t",
            "tests/behaviour/test_a.py\t0",
            "tests/behaviour/test_a.py\t0.00",
            "tests/behaviour/test_a.py\t-1",
            "tests/behaviour/test_a.py\tnan",
            "tests/behaviour/test_a.py\tinf",
            "tests/behaviour/test_a.py\t1e3",
            "tests/behaviour/test_a.py\t1,5",
            "tests/behaviour/test_a.py\t\u0661",
            "tests/behaviour/test_a.py\t1\t2",
            "tests/behaviour/test_a.py\t1 ",
            "tests/behaviour/test_a.py\t1\r",
            " tests/behaviour/test_a.py\t1",
            "tests/behaviour/../behaviour/test_a.py\t1",
            "tests/test_a.py\t1",
            "test_a.py\t1",
            "tests/behaviour/helper.py\t1",
        ],
    )
    def test_a_malformed_row_is_refused_with_its_line(self, tree: Path, row: str) -> None:
        write(tree, f"tests/behaviour/test_b.py\t2.5\n{row}\ntests/behaviour/test_c.py\t2\n")
        assert "durations.tsv:2: malformed row" in refused(tree)

    def test_bytes_that_are_no_text_are_refused(self, tree: Path) -> None:
        (tree / "tests/behaviour/durations.tsv").write_bytes(b"\xff\n")
        assert "durations.tsv: malformed: not UTF-8 at byte 0" in refused(tree)

    def test_a_missing_table_is_refused_once_and_not_for_every_file(self, tree: Path) -> None:
        (tree / "tests/behaviour/durations.tsv").unlink()
        said = refused(tree)
        assert said == (
            "bin/behaviour-shards: tests/behaviour/durations.tsv: missing\n  next: bin/behaviour-shards --record\n"
        )

    def test_an_empty_table_misses_every_file(self, tree: Path) -> None:
        write(tree, "")
        assert refused(tree).count("missing row for") == 3

    def test_no_behaviour_tests_at_all_is_refused(self, tree: Path) -> None:
        for path in (tree / "tests/behaviour").glob("test_*.py"):
            path.unlink()
        write(tree, "")
        assert "tests/behaviour: no behaviour tests" in refused(tree)

    @pytest.mark.parametrize("place", ["deeper/test_x.py", "deeper/er/test_x.py", "x_test.py", "more.py", "Test_x.py"])
    def test_tests_in_a_place_where_no_shard_runs_them_are_refused(self, tree: Path, place: str) -> None:
        path = tree / "tests/behaviour" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEST)
        assert f"tests/behaviour/{place}: tests in a place where no shard runs them" in refused(tree)

    @pytest.mark.parametrize("place", ["conftest.py", "driver.py", "deeper/__init__.py"])
    def test_helpers_are_not_taken_for_tests(self, tree: Path, place: str) -> None:
        path = tree / "tests/behaviour" / place
        path.parent.mkdir(exist_ok=True)
        path.write_text("def help_it() -> None: ...\n")
        assert call(tree, "--check", "2").returncode == 0

    def test_every_problem_is_told_at_once(self, tree: Path) -> None:
        (tree / "tests/behaviour/test_new.py").write_text(TEST)
        (tree / "tests/behaviour/test_b.py").unlink()
        said = refused(tree)
        assert "missing row" in said
        assert "stale row" in said


class TestPlan:
    def test_it_shows_each_shards_files_the_same_every_time(self, tree: Path) -> None:
        done = call(tree, "--plan", "2")
        assert done.returncode == 0
        assert done.stdout == (
            "shard 1/2      2.50 s  1 file\n    tests/behaviour/test_b.py\n"
            "shard 2/2      3.00 s  2 files\n    tests/behaviour/test_c.py\n    tests/behaviour/test_a.py\n"
        )
        assert call(tree, "--plan", "2").stdout == done.stdout


class TestRun:
    def test_a_shard_runs_its_own_files_and_no_other(self, tree: Path) -> None:
        (tree / "tests/behaviour/test_b.py").write_text("def test_it() -> None:\n    assert False\n")
        first, second = call(tree, "--run", "1", "2"), call(tree, "--run", "2", "2")
        assert (first.returncode, second.returncode) == (1, 0)
        assert "1 failed" in first.stdout
        assert "2 passed" in second.stdout

    def test_a_shard_without_a_single_test_fails(self, tree: Path) -> None:
        (tree / "tests/behaviour/test_b.py").write_text("")
        assert call(tree, "--run", "1", "2").returncode == 1

    def test_nothing_is_run_from_an_unsound_plan(self, tree: Path) -> None:
        (tree / "tests/behaviour/test_new.py").write_text(TEST)
        done = call(tree, "--run", "1", "2")
        assert (done.returncode, done.stdout) == (1, "")

    @pytest.mark.parametrize(
        "args",
        [(), ("--run", "3", "2"), ("--run", "0", "2"), ("--check", "0"), ("--check", "x"), ("--plan", "1", "--record")],
    )
    def test_what_cannot_be_meant_is_a_usage_error(self, tree: Path, args: tuple[str, ...]) -> None:
        assert call(tree, *args).returncode == 2


class TestRecord:
    def test_it_writes_a_sound_sorted_table(self, tree: Path) -> None:
        write(tree, "rubbish\n")
        done = call(tree, "--record")
        assert done.returncode == 0, done
        rows = [row.split("\t") for row in (tree / "tests/behaviour/durations.tsv").read_text().splitlines()]
        assert [path for path, _ in rows] == [f"tests/behaviour/test_{name}.py" for name in "abc"]
        assert all(float(seconds) > 0 for _, seconds in rows)
        assert call(tree, "--check", "3").returncode == 0

    def test_a_failing_file_leaves_the_table_as_it_was(self, tree: Path) -> None:
        before = (tree / "tests/behaviour/durations.tsv").read_bytes()
        (tree / "tests/behaviour/test_b.py").write_text("def test_it() -> None:\n    assert False\n")
        done = call(tree, "--record")
        assert done.returncode == 1
        assert "tests/behaviour/test_b.py: failed, so nothing was recorded" in done.stderr
        assert (tree / "tests/behaviour/durations.tsv").read_bytes() == before
