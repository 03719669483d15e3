"""What a provider shows and no record agrees with: said by every command that reads, and touched by none that acts."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.faults import durable
from tests.behaviour.provider_program import Program


@pytest.fixture
def program(controller: Controller) -> Program:
    """A fleet of two slots. Run a has succeeded, and its worker waits idle in slot 1."""
    made = Program(controller, slots=2)
    made.submit("a")
    controller.run("reconcile", "--apply", check=True)
    return made


def put(program: Program, slot: int, worker: dict[str, Any]) -> None:
    """Somebody changes at the provider what is in a slot."""
    (program.home / "workers" / f"{slot}.json").write_text(json.dumps(worker | {"slot": slot}))


def stranger(program: Program) -> dict[str, Any]:
    (known,) = program.workers()
    vm = {"id": "vm-2-99", "immutable_id": "99"}
    return known | {"assignment": "a-99", "id": "vm-2-99", "resources": {"vm": vm}, "steps": []}


def slots_of(answer: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {each["slot"]: each for each in answer["slots"]}


def touched(program: Program) -> set[str]:
    """Slots for which the provider was asked to change anything."""
    return {call[1] for call in program.calls()}


def test_something_that_no_record_knows_is_told_loudly_until_it_is_gone(program: Program) -> None:
    controller = program.controller
    put(program, 2, stranger(program))
    assert controller.json("status")["unrecorded"] == [], "status asks nobody"
    program.submit("b", "c")
    controller.run("reconcile", "--apply")
    assert touched(program) == {"1"}, "nothing is made in its slot, though runs wait"

    (found,) = controller.json("status")["unrecorded"]
    assert (found["slot"], found["id"], found["assignment"], found["state"]) == (2, "vm-2-99", "a-99", "ready")
    assert found["resources"] == {"vm": {"id": "vm-2-99", "immutable_id": "99"}}
    assert (found["running"], found["beside"]) == (0, False)
    assert found["next"] == ["controller adopt 2", "controller delete-unrecorded 2"]
    text = controller.run("status", check=True).stdout
    assert "unrecorded: 1, shown by the provider and known to no record: it may cost money" in text
    assert f"vm vm-2-99 99, since 0ms ago, identity {found['identity']}" in re.sub(
        r"since \S+ ago", "since 0ms ago", text
    )
    assert "    next: controller adopt 2" in text
    assert controller.json("adopt", "2")["found"]["identity"] == found["identity"]

    verdict = controller.json("fsck", exit=5)
    assert [(each["id"], each["subject"]) for each in verdict["violations"]] == [("unrecorded", "slot:2")]
    assert "the last look showed vm-2-99 (a-99 generation 1, ready)" in controller.run("fsck").stdout

    controller.configure("fleet", 'grace = "1ms"')
    (program.home / "workers" / "2.json").unlink()
    for _ in range(2):  # two looks must agree that it is gone
        controller.run("reconcile", "--apply")
    assert controller.json("status")["unrecorded"] == []
    assert "unrecorded" not in controller.run("status", check=True).stdout
    assert controller.run("fsck").exit == 0


def test_beside_a_worker_it_keeps_hands_off_that_one_too(program: Program) -> None:
    controller = program.controller
    (known,) = program.workers()
    other = stranger(program) | {"slot": 1}
    program.submit("b", "c")
    program.always("inventory", {"reply": {"workers": [known, other]}})
    before = len(program.calls())
    plan = controller.json("reconcile")
    assert slots_of(plan)[1]["reason"] == "unrecorded"
    controller.run("reconcile", "--apply")
    assert {call[1] for call in program.calls()[before:]} == {"2"}, "a run goes to the other slot"
    (found,) = controller.json("status")["unrecorded"]
    assert (found["slot"], found["beside"], found["next"][0]) == (1, True, "controller status --live")
    assert "beside what is recorded there" in controller.run("status", check=True).stdout


@pytest.mark.parametrize(
    ("changed", "reason", "why"),
    [
        ({"id": "vm-9"}, "identity_changed", "worker vm-1-1 is recorded, and vm-9 is shown"),
        ({"resources": {"vm": {"id": "vm-1-1", "immutable_id": "9"}}}, "identity_changed", "vm vm-1-1 ("),
        ({"assignment": "a-9"}, "foreign_tag", "the provider shows a-9 generation 1 instead of a-1 generation 1"),
        ({"generation": 9, "state": "dark"}, "foreign_tag", "the provider shows a-1 generation 9 instead of"),
        ({"slot": 2}, "foreign_tag", "recorded here, is shown as a-1 generation 1 in slot 2"),
    ],
)
def test_a_worker_that_is_not_the_recorded_one_is_shown_as_such_and_never_touched(
    program: Program, changed: dict[str, Any], reason: str, why: str
) -> None:
    controller = program.controller
    (known,) = program.workers()
    (program.home / "workers" / "1.json").write_text(json.dumps(known | changed))
    program.submit("b")
    before = durable(controller)
    calls = len(program.calls())
    plan = controller.json("reconcile")
    live = controller.json("status", "--live")["live"]
    for answer in (plan, live):
        one = slots_of(answer)[1]
        assert (one["recorded"], one["class"], one["reason"]) == ("ready", "retained-for-investigation", reason)
        assert why in one["why"]
        assert one["will"].startswith("nothing: ")
        assert answer["classes"]["retained-for-investigation"] >= 1
        assert answer["complete"] is True
    assert durable(controller) == before
    text = controller.run("reconcile", check=True).stdout
    assert re.search(r"^SLOT +RECORDED +OBSERVED +CLASS +REASON +WILL$", text, re.MULTILINE)
    assert re.search(
        rf"^1 +ready +\S+ +retained-for-investigation +{reason}: .*{re.escape(why)}.* nothing: ", text, re.MULTILINE
    )
    assert slots_of(live)[1]["will"] in controller.run("status", "--live", check=True).stdout
    controller.run("reconcile", "--apply")
    controller.run("reconcile", "--apply")
    assert "1" not in {call[1] for call in program.calls()[calls:]}
    assert controller.json("show", "slot:1")["slot"]["worker"]["id"] == "vm-1-1"


def test_one_id_in_two_slots_keeps_hands_off_both(program: Program) -> None:
    (known,) = program.workers()
    put(program, 2, known | {"assignment": "a-9"})
    program.submit("b")
    calls = len(program.calls())
    program.controller.run("reconcile", "--apply")
    assert len(program.calls()) == calls
    live = slots_of(program.controller.json("status", "--live")["live"])
    assert [live[slot]["reason"] for slot in (1, 2)] == ["id_twice", "id_twice"]
    assert [each["id"] for each in live[2]["unrecorded"]] == ["vm-1-1"]
    (found,) = program.controller.json("status")["unrecorded"]
    assert (found["slot"], found["identity"]) == (2, live[2]["unrecorded"][0]["identity"])
    assert f"identity {found['identity']}" in program.controller.run("status", "--live", check=True).stdout


def test_a_listing_that_is_incomplete_shows_and_decides_nothing(program: Program) -> None:
    put(program, 2, stranger(program))
    program.always("inventory", {"reply": {"complete": False}})
    program.controller.run("reconcile", "--apply")
    assert program.controller.json("status")["unrecorded"] == []
    live = program.controller.json("status", "--live")["live"]
    assert live["complete"] is False
    assert {(each["reason"], each["observed"]) for each in live["slots"]} == {("look_silent", "ready")}
    assert live["classes"]["retained-for-investigation"] == 0
    text = program.controller.run("status", "--live", check=True).stdout
    assert "the look is incomplete: it says nothing about what it does not show" in text


def test_what_reconcile_will_do_is_what_it_does(program: Program) -> None:
    controller = program.controller
    program.submit("b", "c")
    told = slots_of(controller.json("reconcile"))
    assert (told[1]["will"], told[2]["will"]) == ("execute: step main is next", "create: run c waits")
    calls = len(program.calls())
    controller.run("reconcile", "--apply", check=True)
    done = [(kind, slot) for kind, slot, _ in program.calls()[calls:]]
    assert {("execute", "1"), ("create", "2")} <= set(done[:2])


def test_a_create_that_would_give_two_slots_one_worker_id_is_not_recorded(program: Program) -> None:
    controller = program.controller
    program.submit("b", "c")
    made: dict[str, Any] = {"outcome": "done", "worker": {**program.workers()[0]}}
    tags = {"slot": 2, "assignment": "a-2", "generation": 1, "resources": {}}
    program.always("create", {"do": False, "reply": {**made, "worker": made["worker"] | tags}})
    controller.run("reconcile", "--apply")
    (pending,) = controller.json("status")["pending_mutations"]
    assert (pending["slot"], pending["last_reason"]) == (2, "apply_failed")
    assert "id vm-1-1 belongs to the workers of slots 1 and 2" in pending["last_error"]
    assert controller.run("fsck").exit == 0
