"""Drives the installed command as a person would: a separate process, its answers, its exit code."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = Path(sys.executable).parent / "controller"


@dataclass(frozen=True)
class Result:
    """How one command ended. A negative exit is the signal that killed it."""

    command: tuple[str, ...]
    exit: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        """The one JSON object on stdout; a failed assertion if there is anything else."""
        try:
            return json.loads(self.stdout)
        except ValueError as fault:
            raise AssertionError(f"stdout is not one JSON value ({fault})\n{self}") from None

    def __str__(self) -> str:
        return f"{' '.join(self.command)}\nexit {self.exit}\nstdout:\n{self.stdout}\nstderr:\n{self.stderr}"


def with_json(args: tuple[str, ...]) -> tuple[str, ...]:
    """*args* with --json where an option may stand: before the first bare `--`, which ends them."""
    end = args.index("--") if "--" in args else len(args)
    return (*args[:end], "--json", *args[end:])


class Controller:
    """The installed `controller`, with a state directory of this test's own.

    A test must leave no process behind; `close` ends those it started and whatever they detached.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.state = home / "state"
        self.env = {
            **{name: value for name, value in os.environ.items() if name in {"PATH", "TMPDIR", "TZ"}},
            "HOME": str(home),
            "LANG": "C.UTF-8",
        }
        self._started: list[subprocess.Popen[str]] = []

    def command(self, *args: str) -> tuple[str, ...]:
        """The whole command line for *args*."""
        return (str(COMMAND), "--state-dir", str(self.state), *args)

    def popen(
        self, *args: str, env: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        """Start the command in a process group of its own and return at once."""
        process = subprocess.Popen(
            self.command(*args),
            cwd=self.home,
            env={**self.env, **(env or {})},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(
        self,
        *args: str,
        check: bool = False,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout: float = 60,
    ) -> Result:
        """Run the command to its end. With *check*, any exit but 0 fails the test."""
        process = self.popen(*args, env=env, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE)
        try:
            stdout, stderr = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            end_group(process)
            stdout, stderr = process.communicate()
            late = Result(self.command(*args), process.returncode, stdout, stderr)
            raise AssertionError(f"not done after {timeout} s, so it was killed\n{late}") from None
        self._started.remove(process)
        result = Result(self.command(*args), process.returncode, stdout, stderr)
        if check:
            assert result.exit == 0, str(result)
        return result

    def json(self, *args: str, exit: int | None = 0, env: Mapping[str, str] | None = None) -> Any:  # noqa: A002 - as in Result
        """Run with --json and return the answer. Any exit but *exit* fails the test; None takes every one."""
        result = self.run(*with_json(args), env=env)
        if exit is not None:
            assert result.exit == exit, str(result)
        return result.json()

    def init(self, *args: str) -> Result:
        """Make the document; a failed assertion if that is refused."""
        return self.run("init", *args, check=True)

    def configure(self, section: str, *lines: str) -> None:
        """Set options of a section that the configuration made by `init` has."""
        path = self.state / "controller.toml"
        text = path.read_text()
        assert text.count(f"[{section}]\n") == 1, f"no one section {section}"
        path.write_text(text.replace(f"[{section}]\n", "\n".join((f"[{section}]", *lines, ""))))

    def close(self) -> None:
        """End everything that this test started, and everything that came of it."""
        for process in self._started:
            end_group(process)
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self._started.clear()
        end_all_below(self.home)


class Staying:
    """A command that stays until it is told to end, while what it says on stderr is read."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._tail = ""

    def says(self, text: str) -> str:
        """The next line on stderr with *text* in it: it is waited for."""
        assert self.process.stderr is not None
        while text not in (line := self.process.stderr.readline()):
            assert line, f"it ended before it said {text!r}\n{self._tail}"
            self._tail += line
        self._tail += line
        return line

    def end(self, *numbers: int, patience: float = 20) -> Result:
        """How it ends, after these signals."""
        for number in numbers:
            self.process.send_signal(number)
        try:
            stdout, stderr = self.process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            stdout, stderr = self.process.communicate()
            raise AssertionError(f"it did not end within {patience} s\n{stdout}\n{self._tail}{stderr}") from None
        command = self.process.args if isinstance(self.process.args, tuple) else (str(self.process.args),)
        return Result(command, self.process.returncode, stdout, self._tail + stderr)


def end_group(process: subprocess.Popen[str]) -> None:
    """Kill the process group that `Controller.popen` made for *process*, unless it has been waited for already."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def belongs(pid: int, place: Path) -> bool:
    """Whether the process *pid* names *place*, or something in it, in its command line or environment, or works there.

    Commands of a step need not name it, but inherit it: HOME is *place* in all that these tests start.
    """
    proc = Path("/proc") / str(pid)
    texts = []
    try:
        if (proc / "stat").read_bytes().rpartition(b")")[2].split()[0] in {b"Z", b"X"}:
            return False
        texts.append((proc / "cmdline").read_bytes())
        texts.append((proc / "environ").read_bytes())
        texts.append(os.fsencode((proc / "cwd").readlink()))
    except OSError:
        pass  # gone meanwhile, or not ours to look at: what could be read decides
    wanted = os.fsencode(place)
    return any(wanted + end in text + b"\0" for text in texts for end in (b"/", b"\0"))


def end_all_below(place: Path, patience: float = 10) -> None:
    """Kill every process that belongs to *place*, and those they start meanwhile, until none is left.

    *place* must be a directory of one test alone. Raises AssertionError when some will not go.
    """
    deadline = time.monotonic() + patience
    while True:
        left = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        left = [pid for pid in left if pid != os.getpid() and belongs(pid, place)]
        if not left:
            return
        assert time.monotonic() < deadline, f"processes {left} of {place} outlive SIGKILL"
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                try:
                    # Through the handle, and looked at again: a number may have been given to somebody else.
                    if belongs(pid, place):
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                finally:
                    os.close(handle)
        time.sleep(0.01)
