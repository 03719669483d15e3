"""What tests of queues say over and over: submit, claim, look."""

from __future__ import annotations

import json
from typing import Any

from tests.behaviour.driver import Controller
from tests.behaviour.provider_program import wait_until


def submit(controller: Controller, *args: str, payload: object = None) -> str:
    """Submit a run for consumers; its id."""
    run = controller.json("submit", *args, "--payload", json.dumps(payload))["run"]
    assert isinstance(run, str)
    return run


def claim(controller: Controller, *args: str) -> Any:
    """Claim one run; its entry."""
    (run,) = controller.json("queue", "claim", *args)["runs"]
    return run


def browsed(controller: Controller, view: str, *args: str) -> list[str]:
    """The ids in a set, in order."""
    return [run["id"] for run in controller.json("queue", "browse", view, *args)["runs"]]


def until_listed(controller: Controller, *args: str) -> list[Any]:
    """The runs that a command lists as soon as it lists any."""
    found: list[Any] = []

    def listed() -> bool:
        found.extend(controller.json(*args)["runs"])
        return bool(found)

    wait_until(listed, f"{' '.join(args)} lists a run")
    return found
