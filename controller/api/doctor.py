"""Whether this host and this state directory can do their work: many checks, each on its own.

Not promised: that what is well now stays so; that a run would succeed. fsck judges the document more closely.

Nothing is repaired, and nothing written but the holder's note in the lock file, as by every hold. A check that cannot
be made says so, and hides no other. The provider is asked what it is and what it has: for local workers that has the
effects of a look.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from controller.api import configured, host
from controller.api.host import Finding, State, fail, joined, ok, warn
from controller.api.settings import Settings, load
from controller.api.words import spelled
from controller.clock import Clock
from controller.model.errors import ControllerError, DocumentFault, DocumentMissing, LockBusy, UsageFault
from controller.model.process import ProcessIdentity
from controller.provider.process import boot_id, identify, own_identity
from controller.store import disk
from controller.store.directory import LOCK, missing
from controller.store.file import FileStore
from controller.store.protocol import Snapshot

MOUNTS: Final = Path("/proc/self/mountinfo")
EARLIEST: Final = 1_577_836_800_000
LATEST: Final = 4_102_444_800_000
"""The years 2020 and 2100: a wall clock outside them was never set."""
_LOCK_NAME: Final = re.compile(r"(\d{5})\.lock")
_TEMPORARY: Final = re.compile(r"\.(.+)\.tmp-(\d+)(-\d+)?")


class Check(Struct, frozen=True):
    """One line of the answer. `next` is "" exactly when `state` is ok."""

    name: str
    state: State
    found: str
    next: str = ""


class Doctor:
    """Examines one state directory and the host under it. *statvfs* and *mounts* stand in for the system in tests."""

    def __init__(
        self,
        directory: Path,
        config: Path,
        *,
        chosen: bool,
        clock: Clock,
        statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
        mounts: Callable[[], str] = MOUNTS.read_text,
    ) -> None:
        self.directory = directory
        self.config = config
        self.chosen = chosen
        self.clock = clock
        self.statvfs = statvfs
        self.mounts = mounts

    def examine(self) -> Iterator[Check]:
        """Every check, in the order in which people read them. Never raises for what a check meets."""
        checks: Mapping[str, Callable[[], Finding]] = {
            "python": host.python,
            "libraries": host.libraries,
            "byte code": host.byte_code,
            "processes": host.processes,
            "limits": lambda: host.limits(self.readable_settings.policy.slots, self.commit),
            "clock": self.time,
            "directory": self.place,
            "file system": partial(host.file_system, self.directory, self.mounts),
            "mount": partial(host.writable, self.directory, self.statvfs),
            "room": lambda: host.room(self.directory, self.commit, self.statvfs),
            "document": self.document,
            "history": standing_on(self.history),
            "left over": self.left_over,
            "lock": standing_on(self.lock),
            "slot locks": self.slot_locks,
            "settings": lambda: configured.file(self.settings, self.config),
            "environment": standing_on(lambda: configured.environment(self.settings, self.directory)),
            "workers": lambda: configured.workers(self.readable_settings, self.directory),
            "provider": standing_on(lambda: configured.provider(self.settings, self.store)),
            "inventory": standing_on(lambda: configured.inventory(self.settings, self.store)),
        }
        for name, check in checks.items():
            finding = judged(check)
            yield Check(name, finding.state, finding.found, finding.next)

    # What several checks read. Each of them stands without the others.

    @cached_property
    def store(self) -> FileStore:
        try:
            whoami = own_identity()
        except (OSError, AssertionError):  # "processes" says so; here it is a note in a lock file, and no more
            whoami = ProcessIdentity(os.getpid(), 0, "", "")
        return FileStore(self.directory, clock=self.clock, whoami=whoami, command="doctor")

    @property
    def snapshot(self) -> Snapshot | None:
        try:
            return self.store.read()
        except ControllerError:
            return None

    @property
    def settings(self) -> Settings:
        return load(self.config, chosen=self.chosen)

    @property
    def readable_settings(self) -> Settings:
        try:
            return self.settings
        except ControllerError:
            return Settings(source=str(self.config))

    @property
    def commit(self) -> int:
        """How many bytes the next commit writes, about."""
        try:
            return self.store.path.stat().st_size
        except OSError:
            return 0

    # The directory and what is in it

    def time(self) -> Finding:
        now = self.clock.now_ms()
        if not EARLIEST <= now <= LATEST:
            return fail(f"the wall clock says {now} ms since 1970, which cannot be", "set it, and start a time service")
        before = self.clock.monotonic()
        if self.clock.monotonic() < before:
            return fail("the monotonic clock went back", "look at the kernel and its clock source")
        found = f"{disk.stamp(now)}, boot {boot_id()[:8]}"
        snapshot = self.snapshot
        if snapshot is None:
            return ok(f"{found}; no readable document to compare it with")
        from controller.engine.age import latest_time

        latest = latest_time(snapshot.document)
        if now < latest:
            return warn(
                f"{disk.stamp(now)} is {spelled((latest - now) // 1000 * 1000 or latest - now)} before what the "
                f"document last recorded, {disk.stamp(min(latest, LATEST))}",
                "set the clock, and start a time service; until then keys of limited life count as forgotten",
            )
        return ok(f"{found}; not before anything in the document")

    def place(self) -> Finding:
        try:
            status = os.stat(self.directory)
        except (FileNotFoundError, NotADirectoryError):
            return fail(f"{self.directory} does not exist", missing(self.directory).next)
        if not stat.S_ISDIR(status.st_mode):
            return fail(f"{self.directory} is no directory", "look at --state-dir")
        return host.rights(self.directory, status)

    def document(self) -> Finding:
        from controller.engine.status import integrity_of
        from controller.model.invariants import violations

        snapshot = self.store.read()
        document, faults = snapshot.document, []
        status = os.lstat(self.store.path)
        if stat.S_ISLNK(status.st_mode):
            faults.append(
                fail("it is a symbolic link, which a commit would replace", "put the file itself into the directory")
            )
        elif stat.S_IMODE(status.st_mode) & 0o022:
            what = f"others may write it (mode {stat.S_IMODE(status.st_mode):04o})"
            faults.append(fail(what, f"chmod go-w {self.store.path}"))
        integrity = integrity_of(snapshot)
        if integrity.digest == "edited":
            faults.append(
                fail("something else than controller wrote it", "controller fsck, then controller state accept")
            )
        if integrity.sentinel == "missing":
            faults.append(fail("its field pending_action does not hold the sentinel", "controller fsck"))
        broken = violations(document)
        if broken:
            more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
            faults.append(fail(f"{broken[0].id}: {broken[0].subject}: {broken[0].what}{more}", "controller fsck"))
        if snapshot.legacy:
            faults.append(
                warn(
                    "it is of an older schema; the next command that changes anything migrates it, for good",
                    "read about upgrading first, and keep a copy",
                )
            )
        counts = (
            f"runs: {len(document.runs)}, workers: {len(document.workers)}, pending: {len(document.pending_actions)}"
        )
        return joined(f"revision {document.revision}, digest {integrity.digest}, {counts}", faults)

    def history(self) -> Finding:
        from controller.engine.status import integrity_of

        snapshot = self.store.read()
        known, revision = snapshot.history_revision, snapshot.document.revision
        integrity = integrity_of(snapshot)
        if integrity.history == "ahead":
            return fail(
                f"it knows revision {known}, the document is of revision {revision}: an older one was put back, and "
                "the next command that changes anything is refused",
                "put the newer document back, or controller state restore",
            )
        fault = self.store.history_fault()
        if fault is not None:
            more = ": the next command that changes anything is refused" if integrity.history == "forked" else ""
            return fail(f"{fault}{more}", "controller fsck")
        if integrity.history == "missing":
            return warn(
                "it is missing: it begins with the next command that changes anything",
                "put history.jsonl back if somebody moved it",
            )
        if known == revision:
            return ok(f"ends at revision {known}, as the document does")
        if snapshot.legacy:
            return ok("the next command that changes anything adds what the last one left out")
        return fail(f"it ends at revision {known}, and the edited document says {revision}", "set that back by hand")

    def left_over(self) -> Finding:
        """Temporary files. One whose maker lives is work in progress."""
        names = self.names(self.directory)
        stray = []
        for name in sorted(names):
            match = _TEMPORARY.fullmatch(name)
            if match is not None and identify(int(match[2])) is None:
                stray.append(name)
        if stray:
            return warn(
                f"{', '.join(stray)}: a process was killed while it wrote",
                "nothing is lost; the next command that changes anything removes those of the document, rm the others",
            )
        return ok("no temporary files")

    def lock(self) -> Finding:
        status = os.stat(self.directory) if self.directory.is_dir() else None
        if status is not None and status.st_uid != os.geteuid() and not (self.directory / LOCK).exists():
            disk.refuse_foreign_root(self.directory, status.st_uid)
            return warn("there is none yet, and made now it would not belong to the owner", "see directory")
        try:
            with self.store.hold(0):
                return ok("taken and released")
        except LockBusy as error:
            return warn(error.what, "if that process should be gone, look at it; else there is nothing to do")

    def slot_locks(self) -> Finding:
        from controller.engine.status import flights_of

        directory = self.directory / "slots"
        faults, slots = [], []
        for name in sorted(self.names(directory)):
            match = _LOCK_NAME.fullmatch(name)
            if match is None:
                continue
            slot = int(match[1])
            slots.append(slot)
            note = self.store.slot_note(slot)
            if not note.readable:
                faults.append(
                    fail(
                        f"slot {slot}: {name} holds no note that can be read, so nothing is sent for it",
                        f"make sure that no provider program works for it, then empty {directory / name}",
                    )
                )
            elif not os.access(directory / name, os.R_OK | os.W_OK):
                faults.append(fail(f"slot {slot}: {disk.belongs(directory / name)}", "mend its owner and mode"))
        flights = flights_of(self.store, slots)
        for slot, flight in sorted(flights.items()):
            if not flight.certain:
                faults.append(
                    warn(
                        f"slot {slot}: process {flight.pid} of another pid namespace may still live",
                        "run controller where that process was started, such as in the same container",
                    )
                )
        return joined(f"readable: {len(slots)}, in use: {len(flights)}", faults)

    def names(self, directory: Path) -> tuple[str, ...]:
        try:
            return tuple(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return ()


def judged(check: Callable[[], Finding]) -> Finding:
    """What *check* finds. What it raises is its finding: no check keeps the next ones back."""
    try:
        return check()
    except ControllerError as error:
        where = f" ({error.where})" if error.where and error.where not in error.what else ""
        return fail(f"{error.what}{where}", error.next or "controller status")
    except OSError as error:
        return fail(f"it cannot be looked at: {disk.says(error)}", "mend that")
    except Exception as error:  # noqa: BLE001 - a bug in one check must not hide what the others find
        return fail(f"the check itself failed: {type(error).__name__}: {error}", "report that")


def standing_on(check: Callable[[], Finding]) -> Callable[[], Finding]:
    """*check*, which stands on the document and the settings: their own lines fail for them, this one only says so."""

    def checked() -> Finding:
        try:
            return check()
        except DocumentMissing as error:
            return warn("not tried: there is no document", error.next)
        except (DocumentFault, UsageFault) as error:
            return warn(f"not tried: {error.what}", error.next or "see the lines that failed")

    return checked
