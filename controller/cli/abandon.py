"""`abandon`: ends a pending action that can never apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from controller.cli.call import Call
from controller.cli.confirming import (
    command_line,
    confirm_option,
    dry_run_option,
    need_reason,
    reason_option,
    slot_argument,
    unconfirmed,
)
from controller.cli.text import shown
from controller.cli.verb import Verb

if TYPE_CHECKING:
    from controller.engine.abandon import Abandoned


@click.command(
    cls=Verb,
    examples=[
        "controller abandon 3 --key KEY --dry-run",
        "controller abandon 3 --key KEY --reason 'renamed by hand' --confirm-abandon",
    ],
)
@slot_argument
@click.option(
    "--key",
    required=True,
    metavar="KEY",
    allow_from_autoenv=False,
    help="Of the pending action, as `controller status` shows it; its beginning is enough.",
)
@click.option(
    "--unresolved",
    is_flag=True,
    allow_from_autoenv=False,
    help="The provider is gone for good: keep the action on record for ever, and the slot closed until looks prove it.",
)
@click.option(
    "--provider-gone",
    is_flag=True,
    allow_from_autoenv=False,
    help="Your word that a provider process which cannot be seen from here does not live any more.",
)
@reason_option
@dry_run_option
@confirm_option("abandon", "send it once more, and end it if the answer or a look allows that")
@click.pass_obj
def abandon(
    call: Call,
    slot: int,
    key: str,
    unresolved: bool,
    provider_gone: bool,
    reason: str,
    dry_run: bool,
    confirmed: bool,
) -> int:
    """End a pending action that can never apply.

    It is sent again first, with its own key: an answer that can be recorded is, and only a final no, or looks that show
    nothing of it, clears it. While the answer is unknown it stays (exit 5).
    """
    from controller.api.operator import operator
    from controller.cli.asking import stopping
    from controller.engine.abandon import Left
    from controller.engine.abandon import abandon as end

    call.subject = f"slot:{slot}"
    flags = [flag for flag, on in (("--unresolved", unresolved), ("--provider-gone", provider_gone)) if on]
    then = command_line("abandon", str(slot), "--key", key, *flags, reason=reason, confirm="--confirm-abandon")
    if confirmed and not dry_run:
        need_reason(reason, then)
    reconciler = call.controller.reconciler(parallelism=1)
    with stopping(call, reconciler):
        answer = end(
            reconciler.sender,
            slot,
            key,
            look=lambda: reconciler.look()[0],
            reason=reason,
            by=operator(),
            unresolved=unresolved,
            provider_gone=provider_gone,
            dry_run=dry_run or not confirmed,
        )
    if not (dry_run or confirmed) and answer.outcome in (Left.WOULD_SEND, Left.WOULD_LOOK):
        raise unconfirmed(answer.detail, f"slot {slot}, key {answer.key}", then)
    return _abandoned(call, answer, dry_run=dry_run)


def _abandoned(call: Call, answer: Abandoned, *, dry_run: bool) -> int:
    from controller.engine.abandon import Left

    body = {
        "slot": answer.slot,
        "idempotency_key": answer.key,
        "type": answer.type,
        "run": answer.run,
        "outcome": answer.outcome,
        "reason": answer.reason,
        "detail": answer.detail,
        "sends": answer.sends,
        "not_saved": None if answer.unsaved is None else answer.unsaved.what,
        "dry_run": dry_run,
    }
    code = 0
    if answer.unsaved is not None:
        code = answer.unsaved.exit
    elif answer.outcome is Left.KEPT:
        code = 5
    call.output.answer("abandon", body, _abandon_page(answer), well=code == 0)
    return code


def _abandon_page(answer: Abandoned) -> Iterator[str]:
    from controller.cli.asking import end_words
    from controller.engine.abandon import Left

    what = f"the {answer.type or 'action'} of slot {answer.slot} (key {answer.key[:12]})"
    detail = f": {shown(answer.detail)}" if answer.detail else ""
    for ended in answer.ended:
        yield f"run {ended.run} {end_words(ended)}"
    match answer.outcome:
        case Left.APPLIED:
            yield f"{what} was done after all, and is recorded{detail}"
            yield "next: controller reconcile --apply"
        case Left.CLEARED:
            yield f"{what} is ended, and the slot is free of it{detail}"
            yield f"next: controller explain slot:{answer.slot}"
        case Left.DISOWNED:
            yield f"{what} is disowned: kept on record, and the slot takes nothing new until looks show what it did"
            yield f"trouble: {shown(answer.detail)}"
            yield "next: controller reconcile --apply looks; `controller status --live` shows what there is"
        case Left.KEPT:
            yield f"{what} stays parked{detail}"
            if answer.unsaved is not None:
                yield f"trouble: {shown(answer.unsaved.what)}"
            yield f"next: controller explain slot:{answer.slot}; gone for good is a provider with --unresolved"
        case Left.SETTLED_BEFORE:
            yield f"{what} is settled already: nothing is pending"
        case Left.DISOWNED_BEFORE:
            yield f"{what} was disowned before{detail}"
        case Left.WOULD_SEND | Left.WOULD_LOOK:
            yield f"{what} stays parked{detail}"
            yield "nothing was changed"


COMMANDS: Mapping[str, click.Command] = {"abandon": abandon}
