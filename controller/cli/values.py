"""The types of what is typed about runs in queues. None of them reads anything: who completes a line converts too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from controller.model.errors import UsageFault
from controller.model.records import ID_GRAMMAR, is_id, is_visible

if TYPE_CHECKING:
    from msgspec import Raw, UnsetType

    from controller.model.reason import Reason

    _IntType = click.ParamType[int]
    _TextType = click.ParamType[str]
    _ReasonType = click.ParamType[Reason]
else:  # generic in newer releases of click alone
    _IntType = _TextType = _ReasonType = click.ParamType

_LONGEST_TEXT = 200


class Token(_IntType):
    """The token of a life, as `queue claim` gave it."""

    name = "token"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if not (value.isascii() and value.isdecimal() and len(value) <= 18) or not int(value):
            self.fail(f"{value!r} is not a token: give the whole number from 1 up that `queue claim` gave.", param, ctx)
        return int(value)


class Named(_TextType):
    """A name with the grammar of an id: of a queue, or of a run."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not is_id(value):
            rule = ID_GRAMMAR
            self.fail(f"{value!r} cannot be a name: give {rule}.", param, ctx)
        return str(value)


class Text(_TextType):
    """A few words that are kept: not nothing, and UTF-8."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail("it is not UTF-8.", param, ctx)
        if not is_visible(value) or len(value) > _LONGEST_TEXT:
            self.fail(f"give a text of 1 to {_LONGEST_TEXT} characters.", param, ctx)
        return str(value)


class Trouble(_TextType):
    """What went wrong, in the words of whoever saw it: kept as it is, bytes that are no text escaped, never refused."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002 - click's
        return str(value).encode("utf-8", "backslashreplace").decode()


class ReasonCode(_ReasonType):
    """A reason with which a holder may end a life."""

    name = "code"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Reason:
        from controller.api.words import meant
        from controller.engine.leases import FAILURES

        known: dict[str, Reason] = {reason.value: reason for reason in FAILURES}
        if value not in known:
            self.fail(f"{value!r} is not one of {', '.join(sorted(known))}{meant(value, known)}.", param, ctx)
        return known[value]


class Moment(_IntType):
    """A point in time in RFC 3339, its zone included, as UTC milliseconds."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        ms = _moment(value)
        if ms is None:
            self.fail(f"{value!r} is not a moment with its zone such as 2026-12-01T06:00:00Z.", param, ctx)
        return ms


def _moment(text: str) -> int | None:
    import re
    from datetime import UTC, datetime, timedelta

    if re.fullmatch(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)", text, re.ASCII) is None:
        return None
    try:
        ms = (datetime.fromisoformat(text.upper()) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    except ValueError:
        return None
    return ms if ms >= 0 else None


def json_value(given: str, option: str) -> Raw | UnsetType:
    """The JSON in *given*: itself, `@FILE`, or `-` for stdin, as the library would keep the same value.

    Raises UsageFault, naming *option*, and repeats no value.
    """
    from controller.api.payload import encoded
    from controller.engine.submission import MOST_PAYLOAD
    from controller.model.errors import StrictError
    from controller.model.strict import strict_loads

    data = _bytes(given, option, MOST_PAYLOAD)
    if len(data) > MOST_PAYLOAD:
        raise UsageFault(f"it is larger than {MOST_PAYLOAD} bytes", where=option, next="pass large data in files")
    try:
        value = strict_loads(data, where=option)
    except StrictError as error:
        where = f"{option}, line {error.line}, offset {error.offset}"
        raise UsageFault(f"not JSON: {error.problem}", where=where, next=_hint(given)) from error
    return encoded(value, option)


def _hint(given: str) -> str:
    """Most often it is a text without its quotes."""
    bare = given[:1].isalpha()
    return "a text is JSON in quotes: '\"text\"'" if bare else "mend that place"


def _bytes(given: str, option: str, most: int) -> bytes:
    """What is given, of a file or stdin a byte more than *most* at most."""
    import sys

    from controller.api.settings import absolute
    from controller.api.words import brief

    if given == "-":
        if sys.stdin is None:
            raise UsageFault("stdin is closed", where=f"{option} -", next="give it the JSON, or name a file")
        return sys.stdin.buffer.read(most + 1)
    if not given.startswith("@"):
        return given.encode("utf-8", "surrogateescape")
    if given == "@":
        raise UsageFault("an empty path", where=option, next="give @FILE, or - for stdin")
    try:
        with absolute(given[1:]).open("rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise UsageFault(
            f"it cannot be read: {error.strerror}", where=brief(given[1:]), next=f"check {option}"
        ) from error
