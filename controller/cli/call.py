"""One invocation: its global options, and the store, settings and output that they lead to, made on first use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from controller.api.settings import Settings, absolute, environment, is_set
from controller.cli.output import Output
from controller.clock import SystemClock
from controller.model.errors import UsageFault

if TYPE_CHECKING:
    from controller.api.handle import Controller
    from controller.cli.text import Times
    from controller.cli.views import Here
    from controller.engine.queue import Context
    from controller.store.file import FileStore

STATE_DIR_VARIABLE = "CONTROLLER_STATE_DIR"
SECONDS_OF_SILENCE = 2.0


class Call:
    """What every command gets. `command` is what history says did it; `subject` is whom a refusal is noted for."""

    def __init__(self) -> None:
        self.command = ""
        self.subject = "fleet"
        self.question = False
        self.clock = SystemClock()
        self.output = Output(json=False)
        self.lock_timeout = 10.0
        self._state_dir = "state"
        self._config: str | None = None
        self._from_environment = False
        self._late: list[Callable[[], str]] = []

    def choose(
        self, *, state_dir: str | None, config: str | None, lock_timeout_ms: int, from_environment: bool
    ) -> None:
        """Take the global options. *from_environment*: the state directory was named there, not on the command line."""
        if state_dir is None and is_set(STATE_DIR_VARIABLE):
            raise UsageFault(
                f"{STATE_DIR_VARIABLE} is set, and empty", next="unset it, or give the state directory's path"
            )
        if state_dir == "" or config == "":
            raise UsageFault("an empty path", where="--state-dir" if state_dir == "" else "--config")
        self._state_dir = state_dir or "state"
        self._config = config
        self._from_environment = from_environment
        self.lock_timeout = lock_timeout_ms / 1000

    def times(self, now: int) -> Times:
        """How times are told in an answer that speaks of *now*."""
        from controller.cli.text import Times

        return Times(now, self.output.exact)

    def here(self) -> Here:
        """This moment, on both clocks: leases are told by the one that nobody sets."""
        from controller.cli.views import Here
        from controller.provider.process import boot_id

        return Here(self.clock.now_ms(), int(self.clock.monotonic() * 1000), boot_id())

    @cached_property
    def state_dir(self) -> Path:
        return absolute(self._state_dir)

    @property
    def state_dir_shown(self) -> str:
        """The state directory and, when it was not typed, where it came from."""
        return f"{self.state_dir} (from {STATE_DIR_VARIABLE})" if self._from_environment else str(self.state_dir)

    @cached_property
    def controller(self) -> Controller:
        """The library's view of the same directory: what the commands are a thin layer over."""
        from controller.api.handle import Controller

        return Controller(
            self.state_dir,
            config=None if self._config is None else absolute(self._config),
            command=self.command,
            lock_timeout=self.lock_timeout,
            clock=self.clock,
        )

    @property
    def config_path(self) -> Path:
        return self.controller.config_path

    @property
    def config_chosen(self) -> bool:
        """Whether --config, or its variable, named the file."""
        return self._config is not None

    @property
    def settings(self) -> Settings:
        """The configuration, checked. Raises UsageFault."""
        return self.controller.settings

    @cached_property
    def readable_settings(self) -> tuple[Settings, UsageFault | None]:
        """For commands that only read: a configuration that cannot be meant is told beside the answer."""
        try:
            return self.settings, None
        except UsageFault as fault:
            return Settings(source=str(self.config_path)), fault

    @property
    def store(self) -> FileStore:
        return self.controller.store

    @property
    def opened(self) -> bool:
        """Whether the store was asked for yet."""
        return "controller" in self.__dict__ and "store" in self.controller.__dict__

    @property
    def context(self) -> Context:
        return self.controller.context

    @property
    def ruled(self) -> Context:
        """As `context`, under the policy that the settings say. Raises UsageFault."""
        return self.controller.ruled

    @property
    def lenient(self) -> Context:
        """As `ruled`, or as `context` while the settings cannot be read: a report must not be lost for their sake."""
        return self.context if self.readable_settings[1] is not None else self.ruled

    @contextmanager
    def showing(self, late: Callable[[], str]) -> Iterator[None]:
        """On a terminal, say in one line what takes long: what *late* tells, asked again and again; "" is nothing.

        *late* is called on another thread. Within another `showing` both are asked, and the inner one goes first.
        """
        if not self.output.can_progress:
            yield
            return
        watched = bool(self._late)
        self._late.insert(0, late)
        try:
            if watched:
                yield
            else:
                with self._watching():
                    yield
        finally:
            self._late.remove(late)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        import threading

        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(SECONDS_OF_SILENCE / 4):
                self.output.progress(next((line for late in tuple(self._late) if (line := late())), ""))

        watcher = threading.Thread(target=watch, name="progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
            self.output.progress("")

    def waits(self) -> str:
        """For `showing`: whom the document is waited for."""
        waited = self.store.waited() if self.opened else None
        seconds = 0.0 if waited is None else self.clock.monotonic() - waited[0]
        if waited is None or seconds < SECONDS_OF_SILENCE:
            return ""
        return f"waiting for the document ({seconds:.0f} s): held by {waited[1]}"

    def wants_color(self, chosen: bool) -> bool:
        """Colour is for a terminal, and for people who did not say no."""
        return (
            chosen and not environment("NO_COLOR") and environment("TERM") != "dumb" and os.isatty(1) and os.isatty(2)
        )
