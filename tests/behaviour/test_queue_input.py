"""What a submit may ask of a queue; and what cannot be meant, which is refused without a byte changed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.faults import document, durable

MIB = 1 << 20
HOUR = 3_600_000


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory in which r-1 is held under token 1, r-2 is pending, and fleet-run waits for the fleet."""
    controller = Controller(tmp_path_factory.mktemp("filled"))
    try:
        controller.init()
        for _ in range(2):
            controller.run("submit", "--payload", "{}", "--attempts", "3", check=True)
        controller.run("submit", "--id", "fleet-run", "--", "true", check=True)
        controller.run("queue", "claim", "--lease", "1h", check=True)
        yield controller.state
    finally:
        controller.close()


@pytest.fixture
def held(controller: Controller, filled: Path) -> Controller:
    shutil.copytree(filled, controller.state)
    return controller


TOKEN = ("--token", "1")
ERROR = ("--error", "x")

WRONG = {
    "no token": (2, ("queue", "complete", "r-1")),
    "a token that is a word": (2, ("queue", "complete", "r-1", "--token", "one")),
    "a token of nothing": (2, ("queue", "complete", "r-1", "--token", "")),
    "a token of zero": (2, ("queue", "drain", "r-1", "--token", "0")),
    "a token below zero": (2, ("queue", "drain", "r-1", "--token", "-1")),
    "a token with a fraction": (2, ("queue", "drain", "r-1", "--token", "1.0")),
    "a token in other digits": (2, ("queue", "drain", "r-1", "--token", "\N{ARABIC-INDIC DIGIT ONE}")),
    "a token with a line between its digits": (2, ("queue", "drain", "r-1", "--token", "1_0")),
    "a token of a thousand digits": (2, ("queue", "drain", "r-1", "--token", "1" * 1000)),
    "a large token": (3, ("queue", "drain", "r-1", "--token", "9" * 18)),
    "a lease of zero": (2, ("queue", "claim", "--lease", "0s")),
    "a lease of a year": (2, ("queue", "claim", "--lease", "365d")),
    "a lease without unit": (2, ("queue", "claim", "--lease", "60")),
    "a heartbeat of a year": (2, ("queue", "heartbeat", "r-1", *TOKEN, "--lease", "365d")),
    "no runs at all": (2, ("queue", "claim", "--count", "0")),
    "an owner of nothing": (2, ("queue", "claim", "--owner", "")),
    "an owner that is no text": (2, ("queue", "claim", "--owner", "\udcff")),
    "a queue outside the grammar": (2, ("queue", "claim", "--queue", "a b")),
    "a fleet queue": (3, ("queue", "claim", "--queue", "fleet")),
    "a result that is no JSON": (2, ("queue", "complete", "r-1", *TOKEN, "--result", "sent")),
    "a result twice": (2, ("queue", "complete", "r-1", *TOKEN, "--result", "1 2")),
    "a result that is no number": (2, ("queue", "complete", "r-1", *TOKEN, "--result", "NaN")),
    "a result with a key twice": (2, ("queue", "complete", "r-1", *TOKEN, "--result", '{"a": 1, "a": 2}')),
    "a result too deep": (2, ("queue", "complete", "r-1", *TOKEN, "--result", "[" * 999 + "]" * 999)),
    "progress that is no JSON": (2, ("queue", "heartbeat", "r-1", *TOKEN, "--progress", "half")),
    "a failure without its error": (2, ("queue", "retry", "r-1", *TOKEN)),
    "a failure without its reason": (2, ("queue", "fail", "r-1", *TOKEN, *ERROR)),
    "an unknown reason": (2, ("queue", "fail", "r-1", *TOKEN, *ERROR, "--reason", "consumer_fail")),
    "a reason of another kind": (2, ("queue", "fail", "r-1", *TOKEN, *ERROR, "--reason", "proven_absent")),
    "a delay below zero": (2, ("queue", "retry", "r-1", *TOKEN, *ERROR, "--delay", "-1s")),
    "an unknown step": (4, ("queue", "step", "r-1", "main", *TOKEN, "started")),
    "what cannot happen to a step": (2, ("queue", "step", "r-1", "main", *TOKEN, "skipped")),
    "an error of what went well": (2, ("queue", "step", "r-1", "main", *TOKEN, "succeeded", *ERROR)),
    "an unknown run": (4, ("queue", "complete", "nope", *TOKEN)),
    "a slot": (2, ("queue", "complete", "slot:1", *TOKEN)),
    "a run that nobody holds": (3, ("queue", "complete", "r-2", *TOKEN)),
    "a run of the fleet": (3, ("queue", "complete", "fleet-run", *TOKEN)),
    "an unknown set": (2, ("queue", "browse", "finished")),
    "no set": (2, ("queue", "browse")),
    "the size of an unknown set": (2, ("queue", "size", "finished")),
    "the pause of an unknown queue": (4, ("queue", "pause", "nope")),
    "the resume of an unknown queue": (4, ("queue", "resume", "nope")),
    "the pause of no queue": (2, ("queue", "pause")),
    "the promotion of an unknown run": (4, ("queue", "promote", "nope")),
    "the promotion of a run that is held": (3, ("queue", "promote", "r-1")),
    "the discard of an unknown run": (4, ("queue", "discard", "nope")),
    "an unknown verb": (2, ("queue", "clam")),
    "no verb": (2, ("queue",)),
    "a payload that is no JSON": (2, ("submit", "--payload", "hello")),
    "a payload of nothing": (2, ("submit", "--payload", "")),
    "a payload that is not there": (2, ("submit", "--payload", "@nowhere.json")),
    "a payload that is a directory": (2, ("submit", "--payload", "@.")),
    "a payload for the fleet": (3, ("submit", "--queue", "fleet", "--payload", "1")),
    "a priority that there is not": (2, ("submit", "--payload", "1", "--priority", "urgent")),
    "two times at which it is due": (2, ("submit", "--payload", "1", "--delay", "1h", "--at", "2026-12-01T06:00:00Z")),
    "a time without its zone": (2, ("submit", "--payload", "1", "--at", "2026-12-01T06:00:00")),
    "a day without its time": (2, ("submit", "--payload", "1", "--at", "2026-12-01")),
    "a day that there is not": (2, ("submit", "--payload", "1", "--at", "2026-02-30T06:00:00Z")),
    "a time before time": (2, ("submit", "--payload", "1", "--at", "0001-01-01T00:00:00+14:00")),
    "a time in a word": (2, ("submit", "--payload", "1", "--at", "tomorrow")),
    "a limit of no key": (2, ("submit", "--payload", "1", "--concurrency", "2")),
    "a key of two lines": (2, ("submit", "--payload", "1", "--concurrency-key", "host\ndb1")),
    "a key as long as a page": (2, ("submit", "--payload", "1", "--concurrency-key", "k" * 201)),
    "a key of nothing": (2, ("submit", "--payload", "1", "--concurrency-key", "")),
    "a limit of zero": (2, ("submit", "--payload", "1", "--concurrency-key", "k", "--concurrency", "0")),
    "no crashes at all": (2, ("submit", "--payload", "1", "--crashes", "0")),
    "unique for no time": (2, ("submit", "--payload", "1", "--unique-for", "0s")),
    "the replacement of no id": (2, ("submit", "--payload", "1", "--replace")),
    "a directory for no command": (2, ("submit", "--payload", "1", "--cwd", ".")),
    "waiting for what consumers do": (3, ("submit", "--payload", "1", "--wait")),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_meant_changes_not_a_byte(held: Controller, name: str) -> None:
    code, args = WRONG[name]
    before = durable(held)
    done = held.run(*args)
    assert (done.exit, done.stdout) == (code, ""), str(done)
    assert re.match(r"usage: |refused: |not found: ", done.stderr), str(done)
    assert durable(held) == before


@pytest.mark.parametrize(
    ("args", "exit", "code"),
    [
        (("complete", "r-1", "--token", "one"), 2, "usage"),
        (("complete", "r-1", "--token", "2"), 3, "transition_refused"),
        (("claim", "--queue", "fleet"), 3, "conflict"),
        (("pause", "nope"), 4, "not_found"),
    ],
)
def test_refusals_are_told_as_json_too(held: Controller, args: tuple[str, ...], exit: int, code: str) -> None:  # noqa: A002 - as in Result
    error = held.json("queue", *args, exit=exit)["error"]
    assert (error["code"], bool(error["what"]), bool(error["next"])) == (code, True, True)


@pytest.mark.parametrize("option", ["--payload", "--result", "--progress"])
def test_json_over_a_mebibyte_changes_not_a_byte(held: Controller, option: str) -> None:
    (held.home / "most.json").write_text(json.dumps("x" * (MIB - 2)))
    (held.home / "more.json").write_text(json.dumps("x" * (MIB - 1)))
    command = {
        "--payload": ("submit",),
        "--result": ("queue", "complete", "r-1", *TOKEN),
        "--progress": ("queue", "heartbeat", "r-1", *TOKEN),
    }[option]
    before = durable(held)
    error = held.json(*command, option, "@more.json", exit=2)["error"]
    assert (error["what"], error["where"]) == ("it is larger than 1048576 bytes", option)
    assert durable(held) == before
    held.run(*command, option, "@most.json", check=True)


def test_tokens_errors_and_results_never_come_from_the_environment(held: Controller) -> None:
    env = {
        "CONTROLLER_QUEUE_COMPLETE_TOKEN": "1",
        "CONTROLLER_QUEUE_FAIL_TOKEN": "1",
        "CONTROLLER_QUEUE_FAIL_ERROR": "x",
        "CONTROLLER_QUEUE_FAIL_REASON": "consumer_failed",
    }
    before = durable(held)
    assert held.run("queue", "complete", "r-1", env=env).exit == 2
    assert "--error" in held.run("queue", "fail", "r-1", *TOKEN, env=env).stderr
    assert "--reason" in held.run("queue", "fail", "r-1", *TOKEN, *ERROR, env=env).stderr
    assert durable(held) == before


def test_other_options_do_also_those_of_a_usage_error(held: Controller) -> None:
    (run,) = held.json("queue", "claim", env={"CONTROLLER_QUEUE_CLAIM_OWNER": "cron"})["runs"]
    assert run["owner"] == "cron"
    done = held.run("queue", "complete", "r-1", env={"CONTROLLER_QUEUE_COMPLETE_JSON": "1"})
    assert json.loads(done.stdout)["error"]["code"] == "usage"


def test_a_mistyped_verb_is_guessed(held: Controller) -> None:
    done = held.run("queue", "clam")
    assert done.stderr == (
        "usage: there is no command 'clam' (did you mean 'claim'?)\n  next: controller queue --help\n"
    )


# What submit can ask for


def test_every_option_of_submit_reaches_the_run(controller: Controller) -> None:
    controller.init()
    controller.run(
        *("submit", "--queue", "mail", "--priority", "critical", "--attempts", "4", "--crashes", "2"),
        *("--at", "2126-12-01T07:30:00.250+01:30", "--concurrency-key", "db-1", "--concurrency", "2"),
        *("--payload", '{ "to": "ops" }'),
        check=True,
    )
    run = controller.json("show", "r-1")["run"]
    assert (run["queue"], run["priority"], run["max_attempts"], run["max_crashes"]) == ("mail", "critical", 4, 2)
    assert (run["concurrency_key"], run["concurrency"], run["payload"]) == ("db-1", 2, {"to": "ops"})
    assert (run["available_at"], run["defer_reason"]) == (4_951_778_400_250, "submitted_for_later")
    page = controller.run("--exact-times", "show", "r-1", check=True).stdout
    for words in ("2126-12-01 06:00:00Z", "db-1, 2 at once", '{"to":"ops"}', "critical"):
        assert words in page


def test_a_command_goes_to_the_fleet_and_a_payload_alone_to_consumers(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    controller.run("submit", "--payload", "1", check=True)
    controller.run("submit", "--queue", "mine", "--payload", "2", "--", "true", check=True)
    assert [run["queue"] for run in controller.json("runs")["runs"]] == ["mine", "default", "fleet"]
    assert [run["id"] for run in controller.json("runs", "--queue", "mine")["runs"]] == ["r-3"]
    assert controller.run("runs", "--queue", "nope", check=True).stdout == "no runs of queue nope\n"
    page = controller.run("runs", check=True).stdout
    assert page.split()[:3] == ["RUN", "QUEUE", "STATE"]


def test_a_payload_comes_from_a_file_or_stdin_too(controller: Controller) -> None:
    controller.init()
    (controller.home / "payload.json").write_text("[1,\n 2]\n")
    controller.run("submit", "--payload", "@payload.json", check=True)
    controller.run("submit", "--payload", "-", stdin='"text"\n', check=True)
    taken = controller.json("queue", "claim", "--count", "2")["runs"]
    assert [run["payload"] for run in taken] == [[1, 2], "text"]


def test_a_delay_makes_it_due_later(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--payload", "1", "--delay", "1h", check=True)
    assert controller.json("queue", "claim")["runs"] == []
    (run,) = controller.json("queue", "browse", "scheduled")["runs"]
    assert run["available_at"] - run["created_at"] == HOUR
    controller.run("queue", "promote", "r-1", check=True)
    assert [run["run"] for run in controller.json("queue", "claim")["runs"]] == ["r-1"]


def test_a_moment_that_is_over_is_due_at_once(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--payload", "1", "--at", "2001-01-01T00:00:00Z", check=True)
    assert controller.run("queue", "size", check=True).stdout == "1\n"


def test_the_same_content_within_its_time_is_the_same_run(controller: Controller) -> None:
    controller.init()
    first = controller.json("submit", "--payload", "1", "--unique-for", "1h")
    again = controller.json("submit", "--payload", "1", "--unique-for", "1h")
    other = controller.json("submit", "--payload", "2", "--unique-for", "1h")
    assert [(each["run"], each["created"]) for each in (first, again, other)] == [
        ("r-1", True),
        ("r-1", False),
        ("r-2", True),
    ]


def test_no_more_of_a_key_are_handed_out_than_its_limit(controller: Controller) -> None:
    controller.init()
    for _ in range(3):
        controller.run("submit", "--payload", "1", "--concurrency-key", "k", "--concurrency", "2", check=True)
    assert [run["run"] for run in controller.json("queue", "claim", "--count", "3")["runs"]] == ["r-1", "r-2"]
    assert controller.json("queue", "claim")["runs"] == []
    controller.run("queue", "complete", "r-1", *TOKEN, check=True)
    assert [run["run"] for run in controller.json("queue", "claim", "--count", "3")["runs"]] == ["r-3"]


def test_replace_takes_the_place_of_an_earlier_run_of_the_id(controller: Controller) -> None:
    controller.init()
    submit = ("submit", "--id", "conf", "--payload")
    controller.run(*submit, "1", check=True)
    controller.run("queue", "claim", check=True)
    assert controller.run(*submit, "2").exit == 3
    controller.run(*submit, "2", "--replace", check=True)
    assert controller.run("queue", "complete", "conf", *TOKEN).exit == 3
    (run,) = controller.json("queue", "claim")["runs"]
    assert (run["run"], run["token"], run["payload"]) == ("conf", 2, 2)
    assert controller.json("fsck")["ok"]


def test_every_default_of_a_queue_comes_from_the_settings(controller: Controller) -> None:
    controller.init()
    path = controller.state / "controller.toml"
    path.write_text('[queues.mail]\nattempts = 3\ncrashes = 2\nlease = "5m"\n')
    controller.run("submit", "--queue", "mail", "--payload", "1", check=True)
    run = document(controller)["runs"]["r-1"]
    assert (run["max_attempts"], run["max_crashes"]) == (3, 2)
    (claimed,) = controller.json("queue", "claim", "--queue", "mail")["runs"]
    assert claimed["lease_ms"] == 300_000
