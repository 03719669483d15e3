"""Commands about runs: show, runs, withdraw, retry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from controller.cli.call import Call
from controller.cli.values import Named
from controller.cli.verb import Verb, Whole, completed, run_of, subject_of

if TYPE_CHECKING:
    from controller.model.records import Run, Tombstone

STATES = ("queued", "running", "succeeded", "failed", "cancelled", "pending", "scheduled", "active", "dead")


@click.command(cls=Verb, question=True, examples=["controller show r-1", "controller show slot:3"])
@click.argument("subject", metavar="RUN|slot:N", shell_complete=completed("subjects"))
@click.pass_obj
def show(call: Call, subject: str) -> None:
    """Show everything about a run or a slot."""
    from controller.cli import views
    from controller.engine.queue import find
    from controller.model.errors import NotFound

    wanted = subject_of(subject)
    snapshot, now = call.store.read(), call.clock.now_ms()
    if isinstance(wanted, str):
        run, here = find(snapshot.document, wanted), call.here()
        body = {"run": views.run_whole(run, now, here)}
        call.output.answer("show", body, views.run_page(run, call.times(now), here))
        return
    from controller.cli.pending import pending_whole
    from controller.engine.status import flights_of, pending_mutation

    document = snapshot.document
    entry = document.pending_actions.get(wanted)
    if (
        entry is None
        and wanted not in document.workers
        and wanted not in document.slots
        and wanted > call.readable_settings[0].policy.slots
    ):
        raise NotFound(
            f"there is no slot {wanted}",
            where=f"{call.config_path}, [fleet] slots = {call.readable_settings[0].policy.slots}",
            next="controller status",
        )
    flight = flights_of(call.store, [wanted]).get(wanted)
    pending = None if entry is None else pending_whole(pending_mutation(document, wanted, entry, flight, now))
    whole = views.slot_whole(document, wanted, pending)
    call.output.answer("show", {"slot": whole}, views.slot_page(whole, call.times(now)))


@click.command(
    cls=Verb,
    question=True,
    examples=["controller runs --state dead", "controller runs --queue default", "controller runs --limit 1000 --json"],
)
@click.option("--state", type=click.Choice(STATES), help="Only runs in this state, or in this view.")
@click.option("--queue", type=Named(), metavar="Q", shell_complete=completed("queues"), help="Only runs of this queue.")
@click.option("--limit", type=Whole(1), default=50, show_default=True, metavar="N", help="At most so many.")
@click.pass_obj
def runs(call: Call, state: str | None, queue: str | None, limit: int) -> None:
    """List runs, the newest first.

    Views: pending (queued and due), scheduled (queued for later), active (running), dead (failed for good). Runs that
    succeeded are listed for as long as they are remembered.
    """
    from controller.cli import views

    document, now = call.store.read().document, call.clock.now_ms()
    known: list[Run | Tombstone] = [*document.runs.values(), *document.finished.values()]
    known.sort(key=lambda run: run.sequence, reverse=True)
    rows = [views.run_row(run, now) for run in known if queue in (None, run.queue)]
    if state is not None:
        rows = [row for row in rows if state in (row["state"], row["view"])]
    body = {"runs": rows[:limit], "total": len(rows)}
    page = (
        list(views.run_rows(rows[:limit], call.times(now)))
        if rows
        else ["no runs" + (f" of queue {queue}" if queue else "") + (f" are {state}" if state else "")]
    )
    if len(rows) > limit:
        page.append(f"... and {len(rows) - limit} older ones; --limit N shows more")
    call.output.answer("runs", body, page)


@click.command(cls=Verb, examples=["controller withdraw r-7"])
@click.argument("run_id", metavar="RUN", shell_complete=completed("runs"))
@click.pass_obj
def withdraw(call: Call, run_id: str) -> None:
    """Cancel a queued run that no worker ever took."""
    run_id = run_of(run_id)
    call.subject = f"run:{run_id}"
    call.controller.withdraw(run_id)
    body = {"run": run_id, "state": "cancelled", "reason": "withdrawn"}
    call.output.answer("withdraw", body, [f"run {run_id} is cancelled: withdrawn"])


@click.command(cls=Verb, examples=["controller retry r-1"])
@click.argument("run", metavar="RUN", shell_complete=completed("runs"))
@click.pass_obj
def retry(call: Call, run: str) -> None:
    """Queue a failed or cancelled run again: steps that succeeded are kept, every other starts anew."""
    run_id = run_of(run)
    call.subject = f"run:{run_id}"
    queue = call.controller.retry(run_id).queue
    served = queue in call.readable_settings[0].policy.queues
    following = "reconcile --apply" if served else f"queue claim --queue {queue}"
    page = [f"run {run_id} is queued again", f"next: controller {following}"]
    call.output.answer("retry", {"run": run_id, "state": "queued"}, page)


COMMANDS: Mapping[str, click.Command] = {
    "show": show,
    "runs": runs,
    "withdraw": withdraw,
    "retry": retry,
}
