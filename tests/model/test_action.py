"""Actions: what a key is made of, and which bytes are taken for an action."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from msgspec import Raw
from msgspec.structs import replace

from controller.model.action import canonical, digest, key_of, mint, step_key, verify
from controller.model.errors import BrokenAction
from controller.model.records import MAX_SLOTS, ActionType, Resource
from tests.model.drafts import run


def minted(**fields: Any) -> tuple[str, Raw]:
    given = {
        "type": ActionType.EXECUTE,
        "slot": 1,
        "serial": 1,
        "lineage": "l",
        "epoch": "e",
        "assignment": "a-1",
        "generation": 1,
        "resources": {},
        "run": "r-1",
        "step": "main",
        "attempt": 1,
        "token": 1,
    }
    return mint(**{**given, **fields})


@pytest.mark.parametrize(
    "other",
    [
        {"type": ActionType.CANCEL},
        {"slot": 2},
        {"serial": 2},
        {"lineage": "m"},
        {"epoch": "f"},
        {"assignment": "a-2"},
        {"generation": 2},
        {"resources": {"vm": Resource("i-1")}},
        {"settled": ("k",)},
        {"run": "r-2"},
        {"step": "next"},
        {"attempt": 2},
        {"token": 2},
    ],
    ids=lambda other: next(iter(other)),
)
def test_two_actions_alike_in_all_but_one_thing_have_different_keys(other: dict[str, Any]) -> None:
    assert minted(**other)[0] != minted()[0] == minted()[0]


def test_the_order_of_members_never_changes_a_digest() -> None:
    assert canonical({"b": {"d": 1, "c": 2}, "a": 3}) == b'{"a":3,"b":{"c":2,"d":1}}'


def test_the_key_is_the_digest_of_everything_else_and_is_carried() -> None:
    key, raw = minted()
    content = orjson.loads(bytes(raw))
    assert content.pop("idempotency_key") == key == digest(content) == key_of(canonical(content))
    assert verify(raw).idempotency_key == key


def test_an_action_that_asks_for_nothing_more_carries_an_empty_request() -> None:
    assert orjson.loads(bytes(minted()[1]))["request"] == {}


@pytest.mark.parametrize("slot", [1, MAX_SLOTS])
def test_the_first_and_the_last_slot_have_actions(slot: int) -> None:
    assert verify(minted(slot=slot)[1]).slot == slot


@pytest.mark.parametrize("slot", [0, MAX_SLOTS + 1])
def test_no_slot_out_of_bounds_has_an_action(slot: int) -> None:
    with pytest.raises(ValueError, match=f"slot {slot} is outside"):
        minted(slot=slot)
    content = orjson.loads(bytes(minted()[1])) | {"slot": slot}
    content["idempotency_key"] = key_of(canonical(content))
    with pytest.raises(BrokenAction, match=f"slot {slot} is outside"):
        verify(canonical(content))


def test_what_a_step_deduplicates_by_is_its_own_and_the_same_in_every_life() -> None:
    one = run()
    others = [
        step_key("m", one, "main"),
        step_key("l", replace(one, id="r-2"), "main"),
        step_key("l", replace(one, sequence=2), "main"),
        step_key("l", one, "next"),
    ]
    assert len({step_key("l", one, "main"), *others}) == 5
    assert step_key("l", replace(one, attempts=7, failures=2), "main") == step_key("l", one, "main")
