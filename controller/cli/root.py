"""The root of the command line: global options, the list of commands, and how every ending becomes an exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import click

from controller.api.settings import environment
from controller.api.words import meant
from controller.cli.call import Call
from controller.cli.output import UNWRITTEN, Output
from controller.cli.verb import Duration, Listed, Source, completed
from controller.model.errors import ControllerError, DocumentMissing, Refusal, UsageFault

PREFIX = "CONTROLLER"
COMPLETE = "_CONTROLLER_COMPLETE"
"""What a shell that completes a line sets, as `controller completion` has told it to."""
INTERRUPTED = 130


def _runs() -> Mapping[str, click.Command]:
    from controller.cli.runs import COMMANDS

    return COMMANDS


def _submit() -> Mapping[str, click.Command]:
    from controller.cli.submit import COMMANDS

    return COMMANDS


def _waiting() -> Mapping[str, click.Command]:
    from controller.cli.waiting import COMMANDS

    return COMMANDS


def _fleet() -> Mapping[str, click.Command]:
    from controller.cli.fleet import COMMANDS

    return COMMANDS


def _setup() -> Mapping[str, click.Command]:
    from controller.cli.setup import COMMANDS

    return COMMANDS


def _state() -> Mapping[str, click.Command]:
    from controller.cli.state import COMMANDS

    return COMMANDS


def _release() -> Mapping[str, click.Command]:
    from controller.cli.release import COMMANDS

    return COMMANDS


def _recovery() -> Mapping[str, click.Command]:
    from controller.cli.recovery import COMMANDS

    return COMMANDS


def _abandon() -> Mapping[str, click.Command]:
    from controller.cli.abandon import COMMANDS

    return COMMANDS


def _slots() -> Mapping[str, click.Command]:
    from controller.cli.slots import COMMANDS

    return COMMANDS


def _logs() -> Mapping[str, click.Command]:
    from controller.cli.logs import COMMANDS

    return COMMANDS


def _history() -> Mapping[str, click.Command]:
    from controller.cli.history import COMMANDS

    return COMMANDS


def _inspect() -> Mapping[str, click.Command]:
    from controller.cli.inspect import COMMANDS

    return COMMANDS


def _drive() -> Mapping[str, click.Command]:
    from controller.cli.drive import COMMANDS

    return COMMANDS


def _completion() -> Mapping[str, click.Command]:
    from controller.cli.completion import COMMANDS

    return COMMANDS


def _queue() -> Mapping[str, click.Command]:
    from controller.cli.queue import COMMANDS

    return COMMANDS


def _serve() -> Mapping[str, click.Command]:
    from controller.cli.serve import COMMANDS

    return COMMANDS


def _fsck() -> Mapping[str, click.Command]:
    from controller.cli.fsck import COMMANDS

    return COMMANDS


def _doctor() -> Mapping[str, click.Command]:
    from controller.cli.doctor import COMMANDS

    return COMMANDS


COMMANDS: Mapping[str, Source] = {
    "init": _setup,
    "submit": _submit,
    "wait": _waiting,
    "reconcile": _drive,
    "run": _serve,
    "replay-pending": _drive,
    "status": _fleet,
    "show": _runs,
    "runs": _runs,
    "history": _history,
    "withdraw": _runs,
    "cancel": _drive,
    "retry": _runs,
    "release": _release,
    "resume": _recovery,
    "surrender": _recovery,
    "logs": _logs,
    "explain": _inspect,
    "drain": _drive,
    "cordon": _slots,
    "uncordon": _slots,
    "abandon": _abandon,
    "forget": _recovery,
    "adopt": _recovery,
    "delete-unrecorded": _recovery,
    "queue": _queue,
    "fsck": _fsck,
    "doctor": _doctor,
    "state": _state,
    "completion": _completion,
    "version": _setup,
}
"""In the order that help lists them. A command's module is imported when that command is used."""


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"controller {version('controller')}")
        ctx.exit()


