"""The catalogue of checks is closed, total and readable, and says truly who judges what."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import controller
from controller.model.checks import CHECKS, By, Check, judged_by

SOURCES = [path for path in Path(controller.__file__).parent.rglob("*.py") if path.name != "checks.py"]


def test_every_check_is_explained() -> None:
    assert list(CHECKS) == list(Check), "and in the order of the catalogue"


@pytest.mark.parametrize("check", Check, ids=str)
def test_a_check_says_what_must_hold_what_it_means_and_what_next(check: Check) -> None:
    told = CHECKS[check]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", check)
    assert told.text[0] == told.text[0].lower()
    assert not told.text.endswith(".")
    assert told.why.endswith(".")
    assert told.next.endswith(".")
    assert "\n" not in f"{told.text}{told.why}{told.next}"
    assert told.judged


def test_no_two_checks_read_alike() -> None:
    assert len({told.text for told in CHECKS.values()}) == len(Check)
    assert len({told.why for told in CHECKS.values()}) == len(Check)


def test_whoever_refuses_is_followed_by_fsck_which_tells_what_is_there() -> None:
    assert judged_by(By.ACCEPT) < judged_by(By.FSCK)
    assert judged_by(By.COMMIT) - judged_by(By.ACCEPT) == {
        Check.REVISION_STEP,
        Check.COUNTER_LOWERED,
        Check.TOKEN_LOWERED,
    }, "what takes the document before and after"


@pytest.mark.parametrize("check", Check, ids=str)
def test_some_code_can_find_it(check: Check) -> None:
    assert any(f"Check.{check.name}" in path.read_text() for path in SOURCES)
