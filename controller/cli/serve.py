"""`run`: the long-lived loop, and what signals mean to it."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from controller.cli.call import Call
from controller.cli.verb import Duration, Verb, parallelism_option
from controller.model.errors import ControllerError

if TYPE_CHECKING:
    from controller.engine.loop import Loop
    from controller.engine.report import Report


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

    def serve(self) -> int:
        from controller.cli.asking import INTERRUPTED, stopping
        from controller.engine.loop import Loop

        came: list[int] = []
        with self._heeding_hangups():
            while not came:
                reconciler = self.call.controller.reconciler(parallelism=self.parallelism)
                with stopping(self.call, reconciler) as came:
                    self.loop = Loop(reconciler, interval=self.interval, tell=self.tell, each_turn=self.heed_hangup)
                    self.loop.serve()
        ended = ", ".join(f"{count} {state}" for state, count in sorted(self.ended.items())) or "none"
        body = {"sent": self.sent, "ended": dict(self.ended), "signal": signal.Signals(came[0]).name}
        self.call.output.answer(
            "run", body, () if self.call.output.quiet else [f"stopped; {self.sent} sent; runs ended: {ended}"]
        )
        return INTERRUPTED if came[0] == signal.SIGINT else 0

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
        output, before = self.call.output, self.call.settings
        try:
            settings = self.call.controller.renew_settings()
        except ControllerError as error:
            output.error(error)
            output.warn(f"the configuration was not taken: the one read before stays; {self.call.config_path}")
            return
        output.note(f"the configuration was read again: {self.call.config_path}")
        if settings.provider == before.provider:
            self.loop.adopt(settings.policy)
        else:
            self.loop.leave()

    def tell(self, report: Report) -> None:
        """Say what a turn did, on stderr: stdout is for the answer."""
        from controller.cli.asking import end_words, sent_words
        from controller.cli.text import shown
        from controller.model.reason import Reason

        fine = (Reason.DONE, Reason.PENDING)
        output = self.call.output
        self.sent += len(report.sent)
        self.ended.update(ended.state for ended in report.ended)
        for sent in report.sent:
            say = output.note if sent.unsaved is None and sent.reason in fine else output.warn
            say(f"slot {sent.slot}: {sent_words(sent)}")
        for ended in report.ended:
            output.note(f"run {ended.run} {end_words(ended)}")
        for error in report.errors:
            output.warn(f"trouble: {shown(error.what)}" + (f"; next: {shown(error.next)}" if error.next else ""))


COMMANDS: Mapping[str, click.Command] = {"run": run}
