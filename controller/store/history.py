"""History: every commit there ever was, in the files that the commits were written to, read back and proven.

Not promised: that it goes back to the first commit: what is beyond `[history] keep` is dropped, oldest first, whole
files at a time; that a line which is being read is proven, except by `verify`.

A history is one chain: each line names the digest of the line before it, across files too, and revisions leave none
out. The names of files say where they belong (`segments`), the reading of them is in `chain`, what closed ones are
merged and dropped by in `tidying`. Nothing here takes a lock. A file that is gone while it is to be read was merged or
dropped by somebody else: the directory is listed again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from controller.model.errors import DocumentCorrupt
from controller.model.keep import Keep
from controller.model.records import Event
from controller.store import chain, disk, segments
from controller.store.chain import End, Head
from controller.store.journal import Commit, Opening, Placed, corrupt, events_of
from controller.store.segments import Kind, Segment

__all__ = ["End", "History", "Keep", "News", "Verified"]

T = TypeVar("T")


class Verified(Struct, frozen=True):
    """What a whole history holds that is sound. `first` and `last` are revisions; both 0: there is nothing.

    `first` above 1: what came before was dropped, or was never kept. `commits` are lines that committed something.
    """

    first: int = 0
    last: int = 0
    files: int = 0
    commits: int = 0
    events: int = 0
    bytes: int = 0


class News(Struct, frozen=True):
    """Events that came behind a place, and the place behind them. `missed`: so many revisions were dropped unread."""

    events: tuple[Event, ...]
    end: End | None
    missed: int = 0


class History:
    """The history in a state directory. Every method may raise NotOurs; those that read lines also DocumentCorrupt
    (naming file and offset) and DocumentForeign.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def events(self, subject: str | None = None) -> tuple[Event, ...]:
        """All events that are committed, or those of *subject*, oldest first, each once."""
        return self._steadily(lambda: tuple(self._events(subject)))

    def end(self) -> End | None:
        """Where history ends: behind the last line that is sound; None: there is none. Reads one file."""
        return self._steadily(self._end)

    def later(self, revision: int, named: str) -> int | None:
        """The last revision that any file but the journal *named* knows to be committed, if it is later than
        *revision*; None: there is none, and an older document has not come back.

        Only files that open where *named* does, or later, are looked at. Who holds no lock may be told of commits that
        were made meanwhile: read the checkpoint again, and believe it only if that is the same.
        """
        return self._steadily(lambda: self._later(revision, named))

    def since(self, end: End | None) -> News:
        """Some of what came behind *end* (None: from the beginning), of a place that `end` or `since` gave.

        Reads no more than a few megabytes and a line: ask again until there are no events. Files that were merged since
        are no matter; of dropped ones it tells how many revisions they held.
        """
        return self._steadily(lambda: self._since(end))

    def verify(self) -> Verified:
        """Prove every line and the chain of them. Raises DocumentCorrupt, naming file and offset, at the first break.

        The first file is believed about what came before it. What is torn at the end of the last one is not judged: no
        commit was made by it.
        """
        return self._steadily(self._verify)

    def tidy(self, keep: Keep, *, named: str, now: int, needed_at: int | None) -> tuple[str, ...]:
        """Under the document lock, after a fold: cut zeros off, merge small closed files, drop what is beyond *keep*.

        *named* is the journal in use; *needed_at*, UTC ms, is when the oldest pending action was parked: what is from
        then on stays. Returns what was done, in words. Raises StorageFailed; killed or failed anywhere, every line is
        still there, some perhaps twice, which no reader minds and the next call mends.
        """
        from controller.store.tidying import tidy

        return tidy(self.directory, keep, named=named, now=now, needed_at=needed_at)

    # --- Reading ------------------------------------------------------------------------------------------------------

    def _events(self, subject: str | None) -> Iterator[Event]:
        heads = self._heads()
        after: End | None = None
        for head in heads:
            path = self.directory / head.name
            if head.segment.kind is Kind.LEGACY:
                yield from (event for event, _, _ in chain.legacy(path, subject))
            elif head is heads[-1]:
                for placed in chain.lines(path, after, last=head is heads[-1]):
                    after = _end(placed, head)
                    yield from (event for event in events_of(placed, str(path)) if subject in (None, event.subject))
            else:
                if after is not None and head.previous != after.digest:
                    raise corrupt("the line at offset 0 does not follow the history before it", str(path))
                after = yield from chain.mentions(path, subject)

    def _end(self) -> End | None:
        head = next(self._backwards(), None)
        return None if head is None else self._end_of(head)

    def _end_of(self, head: Head, *, last: bool = True) -> End | None:
        path = self.directory / head.name
        if head.segment.kind is Kind.LEGACY:
            revision = max((event.revision for event, _, _ in chain.legacy(path)), default=0)
            return End(revision, head.name, *chain.digest_of(path))
        end = None
        for placed in chain.lines(path, None, last=last):
            end = _end(placed, head)
        return end

    def _later(self, revision: int, named: str) -> int | None:
        mine = segments.parse(named)
        known = revision
        for segment in self._whole():
            if segment.name == named or (mine is not None and segment.last < 0 and segment.first < mine.first):
                continue
            if segment.kind is Kind.MERGED:
                known = max(known, segment.last)
                continue
            head = chain.head_of(self.directory, segment)
            if head.opening is not None and head.lone:
                # Nobody opens a journal at a revision that is not committed, but for one that its document commits. Of
                # a write that was killed the document is still there too, half written.
                unsure = bool(head.opening.events) and self._is_being_written()
                known = max(known, head.opening.revision - unsure)
            elif head.opening is not None or segment.kind is Kind.LEGACY:
                end = self._end_of(head)
                known = max(known, 0 if end is None else end.revision)
                if segment.kind is Kind.LEGACY:
                    known = max(known, chain.torn_revision(self.directory / segment.name))
        return known if known > revision else None

    def _is_being_written(self) -> bool:
        return any(name.startswith(disk.TEMPORARY) for name in os.listdir(self.directory))

    def _since(self, end: End | None) -> News:
        heads: list[Head] = []
        for head in self._backwards():
            heads.insert(0, head)
            if end is not None and head.name == end.file:
                break
        if not heads:
            return News((), end)
        missed = 0
        if end is not None and heads[0].name != end.file:
            moved = self._moved(heads, end)
            if moved is None:
                missed = max(_first(heads[0]) - end.revision - 1, 0)
            heads, end = (heads, None) if moved is None else moved
        for head in heads:
            here = end is not None and head.name == end.file
            events, end = self._some(head, end, here=here, last=head is heads[-1])
            if events:
                return News(events, end, missed)
        return News((), end, missed)

    def _moved(self, heads: list[Head], end: End) -> tuple[list[Head], End] | None:
        """The files from the one on that the line at *end* is in now, and where; None: it was dropped."""
        for number, head in enumerate(heads):
            if head.segment.kind is Kind.MERGED and head.segment.first <= end.revision <= head.segment.last:
                for placed in chain.lines(self.directory / head.name, None, last=False):
                    if placed.line.digest == end.digest:
                        return heads[number:], _end(placed, head)
        return None

    def _some(self, head: Head, end: End | None, *, here: bool, last: bool) -> tuple[tuple[Event, ...], End | None]:
        """The next events in one file, and the place behind them."""
        path = self.directory / head.name
        offset = end.offset if here and end is not None else 0
        told: list[Event] = []
        begin = offset
        if head.segment.kind is Kind.LEGACY:
            for event, _, stop in chain.legacy(path, offset=offset):
                if told and event.revision != told[-1].revision and stop - begin > chain.BLOCK:
                    break
                told.append(event)
                end = End(event.revision, head.name, "", stop)
            return tuple(told), end
        after = None if end is not None and end.file == segments.LEGACY else end
        for placed in chain.lines(path, after, offset=offset, last=last):
            told += events_of(placed, str(path))
            end = _end(placed, head)
            if told and placed.end - begin > chain.BLOCK:
                break
        return tuple(told), end

    def _verify(self) -> Verified:
        heads = self._heads()
        first = commits = count = size = 0
        after: End | None = None
        for head in heads:
            path = self.directory / head.name
            if head.segment.kind is Kind.LEGACY:
                before: Event | None = None
                for event, begin, _ in chain.legacy(path):
                    _check_next(event, before, f"the line at offset {begin}", str(path))
                    before = event
                    first = first or event.revision
                    commits += event.n == 1
                    count += 1
                after = self._end_of(head)
                size += 0 if after is None else after.offset
                continue
            opened: Placed | None = None
            for placed in chain.lines(path, after, last=head is heads[-1]):
                events = events_of(placed, str(path))
                # An old history may lack events of what was migrated: the opening has them, with their own revisions.
                lacked = sum(isinstance(placed.line, Opening) and e.revision < placed.line.revision for e in events)
                for number, event in enumerate(events[lacked:], 1):
                    if (event.revision, event.n) != (placed.line.revision, number):
                        raise corrupt(
                            f"the line at offset {placed.begin} skips an event before {_name(event)}", str(path)
                        )
                if events or isinstance(placed.line, Commit):
                    first = first or placed.line.revision
                    commits += 1
                    count += len(events)
                after = _end(placed, head)
                opened = opened or placed
            _check_name(head.segment, opened, after, str(path))
            size += 0 if after is None else after.offset
        return Verified(first, 0 if after is None else after.revision, len(heads), commits, count, size)

    # --- The directory ------------------------------------------------------------------------------------------------

    def _heads(self) -> tuple[Head, ...]:
        return tuple(reversed(tuple(self._backwards())))

    def _backwards(self) -> Iterator[Head]:
        # The checkpoint first: an opening that came after what it names had not been committed when this began.
        named = chain.named_journal(self.directory)
        return chain.backwards(self.directory, self._whole(), named)

    def _whole(self) -> tuple[Segment, ...]:
        try:
            return segments.whole(self.directory)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise disk.denied(error, self.directory) or corrupt(disk.says(error), str(self.directory)) from error

    def _steadily(self, read: Callable[[], T]) -> T:
        """What *read* gives, while others merge and drop files, and mend a torn line, under it.

        What cannot be read is read again until it says the same of the same files twice.
        """
        known: tuple[object, str] | None = None
        while True:
            names = self._whole()
            try:
                return read()
            except FileNotFoundError as error:
                fault = corrupt("it is gone", str(error.filename))
                fault.__cause__ = error
            except DocumentCorrupt as error:
                fault = error
            if known == (names, str(fault)):
                raise fault
            known = (names, str(fault))


def _end(placed: Placed, head: Head) -> End:
    return End(placed.line.revision, head.name, placed.line.digest, placed.end)


def _first(head: Head) -> int:
    """The first revision whose events a file has."""
    return 0 if head.opening is None else head.opening.revision + (not head.opening.events)


def _name(event: Event) -> str:
    return f"event {event.n} of revision {event.revision}"


def _check_next(event: Event, before: Event | None, place: str, where: str) -> None:
    follows = event.n == 1 and (before is None or event.revision == before.revision + 1)
    if not follows and (before is None or (event.revision, event.n) != (before.revision, before.n + 1)):
        past = "nothing" if before is None else _name(before)
        raise corrupt(f"{place} is {_name(event)}, after {past}", where)


def _check_name(segment: Segment, opened: Placed | None, end: End | None, where: str) -> None:
    first = -1 if opened is None else opened.line.revision
    last = -1 if end is None else end.revision
    if first != segment.first or (segment.kind is Kind.MERGED and last != segment.last):
        raise corrupt(f"it has revisions {first} to {last}, which is not what its name says", where)
