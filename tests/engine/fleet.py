"""A real store, a scripted provider and the engine between them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from controller.clock import FakeClock
from controller.engine.pending import Sender
from controller.engine.planner import Ground
from controller.engine.queue import Context, submit
from controller.engine.reconcile import Reconciler, Stop
from controller.engine.submission import Submission
from controller.model.action import Action, action_of
from controller.model.policy import Policy
from controller.model.records import Document, PendingAction, Step
from controller.provider.fake import FakeProvider
from controller.provider.process import own_identity
from controller.store.create import initialise
from controller.store.file import FileStore

LINEAGE = "22222222-2222-4222-8222-222222222222"


class Fleet:
    """One state directory; `again` is what another process would have: nothing in memory, the same files."""

    def __init__(self, directory: Path, provider: FakeProvider, *, slots: int = 3) -> None:
        self.directory = directory
        self.provider = provider
        self.policy = Policy(slots=slots)
        self.clock = FakeClock()
        self.stop = Stop()
        self.store: FileStore = initialise(
            directory,
            fleet="test",
            lineage=LINEAGE,
            config_text="",
            clock=self.clock,
            whoami=own_identity(),
            command="init",
        )

    @property
    def context(self) -> Context:
        store = FileStore(self.directory, clock=self.clock, whoami=own_identity(), command="test")
        # Long on the fake clock, which every poll of somebody else's lock moves on.
        return Context(store, self.clock, "test", lock_timeout=3600.0)

    @property
    def sender(self) -> Sender:
        return Sender(self.context, self.provider, self.policy)

    def reconciler(self, *, parallelism: int = 1, only: int | None = None) -> Reconciler:
        ground = Ground(self.policy, "fake", None, only)
        return Reconciler(self.sender, ground, parallelism=parallelism, stop=self.stop)

    def submit(self, *ids: str, attempts: int = 1) -> None:
        submit(self.context, [Submission((Step("main", ("true",)),), id=i, max_attempts=attempts) for i in ids])

    @property
    def document(self) -> Document:
        return self.context.store.read().document

    @property
    def pending(self) -> Mapping[int, PendingAction]:
        return self.document.pending_actions

    def action(self, slot: int) -> Action:
        return action_of(self.pending[slot])

    def park(self) -> None:
        """Plan and park, and die before anything is sent."""
        self.reconciler().park(None)

    def bytes(self) -> bytes:
        """All that is committed: the document's file and every journal, without the space that is taken ahead."""
        journals = sorted(self.directory.glob("journal-*.jsonl"))
        return b"".join(path.read_bytes().rstrip(b"\0") for path in (self.store.path, *journals))
