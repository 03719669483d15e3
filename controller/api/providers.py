"""The provider that the settings name, ready to be asked."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from controller.api.settings import Settings, check_provider, provider_environment
from controller.clock import Clock
from controller.model.records import Document
from controller.provider.protocol import Provider


def provider_of(settings: Settings, document: Document, state_dir: Path, clock: Clock) -> Provider:
    """The configured provider. The caller must close it. Raises Conflict while workers of another kind live."""
    check_provider(document, settings)
    if threading.current_thread() is threading.main_thread():
        # Inherited as ignored, it would hide how a provider ended. Whoever handles it keeps their handler.
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    environment = provider_environment(settings.provider, state_dir)
    if settings.provider.kind == "local":
        from controller.provider.local.client import LocalProvider

        return LocalProvider(
            state_dir,
            fleet=document.fleet,
            lineage=document.lineage,
            clock=clock,
            environment=environment,
            grace=settings.policy.kill_grace_ms / 1000,
        )
    from controller.provider.command import CommandProvider, Deadlines

    return CommandProvider(
        settings.provider.argv,
        fleet=document.fleet,
        lineage=document.lineage,
        state_dir=state_dir,
        clock=clock,
        environment=environment,
        deadlines=Deadlines(**{name: ms / 1000 for name, ms in settings.provider.deadlines.items()}),
    )
