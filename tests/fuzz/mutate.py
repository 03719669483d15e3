"""What can become of bytes: flipped, cut, doubled; and of JSON and TOML whose structure is known, sealed anew or not.

Not promised: that a mutation changes anything, or that what it makes is still JSON. Every choice is drawn from the
`Random` that is given, and from nothing else: the same one makes the same mutation.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

DIGEST: Final = re.compile(rb',\s*"digest":"[0-9a-f]{64}"\}\n?')
LONG: Final = 70_000

WORDS: Final = (
    "", " ", "x", "x" * LONG, "\0", "\x1b[2J", "é\u202e\U0001f600", "../../x", "/", "a b", "1", "-1", "null", "queued",
    "running", "succeeded", "failed", "cancelled", "lost", "done", "create", "execute", "cancel", "ready", "gone",
    "r-1", "r-9", "a-1", "fleet",
    "run:r-1", "slot:1", "action.parked", "action.settled", "restored", "initialised", "claim",
    "0" * 64, "sha256:" + "0" * 64, "journal-1-0.jsonl", "history.jsonl", "superseded-by-pending-actions", "9" * 30,
)  # fmt: skip


class Verbatim(str):
    """A value as it stands in the text, be it JSON or not."""

    __slots__ = ()


class Members(list[tuple[Any, Any]]):
    """An object as its members in order: unlike a dict it can hold one key twice."""


VALUES: Final = tuple(
    Verbatim(text)
    for text in (
        "null", "true", "false", "0", "-1", "1", "2", "3", "10000", "10001", "2147483648", "9007199254740993",
        "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616",
        "-9223372036854775808", "-9223372036854775809", "1" + "0" * 30, "1" + "0" * 400, "9" * 5_000, "-0", "-0.0",
        "0.5", "1.0", "1e3", "1e308", "1e999", "-1e999", "1e-999", "NaN", "Infinity", "-Infinity", "01", "+1", "0x1",
        '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\uD83D\\uDE00"', '"\\q"', '"', "'x'", "undefined", "",
        "[]", "{}", "[[]]", '[{"":{}}]', '{"a":1,"a":2}', '{"1":{},"01":{}}', "[1,2,", "/* */ 1", "1 1", "\ufeff1",
        "[" * 66 + "]" * 66, "[" * 1_500 + "]" * 1_500, '{"a":' * 66 + "1" + "}" * 66,
        "[" * 60_000 + "]" * 60_000, '{"a":' * 1_500 + "1" + "}" * 1_500, "[" * 60_000,
        "[" + "0," * 20_000 + "0]", "253402300799999", "253402300800000", "8640000000000001",
    )
)  # fmt: skip
"""Other values: the edges of types and of 64 bits, what JSON does not allow, what nests deeply."""


def parsed(data: bytes) -> Any:
    """JSON whose objects are `Members`. Numbers stay as they are spelled."""
    return json.loads(data, object_pairs_hook=Members, parse_float=Verbatim, parse_int=Verbatim)


def written(value: Any) -> str:
    """The text of what `parsed` gave, on one line."""
    match value:
        case Verbatim():
            return str(value)
        case Members():
            return "{" + ",".join(f"{_key(key)}:{written(each)}" for key, each in value) + "}"
        case list():
            return "[" + ",".join(map(written, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _key(key: object) -> str:
    return str(key) if isinstance(key, Verbatim) else json.dumps(key, ensure_ascii=False)


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# --- Bytes ------------------------------------------------------------------------------------------------------------


def scratched(data: bytes, chance: Random) -> bytes:
    """*data* with one piece of it changed, whatever it is."""
    at = chance.randrange(len(data) + 1)
    to = min(at + chance.choice((1, 1, 2, 8, 64, 4096)), len(data))
    piece = data[at:to]
    match chance.randrange(10):
        case 0 if piece:
            return data[:at] + bytes((piece[0] ^ (1 << chance.randrange(8)),)) + data[at + 1 :]
        case 1:
            return data[:at]
        case 2:
            return data[at:]
        case 3:
            return data[:at] + data[to:]
        case 4:
            return data[:to] + piece + data[to:]
        case 5:
            return data[:at] + b"\0" * chance.choice((1, 16, 4096)) + data[chance.choice((at, to)) :]
        case 6:
            return data[:at] + bytes(chance.randrange(256) for _ in piece[:64]) + data[to:]
        case 7:
            odd = (b"\n", b"\r\n", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"', b"{", b"}", b"[", b"\\", b",", b":")
            return data[:at] + chance.choice(odd) + data[at:]
        case 8:
            other = chance.randrange(len(data) + 1)
            return data[:at] + data[other : other + 256] + data[to:]
        case _:
            return data + chance.choice((b"\n", b"\0", b" ", b"{}", b"\n\n", data[-200:], b"\0" * 4096 + b"x"))


def lines_moved(data: bytes, chance: Random) -> bytes:
    """*data* with one of its lines dropped, doubled, swapped, cut, blanked or taken apart."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return scratched(data, chance)
    at, to = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randrange(7):
        case 0:
            del lines[at]
        case 1:
            lines.insert(to, lines[at])
        case 2:
            lines[at], lines[to] = lines[to], lines[at]
        case 3:
            lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]
        case 4:
            lines[at] = b"\0" * len(lines[at])
        case 5:
            del lines[at:]
        case _:
            lines.insert(at, chance.choice((b"\n", b"{}\n", b"null\n", b"\0\n", b" ", b"x\n")))
    return b"".join(lines)


