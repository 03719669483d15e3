"""The steps of a run: whether they can be stored, passed to a program and run in order of need, and where not. Pure.

Not promised: that a command which passes is there to be run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct

from controller.model.records import ID_GRAMMAR, Step, is_id

MAX_STEPS: Final = 1_000
GIVEN_VARIABLES: Final = tuple(f"CONTROLLER_{name}" for name in ("RUN", "STEP", "ATTEMPT", "TOKEN", "IDEMPOTENCY_KEY"))
"""What a step's environment says of the step; a submitter cannot choose these."""
_LONGEST: Final = 80


class Misfit(Struct, frozen=True):
    """Why steps cannot be a run. `index` counts from 0 (None: all of them); `member` is the one to look at."""

    index: int | None
    member: str
    what: str
    next: str = ""
    unknown: str = ""
    """The need that no step has the name of."""

    def place(self, steps: Sequence[Step]) -> str:
        """Where it is, such as `steps[2] 'deploy', needs`."""
        return "steps" if self.index is None else f"steps[{self.index}] {quoted(steps[self.index].name)}, {self.member}"


def quoted(text: str) -> str:
    """*text* in quotes, cut where nobody would read on."""
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


def misfit(steps: Sequence[Step]) -> Misfit | None:
    """The first thing that keeps *steps* from being a run; None: nothing does. No value of a variable is repeated."""
    if len(steps) > MAX_STEPS:
        return Misfit(None, "", f"{len(steps)} steps are too many", f"at most {MAX_STEPS} make a run")
    names: set[str] = set()
    for index, step in enumerate(steps):
        found = _alone(index, step)
        if found is not None:
            return found
        if step.name in names:
            return Misfit(index, "name", f"there are two steps called {step.name!r}", "give each step its own name")
        names.add(step.name)
    for index, step in enumerate(steps):
        found = _needs(index, step, steps, names)
        if found is not None:
            return found
    circle = cycle({step.name: step.needs for step in steps})
    if circle:
        index = next(number for number, step in enumerate(steps) if step.name == circle[0])
        path = " -> ".join((*circle, circle[0]))
        return Misfit(index, "needs", f"steps need each other in a circle: {path}", "take one of these needs out")
    return None


def _alone(index: int, step: Step) -> Misfit | None:
    """What is wrong with the step whatever the others are."""
    name = quoted(step.name)
    if not is_id(step.name):
        grammar = f"use {ID_GRAMMAR}"
        return Misfit(index, "name", f"not a name for a step: {name}", grammar)
    if step.max_attempts < 1:
        return Misfit(index, "attempts", f"step {step.name} needs at least one attempt", "give a number from 1 up")
    if not step.argv or not step.argv[0]:
        return Misfit(index, "argv", f"step {step.name} has no command", "give a command and its arguments")
    texts = [("argv", word, quoted(word)) for word in step.argv]
    texts += [("cwd", step.cwd or "", quoted(step.cwd or ""))]
    texts += [("env", variable, quoted(variable)) for variable in step.env]
    texts += [("env", value, f"the value of {quoted(variable)}") for variable, value in step.env.items()]
    for member, text, what in texts:
        problem = _unpassable(text)
        if problem:
            return Misfit(index, member, f"step {step.name}: {what} {problem}", "pass other bytes in a file")
    for variable in step.env:
        if not variable or "=" in variable:
            return Misfit(index, "env", f"not the name of a variable: {quoted(variable)}", "give a name without '='")
        if variable in GIVEN_VARIABLES:
            return Misfit(index, "env", f"{variable} is set for every step, by what it is", "choose another name")
    return None


def _unpassable(text: str) -> str:
    """What keeps *text* from being stored, or from being given to a program; "": nothing."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not text"
    return "holds a NUL byte" if "\0" in text else ""


def _needs(index: int, step: Step, steps: Sequence[Step], names: Collection[str]) -> Misfit | None:
    seen: set[str] = set()
    for need in step.needs:
        if need == step.name:
            return Misfit(index, "needs", f"step {step.name} needs itself", "leave that need out")
        if need not in names:
            known = ", ".join(each.name for each in steps[:20]) + (", ..." if len(steps) > 20 else "")
            what = f"it needs {quoted(need)}, and there is no such step"
            return Misfit(index, "needs", what, f"there are {known}", need)
        if need in seen:
            return Misfit(index, "needs", f"it needs {need!r} twice", "name each need once")
        seen.add(need)
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
