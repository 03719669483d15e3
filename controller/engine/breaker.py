"""What a send says of its provider's health: counted per provider, for the circuit breaker. Pure: it changes a draft.

Not promised: that every failure is counted. It is noted after the answer was applied, best effort: what is lost with a
process that dies in between is one count.

Unknown and not sent are failures; every definite answer is a success, a "no" as well: a provider that refuses a create,
for want of quota, answers, and the workers that it has made already must go on being asked. Looks do not count.
"""

from __future__ import annotations

from typing import assert_never

from controller.model import health
from controller.model.edit import Draft
from controller.model.policy import Breaker
from controller.model.reason import Reason
from controller.model.records import Document, Provider
from controller.provider.protocol import Done, IdentityRefused, NotSent, Outcome, Pending, Rejected, Unknown


def judged(known: Provider | None, outcome: Outcome, breaker: Breaker, now: int, *, replayed: bool) -> Provider:
    """The provider's record after *outcome*. *replayed*: the action had been sent before."""
    match outcome:
        case Done() | Pending() | Rejected() | IdentityRefused():
            return health.succeeded(known, breaker, now)
        case Unknown(why) | NotSent(why):
            return health.failed(known, breaker, now, why, replayed=replayed)
        case _:
            assert_never(outcome)


def counts(document: Document, name: str, outcome: Outcome, breaker: Breaker, now: int) -> bool:
    """Whether *outcome* changes what is recorded of provider *name*."""
    known = document.providers.get(name)
    return judged(known, outcome, breaker, now, replayed=False) != (known or Provider())


def note(draft: Draft, name: str, outcome: Outcome, breaker: Breaker, *, replayed: bool) -> None:
    """Record what *outcome* says of provider *name*, with one event if that changes anything."""
    before = draft.providers.get(name) or Provider()
    after = judged(before, outcome, breaker, draft.now, replayed=replayed)
    if after == before:
        return
    draft.providers.put(name, after)
    said = f"{name} failed {after.failures} times in a row: {after.why}" if after.failures else f"{name} answers again"
    if after.opened_at == before.opened_at:
        draft.event("fleet", "provider_failed" if after.failures else "provider_answered", detail=said)
    elif after.opened_at is None:
        draft.event("fleet", "breaker_closed", detail=said)
    else:
        draft.event("fleet", "breaker_opened", reason=Reason.BREAKER_OPEN, detail=said)
