"""Settings: every option is read, documented and checked by the one table."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from msgspec import structs

from controller.api import options
from controller.api import settings as config
from controller.api.settings import ProviderSettings, Settings
from controller.model.errors import Conflict, UsageFault
from controller.model.policy import Backoff, Policy, QueuePolicy
from controller.model.records import Worker, new_document
from controller.provider.command import Deadlines


def test_what_init_writes_says_the_defaults() -> None:
    assert config.parse(options.template(4, "local", ()), "f") == Settings("f")


def uncommented() -> str:
    """The template with every option set, and every section there."""
    lines = options.template(4, "local", ()).splitlines()
    return "\n".join(line.removeprefix("# ") if " = " in line or line.startswith("# [") else line for line in lines)


def test_the_defaults_that_the_template_shows_are_the_defaults() -> None:
    read = config.parse(uncommented(), "f")
    # Budgets are one number each there: as many crashes as attempts. And so is max: as many as slots.
    assert read.policy == Policy(most=Policy().slots, by_queue={"default": QueuePolicy(crashes=QueuePolicy().attempts)})
    assert structs.replace(read.provider, env={}, deadlines={}) == ProviderSettings()
    assert read.provider.deadlines == {
        name: round(seconds * 1000) for name, seconds in structs.asdict(Deadlines()).items()
    }


def test_every_option_is_in_the_template() -> None:
    content = tomllib.loads(uncommented())
    for option in options.OPTIONS:
        section = content
        for part in option.section.replace(options.QUEUE, options.EXAMPLE).split("."):
            section = section[part]
        assert option.key in section


def test_words_of_a_program_survive_the_template() -> None:
    argv = ("/a b/prog", 'quote " and \\', "tab\tnew\nline", "ümlaut \x7f", "")
    assert config.parse(options.template(9, "command", argv), "f").provider.argv == argv


def test_every_setting_arrives() -> None:
    read = config.parse(
        """
        [fleet]
        slots = 2
        queues = ["a", "b"]
        idle = "0s"
        grace = "2m"
        kill_grace = "1s"
        [provider]
        kind = "command"
        command = ["/bin/p", "x"]
        pass_env = ["TOKEN"]
        [provider.env]
        REGION = "eu"
        [provider.deadlines]
        create = "1h"
        [backoff.retry]
        initial = "2s"
        cap = "3s"
        factor = 1
        jitter = 0.5
        [backoff.send]
        cap = "5m"
        """,
        "f",
    )
    assert read.policy == Policy(
        slots=2,
        queues=("a", "b"),
        idle_ms=0,
        grace_ms=120_000,
        kill_grace_ms=1000,
        retry=Backoff(2000, 3000, 1.0, 0.5),
        send=Backoff(1000, 300_000),
    )
    assert read.provider == ProviderSettings(
        "command", ("/bin/p", "x"), ("TOKEN",), {"REGION": "eu"}, {"create": 3_600_000}
    )


@pytest.mark.parametrize("text", ["", "5", "5 s", "5S", "s", "-5s", "1.5h", "5s ", "٣s", "5m30s", "1w"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="500ms"):
        options.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("5s", 5000), ("10m", 600_000), ("2h", 7_200_000), ("1d", 86_400_000), ("0s", 0)]
)
def test_durations(text: str, ms: int) -> None:
    assert options.parse_duration(text) == ms


def test_a_provider_program_gets_a_bounded_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PATH": "/bin", "HOME": "/root", "LANG": "C", "TOKEN": "t", "SECRET": "s"}.items():
        monkeypatch.setenv(name, value)
    settings = ProviderSettings("command", ("/p",), pass_env=("TOKEN", "NOT_SET"), env={"LANG": "de", "X": "1"})
    assert config.provider_environment(settings, Path("/state")) == {
        "PATH": "/bin",
        "HOME": "/root",
        "LANG": "de",
        "TOKEN": "t",
        "X": "1",
        "CONTROLLER_STATE_DIR": "/state",
    }


def test_workers_of_another_kind_of_provider_refuse_the_configuration() -> None:
    worker = Worker(slot=3, assignment="a-1", generation=1, provider="command", created_at=1, changed_at=1)
    document = structs.replace(new_document("f", "l"), workers={3: worker})
    config.check_provider(document, Settings("f", provider=ProviderSettings("command", ("/p",))))
    with pytest.raises(Conflict) as refusal:
        config.check_provider(document, Settings("the-file", provider=ProviderSettings("local")))
    assert "slot 3" in refusal.value.where
    assert "the-file" in refusal.value.where
    assert 'kind = "command"' in refusal.value.next
    assert "controller forget 3 --reason WHY --confirm-forget" in refusal.value.next


def test_a_program_found_through_the_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "prog"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert config.provider_argv("prog --x=./y ./z name") == (str(program), "--x=./y", str(tmp_path / "z"), "name")
    with pytest.raises(UsageFault, match="not found"):
        config.provider_argv("other")
    program.chmod(0o644)
    with pytest.raises(UsageFault, match="not an executable"):
        config.provider_argv("./prog")
