"""Fuzz for as long as is wanted: `python -m tests.fuzz --seconds 300 --target documents`.

It prints, of each fault, the smallest input that showed it, and how to repeat that. Exit 1: there was one.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from random import Random

from tests.fuzz.target import Case, Finding, Target
from tests.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", choices=sorted(TARGETS), required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="the first case; the next ones follow it")
    parser.add_argument("--one", action="store_true", help="only that case")
    parser.add_argument("--keep", type=Path, help="a directory to write the smallest inputs to")
    asked = parser.parse_args()
    target = TARGETS[asked.target]
    found: dict[str, tuple[int, Case, Finding]] = {}
    begun = time.monotonic()
    seed = asked.seed
    while True:
        case = target.make(Random(seed))
        try:
            target.try_one(case)
        except Finding as fresh:
            known = found.get(fresh.kind)
            if known is None or case.size < known[1].size:
                found[fresh.kind] = seed, case, fresh
            if known is None:
                print(f"seed {seed}: {fresh.kind}", file=sys.stderr, flush=True)
        seed += 1
        if asked.one or time.monotonic() - begun > asked.seconds:
            break
    print(f"{asked.target}: {seed - asked.seed} cases, {len(found)} findings")
    for number, (at, case, finding) in enumerate(found.values()):
        _tell(target, at, case, finding)
        if asked.keep is not None:
            _write(asked.keep / f"{asked.target}-{number}", case, finding)
    return 1 if found else 0


def _tell(target: Target, seed: int, case: Case, finding: Finding) -> None:
    print(f"\n=== {finding.kind}\nrepeat: python -m tests.fuzz --target {target.name} --one --seed {seed}")
    print(f"made: {case.world}, {case.how}")
    for name, data in case.files.items():
        shown = data if data is None or len(data) <= 700 else data[:400] + b" ... " + data[-300:]
        print(f"{name} ({'gone' if data is None else len(data)}): {shown!r}")
    print(finding)


def _write(place: Path, case: Case, finding: Finding) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, data in case.files.items():
        if data is not None:
            (place / name).write_bytes(data)
    (place / "finding.txt").write_text(f"{case.world}, {case.how}\n{finding}\n")


if __name__ == "__main__":
    sys.exit(main())
