"""How long to wait before trying again: capped exponential with full jitter."""

from __future__ import annotations

from math import log
from typing import Protocol


class Random(Protocol):
    """Where chance comes from; injected, so that a test decides it."""

    def random(self) -> float:
        """A number of [0, 1)."""


def ceiling_ms(attempt: int, *, initial_ms: int, cap_ms: int, factor: float = 2.0) -> int:
    """The longest wait in ms after *attempt* (the first is 1): *initial_ms* times *factor* per later one, capped.

    Total: every integer has an answer, and none is above *cap_ms* or below 0.
    """
    cap = max(0, cap_ms)
    first = min(cap, max(0, initial_ms))
    raises = max(0, attempt - 1)
    if first == 0 or raises == 0 or factor <= 1:
        return first
    # Compared as logarithms: the power of a huge attempt is no float.
    if min(raises, 1 << 62) * log(factor) >= log(cap) - log(first):
        return cap
    return min(cap, int(first * factor**raises))


def delay_ms(
    attempt: int, *, initial_ms: int, cap_ms: int, factor: float = 2.0, jitter: float = 1.0, generator: Random
) -> int:
    """A wait of at most `ceiling_ms`, of which the share *jitter*, 0 to 1, is drawn evenly.

    Full jitter, 1, gives 0 to the ceiling: those who failed together do not come back together.
    """
    ceiling = ceiling_ms(attempt, initial_ms=initial_ms, cap_ms=cap_ms, factor=factor)
    drawn = int(ceiling * min(1.0, max(0.0, jitter)))
    return ceiling - drawn + min(drawn, int(generator.random() * (drawn + 1)))
