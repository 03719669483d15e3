"""How figures are told: as JSON, and as the table that docs/performance.md has.

Not promised: that a table can be read back to the last digit. It rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchmarks.measuring import TIMES, Asked, Figure, Measured, Value

HEAD: Final = ("figure", "measured", "beside", "aim", "met")


def told(figure: Figure, measured: Measured | None, reason: str | None) -> dict[str, Any]:
    """A figure as it is printed: every member always there, null for what is not known."""
    values = {} if measured is None else measured.values
    return {
        "reads": figure.reads,
        "values": {name: _value(asked, values.get(name)) for name, asked in figure.values.items()},
        "more": {} if measured is None else dict(measured.more),
        "limits": figure.limits,
        "reason": reason,
    }


def _value(asked: Asked, value: Value | None) -> dict[str, Any]:
    aim, found = asked.aim, None if value is None else float(f"{value.value:.3g}")
    spare = None if aim is None or found is None else aim.spare(found)
    return {
        "value": found,
        "unit": value and value.unit,
        "beside": asked.beside,
        "aim": aim and {"at_least" if aim.least else "at_most": aim.limit},
        "met": None if spare is None else spare >= 0,
        "missed_by": None if spare is None else round(max(-spare, 0.0), 4),
        "ours": value and _short(value.ours),
        "theirs": None if value is None or value.theirs is None else _short(value.theirs),
        "measured_in": value and value.measured_in,
    }


def _short(number: float) -> float:
    return float(f"{number:.4g}")


def table(figures: Mapping[str, Figure], found: Mapping[str, Mapping[str, Any]]) -> str:
    """One row for each value of what was found."""
    lines = [_row(HEAD), _row(["---"] * len(HEAD))]
    for name, answer in found.items():
        for key, asked in figures[name].values.items():
            lines.append(_row(_cells(f"`{name}` {key}", asked, answer["values"][key], answer["reason"])))
    return "".join(f"{line}\n" for line in lines)


def _cells(name: str, asked: Asked, value: Mapping[str, Any], reason: str | None) -> Iterator[str]:
    yield name
    yield reason or _measured(value)
    yield asked.beside
    yield "" if asked.aim is None else str(asked.aim)
    yield "" if value["met"] is None else "yes" if value["met"] else f"no, by {value['missed_by']:.3g}"


def _measured(value: Mapping[str, Any]) -> str:
    said = f"{value['value']:g}" if value["unit"] == TIMES else f"{value['value']:g} {value['unit']}"
    if value["theirs"] is None:
        return said
    return f"{said} ({_shown(value['ours'])}, {_shown(value['theirs'])} {value['measured_in']})"


def _shown(number: float) -> str:
    """Three digits, or all of a whole number, in groups of three."""
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}".replace(",", " ")


def _row(cells: Iterator[str] | list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
