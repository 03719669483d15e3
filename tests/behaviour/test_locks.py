"""Locks: busy is told from broken, one sudo run breaks nothing, and reading needs no writing. Cases L1, L2, L3."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.behaviour.driver import Controller, end_all_below
from tests.behaviour.faults import call, document, durable, locked, plain_rights, tree, wait_until_open

BUSY = 6
SUBMIT = ("submit", "--json", "--", "true")
NOBODY = 65534


@pytest.fixture
def shared() -> Iterator[Controller]:
    """A controller whose home every user can reach."""
    home = Path(tempfile.mkdtemp(prefix="controller-shared-"))
    home.chmod(0o755)
    try:
        yield Controller(home)
    finally:
        end_all_below(home)
        shutil.rmtree(home)


def as_nobody(controller: Controller, *args: str) -> tuple[str, ...]:
    """The command as another user; skips the test where there is none, or it cannot reach the interpreter."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user, with setpriv")
    prefix = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    if call(controller, *prefix, *controller.command("version")).exit != 0:
        pytest.skip("another user cannot execute this interpreter")
    return (*prefix, *controller.command(*args))


def give(controller: Controller, uid: int) -> None:
    for path in (controller.state, *controller.state.rglob("*")):
        os.chown(path, uid, uid)


# --- L1: busy is not broken


def test_l1_a_held_lock_is_busy_and_names_the_holder_after_the_timeout(controller: Controller) -> None:
    controller.init()
    with locked(controller.state / "controller.lock"):
        started = time.monotonic()
        error = controller.json("--lock-timeout", "300ms", "submit", "--", "true", exit=BUSY)["error"]
        assert time.monotonic() - started >= 0.3
    assert error["code"] == "lock_busy"
    assert "pid" in error["what"]
    assert "(init)" in error["what"]
    controller.run("submit", "--", "true", check=True)


def test_l1_a_directory_in_the_place_of_the_lock_is_no_quiet_busy(controller: Controller) -> None:
    controller.init()
    lock = controller.state / "controller.lock"
    lock.unlink()
    lock.mkdir()
    before = tree(controller.state)
    done = controller.run("submit", "--", "true")
    assert done.exit == 3, str(done)
    assert str(lock) in done.stderr
    assert "EISDIR" in done.stderr
    after = tree(controller.state)
    after.pop("refusals.jsonl", None)
    assert {name: entry[3] for name, entry in after.items()} == {name: entry[3] for name, entry in before.items()}


def test_l1_a_directory_that_must_not_be_written_is_no_quiet_busy(controller: Controller) -> None:
    controller.init()
    (controller.state / "controller.lock").unlink()
    controller.state.chmod(0o500)
    before = durable(controller)
    try:
        done = call(controller, *plain_rights(*controller.command(*SUBMIT)))
    finally:
        controller.state.chmod(0o700)
    assert done.exit not in {0, 1, BUSY}, str(done)
    assert str(controller.state) in done.stdout
    assert "EACCES" in done.stdout
    assert durable(controller) == before


def test_l1_a_read_only_file_system_is_no_quiet_busy(controller: Controller) -> None:
    controller.init()
    state = str(controller.state)
    mounted = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" || exit 99; exec "$@"'
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    done = call(controller, "unshare", "--mount", "sh", "-c", mounted, state, *controller.command(*SUBMIT))
    if done.exit in {1, 99} and not done.stdout:
        pytest.skip("this machine lets nobody mount")
    assert done.exit not in {0, 1, BUSY}, str(done)
    assert state in done.stdout
    assert "EROFS" in done.stdout


def test_l1_no_descriptors_left_is_no_quiet_busy(controller: Controller) -> None:
    controller.init()
    said = []
    for limit in range(5, 12):
        shell = 'ulimit -n "$0"; exec "$@"'
        done = call(controller, "bash", "-c", shell, str(limit), *controller.command(*SUBMIT))
        if "Fatal Python error" in done.stderr:
            continue  # not even the interpreter starts with so few
        assert done.exit != BUSY, str(done)
        assert "Traceback" not in done.stderr
        if done.exit != 0:
            said.append(done.stdout)
    assert said
    assert all("EMFILE" in answer and str(controller.state) in answer for answer in said), said
    assert controller.json("fsck")["ok"]


