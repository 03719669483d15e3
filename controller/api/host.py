"""Whether this host can keep a state directory: Python and libraries, the file system, room, rights, limits.

Not promised: that what was found a moment ago is still so; anything about quotas, access lists or mount options that
only the kernel knows how to apply. Nothing here writes.

Each function judges one thing and gives a `Finding`. What it cannot look at it says; it never raises for that.
"""

from __future__ import annotations

import os
import re
import resource
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from controller.model.errors import NotOurs
from controller.provider.process import own_identity
from controller.store import disk

NETWORK: Final = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "fuse.ceph-fuse",
        "fuse.cephfs",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "pvfs2",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
    ]
)
"""Their locks, renames or syncs are another machine's, or the host's of this one."""
FLEETING: Final = frozenset({"tmpfs", "ramfs"})
LOCAL: Final = frozenset(
    ["bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "reiserfs", "xfs", "zfs"]
)

ROOM: Final = 256 << 20
SHARE: Final = 0.05
AMPLE: Final = 10 << 30
"""Below ROOM, or below SHARE of the file system unless AMPLE is free, is little."""
BESIDE: Final = 64 << 10
"""What a commit writes besides the document: its lines of history, directory blocks."""
INODES: Final = 1000
DESCRIPTORS: Final = 64
"""For everything but workers: documents, locks, pipes of eight calls at once."""

_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9._-]+)\s*>=\s*([0-9.]+)\s*")
_NUMBERS: Final = re.compile(r"\d+(?:\.\d+)*")


class State(StrEnum):
    """Ordered: the worst of several is the last."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(NamedTuple):
    """What one check found, and what to do about it ("" when nothing)."""

    state: State
    found: str
    next: str = ""


def ok(found: str) -> Finding:
    return Finding(State.OK, found)


def warn(found: str, then: str) -> Finding:
    return Finding(State.WARN, found, then)


def fail(found: str, then: str) -> Finding:
    return Finding(State.FAIL, found, then)


def worst(states: Iterable[State]) -> State:
    known = list(State)
    return max(states, key=known.index, default=State.OK)


def joined(fine: str, faults: Sequence[Finding]) -> Finding:
    """One finding of several: *fine* when there are no *faults*, else all of them, worst first."""
    if not faults:
        return ok(fine)
    ordered = sorted(faults, key=lambda fault: fault.state is not State.FAIL)
    steps = dict.fromkeys(fault.next for fault in ordered if fault.next)
    return Finding(ordered[0].state, "; ".join(fault.found for fault in ordered), "; ".join(steps))


# --- Python ----------------------------------------------------------------------------------------------------------


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Whether this interpreter is new enough for the release that is installed."""
    shown = ".".join(str(part) for part in version)
    try:
        wanted = metadata.metadata("controller")["Requires-Python"] or ""
    except metadata.PackageNotFoundError:
        return warn(f"{shown}; controller is not installed, so nothing says what it needs", "pip install controller")
    least = wanted.removeprefix(">=").strip()
    if version < numbers(least):
        return fail(f"{shown}, and controller needs {least}", f"install controller with Python {least} or newer")
    return ok(f"{shown} at {sys.executable}")


def libraries(version_of: Callable[[str], str] = metadata.version) -> Finding:
    """Whether every run-time dependency is there, and new enough."""
    try:
        required = metadata.requires("controller") or []
    except metadata.PackageNotFoundError:
        return warn("controller is not installed, so nothing says what it needs", "pip install controller")
    found, faults = [], []
    for line in required:
        match = _REQUIREMENT.fullmatch(line)
        if match is None:  # with a marker: it is for development
            continue
        name, least = match.groups()
        try:
            version = version_of(name)
        except metadata.PackageNotFoundError:
            faults.append(fail(f"{name} is missing", f"pip install '{name}>={least}'"))
            continue
        found.append(f"{name} {version}")
        if numbers(version) < numbers(least):
            faults.append(fail(f"{name} is {version}, below {least}", f"pip install '{name}>={least}'"))
    return joined(", ".join(found), faults)


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, to be compared."""
    match = _NUMBERS.match(version)
    return () if match is None else tuple(int(part) for part in match[0].split("."))


def byte_code() -> Finding:
    """Whether modules are compiled already: every command that compiles them anew takes several times as long."""
    place = Path(disk.__file__).parents[1]
    cached = disk.__spec__.cached
    if cached is not None and os.path.exists(cached):
        return ok(f"compiled, beside {place}")
    return warn(
        f"not compiled, and not kept: every command compiles {place} again",
        f"run `python -m compileall {place}` as somebody who may write there",
    )


def processes() -> Finding:
    """Whether /proc tells one process from another: else nobody's end could be proven."""
    me = own_identity()
    return ok(f"/proc is readable: pid {me.pid}, {me.pid_namespace}")


# --- The directory ---------------------------------------------------------------------------------------------------


