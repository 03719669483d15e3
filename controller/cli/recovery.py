"""Commands about what does not go on by itself: resume, surrender, forget, adopt, delete-unrecorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from controller.cli.call import Call
from controller.cli.confirming import (
    command_line,
    confirm_option,
    dry_run_option,
    need_reason,
    reason_option,
    run_argument,
    slot_argument,
    slot_option,
    unconfirmed,
)
from controller.cli.text import shown
from controller.cli.verb import Verb, run_of

if TYPE_CHECKING:
    from controller.cli.tables import Table
    from controller.engine.adoption import Found
    from controller.engine.forget import Forgotten
    from controller.engine.recovery import Resumed, Surrendered
    from controller.engine.report import Report
    from controller.model.records import Document


@click.command(
    cls=Verb, examples=["controller resume r-1 --dry-run", "controller resume r-1 --reason 'new host' --confirm-resume"]
)
@run_argument
@slot_option
@reason_option
@dry_run_option
@confirm_option("resume", "ask for the new compute, and queue a run again that failed or was cancelled")
@click.pass_obj
def resume(call: Call, run: str, slot: int | None, reason: str, dry_run: bool, confirmed: bool) -> int:
    """Make new compute for the data of a run whose worker was stopped or lost.

    Only where a look shows the old compute off or gone, and its data under the recorded identities: two that use the
    same data would spoil it. The worker keeps its assignment under the next generation, so the old one is shut out. A
    run that failed or was cancelled is queued again, and this worker takes it.
    """
    from controller.api.operator import operator
    from controller.api.recovery import carry_on, looked
    from controller.cli.asking import stopping
    from controller.engine import recovery as engine

    run_id = run_of(run)
    call.subject = f"run:{run_id}"
    reconciler = call.controller.reconciler(parallelism=1)
    report = None
    with stopping(call, reconciler):
        answer = engine.resume(
            call.ruled,
            run_id,
            looked(reconciler),
            slot=slot,
            reason=reason,
            by=operator(),
            dry_run=dry_run or not confirmed,
            key_ttl_ms=reconciler.ground.key_ttl_ms,
        )
        if not (dry_run or confirmed):
            words = (run_id,) if slot is None else (run_id, "--slot", str(slot))
            then = command_line("resume", *words, reason=reason, confirm="--confirm-resume")
            raise unconfirmed(_resumes(answer, "would be"), f"slot {answer.slot}", then)
        if answer.parked is not None:
            report = carry_on(reconciler, answer.slot, (answer.key, answer.parked))
    document = call.store.read().document
    body = {
        "run": run_id,
        "slot": answer.slot,
        "generation": answer.generation,
        "idempotency_key": answer.key or None,
        "retried": answer.retried,
        "dry_run": dry_run,
    }
    return _answer(call, "resume", answer.slot, body, list(_resume_page(answer, document)), report, document)


def _resumes(answer: Resumed, verb: str) -> str:
    queued = f", and run {answer.run} {verb} queued again" if answer.retried else ""
    return f"new compute {verb} made in slot {answer.slot}, generation {answer.generation}{queued}"


def _resume_page(answer: Resumed, document: Document) -> Iterator[str]:
    if not answer.key:
        yield _resumes(answer, "would be")
        yield "nothing was changed"
        return
    worker = document.workers.get(answer.slot)
    made = worker is not None and worker.generation == answer.generation and answer.slot not in document.pending_actions
    yield _resumes(answer, "is" if made else "is being")
    yield "next: controller reconcile --apply"


@click.command(
    cls=Verb,
    examples=[
        "controller surrender r-1 --dry-run",
        "controller surrender r-1 --reason 'its disk is broken' --confirm-surrender",
    ],
)
@run_argument
@slot_option
@click.option(
    "--unresolved",
    is_flag=True,
    allow_from_autoenv=False,
    help="The provider is gone for good, and no look can be had. A run that the worker has is lost with it.",
)
@reason_option
@dry_run_option
@confirm_option("surrender", "give up what is left of the run's data")
@click.pass_obj
def surrender(
    call: Call, run: str, slot: int | None, unresolved: bool, reason: str, dry_run: bool, confirmed: bool
) -> None:
    """End the assignment of a worker whose ordinary release can no longer be made: its data is given up.

    Refused while `release` would do, while the worker's compute may be live, and while an action is pending. History
    keeps who did it, why, and the id of everything that was given up.
    """
    from controller.api.operator import operator
    from controller.api.recovery import looked_for_surrender
    from controller.cli.asking import stopping
    from controller.engine import recovery as engine

    run_id = run_of(run)
    call.subject = f"run:{run_id}"
    words = [run_id, *([] if slot is None else ["--slot", str(slot)]), *(["--unresolved"] if unresolved else [])]
    then = command_line("surrender", *words, reason=reason, confirm="--confirm-surrender")
    if confirmed and not dry_run:
        need_reason(reason, then)
    reconciler = call.controller.reconciler(parallelism=1)
    with stopping(call, reconciler):
        answer = engine.surrender(
            call.ruled,
            run_id,
            looked_for_surrender(reconciler, run_id, unresolved=unresolved),
            slot=slot,
            reason=reason,
            by=operator(),
            dry_run=dry_run or not confirmed,
            unresolved=unresolved,
        )
    if not (dry_run or confirmed):
        raise unconfirmed(_surrenders(answer, "would be"), f"slot {answer.slot}", then)
    body = {
        "run": run_id,
        "slot": answer.slot,
        "lost": list(answer.lost),
        "ended": answer.ended,
        "unresolved": unresolved,
        "dry_run": dry_run,
    }
    page = [_surrenders(answer, "would be" if dry_run else "is")]
    page += [f"given up: {shown(each)}" for each in answer.lost]
    page.append("nothing was changed" if dry_run else "next: controller reconcile --apply")
    call.output.answer("surrender", body, page)


def _surrenders(answer: Surrendered, verb: str) -> str:
    given_up = ", ".join(shown(each) for each in answer.lost) or "nothing that was recorded"
    ended = f", and run {answer.run} {verb} ended as lost" if answer.ended else ""
    return f"the worker of slot {answer.slot} {verb} given up for run {answer.run} ({given_up}){ended}"


@click.command(
    cls=Verb,
    examples=[
        "controller forget 3 --dry-run",
        "controller forget 3 --reason 'the account was closed' --confirm-forget",
    ],
)
@slot_argument
@reason_option
@dry_run_option
@confirm_option("forget", "give up the worker's record, and keep as disowned what may be left of it")
@click.pass_obj
def forget(call: Call, slot: int, reason: str, dry_run: bool, confirmed: bool) -> None:
    """Give up the record of a worker whose provider is gone for good, so that its slot is not taken for ever.

    Refused while an action is pending, while a run has the worker, and while the provider answers. What may be left of
    it is kept on record with every id, and the slot takes nothing new until looks have shown whether it is there. Where
    the settings name another kind of provider than the worker's, none is asked.
    """
    from controller.api.operator import operator
    from controller.api.recovery import can_be_asked
    from controller.cli.asking import stopping
    from controller.engine.forget import forget as give_up

    call.subject = f"slot:{slot}"
    then = command_line("forget", str(slot), reason=reason, confirm="--confirm-forget")
    if confirmed and not dry_run:
        need_reason(reason, then)
    look = None
    if can_be_asked(call.controller, slot):
        reconciler = call.controller.reconciler(parallelism=1)
        with stopping(call, reconciler):
            look = reconciler.look()[0]
    answer = give_up(call.ruled, slot, look, reason=reason, by=operator(), dry_run=dry_run or not confirmed)
    if not (dry_run or confirmed):
        raise unconfirmed(_forgets(answer, "would be"), f"slot {slot}", then)
    body = {
        "slot": slot,
        "assignment": answer.assignment,
        "generation": answer.generation,
        "provider": answer.provider,
        "left": list(answer.left),
        "idempotency_key": answer.key or None,
        "dry_run": dry_run,
    }
    page = [_forgets(answer, "would be" if dry_run else "is")]
    page += [f"may be left, and cost money: {shown(each)}" for each in answer.left]
    page.append("nothing was changed" if dry_run else "next: controller reconcile --apply looks whether it is there")
    call.output.answer("forget", body, page)


def _forgets(answer: Forgotten, verb: str) -> str:
    named = f"{shown(answer.assignment)} generation {answer.generation} of {shown(answer.provider)}"
    return f"the record of the worker of slot {answer.slot} ({named}) {verb} given up, and kept as disowned"


@click.command(cls=Verb, examples=["controller adopt 3", "controller adopt 3 --identity SHA --confirm-adopt"])
@slot_argument
@click.option("--identity", metavar="SHA", allow_from_autoenv=False, help="Of what was found: only exactly that.")
@reason_option
@dry_run_option
@confirm_option("adopt", "record it as the slot's worker, ready for a run")
@click.pass_obj
def adopt(call: Call, slot: int, identity: str | None, reason: str, dry_run: bool, confirmed: bool) -> int:
    """Record what the provider shows in a slot and no record knows, as its worker.

    Without --confirm-adopt it says what there is, its identity, and what to type. Refused unless it is one thing, ready
    and idle, and nothing of it is on record elsewhere.
    """
    return _settle(call, "adopt", slot, identity, reason, dry_run=dry_run or not confirmed)


@click.command(
    cls=Verb,
    name="delete-unrecorded",
    examples=[
        "controller delete-unrecorded 3",
        "controller delete-unrecorded 3 --identity SHA --reason 'left by a test' --confirm-delete",
    ],
)
@slot_argument
@click.option("--identity", metavar="SHA", allow_from_autoenv=False, help="Of what was found: only exactly that.")
@reason_option
@dry_run_option
@confirm_option("delete", "stop it and remove it, compute and data")
@click.pass_obj
def delete_unrecorded(call: Call, slot: int, identity: str | None, reason: str, dry_run: bool, confirmed: bool) -> int:
    """Stop and remove what the provider shows in a slot and no record knows, with its data.

    Without --confirm-delete it says what there is, its identity, and what to type. It is recorded first, as lost, and
    then removed by its exact ids, as any worker is. What a resume made for the stopped worker on record, though nobody
    knows of it, is stopped alone: that worker's data is kept.
    """
    return _settle(call, "delete-unrecorded", slot, identity, reason, dry_run=dry_run or not confirmed)


_CONFIRM = {"adopt": "--confirm-adopt", "delete-unrecorded": "--confirm-delete"}


def _settle(call: Call, verb: str, slot: int, identity: str | None, reason: str, *, dry_run: bool) -> int:
    from controller.api.operator import operator
    from controller.api.recovery import carry_on, looked
    from controller.cli.asking import stopping
    from controller.engine.adoption import adopt as adopting
    from controller.engine.adoption import condemn

    call.subject = f"slot:{slot}"
    if verb != "adopt" and not dry_run:
        need_reason(reason, f"controller {verb} {slot} --identity {identity or 'SHA'} --reason WHY {_CONFIRM[verb]}")
    engine = adopting if verb == "adopt" else condemn
    reconciler = call.controller.reconciler(parallelism=1)
    report = None
    with stopping(call, reconciler):
        found = engine(
            call.ruled,
            slot,
            looked(reconciler),
            provider=reconciler.ground.provider,
            identity=identity,
            reason=reason,
            by=operator(),
            dry_run=dry_run,
        )
        if verb != "adopt" and not dry_run:
            report = carry_on(reconciler, slot)
    document = call.store.read().document
    body = {"slot": slot, "dry_run": dry_run, "found": _found_whole(found)}
    words = (str(slot), "--identity", found.identity)
    then = command_line(verb, *words, reason=reason, confirm=_CONFIRM[verb])
    page = list(_found_page(found, verb, document, then, dry_run=dry_run))
    return _answer(call, verb, slot, {**body, "next": then if dry_run else None}, page, report, document)


def _found_whole(found: Found) -> dict[str, Any]:
    return {
        "assignment": found.assignment,
        "generation": found.generation,
        "id": found.id,
        "state": found.state,
        "identity": found.identity,
        "resources": {
            kind: {"id": resource.id, "immutable_id": resource.immutable_id}
            for kind, resource in found.resources.items()
        },
        "running": found.running,
        "kept": found.kept,
    }


def _found_page(found: Found, verb: str, document: Document, then: str, *, dry_run: bool) -> Iterator[str]:
    from controller.cli.text import counted, pairs

    steps = f", {counted(found.running, 'step')} running" if found.running else ""
    yield from pairs(
        [
            (f"slot {found.slot}", f"{shown(found.id) or 'no id'}, {found.state}{steps}"),
            ("assignment", f"{shown(found.assignment)}, generation {found.generation}"),
            *((shown(kind), _told(each.id, each.immutable_id)) for kind, each in sorted(found.resources.items())),
            ("identity", found.identity),
        ]
    )
    if dry_run:
        would = "adopted" if verb == "adopt" else "stopped, and its data kept" if found.kept else "stopped and removed"
        yield f"it would be {would}; nothing was changed"
        yield f"next: {then}"
    elif verb == "adopt":
        yield f"it is the worker of slot {found.slot} now"
        yield "next: controller reconcile --apply"
    elif found.kept:
        yield f"it is the stopped worker of slot {found.slot} now, and its data is kept"
        yield f"next: controller explain slot:{found.slot}"
    elif found.slot in document.workers:
        yield "it is recorded, and goes step by step; next: controller reconcile --apply"
    else:
        yield f"it is gone; slot {found.slot} is free"


def _told(name: str, immutable: str) -> str:
    return shown(name) + (f" ({shown(immutable)})" if immutable else "")


def _answer(
    call: Call,
    verb: str,
    slot: int,
    body: dict[str, object],
    page: list[str | Table] | list[str],
    report: Report | None,
    document: Document,
) -> int:
    """Answer with what driving the slot came to, if it was driven, and say how that went by the exit code."""
    if report is None:
        call.output.answer(verb, body, page)
        return 0
    from controller.cli.asking import exit_of, report_page, report_whole

    code = exit_of(report, document)
    if code == 5 and not report.errors and slot not in report.refused(document):
        code = 0  # trouble of other slots is for reconcile to tell
    told = list(report_page(report, document)) if report.sent or report.busy or report.errors else []
    call.output.answer(verb, {**body, "report": report_whole(report, document)}, [*told, *page], well=code == 0)
    return code


COMMANDS: Mapping[str, click.Command] = {
    "resume": resume,
    "surrender": surrender,
    "forget": forget,
    "adopt": adopt,
    "delete-unrecorded": delete_unrecorded,
}
