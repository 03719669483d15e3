"""News from supervisors: whole lines only, each end once, and the end of a connection is something to look into."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from controller.model.inventory import SeenStep, StepSeen
from controller.provider.local import watch
from controller.provider.local.places import SOCKET
from controller.provider.local.watch import Watches
from controller.provider.protocol import News, Pushed


class Talker:
    """A supervisor that says what a test says."""

    def __init__(self, workers: Path, name: str) -> None:
        self.slot = int(name.partition("-")[0])
        (workers / name).mkdir(parents=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(workers / name / SOCKET))
        self._listener.listen(8)
        self._listener.settimeout(10)
        self._peers: list[socket.socket] = []

    def accept(self) -> socket.socket:
        """The next who watches, after it has said so."""
        peer, _ = self._listener.accept()
        peer.settimeout(10)
        assert b'"watch"' in peer.recv(4096)
        self._peers.append(peer)
        return peer

    def close(self) -> None:
        for closing in (self._listener, *self._peers):
            closing.close()


class Listening:
    def __init__(self, place: Path) -> None:
        self.workers = place
        self._interrupt, self.interrupt_end = os.pipe()
        self.watches = Watches(str(place), self._interrupt)
        self.talkers: list[Talker] = []

    def talker(self, name: str = "1-a-1") -> Talker:
        made = Talker(self.workers, name)
        self.talkers.append(made)
        return made

    def wait(self, seconds: float = 10) -> News:
        return self.watches.wait(seconds)

    def subscribe(self) -> None:
        assert not self.wait(0.01)

    def close(self) -> None:
        self.watches.close()
        for talker in self.talkers:
            talker.close()
        os.close(self._interrupt)
        os.close(self.interrupt_end)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    made = Listening(tmp_path)
    try:
        yield made
    finally:
        made.close()


def end(key: str, code: int = 0) -> SeenStep:
    return SeenStep(key, StepSeen.EXITED, exit_code=code)


def line(step: SeenStep) -> bytes:
    return msgspec.json.encode(step) + b"\n"


def test_an_end_is_told_with_its_slot_and_needs_no_look(listening: Listening) -> None:
    talker = listening.talker("7-a-1")
    listening.subscribe()
    talker.accept().send(line(end("k", 3)))
    assert listening.wait() == News(look=False, ends=(Pushed(7, end("k", 3)),))


def test_several_ends_in_one_read_are_all_told_in_order(listening: Listening) -> None:
    talker = listening.talker()
    listening.subscribe()
    talker.accept().send(line(end("k1")) + line(end("k2", 1)) + line(end("k3", 2)))
    assert [pushed.step for pushed in listening.wait().ends] == [end("k1"), end("k2", 1), end("k3", 2)]


def test_ends_of_several_workers_are_told_together(listening: Listening) -> None:
    first, second = listening.talker("1-a-1"), listening.talker("2-a-2")
    listening.subscribe()
    for talker, key in ((first, "k1"), (second, "k2")):
        talker.accept().send(line(end(key)))
    told = sorted((pushed.slot, pushed.step.idempotency_key) for pushed in listening.wait().ends)
    assert told == [(1, "k1"), (2, "k2")]


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_part_of_a_line_is_no_news_until_the_rest_has_come(listening: Listening, cut: int) -> None:
    talker = listening.talker()
    listening.subscribe()
    peer = talker.accept()
    whole = line(end("k1")) + line(end("k2"))
    at = len(line(end("k1"))) + cut
    peer.send(whole[:cut])
    assert not listening.wait(0.05)
    peer.send(whole[cut:at])
    assert [pushed.step for pushed in listening.wait(10).ends] == [end("k1")]
    peer.send(whole[at:])
    assert [pushed.step for pushed in listening.wait().ends] == [end("k2")]


def test_the_end_of_a_connection_is_something_to_look_into_once(listening: Listening) -> None:
    talker = listening.talker()
    listening.subscribe()
    talker.accept()
    talker.close()
    assert listening.wait() == News(look=True)
    assert not listening.wait(0.05)


def test_ends_that_come_with_the_end_of_a_connection_are_told_too(listening: Listening) -> None:
    talker = listening.talker()
    listening.subscribe()
    talker.accept().send(line(end("k1")) + b'{"idempotency_key":')
    talker.close()
    assert listening.wait() == News(look=True, ends=(Pushed(1, end("k1")),))


@pytest.mark.parametrize("noise", [b"hello\n", b"\xff\xfe\n", b"{}\n", b"[]\n", b"\n", b'{"idempotency_key":1}\n'])
def test_one_who_talks_nonsense_is_left_and_looked_into(listening: Listening, noise: bytes) -> None:
    talker = listening.talker()
    listening.subscribe()
    peer = talker.accept()
    peer.send(line(end("k1")) + noise + line(end("k2")))
    assert listening.wait() == News(look=True, ends=(Pushed(1, end("k1")),))
    assert peer.recv(1) == b""


def test_one_who_never_ends_a_line_is_left(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_LONGEST_END", 1_000)
    talker = listening.talker()
    listening.subscribe()
    peer = talker.accept()
    peer.send(b'{"idempotency_key":"' + b"k" * 2_000)
    assert listening.wait() == News(look=True)
    assert peer.recv(1) == b""


def test_one_whose_connection_ended_is_heard_again_by_another(listening: Listening) -> None:
    talker = listening.talker()
    listening.subscribe()
    talker.accept().close()
    assert listening.wait() == News(look=True)
    listening.subscribe()
    talker.accept().send(line(end("k")))
    assert [pushed.step for pushed in listening.wait().ends] == [end("k")]


def test_a_worker_that_comes_while_it_is_waited_is_heard(listening: Listening) -> None:
    from threading import Timer

    made: list[Talker] = []

    def come() -> None:
        made.append(listening.talker())
        made[0].accept().send(line(end("k")))

    timer = Timer(0.05, come)
    timer.start()
    assert [pushed.step for pushed in listening.wait(30).ends] == [end("k")]
    timer.join()


def test_an_interrupt_ends_a_wait(listening: Listening) -> None:
    os.write(listening.interrupt_end, b"i")
    assert listening.wait(30)


def test_a_place_that_cannot_be_listed_has_no_news(tmp_path: Path) -> None:
    (tmp_path / "workers").write_text("a file in the way")
    interrupt, interrupt_end = os.pipe()
    assert not Watches(str(tmp_path / "workers"), interrupt).wait(0.01)
    os.close(interrupt)
    os.close(interrupt_end)
