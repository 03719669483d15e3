"""Commands that look into the document: explain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import click

from controller.cli.call import Call
from controller.cli.verb import Verb, completed, subject_of

if TYPE_CHECKING:
    from controller.cli.tables import Table
    from controller.engine.classify import Classified
    from controller.engine.explain import Explanation
    from controller.model.codes import Code
    from controller.model.records import Document, Event

LAST_EVENTS = 6
LAST_REFUSALS = 200


@click.command(
    cls=Verb,
    question=True,
    examples=[
        "controller explain r-1",
        "controller explain slot:3",
        "controller explain slot:3 --live",
        "controller explain reason timed_out",
        "controller explain reason",
        "controller explain check run-holder",
    ],
)
@click.argument("subject", metavar="RUN|slot:N|reason|check", shell_complete=completed("subjects"))
@click.argument("code", metavar="[CODE]", required=False)
@click.option("--live", is_flag=True, help="Of a slot: ask the provider too, and say what it shows there.")
@click.pass_obj
def explain(call: Call, subject: str, code: str | None, live: bool) -> None:
    """Say in words why a run or a slot is as it is, what led there, and what to do next; or what a code means.

    `reason CODE` explains a reason, refusal or error code, and `check ID` a check of fsck; either alone lists all of
    its kind. Runs of these names are run:reason and run:check.
    """
    from controller.model.errors import UsageFault

    if live and not subject.startswith("slot:"):
        raise UsageFault("a provider shows slots alone", where="--live", next="controller explain slot:1 --live")
    if subject in _EXPLAINED:
        _EXPLAINED[subject](call, code)
        return
    if code is not None:
        raise UsageFault(f"one run or slot at a time, not also {code!r}", next="controller explain --help")
    _explain_subject(call, subject, live)


def _explain_subject(call: Call, subject: str, live: bool) -> None:
    from msgspec import to_builtins

    from controller.cli import views
    from controller.engine.explain import Surroundings, explain_run, explain_slot
    from controller.engine.status import flights_of

    wanted = subject_of(subject)
    document = call.store.read().document
    settings, fault = call.readable_settings
    policy = settings.policy
    name = f"run:{wanted}" if isinstance(wanted, str) else f"slot:{wanted}"
    here = call.here()
    around = Surroundings(
        events=call.store.history(name),
        refusals=call.store.refusals(LAST_REFUSALS),
        notes={slot: call.store.slot_note(slot) for slot in document.pending_actions},
        slots=policy.slots,
        queues=policy.queues,
        now=here.now,
        mono_ms=here.mono_ms,
        boot_id=here.boot_id,
        paused=_paused(call, document, wanted) if isinstance(wanted, str) else None,
        flights=flights_of(call.store, document.pending_actions),
        policy=policy,
        provider=settings.provider.kind if fault is None else "",
    )
    not_live = None
    if isinstance(wanted, str):
        found = explain_run(document, wanted, around)
    else:
        shown, not_live = _shown(call, wanted) if live else (None, None)
        found = explain_slot(document, wanted, around, shown, silent=not_live is not None)
    body = {
        "subject": found.subject,
        "state": found.state,
        "because": list(found.because),
        "next": list(found.next),
        "story": to_builtins(found.story),
        "moves": to_builtins(found.moves),
        "steps": to_builtins(found.steps),
        "events": [views.event_whole(event) for event in found.events],
        "refusals": [dict(refusal) for refusal in found.refusals],
        "config_fault": call.output.fault(fault),
        "not_live": not_live,
    }
    call.output.answer("explain", body, _explain_page(found, not_live))


def _shown(call: Call, slot: int) -> tuple[Classified | None, str | None]:
    """What a look makes of *slot*, or why there is none. A provider that does not answer is told, not raised."""
    from controller.cli.asking import stopping
    from controller.engine.classify import classify
    from controller.model.errors import ControllerError

    try:
        reconciler = call.controller.reconciler(parallelism=1)
        with stopping(call, reconciler):
            look, failure = reconciler.look()
    except ControllerError as error:
        return None, error.what
    if look is None:
        return None, "the provider was not asked" if failure is None else failure.what
    judged = classify(call.store.read().document, look, slot)
    return next((each for each in judged if each.slot == slot), None), None


def _paused(call: Call, document: Document, run_id: str) -> Event | None:
    """By what the queue of the run was paused, if it is."""
    run = document.runs.get(run_id)
    queue = None if run is None else document.queues.get(run.queue)
    if run is None or queue is None or not queue.paused:
        return None
    events = (event for event in call.store.history("fleet") if event.event == "queue_paused")
    return max((event for event in events if event.detail == run.queue), key=lambda event: event.revision, default=None)


def _explain_page(found: Explanation, not_live: str | None) -> Iterator[str | Table]:
    from controller.cli import views
    from controller.cli.tables import table
    from controller.cli.text import duration, moment, shown
    from controller.engine.moves import in_words

    yield f"{found.subject} is {found.state}"
    for sentence in found.because:
        yield f"  {shown(sentence)}"
    if not_live is not None:
        yield f"  not live: {shown(not_live)}"
    for line in found.next:
        yield f"next: {shown(line)}"
    story = found.story
    yield ""
    if not story.told:
        yield "history tells nothing of it: the document alone says how it stands"
    else:
        agrees = "; the document agrees" if story.agrees else ""
        yield f"what led there{agrees}" if story.state is None else f"what led to {story.state}{agrees}"
        yield table(
            ("SINCE", "TOOK", "WHAT"),
            (
                (moment(told.at), duration(told.until - told.at) if told.until > told.at else "-", shown(told.what))
                for told in story.told
            ),
        )
    if found.moves:
        yield ""
        yield "what could move it"
        yield from (f"  {shown(sentence)}" for sentence in in_words(found.moves))
    if found.events:
        yield ""
        yield f"the last events behind it (all: controller history {found.subject})"
        yield from views.event_rows([views.event_whole(event) for event in found.events[-LAST_EVENTS:]])
    for refusal in found.refusals[-LAST_EVENTS:]:
        yield ""
        yield f"refused: {shown(str(refusal.get('command')))}: {shown(str(refusal.get('what')))}"
        if "means" in refusal:
            yield f"  {shown(str(refusal.get('code')))}: {refusal['means']}. {shown(str(refusal['next']))}"


def _explain_code(call: Call, code: str | None) -> None:
    from msgspec import to_builtins

    from controller.model.codes import catalogue

    known = catalogue()
    if code is None:
        body = {"subject": "reason", "codes": [to_builtins(each) for each in known.values()]}
        call.output.answer("explain", body, _codes_page(known.values()))
        return
    found = known.get(code)
    if found is None:
        from controller.api.words import meant
        from controller.model.errors import NotFound

        raise NotFound(f"there is no code {code!r}{meant(code, known)}", next="controller explain reason")
    body = {"subject": f"reason:{code}", "code": to_builtins(found)}
    call.output.answer("explain", body, _code_page(found))


def _code_page(found: Code) -> Iterator[str]:
    fails = "" if found.exit is None else f", exit {found.exit}"
    yield f"{found.code} ({found.kind}{fails}): {found.text}"
    yield f"  {found.why}"
    yield f"next: {found.next}"


def _codes_page(codes: Iterable[Code]) -> Iterator[str | Table]:
    from controller.cli.tables import table

    rows = ((code.code, code.kind.value, "-" if code.exit is None else str(code.exit), code.text) for code in codes)
    yield table(("CODE", "KIND", "EXIT", "MEANING"), rows)


def _explain_check(call: Call, name: str | None) -> None:
    from msgspec import to_builtins

    from controller.cli.tables import table
    from controller.model.checks import CHECKS, Check

    if name is None:
        checks = [{"id": each.value, **to_builtins(told)} for each, told in CHECKS.items()]
        rows = ((each.value, ", ".join(told.judged), told.text) for each, told in CHECKS.items())
        call.output.answer(
            "explain", {"subject": "check", "checks": checks}, [table(("CHECK", "JUDGED BY", "WHAT MUST HOLD"), rows)]
        )
        return
    if name not in CHECKS:
        from controller.api.words import meant
        from controller.model.errors import NotFound

        raise NotFound(
            f"there is no check {name!r}{meant(name, [each.value for each in CHECKS])}", next="controller explain check"
        )
    check, told = Check(name), CHECKS[Check(name)]
    page = [f"{check} (judged by {', '.join(told.judged)}): {told.text}", f"  {told.why}", f"next: {told.next}"]
    body = {"subject": f"check:{check}", "check": {"id": check.value, **to_builtins(told)}}
    call.output.answer("explain", body, page)


_EXPLAINED: Mapping[str, Callable[[Call, str | None], None]] = {"reason": _explain_code, "check": _explain_check}

COMMANDS: Mapping[str, click.Command] = {"explain": explain}
