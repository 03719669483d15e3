"""Abandon: end a pending action that can never apply, on an operator's word and never without asking the provider.

Not promised: that it ends. What nobody answered for stays parked, and what an earlier send may have made is not
forgotten: looks have to show that it is not there.

One tenure of the slot's lock does it all: send the same key again, on the one path that there is, and do what the
answer says; then ask what there is. Past its provider's memory of keys nothing is sent, and looks stand in. Every
commit on the way leaves an action that is parked, settled or disowned, so whoever dies here does it again.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from controller.engine import disowned, outcomes
from controller.engine.calls import await_none, check
from controller.engine.operators import check_bounds, told
from controller.engine.pending import Ended, Sender, Sent
from controller.engine.sight import speaks_of
from controller.model.action import Action, action_of, decode, verify
from controller.model.edit import Draft
from controller.model.errors import (
    BrokenAction,
    Conflict,
    ControllerError,
    InvariantBroken,
    NotFound,
    ProviderFailed,
    ScopeExceeded,
    TransitionRefused,
    UsageFault,
)
from controller.model.inventory import Look
from controller.model.policy import Policy
from controller.model.reason import Reason
from controller.model.records import ActionType, Document, PendingAction
from controller.provider.protocol import Done, IdentityRefused, Outcome, Rejected, Unknown
from controller.store.protocol import SlotHold

SHORTEST_KEY: Final = 12
"""Of how many characters a beginning of a key must be: as many as are shown."""


class Left(StrEnum):
    """What became of the action."""

    APPLIED = "applied"
    """It was done, and is recorded like any other."""
    CLEARED = "cleared"
    """It had and will have no effect, or its worker is gone."""
    DISOWNED = "disowned"
    KEPT = "kept"
    """It is parked as before."""
    SETTLED_BEFORE = "already_settled"
    DISOWNED_BEFORE = "already_disowned"
    WOULD_SEND = "would_send"
    WOULD_LOOK = "would_look"
    """A dry run: it is too old to be sent again, or refused in the end, so looks alone would settle it."""


class Abandoned(Struct, frozen=True):
    """What became of a pending action and why: `detail` says it in words, `reason` is what the provider answered.

    `sends` is how often it may have been sent so far. `unsaved`: an answer came and could not be made durable. `ended`
    are runs that ended in the commit that settled it.
    """

    outcome: Left
    slot: int
    key: str
    type: ActionType | None
    reason: Reason
    detail: str
    run: str | None = None
    sends: int = 0
    unsaved: ControllerError | None = None
    ended: tuple[Ended, ...] = ()

    @property
    def pending(self) -> bool:
        """Whether it is pending still: kept, or a dry run."""
        return self.outcome in (Left.KEPT, Left.WOULD_SEND, Left.WOULD_LOOK)


def abandon(
    sender: Sender,
    slot: int,
    key: str,
    *,
    look: Callable[[], Look | None],
    reason: str,
    by: str,
    unresolved: bool = False,
    provider_gone: bool = False,
    dry_run: bool = False,
) -> Abandoned:
    """Send the slot's pending action *key* again, and end it if the answer, or a look, allows that.

    *key* may be a beginning of at least 12 characters. *look* asks the provider what there is; None: it cannot say.
    *unresolved*: one that nobody answers for any more is kept as disowned, and its slot closed until looks show what it
    made. *provider_gone*: a provider process that nobody can see counts as gone, which an event records. *dry_run*
    changes nothing and asks nobody.

    Raises NotFound (no such slot; no such key ever), Conflict (another action is pending), UsageFault (too little of a
    key), SlotBusy (somebody sends, or a provider process lives), SlotUnproven, BrokenAction, and what a hold raises.
    """
    check_bounds(slot)
    if len(key) < SHORTEST_KEY:
        raise UsageFault(
            f"{key!r} is too little of a key: {SHORTEST_KEY} characters are needed", next=f"controller show slot:{slot}"
        )
    if dry_run:
        found = _find(sender, slot, key)
        if isinstance(found, Abandoned):
            return found
        check(sender.context, slot, disclaimed=provider_gone)
        return _foretold(sender, *found)
    with sender.context.store.hold_slot(slot) as held:
        found = _find(sender, slot, key)
        if isinstance(found, Abandoned):
            return found
        # Answers are applied here, whoever else drives the fleet: theirs would be applied without what is meant by it.
        turn = _Turn(replace(sender, gather=None), held, found[1], by, reason)
        await_none(sender.context, slot, held, disclaimed=turn.disclaimed if provider_gone else None)
        return turn.end(look, unresolved=unresolved)


_Found = tuple[PendingAction, Action]


def _find(sender: Sender, slot: int, key: str) -> _Found | Abandoned:
    """The pending action that *key* means, or what became of it. Judged by a document that is durable."""
    with sender.context.store.hold(sender.context.lock_timeout) as hold:
        document = hold.load().document
    entry = document.pending_actions.get(slot)
    parked = None if entry is None else action_of(entry)
    before = _disowned_before(document, slot, key)
    if entry is not None and parked is not None and parked.idempotency_key.startswith(key):
        if before:
            raise UsageFault(f"{key} is the beginning of more than one key", next="give the whole key")
        return entry, verify(entry.action)
    if before:
        return before[0]
    if parked is not None:
        raise Conflict(
            f"slot {slot} holds another pending action: a {parked.type} with key {parked.idempotency_key}",
            where=f"slot {slot}, key {key}",
            next=f"controller explain slot:{slot}",
        )
    known = {event.key for event in sender.context.store.history(f"slot:{slot}") if event.key is not None}
    full = next((each for each in known if each.startswith(key)), None)
    if full is None:
        raise NotFound(f"slot {slot} never had an action with key {key}", next=f"controller history slot:{slot}")
    return Abandoned(Left.SETTLED_BEFORE, slot, full, None, Reason.DONE, "nothing is pending: it is settled")


def _disowned_before(document: Document, slot: int, key: str) -> list[Abandoned]:
    found = []
    for full, each in document.disowned.items():
        try:
            action = decode(each.action)
        except BrokenAction:
            continue
        if action.slot == slot and full.startswith(key):
            known = (Left.DISOWNED_BEFORE, slot, full, action.type, each.reason, each.detail, action.run)
            found.append(Abandoned(*known))
    return found


def _foretold(sender: Sender, entry: PendingAction, action: Action) -> Abandoned:
    outcome, then = Left.WOULD_SEND, f"it would be sent again; so far that was done {entry.sends} times at most"
    if sender.waits_for_proof(sender.context.store.read().document, entry):
        outcome, then = Left.WOULD_LOOK, "it would not be sent again: looks settle it"
    last = entry.last_reason or Reason.PENDING
    return Abandoned(outcome, action.slot, action.idempotency_key, action.type, last, then, action.run, entry.sends)


class _Turn:
    """One attempt to end one action, by whoever holds its slot's lock."""

    def __init__(self, sender: Sender, held: SlotHold, action: Action, by: str, reason: str) -> None:
        self._sender = sender
        self._held = held
        self._action = action
        self._by = by
        self._reason = reason

    def disclaimed(self, what: str) -> None:
        """Record on whose word a provider process that nobody can see counts as gone."""
        action, context = self._action, self._sender.context
        with context.store.hold(context.lock_timeout) as hold:
            loaded = hold.load()
            draft = context.draft(loaded.document)
            detail = told(self._by, self._reason, what)
            draft.event(f"slot:{action.slot}", "provider_gone", key=action.idempotency_key, detail=detail)
            hold.commit(loaded, draft.edit())

    def end(self, look: Callable[[], Look | None], *, unresolved: bool) -> Abandoned:
        action, sender = self._action, self._sender
        slot, key = action.slot, action.idempotency_key
        sent = sender.ask(self._held, slot, key, why=told(self._by, self._reason, "to be abandoned"), settle=self._fold)
        if _is_final(sent.outcome) and _cannot_take(sent.unsaved):
            return self._disown(Reason.APPLY_FAILED, _made(action, sent.outcome, sent.unsaved))
        if sent.settled or sent.unsaved is not None:
            return self._told(sent)
        if isinstance(sent.outcome, Unknown) and sent.outcome.process_lives:
            return self._told(sent, f"{sent.detail}; its provider process could not be ended, and still runs")
        shown = _ask(look)
        document = sender.context.store.read().document
        doubt = None if shown is None else outcomes.doubt(document, action, shown)
        silent = shown is None or doubt is not None or not speaks_of(shown, document, slot)
        try:
            proven = None if shown is None else sender.prove(slot, key, shown, settle=self._fold)
        except ControllerError as error:
            if not _cannot_take(error):
                raise
            return self._disown(Reason.APPLY_FAILED, f"looks show what it did, and: {error.what}")
        if proven is not None and proven.settled:
            return self._told(proven)
        if unresolved and _is_hopeless(sent, silent):
            why = "nobody answers for it any more" if doubt is None else f"looks cannot settle it, since {doubt}"
            return self._disown(Reason.DISOWNED, f"{why}: {sent.detail or sent.reason}")
        detail = sent.detail if proven is None else proven.detail
        return self._told(sent, detail if doubt is None else f"{detail}; looks do not, since {doubt}")

    def _fold(
        self,
        draft: Draft,
        slot: int,
        entry: PendingAction,
        action: Action,
        outcome: Outcome | outcomes.Evidence,
        policy: Policy,
    ) -> None:
        """As any other answer, but that a resource which can never bind again is given up, and who wants that."""
        if isinstance(outcome, IdentityRefused):
            outcomes.give_up(draft, slot, entry, action, outcome.reason, policy)
        else:
            outcomes.settle(draft, slot, entry, action, outcome, policy)
        left = draft.pending.get(slot)
        cleared = left is None and not isinstance(outcome, Done)
        given_up = left is not None and left.rejected is not None and entry.rejected is None
        if cleared or given_up:
            then = "cleared" if cleared else "it is cleared once looks show that no earlier send had an effect"
            self._event(draft, then, None if left is None else left.last_reason)

    def _event(self, draft: Draft, then: str, reason: Reason | None = None) -> None:
        action = self._action
        subject, detail = f"slot:{action.slot}", told(self._by, self._reason, then)
        draft.event(subject, "abandoned", action.type, reason=reason, key=action.idempotency_key, detail=detail)

    def _disown(self, reason: Reason, detail: str) -> Abandoned:
        action, context = self._action, self._sender.context
        slot, key = action.slot, action.idempotency_key
        # No provider process may live now: whatever takes an action out of the pending map must know that.
        await_none(context, slot, self._held)
        with context.store.hold(context.lock_timeout) as hold:
            loaded = hold.load()
            entry = loaded.document.pending_actions.get(slot)
            if entry is None or action_of(entry).idempotency_key != key:
                raise Conflict(f"slot {slot} changed while it was held", where=f"slot {slot}", next="run it again")
            draft = context.draft(loaded.document)
            disowned.record(draft, entry, action, reason, detail, by=self._by, policy=self._sender.policy)
            self._event(draft, f"disowned: {detail}", reason)
            draft.trouble(reason, detail, slot=slot, key=key)
            context.commit(hold, loaded, draft, forget=False)
        return Abandoned(Left.DISOWNED, slot, key, action.type, reason, detail, action.run, entry.sends)

    def _told(self, sent: Sent, detail: str | None = None) -> Abandoned:
        outcome = Left.KEPT
        if sent.settled:
            outcome = Left.APPLIED if sent.reason is Reason.DONE else Left.CLEARED
        action = self._action
        entry = self._sender.context.store.read().document.pending_actions.get(action.slot)
        return Abandoned(
            outcome,
            action.slot,
            action.idempotency_key,
            action.type,
            sent.reason,
            sent.detail if detail is None else detail,
            action.run,
            0 if entry is None else entry.sends,
            sent.unsaved,
            sent.ended,
        )


