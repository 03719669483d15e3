"""The process that is a worker: takes requests on a socket, runs one step at a time, ends when told to.

Not promised: a step's end when this process is killed while the step runs. The step's group is ended then by whoever
finds the lock free, and how it ended is unknowable.

One thread, one poll, nothing that waits: a step's output, its time limit and its end, requests, and the end of this
process are all events of one loop. It holds the lock of its directory, inherited from whoever started it, until it
exits. TERM ends its step and then itself, without deallocating the worker.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from controller.clock import Clock, SystemClock
from controller.model.action import Action, ExecuteRequest, verify
from controller.model.errors import BrokenAction
from controller.model.inventory import Seen, SeenStep, StepSeen
from controller.model.records import ActionType
from controller.provider.local.exchange import LONGEST_LINE, Ask, Op
from controller.provider.local.fence import answer, cancel_request, cancel_what_does_not_run, seen, settled
from controller.provider.local.launch import Command, launch
from controller.provider.local.lock import is_lock_of
from controller.provider.local.log import Log
from controller.provider.local.memory import Accepted, Cleared, Dark, Ended, Memory, Up
from controller.provider.local.places import PID, SOCKET, Places, make_directory, read_worker, write_file
from controller.provider.local.step import Running
from controller.provider.process import own_identity
from controller.provider.protocol import Done, Outcome, Pending, Rejected

LOCK_DESCRIPTOR: Final = 3
READY_DESCRIPTOR: Final = 4
_UNRECORDED_AGAIN: Final = 0.5
_LOCK_CHECK: Final = 2.0
_TERM_GRACE: Final = 5.0
_SOON_MS: Final = 100
_LATER_MS: Final = 1_000
_SHORT_STEP: Final = 0.02
"""How long the answer to an execute waits for the end of its step: one message and one commit tell both then."""
_LATE: Final = 0.25
"""When an end that an answer told is told to those who watch, too, should no action have settled it by then."""


class Waiting(Struct):
    """A request whose answer is not final so far: `pending`, or a step that may end in a moment."""

    action: Action
    ask: Ask
    until: float


class Connection:
    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.received = bytearray()
        self.waiting: Waiting | None = None
        self.watches = False

    def send(self, message: object) -> bool:
        """Whether it was taken. One who does not read is not waited for."""
        line = msgspec.json.encode(message) + b"\n"
        try:
            return self.peer.send(line) == len(line)
        except OSError:
            return False


class Late(Struct):
    """An end that went out with an answer, and who watched when it did."""

    end: SeenStep
    at: float
    watchers: Sequence[Connection]


class Supervisor:
    """Runs in the worker's directory, which is its working directory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._worker = read_worker(".")
        self._memory = Memory(".")
        self._memory.refresh()
        # Not by its name: the state directory may be moved, and another put in its place, while its workers live.
        self._places = Places("../..")
        self._connections: dict[int, Connection] = {}
        self._running: Running | None = None
        self._not_recorded_until = 0.0
        self._short_until = 0.0
        self._late: list[Late] = []
        self._stopping = False
        self._going_dark = False
        self._stop_grace = _TERM_GRACE
        self._lock_checked = clock.monotonic()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def start(self) -> None:
        """Be ready for requests. Raises OSError."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        # Not ignored, as an interpreter does: a command would inherit that, and each forked process have to undo it.
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, lambda _number, _frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._told_to_stop)
        write_file(PID, msgspec.json.encode(own_identity()))
        with suppress(FileNotFoundError):
            os.unlink(SOCKET)
        self._listener.bind(SOCKET)
        self._listener.listen(128)
        self._memory.append(Up(self._worker.generation, self._clock.now_ms(), own_identity()))

    def _told_to_stop(self, _number: int, _frame: object) -> None:
        self._stopping = True

    def run(self) -> None:
        """Serve until told to stop and nothing is left to end."""
        while not (self._stopping and self._running is None and (self._memory.broken or self._is_dark_if_due())):
            self._serve_once()

    def _is_dark_if_due(self) -> bool:
        return not self._going_dark or self._memory.dark == self._worker.generation

    def _serve_once(self) -> None:
        poll = select.poll()
        for descriptor in (self._woken, self._listener.fileno(), *self._connections):
            poll.register(descriptor, select.POLLIN)
        if self._running is not None:
            for descriptor in self._running.descriptors():
                poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(self._patience_ms()):
            if descriptor == self._woken:
                os.read(self._woken, 4096)
            elif descriptor == self._listener.fileno():
                self._accept()
            elif descriptor in self._connections:
                self._receive(self._connections[descriptor])
            elif self._running is not None:
                self._running.read(descriptor)
        self._advance()
        self._answer_waiting()

    def _patience_ms(self) -> int:
        now = self._clock.monotonic()
        times = [self._lock_checked + _LOCK_CHECK]
        times += [held.waiting.until for held in self._connections.values() if held.waiting is not None]
        times += [late.at for late in self._late]
        if self._short_until > now:
            times.append(self._short_until)
        if self._running is not None and (due := self._running.due_at(now)) is not None:
            times.append(due)
        if self._not_recorded_until > now:
            times.append(self._not_recorded_until)
        return max(0, int((min(times) - now) * 1000) + 1)

    # What happens to the step

    def _advance(self) -> None:
        now = self._clock.monotonic()
        if now >= self._lock_checked + _LOCK_CHECK:
            self._lock_checked = now
            if not is_lock_of(LOCK_DESCRIPTOR, "."):
                # The directory was removed or replaced: nobody can reach this process any more, nor read its memory.
                self._stopping = self._memory.broken = True
        self._tell_late(now)
        step = self._running
        if step is None:
            if self._stopping and self._going_dark:
                self._record_dark()
            return
        if self._stopping:
            grace = 0.0 if self._memory.broken else self._stop_grace
            step.stop(grace, now, "the worker was stopped", lost=not self._going_dark)
        if step.end is None and now >= self._not_recorded_until:
            self._end(step, now)
        step.tick(now)
        if step.end is not None and not step.is_left():
            with suppress(OSError):
                self._memory.append(Cleared(step.key), sync=False)
            step.close()
            self._running = None
            if self._stopping and self._going_dark:
                self._record_dark()

    def _end(self, step: Running, now: float) -> None:
        """Record the step's end, if it has ended: durable first, then told."""
        end = step.look(self._clock.now_ms())
        if end is None:
            return
        try:
            self._memory.append(Ended(end))
        except OSError:
            self._not_recorded_until = now + _UNRECORDED_AGAIN
            if not self._memory.broken:
                return
            self._stopping = True
        step.reap(end, now)
        if not self._memory.broken:
            asked = [held.waiting.action for held in self._connections.values() if held.waiting is not None]
            watchers = [connection for connection in self._connections.values() if connection.watches]
            if any(action.idempotency_key == step.key for action in asked):
                self._late.append(Late(end, now + _LATE, watchers))
            else:
                self._tell(end, watchers)

    def _tell(self, end: SeenStep, watchers: Sequence[Connection]) -> None:
        for connection in watchers:
            if not connection.send(end):
                self._drop(connection)

    def _tell_late(self, now: float) -> None:
        late = [each for each in self._late if each.end.idempotency_key in self._memory.unsettled]
        self._late = [each for each in late if now < each.at]
        for each in late:
            if now >= each.at:
                self._tell(each.end, each.watchers)

    def _record_dark(self) -> None:
        if self._memory.dark == self._worker.generation:
            return
        try:
            self._memory.append(Dark(self._worker.generation, self._clock.now_ms()))
        except OSError:
            self._not_recorded_until = self._clock.monotonic() + _UNRECORDED_AGAIN

    # Requests

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        peer.setblocking(False)
        connection = self._connections[peer.fileno()] = Connection(peer)
        self._receive(connection)  # whoever connects has something to ask

    def _drop(self, connection: Connection) -> None:
        self._connections.pop(connection.peer.fileno(), None)
        connection.peer.close()

    def _receive(self, connection: Connection) -> None:
        try:
            part = connection.peer.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        connection.received += part
        if not part or len(connection.received) > LONGEST_LINE:
            self._drop(connection)
        elif part.endswith(b"\n"):
            line, connection.received = bytes(connection.received), bytearray()
            if not self._heard(connection, line):
                self._drop(connection)

    def _heard(self, connection: Connection, line: bytes) -> bool:
        """Answer a request, or keep it. False once there is nothing more to be said on the connection."""
        try:
            ask = _ASKS.decode(line)
            if ask.op is Op.HELLO:
                return connection.send(Done(worker=seen(self._memory, self._worker, Seen.READY))) and connection.watches
            if ask.op is Op.WATCH:
                connection.watches = True
                ended = (step for step in self._memory.listed() if step.state is StepSeen.EXITED)
                return all(connection.send(step) for step in ended)
            action = verify(ask.action)
        except (msgspec.MsgspecError, BrokenAction):
            return False
        until = self._clock.monotonic() + ask.patience_ms / 1000
        connection.waiting = Waiting(action, ask, until)
        return self._answer(connection, connection.waiting)

    def _answer_waiting(self) -> None:
        for connection in list(self._connections.values()):
            if connection.waiting is not None and not self._answer(connection, connection.waiting):
                self._drop(connection)

    def _answer(self, connection: Connection, waiting: Waiting) -> bool:
        outcome = self._mutate(waiting.action, waiting.ask)
        if self._clock.monotonic() < self._may_change_until(outcome, waiting):
            return True
        connection.waiting = None
        return connection.send(outcome) and connection.watches

    def _may_change_until(self, outcome: Outcome, waiting: Waiting) -> float:
        """Until when the answer may wait for something better than *outcome*."""
        match outcome:
            case Pending():
                return waiting.until
            case Done(step=SeenStep(state=StepSeen.RUNNING)):
                return min(waiting.until, self._short_until)
            case _:
                return 0.0

    # Actions

    def _mutate(self, action: Action, ask: Ask) -> Outcome:
        try:
            if (known := answer(self._memory, self._worker, action)) is not None:
                return known
            match action.type:
                case ActionType.EXECUTE:
                    return self._execute(action)
                case ActionType.CANCEL:
                    return self._cancel(action)
                case ActionType.DEALLOCATE:
                    return self._deallocate(action, ask)
                case ActionType.CREATE:
                    return Done(worker=seen(self._memory, self._worker, Seen.READY))
                case ActionType.DELETE_COMPUTE | ActionType.RESET:
                    return Rejected("the worker still runs; deallocate it first")
        except OSError as error:
            self._stopping = self._stopping or self._memory.broken
            return Pending(_LATER_MS, f"the worker could not do it yet: {error}")

    def _execute(self, action: Action) -> Outcome:
        try:
            request = msgspec.json.decode(action.request, type=ExecuteRequest)
        except msgspec.MsgspecError as error:
            return Rejected(f"not an execute request: {error}")
        if not request.argv or not request.argv[0]:
            return Rejected("there is no command")
        if self._stopping or self._running is not None:
            return Pending(_SOON_MS, "the worker is stopping" if self._stopping else "the worker still runs a step")
        run, step, attempt, token = str(action.run), str(action.step), int(action.attempt or 0), int(action.token or 0)
        names = {"RUN": run, "STEP": step, "ATTEMPT": str(attempt), "TOKEN": str(token)}
        command = self._command(request, run, {f"CONTROLLER_{name}": value for name, value in names.items()})
        log = Log(self._places.log(run, step, token, attempt))
        try:
            process = launch(command)
        except OSError:
            log.finish()
            raise
        now = self._clock.monotonic()
        accepted = Accepted(action.idempotency_key, run, step, attempt, token, process.group, self._clock.now_ms())
        try:
            self._memory.append(*settled(self._memory, action), accepted)
        except OSError:
            process.abandon()
            log.finish()
            raise
        process.release()
        # From here: what the sync took is no time of the step's.
        self._short_until = self._clock.monotonic() + _SHORT_STEP
        timeout_at = None if request.timeout_ms is None else now + request.timeout_ms / 1000
        self._running = Running(
            action.idempotency_key, command, process, log, timeout_at=timeout_at, grace=request.kill_grace_ms / 1000
        )
        return Done(step=self._memory.steps[action.idempotency_key])

    def _command(self, request: ExecuteRequest, run: str, names: Mapping[str, str]) -> Command:
        cwd = request.cwd
        if cwd is None:
            cwd = self._places.scratch(run)
            make_directory(cwd)
        env = {**self._worker.environment, **request.env, **names}
        return Command(request.argv, env, cwd, scratch=request.cwd is None)

    def _cancel(self, action: Action) -> Outcome:
        request = cancel_request(action)
        if isinstance(request, Rejected):
            return request
        running = self._running
        if running is None or running.key != request.target:
            return cancel_what_does_not_run(self._memory, action, request.target)
        running.stop(request.kill_grace_ms / 1000, self._clock.monotonic(), "cancelled")
        return Pending(_SOON_MS, "the step is being ended")

    def _deallocate(self, action: Action, ask: Ask) -> Outcome:
        self._memory.append(*settled(self._memory, action), sync=False)
        self._going_dark = self._stopping = True
        self._stop_grace = ask.grace_ms / 1000
        return Pending(_SOON_MS, "the worker is being stopped")


def main(directory: str) -> None:
    """Be the supervisor of *directory*. The lock and a pipe to say "ready" on are inherited; nothing else is kept."""
    os.closerange(READY_DESCRIPTOR + 1, 1 << 20)
    os.set_inheritable(LOCK_DESCRIPTOR, False)
    os.set_inheritable(READY_DESCRIPTOR, False)
    os.umask(0o077)
    os.chdir(directory)
    supervisor = Supervisor(SystemClock())
    supervisor.start()
    with suppress(OSError):  # whoever started it may be dead by now
        os.write(READY_DESCRIPTOR, b"r")
    os.close(READY_DESCRIPTOR)
    supervisor.run()
    os._exit(0)  # nothing is left to flush, and whoever waits for the lock waits for this


_ASKS = msgspec.json.Decoder(Ask)
