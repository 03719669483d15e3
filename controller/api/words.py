"""Words that settings and answers share: how durations are spelled, and what a mistyped name may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


def meant(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'this'?)` for a near match; "" for anything else: a far-fetched guess misleads."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1, cutoff=0.75)
    return f" (did you mean {near[0]!r}?)" if near else ""


def brief(text: object, most: int = 300) -> str:
    """*text* for a message, cut in its middle: whoever typed it chose its length."""
    whole = str(text)
    half = (most - 3) // 2
    return whole if len(whole) <= most else f"{whole[:half]}...{whole[-half:]}"


def spelled(ms: int) -> str:
    """A duration as options and the configuration file spell it, exactly, such as `90s`."""
    unit, size = next((unit, size) for unit, size in UNITS if ms % size == 0 and (ms >= size or size == 1))
    return f"{ms // size}{unit}"
