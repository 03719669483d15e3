"""Every command that a document or a help page shows is run here; the README's example also prints what it says."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.behaviour.driver import Controller, Result
from tests.behaviour.provider_program import wait_until

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
INLINE = re.compile(r"`(controller [^`\n]+)`")
SHOWN = re.compile(r"^\s*(?:\$ |[-*/0-9 ]*\*  )?(controller .+)$", re.MULTILINE)
COMMANDS = [
    *("init", "submit", "wait", "reconcile", "run", "replay-pending", "status", "show", "runs", "history", "withdraw"),
    *("cancel", "retry", "logs", "explain", "drain", "fsck", "doctor", "state accept", "completion", "version"),
]
END = "run hello succeeded\n"
PLACEHOLDERS = {"RUN": "r-1", "CMD": "/bin/true", "COMMAND": "true", "[ARGUMENT...]": "", "N": "1"}


def typed(text: str) -> tuple[str, ...]:
    """The arguments of a command as a document shows it, its placeholders filled in, without a directory of its own."""
    words = shlex.split(text, comments=True)[1:]
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


def ended(controller: Controller, *args: str) -> Result:
    """`run` serves until it is told to stop: here once it has taken up what was queued."""
    process = controller.popen(*args)
    wait_until(lambda: controller.json("show", "r-2")["run"]["state"] != "queued", "r-2 is taken up")
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    return Result(controller.command(*args), process.returncode, stdout, stderr)


def check(controller: Controller, fleet: Path, text: str) -> None:
    """The command means something: it is not refused as a usage error, nor does it fail by a bug."""
    args = typed(text)
    if "init" not in args:
        shutil.copytree(fleet, controller.state)
    if "--file" in args:
        shutil.copytree(ROOT / "docs" / "examples", controller.home / "docs" / "examples")
    result = ended(controller, *args) if "run" in args else controller.run(*args)
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
        for program in ("backup.sh", "provider"):
            (fresh.home / program).write_text("#!/bin/sh\n")
            (fresh.home / program).chmod(0o755)
        check(fresh, fleet, example.replace("/usr/local/bin/provider", str(fresh.home / "provider")))


def test_the_example_on_the_first_screen_prints_what_it_says(controller: Controller) -> None:
    readme = (ROOT / "README.md").read_text()
    assert readme.index("```console") < 2500, "the example is on the first screen"
    example = readme.partition("```console\n")[2].partition("```")[0]
    parts = re.split(r"^\$ (controller .*)\n", example, flags=re.MULTILINE)[1:]
    for command, expected in zip(parts[::2], parts[1::2], strict=True):
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
