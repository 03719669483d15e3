"""No story of a fleet goes wrong; and one does, soon, where a guard of the engine is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import pytest

from controller.engine import lifecycle, looks, outcomes, planner
from controller.engine.sight import second_absence as twice
from controller.model import health, perform
from controller.model.hysteresis import Threshold
from controller.store.memory import MemoryStore
from simulation import judging
from simulation.driver import TURNS, Story, Told, Wrong
from simulation.shrinking import Short, in_words, shorten
from tests.project.scripts import load

SEEDS = 8
"""Stories of one test. `bin/simulate` tells thousands."""
PATIENCE = 20
"""Of so many stories one at least goes wrong without the guard."""
RARE = 61
"""Where to begin for a guard that one story in sixty misses: this one does."""


@pytest.mark.parametrize("first", range(0, 5 * SEEDS, SEEDS))
def test_no_story_goes_wrong(first: int) -> None:
    told = [Story(seed).tell() for seed in range(first, first + SEEDS)]
    assert [(story.seed, story.wrong) for story in told if story.wrong is not None] == []
    assert min(story.commits for story in told) > 10
    assert sum(story.deaths for story in told) > 0


def test_a_story_is_the_same_each_time_it_is_told() -> None:
    first, second = Story(11).tell(), Story(11).tell()
    assert first.story == second.story
    assert first == second


def test_a_turn_that_is_left_out_changes_no_other() -> None:
    def beginnings(turns: range | tuple[int, ...]) -> dict[int, str]:
        found: dict[int, str] = {}
        for turn, what in Story(12, turns=turns).tell().story:
            found.setdefault(turn, what)
        return found

    whole, shorter = beginnings(range(30)), beginnings((3, 17, 29))
    people = {turn for turn in (3, 17, 29) if not whole[turn].startswith("time")}
    assert {turn: shorter[turn].split(":")[0] for turn in people} == {t: whole[t].split(":")[0] for t in people}


def test_accidents_that_are_muted_do_not_happen() -> None:
    loud = Story(4).tell()
    assert loud.happened
    quiet = Story(4, muted=frozenset(loud.happened[:5])).tell()
    assert not set(loud.happened[:5]) & set(quiet.happened)


# A guard is taken out, and a story has to show it.

Break = Callable[[pytest.MonkeyPatch], None]


def refusals_at_their_word(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outcomes, "_must_prove", lambda _entry, _action: False)


def one_empty_look(patch: pytest.MonkeyPatch) -> None:
    for module in (looks, outcomes):
        patch.setattr(module, "second_absence", lambda first, look, policy: first is None or twice(first, look, policy))


def nobody_has_to_release(patch: pytest.MonkeyPatch) -> None:
    for module in (lifecycle, looks, planner, outcomes, perform):
        if hasattr(module, "kept_for"):
            patch.setattr(module, "kept_for", lambda _known, _worker, _policy: None)


def a_breaker_without_a_dwell(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(health, "_threshold", lambda breaker: Threshold(start=breaker.failures, stop=0, dwell_ms=0))


def slots_without_locks(patch: pytest.MonkeyPatch) -> None:
    held = MemoryStore.hold_slot

    def taken_anyway(store: MemoryStore, slot: int) -> object:
        store.disk.slots.pop(slot, None)
        return held(store, slot)

    patch.setattr(MemoryStore, "hold_slot", taken_anyway)


def no_cooldown(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planner, "cools_until", lambda _worker, _policy, _now: None)


BREAKS: dict[str, Break] = {
    "refusals at their word": refusals_at_their_word,
    "nobody has to release": nobody_has_to_release,
    "a breaker without a dwell": a_breaker_without_a_dwell,
    "slots without locks": slots_without_locks,
    "one empty look": one_empty_look,
    "no cooldown": no_cooldown,
}


def first_wrong(first: int = 0) -> tuple[int, str] | None:
    for seed in range(first, first + PATIENCE):
        wrong = Story(seed).tell().wrong
        if wrong is not None:
            return seed, wrong
    return None


@pytest.mark.parametrize("guard", BREAKS)
def test_a_missing_guard_makes_a_story_go_wrong(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BREAKS[guard](monkeypatch)
    found = first_wrong(RARE if BREAKS[guard] is refusals_at_their_word else 0)
    assert found is not None, f"{PATIENCE} stories do not miss it: {guard}"


class Made(NamedTuple):
    """A short story, and the same one told again, while the guard is missing."""

    short: Short
    again: Told


@pytest.fixture(scope="module")
def made() -> Made:
    """Refusals are taken at their word, and what goes wrong because of that is made short."""
    with pytest.MonkeyPatch.context() as patch:
        refusals_at_their_word(patch)
        found = first_wrong(RARE)
        assert found is not None
        short = shorten(found[0], most=60)
        return Made(short, Story(found[0], turns=short.turns, muted=short.muted).tell())


def test_a_story_that_goes_wrong_is_made_short(made: Made) -> None:
    assert made.short.told.wrong is not None
    assert len(made.short.turns) < TURNS / 3
    assert made.again == made.short.told


def test_a_short_story_says_its_seed_what_happened_and_what_is_wrong(made: Made) -> None:
    told, short = in_words(made.short).splitlines(), made.short
    assert told[0] == f"seed {short.told.seed}, {len(short.turns)} of {TURNS} turns:"
    assert told[-1] == f"wrong: {short.told.wrong}"
    assert any("reconciles" in line for line in told)


# The command

simulate = load("simulate")


def test_the_command_says_how_many_stories_it_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--seeds", "2", "--from", "5"]) == 0
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert (answer["seeds"], answer["from"], answer["wrong"]) == (2, 5, [])
    assert shown.err == ""


def test_the_command_prints_the_seed_and_a_short_story_of_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def always(story: Story) -> str | None:
        return f"made up at revision {story.document.revision}"

    monkeypatch.setattr(judging, "at_rest", always)
    assert simulate.main(["--seeds", "1", "--from", "3"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["wrong"] == [3]
    assert "seed 3, " in shown.err
    assert "wrong: made up" in shown.err
    assert "again: bin/simulate --seeds 1 --from 3" in shown.err


@pytest.mark.parametrize("arguments", [[], ["--seeds", "0"], ["--seeds", "1", "--from", "-1"], ["--seeds", "many"]])
def test_what_cannot_be_meant_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        simulate.main(arguments)
    assert ended.value.code == 2
    assert "usage: bin/simulate" in capsys.readouterr().err


def test_whatever_the_engine_raises_unforeseen_is_a_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_story: Story) -> None:
        raise ZeroDivisionError("nobody foresaw it")

    monkeypatch.setattr(Story, "_turn", broken)
    wrong = Story(1).tell().wrong
    assert wrong is not None
    assert wrong.startswith("ZeroDivisionError: nobody foresaw it")


def test_a_wrong_ends_its_story_with_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_story: Story) -> None:
        raise Wrong("something must not be")

    monkeypatch.setattr(Story, "_turn", wrong)
    assert Story(1).tell().wrong == "something must not be"
