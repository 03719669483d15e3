"""Which cases are run: all of them, a few of each verb, or one.

Not promised: that the few are those that matter most. They are spread over the whole of a command.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from crashmatrix.cases import Prepared
from crashmatrix.tracing import CALLS, FAULTS, Point
from crashmatrix.verbs import VERBS

FEW: Final = 3
"""So many cases of a verb are the short form."""
ALIKE: Final = 3
"""Of calls that do the same to one file after the other, so many of the first and of the last are tried."""
_STEP: Final = 3
_FEW_FAULTS: Final = ("KILL", "EIO", "KILL", "ENOSPC", "KILL", "EINTR")


class Only(NamedTuple):
    """One case, as it is written: verb, system call, which of them, fault."""

    verb: str
    call: str
    nth: int
    fault: str


def parse(text: str) -> Only:
    """Raises ValueError, which says what is wrong with *text*."""
    parts = text.split(":")
    if len(parts) != 4:
        raise ValueError(f"{text!r} is not VERB:SYSCALL:N:FAULT, such as submit:rename:1:KILL")
    verb, call, nth, fault = parts
    for word, known in ((verb, [each.name for each in VERBS]), (call, CALLS), (fault, FAULTS)):
        if word not in known:
            raise ValueError(f"{word!r} in {text!r} is none of {', '.join(known)}")
    if not nth.isdecimal() or int(nth) < 1:
        raise ValueError(f"{nth!r} in {text!r} is not a number from 1")
    return Only(verb, call, int(nth), fault)


def chosen(
    prepared: Prepared, *, quick: bool, only: Only | None, faults: Sequence[str] = FAULTS
) -> Iterator[tuple[Point, str]]:
    """The points of *prepared* and their faults. Raises ValueError when *only* is no point that can be reached."""
    reached = list(_thinned([point for point in prepared.points if point.when]))
    if only is not None:
        these = [point for point in prepared.points if (point.call, point.nth) == (only.call, only.nth)]
        if not these:
            count = sum(point.call == only.call for point in prepared.points)
            raise ValueError(f"{only.verb} makes {count} calls of {only.call} that matter, so there is no {only.nth}.")
        if not these[0].when:
            raise ValueError(f"strace cannot single out this call of {only.verb}: {these[0].what}")
        yield these[0], only.fault
    elif quick:
        # Verbs make much the same calls: each begins elsewhere, so that together the few are many.
        turn = [verb.name for verb in VERBS].index(prepared.verb)
        for number in range(FEW):
            place = number * len(reached) // FEW + turn * _STEP
            yield reached[place % len(reached)], _FEW_FAULTS[(number + turn) % len(_FEW_FAULTS)]
    else:
        for point in reached:
            for fault in faults:
                yield point, fault


def _thinned(points: Sequence[Point]) -> Iterator[Point]:
    alike: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        alike.setdefault((point.call, point.what), []).append(point)
    for point in points:
        same = alike[point.call, point.what]
        if len(same) <= 4 * ALIKE or point in same[:ALIKE] or point in same[-ALIKE:]:
            yield point
