"""Mutated documents, journals, replies, settings, runs and proofs: never a traceback, a hang or a silent change.

`python -m tests.fuzz --seconds 300 --target documents` looks for longer, and tells how to repeat what it finds.
"""

from __future__ import annotations

from random import Random
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.target import Finding, Target
from tests.fuzz.targets import TARGETS

EXAMPLES: Final = {
    "documents": 200,
    "bytes": 300,
    "files": 150,
    "edits": 250,
    "commands": 60,
    "exports": 300,
    "replies": 400,
    "looks": 300,
    "descriptions": 300,
    "settings": 600,
    "runs": 600,
    "payloads": 150,
    "proofs": 600,
}
"""How many cases of each: half a minute of one core in all."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_input_brings_a_traceback_a_hang_or_a_silent_change(name: str) -> None:
    target = TARGETS[name]
    tried = []

    # Nothing is made smaller here, which takes minutes: the script finds a small one by trying many.
    @settings(max_examples=EXAMPLES[name], suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(chance=st.randoms(use_true_random=False))
    def every(chance: Random) -> None:
        case = target.make(chance)
        try:
            target.try_one(case)
        except Finding as finding:
            finding.add_note(f"{case.world}, {case.how}")
            raise
        tried.append(case.how)

    every()
    assert len(tried) > EXAMPLES[name] // 2, "most were not tried"


def test_every_target_is_tried() -> None:
    assert set(EXAMPLES) == set(TARGETS)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_seed_makes_the_same_case_every_time(target: Target) -> None:
    made = [target.make(Random(7)) for _ in range(2)]
    assert made[0] == made[1]
