"""The document as bytes: readable JSON, one record per line, sealed by a digest over everything before it.

Not promised: that an edited document is byte for byte what we would write; that a digest protects against malice. It
proves that this program wrote the bytes, no more.

    {"schema":2,
    "fleet":"builds",
    ...
    "runs":{
    "r-1":{"id":"r-1",...}
    },
    ...
    "digest":"<SHA-256 of every byte before the comma that precedes this line>"}

A matching digest leads straight to one typed decode. Anything else passes the strict reader first and counts as edited.
The schema gate comes before anything typed, so a newer document is refused as newer, not as broken.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from itertools import compress, islice
from operator import is_, is_not
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from controller.model.errors import DocumentCorrupt, DocumentForeign, StrictError
from controller.model.records import (
    MAX_SLOTS,
    SCHEMA,
    SENTINEL,
    Counters,
    Disowned,
    Document,
    Event,
    PendingAction,
    Provider,
    Queue,
    Run,
    Slot,
    Tombstone,
    Trouble,
    Worker,
)

MAPS: Final[Mapping[str, type[Struct]]] = {
    "runs": Run,
    "workers": Worker,
    "pending_actions": PendingAction,
    "slots": Slot,
    "queues": Queue,
    "providers": Provider,
    "finished": Tombstone,
    "disowned": Disowned,
}
"""Sections that are maps, in file order, and what they hold."""
BY_SLOT: Final = ("workers", "pending_actions", "slots")

_TAIL = re.compile(rb',\n"digest":"([0-9a-f]{64})"\}\n')
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_TAIL_SIZE = len(b',\n"digest":""}\n') + 64
_ENCODER = msgspec.json.Encoder(order="deterministic")
_KINDS: tuple[type[Struct], ...] = (*MAPS.values(), Event, Counters, Trouble)
_RECORDS: Final[Mapping[type[Struct], msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind) for kind in _KINDS
}
_RAW_FIELDS: Final[Mapping[type[Struct], tuple[str, ...]]] = {
    kind: tuple(name for name, hint in kind.__annotations__.items() if "Raw" in str(hint)) for kind in _KINDS
}
"""The fields of each that may hold JSON as it came."""


class _Header(Struct):
    schema: int


class _Sealed(Document, frozen=True, forbid_unknown_fields=True):
    """The document as the file has it, with its digest."""

    digest: str = ""


class _Addressed(Struct):
    slot: int


_HEADER = msgspec.json.Decoder(_Header)
_DOCUMENT = msgspec.json.Decoder(_Sealed)
_ADDRESSED = msgspec.json.Decoder(_Addressed)


class Decoded(Struct, frozen=True):
    """What bytes turned out to be. `edited`, `legacy` and `digest` are as in `protocol.Snapshot`."""

    document: Document
    edited: bool
    legacy: bool
    digest: str


class Unstorable(ValueError):
    """A record that could be written and then not be read again."""


def line_of(record: object) -> bytes:
    """The canonical bytes of one record, on one line: fields in their order, keys sorted, defaults left out."""
    line = _ENCODER.encode(record)
    # A raw member keeps the white space it came with; a bare line feed can be nothing else in JSON.
    return line if b"\n" not in line else line.replace(b"\r", b" ").replace(b"\n", b" ")


def storable(record: Struct) -> None:
    """Raise Unstorable unless *record* comes back from its bytes, through the strict reader too, as what it is.

    Only JSON as it came, and numbers beyond 64 bits, hold what that reader refuses and the typed one lets through.
    """
    from controller.model.strict import MAX_DEPTH, strict_loads

    try:
        line = line_of(record)
        raw = any(isinstance(getattr(record, name), Raw) for name in _RAW_FIELDS[type(record)])
        if raw or _LONG_NUMBER.search(line):
            strict_loads(line, where="record", depth=MAX_DEPTH - 2)
        back = _RECORDS[type(record)].decode(line)
    except (StrictError, msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Unstorable(str(error)) from error
    if back != record and line_of(back) != line:
        raise Unstorable("it does not come back as what it is")


class Encoder:
    """Gives the sealed bytes of document after document; what a commit left alone costs it next to nothing.

    A record that is the very object it was in the document before keeps its line, since records never change. For one
    thread at a time.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Section] = {name: _Section({}, {}, b"") for name in MAPS}

    def encode(self, document: Document) -> bytes:
        parts = [b"{"]
        header = ("schema", "fleet", "lineage", "epoch", "revision", "counters", "draining", "pending_action")
        parts += [b'"%b":%b,\n' % (name.encode(), _ENCODER.encode(getattr(document, name))) for name in header]
        parts.append(b'"events":%b,\n' % _lines(map(line_of, document.events)))
        for name in MAPS:
            lines = self._section(name, getattr(document, name))
            parts += (b'"%b":{\n' % name.encode(), lines, b"\n},\n") if lines else (b'"%b":{},\n' % name.encode(),)
        parts.append(b'"troubles":%b' % _lines(map(line_of, document.troubles)))
        # Large parts are copied once, into the result.
        seal = hashlib.sha256()
        for part in parts:
            seal.update(part)
        parts.append(b',\n"digest":"%b"}\n' % seal.hexdigest().encode())
        return b"".join(parts)

    def _section(self, name: str, records: Mapping[Any, Struct]) -> bytes:
        known = self._known[name]
        before, old = known.records, known.lines
        if records is before:
            return known.data
        kept, lines = before, dict(old)
        if len(records) != len(before):
            kept = left = dict(before)
            for key in before.keys() - records.keys():
                del left[key], lines[key]
        more = len(records) - len(kept)
        if (more == 0 or (more > 0 and name not in BY_SLOT)) and all(map(is_, kept, records)):
            # What is left of them stands in its old order, with new ones behind it, as after every commit: only lines
            # that differ are looked at one by one.
            for key in compress(kept, map(is_not, records.values(), kept.values())):
                lines[key] = _entry(key, records[key])
            for key in islice(records, len(kept), None):
                lines[key] = _entry(key, records[key])
        else:
            # Slots by number for whoever reads the file; other sections in the order their records came.
            lines = {
                key: old[key] if before.get(key) is records[key] else _entry(key, records[key])
                for key in (sorted(records) if name in BY_SLOT else records)
            }
        self._known[name] = made = _Section(records, lines, b",\n".join(lines.values()))
        return made.data


