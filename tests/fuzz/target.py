"""What every fuzz target shares: a case, what must not come of it, and telling one finding from another."""

from __future__ import annotations

import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final, TypeVar
from unittest import mock

from msgspec import Struct

from controller.model.errors import ControllerError

T = TypeVar("T")

WATCHDOG_SECONDS: Final = 60
"""A case that takes so long hangs. A thousand times what one takes."""


class Hang(BaseException):
    """Passes through whatever catches an Exception."""


class Case(Struct, frozen=True):
    """One input: what was done to make it, and its bytes by file (None: the file is not there)."""

    world: str
    how: str
    files: dict[str, bytes | None]

    @property
    def size(self) -> int:
        return sum(len(data) for data in self.files.values() if data is not None)


class Finding(AssertionError):
    """Something that must never come of any input. `kind` is the same for the same fault."""

    def __init__(self, kind: str, told: str) -> None:
        super().__init__(f"{kind}\n{told}")
        self.kind = kind


class Target(Struct, frozen=True):
    """*make* draws a case; *check* raises Finding where the program does with it what it must not."""

    name: str
    make: Callable[[Random], Case]
    check: Callable[[Case, Path], None]

    def try_one(self, case: Case) -> None:
        """Check *case* in a directory of its own. Raises Finding."""
        home = Path(tempfile.mkdtemp(prefix="fuzz-"))
        try:
            with watched(), unsynced():
                self.check(case, home)
        finally:
            shutil.rmtree(home)


@contextmanager
def watched() -> Iterator[None]:
    """Turn a hang into a finding that says where it stood. Only in a main thread."""

    def end(_number: int, _frame: object) -> None:
        raise Hang

    known = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, WATCHDOG_SECONDS)
    try:
        yield
    except Hang as hang:
        raise Finding(f"a hang at {_place(hang)}", traceback.format_exc()) from hang
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, known)


@contextmanager
def unsynced() -> Iterator[None]:
    """Sync nothing meanwhile: no power is cut here, and the disk would take most of the time."""
    with mock.patch("os.fsync", _nothing), mock.patch("os.fdatasync", _nothing):
        yield


def _nothing(_descriptor: object) -> None:
    return None


def answered(name: str, ask: Callable[[], T]) -> T | ControllerError:
    """What *ask* answers, or the error of the tree that it raises. Raises Finding for any other exception, and for one
    that says no more than that it is a bug.
    """
    try:
        return ask()
    except ControllerError as error:
        if error.exit == ControllerError.exit:
            raise Finding(f"{name}: {type(error).__name__} at {_place(error)}", traceback.format_exc()) from error
        if not error.what:
            raise Finding(
                f"{name}: an empty {type(error).__name__} at {_place(error)}", traceback.format_exc()
            ) from error
        return error
    except Finding:
        raise
    except Exception as error:
        raise Finding(f"{name}: {type(error).__name__} at {_place(error)}", traceback.format_exc()) from error


def _place(error: BaseException) -> str:
    """The innermost line of this program's own in the traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/controller/" in frame.filename]
    if not frames:
        return "?"
    return f"{frames[-1].filename.rpartition('/controller/')[2]}:{frames[-1].lineno} ({frames[-1].name})"


def must(claim: bool, kind: str, told: object = "") -> None:
    """Raise Finding unless *claim*."""
    if not claim:
        raise Finding(kind, str(told))
