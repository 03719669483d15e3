"""Processes that wait for runs of one queue: which of them gets one, and what happens when that one is gone."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Raw

from controller.clock import SystemClock
from controller.engine.queue import Context, submit
from controller.engine.submission import Submission
from controller.provider.process import boot_id
from controller.store.waiters import Waiters
from tests.store import kit
from tests.store.test_processes import ROOT

PROGRAM = textwrap.dedent(
    f"""
    import os, signal, sys, threading
    from pathlib import Path
    sys.path.insert(0, {str(ROOT)!r})
    from controller.clock import SystemClock
    from controller.engine.claiming import claim_waiting
    from controller.engine.queue import Context
    from controller.provider.process import boot_id
    from controller.store.waiters import Waiters, Waiting
    from tests.store import kit
    directory, count, dies = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "dies"
    stopped, told = threading.Event(), threading.Event()
    import filelock

    def say(*words):
        os.write(1, (" ".join(words) + "\\n").encode())

    class Watched(Waiting):
        in_line = False

        def wait(self, seconds):
            if not self.in_line:
                self.in_line = True
                say("waits")
            woken = super().wait(seconds)
            if woken and dies:
                os.kill(os.getpid(), signal.SIGKILL)
            return woken

    class Watching(Waiters):
        def waiting(self, queue):
            return Watched(self, queue)

    def claim(number):
        if dies:
            with Watching(directory).waiting("default") as waiter:
                while not stopped.is_set():
                    waiter.wait(1)
            return
        store = kit.opened(directory)
        waiters = Watching(directory)
        context = Context(store, SystemClock(), "claim", boot_id=boot_id(), waiters=waiters, lock_timeout=60)
        runs = claim_waiting(
            context, waiters, "default", owner=f"{{os.getpid()}}.{{number}}", lease_ms=60_000, count=1, wait_ms=120_000,
            stop=stopped.is_set,
        )
        say(*(f"got {{run.id}}" for run in runs), *(["nothing"] if not runs else []))

    threads = [threading.Thread(target=claim, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stopped.set()
    for thread in threads:
        thread.join()
    """
)


class Program:
    """A process in which some threads wait for a run each. It stops waiting when its stdin ends."""

    def __init__(self, directory: Path, count: int, *, dies: bool) -> None:
        argv = [sys.executable, "-c", PROGRAM, str(directory), str(count), "dies" if dies else "lives"]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        self.out = self.process.stdout
        assert [self.line() for _ in range(count)] == ["waits"] * count

    def line(self) -> str:
        return self.out.readline().strip()

    def rest(self) -> list[str]:
        return self.process.communicate(timeout=60)[0].split("\n")[:-1]


class Host:
    """A state directory, and processes that wait for its queue."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.programs: list[Program] = []
        store = kit.fleet(directory)
        self.context = Context(store, SystemClock(), "submit", boot_id=boot_id(), waiters=Waiters(directory))

    def start(self, count: int = 1, *, dies: bool = False) -> Program:
        self.programs.append(Program(self.directory, count, dies=dies))
        return self.programs[-1]

    def submit(self, *ids: str) -> None:
        submit(self.context, [Submission(id=each, payload=Raw(b"1")) for each in ids])


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path / "s")
    yield host
    for program in host.programs:
        with program.process as process:
            process.kill()


def test_of_ten_waiters_in_two_processes_one_gets_the_run(host: Host) -> None:
    both = host.start(5), host.start(5)
    host.submit("r-1")
    speaks = {program.out: program for program in both}
    first = speaks[select.select(list(speaks), [], [], 60)[0][0]]
    assert first.line() == "got r-1"
    assert [line for program in both for line in program.rest()] == ["nothing"] * 9


def test_ten_waiters_in_two_processes_get_ten_runs(host: Host) -> None:
    both = host.start(5), host.start(5)
    host.submit(*(f"r-{number}" for number in range(4)))
    for number in range(4, 10):
        host.submit(f"r-{number}")
    got = [program.line() for program in both for _ in range(5)]
    assert sorted(got) == [f"got r-{number}" for number in range(10)]
    assert [program.rest() for program in both] == [[], []]
    assert not Waiters(host.directory).anybody()


def test_a_run_whose_waiter_dies_as_it_is_woken_goes_to_the_next(host: Host) -> None:
    doomed, other = host.start(dies=True), host.start()
    host.submit("r-1")
    assert doomed.process.wait(60) == -signal.SIGKILL
    assert other.line() == "got r-1"


def test_a_run_whose_waiter_is_stopped_goes_to_the_next(host: Host) -> None:
    stopped, other = host.start(), host.start()
    stopped.process.send_signal(signal.SIGSTOP)
    host.submit("r-1")
    assert other.line() == "got r-1"
    stopped.process.send_signal(signal.SIGCONT)
    host.submit("r-2")
    assert stopped.line() == "got r-2"
