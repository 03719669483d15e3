"""Waiters of a queue: who is woken, who is passed over, and what is left behind. Real FIFOs, and real processes."""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from controller.clock import FakeClock
from controller.store.waiters import POLL, Waiters, Waiting
from tests.store import kit
from tests.store.test_processes import ROOT, needs_strace

QUEUE = "mail.out"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "waiters"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def waiters(tmp_path: Path, clock: FakeClock) -> Waiters:
    return Waiters(tmp_path, clock=clock)


@pytest.fixture
def stand(waiters: Waiters, clock: FakeClock) -> Iterator[Callable[..., Waiting]]:
    """Stands one more waiter in line, a second after the one before."""
    with ExitStack() as stack:

        def another(queue: str = QUEUE) -> Waiting:
            clock.advance(1.0)
            return stack.enter_context(waiters.waiting(queue))

        yield another


def told(*waiting: Waiting) -> list[bool]:
    return [each.wait(0) for each in waiting]


Stand = Callable[..., Waiting]


class TestWhoIsWoken:
    def test_whoever_has_waited_longest(self, waiters: Waiters, stand: Stand) -> None:
        first, second, third = stand(), stand(), stand()
        assert waiters.wake(QUEUE, 1) == 1
        assert told(first, second, third) == [True, False, False]

    def test_two_submits_wake_two(self, waiters: Waiters, stand: Stand) -> None:
        first, second, third = stand(), stand(), stand()
        assert (waiters.wake(QUEUE, 1), waiters.wake(QUEUE, 1)) == (1, 1)
        assert told(first, second, third) == [True, True, False]

    def test_no_more_than_there_are(self, waiters: Waiters, stand: Stand) -> None:
        both = stand(), stand()
        assert (waiters.wake(QUEUE, 5), waiters.wake(QUEUE, 5)) == (2, 0)
        assert told(*both) == [True, True]
        assert told(*both) == [False, False]

    def test_nobody_of_another_queue(self, waiters: Waiters, stand: Stand) -> None:
        """Also one whose name begins, or ends, in the same way."""
        others = stand("mail"), stand("out"), stand(f"{QUEUE}.1")
        assert waiters.wake(QUEUE, 5) == 0
        assert told(*others) == [False, False, False]

    def test_nobody_at_all_for_nothing(self, waiters: Waiters, stand: Stand) -> None:
        assert (waiters.wake(QUEUE, 0), told(stand())) == (0, [False])

    def test_what_comes_while_a_woken_waiter_looks_wakes_it_again(self, waiters: Waiters, stand: Stand) -> None:
        first = stand()
        waiters.wake(QUEUE, 1)
        assert first.wait(0)
        waiters.wake(QUEUE, 1)
        assert first.wait(0)

    def test_a_woken_waiter_that_got_nothing_keeps_its_place(self, waiters: Waiters, stand: Stand) -> None:
        first, second = stand(), stand()
        waiters.wake(QUEUE, 1)
        assert first.wait(0)
        assert (first.first(), second.first()) == (True, False)

    def test_whoever_leaves_without_being_told_passes_it_on(self, waiters: Waiters, stand: Stand) -> None:
        with waiters.waiting(QUEUE):
            second = stand()
            waiters.wake(QUEUE, 1)
            assert told(second) == [False]
        assert told(second) == [True]

    def test_whoever_was_told_passes_nothing_on(self, waiters: Waiters, stand: Stand) -> None:
        with waiters.waiting(QUEUE) as first:
            second = stand()
            waiters.wake(QUEUE, 1)
            assert first.wait(0)
        assert told(second) == [False]

    def test_whoever_closes_is_asked_whether_somebody_else_must_be_told(self, waiters: Waiters, stand: Stand) -> None:
        first, second = stand(), stand()
        waiters.wake(QUEUE, 1)
        assert (first.close(), second.close()) == (True, False)
        assert (first.close(), waiters.wake(QUEUE, 9)) == (False, 0)

    def test_of_two_that_would_wake_the_same_waiter_one_wakes_the_next(
        self, waiters: Waiters, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second, third = stand(), stand(), stand()
        unlink = os.unlink

        def beaten(path: Path) -> None:
            monkeypatch.setattr(os, "unlink", unlink)
            assert waiters.wake(QUEUE, 1) == 1
            unlink(path)

        monkeypatch.setattr(os, "unlink", beaten)
        assert waiters.wake(QUEUE, 1) == 1
        assert told(first, second, third) == [True, True, False]


class TestALostNotification:
    def test_a_waker_that_died_before_it_wrote_is_noticed(self, waiters: Waiters, place: Path, stand: Stand) -> None:
        first = stand()
        (place / waiters.in_line(QUEUE)[0]).unlink()
        assert told(first) == [True]
        assert (waiters.wake(QUEUE, 1), told(first)) == (1, [True])

    def test_a_directory_that_was_removed_leaves_a_waiter_that_polls(
        self, place: Path, stand: Stand, clock: FakeClock
    ) -> None:
        first = stand()
        for name in list(place.iterdir()):
            name.unlink()
        place.rmdir()
        assert told(first) == [True]
        assert not first.listed
        before = clock.monotonic()
        assert not first.wait(10)
        assert clock.monotonic() - before == POLL

    def test_a_full_fifo_does_not_block_whoever_wakes(self, waiters: Waiters, place: Path, stand: Stand) -> None:
        first = stand()
        with suppress(BlockingIOError):
            while os.write(first.fileno(), b"\0" * 4096):
                pass
        assert waiters.wake(QUEUE, 1) == 1
        assert first.wait(0)


class TestTheLongestWaiting:
    def test_is_the_one_that_looks_for_all(self, stand: Stand) -> None:
        first, second, other = stand(), stand(), stand("other")
        assert [each.first() for each in (first, second, other)] == [True, False, True]

    def test_is_the_next_one_once_it_leaves(self, stand: Stand) -> None:
        first, second, third = stand(), stand(), stand()
        assert not third.first()
        first.close()
        assert [each.first() for each in (second, third)] == [True, False]

    def test_is_the_next_one_while_it_is_chosen_and_does_not_come(self, waiters: Waiters, stand: Stand) -> None:
        first, second = stand(), stand()
        waiters.wake(QUEUE, 1)
        assert second.first()
        assert told(first) == [True]
        assert not second.first()


class TestTheDirectory:
    def test_nobody_but_a_waiter_makes_it(self, waiters: Waiters, place: Path) -> None:
        assert (waiters.wake(QUEUE, 1), waiters.anybody()) == (0, False)
        assert not place.exists()

    def test_it_is_private_whatever_the_umask(self, waiters: Waiters, place: Path) -> None:
        before = os.umask(0)
        try:
            with waiters.waiting(QUEUE) as waiter:
                modes = {stat.S_IMODE(os.stat(name).st_mode) for name in place.iterdir()}
                assert (waiter.listed, stat.S_IMODE(os.stat(place).st_mode), modes) == (True, 0o700, {0o600})
            os.umask(0o777)
            with Waiters(place.parent).waiting(QUEUE) as waiter:
                assert waiter.listed
        finally:
            os.umask(before)

    def test_nothing_stays_in_it(self, waiters: Waiters, place: Path) -> None:
        with waiters.waiting(QUEUE), waiters.waiting("other"):
            assert waiters.anybody()
            waiters.wake("other", 1)
        assert (waiters.anybody(), list(place.iterdir())) == (False, [])

    def test_what_is_no_waiter_in_it_is_left_alone(self, waiters: Waiters, place: Path, stand: Stand) -> None:
        """Not even one with the name of a waiter that has waited longest of all."""
        place.mkdir()
        (place / f"0.1.1.{QUEUE}").write_text("a file")
        (place / f"0.1.2.{QUEUE}").mkdir()
        (place / f"0.1.3.{QUEUE}").symlink_to(place / "nowhere")
        for name in (QUEUE, f".1.1.{QUEUE}", f"1.1.{QUEUE}", f"1.-1.1.{QUEUE}", f"1.1.².{QUEUE}", ".swp"):
            (place / name).write_text("a file")
        before = sorted(entry.name for entry in place.iterdir())
        first = stand()
        assert (first.first(), waiters.wake(QUEUE, 3), told(first)) == (True, 1, [True])
        first.close()
        assert sorted(entry.name for entry in place.iterdir()) == before

    @pytest.mark.parametrize("queue", ["", "../default", "a/b", ".hidden", "x" * 65])
    def test_what_is_no_queue_gets_no_place_in_line(self, waiters: Waiters, tmp_path: Path, queue: str) -> None:
        with waiters.waiting(queue) as waiter:
            assert not waiter.listed
        assert list(tmp_path.iterdir()) == []

    @kit.needs_root
    def test_root_leaves_nothing_in_the_directory_of_somebody_else(self, waiters: Waiters, tmp_path: Path) -> None:
        os.chown(tmp_path, 4242, 4242)
        with waiters.waiting(QUEUE) as waiter:
            assert (waiter.listed, list(tmp_path.iterdir())) == (False, [])

    def test_no_program_that_is_started_inherits_a_place(self, stand: Stand) -> None:
        assert not os.get_inheritable(stand().fileno())

    def test_a_forked_child_that_leaves_takes_nobody_out_of_line(self, waiters: Waiters, stand: Stand) -> None:
        first = stand()
        child = os.fork()
        if child == 0:
            os._exit(first.close())
        assert os.waitpid(child, 0)[1] == 0
        assert (waiters.wake(QUEUE, 1), told(first)) == (1, [True])


class TestWhoeverCannotBeNotified:
    @pytest.mark.parametrize("call", ["mkdir", "mkfifo", "chmod", "link"])
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EMFILE])
    def test_waits_a_short_time_and_looks(
        self, waiters: Waiters, place: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, call: str, number: int
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, call, fail)
        with waiters.waiting(QUEUE) as waiter:
            before = clock.monotonic()
            assert (waiter.listed, waiter.first(), waiter.wait(10)) == (False, True, False)
            assert clock.monotonic() - before == POLL
            assert select.select([waiter], [], [], 0) == ([], [], [])
        assert not place.exists() or list(place.iterdir()) == []

    def test_waits_no_longer_than_it_wants_to(self, waiters: Waiters, clock: FakeClock) -> None:
        with waiters.waiting("") as waiter:
            before = clock.monotonic()
            waiter.wait(0.1)
            waiter.wait(-1)
            assert clock.monotonic() - before == pytest.approx(0.1)

    def test_does_without_descriptors_too(self, waiters: Waiters, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(os, "open", fail)
        monkeypatch.setattr(os, "eventfd", fail)
        with waiters.waiting(QUEUE) as waiter:
            assert (waiter.fileno(), waiter.wait(0)) == (-1, False)

    @pytest.mark.parametrize("call", ["listdir", "open", "unlink", "write"])
    def test_costs_whoever_would_wake_it_nothing(
        self, waiters: Waiters, stand: Stand, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        stand()

        def fail(*_: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(os, call, fail)
        assert waiters.wake(QUEUE, 1) == 0


def test_a_place_that_was_taken_for_that_of_a_dead_one_is_taken_again(
    waiters: Waiters, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process sees the FIFO before its maker has opened it."""
    chmod = os.chmod

    def seen(path: Path, mode: int) -> None:
        chmod(path, mode)
        if path != place:
            monkeypatch.setattr(os, "chmod", chmod)
            assert waiters.wake(QUEUE, 1) == 0
            assert list(place.iterdir()) == []

    monkeypatch.setattr(os, "chmod", seen)
    with waiters.waiting(QUEUE) as waiter:
        assert (waiter.listed, waiters.wake(QUEUE, 1), waiter.wait(0)) == (True, 1, True)
    assert list(place.iterdir()) == []


# --- Real processes ---------------------------------------------------------------------------------------------------

PROGRAM = textwrap.dedent(
    f"""
    import select, sys
    from contextlib import ExitStack
    from pathlib import Path
    sys.path.insert(0, {str(ROOT)!r})
    from controller.store.waiters import Waiters
    waiters = Waiters(Path(sys.argv[1]))
    with ExitStack() as stack:
        mine = [stack.enter_context(waiters.waiting(sys.argv[2])) for _ in range(int(sys.argv[3]))]
        print("in line", flush=True)
        done = False
        while not done:
            ready = select.select([*mine, sys.stdin], [], [])[0]
            done = sys.stdin in ready
            for waiter in mine:
                if waiter.wait(0):
                    print("woken", flush=True)
    """
)


class Program:
    """A process with some waiters, which prints a line whenever one is woken, until its stdin ends."""

    def __init__(self, directory: Path, count: int = 1, prefix: tuple[str, ...] = ()) -> None:
        argv = [*prefix, sys.executable, "-c", PROGRAM, str(directory), QUEUE, str(count)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def rest(self) -> list[str]:
        """What else it prints until it has ended."""
        return self.process.communicate(timeout=60)[0].split("\n")[:-1]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def started(count: int = 1) -> Program:
        programs.append(Program(tmp_path, count))
        assert programs[-1].line() == "in line"
        return programs[-1]

    yield started
    for program in programs:
        with program.process as process:
            process.kill()


Start = Callable[..., Program]


def test_of_ten_waiters_in_two_processes_one_run_wakes_exactly_one(tmp_path: Path, start: Start) -> None:
    older, younger = start(5), start(5)
    assert Waiters(tmp_path).wake(QUEUE, 1) == 1
    assert older.line() == "woken"
    assert (older.rest(), younger.rest()) == ([], [])


def test_ten_runs_wake_each_of_ten_waiters_in_two_processes_once(tmp_path: Path, start: Start) -> None:
    both = start(5), start(5)
    assert Waiters(tmp_path).wake(QUEUE, 10) == 10
    assert [program.rest() for program in both] == [["woken"] * 5] * 2
    assert not Waiters(tmp_path).anybody()


def test_killed_waiters_are_passed_over_and_what_they_left_is_removed(
    tmp_path: Path, place: Path, start: Start
) -> None:
    programs = [start() for _ in range(4)]
    programs[0].kill()
    programs[2].kill()
    assert len(list(place.iterdir())) == 8
    assert Waiters(tmp_path).wake(QUEUE, 2) == 2
    assert [programs[n].line() for n in (1, 3)] == ["woken", "woken"]
    assert [programs[n].rest() for n in (1, 3)] == [[], []]
    assert list(place.iterdir()) == []


def test_who_waits_behind_a_killed_waiter_has_waited_longest(tmp_path: Path, start: Start) -> None:
    killed = start()
    with Waiters(tmp_path).waiting(QUEUE) as second:
        assert not second.first()
        killed.kill()
        assert second.first()


def test_a_stopped_waiter_holds_nobody_up(tmp_path: Path, start: Start) -> None:
    stopped, other = start(), start()
    stopped.process.send_signal(signal.SIGSTOP)
    assert (Waiters(tmp_path).wake(QUEUE, 1), Waiters(tmp_path).wake(QUEUE, 1)) == (1, 1)
    assert other.line() == "woken"
    stopped.process.send_signal(signal.SIGCONT)
    assert stopped.line() == "woken"


@needs_strace
@pytest.mark.parametrize(("call", "least"), [("mknodat", 1), ("chmod", 2), ("link", 1), ("unlink", 2)])
def test_a_waiter_killed_at_any_call_leaves_nothing_that_the_next_wake_does_not_remove(
    tmp_path: Path, call: str, least: int
) -> None:
    for nth in range(1, 20):
        directory = tmp_path / f"s{nth}"
        directory.mkdir()
        what = (f"trace={call}", f"inject={call}:signal=SIGKILL:when={nth}")
        program = Program(directory, prefix=("strace", "-f", "-qq", "-o", "/dev/null", "-e", what[0], "-e", what[1]))
        program.rest()
        assert Waiters(directory).wake(QUEUE, 9) == 0
        left = directory / "waiters"
        assert not left.exists() or list(left.iterdir()) == []
        if program.process.returncode == 0:
            assert nth > least
            return
    pytest.fail("it never got to its end")
