"""`doctor`: whether this host and this state directory can do their work."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from controller.cli.call import Call
from controller.cli.output import Output
from controller.cli.verb import Verb

if TYPE_CHECKING:
    from controller.api.doctor import Check

TROUBLE = 5


@click.command(cls=Verb, question=True, examples=["controller doctor", "controller doctor --json"])
@click.pass_obj
def doctor(call: Call) -> int:
    """Check that this host and this state directory can do their work; changes nothing.

    Python and libraries, processes and limits, clock, directory, file system, room, document, history, locks, settings
    and the provider, which is asked what it is and what it has. Each check stands alone: one that fails hides no other.

    Exit 0 when nothing failed, warnings or not; 5 when something did, even where other commands would say 3, 7 or 8.
    """
    from controller.api.doctor import Doctor
    from controller.api.host import State, worst

    # As an interrupt does, an end must end the provider program that is being asked.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    examination = Doctor(call.state_dir, call.config_path, chosen=call.config_chosen, clock=call.clock)
    checks = tuple(examination.examine())
    state = worst(check.state for check in checks)
    body = {
        "checks": [
            {"name": check.name, "state": check.state.value, "found": check.found, "next": check.next}
            for check in checks
        ],
        "worst": state.value,
    }
    call.output.answer("doctor", body, _page(checks, call.output))
    return TROUBLE if state is State.FAIL else 0


def _page(checks: Sequence[Check], output: Output) -> Iterator[str]:
    from controller.cli.text import counted, shown

    marks = {"ok": "ok  ", "warn": output.bold("warn"), "fail": output.bold("FAIL")}
    width = max(len(check.name) for check in checks)
    for check in checks:
        then = f"; next: {shown(check.next)}" if check.next else ""
        yield f"{marks[check.state]}  {check.name:<{width}}  {shown(check.found)}{then}"
    failed = sum(check.state == "fail" for check in checks)
    warned = sum(check.state == "warn" for check in checks)
    yield f"{counted(len(checks), 'check')}: {failed} failed, {counted(warned, 'warning')}"


COMMANDS: Mapping[str, click.Command] = {"doctor": doctor}
