"""The steps of a run as a graph: whether they can be run at all, and where not. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct

from controller.model.records import Step

MAX_STEPS: Final = 1_000


class Misfit(Struct, frozen=True):
    """Why steps are no graph. `index` counts from 0 (None: all of them); `member` is the one to look at."""

    index: int | None
    member: str
    what: str
    next: str = ""
    unknown: str = ""
    """The need that no step has the name of."""

    def place(self, steps: Sequence[Step]) -> str:
        """Where it is, such as `steps[2] 'deploy', needs`."""
        return "steps" if self.index is None else f"steps[{self.index}] {steps[self.index].name!r}, {self.member}"


def misfit(steps: Sequence[Step]) -> Misfit | None:
    """The first thing that keeps *steps* from being run in order of need; None: nothing does."""
    if len(steps) > MAX_STEPS:
        return Misfit(None, "", f"{len(steps)} steps are too many", f"at most {MAX_STEPS} make a run")
    names: set[str] = set()
    for index, step in enumerate(steps):
        if step.name in names:
            return Misfit(index, "name", f"there are two steps called {step.name!r}", "give each step its own name")
        names.add(step.name)
    for index, step in enumerate(steps):
        for number, need in enumerate(step.needs):
            if need == step.name:
                return Misfit(index, "needs", f"step {step.name} needs itself", "leave that need out")
            if need not in names:
                known = ", ".join(step.name for step in steps[:20])
                return Misfit(
                    index, "needs", f"it needs {need!r}, and there is no such step", f"there are {known}", need
                )
            if need in step.needs[:number]:
                return Misfit(index, "needs", f"it needs {need!r} twice", "name each need once")
    circle = cycle({step.name: step.needs for step in steps})
    if circle:
        index = next(number for number, step in enumerate(steps) if step.name == circle[0])
        path = " -> ".join((*circle, circle[0]))
        return Misfit(index, "needs", f"steps need each other in a circle: {path}", "take one of these needs out")
    return None


def cycle(needs: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """Names that need each other in a circle, each the next; empty: there is none. Needs of unknown names are ignored.

    Steps that wait for nothing are taken off until none can be. No recursion: a chain may be as long as it likes.
    """
    waiting = {name: {need for need in wanted if need in needs} for name, wanted in needs.items()}
    dependents: dict[str, list[str]] = {}
    for name, wanted in waiting.items():
        for need in wanted:
            dependents.setdefault(need, []).append(name)
    free = [name for name, wanted in waiting.items() if not wanted]
    while free:
        name = free.pop()
        del waiting[name]
        for dependent in dependents.get(name, ()):
            waiting[dependent].discard(name)
            if not waiting[dependent]:
                free.append(dependent)
    if not waiting:
        return ()
    # Whatever is left needs something that is left, so following needs must come back to where it has been.
    path: dict[str, None] = {}
    name = next(iter(waiting))
    while name not in path:
        path[name] = None
        name = min(waiting[name])
    circle = list(path)
    return tuple(circle[circle.index(name) :])