# --- JSON -------------------------------------------------------------------------------------------------------------


def places(value: Any, chance: Random) -> tuple[list[Any], int]:
    """A container somewhere in *value* and a place in it. The deeper, the rarer: one step at a time."""
    holder, at = value, chance.randrange(len(value))
    while True:
        below = holder[at][1] if isinstance(holder, Members) else holder[at]
        if not isinstance(below, list) or not below or chance.randrange(5) == 0:
            return holder, at
        holder, at = below, chance.randrange(len(below))


def changed(value: Any, chance: Random) -> Any:
    """*value*, of `parsed`, with one thing in it changed: in place, where it is a container that holds anything."""
    if not isinstance(value, list) or not value:
        return other(value, chance)
    holder, at = places(value, chance)
    if not isinstance(holder, Members):
        match chance.randrange(4):
            case 0:
                del holder[at]
            case 1:
                holder.insert(at, holder[at])
            case 2:
                holder.append(other(None, chance))
            case _:
                holder[at] = other(holder[at], chance)
        return value
    key, below = holder[at]
    match chance.randrange(10):
        case 0:
            del holder[at]
        case 1:
            holder.append((key, below))
        case 2:
            holder.insert(chance.randrange(len(holder) + 1), (key, other(below, chance)))
        case 3:
            holder[at] = (chance.choice((*WORDS, str(chance.randrange(5)), Verbatim('"\\ud800"'), f"{key}x")), below)
        case 4:
            swap = chance.randrange(len(holder))
            holder[at], holder[swap] = (key, holder[swap][1]), (holder[swap][0], below)
        case 5:
            holder.append((chance.choice(WORDS), other(None, chance)))
        case _:
            holder[at] = (key, other(below, chance))
    return value


def other(value: Any, chance: Random) -> Any:
    """Another value: near *value*, of another type, or one at an edge."""
    match chance.randrange(4):
        case 0 if isinstance(value, Verbatim) and re.fullmatch(r"-?[0-9]{1,18}", value):
            return Verbatim(int(value) + chance.choice((-1, 1, -1_000, 1_000)))
        case 1 if isinstance(value, str) and not isinstance(value, Verbatim) and value:
            at = chance.randrange(len(value))
            return chance.choice((value[:at], value[:at] + chance.choice("x\0\n é") + value[at + 1 :], value * 2))
        case 2:
            return chance.choice(WORDS)
        case _:
            return chance.choice(VALUES)


def reshaped(data: bytes, chance: Random) -> bytes:
    """The JSON in *data* with one thing in it changed; as bytes that are scratched, where it is none."""
    try:
        return as_bytes(written(changed(parsed(data), chance)))
    except (ValueError, RecursionError):
        return scratched(data, chance)


# --- Seals ------------------------------------------------------------------------------------------------------------


def sealed(content: bytes, between: bytes) -> tuple[bytes, str]:
    """*content*, an object without its last brace, sealed as this program seals; and its digest."""
    digest = hashlib.sha256(content).hexdigest()
    return b'%b,%b"digest":"%b"}\n' % (content, between, digest.encode()), digest


def document_laid_out(members: Members) -> bytes:
    """A document as this program writes it, one record on a line, sealed anew."""
    rows = []
    for key, value in members:
        if key == "digest":
            continue
        many = isinstance(value, list) and value and key not in ("counters", "journal")
        if many and isinstance(value, Members):
            text = "{\n" + ",\n".join(f"{_key(name)}:{written(each)}" for name, each in value) + "\n}"
        elif many:
            text = "[\n" + ",\n".join(map(written, value)) + "\n]"
        else:
            text = written(value)
        rows.append(f"{_key(key)}:{text}")
    return sealed(as_bytes("{" + ",\n".join(rows)), b"\n")[0]


