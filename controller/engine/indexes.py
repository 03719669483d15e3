"""What a thread has worked out about the document that it works with, kept from one commit to the next.

Not promised: that anything is kept of a document that has little in common with the last one: then it is made anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import local
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct

from controller.engine.ended import Named, Stones
from controller.engine.index import Index
from controller.model.edit import Edit
from controller.model.mapping import Records
from controller.model.records import Document

if TYPE_CHECKING:
    from controller.engine.contents import Contents

V = TypeVar("V", bound=Struct)


def _since(records: Mapping[str, V], known: Mapping[str, V]) -> Mapping[str, V | None] | None:
    """What changed from *known* to *records* (None: it left); None: they have too little in common to tell."""
    if records is known:
        return {}
    if not isinstance(records, Records) or not isinstance(known, Records):
        return None
    keys = records.differences(known)
    return None if keys is None else {key: records.get(key) for key in keys}


class _Following(Protocol):
    """What is kept by edits: *records* is what it is of."""

    records: Mapping[str, Any]

    def follow(self, changes: Mapping[str, Any], records: Mapping[str, Any], /) -> None: ...


F = TypeVar("F", bound=_Following)


def _caught_up(known: F | None, records: Mapping[str, Any]) -> F | None:
    """*known* as of *records*; None: it has too little in common with them, and stays what it is."""
    changes = None if known is None else _since(records, known.records)
    if known is None or changes is None:
        return None
    if records is not known.records:
        known.follow(changes, records)
    return known


class Indexes(local):
    """What one thread knows of the document that it works with: each has its own, so that none sees another's half-way.

    What a document has in common with the last one is kept, also when another process committed it.
    """

    def __init__(self) -> None:
        self._latest: Index | None = None
        self._stones: Stones | None = None
        self._contents: tuple[Contents, Contents] | None = None
        self.named = Named()

    def of(self, document: Document, boot_id: str) -> Index:
        """The index of the document's runs."""
        known = self._latest
        if known is not None and known.granter == (boot_id, document.epoch):
            changes = _since(document.runs, known.runs)
            if changes is not None:
                if document.runs is not known.runs:
                    known.follow(changes, document.runs)
                return known
        self._latest = Index(document.runs, boot_id, document.epoch)
        return self._latest

    def known(self, document: Document) -> Index | None:
        """The index of the document's runs, if there is one already."""
        latest = self._latest
        return latest if latest is not None and latest.runs is document.runs else None

    def stones(self, document: Document) -> Stones:
        """The document's tombstones by queue and end."""
        self._stones = _caught_up(self._stones, document.finished) or Stones(document.finished)
        return self._stones

    def contents(self, document: Document) -> tuple[Contents, Contents]:
        """The document's runs and its tombstones by content."""
        from controller.engine.contents import Contents

        runs, stones = self._contents or (None, None)
        runs = _caught_up(runs, document.runs) or Contents(document.runs)
        stones = _caught_up(stones, document.finished) or Contents(document.finished, stones=True)
        self._contents = runs, stones
        return self._contents

    def follow(self, before: Document, edit: Edit, after: Document) -> None:
        """*edit* of *before* was committed as *after*."""
        latest = self._latest
        if latest is not None and latest.runs is before.runs:
            latest.follow(edit.runs, after.runs)
        runs, stones = self._contents or (None, None)
        for known in (self._stones, stones):
            if known is not None and known.records is before.finished:
                known.follow(edit.finished, after.finished)
        if runs is not None and runs.records is before.runs:
            runs.follow(edit.runs, after.runs)