def _entry(key: object, record: Struct) -> bytes:
    return b"%b:%b" % (_ENCODER.encode(str(key)), line_of(record))


class _Section(NamedTuple):
    """A map as it was written: its records, the line of each in the order of the file, and all lines."""

    records: Mapping[Any, Struct]
    lines: Mapping[Any, bytes]
    data: bytes


def encode(document: Document) -> bytes:
    """The sealed bytes of *document*."""
    return Encoder().encode(document)


def _lines(lines: Iterable[bytes]) -> bytes:
    body = b",\n".join(lines)
    return b"[\n%b\n]" % body if body else b"[]"


def decode(data: bytes, where: str) -> Decoded:
    """The document in *data*, migrated in memory if it is of schema 1. Raises DocumentCorrupt or DocumentForeign."""
    sealed = _seal(data)
    if sealed is None:
        content = _strict(data, where)
        schema = content.get("schema")
    else:
        content = None
        schema = _schema(data, where)
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise corrupt(f"its schema is {schema!r}, not a number from 1 on", where)
    if schema > SCHEMA:
        raise DocumentForeign(
            f"the document is of schema {schema}; this program reads schemas 1 to {SCHEMA}",
            where=where,
            next="use the newer controller that wrote it; nothing was changed",
        )
    if schema < SCHEMA:
        from controller.store import migrations

        carried = "" if content is None else content.get("digest", "")
        document = migrations.migrated(data, where)
        _check_slots(document, where)
        return Decoded(document, sealed is None and carried != "", True, sealed or str(carried))
    document = _typed(data, where)
    _check_slots(document, where)
    return Decoded(document, sealed is None, False, sealed or str((content or {}).get("digest", "")))


def _seal(data: bytes) -> str | None:
    """The digest that *data* ends with, if it is the right one."""
    found = _TAIL.fullmatch(data, len(data) - _TAIL_SIZE)
    if found is None:
        return None
    digest = found[1].decode()
    return digest if hashlib.sha256(memoryview(data)[: found.start()]).hexdigest() == digest else None


