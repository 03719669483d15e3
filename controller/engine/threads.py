"""Work for threads of a pool, also where the system gives none.

Not promised: that nothing of it was done when it could not be begun: a thread of the pool may just have been free.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from controller.model.errors import Exhausted

T = TypeVar("T")


def begun(pool: ThreadPoolExecutor, work: Callable[[], T], *, then: Callable[[], object] = bool) -> Future[T]:
    """*work*, on a thread of *pool*; without one, a future that has failed with Exhausted.

    *then* is called at its end, or at once. The pool keeps what it found no thread for, and would do it at some later
    time, when nobody waits for it any more: then it fails the same way.
    """
    given_up = False
    none = Exhausted("no thread could be started to ask the provider", next="run it again; see `ulimit -u`")

    def unless_given_up() -> T:
        if given_up:
            raise none
        return work()

    try:
        future = pool.submit(unless_given_up)
    except RuntimeError:
        given_up = True
        future = Future()
        future.set_exception(none)
    future.add_done_callback(lambda _: then())
    return future
