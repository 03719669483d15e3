"""Workers outlive whoever started them, and their own deaths are told as they were."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from controller.model.inventory import Seen, StepSeen
from controller.model.process import Liveness, ProcessIdentity
from controller.model.records import ActionType
from controller.provider.local.client import LocalProvider
from controller.provider.process import group_members, identify, liveness
from controller.provider.protocol import Done, Unknown
from tests.provider.contract import LINEAGE, SLEEP, TEARDOWN, Asker, until
from tests.provider.local_kit import (
    CLOCK,
    groups,
    hasty,
    kill,
    nobody,
    supervisor,
    supervisors,
    sweep,
    worker_directory,
    workers,
)

ROOT = Path(__file__).parents[2]


def starter(state: Path, then: str = "") -> list[str]:
    """A program that makes a worker, starts a long step on it, says so, and goes on with *then*."""
    program = f"""
import sys, time
from pathlib import Path
from tests.provider.contract import SLEEP, Asker
from tests.provider.local_kit import CLOCK, provider
ask = Asker(provider(Path({str(state)!r})), CLOCK)
ask.create()
ask.done(ask.execute(SLEEP))
print("started", flush=True)
{then}
"""
    return [sys.executable, "-c", program]


def field(identity: ProcessIdentity, name: str) -> str:
    """A line of the process's status, as the kernel gives it."""
    for line in Path(f"/proc/{identity.pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.split(":", 1)[1].strip()
    raise KeyError(name)


def stat(pid: int) -> list[str]:
    """Fields from the state on: state, parent, group, session, terminal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def targets(pid: int) -> set[str]:
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed between the two looks, so it was not kept
            found.add(os.readlink(entry))
    return found


def test_a_supervisor_is_detached_from_its_starter(ask: Asker, state: Path) -> None:
    ask.create()
    who = supervisor(state)
    _, parent, group, session, terminal, *_ = stat(who.pid)
    assert int(parent) != os.getpid()
    assert (int(group), int(session), terminal) == (who.pid, who.pid, "0")
    assert os.readlink(f"/proc/{who.pid}/cwd") == str(worker_directory(state))
    assert field(who, "Umask") == "0077"


def test_nothing_of_the_starter_is_open_in_a_worker_or_its_step(ask: Asker, state: Path, tmp_path: Path) -> None:
    with (tmp_path / "held").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        ask.create()
    ask.done(ask.execute(SLEEP))
    (group,) = groups(worker_directory(state))
    directory = str(worker_directory(state))
    until(CLOCK, lambda: "sleep" in Path(f"/proc/{group.pid}/comm").read_text())
    expected = {"/dev/null", f"{directory}/errors", f"{directory}/lock", str(state / "logs/r-1/main.1.1.log")}
    # What is inherited stays; what the supervisor itself has open for a moment, such as its memory, goes.
    until(CLOCK, lambda: {name for name in targets(supervisor(state).pid) if name.startswith("/")} == expected)
    step = targets(group.pid)
    assert {name for name in step if name.startswith("/")} == {"/dev/null"}
    assert len(step) == 2, "stdin, and one pipe for both outputs"


def test_a_step_starts_with_default_signals_and_a_session_of_its_own(ask: Asker, state: Path) -> None:
    ask.create()
    ask.done(ask.execute(SLEEP))
    (group,) = groups(worker_directory(state))
    until(CLOCK, lambda: "sleep" in Path(f"/proc/{group.pid}/comm").read_text())
    ours = sum(1 << number - 1 for number in signal.valid_signals())  # two more belong to the C library
    assert (int(field(group, "SigIgn"), 16) & ours, int(field(group, "SigBlk"), 16) & ours) == (0, 0)
    assert stat(group.pid)[2:4] == [str(group.pid)] * 2


def test_the_starters_pipe_ends_with_the_starter(state: Path) -> None:
    try:
        began = time.monotonic()
        with subprocess.Popen(starter(state), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT) as process:
            assert process.stdout is not None
            assert process.stdout.read() == b"started\n"
        assert time.monotonic() - began < 5, "the step itself takes ten minutes"
        with workers(state) as later:
            assert [step.state for step in later.steps().values()] == [StepSeen.RUNNING]
    finally:
        sweep(state)


@pytest.mark.parametrize("how", ["interrupt key", "closed terminal"])
def test_a_worker_outlives_its_starters_terminal(state: Path, how: str) -> None:
    ours, theirs = os.openpty()
    take = "import os, fcntl, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
    command = starter(state, "time.sleep(600)")
    command[2] = take + command[2]
    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        if how == "interrupt key":
            os.write(ours, b"\x03")
        else:
            os.close(ours)
        process.communicate(timeout=20)
        assert process.returncode in {-signal.SIGINT, -signal.SIGHUP, 1}
        assert liveness(supervisor(state)) is Liveness.ALIVE
        with workers(state) as later:
            assert [step.state for step in later.steps().values()] == [StepSeen.RUNNING]
    finally:
        process.kill()
        process.communicate()
        os.close(theirs)
        if how == "interrupt key":
            os.close(ours)
        sweep(state)


def test_a_worker_outlives_the_kill_of_its_starter(state: Path) -> None:
    process = subprocess.Popen(starter(state, "time.sleep(600)"), stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.kill()
        process.wait()
        process.stdout.close()
        with workers(state) as later:
            assert [step.state for step in later.steps().values()] == [StepSeen.RUNNING]
    finally:
        process.kill()
        process.wait()
        sweep(state)


def test_an_end_is_collected_by_a_later_process_exactly(ask: Asker, state: Path) -> None:
    ask.create()
    first = ask.execute(("sh", "-c", "sleep 0.2; exit 7"))
    ask.done(first)
    with workers(state) as later:
        end = later.ended(first)
    assert (end.exit_code, end.signal, end.started) == (7, None, True)


def test_an_end_that_was_recorded_survives_its_supervisor(ask: Asker, state: Path) -> None:
    ask.create()
    sent = ask.execute(("sh", "-c", "kill -9 $$"))
    ask.done(sent)
    ask.ended(sent)
    kill(supervisor(state))
    (worker,) = ask.workers()
    assert (worker.state, worker.steps[0].exit_code, worker.steps[0].signal) == (Seen.GONE, None, 9)


def test_the_end_of_a_step_whose_supervisor_was_killed_is_unknowable_and_its_group_is_ended(
    ask: Asker, state: Path
) -> None:
    ask.create()
    sent = ask.execute(("sh", "-c", "sleep 600 & sleep 600"))
    ask.done(sent)
    (group,) = groups(worker_directory(state))
    until(CLOCK, lambda: len(group_members(group.pid)) >= 2)
    kill(supervisor(state))
    (worker,) = ask.workers()
    (step,) = worker.steps
    assert worker.state is Seen.GONE
    assert (step.state, step.exit_code, step.signal) == (StepSeen.EXITED, None, None)
    assert group_members(group.pid) == ()
    again = ask.once(sent)
    assert isinstance(again, Done)
    assert again.step == step, "a known key gets its final answer, whoever gives it"


def test_an_execute_for_a_gone_worker_is_unknown_and_the_look_says_gone(ask: Asker, state: Path) -> None:
    ask.create()
    kill(supervisor(state))
    assert isinstance(ask.once(ask.execute(SLEEP)), Unknown)
    assert [worker.state for worker in ask.workers()] == [Seen.GONE]


def test_everything_can_be_taken_down_when_the_supervisor_is_dead(ask: Asker, state: Path) -> None:
    ask.create()
    ask.done(ask.execute(SLEEP))
    kill(supervisor(state))
    (group,) = groups(worker_directory(state))
    for kind in TEARDOWN:
        ask.done(ask.mint(kind))
    assert group_members(group.pid) == ()
    assert list((state / "workers").iterdir()) == []


def test_a_create_sent_again_starts_a_dead_supervisor_of_the_same_worker(ask: Asker, state: Path) -> None:
    sent = ask.create()
    before = ask.workers()
    dead = supervisor(state)
    kill(dead)
    assert isinstance(ask.once(sent), Done)
    after = ask.workers()
    assert supervisor(state) != dead
    assert [(w.id, w.generation, w.resources["directory"]) for w in after] == [
        (w.id, w.generation, w.resources["directory"]) for w in before
    ]
    assert [w.resources["process"] for w in after] != [w.resources["process"] for w in before]


def test_a_create_that_comes_late_does_not_revive_a_worker_that_was_used(ask: Asker, state: Path) -> None:
    sent = ask.create()
    used = ask.execute(("true",))
    ask.done(used)
    ask.ended(used)
    kill(supervisor(state))
    assert isinstance(ask.once(sent), Done)
    assert [worker.state for worker in ask.workers()] == [Seen.GONE]


def test_a_create_whose_caller_was_killed_is_finished_by_its_replay(state: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow = tmp_path / "python"
    slow.write_text(f'#!/bin/sh\nwhile ! [ -e {gate} ]; do sleep 0.05; done\nexec {sys.executable} "$@"\n')
    slow.chmod(0o700)
    with workers(state) as ask:
        sent = ask.mint(ActionType.CREATE)
        program = f"""
import sys, os
from pathlib import Path
from msgspec import Raw
from controller.clock import SystemClock
from controller.model.action import decode
from controller.provider.local.client import LocalProvider
raw = Raw({bytes(sent[1])!r})
local = LocalProvider(Path({str(state)!r}), fleet="test", lineage={LINEAGE!r}, clock=SystemClock(),
    environment=dict(os.environ), python={str(slow)!r})
local.mutate(decode(raw), raw, lambda *_: None)
"""
        process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
        try:
            until(CLOCK, (worker_directory(state) / "errors").exists)
            process.kill()
            process.wait()
            with hasty(state) as local:
                assert isinstance(local.mutate(*sent, nobody), Unknown)
            assert [worker.state for worker in ask.workers()] == [Seen.CREATING]
        finally:
            gate.touch()
            process.kill()
            process.wait()
        ask.done(sent)
        assert [worker.state for worker in ask.workers()] == [Seen.READY]


def test_a_supervisor_that_cannot_start_is_unknown_and_says_why(state: Path) -> None:
    with workers(state) as ask:
        sent = ask.mint(ActionType.CREATE)
        broken = LocalProvider(
            state, fleet="test", lineage=LINEAGE, clock=CLOCK, environment={}, python="/usr/bin/false"
        )
        assert isinstance(broken.mutate(*sent, nobody), Unknown)
        broken.close()
        assert [worker.state for worker in ask.workers()] == [Seen.CREATING]
        ask.done(sent)
        assert [worker.state for worker in ask.workers()] == [Seen.READY]


def test_a_long_lived_caller_keeps_no_zombies(ask: Asker) -> None:
    ask.create()
    ask.once(ask.mint(ActionType.DEALLOCATE))
    ours = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    dead = []
    for pid in ours:
        try:
            state, parent, *_ = stat(int(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == os.getpid() and state == "Z":
            dead.append(pid)
    assert dead == []


def test_a_supervisor_whose_directory_was_removed_ends(ask: Asker, state: Path) -> None:
    ask.create()
    ask.done(ask.execute(SLEEP))
    who, (group,) = supervisor(state), groups(worker_directory(state))
    shutil.rmtree(worker_directory(state))
    until(CLOCK, lambda: liveness(who) is Liveness.GONE and group_members(group.pid) == ())
    assert ask.workers() == ()


def test_a_terminated_supervisor_ends_its_step_whose_end_then_says_nothing_about_it(ask: Asker, state: Path) -> None:
    ask.create()
    sent = ask.execute(SLEEP)
    ask.done(sent)
    who = supervisor(state)
    os.kill(who.pid, signal.SIGTERM)
    until(CLOCK, lambda: liveness(who) is Liveness.GONE)
    (worker,) = ask.workers()
    step = worker.steps[0]
    assert (worker.state, step.state, step.exit_code, step.signal) == (Seen.GONE, StepSeen.EXITED, None, None)


def test_workers_answer_under_a_path_longer_than_a_socket_address(tmp_path: Path) -> None:
    with workers(tmp_path / ("d" * 120) / ("e" * 120)) as ask:
        ask.create()
        sent = ask.execute(("true",))
        ask.done(sent)
        assert ask.ended(sent).exit_code == 0


def test_a_worker_that_hangs_is_not_gone_and_can_still_be_taken_down(ask: Asker, state: Path) -> None:
    ask.create()
    ask.done(ask.execute(SLEEP))
    who = supervisor(state)
    os.kill(who.pid, signal.SIGSTOP)
    (worker,) = ask.workers()
    assert (worker.state, worker.steps[0].state) == (Seen.READY, StepSeen.RUNNING)
    with hasty(state) as local:
        assert isinstance(local.mutate(*ask.execute(SLEEP, run="r-2"), nobody), Unknown)
        assert isinstance(local.mutate(*ask.mint(ActionType.DEALLOCATE), nobody), Done)
    assert liveness(who) is Liveness.GONE
    (worker,) = ask.workers()
    assert (worker.state, worker.steps[0].state) == (Seen.DARK, StepSeen.EXITED)


@pytest.fixture
def innocent() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group and is none of the provider's."""
    process = subprocess.Popen(SLEEP, start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_recorded_pid_that_is_somebody_elses_is_never_signalled(
    ask: Asker, state: Path, innocent: subprocess.Popen[bytes]
) -> None:
    ask.create()
    hung, path = supervisor(state), worker_directory(state) / "pid"
    os.kill(hung.pid, signal.SIGSTOP)
    truth = path.read_bytes()
    with hasty(state) as local:
        for pid in ("0", "-1", "1", "true", str(2**40), str(innocent.pid)):
            path.write_bytes(truth.replace(f'"pid":{hung.pid}'.encode(), f'"pid":{pid}'.encode()))
            assert path.read_bytes() != truth
            assert isinstance(local.mutate(*ask.mint(ActionType.DEALLOCATE), nobody), Unknown)
    path.write_bytes(truth)
    assert innocent.poll() is None
    assert liveness(hung) is Liveness.ALIVE


@pytest.mark.parametrize("pid", ["0", "-1", "1", "true", str(2**40)])
def test_a_forged_process_group_is_never_signalled_and_hides_nothing(ask: Asker, state: Path, pid: str) -> None:
    ask.create()
    ask.done(ask.execute(SLEEP))
    (group,) = groups(worker_directory(state))
    kill(supervisor(state))
    memory = worker_directory(state) / "memory.jsonl"
    truth = memory.read_bytes()
    memory.write_bytes(truth.replace(f'"pid":{group.pid}'.encode(), f'"pid":{pid}'.encode()))
    look = ask.provider.inventory()
    assert (look.complete, look.workers, look.unreadable) == (True, (), (1,))
    assert "memory.jsonl" in look.troubles[0]
    assert isinstance(ask.once(ask.mint(ActionType.DEALLOCATE)), Unknown)
    assert identify(group.pid) == group
    memory.write_bytes(truth)


def test_after_a_reboot_the_group_is_gone_and_nobody_is_signalled(ask: Asker, state: Path) -> None:
    ask.create()
    ask.done(ask.execute(SLEEP))
    (group,) = groups(worker_directory(state))
    kill(supervisor(state))
    memory = worker_directory(state) / "memory.jsonl"
    truth = memory.read_bytes()
    memory.write_bytes(truth.replace(group.boot_id.encode(), b"0" * len(group.boot_id)))
    (worker,) = ask.workers()
    (step,) = worker.steps
    assert (worker.state, step.state, step.exit_code, step.signal) == (Seen.GONE, StepSeen.EXITED, None, None)
    assert identify(group.pid) == group, "this pid belongs to somebody else after a reboot"
    memory.write_bytes(truth)


def test_supervisors_write_down_who_they_are_and_delete_compute_removes_it(ask: Asker, state: Path) -> None:
    ask.create()
    assert liveness(supervisor(state)) is Liveness.ALIVE
    ask.done(ask.mint(ActionType.DEALLOCATE))
    ask.done(ask.mint(ActionType.DELETE_COMPUTE))
    assert supervisors(worker_directory(state)) == []
    assert sorted(entry.name for entry in worker_directory(state).iterdir()) == ["lock", "memory.jsonl", "worker.json"]


def test_directories_and_files_are_for_their_owner_only(state: Path) -> None:
    old = os.umask(0)
    try:
        with workers(state) as ask:
            ask.create()
            sent = ask.execute(("true",))
            ask.done(sent)
            ask.ended(sent)
            found = [entry for entry in state.rglob("*") if entry.name != "socket"]
            modes = {entry.stat().st_mode & 0o777 for entry in found if entry.is_file()}
            assert modes == {0o600}
            assert {entry.stat().st_mode & 0o777 for entry in found if entry.is_dir()} == {0o700}
    finally:
        os.umask(old)
