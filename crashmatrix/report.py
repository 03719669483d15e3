"""What came of many cases: a table, and what went wrong with how to see it again.

Not promised: that two runs take equally long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from crashmatrix.cases import Outcome, Prepared
from crashmatrix.judging import Kind, counted

COMMAND = "bin/crash-matrix"
_COLUMNS = ("verb", "syscall", "points", "cases", "unreached", "missed", "faults", "losses", "doubles")


class Row(Struct, frozen=True):
    """One verb and one system call. `points`: how often it is made; `unreached` of them cannot be singled out.

    `missed` cases had their fault elsewhere, twice. The last three count what was found.
    """

    verb: str
    syscall: str
    points: int
    cases: int
    unreached: int
    missed: int
    faults: int
    losses: int
    doubles: int


class Wrong(Struct, frozen=True):
    case: str
    what: tuple[str, ...]
    repeat: str


def rows(prepared: Iterable[Prepared], outcomes: Sequence[Outcome]) -> tuple[Row, ...]:
    """A row for each call of each verb that was tried, in their order."""
    made = []
    for each in prepared:
        for call in dict.fromkeys(point.call for point in each.points):
            points = [point for point in each.points if point.call == call]
            mine = [one for one in outcomes if one.case.verb == each.verb and one.case.point.call == call]
            kinds = counted(finding for one in mine for finding in one.findings)
            made.append(
                Row(
                    each.verb,
                    call,
                    len(points),
                    len(mine),
                    sum(point.when == 0 for point in points),
                    sum(not one.landed for one in mine),
                    kinds[Kind.FAULT],
                    kinds[Kind.LOSS],
                    kinds[Kind.DOUBLE],
                )
            )
    return tuple(made)


def repeat(case: str) -> str:
    return f"{COMMAND} --only {case}"


def wrongs(outcomes: Iterable[Outcome]) -> tuple[Wrong, ...]:
    return tuple(
        Wrong(str(one.case), tuple(f"{each.kind}: {each.what}" for each in one.findings), repeat(str(one.case)))
        for one in outcomes
        if one.findings
    )


def table(made: Sequence[Row]) -> str:
    """*made* as people read it, with the sums below."""
    lines = [_COLUMNS, *(tuple(str(value) for value in to_builtins(row).values()) for row in made)]
    sums = [sum(getattr(row, name) for row in made) for name in Row.__struct_fields__[2:]]
    lines.append(("all", "", *map(str, sums)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(
            value.ljust(width) if column < 2 else value.rjust(width)
            for column, (value, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def answer(made: Sequence[Row], found: Sequence[Wrong], seconds: float) -> dict[str, Any]:
    """The same as one JSON value."""
    return {
        "schema": "controller.crash-matrix/1",
        "rows": to_builtins(made),
        "wrong": to_builtins(found),
        "cases": sum(row.cases for row in made),
        "faults": sum(row.faults for row in made),
        "losses": sum(row.losses for row in made),
        "doubles": sum(row.doubles for row in made),
        "missed": sum(row.missed for row in made),
        "seconds": round(seconds, 1),
    }
