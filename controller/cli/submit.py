"""`submit`: a command, or the steps in a file, becomes a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from controller.api.settings import absolute
from controller.cli.call import Call
from controller.cli.verb import Duration, Variable, Verb, completed
from controller.model.errors import UsageFault

if TYPE_CHECKING:
    from controller.engine.queue import Submission


@click.command(
    cls=Verb,
    context_settings={"allow_interspersed_args": False},
    examples=[
        "controller submit -- make test",
        "controller submit --id nightly-2026-11-30 --attempts 3 --timeout 2h --cwd . -- ./backup.sh --all",
        "controller submit --wait -- make test",
        "controller submit --file docs/examples/graph.toml",
    ],
)
@click.option("--id", metavar="ID", help="Name the run. The same id with the same content is the same run.")
@click.option("--attempts", type=click.IntRange(1, 1_000_000), metavar="N", help="How often it may fail.  [default: 1]")
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
    attempts: int | None,
    timeout: int | None,
    env: tuple[tuple[str, str], ...],
    cwd: str | None,
    file: str | None,
    wait: bool,
    argv: tuple[str, ...],
) -> int:
    """Queue a command, or the steps in a file, and print the id of its run.

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

    With --wait it exits with 0 if the run succeeded and 9 if not; interrupted, it exits with 130 and the run goes on.
    """
    call.settings  # noqa: B018 - a configuration that cannot be meant is said now, not at the next reconcile
    if file is None:
        submission = _command(id, attempts or 1, timeout, env, cwd, argv)
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


def _command(
    run_id: str | None,
    attempts: int,
    timeout: int | None,
    env: tuple[tuple[str, str], ...],
    cwd: str | None,
    argv: tuple[str, ...],
) -> Submission:
    from controller.api.graph import STEP
    from controller.engine.queue import Submission
    from controller.model.records import Step

    if not argv:
        raise UsageFault("there is nothing to run", next="controller submit -- COMMAND [ARGUMENT...], or --file FILE")
    if cwd == "":
        raise UsageFault("an empty path", where="--cwd", next="leave it out, or give a directory such as .")
    given = [name for name, _ in env]
    twice = next((name for name in given if given.count(name) > 1), None)
    if twice is not None:
        raise UsageFault(f"--env gives {twice} twice", where="--env", next="give each variable once")
    place = None if cwd is None else str(absolute(cwd))
    step = Step(name=STEP, argv=argv, env=dict(env), cwd=place, timeout_ms=timeout)
    return Submission(steps=(step,), id=run_id, max_attempts=attempts)


def _from_file(path: str, run_id: str | None, attempts: int | None) -> Submission:
    """The run in the file, with what the command line chose of it. Raises UsageFault."""
    import sys

    from controller.api.graph import MOST_BYTES, read

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
            raise UsageFault(f"it cannot be read: {error.strerror}", where=path, next="check --file") from error
    toml = {".toml": True, ".json": False}.get(Path(path).suffix)
    return read(data, source=source, base=base, toml=toml, id=run_id, attempts=attempts)


COMMANDS: Mapping[str, click.Command] = {"submit": submit}