def test_l1_a_directory_moved_away_while_waiting_is_told_at_once(controller: Controller) -> None:
    controller.init()
    lock = controller.state / "controller.lock"
    with locked(lock):
        waiting = controller.popen("--lock-timeout", "10m", *SUBMIT)
        wait_until_open(waiting.pid, lock)
        controller.state.rename(controller.home / "moved")
        stdout, stderr = waiting.communicate(timeout=60)
    assert waiting.returncode not in {0, 1, BUSY}, stdout + stderr
    assert str(controller.state) in stdout
    assert not controller.state.exists()


def test_l1_a_lock_file_that_was_removed_while_waiting_does_not_let_two_in(controller: Controller) -> None:
    controller.init()
    lock = controller.state / "controller.lock"
    with locked(lock):
        waiting = controller.popen("--lock-timeout", "10m", *SUBMIT)
        wait_until_open(waiting.pid, lock)
        lock.unlink()
        with locked(lock):
            assert waiting.poll() is None or waiting.returncode != 0
        waiting.communicate(timeout=60)
    assert waiting.returncode == 0
    assert list(document(controller)["runs"]) == ["r-1"]


# --- L2: one sudo run


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_l2_root_is_refused_in_a_users_directory_before_anything_is_written(controller: Controller) -> None:
    controller.init()
    give(controller, NOBODY)
    before = tree(controller.state)
    for args in (("submit", "--", "true"), ("state", "accept")):
        shell = 'umask 077; exec "$@"'
        done = call(controller, "sh", "-c", shell, "sh", *controller.command(*args))
        assert done.exit == 3, str(done)
        assert str(controller.state) in done.stderr
        assert "next: sudo -u" in done.stderr
    assert tree(controller.state) == before
    controller.run("status", check=True)


def test_l2_the_user_goes_on_after_roots_attempt(shared: Controller) -> None:
    shared.init()
    command = as_nobody(shared, *SUBMIT)
    give(shared, NOBODY)
    assert shared.run("submit", "--", "true").exit == 3
    assert call(shared, *command).exit == 0
    owners = {path.name: path.stat().st_uid for path in shared.state.iterdir()}
    assert set(owners.values()) == {NOBODY}, owners


def test_l2_a_stranger_is_refused_with_file_owner_and_mode(shared: Controller) -> None:
    shared.init()
    before = tree(shared.state)
    for args in (SUBMIT, ("status", "--json")):
        done = call(shared, *as_nobody(shared, *args))
        assert done.exit == 3, str(done)
        assert str(shared.state) in done.stdout
        assert "root" in done.stdout
        assert "0700" in done.stdout
    assert tree(shared.state) == before


# --- L3: reading needs no writing

QUESTIONS = (("status",), ("fsck",), ("show", "r-1"), ("runs",), ("history",))


def test_l3_questions_answer_with_read_rights_alone_and_touch_nothing(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    for path in controller.state.iterdir():
        path.chmod(0o400)
    controller.state.chmod(0o500)
    before = tree(controller.state)
    try:
        for question in QUESTIONS:
            done = call(controller, *plain_rights(*controller.command(*question, "--json")))
            assert done.exit == 0, str(done)
        assert tree(controller.state) == before
    finally:
        controller.state.chmod(0o700)


def test_l3_questions_answer_while_another_process_holds_the_lock(controller: Controller) -> None:
    controller.init()
    controller.run("submit", "--", "true", check=True)
    with locked(controller.state / "controller.lock"):
        before = tree(controller.state)
        for question in QUESTIONS:
            # A question that waited for the lock would wait this long.
            controller.run("--lock-timeout", "10m", *question, "--json", check=True, timeout=30)
        assert tree(controller.state) == before


def test_waiters_all_get_their_turn(controller: Controller) -> None:
    controller.init()
    lock = controller.state / "controller.lock"
    with locked(lock):
        waiting = [controller.popen("--lock-timeout", "1m", *SUBMIT) for _ in range(4)]
        for process in waiting:
            wait_until_open(process.pid, lock)
        assert [process.poll() for process in waiting] == [None] * 4
    for process in waiting:
        process.communicate(timeout=60)
    assert [process.returncode for process in waiting] == [0] * 4
    assert len(document(controller)["runs"]) == 4
