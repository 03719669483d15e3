"""Waiting for news from supervisors: they push each step's end, and their own is the end of the connection.

Not promised: news of a worker whose supervisor ended before the first wait that would have heard of it; the next look
tells.

Connections stay open between waits, so that an end between two of them is heard by the second.
"""

from __future__ import annotations

import os
import select
import socket
from typing import Final

import msgspec

from controller.provider.local.exchange import Ask, NotListening, Op, connect
from controller.provider.local.places import is_worker_name

_RESCAN: Final = 1.0


class Watches:
    def __init__(self, workers: str, interrupt: int) -> None:
        self._workers = workers
        self._interrupt = interrupt
        self._open: dict[str, socket.socket] = {}

    def wait(self, seconds: float) -> bool:
        """Whether something came within *seconds*. Other workers that begin to listen meanwhile are heard too."""
        while True:
            self._subscribe()
            span = min(seconds, _RESCAN)
            ready = self._poll(span)
            seconds -= span
            if ready or seconds <= 0:
                return ready

    def _subscribe(self) -> None:
        try:
            names = os.listdir(self._workers)
        except FileNotFoundError:
            return
        for name in names:
            if name not in self._open and is_worker_name(name):
                try:
                    connection = connect(os.path.join(self._workers, name))
                except (NotListening, OSError):
                    continue
                try:
                    connection.send(msgspec.json.encode(Ask(Op.WATCH)) + b"\n")
                except OSError:
                    connection.close()
                    continue
                self._open[name] = connection

    def _poll(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._interrupt, select.POLLIN)
        names = {connection.fileno(): name for name, connection in self._open.items()}
        for descriptor in names:
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(max(0, round(seconds * 1000)))]
        for descriptor in ready:
            if descriptor in names and not self._drain(self._open[names[descriptor]]):
                self._open.pop(names[descriptor]).close()
        return bool(ready)

    @staticmethod
    def _drain(connection: socket.socket) -> bool:
        """Whether the supervisor still talks."""
        try:
            while part := connection.recv(1 << 16):
                if len(part) < 1 << 16:
                    return True
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()
