"""A signal that comes between the start of a program and its record leaves no program behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from controller.clock import SystemClock
from controller.provider import call, child
from controller.provider.call import Caller
from controller.provider.process import group_members
from controller.provider.protocol import NotSent

DEAF = ("/bin/sleep", "600")
"""A program that does not end with its stdin."""


@pytest.fixture
def caller(tmp_path: Path) -> Caller:
    return Caller(DEAF, {}, tmp_path, SystemClock())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The programs that were started, each of which SIGTERM hits us behind, before anybody knows it."""
    pids: list[int] = []

    class Hit(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            pids.append(self.pid)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Hit)
    yield pids
    for pid in pids:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


@pytest.fixture
def on_term() -> Iterator[Callable[[Callable[[int, FrameType | None], object]], object]]:
    """Sets what SIGTERM does to this process, until the end of the test."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda handler: signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGTERM, before)


def test_an_interrupt_while_a_program_starts_is_raised_once_it_was_ended(
    caller: Caller, started: list[int], on_term: Callable[..., object]
) -> None:
    on_term(signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        caller.call(b"{}", 30)
    assert [group_members(pid) for pid in started] == [()]
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler


def test_an_interrupt_while_a_child_starts_is_raised_once_it_was_ended(
    started: list[int], on_term: Callable[..., object]
) -> None:
    on_term(signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        child.start(DEAF, b"", {})
    assert [group_members(pid) for pid in started] == [()]
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler


def test_a_caller_that_is_told_to_stop_while_its_program_starts_gives_it_no_request(
    caller: Caller, started: list[int], on_term: Callable[..., object]
) -> None:
    on_term(lambda *_: caller.interrupt())
    recorded: list[object] = []
    answer = caller.call(b"{}", 30, lambda *told: recorded.append(told))
    assert answer == NotSent("interrupted before it got its request")
    assert [group_members(pid) for pid in started] == [()]
    assert recorded == []


def test_a_program_that_cannot_be_identified_is_ended_before_an_interrupt_is_raised(
    caller: Caller, started: list[int], on_term: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(pid: int) -> None:
        raise ProcessLookupError(f"no process {pid}")

    monkeypatch.setattr(call, "identify_child", unknown)
    on_term(signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        caller.call(b"{}", 30)
    assert [group_members(pid) for pid in started] == [()]
