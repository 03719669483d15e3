"""Settings: the configuration file and the environment. Everything that is set from outside comes in here.

Not promised: that a file which reads well is wise.

`controller.toml` is read strictly: an unknown section or option, a value of the wrong type and an impossible value are
refused with file, section, option and what is allowed, before anything is done on the strength of them. What there is
stands in `options`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs

from controller.api.options import (
    BREAKER,
    DEFAULTS,
    ENV_SECTION,
    EXAMPLE,
    KEEP,
    OPTIONS,
    QUEUE,
    QUEUES,
    VARIABLE,
    env_value,
)
from controller.api.words import brief, meant, spelled
from controller.model.errors import Conflict, UsageFault
from controller.model.keep import Keep
from controller.model.policy import Backoff, Breaker, Policy, QueuePolicy
from controller.model.records import ID_GRAMMAR, Document, is_id

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


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
    keep: Keep = Keep()


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


OWN_OPTIONS: Final = "CONTROLLER_QUEUE_WORK_"
"""What the variables begin with that are options of `queue work`: not meant for what it runs."""
LIFE_VARIABLES: Final = frozenset(
    f"CONTROLLER_{name}" for name in ("QUEUE", "RUN", "STEP", "TOKEN", "ATTEMPT", "IDEMPOTENCY_KEY")
)


def inherited_environment(state_dir: Path) -> dict[str, str]:
    """What a consumer hands on to the programs that it runs: everything of its own but what is about itself.

    That is the options of its own command, which a `queue work` in there would take for its own, and the run, token
    and key of the step that it may be a part of: a program that took those for its own would speak for another.
    """
    given = {
        name: value
        for name, value in os.environ.items()
        if name not in LIFE_VARIABLES and not name.startswith(OWN_OPTIONS)
    }
    return given | {"CONTROLLER_STATE_DIR": str(state_dir)}


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
                "there is no such configuration file", where=brief(path), next="check --config and CONTROLLER_CONFIG"
            ) from None
        return None
    except OSError as error:
        from controller.store.disk import denied

        raise denied(error, path) or UsageFault(
            f"the configuration cannot be read: {error.strerror}",
            where=brief(path),
            next="mend the file's mode or place",
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
    except ValueError:
        raise UsageFault("a number has thousands of digits", where=source, next="give one that is meant") from None
    values, env, queues = _collect(content, source)

    def chosen(section: str, **names: str) -> dict[str, Any]:
        return {field: values[section, key] for field, key in names.items() if (section, key) in values}

    def backoff(section: str, default: Backoff) -> Backoff:
        given = chosen(section, initial_ms="initial", cap_ms="cap", factor="factor", jitter="jitter")
        made = structs.replace(default, **given)
        if made.cap_ms < made.initial_ms:
            raise UsageFault(
                f"cap is {spelled(made.cap_ms)}, below initial, {spelled(made.initial_ms)}",
                where=f"{source}, [{section}]",
                next="give a cap of at least initial",
            )
        return made

    fleet = Policy(
        **chosen("fleet", slots="slots", least="min", most="max", queues="queues", idle_ms="idle"),
        **chosen("fleet", max_runs="max_runs_per_worker", release="release", retain_failed="retain_failed"),
        **chosen("fleet", cooldown_ms="cooldown", idle_release_ms="idle_release"),
        **chosen("fleet", grace_ms="grace", kill_grace_ms="kill_grace"),
        breaker=Breaker(**chosen(BREAKER, failures="failures", dwell_ms="dwell")),
        retry=backoff("backoff.retry", DEFAULTS.retry),
        create=backoff("backoff.create", DEFAULTS.create),
        send=backoff("backoff.send", DEFAULTS.send),
    )

    _check_numbers(fleet, source)

    def queue(name: str, section: str) -> QueuePolicy:
        names = {"attempts": "attempts", "crashes": "crashes", "retain": "retain"}
        given = chosen(section, lease_ms="lease", retention_ms="retention", **names)
        if name in fleet.queues and "lease_ms" in given:
            raise UsageFault(
                f"the runs of queue {name!r} have no timed lease: workers of the fleet hold them",
                where=f"{source}, [{section}] lease",
                next="leave lease out, or name another queue in [fleet] queues",
            )
        return QueuePolicy(**given, backoff=backoff(f"{section}.backoff", fleet.retry))

    policy = structs.replace(fleet, by_queue={name: queue(name, section) for name, section in queues.items()})
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
    # No event is 0 ms old for long, and no history is of 0 bytes: 0 can only mean that there is no limit.
    keep = {name: limit or None for name, limit in chosen(KEEP, age_ms="age", bytes="bytes").items()}
    return Settings(source, policy, provider, structs.replace(Keep(), **keep))


def _check_numbers(fleet: Policy, source: str) -> None:
    """Raises UsageFault where min, max and slots cannot all be meant. One that is left out has its default."""

    def check(low: str, lower: int, high: str, higher: int) -> None:
        if lower > higher:
            raise UsageFault(
                f"{low} is {lower}, above {high}, {higher}",
                where=f"{source}, [fleet] {low}",
                next=f"give a {low} of at most {higher}, or {high} = {lower}",
            )

    # Against slots first: whoever lowered those alone is told so, and not that min is at odds with max.
    if fleet.most is not None:
        check("max", fleet.most, "slots", fleet.slots)
    check("min", fleet.least, "slots", fleet.slots)
    if fleet.most is not None:
        check("min", fleet.least, "max", fleet.most)


def _collect(
    content: Mapping[str, Any], source: str
) -> tuple[dict[tuple[str, str], Any], dict[str, str], dict[str, str]]:
    """Every option that is set, checked, by section and key; the provider's own variables; the section of each queue.

    Sections are as TOML spells them, so that a queue named `a.backoff` is not taken for the backoff of queue `a`.
    """
    known = {(option.section, option.key): option for option in OPTIONS}
    sections = {*(section for section, _ in known), ENV_SECTION}
    values: dict[tuple[str, str], Any] = {}
    env: dict[str, str] = {}
    queues: dict[str, str] = {}

    def visit(section: str, place: str, members: Mapping[str, Any]) -> None:
        """*place* is the name of *section* in the table: they differ where it is that of a queue."""
        for key, value in members.items():
            below, there = _below(section, key), _below(place, key)
            if section == ENV_SECTION:
                if VARIABLE.fullmatch(key) is None:
                    raise UsageFault(f"not the name of a variable: {key!r}", where=f"{source}, [{section}]")
                env[key] = _checked(env_value, value, source, section, key)
            elif place == QUEUES:
                _check_queue(key, value, {name for within, name in known if within == QUEUE}, source)
                queues[key] = below
                visit(below, QUEUE, value)
            elif there in sections or any(name.startswith(f"{there}.") for name in sections):
                if not isinstance(value, dict):
                    title = QUEUE if below == QUEUES else below
                    raise UsageFault(f"{below} is a section", where=source, next=f"write it as [{title}]")
                visit(below, there, value)
            elif (option := known.get((place, key))) is not None:
                values[section, key] = _checked(option.read, value, source, section, key)
            elif isinstance(value, dict):
                raise _unknown_section(below, {_shown(name, section, place) for name in sections}, source)
            else:
                keys = {name for within, name in known if within == place}
                homes = _listed({f"[{within}]" for within, name in known if name == key})
                said = f"there are {_listed(keys)}" if keys else f"options belong to a section: {_listed(sections)}"
                raise UsageFault(
                    f"unknown option {key!r}{meant(key, keys)}",
                    where=f"{source}, [{section}]" if section else f"{source}, before any section",
                    next=f"{said}; {key} belongs to {homes}" if homes else said,
                )

    visit("", "", content)
    return values, env, queues


def _below(section: str, key: str) -> str:
    """The name of a section in *section*, as its title in a file spells it."""
    if _BARE_KEY.fullmatch(key) is None:
        import json

        key = json.dumps(key)
    return f"{section}.{key}" if section else key


def _shown(name: str, section: str, place: str) -> str:
    """A section *name* of the table as somebody sees it who is writing *section*."""
    return f"{section}{name.removeprefix(place)}" if place and name.startswith(f"{place}.") else name


def _check_queue(name: str, value: object, keys: set[str], source: str) -> None:
    """Raises UsageFault where *name* names no queue, or *value* is not a section of its own."""
    if not is_id(name):
        raise UsageFault(
            f"not the name of a queue: {name!r}",
            where=f"{source}, [{_below(QUEUES, name)}]",
            next=f"use {ID_GRAMMAR}",
        )
    if isinstance(value, dict):
        return
    if name in keys:
        raise UsageFault(
            f"option {name!r} of no queue",
            where=f"{source}, [{QUEUES}]",
            next=f"put it in the section of a queue, such as [{EXAMPLE}]",
        )
    section = _below(QUEUES, name)
    raise UsageFault(f"{section} is a section", where=source, next=f"write it as [{section}]")


def _unknown_section(section: str, known: set[str], source: str) -> UsageFault:
    near, quoted = meant(section, known | {QUEUES}), ""
    head, _, rest = section.partition(".")
    # One that is like the section only in the name of the queue is no guess: the dot itself may be what was mistyped.
    if head == QUEUES and not meant(section.rpartition(".")[2], ("backoff",)):
        near = ""
        quoted = f"; for the queue {rest!r} write [{_below(QUEUES, rest)}]" if is_id(rest) else ""
    return UsageFault(f"unknown section [{section}]{near}", where=source, next=f"there are {_listed(known)}{quoted}")


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
    try:
        text = f'"{value}"' if isinstance(value, str) else str(value)
    except ValueError:
        return "a number of thousands of digits"
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
            next=f'set kind = "{made_by}" and empty the fleet with `controller drain --all` first; if that provider is '
            f"gone for good: controller forget {foreign[0]} --reason WHY --confirm-forget",
        )
