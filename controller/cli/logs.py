"""`logs`: what a run's steps wrote. The files outlive the worker that made them."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from controller.cli.call import Call
from controller.cli.verb import Verb, completed, run_of
from controller.model.errors import NotFound, UsageFault

if TYPE_CHECKING:
    from controller.model.records import Run, Tombstone


@click.command(
    cls=Verb,
    question=True,
    examples=["controller logs r-1", "controller logs r-1 --step build --all", "controller logs --follow r-1"],
)
@click.argument("run", metavar="RUN", shell_complete=completed("runs"))
@click.option("--step", metavar="S", help="Only this step.")
@click.option("-f", "--follow", is_flag=True, help="Go on as more comes, until the run has ended.")
@click.option("--all", "every", is_flag=True, help="Every attempt, oldest first, not just the last of each step.")
@click.pass_obj
def logs(call: Call, run: str, step: str | None, follow: bool, every: bool) -> int:
    """Print what a run's steps wrote, as it was written: the last attempt of each step.

    A log holds the first 1 MiB and the last 64 KiB; what lies between is left out. With --json it answers where the
    files are. Only the local provider keeps logs here; consumers of other queues keep their own. --follow shows every
    attempt, and only reads: something else has to serve the fleet, such as `controller run`.
    """
    from controller.api.following import logs_of, read_from
    from controller.engine.queue import find

    if follow and call.output.json:
        raise UsageFault("--follow has no end to answer at", where="--follow --json", next="leave one of them out")
    run_id = run_of(run)
    known = find(call.store.read().document, run_id)
    names = [each.name for each in known.steps]
    if step is not None and step not in names:
        raise NotFound(
            f"run {run_id} has no step {step!r}",
            where=f"its steps: {', '.join(names)}",
            next=f"controller logs {run_id}" + (f" --step {names[0]}" if names else ""),
        )
    if follow:
        return _follow(call, known, step)
    found = [log for log in logs_of(call.state_dir, run_id, names) if step in (None, log.step)]
    if not every:
        found = list({log.step: log for log in found}.values())
    if not found:
        raise _none(call, known)
    if call.output.json:
        body = {"run": run_id, "logs": [{n: getattr(log, n) for n in log.__struct_fields__} for log in found]}
        call.output.answer("logs", body, ())
        return 0
    written = 0
    for log in found:
        if len(found) > 1:
            call.output.note(f"--- step {log.step}, life {log.token}, attempt {log.attempt}")
        for part in read_from(log, 0):
            written += len(part)
            call.output.raw(part)
    if not written:
        call.output.note(f"run {run_id} wrote nothing")
    return 0


def _follow(call: Call, run: Run | Tombstone, step: str | None) -> int:
    """Write what is there and what comes, until the run has ended or nobody reads any more."""
    from controller.api.following import logs_of
    from controller.api.waiting import all_ended
    from controller.cli.waiting import Writer, is_abandoned
    from controller.engine.reconcile import SHORTEST_WAIT
    from controller.model.run import is_terminal

    settings = call.readable_settings[0]
    kept_here = settings.provider.kind != "command" and run.queue in settings.policy.queues
    if (not kept_here or is_terminal(run.state)) and not logs_of(call.state_dir, run.id, ()):
        raise _none(call, run)
    gc.enable()  # a question is quick and does without; this one stays
    writer = Writer(call, {run.id: run}, step=step)
    while True:
        # Asked before the logs are read: what was written before the end is there once the end is.
        ended = all_ended(call.store.read().document, [run.id])
        going = writer.write_new()
        if is_abandoned():
            call.output.failed = False
            return 0
        if ended or not going:
            return 0
        call.clock.sleep(SHORTEST_WAIT)


def _none(call: Call, run: Run | Tombstone) -> NotFound:
    """Why there is no log of *run* here."""
    settings = call.readable_settings[0]
    provider = settings.provider
    if run.queue not in settings.policy.queues:
        return NotFound(
            f"what run {run.id} wrote is not kept here: consumers keep their own logs",
            where=f"queue {run.queue}; [fleet] queues = {', '.join(settings.policy.queues)}",
            next=f"look where its consumer writes; `controller show {run.id}` has its owner, result and last error",
        )
    if provider.kind == "command":
        return NotFound(
            "logs of a command provider are kept by the provider, not here",
            where=f"{call.config_path}, [provider] command = {provider.argv[0]}",
            next=f"look where that program keeps them; `controller show {run.id}` names worker, attempt and key",
        )
    where = str(call.state_dir / "logs")
    if any(step.attempts for step in run.steps):
        return NotFound(f"no log of run {run.id} is here", where=where, next=f"controller show {run.id}")
    return NotFound(f"no step of run {run.id} has started yet", where=where, next=f"controller explain {run.id}")


COMMANDS: Mapping[str, click.Command] = {"logs": logs}
