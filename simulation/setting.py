"""Where a story takes place: how the fleet is run, how its provider is, and what goes wrong how often.

Not every kind of trouble is in every story: one that has all of them hides what two of them do together.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from controller.model.policy import Backoff, Breaker, Policy, QueuePolicy, Release
from simulation.whims import Whims

_SHORT = Backoff(500, 8_000)


class Nature(Struct, frozen=True):
    """How this provider is. Seconds, but for `key_ttl_ms`. `honest` accidents aside, everything is a tendency.

    `sends` and `looks` are the probabilities of what goes wrong with either.
    """

    grace: float
    key_ttl_ms: int | None = None
    slow: float = 0.0
    longest_step: float = 30.0
    failing: float = 0.2
    gone_when_removed: bool = True
    sends: Mapping[str, float] = {}
    looks: Mapping[str, float] = {}


class Weather(Struct, frozen=True):
    """Probabilities of accidents: at each commit, each place where a process may be held up, each call; between turns
    to machines and the clock.
    """

    commits: Mapping[str, float]
    pauses: Mapping[str, float]
    calls: Mapping[str, float]
    jumps: bool


def weather(whims: Whims) -> Weather:
    deadly = whims.one_of((0.0, 0.01, 0.03))
    busy = whims.one_of((0.0, 0.03, 0.1))
    slow = whims.one_of((0.0, 0.0, 0.03))
    full = whims.one_of((0.0, 0.0, 0.02))
    return Weather(
        commits={"dies": deadly, "fails": full},
        pauses={"dies": deadly / 2, "is overtaken": busy / 2, "is held up": slow},
        calls={
            "dies before it asks": deadly,
            "dies while it asks": 2 * deadly,
            "is overtaken": busy,
            "is held up": slow,
        },
        jumps=whims.maybe(0.3),
    )


def nature(whims: Whims) -> Nature:
    def some(often: float) -> float:
        return whims.between(0.02, 0.2) if whims.maybe(often) else 0.0

    grace = whims.one_of((10.0, 60.0))
    return Nature(
        grace=grace,
        key_ttl_ms=whims.one_of((None, None, 2_000, int(1_200 * grace), int(4_000 * grace))),
        slow=whims.one_of((0.0, 0.5, 8.0)),
        longest_step=whims.one_of((1.0, 20.0, 90.0)),
        failing=whims.one_of((0.0, 0.2, 0.5)),
        gone_when_removed=whims.maybe(0.5),
        sends={
            "lost on its way": some(0.5),
            "answer lost": some(0.6),
            "late": some(0.4),
            "refused": some(0.4),
            "refused though asked": some(0.3) * 2,
            "another answer": some(0.2),
            "not sent": some(0.2),
            "never binds": some(0.15) / 2,
        },
        looks={
            "fails": some(0.3),
            "lags": 3 * some(0.6),
            "lies": some(0.4),
            "shows half": some(0.4),
            "skips a slot": some(0.2),
        },
    )


def policy(whims: Whims, nature: Nature) -> Policy:
    slots = whims.number(1, 4)
    return Policy(
        slots=slots,
        idle_ms=whims.one_of((0, 10_000, 30_000)),
        grace_ms=int(nature.grace * 1000),
        kill_grace_ms=1_000,
        retry=_SHORT,
        create=_SHORT,
        send=_SHORT,
        by_queue={"fleet": QueuePolicy(attempts=whims.number(1, 2), crashes=2, backoff=_SHORT, retain=8)},
        least=whims.one_of((0, 0, 0, 1)),
        most=whims.one_of((None, None, 1, 2)),
        max_runs=whims.one_of((0, 0, 1, 2)),
        release=whims.one_of((Release.AUTO, Release.AUTO, Release.PROOF)),
        retain_failed=whims.maybe(0.3),
        cooldown_ms=whims.one_of((0, 0, 20_000)),
        idle_release_ms=whims.one_of((15_000, 60_000)),
        breaker=Breaker(whims.one_of((2, 5)), whims.one_of((10_000, 30_000))),
    )
