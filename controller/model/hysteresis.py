"""A switch driven by a level that does not flap: different levels for on and off, and a least time between changes."""

from __future__ import annotations

from msgspec import Struct

from controller.model.errors import UsageFault


class Threshold(Struct, frozen=True):
    """On at `start` or above, off at `stop` or below; between them, and within `dwell_ms` of a change, as it was."""

    start: float
    stop: float
    dwell_ms: int

    def __post_init__(self) -> None:
        if self.stop >= self.start:
            raise UsageFault(f"stop {self.stop} must be below start {self.start}", next="leave a gap between them")
        if self.dwell_ms < 0:
            raise UsageFault(f"dwell {self.dwell_ms} ms is negative", next="use 0 or more")


class Switch(Struct, frozen=True):
    """On or off, since when (UTC ms; None: never changed)."""

    on: bool = False
    since: int | None = None


def observe(threshold: Threshold, switch: Switch, level: float, now: int) -> Switch:
    """What *switch* is after *level* was seen at *now*; the same object if nothing changed.

    A clock that jumped back starts the dwell anew from *now*: it never makes a wait longer than one dwell.
    """
    if switch.since is not None and now < switch.since:
        return Switch(switch.on, now)
    if switch.since is not None and now - switch.since < threshold.dwell_ms:
        return switch
    wanted = level > threshold.stop if switch.on else level >= threshold.start
    return switch if wanted == switch.on else Switch(wanted, now)
