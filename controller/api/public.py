"""What `from controller import ...` gives, in one place."""

from __future__ import annotations

from controller.api.graph import submission
from controller.api.handle import Controller
from controller.engine.queue import Submission
from controller.engine.report import Report
from controller.engine.status import Status
from controller.model.errors import (
    AlreadyThere,
    Busy,
    Conflict,
    ControllerError,
    DocumentFault,
    NotDurable,
    NotFound,
    ProviderFailed,
    Refusal,
    StillRunning,
    TransitionRefused,
    UsageFault,
)
from controller.model.reason import Reason
from controller.model.records import Run, RunState, Step, StepState, Tombstone

__all__ = [
    "Controller",
    "submission",
    "Submission",
    "Run",
    "RunState",
    "Step",
    "StepState",
    "Tombstone",
    "Reason",
    "Report",
    "Status",
    "ControllerError",
    "Refusal",
    "Conflict",
    "TransitionRefused",
    "AlreadyThere",
    "UsageFault",
    "NotFound",
    "Busy",
    "StillRunning",
    "DocumentFault",
    "NotDurable",
    "ProviderFailed",
]
