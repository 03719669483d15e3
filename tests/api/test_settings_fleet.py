"""What the settings say about how many workers there are and what becomes of them, and what cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.api import options
from controller.api import settings as config
from controller.model.errors import UsageFault
from controller.model.policy import Breaker, Policy, Release

ROOT = Path(__file__).resolve().parents[2]


def refusal(text: str) -> UsageFault:
    """What says the text of a configuration that cannot be meant."""
    with pytest.raises(UsageFault) as raised:
        config.parse(text, "the-file")
    return raised.value


def test_every_setting_of_the_life_of_workers_arrives() -> None:
    read = config.parse(
        """
        [fleet]
        slots = 8
        min = 2
        max = 6
        max_runs_per_worker = 10
        release = "proof"
        retain_failed = true
        cooldown = "15m"
        idle_release = "2h"
        [provider.breaker]
        failures = 3
        dwell = "1m"
        """,
        "f",
    )
    assert read.policy == Policy(
        slots=8,
        least=2,
        most=6,
        max_runs=10,
        release=Release.PROOF,
        retain_failed=True,
        cooldown_ms=900_000,
        idle_release_ms=7_200_000,
        breaker=Breaker(failures=3, dwell_ms=60_000),
    )
    assert read.policy.release is Release.PROOF


def test_half_a_breaker_has_the_other_half_by_default() -> None:
    assert config.parse("[provider.breaker]\nfailures = 1", "f").policy.breaker == Breaker(1, 30_000)
    assert config.parse('[provider.breaker]\ndwell = "1ms"', "f").policy.breaker == Breaker(5, 1)


def test_without_max_there_is_a_worker_for_each_slot() -> None:
    assert config.parse("[fleet]\nslots = 9", "f").policy.ceiling == 9
    assert config.parse("[fleet]\nslots = 9\nmax = 3", "f").policy.ceiling == 3


@pytest.mark.parametrize("fleet", ["slots = 3\nmin = 3\nmax = 3", "slots = 1\nmin = 0\nmax = 1", "min = 4\nmax = 4"])
def test_min_max_and_slots_may_be_equal(fleet: str) -> None:
    policy = config.parse(f"[fleet]\n{fleet}", "f").policy
    assert policy.least <= policy.ceiling <= policy.slots


@pytest.mark.parametrize(
    ("fleet", "what", "where", "do"),
    [
        ("slots = 8\nmin = 5\nmax = 4", "min is 5, above max, 4", "[fleet] min", "a min of at most 4, or max = 5"),
        ("slots = 2\nmin = 3", "min is 3, above slots, 2", "[fleet] min", "a min of at most 2, or slots = 3"),
        ("slots = 2\nmax = 3", "max is 3, above slots, 2", "[fleet] max", "a max of at most 2, or slots = 3"),
        ("slots = 2\nmin = 3\nmax = 5", "max is 5, above slots, 2", "[fleet] max", "a max of at most 2, or slots = 5"),
        ("max = 5", "max is 5, above slots, 4", "[fleet] max", "a max of at most 4, or slots = 5"),
    ],
)
def test_numbers_that_are_at_odds_are_refused_with_both_and_two_ways_out(
    fleet: str, what: str, where: str, do: str
) -> None:
    said = refusal(f"[fleet]\n{fleet}")
    assert (said.what, said.where, said.next) == (what, f"the-file, {where}", f"give {do}")


@pytest.mark.parametrize(
    ("section", "line", "allowed"),
    [
        ("fleet", "min = -1", "give a whole number from 0 to 10000"),
        ("fleet", "min = true", "give a whole number from 0 to 10000"),
        ("fleet", "max = 0", "give a whole number from 1 to 10000"),
        ("fleet", "max = 10001", "give a whole number from 1 to 10000"),
        ("fleet", "max_runs_per_worker = -1", "give a whole number from 0 to 1000000"),
        ("fleet", "max_runs_per_worker = 1.0", "give a whole number from 0 to 1000000"),
        ("fleet", 'release = "never"', 'give "auto" or "proof"'),
        ("fleet", 'release = "PROOF"', 'give "auto" or "proof"'),
        ("fleet", "release = true", 'give "auto" or "proof"'),
        ("fleet", "release = []", 'give "auto" or "proof"'),
        ("fleet", 'retain_failed = "true"', "give true or false, without quotes"),
        ("fleet", "retain_failed = 1", "give true or false, without quotes"),
        ("fleet", "cooldown = 15", f"give {options.DURATIONS}, in quotes"),
        ("fleet", 'cooldown = "3651d"', "give a duration of at most 3650d"),
        ("fleet", 'idle_release = "1"', f"give {options.DURATIONS}"),
        ("provider", 'kind = ["local"]', 'give "local" or "command"'),
        ("provider.breaker", "failures = 0", "give a whole number from 1 to 1000000"),
        ("provider.breaker", 'dwell = "0s"', "give a duration of at least 1ms"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_is_allowed(section: str, line: str, allowed: str) -> None:
    said = refusal(f"[{section}]\n{line}")
    key = line.partition(" ")[0]
    assert (said.where, said.next) == (f"the-file, [{section}] {key}", allowed)
    assert said.what.startswith(f"{key} cannot be ")


@pytest.mark.parametrize("given", ["breaker = 5", "breaker = true"])
def test_a_breaker_that_is_no_section_is_refused(given: str) -> None:
    said = refusal(f"[provider]\n{given}")
    assert (said.what, said.next) == ("provider.breaker is a section", "write it as [provider.breaker]")


def test_a_mistyped_section_or_option_of_it_is_guessed() -> None:
    assert "provider.breaker" in refusal("[provider.braker]\nfailures = 1").what
    assert "max_runs_per_worker" in refusal("[fleet]\nmax_run_per_worker = 1").what


@pytest.mark.parametrize("slots", [1, 4, 10_000])
def test_any_default_that_the_template_shows_may_be_uncommented_alone(slots: int) -> None:
    lines = options.template(slots, "local", ()).splitlines()
    assert f"# max = {slots}" in lines
    section = ""
    for number, line in enumerate(lines):
        section = line if line.lstrip("# ").startswith("[") else section
        # What stands below a section that is a comment itself belongs to none.
        if line.startswith("# ") and " = " in line and not section.startswith("#"):
            edited = [*lines[:number], line.removeprefix("# "), *lines[number + 1 :]]
            assert config.parse("\n".join(edited), "f").policy.slots == slots


def test_the_page_lists_each_of_these_settings_with_its_default() -> None:
    page = (ROOT / "docs" / "running.md").read_text()
    told = {"fleet": "", options.BREAKER: "breaker."}
    listed = {(option.section, option.key): option.default for option in options.OPTIONS if option.section in told}
    # Left out it follows slots: the template has to show a number, the page does not.
    listed["fleet", "max"] = "as `slots`"
    for (section, key), default in listed.items():
        shown = default if default.startswith("as ") or default.isdigit() else f"`{default}`"
        assert f"| `{told[section]}{key}` | {shown} | " in page
