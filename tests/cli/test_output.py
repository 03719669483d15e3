"""Output: one encoding for every answer, and nothing lost to odd text."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from controller.cli.output import Output, encode
from controller.model import errors

CLI = Path(__file__).parents[2] / "controller" / "cli"


def test_text_that_utf8_cannot_carry_is_escaped_and_the_rest_kept() -> None:
    answer = orjson.loads(encode({"path": "/st\udcffte", "n": 1, "list": ["\ud800", ("x",)]}))
    assert answer == {"path": "/st\\udcffte", "n": 1, "list": ["\\ud800", ["x"]]}


@pytest.mark.parametrize(
    "kind",
    [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ControllerError)],
)
def test_every_error_has_words_of_its_own_for_people(
    kind: type[errors.ControllerError], capfd: pytest.CaptureFixture[str]
) -> None:
    made = kind.__new__(kind)
    errors.ControllerError.__init__(made, "x\x1b", where="here", next="that")
    Output(json=False).error(made)
    out, err = capfd.readouterr()
    assert out == ""
    head, where, _ = err.splitlines()
    assert (where, "\x1b" in err) == ("  here", False)
    assert head.startswith("error: ") == (made.exit == 1)


def test_starting_the_command_line_imports_neither_the_store_nor_the_engine() -> None:
    probe = (
        "import sys; import controller.cli.root; from controller.cli import fleet, runs, setup, inspect\n"
        "heavy = ('controller.store', 'controller.engine', 'controller.provider', 'filelock', 'subprocess',\n"
        "         'importlib.metadata', 'tomllib', 'tempfile', 'difflib')\n"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_commands_write_through_output_alone() -> None:
    for path in CLI.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", path
