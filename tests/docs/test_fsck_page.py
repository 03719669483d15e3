"""docs/fsck.md has each check as the catalogue has it, and names those that there are."""

from __future__ import annotations

import re
from pathlib import Path

from controller.engine.fsck import LEFT
from controller.model.checks import CHECKS, Check

PAGE = (Path(__file__).parents[2] / "docs" / "fsck.md").read_text()
ROWS = re.findall(r"^\| `([a-z-]+)` \| (.*) \| (.*) \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)
RULES = re.findall(r"^\| ([A-Z].*) \| ((?:`[a-z-]+`(?:, )?)+) \|$", PAGE, re.MULTILINE)


def test_every_check_has_its_row_in_the_order_and_the_words_of_the_catalogue() -> None:
    catalogue = [(each.value, told.text, ", ".join(told.judged), told.why, told.next) for each, told in CHECKS.items()]
    assert catalogue == ROWS


def test_every_rule_names_checks_that_there_are() -> None:
    assert len(RULES) == 17
    named = [name for _, checks in RULES for name in re.findall(r"`([a-z-]+)`", checks)]
    assert set(named) <= set(Check)
    assert len(named) == len(set(named))


def test_what_a_crash_may_leave_is_told() -> None:
    assert set(re.findall(r"^\| `([a-z]+_?[a-z]*)` \| [^|]* \| [^|]* \|$", PAGE, re.MULTILINE)) == {*LEFT, "torn_kept"}
