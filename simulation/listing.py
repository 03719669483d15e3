"""What a listing of the provider says: the truth, or what accidents make of it.

Not promised: that it is of one moment. One that lags shows each machine as it was at some time within a grace time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.engine.sight import APART_MS
from controller.model.errors import ProviderFailed
from controller.model.inventory import Inventory, SeenWorker
from simulation.machines import Machine

if TYPE_CHECKING:
    from simulation.world import World


def take(world: World) -> Inventory:
    how = "fails" if world.is_silent else world.whims.accident(world.nature.looks)
    if how is not None:
        world.whims.tell(f"  the look {how}")
    if how == "lies":
        _deny_one(world)
    if how == "skips a slot" and world.machines:
        world.unreadable = (world.whims.one_of(world.machines).slot, world.now + 1.5 * world.nature.grace)
    shown = [machine.seen() for machine in world.machines if not _is_denied(world, machine)]
    match how:
        case "fails":
            raise ProviderFailed("the listing failed")
        case "lags":
            shown = [seen for seen in (_lagging(world, each) for each in (*world.machines, *world.removed)) if seen]
        case "shows half":
            return Inventory(False, tuple(shown[::2]))
    slot, until = world.unreadable
    if world.now < until and not world.whims.calm:
        return Inventory(True, _in_order([seen for seen in shown if seen.slot != slot]), unreadable=(slot,))
    return Inventory(True, _in_order(shown))


def _in_order(shown: list[SeenWorker]) -> tuple[SeenWorker, ...]:
    return tuple(sorted(shown, key=lambda seen: (seen.slot, seen.id)))


def _lagging(world: World, machine: Machine) -> SeenWorker | None:
    machine.views = [view for view in machine.views if view[0] > world.now]
    if not machine.views or world.whims.maybe(0.4):
        return machine.seen() if machine in world.machines else None
    return world.whims.one_of(machine.views)[1]


def _deny_one(world: World) -> None:
    """Leave a machine out for a moment, though listings are complete: not for as long as counts as two looks.

    Not while an earlier absence of it is on record: twice is what is believed.
    """
    those = [machine for machine in world.machines if not world.permits.is_missed(machine)]
    if those:
        apart = min(APART_MS / 1000, world.nature.grace)
        world.whims.one_of(those).denied_until = world.now + 0.9 * apart


def _is_denied(world: World, machine: Machine) -> bool:
    return world.now < machine.denied_until and not world.whims.calm and world.whims.maybe(0.8)