def _strict(data: bytes, where: str) -> dict[str, Any]:
    from controller.model.strict import strict_loads

    try:
        content = strict_loads(data, where=where)
    except StrictError as error:
        raise corrupt(error.what, where) from error
    if not isinstance(content, dict):
        raise corrupt("it is JSON, but not an object", where)
    return content


def _schema(data: bytes, where: str) -> int:
    try:
        return _HEADER.decode(data).schema
    except (msgspec.MsgspecError, RecursionError) as error:
        raise corrupt(str(error), where) from error


def _typed(data: bytes, where: str) -> Document:
    try:
        sealed = _DOCUMENT.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _located(data, error, where) from error
    if sealed.pending_action != SENTINEL:
        raise _no_sentinel(sealed.pending_action, where)
    return Document(*(getattr(sealed, name) for name in Document.__struct_fields__))


def _located(data: bytes, error: Exception, where: str) -> DocumentCorrupt:
    """The typed error with the very record named: section by section, only once something is known to be wrong."""
    try:
        content = _strict(data, where)
    except DocumentCorrupt as stricter:
        return stricter
    if content.get("pending_action") != SENTINEL:
        return _no_sentinel(content.get("pending_action"), where)
    for name, kind in MAPS.items():
        section = content.get(name, {})
        for key, record in section.items() if isinstance(section, dict) else ():
            try:
                _RECORDS[kind].decode(msgspec.json.encode(record))
            except msgspec.MsgspecError as wrong:
                line = data.count(b"\n", 0, max(data.find(msgspec.json.encode(key) + b":"), 0)) + 1
                return corrupt(f"{said(wrong, kind, f'$.{name}.{key}')} (line {line})", where)
    return corrupt(said(error, _Sealed), where)


def said(error: Exception, kind: type[Struct], place: str = "$") -> str:
    """What msgspec says is wrong with a *kind* that lies at *place*, with where, and which values are allowed there."""
    what, _, path = str(error).partition(" - at `$")
    path = path.removesuffix("`")
    if what.startswith("Invalid enum value") and (allowed := _allowed(kind, path)):
        what += f" (allowed: {', '.join(allowed)})"
    return f"{what} at {place}{path}" if path or place != "$" else what


def _allowed(kind: type[Struct], path: str) -> list[str]:
    """The values of the enum at *path* (such as `.steps[0].state`) of a *kind*."""
    from msgspec import inspect

    found: list[inspect.Type] = [inspect.type_info(kind)]
    for name, _ in re.findall(r"\.(\w+)|(\[[^]]*\])", path):
        below: list[inspect.Type] = []
        for each in _flat(found):
            match each:
                case inspect.StructType(fields=fields):
                    below += [field.type for field in fields if field.encode_name == name]
                case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) if not name:
                    below.append(item)
                case inspect.DictType(value_type=value) if not name:
                    below.append(value)
        found = below
    return [str(member.value) for each in _flat(found) if isinstance(each, inspect.EnumType) for member in each.cls]


def _flat(types: Iterable[Any]) -> Iterable[Any]:
    for each in types:
        yield from _flat(each.types) if hasattr(each, "types") else (each,)


def _no_sentinel(found: object, where: str) -> DocumentCorrupt:
    return corrupt(f"$.pending_action of a schema-{SCHEMA} document must be {SENTINEL!r}, not {found!r:.80}", where)


def _check_slots(document: Document, where: str) -> None:
    """Slot numbers within bounds, and every pending action under the slot that it carries itself.

    An action that cannot be decoded stays loadable (and never replays): it must not take `status` away.
    """
    for name in BY_SLOT:
        for slot in getattr(document, name):
            if not 1 <= slot <= MAX_SLOTS:
                raise corrupt(f"slot {slot} at $.{name}.{slot} is outside 1..{MAX_SLOTS}", where)
    for slot, pending in document.pending_actions.items():
        try:
            carried = _ADDRESSED.decode(bytes(pending.action)).slot
        except msgspec.MsgspecError:
            continue
        if carried != slot:
            raise corrupt(f"the action at $.pending_actions.{slot} is one for slot {carried}", where)


def corrupt(what: str, where: str) -> DocumentCorrupt:
    return DocumentCorrupt(
        f"the document cannot be read: {what}",
        where=where,
        next="it was left as it is; mend it by hand, or put a good copy back",
    )
