"""The conformance suite over real workers of this host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from controller.provider.protocol import Provider
from tests.provider.contract import LINEAGE, ProviderContract
from tests.provider.local_kit import provider


class TestLocalProvider(ProviderContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[str], Provider]:
        def made(lineage: str = LINEAGE) -> Provider:
            return provider(tmp_path / "S", lineage=lineage)

        return made
