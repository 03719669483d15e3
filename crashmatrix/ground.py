"""A fleet of one case: a directory of its own, a provider with a truth of its own, and the command.

Not promised: that `Ground.run` is a process whose interpreter started afresh. It is one forked from this, where the
program is loaded already, and runs the same `main`: thousands of commands would take hours otherwise. What a fault is
injected into is the installed command itself (`Ground.faulted`).
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

import controller
from controller.cli.main import main
from tests.behaviour.driver import COMMAND, Controller, Result, belongs, end_all_below
from tests.behaviour.provider_program import Program

PATIENCE = 60.0
"""Seconds until a command that does not end is killed, and counted as one that hangs."""
HUNG = -1000
"""The exit of such a one."""

Event = tuple[str, str, str | None, str | None, str | None, int | None, str | None]
"""What is alike in two runs of the same command: subject, event, from, to, reason, token, step."""


class Picture(Struct, frozen=True):
    """What the readers say: events by revision, the state of each run, slots with pending actions, keys ever parked.

    `there` False: there is no document. `settled` are the keys whose action was done, as history has it.
    """

    there: bool
    revision: int = 0
    commits: tuple[tuple[int, tuple[Event, ...]], ...] = ()
    runs: Mapping[str, str] = {}
    pending: tuple[str, ...] = ()
    parked: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()


def load() -> None:
    """Import all of the program, so that what is forked from this process need not."""
    for module in pkgutil.walk_packages(controller.__path__, "controller."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


class Ground(Controller):
    """The command, and in `program` its provider, in the directory *home*."""

    program: Program

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.env |= {"PYTHONDONTWRITEBYTECODE": "1"}

    def found(self, slots: int = 3) -> None:
        """A new document, with a provider and no wait worth mentioning."""
        self.program = Program(self, slots=slots)
        for section in ("backoff.create", "backoff.send", "backoff.retry"):
            self.configure(section, 'initial = "1ms"', 'cap = "1ms"')
        # An error happens in each sender's thread alike: then nothing more is asked for a while.
        self.configure("provider.breaker", 'dwell = "1ms"')

    def copy(self, home: Path) -> Ground:
        """The same once more, in *home*, which must not be there yet."""
        shutil.copytree(self.home, home)
        settings = home / "state" / "controller.toml"
        if settings.exists():
            settings.write_text(settings.read_text().replace(str(self.home), str(home)))
        return Ground(home)

    def run(
        self,
        *args: str,
        check: bool = False,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout: float = PATIENCE,
    ) -> Result:
        """As the driver's, in a process forked from this one. There is no stdin."""
        command = self.command(*args)
        assert stdin is None, "nothing here is asked to read its stdin"  # noqa: S101 - a mistake of the caller
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                _become(command, self.home, {**self.env, **(env or {})}, out.fileno(), err.fileno())
            code = _ended(pid, timeout)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        result = Result(command, code, *texts)
        if check and code != 0:
            raise AssertionError(str(result))
        return result

    def faulted(self, prefix: tuple[str, ...], *args: str) -> Result:
        """The installed command as it is, under strace as *prefix* says."""
        command = (*prefix, *self.command(*args))
        process = subprocess.Popen(
            command,
            cwd=self.home,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        code = None
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            self.end()
            out, err = process.communicate()
            code = HUNG
        return Result(self.command(*args), process.returncode if code is None else code, out, err)

    def effects(self) -> tuple[str, ...]:
        """A line of the provider for each effect: type, slot, key."""
        path = self.home / "provider" / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return tuple(line.removeprefix("did ") for line in lines if line.startswith("did "))

    def await_still(self, seconds: float = 20.0) -> bool:
        """Whether every process of this place, such as a provider that outlived its caller, has ended in time."""
        deadline = time.monotonic() + seconds
        while any(
            belongs(int(entry.name), self.home)
            for entry in Path("/proc").iterdir()
            if entry.name.isdecimal() and int(entry.name) != os.getpid()
        ):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def end(self) -> None:
        """Nothing of this place runs any more."""
        end_all_below(self.home)


def picture_of(status: Any, history: Any, runs: Any) -> Picture:
    """What these three answers show."""
    events = history["events"]
    commits: dict[int, list[Event]] = {}
    for each in events:
        commits.setdefault(each["revision"], []).append(
            tuple(each[name] for name in ("subject", "event", "from", "to", "reason", "token", "step"))
        )
    return Picture(
        True,
        status["revision"],
        tuple((revision, tuple(made)) for revision, made in sorted(commits.items())),
        {each["id"]: each["state"] for each in runs["runs"]},
        tuple(f"slot {each['slot']}" for each in status["pending_mutations"]),
        frozenset(each["key"] for each in events if each["event"] == "action.parked"),
        frozenset(each["key"] for each in events if each["event"] == "action.settled" and each["reason"] == "done"),
    )


def _become(command: tuple[str, ...], home: Path, env: Mapping[str, str], out: int, err: int) -> None:
    """Be the command, in a process that was just forked, and never return."""
    code = 1
    try:
        os.setsid()
        os.chdir(home)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.environ.clear()
        os.environ.update(env)
        sys.argv = [str(COMMAND), *command[1:]]
        code = main()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - whatever it is, this process must not go on as its parent would
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def _ended(pid: int, timeout: float) -> int:
    """The exit of the child *pid*, which leads its group; HUNG if it had to be killed."""
    handle = os.pidfd_open(pid)
    try:
        in_time = bool(select.select([handle], [], [], timeout)[0])
        if not in_time:
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(handle)
    return os.waitstatus_to_exitcode(status) if in_time else HUNG
