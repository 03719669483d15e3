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

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, structs

from controller.model.edit import MAPS
from controller.model.errors import DocumentCorrupt, DocumentForeign, StrictError
from controller.model.mapping import Records, Source
from controller.model.records import (
    MAX_SLOTS,
    SCHEMA,
    SENTINEL,
    Counters,
    Document,
    Event,
    Trouble,
)
from controller.store.digests import sha256

BY_SLOT: Final = ("workers", "pending_actions", "slots")

_TAIL = re.compile(rb',\n"digest":"([0-9a-f]{64})"\}\n')
_FIRST = re.compile(rb'\{"schema":([0-9]{1,9}),\n')
_DIGITS_ALIKE: Final = bytes(ord("0") if chr(byte).isdecimal() and byte < 128 else ord(" ") for byte in range(256))
_LONG_NUMBER: Final = b"0" * 19
"""What a number that may be beyond 64 bits holds, once its digits are alike: a tenth of what a pattern costs."""
WHOLE: Final = 1 << 18
"""Up to so many bytes a document is decoded whole, which takes a millisecond: a wrong record is found at once. In
larger ones a record is decoded, and judged, when it is touched.
"""
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


class Named(Struct, frozen=True, forbid_unknown_fields=True):
    """How a checkpoint names its journal. `digest` is that of the journal's first line."""

    file: str
    digest: str


class _Sealed(Document, frozen=True, forbid_unknown_fields=True):
    """The document as the file has it, with the journal that goes on from it and its digest."""

    journal: Named | None = None
    digest: str = ""


class _Addressed(Struct):
    slot: int


_HEADER = msgspec.json.Decoder(_Header)
_DOCUMENT = msgspec.json.Decoder(_Sealed)
_ADDRESSED = msgspec.json.Decoder(_Addressed)


class Decoded(Struct, frozen=True):
    """What bytes turned out to be. `edited` and `digest` are as in `protocol.Snapshot`.

    `legacy`: of an older schema. `journal` None: from before there was one, or no checkpoint at all.
    """

    document: Document
    edited: bool
    legacy: bool
    digest: str
    journal: Named | None = None


class Unstorable(ValueError):
    """A record that could be written and then not be read again."""


def line_of(record: object) -> bytes:
    """The canonical bytes of one record, on one line: fields in their order, keys sorted, defaults left out."""
    line = _ENCODER.encode(record)
    # A raw member keeps the white space it came with; a bare line feed can be nothing else in JSON.
    return line if b"\n" not in line else line.replace(b"\r", b" ").replace(b"\n", b" ")


