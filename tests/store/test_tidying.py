"""Tidying loses no line that is to be kept, whatever moment it is killed at, and keeps the directory small."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.model.errors import StorageFailed
from controller.model.records import Event
from controller.store import segments, tidying
from controller.store.history import History, Keep
from controller.store.segments import Kind
from tests.store.pasts import NOW, Past, folded

EVERYTHING = Keep(None, None)
CHANGES = ("open", "write", "fsync", "rename", "unlink", "ftruncate")
"""What tidying changes the disk with. Of `open` those that make a file, or open one for writing, count."""


class Killed(BaseException):
    """This process is dead: nothing changes any more, clean-up included."""


def tidy(
    past: Past, keep: Keep = EVERYTHING, *, now: int = NOW + 1000, needed_at: int | None = None
) -> tuple[str, ...]:
    return History(past.directory).tidy(keep, named=past.file, now=now, needed_at=needed_at)


def kept(past: Past) -> list[str]:
    return [segment.name for segment in segments.listed(past.directory)]


def told(past: Past) -> tuple[Event, ...]:
    history = History(past.directory)
    assert history.verify().events == len(history.events())
    return history.events()


@pytest.fixture
def loose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidying, "MOST_LOOSE", 3)


def test_nothing_is_done_to_a_history_that_is_tidy(tmp_path: Path) -> None:
    past = folded(tmp_path, 4, legacy=2)
    before = {name: (tmp_path / name).read_bytes() for name in past.names()}
    assert tidy(past, Keep()) == ()
    assert {name: (tmp_path / name).read_bytes() for name in past.names()} == before


def test_zeros_are_cut_off_closed_journals_alone(tmp_path: Path) -> None:
    past = folded(tmp_path, 5)
    names = kept(past)
    sizes = [(tmp_path / name).stat().st_size for name in names]
    for name in names[2:]:
        past.append(bytes(70_000), name)
    assert tidy(past) == (f"cut {names[2]} to {sizes[2]} bytes", f"cut {names[3]} to {sizes[3]} bytes")
    assert [(tmp_path / name).stat().st_size for name in names] == [*sizes[:4], sizes[4] + 70_000]
    assert told(past) == tuple(past.events)
    assert tidy(past) == ()


def test_what_is_no_line_is_never_cut_off(tmp_path: Path) -> None:
    past = folded(tmp_path, 3)
    name = kept(past)[1]
    past.append(b"torn\0\0\0", name)
    before = (tmp_path / name).read_bytes()
    assert tidy(past) == ()
    assert (tmp_path / name).read_bytes() == before


def test_many_small_journals_become_one_file(tmp_path: Path, loose: None) -> None:
    past = folded(tmp_path, 4)
    assert tidy(past) == ()
    past = folded(tmp_path / "more", 5)
    past.append(bytes(5000), "journal-4-0.jsonl")
    assert tidy(past)[-1] == "merged 4 files into history-1-13.jsonl"
    assert kept(past) == ["history-1-13.jsonl", "journal-13-0.jsonl"]
    assert told(past) == tuple(past.events)
    assert (past.directory / "history-1-13.jsonl").stat().st_mode & 0o777 == past.path.stat().st_mode & 0o777


def test_a_line_is_copied_a_few_times_however_long_history_gets(
    tmp_path: Path, loose: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = Past(tmp_path, legacy=3)
    copied = 0
    real = os.write

    def write(fd: int, data: Any) -> int:
        nonlocal copied
        copied += len(data)
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    for _ in range(400):
        past.fold()
        past.commit()
        tidy(past)
    whole = sum((tmp_path / name).stat().st_size for name in kept(past))
    assert whole // 2 < copied < 8 * whole
    assert len(kept(past)) < 20
    assert told(past) == tuple(past.events)


def test_files_beyond_a_size_are_left_alone(tmp_path: Path, loose: None, monkeypatch: pytest.MonkeyPatch) -> None:
    past = folded(tmp_path, 6, commits=10)
    size = (tmp_path / "journal-1-0.jsonl").stat().st_size
    monkeypatch.setattr(tidying, "MERGED_BYTES", 3 * size)
    monkeypatch.setattr(tidying, "SMALL", 3 * size // 2)
    for _ in range(4):
        tidy(past)
    merged = [name for name in kept(past) if name.startswith("history-")]
    assert merged
    assert all((tmp_path / name).stat().st_size <= 3 * size for name in merged)
    monkeypatch.setattr(tidying, "SMALL", 10)
    past = folded(tmp_path / "large", 6)
    assert tidy(past) == ()
    assert told(past) == tuple(past.events)


def test_a_lone_opening_is_never_where_a_merged_file_begins_or_ends(tmp_path: Path, loose: None) -> None:
    """Its name would not tell it from its parts."""
    past = Past(tmp_path)
    past.fold(commits=True)
    past.fold(number=1)
    for _ in range(4):
        past.fold(number=2 if past.revision == 1 else 0)
        past.commit()
    past.fold(commits=True)
    past.fold(number=1)
    past.commit()
    for _ in range(3):
        tidy(past)
        assert told(past) == tuple(past.events)
    for _ in range(5):
        past.fold()
        past.commit()
        tidy(past)
        assert told(past) == tuple(past.events)
    assert len([name for name in kept(past) if name.startswith("history-")]) >= 1


def test_stale_journals_are_not_merged(tmp_path: Path, loose: None) -> None:
    past = folded(tmp_path, 3)
    stale = past.opening(commits=True)
    past.commit()
    past.fold(number=1)
    past.commit()
    past.fold()
    past.commit()
    tidy(past)
    assert stale in kept(past)
    assert any(name.startswith("history-") for name in kept(past))
    assert told(past) == tuple(past.events)


def test_nothing_broken_is_merged(tmp_path: Path, loose: None) -> None:
    past = folded(tmp_path, 6)
    path = tmp_path / "journal-4-0.jsonl"
    path.write_bytes(path.read_bytes().replace(b"noted", b"hated", 3))
    before = kept(past)
    assert tidy(past) == ()
    assert kept(past) == before


def test_nothing_is_done_while_a_journal_lies_behind_the_named_one(tmp_path: Path, loose: None) -> None:
    past = folded(tmp_path, 6)
    past.opening()
    before = kept(past)
    assert tidy(past, Keep(0, 1)) == ()
    assert kept(past) == before


# --- Dropping ---------------------------------------------------------------------------------------------------------


def test_the_oldest_files_are_dropped_until_the_rest_fits(tmp_path: Path) -> None:
    past = folded(tmp_path, 6, legacy=4)
    size = (tmp_path / "journal-11-0.jsonl").stat().st_size
    assert tidy(past, Keep(None, 3 * size + 50)) == tuple(
        f"dropped {name}" for name in ("history.jsonl", "journal-5-0.jsonl", "journal-8-0.jsonl", "journal-11-0.jsonl")
    )
    events = told(past)
    assert events == tuple(past.events[-len(events) :])
    assert History(tmp_path).verify().first == 15
    assert History(tmp_path).later(past.revision, past.file) is None


def test_the_named_journal_stays_whatever_it_holds(tmp_path: Path) -> None:
    past = folded(tmp_path, 3)
    tidy(past, Keep(0, 0), now=NOW * 2)
    assert kept(past) == [past.file]


def test_files_with_nothing_young_are_dropped(tmp_path: Path) -> None:
    past = folded(tmp_path, 4)
    assert tidy(past, Keep(1000, None), now=NOW + 1000 + 7) == ("dropped journal-1-0.jsonl",)
    assert tidy(past, Keep(1000, None), now=NOW + 1000 + 8) == ("dropped journal-4-0.jsonl",)
    assert told(past)[0].revision == 8


def test_what_pending_actions_need_stays(tmp_path: Path) -> None:
    past = folded(tmp_path, 4)
    assert tidy(past, Keep(0, 0), needed_at=NOW + 6) == ("dropped journal-1-0.jsonl",)
    assert tidy(past, Keep(0, 0), needed_at=NOW + 7) == ()
    assert kept(past) == ["journal-4-0.jsonl", "journal-7-0.jsonl", "journal-10-0.jsonl"]


def test_a_clock_that_was_put_back_drops_nothing_that_is_needed(tmp_path: Path) -> None:
    past = folded(tmp_path, 1)
    past.at = NOW + 5000
    past.commit("slot:7")
    past.at = NOW - 5000
    past.commit()
    past.fold()
    assert tidy(past, Keep(0, 0), needed_at=NOW + 5000) == ()
    assert tidy(past, Keep(0, 0), needed_at=NOW + 5001) == ("dropped journal-1-0.jsonl",)


def test_a_file_that_cannot_be_read_is_left_where_it_is(tmp_path: Path) -> None:
    past = folded(tmp_path, 3)
    past.append(b"garbage\n", "journal-1-0.jsonl")
    assert tidy(past, Keep(0, 0)) == ()


# --- Killed and failing -----------------------------------------------------------------------------------------------


def untidy(directory: Path) -> Past:
    """A history with something to do of every kind: parts that are merged, zeros, small files, more than is kept."""
    past = folded(directory, 9, legacy=2)
    names = kept(past)[1:]
    past.merge(*names[:3])
    (directory / names[1]).unlink()
    past.append(bytes(3000), names[6])
    past.append(bytes(3000), names[7])
    return past


def dying(monkeypatch: pytest.MonkeyPatch, nth: int, fault: Callable[[], BaseException]) -> Callable[[], int]:
    """Everything that changes the disk raises from the *nth* call on (counted from 0); how many calls there were."""
    calls = 0

    def guarded(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            if name != "open" or args[1] & (os.O_CREAT | os.O_WRONLY):
                calls += 1
                if calls > nth:
                    raise fault()
            return real(*args, **kwargs)

        return call

    for name in CHANGES:
        monkeypatch.setattr(os, name, guarded(name, getattr(os, name)))
    return lambda: calls


def lives(past: Past, keep: Keep = EVERYTHING) -> bool:
    """Whether tidying came to its end."""
    try:
        tidy(past, keep)
    except Killed:
        return False
    return True


def test_killed_before_any_change_no_event_is_lost_and_the_next_call_finishes(
    tmp_path: Path, loose: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = untidy(tmp_path / "whole")
    keep = Keep(None, sum((whole.directory / name).stat().st_size for name in kept(whole)) // 2)
    tidy(whole, keep)
    while tidy(whole, keep):
        pass
    final, events = kept(whole), told(whole)
    assert 0 < len(events) < len(whole.events)
    for nth in range(200):
        past = untidy(tmp_path / str(nth))
        with monkeypatch.context() as patch:
            count = dying(patch, nth, Killed)
            survived = lives(past, keep)
        if survived:
            assert count() <= nth
            break
        left = told(past)
        assert left == tuple(past.events[len(past.events) - len(left) :])
        assert len(left) >= len(events)
        while tidy(past, keep):
            pass
        assert (kept(past), told(past)) == (final, events)
    else:
        pytest.fail("it never ended by itself")
    assert nth > 15


def test_killed_while_nothing_is_dropped_every_event_is_still_told(
    tmp_path: Path, loose: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nth in range(200):
        past = untidy(tmp_path / str(nth))
        with monkeypatch.context() as patch:
            dying(patch, nth, Killed)
            survived = lives(past)
        assert told(past) == tuple(past.events)
        if survived:
            break
    assert nth > 12


def test_a_disk_that_fails_is_said_and_leaves_no_temporary_file(
    tmp_path: Path, loose: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [each for each in CHANGES if each != "unlink"]
    failed = 0
    for name in names:
        past = untidy(tmp_path / name)
        with monkeypatch.context() as patch:
            real: Callable[..., Any] = getattr(os, name)

            def fail(*args: Any, real: Callable[..., Any] = real, name: str = name, **kwargs: Any) -> Any:
                if name == "open" and not args[1] & os.O_CREAT:
                    return real(*args, **kwargs)
                raise OSError(errno.ENOSPC, "no room")

            patch.setattr(os, name, fail)
            with pytest.raises(StorageFailed, match="ENOSPC"):
                tidy(past)
        failed += 1
        assert told(past) == tuple(past.events)
        assert not [each for each in past.names() if "tmp" in each]
    assert failed == len(names)


def test_a_merged_files_name_is_durable_before_its_parts_go(
    tmp_path: Path, loose: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = folded(tmp_path, 5)
    steps: list[str] = []
    for name in ("fsync", "rename", "unlink"):
        real: Callable[..., Any] = getattr(os, name)

        def noted(*args: Any, real: Callable[..., Any] = real, name: str = name) -> Any:
            what = Path(os.readlink(f"/proc/self/fd/{args[0]}")).name if name == "fsync" else Path(args[0]).name
            steps.append(f"{name} {what}".replace(str(os.getpid()), "PID"))
            return real(*args)

        monkeypatch.setattr(os, name, noted)
    tidy(past)
    temporary = f"{tidying.TEMPORARY}PID"
    assert steps[1:4] == [f"fsync {temporary}", f"rename {temporary}", f"fsync {tmp_path.name}"]
    assert [step.split()[0] for step in steps[4:]] == ["unlink"] * 4


def test_names_alone_tell_the_kinds_of_files_and_their_order(tmp_path: Path) -> None:
    names = ["history.jsonl", "history-1-8.jsonl", "journal-8-0.jsonl", "journal-8-1.jsonl", "journal-12-0.jsonl"]
    for name in (*reversed(names), "history-3-3.jsonl", "journal-x-0.jsonl", "torn-journal-8-0.jsonl-55", "a.jsonl"):
        (tmp_path / name).touch()
    found = segments.listed(tmp_path)
    assert [segment.name for segment in found] == names
    assert [segment.kind for segment in found] == [Kind.LEGACY, Kind.MERGED, *[Kind.JOURNAL] * 3]
    assert segments.closed(found, names[-1]) == found[:-1]
    assert segments.closed(found, names[-2]) == ()
