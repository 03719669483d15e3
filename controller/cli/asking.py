"""What commands that ask the provider share: the provider itself, signals, progress, and how a report reads."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from controller.cli.call import SECONDS_OF_SILENCE, Call
from controller.cli.tables import Table, table
from controller.cli.text import shown
from controller.engine.pending import Ended, Sent
from controller.engine.planner import Parked
from controller.engine.reconcile import Reconciler
from controller.engine.report import Report
from controller.model.action import action_of
from controller.model.errors import ControllerError
from controller.model.reason import Reason
from controller.model.records import Document, PendingAction

INTERRUPTED = 130
SECONDS_TO_LET_GO = 1.0


@contextmanager
def stopping(call: Call, reconciler: Reconciler) -> Iterator[list[int]]:
    """Signals while the provider is asked. The first parks and sends nothing more and awaits answers; the second ends.

    The second gives up calls in flight, whose actions stay parked; what has not ended a second later is left to itself.
    Yields the signals that came, so far none.
    """
    came: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if not reconciler.stop:
            reconciler.stop.set()
            call.output.note("stopping: what was asked is awaited, nothing more is sent; once more to stop at once")
            return
        signal.signal(signal.SIGALRM, lambda *_: os._exit(INTERRUPTED))
        signal.setitimer(signal.ITIMER_REAL, SECONDS_TO_LET_GO)
        reconciler.sender.provider.interrupt()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with call.showing(lambda: _late(call, reconciler)):
            yield came
    finally:
        reconciler.sender.provider.close()
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in previous.items():
            signal.signal(number, handler)


def exit_of(report: Report, document: Document) -> int:
    """What the command exits with: trouble first, then whether it was interrupted."""
    code = report.exit_code(document)
    return INTERRUPTED if report.interrupted and code in (0, 5, 6) else code


def parked_whole(parked: Parked) -> dict[str, Any]:
    return {
        "slot": parked.slot,
        "type": parked.type.value,
        "idempotency_key": parked.key,
        "run": parked.run,
        "why": parked.why,
    }


def report_whole(report: Report, document: Document) -> dict[str, Any]:
    """A report for programs: what was parked, what became of each send, and what was left behind."""
    return {
        "passes": report.passes,
        "converged": report.converged,
        "interrupted": report.interrupted,
        "parked": [parked_whole(parked) for parked in report.parked],
        "sent": [_sent_whole(sent) for sent in report.sent],
        "ended": [
            {
                "run": ended.run,
                "state": ended.state,
                "reason": None if ended.reason is None else ended.reason.value,
                "detail": ended.detail,
            }
            for ended in report.ended
        ],
        "busy": [{"slot": slot, **_error_whole(busy)} for slot, busy in sorted(report.busy.items())],
        "errors": [_error_whole(error) for error in report.errors],
        "trouble_slots": list(report.refused(document)),
        "pending_mutations": len(document.pending_actions),
        "revision": document.revision,
    }


def _sent_whole(sent: Sent) -> dict[str, Any]:
    return {
        "slot": sent.slot,
        "type": None if sent.type is None else sent.type.value,
        "idempotency_key": sent.key,
        "run": sent.run,
        "outcome": sent.reason.value,
        "detail": sent.detail,
        "settled": sent.settled,
        "not_saved": None if sent.unsaved is None else _error_whole(sent.unsaved),
    }


def _error_whole(error: ControllerError) -> dict[str, str]:
    return {"code": error.code, "what": error.what, "where": error.where, "next": error.next}


def report_page(report: Report, document: Document) -> Iterator[str | Table]:
    """A report for people: a line per send, then what is left and what to type next."""

    rows = [
        (
            str(sent.slot),
            "-" if sent.type is None else sent.type.value,
            sent.run or "-",
            sent.reason.value,
            shown(_words(sent)) or "-",
        )
        for sent in report.sent
    ]
    rows += [(str(slot), "-", "-", "busy", shown(busy.what)) for slot, busy in sorted(report.busy.items())]
    if rows:
        yield table(("SLOT", "ACTION", "RUN", "OUTCOME", "DETAIL"), rows)
    for ended in report.ended:
        yield f"run {ended.run} {end_words(ended)}"
    for error in report.errors:
        yield f"trouble: {shown(error.what)}"
        if error.where:
            yield f"  {shown(error.where)}"
        if error.next:
            yield f"  next: {shown(error.next)}"
    left = len(document.pending_actions)
    if report.refused(document):
        slots = ", ".join(f"slot {slot}" for slot in report.refused(document))
        yield f"trouble remains: {slots}; next: controller status"
    elif report.busy:
        yield "busy slots were left alone; next: run it again"
    elif left:
        yield f"{left} in progress; next: controller reconcile --apply"
    elif not rows and not report.errors and not report.ended and not report.interrupted:
        yield "nothing to do"
    if report.interrupted:
        yield "interrupted: what is parked is sent by the next reconcile"


def end_words(ended: Ended) -> str:
    """How a life of a run ended, in words."""
    from controller.cli.text import shown

    detail = f": {shown(ended.detail)}" if ended.detail else ""
    match ended.state:
        case "succeeded":
            return "succeeded"
        case "queued":
            return f"goes back to its queue{detail}"
        case state:
            return f"{'is ' if state == 'cancelled' else ''}{state}{detail}"


def sent_words(sent: Sent) -> str:
    """What became of one send, in one line."""
    kind = "an action" if sent.type is None else sent.type.value
    whom = f" for run {sent.run}" if sent.run else ""
    detail = shown(_words(sent))
    return f"{kind}{whom}: {sent.reason.value}" + (f", {detail}" if detail else "")


def is_fine(sent: Sent) -> bool:
    """Whether a send needs nobody's attention: it is done, or in progress."""
    return sent.unsaved is None and sent.reason in (Reason.DONE, Reason.PENDING)


def trouble_words(error: ControllerError) -> str:
    """A trouble that ends nothing, in one line."""
    return f"trouble: {shown(error.what)}" + (f"; next: {shown(error.next)}" if error.next else "")


def _words(sent: Sent) -> str:
    if sent.unsaved is None:
        return sent.detail
    return f"the provider answered: {sent.detail}; but that could not be saved: {sent.unsaved.what}; still parked"


def _late(call: Call, reconciler: Reconciler) -> str:
    """Which slots are asked for what, and for how long, once that is long."""
    now = call.clock.monotonic()
    asking = sorted((since, what) for what, since in dict(reconciler.asking).items())
    late = [(what, now - since) for since, what in asking if now - since >= SECONDS_OF_SILENCE]
    if not late:
        return ""
    parked: Mapping[int, PendingAction] = {}
    with suppress(ControllerError):
        parked = call.store.read().document.pending_actions
    words = [f"{_asked(parked, what)} ({seconds:.0f} s)" for what, seconds in late]
    return f"asking the provider: {', '.join(words)}"


def _asked(parked: Mapping[int, PendingAction], what: str) -> str:
    """*what* with the action that its slot has parked, if it is a slot."""
    slot = what.removeprefix("slot ")
    entry = parked.get(int(slot)) if slot.isdecimal() else None
    return what if entry is None else f"{what}: {action_of(entry).type}"
