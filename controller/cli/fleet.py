"""Commands about the whole fleet: status."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

import click

from controller.cli.call import Call
from controller.cli.verb import Verb

if TYPE_CHECKING:
    from controller.cli.output import Output
    from controller.cli.tables import Table
    from controller.cli.text import Times
    from controller.engine.status import Integrity, Status


@click.command(
    cls=Verb,
    question=True,
    examples=["controller status", "controller status --json", "controller status --live"],
)
@click.option("--live", is_flag=True, help="Ask the provider too, and show recorded beside observed.")
@click.pass_obj
def status(call: Call, live: bool) -> None:
    """Show where the fleet stands: runs, workers, pending mutations, trouble. Exits 0 whatever it tells."""
    from msgspec import to_builtins

    settings, fault = call.readable_settings
    answer = call.controller.status(slots=settings.policy.slots)
    body = {**to_builtins(answer), "config_fault": call.output.fault(fault)}
    page: Iterable[str | Table] = _page(answer, call.output)
    if live:
        body["live"], more = _live(call)
        page = chain(page, more)
    call.output.answer("status", body, page)


def _live(call: Call) -> tuple[dict[str, object], list[str | Table]]:
    """What the provider shows, beside what is recorded. A provider that does not answer is told, not raised."""
    from collections import Counter

    from controller.cli.asking import stopping
    from controller.cli.tables import table
    from controller.cli.text import shown
    from controller.engine.classify import SlotClass, classify
    from controller.model.errors import ControllerError

    look, what = None, ""
    try:
        reconciler = call.controller.reconciler(parallelism=1)
        with stopping(call, reconciler):
            look, failure = reconciler.look()
        what = "" if failure is None else failure.what
    except ControllerError as error:
        what = error.what
    if look is None:
        return {"complete": False, "trouble": what, "slots": [], "classes": {}}, ["", f"not live: {shown(what)}"]
    classified = classify(call.store.read().document, look, call.settings.policy.slots)
    counts = Counter(each.slot_class for each in classified)
    body: dict[str, object] = {
        "complete": look.complete,
        "trouble": None,
        "classes": {kind.value: counts[kind] for kind in SlotClass},
        "slots": [
            {
                "slot": each.slot,
                "recorded": each.recorded,
                "observed": each.observed,
                "class": each.slot_class,
                "why": each.why,
            }
            for each in classified
        ],
    }
    rows = [
        (str(each.slot), each.recorded or "-", each.observed or "-", each.slot_class.value, shown(each.why))
        for each in classified
    ]
    head = "live" if look.complete else "live, incomplete: it says nothing about what it does not show"
    return body, ["", head, table(("SLOT", "RECORDED", "OBSERVED", "CLASS", "WHY"), rows)]


def _page(status: Status, output: Output) -> Iterator[str]:
    from msgspec import to_builtins

    from controller.cli import text, views
    from controller.cli.text import shown

    times = text.Times(status.now_at, output.exact)

    def counts(of: Mapping[str, int], none: str = "none") -> str:
        return ", ".join(f"{count} {name}" for name, count in of.items() if count) or none

    waiting = "" if status.oldest_waiting_ms is None else f"; oldest waits {text.duration(status.oldest_waiting_ms)}"
    integrity = status.integrity
    taken = sum(status.workers.values())
    lines = [
        ("fleet", f"{shown(status.fleet)}, revision {status.revision}" + (", DRAINING" if status.draining else "")),
        ("lineage", status.lineage + (f", epoch {status.epoch}" if status.epoch else "")),
        ("document", f"schema {status.document_schema}"),
        (
            "runs",
            counts(status.runs, "none waiting or active" if any(status.runs_by_state.values()) else "none") + waiting,
        ),
        ("by state", counts(status.runs_by_state)),
        ("workers", f"{taken} in {text.counted(status.slots, 'slot')}: {counts(status.workers)}"),
        (
            "integrity",
            f"digest {integrity.digest}, sentinel {integrity.sentinel}, history {integrity.history}",
        ),
    ]
    if status.disowned:
        lines.append(("disowned", f"{status.disowned} actions that can never apply"))
    yield from text.pairs(lines)
    for words, what_next in _unsound(integrity, status.revision):
        yield ""
        yield output.bold(words, wrong=True)
        yield f"next: {what_next}"
    if status.pending_mutations:
        yield ""
        yield output.bold(f"pending mutations: {len(status.pending_mutations)}")
        for pending in status.pending_mutations:
            yield from (f"  {line}" for line in views.pending_page(to_builtins(pending), times))
    if status.troubles:
        yield ""
        yield output.bold("troubles, the latest last", wrong=True)
        for trouble in status.troubles:
            where = "" if trouble.slot is None else f", slot {trouble.slot}"
            key = f" (key {trouble.key[:12]})" if trouble.key else ""
            yield f"  {times.told(trouble.at)}{where}: {trouble.reason.value}: {shown(trouble.what)}{key}"
    if status.refusals:
        yield ""
        yield output.bold("refused commands, the latest last")
        for refusal in status.refusals:
            yield "  " + shown(_refusal(refusal, times))


def _unsound(integrity: Integrity, revision: int) -> Iterator[tuple[str, str]]:
    """What is wrong with the document and its history, in words, and what to do about each."""
    if integrity.digest == "edited":
        yield (
            "the document was edited by something else than controller: it can be read, but not changed",
            "`controller fsck` judges it, `controller state accept` takes it over",
        )
    if integrity.sentinel == "missing":
        yield (
            "the field pending_action lacks its mark: an older controller would take the document for its own",
            "put the document back from a copy, or see `controller fsck`",
        )
    if integrity.history == "ahead":
        both = f"history knows revision {integrity.history_revision}, the document is of revision {revision}"
        yield f"{both}: an older document was put back; nothing can be changed", "put the newer document back"
    if integrity.history == "missing":
        yield (
            "history.jsonl is missing or cannot be read: what led here is not known",
            "put it back if there is a copy; without it history begins again, and `controller fsck` says what is gone",
        )


def _refusal(refusal: Mapping[str, object], times: Times) -> str:
    at = refusal.get("at")
    when = times.told(at) if isinstance(at, int) else "some time ago"
    return f"{when}: {refusal.get('command')}, {refusal.get('subject')}: {refusal.get('what')}"


COMMANDS: Mapping[str, click.Command] = {"status": status}
