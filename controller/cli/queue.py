"""`queue`: the group of commands for consumers outside the fleet, and for those who look after their queues."""

from __future__ import annotations

from collections.abc import Mapping

import click

from controller.cli.verb import Listed, Source
from controller.model.errors import UsageFault


def _leases() -> Mapping[str, click.Command]:
    from controller.cli.leases import COMMANDS

    return COMMANDS


def _work() -> Mapping[str, click.Command]:
    from controller.cli.work import COMMANDS

    return COMMANDS


def _queues() -> Mapping[str, click.Command]:
    from controller.cli.queues import COMMANDS

    return COMMANDS


VERBS: Mapping[str, Source] = {
    "claim": _leases,
    "complete": _leases,
    "retry": _leases,
    "fail": _leases,
    "heartbeat": _leases,
    "drain": _leases,
    "step": _leases,
    "work": _work,
    "promote": _queues,
    "reap": _queues,
    "browse": _queues,
    "size": _queues,
    "list": _queues,
    "pause": _queues,
    "resume": _queues,
    "discard": _queues,
}


@click.group(
    cls=Listed,
    listed=VERBS,
    invoke_without_command=True,
    examples=[
        'controller submit --payload \'{"to": "ops@example.org"}\'',
        "controller queue claim",
        "controller queue complete r-1 --token 1",
    ],
)
@click.pass_context
def queue(ctx: click.Context) -> None:
    """Take runs from queues and do them yourself; look after such queues.

    A consumer claims a run, works on it, says with heartbeats that it still does, and completes, retries or fails it.
    Each claim gives a token; whatever is said of the run later carries it, and a stale one is refused. The queues of
    the fleet are not for consumers.
    """
    if ctx.invoked_subcommand is None:
        raise UsageFault("queue needs to be told what to do", next="controller queue --help")


COMMANDS: Mapping[str, click.Command] = {"queue": queue}
