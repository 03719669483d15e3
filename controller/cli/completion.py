"""`completion`: what a shell asks while a line is being typed.

Not promised: an answer. Whatever goes wrong, a shell gets nothing rather than an error in the middle of a line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from controller.api.settings import environment
from controller.cli.call import Call
from controller.cli.verb import Verb
from controller.model.records import Run, Tombstone

MOST = 200
HOW = {
    "bash": '# Put this into ~/.bashrc:\n#   eval "$(controller completion bash)"\n',
    "zsh": '# Put this into ~/.zshrc, after compinit:\n#   eval "$(controller completion zsh)"\n',
    "fish": "# Type this once:\n#   controller completion fish > ~/.config/fish/completions/controller.fish\n",
}


class Bash(BashComplete):
    """Bash takes `slot:3` for three words, and wants the last of them back; `--state=dead` too."""

    prefix = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        words = split_arg_string(environment("COMP_WORDS"))
        place = int(environment("COMP_CWORD"))
        typed = words[1 : place + 1] if place < len(words) else [*words[1:], ""]
        joined: list[str] = []
        glue = False
        for word in typed:
            if joined and (word in {":", "="} or glue):
                joined[-1] += word
            else:
                joined.append(word)
            glue = word in {":", "="}
        incomplete = joined.pop() if joined else ""
        self.prefix = incomplete[: incomplete.rfind(":") + 1]
        return joined, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{str(item.value).removeprefix(self.prefix)}"


@click.command(
    cls=Verb,
    json=False,
    examples=["controller completion bash", 'eval "$(controller completion bash)"'],
)
@click.argument("shell", type=click.Choice(tuple(HOW)))
@click.pass_obj
def completion(call: Call, shell: str) -> int:
    """Print a script that makes a shell complete commands, options, run ids and slots."""
    from controller.cli.root import COMPLETE, root

    made = get_completion_class(shell)
    assert made is not None, "click knows these three"  # noqa: S101 - the choice above is of them
    script = made(root, {}, "controller", COMPLETE).source_vars()
    call.output.raw(f"{HOW[shell]}{made.source_template % script}\n".encode())
    return 0


def complete(instruction: str) -> int:
    """Answer a shell that asks. Never raises, and writes nothing but candidates."""
    from controller.cli.root import COMPLETE, root

    add_completion_class(Bash)
    shell, _, verb = instruction.partition("_")
    made = get_completion_class(shell)
    if made is None or verb != "complete":
        return 1
    try:
        answer = made(root, {"auto_envvar_prefix": "CONTROLLER"}, "controller", COMPLETE).complete()
    except Exception:  # noqa: BLE001 - an error in the middle of a line that is being typed helps nobody
        return 0
    if answer:
        Call().output.raw(f"{answer}\n".encode("utf-8", "backslashreplace"))
    return 0


def runs(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of runs, the newest first, with their state."""
    return [CompletionItem(each, help=state) for each, state in _runs(ctx) if each.startswith(incomplete)][:MOST]


def subjects(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of runs, and slots."""
    slots = [CompletionItem(f"slot:{slot}") for slot in _slots(ctx)]
    return [*runs(ctx, parameter, incomplete), *(slot for slot in slots if slot.value.startswith(incomplete))][:MOST]


def slots(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(str(slot)) for slot in _slots(ctx) if str(slot).startswith(incomplete)][:MOST]


def queues(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of queues that were used, or that the settings name."""
    call = _call(ctx)
    document, policy = call.store.read().document, call.readable_settings[0].policy
    known = {*policy.queues, *policy.by_queue, *document.queues, *(run.queue for run in document.runs.values())}
    return [CompletionItem(name) for name in sorted(known) if name.startswith(incomplete)][:MOST]


def failures(_ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Codes that a holder may give for a failure."""
    from controller.engine.leases import FAILURES
    from controller.model.reason import EXPLAINED

    known = sorted((reason.value, EXPLAINED[reason].text) for reason in FAILURES)
    return [CompletionItem(code, help=text) for code, text in known if code.startswith(incomplete)]


def directories(_ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell itself knows them."""
    return [CompletionItem(incomplete, type="dir")]


def files(_ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell itself knows them."""
    return [CompletionItem(incomplete, type="file")]


def _runs(ctx: click.Context) -> list[tuple[str, str]]:
    document = _call(ctx).store.read().document
    known: list[Run | Tombstone] = [*document.runs.values(), *document.finished.values()]
    known.sort(key=lambda run: -run.sequence)
    return [(run.id, run.state.value) for run in known]


def _slots(ctx: click.Context) -> list[int]:
    document = _call(ctx).store.read().document
    return sorted({*document.workers, *document.pending_actions, *document.slots})


def _call(ctx: click.Context) -> Call:
    """The call as the line so far chooses it: the root's own callback has not run."""
    chosen: Mapping[str, Any] = ctx.find_root().params
    call = Call()
    call.choose(
        state_dir=_expanded(chosen.get("state_dir")),
        config=_expanded(chosen.get("config")),
        lock_timeout_ms=0,
        from_environment=False,
    )
    return call


def _expanded(path: str | None) -> str | None:
    """*path* as the shell will give it to the command; a line that is being typed has it as it was typed."""
    return None if path is None else os.path.expanduser(os.path.expandvars(path))


COMMANDS: Mapping[str, click.Command] = {"completion": completion}
