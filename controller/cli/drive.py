"""Commands that ask the provider: reconcile, replay-pending, cancel, drain."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

import click

from controller.cli.call import Call
from controller.cli.confirming import (
    Numbered,
    command_line,
    confirm_option,
    dry_run_option,
    reason_option,
    unconfirmed,
)
from controller.cli.verb import Duration, Verb, completed, parallelism_option, run_of
from controller.model.errors import Busy, UsageFault

if TYPE_CHECKING:
    from controller.cli.tables import Table
    from controller.engine.planner import Plan
    from controller.engine.reconcile import Reconciler
    from controller.engine.report import Report
    from controller.model.records import Document


TROUBLE = 5


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
        return _preview(call, reconciler)
    with stopping(call, reconciler):
        report = reconciler.reconcile()
    document = call.store.read().document
    code = exit_of(report, document)
    body = {"applied": True, **report_whole(report, document)}
    call.output.answer("reconcile", body, report_page(report, document), well=code == 0)
    return code


def _preview(call: Call, reconciler: Reconciler) -> int:
    from controller.cli import drift
    from controller.cli.asking import parked_whole
    from controller.engine.drift import drift as drift_of

    due = reconciler.due(ignore_not_before=False)
    document, look, plan = reconciler.preview()
    policy, now = reconciler.ground.policy, reconciler.sender.context.clock.now_ms()
    drifts = drift_of(document, look, plan, policy, now)
    body = {
        "applied": False,
        "replay": [{"slot": slot, "idempotency_key": key} for slot, key in due],
        "plan": [parked_whole(parked) for parked in plan.parks],
        **drift.whole(look, drifts),
    }
    page = chain(drift.page(look, drifts), [""], _preview_page(due, plan))
    call.output.answer("reconcile", body, page)
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
    type=Numbered(),
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
    from controller.cli.pending import waiting_page, waiting_whole

    reconciler = call.controller.reconciler(parallelism=parallelism)
    if dry_run:
        due = reconciler.due(ignore_not_before=True, only=slot)
        waiting = waiting_whole(call.store.read().document, call.clock.now_ms(), only=slot)
        body = {
            "dry_run": True,
            "replay": [{"slot": number, "idempotency_key": key} for number, key in due],
            "waiting_for_looks": waiting,
        }
        page = [f"slot {number}  key {key}" for number, key in due]
        page += waiting_page(waiting)
        page = page or ["nothing is parked"]
        call.output.answer("replay-pending", body, page)
        return 0
    with stopping(call, reconciler):
        report = reconciler.replay(slot=slot)
    document = call.store.read().document
    waiting = waiting_whole(document, call.clock.now_ms(), only=slot)
    body = {"dry_run": False, **report_whole(report, document), "waiting_for_looks": waiting}
    code = exit_of(report, document)
    answer = chain(waiting_page(waiting), report_page(report, document))
    call.output.answer("replay-pending", body, answer, well=code == 0)
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


@click.command(
    cls=Verb,
    examples=[
        "controller drain 3 --reason 'bad memory' --confirm-drain",
        "controller drain --all",
        "controller drain --off",
    ],
)
@click.argument("slot", metavar="[SLOT]", required=False, type=Numbered(), shell_complete=completed("slots"))
@click.option(
    "--all", "everything", is_flag=True, allow_from_autoenv=False, help="Take nothing new and empty the fleet."
)
@click.option("--off", is_flag=True, allow_from_autoenv=False, help="Let reconcile take work again after --all.")
@reason_option
@dry_run_option
@confirm_option("drain", "take nothing new in SLOT, and empty it")
@click.option(
    "--timeout",
    type=Duration(),
    metavar="D",
    help="Begin nothing more after this long; exits with 5, says what it waits for, and the drain stands.",
)
@parallelism_option
@click.pass_obj
def drain(
    call: Call,
    slot: int | None,
    everything: bool,
    off: bool,
    reason: str,
    dry_run: bool,
    confirmed: bool,
    timeout: int | None,
    parallelism: int,
) -> int:
    """Empty a slot, or the whole fleet: nothing new is taken, work that runs ends, workers are removed.

    Waits until that is done, and says for what; what only a person can end, such as a worker that waits for its release
    proof, it does not wait for (exit 5). It is durable: every reconcile respects it until `uncordon SLOT`, or --off,
    lifts it, also when this command is interrupted.
    """
    from controller.engine.queue import set_draining

    if (slot is not None) + everything + off != 1:
        ways = "controller drain SLOT, controller drain --all, or controller drain --off"
        raise UsageFault("drain needs to be told which way", next=ways)
    if slot is not None:
        return _drain_slot(call, slot, reason, timeout, parallelism, dry_run=dry_run, confirmed=confirmed)
    if reason or dry_run or confirmed:
        given = "--reason" if reason else "--dry-run" if dry_run else "--confirm-drain"
        what = f"{given} goes with a slot"
        raise UsageFault(what, where="--off" if off else "--all", next="controller drain SLOT, or leave it away")
    if off:
        changed = set_draining(call.context, False)
        line = "reconcile takes work again" if changed else "the fleet was not draining"
        call.output.answer("drain", {"draining": False, "changed": changed}, [line], well=True)
        return 0
    reconciler = call.controller.reconciler(parallelism=parallelism)  # settings first, as for cancel
    return _empty(call, reconciler, None, timeout, changed=set_draining(call.context, True))


def _drain_slot(
    call: Call, slot: int, reason: str, timeout: int | None, parallelism: int, *, dry_run: bool, confirmed: bool
) -> int:
    from controller.api.emptying import is_wanted, left_in
    from controller.api.operator import operator
    from controller.engine.cordon import cordon

    call.subject = f"slot:{slot}"
    reconciler = call.controller.reconciler(parallelism=parallelism)
    only_asked = dry_run or not confirmed
    changed = cordon(call.ruled, slot, drain=True, reason=reason, by=operator(), dry_run=only_asked)
    document = call.store.read().document
    left = left_in(document, slot)
    if only_asked and not dry_run and (changed or left):
        would = f"slot {slot} would take nothing new, and be emptied"
        then = command_line("drain", str(slot), reason=reason, confirm="--confirm-drain")
        raise unconfirmed(would, f"slot {slot}", then)
    if only_asked:
        waits = _waits(reconciler, document, left)
        line = f"slot {slot} would {'take nothing new' if changed else 'go on draining'}" + ", and be emptied" * bool(
            left
        )
        body = {
            "slot": slot,
            "draining": is_wanted(document, slot),
            "changed": False,
            "empty": not left,
            "dry_run": True,
        }
        call.output.answer("drain", body, [line, *waits, "nothing was changed"], well=True)
        return 0
    reconciler.keep_to(slot)
    return _empty(call, reconciler, slot, timeout, changed=changed)


def _empty(call: Call, reconciler: Reconciler, slot: int | None, timeout: int | None, *, changed: bool) -> int:
    """Reconcile until no worker is left, whatever trouble there is on the way; only what no waiting mends ends it, or
    *timeout*.
    """
    from controller.api.emptying import is_wanted, left_in, until_empty
    from controller.cli.asking import exit_of, report_page, report_whole, stopping

    said = ""

    def tell(report: Report, document: Document, left: Collection[int]) -> None:
        nonlocal said
        said = _tell_left(call, reconciler, document, report, left, said)

    with stopping(call, reconciler):
        deadline = None if timeout is None else call.clock.monotonic() + timeout / 1000
        report, document = until_empty(reconciler, slot, tell=tell, deadline=deadline)
    empty = not left_in(document, slot)
    draining = is_wanted(document, slot)
    left = _waits(reconciler, document, left_in(document, slot))
    whole = {"draining": draining, "changed": changed, "empty": empty, "left": left, **report_whole(report, document)}
    body = whole if slot is None else {"slot": slot, "dry_run": False, **whole}
    done = "the fleet is empty; next: controller drain --off"
    if slot is not None:
        done = f"slot {slot} is empty, and takes nothing new; to lift that: controller uncordon {slot}"
    page = [done] if empty else [*report_page(report, document), *(f"left: {each}" for each in left)]
    held = 0 if slot is not None else sum(run.lease is not None for run in document.runs.values())
    if held:
        page.append(f"runs that consumers still hold, and no drain stops: {held}; controller queue browse active")
    if not draining:
        page = ["the drain was lifted by somebody else meanwhile", *page]
    call.output.answer("drain", body, page, well=empty)
    code = exit_of(report, document)
    # What nothing but a person can end is trouble that remains, though every answer was a good one; so is what is left
    # when the time is over.
    mild = (0,) if timeout is None else (0, Busy.exit)
    return 0 if empty else TROUBLE if draining and not report.interrupted and code in mild else code


def _tell_left(
    call: Call, reconciler: Reconciler, document: Document, report: Report, left: Collection[int], said: str
) -> str:
    """A note of what the drain waits for, when that is not what was *said* last; what is said now."""
    from controller.cli.text import counted, shown

    waits = _waits(reconciler, document, left)
    troubles = [f"; trouble: {shown(error.what)}" for error in report.errors]
    now = f"draining: {counted(len(waits), 'worker')} left; {', '.join(waits[:8])}{''.join(troubles)}"
    if now != said:
        call.output.note(now)
    return now


def _waits(reconciler: Reconciler, document: Document, left: Collection[int]) -> list[str]:
    """What each of these slots waits for: a run, a proof, a cooldown, an answer."""
    return [f"slot {slot}: {_wait(reconciler, document, slot)}" for slot in sorted(left)]


def _wait(reconciler: Reconciler, document: Document, slot: int) -> str:
    from controller.cli.text import moment, shown
    from controller.engine.lifecycle import holds, waits_for
    from controller.model.action import action_of
    from controller.model.reason import EXPLAINED

    worker, entry = document.workers.get(slot), document.pending_actions.get(slot)
    if entry is not None:
        error = "" if entry.last_error is None else f" ({shown(entry.last_error)})"
        return f"its {action_of(entry).type} is pending{error}"
    if worker is None:
        return "empty"
    if worker.run is not None and holds(worker, document.runs.get(worker.run)):
        return f"run {worker.run} (end it with `controller cancel {worker.run}`)"
    wait = waits_for(document, worker, reconciler.ground.policy, reconciler.sender.context.clock.now_ms())
    if wait is None:
        return worker.state.value
    until = "" if wait.until is None else f" until {moment(wait.until)}"
    return f"{EXPLAINED[wait.reason].text}{until} (`controller explain slot:{slot}`)"


COMMANDS: Mapping[str, click.Command] = {
    "reconcile": reconcile,
    "replay-pending": replay_pending,
    "cancel": cancel,
    "drain": drain,
}
