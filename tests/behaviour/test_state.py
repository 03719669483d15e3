"""Backups and moves with the command: nothing is handed out twice, nothing old is sent. Case D6."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.faults import CHANGES, files, tree
from tests.behaviour.forking import Forked, Forks
from tests.behaviour.provider_program import Program, wait_until


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with Forks(tmp_path_factory.mktemp("forks")) as made:
        yield made


@pytest.fixture
def controller(tmp_path: Path, forks: Forks) -> Iterator[Forked]:
    driver = Forked(tmp_path, forks)
    try:
        yield driver
    finally:
        driver.close()


@pytest.fixture
def program(controller: Forked) -> Program:
    made = Program(controller)
    controller.configure("fleet", 'grace = "1ms"')
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Path:
    """What `fleet` is a copy of."""
    controller = Forked(tmp_path_factory.mktemp("made"), forks)
    controller.init()
    controller.run("submit", "--", "true", check=True)
    controller.run("state", "backup", "b.json", check=True)
    controller.run("submit", "--", "true", check=True)
    controller.run("submit", "--", "true", check=True)
    return controller.home


@pytest.fixture
def fleet(controller: Forked, made: Path) -> Forked:
    """A fleet with one run, a backup of it, and two runs since."""
    shutil.copytree(made, controller.home, dirs_exist_ok=True)
    return controller


def park_and_die(program: Program) -> str:
    """A create for slot 1 is parked, and its controller dies before the provider has done anything. Returns its key."""
    program.controller.run("submit", "--", "true", check=True)
    program.next("create", {"wait_for": "never", "do": False, "die": True})
    process = program.controller.popen("reconcile", "--apply")
    wait_until(lambda: len(program.calls()) == 1, "the call")
    process.kill()
    process.wait()
    program.let("never")
    wait_until(lambda: not any(each["in_flight"] for each in program.pending().values()), "the end of the provider")
    return str(program.pending()[1]["idempotency_key"])


def keys(program: Program) -> list[str]:
    return [call[2] for call in program.calls()]


def run_ids(controller: Controller) -> set[str]:
    """Every run that history ever knew."""
    events = controller.json("history")["events"]
    return {event["subject"].removeprefix("run:") for event in events if event["subject"].startswith("run:")}


def names(controller: Controller) -> list[str]:
    return sorted(run["id"] for run in controller.json("runs")["runs"])


def settle(program: Program) -> None:
    """Until looks have settled everything and every run has ended."""

    def settled() -> bool:
        program.controller.run("reconcile", "--apply")
        status = program.controller.json("status")
        return not status["pending_mutations"] and not program.controller.json("queue", "browse", "pending")["runs"]

    wait_until(settled, "everything is settled")


def empty(program: Program) -> None:
    program.controller.run("drain", "--all", check=True)
    program.controller.run("drain", "--off", check=True)
    assert program.workers() == []


def move_on(program: Program) -> None:
    """What was parked is done, its worker goes again, and four more runs exist."""
    controller = program.controller
    controller.run("replay-pending", check=True)
    controller.run("reconcile", "--apply", check=True)
    empty(program)
    for _ in range(4):
        controller.run("submit", "--", "true", check=True)


@pytest.mark.parametrize("how", ["the file alone comes back", "by its name"])
def test_d6_an_old_backup_is_noticed_acknowledged_and_hands_out_nothing_twice(program: Program, how: str) -> None:
    controller = program.controller
    old_key = park_and_die(program)
    backup = controller.home / "revision-10.json"
    controller.run("state", "backup", str(backup), check=True)
    move_on(program)
    epochs = {""}
    for turn in range(2):
        sent, ids = keys(program), run_ids(controller)
        last = controller.json("status")["revision"]
        named: tuple[str, ...] = (str(backup),)
        if how != "by its name":
            named = ()
            shutil.copy(backup, controller.state / "controller.json")
            before = (controller.state / "controller.json").read_bytes()
            refused = controller.json("submit", "--", "true", exit=3)["error"]
            assert refused["code"] == "history_ahead"
            assert "controller state restore" in refused["next"]
            assert controller.run("reconcile", "--apply").exit == 3
            assert (controller.state / "controller.json").read_bytes() == before
        refused = controller.json("state", "restore", *named, exit=3)["error"]
        assert "slot 1: a parked create" in refused["what"]
        assert "--acknowledge" in refused["next"]
        assert keys(program) == sent, "nobody was asked for anything"
        done = controller.json("state", "restore", *named, "--acknowledge")
        assert (done["changed"], done["last_revision"], done["revision"]) == (True, last, last + 1)
        assert done["epoch"] not in epochs
        epochs.add(done["epoch"])
        assert turn or len(done["runs_lost"]) == 4, "the runs since are named"
        controller.run("replay-pending")
        made = controller.json("submit", "--", "true")["run"]
        assert made not in ids
        settle(program)
        empty(program)
        fresh = keys(program)[len(sent) :]
        assert old_key not in fresh, "the old create is not sent again"
        assert not set(fresh) & set(sent)
        assert controller.run("fsck").exit == 0, str(controller.run("fsck"))
        explained = controller.run("explain", made, check=True)
        assert "agrees" in explained.stdout


def test_a_restore_goes_back_and_says_what_it_goes_back_over(fleet: Forked) -> None:
    verified = fleet.json("state", "verify", "b.json")
    assert (verified["kind"], verified["revision"], verified["here"]["behind"]) == ("backup", 2, 2)
    assert verified["here"]["runs_lost"] == ["r-2", "r-3"]
    before = tree(fleet.state)
    dry = fleet.json("state", "restore", "b.json", "--dry-run")
    assert (dry["changed"], dry["epoch"]) == (False, None)
    assert {name: found[3] for name, found in tree(fleet.state).items() if "lock" not in name} == {
        name: found[3] for name, found in before.items() if "lock" not in name
    }
    done = fleet.json("state", "restore", "b.json", "--reason", "a test")
    assert (done["changed"], done["revision"], done["runs_lost"]) == (True, 5, ["r-2", "r-3"])
    assert names(fleet) == ["r-1"]
    event = next(e for e in fleet.json("history")["events"] if e["event"] == "restored")
    assert "a test" in event["detail"]
    kept = Path(done["kept"])
    again = fleet.json("state", "restore", str(kept))
    assert names(fleet) == ["r-1", "r-2", "r-3"]
    assert again["revision"] == 6
    assert fleet.run("fsck").exit == 0


def test_nothing_is_restored_over_itself(fleet: Forked) -> None:
    fleet.run("state", "backup", "now.json", check=True)
    for named in (("now.json",), ()):
        done = fleet.json("state", "restore", *named)
        assert (done["changed"], done["revision"]) == (False, 4)


def test_another_fleets_backup_is_refused(fleet: Forked, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = Forked(tmp_path_factory.mktemp("other"), fleet.forks)
    try:
        other.init()
        refused = other.run("state", "restore", str(fleet.home / "b.json"), "--acknowledge")
        assert refused.exit == 3
        assert "another fleet" in refused.stderr
        verified = other.json("state", "verify", str(fleet.home / "b.json"))
        assert verified["here"]["same_lineage"] is False
    finally:
        other.close()


def test_a_confirmation_is_not_taken_from_the_environment(program: Program) -> None:
    park_and_die(program)
    controller = program.controller
    controller.run("state", "backup", "b.json", check=True)
    controller.run("submit", "--", "true", check=True)
    inherited = {"CONTROLLER_STATE_RESTORE_ACKNOWLEDGE": "1"}
    assert controller.run("state", "restore", "b.json", env=inherited).exit == 3
    assert controller.run("state", "restore", "b.json", "--acknowledge").exit == 0


@pytest.mark.parametrize("spoil", [b"", b"\0" * 4096, b"{}", b"[]\n", b'{"schema":2'])
def test_a_broken_backup_is_exit_7_for_whoever_verifies_or_restores_it(fleet: Forked, spoil: bytes) -> None:
    (fleet.home / "broken.json").write_bytes(spoil)
    before = files(fleet.state)
    for verb in ("verify", "restore"):
        error = fleet.json("state", verb, "broken.json", exit=7)["error"]
        assert "broken.json" in error["where"]
    assert files(fleet.state) == before


def test_a_touched_backup_says_what_it_claims_to_be(fleet: Forked) -> None:
    data = (fleet.home / "b.json").read_bytes()
    (fleet.home / "b.json").write_bytes(data.replace(b'"true"', b'"evil"'))
    error = fleet.json("state", "verify", "b.json", exit=7)["error"]
    assert "digest" in error["what"]
    assert "revision 2" in error["what"]


def test_a_document_that_is_lost_comes_back_from_a_backup(fleet: Forked) -> None:
    path = fleet.state / "controller.json"
    for spoiled in (None, b"\0" * 100):
        path.unlink()
        if spoiled is not None:
            path.write_bytes(spoiled)
        assert fleet.run("submit", "--", "true").exit == 7
        assert fleet.json("state", "restore", "b.json")["changed"]
        assert fleet.run("submit", "--", "true").exit == 0
        assert fleet.run("fsck").exit == 0, str(fleet.run("fsck"))


@pytest.mark.parametrize(
    ("name", "lost"), [*((name, False) for name in CHANGES), ("rename", True), ("link", True), ("unlink", True)]
)
def test_a_restore_that_is_killed_has_happened_or_has_not_and_can_be_done_again(
    fleet: Forked, name: str, lost: bool
) -> None:
    saved = fleet.home / "saved"
    shutil.copytree(fleet.state, saved)
    for nth in range(1, 30):
        shutil.rmtree(fleet.state)
        shutil.copytree(saved, fleet.state)
        if lost:
            (fleet.state / "controller.json").write_bytes(b"{ half of it")
        died = fleet.run_dying(name, nth, "state", "restore", "b.json")
        found = fleet.run("runs", "--json")
        if found.exit == 0:
            assert sorted(run["id"] for run in found.json()["runs"]) in (["r-1"], ["r-1", "r-2", "r-3"]), str(died)
        else:
            assert (lost, found.exit) == (True, 7), str(found)
        fleet.run("state", "restore", "b.json", check=True)
        made = fleet.json("submit", "--", "true")["run"]
        assert made not in {"r-1", "r-2", "r-3"}
        assert set(names(fleet)) == {"r-1", made}
        assert fleet.run("fsck").exit == 0, f"{name} {nth}: {fleet.run('fsck')}"
        if died.exit == 0:
            break
    else:
        raise AssertionError(f"more than {nth} calls of {name}")
    assert nth > 1, f"{name} is never called"


def test_a_backup_that_is_killed_is_whole_or_not_there(fleet: Forked) -> None:
    for name in ("open", "write", "link", "unlink"):
        for nth in range(1, 10):
            target = fleet.home / f"{name}-{nth}.json"
            died = fleet.run_dying(name, nth, "state", "backup", str(target))
            if target.exists():
                assert fleet.run("state", "verify", str(target)).exit == 0
            if died.exit == 0:
                break
        else:
            raise AssertionError(f"more than {nth} calls of {name}")


def test_while_others_write_every_backup_is_sound_and_a_restore_is_one_commit_among_theirs(fleet: Forked) -> None:
    script = 'for i in $(seq 12); do "$0" --state-dir "$1" submit -- true || exit 1; done'
    command = fleet.command()[0]
    writer = subprocess.Popen(["sh", "-c", script, command, str(fleet.state)], env=fleet.env, stdout=subprocess.DEVNULL)
    taken = 0
    try:
        while writer.poll() is None:
            target = fleet.home / f"during-{taken}.json"
            fleet.run("state", "backup", str(target), check=True)
            assert fleet.run("state", "verify", str(target)).exit == 0
            if taken == 1:
                fleet.run("state", "restore", "b.json", check=True)
            taken += 1
    finally:
        assert writer.wait(60) == 0, "no writer was refused"
    assert taken > 1
    assert fleet.run("fsck").exit == 0, str(fleet.run("fsck"))
    events = fleet.json("history")["events"]
    submitted = [event["subject"] for event in events if event["event"] == "submitted"]
    assert len(submitted) == len(set(submitted)), "no id was given twice"


def test_a_fleet_moves_to_another_directory_with_its_history(program: Program) -> None:
    controller = program.controller
    park_and_die(program)
    history = controller.json("history")["events"]
    answer = controller.json("state", "export", str(controller.home / "e.jsonl"))
    assert answer["events"] == len(history)
    assert controller.json("state", "verify", "e.jsonl")["kind"] == "export"
    other = str(controller.home / "moved" / "state")
    refused = controller.run("--state-dir", other, "state", "import", "e.jsonl")
    assert refused.exit == 3
    assert "slot 1: a parked create" in refused.stderr
    assert not Path(other).exists()
    done = controller.json("--state-dir", other, "state", "import", "e.jsonl", "--acknowledge")
    assert done["epoch"]
    assert "must not be used" in done["old"]
    moved: list[dict[str, Any]] = controller.json("--state-dir", other, "history")["events"]
    assert moved[: len(history)] == history
    assert controller.run("--state-dir", other, "fsck").exit == 0
    assert controller.run("--state-dir", other, "state", "import", "e.jsonl", "--acknowledge").exit == 3


def test_an_import_that_is_killed_is_finished_by_the_same_one(fleet: Forked) -> None:
    fleet.run("state", "export", "e.jsonl", check=True)
    for name in CHANGES:
        for nth in range(1, 30):
            home = fleet.home / f"{name}-{nth}"
            died = fleet.run_dying(name, nth, "--state-dir", str(home), "state", "import", "e.jsonl")
            if died.exit != 0 and not (home / "controller.json").exists():
                again = fleet.run("--state-dir", str(home), "state", "import", "e.jsonl")
                assert again.exit == 0, f"{name} {nth}: {again}"
            assert fleet.run("--state-dir", str(home), "fsck").exit == 0
            assert len(fleet.json("--state-dir", str(home), "runs")["runs"]) == 3
            if died.exit == 0:
                break
        else:
            raise AssertionError(f"more than {nth} calls of {name}")


def test_an_export_goes_to_stdout_whole(fleet: Forked) -> None:
    done = fleet.run("state", "export", "-", check=True)
    (fleet.home / "piped.jsonl").write_text(done.stdout)
    assert fleet.json("state", "verify", "piped.jsonl")["events"] == 4
    assert fleet.run("state", "export", "-", "--json").exit == 2
    assert fleet.run("state", "backup", "-").exit == 2
    assert fleet.run("state", "restore", "-").exit == 2


def test_nothing_is_overwritten_and_no_directory_is_made(fleet: Forked) -> None:
    before = (fleet.home / "b.json").read_bytes()
    for verb in ("backup", "export"):
        assert fleet.run("state", verb, "b.json").exit == 3
        assert fleet.run("state", verb, "none/b.json").exit == 3
    assert (fleet.home / "b.json").read_bytes() == before
    assert not (fleet.home / "none").exists()
