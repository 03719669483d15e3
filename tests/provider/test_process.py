"""Process identity: nothing is signalled that is not provably ours."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from msgspec import structs

from controller.clock import SystemClock
from controller.model.process import Liveness, ProcessIdentity
from controller.provider.local.groups import signal_group
from controller.provider.process import (
    boot_id,
    call_liveness,
    end_group,
    group_members,
    identify,
    identify_child,
    liveness,
    own_identity,
    pid_namespace,
)

CLOCK = SystemClock()


@pytest.fixture
def sleeper() -> Iterator[ProcessIdentity]:
    """A process that leads a group of its own."""
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield identify_child(process.pid)
    process.kill()
    process.wait()


def test_an_identity_names_a_living_process_and_its_group_ends_whole(sleeper: ProcessIdentity) -> None:
    assert liveness(sleeper) is Liveness.ALIVE
    assert group_members(sleeper.pid) == (sleeper.pid,)
    assert end_group(sleeper, CLOCK)
    assert liveness(sleeper) is Liveness.GONE, "a zombie counts as gone"
    assert identify(sleeper.pid) is None
    assert identify_child(sleeper.pid) == sleeper, "and keeps its name until it is reaped"


@pytest.mark.parametrize("pid", [0, -1, 1, True, 2**40, -(2**40)])
def test_a_pid_that_lies_is_never_signalled(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(group: int, number: int) -> None:
        raise AssertionError(f"signal {number} to group {group}")

    monkeypatch.setattr(os, "killpg", refuse)
    end_group(structs.replace(own_identity(), pid=pid), CLOCK, patience=0.0)
    assert group_members(pid) == ()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"started": 1}, Liveness.GONE),
        ({"boot_id": "an earlier boot"}, Liveness.GONE),
        ({"pid_namespace": "pid:[1]"}, Liveness.UNKNOWN),
    ],
)
def test_a_process_that_has_the_pid_and_not_the_identity_is_left_alone(
    sleeper: ProcessIdentity, change: dict[str, object], expected: Liveness
) -> None:
    stranger = structs.replace(sleeper, **change)
    assert liveness(stranger) is expected
    assert end_group(stranger, CLOCK, patience=0.0) is (expected is Liveness.GONE)
    assert liveness(sleeper) is Liveness.ALIVE


def test_a_group_whose_leader_is_gone_is_still_ours_to_end() -> None:
    leader = subprocess.Popen(
        ["sh", "-c", "sleep 60 >/dev/null & echo $!"], stdout=subprocess.PIPE, start_new_session=True
    )
    identity = identify_child(leader.pid)
    assert leader.stdout is not None
    child = int(leader.stdout.readline())
    leader.stdout.close()
    leader.wait()
    assert group_members(identity.pid) == (child,)
    assert end_group(identity, CLOCK)
    assert group_members(identity.pid) == ()


def test_a_group_that_listens_ends_within_its_grace_and_without_kill(sleeper: ProcessIdentity) -> None:
    assert end_group(sleeper, CLOCK, grace=20.0)
    ended = os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    assert ended.si_status == signal.SIGTERM


def test_a_strangers_group_that_got_the_number_of_one_of_ours_is_never_signalled() -> None:
    shell = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!"], process_group=0, stdout=subprocess.PIPE, text=True)
    assert shell.stdout is not None
    stranger = int(shell.stdout.readline())
    shell.stdout.close()
    shell.wait()
    recorded = ProcessIdentity(shell.pid, 1, boot_id(), pid_namespace())
    try:
        assert os.getpgid(stranger) == shell.pid, "its leader is gone, and nothing but the number says whose it is"
        assert call_liveness(recorded) is Liveness.GONE
        assert end_group(recorded, CLOCK, grace=0.1)
        signal_group(recorded, signal.SIGKILL)
        assert identify(stranger) is not None
    finally:
        os.kill(stranger, signal.SIGKILL)
