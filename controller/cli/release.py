"""`release`: ends the assignment of a worker that was kept after its run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from controller.cli.call import Call
from controller.cli.confirming import slot_option
from controller.cli.values import Text
from controller.cli.verb import Verb, completed, run_of
from controller.model.errors import Conflict, UsageFault

if TYPE_CHECKING:
    from controller.engine.release import Released

_FILL_IN = (
    "fill in each digest, from what you found of that resource itself, and the statement",
    """sha256: goes before what `{compute}` prints""",
    "then: controller release {run} --proof FILE",
)


@click.command(
    cls=Verb,
    examples=[
        "controller release r-1 --template > proof.json",
        "controller release r-1 --proof proof.json",
        "controller release r-1 --confirm-release --reason 'looked at its logs'",
    ],
)
@click.argument("run", metavar="RUN", shell_complete=completed("runs"))
@slot_option
@click.option(
    "--template", is_flag=True, allow_from_autoenv=False, help="Print what a proof has to say; release nothing."
)
@click.option(
    "--proof",
    metavar="FILE",
    allow_from_autoenv=False,
    shell_complete=completed("files"),
    help="The proof that the run's data may go. It is your own file, and nobody else may write to it.",
)
@click.option(
    "--confirm-release",
    "confirmed",
    is_flag=True,
    allow_from_autoenv=False,
    help="Release without a proof, where none is asked for.",
)
@click.option("--reason", type=Text(), metavar="TEXT", allow_from_autoenv=False, help="Why, for history.")
@click.option("--dry-run", is_flag=True, allow_from_autoenv=False, help="Say what would be released; release nothing.")
@click.pass_obj
def release(
    call: Call,
    run: str,
    slot: int | None,
    template: bool,
    proof: str | None,
    confirmed: bool,
    reason: str | None,
    dry_run: bool,
) -> None:
    """Release the worker that was kept after its run: what it holds of that run may go from then on.

    With [fleet] release = "proof" it takes a proof, bound to that very worker and each of its resources by digest, and
    nothing that is missing, stale or in conflict with what is there passes. Without, --confirm-release is enough. What
    was released is used again, or stopped and removed, by reconcile. The same proof twice is one release.
    """
    from controller.api.operator import operator
    from controller.api.proof import read_proof
    from controller.api.settings import absolute
    from controller.engine import release as engine

    run_id = run_of(run)
    call.subject = f"run:{run_id}"
    if template:
        if proof is not None or confirmed or dry_run or reason:
            what = "--template releases nothing, so it goes with --slot alone"
            raise UsageFault(what, where="--template", next=f"controller release {run_id} --template")
        _template(call, run_id, slot)
        return
    if proof == "":
        raise UsageFault("an empty path", where="--proof", next="give the file that holds the proof")
    brought = None if proof is None else read_proof(absolute(proof))
    # A proof says all that is to be known; without one the settings say whether that is enough.
    context = call.ruled if brought is None else call.lenient
    only_asked = dry_run or (brought is None and not confirmed)
    answer = engine.release(context, run_id, brought, slot=slot, reason=reason or "", by=operator(), dry_run=only_asked)
    if only_asked and not dry_run:
        from shlex import quote

        typed = "" if slot is None else f" --slot {slot}"
        typed += f" --reason {quote(reason)}" if reason else ""
        raise Conflict(
            f"nothing was done: it would release the worker of slot {answer.slot} from run {run_id}; {_goes(answer)}",
            where=f"slot {answer.slot}",
            next=f"controller release {run_id}{typed} --confirm-release",
        )
    body = {
        "run": run_id,
        "run_state": answer.run_state,
        "slot": answer.slot,
        "changed": answer.changed,
        "already": answer.already,
        "dry_run": dry_run,
        "state": answer.state,
        "worker": answer.worker,
        "resources": {name: resource.id for name, resource in answer.resources.items()},
        "proof": answer.proof or None,
    }
    call.output.answer("release", body, _page(answer))


def _template(call: Call, run_id: str, slot: int | None) -> None:
    """In text the bare template, so that it can be sent to a file; what to do with it stands beside."""
    import orjson

    from controller.engine.proof import COMPUTE
    from controller.engine.proof import template as unfilled

    content = unfilled(call.store.read().document, run_id, slot)
    lines = [line.format(compute=COMPUTE, run=run_id) for line in _FILL_IN]
    if call.output.json:
        call.output.answer("release", {"run": run_id, "template": content, "digest": COMPUTE, "next": lines}, ())
        return
    call.output.raw(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    for line in lines:
        call.output.note(line)


def _goes(answer: Released) -> str:
    """What a release gives up, by name."""
    from controller.cli.text import shown

    names = ", ".join(f"{shown(name)} {shown(resource.id)}" for name, resource in sorted(answer.resources.items()))
    worker = f"worker {shown(answer.worker)}" if answer.worker else "the worker"
    return f"{worker} is {answer.state}" + (f"; what may go then: {names}" if names else "")


def _page(answer: Released) -> Iterator[str]:
    from controller.cli.text import shown

    if answer.already:
        yield f"the worker of slot {answer.slot} was released from run {answer.run} by this proof before"
        yield f"worker {shown(answer.worker)} is {answer.state or 'gone'}"
        yield f"proof {answer.proof}"
        yield "nothing was changed"
        return
    would = "" if answer.changed else "would be "
    yield f"the worker of slot {answer.slot} {would or 'is '}released from run {answer.run}"
    yield f"run {answer.run} is {answer.run_state}; {_goes(answer)}"
    if answer.proof:
        yield f"proof {answer.proof}"
    if answer.changed:
        yield "next: controller reconcile --apply"
    else:
        yield "nothing was changed"


COMMANDS: Mapping[str, click.Command] = {"release": release}
