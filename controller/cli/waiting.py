"""`wait`, and what `submit --wait` does after it has submitted."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from controller.api.handle import PARALLELISM
from controller.cli.call import Call
from controller.cli.verb import Duration, Verb, completed, parallelism_option, run_of

if TYPE_CHECKING:
    from controller.engine.reconcile import Stop
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
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=completed("runs"))
@click.pass_obj
def wait(call: Call, timeout: int | None, follow: bool, no_drive: bool, parallelism: int, runs: tuple[str, ...]) -> int:
    """Wait until runs have ended; exits with 0 if all succeeded, with 9 if not.

    It serves the fleet meanwhile, so nothing else needs to run; beside a `run` or a reconcile it is no trouble. With
    --no-drive it only reads: a run that consumers take is waited for so, since serving the fleet does not move it.
    Trouble on the way is told and waited out; what an operator has to settle first ends it with 5, and what cannot be
    saved with 8. Interrupted, it awaits what the provider was asked and exits with 130. However it ends, the runs go
    on. With --json nothing is shown but how they ended.
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
    parallelism: int = PARALLELISM,
) -> int:
    """Wait for runs and tell how they ended: on stdout if *plain* or with --json, else stdout is for what they write.

    Returns the exit code. Raises NotFound, Conflict, StillRunning, Stuck, NotDurable, DocumentFault.
    """
    from controller.api.waiting import all_ended, served
    from controller.model.errors import NotDurable, Stuck
    from controller.model.run import is_terminal

    document = call.store.read().document
    found = _found(document, run_ids)
    ended = tuple(found.values())
    waits = not all_ended(document, run_ids)
    if waits and drive:
        served(document, run_ids, call.settings.policy)
    try:
        with _streaming(call, found, wanted=stream and not call.output.json):
            if waits:
                ended = _wait(call, run_ids, timeout, drive=drive, parallelism=parallelism)
    except (NotDurable, Stuck):
        call.output.warn(f"nothing is lost; next: controller wait {' '.join(run_ids)}")
        raise
    _tell_ends(call, ended, plain=plain)
    left = [run for run in ended if not is_terminal(run.state)]
    if left:
        from controller.cli.root import INTERRUPTED

        call.output.warn(_left(left, "wait" if drive else "wait --no-drive"))
        return INTERRUPTED
    return 0 if all(run.state == "succeeded" for run in ended) else NOT_SUCCEEDED


def _found(document: Document, run_ids: Sequence[str]) -> Mapping[str, Run | Tombstone]:
    from controller.engine.queue import find

    return {run: find(document, run) for run in run_ids}


def _left(left: Sequence[Run | Tombstone], how: str) -> str:
    ids = [run.id for run in left]
    one = len(ids) == 1
    running = any(run.state == "running" for run in left)
    goes_on = ("goes on" if one else "go on") if running else ("stays queued" if one else "stay queued")
    return f"interrupted: {'run' if one else 'runs'} {', '.join(ids)} {goes_on}; next: controller {how} {' '.join(ids)}"


def _wait(
    call: Call, run_ids: Sequence[str], timeout: float | None, *, drive: bool, parallelism: int
) -> tuple[Run | Tombstone, ...]:
    from controller.api.waiting import serve_until_ended, watch_until_ended

    notes = _Notes(call, run_ids)
    if drive:
        from controller.cli.asking import stopping

        reconciler = call.controller.reconciler(parallelism=parallelism)
        with stopping(call, reconciler):
            return serve_until_ended(reconciler, run_ids, timeout=timeout, tell=notes.tell, each_turn=notes.each_turn)
    with _watching() as stop:
        return watch_until_ended(call.store, call.clock, run_ids, stop, timeout=timeout, each_turn=notes.each_turn)


@contextmanager
def _watching() -> Iterator[Stop]:
    """INT and TERM stop the watching: it has nothing to await, so there is no second one to heed."""
    import signal

    from controller.engine.reconcile import Stop

    stop = Stop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _tell_ends(call: Call, ended: Sequence[Run | Tombstone], *, plain: bool) -> None:
    from controller.cli.text import shown
    from controller.cli.views import run_row
    from controller.model.records import Run as Live
    from controller.model.run import is_terminal
    from controller.model.views import advice

    lines: list[str] = []
    for run in ended:
        if not is_terminal(run.state):
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


