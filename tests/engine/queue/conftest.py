"""A host with an empty queue."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.engine.queue.machine", "tests.engine.queue.model", "tests.engine.queue.verbs")

from tests.engine.queue.kit import Host  # noqa: E402 - what it imports must not come before the line above


@pytest.fixture
def host() -> Host:
    """Over a disk in memory; queue *a* lets a run fail or be lost as its submitter says."""
    return Host()
