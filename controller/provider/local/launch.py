"""How a step's command starts: a forked process that waits at a gate, in a session of its own, until it is recorded.

The caller records the process group durably and then opens the gate. Should the caller die before, the process at the
gate reads the end of its pipe and leaves without having run anything: no command ever runs in a group that nobody
knows of.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

from msgspec import Struct

from controller.model.process import ProcessIdentity
from controller.provider.process import identify_child

_LONGEST: Final = 200
"""How much of a program's name is repeated to people."""
NOT_FOUND: Final = 127
NOT_RUNNABLE: Final = 126
_READY = b"r"
_UMASK = 0o022
"""What system services start with. The supervisor's own would surprise commands that share files."""


class Command(Struct, frozen=True):
    """What is to run. `scratch`: the directory was chosen for it, not by it."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    scratch: bool


class Launch:
    """A process at the gate. `output` and `status` are the reading ends of its pipes."""

    def __init__(self, group: ProcessIdentity, output: int, status: int, gate: int) -> None:
        self.group = group
        self.output = output
        self.status = status
        self._gate = gate

    def release(self) -> None:
        """Let the command start. A process that was killed at the gate is found by its exit."""
        with suppress(OSError):
            os.write(self._gate, b"g")
        os.close(self._gate)

    def abandon(self) -> None:
        """Send the process away; nothing ran."""
        for descriptor in (self._gate, self.output, self.status):
            os.close(descriptor)
        os.waitpid(self.group.pid, 0)


def launch(command: Command) -> Launch:
    """Fork *command* up to its gate. Raises OSError: nothing is left.

    Signals that the caller handles are as new for the command; it must ignore none, since that would be inherited.
    """
    opened: list[int] = []
    try:
        for _ in range(3):
            opened += os.pipe()
        output, output_end, status, status_end, gate_end, gate = opened
        # As much as can be is made ready here: each page that the forked process writes to is copied for it.
        programs, argv, env = _programs(command), [os.fsencode(each) for each in command.argv], _environment(command)
        start = partial(_execute, _likely(programs), programs, argv, env)
        pid = os.fork()
        if pid == 0:
            _become(start, command.cwd, output_end, status_end, gate_end, gate)
        for descriptor in (output_end, status_end, gate_end):
            os.close(descriptor)
            opened.remove(descriptor)
        if os.read(status, 1) != _READY:
            os.waitpid(pid, 0)
            raise OSError(errno.EAGAIN, "the process of the step ended before its command")
        for descriptor in (output, status):
            os.set_blocking(descriptor, False)
        return Launch(identify_child(pid), output, status, gate)
    except BaseException:
        for descriptor in opened:
            os.close(descriptor)
        raise


def _programs(command: Command) -> list[bytes]:
    """Where the program may be, in the order in which it is looked for."""
    program = os.fsencode(command.argv[0])
    if b"/" in program:
        return [program]
    path = os.fsencode(command.env.get("PATH", os.defpath))
    return [os.path.join(place, program) for place in path.split(b":")]


def _likely(programs: Sequence[bytes]) -> bytes:
    """The one of *programs* that will be found, as far as can be told from here.

    To look costs a call for each place; to try each costs the forked process an exception, and pages of its own.
    """
    with suppress(ValueError):  # a NUL in it: the forked process says so
        for program in programs:
            if not os.path.isabs(program):
                break  # it is looked for where the command is to run
            if os.access(program, os.X_OK):
                return program
    return programs[0]


def _environment(command: Command) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in command.env.items()}


def _become(start: Callable[[], None], cwd: str, output: int, status: int, gate: int, opener: int) -> NoReturn:
    """In the forked process: reach the gate, then turn into the command, or say why not. Never returns."""
    doing = b"start"
    try:
        signal.set_wakeup_fd(-1)
        os.close(opener)  # or the gate would never read its end
        os.setsid()
        os.umask(_UMASK)
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, place in ((null, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, place)
        os.write(status, _READY)
        if not os.read(gate, 1):
            os._exit(NOT_FOUND)
        doing = b"chdir"
        os.chdir(cwd)
        doing = b"exec"
        start()  # every other descriptor closes itself here
    except OSError as error:
        os.write(status, b"%s %d" % (doing, error.errno or errno.EINVAL))
    except BaseException:  # noqa: BLE001 - two processes must never go on from here
        os.write(status, b"%s %d" % (doing, errno.EINVAL))
    finally:
        os._exit(NOT_FOUND)


def _execute(likely: bytes, programs: Sequence[bytes], argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """Turn into the first of *programs* that can be run. Raises OSError: what was against the first that is there."""
    try:
        os.execve(likely, argv, env)
    except (OSError, ValueError):
        _execute_first(programs, argv, env)


def _execute_first(programs: Sequence[bytes], argv: list[bytes], env: dict[bytes, bytes]) -> None:
    failure: OSError | None = None
    missing = OSError(errno.ENOENT, "")
    for program in programs:
        try:
            os.execve(program, argv, env)
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = error
        except OSError as error:
            failure = failure or error
    raise failure or missing


def explain(command: Command, status: bytes) -> tuple[int, str]:
    """The exit code and the words for a command that never started, from what its process wrote about it."""
    doing, _, number = status.partition(b" ")
    code = int(number or errno.EINVAL)
    program = command.argv[0] if len(command.argv[0]) <= _LONGEST else command.argv[0][:_LONGEST] + "..."
    if doing == b"chdir":
        return (NOT_FOUND if code == errno.ENOENT else NOT_RUNNABLE), f"{os.strerror(code)}: {command.cwd} (its --cwd)"
    if doing == b"exec" and code in {errno.ENOENT, errno.ENOTDIR}:
        if "/" in program and os.path.exists(os.path.join(command.cwd, program)):
            return (
                NOT_RUNNABLE,
                f"cannot run {program}: the file exists, but the interpreter in its first line does not",
            )
        if "/" not in program:
            return NOT_FOUND, f"not found: {program} (looked in PATH: {command.env.get('PATH', os.defpath)})"
        if command.scratch and not program.startswith("/"):
            where = "the run's scratch directory; submit with --cwd . to run where you are"
            return NOT_FOUND, f"not found: {program} (looked in {where})"
        return NOT_FOUND, f"not found: {os.path.join(command.cwd, program)}"
    if code == errno.ENOEXEC:
        return NOT_RUNNABLE, f"cannot run {program}: neither a program nor a script with an interpreter line"
    return NOT_RUNNABLE, f"cannot run {program}: {os.strerror(code)}"
