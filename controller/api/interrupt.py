"""An exception that one thread raises in another: how a claim ends the work of its body.

Not promised: that it arrives while a call blocks, since it is raised at the next byte code; that it arrives at all
where Python drops exceptions (`__del__`, callbacks of weak references); that what it interrupts was written for that.

The interpreter keeps one such exception for a thread, and does not say whether it has arrived. So all bodies of a
thread share one `_Thread`: it sends one exception at a time, and none while the thread is shielded. That one arrived is
told by its class, which Python calls in the thread that it is raised in, before any handler runs there.

A hold of the document is shielded: interrupted at the wrong byte code, it would never be let go of.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from controller.model.errors import CancelRequested, LeaseLost


class _Here(threading.local):
    thread: _Thread | None = None


_here = _Here()


class _Thread:
    """The bodies that run in one thread, outermost first, and the exception that is on its way to it."""

    def __init__(self) -> None:
        import ctypes

        # A call that keeps the interpreter: nothing of the other thread runs between what is checked and what is set.
        self._set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
        self._reference = ctypes.py_object
        self._number = ctypes.c_ulong
        self.thread = threading.current_thread()
        self.lock = threading.Lock()
        self.bodies: list[Interrupt] = []
        self.shields = 0
        self._sent: Interrupt | None = None

    def settle(self) -> None:
        """Send what is wanted, or take back what no longer is. The lock must be held."""
        wanted = None
        if not self.shields:
            wanted = next((body for body in self.bodies if body.is_due()), None)
        if wanted is None and (self._sent is None or self._sent.arrived is not None):
            return
        self._sent = wanted
        if self.thread.ident is not None and self.thread.is_alive():
            kind = None if wanted is None else self._reference(wanted.kind)
            self._set_exception(self._number(self.thread.ident), kind)

    def raise_shield(self) -> None:
        """Nothing arrives once this has returned: what was on its way is kept, or has arrived in here."""
        with self.lock:
            self.shields += 1
            try:
                self.settle()
            except BaseException:
                self.shields -= 1
                raise

    def lower_shield(self) -> None:
        """What was kept arrives in here."""
        with self.lock:
            self.shields -= 1
            self.settle()


def shielded() -> AbstractContextManager[None]:
    """Nothing is sent to this thread meanwhile; what was to be arrives at the end. For a `with` at once."""
    thread = _here.thread
    return _NO_SHIELD if thread is None or not thread.bodies else _shield(thread)


@contextmanager
def _shield(thread: _Thread) -> Iterator[None]:
    thread.raise_shield()
    try:
        yield
    finally:
        thread.lower_shield()


_NO_SHIELD: Final = nullcontext()
"""Nobody sends anything to a thread without bodies, and no other thread begins one in it."""


class Interrupt:
    """What may end the body of one `with`, in the thread that called `begin`. `want` may be called by any thread.

    `error` is what is wanted, and `kind` its class: one of its own, so that nested bodies tell theirs apart. `arrived`
    is the exception itself, once it was raised.
    """

    def __init__(self) -> None:
        self.error: LeaseLost | CancelRequested | None = None
        self.kind: type[Exception] | None = None
        self.arrived: BaseException | None = None
        self._thread: _Thread | None = None
        self._ended = False
        self._shields = False

    def begin(self) -> None:
        """From here on this thread is interrupted by what is wanted."""
        if _here.thread is None:
            _here.thread = _Thread()
        self._thread = _here.thread
        with self._thread.lock:
            self._thread.bodies.append(self)
            self._thread.settle()

    def want(self, error: LeaseLost | CancelRequested) -> None:
        """Raise *error* in the body, once; before `begin` and after `end` it is kept. A lost lease outdoes a cancel."""
        thread = self._thread
        if thread is None:
            self._keep(error)
            return
        with thread.lock:
            self._keep(error)
            thread.settle()

    def _keep(self, error: LeaseLost | CancelRequested) -> None:
        if self.error is None or (isinstance(error, LeaseLost) and not isinstance(self.error, LeaseLost)):
            self.error, self.kind, self.arrived = error, _kind(error, self), None

    def is_due(self) -> bool:
        """Whether something is to be raised that was not yet."""
        return self.kind is not None and self.arrived is None and not self._ended

    def check(self) -> None:
        """Raise what is wanted, at once."""
        if self.kind is None:
            return
        error = self.kind()  # With that it has arrived, so it is not sent any more.
        if self._thread is not None:
            with self._thread.lock:
                self._thread.settle()
        raise error

    def end(self, *, shield: bool = False) -> None:
        """Nothing arrives for this body once this has returned. *shield*: nor for another, until `lower`.

        What was on its way may arrive in here: then it must be called again, until it returns.
        """
        thread = self._thread
        if thread is None:
            return
        with thread.lock:
            self._ended = True
            if shield and not self._shields:
                # No call in between: one would be a place for an exception to arrive.
                self._shields = True
                thread.shields += 1
            thread.bodies = [body for body in thread.bodies if body is not self]
            thread.settle()

    def lower(self) -> None:
        """End the shield of `end`. What was kept for a block around this one arrives in here."""
        if self._thread is not None and self._shields:
            self._shields = False
            self._thread.lower_shield()

    def has_thread(self) -> bool:
        """Whether the thread of the body lives."""
        return self._thread is not None and self._thread.thread.is_alive()


def interrupt_of(error: BaseException) -> Interrupt | None:
    """Whose body *error* was raised to end; None: it is any other exception."""
    found = getattr(type(error), "interrupt", None)
    return found if isinstance(found, Interrupt) else None


def _kind(error: LeaseLost | CancelRequested, interrupt: Interrupt) -> type[Exception]:
    """*error* as a class that needs no arguments: a class is all that can be sent to a thread."""
    base = type(error)

    def init(self: LeaseLost | CancelRequested) -> None:
        base.__init__(self, error.what, where=error.where, next=error.next)
        if interrupt.kind is type(self):
            interrupt.arrived = self

    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    return type(base.__name__, (base,), {**names, "__init__": init, "interrupt": interrupt})
