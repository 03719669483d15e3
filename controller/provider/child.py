"""A child: a program that does a run for a consumer, started, signalled and collected with its whole process group.

Not promised: the end of a process that left the group for a session of its own; the end of a child whose starter was
killed. That one lives on, and what it does then is fenced by its token alone: a consumer that is killed with no warning
cannot take anybody along.

The program runs in a session of its own, without a shell and without a descriptor of ours but stderr, which its stdout
goes to as well: ours carries an answer. It reads its input from memory, not from a pipe: one that never reads blocks
nobody.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from controller.provider import program
from controller.provider.call import unbroken
from controller.provider.process import group_members

_NO_ROOM: Final = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


class NotStarted(Struct, frozen=True):
    """Why nothing ran, for certain. `passing`: the system had no room for it; the program itself may be fine."""

    why: str
    passing: bool = False


class Child:
    """A started program. Until `collect` has answered, its pid and its group are nobody else's, and may be signalled.

    A caller must call `collect` until it answers, or `end`.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process
        self._notice: int | None = None
        with suppress(OSError):  # a kernel without it, or no descriptor left
            self._notice = os.pidfd_open(process.pid)
        self._collected = False

    def fileno(self) -> int | None:
        """What becomes readable when the program exits; None: nothing does, and only `collect` tells."""
        return self._notice

    def signal(self, number: int) -> None:
        """Send a signal to the whole group. Nothing happens once it was collected."""
        if not self._collected:
            with suppress(ProcessLookupError, PermissionError):  # whoever changed its user is nobody's to signal
                os.killpg(self.pid, number)

    def collect(self) -> Ended | None:
        """How the program ended, once; None while it has not. What is left of its group is killed first."""
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # the system threw its status away, and its pid may be anybody's already
            status = None
        else:
            if ended is None:
                return None
            status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            # Not reaped yet, so this is that very group.
            self.signal(signal.SIGKILL)
        self._reap()
        return Ended(status)

    def end(self) -> None:
        """Kill the whole group, and wait for that of the program itself. How it ended is not told."""
        if not self._collected:
            self.signal(signal.SIGKILL)
            self._reap()

    def _reap(self) -> None:
        self._process.wait()
        self._collected = True
        if self._notice is not None:
            os.close(self._notice)
            self._notice = None

    def lingers(self) -> bool:
        """Whether somebody of the group is still there after `collect`: killed, but not gone yet."""
        try:
            # A group's number is not given to another process while it has a member, and signal 0 harms nobody.
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        # Not by that alone, which is the quick way: it counts who is dead already and waits for a lazy init.
        return bool(group_members(self.pid))


class Ended(Struct, frozen=True):
    """`status`: the exit code, or minus the signal; None: nobody can know."""

    status: int | None

    @property
    def well(self) -> bool:
        return self.status == 0

    @property
    def words(self) -> str:
        if self.status is None:
            return "its exit status was lost"
        return f"killed by signal {-self.status}" if self.status < 0 else f"exit code {self.status}"


def why_not_found(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Why *argv* could not be started now, in words; "" when nothing is seen that speaks against it."""
    here = Path()
    if not argv or not argv[0]:
        return "there is no program"
    if shutil.which(argv[0], path=environment.get("PATH", os.defpath)) is None:
        number = errno.EACCES if "/" in argv[0] and os.path.exists(argv[0]) else errno.ENOENT
        return program.why_not_started(argv, environment, here, OSError(number, os.strerror(number)))
    return program.why_not_startable(argv, environment, here)


def start(argv: Sequence[str], payload: bytes, environment: Mapping[str, str]) -> Child | NotStarted:
    """Start *argv* with *payload* on stdin and exactly this *environment*, in the current directory. If this raises,
    nothing runs.
    """
    try:
        stdin = _readable(payload)
    except OSError as error:
        return NotStarted(f"the system has no room for its payload: {error.strerror}", passing=True)
    process: subprocess.Popen[bytes] | None = None
    try:
        with unbroken():
            try:
                process = subprocess.Popen(
                    argv, stdin=stdin, stdout=2, close_fds=True, env=dict(environment), start_new_session=True
                )
            except (OSError, ValueError) as error:
                passing = isinstance(error, OSError) and error.errno in _NO_ROOM
                return NotStarted(program.why_not_started(argv, environment, Path(), error), passing=passing)
        return Child(process)
    except BaseException:
        if process is not None:
            Child(process).end()
        raise
    finally:
        os.close(stdin)


def _readable(payload: bytes) -> int:
    """A descriptor from which *payload* can be read, and that writing to cannot change."""
    if not payload:
        return os.open(os.devnull, os.O_RDONLY)
    made = os.memfd_create("payload")
    try:
        left = memoryview(payload)
        while left:
            left = left[os.write(made, left) :]
        return os.open(f"/proc/self/fd/{made}", os.O_RDONLY)
    finally:
        os.close(made)
