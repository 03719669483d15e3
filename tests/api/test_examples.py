"""The examples of the library's page are a program, typed here as they stand, one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller import Controller
from controller.api import public
from controller.model.records import WorkerState

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "library.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    empty(tmp_path / "builds")


def empty(state: Path) -> None:
    """No worker outlives its test."""
    from controller.engine.queue import set_draining

    with Controller.open(state) as fleet:
        set_draining(fleet.context, True)
        while fleet.store.read().document.workers:
            fleet.reconcile()
        assert not any(fleet.status().workers[state.value] for state in WorkerState)


def test_every_example_of_the_page_runs(here: Path) -> None:
    assert len(EXAMPLES) >= 5
    for number, example in enumerate(EXAMPLES, 1):
        exec(compile(example, f"docs/library.md, example {number}", "exec"), {})


def test_everything_that_is_exported_is_there() -> None:
    import controller

    assert sorted(controller.__all__) == sorted(public.__all__)
    for name in controller.__all__:
        assert getattr(controller, name) is getattr(public, name)
