"""Stories of a state directory: processes that commit, read, fold, fail and are killed, and cuts of the power.

Not promised: processes at the same moment. One begins when the one before it is done, dead or between two holds; what
it knows and what the modules of the store remember in it are its own.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

from msgspec import structs

import controller.store
from controller.clock import FakeClock
from controller.model.edit import Edit
from controller.model.errors import (
    AlreadyThere,
    ControllerError,
    DocumentMissing,
    LockUnusable,
    NotDurable,
    StorageFailed,
)
from controller.model.records import Document, Event, Run, Step
from controller.store import checkpoint, file, tidying
from controller.store.create import CONFIG, initialise
from controller.store.edits import next_document
from controller.store.file import FileStore
from tests.store import kit
from tests.store.power.blocks import Choose
from tests.store.power.disk import Call, Deaf, Disk, Stopped, Trouble

SETTINGS: Final = "# made by a test\n"

for _module in pkgutil.iter_modules(controller.store.__path__):
    importlib.import_module(f"controller.store.{_module.name}")


class Act(NamedTuple):
    """What process *who* does: "commit" has one commit of each of the *sizes* in one hold. *trouble* befalls a call."""

    what: str
    who: int = 0
    sizes: tuple[int, ...] = ()
    trouble: Trouble | None = None


CUT: Final = Act("cut")
LAST: Final = (Act("commit", 0, (1,)), Act("fold", 1), Act("read", 1), Act("commit", 1, (1,)))
"""After the last cut it goes on."""


class Process:
    """A store over the directory, and what the modules of the store remember in its process."""

    def __init__(self, directory: Path) -> None:
        self.store = FileStore(directory, clock=FakeClock(), whoami=kit.ME, command="test")
        self._memory: list[set[Any] | dict[Any, Any]] = [type(each)() for each in _MEMORIES]

    @contextmanager
    def running(self) -> Iterator[FileStore]:
        self._swap()
        try:
            yield self.store
        finally:
            self._swap()

    def _swap(self) -> None:
        for n, live in enumerate(_MEMORIES):
            mine, self._memory[n] = self._memory[n], live.copy()
            live.clear()
            live.update(mine)


def _memories() -> Iterator[set[Any] | dict[Any, Any]]:
    """What the modules of the store keep for their process: sets and dicts with the name of a private variable."""
    for module in sorted(name for name in sys.modules if name.startswith("controller.store.")):
        for name, value in sorted(vars(sys.modules[module]).items()):
            if isinstance(value, set | dict) and name.startswith("_") and name.islower() and name[1] != "_":
                yield value


_MEMORIES: Final = list({id(each): each for each in _memories()}.values())


class Story:
    """What was told so far, what has to be true of it, and what was not: `wrong`.

    `known`: the documents that some process may have built upon, one a revision: its commit was acknowledged, or a
    load returned it. `maybe`: those that may come next, since nobody learned what became of their commits.
    """

    def __init__(self, root: Path, chooser: Callable[[], Choose], deaf: Deaf | None = None) -> None:
        self.known: list[Document] = []
        self.maybe: list[Document] = []
        self.wrong: list[str] = []
        self.calls: list[Call] = []
        self._root = root
        self._chooser = chooser
        self._deaf = deaf
        self._cuts = 0
        self._names = 0
        (root / "disk-0").mkdir()
        self._boot(Disk(root / "disk-0"))

    def _boot(self, disk: Disk) -> None:
        self.disk = disk
        if self._deaf is not None:
            disk.deaf = self._deaf
        self.directory = disk.root / "s"
        self.processes = [Process(self.directory) for _ in range(2)]

    def tell(self, acts: Sequence[Act], *, init: Trouble | None = None) -> list[str]:
        """Everything that was wrong, in words, up to the first act that had something. *init* befalls the `init`."""
        with (
            mock.patch.object(file, "_AHEAD", 8192),
            mock.patch.object(checkpoint, "SMALL", 4096),
            mock.patch.object(tidying, "MOST_LOOSE", 2),
        ):
            for act in (Act("init", trouble=init), Act("init"), *acts, CUT, *LAST, CUT):
                if not self.wrong:
                    self.play(act)
        self.disk.verify()
        return self.wrong

    def play(self, act: Act) -> None:
        if act.what == "cut":
            self.cut()
            return
        stopped = False
        with self.disk.running(act.trouble):
            self.disk.choose = self._chooser()
            try:
                with self.processes[act.who].running() as store:
                    getattr(self, f"_{act.what}")(store, act)
            except Stopped:
                stopped = True
            except NotImplementedError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, a story has an end
                if not self.disk.struck or not isinstance(error, NotDurable | LockUnusable):
                    self._say(f"{act} raised {error!r}")
        self.calls += self.disk.calls
        if stopped or act.what == "close":
            self.processes[act.who] = Process(self.directory)
        if stopped and act.trouble is not None and act.trouble.kind == "cut":
            self.cut()

    def cut(self) -> None:
        """The power goes, the machine starts again, and somebody looks."""
        self._cuts += 1
        self.disk.choose = self._chooser()
        self._boot(self.disk.cut(self._root / f"disk-{self._cuts}"))
        when = f"after cut {self._cuts}"
        with self.disk.running(), self.processes[0].running() as store:
            try:
                document = store.read().document
            except DocumentMissing as error:
                if self.known:
                    self._say(f"{when} there is no document: {error}")
                self.maybe.clear()
                return
            except ControllerError as error:
                self._say(f"{when} reading raised {error!r}")
                return
            self._believe(document, when)
            self.maybe.clear()
            self._check_history(store, when)
            self._check_torn(when)
            if (self.directory / CONFIG).read_bytes() != SETTINGS.encode():
                self._say(f"{when} {CONFIG} is not what it was")

    # What processes do.

    def _init(self, store: FileStore, act: Act) -> None:
        try:
            made = initialise(
                self.directory,
                fleet="f",
                lineage=kit.LINEAGE,
                config_text=SETTINGS,
                clock=store.clock,
                whoami=kit.ME,
                command="init",
            )
        except AlreadyThere:
            if not self.known:
                self._load(store, act)
            return
        self._believe(made.read().document, "init")

    def _read(self, store: FileStore, act: Act) -> None:
        document = store.read().document
        if self.known:
            self._check(document, "a reader")
            self._check_history(store, "a reader", document)

    def _load(self, store: FileStore, act: Act) -> None:
        with store.hold(1) as hold:
            self._believe(hold.load().document, "a load")

    def _commit(self, store: FileStore, act: Act) -> None:
        with store.hold(1) as hold:
            for size in act.sizes:
                loaded = hold.load()
                self._believe(loaded.document, "a load")
                self._names += 1
                edit = growing(loaded.document, f"r-{self._names}", size)
                expected = next_document(loaded.document, edit, None, "").document
                try:
                    done = hold.commit(loaded, edit)
                except StorageFailed:
                    raise
                except BaseException:
                    self.maybe.append(expected)
                    raise
                if plain(done) != plain(expected):
                    self._say(f"{act} returned another document than it was to make")
                self.known.append(done)
                self.maybe.clear()

    def _fold(self, store: FileStore, act: Act) -> None:
        before = store.read()
        store.fold()
        behind = json.loads(store.path.read_bytes())["revision"] != before.document.revision
        if behind and not before.torn and not self.disk.struck:
            self._say(f"{act} left the checkpoint behind")
        if store.read().document != before.document:
            self._say(f"{act} changed the document")
        self._read(store, act)

    def _close(self, store: FileStore, act: Act) -> None:
        store.close()

    def _replace(self, store: FileStore, act: Act) -> None:
        """A whole document is committed, as a restore does."""
        with store.tenure(1) as hold:
            hold.load()
            reading = hold.reading()
            self._believe(reading.document, "a load")
            event = Event(reading.revision + 1, 1, kit.NOW, "test", "fleet", "restored")
            document = structs.replace(reading.document, revision=reading.revision + 1, events=(event,))
            try:
                done = hold.replace(reading, document)
            except StorageFailed:
                raise
            except BaseException:
                self.maybe.append(document)
                raise
            self.known.append(done)
            self.maybe.clear()

    # What has to be true.

    def _say(self, what: str) -> None:
        self.wrong.append(what)

    def _believe(self, document: Document, who: str) -> None:
        """Somebody may build upon *document* from now on: nothing may take it back."""
        if not self.known or document != self.known[-1]:
            self._check(document, who)
            self.known.append(document)
        self.maybe.clear()

    def _check(self, document: Document, who: str) -> None:
        if self.known and document == self.known[-1]:
            return
        if not self.known and document.revision == 1:
            return
        if not any(plain(document) == plain(each) for each in self.maybe):
            last = self.known[-1].revision if self.known else 0
            ahead = ", ".join(f"{each.revision} with {_newest(each)}" for each in self.maybe) or "nothing"
            self._say(
                f"{who} finds revision {document.revision} with {_newest(document)}; known is revision {last}, "
                f"and {ahead} may follow"
            )

    def _check_history(self, store: FileStore, who: str, document: Document | None = None) -> None:
        expected = [event for each in self.known for event in each.events]
        if document is not None and document != self.known[-1]:
            expected += document.events
        try:
            found = list(store.history())
        except ControllerError as error:
            self._say(f"{who} cannot read history: {error} in {Path(error.where).name}")
            return
        if found != expected:
            self._say(f"{who} finds history {_told(found)}, which should be {_told(expected)}")

    def _check_torn(self, who: str) -> None:
        """What a commit says it set aside is there."""
        for event in (event for document in self.known for event in document.events):
            said = re.fullmatch(r"(\d+) bytes .* (torn-\S+)", event.detail or "")
            if said is not None:
                path = self.directory / said[2]
                size = path.stat().st_size if path.exists() else -1
                if size != int(said[1]):
                    self._say(f"{who} {said[2]} has {size} bytes; revision {event.revision} says {said[1]}")


def growing(document: Document, name: str, size: int) -> Edit:
    """An edit that adds a run of about *size* bytes."""
    made = kit.draft(document, "submit")
    made.count("run")
    made.runs.put(name, Run(name, "fleet", made.count("sequence"), kit.NOW, (Step("main", ("true", "x" * size)),)))
    made.event(f"run:{name}", "submitted", None, "queued")
    return made.edit()


def plain(document: Document) -> Document:
    """*document* without what a store itself has to tell: that it found a torn line."""
    events = [event for event in document.events if not (event.subject == "fleet" and event.event.startswith("torn"))]
    numbered = tuple(structs.replace(event, n=n) for n, event in enumerate(events, 1))
    return structs.replace(document, events=numbered)


def _newest(document: Document) -> str:
    return max(document.runs, key=lambda name: int(name[2:]), default="no run")


def _told(events: Sequence[Event]) -> str:
    return "[" + ", ".join(f"{event.revision}.{event.n} {event.event}" for event in events) + "]"
