"""Every mutation of tests/project/mutations.toml still applies, and bin/mutation-sweep tells a survivor."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.project.mutations import TABLE, Mutation, mutated, read_table, span_of, unfit
from tests.project.scripts import ROOT, load

sweep = load("mutation-sweep")

SOURCE = """
class Door:
    @property
    def open(self):
        return True

    async def close(self):
        return True


def open():
    return True
"""


def mutation(**fields: Any) -> Mutation:
    known = Mutation("name", "claim", "m.py", "open", "True", "False", ("tests/test_m.py",))
    return known._replace(**fields)


def test_every_mutation_applies_and_names_tests_that_are_there() -> None:
    mutations = read_table(ROOT)
    assert unfit(ROOT, mutations) == []
    assert len(mutations) > 60


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("open", "def open():\n    return True\n"),
        ("Door.open", "    @property\n    def open(self):\n        return True\n"),
        ("Door.close", "    async def close(self):\n        return True\n"),
    ],
)
def test_a_function_is_found_by_its_qualified_name_with_its_decorators(function: str, text: str) -> None:
    begin, end = span_of(SOURCE, function)
    assert SOURCE[begin:end] == text
    assert mutated(SOURCE, mutation(function=function)).count("True") == SOURCE.count("True") - 1


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"function": "shut"}, "0 functions shut"),
        ({"function": "Door"}, "0 functions Door"),
        ({"old": "Maybe"}, "0 times instead of once"),
        ({"old": "e"}, "4 times instead of once"),
        ({"new": "True"}, "the same"),
        ({"new": "(True"}, "does not compile"),
        ({"module": "n.py"}, "No such file"),
        ({"tests": ("tests/test_n.py",)}, "no test tests/test_n.py"),
        ({"tests": ("tests/test_m.py::test_b",)}, "no test tests/test_m.py::test_b"),
        ({"tests": ()}, "it needs a claim, and tests"),
        ({"name": "other"}, "a name that several mutations have"),
    ],
)
def test_a_mutation_that_means_nothing_any_more_is_told(tmp_path: Path, fields: dict[str, object], says: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "m.py").write_text(SOURCE)
    (tmp_path / "tests/test_m.py").write_text("def test_a() -> None: ...\n")
    sound = mutation(name="other", tests=("tests/test_m.py::test_a",))
    assert unfit(tmp_path, [sound]) == []
    assert any(says in what for what in unfit(tmp_path, [sound, mutation(**fields)]))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project of two functions, of which its tests miss only one, with this project's environment."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("there is no git, which tells what belongs to a tree")
    (tmp_path / "controller").mkdir()
    (tmp_path / "tests/project").mkdir(parents=True)
    (tmp_path / "controller/__init__.py").write_text(
        "def guard():\n    return True\n\n\ndef idle():\n    return True\n"
    )
    (tmp_path / "tests/test_m.py").write_text("import controller\n\ndef test_it():\n    assert controller.guard()\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "controller"\n')
    tables = [
        f'[[mutation]]\nname = "no-{function}"\nclaim = "It is missed."\nmodule = "controller/__init__.py"\n'
        f'function = "{function}"\nold = "True"\nnew = "False"\ntests = ["tests/test_m.py::test_it"]\n'
        for function in ("guard", "idle")
    ]
    (tmp_path / TABLE).write_text("\n".join(tables))
    (tmp_path / ".venv").mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (tmp_path / ".venv" / name).symlink_to(Path(sys.prefix) / name)
    (tmp_path / ".gitignore").write_text("/.venv\n")
    subprocess.run([git, "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def test_a_survivor_is_told_and_what_was_killed_is_not_done_again(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main([], tree) == 1
    killed, survived, summary = capsys.readouterr().out.splitlines()
    assert killed.split()[:2] == ["killed", "no-guard"]
    assert killed.endswith("s  tests/test_m.py::test_it")
    assert survived.split()[:2] == ["survived", "no-idle"]
    assert summary.startswith("1 of 2 killed")
    assert sweep.main(["--resume", "--only", "no-guard"], tree) == 0
    assert "in an earlier sweep" in capsys.readouterr().out


def test_a_red_tree_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "tests/test_m.py").write_text("def test_it():\n    raise AssertionError\n")
    assert sweep.main([], tree) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "the unmutated tree is red: tests/test_m.py::test_it" in said.err


def test_a_mutation_that_does_not_apply_refuses_the_sweep(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "controller/__init__.py").write_text("def guard():\n    return True\n")
    assert sweep.main(["--only", "no-guard"], tree) == 1
    assert "0 functions idle" in capsys.readouterr().err
