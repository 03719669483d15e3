"""Whole commands, from nothing to their end, and reading a large document.

Not promised: anything about a first start, which reads all from the disk: each is run twice before it counts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.fleets import PYTHON, controller, opened, program, stocked
from benchmarks.measuring import OURS, Measured, Taken, Value, blocks, longer, middle

IMPORTS = "imports"


def _cold(sides: dict[str, Callable[[], object]], *, quick: bool) -> Taken:
    for call in [*sides.values(), *sides.values()]:
        call()
    return blocks(sides, 1 if quick else 30)


def _imports() -> Callable[[], object]:
    return program(PYTHON, "-c", "import click, orjson")


def cold(*words: str) -> Callable[[Path, bool], Measured]:
    """A command on a fleet of 16 workers, beside a Python that imports what it cannot do without."""

    def measure(place: Path, quick: bool) -> Measured:
        ours = controller(stocked(place, 0), *words)
        taken = _cold({OURS: ours, IMPORTS: _imports()}, quick=quick)
        return Measured({IMPORTS: longer(taken, IMPORTS)}, {"samples": len(taken[OURS])})

    return measure


def status_of_many(place: Path, quick: bool) -> Measured:
    """How much longer `status --json` takes with 100 000 runs than with none."""
    (place / "small").mkdir()
    large, small = stocked(place, 1000 if quick else 100_000), stocked(place / "small", 0)
    sides = {OURS: controller(large, "status", "--json"), "small": controller(small, "status", "--json")}
    taken = _cold(sides, quick=quick)
    ours, theirs = middle(taken[OURS]), middle(taken["small"])
    return Measured({"more": Value(ours - theirs, "ms", ours, theirs, "ms")}, {"samples": len(taken[OURS])})


def read(place: Path, quick: bool) -> Measured:
    """A document of 100 000 runs, by a store that knows nothing of it yet, beside orjson and the bytes of the file."""
    import orjson

    state = stocked(place, 1000 if quick else 100_000)
    path = state / "controller.json"
    sides = {OURS: lambda: opened(state).read(), "loads": lambda: orjson.loads(path.read_bytes())}
    taken = blocks(sides, 1 if quick else 20)
    return Measured({"loads": longer(taken, "loads")}, {"samples": len(taken[OURS]), "bytes": path.stat().st_size})
