"""What commands share that need a confirmation: their options, and how they refuse without it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from controller.cli.values import Text
from controller.cli.verb import completed, subject_of
from controller.model.errors import Conflict, UsageFault

if TYPE_CHECKING:
    _IntType = click.ParamType[int]
else:  # generic in newer releases of click alone
    _IntType = click.ParamType

F = TypeVar("F", bound=Callable[..., Any])


class Numbered(_IntType):
    """A slot, as `3` or `slot:3`."""

    name = "slot"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            found = subject_of(value if ":" in value else f"slot:{value}")
        except UsageFault:
            found = ""
        if not isinstance(found, int):
            self.fail(f"{value!r} is not a slot: give its number, or slot:N.", param, ctx)
        return found


slot_argument = click.argument("slot", metavar="SLOT", type=Numbered(), shell_complete=completed("slots"))
slot_option = click.option(
    "--slot",
    type=Numbered(),
    metavar="N",
    shell_complete=completed("slots"),
    help="Which worker, where several are assigned to the run.",
)
run_argument = click.argument("run", metavar="RUN", shell_complete=completed("runs"))
reason_option = click.option(
    "--reason",
    type=Text(),
    metavar="TEXT",
    callback=lambda _ctx, _param, value: value or "",  # a default of "" would be refused as a text of no characters
    allow_from_autoenv=False,
    help="Why, for history.",
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, allow_from_autoenv=False, help="Say what would be done; do nothing."
)


def confirm_option(word: str, what: str) -> Callable[[F], F]:
    """The flag without which nothing is done. *what* completes its help: "Do it: ..."."""
    option: Callable[[F], F] = click.option(
        f"--confirm-{word}", "confirmed", is_flag=True, allow_from_autoenv=False, help=f"Do it: {what}."
    )
    return option


def command_line(verb: str, *words: str, reason: str, confirm: str) -> str:
    """What to type to have it done. A reason that was not given stands as WHY."""
    return f"controller {verb} {shlex.join([*words, '--reason', reason or 'WHY', confirm])}"


def unconfirmed(would: str, where: str, then: str) -> Conflict:
    """What a command raises that was not confirmed, and would have been done."""
    return Conflict(f"nothing was done: {would}", where=where, next=then)


def need_reason(reason: str, then: str) -> None:
    """Raise UsageFault without one: somebody takes responsibility, and history has to say why."""
    if not reason:
        raise UsageFault("say why: it is kept in history", where="--reason", next=then)
