"""Why a program did not start, in words a person can act on. The kernel says "no such file" of a file that is there.

Not promised: that a program which looks startable starts; only the attempt tells.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

_SHEBANG_BYTES = 256
_CHAIN = 5
BROKEN = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENOEXEC})
"""Errors of a start that lie in the program, not in what the system has room for."""


def why_not_startable(argv: Sequence[str], environment: Mapping[str, str], cwd: Path) -> str:
    """Why starting *argv* would fail where the kernel would not say so: a `#!/usr/bin/env NAME` whose NAME is not
    there.

    The kernel starts `env` then, which exits with 127: a start that looks like a call of unknown fate. "" when
    nothing is seen.
    """
    path = _find(argv[0], environment, cwd)
    line = None if path is None else _shebang(path)
    if line is None or Path(line[0]).name != "env":
        return ""
    rest = line[1]
    if rest.startswith("-"):
        if not rest.startswith("-S "):
            return ""
        try:
            words = shlex.split(rest[3:])
        except ValueError:
            return ""
        # Options and settings of env itself: what they mean for the search is not guessed at.
        if not words or words[0].startswith("-") or "=" in words[0]:
            return ""
        name = words[0]
    else:
        name = rest
    if not name or "=" in name or _find(name, environment, cwd) is not None:
        return ""
    return f"{path} exists, but its interpreter {_shown(name)} is not on the PATH"


def why_not_started(argv: Sequence[str], environment: Mapping[str, str], cwd: Path, error: Exception) -> str:
    """What the failed start of *argv* means. *error* is what the attempt raised."""
    if not isinstance(error, OSError):
        return f"the command cannot be passed to the system: {error}"
    if error.filename is not None and os.fspath(error.filename) == os.fspath(cwd):
        return f"its working directory {cwd} cannot be used: {error.strerror}"
    path = _find(argv[0], environment, cwd)
    match error.errno:
        case errno.ENOENT if path is None and "/" not in argv[0]:
            return f"{argv[0]} is not on the PATH ({environment.get('PATH', 'which is not set')})"
        case errno.ENOENT if path is None:
            return f"{argv[0]} does not exist"
        case errno.ENOENT:
            return _without_interpreter(path or Path(argv[0]))
        case errno.EACCES | errno.EPERM:
            return _not_executable(path or Path(argv[0]))
        case errno.ENOEXEC:
            line = None if path is None else _shebang(path)
            if line is not None:
                return f"{path} exists, but its interpreter {_shown(line[0])} is no program for this machine"
            return f"{path} has no interpreter line (#!) and is no program for this machine"
        case errno.E2BIG:
            return "its arguments and environment are larger than the system allows"
        case errno.EAGAIN | errno.ENOMEM | errno.EMFILE | errno.ENFILE:
            return f"the system has no room for another process: {error.strerror}"
    return f"{path or argv[0]}: {error.strerror}"


def _find(name: str, environment: Mapping[str, str], cwd: Path) -> Path | None:
    """The file that *name* means, as exec finds it. One that is not executable counts when it is named with a path."""
    if "/" in name:
        path = cwd / name
        return path if path.exists() else None
    found = shutil.which(name, path=environment.get("PATH", os.defpath))
    return None if found is None else cwd / found


def _shebang(path: Path) -> tuple[str, str] | None:
    """Interpreter and the rest of the `#!` line of *path*, as the kernel splits them; None without such a line."""
    try:
        with path.open("rb") as file:
            head = file.read(_SHEBANG_BYTES)
    except OSError:
        return None
    if not head.startswith(b"#!"):
        return None
    line = os.fsdecode(head[2:].split(b"\n", 1)[0]).strip(" \t")
    interpreter, _, rest = line.replace("\t", " ").partition(" ")
    return interpreter, rest.strip(" ")


def _without_interpreter(path: Path) -> str:
    start = path
    for _ in range(_CHAIN):
        line = _shebang(path)
        if line is None:
            return f"{start} exists, but the loader that {path} was built for does not"
        interpreter = Path(line[0])
        if not interpreter.exists():
            return f"{start} exists, but its interpreter {_shown(line[0])} does not"
        path = interpreter
    return f"{start} exists, but its chain of interpreters is too long"


def _not_executable(path: Path) -> str:
    start = path
    for _ in range(_CHAIN):
        if path.is_dir():
            return f"{path} is a directory"
        if not os.access(path, os.X_OK):
            break
        line = _shebang(path)
        if line is None:
            break
        path = Path(line[0])
    try:
        mode = f"mode {path.stat().st_mode & 0o7777:04o}"
    except OSError as error:
        mode = error.strerror or "unreadable"
    whose = f"{path}" if path == start else f"the interpreter {_shown(str(path))} of {start}"
    return f"{whose} may not be executed ({mode})"


def _shown(name: str) -> str:
    """A name with what a terminal does not show: above all the carriage return of a file saved on Windows."""
    shown = name.encode("unicode_escape").decode("ascii")
    return shown + (" (its first line ends with a carriage return)" if name.endswith("\r") else "")
