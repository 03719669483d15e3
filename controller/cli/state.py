"""Commands about the document as a whole: accept, backup, verify, restore, export, import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from controller.cli.call import Call
from controller.cli.confirming import dry_run_option, reason_option
from controller.cli.verb import Verb, completed
from controller.model.errors import UsageFault

if TYPE_CHECKING:
    from controller.model.records import Document
    from controller.model.restore import Over
    from controller.store.backups import Held
    from controller.store.restore import Compared, Restored

_FILE: Any = click.Path(path_type=Path, allow_dash=True)

acknowledge_option = click.option(
    "--acknowledge",
    is_flag=True,
    allow_from_autoenv=False,
    help="Go back over parked actions and workers: none of those actions is ever sent again.",
)


@click.group(invoke_without_command=True)
@click.pass_context
def state(ctx: click.Context) -> None:
    """Back up the document, bring it back, move it, or take responsibility for it."""
    if ctx.invoked_subcommand is None:
        raise UsageFault("state needs to be told what to do", next="controller state --help")


@state.command(cls=Verb, examples=["controller state accept", "controller state accept --restore-pending"])
@click.option(
    "--restore-pending",
    is_flag=True,
    allow_from_autoenv=False,
    help="Take the bytes of pending actions that were touched from history.",
)
@click.pass_obj
def accept(call: Call, restore_pending: bool) -> None:
    """Accept a document that was edited by hand: verify it whole and seal it.

    With nothing to accept, the file is made current, so that it can be edited. Refused while a pending action's key
    does not derive from its content: such an action never replays.
    """
    from controller.store.accept import accept as take

    accepted = take(call.store, restore_pending=restore_pending, timeout=call.lock_timeout)
    revision, slots = accepted.document.revision, list(accepted.restored)
    newer = list(accepted.newer)
    body = {"revision": revision, "changed": accepted.changed, "restored_slots": slots, "newer_records": newer}
    page = [
        f"accepted as revision {revision}" if accepted.changed else f"nothing to accept: revision {revision} is sealed"
    ]
    if slots:
        page.append("restored from history: " + ", ".join(f"slot {slot}" for slot in slots))
    if newer:
        page += [
            "changed since by commits that the edited file did not have, which stand; the edit of these is gone:",
            *(f"  {name}" for name in newer),
            "next: look at them, and edit again where needed: the file is current now",
        ]
    call.output.answer("state-accept", body, page)


@state.command(cls=Verb, examples=["controller state backup", "controller state backup builds-before-the-move.json"])
@click.argument("file", required=False, type=_FILE, shell_complete=completed("files"))
@click.pass_obj
def backup(call: Call, file: Path | None) -> None:
    """Copy the document as it is now to FILE, or to a fresh name beside it.

    It waits for nobody, and nothing is overwritten: the copy is whole whatever others write meanwhile, or it is not
    there. History is not in it; `controller state export` has both.
    """
    from controller.cli.text import pairs, shown
    from controller.store.backups import back_up

    made = back_up(call.store, _target(file))
    document = made.document
    body = {"file": str(made.path), **_identity(document), "digest": made.digest, "size": made.size}
    page = [
        *pairs([("backup", shown(str(made.path))), *_identity_pairs(document), ("size", f"{made.size} bytes")]),
        f"next: controller state verify {_quoted(made.path)}",
    ]
    call.output.answer("state-backup", body, page)


@state.command(cls=Verb, question=True, examples=["controller state verify FILE"])
@click.argument("file", type=_FILE, shell_complete=completed("files"))
@click.pass_obj
def verify(call: Call, file: Path) -> int:
    """Judge a backup or an export: whether it is whole, what it holds, and what going back to it would mean here.

    It changes nothing. Exit 7: the file is broken; 5: it breaks a rule of the document.
    """
    from controller.store.backups import read_backup
    from controller.store.exports import is_export, read_export
    from controller.store.restore import beside

    path = _source(file)
    exported = read_export(path) if is_export(path) else None
    held = read_backup(path) if exported is None else exported.held
    compared = beside(held.document, call.store)
    found = held.violations
    body = {
        "file": str(path),
        "kind": "backup" if exported is None else "export",
        **_identity(held.document),
        "digest": held.digest or None,
        "size": held.size,
        "legacy": held.legacy,
        "events": None if exported is None else len(exported.events),
        "counts": _counts(held.document),
        "violations": [{"id": each.id, "subject": each.subject, "what": each.what} for each in found],
        "here": None if compared is None else _compared_whole(compared, held.document),
    }
    call.output.answer("state-verify", body, _verify_page(body, held, compared))
    return 5 if found else 0


@state.command(
    cls=Verb,
    examples=[
        "controller state restore FILE --dry-run",
        "controller state restore FILE --acknowledge --reason 'the disk was lost'",
        "controller state restore --acknowledge",
    ],
)
@click.argument("file", required=False, type=_FILE, shell_complete=completed("files"))
@acknowledge_option
@reason_option
@dry_run_option
@click.pass_obj
def restore(call: Call, file: Path | None, acknowledge: bool, reason: str, dry_run: bool) -> None:
    """Go on from the backup in FILE; without FILE, from the document that stands there though history knows later ones.

    Refused for another fleet's document; and where it goes back over parked actions or workers, unless that is
    acknowledged. Then no action from before is ever sent again: looks find out what became of them. No id, key or token
    that was handed out comes back. What stood there is kept as a backup.
    """
    from controller.api.operator import operator
    from controller.engine.chance import new_epoch
    from controller.engine.operators import told
    from controller.store.restore import restore as bring_back

    answer = bring_back(
        call.store,
        None if file is None else _source(file),
        epoch=new_epoch(),
        acknowledge=acknowledge,
        told=told(operator(), reason),
        dry_run=dry_run,
        timeout=call.lock_timeout,
    )
    body = {**_restored_whole(answer, dry_run=dry_run), "file": None if file is None else str(file)}
    call.output.answer("state-restore", body, _restored_page(answer, dry_run=dry_run))


@state.command(cls=Verb, examples=["controller state export", "controller state export builds.jsonl"])
@click.argument("file", required=False, type=_FILE, shell_complete=completed("files"))
@click.pass_obj
def export(call: Call, file: Path | None) -> None:
    """Write the document, its settings and the whole history to one text file: FILE, - for stdout, or a fresh name.

    For a move to another directory or host, with `controller state import`. It waits for nobody and overwrites nothing.
    """
    from controller.cli.text import counted, pairs, shown
    from controller.store import copies, exports

    to_stdout = file is not None and str(file) == "-"
    if to_stdout and call.output.json:
        raise UsageFault("stdout cannot hold both the export and an answer", next="name a file, or leave --json out")
    data, document, events = exports.export(call.store)
    if to_stdout:
        call.output.raw(data)
        return
    if file is None:
        stem, now = f"export-{document.revision}", call.clock.now_ms()
        path = copies.keep(call.store.directory, stem, ".jsonl", data, now=now)
    else:
        path = copies.write(_target(file) or file, data)
    body = {"file": str(path), **_identity(document), "events": events, "size": len(data)}
    page = [
        *pairs(
            [
                ("export", shown(str(path))),
                *_identity_pairs(document),
                ("history", counted(events, "event")),
                ("size", f"{len(data)} bytes"),
            ]
        ),
        _moving(call, path),
    ]
    call.output.answer("state-export", body, page)


@state.command(
    cls=Verb, name="import", examples=["controller --state-dir /var/lib/builds state import FILE --acknowledge"]
)
@click.argument("file", type=_FILE, shell_complete=completed("files"))
@acknowledge_option
@reason_option
@click.pass_obj
def import_(call: Call, file: Path, acknowledge: bool, reason: str) -> None:
    """Make the state directory, which must hold nothing yet, go on from an export.

    It stays the same fleet, in a new epoch, with its history. Settings that are there already are kept. The directory
    that it came from must not be used any more: both would drive the same workers.
    """
    from controller.api.operator import operator
    from controller.engine.chance import new_epoch
    from controller.engine.operators import told
    from controller.store.exports import take_in

    answer = take_in(
        call.store,
        _source(file),
        epoch=new_epoch(),
        acknowledge=acknowledge,
        told=told(operator(), reason),
        timeout=call.lock_timeout,
    )
    body = {**_restored_whole(answer, dry_run=False), "file": str(file), "state_dir": str(call.state_dir)}
    last = "the directory that it came from must not be used again: move it away, and stop what uses it"
    call.output.answer("state-import", {**body, "old": last}, [*_restored_page(answer, dry_run=False), last])


def _moving(call: Call, path: Path) -> str:
    from controller.cli.text import shown

    then = f"controller --state-dir NEW state import {_quoted(path)}"
    return f"next: stop everything that uses {shown(str(call.state_dir))}, export once more, then {then}"


def _target(file: Path | None) -> Path | None:
    """Where to write. Raises UsageFault for stdout: a pipe cannot be verified."""
    if file is not None and str(file) == "-":
        raise UsageFault("a backup needs a file of its own", next="name a file, or none for a fresh name")
    return None if file is None else _absolute(file)


def _source(file: Path) -> Path:
    if str(file) == "-":
        raise UsageFault("it cannot be read from stdin", next="name a file")
    return _absolute(file)


def _absolute(file: Path) -> Path:
    from controller.api.settings import absolute

    if str(file) in ("", "."):
        raise UsageFault(f"not a file: {str(file)!r}", next="name a file")
    return absolute(file)


def _quoted(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))


def _identity(document: Document) -> dict[str, Any]:
    return {
        "fleet": document.fleet,
        "lineage": document.lineage,
        "epoch": document.epoch,
        "revision": document.revision,
        "at": max((event.at for event in document.events), default=None),
    }


def _identity_pairs(document: Document) -> list[tuple[str, str]]:
    from controller.cli.text import moment, shown

    at = max((event.at for event in document.events), default=None)
    epoch = f", epoch {document.epoch}" if document.epoch else ""
    return [
        ("fleet", f"{shown(document.fleet)}, lineage {shown(document.lineage)}{epoch}"),
        ("revision", f"{document.revision}" + ("" if at is None else f", of {moment(at)}")),
    ]


def _counts(document: Document) -> dict[str, int]:
    return {
        "runs": len(document.runs),
        "finished": len(document.finished),
        "workers": len(document.workers),
        "pending_actions": len(document.pending_actions),
        "disowned": len(document.disowned),
    }


def _over_whole(over: Iterable[Over]) -> list[dict[str, Any]]:
    return [
        {"slot": each.slot, "kind": each.kind, "name": each.name, "id": each.id, "made_since": each.lost}
        for each in over
    ]


def _compared_whole(compared: Compared, document: Document) -> dict[str, Any]:
    return {
        "same_lineage": compared.same_lineage,
        "same_document": compared.same,
        "last_revision": compared.last,
        "behind": compared.last - document.revision,
        "history_damaged": compared.damaged,
        "needs_acknowledge": compared.needs_word,
        "over": _over_whole(compared.over),
        "runs_lost": list(compared.lost.runs),
        "runs_again": list(compared.lost.again),
    }


def _verify_page(body: Mapping[str, Any], held: Held, compared: Compared | None) -> Iterator[str]:
    from controller.cli.text import counted, pairs, shown

    counts = body["counts"]
    holds = ", ".join(
        counted(counts[name], word)
        for name, word in (
            ("runs", "run"),
            ("workers", "worker"),
            ("pending_actions", "parked action"),
            ("finished", "tombstone"),
            ("disowned", "disowned action"),
        )
    )
    rows = [(body["kind"], shown(body["file"])), *_identity_pairs(held.document), ("holds", holds)]
    if body["events"] is not None:
        rows.append(("history", counted(body["events"], "event")))
    sealed = f"{body['size']} bytes, " + (f"digest {held.digest}" if held.digest else "without a digest")
    yield from pairs([*rows, ("bytes", sealed + (", of an older schema" if held.legacy else ""))])
    for each in held.violations:
        yield f"violation: {each.id}, {shown(each.subject)}: {shown(each.what)}"
    if not held.violations:
        yield "it is whole"
    if compared is None:
        return
    if not compared.same_lineage:
        yield f"it is of another fleet than the one here, whose lineage is {shown(compared.lineage)}"
    elif compared.same:
        yield "it is what stands here"
    else:
        yield f"it is {counted(compared.last - held.document.revision, 'revision')} behind what is known here"
        yield from _over_page(compared)


def _over_page(compared: Compared) -> Iterator[str]:
    from controller.cli.text import shown
    from controller.store.restore import named

    if compared.damaged:
        yield "history cannot be read whole: going back needs --acknowledge, and sets it aside"
    if compared.over:
        yield "going back to it needs --acknowledge: it goes back over"
        yield from (f"  {shown(named(over))}" for over in compared.over)
    lost, again = compared.lost.runs, compared.lost.again
    if lost:
        yield f"runs that it does not know: {', '.join(map(shown, lost))}"
    if again:
        yield f"runs that have gone on since, and would be where they were: {', '.join(map(shown, again))}"


def _restored_whole(answer: Restored, *, dry_run: bool) -> dict[str, Any]:
    return {
        "changed": answer.changed and not dry_run,
        "dry_run": dry_run,
        "revision": answer.document.revision,
        "epoch": None if dry_run else answer.document.epoch,
        "lineage": answer.document.lineage,
        "brought_revision": answer.brought.revision,
        "last_revision": answer.compared.last,
        "kept": None if answer.kept is None else str(answer.kept),
        "history_damaged": answer.compared.damaged,
        "history_set_aside": [str(path) for path in answer.set_aside],
        "over": _over_whole(answer.compared.over),
        "runs_lost": list(answer.compared.lost.runs),
        "runs_again": list(answer.compared.lost.again),
        "leases_ended": list(answer.leases),
    }


def _restored_page(answer: Restored, *, dry_run: bool) -> Iterator[str]:
    from controller.cli.text import shown

    document, compared = answer.document, answer.compared
    if not answer.changed:
        yield f"nothing to restore: revision {document.revision} is what stands there, and history agrees"
        return
    verb = "would be" if dry_run else "is"
    back = (
        f"revision {answer.brought.revision} {verb} restored as revision {document.revision}, back from {compared.last}"
    )
    yield back + ("" if dry_run else f", in epoch {document.epoch}")
    if answer.kept is not None:
        yield f"what stood there is kept: {shown(str(answer.kept))}"
    for path in answer.set_aside:
        yield f"history that it does not go on from is set aside: {shown(str(path))}"
    if dry_run:
        yield from _over_page(compared)
    else:
        yield from (f"gone back over: {shown(_named(over))}" for over in compared.over)
        if compared.lost.runs:
            yield f"runs that are not there any more: {', '.join(map(shown, compared.lost.runs))}"
        if compared.lost.again:
            yield f"runs that are back where they were: {', '.join(map(shown, compared.lost.again))}"
    if answer.leases:
        held = ", ".join(map(shown, answer.leases))
        yield f"runs whose consumers are shut out; `controller queue reap` takes them back: {held}"
    yield (
        "nothing was changed" if dry_run else "next: controller reconcile, which looks and changes nothing; then status"
    )


def _named(over: Over) -> str:
    from controller.store.restore import named

    return named(over)


COMMANDS: Mapping[str, click.Command] = {"state": state}
