"""`submit`: a command, or the steps in a file, becomes a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import UNSET, structs

from controller.api.settings import absolute
from controller.cli.call import Call
from controller.cli.values import Moment, Named, Text, json_value
from controller.cli.verb import Duration, Variable, Verb, Whole, completed
from controller.model.errors import Conflict, UsageFault
from controller.model.records import Priority, Step

if TYPE_CHECKING:
    from controller.engine.submission import Submission
    from controller.model.policy import Policy


@click.command(
    cls=Verb,
    context_settings={"allow_interspersed_args": False},
    examples=[
        "controller submit -- make test",
        "controller submit --id nightly-2026-11-30 --attempts 3 --timeout 2h --cwd . -- ./backup.sh --all",
        "controller submit --wait -- make test",
        "controller submit --file docs/examples/graph.toml",
        """controller submit --queue mail --attempts 5 --payload '{"to": "ops@example.org"}'""",
        "controller submit --at 2026-12-01T06:00:00Z --concurrency-key backup -- ./backup.sh",
    ],
)
@click.option("--id", metavar="ID", help="Name the run. The same id with the same content is the same run.")
@click.option(
    "--queue",
    type=Named(),
    metavar="Q",
    shell_complete=completed("queues"),
    help="Which queue.  [default: fleet for a command, default for a payload alone]",
)
@click.option(
    "--priority",
    type=click.Choice([layer.value for layer in Priority]),
    default=Priority.NORMAL.value,
    show_default=True,
    help="Its layer: all of an earlier one go first.",
)
@click.option("--delay", type=Duration(zero=True), metavar="D", help="Due only after this long.")
@click.option("--at", type=Moment(), metavar="MOMENT", help="Due only then, such as 2026-12-01T06:00:00Z.")
@click.option(
    "--attempts",
    type=Whole(1, 1_000_000),
    metavar="N",
    help="How often it may fail.  [default: that of the queue]",
)
@click.option(
    "--crashes",
    type=Whole(1, 1_000_000),
    metavar="N",
    help="How often its holder may be lost.  [default: as often as it may fail]",
)
@click.option(
    "--unique-for", type=Duration(), metavar="D", help="The same content in the same queue within D is the same run."
)
@click.option("--concurrency-key", type=Text(), metavar="K", help="What it works on, such as db-1.")
@click.option(
    "--concurrency",
    type=Whole(1, 1_000_000),
    metavar="N",
    help="Start it only while fewer than N of its key run.  [default: 1]",
)
@click.option("--payload", metavar="JSON|@FILE|-", help="What its consumer is given; at most 1 MiB.")
@click.option(
    "--replace",
    is_flag=True,
    allow_from_autoenv=False,
    help="Take the place of an earlier run of this id; it is discarded.",
)
@click.option("--timeout", type=Duration(), metavar="D", help="End the command after this long, such as 10m.")
@click.option("--env", type=Variable(), multiple=True, help="A variable for the command; may be repeated.")
@click.option(
    "--cwd",
    metavar="DIR",
    shell_complete=completed("directories"),
    help="Where it runs.  [default: a scratch directory of the run]",
)
@click.option(
    "--file",
    metavar="FILE|-",
    shell_complete=completed("files"),
    help="Take the run, with its steps, from TOML or JSON; - is stdin.",
)
@click.option("--wait", is_flag=True, help="Serve the fleet until it has ended, and show what it writes.")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, shell_complete=completed("files"))
@click.pass_obj
def submit(
    call: Call,
    id: str | None,  # noqa: A002 - an option's variable is named after this: CONTROLLER_SUBMIT_ID
    queue: str | None,
    priority: str,
    delay: int | None,
    at: int | None,
    attempts: int | None,
    crashes: int | None,
    unique_for: int | None,
    concurrency_key: str | None,
    concurrency: int | None,
    payload: str | None,
    replace: bool,
    timeout: int | None,
    env: tuple[tuple[str, str], ...],
    cwd: str | None,
    file: str | None,
    wait: bool,
    argv: tuple[str, ...],
) -> int:
    """Queue a command, the steps in a file, or a payload, and print the id of its run.

    It is accepted, durably, once its id is printed; a worker takes it at the next reconcile, or at once under
    `controller run`. What stands after -- is the command and its arguments, as they are: there is no shell.

    A file holds id, attempts and [[steps]], each with name, argv and, if wanted, needs, env, cwd (from where the file
    is), timeout and attempts (within one life of the run). A step runs once all that it needs have succeeded; what
    needs a failed one is skipped.

    The environment, later ones winning: PATH, HOME and LANG of the process that made the worker, such as cron;
    CONTROLLER_STATE_DIR; what pass_env under [provider] names; [provider.env]; --env; and, which cannot be chosen,
    CONTROLLER_RUN, CONTROLLER_STEP, CONTROLLER_ATTEMPT, CONTROLLER_TOKEN and CONTROLLER_IDEMPOTENCY_KEY: a step's own,
    the same in all its attempts and after a retry, for effects that must not happen twice. Nothing else of yours. Fix
    PATH under [provider.env]: then it does not depend on who reconciles.

    The fleet serves the queues that [fleet] queues names, by default the one called fleet. Any other is for consumers:
    programs that take runs with `controller queue claim`, or `controller queue work`. A payload without a command is
    for consumers alone.

    With --wait it exits with 0 if the run succeeded and 9 if not; interrupted, it exits with 130 and the run goes on.
    """
    from controller.engine.submission import Submission

    policy = call.settings.policy  # a configuration that cannot be meant is said now, not at the next reconcile
    _contradictions(delay, at, concurrency_key, concurrency, payload, file, id, replace)
    if file is None:
        steps = _command(timeout, env, cwd, argv, alone=payload is None)
        submission = Submission(steps=steps, id=id, max_attempts=attempts)
    else:
        given = {"argv": argv, "--timeout": timeout is not None, "--env": env, "--cwd": cwd is not None}
        beside = [name for name, value in given.items() if value]
        if beside:
            raise UsageFault(
                f"beside --file there cannot be {' or '.join(beside)}",
                where=f"--file; {', '.join(beside)}",
                next="write argv, timeout, env and cwd into the file, under [[steps]]",
            )
        submission = _from_file(file, id, attempts)
    submission = structs.replace(
        submission,
        queue=queue,
        priority=Priority(priority),
        max_crashes=crashes,
        payload=UNSET if payload is None else json_value(payload, "--payload"),
        delay_ms=delay,
        at=at,
        unique_ms=unique_for,
        concurrency_key=concurrency_key or "",
        concurrency=concurrency or 1,
        replace=replace,
    )
    if wait:
        _can_wait(submission, policy)
    call.subject = "fleet" if submission.id is None else f"run:{submission.id}"
    (submitted,) = call.controller.add([submission])
    if not submitted.created:
        call.output.note(f"run {submitted.run} was submitted before, with the same content")
    if wait:
        from controller.cli.waiting import follow_to_end

        call.output.note(f"run {submitted.run}")
        return follow_to_end(call, [submitted.run])
    call.output.answer("submit", {"run": submitted.run, "created": submitted.created}, [submitted.run])
    return 0


def _contradictions(
    delay: int | None,
    at: int | None,
    key: str | None,
    concurrency: int | None,
    payload: str | None,
    file: str | None,
    run_id: str | None,
    replace: bool,
) -> None:
    """Raises UsageFault for options that cannot be meant together."""
    if delay is not None and at is not None:
        raise UsageFault("it is due once", where="--delay, --at", next="give one of them")
    if concurrency is not None and key is None:
        raise UsageFault("--concurrency is of a key", where="--concurrency", next="add --concurrency-key K")
    if payload == "-" and file == "-":
        raise UsageFault("stdin can be read once", where="--payload -, --file -", next="give one of them as a file")
    if replace and run_id is None and file is None:
        raise UsageFault("--replace is of a run that has an id", where="--replace", next="add --id ID")


def _can_wait(submission: Submission, policy: Policy) -> None:
    """Raises Conflict for a run that the fleet would not serve, while nothing is submitted yet."""
    if submission.goes_to not in policy.queues:
        raise Conflict(
            f"queue {submission.goes_to} is served by consumers, not by the fleet: nothing would run it here",
            where=f"--wait; [fleet] queues = {', '.join(policy.queues)}",
            next="leave --wait out; then controller wait --no-drive RUN watches it",
        )


def _command(
    timeout: int | None, env: tuple[tuple[str, str], ...], cwd: str | None, argv: tuple[str, ...], *, alone: bool
) -> tuple[Step, ...]:
    """The command as the only step; no step for a payload, which is not *alone*. Raises UsageFault."""
    from controller.api.graph import STEP

    if not argv:
        if alone:
            raise UsageFault(
                "there is nothing to run",
                next="controller submit -- COMMAND [ARGUMENT...], or --file FILE, or --payload JSON",
            )
        given = {"--timeout": timeout is not None, "--env": env, "--cwd": cwd is not None}
        beside = [name for name, value in given.items() if value]
        if beside:
            what = f"{' and '.join(beside)} belong to a command, and there is none"
            raise UsageFault(what, where=", ".join(beside), next="write the command after --")
        return ()
    if cwd == "":
        raise UsageFault("an empty path", where="--cwd", next="leave it out, or give a directory such as .")
    given_twice = [name for name, _ in env]
    twice = next((name for name in given_twice if given_twice.count(name) > 1), None)
    if twice is not None:
        raise UsageFault(f"--env gives {twice} twice", where="--env", next="give each variable once")
    place = None if cwd is None else str(absolute(cwd))
    return (Step(name=STEP, argv=argv, env=dict(env), cwd=place, timeout_ms=timeout),)


def _from_file(path: str, run_id: str | None, attempts: int | None) -> Submission:
    """The run in the file, with what the command line chose of it. Raises UsageFault."""
    import sys

    from controller.api.graph import MOST_BYTES, read
    from controller.api.words import brief

    if path == "":
        raise UsageFault("an empty path", where="--file", next="give a file, or - for stdin")
    if path == "-":
        if sys.stdin is None:
            raise UsageFault("stdin is closed", where="--file -", next="give it the steps, or name a file")
        data, base, source = sys.stdin.buffer.read(MOST_BYTES + 1), absolute("."), "stdin"
    else:
        place = absolute(path)
        base, source = place.parent, path
        try:
            with place.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise UsageFault(f"it cannot be read: {error.strerror}", where=brief(path), next="check --file") from error
    toml = {".toml": True, ".json": False}.get(Path(path).suffix)
    return read(data, source=source, base=base, toml=toml, id=run_id, attempts=attempts)


COMMANDS: Mapping[str, click.Command] = {"submit": submit}
