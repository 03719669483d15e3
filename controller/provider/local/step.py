"""A step while it runs: its output, its time limit, its end. Owned by one supervisor, which never waits for it.

The step has ended when the process that leads its group has; what that process left behind in the group is ended
then, and only when nobody is left may the next step start.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from controller.model.inventory import SeenStep, StepSeen
from controller.provider.local.groups import is_left, signal_group
from controller.provider.local.launch import Command, Launch, explain
from controller.provider.local.log import Log

_CHUNK = 1 << 16
_LAST_CHUNKS = 64
_AGAIN = 0.05


class Running:
    """One step. Times are seconds on the supervisor's monotonic clock."""

    def __init__(
        self, key: str, command: Command, process: Launch, log: Log, *, timeout_at: float | None, grace: float
    ) -> None:
        self.key = key
        self.group = process.group
        self.scratch = command.cwd if command.scratch else None
        self.end: SeenStep | None = None
        self._found: SeenStep | None = None
        self._command = command
        self._log = log
        self._output: int | None = process.output
        self._status: int | None = process.status
        self._said = b""
        self._timeout_at = timeout_at
        self._grace = grace
        self._kill_at: float | None = None
        self._term_due = False
        self._timed_out = False
        self._lost = False
        self._reason = ""

    def descriptors(self) -> list[int]:
        """What to wait for. That its command started matters to nobody but a TERM that waits for it."""
        status = self._status if self._term_due else None
        return [descriptor for descriptor in (self._output, status) if descriptor is not None]

    def read(self, descriptor: int) -> None:
        """Something came on *descriptor*, or its other end was closed."""
        if descriptor == self._output:
            self._read_output()
        elif descriptor == self._status:
            self._read_status()

    def _read_output(self) -> bool:
        """Whether more may be there."""
        if self._output is None:
            return False
        try:
            output = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return False
        self._log.write(output)
        if not output:
            os.close(self._output)
            self._output = None
        return bool(output)

    def _read_status(self) -> None:
        while self._status is not None:
            try:
                said = os.read(self._status, 128)
            except BlockingIOError:
                return
            self._said += said
            if not said:
                os.close(self._status)
                self._status = None
                if self._term_due:
                    self._terminate()

    def stop(self, grace: float, now: float, reason: str, *, lost: bool = False) -> None:
        """TERM now, KILL after *grace* seconds. Said again, the earlier KILL stands.

        *lost*: its worker is going down under it, so an end other than success says nothing about the step.
        """
        self._lost = self._lost or lost
        if self._kill_at is None:
            self._read_status()
            if self._status is None:
                self._terminate()
            else:  # not its command yet: a TERM could be lost on the process that is to become it
                self._term_due = True
            self._reason = reason
        self._kill_at = now + grace if self._kill_at is None else min(self._kill_at, now + grace)

    def _terminate(self) -> None:
        self._term_due = False
        signal_group(self.group, signal.SIGTERM)
        signal_group(self.group, signal.SIGCONT)  # a stopped process gets its TERM only once it goes on

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self._timeout_at is not None and now >= self._timeout_at and self._found is None:
            self._timeout_at = None
            self._timed_out = True
            self.stop(self._grace, now, "ended at its time limit")
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = now + _AGAIN
            signal_group(self.group, signal.SIGKILL)

    def due_at(self, now: float) -> float | None:
        """When to look again, should nothing come before."""
        times = [at for at in (self._timeout_at if self._found is None else None, self._kill_at) if at is not None]
        if self.end is not None:  # its leader was ours to wait for; what it left behind is not
            times.append(now + _AGAIN)
        return min(times, default=None)

    def look(self, now_ms: int) -> SeenStep | None:
        """How the step ended, once it has. Its process stays, unreaped, so that its end can be recorded first."""
        if self._found is not None:
            return self._found
        found = os.waitid(os.P_PID, self.group.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        self._read_status()
        self._drain()
        if self._output is None:
            self._log.finish()
        code, words = explain(self._command, self._said) if self._said else (None, self._reason)
        started = code is None
        number = None
        if started and found.si_code == os.CLD_EXITED:
            code = found.si_status
        elif started:
            number = found.si_status
        if self._lost and code != 0:
            code = number = None
        self._found = SeenStep(self.key, StepSeen.EXITED, code, number, self._timed_out, started, words, now_ms)
        return self._found

    def reap(self, end: SeenStep, now: float) -> None:
        """Its end is recorded: let its process go, and end what it left behind."""
        self.end = end
        os.waitpid(self.group.pid, 0)
        if self.is_left() and self._kill_at is None:
            self.stop(self._grace, now, "")

    def is_left(self) -> bool:
        """Whether a process of the group is left. Only after `reap`."""
        return is_left(self.group)

    def close(self) -> None:
        """Nobody is left: complete the log and let go of everything."""
        self._drain()
        for descriptor in (self._output, self._status):
            if descriptor is not None:
                os.close(descriptor)
        self._output = self._status = None
        self._log.finish()
        if self.scratch is not None:
            with suppress(OSError):  # kept when something is in it
                os.rmdir(self.scratch)

    def _drain(self) -> None:
        """Read what is in the pipe: the log is complete before the end is told. Somebody outside may write for ever."""
        for _ in range(_LAST_CHUNKS):
            if not self._read_output():
                return
