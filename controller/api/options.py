"""The one table of settings: what there is in `controller.toml`, what is allowed, and the file that `init` writes.

Reading the file, checking it and the commented template all follow `OPTIONS`, so none can forget an option.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from controller.api.words import spelled
from controller.model.keep import Keep
from controller.model.policy import LONGEST_LEASE_MS, Backoff, Policy, QueuePolicy, Release
from controller.model.records import MAX_SLOTS, is_id

KINDS: Final = ("local", "command")
LONGEST_MS: Final = 3650 * 86_400_000
DURATIONS: Final = "a duration such as 500ms, 5s, 10m, 2h or 1d"
SIZES: Final = "a size such as 500MiB or 2GiB, in quotes, or a whole number of bytes"
DEFAULTS: Final = Policy()
QUEUE_DEFAULTS: Final = QueuePolicy(backoff=DEFAULTS.retry)
MOST_ATTEMPTS: Final = 1_000_000
MOST_RETAINED: Final = 1_000_000_000
MOST_BYTES: Final = 1 << 60
ENV_SECTION: Final = "provider.env"
BREAKER: Final = "provider.breaker"
KEEP: Final = "history.keep"
QUEUES: Final = "queues"
QUEUE: Final = f"{QUEUES}.NAME"
"""The section of a queue in `OPTIONS`. In a file a queue's own name stands for NAME, in as many sections as wanted."""
EXAMPLE: Final = f"{QUEUES}.default"
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"([0-9]{1,18})(ms|s|m|h|d)")
_BYTES: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE: Final = re.compile(r"([0-9]{1,18})(KiB|MiB|GiB)")


def parse_duration(text: str) -> int:
    """Milliseconds. Raises ValueError saying what is allowed; a bare number is not, since it names no unit."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(DURATIONS)
    ms = int(match[1]) * _MS[match[2]]
    if ms > LONGEST_MS:
        raise ValueError(f"a duration of at most {spelled(LONGEST_MS)}")
    return ms


class Option(Struct, frozen=True):
    """One option of the file. `read` gives the plain value or raises ValueError saying what is allowed.

    A section that begins with `QUEUE` stands for that of any queue.
    """

    section: str
    key: str
    read: Callable[[Any], Any]
    default: str
    about: str
    """How the default is spelled in TOML, and what the option is for, in the template's words."""


def _duration(value: object, least: int = 0) -> int:
    ms = parse_duration(value) if isinstance(value, str) else None
    if ms is None:
        raise ValueError(f"{DURATIONS}, in quotes")
    if ms < least:
        raise ValueError(f"a duration of at least {spelled(least)}")
    return ms


def _positive_duration(value: object) -> int:
    return _duration(value, 1)


