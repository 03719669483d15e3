"""Finding the run that is claimed next, in a small document and in a large one: with the index, without a store.

Not promised: anything about a claim as a whole, which writes a document too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from benchmarks.measuring import OURS, Broken, Measured, longer, seconds_of, turns
from controller.engine.discovery import Finder
from controller.engine.index import Index
from controller.model.edit import Draft
from controller.model.records import Document, Priority, Queue, Run, RunState, new_document

QUEUE: Final = "default"
NOW: Final = 1_700_000_000_000
KEYS: Final = 20
SMALL: Final = "small"
LAYERS: Final = (Priority.CRITICAL, Priority.NORMAL, Priority.BACKGROUND)


class Waiting:
    """A document of *count* queued runs in three layers, one in ten with a concurrency key, and its index."""

    def __init__(self, count: int) -> None:
        self._made = 0
        self._runs: dict[str, Run] = {}
        self._queues: dict[str, Queue] = {}
        self._document: Document = replace(new_document("bench", "bench"), runs=self._runs, queues=self._queues)
        for _ in range(count):
            self._submit()
        self._index = Index(self._runs, "boot")
        self._found: Run | None = None

    def _submit(self) -> str:
        self._made += 1
        number = self._made
        key = f"key-{number // 10 % KEYS}" if number % 10 == 0 else ""
        run = Run(
            id=f"r-{number}",
            queue=QUEUE,
            sequence=number,
            created_at=NOW + number,
            steps=(),
            priority=LAYERS[number % len(LAYERS)],
            concurrency_key=key,
            concurrency=1 if key else 0,
        )
        self._runs[run.id] = run
        return run.id

    def find(self) -> None:
        with Finder(self._index, Draft(self._document, now=NOW * 2, command="bench"), QUEUE) as finder:
            self._found = finder.next()

    def turn(self) -> None:
        """What was found is claimed and done, and another run takes its place: so every find is a new one."""
        found = self._found
        if found is None:
            raise Broken("nothing was found to claim")
        claims = self._queues.get(QUEUE, Queue()).claims + 1
        self._queues[QUEUE] = Queue(claims=claims)
        self._follow({found.id: replace(found, state=RunState.RUNNING)})
        del self._runs[found.id]
        self._follow({found.id: None, (run_id := self._submit()): self._runs[run_id]})

    def _follow(self, changes: Mapping[str, Run | None]) -> None:
        self._index.follow(changes, self._runs)


def discovery(_: Path, quick: bool) -> Measured:
    """100 000 queued runs beside 1 000. Nothing is written."""
    waiting = {OURS: Waiting(1000 if quick else 100_000), SMALL: Waiting(100 if quick else 1000)}
    taken: dict[str, list[float]] = {side: [] for side in waiting}
    kept: dict[str, list[float]] = {side: [] for side in waiting}
    for side in turns(list(waiting), 2 if quick else 60):
        for _turn in range(5 if quick else 100):
            taken[side].append(seconds_of(waiting[side].find))
            kept[side].append(seconds_of(waiting[side].turn))
    values = {SMALL: longer(taken, SMALL, unit="us", factor=1e6), "turn": longer(kept, SMALL, unit="us", factor=1e6)}
    return Measured(values, {"samples": len(taken[OURS])})
