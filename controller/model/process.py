"""Who a process is: a pid alone names nobody, since pids are reused."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class ProcessIdentity(Struct, frozen=True, forbid_unknown_fields=True):
    """A process, exactly. `started` is field 22 of /proc/PID/stat: clock ticks since boot, so no clock change moves
    it.
    """

    pid: int
    started: int
    boot_id: str
    pid_namespace: str


class Liveness(Enum):
    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"
    """Foreign pid namespace or unreadable: not gone."""
