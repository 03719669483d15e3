"""A worker's supervisor, in this very process: what is durable before what happens."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from controller.clock import FakeClock, SystemClock
from controller.model.action import ExecuteRequest, mint
from controller.model.inventory import SeenStep
from controller.model.records import ActionType
from controller.provider.local.exchange import Ask, Op
from controller.provider.local.launch import Launch
from controller.provider.local.memory import Up
from controller.provider.local.places import Places, WorkerFile, make_worker_directory
from controller.provider.local.supervisor import Connection, Supervisor
from tests.provider.contract import LINEAGE, until

CLOCK = SystemClock()
_, EXECUTE = mint(
    type=ActionType.EXECUTE,
    slot=1,
    serial=1,
    lineage=LINEAGE,
    epoch="",
    assignment="a-1",
    generation=1,
    resources={},
    request=ExecuteRequest(("true",), {}, None, None, 300),
    run="r-1",
    step="main",
    attempt=1,
    token=1,
)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a supervisor did with one step from its execute to its end, in order."""
    happened: list[str] = []
    sync, release, send = os.fdatasync, Launch.release, Connection.send

    def syncing(descriptor: int) -> None:
        happened.append("synced")
        sync(descriptor)

    def releasing(process: Launch) -> None:
        happened.append("begun")
        release(process)

    def sending(connection: Connection, message: object) -> bool:
        happened.append("end told" if isinstance(message, SeenStep) else "answered")
        return send(connection, message)

    directory = Places(str(tmp_path)).worker(1, "a-1")
    environment = {"PATH": os.environ["PATH"]}
    make_worker_directory(directory, WorkerFile("test", LINEAGE, 1, "a-1", 1, "vm", "key", environment))
    monkeypatch.chdir(directory)
    supervisor = Supervisor(FakeClock())
    supervisor._memory.append(Up(1, 0))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(theirs)
        connection.watches = True
        supervisor._connections[theirs.fileno()] = connection
        monkeypatch.setattr(os, "fdatasync", syncing)
        monkeypatch.setattr(Launch, "release", releasing)
        monkeypatch.setattr(Connection, "send", sending)
        assert supervisor._heard(connection, msgspec.json.encode(Ask(Op.MUTATE, EXECUTE)))
        until(CLOCK, lambda: _is_over(supervisor))
        yield happened
    supervisor._listener.close()
    os.close(supervisor._woken)
    os.close(supervisor._wake)


def _is_over(supervisor: Supervisor) -> bool:
    """Whether its step is, after one more look at it."""
    supervisor._advance()
    return supervisor._running is None


def test_a_step_begins_once_it_is_durably_accepted_and_its_end_is_told_once_that_is_durable(told: list[str]) -> None:
    assert told == ["synced", "begun", "answered", "synced", "end told"]
