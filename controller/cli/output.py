"""The only place that writes to stdout and stderr.

stdout carries the answer alone: one JSON document with `--json`, otherwise a page for people. Notes and text errors go
to stderr. Nothing here raises when something cannot be written: the caller asks `Output.failed` when it matters.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from errno import EPIPE
from typing import TYPE_CHECKING, Final

import orjson

from controller.cli.text import shown
from controller.library.settings import environment
from controller.model.errors import (
    Busy,
    ControllerError,
    DocumentFault,
    NotDurable,
    NotFound,
    ProviderFailed,
    Refusal,
    SlotUnproven,
    UsageFault,
)

if TYPE_CHECKING:
    from controller.cli.tables import Table

_HEADS: Final[tuple[tuple[type[ControllerError], str], ...]] = (
    (UsageFault, "usage"),
    (Refusal, "refused"),
    (NotFound, "not found"),
    (ProviderFailed, "trouble"),
    (SlotUnproven, "trouble"),
    (Busy, "busy"),
    (DocumentFault, "refused"),
    (NotDurable, "not saved"),
)
_RED, _BOLD, _PLAIN, _CLEAR = "\x1b[31m", "\x1b[1m", "\x1b[0m", "\r\x1b[K"


class Output:
    """What one command writes. `failed` says whether its answer could not be written whole.

    `exact`: times are told as moments, not as ages.
    """

    def __init__(self, *, json: bool, quiet: bool = False, color: bool = False, exact: bool = False) -> None:
        self.json = json
        self.quiet = quiet
        self.color = color
        self.exact = exact
        self.failed = False
        self._progressing = False

    def answer(self, verb: str, body: Mapping[str, object], page: Iterable[str | Table]) -> None:
        """Write the answer of *verb*: *body* under its schema, or the lines of *page*, which must say the same."""
        if self.json:
            self._stdout(encode({"schema": f"controller.{verb}/1", **body}))
        else:
            self._stdout("".join(f"{line}\n" for line in self._lines(page)).encode("utf-8", "backslashreplace"))

    def raw(self, data: bytes) -> None:
        """Write bytes to stdout as they are."""
        self._stdout(data)

    def note(self, line: str) -> None:
        """Tell people something beside the answer, on stderr; nothing under --quiet or --json."""
        if not self.quiet and not self.json:
            self._stderr([line])

    def progress(self, line: str) -> None:
        """Show what takes so long, on a terminal, in place of what was shown so last; "" shows nothing any more."""
        if self.quiet or self.json or not (line or self._progressing):
            return
        room = (terminal_width(2) or 80) - 1
        _write(2, f"{_CLEAR}{line[:room]}".encode("utf-8", "backslashreplace"))
        self._progressing = bool(line)

    def warn(self, line: str) -> None:
        """Tell people what is wrong, on stderr, also under --quiet: a command that stays must not wait for its end."""
        self._stderr([line])

    def fault(self, fault: ControllerError | None) -> dict[str, str] | None:
        """Something wrong that keeps no answer back: as a member of it, or as a note beside it."""
        if fault is None:
            return None
        self.note(f"trouble: {shown(fault.what)}; {shown(fault.where)}")
        return {"code": fault.code, "what": fault.what, "where": fault.where, "next": fault.next}

    def error(self, error: ControllerError) -> None:
        """Say what went wrong: as JSON on stdout, or on stderr in the shape of a refusal."""
        if self.json:
            self._stdout(
                encode(
                    {
                        "error": {
                            "code": error.code,
                            "what": error.what,
                            "where": error.where,
                            "next": error.next,
                        }
                    }
                )
            )
            return
        head = next((head for kind, head in _HEADS if isinstance(error, kind)), "error")
        if self.color:
            head = f"{_RED}{head}{_PLAIN}"
        lines = [f"{head}: {shown(error.what)}"]
        if error.where:
            lines.append(f"  {shown(error.where)}")
        if error.next:
            lines.append(f"  next: {shown(error.next)}")
        self._stderr(lines)

    def _lines(self, page: Iterable[str | Table]) -> Iterator[str]:
        room = terminal_width()
        for part in page:
            if isinstance(part, str):
                yield part
            else:
                yield from part.lines(room=room, color=self.color)

    def bold(self, text: str) -> str:
        return f"{_BOLD}{text}{_PLAIN}" if self.color and not self.json else text

    def _stdout(self, data: bytes) -> None:
        # A stdout that was closed from the start stands for nothing: main has put /dev/null there.
        problem = "it is closed" if sys.stdout is None else _write(1, data)
        if problem is not None:
            self.failed = True
            if problem:
                self._stderr([f"the answer could not be written: {problem}"])

    def _stderr(self, lines: Iterable[str]) -> None:
        clear, self._progressing = _CLEAR if self._progressing else "", False
        _write(2, (clear + "".join(f"{line}\n" for line in lines)).encode("utf-8", "backslashreplace"))


def terminal_width(descriptor: int = 1) -> int | None:
    """How wide the terminal is that *descriptor* goes to; None: it goes to none, and nothing has to fit."""
    if not os.isatty(descriptor):
        return None
    chosen = environment("COLUMNS")
    if chosen.isdecimal() and int(chosen):
        return int(chosen)
    try:
        return os.get_terminal_size(descriptor).columns or None
    except OSError:
        return None


def encode(content: object) -> bytes:
    """One line of JSON. Text that UTF-8 cannot carry, such as a file name in another encoding, is escaped."""
    try:
        return orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        return orjson.dumps(_carried(content), option=orjson.OPT_APPEND_NEWLINE)


def _carried(content: object) -> object:
    if isinstance(content, str):
        return content.encode("utf-8", "backslashreplace").decode()
    if isinstance(content, Mapping):
        return {_carried(key): _carried(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_carried(item) for item in content]
    return content


def _write(descriptor: int, data: bytes) -> str | None:
    """Write all of *data*; None, or why not ("" when the reader just went away, which needs no words)."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            from select import select

            select([], [descriptor], [])
        except OSError as error:
            return "" if error.errno == EPIPE else os.strerror(error.errno or 0)
    return None
