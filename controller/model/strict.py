"""The strict JSON reader for bytes that we did not write: an edited document, a provider's reply, a submitted payload.

Not promised: speed on bytes that are refused, which are walked a second time to say where the trouble is.

Refused, never coerced: duplicate keys, NaN and infinities (spelled or overflowed), integers that 64 bits cannot hold,
lone surrogates, nesting beyond `depth`, a byte-order mark, invalid UTF-8, and anything before or after the one value.
What passes can be written again by every serialiser used here, without a changed value.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from typing import Final, Never

import orjson

from controller.model.errors import StrictError

__all__ = ["MAX_DEPTH", "MAX_INTEGER", "MIN_INTEGER", "StrictError", "strict_loads"]

MAX_DEPTH: Final = 64
MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**64 - 1

# An unterminated string matches to the end: were it no match, every quote inside it would be tried as a start.
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_TOKEN = re.compile(_STRING.pattern + r'|[\[\]{}:,]|[^\s\[\]{}:,"]+', re.DOTALL)
_NOT_BRACKET = re.compile(r"[^\[\]{}]+")
_PAIR = re.compile(r"\[\]|\{\}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_LONGEST_INTEGER: Final = len(str(MIN_INTEGER))


class _Unstrict(Exception):
    pass


def strict_loads(data: bytes, *, where: str, depth: int = MAX_DEPTH) -> object:
    """The one JSON value in *data*. Raises StrictError naming what, line and offset; never RecursionError."""
    if data.count(b"[") + data.count(b"{") <= depth:
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(data)
            if orjson.dumps(value) == data:
                return value  # What was refused, coerced or dropped would not be written as it came.
    if data.startswith(b"\xef\xbb\xbf"):
        raise StrictError("a byte-order mark before the JSON", where=where, offset=0, line=1)
    if not data.strip(b" \t\r\n"):
        raise StrictError("nothing but white space" if data else "empty: zero bytes", where=where, offset=0, line=1)
    if not data.strip(b"\0"):
        raise StrictError(f"{len(data)} bytes of NUL", where=where, offset=0, line=1)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise StrictError("not UTF-8", where=where, offset=error.start, line=line) from None
    if _too_deep(text, depth):
        _walk(text, where, depth)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        what = error.msg[0].lower() + error.msg[1:]
        if error.pos >= len(text.rstrip()):
            what = f"it ends too early: {what}"
        raise _at(what, text, error.pos, where) from None
    except _Unstrict as problem:
        _walk(text, where, depth)
        raise StrictError(str(problem), where=where, offset=0, line=1) from None
    if _SURROGATE.search(text):
        _walk(text, where, depth)
    return value


def _too_deep(text: str, depth: int) -> bool:
    """Whether brackets outside strings nest deeper than *depth* or do not match. Each pass takes off the innermost
    level.
    """
    brackets = _NOT_BRACKET.sub("", _STRING.sub("", text))
    for _ in range(depth):
        if not brackets:
            return False
        brackets = _PAIR.sub("", brackets)
    return bool(brackets)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Unstrict("a duplicate key")
    return found


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER or not MIN_INTEGER <= int(text) <= MAX_INTEGER:
        raise _Unstrict("an integer beyond 64 bits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Unstrict("a number beyond a double")
    return value


def _constant(text: str) -> Never:
    raise _Unstrict(f"{text} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_integer, parse_float=_float, parse_constant=_constant)


def _at(what: str, text: str, position: int, where: str) -> StrictError:
    offset = len(text[:position].encode("utf-8"))
    return StrictError(what, where=where, offset=offset, line=text.count("\n", 0, position) + 1)


def _walk(text: str, where: str, depth: int) -> None:
    """Raise for the first token that JSON allows and this reader does not. Tokens only: grammar is the decoder's
    part.
    """
    keys: list[set[str] | None] = []
    last: tuple[str, int] | None = None
    for match in _TOKEN.finditer(text):
        token, position = match.group(), match.start()
        problem = None
        if token in "[{":
            keys.append(set() if token == "{" else None)
            if len(keys) > depth:
                problem = f"nested deeper than {depth}"
        elif token in "]}":
            if keys:
                keys.pop()
        elif token == ":":
            seen = keys[-1] if keys else None
            if last is not None and seen is not None:
                if last[0] in seen:
                    raise _at(f"the key {last[0][:80]} twice in one object", text, last[1], where)
                seen.add(last[0])
        elif token[0] == '"':
            problem = _string_problem(token)
            last = (_plain(token), position)
        elif token != ",":
            problem = _scalar_problem(token)
        if problem is not None:
            raise _at(problem, text, position, where)


def _plain(token: str) -> str:
    """A key as its value, so that `"a"` and its escaped spelling count as the same."""
    try:
        return repr(json.loads(token, strict=False))
    except ValueError:
        return token


def _string_problem(token: str) -> str | None:
    if "\\u" not in token:
        return None
    try:
        json.loads(token, strict=False).encode("utf-8")
    except UnicodeEncodeError:
        return "a lone surrogate"
    except ValueError:
        return None
    return None


def _scalar_problem(token: str) -> str | None:
    if token in ("NaN", "Infinity", "-Infinity"):
        return f"{token} is not JSON"
    if _INTEGER.fullmatch(token):
        if len(token) > _LONGEST_INTEGER or not MIN_INTEGER <= int(token) <= MAX_INTEGER:
            return "an integer beyond 64 bits"
        return None
    try:
        return None if math.isfinite(float(token)) else "a number beyond a double"
    except ValueError:
        return None
