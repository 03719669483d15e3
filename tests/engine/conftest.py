"""The engine over a real store and a scripted provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.provider.fake import FakeProvider
from tests.engine.fleet import LINEAGE, Fleet


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Three slots; steps end with 0 as soon as they are accepted."""
    return Fleet(tmp_path / "state", FakeProvider(LINEAGE, ends=0))
