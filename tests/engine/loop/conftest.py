"""Loops over a real store and a scripted provider that pushes the ends of steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.engine import loop
from controller.provider.fake import FakeProvider
from tests.engine.fleet import LINEAGE, Fleet
from tests.engine.serving import Gate


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are short: what tests wait for comes with messages, or after so many turns."""
    monkeypatch.setattr(loop, "SHORTEST_WAIT", 0.02)


@pytest.fixture
def fleet(tmp_path: Path, brief: None) -> Fleet:
    """Three slots; steps end with 0 as soon as they are accepted, and their ends are pushed."""
    return Fleet(tmp_path / "state", FakeProvider(LINEAGE, ends=0, pushes=True))


@pytest.fixture
def endless(tmp_path: Path, brief: None) -> Fleet:
    """Three slots; steps run until they are ended, which is pushed."""
    return Fleet(tmp_path / "state", FakeProvider(LINEAGE, pushes=True))


@pytest.fixture
def gate() -> Iterator[Gate]:
    held = Gate()
    yield held
    held.open()
