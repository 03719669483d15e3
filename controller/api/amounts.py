"""Times and counts as programs give them: checked, and turned into what the engine takes."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from controller.api.options import LONGEST_MS
from controller.model.errors import UsageFault


def milliseconds(seconds: float, what: str, *, zero: bool = False) -> int:
    """A duration in seconds as whole milliseconds, at least one unless *zero* is allowed. Raises UsageFault."""
    least = 0 if zero else 0.001
    if not _is_number(seconds) or not least <= seconds <= LONGEST_MS / 1000:
        raise UsageFault(
            f"{what} cannot be that", where=what, next=f"give seconds, from {least} to {LONGEST_MS // 1000}"
        )
    return round(seconds * 1000)


def moment(at: Any, what: str) -> int:
    """A time, as UTC milliseconds or as a datetime with its zone, as UTC milliseconds. Raises UsageFault."""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise UsageFault(
                f"{what} has no time zone, so nobody knows when it is", where=what, next="such as datetime.now(UTC)"
            )
        at = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if type(at) is not int or not 0 <= at < 1 << 63:
        raise UsageFault(
            f"{what} cannot be that", where=what, next="give UTC milliseconds, or a datetime with its zone"
        )
    return at


def count(number: Any, what: str, most: int) -> int:
    """A whole number from 1 to *most*. Raises UsageFault."""
    if type(number) is not int or not 1 <= number <= most:
        raise UsageFault(f"{what} cannot be that", where=what, next=f"give a whole number from 1 to {most}")
    return number


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
