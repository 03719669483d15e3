"""Random interleavings of consumers, operators, clocks and crashes, beside a plain model: see `machine`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.engine.queue import kit
from tests.engine.queue.machine import QueueMachine


class InMemory(QueueMachine):
    def make_disk(self) -> kit.Disk:
        return kit.Memory()


class OnFiles(QueueMachine):
    twins = False

    def make_disk(self) -> kit.Disk:
        self.home = Path(tempfile.mkdtemp(prefix="queue-"))
        return kit.Files(self.home)

    def teardown(self) -> None:
        shutil.rmtree(self.home)


def chosen(examples: int, steps: int) -> settings:
    """A failure is told at once, as it was found: to make it small takes minutes, and is left to the profile that
    explores.
    """
    if settings.default is not None and settings.default.derandomize:
        return settings(max_examples=examples, stateful_step_count=steps, phases=[Phase.generate])
    return settings(stateful_step_count=steps)


def test_whatever_consumers_operators_clocks_and_crashes_do_the_queue_does_what_the_plain_model_says() -> None:
    run_state_machine_as_test(InMemory, settings=chosen(120, 60))


def test_the_file_store_keeps_the_queue_as_the_plain_model_says() -> None:
    run_state_machine_as_test(OnFiles, settings=chosen(10, 40))
