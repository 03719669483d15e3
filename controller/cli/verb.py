"""What all commands share: the class of a command, and the types of what is typed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from controller.api.handle import PARALLELISM
from controller.api.options import DURATIONS, parse_duration
from controller.api.words import meant
from controller.cli.call import Call
from controller.model.errors import UsageFault
from controller.model.records import MAX_SLOTS, is_id

if TYPE_CHECKING:
    _IntType = click.ParamType[int]
    _PairType = click.ParamType[tuple[str, str]]
else:  # generic in newer releases of click alone
    _IntType = _PairType = click.ParamType


Source = Callable[[], Mapping[str, click.Command]]


class Listed(click.Group):
    """A group that imports the module of a command when that command is used.

    *listed*, in the order that help has, gives for each name a function that imports its module and answers with the
    commands in it.
    """

    def __init__(
        self, *args: Any, listed: Mapping[str, Source], examples: Sequence[str] = (), **attributes: Any
    ) -> None:
        super().__init__(*args, **attributes)
        self.listed = listed
        self.examples = examples
        self.params.append(help_option())

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(self.listed)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        source = self.listed.get(cmd_name)
        return None if source is None else source()[cmd_name]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.listed:
            near = meant(args[0], self.listed)
            raise UsageFault(f"there is no command {args[0]!r}{near}", next=f"{ctx.command_path} --help")
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        _write_examples(self.examples, formatter)


class Verb(click.Command):
    """A command with examples and, unless told otherwise, `--json`.

    Its callback gets the `Call` first and returns an exit code, or None for 0. A *question* changes nothing, so it has
    failed when its answer could not be written; anything else keeps its own exit code then.
    """

    def __init__(
        self, *args: Any, examples: Sequence[str], question: bool = False, json: bool = True, **attributes: Any
    ) -> None:
        super().__init__(*args, **attributes)
        self.examples = examples
        self.question = question
        if json:
            self.params.append(click.Option(["--json"], is_flag=True, help="Answer with one JSON document."))
        self.params.append(help_option())

    def invoke(self, ctx: click.Context) -> Any:
        call = ctx.find_object(Call)
        assert call is not None, "the root makes it"  # noqa: S101 - the root's callback runs before any command
        call.output.json = bool(ctx.params.pop("json", False))
        call.question = self.question
        call.command = ctx.command_path.partition(" ")[2]
        if self.question:
            return super().invoke(ctx)
        gc.enable()
        with call.showing(call.waits):
            return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        _write_examples(self.examples, formatter)


def _write_examples(examples: Sequence[str], formatter: click.HelpFormatter) -> None:
    if not examples:
        return
    with formatter.section("Examples" if len(examples) > 1 else "Example"):
        for example in examples:
            # Not through write_text: a command line that is wrapped cannot be pasted.
            formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


def completed(kind: str) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """What completes an argument; *kind* is the name of a function in `completion`, imported when a shell asks."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
        from controller.cli import completion

        found: list[Any] = getattr(completion, kind)(ctx, parameter, incomplete)
        return found

    return complete


def help_option() -> click.Option:
    """The option for help. Click's own would look on disk for a translation of its one sentence in every run."""
    return click.Option(
        ["-h", "--help"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_help,
        help="Show this message and exit.",
    )


def _help(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(ctx.get_help())
        ctx.exit()


class Whole(click.IntRange):
    """A number in digits alone: `int` also takes `1_0`, `+1`, white space and the digits of other scripts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not (value.isascii() and value.isdecimal()):
            self.fail(f"{value!r} is not a whole number.", param, ctx)
        return super().convert(value, param, ctx)


parallelism_option = click.option(
    "--parallelism",
    type=Whole(1, 256),
    default=PARALLELISM,
    show_default=True,
    metavar="N",
    help="Provider calls at once, each for another slot.",
)


class Duration(_IntType):
    """A length of time with its unit, as milliseconds."""

    name = "duration"

    def __init__(self, *, zero: bool = False) -> None:
        self.zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            ms = parse_duration(value)
        except ValueError as allowed:
            self.fail(f"{value!r} is not {allowed}.", param, ctx)
        if ms == 0 and not self.zero:
            self.fail(f"{value!r} is no time at all; give {DURATIONS}.", param, ctx)
        return ms


class Variable(_PairType):
    """`NAME=VALUE`. What is wrong with it is said without repeating the value, which may be a secret."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, content = value.partition("=")
        if not equals:
            self.fail("give NAME=VALUE; there is no '=' in what was given.", param, ctx)
        if not name or not name.isprintable():
            self.fail("give NAME=VALUE; what stands before '=' cannot be a name.", param, ctx)
        if "\0" in content or not _is_text(content):
            self.fail(f"the value of {name} is not text that a program could be given.", param, ctx)
        return name, content


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def subject_of(text: str) -> int | str:
    """The slot number in `slot:N`, or the run's id in `R` or `run:R`. Raises UsageFault."""
    kind, colon, rest = text.partition(":")
    if colon and kind == "slot":
        if rest.isascii() and rest.isdecimal() and len(rest) <= 5 and 1 <= int(rest) <= MAX_SLOTS:
            return int(rest)
        raise UsageFault(f"not a slot: {text!r}", next=f"give slot:N with N from 1 to {MAX_SLOTS}")
    run_id = rest if colon and kind == "run" else text
    if not is_id(run_id):
        raise UsageFault(f"not a run or a slot: {text!r}", next="give a run's id, or slot:N")
    return run_id


def run_of(text: str) -> str:
    """The run's id in `R` or `run:R`. Raises UsageFault."""
    subject = subject_of(text)
    if isinstance(subject, int):
        raise UsageFault(f"not a run: {text!r}", next="give a run's id; `controller runs` lists them")
    return subject
