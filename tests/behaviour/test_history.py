"""history tells every transition exactly once, in order, and fsck proves that none is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller import Controller as Library
from tests.behaviour.driver import Controller
from tests.behaviour.faults import CHANGES, document, durable, on_disk, run_dying, store_of


def test_every_transition_has_one_event(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    controller.run("withdraw", "r-1", check=True)
    answer = controller.json("history")
    assert answer["schema"] == "controller.history/1"
    told = [(event["command"], event["subject"], event["event"]) for event in answer["events"]]
    assert told[:2] == [("init", "fleet", "initialised"), ("submit", "run:r-1", "submitted")]
    assert {(command, subject) for command, subject, _ in told[2:]} == {("withdraw", "run:r-1")}
    numbers = [(event["revision"], event["n"]) for event in answer["events"]]
    assert numbers == sorted(set(numbers))


def test_one_subject_alone(controller: Controller) -> None:
    controller.init()
    for _ in range(3):
        controller.run("submit", "--", "true", check=True)
    events = controller.json("history", "r-2")["events"]
    assert [event["subject"] for event in events] == ["run:r-2"]
    text = controller.run("history", "r-2", check=True).stdout
    assert "run:r-2" in text
    assert "run:r-1" not in text
    assert controller.json("history", "slot:1")["events"] == []
    assert controller.json("history", "nope", exit=4)["error"]["code"] == "not_found"


def test_a_refused_command_is_not_in_history(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--id", "x", "--", "true", check=True)
    before = controller.json("history")
    assert controller.run("submit", "--id", "x", "--", "false").exit == 3
    assert controller.json("history") == before


@pytest.mark.parametrize("name", CHANGES)
def test_killed_anywhere_a_submit_is_whole_or_not_at_all_and_history_misses_nothing(
    controller: Controller, name: str
) -> None:
    controller.init()
    for nth in range(1, 20):
        before = document(controller)["revision"]
        done = run_dying(controller, name, nth, "submit", "--", "true")
        assert document(controller)["revision"] - before in {0, 1}
        if done.exit == 0:
            break
        assert done.exit == -9, str(done)
        assert controller.json("fsck")["ok"]
    else:
        pytest.fail("submit never ended by itself")
    controller.run("submit", "--", "true", check=True)
    told = controller.json("history")["events"]
    assert [event["revision"] for event in told] == list(range(1, document(controller)["revision"] + 1))
    assert {event["subject"] for event in told[1:]} == {f"run:{run}" for run in document(controller)["runs"]}
    assert store_of(controller).leftovers() == ()
    assert not [path.name for path in controller.state.iterdir() if "tmp" in path.name]


def segment_of(controller: Controller, revision: int) -> tuple[Path, int]:
    """The journal that a commit was written to, and which line of it that is."""
    mark = b'{"revision":%d,' % revision
    for path in sorted(controller.state.glob("journal-*.jsonl")):
        for number, line in enumerate(path.read_bytes().splitlines()):
            if line.startswith(mark):
                return path, number
    raise AssertionError(f"no journal has revision {revision}")


def test_fsck_finds_a_line_that_is_missing(controller: Controller) -> None:
    controller.init()
    for _ in range(3):
        controller.run("submit", "--", "true", check=True)
    path, number = segment_of(controller, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
    verdict = controller.json("fsck", exit=5)
    assert verdict["ok"] is False
    assert [violation["id"] for violation in verdict["violations"]] == ["history-chain"]
    assert "history-chain" in controller.run("fsck").stdout


def test_history_that_is_ahead_is_noticed_and_refused(controller: Controller) -> None:
    controller.init()
    old = (controller.state / "controller.json").read_bytes()
    controller.run("submit", "--", "true", check=True)
    controller.run("submit", "--", "true", check=True)
    (controller.state / "controller.json").write_bytes(old)
    error = controller.json("submit", "--", "true", exit=3)["error"]
    assert (error["code"], "put the newer one back" in error["next"]) == ("history_ahead", True)
    assert controller.json("status")["integrity"]["history"] == "ahead"
    assert "history ahead" in controller.run("status", check=True).stdout
    assert "history-ahead" in [violation["id"] for violation in controller.json("fsck", exit=5)["violations"]]
    assert (controller.state / "controller.json").read_bytes() == old


def left_by_a_kill(controller: Controller, *command: str) -> Path:
    """Kill the command right after its commit; the journal that has that alone."""
    assert run_dying(controller, "pwrite", 3, *command).exit == -9
    return controller.state / str(on_disk(controller)["journal"]["file"])


def is_current(controller: Controller) -> bool:
    """Whether `controller.json` alone is the document, but for what only a file has."""
    own = {"journal", "digest"}
    stands = {name: value for name, value in on_disk(controller).items() if name not in own}
    return stands == {name: value for name, value in document(controller).items() if name not in own}


def test_at_rest_the_file_is_the_document_and_behind_its_journal_after_a_kill(controller: Controller) -> None:
    controller.init()
    assert is_current(controller)
    for number in range(1, 4):
        for command in (("submit", "--", "true"), ("withdraw", f"r-{2 * number - 1}"), ("status",)):
            controller.run(*command, check=True)
            assert is_current(controller), command
        left_by_a_kill(controller, "submit", "--", "true")
        assert not is_current(controller)
        assert on_disk(controller)["revision"] + 1 == document(controller)["revision"]
        assert controller.json("status")["revision"] == document(controller)["revision"]
        assert controller.json("show", f"r-{2 * number}")["run"]["state"] == "queued"
        controller.run("status", check=True)
        assert not is_current(controller), "a question writes nothing"
    controller.run("submit", "--", "true", check=True)
    assert is_current(controller)
    assert controller.json("fsck")["ok"]


def test_while_a_process_lives_the_file_may_be_behind_and_is_current_once_that_ended_well(
    controller: Controller,
) -> None:
    controller.init()
    with Library.open(controller.state) as fleet:
        run = fleet.submit(["true"])
        assert not is_current(controller)
        assert controller.json("show", run.id)["run"]["state"] == "queued"
        assert controller.json("status")["revision"] == on_disk(controller)["revision"] + 1
    assert is_current(controller)


def test_a_copy_from_before_the_last_fold_loses_nothing_since_its_journal_goes_on(controller: Controller) -> None:
    controller.init()
    before = (controller.state / "controller.json").read_bytes()
    controller.run("submit", "--id", "a", "--", "true", check=True)
    stands = document(controller)
    (controller.state / "controller.json").write_bytes(before)
    assert document(controller) == stands
    assert controller.json("status")["integrity"]["history"] == "ok"
    controller.run("submit", "--id", "b", "--", "true", check=True)
    assert [event["subject"] for event in controller.json("history")["events"]] == ["fleet", "run:a", "run:b"]
    assert controller.json("fsck")["ok"]


def test_a_line_that_was_torn_was_never_committed_and_is_kept_apart(controller: Controller) -> None:
    controller.init()
    path = left_by_a_kill(controller, "submit", "--", "true")
    sound = path.read_bytes().rstrip(b"\0")
    for torn in (b'{"revision":3,"at":1', b"\0\0\1", sound.splitlines()[-1]):
        end, revision = path.stat().st_size, document(controller)["revision"]
        with path.open("ab") as file:
            file.write(torn)
        assert controller.json("status")["revision"] == revision
        before = durable(controller)
        controller.json("fsck", exit=None)
        assert durable(controller) == before
        path = left_by_a_kill(controller, "submit", "--", "true")
        kept = controller.state / f"torn-{path.stem}-{end}"
        assert kept.read_bytes() == torn
        assert document(controller)["revision"] == revision + 1
        last = controller.json("history")["events"][-1]
        assert (last["event"], kept.name in last["detail"]) == ("torn_tail_kept", True)
        assert controller.json("fsck")["ok"]


def test_history_beyond_what_is_kept_is_dropped_from_its_beginning_and_nothing_else_is(controller: Controller) -> None:
    controller.init()
    controller.configure("history.keep", "bytes = 1")
    for _ in range(50):
        with Library.open(controller.state) as fleet:
            fleet.submit(["true"])
    told = [event["revision"] for event in controller.json("history")["events"]]
    assert 1 < told[0] <= told[-1] == 51
    assert told == list(range(told[0], 52))
    assert len(document(controller)["runs"]) == 50
    assert controller.json("fsck")["ok"]
    assert controller.json("explain", "r-1")["because"]


def test_fsck_tells_what_keeps_the_next_command_from_changing_anything(controller: Controller) -> None:
    controller.init()
    path = left_by_a_kill(controller, "submit", "--id", "a", "--", "true")
    sound = path.read_bytes()
    first, line = sound.splitlines(keepends=True)
    kept = controller.home / "kept.jsonl"
    for wrong in (sound.replace(b"run:a", b"run:b"), sound + line, first + first, line, b"", None, b"link"):
        if wrong is None or wrong == b"link":
            path.rename(kept)
        if wrong == b"link":
            path.symlink_to(kept)
        elif wrong is not None:
            path.write_bytes(wrong)
        done = controller.run("submit", "--", "true")
        assert done.exit in {3, 7}, f"{wrong!r}: {done}"
        assert str(path) in done.stderr
        told = controller.run("fsck", "--json")
        assert told.exit == (5 if done.exit == 3 else 7), f"{wrong!r}: {told}"
        if told.exit == 5:
            assert [each["id"] for each in told.json()["violations"]] == ["history-chain"]
        else:
            assert str(path) in told.json()["error"]["where"]
        path.unlink(missing_ok=True)
        path.write_bytes(sound)
    controller.run("submit", "--", "true", check=True)
    assert controller.json("fsck")["ok"]
