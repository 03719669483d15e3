"""`queue` commands of those who look after queues: promote, reap, browse, size, list, pause, resume, discard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from controller.cli.call import Call
from controller.cli.values import Named
from controller.cli.verb import Verb, Whole, completed, run_of

if TYPE_CHECKING:
    from controller.cli.tables import Table
    from controller.cli.text import Times
    from controller.engine.browse import QueueSummary
    from controller.engine.upkeep import Reaped

MOST = 10_000
SETS = ("pending", "active", "scheduled", "dead")

limit_option = click.option(
    "--limit", type=Whole(1, MOST), default=100, show_default=True, metavar="N", help="At most so many."
)
only_option = click.option(
    "--queue", type=Named(), metavar="Q", shell_complete=completed("queues"), help="Only of this queue."
)
queue_argument = click.argument("queue", metavar="Q", type=Named(), shell_complete=completed("queues"))


@click.command(cls=Verb, examples=["controller queue promote", "controller queue promote r-1"])
@limit_option
@click.argument("runs", metavar="[RUN...]", nargs=-1, shell_complete=completed("runs"))
@click.pass_obj
def promote(call: Call, limit: int, runs: tuple[str, ...]) -> None:
    """Move runs from scheduled to pending: those that are due, or these, due or not.

    Whoever claims with --wait, works or reconciles does this too; a plain claim serves what is due without it.
    """
    from controller.cli.views import run_row
    from controller.engine.upkeep import promote as move

    ids = list(dict.fromkeys(run_of(run) for run in runs))
    if len(ids) == 1:
        call.subject = f"run:{ids[0]}"
    moved = move(call.ruled, ids, limit=limit)
    now = call.clock.now_ms()
    body = {"runs": [run_row(run, now) for run in moved]}
    page = [f"run {run.id} is pending in queue {run.queue}" for run in moved]
    if not moved:
        page = ["nothing to promote: they are pending already"] if ids else ["nothing is due"]
    call.output.answer("queue-promote", body, page, well=True)


@click.command(cls=Verb, examples=["controller queue reap"])
@limit_option
@click.pass_obj
def reap(call: Call, limit: int) -> None:
    """Take back the runs whose lease ran out, and say what was taken from whom.

    Each has lost a life: it is queued again while its crash budget lasts, else it is dead.
    """
    from controller.cli.views import run_row
    from controller.engine.upkeep import reap as take

    reaped = take(call.ruled, limit=limit)
    now = call.clock.now_ms()
    rows = [{**run_row(each.run, now), "owner": each.owner, "token": each.token} for each in reaped]
    page = list(_reaped_page(reaped)) if reaped else ["no lease has run out"]
    call.output.answer("queue-reap", {"runs": rows}, page)


def _reaped_page(reaped: Iterable[Reaped]) -> Iterator[str | Table]:
    from controller.cli.tables import table
    from controller.cli.text import shown

    yield table(
        ("RUN", "STATE", "TAKEN FROM", "TOKEN", "CRASHES"),
        (
            (
                each.run.id,
                "dead" if each.run.state == "failed" else each.run.state.value,
                shown(each.owner),
                str(each.token),
                f"{each.run.crashes} of {each.run.max_crashes}",
            )
            for each in reaped
        ),
    )


@click.command(
    cls=Verb,
    question=True,
    examples=["controller queue browse dead", "controller queue browse active --queue mail --limit 1000 --json"],
)
@click.argument("view", metavar="|".join(SETS), type=click.Choice(SETS))
@only_option
@click.option("--limit", type=Whole(1, MOST), default=50, show_default=True, metavar="N", help="At most so many.")
@click.option("--after", metavar="ID", shell_complete=completed("runs"), help="Go on behind this run.")
@click.pass_obj
def browse(call: Call, view: str, queue: str | None, limit: int, after: str | None) -> None:
    """List one of the four sets of runs.

    pending (queued and due), scheduled (queued for later, by when they are due), active (held by somebody, by when
    their leases end) or dead (failed for good). Others are in the order in which they were submitted.
    """
    from controller.cli.held import browsed_row
    from controller.engine.browse import browse as listed
    from controller.engine.browse import holders
    from controller.model.views import View

    document, here = call.store.read().document, call.here()
    behind = None if after is None else run_of(after)
    runs = listed(document, View(view), here.now, queue=queue, limit=limit + 1, after=behind)
    running = holders(document)
    rows = [browsed_row(run, here, running) for run in runs[:limit]]
    more = len(runs) > limit
    body = {"set": view, "queue": queue, "runs": rows, "next_after": rows[-1]["id"] if more else None}
    page: list[str | Table] = [_browsed(view, rows, call.times(here.now))] if rows else [f"no runs are {view}"]
    if more:
        own = "" if queue is None else f" --queue {queue}"
        page.append(f"... and more; next: controller queue browse {view}{own} --after {rows[-1]['id']}")
    call.output.answer("queue-browse", body, page)


def _browsed(view: str, rows: Iterable[Mapping[str, Any]], times: Times) -> Table:
    from controller.cli.tables import table
    from controller.cli.text import duration, shown
    from controller.cli.views import work_of

    def due(row: Mapping[str, Any]) -> str:
        return "-" if row["available_at"] is None else times.told(row["available_at"])

    def lease(row: Mapping[str, Any]) -> str:
        left = row["remaining_ms"]
        return "-" if left is None else duration(left) if left else "over"

    def reason(row: Mapping[str, Any]) -> str:
        return row["reason"] or "-"

    def layer(row: Mapping[str, Any]) -> str:
        return str(row["priority"])

    columns: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
        "pending": {"PRIORITY": layer, "AGE": lambda row: times.age(row["created_at"]), "REASON": reason},
        "scheduled": {"PRIORITY": layer, "DUE": due, "REASON": reason},
        "active": {"TOKEN": lambda row: str(row["token"]), "OWNER": lambda row: shown(row["owner"]), "LEASE": lease},
        "dead": {
            "ENDED": lambda row: "-" if row["finished_at"] is None else times.told(row["finished_at"]),
            "REASON": reason,
            "ERROR": lambda row: shown(row["last_error"] or "-"),
        },
    }[view]
    return table(
        ("RUN", "QUEUE", *columns, "WHAT"),
        ((row["id"], row["queue"], *(told(row) for told in columns.values()), shown(work_of(row))) for row in rows),
    )


@click.command(cls=Verb, question=True, examples=["controller queue size", "controller queue size dead --queue mail"])
@click.argument("view", metavar="|".join(SETS), type=click.Choice(SETS), default="pending")
@only_option
@click.pass_obj
def size(call: Call, view: str, queue: str | None) -> None:
    """Print how many runs are in a set, by default in pending: a number and nothing else."""
    from controller.engine.browse import size as counted
    from controller.model.views import View

    number = counted(call.store.read().document, View(view), call.clock.now_ms(), queue=queue)
    call.output.answer("queue-size", {"set": view, "queue": queue, "size": number}, [str(number)])


@click.command(name="list", cls=Verb, question=True, examples=["controller queue list", "controller queue list --json"])
@click.pass_obj
def queues(call: Call) -> None:
    """Show every queue: who serves it, how many runs wait and for how long, by layer too."""
    from msgspec import to_builtins

    from controller.engine.browse import queues as summed

    settings, fault = call.readable_settings
    found = summed(call.store.read().document, settings.policy, call.clock.now_ms())
    body = {"queues": to_builtins(found), "config_fault": call.output.fault(fault)}
    page = [_queues_page(found)] if found else ["no queue was used yet"]
    call.output.answer("queue-list", body, page)


def _queues_page(found: Iterable[QueueSummary]) -> Table:
    from controller.cli.tables import table
    from controller.cli.text import duration

    def cells(counted: Any) -> tuple[str, ...]:
        oldest = counted.oldest_wait_ms
        counts = (counted.pending, counted.scheduled, counted.active, counted.dead)
        return (*map(str, counts), "-" if oldest is None else duration(oldest))

    rows = []
    for each in found:
        served = each.served_by + (", paused" if each.paused else "")
        rows.append((each.queue, "", served, *cells(each)))
        rows += [("", layer.layer, "", *cells(layer)) for layer in each.layers]
    return table(("QUEUE", "LAYER", "SERVED BY", "PENDING", "SCHEDULED", "ACTIVE", "DEAD", "OLDEST"), rows)


@click.command(cls=Verb, examples=["controller queue pause default"])
@queue_argument
@click.pass_obj
def pause(call: Call, queue: str) -> None:
    """Hand out nothing more from a queue. Whoever holds a run of it goes on; submitting works."""
    _set_paused(call, queue, True)


@click.command(cls=Verb, examples=["controller queue resume default"])
@queue_argument
@click.pass_obj
def resume(call: Call, queue: str) -> None:
    """Hand out runs of a paused queue again."""
    _set_paused(call, queue, False)


def _set_paused(call: Call, queue: str, on: bool) -> None:
    from controller.engine.upkeep import set_paused

    call.subject = f"queue:{queue}"
    changed = set_paused(call.ruled, queue, on)
    line = f"queue {queue} is {'paused' if on else 'open'}" + ("" if changed else " already")
    page = [line, f"next: controller queue resume {queue}"] if on else [line]
    body = {"queue": queue, "paused": on, "changed": changed}
    call.output.answer(f"queue-{'pause' if on else 'resume'}", body, page, well=True)


@click.command(cls=Verb, examples=["controller queue discard r-1"])
@click.argument("run", metavar="RUN", shell_complete=completed("runs"))
@click.pass_obj
def discard(call: Call, run: str) -> None:
    """Take a run out of its queue for good, whatever its state; its holder is shut out.

    It cannot be retried afterwards, but its id may be submitted again. Refused for what a worker of the fleet holds:
    cancel that.
    """
    from controller.engine.leases import discard as drop

    run_id = run_of(run)
    call.subject = f"run:{run_id}"
    stone = drop(call.lenient, run_id)
    body = {"run": run_id, "queue": stone.queue, "state": stone.state.value, "reason": stone.reason}
    call.output.answer("queue-discard", body, [f"run {run_id} is discarded"], well=True)


COMMANDS: Mapping[str, click.Command] = {
    "promote": promote,
    "reap": reap,
    "browse": browse,
    "size": size,
    "list": queues,
    "pause": pause,
    "resume": resume,
    "discard": discard,
}