def _size(value: object) -> int:
    """Bytes. A text without a unit is not a size: what it counts is not said."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    size = int(match[1]) * _BYTES[match[2]] if match is not None else value
    if type(size) is not int:
        raise ValueError(SIZES)
    if not 0 <= size <= MOST_BYTES:
        raise ValueError(f"a size from 0 to {MOST_BYTES >> 30}GiB")
    return size


def _toml_size(size: int) -> str:
    unit = next((unit for unit in reversed(_BYTES) if size and size % _BYTES[unit] == 0), None)
    return f"{size}" if unit is None else f'"{size // _BYTES[unit]}{unit}"'


def _whole(least: int, most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return value

    return read


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError("true or false, without quotes")
    return value


def _word(*words: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if isinstance(value, str) and value in words:
            return words[words.index(value)]
        raise ValueError(" or ".join(f'"{word}"' for word in words))

    return read


def _lease(value: object) -> int:
    ms = _duration(value)
    if not 1 <= ms <= LONGEST_LEASE_MS:
        raise ValueError(f"a duration from 1ms to {spelled(LONGEST_LEASE_MS)}")
    return ms


def _number(value: object, least: int, most: int) -> float:
    # Compared before it is made a float: a whole number may be too large for one.
    if type(value) not in (int, float) or not least <= value <= most:  # type: ignore[operator]
        raise ValueError(f"a number from {least} to {most}")
    return float(value)  # type: ignore[arg-type]


def _factor(value: object) -> float:
    return _number(value, 1, 100)


def _jitter(value: object) -> float:
    return _number(value, 0, 1)


def _texts(value: object, what: str, good: Callable[[str], bool]) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and good(item) for item in value):
        raise ValueError(f'a list of {what}, such as ["one", "two"]')
    if len(set(value)) != len(value):
        raise ValueError(f"a list of different {what}")
    return tuple(value)


def _queues(value: object) -> tuple[str, ...]:
    queues = _texts(value, "names of queues", is_id)
    if not queues:
        raise ValueError("at least one queue")
    return queues


def _command(value: object) -> tuple[str, ...]:
    problem = 'a list of words, the first an absolute path, such as ["/usr/local/bin/provider", "--region", "eu"]'
    if not isinstance(value, list) or not all(isinstance(word, str) and "\0" not in word for word in value):
        raise ValueError(problem)
    if value and not os.path.isabs(value[0]):
        raise ValueError(problem)
    return tuple(value)


def _variables(value: object) -> tuple[str, ...]:
    return _texts(value, "names of environment variables", lambda name: VARIABLE.fullmatch(name) is not None)


def env_value(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("text, in quotes")
    return value


def _toml_duration(ms: int) -> str:
    return f'"{spelled(ms)}"' if ms else '"0s"'


def _backoff(section: str, backoff: Backoff, what: str, *, jittered: bool = False) -> tuple[Option, ...]:
    options = (
        Option(
            section,
            "initial",
            _positive_duration,
            _toml_duration(backoff.initial_ms),
            f"The first delay before {what}.",
        ),
        Option(section, "cap", _positive_duration, _toml_duration(backoff.cap_ms), "No delay is longer."),
        Option(
            section,
            "factor",
            _factor,
            f"{backoff.factor}",
            "Each delay is this many times the one before, then jittered.",
        ),
    )
    if not jittered:
        return options
    about = "How much of a delay is drawn at random: 1.0 all of it, 0.0 nothing."
    return (*options, Option(section, "jitter", _jitter, f"{backoff.jitter}", about))


def _deadline(name: str, default_ms: int, what: str) -> Option:
    return Option("provider.deadlines", name, _positive_duration, _toml_duration(default_ms), what)


OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "fleet",
        "slots",
        _whole(1, MAX_SLOTS),
        f"{DEFAULTS.slots}",
        "How many places for workers there are, numbered from 1.",
    ),
    Option("fleet", "min", _whole(0, MAX_SLOTS), f"{DEFAULTS.least}", "This many workers are kept, work or none."),
    Option(
        "fleet",
        "max",
        _whole(1, MAX_SLOTS),
        f"{DEFAULTS.slots}",
        "No more workers than this are made. Left out: one for each slot.",
    ),
    Option("fleet", "queues", _queues, '["fleet"]', "The queues whose runs the fleet takes."),
    Option(
        "fleet",
        "idle",
        _duration,
        _toml_duration(DEFAULTS.idle_ms),
        "A worker without work for this long is torn down, down to min.",
    ),
    Option(
        "fleet",
        "max_runs_per_worker",
        _whole(0, MOST_ATTEMPTS),
        f"{DEFAULTS.max_runs}",
        "After this many runs a worker is torn down, not used again. 0: no limit.",
    ),
    Option(
        "fleet",
        "release",
        _word(*Release),
        f'"{DEFAULTS.release}"',
        'What frees a worker of its run: "auto", that the run ended, or "proof", what `controller release` is given.',
    ),
    Option(
        "fleet",
        "retain_failed",
        _flag,
        f"{DEFAULTS.retain_failed}".lower(),
        "Whether the worker of a run that failed for good is stopped and kept, for somebody to look into.",
    ),
    Option(
        "fleet",
        "cooldown",
        _duration,
        _toml_duration(DEFAULTS.cooldown_ms),
        "A stopped worker is kept for this long, from when it was first seen to be off, before it is deleted.",
    ),
    Option(
        "fleet",
        "idle_release",
        _duration,
        _toml_duration(DEFAULTS.idle_release_ms),
        "A worker that waits for its proof, idle for this long, is stopped. It is never deleted for that.",
    ),
    Option(
        "fleet",
        "grace",
        _duration,
        _toml_duration(DEFAULTS.grace_ms),
        "For this long after a worker was asked for, not seeing it proves nothing.",
    ),
    Option(
        "fleet",
        "kill_grace",
        _duration,
        _toml_duration(DEFAULTS.kill_grace_ms),
        "Between asking a step to end (TERM) and ending it (KILL).",
    ),
    # Beside [fleet], which shares no option with them: one that is uncommented without its section is refused there.
    # Behind [backoff.send], `cap` would have been taken for that one's.
    Option(
        QUEUE,
        "attempts",
        _whole(1, MOST_ATTEMPTS),
        f"{QUEUE_DEFAULTS.attempts}",
        "How often a run may fail, if it does not say.",
    ),
    Option(
        QUEUE,
        "crashes",
        _whole(1, MOST_ATTEMPTS),
        f"{QUEUE_DEFAULTS.attempts}",
        "How often its worker or consumer may be lost. Left out: as attempts.",
    ),
    Option(
        QUEUE,
        "lease",
        _lease,
        _toml_duration(QUEUE_DEFAULTS.lease_ms),
        "A consumer that says nothing for this long has lost its run. Not for a queue of the fleet's.",
    ),
    Option(
        QUEUE,
        "retention",
        _duration,
        _toml_duration(QUEUE_DEFAULTS.retention_ms),
        "A run that ended is forgotten after this long.",
    ),
    Option(
        QUEUE,
        "retain",
        _whole(0, MOST_RETAINED),
        f"{QUEUE_DEFAULTS.retain}",
        "Of those that ended this many are kept, the latest.",
    ),
    *_backoff(f"{QUEUE}.backoff", QUEUE_DEFAULTS.backoff, "a failed run is tried again", jittered=True),
    Option(
        "provider",
        "kind",
        _word(*KINDS),
        '"local"',
        'Who makes workers: "local" (processes on this host) or "command" (a program of yours).',
    ),
    Option(
        "provider",
        "command",
        _command,
        "[]",
        'For kind "command": the program, as an absolute path, and its arguments. No shell is involved.',
    ),
    Option(
        "provider",
        "pass_env",
        _variables,
        "[]",
        "Variables that the program, or a local worker's steps, get from the caller, besides PATH, HOME and LANG.",
    ),
    _deadline("describe", 10_000, "How long the program may take to say what it is."),
    _deadline("inventory", 60_000, "To list every worker."),
    _deadline("wait", 60_000, "To wait for a change, if it offers that."),
    _deadline("create", 600_000, "To answer each type of action. What takes longer is asked again, with the same key."),
    _deadline("execute", 60_000, ""),
    _deadline("cancel", 60_000, ""),
    _deadline("deallocate", 300_000, ""),
    _deadline("delete_compute", 300_000, ""),
    _deadline("reset", 300_000, ""),
    Option(
        BREAKER,
        "failures",
        _whole(1, MOST_ATTEMPTS),
        f"{DEFAULTS.breaker.failures}",
        "After this many in a row nothing new is asked of it.",
    ),
    Option(
        BREAKER,
        "dwell",
        _positive_duration,
        _toml_duration(DEFAULTS.breaker.dwell_ms),
        "For this long. Then one action is tried, and if that works all is as before.",
    ),
    *_backoff("backoff.retry", DEFAULTS.retry, "a failed run is tried again", jittered=True),
    *_backoff("backoff.create", DEFAULTS.create, "a slot whose create was refused is tried again"),
    *_backoff("backoff.send", DEFAULTS.send, "an action of unknown fate is sent again"),
    Option(
        KEEP,
        "age",
        _duration,
        _toml_duration(Keep().age_ms or 0),
        "A file whose events are all older is dropped. 0s: none is too old.",
    ),
    Option(
        KEEP,
        "bytes",
        _size,
        _toml_size(Keep().bytes or 0),
        "Beyond so many bytes the oldest files are dropped. 0: there are never too many.",
    ),
)


_ABOUT_SECTION: Final[Mapping[str, str]] = {
    "fleet": "The fleet: how many workers, and for what.",
    QUEUE: "How runs of one queue are treated. A section for each; a name with a dot in it is quoted.",
    f"{QUEUE}.backoff": "What is left out is as in [backoff.retry].",
    "provider": "Where workers come from.",
    "provider.deadlines": 'How long one call of a "command" provider may take.',
    BREAKER: "When a provider fails. What it was asked before is still asked again, under [backoff.send].",
    KEEP: "How much history is kept. What a pending mutation may still need is never dropped.",
    "backoff.retry": "Delays grow from initial by factor up to cap; the delay taken is a random part of that.",
}


def template(slots: int, kind: str, argv: tuple[str, ...]) -> str:
    """The commented file that `init` writes: every option, at its default unless it was chosen."""
    import json

    chosen = {("fleet", "slots"): str(slots), ("provider", "kind"): json.dumps(kind)}
    # Uncommented as it stands it must be meant: a default of its own might be above the slots that were chosen.
    defaults = {("fleet", "max"): str(slots)}
    if argv:
        chosen["provider", "command"] = json.dumps(list(argv), ensure_ascii=False).replace("\x7f", "\\u007f")
    lines = [
        "# Settings of this fleet. Lines that start with '#' show the defaults.",
        "# Durations are written 500ms, 5s, 10m, 2h, 1d. Every command reads this file anew.",
    ]
    section = ""
    for option in OPTIONS:
        if option.section != section:
            if section == "provider.deadlines":
                lines += [
                    "",
                    "# Variables for the program, or for a local worker's steps. Best to fix PATH here:",
                    "# else it is that of whoever makes the worker, and cron has another one than you.",
                    f"[{ENV_SECTION}]",
                    '# PATH = "/usr/local/bin:/usr/bin:/bin"',
                    '# REGION = "eu"',
                ]
            section = option.section
            about = _ABOUT_SECTION.get(section)
            # A section of a queue stays a comment: no queue is there before somebody wants one.
            title = f"# [{section.replace(QUEUE, EXAMPLE)}]" if section.startswith(QUEUE) else f"[{section}]"
            lines += ["", *([f"# {about}"] if about else []), title]
        if option.about:
            lines.append(f"# {option.about}")
        place = (option.section, option.key)
        value = chosen.get(place)
        lines.append(f"{option.key} = {value or defaults.get(place, option.default)}")
        if value is None:
            lines[-1] = f"# {lines[-1]}"
    return "\n".join(lines) + "\n"
