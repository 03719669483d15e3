"""`wait`, and what `submit --wait` does after it has submitted."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from controller.cli.call import Call
from controller.cli.verb import Duration, Verb, parallelism_option, run_of

if TYPE_CHECKING:
    from controller.engine.report import Report
    from controller.model.records import Document, Run, Tombstone

CADENCE = 0.1
"""Seconds between two reads of what runs wrote."""
PATIENCE = 2.0
NOT_SUCCEEDED = 9


@click.command(cls=Verb, examples=["controller wait r-1", "controller wait --timeout 10m --follow r-1 r-2"])
@click.option("--timeout", type=Duration(), metavar="D", help="Wait no longer; exits with 6, and the runs go on.")
@click.option("-f", "--follow", is_flag=True, help="Show what the runs write, as it comes.")
@click.option("--no-drive", is_flag=True, help="Only watch: something else serves the fleet.")
@parallelism_option
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.pass_obj
def wait(call: Call, timeout: int | None, follow: bool, no_drive: bool, parallelism: int, runs: tuple[str, ...]) -> int:
    """Wait until runs have ended; exits with 0 if all succeeded, with 9 if not.

    It serves the fleet meanwhile, so nothing else needs to run; beside a `run` or a reconcile it is no trouble. With
    --no-drive it only reads. Interrupted, it exits with 130 and the runs go on.
    """
    ids = list(dict.fromkeys(run_of(run) for run in runs))
    seconds = None if timeout is None else timeout / 1000
    return follow_to_end(
        call, ids, stream=follow, plain=not follow, timeout=seconds, drive=not no_drive, parallelism=parallelism
    )


def follow_to_end(
    call: Call,
    run_ids: Sequence[str],
    *,
    stream: bool = True,
    plain: bool = False,
    timeout: float | None = None,
    drive: bool = True,
    parallelism: int = 8,
) -> int:
    """Wait for runs and tell how they ended: on stdout if *plain* or with --json, else stdout is for what they write.

    Returns the exit code. Raises NotFound, Conflict, StillRunning.
    """
    from controller.library.waiting import ENDED, all_ended, served

    document = call.store.read().document
    if not all_ended(document, run_ids):
        if drive:
            served(document, run_ids, call.settings.policy)
        with _streaming(call, run_ids, document, wanted=stream and not call.output.json):
            ended = _wait(call, run_ids, timeout, drive=drive, parallelism=parallelism)
    else:
        with _streaming(call, run_ids, document, wanted=stream and not call.output.json):
            ended = tuple(_found(document, run_ids))
    left = [run for run in ended if run.state not in ENDED]
    _tell_ends(call, ended, plain=plain)
    if left:
        ids = " ".join(run.id for run in left)
        call.output.warn(f"interrupted: {ids} {'goes' if len(left) == 1 else 'go'} on; next: controller wait {ids}")
        from controller.cli.root import INTERRUPTED

        return INTERRUPTED
    return 0 if all(run.state == "succeeded" for run in ended) else NOT_SUCCEEDED


def _found(document: Document, run_ids: Sequence[str]) -> Iterator[Run | Tombstone]:
    from controller.engine.queue import find

    for run in run_ids:
        yield find(document, run)


def _wait(
    call: Call, run_ids: Sequence[str], timeout: float | None, *, drive: bool, parallelism: int
) -> tuple[Run | Tombstone, ...]:
    from controller.library.waiting import serve_until_ended, watch_until_ended

    reasons = _Reasons(call, run_ids)
    if drive:
        from controller.cli.asking import stopping

        reconciler = call.controller.reconciler(parallelism=parallelism)
        with stopping(call, reconciler):
            return serve_until_ended(
                reconciler, run_ids, timeout=timeout, tell=reasons.tell, each_turn=reasons.each_turn
            )
    from controller.engine.reconcile import Stop

    stop = Stop()
    try:
        return watch_until_ended(call.store, call.clock, run_ids, stop, timeout=timeout, each_turn=reasons.each_turn)
    except KeyboardInterrupt:
        stop.set()
        return watch_until_ended(call.store, call.clock, run_ids, stop)


def _tell_ends(call: Call, ended: Sequence[Run | Tombstone], *, plain: bool) -> None:
    from controller.cli.text import shown
    from controller.cli.views import run_row
    from controller.library.waiting import ENDED
    from controller.model.records import Run as Live
    from controller.model.views import advice

    lines: list[str] = []
    for run in ended:
        if run.state not in ENDED:
            continue
        error = run.last_error if isinstance(run, Live) else None
        detail = f": {shown(error)}" if error else ""
        lines.append(f"run {run.id} {'is cancelled' if run.state == 'cancelled' else run.state}{detail}")
        what_next = None if run.state == "succeeded" else advice(run)
        lines += [f"next: {what_next}"] if what_next is not None else []
    if plain or call.output.json:
        rows = [run_row(run, call.clock.now_ms()) for run in ended]
        call.output.answer("wait", {"runs": rows}, lines)
    else:
        for line in lines:
            call.output.note(line)


class _Reasons:
    """Tells what a wait is about: trouble on the way, and once per reason what a run that does not start waits for."""

    def __init__(self, call: Call, run_ids: Sequence[str]) -> None:
        self._call = call
        self._run_ids = run_ids
        self._since = call.clock.monotonic()
        self._seen: Document | None = None
        self._told: dict[str, tuple[object, ...]] = {}

    def tell(self, report: Report) -> None:
        from controller.cli.text import shown

        for error in report.errors:
            more = f"; next: {shown(error.next)}" if error.next else ""
            self._call.output.warn(f"trouble: {shown(error.what)}{more}")

    def each_turn(self, document: Document) -> None:
        if self._call.clock.monotonic() - self._since < PATIENCE or document is self._seen:
            return
        self._seen = document
        for run in _found(document, self._run_ids):
            if run.state == "queued":
                self._tell_why(document, run)

    def _tell_why(self, document: Document, run: Run | Tombstone) -> None:
        from controller.cli.text import shown
        from controller.engine.explain import Surroundings, explain_run

        reason = (getattr(run, "defer_reason", None), document.draining)
        if self._told.get(run.id) == reason:
            return
        self._told[run.id] = reason
        policy = self._call.settings.policy
        around = Surroundings((), (), {}, policy.slots, policy.queues, self._call.clock.now_ms())
        because = " ".join(explain_run(document, run.id, around).because[:2])
        self._call.output.note(f"run {run.id} waits: {shown(because)}")


@contextmanager
def _streaming(call: Call, run_ids: Sequence[str], document: Document, *, wanted: bool) -> Iterator[None]:
    """Write what the runs write to stdout meanwhile; all of it before this ends."""
    if not wanted:
        yield
        return
    writer = Writer(call, run_ids, document)
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(CADENCE):
            writer.write_new()

    thread = threading.Thread(target=write, name="output", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        writer.write_new()


class Writer:
    """Copies what runs write to stdout, and says on stderr where it comes from when that changes."""

    def __init__(self, call: Call, run_ids: Sequence[str], document: Document, *, step: str | None = None) -> None:
        from controller.library.following import Following

        self._call = call
        self._several = len(run_ids) > 1
        self._last = ""
        self._following = {}
        for run in _found(document, run_ids):
            names = [each.name for each in run.steps]
            self._several = self._several or len(names) > 1
            self._following[run.id] = Following(call.state_dir, run.id, names, step=step)

    def write_new(self) -> bool:
        """False once nobody reads stdout any more."""
        for run, following in self._following.items():
            for log, part in following.read_new():
                if self._last not in ("", log.path) or (self._several and not self._last):
                    self._call.output.note(f"--- run {run}, step {log.step}, life {log.token}, attempt {log.attempt}")
                self._last = log.path
                self._call.output.raw(part)
                if self._call.output.failed:
                    return False
        return True


COMMANDS: Mapping[str, click.Command] = {"wait": wait}
