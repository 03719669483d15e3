"""Behaviour tests drive the installed command; each has a state directory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.behaviour.driver import Controller


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    """The installed command. Whatever it started is gone when the test ends."""
    driver = Controller(tmp_path)
    try:
        yield driver
    finally:
        driver.close()
