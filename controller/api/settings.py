"""Settings: the configuration file and the environment. Everything that is set from outside comes in here.

Not promised: that a file which reads well is wise.

`controller.toml` is read strictly: an unknown section or option, a value of the wrong type and an impossible value are
refused with file, section, option and what is allowed, before anything is done on the strength of them. What there is
stands in `options`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from controller.api.options import DEFAULTS, ENV_SECTION, OPTIONS, VARIABLE, env_value
from controller.api.words import meant, spelled
from controller.model.errors import Conflict, UsageFault
from controller.model.policy import Backoff, Policy
from controller.model.records import Document


class ProviderSettings(Struct, frozen=True):
    """`argv` is for kind `command` alone; `deadlines` are milliseconds by op or action type, only those set."""

    kind: str = "local"
    argv: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    deadlines: Mapping[str, int] = {}


class Settings(Struct, frozen=True):
    """What the configuration file at `source` says; every option left out has its default."""

    source: str
    policy: Policy = DEFAULTS
    provider: ProviderSettings = ProviderSettings()


# --- The environment -------------------------------------------------------------------------------------------------


def environment(name: str) -> str:
    """The value of an environment variable, "" when it is not set."""
    return os.environ.get(name, "")


def is_set(name: str) -> bool:
    """Whether an environment variable is there, even an empty one."""
    return name in os.environ


def absolute(path: str | os.PathLike[str]) -> Path:
    """*path* from the root. Links are not followed: the name that was typed is the name that is shown.

    Raises UsageFault where there is no directory to start from.
    """
    try:
        return Path(os.path.abspath(path))
    except FileNotFoundError:
        raise UsageFault(
            "the current directory is gone",
            where=os.fspath(path),
            next="change to one that exists, or give an absolute path",
        ) from None


def provider_environment(settings: ProviderSettings, state_dir: Path) -> dict[str, str]:
    """All that a provider program gets: PATH, HOME, LANG, CONTROLLER_STATE_DIR, what `pass_env` names, and `env`."""
    passed = ("PATH", "HOME", "LANG", *settings.pass_env)
    given = {name: os.environ[name] for name in passed if name in os.environ}
    return given | {"CONTROLLER_STATE_DIR": str(state_dir)} | dict(settings.env)


# --- The file -------------------------------------------------------------------------------------------------------


def load(path: Path, *, chosen: bool) -> Settings:
    """The settings in the file. One that is missing means every default, unless it was *chosen*. Raises UsageFault."""
    text = read(path, chosen=chosen)
    return Settings(source=str(path)) if text is None else parse(text, str(path))


def read(path: Path, *, chosen: bool) -> str | None:
    """The text of the file; None when it is missing and was not *chosen*. Raises UsageFault, NotOurs."""
    try:
        if not path.is_file() and path.exists():
            raise UsageFault("the configuration is no file", where=str(path), next="put a regular file there")
        return path.read_bytes().decode()
    except FileNotFoundError:
        if chosen:
            raise UsageFault(
                "there is no such configuration file", where=str(path), next="check --config and CONTROLLER_CONFIG"
            ) from None
        return None
    except OSError as error:
        from controller.store.disk import denied

        raise denied(error, path) or UsageFault(
            f"the configuration cannot be read: {error.strerror}", where=str(path), next="mend the file's mode or place"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageFault(
            "the configuration is not UTF-8", where=f"{path}, byte {error.start}", next="mend that place"
        ) from error


def parse(text: str, source: str) -> Settings:
    """The settings in *text*. Raises UsageFault naming *source*, section and option, and what is allowed."""
    import tomllib

    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageFault(f"the configuration is not TOML: {error}", where=source, next="mend that place") from error
    values, env = _collect(content, source)

    def chosen(section: str, **names: str) -> dict[str, Any]:
        return {field: values[section, key] for field, key in names.items() if (section, key) in values}

    def backoff(name: str, default: Backoff) -> Backoff:
        section = f"backoff.{name}"
        given = chosen(section, initial_ms="initial", cap_ms="cap", factor="factor")
        made = Backoff(
            **({"initial_ms": default.initial_ms, "cap_ms": default.cap_ms, "factor": default.factor} | given)
        )
        if made.cap_ms < made.initial_ms:
            raise UsageFault(
                f"cap is {spelled(made.cap_ms)}, below initial, {spelled(made.initial_ms)}",
                where=f"{source}, [{section}]",
                next="give a cap of at least initial",
            )
        return made

    policy = Policy(
        **chosen("fleet", slots="slots", queues="queues", idle_ms="idle", grace_ms="grace", kill_grace_ms="kill_grace"),
        retry=backoff("retry", DEFAULTS.retry),
        create=backoff("create", DEFAULTS.create),
        send=backoff("send", DEFAULTS.send),
    )
    provider = ProviderSettings(
        **chosen("provider", kind="kind", argv="command", pass_env="pass_env"),
        env=env,
        deadlines={key: value for (section, key), value in values.items() if section == "provider.deadlines"},
    )
    if provider.kind == "command" and not provider.argv:
        raise UsageFault(
            "the provider is a command, and there is none",
            where=f"{source}, [provider] command",
            next='give its words, such as command = ["/usr/local/bin/provider"]',
        )
    return Settings(source, policy, provider)


def _collect(content: Mapping[str, Any], source: str) -> tuple[dict[tuple[str, str], Any], dict[str, str]]:
    """Every option that is set, checked; and the provider's own variables."""
    known = {(option.section, option.key): option for option in OPTIONS}
    sections = {*(section for section, _ in known), ENV_SECTION}
    values: dict[tuple[str, str], Any] = {}
    env: dict[str, str] = {}

    def visit(section: str, members: Mapping[str, Any]) -> None:
        for key, value in members.items():
            below = f"{section}.{key}" if section else key
            if section == ENV_SECTION:
                if VARIABLE.fullmatch(key) is None:
                    raise UsageFault(f"not the name of a variable: {key!r}", where=f"{source}, [{section}]")
                env[key] = _checked(env_value, value, source, section, key)
            elif below in sections or any(name.startswith(f"{below}.") for name in sections):
                if not isinstance(value, dict):
                    raise UsageFault(f"{below} is a section", where=source, next=f"write it as [{below}]")
                visit(below, value)
            elif (option := known.get((section, key))) is not None:
                values[section, key] = _checked(option.read, value, source, section, key)
            elif isinstance(value, dict):
                raise UsageFault(
                    f"unknown section [{below}]{meant(below, sections)}",
                    where=source,
                    next=f"there are {_listed(sections)}",
                )
            else:
                keys = {name for place, name in known if place == section}
                raise UsageFault(
                    f"unknown option {key!r}{meant(key, keys)}",
                    where=f"{source}, [{section}]" if section else f"{source}, before any section",
                    next=f"there are {_listed(keys)}" if keys else f"options belong to a section: {_listed(sections)}",
                )

    visit("", content)
    return values, env


