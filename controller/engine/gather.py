"""Answers of several slots, applied in one commit by one thread.

Not promised: that anybody takes an answer. Whoever offers one waits until it was applied or handed back, and applies it
alone then.

The alternative, each sender committing its own answer, costs a commit for each and has the threads of one process wait
for each other's file lock. The slot lock is held by the sender all the while, so an answer that waits here is as safe
as one that is being applied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from controller.engine.pending import Answer, Sent


class Waiting:
    """An answer and the sender that waits for what became of it. `settle` must be called exactly once."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        # A lock that is released once: an event would make another for each, and take both.
        self._settled = threading.Lock()
        self._settled.acquire()
        self._sent: Sent | None = None

    def settle(self, sent: Sent | None) -> None:
        """*sent* None: it was not applied, and its sender shall do it alone."""
        self._sent = sent
        self._settled.release()

    def result(self) -> Sent | None:
        with self._settled:
            return self._sent


class Gather:
    """Where senders offer and one thread takes. *wake* is called for each offer, in the sender's thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._guard = threading.Lock()
        self._waiting: list[Waiting] = []
        self._closed = False

    def __call__(self, answer: Answer) -> Sent | None:
        """Wait until *answer* was applied; None: apply it alone."""
        waiting = Waiting(answer)
        with self._guard:
            if self._closed:
                return None
            self._waiting.append(waiting)
        self._wake()
        return waiting.result()

    def take(self) -> tuple[Waiting, ...]:
        """Everything that waits. The caller must settle each."""
        with self._guard:
            taken, self._waiting = tuple(self._waiting), []
        return taken

    def close(self) -> None:
        """Nobody takes any more: what waits, and what comes later, is applied alone."""
        with self._guard:
            self._closed = True
        for waiting in self.take():
            waiting.settle(None)
