"""The queue beside plain SQLite and huey.

Not promised: that the peers do what we do: `benchmarks.peers` says what they leave out.

One measurement at a depth gives four figures: adding a run; claiming and completing one as two commits; completing one
with the next claim in the same commit; and ten at a time. All come from the same blocks, and each block takes as many
runs away as it adds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from benchmarks.fleets import stocked
from benchmarks.measuring import OURS, Broken, Measured, faster, seconds_of, size_of_block, turns
from benchmarks.peers import PAYLOAD, RESULT, TEN, FusedQueue, Huey, Peer, Queue, Table
from controller.api.claims import Claim
from controller.api.handle import Controller

SQLITE: Final = "sqlite"
HUEY: Final = "huey"

ENQUEUE: Final = "enqueue"
CYCLE: Final = "cycle"
FUSED: Final = "fused"
TENS: Final = "ten"

_PLAIN: Final = {ENQUEUE: ENQUEUE, CYCLE: CYCLE, FUSED: CYCLE, TENS: CYCLE}
"""What SQLite and huey do beside each of ours: what fewer commits save is shown beside their two commits a run."""


class Ours:
    """The library, as a program uses it that is producer and consumer at once."""

    def __init__(self, directory: Path) -> None:
        self._fleet = Controller.open(directory)
        self._queue = self._fleet.queue()
        self._held: tuple[Claim, ...] = ()

    def enqueue(self) -> None:
        self._fleet.submit(payload=PAYLOAD)

    def cycle(self) -> None:
        self.begin()
        self.end()

    def begin(self) -> None:
        self._take(self._queue.claim(owner="bench"))

    def fused(self) -> None:
        for claim in self._held:
            self._take(claim.complete(result=RESULT, claim_next=True))

    def end(self) -> None:
        for claim in self._held:
            claim.complete(result=RESULT)

    def several(self) -> None:
        self._take(*self._queue.claim_many(TEN, owner="bench"))
        if any(each.error for each in self._queue.complete_many(self._held, [RESULT] * len(self._held))):
            raise Broken("our queue refused an end")

    def _take(self, *claims: Claim) -> None:
        if not claims or any(claim.payload != PAYLOAD for claim in claims):
            raise Broken("our queue had nothing to claim")
        self._held = claims


def _block(queue: Queue, who: str, what: str, count: int, taken: Mapping[str, list[float]]) -> None:
    """Add *count* runs and take as many away. Seconds are those of one run."""
    count = max(count, TEN) // TEN * TEN if what == TENS else count
    taken[f"{who} {ENQUEUE}"].extend(seconds_of(queue.enqueue) for _ in range(count))
    ways = taken[f"{who} {what}"]
    if not isinstance(queue, FusedQueue) or what == CYCLE:
        ways.extend(seconds_of(queue.cycle) for _ in range(count))
    elif what == FUSED:
        queue.begin()
        ways.extend(seconds_of(queue.fused) for _ in range(count - 1))
        queue.end()
    else:
        ways.extend(seconds_of(queue.several) / TEN for _ in range(count // TEN))


def _measured(place: Path, depth: int, *, quick: bool) -> Mapping[str, list[float]]:
    """Seconds for a run, by who does what, at from *depth* to *depth* and one block of queued runs."""
    depth = min(depth, 1000) if quick else depth
    peers: Mapping[str, Peer] = {SQLITE: Table(place, quick=quick), HUEY: Huey(place, quick=quick)}
    for peer in peers.values():
        peer.fill(depth)
    queues: Mapping[str, Queue] = {OURS: Ours(stocked(place, depth)), **peers}
    sides = [(who, what) for who, queue in queues.items() for what in (CYCLE, FUSED, TENS)]
    sides = [(who, what) for who, what in sides if what == CYCLE or isinstance(queues[who], FusedQueue)]
    taken: Mapping[str, list[float]] = defaultdict(list)
    for who, what in sides:
        _block(queues[who], who, what, 2 if quick else 50, defaultdict(list))
    for who, what in turns(sides, 1 if quick else 20, seconds=60):
        _block(queues[who], who, what, size_of_block(3 if quick else 50), taken)
    return taken


_TAKEN: Final[dict[tuple[int, bool], Mapping[str, list[float]]]] = {}


def at(depth: int, what: str) -> Callable[[Path, bool], Measured]:
    """*what* at *depth*, by medians; `more` has what a second had, pauses of the disk included."""

    def measure(place: Path, quick: bool) -> Measured:
        if (depth, quick) not in _TAKEN:
            _TAKEN[depth, quick] = _measured(place, depth, quick=quick)
        taken = _TAKEN[depth, quick]
        ours, plain = f"{OURS} {what}", _PLAIN[what]
        values = {who: faster(taken, f"{who} {plain}", ours=ours) for who in (SQLITE, HUEY)}
        if what != plain:
            values[f"{SQLITE}_{what}"] = faster(taken, f"{SQLITE} {what}", ours=ours)
        more = {f"{who}_overall": round(len(each) / sum(each), 1) for who, each in _overall(taken, what).items()}
        return Measured(values, more)

    return measure


def _overall(taken: Mapping[str, list[float]], what: str) -> Mapping[str, list[float]]:
    return {OURS: taken[f"{OURS} {what}"]} | {who: taken[f"{who} {_PLAIN[what]}"] for who in (SQLITE, HUEY)}