def _checked(read: Callable[[Any], Any], value: object, source: str, section: str, key: str) -> Any:
    try:
        return read(value)
    except ValueError as allowed:
        # The value of a variable may be a secret: it is not repeated.
        said = "" if section == ENV_SECTION else f" {_toml(value)}"
        raise UsageFault(
            f"{key} cannot be{said}" if said else f"{key} is not text",
            where=f"{source}, [{section}] {key}",
            next=f"give {allowed}",
        ) from None


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def provider_argv(command: str) -> tuple[str, ...]:
    """*command* split as a shell would, so that it means the same from any directory. Raises UsageFault.

    The program becomes an absolute path, and so do an interpreter's script and words that start with `./` or `../`.
    """
    import shlex
    import shutil

    where = "--provider-command"
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageFault(f"{command!r} cannot be split into words: {error}", where=where) from None
    if not words or not words[0]:
        raise UsageFault("the provider's command is empty", where=where, next="give a program and its arguments")
    found = shutil.which(words[0])
    if found is None:
        what = "is not an executable file" if os.path.exists(words[0]) else "is not found"
        raise UsageFault(f"{words[0]!r} {what}", where=where, next="give the path of a program that may be executed")
    rest = words[1:]
    script = [rest[0]] if rest and os.path.isfile(rest[0]) else []
    return (
        os.path.abspath(found),
        *(os.path.abspath(word) if word in script or word.startswith(("./", "../")) else word for word in rest),
    )


def check_provider(document: Document, settings: Settings) -> None:
    """Refuse to run a fleet whose workers another kind of provider made. Raises Conflict naming the slots."""
    kind = settings.provider.kind
    foreign = sorted(slot for slot, worker in document.workers.items() if worker.provider != kind)
    if foreign:
        made_by = document.workers[foreign[0]].provider
        names = ", ".join(f"slot {slot}" for slot in foreign[:5]) + (", ..." if len(foreign) > 5 else "")
        raise Conflict(
            f"the provider is {kind!r}, but workers of {made_by!r} live",
            where=f"{settings.source}, [provider] kind; {names}",
            next=f'set kind = "{made_by}" and empty the fleet with `controller drain --all` first',
        )
