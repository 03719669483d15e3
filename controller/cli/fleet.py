"""Commands about the whole fleet: status."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from controller.cli.call import Call
from controller.cli.verb import Verb

if TYPE_CHECKING:
    from controller.cli.output import Output
    from controller.cli.tables import Table
    from controller.cli.text import Times
    from controller.engine.status import DisownedAction, Integrity, OpenBreaker, Status, Unrecorded, Unreleased


@click.command(
    cls=Verb,
    question=True,
    examples=["controller status", "controller status --json", "controller status --live"],
)
@click.option("--live", is_flag=True, help="Ask the provider too, and show recorded beside observed.")
@click.pass_obj
def status(call: Call, live: bool) -> None:
    """Show where the fleet stands: runs, workers, pending mutations, trouble. Exits 0 whatever it tells."""
    settings, fault = call.readable_settings
    answer = call.controller.status(policy=settings.policy)
    typed = _typed(call, answer)
    body = {**_whole(answer, typed), "config_fault": call.output.fault(fault)}
    page: Iterable[str | Table] = _page(answer, typed, call.output)
    if live:
        body["live"], more = _live(call)
        page = chain(page, more)
    call.output.answer("status", body, page)


def _live(call: Call) -> tuple[dict[str, object], Iterable[str | Table]]:
    """What the provider shows, beside what is recorded. A provider that does not answer is told, not raised."""
    from controller.cli import drift
    from controller.cli.asking import stopping
    from controller.cli.text import shown
    from controller.engine.drift import drift as drift_of
    from controller.engine.planner import plan
    from controller.model.errors import ControllerError

    look, ground, what = None, None, ""
    try:
        reconciler = call.controller.reconciler(parallelism=1)
        with stopping(call, reconciler):
            look, failure = reconciler.look()
        ground = reconciler.ground
        what = "" if failure is None else failure.what
    except ControllerError as error:
        what = error.what
    if look is None or ground is None:
        return {"complete": False, "trouble": what, "slots": [], "classes": {}}, ["", f"not live: {shown(what)}"]
    document, now = call.store.read().document, call.clock.now_ms()
    try:
        planned = plan(document, look, ground, now, command=call.command)
    except ControllerError:
        planned = None  # of a document that something else broke, this much is told all the same
    drifts = drift_of(document, look, planned, ground.policy, now)
    return {"trouble": None, **drift.whole(look, drifts)}, chain(["", "live"], drift.page(look, drifts))


def _whole(status: Status, typed: Mapping[str, list[list[str]]]) -> dict[str, Any]:
    from msgspec import to_builtins

    body: dict[str, Any] = to_builtins(status)
    if status.pending_mutations:
        from controller.cli.pending import pending_whole

        body["pending_mutations"] = [pending_whole(each) for each in status.pending_mutations]
    for section, each in typed.items():
        body[section] = [{**row, "next": after} for row, after in zip(body[section], each, strict=True)]
    return body


def _typed(call: Call, status: Status) -> dict[str, list[list[str]]]:
    """What to type about each entry of the sections that wait for an operator."""
    sections = (status.cordoned, status.unreleased, status.unrecorded, status.disowned_actions, status.breakers)
    if not any(sections):
        return {}
    from controller.engine.slots import commands, ways_out
    from controller.model.reason import Reason

    policy, workers = call.readable_settings[0].policy, call.store.read().document.workers
    kept = [workers.get(each.slot) for each in status.unreleased]
    unproven = [each.slot if each.proven is None else None for each in status.disowned_actions]
    return {
        "cordoned": [commands(Reason.CORDONED, slot=each.slot) for each in status.cordoned],
        "unreleased": [[] if worker is None else ways_out(worker, policy) for worker in kept],
        "unrecorded": [
            commands(Reason.FOREIGN_TAG if each.beside else Reason.UNRECORDED, slot=each.slot)
            for each in status.unrecorded
        ],
        "disowned_actions": [[] if slot is None else commands(Reason.DISOWNED, slot=slot) for slot in unproven],
        "breakers": [commands(Reason.BREAKER_OPEN, slot=0) for _ in status.breakers],
    }


def _page(status: Status, typed: Mapping[str, list[list[str]]], output: Output) -> Iterator[str]:
    from controller.cli import text
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
    if status.cordoned:
        slots = (f"slot {each.slot}" + (" (draining)" if each.draining else "") for each in status.cordoned)
        lines.append(("cordoned", ", ".join(slots)))
    if status.paused_queues:
        lines.append(("paused", ", ".join(f"queue {shown(name)}" for name in status.paused_queues)))
    if status.disowned:
        lines.append(("disowned", f"{text.counted(status.disowned, 'action')} that can never apply"))
    yield from text.pairs(lines)
    yield from _for_operators(status, typed, output, times)
    for words, what_next in _unsound(integrity, status.revision):
        yield ""
        yield output.bold(words, wrong=True)
        yield f"next: {what_next}"
    if status.pending_mutations:
        from controller.cli.pending import pending_page, pending_whole

        yield ""
        yield output.bold(f"pending mutations: {len(status.pending_mutations)}")
        for pending in status.pending_mutations:
            yield from (f"  {line}" for line in pending_page(pending_whole(pending), times))
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


def _for_operators(status: Status, typed: Mapping[str, list[list[str]]], output: Output, times: Times) -> Iterator[str]:
    """What does not go on by itself, each with what to type."""
    strange = sum(1 + each.more for each in status.unrecorded)
    sections: tuple[tuple[str, str, Iterable[str], bool], ...] = (
        (
            "unrecorded",
            f"unrecorded: {strange}, shown by the provider and known to no record: it may cost money",
            (_unrecorded(each, times) for each in status.unrecorded),
            True,
        ),
        (
            "breakers",
            "circuit breaker: nothing new is asked of a provider that fails",
            (_breaker(each, times) for each in status.breakers),
            True,
        ),
        (
            "disowned_actions",
            f"disowned: {len(status.disowned_actions)}",
            (_disowned(each, times) for each in status.disowned_actions),
            any(each.proven is None for each in status.disowned_actions),
        ),
        (
            "unreleased",
            f"not released: {len(status.unreleased)}",
            (_unreleased(each, times) for each in status.unreleased),
            False,
        ),
        ("cordoned", "cordoned", (f"slot {each.slot}" for each in status.cordoned), False),
    )
    for section, head, rows, wrong in sections:
        if not typed.get(section):
            continue
        yield ""
        yield output.bold(head, wrong=wrong)
        for row, after in zip(rows, typed[section], strict=True):
            yield f"  {row}"
            yield from (f"    next: {line}" for line in after)


def _unrecorded(each: Unrecorded, times: Times) -> str:
    from controller.cli.text import counted, shown

    named = f"{shown(each.id) or 'something'} ({shown(each.assignment)} generation {each.generation}), {each.state}"
    parts = [f"{shown(kind)} {shown(f'{one.id} {one.immutable_id}'.strip())}" for kind, one in each.resources.items()]
    steps = [counted(each.running, "running step")] if each.running else []
    beside = ["beside what is recorded there"] if each.beside else []
    told = ", ".join((named, *parts, *steps, *beside, f"since {times.told(each.seen_at)}"))
    more = f"; and {each.more} more in this slot" if each.more else ""
    return f"slot {each.slot}: {told}, identity {each.identity}{more}"


def _breaker(each: OpenBreaker, times: Times) -> str:
    from controller.cli.text import shown

    since = "" if each.opened_at is None else f" since {times.told(each.opened_at)}"
    again = "" if each.retry_at is None else f"; one action is tried {_again(each.retry_at, times)}"
    failed = f"{each.failures} failures in a row, the last: {shown(each.why)}"
    return f"provider {shown(each.provider)}: {each.state.value.replace('_', '-')}{since}, {failed}{again}"


def _again(at: int, times: Times) -> str:
    return times.told(at) if at > times.now else "next"


def _disowned(each: DisownedAction, times: Times) -> str:
    from controller.cli.text import shown
    from controller.model.reason import EXPLAINED

    where = "slot unknown" if each.slot is None else f"slot {each.slot}"
    run = f" for run {each.run}" if each.run else ""
    by = f" by {shown(each.by)}" if each.by else ""
    sent = "" if each.sent_at is None else f", last sent {times.told(each.sent_at)}"
    proven = "what it did is not proven" if each.proven is None else f"proven {each.proven.value}"
    when = "" if each.proven_at is None else f" {times.told(each.proven_at)}"
    derives = "" if each.key_derives else "  DOES NOT DERIVE FROM ITS CONTENT"
    why = EXPLAINED[each.reason].text + (f": {shown(each.detail)}" if each.detail else "")
    told = f"{each.type}{run}, disowned {times.told(each.disowned_at)}{by}{sent}: {why}; {proven}{when}"
    return f"{where}: {told}, key {each.idempotency_key}{derives}"


def _unreleased(each: Unreleased, times: Times) -> str:
    from controller.model.reason import EXPLAINED

    until = "" if each.until_at is None else f"; if it stays idle it is stopped {_again(each.until_at, times)}"
    why = f"{EXPLAINED[each.reason].text} ({each.reason.value})"
    return f"slot {each.slot}: run {each.run}, {each.state.value}, over {times.told(each.since_at)}: {why}{until}"


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
        yield (
            f"{both}: an older document was put back; nothing can be changed",
            "put the newer document back, or `controller state restore` goes on from this one",
        )
    if integrity.history == "forked":
        yield (
            "the journal's last line does not follow: something else than controller wrote it; nothing can be changed",
            "`controller fsck` says where, `controller state restore` goes on from the line before it",
        )
    if integrity.history == "missing":
        yield (
            "history.jsonl is missing: what led here is not known",
            "put it back if there is a copy; without it history begins with the next command that changes anything",
        )


def _refusal(refusal: Mapping[str, object], times: Times) -> str:
    at = refusal.get("at")
    when = times.told(at) if isinstance(at, int) else "some time ago"
    return f"{when}: {refusal.get('command')}, {refusal.get('subject')}: {refusal.get('what')}"


COMMANDS: Mapping[str, click.Command] = {"status": status}
