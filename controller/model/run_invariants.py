"""Invariants of runs and their steps: what `invariants` asks of each of them.

Not promised: anything about slots, but for the worker that holds a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from controller.model.checks import Check, Violation
from controller.model.graph import cycle
from controller.model.records import TERMINAL, Document, Run, RunState, Step, StepState, Tombstone, is_id


def of_run(document: Document, name: str, run: Run) -> Iterator[Violation]:
    """What one run can show, and the worker that holds it."""
    subject = f"run:{name}"
    if run.id != name or not is_id(name):
        yield Violation(Check.RUN_ID, subject, f"the record under {name!r} is one of run {run.id!r}")
    if run.sequence > document.counters.sequence:
        what = f"sequence {run.sequence} was never handed out; the counter is at {document.counters.sequence}"
        yield Violation(Check.RUN_SEQUENCE, subject, what)
    yield from _ranges(subject, run)
    if run.state in TERMINAL:
        yield from _ended(subject, run)
    if run.available_at is not None and run.defer_reason is None:
        yield Violation(Check.RUN_DEFER_REASON, subject, "deferred without a reason")
    holders = (run.worker is not None) + (run.lease is not None)
    if run.state is RunState.RUNNING and holders != 1:
        yield Violation(Check.RUN_HOLDER, subject, f"running with {holders} holders; one worker or one lease is needed")
    elif run.state is not RunState.RUNNING and holders:
        yield Violation(Check.RUN_HOLDER, subject, f"{run.state} and still held")
    if run.state is RunState.RUNNING and run.attempts < 1:
        yield Violation(Check.RUN_TOKEN, subject, "running without ever having been claimed")
    if run.state is RunState.RUNNING and run.worker is not None:
        yield from _held(document, subject, run)
    yield from _steps(subject, run.steps)


def _ranges(subject: str, run: Run) -> Iterator[Violation]:
    """Numbers and commands that no submit lets through."""
    for name, least in (("max_attempts", 1), ("max_crashes", 1), ("created_at", 0)):
        if getattr(run, name) < least:
            yield Violation(Check.RUN_RANGE, subject, f"{name} cannot be {getattr(run, name)}")
    if run.attempts < 0 or run.failures < 0 or run.crashes < 0:
        yield Violation(Check.RUN_RANGE, subject, "attempts, failures and crashes cannot be below 0")
    for step in run.steps:
        if not step.argv or not step.argv[0]:
            yield Violation(Check.STEP_ARGV, subject, f"step {step.name} has no command")
        if (step.timeout_ms is not None and step.timeout_ms < 1) or step.max_attempts < 1:
            yield Violation(
                Check.STEP_RANGE, subject, f"step {step.name} has a timeout or a number of attempts below 1"
            )


def _ended(subject: str, run: Run | Tombstone) -> Iterator[Violation]:
    if run.reason is None:
        yield Violation(Check.RUN_REASON, subject, f"{run.state} without a reason")
    for step in run.steps:
        if step.state is StepState.RUNNING:
            yield Violation(Check.RUN_ENDED_STEP, subject, f"{run.state} with step {step.name} running")
        if run.state is RunState.SUCCEEDED and step.state is StepState.FAILED:
            yield Violation(Check.RUN_OUTCOME, subject, f"succeeded with step {step.name} failed")
    failed = any(step.state is StepState.FAILED for step in run.steps)
    if run.state is RunState.FAILED and not failed and run.reason is None:
        yield Violation(Check.RUN_OUTCOME, subject, "failed with neither a failed step nor a reason of its own")


def _held(document: Document, subject: str, run: Run) -> Iterator[Violation]:
    reference = run.worker
    if reference is None:
        return
    worker = document.workers.get(reference.slot)
    if (
        worker is None
        or (worker.assignment, worker.generation) != (reference.assignment, reference.generation)
        or worker.run != run.id
    ):
        what = f"held by {reference.assignment} in slot {reference.slot}, which does not say so"
        yield Violation(Check.RUN_WORKER, subject, what)


def _steps(subject: str, listed: Sequence[Step]) -> Iterator[Violation]:
    steps = {step.name: step for step in listed}
    if len(steps) != len(listed):
        yield Violation(Check.STEP_NAMES, subject, "two steps of one name")
    for step in listed:
        unknown = [need for need in step.needs if need not in steps]
        if unknown:
            yield Violation(Check.STEP_NEEDS, subject, f"step {step.name} needs {unknown[0]}, which is no step")
        elif step.state is StepState.RUNNING:
            for need in step.needs:
                if steps[need].state is not StepState.SUCCEEDED:
                    what = f"step {step.name} is running and needs {need}, which is {steps[need].state}"
                    yield Violation(Check.STEP_RUNNING_NEEDS, subject, what)
        if not step.attempts and step.state is not StepState.RUNNING:
            continue
        open_attempts = [attempt.n for attempt in step.attempts if attempt.ended_at is None]
        if len(open_attempts) > 1:
            what = f"step {step.name} has {len(open_attempts)} active attempts"
            yield Violation(Check.STEP_ONE_ACTIVE, subject, what)
        if (step.state is StepState.RUNNING) != bool(open_attempts):
            what = f"step {step.name} is {step.state} with {len(open_attempts) or 'no'} active attempt"
            yield Violation(Check.STEP_ACTIVE_STATE, subject, what)
        if [attempt.n for attempt in step.attempts] != list(range(1, len(step.attempts) + 1)):
            yield Violation(Check.STEP_ATTEMPTS, subject, f"attempts of step {step.name} are not numbered 1, 2, 3")
    if any(step.needs for step in listed) and cycle({step.name: step.needs for step in listed}):
        yield Violation(Check.STEP_CYCLE, subject, "the needs of its steps go in a circle")


def at_rest(run: Run) -> Iterator[Violation]:
    """What refuses no commit: a clock that jumped, above all, must not stop work."""
    subject = f"run:{run.id}"
    yield from _times(subject, run.created_at, run.started_at, run.finished_at, run.steps)
    yield from _reasons(subject, run.steps)
    if run.lease is not None and (run.lease.granted_ms < 1 or run.lease.deadline_ms < 1):
        what = f"its lease of {run.lease.granted_ms} ms until {run.lease.deadline_ms} ms was granted by nobody"
        yield Violation(Check.LEASE_RANGE, subject, what)


def of_finished(document: Document, name: str, stone: Tombstone) -> Iterator[Violation]:
    """What is left of a run that ended, at rest only."""
    subject = f"run:{name}"
    if stone.id != name:
        yield Violation(Check.FINISHED_ID, subject, f"what is left of {name} is of {stone.id}")
    if name in document.runs:
        yield Violation(Check.RUN_TWICE, subject, "it has left the document, and is in it all the same")
    if stone.state not in (RunState.SUCCEEDED, RunState.CANCELLED):
        yield Violation(Check.FINISHED_STATE, subject, f"it has left the document, and is {stone.state}")
    yield from _ended(subject, stone)
    yield from _steps(subject, stone.steps)
    yield from _times(subject, stone.created_at, None, stone.finished_at, stone.steps)
    yield from _reasons(subject, stone.steps)


def _times(
    subject: str, created: int, started: int | None, finished: int | None, steps: Sequence[Step]
) -> Iterator[Violation]:
    pairs = [("created", created, "started", started), ("started", started, "finished", finished)]
    if started is None:
        pairs.append(("created", created, "finished", finished))
    for step in steps:
        pairs += [
            (f"attempt {attempt.n} of {step.name} started", attempt.started_at, "ended", attempt.ended_at)
            for attempt in step.attempts
        ]
    for earlier, first, later, second in pairs:
        if first is not None and second is not None and second < first:
            yield Violation(Check.TIMES, subject, f"{earlier} at {first} and {later} before that, at {second}")


def _reasons(subject: str, steps: Sequence[Step]) -> Iterator[Violation]:
    for step in steps:
        if step.reason is None and step.state not in (StepState.PENDING, StepState.RUNNING):
            yield Violation(Check.STEP_REASON, subject, f"step {step.name} is {step.state} without a reason")


def permits(runs: Iterable[Run]) -> Iterator[Violation]:
    """At rest only: a commit cannot tell without a look at every run. Who claims one counts, under the lock.

    Runs of one key may have different limits. The last of them that was claimed found fewer than its own.
    """
    running: dict[str, list[Run]] = {}
    for run in runs:
        if run.concurrency_key and run.state is RunState.RUNNING:
            running.setdefault(run.concurrency_key, []).append(run)
    for key, holders in running.items():
        most = max(run.concurrency for run in holders)
        if len(holders) > most:
            names = ", ".join(sorted(run.id for run in holders))
            yield Violation(Check.PERMITS, "fleet", f"key {key} lets at most {most} run at once: {names} are running")
