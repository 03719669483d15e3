"""What `from controller import ...` gives, in one place."""

from __future__ import annotations

from controller.api.claims import Claim
from controller.api.graph import submission
from controller.api.handle import Controller
from controller.api.queues import Queue
from controller.engine.report import Report
from controller.engine.status import Status
from controller.engine.submission import Submission
from controller.model.errors import (
    AlreadyThere,
    Busy,
    CancelRequested,
    Conflict,
    ControllerError,
    DocumentFault,
    LeaseLost,
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
    "Queue",
    "Claim",
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
    "LeaseLost",
    "CancelRequested",
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
