"""How long the answer to an execute waits for the end of its step, and those who watch for what it told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from controller.model.inventory import StepSeen
from tests.provider.test_local_order import Told, told

__all__ = ["told"]


def test_it_wakes_in_time_for_the_answer_and_for_those_who_watch(told: Told, tmp_path: Path) -> None:
    told.ask(("sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.01; done"), patience_ms=1000)
    assert told.supervisor._patience_ms() <= 21, "the answer waits no longer for the end of its step"
    (tmp_path / "go").touch()
    told.await_the_end()
    told.clock.advance(0.021)
    assert told.supervisor._patience_ms() <= 251, "then whoever watches is told of it too"


def test_a_disk_that_syncs_slowly_takes_nothing_of_the_moment_that_an_answer_waits(
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sync = os.fdatasync

    def slowly(descriptor: int) -> None:
        sync(descriptor)
        told.clock.advance(0.03)

    monkeypatch.setattr(os, "fdatasync", slowly)
    told.ask(("true",), patience_ms=1000)
    assert "answered" not in told.happened
    told.await_the_end()
    step = told.answer()
    assert step is not None
    assert step.state is StepSeen.EXITED
