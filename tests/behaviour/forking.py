"""The command, many times over: a process that has imported it once forks one of itself for each time.

For tests that need hundreds. What a command does is what the installed one does; only how it came to be is another.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.behaviour.driver import Controller, Result
from tests.behaviour.faults import _DIES

_RUNS = """
import sys
from controller.cli.main import main
sys.exit(main())
"""

_FORKS = """
import importlib, json, os, pkgutil, signal, sys
import controller

for module in pkgutil.walk_packages(controller.__path__, "controller."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)


def become(wanted):
    os.setsid()
    signal.alarm(60)
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        descriptor = os.open(wanted["streams"][number], flags)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv[:] = wanted["argv"]
    exec(wanted["program"], {"__name__": "__main__"})


for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        try:
            become(json.loads(line))
        except SystemExit as end:
            os._exit(end.code)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(250)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Forks:
    """The process that forks; *place* is a directory of its own. It must be closed."""

    def __init__(self, place: Path) -> None:
        self._streams = ("/dev/null", str(place / "stdout"), str(place / "stderr"))
        self._process = subprocess.Popen(
            (sys.executable, "-c", _FORKS), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()

    def run(
        self, command: tuple[str, ...], cwd: Path, env: Mapping[str, str], dies: tuple[str, int] | None = None
    ) -> Result:
        """Run *command*, which is the installed one; with *dies*, SIGKILL hits it right after the nth call of
        `os.NAME`.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        stdout, stderr = map(Path, self._streams[1:])
        for stream in (stdout, stderr):
            stream.write_bytes(b"")
        program, at = (_RUNS, ()) if dies is None else (_DIES, map(str, dies))
        wanted = {"program": program, "argv": [command[0], *at, *command[1:]], "cwd": str(cwd), "env": dict(env)}
        self._process.stdin.write(json.dumps(wanted | {"streams": self._streams}) + "\n")
        ended = self._process.stdout.readline()
        assert ended, "the process that forks is gone"
        return Result(command, int(ended), stdout.read_text(errors="replace"), stderr.read_text(errors="replace"))


class Forked(Controller):
    """A controller whose `run` forks. `popen` starts the installed command, as ever."""

    def __init__(self, home: Path, forks: Forks) -> None:
        super().__init__(home)
        self.forks = forks

    def run(
        self,
        *args: str,
        check: bool = False,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout: float = 60,
    ) -> Result:
        """Run the command to its end, with nothing on stdin. With *check*, any exit but 0 fails the test."""
        assert (stdin, timeout) == (None, 60), "not by a fork"
        result = self.forks.run(self.command(*args), self.home, {**self.env, **(env or {})})
        if check:
            assert result.exit == 0, str(result)
        return result

    def run_dying(self, name: str, nth: int, *args: str) -> Result:
        """Run the command; SIGKILL hits it right after its *nth* call of `os.NAME`."""
        return self.forks.run(self.command(*args), self.home, self.env, (name, nth))