def existing(path: Path) -> Path:
    """*path*, or the nearest directory above it that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def rights(directory: Path, status: os.stat_result) -> Finding:
    """Owner and mode: that we may write there, and that nobody else may."""
    faults = []
    try:
        disk.refuse_foreign_root(directory, status.st_uid)
    except NotOurs as error:
        faults.append(fail(error.what, error.next))
    else:
        if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
            faults.append(fail(f"no access: {disk.belongs(directory)}", "run it as the owner, or mend owner and mode"))
        elif status.st_uid != os.geteuid():
            owner = disk.owner_name(status.st_uid)
            faults.append(warn(f"it belongs to {owner}, and files made there would not", f"run controller as {owner}"))
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o002:
        faults.append(fail(f"everybody may write there (mode {mode:04o})", f"chmod o-w {directory}"))
    elif mode & 0o020:
        faults.append(warn(f"its group may write there (mode {mode:04o})", f"chmod g-w {directory}"))
    for parent in Path(os.path.realpath(directory)).parents:
        try:
            above = os.stat(parent).st_mode
        except OSError:
            continue
        if above & 0o002 and not above & stat.S_ISVTX:
            faults.append(
                warn(
                    f"everybody may write to {parent}, and so put another directory in its place", f"chmod o-w {parent}"
                )
            )
    return joined(disk.belongs(directory), faults)


# --- The file system -------------------------------------------------------------------------------------------------


class Mount(NamedTuple):
    point: str
    type: str


def mount_of(path: str, table: str) -> Mount | None:
    """The mount that *path*, without links, is on, by a *table* such as /proc/self/mountinfo."""
    best = None
    for line in table.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        # The later of two on one point hides the earlier.
        if path_below(path, point) and (best is None or len(point) >= len(best.point)):
            best = Mount(point, after.split(" ")[0])
    return best


def path_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point if point.endswith("/") else f"{point}/")


def file_system(path: Path, table: Callable[[], str]) -> Finding:
    """Whether the kind of file system keeps what the store builds on: kernel locks, atomic renames, syncs that last."""
    try:
        mount = mount_of(os.path.realpath(existing(path)), table())
    except OSError as error:
        return warn(f"its type cannot be told: {disk.says(error)}", "make sure that it is a local disk")
    if mount is None:
        return warn("its type cannot be told: no mount holds it", "make sure that it is a local disk")
    found = f"{mount.type} at {mount.point}"
    if mount.type in NETWORK:
        return fail(
            f"{found}: locks and durable renames are not promised on a network or shared file system",
            "put the state directory on a local disk, and name it with --state-dir",
        )
    if mount.type in FLEETING:
        return warn(f"{found}: it is in memory, and gone after a reboot", "put the state directory on a disk")
    if mount.type == "overlay":
        return warn(f"{found}: it lasts as long as its container", "put the state directory on a volume")
    if mount.type not in LOCAL:
        return warn(
            f"{found}: nothing is known of its locks, renames and syncs",
            "make sure that it is local and keeps them, or use ext4, xfs, btrfs or zfs",
        )
    return ok(found)


def writable(path: Path, statvfs: Callable[[Path], os.statvfs_result]) -> Finding:
    """Whether anything can be written there at all."""
    there = existing(path)
    try:
        read_only = statvfs(there).f_flag & os.ST_RDONLY
    except OSError as error:
        return fail(f"{there} cannot be asked: {disk.says(error)}", "mend the disk or the mount")
    if read_only:
        return fail(
            f"{there} is mounted read-only: reading works, everything else is refused",
            "mount it read-write; a disk that turned read-only by itself has errors, see `dmesg`",
        )
    return ok("mounted read-write")


def room(path: Path, commit: int, statvfs: Callable[[Path], os.statvfs_result]) -> Finding:
    """Free space and inodes. *commit*: the bytes of the document, which a commit writes beside the old one."""
    try:
        found = statvfs(existing(path))
    except OSError as error:
        return fail(f"free space cannot be told: {disk.says(error)}", "mend the disk or the mount")
    free = (found.f_bfree if os.geteuid() == 0 else found.f_bavail) * found.f_frsize
    whole = found.f_blocks * found.f_frsize
    inodes = found.f_ffree if os.geteuid() == 0 else found.f_favail
    faults = []
    if free < commit + BESIDE:
        faults.append(
            fail(f"{size(free)} free, and a commit needs {size(commit + BESIDE)}", "make room: no command can save now")
        )
    elif free < ROOM or (free < SHARE * whole and free < AMPLE):
        faults.append(warn(f"{size(free)} free of {size(whole)}", "make room before it is full"))
    if found.f_files and inodes < 2:  # without a count of files, as on btrfs, there is no limit of them
        faults.append(fail(f"{inodes} inodes left, and a commit makes a file", "remove files: no command can save now"))
    elif found.f_files and inodes < INODES:
        faults.append(warn(f"{inodes} inodes left", "remove files before there are none"))
    counted = f", {inodes} inodes" if found.f_files else ""
    return joined(f"{size(free)} free of {size(whole)}{counted}; a commit needs {size(commit + BESIDE)}", faults)


def size(amount: int) -> str:
    """Bytes in the largest unit that keeps two digits or more, rounded down."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    step = 0
    while step < len(units) - 1 and amount >= 10 * 1024 ** (step + 1):
        step += 1
    return f"{amount // 1024**step} {units[step]}"


# --- Limits ----------------------------------------------------------------------------------------------------------


def limits(slots: int, commit: int, limit_of: Callable[[int], tuple[int, int]] = resource.getrlimit) -> Finding:
    """Open files, for *slots* workers, and the largest file, for a document of *commit* bytes."""
    faults = []
    files = limit_of(resource.RLIMIT_NOFILE)[0]
    wanted = DESCRIPTORS + 2 * slots
    open_files = "any number of" if files == resource.RLIM_INFINITY else str(files)
    if files != resource.RLIM_INFINITY and files < wanted:
        say = fail if files < DESCRIPTORS else warn
        faults.append(
            say(
                f"{files} open files, and {slots} slots may take {wanted}",
                f"`ulimit -n {wanted}` before controller is started; LimitNOFILE= in a unit",
            )
        )
    largest = limit_of(resource.RLIMIT_FSIZE)[0]
    if largest not in (resource.RLIM_INFINITY, -1) and largest < 2 * commit + BESIDE:
        faults.append(
            fail(
                f"no file may grow beyond {size(largest)}, and the document has {size(commit)}",
                "`ulimit -f unlimited` before controller is started; LimitFSIZE= in a unit",
            )
        )
    return joined(f"{open_files} open files, slots: {slots}", faults)
