"""What every store checks of an edit before it becomes a document: commit's fourth step, the same for all of them.

Not promised: anything about bytes or locks. An edit is refused whole; the document it was made for is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from msgspec import Struct

from controller.model.edit import Edit, apply_edit, joined
from controller.model.errors import InvariantBroken, ScopeExceeded
from controller.model.invariants import Touched, regressions, violations
from controller.model.records import Document
from controller.store.codec import Unstorable, line_of, storable
from controller.store.protocol import Part, Scope


class Next(Struct, frozen=True):
    """The next document, and the members of its commit's line but for the digests, without the closing brace."""

    document: Document
    body: bytes


def next_document(
    document: Document, edit: Edit, scope: Scope | None, where: str, *, parts: Sequence[Part] = ()
) -> Next:
    """What *parts* and *edit* make of *document*. Raises ScopeExceeded or InvariantBroken.

    Only *new* violations refuse: one that is there already must not keep anybody from mending it.
    """
    for part in parts:
        _check_scope(part.edit, part.scope, where)
    if scope is not None:
        _check_scope(edit, scope, where)
    if parts:
        edit = reduce(joined, (*(part.edit for part in parts), edit))
    if not edit.events:
        raise _broken("the edit has no event: history could not explain it", where)
    after = apply_edit(document, edit)
    body = _body(document, after, edit, where)
    touched = Touched.of(document, edit)
    found = (*regressions(document, after, touched), *violations(after, touched))
    if found:
        known = {(violation.id, violation.subject) for violation in violations(document, touched)}
        for violation in found:
            if (violation.id, violation.subject) not in known:
                raise _broken(f"{violation.id}: {violation.what}", f"{violation.subject} in {where}")
    return Next(after, body)


def _check_scope(edit: Edit, scope: Scope, where: str) -> None:
    slots = {scope.slot}
    runs: set[int | str] = set() if scope.run is None else {scope.run}
    allowed: Mapping[str, set[int] | set[int | str]] = {
        "workers": slots,
        "pending_actions": slots,
        "slots": slots,
        "runs": runs,
        "finished": runs,
    }
    for name, changes in edit.sections().items():
        beyond = set(changes) - set(allowed.get(name, ()))
        if beyond:
            raise _exceeded(f"$.{name}.{min(beyond, key=str)}", scope, where)
    if edit.troubles:
        raise _exceeded("$.troubles", scope, where)
    if edit.draining is not None:
        raise _exceeded("$.draining", scope, where)


def _exceeded(path: str, scope: Scope, where: str) -> ScopeExceeded:
    run = "no run" if scope.run is None else f"run {scope.run}"
    return ScopeExceeded(
        f"the apply for slot {scope.slot} and {run} would touch {path}",
        where=where,
        next="nothing was written and the action stays parked; this is a bug of controller, please report it",
    )


def _body(document: Document, after: Document, edit: Edit, where: str) -> bytes:
    """What changed, each record in the bytes that were seen to come back as what it is."""
    first = after.events[0]
    events = b",".join([_line(event, f"event {event.n}", where) for event in after.events])
    command = line_of(first.command)
    parts = [b'{"revision":%d,"at":%d,"command":%b,"events":[%b]' % (after.revision, first.at, command, events)]
    if edit.counters is not None:
        parts.append(b'"counters":' + _line(edit.counters, "$.counters", where))
    if edit.draining is not None:
        parts.append(b'"draining":' + line_of(edit.draining))
    if edit.troubles:
        troubles = (_line(trouble, "$.troubles", where) for trouble in edit.troubles)
        parts.append(b'"troubles":[%b]' % b",".join(troubles))
    for name, changes in edit.sections().items():
        known: Mapping[str | int, Struct] = getattr(document, name)
        lines = [
            b"%b:%b"
            % (
                line_of(str(key)),
                b"null" if each is None else _line(each, f"$.{name}.{key}", where, known.get(key)),
            )
            for key, each in changes.items()
        ]
        parts.append(b'"%b":{%b}' % (name.encode(), b",".join(lines)))
    return b",".join(parts)


def _line(record: Struct, path: str, where: str, before: Struct | None = None) -> bytes:
    try:
        return storable(record, before)
    except Unstorable as error:
        raise _broken(f"{path} could not be read again once stored: {error}", where) from error


def _broken(what: str, where: str) -> InvariantBroken:
    return InvariantBroken(what, where=where, next="nothing was written")
