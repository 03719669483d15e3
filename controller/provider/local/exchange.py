"""What a client and a supervisor say to each other: one line of JSON each, over the Unix socket in the worker's
directory.

The line to the supervisor is an `Ask`; its answer to `mutate` and `hello` is an outcome of the provider protocol.
After `watch` the supervisor sends a line, the `SeenStep`, for each end that no action has settled yet, and then for
each end as it happens. The answer to an execute waits a moment for the end of its step; one that it told is told to
those who watch a little later, unless an action has settled it by then.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import msgspec
from msgspec import Raw, Struct

from controller.provider.local.places import SOCKET
from controller.provider.protocol import Outcome

LONGEST_LINE = 16 << 20
"""More than any argument list and environment that a program can be started with."""


class Op(StrEnum):
    HELLO = "hello"
    MUTATE = "mutate"
    WATCH = "watch"


class Ask(Struct, frozen=True):
    """`patience_ms`: answer `pending` by then. `grace_ms`: between TERM and KILL, for a deallocate."""

    op: Op
    action: Raw = Raw(b"null")
    patience_ms: int = 0
    grace_ms: int = 0


class Interrupted(Exception):
    """The caller gave up."""


class NotListening(Exception):
    """Nothing takes requests there now. Certainly nothing was sent."""


class NoAnswer(Exception):
    """What was sent may or may not have been done."""


@contextmanager
def short_path(directory: str) -> Iterator[str]:
    """The path of the socket in *directory* in a form that never exceeds the 108 bytes which the kernel takes."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def connect(directory: str) -> socket.socket:
    """A non-blocking connection to the supervisor in *directory*. Raises NotListening."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        with short_path(directory) as path:
            connection.connect(path)
    except OSError as error:
        connection.close()
        raise NotListening(os.strerror(error.errno or 0)) from error
    return connection


def exchange(directory: str, ask: Ask, seconds: float, interrupt: int) -> Outcome:
    """Ask and await the answer. Raises NotListening, NoAnswer, or Interrupted once *interrupt* is readable."""
    connection = connect(directory)
    with connection:
        _send(connection, msgspec.json.encode(ask) + b"\n", seconds, interrupt)
        answer = bytearray()
        while not answer.endswith(b"\n"):
            wait_for(connection, select.POLLIN, seconds, interrupt)
            try:
                part = connection.recv(1 << 16)
            except OSError as error:
                raise NoAnswer(os.strerror(error.errno or 0)) from error
            if not part:
                raise NoAnswer("the worker's supervisor ended in the middle of the call")
            answer += part
    try:
        return OUTCOMES.decode(answer)
    except msgspec.MsgspecError as error:
        raise NoAnswer(f"not an answer: {error}") from error


def wait_for(connection: socket.socket, event: int, seconds: float, interrupt: int) -> None:
    """Raises NoAnswer after *seconds*, Interrupted."""
    poll = select.poll()
    poll.register(connection, event)
    poll.register(interrupt, select.POLLIN)
    ready = dict(poll.poll(max(0, round(seconds * 1000))))
    if interrupt in ready:
        raise Interrupted
    if not ready:
        raise NoAnswer(f"the worker's supervisor did not answer within {seconds:g} s")


def _send(connection: socket.socket, line: bytes, seconds: float, interrupt: int) -> None:
    left = memoryview(line)
    while left:
        wait_for(connection, select.POLLOUT, seconds, interrupt)
        try:
            left = left[connection.send(left) :]
        except BlockingIOError:
            continue
        except OSError as error:
            raise NoAnswer(os.strerror(error.errno or 0)) from error


OUTCOMES: msgspec.json.Decoder[Outcome] = msgspec.json.Decoder(Outcome)