def document_sealed(data: bytes) -> bytes:
    """*data*, a document that was scratched, with a digest that matches what stands before it."""
    found = list(DIGEST.finditer(data))
    return sealed(data[: found[-1].start()] if found else data.rstrip(b"}\n"), b"\n")[0]


def member(members: Any, key: str) -> Any:
    """The value of *key*, the last one; None: there is none."""
    return (
        next((value for name, value in reversed(members) if name == key), None) if isinstance(members, list) else None
    )


def chained(
    lines: list[bytes], previous: str, change: Callable[[int, Members], Members | None]
) -> tuple[list[bytes], str]:
    """Journal lines that follow the line of digest *previous*, each as *change* makes it (None: dropped), sealed and
    chained anew; and the digest of the last one.
    """
    made = []
    for number, line in enumerate(lines):
        members = change(number, parsed(line))
        if members is None:
            continue
        rows = [(key, previous if key == "previous" else value) for key, value in members if key != "digest"]
        whole, previous = sealed(as_bytes(written(Members(rows)))[:-1], b"")
        made.append(whole)
    return made, previous


# --- TOML -------------------------------------------------------------------------------------------------------------

TOML_VALUES: Final = (
    "0", "-1", "1", "5", "100", "10001", "4.0", "true", '""', '"x"', '"1s"', '"-1s"', '"0s"', '"1e9d"',
    '"99999999999999999999d"', '"٣s"', '"1s "', "[]", '[""]', '["a", "a"]', "[1]", "[[]]", "{}", "{a = 1}", "nan",
    "inf", "-inf", "1e400", "9" * 5_000, "9223372036854775808", "1979-05-27", "1979-05-27T07:32:00Z", "07:32:00",
    '"\\u0000"', '"\\ud800"', '"""\n"""', "'x'", "0x10", "1_000", "[" * 2_000 + "]" * 2_000, '"' + "x" * LONG + '"',
    '["/bin/true"]', '["bin/true"]', '"local"', '"command"', '"proof"', '"auto"', '"1KiB"', '"1s', "1.5", "0.0",
    "1e-400",
)  # fmt: skip
TOML_LINES: Final = (
    "[fleet]", "[queues]", "[queues.a]", '[queues."a.b"]', '[queues.""]', "[queues.default.backoff]", "[provider.env]",
    "[provider.deadlines]", "[backoff.retry]", "[a.b.c]", "[[fleet]]", "[[queues]]", "a.b.c = 1", "fleet.slots = 2",
    "fleet = 1", "queues = 1", "slots = 1", "= 1", "x", "[", "]", "\0", "\x7f", "# é", '"" = 1', 'PATH = "x"',
    '"a b" = 1',
    "default = 1", "lease = '1s'", "backoff = 1", "\r", "\ufeff",
)  # fmt: skip


def toml_changed(text: str, chance: Random) -> str:
    """A settings file with one of its lines, values or tables changed."""
    lines = text.split("\n")
    at, to = chance.randrange(len(lines)), chance.randrange(len(lines))
    key, equals, value = lines[at].partition(" = ")
    match chance.randrange(9):
        case 0 if re.fullmatch("[0-9]{1,9}", value):
            near = int(value)
            lines[at] = f"{key}{equals}{chance.choice((near - 1, near + 1, near * 2, near * 1_000 + 9))}"
        case 0 | 1 | 2 if equals:
            lines[at] = f"{key}{equals}{chance.choice(TOML_VALUES)}"
        case 3 if equals:
            lines[at] = (
                f"{chance.choice((key + 'x', key[:-1], key * 2, key.upper(), 'é', '', 'a.' + key))}{equals}{value}"
            )
        case 4:
            del lines[at]
        case 5:
            lines.insert(to, lines[at])
        case 6:
            lines[at], lines[to] = lines[to], lines[at]
        case 7:
            lines.insert(to, chance.choice(TOML_LINES))
        case _:
            return scratched(text.encode("utf-8", "replace"), chance).decode("utf-8", "replace")
    return "\n".join(lines)


def toml_of(content: Mapping[str, Any]) -> str:
    """Tables, and tables in them, as TOML: enough of it for steps of a run."""
    rows: list[str] = []
    for key, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for each in value:
                rows += [f"[[{key}]]", toml_of(each)]
        elif isinstance(value, dict):
            rows.append(f"{key} = {{{', '.join(f'{name} = {json.dumps(each)}' for name, each in value.items())}}}")
        else:
            rows.append(f"{key} = {json.dumps(value)}")
    return "\n".join(rows)
