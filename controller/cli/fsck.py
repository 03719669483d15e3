"""`fsck`: proves that document and history obey their rules, and puts right what a crash left behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from controller.cli.call import Call
from controller.cli.confirming import dry_run_option
from controller.cli.verb import Verb

if TYPE_CHECKING:
    from controller.engine.fsck import Verdict
    from controller.store.protocol import Leftover

TROUBLE = 5


@click.command(
    cls=Verb,
    question=True,
    examples=["controller fsck", "controller fsck --json", "controller fsck --repair --dry-run"],
)
@click.option(
    "--repair",
    is_flag=True,
    allow_from_autoenv=False,
    help="Put right what a crash left behind and nobody can need; each has an event.",
)
@dry_run_option
@click.pass_obj
def fsck(call: Call, repair: bool, dry_run: bool) -> int:
    """Prove that document and history obey their rules; exit 5 if they do not. `controller explain check` lists them.

    --repair keeps what was torn off the last commit aside, and removes temporary files. It mends no record: what a
    violation needs is said beside it.
    """
    from msgspec import to_builtins

    from controller.engine import fsck as engine
    from controller.model.errors import UsageFault

    if dry_run and not repair:
        raise UsageFault("nothing is changed without --repair", where="--dry-run", next="controller fsck --help")
    repaired: Sequence[Leftover] = ()
    if repair and not dry_run:
        call.question = False
        with call.showing(call.waits):
            repaired = engine.repair(call.context)
    verdict = engine.check(call.store)
    body = {
        "ok": not verdict.violations,
        **to_builtins(verdict),
        "repaired": to_builtins(repaired),
        "dry_run": dry_run,
    }
    call.output.answer("fsck", body, _page(verdict, repaired, asked=repair, dry_run=dry_run))
    return TROUBLE if verdict.violations else 0


def _page(verdict: Verdict, repaired: Sequence[Leftover], *, asked: bool, dry_run: bool) -> Iterator[str]:
    from controller.cli.text import counted, shown
    from controller.engine.fsck import LEFT, in_words

    integrity = verdict.integrity
    yield (
        f"revision {verdict.revision}: {counted(verdict.runs, 'run')} in the document (succeeded runs have left it), "
        f"{counted(verdict.workers, 'worker')}, "
        f"{counted(verdict.events, 'event')}; "
        f"digest {integrity.digest}, sentinel {integrity.sentinel}, history {integrity.history}"
    )
    for each in repaired:
        yield f"repaired: {shown(in_words(each))}"
    for each in verdict.leftovers:
        yield f"notice: {shown(in_words(each))}"
    mendable = any(each.kind in LEFT for each in verdict.leftovers)
    if mendable:
        yield "next: controller fsck --repair"
    elif asked and not repaired:
        yield "nothing would be repaired" if dry_run else "nothing to repair"
    for violation in verdict.violations:
        yield f"violation: {violation.id}: {shown(violation.subject)}: {shown(violation.what)}"
    broken = [each for each in verdict.checks if each.violations]
    for check in broken:
        yield f"next: {check.id}: {check.next}"
    skipped = [each.id for each in verdict.checks if each.passed is None]
    if skipped:
        yield f"not judged, since history cannot tell: {', '.join(skipped)}"
    yield _sum(verdict, len(broken), len(skipped), changed=bool(repaired))


def _sum(verdict: Verdict, broken: int, skipped: int, *, changed: bool) -> str:
    from controller.cli.text import counted

    checks = counted(len(verdict.checks), "check")
    left = f", {skipped} not judged" if skipped else ""
    if not broken:
        return f"{checks}, all passed: clean" if not skipped else f"{checks}{left}, all others passed: clean"
    found = f"{checks}, {broken} failed{left}: {counted(len(verdict.violations), 'violation')}"
    return found if changed else f"{found}; nothing was changed"


COMMANDS: Mapping[str, click.Command] = {"fsck": fsck}
