"""Modules that libraries import and hardly use: nothing of them is missing, and nobody else meets what stands in."""

from __future__ import annotations

import subprocess
import sys

BEGIN = """
import sys
from controller.cli import libraries
libraries.load()
import click, pathlib
put_off = [name for name in ("inspect", "urllib.parse", "typing_extensions") if name in sys.modules]
from_click = click.core.inspect
"""


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, check=True).stdout


def test_nothing_that_was_put_off_is_loaded_and_no_stand_in_is_left() -> None:
    assert run("print(put_off)") == "[]\n"


def test_click_gets_all_of_inspect() -> None:
    code = """
assert click.core.inspect.isfunction(run := lambda: None)
import inspect
assert inspect is not click.core.inspect and click.core.inspect.signature is inspect.signature
for text in ("", " ", "x ", "  a  b ", "a\\n    b\\n      c", "\\tx", "a\\n\\n"):
    assert click.core.inspect.cleandoc(text) == inspect.cleandoc(text), text
print(click.Option(["--x"], help="one\\n    two").help)
"""
    assert run(code) == "one\ntwo\n"


def test_a_path_is_still_written_as_a_uri() -> None:
    assert run("print(pathlib.Path('/a b').as_uri())") == "file:///a%20b\n"


def test_a_library_that_asks_for_more_while_it_is_imported_gets_it() -> None:
    code = """
del sys.modules["inspect"]
stand_in = libraries._Inspecting("inspect")
with libraries._instead("inspect", stand_in):
    import inspect as first
    signature = first.signature
    import inspect as second
assert first is stand_in and second is sys.modules["inspect"] is not stand_in
print(second.signature is signature)
"""
    assert run("sys.modules.setdefault('inspect', None)\n" + code) == "True\n"


def test_what_is_there_already_is_used() -> None:
    code = "import inspect, sys\nfrom controller.cli import libraries\nlibraries.load()\nimport click\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "print(click.core.inspect is inspect is sys.modules['inspect'])"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"