def storable(record: Struct, before: Struct | None = None) -> bytes:
    """The line of *record*. Raises Unstorable unless that comes back, through the strict reader too, as what it is.

    Only JSON as it came, and numbers beyond 64 bits, hold what that reader refuses and the typed one lets through. JSON
    that the record had *before* already was looked at then.
    """
    kind = type(record)
    try:
        line = line_of(record)
        if _LONG_NUMBER in line.translate(_DIGITS_ALIKE) or _has_new_json(record, before, _RAW_FIELDS[kind]):
            from controller.model.strict import MAX_DEPTH, strict_loads

            strict_loads(line, where="record", depth=MAX_DEPTH - 2)
        back = _RECORDS[kind].decode(line)
    except (StrictError, msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Unstorable(str(error)) from error
    if back != record and line_of(back) != line:
        raise Unstorable("it does not come back as what it is")
    return line


def _has_new_json(record: Struct, before: Struct | None, names: Sequence[str]) -> bool:
    for name in names:
        raw = getattr(record, name)
        if isinstance(raw, Raw) and raw is not getattr(before, name, None):
            return True
    return False


def encode(document: Document, journal: Named | None = None) -> bytes:
    """The sealed bytes of *document*, a checkpoint that names *journal*. What nobody touched is as it came."""
    import hashlib

    parts: list[bytes | memoryview] = [b"{"]
    header = ("schema", "fleet", "lineage", "epoch", "revision", "counters", "draining", "pending_action")
    parts += [b'"%b":%b,\n' % (name.encode(), _ENCODER.encode(getattr(document, name))) for name in header]
    if journal is not None:
        parts.append(b'"journal":%b,\n' % _ENCODER.encode(journal))
    parts.append(b'"events":%b,\n' % _lines(map(line_of, document.events)))
    for name in MAPS:
        parts += (b'"%b":' % name.encode(), _section(name, Records.of(getattr(document, name))), b",\n")
    parts.append(b'"troubles":%b' % _lines(map(line_of, document.troubles)))
    # Large parts are copied once, into the result.
    seal = hashlib.sha256()
    for part in parts:
        seal.update(part)
    parts.append(b',\n"digest":"%b"}\n' % seal.hexdigest().encode())
    return b"".join(parts)


def _section(name: str, records: Records[Any, Any]) -> bytes | memoryview:
    if records.untouched:
        return records.untouched
    entries = records.raw_items()
    if name in BY_SLOT:  # by number for whoever reads the file; other sections in the order their records came
        entries = iter(sorted(entries, key=itemgetter(0)))
    body = b",\n".join(
        b"%b:%b" % (_ENCODER.encode(str(key)), bytes(entry) if isinstance(entry, Raw) else line_of(entry))
        for key, entry in entries
    )
    return b"{\n%b\n}" % body if body else b"{}"


def _lines(lines: Iterable[bytes]) -> bytes:
    body = b",\n".join(lines)
    return b"[\n%b\n]" % body if body else b"[]"


def decode(data: bytes, where: str, *, hasty: bool = False) -> Decoded:
    """The document in *data*, migrated in memory if it is of schema 1. Raises DocumentCorrupt or DocumentForeign.

    *hasty*: what others wrote is not gone through, which takes long, and counts as corrupt.
    """
    sealed = _seal(data)
    if sealed is None and hasty:
        raise corrupt("its digest does not match", where)
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
    found = None if sealed is None or len(data) <= WHOLE else _lazily(data, where)
    if found is None:
        found = _typed(data, where)
    if found.schema != SCHEMA:
        raise corrupt("it has a second schema", where)
    _check_slots(found, where)
    document = Document(*(getattr(found, name) for name in Document.__struct_fields__))
    return Decoded(document, sealed is None, False, sealed or str((content or {}).get("digest", "")), found.journal)


def _seal(data: bytes) -> str | None:
    """The digest that *data* ends with, if it is the right one."""
    found = _TAIL.fullmatch(data, len(data) - _TAIL_SIZE)
    if found is None:
        return None
    digest = found[1].decode()
    return digest if sha256(len(data))(memoryview(data)[: found.start()]).hexdigest() == digest else None


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
    found = _FIRST.match(data)
    if found is not None:  # where `encode` puts it: the rest of a large document need not be looked through for it
        return int(found[1])
    try:
        return _HEADER.decode(data).schema
    except (msgspec.MsgspecError, RecursionError) as error:
        raise corrupt(str(error), where) from error


def _lazily(data: bytes, where: str) -> _Sealed | None:
    """Sealed *data* with its sections left as they are; None when it is not laid out as `encode` does it.

    A line that is only a brace ends a section, since records are on one line each: so none has to be looked at. The
    end is looked for backwards, where the next section begins: it is the first that may be large.
    """
    begin = data.find(b'\n"runs":{') + 1
    place, sections = begin, {}
    for name, behind in zip(MAPS, (*tuple(MAPS)[1:], "troubles"), strict=True):
        head = b'"%b":{' % name.encode()
        if not place or not data.startswith(head, place):
            return None
        opened = place + len(head) - 1
        if data.startswith(b"{},\n", opened):
            sections[name], place = memoryview(b""), opened + 4
        else:
            closed = data.rfind(b'\n},\n"%b":' % behind.encode(), opened)
            # A section between them that this program does not know must be refused by its name, not kept unread.
            if closed < 0 or data.rfind(b"\n},\n", opened, closed + 3) >= 0:
                return None
            sections[name], place = memoryview(data)[opened : closed + 2], closed + 4
    try:
        rest = _DOCUMENT.decode(data[:begin] + data[place:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _located(data, error, where) from error
    if rest.pending_action != SENTINEL:
        raise _no_sentinel(rest.pending_action, where)
    return structs.replace(rest, **{name: Records.lazy(source(name, where, text)) for name, text in sections.items()})


def source(name: str, where: str, text: bytes | memoryview = b"") -> Source[Any, Any]:
    """How records of a section are decoded, with *text* as they come. Decoding raises DocumentCorrupt."""
    kind = MAPS[name]
    decode = _RECORDS[kind].decode

    def decoded(raw: Raw) -> Struct:
        try:
            record: Struct = decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise corrupt(said(error, kind, f"$.{name}[...]"), where) from error
        return record

    return Source(decoded, int if name in BY_SLOT else str, text, where)


def _typed(data: bytes, where: str) -> _Sealed:
    try:
        sealed = _DOCUMENT.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _located(data, error, where) from error
    if sealed.pending_action != SENTINEL:
        raise _no_sentinel(sealed.pending_action, where)
    return structs.replace(sealed, **{name: Records.of(getattr(sealed, name), source(name, where)) for name in MAPS})


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
    if not 0 <= document.revision <= 10**17:
        raise corrupt("its revision is outside 0..10^17", where)
    for name in BY_SLOT:
        check_slots(name, getattr(document, name), where)
    for slot, pending in document.pending_actions.items():
        try:
            carried = _ADDRESSED.decode(bytes(pending.action)).slot
        except msgspec.MsgspecError:
            continue
        if carried != slot:
            raise corrupt(f"the action at $.pending_actions.{slot} is one for slot {carried}", where)


def check_slots(name: str, slots: Iterable[int], where: str) -> None:
    for slot in slots:
        if not 1 <= slot <= MAX_SLOTS:
            raise corrupt(f"slot {slot} at $.{name}.{slot} is outside 1..{MAX_SLOTS}", where)


def corrupt(what: str, where: str) -> DocumentCorrupt:
    return DocumentCorrupt(
        f"the document cannot be read: {what}",
        where=where,
        next="it was left as it is; mend it by hand, or put a good copy back",
    )
