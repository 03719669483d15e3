"""Recorded beside observed, for the commands that show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import to_builtins

from controller.cli.tables import Table, table
from controller.cli.text import shown
from controller.engine.classify import SlotClass
from controller.engine.drift import Drift
from controller.engine.identity import identity_of
from controller.model.inventory import Look, SeenWorker, StepSeen
from controller.model.records import MAX_UNRECORDED


def whole(look: Look, drifts: Sequence[Drift]) -> dict[str, Any]:
    """For programs: how many slots are of each class, and each slot."""
    counts = Counter(each.slot_class for each in drifts)
    return {
        "complete": look.complete,
        "classes": {kind.value: counts[kind] for kind in SlotClass},
        "slots": [
            {
                "slot": each.slot,
                "recorded": each.recorded,
                "observed": each.observed,
                "class": each.slot_class,
                "reason": each.reason,
                "why": each.why,
                "will": each.will,
                "unrecorded": [_unrecorded(one) for one in each.unrecorded[:MAX_UNRECORDED]],
                "unrecorded_more": max(0, len(each.unrecorded) - MAX_UNRECORDED),
            }
            for each in drifts
        ],
    }


def _unrecorded(seen: SeenWorker) -> dict[str, Any]:
    return {
        "assignment": seen.assignment,
        "generation": seen.generation,
        "id": seen.id,
        "state": seen.state,
        "running": sum(step.state is StepSeen.RUNNING for step in seen.steps),
        "resources": to_builtins(seen.resources),
        "identity": identity_of(seen.slot, seen.assignment, seen.generation, seen.id, seen.resources),
    }


def page(look: Look, drifts: Sequence[Drift]) -> Iterator[str | Table]:
    """For people: a row a slot, then what is there and no record knows."""
    if not look.complete:
        yield "the look is incomplete: it says nothing about what it does not show"
    heads = ("SLOT", "RECORDED", "OBSERVED", "CLASS", "REASON", "WILL")
    yield table(heads, [_row(each) for each in drifts])
    for each in drifts:
        yield from (_line(one) for one in each.unrecorded[:MAX_UNRECORDED])
        if len(each.unrecorded) > MAX_UNRECORDED:
            yield f"and {len(each.unrecorded) - MAX_UNRECORDED} more unrecorded in slot {each.slot}"


def _row(each: Drift) -> Sequence[str]:
    words = (each.slot_class.value, f"{each.reason}: {shown(each.why)}", shown(each.will))
    return (str(each.slot), each.recorded or "-", each.observed or "-", *words)


def _line(seen: SeenWorker) -> str:
    told = _unrecorded(seen)
    named = f"{shown(seen.id) or 'something'} ({shown(seen.assignment)} generation {seen.generation}, {seen.state})"
    parts = [
        f"{shown(kind)} {shown(each.id)} {shown(each.immutable_id)}".rstrip() for kind, each in seen.resources.items()
    ]
    steps = [f"running steps {told['running']}"] if told["running"] else []
    return f"unrecorded in slot {seen.slot}: {', '.join((named, *parts, *steps))}, identity {told['identity']}"
