"""Entries of docs/recovery.md about what a provider shows and no record agrees with."""

from __future__ import annotations

import json
from typing import Any

from tests.behaviour.driver import Controller
from tests.behaviour.provider_program import Program
from tests.behaviour.runbook_kit import book, program_of


def with_worker(controller: Controller, *, slots: int = 1) -> Program:
    """Run a has succeeded, and its worker in slot 1 is idle."""
    program = program_of(controller, slots=slots)
    program.submit("a")
    controller.run("reconcile", "--apply", check=True)
    return program


def put(program: Program, slot: int, worker: dict[str, Any]) -> None:
    """Somebody changes at the provider what is in a slot."""
    (program.home / "workers" / f"{slot}.json").write_text(json.dumps(worker | {"slot": slot}))


def stranger(program: Program, slot: int) -> dict[str, Any]:
    """A machine of this fleet that no record knows, as an older copy of the directory would have made it."""
    lineage = program.controller.json("status")["lineage"]
    vm = {"id": f"vm-{slot}-99", "immutable_id": "99"}
    tags = {"lineage": lineage, "assignment": "a-99", "generation": 1}
    return {**tags, "id": vm["id"], "state": "ready", "resources": {"vm": vm}, "steps": []}


def test_something_unrecorded_is_adopted_or_removed_and_neither_by_another_identity(controller: Controller) -> None:
    program = with_worker(controller, slots=2)
    put(program, 2, stranger(program, 2))
    controller.run("reconcile", "--apply")
    with book(controller, "something-unrecorded", RUN="a", N=2) as entry:
        assert "vm-2-99" in entry.sees()
        entry.explains(2, "which no record knows")
        assert controller.run("fsck").exit == 5
        entry.is_refused("adopt N --identity SHA", "another identity", SHA="0" * 64)
        identity = controller.json("adopt", "2")["found"]["identity"]
        assert identity in entry.types(r"adopt N$").stdout
        assert identity in entry.types(r"delete-unrecorded N$").stdout
        entry.types("adopt N --identity", SHA=identity)
        assert entry.worker(2)["id"] == "vm-2-99"
        controller.run("drain", "2", "--reason", "test", "--confirm-drain")
        entry.until(None, 2)
        controller.run("uncordon", "2", "--confirm-uncordon", check=True)
        put(program, 2, stranger(program, 2))
        controller.run("reconcile", "--apply")
        entry.types("delete-unrecorded N --identity", SHA=identity)
        entry.until(None, 2)
        assert [worker["slot"] for worker in program.workers()] == [1]


def test_a_resource_of_another_identity_is_left_alone_until_it_is_settled_at_the_provider(
    controller: Controller,
) -> None:
    program = with_worker(controller)
    (worker,) = program.workers()
    put(program, 1, worker | {"resources": {"vm": worker["resources"]["vm"] | {"immutable_id": "another"}}})
    with book(controller, "a-resource-has-another-identity", RUN="a", N=1) as entry:
        entry.sees(live=True)
        entry.explains(1, "is not what was recorded: neither adopted nor deleted", live=True)
        entry.is_refused("adopt", "on record")
        controller.run("reconcile", "--apply")
        assert program.workers()[0]["resources"]["vm"]["immutable_id"] == "another"
        entry.types("status --live")
        (program.home / "workers" / "1.json").unlink()
        entry.types("reconcile")
        entry.until(None)


def test_a_foreign_tag_is_left_alone_until_it_is_settled_at_the_provider(controller: Controller) -> None:
    program = with_worker(controller)
    (worker,) = program.workers()
    put(program, 1, worker | {"generation": 7})
    with book(controller, "a-foreign-tag", RUN="a", N=1) as entry:
        entry.sees(live=True)
        entry.explains(1, "instead of", live=True)
        entry.is_refused("adopt", "on record")
        entry.is_refused("delete-unrecorded", "on record")
        controller.run("reconcile", "--apply")
        assert program.workers()[0]["generation"] == 7
        entry.types("status --live")
        put(program, 1, worker)
        controller.run("reconcile", "--apply")  # the first of two looks that must agree
        entry.types("reconcile")


def test_one_id_in_two_slots_leaves_both_alone_until_the_listing_is_mended(controller: Controller) -> None:
    program = with_worker(controller, slots=2)
    (worker,) = program.workers()
    put(program, 2, worker)
    with book(controller, "one-id-for-two-slots", RUN="a", N=2) as entry:
        entry.sees(live=True)
        entry.explains(1, "is shown in slot 1 and in slot 2", live=True)
        entry.is_refused("adopt", "is on record for slot 1")
        entry.is_refused("delete-unrecorded", "is on record for slot 1")
        controller.run("reconcile", "--apply")
        assert [each["slot"] for each in program.workers()] == [1, 2]
        entry.types("status --live")
        (program.home / "workers" / "2.json").unlink()
        controller.run("reconcile", "--apply")  # the first of two looks that must agree
        entry.types("reconcile")


def test_explain_with_a_look_of_a_provider_that_does_not_answer_says_so_and_explains_the_rest(
    controller: Controller,
) -> None:
    program = with_worker(controller)
    program.always("inventory", {"instead": "", "exit": 1})
    answer = controller.json("explain", "slot:1", "--live")
    assert "inventory" in answer["not_live"]
    assert "is ready and idle" in answer["because"][0]
    assert "not live: " in controller.run("explain", "slot:1", "--live", check=True).stdout
    assert controller.json("explain", "a", "--live", exit=2)["error"]["next"] == "controller explain slot:1 --live"
