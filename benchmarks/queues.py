"""The queue beside plain SQLite and huey, and discovery beside itself at another size.

Not promised: that the peers do what we do: `benchmarks.peers` says what they leave out.

One measurement at a depth gives three figures: adding a run, claiming and completing one as two commits, and completing
one with the next claim in the same commit. All three come from the same blocks, and each block takes as many runs away
as it adds.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Raw, json

from benchmarks.measuring import Broken, Measured, seconds_of, shuffled, size_of_block
from benchmarks.peers import PAYLOAD, RESULT, FusedQueue, Huey, Queue, Table
from controller.api.handle import Controller
from controller.engine.submission import Submission

if TYPE_CHECKING:
    from controller.api.claims import Claim

ENQUEUE: Final = "enqueue"
CYCLE: Final = "cycle"
FUSED: Final = "fused"
KEPT: Final = 100
"""Ended runs that our queue keeps: few, so that what a commit costs depends on how many are queued."""


class Side(NamedTuple):
    """Who does what."""

    who: str
    what: str


OURS: Final = "ours"
SQLITE: Final = "sqlite"
HUEY: Final = "huey"


class Ours:
    """The library, as a program uses it that is producer and consumer at once."""

    def __init__(self, directory: Path) -> None:
        made = Controller.init(directory)
        with made.config_path.open("a") as config:
            config.write(f"\n[queues.default]\nretain = {KEPT}\n")
        self._fleet = Controller.open(directory)
        self._queue = self._fleet.queue()
        self._held: Claim | None = None

    def fill(self, count: int) -> None:
        run = Submission(payload=Raw(json.encode(PAYLOAD)))
        self._fleet.add([run] * count)

    def enqueue(self) -> None:
        self._fleet.submit(payload=PAYLOAD)

    def cycle(self) -> None:
        self.begin()
        self.end()

    def begin(self) -> None:
        self._take(self._queue.claim(owner="bench"))

    def fused(self) -> None:
        if self._held is not None:
            self._take(self._held.complete(result=RESULT, claim_next=True))

    def end(self) -> None:
        if self._held is not None:
            self._held.complete(result=RESULT)

    def _take(self, claim: Claim) -> None:
        if not claim or claim.payload != PAYLOAD:
            raise Broken("our queue had nothing to claim")
        self._held = claim


def _block(queue: Queue, side: Side, count: int, taken: Mapping[Side, list[float]]) -> None:
    """Add *count* runs and take as many away."""
    taken[Side(side.who, ENQUEUE)].extend(seconds_of(queue.enqueue) for _ in range(count))
    if side.what == FUSED and isinstance(queue, FusedQueue):
        queue.begin()
        taken[side].extend(seconds_of(queue.fused) for _ in range(count - 1))
        queue.end()
    else:
        taken[side].extend(seconds_of(queue.cycle) for _ in range(count))


def _measured(place: Path, depth: int, *, quick: bool) -> Mapping[Side, list[float]]:
    """Seconds of every call, at from *depth* to *depth* and one block of queued runs."""
    queues: Mapping[str, Queue] = {OURS: Ours(place / "state"), SQLITE: Table(place), HUEY: Huey(place)}
    for queue in queues.values():
        queue.fill(10 if quick else depth)
    kinds = [Side(who, what) for who in queues for what in (CYCLE, FUSED)]
    sides = [side for side in kinds if side.what == CYCLE or isinstance(queues[side.who], FusedQueue)]
    taken: Mapping[Side, list[float]] = defaultdict(list)
    for side in sides:
        _block(queues[side.who], side, 2 if quick else KEPT // 2, defaultdict(list))
    for side in shuffled(sides, 1 if quick else 4 if depth > 1000 else 20):
        _block(queues[side.who], side, size_of_block(3 if quick else 50), taken)
    return taken


_TAKEN: Final[dict[tuple[int, bool], Mapping[Side, list[float]]]] = {}


def at(depth: int, what: str) -> Callable[[Path, bool], Measured]:
    """*what* at *depth*, ours beside SQLite doing it too; but the fused cycle beside SQLite's two commits, since that
    is what it saves.
    """

    def measure(place: Path, quick: bool) -> Measured:
        if (depth, quick) not in _TAKEN:
            _TAKEN[depth, quick] = _measured(place, depth, quick=quick)
        taken = _TAKEN[depth, quick]
        plain = CYCLE if what == FUSED else what
        sides = {OURS: Side(OURS, what), SQLITE: Side(SQLITE, plain), HUEY: Side(HUEY, plain)}
        if what == FUSED:
            sides["sqlite_fused"] = Side(SQLITE, FUSED)
        ms = {name: statistics.median(taken[side]) * 1000 for name, side in sides.items()}
        more = {f"{name}_per_second": round(len(taken[side]) / sum(taken[side]), 1) for name, side in sides.items()}
        for name in [name for name in sides if name not in (OURS, SQLITE)]:
            more |= {f"{name}_ms": round(ms[name], 4), f"over_{name}": round(ms[OURS] / ms[name], 2)}
        return Measured(ms[OURS], ms[SQLITE], "ms", more)

    return measure
