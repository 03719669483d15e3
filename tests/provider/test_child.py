"""Programs that do runs for a consumer: how they start, what they get, and what is left of them."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from controller.provider import child
from controller.provider.child import Child, Ended, NotStarted, start, why_not_found
from controller.provider.process import group_members
from tests.behaviour.provider_program import wait_until

PATH = {"PATH": os.environ["PATH"]}


class Starts:
    """Starts shell scripts, and leaves none of their processes behind."""

    def __init__(self) -> None:
        self.children: list[Child] = []

    def __call__(self, script: str, payload: bytes = b"", env: Mapping[str, str] = PATH) -> Child:
        started = start(("sh", "-c", script), payload, env)
        assert isinstance(started, Child), started
        self.children.append(started)
        return started


@pytest.fixture
def sh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starts]:
    monkeypatch.chdir(tmp_path)
    starts = Starts()
    yield starts
    for each in starts.children:
        each.end()


def ended(started: Child) -> Ended:
    """How it ended, once its notice of that came."""
    notice = started.fileno()
    assert notice is not None
    with selectors.PollSelector() as selector:
        selector.register(notice, selectors.EVENT_READ)
        assert selector.select(30), "it does not end"
    found = started.collect()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        ("exit 0", 0, "exit code 0"),
        ("exit 7", 7, "exit code 7"),
        ("kill -9 $$", -9, "killed by signal 9"),
    ],
)
def test_how_a_program_ended_is_told_by_exit_code_or_signal(sh: Starts, script: str, status: int, words: str) -> None:
    found = ended(sh(script))
    assert (found.status, found.words, found.well) == (status, words, status == 0)


def test_a_program_that_goes_on_has_no_end_yet(sh: Starts) -> None:
    assert sh("sleep 600").collect() is None


def test_the_payload_is_read_to_its_last_byte(sh: Starts, tmp_path: Path) -> None:
    payload = b'"' + b"x" * (1 << 20) + b'"'
    assert ended(sh("cat > read", payload)).well
    assert (tmp_path / "read").read_bytes() == payload


def test_a_program_that_never_reads_a_large_payload_ends_all_the_same(sh: Starts) -> None:
    assert ended(sh("exit 0", b"x" * (8 << 20))).well


def test_without_a_payload_a_program_reads_nothing(sh: Starts, tmp_path: Path) -> None:
    assert ended(sh("cat > read")).well
    assert (tmp_path / "read").read_bytes() == b""


def test_a_program_cannot_change_its_payload(sh: Starts) -> None:
    assert not ended(sh("echo x 1>&0", b"payload")).well


def test_a_program_gets_exactly_the_environment_that_is_given(sh: Starts, tmp_path: Path) -> None:
    assert ended(sh("env > env", env={"PATH": os.environ["PATH"], "GIVEN": "yes"})).well
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert "GIVEN" in names
    assert names <= {"PATH", "GIVEN", "PWD", "OLDPWD", "SHLVL", "_"}


def test_a_program_inherits_no_descriptor_of_ours(sh: Starts, tmp_path: Path) -> None:
    kept = os.open(tmp_path / "kept", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(kept, True)
    try:
        assert ended(sh("ls -l /proc/$$/fd > fds")).well
    finally:
        os.close(kept)
    assert "kept" not in (tmp_path / "fds").read_text()


def test_what_a_program_writes_to_stdout_goes_to_stderr(tmp_path: Path) -> None:
    script = "from controller.provider.child import *; c = start(('sh', '-c', 'echo out; echo err >&2'), b'', {})\n"
    script += "while c.collect() is None: pass"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert (done.stdout, done.stderr) == ("", "out\nerr\n")


def test_a_signal_reaches_the_whole_group(sh: Starts, tmp_path: Path) -> None:
    started = sh("(trap 'touch told; exit' TERM; touch ready; while :; do sleep 0.01; done) & wait")
    wait_until((tmp_path / "ready").exists, "it is ready")
    started.signal(signal.SIGTERM)
    assert ended(started).status == -signal.SIGTERM


def test_what_a_program_leaves_in_its_group_is_ended_with_it(sh: Starts, tmp_path: Path) -> None:
    started = sh("sleep 600 & touch left")
    assert ended(started).well
    wait_until(lambda: not started.lingers(), "nobody is left")
    assert not group_members(started.pid)


def test_once_collected_a_number_that_may_be_somebody_elses_is_signalled_no_more(
    sh: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = sh("exit 0")
    ended(started)
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("a signal was sent"))
    started.signal(signal.SIGKILL)


def test_a_status_that_the_system_threw_away_is_unknown_and_not_well(
    sh: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise ChildProcessError

    started = sh("exit 0")
    with monkeypatch.context() as lost:
        lost.setattr(os, "waitid", gone)
        found = started.collect()
    assert found is not None
    assert not found.well
    assert found.words == "its exit status was lost"


def test_a_program_that_is_ended_is_gone_with_its_whole_group(sh: Starts, tmp_path: Path) -> None:
    started = sh("trap '' TERM; (trap '' TERM; touch ready; sleep 600) & wait")
    wait_until((tmp_path / "ready").exists, "it is ready")
    started.end()
    started.end()
    assert started.fileno() is None
    wait_until(lambda: not started.lingers(), "nobody is left")


def test_without_notice_of_exits_an_end_is_still_seen(sh: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    started = sh("exit 3")
    assert started.fileno() is None
    found: list[Ended] = []

    def has_ended() -> bool:
        found.extend(filter(None, [started.collect()]))
        return bool(found)

    wait_until(has_ended, "it ends")
    assert found == [Ended(3)]


def test_a_program_that_is_missing_never_started(tmp_path: Path) -> None:
    found = start((str(tmp_path / "missing"),), b"", PATH)
    assert isinstance(found, NotStarted)
    assert not found.passing
    assert "does not exist" in found.why


@pytest.mark.parametrize("number", sorted(child._NO_ROOM))
def test_a_start_for_which_the_system_has_no_room_may_work_later(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", full)
    found = start(("true",), b"", PATH)
    assert isinstance(found, NotStarted)
    assert found.passing
    assert "no room" in found.why


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ((), "no program"),
        (("",), "no program"),
        (("no-such-program-here",), "not on the PATH"),
        (("./missing",), "does not exist"),
        (("./plain",), "may not be executed"),
        (("./env-script",), "not on the PATH"),
        (("sh",), ""),
        (("./good",), ""),
    ],
)
def test_what_cannot_be_run_is_known_before_anything_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain").write_text("#!/bin/sh\n")
    for name, line in (("env-script", "#!/usr/bin/env no-such-interpreter\n"), ("good", "#!/bin/sh\n")):
        Path(name).write_text(line)
        Path(name).chmod(0o755)
    found = why_not_found(argv, PATH)
    assert why in found
    assert bool(found) == bool(why)
