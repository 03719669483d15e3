"""A few of the same cases through the installed command: an exit code that is documented, no traceback, no change."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.behaviour.driver import Controller, Result
from tests.fuzz.inputs import graph_made, proof_made, settings_made
from tests.fuzz.target import Case
from tests.fuzz.targets import TARGETS
from tests.fuzz.worlds import world

CODES = {0, 2, 3, 4, 5, 6, 7, 8}


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    made = Controller(tmp_path)
    yield made
    made.close()


def files(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted(directory.iterdir())
        if path.is_file() and path.suffix != ".lock"
    }


def orderly(done: Result) -> Result:
    assert done.exit in CODES, str(done)
    assert "Traceback" not in done.stderr, str(done)
    assert "controller itself failed" not in done.stderr, str(done)
    return done


@pytest.mark.parametrize("target", ["documents", "bytes", "files"])
@pytest.mark.parametrize("seed", range(4))
def test_commands_over_a_mutated_directory(controller: Controller, target: str, seed: int) -> None:
    case: Case = TARGETS[target].make(Random(seed))
    world(case.world).put(controller.state, case.files)
    before = files(controller.state)
    for words in (("status",), ("fsck", "--json"), ("history",)):
        orderly(controller.run(*words))
    if "controller.json" in before:
        copy = controller.home / "copy.json"
        shutil.copy(controller.state / "controller.json", copy)
        orderly(controller.run("state", "verify", str(copy)))
    changed = {name for name, data in files(controller.state).items() if before.get(name) != data}
    assert changed <= {"refusals.jsonl"}
    assert before.keys() <= files(controller.state).keys()
    orderly(controller.run("submit", "--id", "fuzzed", "--", "true"))


@pytest.mark.parametrize("seed", range(3))
def test_commands_under_mutated_settings(controller: Controller, seed: int) -> None:
    controller.init()
    data = settings_made(Random(seed)).files["controller.toml"] or b""
    (controller.state / "controller.toml").write_bytes(data)
    for words in (("doctor",), ("status", "--json")):
        orderly(controller.run(*words))
    assert (controller.state / "controller.toml").read_bytes() == data


@pytest.mark.parametrize("seed", range(3))
def test_commands_that_are_given_mutated_files(controller: Controller, seed: int) -> None:
    controller.init()
    run = controller.home / "run"
    run.write_bytes(graph_made(Random(seed)).files["run"] or b"")
    proof = controller.home / "proof.json"
    proof.write_bytes(proof_made(Random(seed)).files["proof.json"] or b"")
    export = controller.home / "x.export"
    export.write_bytes(TARGETS["exports"].make(Random(seed)).files["x.export"] or b"")
    orderly(controller.run("submit", "--file", str(run)))
    orderly(controller.run("submit", "--payload", f"@{run}"))
    refused = orderly(controller.run("release", "r-1", "--proof", str(proof)))
    assert refused.exit != 0, str(refused)
    orderly(controller.run("state", "import", str(export)))
