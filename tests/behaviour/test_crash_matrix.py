"""The command is killed, and has calls fail, at a few points of every verb: nothing is lost and nothing done twice.

`bin/crash-matrix` does so at every point.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from crashmatrix.plan import FEW
from crashmatrix.tracing import STRACE
from crashmatrix.verbs import VERBS

MATRIX = Path(__file__).parents[2] / "bin" / "crash-matrix"


@pytest.mark.skipif(STRACE is None, reason="strace is not here, and nothing else kills at a given call")
def test_a_few_faults_of_every_verb_lose_nothing_and_double_nothing() -> None:
    done = subprocess.run(
        [sys.executable, str(MATRIX), "--quick", "--json"], capture_output=True, text=True, check=False, timeout=900
    )
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    cases: Counter[str] = Counter()
    for row in told["rows"]:
        cases[row["verb"]] += row["cases"]
    assert cases == {verb.name: FEW for verb in VERBS}
    assert (told["losses"], told["doubles"], told["faults"], told["missed"]) == (0, 0, 0, 0), done.stderr
    assert done.returncode == 0, done.stderr
