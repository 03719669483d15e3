"""What most tests of a directory begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.store.file import FileStore
from tests.store import kit


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Revision 2, with one run, in the first journal."""
    kit.submit(kit.fleet(tmp_path / "s"), "r-1")
    return tmp_path / "s"


@pytest.fixture
def store(directory: Path) -> FileStore:
    return kit.opened(directory)