@click.group(
    cls=Listed,
    listed=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": PREFIX},
)
@click.option(
    "--state-dir",
    metavar="DIR",
    shell_complete=completed("directories"),
    help="Where the document lives.  [default: ./state]",
    show_envvar=True,
)
@click.option(
    "--config",
    metavar="FILE",
    shell_complete=completed("files"),
    help="The settings.  [default: controller.toml in the state directory]",
)
@click.option(
    "--lock-timeout",
    type=Duration(zero=True),
    default="10s",
    show_default=True,
    help="How long to wait for the document.",
)
@click.option("--quiet", is_flag=True, help="Say nothing beside answers and errors; nothing of work that is done.")
@click.option("--no-color", is_flag=True, help="No colour, not even on a terminal.")
@click.option("--exact-times", is_flag=True, help="Tell times as moments, UTC, not as ages.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
@click.pass_context
def root(
    ctx: click.Context,
    state_dir: str | None,
    config: str | None,
    lock_timeout: int,
    quiet: bool,
    no_color: bool,
    exact_times: bool,
) -> None:
    """Run commands on workers, and never lose or double what was asked of a provider.

    One document holds everything; `controller status` shows where it stands. Global options go before the command.
    Options can come from the environment, as CONTROLLER_<COMMAND>_<OPTION>.
    """
    call = ctx.ensure_object(Call)
    source = ctx.get_parameter_source("state_dir")
    call.choose(
        state_dir=state_dir,
        config=config,
        lock_timeout_ms=lock_timeout,
        from_environment=source is click.core.ParameterSource.ENVIRONMENT,
    )
    call.output.quiet = quiet
    call.output.exact = exact_times
    call.output.color = call.wants_color(not no_color)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(2)


class Ending(NamedTuple):
    """`quick`: a question was answered, and nothing is left that would have to be ended in order."""

    code: int
    quick: bool


def run(args: Sequence[str]) -> Ending:
    """Run one command line. Nothing that goes wrong leaves as an exception."""
    asked = environment(COMPLETE)
    if asked:
        from controller.cli.completion import complete

        return Ending(complete(asked), True)
    call = Call()
    code = _guarded(call, args)
    if call.opened:
        with suppress(KeyboardInterrupt):  # what it did stands, and was told
            call.controller.close()
    return Ending(code, call.question)


def _guarded(call: Call, args: Sequence[str]) -> int:
    call.output = Output(json=_wants_json(args))
    try:
        code = _invoke(call, list(args))
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except ControllerError as error:
        return _tell(call, error)
    except click.ClickException as error:
        return _tell(call, _usage(error, args))
    except (KeyboardInterrupt, click.Abort):
        call.output.error(Interrupted("interrupted: accepted work goes on", next="controller status"))
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last resort: people get a line, and can ask for the rest
        return _tell(call, _unexpected(error))
    return UNWRITTEN if call.output.failed and call.question else code


class Interrupted(ControllerError):
    code = "interrupted"
    exit = INTERRUPTED


def _invoke(call: Call, args: list[str]) -> int:
    with root.make_context("controller", args, obj=call) as ctx:
        code: Any = root.invoke(ctx)
    return code if isinstance(code, int) else 0


def _tell(call: Call, error: ControllerError) -> int:
    """Say *error*, note it if it is a refusal, and give its exit code."""
    if isinstance(error, Refusal) and call.opened:
        call.store.note_refusal(call.command, error.code, error.what, call.subject)
    if isinstance(error, DocumentMissing) and error.where == str(call.state_dir):
        error.where = call.state_dir_shown
    call.output.error(error)
    return error.exit


def _usage(error: click.ClickException, args: Sequence[str]) -> UsageFault:
    """click's complaint about *args*, in our words where its own are not plain."""
    ctx: click.Context | None = getattr(error, "ctx", None)
    path = "controller" if ctx is None else ctx.command_path
    help_page = f"{path} --help"
    if isinstance(error, click.NoSuchOption) and ctx is not None:
        option = error.option_name
        if ctx.parent is not None and any(option in parameter.opts for parameter in root.params):
            return UsageFault(
                f"{option} belongs to every command, so it goes before the command",
                where=path,
                next=f"controller {option} ... {path.partition(' ')[2]} ...",
            )
        if ctx.parent is None and option == "--json":
            command = next((word for word in args if word in COMMANDS), "COMMAND")
            return UsageFault("--json goes after the command", where=path, next=f"controller {command} --json")
        known = [name for parameter in ctx.command.params for name in parameter.opts]
        return UsageFault(f"there is no option {option}{meant(option, known)}", where=path, next=help_page)
    if (
        isinstance(error, click.BadParameter)
        and error.param is not None
        and isinstance(error.param.type, click.IntRange)
    ):
        allowed = error.param.type
        bounds = f"from {allowed.min} up" if allowed.max is None else f"from {allowed.min} to {allowed.max}"
        hint = error.param.get_error_hint(ctx).replace("'", "")
        return UsageFault(f"{hint} must be a whole number {bounds}", where=path, next=help_page)
    return UsageFault(error.format_message(), where=path, next=help_page)


def _unexpected(error: Exception) -> ControllerError:
    if environment(f"{PREFIX}_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    text = f"{type(error).__name__}: {error}"
    return ControllerError(
        f"controller itself failed: {text}",
        next=f"what was accepted stands. Run it again with {PREFIX}_TRACEBACK=1 to see where, and report that",
    )


def _wants_json(args: Sequence[str]) -> bool:
    """Whether these arguments ask for JSON, as far as can be told of arguments that may not parse."""
    own = args[: args.index("--")] if "--" in args else args
    if "--json" in own:
        return True
    place = next((place for place, word in enumerate(own) if word in COMMANDS), len(own))
    # The second word counts where the first is a group; for any other command no such variable means anything.
    names = ("_".join(own[place : place + count]).upper().replace("-", "_") for count in (1, 2))
    yes = ("1", "true", "yes", "on", "t", "y")
    return any(environment(f"{PREFIX}_{name}_JSON").lower() in yes for name in names)
