"""Workers of the local provider in a directory of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.provider.asker import Asker
from tests.provider.local_kit import workers


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "S"


@pytest.fixture
def ask(state: Path) -> Iterator[Asker]:
    with workers(state) as asker:
        yield asker
