"""The conformance suite over the scripted provider and over the example program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.provider.fake import FakeProvider
from controller.provider.protocol import Provider
from tests.provider.contract import LINEAGE, Asker, ProviderContract, Sent
from tests.provider.programs import command

EXAMPLE = Path(__file__).parents[2] / "docs/examples/provider.py"


class TestFakeProvider(ProviderContract):
    real_processes = False

    @pytest.fixture
    def make(self) -> Callable[[str], Provider]:
        def made(lineage: str = LINEAGE) -> Provider:
            return FakeProvider(lineage)

        return made

    def finish(self, ask: Asker, sent: Sent, exit_code: int) -> None:
        assert isinstance(ask.provider, FakeProvider)
        ask.provider.end_step(sent[0].idempotency_key, exit_code=exit_code)

    def lose(self, ask: Asker) -> bool:
        assert isinstance(ask.provider, FakeProvider)
        ask.provider.lose(1)
        return True


class TestExampleProgram(ProviderContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[str], Provider]:
        argv = (sys.executable, str(EXAMPLE), str(tmp_path / "workers"))
        return lambda lineage: command(argv, tmp_path, lineage=lineage)
