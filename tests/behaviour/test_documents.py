"""Every command that a document or a help page shows is run here; what examples say that it prints, it prints."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from controller.cli.queue import VERBS
from tests.behaviour.driver import Controller, Result
from tests.behaviour.provider_program import wait_until

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
INLINE = re.compile(r"`(controller [^`\n]+)`")
SHOWN = re.compile(r"^\s*(?:\$ |[-*/0-9 ]*\*  )?(controller .+)$", re.MULTILINE)
COMMANDS = [
    *("init", "submit", "wait", "reconcile", "run", "replay-pending", "status", "show", "runs", "history", "withdraw"),
    *("cancel", "retry", "logs", "explain", "drain", "fsck", "doctor", "state accept", "completion", "version"),
    *("state backup", "state verify", "state restore", "state export", "state import"),
    *("release", "resume", "surrender", "abandon", "adopt", "delete-unrecorded", "cordon", "uncordon", "forget"),
    *("queue", *(f"queue {verb}" for verb in VERBS)),
    *(f"state {verb}" for verb in ("backup", "verify", "restore", "export", "import")),
]
END = "run hello succeeded\n"
PLACEHOLDERS = {"RUN": "r-1", "CMD": "/bin/true", "COMMAND": "true", "[ARGUMENT...]": "", "N": "1", "slot:N": "slot:1"}
PLACEHOLDERS |= {"KEY": "0" * 64, "SHA": "0" * 64, "WHY": "it has to be"}
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"\b[0-9.]+(?:ms|s|m)\b")
MOMENT = re.compile(r"\b[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


def typed(text: str) -> tuple[str, ...]:
    """The arguments of a command as a document shows it, its placeholders filled in, without a directory of its own."""
    words = shlex.split(text, comments=True)[1:]
    words = words[: words.index(">")] if ">" in words else words
    if words[:1] == ["--state-dir"]:
        words = words[2:]
    return tuple(word for word in (PLACEHOLDERS.get(word, word) for word in words) if word)


def in_documents() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        shown = [*INLINE.findall(text), *SHOWN.findall(text)]
        found += [(page, command) for command in dict.fromkeys(shown) if "controller --help" not in command]
    return found


def session(example: str) -> list[tuple[str, str]]:
    """What an example types, and what it says that this prints."""
    parts = re.split(r"^\$ (.*)\n", example, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def timeless(controller: Controller, printed: str) -> list[list[str]]:
    """The words of each line, whatever the time, the speed of the machine and the place of the state directory."""
    text = MOMENT.sub("MOMENT", SPAN.sub("SPAN", printed.replace(str(controller.state), "/tmp/demo/state")))
    return [line.split() for line in text.splitlines()]


def examples(controller: Controller, command: str) -> list[str]:
    """The examples on a command's help page."""
    page = controller.run(*command.split(), "--help", check=True).stdout
    return [line.strip() for line in page.partition("Example")[2].splitlines() if line.strip().startswith("controller")]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory in which r-1 has failed and written something, r-2 is queued, and no worker is left."""
    controller = Controller(tmp_path_factory.mktemp("fleet"))
    try:
        controller.init()
        controller.run("submit", "--", "sh", "-c", "echo out; exit 1", check=True)
        wait_until(partial(failed, controller), "the failure of r-1")
        controller.run("drain", "--all", check=True)
        controller.run("drain", "--off", check=True)
        controller.run("submit", "--", "true", check=True)
        yield controller.state
    finally:
        controller.close()


def failed(controller: Controller) -> bool:
    controller.run("reconcile", "--apply", check=True)
    return bool(controller.json("show", "r-1")["run"]["state"] == "failed")


def ran_out(controller: Controller) -> bool:
    (held,) = controller.json("queue", "browse", "active")["runs"]
    return bool(held["remaining_ms"] == 0)


def ended(controller: Controller, *args: str) -> Result:
    """`run` and `queue work` serve until they are told to stop: here once they have taken up what was queued."""
    run = "r-2"
    if "work" in args:
        run = "work"
        queue = args[args.index("--queue") + 1] if "--queue" in args else "default"
        controller.run("submit", "--id", run, "--queue", queue, "--payload", "1", check=True)
    process = controller.popen(*args)
    wait_until(lambda: controller.json("show", run)["run"]["state"] != "queued", f"{run} is taken up")
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    return Result(controller.command(*args), process.returncode, stdout, stderr)


def followed(controller: Controller, *args: str) -> Result:
    """`history --follow` goes on for ever: here until it has told something."""
    process = controller.popen(*args)
    assert process.stdout is not None
    told = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (told != "", process.returncode) == (True, 130), stderr
    return Result(controller.command(*args), process.returncode, told + stdout, stderr)


def check(controller: Controller, fleet: Path, text: str) -> None:
    """The command means something: it is not refused as a usage error, nor does it fail by a bug."""
    args = typed(text)
    if "init" not in args:
        shutil.copytree(fleet, controller.state)
    if "--proof" in args:
        controller.home.joinpath(args[args.index("--proof") + 1]).write_text("{}")
    if "--file" in args:
        shutil.copytree(ROOT / "docs" / "examples", controller.home / "docs" / "examples")
    if "run" in args or (args[:2] == ("queue", "work") and "--until-empty" not in args):
        result = ended(controller, *args)
    elif args[0] == "history" and "--follow" in args:
        result = followed(controller, *args)
    else:
        result = controller.run(*args)
    assert result.exit not in {1, 2}, str(result)
    assert "Traceback" not in result.stderr


def test_documents_show_commands_at_all() -> None:
    assert len(in_documents()) > 20


@pytest.mark.parametrize(("page", "command"), in_documents())
def test_a_command_in_a_document_can_be_typed(controller: Controller, fleet: Path, page: str, command: str) -> None:
    assert page
    check(controller, fleet, command)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_page_has_an_example_that_can_be_typed(controller: Controller, fleet: Path, command: str) -> None:
    shown = examples(controller, command)
    assert shown, f"no example in: controller {command} --help"
    for number, example in enumerate(shown):
        fresh = Controller(controller.home / str(number))
        fresh.home.mkdir()
        for program in ("backup.sh", "provider", "handle-one"):
            (fresh.home / program).write_text("#!/bin/sh\n")
            (fresh.home / program).chmod(0o755)
        check(fresh, fleet, example.replace("/usr/local/bin/provider", str(fresh.home / "provider")))


def test_the_example_on_the_first_screen_prints_what_it_says(controller: Controller) -> None:
    readme = (ROOT / "README.md").read_text()
    assert readme.index("```console") < 2500, "the example is on the first screen"
    example = readme.partition("```console\n")[2].partition("```")[0]
    for command, expected in session(example):
        result = controller.run(*typed(command), check=True)
        printed = result.stdout.replace(str(controller.state), "/tmp/demo/state")
        if command == "controller logs hello":
            for _ in range(50):
                if printed == expected:
                    break
                printed = controller.run(*typed(command)).stdout
        # Whether this look or the next one sees its end depends on the machine; that it ended well is asserted below.
        assert printed.replace(END, "") == expected.replace(END, ""), command
    assert controller.json("show", "hello")["run"]["state"] == "succeeded"


def test_the_zombie_of_the_queue_page_is_refused_in_the_words_that_the_page_shows(controller: Controller) -> None:
    example = "".join(CONSOLE.findall((ROOT / "docs" / "queue.md").read_text()))
    assert example.count("--token 1") > 1, "the page still has its zombie"
    for command, expected in session(example):
        if command.startswith("sleep "):
            wait_until(
                lambda: controller.json("queue", "browse", "active")["runs"][0]["remaining_ms"] == 0, "its lease"
            )
            continue
        result = controller.run(*typed(command))
        assert timeless(controller, result.stdout + result.stderr) == timeless(controller, expected), command
        assert result.exit == (3 if expected.startswith("refused") else 0), str(result)
    assert controller.json("show", "mail-7")["run"]["result"] == {"sent": True}
