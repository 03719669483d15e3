"""queue claim: a run whose holder never heard of it is nobody's: it is given back, and said so."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from shlex import join

import pytest

from tests.behaviour.driver import Controller
from tests.behaviour.provider_program import wait_until
from tests.behaviour.queueing import browsed, claim, submit


@pytest.fixture
def queue(controller: Controller) -> Controller:
    controller.init()
    submit(controller, "--attempts", "2")
    return controller


def said_of(queue: Controller, *, under: str = "", redirect: str = "") -> tuple[int, str]:
    """How a claim ended that a shell was told to make, and what stood on its stderr."""
    line = f"exec {under} {join(queue.command('queue', 'claim'))} {redirect}"
    ended = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("redirect", [">/dev/full", ">&-"])
def test_a_run_whose_claim_could_not_be_answered_is_given_back(queue: Controller, redirect: str) -> None:
    code, said = said_of(queue, redirect=redirect)
    assert code == 8
    assert "run r-1 was given back" in said
    assert browsed(queue, "pending") == ["r-1"]
    assert claim(queue)["token"] == 2


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("number", ["INT", "TERM", "HUP"])
def test_a_run_that_is_claimed_as_a_signal_comes_is_given_back(queue: Controller, number: str) -> None:
    inject = f"strace -f -qq -o /dev/null -e trace=fdatasync -e inject=fdatasync:signal={number}:when=1"
    code, said = said_of(queue, under=inject)
    assert code != 0
    assert "run r-1 was given back" in said
    assert browsed(queue, "active") == []
    assert claim(queue)["token"] == 2


def test_a_claim_that_waits_ends_soon_after_a_signal_and_leaves_nothing(queue: Controller) -> None:
    claim(queue)
    waiting = queue.popen("queue", "claim", "--wait", "1m")
    waiters = queue.state / "waiters"
    wait_until(lambda: waiters.is_dir() and os.listdir(waiters) != [], "a waiter")
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(timeout=30) == -signal.SIGTERM
    assert os.listdir(waiters) == []
