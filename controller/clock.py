"""The only reader of time. Everything else is given a `Clock`, or a number that one returned."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from. Does not promise that `now_ms` never goes back: wall clocks do."""

    def now_ms(self) -> int:
        """UTC milliseconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back, comparable only inside one boot."""
        ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class FakeClock:
    """A clock that moves only when told to. `sleep` moves it, so nothing waits in a test."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 1_000.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Raises ValueError for a negative number, as the system does."""
        if seconds < 0:
            raise ValueError(f"nobody can sleep {seconds} seconds")
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self._monotonic += seconds
        self._now_ms += round(seconds * 1000)

    def jump(self, seconds: float) -> None:
        """Move the wall clock alone, as an operator or a time server does."""
        self._now_ms += round(seconds * 1000)
