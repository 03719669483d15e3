"""Whether the settings, and what they name, can be worked with: the file, the environment, workers, the provider.

Not promised: that a program which answers questions also performs actions.

Each function judges one thing and gives a `Finding`. It may raise ControllerError and OSError: whoever calls it makes a
finding of those.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from controller.api.host import Finding, fail, joined, ok, warn
from controller.api.options import ENV_SECTION
from controller.api.providers import provider_of
from controller.api.settings import Settings, is_set, provider_environment
from controller.api.words import spelled
from controller.model.records import ActionType
from controller.provider.program import why_not_startable, why_not_started
from controller.provider.protocol import Provider
from controller.store import disk
from controller.store.file import FileStore

LONGEST_BELOW: Final = 250
"""Bytes that paths of workers and logs may add to that of the state directory."""
CGROUPS: Final = Path("/proc/self/cgroup")


def file(settings: Settings, path: Path) -> Finding:
    """The file that *settings* were read from: it names what runs, so nobody else may write it."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return ok(f"{path} is not there: every option has its default")
    mode, faults = stat.S_IMODE(status.st_mode), []
    if mode & 0o002:
        faults.append(fail(f"everybody may write {path}, which names what runs", f"chmod o-w {path}"))
    elif mode & 0o020:
        faults.append(warn(f"its group may write {path}, which names what runs", f"chmod g-w {path}"))
    if status.st_uid not in (os.geteuid(), 0):
        faults.append(
            warn(f"{disk.belongs(path)}: its owner decides what runs here", "own it, or run controller as its owner")
        )
    if mode & 0o044 and any(name != "PATH" for name in settings.provider.env):
        faults.append(warn(f"others may read {path}, and [{ENV_SECTION}] may hold secrets", f"chmod 600 {path}"))
    return joined(f"slots: {settings.policy.slots}, provider: {settings.provider.kind}; {path}", faults)


def environment(settings: Settings, directory: Path) -> Finding:
    """What programs and steps get: best the same whoever calls."""
    given, faults = provider_environment(settings.provider, directory), []
    path = given.get("PATH", "")
    if not path:
        faults.append(fail("there is no PATH", f"set PATH under [{ENV_SECTION}] in {settings.source}"))
    elif "PATH" not in settings.provider.env:
        faults.append(
            warn(
                "PATH is that of whoever calls, and cron and systemd have another",
                f"set PATH under [{ENV_SECTION}] in {settings.source}",
            )
        )
    faults += [
        warn(f"pass_env names {name}, which is not set here", "set it for whoever reconciles")
        for name in settings.provider.pass_env
        if name not in settings.provider.env and not is_set(name)
    ]
    return joined(f"PATH is {path}, whoever calls", faults)


def workers(settings: Settings, directory: Path) -> Finding:
    """What the local provider uses below the state directory. Its sockets are found by short paths whatever ours is."""
    if settings.provider.kind != "local":
        return ok("made by a program, not below the state directory")
    faults = []
    length = len(os.fsencode(directory))
    if length + LONGEST_BELOW > os.pathconf("/", "PC_PATH_MAX"):
        faults.append(fail(f"the path of the state directory has {length} bytes", "choose a shorter one"))
    for name in ("workers", "logs", "scratch"):
        place = directory / name
        if not os.path.lexists(place):
            continue
        if not place.is_dir():
            faults.append(fail(f"{place} is no directory", f"move it away: {name} are kept there"))
        elif not os.access(place, os.R_OK | os.W_OK | os.X_OK):
            faults.append(fail(f"no access: {disk.belongs(place)}", "mend its owner and mode"))
        elif place.stat().st_mode & 0o022:
            faults.append(fail(f"others may write to {place}", f"chmod go-w {place}"))
    unit = unit_of(CGROUPS.read_text())
    where = f"; in {unit}, which needs KillMode=process, or stopping it ends them" if unit else ""
    return joined(f"below {directory}{where}", faults)


def unit_of(cgroups: str) -> str:
    """The systemd service that a process with these *cgroups* belongs to; "" for a session or none."""
    for line in cgroups.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if (number == "0" or names == "name=systemd") and path.endswith(".service"):
            return path.rpartition("/")[2]
    return ""


def provider(settings: Settings, store: FileStore) -> Finding:
    """Whether it says what it is, within its deadline."""
    argv = settings.provider.argv
    if settings.provider.kind == "command" and store.directory.is_dir():
        # Without a document nobody can be asked, but a program that cannot be started is found all the same.
        why = why_not_a_program(argv, provider_environment(settings.provider, store.directory), store.directory)
        if why:
            return fail(
                f"the program cannot be started: {why}",
                f"install it, chmod +x it, or mend [provider] command in {settings.source}",
            )
    with asked(settings, store) as named:
        told = named.describe()
    lacking = sorted(set(ActionType) - set(told.types))
    ttl = "for ever" if told.key_ttl_ms is None else f"for {spelled(told.key_ttl_ms)}"
    wait = "answers wait" if told.wait else "has no wait"
    found = f"{named.kind}: {told.name} {told.version}, knows keys {ttl}, {wait}"
    if lacking:
        return warn(f"{found}; it does not do {', '.join(lacking)}", "teach it: a fleet needs them sooner or later")
    return ok(found)


def why_not_a_program(argv: Sequence[str], given: Mapping[str, str], directory: Path) -> str:
    """Why *argv* cannot be started, as far as that shows without a start; "" when nothing is seen."""
    if not os.path.exists(argv[0]):
        return why_not_started(argv, given, directory, OSError(errno.ENOENT, ""))
    if not os.path.isfile(argv[0]) or not os.access(argv[0], os.X_OK):
        return why_not_started(argv, given, directory, OSError(errno.EACCES, ""))
    return why_not_startable(argv, given, directory)


def inventory(settings: Settings, store: FileStore) -> Finding:
    """Whether it says what workers there are, within its deadline."""
    with asked(settings, store) as named:
        seen = named.inventory()
    faults = [warn(trouble, "controller status --live") for trouble in seen.troubles]
    if seen.unreadable and not faults:
        slots = ", ".join(map(str, seen.unreadable))
        faults.append(warn(f"it cannot tell of slots {slots}", "controller status --live"))
    if not seen.complete:
        faults.append(
            warn("it is not complete, so it proves no worker gone", "run this again; then look at the provider")
        )
    return joined(f"workers: {len(seen.workers)}", faults)


@contextmanager
def asked(settings: Settings, store: FileStore) -> Iterator[Provider]:
    """The provider, to be asked. Never as root in somebody's directory: root would run what they put there."""
    document = store.read().document
    disk.refuse_foreign_root(store.directory, os.stat(store.directory).st_uid)
    named = provider_of(settings, document, store.directory, store.clock)
    try:
        yield named
    finally:
        named.close()
