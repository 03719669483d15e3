"""Commands that open and close a slot: cordon, uncordon. `drain` is with those that ask the provider."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from controller.cli.call import Call
from controller.cli.confirming import (
    command_line,
    confirm_option,
    dry_run_option,
    reason_option,
    slot_argument,
    unconfirmed,
)
from controller.cli.verb import Verb

if TYPE_CHECKING:
    from controller.model.records import Document


@click.command(cls=Verb, examples=["controller cordon 3 --reason 'bad memory' --confirm-cordon"])
@slot_argument
@reason_option
@dry_run_option
@confirm_option("cordon", "let the slot take nothing new")
@click.pass_obj
def cordon(call: Call, slot: int, reason: str, dry_run: bool, confirmed: bool) -> None:
    """Let a slot take nothing new: no run, and no new worker. Its worker ends the run it has, and stays until idle.

    `drain` also takes its worker down; `uncordon` lifts both.
    """
    changed = _set(call, slot, True, reason, dry_run=dry_run, confirmed=confirmed)
    _answer(call, slot, "cordon", changed=changed, dry_run=dry_run)


@click.command(cls=Verb, examples=["controller uncordon 3 --confirm-uncordon"])
@slot_argument
@reason_option
@dry_run_option
@confirm_option("uncordon", "let the slot take work again")
@click.pass_obj
def uncordon(call: Call, slot: int, reason: str, dry_run: bool, confirmed: bool) -> None:
    """Lift `cordon` and `drain` of a slot: it takes work again.

    A worker that the provider refused to bind, and that was left alone since, is tried again.
    """
    changed = _set(call, slot, False, reason, dry_run=dry_run, confirmed=confirmed)
    _answer(call, slot, "uncordon", changed=changed, dry_run=dry_run)


def _set(call: Call, slot: int, on: bool, reason: str, *, dry_run: bool, confirmed: bool) -> bool:
    from controller.api.operator import operator
    from controller.engine import cordon as engine

    call.subject = f"slot:{slot}"
    only_asked = dry_run or not confirmed
    # Also while the settings cannot be read: what takes a slot out of service must not wait for that.
    changed = engine.cordon(call.lenient, slot, on=on, reason=reason, by=operator(), dry_run=only_asked)
    if changed and only_asked and not dry_run:
        verb = "cordon" if on else "uncordon"
        would = f"slot {slot} would {'take nothing new' if on else 'take work again'}"
        raise unconfirmed(
            would, f"slot {slot}", command_line(verb, str(slot), reason=reason, confirm=f"--confirm-{verb}")
        )
    return changed


def _answer(call: Call, slot: int, verb: str, *, changed: bool, dry_run: bool) -> None:
    from controller.model.records import Slot

    document = call.store.read().document
    known = document.slots.get(slot) or Slot()
    body = {
        "slot": slot,
        "changed": changed and not dry_run,
        "dry_run": dry_run,
        "cordoned": known.cordoned,
        "draining": known.draining,
    }
    call.output.answer(verb, body, _page(document, slot, verb, changed=changed, dry_run=dry_run), well=True)


def _page(document: Document, slot: int, verb: str, *, changed: bool, dry_run: bool) -> Iterator[str]:
    from controller.engine import disowned

    cordoning = verb == "cordon"
    if not changed:
        was = "was cordoned already" if cordoning else "was not cordoned"
        yield f"slot {slot} {was}; nothing was changed"
        return
    if dry_run:
        yield f"slot {slot} would {'take nothing new' if cordoning else 'take work again'}; nothing was changed"
        return
    yield f"slot {slot} {'takes nothing new' if cordoning else 'takes work again'}"
    worker = document.workers.get(slot)
    if cordoning:
        if worker is not None and worker.run is not None:
            yield f"its worker keeps run {worker.run}; to take it down after that: controller drain {slot}"
        elif worker is not None:
            yield f"its worker stays until it was idle for long enough; at once: controller drain {slot}"
        yield f"to lift it: controller uncordon {slot}"
    elif disowned.blocks(document, slot):
        yield f"but not before looks have shown what its disowned action did; see `controller explain slot:{slot}`"
    elif document.draining:
        yield "but not while the fleet is draining; next: controller drain --off"
    else:
        yield "next: controller reconcile --apply"


COMMANDS: Mapping[str, click.Command] = {"cordon": cordon, "uncordon": uncordon}
