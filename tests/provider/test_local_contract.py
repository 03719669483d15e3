"""The conformance suite over real workers of this host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from controller.model.inventory import Seen
from controller.provider.protocol import Provider
from tests.provider.contract import LINEAGE, Asker, ProviderContract
from tests.provider.local_kit import kill, provider, supervisor


class TestLocalProvider(ProviderContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[str], Provider]:
        def made(lineage: str = LINEAGE) -> Provider:
            return provider(tmp_path / "S", lineage=lineage)

        return made

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.place = tmp_path / "S"

    def lose(self, ask: Asker) -> bool:
        kill(supervisor(self.place))
        return ask.worker().state is Seen.GONE
