"""What the configuration decides, as plain values. Durations are milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

FLEET_QUEUE: Final = "fleet"
"""Where commands go that name no queue; the fleet's, unless a setting says otherwise."""
DEFAULT_QUEUE: Final = "default"
"""Where payloads go that name no queue, and which consumers take from."""
LONGEST_LEASE_MS: Final = 86_400_000
MOST_CLAIMS: Final = 1_000
"""Runs that one claim takes at most."""


class Backoff(Struct, frozen=True):
    """Capped exponential delays: *initial* times *factor* per attempt, at most *cap*; then *jitter*, the share of it
    that is drawn at random. 1 is full jitter.
    """

    initial_ms: int
    cap_ms: int
    factor: float = 2.0
    jitter: float = 1.0


class QueuePolicy(Struct, frozen=True):
    """How the runs of one queue are treated, where their submitter or holder does not say.

    `crashes` None: as many as `attempts`. `lease_ms` is for consumers alone. Ended runs are forgotten after
    `retention_ms`, and the oldest beyond `retain`: of those that succeeded, and of the others, apart.
    """

    attempts: int = 1
    crashes: int | None = None
    backoff: Backoff = Backoff(1_000, 300_000)
    lease_ms: int = 60_000
    retention_ms: int = 30 * 86_400_000
    retain: int = 10_000


class Release(StrEnum):
    """What it takes to release a worker from its run: that the run is over, or a proof that its data may go."""

    AUTO = "auto"
    PROOF = "proof"


class Breaker(Struct, frozen=True):
    """After `failures` failed sends in a row nothing new is parked for `dwell_ms`; then one action is tried."""

    failures: int = 5
    dwell_ms: int = 30_000


class Policy(Struct, frozen=True):
    """How the fleet is run. `grace_ms`: how long after being made, or sent, "absent" proves nothing.

    At least `least` workers are kept, at most `most` made (None: one a slot). `max_runs` is how many runs a worker is
    given (0: no limit). `retain_failed`: the worker of a run that failed for good is stopped and kept. A stopped worker
    is removed `cooldown_ms` after a look found it dark; one that waits for its proof is stopped, not removed, once it
    was seen idle for `idle_release_ms`.
    """

    slots: int = 4
    queues: tuple[str, ...] = ("fleet",)
    idle_ms: int = 30_000
    grace_ms: int = 60_000
    kill_grace_ms: int = 5_000
    retry: Backoff = Backoff(1_000, 300_000)
    create: Backoff = Backoff(1_000, 300_000)
    send: Backoff = Backoff(1_000, 60_000)
    by_queue: Mapping[str, QueuePolicy] = {}
    least: int = 0
    most: int | None = None
    max_runs: int = 0
    release: Release = Release.AUTO
    retain_failed: bool = False
    cooldown_ms: int = 0
    idle_release_ms: int = 3_600_000
    breaker: Breaker = Breaker()

    @property
    def ceiling(self) -> int:
        """How many workers there may be at once."""
        return self.slots if self.most is None else min(self.slots, self.most)

    def of_queue(self, name: str) -> QueuePolicy:
        """The policy of a queue, also of one that no setting names."""
        return self.by_queue.get(name) or QueuePolicy(backoff=self.retry)


def still_waits(until: int | None, now: int, cap_ms: int) -> bool:
    """Whether a wait that a policy with this cap computed is not over. A longer one means that the clock went back."""
    return until is not None and 0 < until - now <= cap_ms
