"""One call of a provider program: started, recorded, given its request, listened to, ended. The home of `subprocess`.

Not promised: the end of a process that left its program's process group (a daemon with a session of its own is
nobody's to kill).

A program runs in a process group of its own, without a shell and without a descriptor of ours. It gets its request
only after its identity is recorded: a program without a request has done nothing. The call ends when the program
itself has exited, whoever still holds its pipes: what is in the pipe by then is the reply. Past its deadline, or
beyond the bound, its group is ended first.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import IO, Final

from msgspec import Struct

from controller.clock import Clock
from controller.model.process import ProcessIdentity
from controller.provider import program
from controller.provider.process import end_group, identify_child
from controller.provider.protocol import NotSent, Register
from controller.provider.wire import MAX_REPLY, excerpt

_STDERR_KEPT: Final = 4_096
_TERM_GRACE: Final = 1.0
_CHUNK: Final = 65_536
_DRAIN: Final = 2 * MAX_REPLY
"""Bytes read at most after the program's exit: a child of its own may write for ever."""
_TICK: Final = 0.02
"""Seconds between looks at a program on a kernel without pidfd_open; otherwise its exit wakes the call."""
_INTERRUPTS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGALRM, signal.SIGTERM)
"""Signals whose handlers raise, in this program or in one that uses it as a library."""


class End(Enum):
    EXITED = "exited"
    DEADLINE = "deadline"
    FLOOD = "flood"


class Answer(Struct, frozen=True):
    """How a program ended and what it said.

    `status`: its exit code, or minus its signal; None: nobody can know. `lives`: its group could not be ended.
    """

    end: End
    status: int | None
    stdout: bytes
    stderr: bytes
    identity: ProcessIdentity
    limit: float
    interrupted: bool = False
    lives: bool = False

    @property
    def trouble(self) -> str:
        """Why its stdout is no reply, in words; "" when it may be one."""
        if self.interrupted and self.status != 0:
            return "interrupted before it answered"
        match self.end:
            case End.DEADLINE:
                ended = "could not be ended" if self.lives else "was ended"
                return f"no answer within {self.limit:g} s; its process group {ended}"
            case End.FLOOD:
                return f"it wrote more than {MAX_REPLY} bytes to stdout"
        if self.status is None:
            return "its exit status was lost (is SIGCHLD ignored here?)"
        if self.status < 0:
            return f"it was killed by signal {-self.status} ({_signal_name(-self.status)})"
        return f"it exited with status {self.status}" if self.status else ""

    @property
    def said(self) -> str:
        """What it wrote, bounded and printable."""
        stdout = f'stdout "{excerpt(self.stdout)}"' if self.stdout.strip() else "stdout empty"
        stderr = f'stderr "{excerpt(self.stderr, end=True)}"' if self.stderr.strip() else "stderr empty"
        return f"{stdout}, {stderr}"


@contextmanager
def unbroken() -> Iterator[None]:
    """Signals that may interrupt wait until the block has ended; then they are handled, and may raise.

    For the start of a program: what a handler raised inside of it would leave the program behind, known to nobody. Not
    by blocking signals: the program would inherit that.
    """
    came: list[int] = []
    try:
        with ExitStack() as handlers:
            # No other thread is ever interrupted by a handler.
            if threading.current_thread() is threading.main_thread():
                for interrupt in _INTERRUPTS:
                    handler = signal.getsignal(interrupt)
                    if callable(handler):
                        handlers.callback(signal.signal, interrupt, handler)
                        signal.signal(interrupt, lambda number, _: came.append(number))
            yield
    finally:
        for number in came:
            signal.raise_signal(number)


class _Flight:
    """One program between its start and its reaping: its pid names it and nobody else for that long."""

    def __init__(self, process: subprocess.Popen[bytes], identity: ProcessIdentity) -> None:
        self.process = process
        self.identity = identity
        self.interrupted = False


