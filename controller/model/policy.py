"""What the configuration decides, as plain values. Durations are milliseconds."""

from __future__ import annotations

from msgspec import Struct


class Backoff(Struct, frozen=True):
    """Capped exponential delays: *initial* times *factor* per attempt, at most *cap*, then full jitter."""

    initial_ms: int
    cap_ms: int
    factor: float = 2.0


class Policy(Struct, frozen=True):
    """How the fleet is run. `grace_ms`: how long after being made, or sent, "absent" proves nothing."""

    slots: int = 4
    queues: tuple[str, ...] = ("fleet",)
    idle_ms: int = 30_000
    grace_ms: int = 60_000
    kill_grace_ms: int = 5_000
    retry: Backoff = Backoff(1_000, 300_000)
    create: Backoff = Backoff(1_000, 300_000)
    send: Backoff = Backoff(1_000, 60_000)


def still_waits(until: int | None, now: int, cap_ms: int) -> bool:
    """Whether a wait that a policy with this cap computed is not over. A longer one means that the clock went back."""
    return until is not None and 0 < until - now <= cap_ms
