"""Runs as they are written down: a command, or a graph of steps in Python, TOML or JSON.

Not promised: that what can be read can be run; a program that is missing is found out by the worker.

Everything that is wrong is refused with its place, and nothing is guessed: an unknown member is not ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from controller.engine.queue import Submission
from controller.library.options import parse_duration
from controller.library.words import meant
from controller.model.errors import StrictError, UsageFault
from controller.model.graph import misfit
from controller.model.records import Step, is_id
from controller.model.strict import strict_loads

STEP: Final = "main"
"""The name of the step of a run that is one command."""
MOST_BYTES: Final = 4 << 20
_TOP: Final = ("id", "attempts", "steps")
_MEMBERS: Final = ("name", "argv", "needs", "env", "cwd", "timeout", "attempts")
_MOST_ATTEMPTS: Final = 1_000_000


def submission(
    argv: Sequence[str] | None = None,
    *,
    steps: Iterable[Mapping[str, Any]] | None = None,
    id: str | None = None,  # noqa: A002 - the word of the file and the command line
    attempts: int = 1,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> Submission:
    """A run to be: a command, or *steps*. See `Controller.submit`. Relative directories are those of this process.

    Raises UsageFault.
    """
    if (argv is None) == (steps is None):
        raise UsageFault("a run is either a command or steps", next="give argv, or steps")
    if steps is not None:
        if env or cwd is not None or timeout is not None:
            raise UsageFault("env, cwd and timeout belong to a step", next="give them within the steps")
        return _submission({"steps": list(steps), "attempts": attempts}, "the steps", Path.cwd(), id)
    if isinstance(argv, str):
        raise UsageFault("argv is one text", next="give a list of words: there is no shell")
    place = None if cwd is None else os.path.abspath(cwd)
    limit = None if timeout is None else round(timeout * 1000)
    if limit is not None and limit <= 0:
        raise UsageFault(f"a timeout of {timeout} seconds is none", next="give more, or leave it out")
    step = Step(name=STEP, argv=tuple(argv or ()), env=dict(env or {}), cwd=place, timeout_ms=limit)
    return Submission(steps=(step,), id=id, max_attempts=attempts)


def read(data: bytes, *, source: str, base: Path, toml: bool | None = None, id: str | None = None) -> Submission:  # noqa: A002
    """The run that *data*, TOML or JSON, describes. *base*: what relative directories are relative to.

    *toml* None: JSON if it starts with a brace. *id* is what the command line chose. Raises UsageFault naming *source*.
    """
    if len(data) > MOST_BYTES:
        raise UsageFault(f"it is larger than {MOST_BYTES} bytes", where=source, next="pass large data in files")
    if toml is None:
        toml = not data.lstrip().startswith(b"{")
    return _submission(_toml(data, source) if toml else _json(data, source), source, base, id)


def _toml(data: bytes, source: str) -> object:
    import tomllib

    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise UsageFault("not UTF-8", where=f"{source}, byte {error.start}", next="mend that place") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageFault(f"not TOML: {error}", where=source, next="mend that place") from error


def _json(data: bytes, source: str) -> object:
    try:
        return strict_loads(data, where=source)
    except StrictError as error:
        where = f"{source}, line {error.line}, byte {error.offset}"
        raise UsageFault(f"not JSON: {error.what}", where=where, next="mend that place") from error


def _submission(content: object, source: str, base: Path, chosen: str | None) -> Submission:
    if not isinstance(content, dict):
        raise UsageFault("a run is a table with steps", where=source, next="write [[steps]]")
    _known(content, _TOP, source)
    found = content.get("id")
    if found is not None and (not isinstance(found, str) or not is_id(found)):
        raise UsageFault(f"not an id: {found!r}", where=f"{source}, id", next=_ID)
    if found is not None and chosen is not None and found != chosen:
        raise UsageFault(f"the id is {found!r} here and {chosen!r} there", where=f"{source}, id; --id", next="give one")
    listed = content.get("steps")
    if not isinstance(listed, list):
        problem = "there are no steps" if listed is None else "steps is no list"
        raise UsageFault(problem, where=source, next="write each step as [[steps]]")
    if not listed:
        raise UsageFault("there are no steps", where=f"{source}, steps", next="write each step as [[steps]]")
    steps = tuple(_step(each, index, source, base) for index, each in enumerate(listed))
    found_misfit = misfit(steps)
    if found_misfit is not None:
        where = f"{source}, {found_misfit.place(steps)}"
        guess = meant(found_misfit.unknown, [step.name for step in steps]) if found_misfit.unknown else ""
        raise UsageFault(f"{found_misfit.what}{guess}", where=where, next=found_misfit.next)
    attempts = _read(content, "attempts", 1, _attempts, source)
    return Submission(steps=steps, id=chosen or found, max_attempts=attempts)


def _step(content: object, index: int, source: str, base: Path) -> Step:
    where = f"{source}, steps[{index}]"
    if not isinstance(content, Mapping):
        raise UsageFault("a step is a table", where=where, next="write it as [[steps]]")
    name = _read(content, "name", None, _name, where)
    if name is None:
        raise UsageFault("a step has no name", where=where, next='give it one, such as name = "build"')
    where = f"{where} {name!r}"
    _known(content, _MEMBERS, where)
    argv = _read(content, "argv", (), _words, where)
    if not argv or not argv[0]:
        raise UsageFault(f"step {name} has no command", where=f"{where}, argv", next='such as argv = ["make", "test"]')
    cwd = _read(content, "cwd", None, _path, where)
    return Step(
        name=name,
        argv=argv,
        needs=_read(content, "needs", (), _words, where),
        env=_read(content, "env", {}, _env, where),
        cwd=None if cwd is None else os.path.normpath(base / cwd),
        timeout_ms=_read(content, "timeout", None, _timeout, where),
        max_attempts=_read(content, "attempts", 1, _attempts, where),
    )


def _known(content: Mapping[str, Any], members: Sequence[str], where: str) -> None:
    for key in content:
        if key not in members:
            listed = ", ".join(members)
            raise UsageFault(
                f"unknown member {key!r}{meant(str(key), members)}", where=where, next=f"there are {listed}"
            )


def _read(content: Mapping[str, Any], member: str, default: Any, read_value: Callable[[Any], Any], where: str) -> Any:
    if member not in content:
        return default
    try:
        return read_value(content[member])
    except ValueError as allowed:
        # What an env member holds may be a secret: no value is repeated.
        raise UsageFault(f"{member} cannot be that", where=f"{where}, {member}", next=f"give {allowed}") from None


_ID: Final = "use letters, digits, '.', '_' and '-', starting with a letter or digit, at most 64"


def _name(value: object) -> str:
    if not isinstance(value, str) or not is_id(value):
        raise ValueError("a name of letters, digits, '.', '_' and '-', at most 64")
    return value


def _words(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise ValueError("a list of words, each in quotes: there is no shell")
    return tuple(value)


def _env(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise ValueError("a table of texts, each value in quotes")
    return dict(value)


def _path(value: object) -> str:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError("the path of a directory")
    return str(os.fspath(value))


def _timeout(value: object) -> int:
    ms = parse_duration(value) if isinstance(value, str) else 0
    if ms <= 0:
        raise ValueError('a duration such as "10m", in quotes')
    return ms


def _attempts(value: object) -> int:
    if type(value) is not int or not 1 <= value <= _MOST_ATTEMPTS:
        raise ValueError(f"a whole number from 1 to {_MOST_ATTEMPTS}")
    return value
