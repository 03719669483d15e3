"""How much memory a process takes that has 100 000 runs: one that only read them, and one that claims from them.

Not promised: what a program takes that also keeps them all decoded.

As a program, `python -m benchmarks.remembering DIR read` or `claim`: kB resident and at most, on one line.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.fleets import module, stocked
from benchmarks.measuring import Broken, Measured, Value
from controller.api.handle import Controller


def main(directory: str, what: str) -> None:
    fleet = Controller.open(directory)
    document = fleet.store.read().document
    if what == "claim" and not fleet.queue().claim(owner="bench"):
        raise Broken("there was nothing to claim")
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    kb = [status[name].split()[0] for name in ("VmRSS", "VmHWM")]
    sys.stdout.write(" ".join([str(len(document.runs)), *kb]))


def _asked(state: Path, what: str, runs: int) -> tuple[float, float]:
    """Millions of bytes resident, and at most until then."""
    with module("remembering", str(state), what) as process:
        found = process.communicate()[0].split()
    if process.returncode or int(found[0]) != runs:
        raise Broken(f"a process that was to {what} {runs} runs did not")
    return int(found[1]) * 1024 / 1e6, int(found[2]) * 1024 / 1e6


def memory(place: Path, quick: bool) -> Measured:
    (place / "none").mkdir()
    runs = 1000 if quick else 100_000
    state, none = stocked(place, runs), stocked(place / "none", 0)
    alone, _ = _asked(none, "read", 0)
    reads, most_reads = _asked(state, "read", runs)
    claims, most_claims = _asked(state, "claim", runs)
    values = {
        "claimed": Value(claims, "MB", claims, alone, "MB"),
        "claimed_at_most": Value(most_claims, "MB", most_claims, alone, "MB"),
        "read": Value(reads, "MB", reads, alone, "MB"),
    }
    return Measured(values, {"read_at_most_mb": round(most_reads, 1)})


if __name__ == "__main__":
    main(*sys.argv[1:])
