"""`queue work`: the ready consumer, and what signals mean to it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from controller.cli.call import Call
from controller.cli.leases import lease_option, queue_option
from controller.cli.values import Text
from controller.cli.verb import Duration, Verb, Whole, completed
from controller.model.errors import UsageFault

if TYPE_CHECKING:
    from controller.api.consumer import Consumer
    from controller.api.life import Told
    from controller.model.errors import ControllerError
    from controller.model.records import Run

INTERRUPTED: Final = 130
_STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(
    name="work",
    cls=Verb,
    context_settings={"allow_interspersed_args": False},
    examples=[
        "controller queue work -- ./handle-one",
        "controller queue work --queue mail --jobs 4 --lease 30s -- python3 send.py",
        "controller queue work --until-empty -- sh -c 'cat > \"$CONTROLLER_RUN.json\"'",
    ],
)
@queue_option
@click.option("--jobs", type=Whole(1, 256), default=1, show_default=True, metavar="N", help="Runs at once.")
@click.option("--owner", type=Text(), metavar="NAME", help="Who holds them.  [default: HOST:PID]")
@lease_option
@click.option(
    "--grace",
    type=Duration(zero=True),
    default="5s",
    show_default=True,
    metavar="D",
    help="How long programs may go on by themselves once it was told to stop.",
)
@click.option("--until-empty", is_flag=True, help="End when nothing runs and nothing can be claimed.")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, shell_complete=completed("files"))
@click.pass_obj
def work(
    call: Call,
    queue: str,
    jobs: int,
    owner: str | None,
    lease: int | None,
    grace: int,
    until_empty: bool,
    argv: tuple[str, ...],
) -> int:
    """Take runs from a queue and do each by running a program: exit 0 completes the run, anything else is a failure.

    What stands after -- is the program and its arguments: there is no shell. Its stdin is the run's payload, as
    compact JSON; its stdout goes to stderr, as what is told here does. It gets this environment and
    CONTROLLER_STATE_DIR, CONTROLLER_QUEUE, CONTROLLER_RUN, CONTROLLER_TOKEN, CONTROLLER_ATTEMPT (which life of the run
    it is), of a run with one step CONTROLLER_STEP, and CONTROLLER_IDEMPOTENCY_KEY: the same in every life of the run,
    for effects that must not happen twice. Options of this command that were set there are left out.

    A lease is renewed every third of its time. When a cancel is requested, the program gets TERM, and KILL after
    kill_grace under [fleet]; when the lease was lost, KILL at once, and nothing is reported.

    TERM, INT or HUP: nothing new is taken, and programs may end by themselves for --grace; then they get TERM, and
    KILL. What had to be ended goes back to its queue, which spends no budget. A second signal cuts the grace short, a
    third one kills.
    """
    from controller.api.consumer import Consumer, Work
    from controller.store.waiters import Waiters

    wanted = Work(
        queue=queue,
        argv=argv,
        owner=owner or _ourselves(),
        environment=_environment(call, argv),
        at_once=jobs,
        lease_ms=lease,
        grace=grace / 1000,
        kill_grace=call.settings.policy.kill_grace_ms / 1000,
        until_empty=until_empty,
    )
    teller = _Teller(call)
    consumer = Consumer(call.ruled, Waiters(call.state_dir), wanted, tell=teller.tell, trouble=teller.trouble)
    try:
        with _stopping(call, consumer) as came:
            consumer.serve()
    finally:
        consumer.close()
    counts = {told.value: count for told, count in consumer.counts.items()}
    body = {"queue": queue, **counts, "signal": signal.Signals(came[0]).name if came else None}
    page = ", ".join(f"{count} {told.replace('_', ' ')}" for told, count in counts.items())
    call.output.answer("queue-work", body, [page], well=True)
    return INTERRUPTED if came and came[0] == signal.SIGINT else 0


def _environment(call: Call, argv: tuple[str, ...]) -> dict[str, str]:
    """What the program gets besides what its run is. Raises UsageFault for one that cannot be run with it."""
    from controller.api.settings import inherited_environment
    from controller.provider.child import why_not_found

    if not argv:
        raise UsageFault("there is nothing to run", next="controller queue work -- COMMAND [ARGUMENT...]")
    environment = inherited_environment(call.state_dir)
    why = why_not_found(argv, environment)
    if why:
        raise UsageFault(f"{argv[0]!r} cannot be run: {why}", next="give a program that is there and executable")
    return environment


def _ourselves() -> str:
    return f"{os.uname().nodename}:{os.getpid()}"


class _Teller:
    """Says on stderr what becomes of runs: stdout is for the answer."""

    def __init__(self, call: Call) -> None:
        self.output = call.output

    def tell(self, told: Told, run: Run, detail: str) -> None:
        from controller.api.life import Told
        from controller.cli.text import shown

        said = f": {shown(detail)}" if detail else ""
        line = f"run {run.id}, life {run.attempts}: {told.value.replace('_', ' ')}{said}"
        if told is Told.LOST:
            self.output.warn(line)
        else:
            self.output.note(line)

    def trouble(self, error: ControllerError) -> None:
        from controller.cli.asking import trouble_words

        self.output.warn(f"{trouble_words(error)}; it is tried again")


@contextmanager
def _stopping(call: Call, consumer: Consumer) -> Iterator[list[int]]:
    """Signals while it works. Yields those that came, so far none."""
    came: list[int] = []

    def handle(number: int, _: object) -> None:
        came.append(number)
        consumer.stop()
        said = ("nothing new is taken", "programs are asked to end", "programs are killed")
        call.output.note(f"stopping: {said[min(len(came), 3) - 1]}")

    # Whoever started us may ignore HUP on purpose, as nohup does, or CHLD by mistake: then exit codes would be lost.
    heeded = [number for number in _STOPS if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP]
    previous = {number: signal.signal(number, handle) for number in heeded}
    previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    wakeup = signal.set_wakeup_fd(consumer.wakeup, warn_on_full_buffer=False)
    try:
        yield came
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in previous.items():
            signal.signal(number, handler)


COMMANDS: Mapping[str, click.Command] = {"work": work}