def _ask(look: Callable[[], Look | None]) -> Look | None:
    try:
        return look()
    except ProviderFailed:
        return None


def _is_hopeless(sent: Sent, silent: bool) -> bool:
    """Whether nobody answers: neither to the send nor, if it may not be sent any more, to what there is."""
    return sent.reason in (Reason.UNKNOWN, Reason.NOT_SENT) or (sent.reason is Reason.KEY_EXPIRED and silent)


def _is_final(outcome: Outcome | None) -> bool:
    return isinstance(outcome, Done | Rejected | IdentityRefused)


def _cannot_take(error: ControllerError | None) -> bool:
    """Whether it is the content of an answer that the document cannot take: doing it again would end the same way.

    A lock that was lost, or a disk that is full, is none of that. The base class is what nobody foresaw.
    """
    content = (InvariantBroken, ScopeExceeded, TransitionRefused, NotFound)
    return isinstance(error, content) or type(error) is ControllerError


def _made(action: Action, outcome: Outcome | None, error: ControllerError | None) -> str:
    """What the provider says that it made or did, with every id, and why the document cannot take it."""
    reason = Reason.DONE if outcome is None else outcomes.reason_of(outcome)
    said = "" if outcome is None else outcomes.describe(action, outcome)
    parts = [f"{action.type} is {reason}" + (f": {said}" if said else "")]
    if isinstance(outcome, Done) and outcome.worker is not None:
        for name, resource in outcome.worker.resources.items():
            immutable = f" ({resource.immutable_id})" if resource.immutable_id else ""
            parts.append(f"{name} {resource.id}{immutable}")
    if error is not None:
        parts.append(f"the document cannot take it: {error.what}")
    return "; ".join(parts)
