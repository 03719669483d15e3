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

from controller.model.inventory import SeenStep
from controller.provider.local.exchange import Ask, NotListening, Op, connect
from controller.provider.local.places import is_worker_name
from controller.provider.protocol import News, Pushed

_RESCAN: Final = 0.25
_LONGEST_END: Final = 1 << 20
_END = msgspec.json.Decoder(SeenStep)


class _Watch:
    """One connection: what came of a line that is not whole yet stays here."""

    def __init__(self, slot: int, connection: socket.socket) -> None:
        self.slot = slot
        self.connection = connection
        self._begun = b""

    def read(self) -> tuple[tuple[Pushed, ...], bool]:
        """The ends that came, and whether the supervisor still talks, and sense."""
        ends: list[Pushed] = []
        try:
            while part := self.connection.recv(1 << 16):
                *lines, self._begun = (self._begun + part).split(b"\n")
                # One by one: the ends before a line that makes no sense are told.
                ends.extend(Pushed(self.slot, _END.decode(line)) for line in lines)
                if len(self._begun) > _LONGEST_END:
                    return tuple(ends), False
        except BlockingIOError:
            return tuple(ends), True
        except (OSError, msgspec.MsgspecError):
            return tuple(ends), False
        return tuple(ends), False


class Watches:
    def __init__(self, workers: str, interrupt: int) -> None:
        self._workers = workers
        self._interrupt = interrupt
        self._open: dict[str, _Watch] = {}

    def wait(self, seconds: float) -> News:
        """What came within *seconds*. Other workers that begin to listen meanwhile are heard too."""
        while True:
            self._subscribe()
            span = min(seconds, _RESCAN)
            news = self._poll(span)
            seconds -= span
            if news or seconds <= 0:
                return news

    def _subscribe(self) -> None:
        try:
            names = os.listdir(self._workers)
        except OSError:
            return  # there are none yet, or the next look says what is wrong
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
                self._open[name] = _Watch(int(name.partition("-")[0]), connection)

    def _poll(self, seconds: float) -> News:
        poll = select.poll()
        poll.register(self._interrupt, select.POLLIN)
        names = {watch.connection.fileno(): name for name, watch in self._open.items()}
        for descriptor in names:
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(max(0, round(seconds * 1000)))]
        heard = tuple(self._read(names[descriptor]) for descriptor in ready if descriptor in names)
        ends = tuple(end for ends, _ in heard for end in ends)
        return News(self._interrupt in ready or not all(talks for _, talks in heard), ends)

    def _read(self, name: str) -> tuple[tuple[Pushed, ...], bool]:
        watch = self._open[name]
        ends, talks = watch.read()
        if not talks:
            del self._open[name]
            watch.connection.close()
        return ends, talks

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].connection.close()