class _Notes:
    """Tells on stderr what a wait is about: trouble, once per text, and what a run that does not start waits for."""

    def __init__(self, call: Call, run_ids: Sequence[str]) -> None:
        self._call = call
        self._run_ids = run_ids
        self._since = call.clock.monotonic()
        self._seen: Document | None = None
        self._reasons: dict[str, tuple[object, ...]] = {}
        self._said: set[str] = set()

    def tell(self, report: Report) -> None:
        from controller.cli.asking import is_fine, sent_words, trouble_words

        lines = [f"trouble: slot {sent.slot}: {sent_words(sent)}" for sent in report.sent if not is_fine(sent)]
        lines += [trouble_words(error) for error in report.errors]
        for line in lines:
            if line not in self._said:
                self._call.output.warn(line)
        self._said.update(lines)

    def each_turn(self, document: Document) -> None:
        if self._call.clock.monotonic() - self._since < PATIENCE or document is self._seen:
            return
        self._seen = document
        for run in _found(document, self._run_ids).values():
            if run.state == "queued":
                self._tell_why(document, run)

    def _tell_why(self, document: Document, run: Run | Tombstone) -> None:
        from controller.cli.text import shown
        from controller.engine.explain import Surroundings, explain_run

        made_for = any(worker.reserved == run.id for worker in document.workers.values())
        reason = (getattr(run, "defer_reason", None), getattr(run, "available_at", None), document.draining, made_for)
        if self._reasons.get(run.id) == reason:
            return
        self._reasons[run.id] = reason
        policy = self._call.readable_settings[0].policy
        around = Surroundings((), (), {}, policy.slots, policy.queues, self._call.clock.now_ms())
        because = " ".join(explain_run(document, run.id, around).because[:2])
        self._call.output.note(f"run {run.id} waits: {shown(because)}")


@contextmanager
def _streaming(call: Call, runs: Mapping[str, Run | Tombstone], *, wanted: bool) -> Iterator[None]:
    """Write what the runs write to stdout meanwhile; all of it before this ends. Trouble with it ends no wait."""
    if not wanted:
        yield
        return
    writer = Writer(call, runs)
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(CADENCE) and _write(call, writer):
            pass

    thread = threading.Thread(target=write, name="output", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if not call.output.failed:
            _write(call, writer)


def _write(call: Call, writer: Writer) -> bool:
    from controller.cli.text import shown
    from controller.model.errors import ControllerError

    try:
        return writer.write_new()
    except ControllerError as error:
        call.output.warn(f"trouble: {shown(error.what)}; the wait goes on without what the runs write")
        return False


class Writer:
    """Copies what runs write to stdout, and says on stderr where it comes from when that changes."""

    def __init__(self, call: Call, runs: Mapping[str, Run | Tombstone], *, step: str | None = None) -> None:
        from controller.api.following import Following

        self._call = call
        self._several = len(runs) > 1
        self._last = ""
        self._following = {}
        for run in runs.values():
            names = [each.name for each in run.steps]
            self._several = self._several or (len(names) > 1 and step is None)
            self._following[run.id] = Following(call.state_dir, run.id, names, step=step)

    def write_new(self) -> bool:
        """False once it cannot be written any more. Raises NotOurs and NotFound for what cannot be read."""
        for run, following in self._following.items():
            for log, part in following.read_new():
                if self._last not in ("", log.path) or (self._several and not self._last):
                    self._call.output.note(f"--- run {run}, step {log.step}, life {log.token}, attempt {log.attempt}")
                self._last = log.path
                self._call.output.raw(part)
                if self._call.output.failed:
                    return False
        return True


def is_abandoned() -> bool:
    """Whether stdout is a pipe that nobody reads any more: without anything to write, no write tells."""
    import select

    poll = select.poll()
    poll.register(1, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


COMMANDS: Mapping[str, click.Command] = {"wait": wait}
