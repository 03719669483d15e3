"""The only place that writes to stdout and stderr.

stdout carries the answer alone: one JSON document with `--json`, otherwise a page for people. Notes and text errors go
to stderr. Nothing here raises when something cannot be written: the caller asks `Output.failed` when it matters.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from errno import EPIPE
from typing import TYPE_CHECKING, Final

import msgspec

from controller.api.settings import environment
from controller.cli.text import BOLD, RED, painted, shown, telling
from controller.model.errors import (
    Busy,
    ControllerError,
    DocumentFault,
    Exhausted,
    NotDurable,
    NotFound,
    ProviderFailed,
    Refusal,
    SlotRetained,
    SlotUnproven,
    Stuck,
    TransitionRefused,
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
    (Exhausted, "trouble"),
    (SlotRetained, "trouble"),
    (Stuck, "trouble"),
    (Busy, "busy"),
    (DocumentFault, "refused"),
    (NotDurable, "not saved"),
)
_CLEAR = "\r\x1b[K"


UNWRITTEN: Final = 8
"""Exit code of a command whose answer could not be written, where that is all it was for."""


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
        self._stderr_lock = threading.RLock()  # a signal's handler writes while what it interrupted does

    def answer(self, verb: str, body: Mapping[str, object], page: Iterable[str | Table], *, well: bool = False) -> None:
        """Write the answer of *verb*: *body* under its schema, or the lines of *page*, which must say the same.

        *well*: what was to be done is done, which needs no page under --quiet.
        """
        if self.json:
            self._stdout(encode({"schema": f"controller.{verb}/1", **body}))
        elif not (well and self.quiet):
            self._stdout("".join(f"{line}\n" for line in self._lines(page)).encode("utf-8", "backslashreplace"))

    def raw(self, data: bytes) -> None:
        """Write bytes to stdout as they are."""
        self._stdout(data)

    def note(self, line: str) -> None:
        """Tell people something beside the answer, on stderr; nothing under --quiet or --json."""
        if not self.quiet and not self.json:
            self._stderr([line])

    def progress(self, line: str) -> None:
        """Show what takes so long, in place of what was shown so last; "" shows nothing any more.

        Only where `can_progress`. Whatever is written next, to either stream, takes the line away first.
        """
        with self._stderr_lock:
            if not (line or self._progressing):
                return
            from controller.cli.tables import cut

            room = (terminal_width(2) or 80) - 1
            self._progressing = bool(line)
            _write(2, f"{_CLEAR}{cut(shown(line), room)}".encode("utf-8", "backslashreplace"))

    @property
    def can_progress(self) -> bool:
        """Whether somebody sees a line that is rewritten in place."""
        return not self.quiet and not self.json and os.isatty(2) and environment("TERM") != "dumb"

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
            told = {"code": error.code, "what": error.what, "where": error.where, "next": error.next}
            # A program must tell a stale token from a report that was heard before, and not by the words.
            why = {"why": error.why} if isinstance(error, TransitionRefused) else {}
            self._stdout(encode({"error": told | why}))
            return
        head = next((head for kind, head in _HEADS if isinstance(error, kind)), "error")
        if self.color:
            head = painted(head, RED)
        lines = [f"{head}: {shown(error.what)}"]
        if error.where:
            lines.append(f"  {shown(error.where)}")
        if error.next:
            lines.append(f"  next: {shown(error.next)}")
        self._stderr(lines)

    def _lines(self, page: Iterable[str | Table]) -> Iterator[str]:
        room = terminal_width()
        for part in page:
            if not isinstance(part, str):
                yield from part.lines(room=room, color=self.color)
            elif room is None:
                yield self._telling(part)
            else:
                from controller.cli.tables import wrapped

                yield from wrapped(self._telling(part), room)

    def _telling(self, line: str) -> str:
        """*line*, red where it begins with what is wrong."""
        return telling(line) if self.color and line.startswith(("trouble", "violation")) else line

    def bold(self, text: str, *, wrong: bool = False) -> str:
        """*text* as a head; red if it heads what is *wrong*."""
        return painted(text, BOLD + (RED if wrong else "")) if self.color and not self.json else text

    def _stdout(self, data: bytes) -> None:
        self.progress("")
        # A stdout that was closed from the start stands for nothing: main has put /dev/null there.
        problem = "it is closed" if sys.stdout is None else _write(1, data)
        if problem is not None:
            self.failed = True
            if problem:
                self._stderr([f"the answer could not be written: {problem}"])

    def _stderr(self, lines: Iterable[str]) -> None:
        with self._stderr_lock:
            clear, self._progressing = _CLEAR if self._progressing else "", False
            text = clear + "".join(f"{self._telling(line)}\n" for line in lines)
            _write(2, text.encode("utf-8", "backslashreplace"))


def terminal_width(descriptor: int = 1) -> int | None:
    """How wide the terminal is that *descriptor* goes to; None: it goes to none, and nothing has to fit."""
    if not os.isatty(descriptor):
        return None
    chosen = environment("COLUMNS")
    if chosen.isdecimal() and len(chosen) < 6 and int(chosen):
        return int(chosen)
    try:
        return os.get_terminal_size(descriptor).columns or None
    except OSError:
        return None


def encode(content: object) -> bytes:
    """One line of JSON. Text that UTF-8 cannot carry, such as a file name in another encoding, is escaped.

    JSON that was kept as it is, `msgspec.Raw`, goes into it as it is. By msgspec, which every command has loaded.
    """
    try:
        return msgspec.json.encode(content) + b"\n"
    except (TypeError, UnicodeEncodeError):
        return msgspec.json.encode(_carried(content)) + b"\n"


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
