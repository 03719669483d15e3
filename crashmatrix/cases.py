"""One case: a copy of what a verb is tried on, one fault, and then what people would run next.

Not promised: that cases of one verb share anything but the directory that they are copied from.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from crashmatrix import tracing
from crashmatrix.ground import Ground, Picture, picture_of
from crashmatrix.judging import Evidence, Expected, Finding, Kind, Promise, Ran, judge
from crashmatrix.tracing import Point
from crashmatrix.verbs import RUN, VERBS, Verb
from tests.behaviour.driver import Result, with_json
from tests.behaviour.faults import store_of

ROUNDS = 12
"""So many times what is left is reconciled; then it counts as left for good."""
KEPT = "torn_kept"
"""What is left over for people, for ever, and not by mistake."""
_OVER = frozenset({"succeeded", "failed", "cancelled"})
LATER = ("submit", "--id", "later", "--queue", "later", "--payload", "null")
"""The ordinary command that changes something."""


class Case(NamedTuple):
    verb: str
    point: Point
    fault: str

    def __str__(self) -> str:
        return f"{self.verb}:{self.point.call}:{self.point.nth}:{self.fault}"


class Prepared(NamedTuple):
    """A verb that was run once without a fault: what that did, its points, and what cases are copied from."""

    verb: str
    home: Path
    expected: Expected
    points: tuple[Point, ...]


class Outcome(NamedTuple):
    """What came of a case. *landed* False: the fault did not happen where it was wanted, so it proves little."""

    case: Case
    findings: tuple[Finding, ...]
    landed: bool


def verb_of(name: str) -> Verb:
    return next(verb for verb in VERBS if verb.name == name)


def prepare(name: str, place: Path) -> Prepared:
    """Make what *name* is tried on below *place*, run it there once, and see what it does. AssertionError: nothing."""
    verb = verb_of(name)
    template = Ground(_made(place / name))
    verb.prepare(template)
    template.await_still()
    ground = template.copy(place / f"{name}-unharmed")
    before = _known(ground)
    points = _trace(ground, verb)
    upkeep = _finish(ground) if verb.finishes else ()
    done = _known(ground)
    effects = ground.effects()
    if [ran for ran in upkeep if ran.exit != 0] or done.pending:
        raise AssertionError(f"{name} does not come to its end even without a fault: {upkeep} {done.pending}")
    shutil.rmtree(ground.home)
    return Prepared(
        name, template.home, Expected(before, done, effects, verb.steady, verb.already, verb.promises), points
    )


def _trace(ground: Ground, verb: Verb) -> tuple[Point, ...]:
    """Run the command unharmed; its points. AssertionError: it does not work, or has none."""
    log = ground.home.with_suffix(".trace")
    result = ground.faulted(tracing.tracing(log), *with_json(verb.words(ground)))
    if result.exit != 0:
        raise AssertionError(f"{verb.name} does not work even without a fault\n{result}")
    points = tracing.points(tracing.read(log), ground.state)
    if not any(point.when for point in points):
        raise AssertionError(f"{verb.name} changes nothing where a fault could be put: this proves nothing\n{result}")
    return points


def _made(home: Path) -> Path:
    home.mkdir()
    return home


def run(prepared: Prepared, point: Point, fault: str) -> Outcome:
    """Let *fault* happen at *point*, run what people would, and judge. Tried once more if it happened elsewhere.

    The interpreter opens other files once somebody has compiled a module anew: then the call has another number.
    """
    case = Case(prepared.verb, point, fault)
    outcome = _run(prepared, case)
    if outcome.landed:
        return outcome
    again = [each for each in _retrace(prepared) if each.when and (each.call, each.nth) == (point.call, point.nth)]
    return _run(prepared, case._replace(point=again[0])) if again else outcome


def _retrace(prepared: Prepared) -> tuple[Point, ...]:
    with tempfile.TemporaryDirectory(prefix="again-", dir=prepared.home.parent) as place:
        return _trace(Ground(prepared.home).copy(Path(place) / "home"), verb_of(prepared.verb))


def _run(prepared: Prepared, case: Case) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="case-", dir=prepared.home.parent) as place:
        ground = Ground(prepared.home).copy(Path(place) / "home")
        log = Path(place) / "trace"
        alone = not any(point.call in tracing.STARTS for point in prepared.points)
        prefix = tracing.injecting(log, case.point, case.fault, ground.home, alone=alone)
        try:
            evidence = _suffer(ground, verb_of(prepared.verb), prefix)
            findings = judge(prepared.expected, evidence)
        except Exception:  # noqa: BLE001 - whatever nobody foresaw is a finding of this case, and the others go on
            findings = (Finding(Kind.FAULT, traceback.format_exc(limit=-2)),)
        finally:
            ground.end()
        return Outcome(case, findings, tracing.landed(log, case.point, ground.home))


def _suffer(ground: Ground, verb: Verb, prefix: tuple[str, ...]) -> Evidence:
    words = with_json(verb.words(ground))
    faulted = ground.faulted(prefix, *words)
    first = look(ground)
    ground.await_still()
    # A command that makes the document must have done so before any other can work.
    founds = first.picture is not None and not first.picture.there
    early = () if founds else (_ran(ground, LATER), _ran(ground, ("fsck",)))
    again = _ran(ground, words)
    ground.await_still()
    upkeep = (*early, *((_ran(ground, LATER),) if founds else ()), *(_finish(ground) if verb.finishes else ()))
    backups = {path: _ran(ground, ("state", "verify", str(path))) for path in sorted(ground.state.glob("backup*"))}
    proof = _ran(ground, ("fsck",))
    last = look(ground)
    return Evidence(
        promise=promise_of(faulted),
        faulted=_told(words, faulted),
        reads=first.reads,
        after=first.picture,
        again=again,
        upkeep=upkeep,
        proofs=(proof, *backups.values(), *last.reads),
        final=last.picture,
        effects=ground.effects(),
        backups=tuple(path.name for path, verified in backups.items() if verified.exit == 0),
        left=_left(ground),
        disagreements=(*first.disagreements, *last.disagreements),
    )


class Look(NamedTuple):
    """What the readers say: how each ended, what they show (None: not all of them answer), and where two disagree."""

    reads: tuple[Ran, ...]
    picture: Picture | None
    disagreements: tuple[str, ...]


def look(ground: Ground) -> Look:
    """Ask everything that people ask. A document that is not there is a picture, too."""
    reads: list[Ran] = []

    def ask(*words: str) -> Any:
        result = ground.run(*with_json(words))
        reads.append(_told(words, result))
        return _answer(result) if result.exit == 0 else None

    status = ask("status")
    if reads[0].error == "document_missing":
        return Look(tuple(reads), Picture(False), ())
    history, runs = ask("history"), ask("runs", "--limit", "1000")
    ask("queue", "list")
    disagreements = []
    if RUN in {each["id"] for each in (runs or {}).get("runs", ())}:
        ask("show", RUN)
        told = ask("explain", RUN) or {}
        disagreements = [f"explain {RUN}: {each}" for each in told.get("story", {}).get("disagreements", ())]
    answered = status is not None and history is not None and runs is not None
    return Look(tuple(reads), picture_of(status, history, runs) if answered else None, tuple(disagreements))


def _known(ground: Ground) -> Picture:
    seen = look(ground)
    if seen.picture is None:
        raise AssertionError(f"the readers do not answer: {seen.reads}")
    return seen.picture


def _left(ground: Ground) -> tuple[str, ...]:
    """Names of files that nobody needs: temporary ones, and what the store itself would put right."""
    temporary = {path.name for path in ground.state.rglob("*") if ".tmp-" in path.name}
    known = {Path(each.path).name for each in store_of(ground).leftovers() if each.kind != KEPT}
    return tuple(sorted(temporary | known))


def promise_of(result: Result) -> Promise | None:
    """What *result* tells somebody that is done, however the process ended afterwards; None: it tells nobody."""
    answer = _answer(result)
    if result.exit > 0 or not isinstance(answer, dict) or "schema" not in answer:
        return None
    file = answer["file"] if answer["schema"] == "controller.state-backup/1" else answer.get("kept")
    sent = [each for each in answer.get("sent", ()) if each["outcome"] == "done" and each["settled"]]
    return Promise(
        frozenset(each["idempotency_key"] for each in answer.get("parked", ())),
        frozenset(each["idempotency_key"] for each in sent),
        {each["run"]: each["state"] for each in answer.get("ended", ())},
        Path(file).name if file else None,
    )


def _answer(result: Result) -> Any:
    try:
        return json.loads(result.stdout)
    except ValueError:
        return None


def _told(words: Sequence[str], result: Result) -> Ran:
    answer = _answer(result)
    error = answer.get("error", {}) if isinstance(answer, dict) else {}
    said = error.get("what", "") or (result.stderr.strip().splitlines() or [""])[-1]
    return Ran(" ".join(words), result.exit, error.get("code", ""), said if result.exit else "")


def _ran(ground: Ground, words: Sequence[str]) -> Ran:
    return _told(words, ground.run(*with_json(tuple(words))))


def _finish(ground: Ground) -> tuple[Ran, ...]:
    """Reconcile until nothing is left, a bounded number of times. What is told is how that ended."""
    ran: tuple[Ran, ...] = ()
    for _ in range(ROUNDS):
        ground.await_still()
        ran = (_ran(ground, ("reconcile", "--apply")),)
        status = _answer(ground.run("status", "--json")) or {}
        shown = _answer(ground.run("show", RUN, "--json")) or {}
        if ran[0].exit == 0 and not status.get("pending_mutations") and shown.get("run", {}).get("state") in _OVER:
            break
        if status.get("pending_mutations"):
            ground.run("replay-pending")
    return ran
