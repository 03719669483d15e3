"""`history`: what happened, what happens, and the proof that none of it was changed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from controller.cli.call import Call
from controller.cli.verb import Verb, Whole, completed, subject_of

if TYPE_CHECKING:
    from controller.model.records import Event

    _IntType = click.ParamType[int]
else:  # generic in newer releases of click alone
    _IntType = click.ParamType

VERIFY = "verify"
FLEET = "fleet"


class _Since(_IntType):
    """A point in time: itself, or how long ago it is. As UTC milliseconds."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from controller.api.options import parse_duration
        from controller.cli.values import Moment

        if isinstance(value, int):
            return value
        if not value[-1:].isalpha() or value[-1:] in "Zz":
            return int(Moment().convert(value, param, ctx))
        try:
            age = parse_duration(value)
        except ValueError as allowed:
            self.fail(f"{value!r} is neither {allowed}, nor a moment such as 2026-12-01T06:00:00Z.", param, ctx)
        call = None if ctx is None else ctx.find_object(Call)
        return (call or Call()).clock.now_ms() - age


@click.command(
    cls=Verb,
    question=True,
    examples=[
        "controller history",
        "controller history r-1",
        "controller history slot:3 --since 2h",
        "controller history --follow --json",
        "controller history verify",
    ],
)
@click.argument("subject", metavar="[RUN|slot:N|fleet|verify]", required=False, shell_complete=completed("subjects"))
@click.option("--since", type=_Since(), metavar="WHEN", help="Only from 2026-12-01T06:00:00Z on, or from 2h ago.")
@click.option("--since-revision", type=Whole(0), metavar="N", help="Only revision N and what came after it.")
@click.option("-f", "--follow", is_flag=True, help="Go on as more happens, until interrupted.")
@click.pass_obj
def history(call: Call, subject: str | None, since: int | None, since_revision: int | None, follow: bool) -> int:
    """Show every transition, oldest first: of one run or slot, of the fleet itself, or of everything.

    `verify` proves instead that each line of it is as it was written and follows the one before it: it takes no lock,
    and exits with 7, naming file and offset, where that is not so. Runs of those names are run:verify and run:fleet.

    Times are always exact, also without --exact-times: this is what other records are compared with. With --follow and
    --json each event is one JSON document on a line of its own, its `schema` `controller.event/1`; interrupted, it
    exits with 130. What [history] keep in the settings does not keep is not shown.
    """
    from controller.cli import views
    from controller.model.errors import NotFound, UsageFault

    if subject == VERIFY:
        if follow or since is not None or since_revision is not None:
            raise UsageFault("a history is proven whole", where="history verify", next="controller history verify")
        return _verify(call)
    wanted = _subject(subject)

    def asked(event: Event) -> bool:
        return (
            wanted in (None, event.subject)
            and (since is None or event.at >= since)
            and (since_revision is None or event.revision >= since_revision)
        )

    # Before the events: what is committed between the two is followed, and not told twice.
    end = call.store.past.end() if follow else None
    found = call.store.history(wanted)
    if wanted is not None and wanted.startswith("run:") and not found:
        document = call.store.read().document
        run_id = wanted.removeprefix("run:")
        if run_id not in document.runs and run_id not in document.finished:
            raise NotFound(f"no run {run_id}, and history knows of none", next="controller runs")
    if follow:
        known = 0 if end is None else end.revision
        return _Follower(call, asked).follow([event for event in found if event.revision <= known], end)
    events = [views.event_whole(event) for event in found if asked(event)]
    call.output.answer("history", {"events": events}, views.event_rows(events) if events else ["no events"])
    return 0


def _subject(text: str | None) -> str | None:
    if text in (None, FLEET):
        return text
    known = subject_of(text)
    return f"run:{known}" if isinstance(known, str) else f"slot:{known}"


class _Follower:
    """Writes events as they come. `asked` tells which."""

    def __init__(self, call: Call, asked: Callable[[Event], bool]) -> None:
        self.call = call
        self.asked = asked

    def follow(self, events: Iterable[Event], end: Any) -> int:
        """Write *events*, then what comes behind *end*, until interrupted or nobody reads any more."""
        from controller.cli.root import INTERRUPTED
        from controller.cli.waiting import is_abandoned
        from controller.engine.reconcile import SHORTEST_WAIT

        gc.enable()  # a question is quick and does without; this one stays
        try:
            while True:
                self._write(events)
                if self.call.output.failed or is_abandoned():
                    self.call.output.failed = False
                    return 0
                news = self.call.store.past.since(end)
                if news.missed:
                    self.call.output.warn(
                        f"trouble: {news.missed} revisions were dropped before they were read; see [history] keep"
                    )
                events, end = news.events, news.end
                if not events:
                    self.call.clock.sleep(SHORTEST_WAIT)
        except KeyboardInterrupt:
            return INTERRUPTED

    def _write(self, events: Iterable[Event]) -> None:
        from controller.cli import views
        from controller.cli.output import encode

        told = [views.event_whole(event) for event in events if self.asked(event)]
        if not told:
            return
        if self.call.output.json:
            self.call.output.raw(b"".join(encode({"schema": "controller.event/1", **event}) for event in told))
            return
        # A table's widths would be those of these events alone.
        rows = (row for part in views.event_rows(told) if not isinstance(part, str) for row in part.rows)
        self.call.output.answer("history", {}, ["  ".join(row) for row in rows])


def _verify(call: Call) -> int:
    from msgspec import to_builtins

    from controller.cli.text import counted

    call.store.read()
    found = call.store.past.verify()
    what = ", ".join(counted(number, name) for number, name in ((found.commits, "commit"), (found.events, "event")))
    where = f"{counted(found.files, 'file')} of {found.bytes} bytes"
    page = [f"history is whole from revision {found.first} to {found.last}: {what}; {where}"]
    if found.first > 1:
        page.append(f"what was before revision {found.first} was dropped, or never kept")
    call.output.answer("history-verify", {"ok": True, **to_builtins(found)}, page if found.files else ["no history"])
    return 0


COMMANDS: Mapping[str, click.Command] = {"history": history}