class Caller:
    """Calls one program; from any number of threads. *environment* is all that the program gets."""

    def __init__(self, argv: tuple[str, ...], environment: Mapping[str, str], cwd: Path, clock: Clock) -> None:
        self._argv = argv
        self._environment = dict(environment)
        self._cwd = cwd.absolute()
        self._clock = clock
        self._lock = threading.RLock()
        self._flights: set[_Flight] = set()
        self._interrupted = threading.Event()

    @property
    def interrupted(self) -> bool:
        return self._interrupted.is_set()

    def interrupt(self) -> None:
        """For good: programs in flight are killed, later ones are not started."""
        with self._lock:
            self._interrupted.set()
            for flight in self._flights:
                flight.interrupted = True
                end_group(flight.identity, self._clock, patience=0.0)

    def call(self, request: bytes, limit: float, register: Register | None = None) -> Answer | NotSent:
        """Run the program once on *request*, for *limit* seconds. If this raises, the program's group was ended."""
        deadline = self._clock.monotonic() + limit
        deadline_at = self._clock.now_ms() + round(limit * 1000)
        flight: _Flight | None = None
        try:
            with unbroken():
                started = self._start()
                if isinstance(started, NotSent):
                    return started
                flight = started
            # Whoever interrupts later finds it in flight.
            if self.interrupted:
                end_group(flight.identity, self._clock)
                return NotSent("interrupted before it got its request")
            if register is not None:
                try:
                    register(flight.identity, deadline_at)
                except Exception as error:  # noqa: BLE001 - whatever it was, the program got no request
                    end_group(flight.identity, self._clock)
                    return NotSent(f"its process could not be recorded, so it got no request: {error}")
            end, stdout, stderr = self._converse(flight.process, request, deadline)
            lives = False
            if end is not End.EXITED:
                grace = _TERM_GRACE if end is End.DEADLINE else 0.0
                lives = not end_group(flight.identity, self._clock, grace=grace)
            status = None if lives else _status(flight.process)
            return Answer(end, status, stdout, stderr, flight.identity, limit, flight.interrupted, lives)
        except BaseException:
            if flight is not None:
                end_group(flight.identity, self._clock)
            raise
        finally:
            if flight is not None:
                self._land(flight)

    def _start(self) -> _Flight | NotSent:
        """The program, started and without a request; or why that was not possible, which is definite."""
        if self._interrupted.is_set():
            return NotSent("interrupted before it was started")
        why = program.why_not_startable(self._argv, self._environment, self._cwd)
        if why:
            return NotSent(f"the provider program never started: {why}", broken=True)
        try:
            process = subprocess.Popen(
                self._argv,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                close_fds=True,
                cwd=self._cwd,
                env=self._environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            why = program.why_not_started(self._argv, self._environment, self._cwd, error)
            broken = isinstance(error, OSError) and error.errno in program.BROKEN
            return NotSent(f"the provider program never started: {why}", broken=broken)
        try:
            flight = _Flight(process, identify_child(process.pid))
        except OSError as error:
            process.kill()  # unreaped, so this pid is that process
            _close(process)
            process.wait()
            return NotSent(f"its process could not be identified, so it got no request: {error}")
        with self._lock:
            self._flights.add(flight)
        return flight

    def _land(self, flight: _Flight) -> None:
        """Forget the program and reap it, if it is gone: from here on its pid may be anybody's."""
        with self._lock:
            self._flights.discard(flight)
        _close(flight.process)
        flight.process.poll()

    def _converse(self, process: subprocess.Popen[bytes], request: bytes, deadline: float) -> tuple[End, bytes, bytes]:
        """Give the request, take what comes, until the program has exited, floods or is late."""
        pipes = _Pipes(process, request)
        exit_notice = None
        with suppress(OSError):
            exit_notice = os.pidfd_open(process.pid)
            pipes.selector.register(exit_notice, selectors.EVENT_READ)
        try:
            end = None
            while end is None:
                left = deadline - self._clock.monotonic()
                # Asked before the last read: what the program wrote before it exited is then in the pipe.
                exited = _has_exited(process)
                pipes.turn(0.0 if exited or left <= 0 else left if exit_notice is not None else min(left, _TICK))
                if exited:
                    pipes.drain()
                if pipes.flooded:
                    end = End.FLOOD
                elif exited:
                    end = End.EXITED
                elif left <= 0:
                    end = End.DEADLINE
            return end, bytes(pipes.stdout), bytes(pipes.stderr)
        finally:
            pipes.selector.close()
            if exit_notice is not None:
                os.close(exit_notice)


class _Pipes:
    """The three pipes of a program: none of them can block us, and neither output can outgrow its bound."""

    def __init__(self, process: subprocess.Popen[bytes], request: bytes) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self._todo = memoryview(request)
        self._stdin, self._stdout, self._stderr = _pipes(process)
        self.selector = selectors.PollSelector()
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
            self.selector.register(pipe, selectors.EVENT_WRITE if pipe is self._stdin else selectors.EVENT_READ)

    @property
    def flooded(self) -> bool:
        return len(self.stdout) > MAX_REPLY

    def turn(self, timeout: float) -> int:
        """Wait for a pipe or the exit, move what can be moved; how many bytes were read."""
        read = 0
        for key, _ in self.selector.select(timeout):
            if key.fileobj is self._stdin:
                self._write()
            elif key.fileobj is self._stdout:
                read += self._read(self._stdout, self.stdout)
            elif key.fileobj is self._stderr:
                read += self._read(self._stderr, self.stderr)
                del self.stderr[:-_STDERR_KEPT]
        return read

    def drain(self) -> None:
        """Read what is there, and not what others may still write."""
        total = 0
        while total < _DRAIN and not self.flooded:
            read = self.turn(0.0)
            if not read:
                return
            total += read

    def _write(self) -> None:
        try:
            self._todo = self._todo[os.write(self._stdin.fileno(), self._todo[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not want to hear more; what it says may still be an answer
            self._todo = self._todo[:0]
        if not self._todo:
            self.selector.unregister(self._stdin)
            self._stdin.close()

    def _read(self, pipe: IO[bytes], into: bytearray) -> int:
        try:
            data = os.read(pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self.selector.unregister(pipe)
        into += data
        return len(data)


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise AssertionError("a program is started with three pipes")
    return process.stdin, process.stdout, process.stderr


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in _pipes(process):
        with suppress(OSError):
            pipe.close()


def _has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Whether the program has exited, without reaping it: its group must stay ours until the end is settled."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _status(process: subprocess.Popen[bytes]) -> int | None:
    """Exit code or minus signal. Popen's own would be 0 for a child whose status the system threw away."""
    try:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return None
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unnamed"
