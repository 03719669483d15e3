"""Entries of docs/recovery.md about the fleet as a whole, and that every entry of that page has a test."""

from __future__ import annotations

import re
from pathlib import Path

from tests.behaviour.driver import Controller
from tests.behaviour.provider_program import wait_until
from tests.behaviour.runbook_kit import book, program_of
from tests.docs.runbook import entries


def test_every_entry_has_its_behaviour_test() -> None:
    here = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("test_runbook*.py")))
    assert sorted(re.findall(r"book\(\w+(?:\.\w+)?, \"([^\"]+)\"", here)) == sorted(entries())


def test_a_slot_is_cordoned_drained_and_taken_back_into_service(controller: Controller) -> None:
    program = program_of(controller)
    program.submit("a")
    controller.run("reconcile", "--apply", check=True)
    with book(controller, "cordon-drain-uncordon", RUN="a", N=1) as entry:
        entry.is_refused("cordon", "nothing was done")
        entry.types("controller cordon N")
        entry.sees()
        entry.explains(1, "The slot is cordoned: it takes nothing new.")
        program.submit("b")
        controller.run("reconcile", "--apply", check=True)
        assert controller.json("show", "b")["run"]["state"] == "queued"
        entry.types("drain N")
        entry.until(None)
        entry.types("uncordon N")
        wait_until(lambda: entry.becomes("b") == "succeeded", "the run that waited")


def test_an_open_breaker_asks_nothing_new_and_closes_after_a_success(controller: Controller) -> None:
    program = program_of(controller, slots=2)
    settings = controller.state / "controller.toml"
    settings.write_text(settings.read_text().replace("failures = 1000", 'failures = 2\ndwell = "3s"'))
    program.submit("a")
    program.always("create", {"instead": "", "do": False})
    controller.run("reconcile", "--apply")
    controller.run("replay-pending")
    program.submit("b")
    with book(controller, "the-breaker-is-open", RUN="b", N=2) as entry:
        controller.run("reconcile", "--apply")
        entry.sees()
        entry.explains(2, "times in a row")
        assert sorted(program.pending()) == [1]
        entry.types("doctor")
        program.honest("create")
        controller.run("replay-pending", check=True)
        wait_until(lambda: entry.becomes("b") == "succeeded", "the next try")
        entry.types("reconcile")


def test_as_many_workers_are_kept_and_made_as_the_settings_say(controller: Controller) -> None:
    program = program_of(controller, "max = 1", slots=2)
    program.submit("a", "b")
    with book(controller, "how-many-workers", RUN="b", N=2) as entry:
        entry.types("reconcile")
        entry.sees()
        assert [worker["slot"] for worker in program.workers()] == [1]
        assert "`[fleet] max` lets no more be made at once." in entry.types("explain").stdout
        path = controller.state / "controller.toml"
        path.write_text(path.read_text().replace("max = 1", "min = 3\nmax = 2"))
        assert controller.run("reconcile", "--apply").exit == 2
        path.write_text(path.read_text().replace("min = 3", "min = 2"))
        controller.run("reconcile", "--apply", check=True)
        assert [worker["slot"] for worker in program.workers()] == [1, 2]


def test_when_every_slot_is_taken_the_waiting_run_says_what_they_wait_for(controller: Controller) -> None:
    program = program_of(controller, 'release = "proof"')
    program.submit("a")
    controller.run("reconcile", "--apply", check=True)
    program.submit("b")
    with book(controller, "every-slot-is-taken", RUN="b", N=1) as entry:
        controller.run("reconcile", "--apply")
        entry.sees()
        told = entry.types("explain RUN").stdout
        assert "In slot 1: waits for its release proof." in told
        assert "controller explain slot:1" in told
        assert "controller release a --template" in entry.types("explain slot").stdout
        path = controller.state / "controller.toml"
        path.write_text(path.read_text().replace("slots = 1", "slots = 3"))
        entry.types("reconcile")
        wait_until(lambda: entry.becomes("b") == "succeeded", "the run that waited")
