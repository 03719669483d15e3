"""The store of programs that use the library: a hold is never interrupted by a claim, however long its body waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from controller.api.interrupt import shielded
from controller.store.file import FileHold, FileStore


class ShieldedStore(FileStore):
    """Not promised: that a signal's exception, such as KeyboardInterrupt, waits too."""

    @contextmanager
    def tenure(self, timeout: float, *, founding: bool = False) -> Iterator[FileHold]:
        with shielded(), super().tenure(timeout, founding=founding) as hold:
            yield hold
