"""Commands about the state directory itself: init, version."""

from __future__ import annotations

from collections.abc import Mapping

import click

from controller.api import options
from controller.api import settings as config
from controller.cli.call import Call
from controller.cli.verb import Verb, Whole
from controller.model.errors import UsageFault
from controller.model.records import ID_GRAMMAR, MAX_SLOTS, is_id

SLOTS = 4


@click.command(
    cls=Verb,
    examples=[
        "controller init",
        "controller --state-dir /var/lib/builds init --fleet builds --slots 8",
        "controller init --provider command --provider-command '/usr/local/bin/provider --region eu'",
    ],
)
@click.option("--fleet", default="fleet", show_default=True, metavar="NAME", help="What the fleet is called.")
@click.option("--slots", type=Whole(1, MAX_SLOTS), metavar="N", help=f"Workers at once.  [default: {SLOTS}]")
@click.option("--provider", type=click.Choice(options.KINDS), help="Who makes workers.  [default: local]")
@click.option("--provider-command", metavar="CMD", help="The program, split as a shell would; implies command.")
@click.pass_obj
def init(call: Call, fleet: str, slots: int | None, provider: str | None, provider_command: str | None) -> None:
    """Make the state directory: a new document, and controller.toml with every setting explained.

    Refused where an earlier life left anything: a missing document is not a new one. A controller.toml that is there
    already is checked and kept, unless options say something else.
    """
    from controller.engine.chance import new_lineage
    from controller.provider.process import own_identity
    from controller.store.create import initialise

    if not is_id(fleet):
        raise UsageFault(
            f"not a name for a fleet: {fleet!r}",
            where="--fleet",
            next=f"use {ID_GRAMMAR}",
        )
    kept = _kept(call, chosen=(slots, provider, provider_command) != (None, None, None))
    settings = config.parse(kept or _chosen(slots, provider, provider_command), str(call.config_path))
    text = kept or options.template(settings.policy.slots, settings.provider.kind, settings.provider.argv)
    initialise(
        call.state_dir,
        fleet=fleet,
        lineage=new_lineage(),
        config_text=text,
        clock=call.clock,
        whoami=own_identity(),
        command=call.command,
        timeout=call.lock_timeout,
    )
    body = {
        "state_dir": str(call.state_dir),
        "config": str(call.state_dir / "controller.toml"),
        "fleet": fleet,
        "slots": settings.policy.slots,
        "provider": settings.provider.kind,
        "provider_command": list(settings.provider.argv),
        "revision": 1,
    }
    call.output.answer("init", body, _init_page(body))


def _kept(call: Call, *, chosen: bool) -> str:
    """The configuration that is there already, to be kept; "" when there is none, or options are to decide."""
    path = call.config_path
    if call.config_chosen:
        if chosen:
            raise UsageFault(
                "--config gives the settings, and so do options",
                where=str(path),
                next="give either a file or --slots and --provider, not both",
            )
        return config.read(path, chosen=True) or ""
    return "" if chosen else config.read(path, chosen=False) or ""


def _chosen(slots: int | None, provider: str | None, command: str | None) -> str:
    """The template with what was chosen. Raises UsageFault for what does not go together."""
    kind = provider or ("local" if command is None else "command")
    if kind == "command" and command is None:
        raise UsageFault(
            "a command provider needs its program",
            where="--provider",
            next="add --provider-command 'PROGRAM ARGUMENT...'",
        )
    if kind == "local" and command is not None:
        raise UsageFault(
            "a local provider has no program",
            where="--provider-command",
            next="leave it out, or use --provider command",
        )
    argv = () if command is None else config.provider_argv(command)
    return options.template(slots or SLOTS, kind, argv)


def _init_page(body: Mapping[str, object]) -> list[str]:
    from shlex import join

    from controller.cli.text import counted, pairs, shown

    slots = int(str(body["slots"]))
    argv = body["provider_command"]
    program = f": {shown(join(argv))}" if isinstance(argv, list) and argv else ""
    return [
        *pairs(
            [
                ("state", shown(str(body["state_dir"]))),
                ("settings", shown(str(body["config"]))),
                ("fleet", f"{body['fleet']}, {counted(slots, 'slot')}, provider {body['provider']}{program}"),
            ]
        ),
        "next: controller submit -- COMMAND [ARGUMENT...]",
    ]


@click.command(cls=Verb, question=True, examples=["controller version", "controller version --json"])
@click.pass_obj
def version(call: Call) -> None:
    """Show the versions of controller, its document, Python and the libraries."""
    import platform
    from importlib.metadata import version as of

    from controller.cli.text import pairs
    from controller.model.records import SCHEMA

    libraries = {name: of(name) for name in ("click", "filelock", "msgspec", "orjson")}
    body = {
        "version": of("controller"),
        "document_schema": SCHEMA,
        "python": platform.python_version(),
        "libraries": libraries,
    }
    lines = [("controller", body["version"]), ("document", f"schema {SCHEMA}"), ("python", platform.python_version())]
    call.output.answer("version", body, pairs([*((name, str(value)) for name, value in lines), *libraries.items()]))


COMMANDS: Mapping[str, click.Command] = {"init": init, "version": version}
