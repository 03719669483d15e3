"""Work for threads, where the system gives none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import pytest

from controller.engine.threads import begun
from controller.model.errors import Exhausted


def no_thread(_: Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_without_a_thread_the_work_fails_as_exhausted_and_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(Thread, "start", no_thread)
            failed = begun(pool, lambda: done.append("first"))
        with pytest.raises(Exhausted):
            failed.result()
        assert begun(pool, lambda: "second").result() == "second"
    assert done == [], "the pool kept the work, and nobody waits for it"


def test_what_another_thread_finds_later_of_work_that_was_given_up_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    hold = Event()
    with ThreadPoolExecutor(2) as pool:
        first = begun(pool, hold.wait)
        with monkeypatch.context() as patch:
            patch.setattr(Thread, "start", no_thread)
            given_up = begun(pool, lambda: done.append("late"))
        hold.set()
        assert first.result()
    assert isinstance(given_up.exception(), Exhausted)
    assert done == []
