"""What must hold after a command was killed, or one of its calls failed. Pure: from evidence to findings.

Not promised: that a finding is the product's; a fault that did not happen where it was wanted proves nothing at all.

A *loss* is something acknowledged, or done at the provider, that nothing knows any more; a *double* is something that
happened twice. All else that must not be is a *fault*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from crashmatrix.ground import HUNG, Event, Picture

HOUSEKEEPING = frozenset({"torn_tail_kept"})
"""Events about the store itself, which may join any commit after a fault."""
RESTORED = "restored"

ENDINGS = frozenset({0, 3, 5, 6, 8, -9})
"""How a command may end that was killed, or had a call fail: nothing about it is a usage fault or a bad document."""
UNREADABLE = "document"


class Kind(StrEnum):
    FAULT = "fault"
    LOSS = "loss"
    DOUBLE = "double"


class Finding(Struct, frozen=True):
    """One thing that must not be."""

    kind: Kind
    what: str


class Ran(Struct, frozen=True):
    """One command after the fault: its words, its exit, and the code of its error ("": none)."""

    command: str
    exit: int
    error: str = ""
    said: str = ""


class Promise(Struct, frozen=True):
    """What a command answered that it has done: keys parked, keys settled, runs by their state, the file it made."""

    parked: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()
    runs: Mapping[str, str] = {}
    file: str | None = None


class Expected(Struct, frozen=True):
    """What a verb does when nothing goes wrong: from *before* to *done*, when all of it has ended.

    `effects` are those of the provider at the end. `steady`: its commits are the same each time, so that any part of
    them is a part of those, and its answer promises them all. `promises` are names of events that it promises
    otherwise, besides what the answer itself says. `already` is the code of the error by which the same command, given
    again, says that it was done; "": it is answered like the first time.
    """

    before: Picture
    done: Picture
    effects: tuple[str, ...] = ()
    steady: bool = True
    already: str = ""
    promises: frozenset[str] = frozenset()


class Evidence(Struct, frozen=True):
    """What was seen of one case.

    `after` is what the readers say right after the fault, `final` at the end; None: they could not say. `again` is the
    same command once more, `upkeep` what was run to bring the rest to its end, `backups` names of copies that are
    whole, `left` those of files that nobody needs. `promise` is what the command answered; None: it did not, or with an
    error.
    """

    promise: Promise | None
    faulted: Ran
    reads: tuple[Ran, ...]
    after: Picture | None
    again: Ran
    upkeep: tuple[Ran, ...]
    proofs: tuple[Ran, ...]
    final: Picture | None
    effects: tuple[str, ...]
    backups: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()


def judge(expected: Expected, seen: Evidence) -> tuple[Finding, ...]:
    """Everything that must not be, the losses first."""
    found = (
        *_commands(expected, seen),
        *_whole(expected, seen),
        *_kept(expected, seen),
        *_ended(expected, seen),
        *_provider(expected, seen),
    )
    order = [Kind.LOSS, Kind.DOUBLE, Kind.FAULT]
    return tuple(sorted(dict.fromkeys(found), key=lambda each: order.index(each.kind)))


def _fault(what: str) -> Finding:
    return Finding(Kind.FAULT, what)


def _loss(what: str) -> Finding:
    return Finding(Kind.LOSS, what)


def _double(what: str) -> Finding:
    return Finding(Kind.DOUBLE, what)


def _commands(expected: Expected, seen: Evidence) -> Iterator[Finding]:
    # One that could not be read is no bad document; any other with that exit would send people the wrong way.
    if seen.faulted.exit not in ENDINGS and seen.faulted.error != UNREADABLE:
        yield _fault(f"the command itself failed: {_told(seen.faulted)}")
    founded = seen.after is None or seen.after.there or expected.before.there
    for ran in (*(seen.reads if founded else ()), *seen.upkeep, *seen.proofs):
        if ran.exit != 0:
            yield _fault(_told(ran))
    happened = seen.after is not None and _progress(expected, seen.after) > 0
    if seen.again.exit != 0 and not (happened and expected.already and seen.again.error == expected.already):
        yield _fault(f"again: {_told(seen.again)}")


def _told(ran: Ran) -> str:
    how = "does not end" if ran.exit == HUNG else f"exits with {ran.exit}"
    return f"`{ran.command}` {how}" + (f" ({ran.error})" if ran.error else "") + (f": {ran.said}" if ran.said else "")


def _whole(expected: Expected, seen: Evidence) -> Iterator[Finding]:
    """What is there of an unacknowledged command is some of its commits, each whole, and records that agree."""
    for when, picture in (("after it", seen.after), ("at the end", seen.final)):
        if picture is None:
            yield _fault(f"{when} the readers do not answer")
            continue
        revisions = [revision for revision, _ in picture.commits]
        if picture.there and revisions != list(range(1, picture.revision + 1)):
            yield _fault(f"{when} history has revisions {revisions}, the document {picture.revision}")
        states: dict[str, str] = {}
        for _, commit in picture.commits:
            # A restore puts every run where it was, and says so of each; one that it does not name is gone.
            if any(event[1] == RESTORED for event in commit):
                states.clear()
            for subject, _, _, to, _, _, step in commit:
                if subject.startswith("run:") and to is not None and step is None:
                    states[subject.removeprefix("run:")] = to
        for run in sorted(states.keys() | picture.runs.keys()):
            if states.get(run) != picture.runs.get(run):
                yield _fault(
                    f"{when} run {run} is {picture.runs.get(run)} in the document and {states.get(run)} in history"
                )
    if expected.steady and seen.after is not None and _progress(expected, seen.after) < 0:
        yield _fault(f"it is there by half: {_added(expected, seen.after)}")
    yield from map(_fault, seen.disagreements)


def _added(expected: Expected, picture: Picture) -> list[tuple[Event, ...]]:
    """The commits in *picture* that are not among those before, without what is about the store."""
    known = len(expected.before.commits)
    made = [tuple(event for event in commit if event[1] not in HOUSEKEEPING) for _, commit in picture.commits[known:]]
    return [commit for commit in made if commit]


def _progress(expected: Expected, picture: Picture) -> int:
    """How many commits of the command are in *picture*; -1: others than its own."""
    wanted, made = _added(expected, expected.done), _added(expected, picture)
    if not expected.steady:
        return len(made)
    return len(made) if made == wanted[: len(made)] else -1


def _kept(expected: Expected, seen: Evidence) -> Iterator[Finding]:
    """What was acknowledged is there: all that was there before, and the command itself if it answered."""
    known = expected.before.commits
    for when, picture in (("after it", seen.after), ("at the end", seen.final)):
        if picture is not None and picture.commits[: len(known)] != known:
            yield _loss(f"{when} commits from before are not there any more, or not as they were")
    if seen.promise is None:
        return
    for when, picture in (("after it", seen.after), ("at the end", seen.final)):
        if picture is None:
            continue
        promised = [
            event for event in _own(expected, expected.done) if expected.steady or event[1] in expected.promises
        ]
        for event in Counter(promised) - Counter(_own(expected, picture)):
            yield _loss(f"it was acknowledged, and {when} there is no {_in_words(event)}")
        for key in sorted(seen.promise.parked - picture.parked):
            yield _loss(f"{key[:12]} was said to be parked, and {when} it never was")
        for key in sorted(seen.promise.settled - picture.settled):
            yield _loss(f"{key[:12]} was said to be settled, and {when} it is not")
        if seen.promise.file is not None and seen.promise.file not in seen.backups:
            yield _loss(f"{seen.promise.file} was said to be there, and no whole copy of that name is")
        for run, state in seen.promise.runs.items():
            if picture.runs.get(run) != state:
                yield _loss(f"run {run} was said to be {state}, and {when} it is {picture.runs.get(run)}")


def _own(expected: Expected, picture: Picture) -> list[Event]:
    return [event for commit in _added(expected, picture) for event in commit]


def _in_words(event: Event) -> str:
    subject, name, before, to, *_ = event
    return f"{name} of {subject}" + (f" ({before} -> {to})" if to else "")


def _ended(expected: Expected, seen: Evidence) -> Iterator[Finding]:
    """At the end all of it has happened, once, and nothing is left."""
    if seen.final is None:
        return
    for place in seen.final.pending:
        yield _fault(f"{place} still has a pending action")
    for run, state in expected.done.runs.items():
        if seen.final.runs.get(run) != state:
            yield _fault(f"at the end run {run} is {seen.final.runs.get(run)}, not {state}")
    wanted, made = Counter(_own(expected, expected.done)), Counter(_own(expected, seen.final))
    for event, times in made.items():
        # How often a slot is tried, and a run deferred for it, depends on what failed; what a run lives through, not.
        counted = expected.steady or (event[0].startswith("run:") and event[1] in _ONCE)
        if counted and event in wanted and times > wanted[event]:
            yield _double(f"{_in_words(event)} is there {times} times")
    for event in wanted - made if expected.steady else ():
        yield _fault(f"at the end there is no {_in_words(event)}")
    for name in seen.left:
        yield _fault(f"{name} is left behind")


_ONCE = frozenset({"submitted", "claim", "all_steps_done", "step_started", "step_succeeded", "cancel_observed"})


def _provider(expected: Expected, seen: Evidence) -> Iterator[Finding]:
    """Each key had one effect, each effect its key in history, and nothing was made more often than it should."""
    for effect, times in Counter(seen.effects).items():
        if times > 1:
            yield _double(f"{times} effects of {_effect(effect)}")
    if seen.final is not None:
        keys = {effect.split()[-1] for effect in seen.effects}
        for effect in dict.fromkeys(seen.effects):
            if effect.split()[-1] not in seen.final.parked:
                yield _loss(f"the effect {_effect(effect)} was never parked")
        for key in sorted(seen.final.settled - keys):
            yield _loss(f"history has {key[:12]} as done, and the provider has not done it")
    wanted, made = Counter(map(_kind, expected.effects)), Counter(map(_kind, dict.fromkeys(seen.effects)))
    for kind, times in made.items():
        if times > wanted[kind]:
            yield _double(f"{times} effects {kind}, under keys of their own, instead of {wanted[kind]}")
    for kind, times in wanted.items():
        if made[kind] < times:
            yield _fault(f"{made[kind]} effects {kind} instead of {times}")


def _kind(effect: str) -> str:
    return " ".join(effect.split()[:2])


def _effect(effect: str) -> str:
    kind, slot, key = effect.split()
    return f"{kind} in slot {slot} under {key[:12]}"


def counted(findings: Iterable[Finding]) -> Counter[Kind]:
    return Counter(each.kind for each in findings)
