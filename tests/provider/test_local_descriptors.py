"""What a step of a local worker is given besides its streams: nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from controller.provider.local.exchange import Ask, Op, connect
from tests.provider.contract import Asker
from tests.provider.local_kit import log_of, worker_directory, workers


@pytest.fixture
def ask(state: Path) -> Iterator[Asker]:
    with workers(state) as asker:
        asker.create()
        yield asker


def test_a_step_holds_no_descriptor_but_its_streams(ask: Asker, state: Path) -> None:
    """Also while a second asker and a watcher are connected."""
    watcher, idle = connect(str(worker_directory(state))), connect(str(worker_directory(state)))
    with watcher, idle:
        watcher.send(msgspec.json.encode(Ask(Op.WATCH)) + b"\n")
        sent = ask.execute(("sh", "-c", "exec ls -l /proc/self/fd"))
        ask.done(sent)
        ask.ended(sent)
    listed = [line.split() for line in log_of(state, "r-1", "main", 1, 1).read_text().splitlines() if "->" in line]
    held = {words[-3]: words[-1] for words in listed}
    its_own = {number for number, leads_to in held.items() if leads_to.startswith("/proc/")}
    assert its_own == {"3"}, "ls has opened the directory that it lists"
    assert set(held) - its_own == {"0", "1", "2"}
