"""Commands, in this process, over directories that were mutated and sealed anew: each ends in a documented way."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from typing import Final
from unittest import mock

from controller.cli import root
from controller.model.errors import ControllerError
from tests.fuzz.documents import resealed
from tests.fuzz.target import Case, Target, answered, must
from tests.fuzz.worlds import world

CODES: Final = frozenset({0, 2, 3, 4, 5, 6, 7, 8})
QUESTIONS: Final = (
    ("status",),
    ("status", "--json"),
    ("runs",),
    ("runs", "--json"),
    ("show", "r-1"),
    ("show", "slot:2", "--json"),
    ("show", "r-4"),
    ("history",),
    ("history", "slot:2", "--json"),
    ("explain", "r-5"),
    ("explain", "slot:2"),
    ("release", "r-1", "--template"),
    ("queue", "list"),
    ("fsck", "--json"),
)
DEEDS: Final = (
    ("submit", "--id", "fuzzed", "--", "true"),
    ("withdraw", "r-5"),
    ("cancel", "r-1"),
    ("retry", "r-2"),
    ("cordon", "2", "--reason", "x", "--confirm-cordon"),
    ("drain", "1"),
    ("abandon", "2", "--key", "9a922405edb9", "--unresolved", "--reason", "x", "--confirm-abandon"),
    ("surrender", "r-1", "--unresolved", "--reason", "x", "--confirm-surrender"),
    ("queue", "pause", "q"),
    ("queue", "claim", "--queue", "q"),
    ("fsck", "--repair"),
    ("state", "restore", "--acknowledge"),
    ("state", "export", "-"),
)


def made(chance: Random) -> Case:
    case = resealed(chance)
    words = (*chance.sample(QUESTIONS, 3), *chance.sample(DEEDS, 3))
    return Case(case.world, " | ".join(" ".join(each) for each in words), case.files)


def check(case: Case, home: Path) -> None:
    directory = home / "s"
    world(case.world).put(directory, case.files)
    for words in case.how.split(" | "):
        code = answered(words.partition(" --")[0], partial(_run, directory, words.split()))
        must(code in CODES, f"{words} ends with {code}")


def _unwritten(_descriptor: int, _data: bytes) -> None:
    return None


def _run(directory: Path, words: list[str]) -> int:
    def unexpected(error: Exception) -> ControllerError:
        raise error

    with mock.patch.object(root, "_unexpected", unexpected), mock.patch("controller.cli.output._write", _unwritten):
        return root.run(["--state-dir", str(directory), *words])[0]


TARGETS = (Target("commands", made, check),)
