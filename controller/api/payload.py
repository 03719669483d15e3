"""Values of programs as JSON, and back: payloads, results, and what is said of progress.

Not promised: that what comes back is of the same type: a tuple comes back as a list, a subclass as its plain type.

What strict JSON cannot say is refused with its place: nothing is turned into a text, or into null, unasked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import orjson
from msgspec import UNSET, Raw, UnsetType

from controller.engine.submission import MOST_PAYLOAD
from controller.model.errors import UsageFault
from controller.model.strict import MAX_DEPTH, MAX_INTEGER, MIN_INTEGER

_LONGEST_PLACE: Final = 200


def encoded(value: Any, what: str) -> Raw | UnsetType:
    """*value* as compact JSON, members in order of their names. UNSET stays that. *what* it is goes into a refusal.

    Raises UsageFault: no JSON value, deeper than `strict.MAX_DEPTH`, or larger than 1 MiB.
    """
    if isinstance(value, UnsetType):
        return UNSET
    data = orjson.dumps(_plain(value, what, 0), option=orjson.OPT_SORT_KEYS)
    if len(data) > MOST_PAYLOAD:
        raise UsageFault(f"{what} is larger than {MOST_PAYLOAD} bytes", where=what, next="pass large data in files")
    return Raw(data)


def decoded(raw: Raw | UnsetType) -> Any:
    """The value that was kept; None if there is none."""
    return None if isinstance(raw, UnsetType) else orjson.loads(bytes(raw))


def _plain(value: object, place: str, depth: int) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, place)
    if isinstance(value, int):
        if not MIN_INTEGER <= value <= MAX_INTEGER:
            raise _refused("an integer beyond 64 bits", place)
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _refused(f"{float(value)} is not JSON", place)
        return float(value)
    if isinstance(value, dict) or isinstance(value, Mapping):  # noqa: SIM101 - what a dict is, is told sooner
        within = _deeper(depth, place)
        return {_key(key, place): _plain(each, f"{place}.{key}", within) for key, each in value.items()}
    if isinstance(value, list | tuple):
        within = _deeper(depth, place)
        return [_plain(each, f"{place}[{n}]", within) for n, each in enumerate(value)]
    raise _refused(f"{type(value).__name__} is not JSON", place)


def _deeper(depth: int, place: str) -> int:
    if depth == MAX_DEPTH:
        raise _refused(f"nested deeper than {MAX_DEPTH}", place)
    return depth + 1


def _key(key: object, place: str) -> str:
    if not isinstance(key, str):
        raise _refused(f"a key that is {type(key).__name__}, not a text", place)
    return _text(key, place)


def _text(text: str, place: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _refused("a lone surrogate", place) from None
    return str.__str__(text)


def _refused(problem: str, place: str) -> UsageFault:
    shown = place.encode("utf-8", "backslashreplace").decode()
    if len(shown) > _LONGEST_PLACE:
        shown = f"{shown[:_LONGEST_PLACE]}..."
    return UsageFault(problem, where=shown, next="give null, a number, a text, a list, or a dict whose keys are texts")
