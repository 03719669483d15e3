"""The `command` provider: any program that speaks JSON on stdin and stdout, started anew for every call.

Not promised: that the program finds any working directory but the state directory, or any environment but the one
given.

After a definite answer, what the program left in its process group may live on. After an unknown one it is ended: the
same key will be sent again, and two calls for one slot must not overlap.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Mapping
from pathlib import Path

from msgspec import Raw, Struct

from controller.clock import Clock
from controller.model.action import Action
from controller.model.errors import ProviderFailed
from controller.model.inventory import Inventory
from controller.provider import wire
from controller.provider.call import Answer, Caller, End
from controller.provider.process import end_group
from controller.provider.protocol import Description, News, NotSent, Outcome, Register, Unknown


class Deadlines(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds that a call may take: by op, and for a send by the action's type."""

    describe: float = 10.0
    inventory: float = 60.0
    wait: float = 60.0
    create: float = 600.0
    execute: float = 60.0
    cancel: float = 60.0
    deallocate: float = 300.0
    delete_compute: float = 300.0
    reset: float = 300.0

    def of(self, name: str) -> float:
        seconds: float = getattr(self, name)
        return seconds


DEFAULT_DEADLINES = Deadlines()
_INSTALL = "install it, chmod +x it, or mend [provider] command in controller.toml"
_BY_HAND = "no slot changed; give the program this op's request by hand, see docs/provider-protocol.md"


class CommandProvider:
    """Calls *argv* for every op. *environment* is all that the program gets; *state_dir* is its working directory."""

    kind = "command"
    registers = True

    def __init__(
        self,
        argv: tuple[str, ...],
        *,
        fleet: str,
        lineage: str,
        state_dir: Path,
        clock: Clock,
        environment: Mapping[str, str],
        deadlines: Deadlines = DEFAULT_DEADLINES,
    ) -> None:
        if not argv:
            raise ValueError("a provider command has at least one word")
        self._argv = argv
        self._fleet = fleet
        self._lineage = lineage
        self._clock = clock
        self._deadlines = deadlines
        self._caller = Caller(argv, environment, state_dir, clock)
        self._description: Description | None = None
        self._describing = threading.Lock()

    def describe(self) -> Description:
        """Asked once per process: a program that changes what it is while it is used is a new provider."""
        with self._describing:
            if self._description is None:
                answer = self._ask("describe", self._deadlines.describe)
                try:
                    self._description = wire.parse_description(answer.stdout)
                except wire.BadReply as error:
                    raise self._failed("describe", str(error), answer) from error
            return self._description

    def inventory(self) -> Inventory:
        answer = self._ask("inventory", self._deadlines.inventory)
        try:
            return wire.parse_inventory(answer.stdout, self._lineage)
        except wire.BadReply as error:
            raise self._failed("inventory", str(error), answer) from error

    def wait(self, seconds: float) -> News:
        """The program is told how long it may take, and is ended a second after that: no news, then."""
        seconds = min(seconds, self._deadlines.wait)
        request = wire.request("wait", fleet=self._fleet, lineage=self._lineage, timeout_ms=round(seconds * 1000))
        answer = self._caller.call(request, seconds + 1.0)
        if isinstance(answer, NotSent):
            if self._caller.interrupted:
                return News()
            raise self._not_asked("wait", answer)
        if answer.interrupted or answer.end is End.DEADLINE:
            return News()
        if answer.trouble:
            raise self._failed("wait", answer.trouble, answer)
        try:
            return News(look=wire.parse_wait(answer.stdout))
        except wire.BadReply as error:
            raise self._failed("wait", str(error), answer) from error

    def mutate(self, action: Action, raw: Raw, register: Register) -> Outcome:
        whose = f"slot {action.slot}, key {action.idempotency_key}"
        try:
            request = wire.mutate_request(raw, fleet=self._fleet, lineage=self._lineage)
            answer = self._caller.call(request, self._deadlines.of(action.type.value), register)
            if isinstance(answer, NotSent):
                return answer
            trouble = answer.trouble
            if not trouble:
                try:
                    return wire.parse_outcome(answer.stdout, action)
                except wire.BadReply as error:
                    trouble = str(error)
            lives = answer.lives or not end_group(answer.identity, self._clock)
            return Unknown(f"{whose}: {trouble}; {answer.said}", process_lives=lives)
        except Exception as error:  # noqa: BLE001 - a send whose fate an unforeseen error hides is unknown, never failed
            return Unknown(f"{whose}: {type(error).__name__}: {wire.excerpt(str(error))}")

    def close(self) -> None:
        """Nothing is kept open between calls."""

    def interrupt(self) -> None:
        """For good: calls in flight are ended, later ones are not begun."""
        self._caller.interrupt()

    def _ask(self, op: str, limit: float) -> Answer:
        answer = self._caller.call(wire.request(op, fleet=self._fleet, lineage=self._lineage), limit)
        if isinstance(answer, NotSent):
            raise self._not_asked(op, answer)
        if answer.trouble:
            raise self._failed(op, answer.trouble, answer)
        return answer

    def _failed(self, op: str, why: str, answer: Answer) -> ProviderFailed:
        return ProviderFailed(
            f"the provider did not answer {op}: {why}; {answer.said}", where=shlex.join(self._argv), next=_BY_HAND
        )

    def _not_asked(self, op: str, answer: NotSent) -> ProviderFailed:
        return ProviderFailed(
            f"the provider did not answer {op}: {answer.reason}",
            where=shlex.join(self._argv),
            next=_INSTALL if answer.broken else _BY_HAND,
        )
