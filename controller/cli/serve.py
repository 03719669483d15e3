"""`run`: the long-lived loop, and what signals mean to it."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final

import click

from controller.cli.call import Call
from controller.cli.verb import Duration, Verb, parallelism_option
from controller.model.errors import Conflict, ControllerError

if TYPE_CHECKING:
    from controller.api.settings import Settings
    from controller.engine.loop import Loop
    from controller.engine.reconcile import Reconciler
    from controller.engine.report import Report

_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


@click.command(cls=Verb, examples=["controller run", "controller --quiet run --interval 30s"])
@click.option(
    "--interval",
    type=Duration(),
    default="10s",
    show_default=True,
    metavar="D",
    help="How long at most between two looks at what the provider has.",
)
@parallelism_option
@click.pass_obj
def run(call: Call, interval: int, parallelism: int) -> int:
    """Serve the fleet until told to stop: reconcile, as soon as there is reason to.

    It wakes when a step ends, when the document changes and when something falls due. What it does is told on stderr;
    with --quiet only what is wrong. Safe beside cron's reconcile, other commands and another `run`.

    TERM or INT: nothing more is parked or sent, answers are awaited; a second one ends at once. Workers and their
    steps live on either way. HUP: the configuration is read again; one that cannot be meant is refused, and the old
    one kept. A changed [provider] takes effect once what it was asked before is answered.
    """
    return _Service(call, parallelism, interval / 1000).serve()


class _Service:
    """A loop after the other, each with its own provider, and what they did together."""

    def __init__(self, call: Call, parallelism: int, interval: float) -> None:
        self.call = call
        self.parallelism = parallelism
        self.interval = interval
        self.sent = 0
        self.ended: Counter[str] = Counter()
        self.hung_up = False
        self.loop: Loop | None = None
        self.worked: Settings | None = None

    def serve(self) -> int:
        from controller.cli.asking import INTERRUPTED, stopping
        from controller.engine.loop import Loop

        came: list[int] = []
        with self._heeding_hangups(), _held_back(_STOPS) as let_through:
            while not came:
                reconciler = self._reconciler()
                with stopping(self.call, reconciler) as came:
                    self.loop = Loop(reconciler, interval=self.interval, tell=self.tell, each_turn=self.heed_hangup)
                    with let_through():
                        self.loop.serve()
        ended = ", ".join(f"{count} {state}" for state, count in sorted(self.ended.items())) or "none"
        body = {"sent": self.sent, "ended": dict(self.ended), "signal": signal.Signals(came[0]).name}
        self.call.output.answer(
            "run", body, () if self.call.output.quiet else [f"stopped; {self.sent} sent; runs ended: {ended}"]
        )
        return INTERRUPTED if came[0] == signal.SIGINT else 0

    def _reconciler(self) -> Reconciler:
        """Over the settings that were read last, or over those before: what was refused must not end the service."""
        try:
            reconciler = self.call.controller.reconciler(parallelism=self.parallelism)
        except Conflict as error:
            if self.worked is None:
                raise
            self._refuse(error)
            self.call.controller.keep_settings(self.worked)
            reconciler = self.call.controller.reconciler(parallelism=self.parallelism)
        self.worked = self.call.settings
        return reconciler

    @contextmanager
    def _heeding_hangups(self) -> Iterator[None]:
        def hang_up(*_: object) -> None:
            self.hung_up = True

        previous = signal.signal(signal.SIGHUP, hang_up)
        try:
            yield
        finally:
            signal.signal(signal.SIGHUP, previous)

    def heed_hangup(self) -> None:
        """Read the configuration again if that was asked for. In the loop's thread, between turns."""
        if not self.hung_up or self.loop is None:
            return
        self.hung_up = False
        before = self.call.settings
        try:
            settings = self.call.controller.renew_settings()
        except ControllerError as error:
            self._refuse(error)
            return
        self.call.output.note(f"the configuration was read again: {self.call.config_path}")
        # The local provider ends what it deallocates with this grace.
        same_grace = settings.policy.kill_grace_ms == before.policy.kill_grace_ms
        if settings.provider == before.provider and same_grace:
            self.loop.adopt(settings.policy)
        else:
            self.loop.leave()

    def _refuse(self, error: ControllerError) -> None:
        """On stderr, also with --json: stdout is for the one answer at the end."""
        from controller.cli.text import shown

        where = f"; {shown(error.where)}" if error.where else ""
        todo = f"; next: {shown(error.next)}" if error.next else ""
        self.call.output.warn(
            f"the configuration was not taken, the one read before stays: {shown(error.what)}{where}{todo}"
        )

    def tell(self, report: Report) -> None:
        """Say what a turn did, on stderr: stdout is for the answer."""
        from controller.cli.asking import end_words, is_fine, sent_words, trouble_words

        output = self.call.output
        self.sent += len(report.sent)
        self.ended.update(ended.state for ended in report.ended)
        for sent in report.sent:
            say = output.note if is_fine(sent) else output.warn
            say(f"slot {sent.slot}: {sent_words(sent)}")
        for ended in report.ended:
            output.note(f"run {ended.run} {end_words(ended)}")
        for error in report.errors:
            output.warn(trouble_words(error))


@contextmanager
def _held_back(signals: tuple[int, ...]) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Between two loops nobody handles a signal that ends one: it waits for the next. Gives what lets them through.

    Threads and programs inherit what is held back, so they are started while it is let through.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)

    @contextmanager
    def let_through() -> Iterator[None]:
        held = signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)

    try:
        yield let_through
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


COMMANDS: Mapping[str, click.Command] = {"run": run}
