"""What strace is asked, and what it tells: the calls of one process by which its state directory changes.

Not promised: calls of programs that the process starts (strace lets go of them); that a call is named alike on another
kernel or C library. Debian's strace 6.1 and later are understood.

strace numbers the calls of each thread apart, and counts only what its path filter lets through. So a call is singled
out by its number among those of its name, or by that among those of one path; when another thread gets to that number
first, both ways, it cannot be. And an error happens once in each thread that gets there: where the first sender of a
slot fails, so does the next, until the process ends.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

STRACE: Final = shutil.which("strace")
STARTS: Final = ("clone", "clone3", "fork", "vfork")
OPENS: Final = ("openat",)
CHANGES: Final = (
    *("write", "pwrite64", "writev", "pwritev", "pwritev2", "copy_file_range", "sendfile", "fallocate", "ftruncate"),
    *("fsync", "fdatasync", "sync_file_range", "rename", "renameat", "renameat2", "link", "linkat", "unlink"),
    *("unlinkat", "mkdir", "mkdirat", "rmdir", *OPENS),
)
CALLS: Final = (*CHANGES, *STARTS)
"""Every call that is a point, if it touches the state directory or starts a thread or process."""
FAULTS: Final = ("KILL", "EIO", "ENOSPC", "EINTR")

_TELLING: Final = ("-qq", "-y", "-s", "0")
_LINE = re.compile(r"(\d+) +([a-z]\w*)\((.*)")
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>")
_WRITING = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC")
_PATH = re.compile(r'"((?:[^"\\]|\\.)*)"|\d+<([^>]*)>')
_OWN_NUMBERS = re.compile(r"tmp-[\d-]+")
_NUMBERS = re.compile(r"\d+")


class Call(NamedTuple):
    """One call as it began. `paths` are those of its descriptors and arguments; `thread` is the kernel's number."""

    thread: int
    name: str
    paths: tuple[str, ...]
    writes: bool
    injected: bool


class Point(NamedTuple):
    """One call that can be made to fail: the *nth* of its name that matters, counted from 1 over all threads.

    `when` is the number that strace must be given, with `path` (below the home of a case; "": none) as its filter.
    `when` 0: it cannot be singled out. `what` says in words what is called there.
    """

    call: str
    nth: int
    when: int
    path: str
    what: str


def tracing(log: Path, *, calls: Iterable[str] = CALLS) -> tuple[str, ...]:
    """What to put before a command to have its calls written to *log*."""
    return (str(STRACE), "-f", "-b", "execve", *_TELLING, "-o", str(log), "-e", f"trace={','.join(calls)}")


def injecting(log: Path, point: Point, fault: str, home: Path, *, alone: bool) -> tuple[str, ...]:
    """What to put before a command of the case in *home* to have *fault* happen at *point*.

    *alone*: the command starts no other program. Then strace need look at no call but those, which is faster.
    """
    what = "signal=KILL" if fault == "KILL" else f"error={fault}"
    path = (f"--trace-path={home / point.path}",) if point.path else ()
    inject = (*path, "-e", f"inject={point.call}:{what}:when={point.when}")
    # With its filter in the kernel strace 6.1 sends no signal: it was tried.
    if alone and fault != "KILL":
        return (str(STRACE), "-f", "--seccomp-bpf", *_TELLING, "-o", str(log), "-e", f"trace={point.call}", *inject)
    return (*tracing(log, calls=[point.call]), *inject)


def read(log: Path) -> tuple[Call, ...]:
    """The calls in *log*, in the order in which they began."""
    found: list[Call] = []
    open_calls: dict[int, int] = {}
    for line in log.read_text(errors="replace").splitlines():
        # A thread that is killed ends in the call: nothing but `= ?` is told of it.
        injected = line.endswith(("(INJECTED)", "= ?"))
        resumed = _RESUMED.match(line)
        if resumed is not None:
            index = open_calls.pop(int(resumed[1]), None)
            if injected and index is not None:
                found[index] = found[index]._replace(injected=True)
        match = _LINE.match(line)
        if match is None or match[2] not in CALLS:
            continue
        if line.endswith("<unfinished ...>"):
            open_calls[int(match[1])] = len(found)
        arguments = match[3].rpartition(") = ")[0] or match[3]
        paths = tuple(quoted or described for quoted, described in _PATH.findall(arguments))
        writes = match[2] not in OPENS or _WRITING.search(arguments) is not None
        found.append(Call(int(match[1]), match[2], paths, writes, injected))
    return tuple(found)


def matters(call: Call, state: Path) -> bool:
    """Whether *call* changes something below *state* (or enters it in its parent), or starts something."""
    if call.name in STARTS:
        return True
    inside = (str(state), str(state.parent))
    return call.writes and any(path in inside or path.startswith(f"{state}/") for path in call.paths)


def words(call: Call, home: Path) -> str:
    """What *call* is about, the same in every run: names of temporary files have the numbers of their process."""
    shown = [path.removeprefix(f"{home}/") for path in call.paths if path.startswith(str(home) + "/")]
    return _NUMBERS.sub("N", _OWN_NUMBERS.sub("tmp", " ".join(dict.fromkeys(shown)))) or call.name


def points(calls: Sequence[Call], state: Path) -> tuple[Point, ...]:
    """Every point of a run that went well, in order."""
    home = state.parent
    found = []
    nths: Counter[str] = Counter()
    for index, call in enumerate(calls):
        if not matters(call, state):
            continue
        nths[call.name] += 1
        what = words(call, home)
        so_far = [each for each in calls[: index + 1] if each.name == call.name]
        when = _singled(so_far, call)
        path = ""
        for candidate in call.paths:
            if when == 0 and candidate.startswith(f"{state}/") and not _OWN_NUMBERS.search(candidate):
                when = _singled([each for each in so_far if candidate in each.paths], call)
                path = candidate.removeprefix(f"{home}/") if when else ""
        found.append(Point(call.name, nths[call.name], when, path, what))
    return tuple(found)


def _singled(so_far: Sequence[Call], call: Call) -> int:
    """The number of *call*, the last of *so_far*, in its thread; 0: another thread has reached it before."""
    counts: Counter[int] = Counter(each.thread for each in so_far)
    number = counts.pop(call.thread)
    return 0 if any(count >= number for count in counts.values()) else number


def landed(log: Path, point: Point, home: Path) -> bool:
    """Whether the fault of a run that wrote *log* happened at *point* and nowhere before."""
    for call in read(log):
        if call.injected:
            return call.name == point.call and words(call, home) == point.what
    return False
