"""Runs as they are written down: a command, or a graph of steps in Python, TOML or JSON.

Not promised: that what can be read can be run; a program that is missing is found out by the worker.

Everything that is wrong is refused with its place, and nothing is guessed: an unknown member is not ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from msgspec import UNSET, structs

from controller.api import amounts
from controller.api.options import DURATIONS, MOST_ATTEMPTS, parse_duration
from controller.api.payload import encoded
from controller.api.settings import absolute
from controller.api.words import meant
from controller.engine.submission import Submission
from controller.model.errors import StrictError, UsageFault
from controller.model.graph import misfit, quoted
from controller.model.records import ID_GRAMMAR, Priority, Step, is_id
from controller.model.strict import strict_loads

STEP: Final = "main"
"""The name of the step of a run that is one command."""
MOST_BYTES: Final = 4 << 20
_TOP: Final = ("id", "attempts", "steps")
_MEMBERS: Final = ("name", "argv", "needs", "env", "cwd", "timeout", "attempts")


def submission(
    argv: Sequence[str] | None = None,
    *,
    steps: Iterable[Mapping[str, Any]] | None = None,
    id: str | None = None,  # noqa: A002 - the word of the file and the command line
    attempts: int | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    payload: Any = UNSET,
    queue: str | None = None,
    priority: Priority | str = Priority.NORMAL,
    crashes: int | None = None,
    delay: float | None = None,
    at: int | datetime | None = None,
    unique_for: float | None = None,
    concurrency_key: str = "",
    concurrency: int | None = None,
    replace: bool = False,
) -> Submission:
    """A run to be: a command, *steps*, or *payload* alone for a consumer. See `Controller.submit`. Relative directories
    are those of this process.

    Raises UsageFault.
    """
    content = _content(argv, steps, id, attempts, env, cwd, timeout, payload)
    if delay is not None and at is not None:
        raise UsageFault("a run is due after a delay or at a time", where="delay; at", next="give one of them")
    if replace and id is None:
        raise UsageFault("there is nothing to replace without an id", where="replace", next="give the id, too")
    if concurrency is not None and not concurrency_key:
        raise UsageFault("concurrency is that of a key", where="concurrency", next="give concurrency_key, too")
    return structs.replace(
        content,
        id=content.id if id is None else _chosen("id", id, _id),
        queue=None if queue is None else _chosen("queue", queue, _id),
        priority=_priority(priority),
        max_crashes=None if crashes is None else amounts.count(crashes, "crashes", MOST_ATTEMPTS),
        payload=encoded(payload, "payload"),
        delay_ms=None if delay is None else amounts.milliseconds(delay, "delay", zero=True),
        at=None if at is None else amounts.moment(at, "at"),
        unique_ms=None if unique_for is None else amounts.milliseconds(unique_for, "unique_for"),
        concurrency_key=_chosen("concurrency_key", concurrency_key, _name),
        concurrency=1 if concurrency is None else amounts.count(concurrency, "concurrency", MOST_ATTEMPTS),
        replace=replace,
    )


def _content(
    argv: Sequence[str] | None,
    steps: Iterable[Mapping[str, Any]] | None,
    run_id: str | None,
    attempts: int | None,
    env: Mapping[str, str] | None,
    cwd: str | os.PathLike[str] | None,
    timeout: float | None,
    payload: Any,
) -> Submission:
    """What is to be done, and how often that may fail."""
    if argv is not None and steps is not None:
        raise UsageFault("a run is either a command or steps", next="give argv, or steps")
    if argv is None and (env or cwd is not None or timeout is not None):
        where = "give them within the steps" if steps is not None else "give argv, too"
        raise UsageFault("env, cwd and timeout belong to a step", next=where)
    if steps is not None:
        given = {} if attempts is None else {"attempts": attempts}
        return _submission({"steps": list(steps), **given}, "submit", Path(), run_id)
    limit = None if attempts is None else _chosen("attempts", attempts, _attempts)
    if argv is None:
        if payload is UNSET:
            raise UsageFault("a run is a command, steps, or a payload alone", next="give argv, steps, or payload")
        return Submission(id=run_id, max_attempts=limit)
    step: dict[str, Any] = {"name": STEP, "argv": argv, "env": {} if env is None else env}
    if cwd is not None:
        step["cwd"] = cwd
    longest = None if timeout is None else amounts.milliseconds(timeout, "timeout")
    made = structs.replace(_step(step, "", Path()), timeout_ms=longest)
    return Submission(steps=(made,), id=run_id, max_attempts=limit)


def _chosen(member: str, value: Any, read_value: Callable[[Any], Any]) -> Any:
    return _read({member: value}, member, None, read_value, "")


def _priority(value: Priority | str) -> Priority:
    try:
        return Priority(value)
    except ValueError:
        known = [layer.value for layer in Priority]
        what = f"{value!s} is no priority{meant(str(value), known)}"
        raise UsageFault(what, where="priority", next=f"give one of {', '.join(known)}") from None


def read(
    data: bytes,
    *,
    source: str,
    base: Path,
    toml: bool | None = None,
    id: str | None = None,  # noqa: A002 - the word of the file and the command line
    attempts: int | None = None,
) -> Submission:
    """The run that *data*, TOML or JSON, describes. *base*: what relative directories are relative to.

    *toml* None: JSON if it starts with a brace. *id* and *attempts* are what the command line chose; what the file says
    otherwise is a contradiction, not a default. Raises UsageFault naming *source* and the place in it.
    """
    if len(data) > MOST_BYTES:
        raise UsageFault(f"it is larger than {MOST_BYTES} bytes", where=source, next="pass large data in files")
    if toml is None:
        toml = not data.lstrip().startswith(b"{")
    return _submission(_toml(data, source) if toml else _json(data, source), source, base, id, attempts)


def _toml(data: bytes, source: str) -> object:
    import tomllib

    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise UsageFault("not UTF-8", where=f"{source}, byte {error.start}", next="mend that place") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageFault(f"not TOML: {error}", where=source, next="mend that place") from error
    except ValueError:
        raise UsageFault("a number has thousands of digits", where=source, next="give one that is meant") from None


def _json(data: bytes, source: str) -> object:
    try:
        return strict_loads(data, where=source)
    except StrictError as error:
        begin = data.rfind(b"\n", 0, error.offset) + 1
        column = len(data[begin : error.offset].decode(errors="replace")) + 1
        where = f"{source}, line {error.line}, column {column}"
        raise UsageFault(f"not JSON: {error.problem}", where=where, next="mend that place") from error


def _submission(
    content: object, source: str, base: Path, chosen: str | None, attempts_chosen: int | None = None
) -> Submission:
    if not isinstance(content, dict):
        raise UsageFault("a run is a table with steps", where=source, next="write [[steps]]")
    _known(content, _TOP, source)
    run_id = _read(content, "id", None, _id, source)
    _agree("id", run_id, chosen, source)
    attempts = _read(content, "attempts", None, _attempts, source)
    _agree("attempts", attempts, attempts_chosen, source)
    listed = content.get("steps")
    if not isinstance(listed, list):
        problem = "there are no steps" if listed is None else "steps is no list"
        raise UsageFault(problem, where=source, next="write each step as [[steps]]")
    if not listed:
        raise UsageFault("there are no steps", where=f"{source}, steps", next="write each step as [[steps]]")
    steps = tuple(_step(each, f"{source}, steps[{index}]", base) for index, each in enumerate(listed))
    found = misfit(steps)
    if found is not None:
        guess = meant(found.unknown, [step.name for step in steps]) if found.unknown else ""
        raise UsageFault(f"{found.what}{guess}", where=f"{source}, {found.place(steps)}", next=found.next)
    return Submission(steps=steps, id=chosen or run_id, max_attempts=attempts_chosen or attempts)


def _agree(member: str, found: object, chosen: object, source: str) -> None:
    if found is not None and chosen is not None and found != chosen:
        what = f"{member} is {found!r} there and {chosen!r} on the command line"
        raise UsageFault(what, where=f"{source}, {member}; --{member}", next="give one of them")


def _step(content: object, where: str, base: Path) -> Step:
    """One step, its members of the right types; whether it can be run is for `misfit`."""
    if not isinstance(content, Mapping):
        raise UsageFault("a step is a table", where=where, next="write it as [[steps]]")
    name = _read(content, "name", None, _name, where)
    if name is None:
        raise UsageFault("a step has no name", where=where, next='give it one, such as name = "build"')
    where = f"{where} {quoted(name)}" if where else ""
    _known(content, _MEMBERS, where)
    cwd = _read(content, "cwd", None, _path, where)
    return Step(
        name=name,
        argv=_read(content, "argv", (), _words, where),
        needs=_read(content, "needs", (), _names, where),
        env=_read(content, "env", {}, _env, where),
        cwd=None if cwd is None else str(absolute(base / cwd)),
        timeout_ms=_read(content, "timeout", None, _timeout, where),
        max_attempts=_read(content, "attempts", 1, _attempts, where),
    )


def _known(content: Mapping[str, Any], members: Sequence[str], where: str) -> None:
    for key in content:
        if key not in members:
            listed = ", ".join(members)
            what = f"unknown member {quoted(str(key))}{meant(str(key), members)}"
            raise UsageFault(what, where=where, next=f"there are {listed}")


def _read(content: Mapping[str, Any], member: str, default: Any, read_value: Callable[[Any], Any], where: str) -> Any:
    if member not in content:
        return default
    try:
        return read_value(content[member])
    except ValueError as allowed:
        # What an env member holds may be a secret: no value is repeated.
        place = f"{where}, {member}" if where else member
        raise UsageFault(f"{member} cannot be that", where=place, next=f"give {allowed}") from None


def _id(value: object) -> str:
    if not isinstance(value, str) or not is_id(value):
        raise ValueError(f"{ID_GRAMMAR}, in quotes")
    return value


def _name(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("a text, in quotes")


def _words(value: object) -> tuple[str, ...]:
    return _texts(value, "a list of words, each in quotes: there is no shell")


def _names(value: object) -> tuple[str, ...]:
    return _texts(value, 'a list of names of steps, such as ["build"]')


def _texts(value: object, allowed: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError(allowed)
    return tuple(value)


def _env(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise ValueError("a table of texts, each value in quotes")
    return dict(value)


def _path(value: object) -> str:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError("the path of a directory")
    return os.fsdecode(value)


def _timeout(value: object) -> int:
    ms = parse_duration(value) if isinstance(value, str) else 0
    if ms <= 0:
        raise ValueError(f"{DURATIONS}, in quotes; not none at all")
    return ms


def _attempts(value: object) -> int:
    if type(value) is not int or not 1 <= value <= MOST_ATTEMPTS:
        raise ValueError(f"a whole number from 1 to {MOST_ATTEMPTS}")
    return value
