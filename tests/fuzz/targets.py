"""All targets, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.fuzz import carried, commands, documents, inputs, replies
from tests.fuzz.target import Target

TARGETS: Final[Mapping[str, Target]] = {
    target.name: target
    for target in (*documents.TARGETS, *carried.TARGETS, *commands.TARGETS, *replies.TARGETS, *inputs.TARGETS)
}
