"""Commands that ask the provider: reconcile, replay-pending, cancel, drain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from controller.cli.call import Call
from controller.cli.verb import Verb, completed, parallelism_option, run_of
from controller.model.errors import UsageFault
from controller.model.records import MAX_SLOTS

if TYPE_CHECKING:
    from controller.cli.tables import Table
    from controller.engine.planner import Plan
    from controller.engine.reconcile import Reconciler
    from controller.engine.report import Report
    from controller.model.records import Document

PAUSES = (0.25, 5.0)
"""Seconds between looks while a fleet drains and nothing changes: doubled from the first to the last."""
HOPELESS = (1, 3, 7, 8)
"""Exit codes of what waiting does not mend."""


@click.command(cls=Verb, examples=["controller reconcile", "controller --quiet reconcile --apply"])
@click.option(
    "--apply",
    is_flag=True,
    allow_from_autoenv=False,
    help="Do it. Without this the plan is printed and nothing changes.",
)
@parallelism_option
@click.pass_obj
def reconcile(call: Call, apply: bool, parallelism: int) -> int:
    """Bring the fleet to where the document wants it: replay what is parked, look, plan, act, until nothing is left.

    Without --apply it prints the plan of the first pass and changes nothing. Safe to run from cron, and twice at once;
    with --quiet it says nothing unless something is wrong.
    """
    from controller.cli.asking import exit_of, report_page, report_whole, stopping

    reconciler = call.controller.reconciler(parallelism=parallelism)
    if not apply:
        return _preview(call, reconciler.due(ignore_not_before=False), reconciler.preview())
    with stopping(call, reconciler):
        report = reconciler.reconcile()
    document = call.store.read().document
    code = exit_of(report, document)
    body = {"applied": True, **report_whole(report, document)}
    call.output.answer("reconcile", body, report_page(report, document), well=code == 0)
    return code


def _preview(call: Call, due: tuple[tuple[int, str], ...], plan: Plan) -> int:
    from controller.cli.asking import parked_whole

    body = {
        "applied": False,
        "replay": [{"slot": slot, "idempotency_key": key} for slot, key in due],
        "plan": [parked_whole(parked) for parked in plan.parks],
    }
    call.output.answer("reconcile", body, _preview_page(due, plan))
    return 0


def _preview_page(due: tuple[tuple[int, str], ...], plan: Plan) -> Iterator[str | Table]:
    from controller.cli.tables import table

    rows = [(str(slot), "replay", f"parked, key {key[:12]}") for slot, key in due]
    rows += [(str(parked.slot), parked.type.value, parked.why) for parked in plan.parks]
    if not rows:
        yield "nothing to do" if plan.edit.empty else "only records to bring up to date"
    else:
        yield table(("SLOT", "ACTION", "WHY"), rows)
    if rows or not plan.edit.empty:
        yield "nothing was changed; next: controller reconcile --apply"


@click.command(
    name="replay-pending", cls=Verb, examples=["controller replay-pending", "controller replay-pending --slot 3"]
)
@click.option(
    "--slot",
    type=click.IntRange(1, MAX_SLOTS),
    metavar="N",
    shell_complete=completed("slots"),
    help="Only this slot.",
)
@parallelism_option
@click.option("--dry-run", is_flag=True, help="Print what would be sent, and send nothing.")
@click.pass_obj
def replay_pending(call: Call, slot: int | None, parallelism: int, dry_run: bool) -> int:
    """Send every parked action again, with its own key, in slot order, whatever its backoff says."""
    from controller.cli.asking import exit_of, report_page, report_whole, stopping

    reconciler = call.controller.reconciler(parallelism=parallelism)
    if dry_run:
        due, waiting = reconciler.due(ignore_not_before=True, only=slot), reconciler.waiting_for_looks(only=slot)
        body = {
            "dry_run": True,
            "replay": [{"slot": number, "idempotency_key": key} for number, key in due],
            "waiting_for_looks": [{"slot": number, "idempotency_key": key} for number, key in waiting],
        }
        page = [f"slot {number}  key {key}" for number, key in due]
        page += [f"slot {number}  key {key}  is not sent again: looks settle it" for number, key in waiting]
        page = page or ["nothing is parked"]
        call.output.answer("replay-pending", body, page)
        return 0
    with stopping(call, reconciler):
        report = reconciler.replay(slot=slot)
    document = call.store.read().document
    body = {"dry_run": False, **report_whole(report, document)}
    code = exit_of(report, document)
    call.output.answer("replay-pending", body, report_page(report, document), well=code == 0)
    return code


_TOLD = "its holder is told with its next heartbeat; once its lease ran out, `controller queue reap` ends it"


@click.command(cls=Verb, examples=["controller cancel r-1"])
@click.argument("run", metavar="RUN", shell_complete=completed("runs"))
@click.pass_obj
def cancel(call: Call, run: str) -> int:
    """Cancel a run: at once if it is queued, else once its worker has ended the whole process group of its step.

    A consumer that holds it is told with its next heartbeat, and ends it; or its lease runs out.

    The request is durable when this returns, whatever becomes of the provider call; reconcile finishes what is left.
    """
    from controller.engine.queue import cancel as request

    run_id = run_of(run)
    call.subject = f"run:{run_id}"
    reconciler = call.controller.reconciler(parallelism=1)  # wrong settings are said before anything changes
    answer = request(call.context, run_id)
    body: dict[str, object] = {"run": run_id, "requested": answer.requested, "slot": answer.slot}
    page: list[str | Table] = []
    code = 0
    state = answer.state.value
    if answer.slot is not None:
        code, state = _drive_slot(call, reconciler, run_id, answer.slot, body, page)
    told = {"cancelled": "is cancelled", "running": "is being cancelled", "succeeded": "had succeeded already"}
    page.append(f"run {run_id} {told.get(state, f'is {state}')}")
    if state == "running":
        page.append("next: controller reconcile --apply" if answer.slot is not None else _TOLD)
    call.output.answer("cancel", {**body, "state": state}, page, well=code == 0)
    return code


def _drive_slot(
    call: Call, reconciler: Reconciler, run_id: str, slot: int, body: dict[str, object], page: list[str | Table]
) -> tuple[int, str]:
    """Reconcile the slot alone; it takes no new run. The request stands already, so a busy slot is no failure."""
    from controller.cli.asking import exit_of, report_page, report_whole, stopping
    from controller.engine.queue import find
    from controller.model.errors import Busy

    reconciler.keep_to(slot)
    with stopping(call, reconciler):
        report = reconciler.reconcile()
    document = call.store.read().document
    body["report"] = report_whole(report, document)
    page += list(report_page(report, document)) if report.sent or report.busy or report.errors else []
    code, state = exit_of(report, document), find(document, run_id).state.value
    # Trouble elsewhere in the fleet is for reconcile to tell; what was asked of this command is done, or accepted.
    harmless = (Busy.exit,) if state == "running" else (3, 5, Busy.exit)
    return 0 if code in harmless else code, state


@click.command(cls=Verb, examples=["controller drain --all", "controller drain --off"])
@click.option(
    "--all", "everything", is_flag=True, allow_from_autoenv=False, help="Take nothing new and empty the fleet."
)
@click.option("--off", is_flag=True, allow_from_autoenv=False, help="Let reconcile take work again.")
@parallelism_option
@click.pass_obj
def drain(call: Call, everything: bool, off: bool, parallelism: int) -> int:
    """Empty the fleet: nothing new is taken, work that runs ends, workers are removed. Waits until that is done.

    It is durable: every reconcile respects it until --off lifts it, also when this command is interrupted.
    """
    from controller.engine.queue import set_draining

    if everything == off:
        raise UsageFault("drain needs to be told which way", next="controller drain --all, or controller drain --off")
    if off:
        changed = set_draining(call.context, False)
        line = "reconcile takes work again" if changed else "the fleet was not draining"
        call.output.answer("drain", {"draining": False, "changed": changed}, [line], well=True)
        return 0
    reconciler = call.controller.reconciler(parallelism=parallelism)  # settings first, as for cancel
    return _empty(call, reconciler, set_draining(call.context, True))


def _empty(call: Call, reconciler: Reconciler, changed: bool) -> int:
    """Reconcile until no worker is left, whatever trouble there is on the way; only what no waiting mends ends it."""
    from controller.cli.asking import exit_of, report_page, report_whole, stopping
    from controller.engine.report import helpless

    pause = PAUSES[0]
    said = ""
    with stopping(call, reconciler):
        while True:
            report = reconciler.reconcile()
            document = call.store.read().document
            code = exit_of(report, document)
            if not document.workers or not document.draining or report.interrupted or code in HOPELESS:
                break
            if helpless(document, report.stuck).issuperset(document.workers):
                break
            said = _tell_left(call, document, report, said)
            pause = PAUSES[0] if report.sent else min(2 * pause, PAUSES[1])
            reconciler.wait(pause)
    empty = not document.workers and not document.pending_actions
    body = {"draining": document.draining, "changed": changed, "empty": empty, **report_whole(report, document)}
    page = ["the fleet is empty; next: controller drain --off"] if empty else list(report_page(report, document))
    held = sum(run.lease is not None for run in document.runs.values())
    if held:
        page.append(f"runs that consumers still hold, and no drain stops: {held}; controller queue browse active")
    if not document.draining:
        page = ["the drain was lifted by somebody else meanwhile", *page]
    call.output.answer("drain", body, page, well=empty)
    return 0 if empty else code


def _tell_left(call: Call, document: Document, report: Report, said: str) -> str:
    """A note of what the drain waits for, when that is not what was *said* last; what is said now."""
    from controller.cli.text import counted, shown

    waits = [
        f"slot {slot}: run {worker.run} (end it with `controller cancel {worker.run}`)"
        if worker.run is not None
        else f"slot {slot}: {worker.state}"
        for slot, worker in sorted(document.workers.items())
    ]
    troubles = [f"; trouble: {shown(error.what)}" for error in report.errors]
    now = f"draining: {counted(len(waits), 'worker')} left; {', '.join(waits[:8])}{''.join(troubles)}"
    if now != said:
        call.output.note(now)
    return now


COMMANDS: Mapping[str, click.Command] = {
    "reconcile": reconcile,
    "replay-pending": replay_pending,
    "cancel": cancel,
    "drain": drain,
}
