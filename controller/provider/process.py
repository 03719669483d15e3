"""Process identity and the end of process groups, read from /proc. The only place that signals anything.

Not promised: anything about a process of another pid namespace; it is unknown, which is not gone.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from controller.clock import Clock
from controller.model.process import Liveness, ProcessIdentity

_STATE = 0
_GROUP = 2
_SESSION = 3
_STARTED = 19


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@cache
def pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


os.register_at_fork(after_in_child=pid_namespace.cache_clear)  # a child may be the first of a namespace of its own


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; None if there is no such process. The name may hold anything.

    Asked of each step between its fork and its exec, while every page that is touched is copied: so no text, no path.
    """
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        told = os.read(fd, 4096)
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    fields = told[told.rfind(b")") + 2 :].decode("ascii", "replace").split()
    return fields if len(fields) > _STARTED else None


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a living process of this namespace; None when there is none, or only a zombie."""
    if pid <= 1:
        return None
    fields = _stat(pid)
    if fields is None or fields[_STATE] in "ZX":
        return None
    return ProcessIdentity(pid, int(fields[_STARTED]), boot_id(), pid_namespace())


def identify_child(pid: int) -> ProcessIdentity:
    """The identity of a child of ours that nobody has reaped; it may be a zombie already. Raises OSError."""
    fields = _stat(pid)
    if fields is None:
        raise ProcessLookupError(f"no process {pid}")
    return ProcessIdentity(pid, int(fields[_STARTED]), boot_id(), pid_namespace())


def own_identity() -> ProcessIdentity:
    """This process, also when it is the first of its namespace, as in a container."""
    return identify_child(os.getpid())


def liveness(identity: ProcessIdentity) -> Liveness:
    """Whether that exact process lives. A reboot ends everything; a zombie is gone; a foreign namespace is unknown."""
    if identity.boot_id != boot_id():
        return Liveness.GONE
    if identity.pid_namespace != pid_namespace():
        return Liveness.UNKNOWN
    try:
        found = identify(identity.pid)
    except (OSError, ValueError):
        return Liveness.UNKNOWN
    return Liveness.ALIVE if found == identity else Liveness.GONE


def call_liveness(leader: ProcessIdentity) -> Liveness:
    """Whether the process group that *leader* led still has anybody in it, and so may still be at work."""
    state = liveness(leader)
    if state is not Liveness.GONE or leader.boot_id != boot_id():
        return state
    if identify(leader.pid) is not None:
        return Liveness.GONE
    return Liveness.ALIVE if group_members(leader.pid) else Liveness.GONE


def group_members(group: int) -> tuple[int, ...]:
    """Pids of living (not zombie) processes of a process group that leads a session of its own, as all of ours do.

    So a group that somebody else made inside another session, such as a shell's job, is never taken for one of ours,
    though it may have been given the number of one that is gone.
    """
    if group <= 1:
        return ()
    members = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _stat(int(name))
            if fields is None or fields[_STATE] in "ZX":
                continue
            if int(fields[_GROUP]) == group == int(fields[_SESSION]):
                members.append(int(name))
    return tuple(members)


def end_group(leader: ProcessIdentity, clock: Clock, *, grace: float = 0.0, patience: float = 5.0) -> bool:
    """End the process group that *leader* leads: TERM and *grace* seconds (if any), then KILL; True once nobody is
    left.

    Signals only what is provably ours: the group of a leader whose whole identity matches, or, once the leader is
    gone on this boot and in this namespace, members that its pid still names as their group and session (a pid is not
    reused while its group lives).
    """
    from signal import SIGKILL, SIGTERM

    if leader.pid <= 1 or liveness(leader) is Liveness.UNKNOWN:
        return False
    if leader.boot_id != boot_id():
        return True
    reused = identify(leader.pid)
    if reused is not None and reused != leader:
        return True
    if grace > 0 and group_members(leader.pid):
        _signal_group(leader.pid, SIGTERM)
        _await_empty(leader.pid, clock, grace)
    deadline = clock.monotonic() + patience
    while group_members(leader.pid):
        _signal_group(leader.pid, SIGKILL)
        if clock.monotonic() >= deadline:
            return False
        clock.sleep(0.01)
    return True


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # gone, or it changed its user: then it is found alive, and said so
        return


def _await_empty(group: int, clock: Clock, seconds: float) -> None:
    deadline = clock.monotonic() + seconds
    while group_members(group) and clock.monotonic() < deadline:
        clock.sleep(0.01)
