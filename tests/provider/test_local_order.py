"""A worker's supervisor, in this very process: what is durable before what happens."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw

from controller.clock import FakeClock, SystemClock
from controller.model.action import ExecuteRequest, mint
from controller.model.inventory import SeenStep, StepSeen
from controller.model.records import ActionType
from controller.provider.local.exchange import OUTCOMES, Ask, Op
from controller.provider.local.launch import Launch
from controller.provider.local.memory import Settled, Up
from controller.provider.local.places import Places, WorkerFile, make_worker_directory
from controller.provider.local.supervisor import Connection, Supervisor
from controller.provider.process import end_group
from controller.provider.protocol import Done
from tests.provider.contract import LINEAGE, until

CLOCK = SystemClock()


def execute(argv: tuple[str, ...]) -> tuple[str, Raw]:
    return mint(
        type=ActionType.EXECUTE,
        slot=1,
        serial=1,
        lineage=LINEAGE,
        epoch="",
        assignment="a-1",
        generation=1,
        resources={},
        request=ExecuteRequest(argv, {}, None, None, 300),
        run="r-1",
        step="main",
        attempt=1,
        token=1,
    )


class Told:
    """A supervisor that is asked for a step, by somebody who also watches, and what it did, in order."""

    def __init__(self, supervisor: Supervisor, clock: FakeClock, peer: socket.socket, asked: Connection) -> None:
        self.happened: list[str] = []
        self.supervisor = supervisor
        self.clock = clock
        self._peer = peer
        self._asked = asked

    def ask(self, argv: tuple[str, ...], *, patience_ms: int) -> str:
        """Have it execute *argv*. The key of that."""
        key, raw = execute(argv)
        assert self.supervisor._heard(self._asked, msgspec.json.encode(Ask(Op.MUTATE, raw, patience_ms)))
        return key

    def turn(self) -> None:
        self.supervisor._advance()
        self.supervisor._answer_waiting()

    def await_the_end(self) -> None:
        until(CLOCK, self._is_over)

    def _is_over(self) -> bool:
        """Whether its step is, after one more look at it."""
        self.turn()
        return self.supervisor._running is None

    def answer(self) -> SeenStep | None:
        """The step that the answer describes."""
        outcome = OUTCOMES.decode(self._peer.recv(1 << 16))
        assert isinstance(outcome, Done)
        return outcome.step


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    sync, release, send = os.fdatasync, Launch.release, Connection.send

    def syncing(descriptor: int) -> None:
        asked.happened.append("synced")
        sync(descriptor)

    def releasing(process: Launch) -> None:
        asked.happened.append("begun")
        release(process)

    def sending(connection: Connection, message: object) -> bool:
        asked.happened.append("end told" if isinstance(message, SeenStep) else "answered")
        return send(connection, message)

    directory = Places(str(tmp_path)).worker(1, "a-1")
    environment = {"PATH": os.environ["PATH"]}
    make_worker_directory(directory, WorkerFile("test", LINEAGE, 1, "a-1", 1, "vm", "key", environment))
    monkeypatch.chdir(directory)
    supervisor = Supervisor(clock := FakeClock())
    supervisor._memory.append(Up(1, 0))
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    with ours, theirs:
        connection = Connection(theirs)
        connection.watches = True
        supervisor._connections[theirs.fileno()] = connection
        asked = Told(supervisor, clock, ours, connection)
        monkeypatch.setattr(os, "fdatasync", syncing)
        monkeypatch.setattr(Launch, "release", releasing)
        monkeypatch.setattr(Connection, "send", sending)
        yield asked
    if supervisor._running is not None:
        assert end_group(supervisor._running.group, CLOCK)
        os.waitpid(supervisor._running.group.pid, 0)
    supervisor._listener.close()
    os.close(supervisor._woken)
    os.close(supervisor._wake)


def test_a_step_begins_once_it_is_durably_accepted_and_its_end_is_told_once_that_is_durable(told: Told) -> None:
    told.ask(("true",), patience_ms=0)
    told.await_the_end()
    assert told.happened == ["synced", "begun", "answered", "synced", "end told"]


def test_the_end_of_a_short_step_is_the_answer_to_its_execute_once_that_is_durable(told: Told) -> None:
    key = told.ask(("true",), patience_ms=1000)
    told.await_the_end()
    assert told.happened == ["synced", "begun", "synced", "answered"]
    assert told.answer() == SeenStep(key, StepSeen.EXITED, 0, ended_at=told.clock.now_ms())


def test_an_end_that_an_answer_told_is_told_to_those_who_watch_too(told: Told) -> None:
    told.ask(("true",), patience_ms=1000)
    told.await_the_end()
    told.clock.advance(0.25)
    told.turn()
    assert told.happened[-2:] == ["answered", "end told"]
    told.clock.advance(60)
    told.turn()
    assert told.happened.count("end told") == 1


def test_an_end_that_was_settled_since_is_no_news(told: Told) -> None:
    key = told.ask(("true",), patience_ms=1000)
    told.await_the_end()
    told.supervisor._memory.append(Settled((key,)), sync=False)
    told.clock.advance(60)
    told.turn()
    assert "end told" not in told.happened


def test_a_step_that_takes_longer_is_answered_while_it_runs(told: Told, tmp_path: Path) -> None:
    key = told.ask(("sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.01; done"), patience_ms=1000)
    told.turn()
    assert told.happened == ["synced", "begun"]
    told.clock.advance(0.02)
    told.turn()
    assert told.answer() == SeenStep(key, StepSeen.RUNNING)
    (tmp_path / "go").touch()
    told.await_the_end()
    assert told.happened == ["synced", "begun", "answered", "synced", "end told"]
