"""The Provider contract: questions (describe, inventory, wait) and sends (mutate).

Not promised: that a provider performs an action once. It is asked with one key until it gives a definite answer; a
provider that honours keys performs it once.

An implementation must give an outcome from `mutate` whatever happens, never an exception; must look a key up first
and answer a known one as before; must say `NotSent` only when the request certainly never reached anything, and
`Rejected` only when this key had and will have no effect. Whatever it cannot tell is `Unknown`. A caller must hold
the slot's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Raw, Struct

from controller.model.action import Action
from controller.model.inventory import Inventory, SeenStep, SeenWorker
from controller.model.process import ProcessIdentity

Register = Callable[[ProcessIdentity, int], None]
"""Called with the identity and the deadline (UTC ms) of a provider process before it is given its request."""


class Done(Struct, frozen=True, tag="done"):
    worker: SeenWorker | None = None
    step: SeenStep | None = None
    reason: str = ""


class Pending(Struct, frozen=True, tag="pending"):
    """Accepted, not finished: send the same key again after `retry_after_ms`."""

    retry_after_ms: int
    reason: str = ""


class Rejected(Struct, frozen=True, tag="rejected"):
    """This key had and will have no effect."""

    reason: str


class NotSent(Struct, frozen=True, tag="not_sent"):
    """The request certainly never reached the provider. `broken`: its program is missing or may not be executed."""

    reason: str
    broken: bool = False


class Unknown(Struct, frozen=True, tag="unknown"):
    """Nothing definite came back. `process_lives`: a provider process was left that could not be ended."""

    reason: str
    process_lives: bool = False


class IdentityRefused(Struct, frozen=True, tag="identity_refused"):
    """The recorded resource can never bind again."""

    reason: str


Outcome = Done | Pending | Rejected | NotSent | Unknown | IdentityRefused


class Description(Struct, frozen=True):
    """`key_ttl_ms`: how long the provider remembers a key; None: for ever. `wait`: it answers the wait operation."""

    name: str
    version: str
    types: tuple[str, ...]
    key_ttl_ms: int | None = None
    wait: bool = False


class Pushed(Struct, frozen=True):
    """The end of a step of the worker in `slot`, told by the worker itself."""

    slot: int
    step: SeenStep


class News(Struct, frozen=True):
    """What came while it was waited for. `look`: inventory may have changed in more than the `ends`. False: nothing."""

    look: bool = False
    ends: tuple[Pushed, ...] = ()

    def __bool__(self) -> bool:
        return self.look or bool(self.ends)


class Provider(Protocol):
    @property
    def kind(self) -> str:
        """`local`, `command` or `fake`: what a worker's record says made it."""
        ...

    @property
    def registers(self) -> bool:
        """Whether `mutate` starts a process and calls *register* for it: a send has begun only then."""
        ...

    def describe(self) -> Description:
        """Raises ProviderFailed."""
        ...

    def inventory(self) -> Inventory:
        """Every worker of this fleet and lineage. Raises ProviderFailed; an incomplete answer says so instead."""
        ...

    def mutate(self, action: Action, raw: Raw, register: Register) -> Outcome:
        """Ask for *action*, whose canonical bytes are *raw*. Never raises; returns within its deadline and grace."""
        ...

    def wait(self, seconds: float) -> News:
        """What is new, as soon as inventory may have changed; nothing after *seconds*. Only if described so.

        Raises ProviderFailed. Must not be called by two threads at once.
        """
        ...

    def close(self) -> None:
        """Let go of every descriptor. Workers and their steps go on; nothing is asked any more."""
        ...

    def interrupt(self) -> None:
        """A second signal: give up calls in flight at once. Their outcomes are unknown. Safe from any thread."""
        ...
