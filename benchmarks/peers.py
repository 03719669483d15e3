"""The peers that are libraries: plain SQLite, and huey over SQLite. Both sync every commit, and both are warmed.

Not promised: that they do what we do. Neither keeps a history, a queue of huey's forgets a run when it is taken, and
the table below is what a careful person writes in an afternoon.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from benchmarks.measuring import Broken, Missing

if TYPE_CHECKING:
    from sqlite3 import Connection

_WARM: Final = 3000
"""Commits before the first that counts: the first hundreds of a new database are slower."""
PAYLOAD: Final = {"path": "x" * 150}
RESULT: Final = {"lines": 12}
LEASE_MS: Final = 60_000
TEN: Final = 10


class Queue(Protocol):
    """A queue, as one program uses it that is producer and consumer at once. Every call is durable when it returns."""

    def enqueue(self) -> None:
        """Add one run."""

    def cycle(self) -> None:
        """Claim a run and complete it, as two commits."""


class Peer(Queue, Protocol):
    """One that comes empty."""

    def fill(self, count: int) -> None:
        """Add *count* runs, however that is fastest."""


@runtime_checkable
class FusedQueue(Queue, Protocol):
    """One that can also complete a run and claim the next in one commit, and do several at a time."""

    def begin(self) -> None:
        """Claim the run that `fused` completes first."""

    def fused(self) -> None:
        """Complete the run that is held and claim the next one."""

    def end(self) -> None:
        """Complete the run that is held."""

    def several(self) -> None:
        """Claim ten runs in one commit, and complete them in another."""


def database(path: Path | str) -> Connection:
    """A new one whose commits survive a power cut. Transactions are begun and ended by whoever needs one."""
    try:
        import sqlite3
    except ImportError:
        raise Missing("this Python was built without sqlite3") from None
    made = sqlite3.connect(path, isolation_level=None)
    made.execute("PRAGMA journal_mode = WAL")
    made.execute("PRAGMA synchronous = FULL")
    return made


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("COMMIT")


def warm_up(*, quick: bool) -> int:
    """How many commits warm a peer."""
    return 3 if quick else _WARM


def row(directory: Path, *, quick: bool) -> Callable[[], object]:
    """Commits one row of 300 bytes each time it is called."""
    connection = database(directory / "peer.db")
    connection.execute("CREATE TABLE record (id INTEGER PRIMARY KEY, body TEXT)")
    commit = partial(connection.execute, "INSERT INTO record (body) VALUES (?)", ("x" * 300,))
    for _ in range(warm_up(quick=quick)):
        commit()
    return commit


_SCHEMA = """
CREATE TABLE run (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    state TEXT NOT NULL,
    submitted_at INTEGER NOT NULL,
    available_at INTEGER NOT NULL,
    token INTEGER NOT NULL DEFAULT 0,
    owner TEXT,
    lease_until INTEGER,
    payload TEXT NOT NULL,
    result TEXT
);
CREATE INDEX claimable ON run (queue, priority, id) WHERE state = 'queued';
CREATE INDEX leased ON run (lease_until) WHERE state = 'running';
"""
_ENQUEUE = """
INSERT INTO run (queue, priority, state, submitted_at, available_at, payload) VALUES (?, ?, 'queued', ?, ?, ?)
"""
_CLAIM = """
UPDATE run SET state = 'running', token = token + 1, owner = ?, lease_until = ?
WHERE id = (
    SELECT id FROM run WHERE queue = ? AND state = 'queued' AND available_at <= ? ORDER BY priority, id LIMIT 1
)
RETURNING id, token, payload
"""
_CLAIM_TEN = _CLAIM.replace("id = (", "id IN (").replace("LIMIT 1", f"LIMIT {TEN}")
_COMPLETE = """
UPDATE run SET state = 'succeeded', owner = NULL, lease_until = NULL, result = ?
WHERE id = ? AND token = ? AND state = 'running'
"""


class Table:
    """A queue as one table: the oldest of the best priority, a lease with a token, and the result kept."""

    def __init__(self, directory: Path, *, quick: bool) -> None:
        self._connection = database(directory / "queue.db")
        self._connection.executescript(_SCHEMA)
        self._held: list[tuple[int, int]] = []
        for _ in range(warm_up(quick=quick) // 3):
            self.enqueue()
            self.cycle()

    def fill(self, count: int) -> None:
        with transaction(self._connection):
            for _ in range(count):
                self.enqueue()

    def enqueue(self) -> None:
        now = _now_ms()
        self._connection.execute(_ENQUEUE, ("default", 2, now, now, json.dumps(PAYLOAD)))

    def cycle(self) -> None:
        self.begin()
        self.end()

    def begin(self) -> None:
        self._claim(_CLAIM, 1)

    def _claim(self, statement: str, count: int) -> None:
        now = _now_ms()
        # All rows are fetched: an update is not committed before its statement has ended.
        taken = self._connection.execute(statement, ("bench", now + LEASE_MS, "default", now)).fetchall()
        if len(taken) != count or any(json.loads(payload) != PAYLOAD for _, _, payload in taken):
            raise Broken("SQLite had nothing to claim")
        self._held = [(run, token) for run, token, _ in taken]

    def end(self) -> None:
        for held in self._held:
            if self._connection.execute(_COMPLETE, (json.dumps(RESULT), *held)).rowcount != 1:
                raise Broken("SQLite refused a token")

    def fused(self) -> None:
        with transaction(self._connection):
            self.end()
            self.begin()

    def several(self) -> None:
        self._claim(_CLAIM_TEN, TEN)
        with transaction(self._connection):
            self.end()


class Huey:
    """SqliteHuey(fsync=True), worked as its consumer works it, without the consumer's threads and pauses."""

    def __init__(self, directory: Path, *, quick: bool) -> None:
        from huey import SqliteHuey  # type: ignore[import-untyped]  # it has no types

        self._path = str(directory / "huey.db")
        self._huey = SqliteHuey("default", filename=self._path, fsync=True)
        self._run = self._huey.task()(_work)
        for _ in range(warm_up(quick=quick) // 3):
            self.enqueue()
            self.cycle()

    def fill(self, count: int) -> None:
        # As its storage adds one, but in one transaction: 100 000 by themselves would take half a minute.
        tasks = (self._huey.serialize_task(self._run.s(PAYLOAD)) for _ in range(count))
        with closing(database(self._path)) as connection, transaction(connection):
            connection.executemany("INSERT INTO task (queue, data) VALUES ('default', ?)", ((task,) for task in tasks))

    def enqueue(self) -> None:
        self._run(PAYLOAD)

    def cycle(self) -> None:
        task = self._huey.dequeue()
        if task is None or self._huey.execute(task) != RESULT:
            raise Broken("huey had nothing to execute")


def _work(payload: object) -> object:
    if payload != PAYLOAD:
        raise Broken("huey gave another payload")
    return RESULT


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
