"""Machines of a story, and the steps that run on them: what is true, whoever says what."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct, field

from controller.model.action import Action
from controller.model.inventory import Seen, SeenStep, SeenWorker, StepSeen
from controller.model.records import Resource

End = tuple[int | None, int | None]
"""Exit code and signal; neither: how it ended cannot be known."""


class Power(StrEnum):
    COMING = "coming"
    ON = "on"
    OFF = "off"
    GONE = "gone"


class Process(Struct, eq=False):
    """A step on a machine. `ends_at` is in seconds of the story's clock; `how` is exit code and signal."""

    key: str
    run: str
    token: int
    ends_at: float
    how: End
    dies_at: float | None = None
    end: SeenStep | None = None

    def stop(self, how: End) -> None:
        self.end = SeenStep(self.key, StepSeen.EXITED, exit_code=how[0], signal=how[1])

    def shown(self) -> SeenStep:
        return self.end or SeenStep(self.key, StepSeen.RUNNING)


class UnderWay(NamedTuple):
    """A request that arrives later than whoever sent it thinks."""

    at: float
    settles_at: float
    action: Action


class Machine(Struct, eq=False):
    """What is true of one machine. `data` names the runs whose data it has; `stray`: nobody here asked for it.

    `views` are how it was before a change, each with the time until which a listing may still show it so.
    """

    number: int
    slot: int
    lineage: str
    assignment: str
    generation: int
    resources: dict[str, Resource]
    power: Power = Power.ON
    compute: bool = True
    ready_at: float = 0.0
    leaving: UnderWay | None = None
    on_since: float = 0.0
    off_since: float | None = None
    denied_until: float = 0.0
    stray: bool = False
    processes: dict[str, Process] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    data: set[str] = field(default_factory=set)
    views: list[tuple[float, SeenWorker | None]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"m-{self.number}"

    def moves_on(self, now: float) -> None:
        """What has ended or got ready by *now*, in seconds of the story's clock."""
        for process in self.processes.values():
            ends_at = min(process.ends_at, process.dies_at or process.ends_at)
            if process.end is None and ends_at <= now:
                process.stop(process.how if ends_at == process.ends_at else (None, 15))
        if self.power is Power.COMING and self.ready_at <= now:
            self.power, self.on_since = Power.ON, now

    def turn_off(self, now: float) -> None:
        """`off_since` is when it was off first: whoever turns it on for a while does not begin that anew."""
        self.power = Power.OFF
        self.off_since = now if self.off_since is None else self.off_since

    def end_all(self, how: End) -> None:
        for process in self.processes.values():
            if process.end is None:
                process.stop(how)

    def changes(self, settles_at: float) -> None:
        """It is about to change: until *settles_at* a listing may show it as it is now."""
        self.views.append((settles_at, self.seen()))

    def seen(self) -> SeenWorker:
        return SeenWorker(
            self.slot,
            self.lineage,
            self.assignment,
            self.generation,
            self.name,
            _SHOWN[self.power],
            dict(self.resources),
            tuple(process.shown() for process in self.processes.values()),
        )


_SHOWN = {Power.COMING: Seen.CREATING, Power.ON: Seen.READY, Power.OFF: Seen.DARK, Power.GONE: Seen.GONE}
