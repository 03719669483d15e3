"""Which files of a state directory are its history, and in what order. Names alone: no file is opened, no lock taken.

    history.jsonl            events from before there were journals; always the first
    history-5-30.jsonl       closed journals, merged: commits 6 to 30, or 5 to 30 where its first line is a commit
    journal-30-0.jsonl       a journal that opens at revision 30; the last one is the one that is written to

Not promised: that a file is what its name says (`chain` reads it); that it is still there when it is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct

from controller.store.journal import parse_name

LEGACY: Final = "history.jsonl"
_MERGED: Final = re.compile(r"history-(\d{1,18})-(\d{1,18})\.jsonl")


class Kind(StrEnum):
    LEGACY = "legacy"
    MERGED = "merged"
    JOURNAL = "journal"


class Segment(Struct, frozen=True):
    """One file by its name. `first` is the revision that it opens at; `last`, of a merged one, that of its last line;
    `number` tells journals that open at one revision apart.
    """

    name: str
    kind: Kind
    first: int = -1
    last: int = -1
    number: int = 0

    @property
    def place(self) -> tuple[int, int]:
        return self.first, self.number


def merged_name(first: int, last: int) -> str:
    return f"history-{first}-{last}.jsonl"


def parse(name: str) -> Segment | None:
    """What a file of that name is; None: no part of a history."""
    if name == LEGACY:
        return Segment(name, Kind.LEGACY)
    journal = parse_name(name)
    if journal is not None:
        return Segment(name, Kind.JOURNAL, journal[0], number=journal[1])
    found = _MERGED.fullmatch(name)
    # A merged file holds at least one commit: `parts` rests on that.
    if found is None or int(found[1]) >= int(found[2]):
        return None
    return Segment(name, Kind.MERGED, int(found[1]), int(found[2]))


def listed(directory: Path) -> tuple[Segment, ...]:
    """All of them, oldest first, leftover parts of merged ones included. Raises OSError."""
    found = [segment for name in os.listdir(directory) if (segment := parse(name)) is not None]
    return tuple(sorted(found, key=lambda segment: segment.place))


def parts(segments: Sequence[Segment]) -> frozenset[str]:
    """The names of those whose every line a merged one has too: a merge that was killed leaves them.

    Each merged file holds commits, and no two in one history hold the same: so one within the other is a part of it. A
    journal that opens before the last commit of a merged file has the next commit, which the merged file has as well,
    or is nothing but an opening.
    """
    merged = [segment for segment in segments if segment.kind is Kind.MERGED]
    return frozenset(
        segment.name
        for segment in segments
        for whole in merged
        if segment is not whole
        and (
            (segment.kind is Kind.JOURNAL and whole.first <= segment.first < whole.last)
            or (segment.kind is Kind.MERGED and whole.first <= segment.first and segment.last <= whole.last)
        )
    )


def whole(directory: Path) -> tuple[Segment, ...]:
    """As `listed`, without leftover parts. Raises OSError."""
    found = listed(directory)
    superseded = parts(found)
    return tuple(segment for segment in found if segment.name not in superseded)


def closed(segments: Sequence[Segment], named: str) -> tuple[Segment, ...]:
    """Those before the journal *named*, which are never written to again; none where others come behind it.

    What comes behind it is stale or a sign of trouble: neither is for whoever tidies up.
    """
    names = [segment.name for segment in segments]
    return tuple(segments[:-1]) if names and names[-1] == named else ()
