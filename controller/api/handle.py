"""`Controller`: one fleet's state directory, for Python programs. Each method is what the command of its name does.

Not promised: anything to a thread that shares one `Controller` with another; that a run which was submitted is worked
on, unless something drives the fleet: `wait` and `reconcile` do, and so does `controller run`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import finalize

from msgspec import UNSET

from controller.api.settings import Settings, absolute, check_provider, load
from controller.clock import Clock, SystemClock
from controller.model.errors import NotOurs, UsageFault
from controller.model.policy import DEFAULT_QUEUE, Policy

if TYPE_CHECKING:
    from controller.api.queues import Queue
    from controller.api.recovery import Recovery
    from controller.engine.browse import QueueSummary
    from controller.engine.queue import Context
    from controller.engine.reconcile import Reconciler
    from controller.engine.report import Report
    from controller.engine.status import Status
    from controller.engine.submission import Submission, Submitted
    from controller.model.keep import Keep
    from controller.model.records import Priority, Run, Tombstone
    from controller.store.file import FileStore

PARALLELISM = 8


class Controller:
    """Made by `Controller.init` or `Controller.open`, and closed by leaving its `with` block.

    Times are UTC milliseconds in records and seconds in arguments. Every method may raise DocumentFault (the document
    is missing, corrupt or foreign); those that change something also Busy (after `lock_timeout` seconds), Refusal and
    NotDurable. All are `ControllerError`, with `code`, `what`, `where` and `next`.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        config: Path | None = None,
        command: str = "library",
        lock_timeout: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is read yet: programs use `init` and `open`. *command* is what history says did it."""
        self.state_dir = state_dir
        self.config = config
        self.command = command
        self.lock_timeout = lock_timeout
        self.clock = SystemClock() if clock is None else clock

    @classmethod
    def init(
        cls,
        path: str | os.PathLike[str],
        *,
        fleet: str = "fleet",
        slots: int = 4,
        provider_command: Sequence[str] = (),
        lock_timeout: float = 10.0,
    ) -> Controller:
        """Make a new fleet at *path* and open it. Its workers are processes on this host, or what *provider_command*
        makes: a program by its absolute path, and its arguments.

        Raises AlreadyThere for a directory that shows any sign of an earlier life, UsageFault for a setting that cannot
        be meant.
        """
        from controller.api.options import template
        from controller.api.settings import parse
        from controller.engine.chance import new_lineage
        from controller.model.errors import UsageFault
        from controller.model.records import is_id
        from controller.provider.process import own_identity
        from controller.store.create import initialise

        if not is_id(fleet):
            raise UsageFault(f"not a name for a fleet: {fleet!r}", next="use letters, digits, '.', '_' and '-'")
        made = cls(absolute(path), lock_timeout=lock_timeout)
        text = template(slots, "command" if provider_command else "local", tuple(provider_command))
        parse(text, str(made.config_path))
        initialise(
            made.state_dir,
            fleet=fleet,
            lineage=new_lineage(),
            config_text=text,
            clock=made.clock,
            whoami=own_identity(),
            command=made.command,
            timeout=lock_timeout,
        )
        return made

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] = "state",
        *,
        config: str | os.PathLike[str] | None = None,
        lock_timeout: float = 10.0,
    ) -> Controller:
        """Open the fleet at *path*. *config*: its settings, by default `controller.toml` in there.

        Raises DocumentFault, and UsageFault for settings that cannot be meant: nothing is made or guessed.
        """
        opened = cls(absolute(path), config=None if config is None else absolute(config), lock_timeout=lock_timeout)
        opened.store.read()
        opened.settings  # noqa: B018 - what is wrong with them is said now, not at the first use
        return opened

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what is cached. Nothing durable waits for this: what a method returned from is on disk. A small
        document is folded, so that its file is current.
        """
        store: FileStore | None = self.__dict__.pop("store", None)
        self.__dict__.pop("context", None)
        self.__dict__.pop("ruled", None)
        if store is not None:
            store.close()

    # Asking

    def get(self, run: str) -> Run | Tombstone:
        """The run, or the tombstone of one that succeeded. Raises NotFound."""
        from controller.engine.queue import find

        return find(self.store.read().document, run)

    def status(self, *, slots: int | None = None, policy: Policy | None = None) -> Status:
        """Where the fleet stands, as `controller status --json` tells it. Takes no lock and asks no provider.

        *policy* is what is configured, and *slots* how many, for whoever cannot read the settings.
        """
        from controller.engine.status import LAST_REFUSALS, build, flights_of

        snapshot = self.store.read()
        if policy is None:
            policy = self.settings.policy if slots is None else Policy(slots=slots)
        return build(
            snapshot,
            policy=policy,
            slots=policy.slots if slots is None else slots,
            flights=flights_of(self.store, snapshot.document.pending_actions),
            refusals=self.store.refusals(LAST_REFUSALS),
            now=self.clock.now_ms(),
        )

    # Changing what is wanted

    def submit(
        self,
        argv: Sequence[str] | None = None,
        *,
        steps: Iterable[Mapping[str, Any]] | None = None,
        id: str | None = None,  # noqa: A002 - the word of the file and the command line
        attempts: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        payload: Any = UNSET,
        queue: str | None = None,
        priority: Priority | str = "normal",
        crashes: int | None = None,
        delay: float | None = None,
        at: int | datetime | None = None,
        unique_for: float | None = None,
        concurrency_key: str = "",
        concurrency: int | None = None,
        replace: bool = False,
    ) -> Run | Tombstone:
        """Queue a command, the steps of a graph, or a payload for a consumer: accepted, durably, once this returns.

        *steps* are mappings with `name`, `argv` and, if wanted, `needs`, `env`, `cwd`, `timeout` ("10m") and
        `attempts`, as in the file that `controller submit --file` reads; *env*, *cwd* and *timeout* (seconds) are for
        *argv* alone. *attempts* is how often the run may fail, *crashes* how often its holder may be lost: by default
        what the queue's policy says. The same *id* with the same content is the same run, also once it has succeeded.

        *payload* is any JSON value of at most 1 MiB, for whoever does the run. *queue* is by default "fleet" for a
        command or steps, and "default" for a payload alone. *priority* is forced, critical, scheduled, normal or
        background. The run is not due before *delay* seconds have passed, or *at* UTC milliseconds or a datetime with
        its zone. Within *unique_for* seconds the same content in the same queue is the same run. At most *concurrency*
        runs, by default one, of *concurrency_key* run at once. *replace*: a run of the same *id* and other content
        makes way, unless a worker holds it.

        Raises UsageFault for what cannot be run, Conflict for an *id* with other content, or a payload alone for a
        queue of the fleet.
        """
        from controller.api.graph import submission

        wanted = submission(
            argv,
            steps=steps,
            id=id,
            attempts=attempts,
            env=env,
            cwd=cwd,
            timeout=timeout,
            payload=payload,
            queue=queue,
            priority=priority,
            crashes=crashes,
            delay=delay,
            at=at,
            unique_for=unique_for,
            concurrency_key=concurrency_key,
            concurrency=concurrency,
            replace=replace,
        )
        (run,) = self.submit_many([wanted])
        return run

    def submit_many(self, submissions: Iterable[Submission]) -> tuple[Run | Tombstone, ...]:
        """Queue several runs in one commit, all or none. `controller.submission` makes what this takes."""
        from controller.engine.queue import submitted

        return tuple(run for _, run in submitted(self.ruled, tuple(submissions)))

    def add(self, submissions: Iterable[Submission]) -> tuple[Submitted, ...]:
        """As `submit_many`, but answers with each run's id and whether it is new."""
        from controller.engine.queue import submit

        return submit(self.ruled, tuple(submissions))

    def cancel(self, run: str) -> Run | Tombstone:
        """Cancel a run: at once if it is queued; else its worker is asked to end its step, and is given a moment.

        The request is durable when this returns; a run that is still running then is cancelled by whatever drives the
        fleet. Raises NotFound, TransitionRefused when it has ended.
        """
        from controller.engine.queue import cancel

        answer = cancel(self.context, run)
        if answer.slot is not None:
            with self.driving() as reconciler:
                reconciler.keep_to(answer.slot)
                reconciler.reconcile()
        return self.get(run)

    def withdraw(self, run: str) -> Run | Tombstone:
        """Cancel a queued run that no worker ever took. Raises NotFound, Conflict, TransitionRefused."""
        from controller.engine.queue import withdraw

        withdraw(self.context, run)
        return self.get(run)

    def retry(self, run: str) -> Run | Tombstone:
        """Queue a failed or cancelled run again; steps that succeeded are kept. Raises NotFound, TransitionRefused."""
        from controller.engine.queue import retry

        retry(self.context, run)
        return self.get(run)

    # Queues for consumers

    def queue(self, name: str = DEFAULT_QUEUE) -> Queue:
        """The queue of that name, to take runs from and to look after. Nothing is read or made yet.

        Raises UsageFault for what cannot be a name.
        """
        from controller.api.queues import Queue

        return Queue(self, name)

    def queues(self) -> tuple[QueueSummary, ...]:
        """Every queue that was used or that a setting names: how many runs wait there, and for how long. Only reads."""
        from controller.engine.browse import queues

        return queues(self.store.read().document, self.settings.policy, self.clock.now_ms())

    # What does not go on by itself

    @property
    def recovery(self) -> Recovery:
        """The verbs of operators. Nothing is read or made yet."""
        from controller.api.recovery import Recovery

        return Recovery(self)

    # Driving the fleet

    def reconcile(self, *, parallelism: int = PARALLELISM) -> Report:
        """Replay, look, plan and act until nothing is left to do. Trouble with single slots is in the report."""
        with self.driving(parallelism=parallelism) as reconciler:
            return reconciler.reconcile()

    def replay_pending(self, *, slot: int | None = None, parallelism: int = PARALLELISM) -> Report:
        """Send every parked action again, under its own key, whatever its backoff says; or that of *slot* alone."""
        with self.driving(parallelism=parallelism) as reconciler:
            return reconciler.replay(slot=slot)

    def wait(
        self, *runs: str, timeout: float | None = None, parallelism: int = PARALLELISM
    ) -> tuple[Run | Tombstone, ...]:
        """Serve the fleet until these runs have ended, however: their `state` tells. Nothing else needs to run.

        Raises StillRunning after *timeout* seconds: the runs go on, and may be waited for again. Raises NotFound, and
        Conflict for a run that the fleet does not serve.
        """
        from controller.api.waiting import serve_until_ended

        with self.driving(parallelism=parallelism) as reconciler:
            return serve_until_ended(reconciler, runs, timeout=timeout)

    @contextmanager
    def driving(self, *, parallelism: int = PARALLELISM) -> Iterator[Reconciler]:
        """The engine with a provider of its own, which is closed at the end. Raises Conflict while workers live that
        another kind of provider made.
        """
        reconciler = self.reconciler(parallelism=parallelism)
        try:
            yield reconciler
        finally:
            reconciler.sender.provider.close()

    def reconciler(self, *, parallelism: int = PARALLELISM) -> Reconciler:
        """The engine over this store, these settings and their provider, which the caller must close."""
        from controller.api.providers import provider_of
        from controller.engine.pending import Sender
        from controller.engine.planner import Ground
        from controller.engine.reconcile import Reconciler

        settings = self.settings
        provider = provider_of(settings, self.store.read().document, self.state_dir, self.clock)
        sender = Sender(self.ruled, provider, settings.policy)
        return Reconciler(sender, Ground(settings.policy, provider.kind), parallelism=parallelism)

    # What it stands on

    @property
    def config_path(self) -> Path:
        return self.state_dir / "controller.toml" if self.config is None else self.config

    @cached_property
    def settings(self) -> Settings:
        """The configuration, checked, as it was when first asked for. Raises UsageFault."""
        return load(self.config_path, chosen=self.config is not None)

    def renew_settings(self) -> Settings:
        """Read the configuration again. Raises UsageFault, and Conflict while workers live that another kind of
        provider made; what was read before stands then.
        """
        settings = load(self.config_path, chosen=self.config is not None)
        check_provider(self.store.read().document, settings)
        self.keep_settings(settings)
        return settings

    def keep_settings(self, settings: Settings) -> None:
        """From now on these are the settings, whatever the file says."""
        self.__dict__["settings"] = settings
        self.__dict__.pop("ruled", None)

    @cached_property
    def store(self) -> FileStore:
        from controller.api.shielded import ShieldedStore
        from controller.provider.process import own_identity

        keep = partial(_kept, self.config_path, chosen=self.config is not None)
        whoami = own_identity()
        store = ShieldedStore(self.state_dir, clock=self.clock, whoami=whoami, command=self.command, keep=keep)
        finalize(self, store.close)  # for programs that end without closing it
        return store

    @cached_property
    def context(self) -> Context:
        """What the engine's verbs need, without the settings: what reads none must work while they cannot be read."""
        from controller.engine.queue import Context
        from controller.store.waiters import Waiters

        return Context(
            self.store,
            self.clock,
            self.command,
            self.lock_timeout,
            boot_id=self.store.whoami.boot_id,
            waiters=Waiters(self.state_dir),
        )

    @cached_property
    def ruled(self) -> Context:
        """As `context`, under the settings' policy: for what adds runs, hands them out or forgets them."""
        from msgspec.structs import replace

        return replace(self.context, policy=self.settings.policy)

    def another(self, *, lock_timeout: float | None = None) -> Controller:
        """The same fleet once more, for another thread. *lock_timeout*: it waits no longer than that, in seconds."""
        longest = self.lock_timeout if lock_timeout is None else min(self.lock_timeout, lock_timeout)
        other = Controller(
            self.state_dir, config=self.config, command=self.command, lock_timeout=longest, clock=self.clock
        )
        other.keep_settings(self.settings)
        return other


def _kept(path: Path, *, chosen: bool) -> Keep:
    """How much history to keep. While the settings cannot be read, all of it."""
    from controller.model.keep import Keep

    try:
        return load(path, chosen=chosen).keep
    except (UsageFault, NotOurs):
        return Keep(None, None)
