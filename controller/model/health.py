"""The circuit breaker of a provider: whether anything new is asked of one that keeps failing. Pure arithmetic.

Not promised: that a provider whose breaker is closed works; that a dwell lasts as long as it should while the clock is
set forward.

The breaker is a switch over the number of failures in a row (`hysteresis`): it opens at a failure that is at least the
`Breaker.failures`-th, and closes once there are none. It changes at most once per dwell; half-open counts as open.

- *Closed*: failures are counted. Within a dwell of when it closed they open nothing; the first one after that may.
- *Open*, for one dwell from `Provider.opened_at`: failures are counted, and move nothing. A success, which only an
  action that was parked before can have, sets their number to 0; open it stays until the dwell is over.
- Then *half-open*, if anything failed since the last success: a success closes it, a failed try opens it for another
  dwell. And *closed*, if nothing did: `breaker_state` says so by itself, and what is counted next records it, as of the
  end of the dwell.

A clock that jumped back to before `opened_at` makes it half-open, so no wait is longer than one dwell from now. What is
counted then begins the dwell anew from now, a success too: how long it has been open cannot be known any more.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import structs

from controller.model.hysteresis import Switch, Threshold, observe
from controller.model.policy import Breaker, still_waits
from controller.model.records import Provider


class BreakerState(StrEnum):
    """Whether new actions may be parked: any, none, or one to try."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


def breaker_state(known: Provider | None, breaker: Breaker, now: int) -> BreakerState:
    """What the breaker is at *now*. A provider that nothing is known of is not held against itself."""
    if known is None or known.opened_at is None:
        return BreakerState.CLOSED
    if still_waits(known.opened_at + breaker.dwell_ms, now, breaker.dwell_ms):
        return BreakerState.OPEN
    held = observe(_threshold(breaker), Switch(on=True, since=known.opened_at), known.failures, now)
    return BreakerState.HALF_OPEN if held.on else BreakerState.CLOSED


def retry_at(known: Provider | None, breaker: Breaker) -> int | None:
    """When the dwell of one that opened is over, UTC ms; None: it is closed, and recorded so.

    Only of an open one is it a time to wait for: past the dwell, or after a clock jumped back, `breaker_state` tells.
    """
    return None if known is None or known.opened_at is None else known.opened_at + breaker.dwell_ms


def failed(known: Provider | None, breaker: Breaker, now: int, why: str, *, replayed: bool = False) -> Provider:
    """The record after one more failure.

    *replayed*: of an action that was sent before. It is no try of a half-open breaker, and begins no dwell: else one
    action that is never answered, sent again at each pass before anything is planned, would keep it open for ever.
    """
    settled = _settled(known, breaker, now)
    counted = structs.replace(settled, failures=settled.failures + 1, why=why)
    is_open = settled.opened_at is not None
    since = settled.opened_at if is_open else settled.closed_at
    switch = observe(_threshold(breaker), Switch(is_open, since), counted.failures, now)
    if not switch.on:
        return structs.replace(counted, closed_at=switch.since)
    tried = not replayed and breaker_state(settled, breaker, now) is BreakerState.HALF_OPEN
    return structs.replace(counted, opened_at=now if tried else switch.since)


def succeeded(known: Provider | None, breaker: Breaker, now: int) -> Provider:
    """The record after a success; the very same one if that changes nothing."""
    settled = _settled(known, breaker, now)
    if settled.opened_at is None:
        return structs.replace(settled, failures=0) if settled.failures else settled
    switch = observe(_threshold(breaker), Switch(on=True, since=settled.opened_at), 0, now)
    if switch.on:
        return structs.replace(settled, failures=0, opened_at=switch.since)
    return structs.replace(settled, failures=0, opened_at=None, closed_at=switch.since)


def _settled(known: Provider | None, breaker: Breaker, now: int) -> Provider:
    """The record with a breaker that closed by itself recorded as closed, since its dwell was over."""
    known = known or Provider()
    if known.opened_at is None or breaker_state(known, breaker, now) is not BreakerState.CLOSED:
        return known
    return structs.replace(known, opened_at=None, closed_at=known.opened_at + breaker.dwell_ms)


def _threshold(breaker: Breaker) -> Threshold:
    return Threshold(start=breaker.failures, stop=0, dwell_ms=breaker.dwell_ms)
