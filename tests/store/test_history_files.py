"""History is read as one chain over all its files: each event once, and whatever breaks the chain is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.model.errors import DocumentCorrupt
from controller.model.records import Event
from controller.store import chain
from controller.store.history import End, History, Verified
from tests.store.pasts import Past, folded


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


def verified(history: History) -> Verified | DocumentCorrupt:
    try:
        return history.verify()
    except DocumentCorrupt as refused:
        return refused


def all_since(history: History, end: End | None) -> tuple[list[Event], End | None, int]:
    told: list[Event] = []
    missed = 0
    while (news := history.since(end)).events:
        told += news.events
        end, missed = news.end, missed + news.missed
    return told, news.end, missed + news.missed


def test_an_empty_directory_has_no_history(history: History) -> None:
    assert history.events() == ()
    assert history.end() is None
    assert history.later(0, "") is None
    assert history.verify() == Verified()
    assert history.since(None).events == ()


@pytest.mark.parametrize("legacy", [0, 5])
def test_every_event_is_told_once_over_all_files(tmp_path: Path, history: History, legacy: int) -> None:
    past = folded(tmp_path, 4, legacy=legacy)
    assert history.events() == tuple(past.events)
    assert history.events("slot:1") == tuple(event for event in past.events if event.subject == "slot:1")
    assert history.events("run:r-4") == tuple(event for event in past.events if event.subject == "run:r-4")
    assert history.end() == End(past.revision, past.file, past.digest, past.path.stat().st_size)
    found = history.verify()
    assert (found.first, found.last, found.files) == (1, past.revision, 4 + bool(legacy))
    assert (found.commits, found.events) == (past.revision, len(past.events))
    assert found.bytes == sum((tmp_path / name).stat().st_size for name in past.names())


def test_a_history_of_events_alone_ends_with_the_digest_of_all_its_bytes(tmp_path: Path, history: History) -> None:
    past = Past(tmp_path, legacy=3)
    past.append(b'{"revision":4,"n":1,')
    assert history.events() == tuple(past.events)
    end = history.end()
    assert end is not None
    assert (end.revision, end.file) == (3, "history.jsonl")
    assert end.digest != past.digest
    assert history.later(3, "") == 4
    assert history.later(4, "") is None


def test_a_subject_that_is_only_spoken_of_is_not_told(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 1)
    past.commit("run:a", detail='"run:b"')
    past.commit("run:b")
    past.fold()
    assert [event.revision for event in history.events("run:b")] == [past.revision]


@pytest.mark.parametrize("tail", [b"\0" * 5000, b'{"revision":99,"at"', b'{"rev\0\0\0', b'\0\0\0digest"}\n\0\0'])
def test_what_is_no_line_at_the_end_of_the_last_file_is_not_committed(
    tmp_path: Path, history: History, tail: bytes
) -> None:
    past = folded(tmp_path, 2)
    size = past.path.stat().st_size
    past.append(tail)
    assert history.events() == tuple(past.events)
    assert history.events("slot:1")[-1].revision == past.revision
    assert history.end() == End(past.revision, past.file, past.digest, size)
    assert history.verify().last == past.revision


def test_every_cut_of_the_last_line_is_one_commit_less_or_none(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 2)
    before, data = tuple(past.events), past.path.read_bytes()
    past.commit("run:last")
    whole = past.path.read_bytes()
    for cut in range(len(data), len(whole)):
        past.path.write_bytes(whole[:cut] + bytes(len(whole) - cut))
        assert history.events() == before
    past.path.write_bytes(whole)
    assert history.events() == tuple(past.events)


@pytest.mark.parametrize("subject", [None, "slot:1", "nobody"])
def test_zeros_behind_a_closed_file_are_nothing_and_anything_else_is_corruption(
    tmp_path: Path, history: History, subject: str | None
) -> None:
    past = folded(tmp_path, 3)
    name = past.names()[0]
    size = (tmp_path / name).stat().st_size
    past.append(bytes(9000), name)
    assert history.verify().last == past.revision
    assert len(history.events(subject)) == len([each for each in past.events if subject in (None, each.subject)])
    past.append(b"torn", name)
    with pytest.raises(DocumentCorrupt, match=f"offset {size}|offset {size + 9000}") as refused:
        history.events(subject)
    assert refused.value.where == str(tmp_path / name)


@pytest.mark.parametrize("subject", [None, "slot:1"])
def test_a_file_that_is_gone_from_the_middle_is_named_by_the_one_behind_it(
    tmp_path: Path, history: History, subject: str | None
) -> None:
    past = folded(tmp_path, 4)
    gone, follower = sorted(past.names(), key=lambda name: int(name.split("-")[1]))[1:3]
    (tmp_path / gone).unlink()
    with pytest.raises(DocumentCorrupt, match="offset 0 does not follow") as refused:
        history.events(subject)
    assert refused.value.where == str(tmp_path / follower)


def test_the_oldest_files_may_be_gone(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 4)
    for name in ("journal-1-0.jsonl", "journal-4-0.jsonl"):
        (tmp_path / name).unlink()
    assert history.events() == tuple(event for event in past.events if event.revision > 7)
    assert history.verify().first == 8


def test_any_changed_byte_is_found(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 2, commits=2)
    for name in past.names():
        path = tmp_path / name
        sound = path.read_bytes()
        for place in range(0, len(sound) - 1, 7):
            path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
            found = verified(history)
            if isinstance(found, DocumentCorrupt):
                assert found.where in (str(path), str(past.path))
                assert "offset" in found.what
            else:
                # A line that lost its line feed, or got a zero, at the very end of the last file is a torn one.
                assert (name, found.last) == (past.file, past.revision - 1)
        path.write_bytes(sound)


def test_a_changed_history_of_events_is_found_by_the_first_journal(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 2, legacy=3)
    (tmp_path / "history.jsonl").write_bytes((tmp_path / "history.jsonl").read_bytes().replace(b"noted", b"hated"))
    with pytest.raises(DocumentCorrupt, match="offset 0 does not follow") as refused:
        history.verify()
    assert refused.value.where == str(tmp_path / "journal-4-0.jsonl")
    assert past.file != "journal-4-0.jsonl"


def test_a_line_that_leaves_out_an_event_is_found(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 1)
    past.line("run:a", "run:b")
    told = past.event(past.revision + 1, 2, "run:b")
    past.event = lambda *_, **__: told  # type: ignore[method-assign]
    past.commit()
    with pytest.raises(DocumentCorrupt, match="skips an event before event 2 of revision 5"):
        history.verify()


def test_a_whole_line_that_follows_another_history_is_not_committed(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 2)
    stray = past.line("run:elsewhere")
    past.commit("run:here")
    past.append(stray)
    assert history.events() == tuple(past.events)
    assert history.verify().last == past.revision
    past.append(stray)
    with pytest.raises(DocumentCorrupt, match="others come behind it"):
        history.events()


def test_a_stray_line_is_found_wherever_a_block_ends(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = folded(tmp_path, 2)
    stray = past.line("run:elsewhere")
    past.commit("run:here")
    past.append(stray)
    past.append(stray)
    for block in range(20, 900, 40):
        monkeypatch.setattr(chain, "BLOCK", block)
        with pytest.raises(DocumentCorrupt, match="others come behind it"):
            history.events()


def test_blocks_of_any_size_read_the_same(tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    past = folded(tmp_path, 3, legacy=2)
    past.merge("journal-3-0.jsonl", "journal-6-0.jsonl")
    past.append(bytes(700))
    for block in range(1, 1200, 61):
        monkeypatch.setattr(chain, "BLOCK", block)
        assert history.events() == tuple(past.events)
        assert history.verify().last == past.revision
        assert all_since(history, None)[0] == past.events
        assert len(history.events("slot:1")) == 9


# --- Stale journals ---------------------------------------------------------------------------------------------------


def test_an_opening_that_no_checkpoint_names_counts_for_nothing(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 2)
    past.opening(commits=True)
    (tmp_path / ".controller.json.tmp-1-1").write_bytes(b"half a docu")
    (tmp_path / "journal-90-0.jsonl").write_bytes(b"")
    (tmp_path / "journal-91-0.jsonl").write_bytes(b'{"journal":1,"fle\0\0')
    assert history.events() == tuple(past.events)
    assert history.end() == End(past.revision, past.file, past.digest, past.path.stat().st_size)
    assert history.later(past.revision, past.file) is None
    past.append(b"torn")
    assert history.verify().last == past.revision


def test_an_opening_with_a_commit_in_it_was_named_once_its_document_is_not_half_written(
    tmp_path: Path, history: History
) -> None:
    """Whoever puts back a copy from before it would make another revision of that number."""
    past = folded(tmp_path, 2)
    past.opening(commits=True)
    assert history.later(past.revision, past.file) == past.revision + 1


def test_a_commit_of_the_whole_document_is_in_the_opening_once_it_is_named(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 2)
    past.fold(commits=True)
    assert history.events()[-1].revision == past.revision
    assert history.events("fleet")[-1].revision == past.revision
    assert history.end() == End(past.revision, past.file, past.digest, past.path.stat().st_size)
    assert history.verify().last == past.revision
    past.fold(number=1)
    past.commit()
    assert history.events() == tuple(past.events)


def test_without_a_checkpoint_the_last_opening_counts(tmp_path: Path, history: History) -> None:
    past = Past(tmp_path)
    past.fold(commits=True)
    (tmp_path / "controller.json").unlink()
    assert history.events() == tuple(past.events)
    assert history.end() == End(1, past.file, past.digest, past.path.stat().st_size)


def test_a_stale_journal_among_others_is_passed_over(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 2)
    past.opening(commits=True)
    past.opening(number=0)
    past.fold(number=1)
    past.commit()
    past.opening()
    past.commit()
    past.fold()
    past.commit()
    assert history.events() == tuple(past.events)
    assert history.events("fleet") == tuple(event for event in past.events if event.subject == "fleet")
    assert history.verify().last == past.revision


def test_a_named_journal_whose_beginning_is_gone_is_corruption(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 2)
    past.path.write_bytes(bytes(4096))
    for read in (history.events, history.end, history.verify):
        with pytest.raises(DocumentCorrupt, match="no line that opens a journal stands at offset 0"):
            read()


# --- What other files know --------------------------------------------------------------------------------------------


def test_later_revisions_are_known_from_journals_openings_and_names(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 4)
    names = sorted(past.names(), key=lambda name: int(name.split("-")[1]))
    assert history.later(past.revision, past.file) is None
    assert history.later(4, names[0]) == past.revision
    assert history.later(12, "journal-10-7.jsonl") == past.revision
    past.fold()
    assert history.later(past.revision, names[-1]) is None
    for name in names[1:]:
        (tmp_path / name).unlink()
    assert history.later(4, names[0]) == past.revision
    assert history.later(past.revision - 1, names[0]) == past.revision
    (tmp_path / "history-2-40.jsonl").touch()
    assert history.later(past.revision, past.file) == 40


def test_only_files_behind_the_named_one_are_opened(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = folded(tmp_path, 5)
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("no file needs to be opened"))
    assert history.later(past.revision, past.file) is None


# --- Merged files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [(), (0,), (1, 2), (0, 1, 2)])
def test_a_merged_file_and_whatever_is_left_of_its_parts_tell_each_event_once(
    tmp_path: Path, history: History, left: tuple[int, ...]
) -> None:
    past = folded(tmp_path, 5)
    names = sorted(past.names(), key=lambda name: int(name.split("-")[1]))[:3]
    assert past.merge(*names) == "history-1-10.jsonl"
    for number, name in enumerate(names):
        if number not in left:
            (tmp_path / name).unlink()
    assert history.events() == tuple(past.events)
    assert len(history.events("slot:1")) == 15
    assert history.verify().files == 3
    assert history.later(past.revision, past.file) is None


def test_merged_files_that_were_merged_again_are_passed_over(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 5)
    names = sorted(past.names(), key=lambda name: int(name.split("-")[1]))[:4]
    for part in (names[:2], names[2:], names):
        past.merge(*part)
    assert history.events() == tuple(past.events)
    assert history.verify().files == 2
    for name in names:
        (tmp_path / name).unlink()
    assert history.events() == tuple(past.events)


def test_a_merged_file_with_another_name_is_found(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 3)
    past.merge("journal-1-0.jsonl", "journal-4-0.jsonl")
    os.rename(tmp_path / "history-1-7.jsonl", tmp_path / "history-1-6.jsonl")
    for name in ("journal-1-0.jsonl", "journal-4-0.jsonl"):
        (tmp_path / name).unlink()
    with pytest.raises(DocumentCorrupt, match="revisions 1 to 7, which is not what its name says"):
        history.verify()


# --- Following --------------------------------------------------------------------------------------------------------


def test_what_comes_is_told_once_through_folds_merges_and_drops(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 2, legacy=2)
    told, end, _ = all_since(history, None)
    assert told == past.events
    known = len(told)

    def comes(change: Callable[[], object]) -> None:
        nonlocal end, known
        change()
        more, end, missed = all_since(history, end)
        assert (more, missed) == (past.events[known:], 0)
        known = len(past.events)

    def turned(folds: int) -> None:
        past.commit()
        for _ in range(folds):
            past.fold()
            past.commit()

    comes(lambda: None)
    comes(past.commit)
    comes(past.fold)
    comes(lambda: past.append(past.line()[:20]))
    past.path.write_bytes(past.path.read_bytes()[:-20])
    comes(past.commit)
    comes(lambda: turned(1))
    comes(lambda: past.fold(commits=True))
    comes(lambda: turned(2))
    names = [each.name for each in past_journals(past)]

    def merged() -> None:
        past.merge(*names[:-1])
        for name in names[:-1]:
            (tmp_path / name).unlink()

    comes(merged)
    comes(past.commit)


def test_a_place_in_a_journal_that_was_merged_is_found_again(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 1)
    end = history.end()
    known = len(past.events)
    past.commit()
    past.fold()
    past.commit()
    names = [each.name for each in past_journals(past)]
    past.fold()
    past.commit()
    past.merge(*names)
    for name in names:
        (tmp_path / name).unlink()
    told, _, missed = all_since(history, end)
    assert (told, missed) == (past.events[known:], 0)


def test_revisions_that_were_dropped_unread_are_counted(tmp_path: Path, history: History) -> None:
    past = folded(tmp_path, 1)
    end = history.end()
    for _ in range(3):
        past.fold()
        past.commit()
        past.commit()
    for each in past_journals(past)[:3]:
        each.unlink()
    told, _, missed = all_since(history, end)
    assert [event.revision for event in told] == [9, 10]
    assert missed == 4


def test_what_is_told_at_once_is_bounded(tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "BLOCK", 1000)
    past = folded(tmp_path, 1, commits=50)
    first = history.since(None)
    assert 2 < len(first.events) < 20
    assert all_since(history, None)[0] == past.events


def test_files_that_go_while_they_are_read_are_looked_for_again(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = folded(tmp_path, 4)
    names = [each.name for each in past_journals(past)][:3]
    real = chain.lines
    merged: list[str] = []

    def lines(path: Path, after: End | None, **more: object) -> object:
        if not merged:
            merged.append(past.merge(*names))
            for name in names:
                (tmp_path / name).unlink()
        return real(path, after, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(chain, "lines", lines)
    assert history.events() == tuple(past.events)
    assert merged


def past_journals(past: Past) -> list[Path]:
    return sorted(past.directory.glob("journal-*"), key=lambda path: [int(each) for each in path.stem.split("-")[1:]])
