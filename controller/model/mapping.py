"""Records: an immutable map of records, where the next one costs what changed and a record is decoded when it is
touched.

Not promised: cheap equality; that a record which nobody touched is sound beyond what the digest over it proves.

A plain dict per revision would copy every record's place at each commit: at 100 000 runs that is more than the commit
itself. A persistent tree keeps no order. So a map is a shared base and what changed since; once that outgrows the
square root of the base, both are merged. Order is a dict's: what is removed and put again comes last.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from itertools import chain, islice
from math import isqrt
from typing import Any, Final, Generic, TypeVar, cast

import msgspec
from msgspec import Raw, Struct

from controller.model.errors import DocumentCorrupt

K = TypeVar("K", bound=str | int)
V = TypeVar("V", bound=Struct)
S = TypeVar("S", bound=Struct)

_LEAST: Final = 64
_PORTION: Final = 1 << 16
_SAME: Any = object()
"""Stands for "not changed", since None stands for "left"."""


class Source(Struct, Generic[K, V], frozen=True):
    """How records come: `decode` makes one of its bytes; `text` is the JSON object of a whole section, b"" if empty."""

    decode: Callable[[Raw], V]
    key: type[K]
    text: bytes | memoryview = b""
    where: str = ""


def _map(source: Source[K, V], kind: type[object]) -> Any:
    """The type of a whole section whose records are of *kind*."""
    return dict.__class_getitem__((source.key, kind))


def _portions(text: bytes | memoryview) -> Iterator[bytes]:
    """The JSON object *text* as several, each with some of its members, cut where a line of it ends in a comma.

    A map of all would outgrow what the processor keeps near. Where *text* is laid out otherwise, they are no JSON.
    """
    whole, size = memoryview(text), _PORTION
    begin, end = 1, len(text) - 1
    while begin < end:
        stop = min(begin + size, end)
        portion = bytes(whole[begin:stop])
        cut = len(portion) if stop == end else portion.rfind(b",\n")
        if cut < 0:
            size *= 2
            continue
        # Nothing behind a comma: cut apart it would pass.
        yield b"{%b}" % portion[:cut] if begin == 1 or portion.strip() else b""
        begin += cut + 1


class _Base(Generic[K, V]):
    """Records that many maps share. Entries are decoded in place: the keys never change."""

    __slots__ = ("_entries", "mark", "merged", "source")

    def __init__(
        self,
        source: Source[K, V] | None,
        entries: dict[K, V | Raw] | None,
        merged: tuple[object, tuple[K, ...]] | None = None,
    ) -> None:
        self.source = source
        self._entries = entries
        self.mark = object()
        """What it is known by, also when it is gone."""
        self.merged = merged
        """The mark of the base that this one was made of, and the keys that changed: not that base itself, which would
        keep all before it.
        """

    @property
    def entries(self) -> dict[K, V | Raw]:
        if self._entries is None:
            text = b"" if self.source is None else self.source.text
            try:
                self._entries = (
                    {} if self.source is None or not text else msgspec.json.decode(text, type=_map(self.source, Raw))
                )
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise DocumentCorrupt(
                    f"the document cannot be read: a section holds no records: {error}",
                    where="" if self.source is None else self.source.where,
                    next="it was left as it is; mend it by hand, or put a good copy back",
                ) from error
        return cast("dict[K, V | Raw]", self._entries)

    @property
    def untouched(self) -> bytes | memoryview:
        """The section as it came, while nobody has looked at a record of it; b"" otherwise."""
        return self.source.text if self.source is not None and self._entries is None else b""

    def decoded(self, key: K, entry: V | Raw) -> V:
        if not isinstance(entry, Raw):
            return entry
        if self.source is None:
            raise TypeError("raw records without a way to decode them")
        record = self.source.decode(entry)
        self.entries[key] = record
        return record


def _unlike(mine: Mapping[K, object], theirs: Mapping[K, object]) -> Iterator[K]:
    yield from (key for key, entry in mine.items() if theirs.get(key, _SAME) is not entry)
    yield from (key for key in theirs if key not in mine)


class Records(Mapping[K, V]):
    """The records of one section at one revision. Make one with `of` or `lazy`, the next one with `after`."""

    __slots__ = ("_added", "_base", "_changed", "_gone")

    def __init__(self, base: _Base[K, V], changed: dict[K, V | Raw | None], added: dict[K, V | Raw], gone: int) -> None:
        self._base = base
        self._changed = changed
        """Keys of the base: what they are now, or None when they left."""
        self._added = added
        self._gone = gone

    @classmethod
    def of(cls, records: Mapping[K, V], source: Source[K, V] | None = None) -> Records[K, V]:
        """*records* as they are; with *source*, what comes later may be raw."""
        if isinstance(records, Records):
            return records
        return cls(_Base(source, dict(records)), {}, {}, 0)

    @classmethod
    def lazy(cls, source: Source[K, V]) -> Records[K, V]:
        """The records of *source*, none of them decoded yet."""
        return cls(_Base(source, None), {}, {}, 0)

    def after(self, changes: Mapping[K, V | Raw | None]) -> Records[K, V]:
        """The map in which *changes* have happened (None: it left). A raw one needs a map that was made lazily."""
        if not changes:
            return self
        base, changed, added, gone = self._base, dict(self._changed), dict(self._added), self._gone
        entries = base.entries
        for key, record in changes.items():
            if key in added:
                if record is None:
                    del added[key]
                else:
                    added[key] = record
            elif key not in entries or changed.get(key, _SAME) is None:
                if record is not None:
                    added[key] = record
            else:
                changed[key] = record
                gone += record is None
        if len(changed) + len(added) > _LEAST + 2 * isqrt(len(entries)):
            merged = dict(entries)
            for key, record in changed.items():
                if record is None:
                    del merged[key]
                else:
                    merged[key] = record
            merged.update(added)
            base, changed, added, gone = _Base(base.source, merged, (base.mark, (*changed, *added))), {}, {}, 0
        return Records(base, changed, added, gone)

    def differences(self, older: Records[K, V]) -> Iterator[K] | None:
        """The keys at which this map may be another than *older*, each once, without decoding a record. None: it cannot
        be told without looking at all of them, since one was not made of the other, or too long ago.

        A record that was decoded here and not there may be among them, though it is the same.
        """
        if self._base is older._base:
            return iter(dict.fromkeys((*_unlike(self._changed, older._changed), *_unlike(self._added, older._added))))
        merged = self._base.merged
        if merged is None or merged[0] is not older._base.mark:
            return None
        keys = dict.fromkeys((*merged[1], *self._changed, *self._added, *older._changed, *older._added))
        return (key for key in keys if self._entry(key) is not older._entry(key))

    def _entry(self, key: K) -> V | Raw | None:
        """The record as it stands, decoded or not; None: there is none."""
        entry = self._added.get(key)
        if entry is None:
            entry = self._changed.get(key, _SAME)
        return self._base.entries.get(key) if entry is _SAME else entry

    def raw_items(self) -> Iterator[tuple[K, V | Raw]]:
        """Each record as it stands, decoded or not: for whoever writes them down again."""
        changed, added = self._changed, self._added
        if changed:
            for key, entry in self._base.entries.items():
                found = changed.get(key, entry)
                if found is not None:
                    yield key, found
        else:
            yield from self._base.entries.items()
        yield from added.items()

    @property
    def untouched(self) -> bytes | memoryview:
        """The section as its bytes came, if nothing of it was changed or looked at; b"" otherwise."""
        return b"" if self._changed or self._added else self._base.untouched

    def project(self, kind: type[S]) -> Iterator[tuple[K, V | S]]:
        """Each record as itself if it is decoded already, else only as the fields of *kind*, which it is not kept as.

        For counting all of them: a tenth of a full decode's memory, and half its time. *kind* must not forbid unknown
        fields, and its names, types and defaults must be those of the record.
        """
        return chain.from_iterable(self._projected(kind))

    def _projected(self, kind: type[S]) -> Iterator[Iterable[tuple[K, V | S]]]:
        source, text = self._base.source, self.untouched
        if source is None or not text:
            yield self._projected_singly(kind)
            return
        decode, done = msgspec.json.Decoder(_map(source, kind)).decode, 0
        for portion in _portions(text):
            try:
                found = decode(portion)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                yield islice(self.pairs(), done, None)  # which says of the very record what is wrong with it
                return
            done += len(found)
            yield found.items()

    def _projected_singly(self, kind: type[S]) -> Iterator[tuple[K, V | S]]:
        decode = msgspec.json.Decoder(kind).decode
        for key, entry in self.raw_items():
            try:
                record = decode(entry) if isinstance(entry, Raw) else entry
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                record = self[key]
            yield key, record

    def get(self, key: Any, default: Any = None) -> Any:
        if key in self._added:
            return self._kept(self._added, key, self._added[key])
        if key in self._changed:
            entry = self._changed[key]
            return default if entry is None else self._kept(self._changed, key, entry)
        found = self._base.entries.get(key)
        return default if found is None else self._base.decoded(key, found)

    def __getitem__(self, key: K) -> V:
        entry = self._added.get(key)
        if entry is not None:
            return self._kept(self._added, key, entry)
        if key not in self._changed:
            return self._base.decoded(key, self._base.entries[key])
        entry = self._changed[key]
        if entry is None:
            raise KeyError(key)
        return self._kept(self._changed, key, entry)

    def _kept(self, place: dict[K, Any], key: K, entry: V | Raw) -> V:
        if isinstance(entry, Raw):
            source = self._base.source
            if source is None:
                raise TypeError("raw records without a way to decode them")
            place[key] = entry = source.decode(entry)
        return entry

    def __contains__(self, key: object) -> bool:
        if key in self._added:
            return True
        if key in self._changed:
            return self._changed[key] is not None
        return key in self._base.entries

    def __len__(self) -> int:
        return len(self._base.entries) - self._gone + len(self._added)

    def __iter__(self) -> Iterator[K]:
        changed = self._changed
        if changed:
            yield from (key for key in self._base.entries if changed.get(key, key) is not None)
        else:
            yield from self._base.entries
        yield from self._added

    def items(self) -> ItemsView[K, V]:
        return _Items(self)

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def pairs(self) -> Iterator[tuple[K, V]]:
        """All records, decoded. What `items` and `values` go through: a lookup for each would take three times as
        long.
        """
        base, changed, added = self._base, self._changed, self._added
        decoded = base.decoded
        for key, entry in base.entries.items():
            if key in changed:
                found = changed[key]
                if found is not None:
                    yield key, self._kept(changed, key, found)
            else:
                yield key, decoded(key, entry)
        for key in added:
            yield key, self._kept(added, key, added[key])

    def __repr__(self) -> str:
        return f"Records({dict(self.pairs())!r})"


class _Items(ItemsView[K, V]):
    _mapping: Records[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping.pairs()


class _Values(ValuesView[V]):
    _mapping: Records[Any, V]

    def __iter__(self) -> Iterator[V]:
        return (record for _, record in self._mapping.pairs())
