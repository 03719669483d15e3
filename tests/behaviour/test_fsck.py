"""fsck tells each check by its id and what to do; --repair puts right what a crash left behind, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from controller.model.checks import CHECKS, By, Check, judged_by
from controller.model.records import Event
from controller.store import codec, journal, segments
from tests.behaviour.driver import Controller
from tests.behaviour.faults import document, durable, files, on_disk, store_of, write_document

TORN = b'{"revision":99,"at":17,"command":"subm'


def current(controller: Controller) -> Path:
    """The journal that the document names."""
    return controller.state / str(on_disk(controller)["journal"]["file"])


def tear(controller: Controller) -> Path:
    """Leave part of a line, as a process that was killed in the middle of a commit."""
    path = current(controller)
    path.write_bytes(path.read_bytes().rstrip(b"\0") + TORN)
    return path


def leave_temporary(controller: Controller) -> Path:
    path = controller.state / ".controller.json.tmp-4711"
    path.write_bytes(b'{"schema":2')
    return path


def leave_journal(controller: Controller) -> Path:
    """An opening that no checkpoint names, as a process that was killed in the middle of a fold."""
    store = store_of(controller)
    after = codec.Named(current(controller).name, store.read().digest)
    line, _ = journal.opening(store.read().document, at=17, command="fold", events=(), after=after)
    path = controller.state / journal.name_of(store.read().document.revision, 7)
    path.write_bytes(line)
    return path


LEFT = {"torn_tail": tear, "temporary": leave_temporary, "stale_journal": leave_journal}


@pytest.fixture
def fleet(controller: Controller) -> Controller:
    controller.init()
    controller.run("submit", "--id", "one", "--", "true", check=True)
    controller.run("submit", "--id", "two", "--", "true", check=True)
    return controller


def test_every_check_is_told_with_its_id_and_that_it_passed(fleet: Controller) -> None:
    answer = fleet.json("fsck")
    assert (answer["schema"], answer["ok"], answer["violations"]) == ("controller.fsck/1", True, [])
    assert [each["id"] for each in answer["checks"]] == [check for check in Check if check in judged_by(By.FSCK)]
    assert {(each["passed"], len(each["violations"])) for each in answer["checks"]} == {(True, 0)}
    last = fleet.run("fsck", check=True).stdout.splitlines()[-1]
    assert last == f"{len(answer['checks'])} checks, all passed: clean"


def test_a_violation_is_told_by_its_check_with_what_to_do(fleet: Controller) -> None:
    content = on_disk(fleet)
    content["runs"]["one"]["state"] = "cancelled"
    write_document(fleet, content)
    answer = fleet.json("fsck", exit=5)
    found = {(each["id"], each["subject"]) for each in answer["violations"]}
    assert found == {("digest", "fleet"), ("run-reason", "run:one"), ("history-state", "run:one")}
    failed = {each["id"]: each for each in answer["checks"] if each["passed"] is False}
    assert set(failed) == {check for check, _ in found}
    (violation,) = failed["run-reason"]["violations"]
    assert violation in answer["violations"]
    assert failed["run-reason"]["next"] == CHECKS[Check.RUN_REASON].next
    done = fleet.run("fsck")
    assert done.exit == 5
    assert "violation: run-reason: run:one: cancelled without a reason\n" in done.stdout
    assert f"next: run-reason: {CHECKS[Check.RUN_REASON].next}\n" in done.stdout
    checks = len(answer["checks"])
    assert done.stdout.endswith(f"{checks} checks, 3 failed: 3 violations; nothing was changed\n")


def test_a_history_that_cannot_be_read_is_told_and_what_takes_it_is_not_judged(fleet: Controller) -> None:
    first = segments.listed(fleet.state)[0].name
    path = fleet.state / first
    path.write_bytes(path.read_bytes().replace(b'"command":"', b'"command":5"', 1))
    answer = fleet.json("fsck", exit=5)
    assert {each["id"] for each in answer["violations"]} == {"history-chain"}
    assert "offset 0" in answer["violations"][0]["what"]


def test_a_line_that_follows_nothing_is_told(fleet: Controller) -> None:
    path = current(fleet)
    line, _ = journal.commit_line(b'{"revision":4,"at":17,"command":"x","events":[]', "0" * 64)
    path.write_bytes(path.read_bytes().rstrip(b"\0") + line)
    (violation,) = fleet.json("fsck", exit=5)["violations"]
    assert (violation["id"], "does not follow" in violation["what"]) == ("history-chain", True)
    before = durable(fleet)
    assert fleet.run("fsck", "--repair").exit == 5
    assert durable(fleet) == before, "nothing is provably safe about it"


def test_a_record_that_left_without_an_event_is_told_however_well_the_document_is_sealed(fleet: Controller) -> None:
    store = store_of(fleet)
    with store.tenure(5) as hold:
        reading = hold.reading()
        stands = reading.document
        event = Event(stands.revision + 1, 1, 17, "test", "fleet", "queue_paused", detail="q")
        runs = {name: run for name, run in stands.runs.items() if name != "one"}
        hold.replace(reading, replace(stands, revision=event.revision, events=(event,), runs=runs))
    (violation,) = fleet.json("fsck", exit=5)["violations"]
    assert (violation["id"], violation["subject"]) == ("history-state", "run:one")
    assert violation["what"] == "history says that it is queued, and the document does not have it"


@pytest.mark.parametrize("kind", LEFT)
def test_what_a_crash_left_is_a_notice_no_violation(fleet: Controller, kind: str) -> None:
    path = LEFT[kind](fleet)
    before = durable(fleet)
    answer = fleet.json("fsck")
    assert [(each["kind"], each["path"]) for each in answer["leftovers"]] == [(kind, str(path))]
    assert answer["leftovers"][0]["size"] > 0
    assert (answer["ok"], answer["repaired"], answer["dry_run"]) == (True, [], False)
    text = fleet.run("fsck", check=True).stdout
    assert "notice: " in text
    assert str(path) in text
    assert "next: controller fsck --repair\n" in text
    assert text.endswith("all passed: clean\n")
    assert durable(fleet) == before


@pytest.mark.parametrize("kind", LEFT)
def test_a_repair_puts_it_right_with_an_event_that_names_it(fleet: Controller, kind: str) -> None:
    path = LEFT[kind](fleet)
    runs = document(fleet)["runs"]
    answer = fleet.json("fsck", "--repair")
    assert [(each["kind"], each["path"]) for each in answer["repaired"]] == [(kind, str(path))]
    kept = [str(each) for each in fleet.state.glob("torn-*")]
    assert (answer["ok"], [each["path"] for each in answer["leftovers"]]) == (True, kept)
    events = [event for event in fleet.json("history")["events"] if event["event"] == "repaired"]
    assert [(event["command"], event["subject"], str(path) in event["detail"]) for event in events] == [
        ("fsck", "fleet", True)
    ]
    assert document(fleet)["runs"] == runs
    assert [Path(each).read_bytes() for each in kept] == ([TORN] if kind == "torn_tail" else [])
    assert path.exists() == (kind == "torn_tail"), "a journal stays, without what was torn"


def test_everything_at_once_is_one_commit_with_an_event_for_each(fleet: Controller) -> None:
    paths = {str(leave(fleet)) for leave in LEFT.values()}
    revision = document(fleet)["revision"]
    done = fleet.run("fsck", "--repair", check=True)
    assert document(fleet)["revision"] == revision + 1
    told = [line for line in done.stdout.splitlines() if line.startswith("repaired: ")]
    assert len(told) == len(paths)
    assert all(any(path in line for line in told) for path in paths)
    details = [event["detail"] for event in fleet.json("history")["events"] if event["event"] == "repaired"]
    assert sorted(details) == sorted(line.removeprefix("repaired: ") for line in told)


def test_a_dry_run_says_what_would_be_put_right_and_changes_nothing(fleet: Controller) -> None:
    for leave in LEFT.values():
        leave(fleet)
    before, names = durable(fleet), files(fleet.state)
    answer = fleet.json("fsck", "--repair", "--dry-run")
    assert (sorted(each["kind"] for each in answer["leftovers"]), answer["repaired"]) == (sorted(LEFT), [])
    assert answer["dry_run"] is True
    assert (durable(fleet), files(fleet.state)) == (before, names)
    assert fleet.run("fsck", "--dry-run").exit == 2, "there is nothing to try without --repair"


def test_a_repair_with_nothing_to_do_changes_nothing_and_says_so(fleet: Controller) -> None:
    before, names = durable(fleet), files(fleet.state)
    done = fleet.run("fsck", "--repair", check=True)
    assert "\nnothing to repair\n" in done.stdout
    assert "\nnothing would be repaired\n" in fleet.run("fsck", "--repair", "--dry-run", check=True).stdout
    assert (durable(fleet), files(fleet.state)) == (before, names)


def test_a_repair_mends_no_record_and_still_exits_with_5(fleet: Controller) -> None:
    path = fleet.state / segments.listed(fleet.state)[0].name
    damaged = path.read_bytes().replace(b"initialised", b"initialized")
    path.write_bytes(damaged)
    leave_temporary(fleet)
    answer = fleet.json("fsck", "--repair", exit=5)
    assert [each["kind"] for each in answer["repaired"]] == ["temporary"]
    assert [each["id"] for each in answer["violations"]] == ["history-chain"]
    assert path.read_bytes() == damaged


def test_a_repair_of_an_edited_document_is_refused(fleet: Controller) -> None:
    content = on_disk(fleet)
    content["draining"] = True
    write_document(fleet, content)
    path = leave_temporary(fleet)
    assert fleet.run("fsck", "--repair").exit == 3
    assert path.exists()


def test_a_repair_asked_for_by_the_environment_is_none(fleet: Controller) -> None:
    leave_temporary(fleet)
    answer = fleet.json("fsck", env={"CONTROLLER_FSCK_REPAIR": "1"})
    assert (len(answer["leftovers"]), answer["repaired"]) == (1, [])


def test_explain_tells_of_every_check_and_of_one(controller: Controller) -> None:
    listed = controller.json("explain", "check")["checks"]
    assert [each["id"] for each in listed] == list(Check)
    text = controller.run("explain", "check", check=True).stdout
    assert all(f"\n{check} " in text for check in Check)
    one = controller.json("explain", "check", "run-holder")
    told = CHECKS[Check.RUN_HOLDER]
    assert one["subject"] == "check:run-holder"
    assert one["check"] in listed
    page = controller.run("explain", "check", "run-holder", check=True).stdout
    assert all(part in page for part in (told.text, told.why, told.next, "commit, accept, fsck"))
    wrong = controller.json("explain", "check", "run-holdr", exit=4)["error"]
    assert "did you mean 'run-holder'?" in wrong["what"]
