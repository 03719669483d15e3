"""Pending actions: how a provider mutation survives the death of whoever asked for it.

Not promised: that a provider performs an action once. It is *asked* with one key until it gives a definite answer; a
provider that honours keys performs it once.

An action is parked (durable), sent (outside the document lock, under its slot's lock) and applied (on a fresh load, in
the commit that unparks it). Between any two of those the process may die; what is parked is sent again, with the same
key, in slot order. Only a definite "not done" may drop it: everything else is unknown, and unknown is never failed.

The slot lock is held from before the re-read that precedes every send until the apply has committed. Only the document
lock is ever waited for; slot locks only try: so there is no deadlock, even when a provider calls `controller` back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from controller.engine import breaker, outcomes
from controller.engine.age import is_expired
from controller.engine.calls import await_none
from controller.engine.queue import Context
from controller.model.action import Action, CancelRequest, ExecuteRequest, action_of, mint, verify
from controller.model.edit import Draft, Edit
from controller.model.errors import Busy, ControllerError, DocumentFault, NotDurable, SlotTaken
from controller.model.inventory import Look
from controller.model.policy import Policy
from controller.model.process import ProcessIdentity
from controller.model.reason import Reason
from controller.model.records import ActionType, Document, PendingAction, Resource, RunState, Worker
from controller.provider.protocol import Done, Outcome, Provider, Unknown
from controller.store.protocol import Part, Scope, SlotHold


def park(
    draft: Draft,
    type: ActionType,  # noqa: A002 - the wire's word
    worker: Worker,
    *,
    request: ExecuteRequest | CancelRequest | None = None,
    resources: Mapping[str, Resource] | None = None,
    run: str | None = None,
    step: str | None = None,
    attempt: int | None = None,
    token: int | None = None,
    key_ttl_ms: int | None = None,
) -> str:
    """Mint an action for *worker*, under a fresh serial, and park it in the draft; return its key.

    It names the worker's resources, or those that are given, and tells it which ends are folded. The commit makes it
    durable. Raises SlotTaken: the slot has a pending action, and overwriting it would discard the duty to replay it.
    """
    slot = worker.slot
    there = draft.pending.get(slot)
    if there is not None:
        taken = action_of(there)
        raise SlotTaken(
            f"slot {slot} has a pending {taken.type}",
            where=f"slot {slot}, key {taken.idempotency_key[:12]}",
            next="controller replay-pending",
        )
    key, raw = mint(
        type=type,
        slot=slot,
        serial=draft.count("serial"),
        lineage=draft.document.lineage,
        epoch=draft.document.epoch,
        assignment=worker.assignment,
        generation=worker.generation,
        resources=worker.resources if resources is None else resources,
        request=request,
        settled=worker.settled,
        run=run,
        step=step,
        attempt=attempt,
        token=token,
    )
    draft.pending.put(slot, PendingAction(raw, parked_at=draft.now, sent_at=draft.now, key_ttl_ms=key_ttl_ms))
    draft.event(f"slot:{slot}", "action.parked", to=type, token=token, key=key, step=step, action=raw)
    return key


_YOUNG_MS: Final = 1_000
"""So long after its park a first send counts as made with it."""


class Ended(Struct, frozen=True):
    """A run that has ended, or goes back to its queue after a life that failed or was lost: its new state, and why."""

    run: str
    state: str
    reason: Reason | None
    detail: str | None


def ended_in(edit: Edit) -> tuple[Ended, ...]:
    """The lives of runs that end in *edit*."""
    return tuple(
        Ended(event.subject.removeprefix("run:"), event.to, event.reason, event.detail)
        for event in edit.events
        if event.step is None and event.from_ == RunState.RUNNING and event.to not in (None, RunState.RUNNING)
    )


class Sent(Struct, frozen=True):
    """What became of one send, or of one settlement: `reason` and, in words, `detail`.

    `unsaved`: the provider's answer could not be made durable; the action is still parked and will be sent again.
    `settled` is whether the slot is free of this action now. `ended` are runs that ended in the commit that saved it.
    `outcome` is what the provider answered; None: it was not asked. `counts`: that changes what is recorded of it.
    """

    slot: int
    type: ActionType | None
    key: str
    reason: Reason
    detail: str
    settled: bool
    unsaved: ControllerError | None = None
    run: str | None = None
    ended: tuple[Ended, ...] = ()
    outcome: Outcome | None = None
    counts: bool = False


class Answer(Struct, frozen=True):
    """What the provider said of an action: to be applied while whoever sent it still holds its slot lock."""

    action: Action
    outcome: Outcome


class Applied(Struct, frozen=True):
    """An answer as the part of a commit, and what to say once that is made."""

    part: Part
    sent: Sent


Settle = Callable[[Draft, int, PendingAction, Action, Outcome | outcomes.Evidence, Policy], None]
"""Folds an answer, or what a look proves, into a draft, as `outcomes.settle` does."""


class Sender(Struct, frozen=True):
    """Sends, replays and settles pending actions of one fleet. Safe to use from several threads, one slot each.

    *gather*, if given, applies several senders' answers in one commit; it returns None for one that is to be applied
    alone.
    """

    context: Context
    provider: Provider
    policy: Policy
    gather: Callable[[Answer], Sent | None] | None = None

    def send(
        self, slot: int, key: str, *, parked: PendingAction | None = None, began: Callable[[], None] = lambda: None
    ) -> Sent:
        """Ask the provider for the slot's pending action *key* and apply the answer.

        *parked* is the entry exactly as this process has just parked it, if it did: its park already counts this send.
        *began* is called once the provider has been asked, so that a caller can start sends in order. Raises SlotBusy
        (somebody else sends, or a provider process lives), SlotUnproven, and what a hold raises before the send; after
        it, trouble is in the answer.
        """
        with self.context.store.hold_slot(slot) as held:
            await_none(self.context, slot, held)
            return self.ask(held, slot, key, parked=parked, began=began)

    def ask(
        self,
        held: SlotHold,
        slot: int,
        key: str,
        *,
        parked: PendingAction | None = None,
        began: Callable[[], None] = lambda: None,
        why: str = "",
        settle: Settle | None = None,
    ) -> Sent:
        """`send`, for whoever holds the slot and found no provider process alive: the only path to a mutation.

        *why* it is sent again is told to history. *settle* folds the answer into a draft.
        """
        entry = self._reread(slot, key, parked, why)
        if entry is None:
            return Sent(slot, None, key, Reason.DONE, "already settled", settled=True)
        action = verify(entry.action)
        # What this process has just parked nobody has heard of: its key cannot be too old, whatever the clock says.
        own = parked is not None and entry.sends == parked.sends
        if not own and self.waits_for_proof(self.context.store.read().document, entry):
            detail = "not sent again: looks settle it"
            return Sent(slot, action.type, key, Reason.KEY_EXPIRED, detail, settled=False, run=action.run)

        def register(identity: ProcessIdentity, deadline_at: int) -> None:
            held.register(identity, deadline_at, key)
            began()

        if not self.provider.registers:
            began()
        held.check()
        outcome = outcomes.checked(action, self.provider.mutate(action, entry.action, register))
        if not (isinstance(outcome, Unknown) and outcome.process_lives):
            # On a full disk the note stays, and whoever comes next finds that process gone: the answer goes first.
            with suppress(NotDurable):
                held.clear()
        answer = Answer(action, outcome)
        sent = None if self.gather is None else self.gather(answer)
        sent = self._apply(answer, settle) if sent is None else sent
        self._note(answer, sent, replayed=entry.sends > 1)
        return sent

    def settle(self, slot: int, key: str, look: Look) -> Sent | None:
        """Settle a pending action by what *look* proves; None: nothing. Raises as `send` does before it sends."""
        document = self.context.store.read().document
        entry = document.pending_actions.get(slot)
        if entry is None or self._evidence(document, slot, entry, look) is None:
            return None
        with self.context.store.hold_slot(slot) as held:
            await_none(self.context, slot, held)
            return self.prove(slot, key, look)

    def prove(self, slot: int, key: str, look: Look, *, settle: Settle | None = None) -> Sent | None:
        """`settle`, for whoever holds the slot and found no provider process alive. Raises also what an apply raises:
        then nothing has changed.
        """
        with self.context.store.hold(self.context.lock_timeout) as hold:
            loaded = hold.load()
            found = loaded.document.pending_actions.get(slot)
            if found is None or action_of(found).idempotency_key != key:
                return None
            proof = self._evidence(loaded.document, slot, found, look)
            if proof is None:
                return None
            action = verify(found.action)
            draft = self.context.draft(loaded.document)
            (settle or outcomes.settle)(draft, slot, found, action, proof, self.policy)
            edit = draft.edit()
            hold.commit(loaded, edit, scope=_scope(loaded.document, action))
        reason, detail = _told(action, proof)
        settled = slot not in draft.pending
        return Sent(slot, action.type, key, reason, detail, settled, run=action.run, ended=ended_in(edit))

    def waits_for_proof(self, document: Document, entry: PendingAction) -> bool:
        """No further send can help: only looks settle it, or an operator."""
        return entry.rejected is not None or is_expired(document, entry, self.context.clock.now_ms())

    def _evidence(self, document: Document, slot: int, entry: PendingAction, look: Look) -> outcomes.Evidence | None:
        now = self.context.clock.now_ms()
        return outcomes.evidence(document, slot, entry, action_of(entry), look, self.policy, now)

    def _reread(self, slot: int, key: str, parked: PendingAction | None, why: str) -> PendingAction | None:
        """The entry to send, its send recorded durably; None: settled meanwhile.

        Whoever parked may skip the commit for its first send, while the entry is exactly as parked: that park counted
        it. Not once the park is a while old: that nothing came of a send is believed a grace time after it, not after
        the park.
        """
        if parked is not None and 0 <= self.context.clock.now_ms() - parked.parked_at <= _YOUNG_MS:
            snapshot = self.context.store.read()
            if not snapshot.edited and snapshot.document.pending_actions.get(slot) == parked:
                return parked
        with self.context.store.hold(self.context.lock_timeout) as hold:
            loaded = hold.load()
            entry = loaded.document.pending_actions.get(slot)
            if entry is None or action_of(entry).idempotency_key != key:
                return None
            first = entry == parked
            if not first and self.waits_for_proof(loaded.document, entry):
                return entry
            draft = self.context.draft(loaded.document)
            # That nothing was made must be shown after the last send; that a worker is gone was shown all the same.
            absent = None if action_of(entry).type is ActionType.CREATE else entry.absent
            more = 0 if first else 1
            again = replace(
                entry, sends=entry.sends + more, unsure=entry.unsure + more, sent_at=draft.now, absent=absent
            )
            draft.pending.put(slot, again)
            draft.event(
                f"slot:{slot}", "action.sent", key=key, detail="; ".join(filter(None, (f"send {again.sends}", why)))
            )
            hold.commit(loaded, draft.edit(), scope=Scope(slot, None))
            return again

    def _apply(self, answer: Answer, settle: Settle | None) -> Sent:
        """Fold the answer into a fresh load and unpark in that commit. What cannot be saved stays parked."""
        action, outcome = answer.action, answer.outcome
        slot, key, detail = action.slot, action.idempotency_key, outcomes.describe(action, outcome)
        try:
            with self.context.store.hold(self.context.lock_timeout) as hold:
                loaded = hold.load()
                applied = self.fold(loaded.document, answer, settle=settle)
                if applied is None:
                    return Sent(slot, action.type, key, Reason.DONE, "already settled", settled=True)
                after = hold.commit(loaded, applied.part.edit, scope=applied.part.scope)
                self.context.wake(loaded.document, applied.part.edit, after)
                return applied.sent
        except (Busy, NotDurable, DocumentFault) as trouble:
            reason = outcomes.reason_of(outcome)
            return Sent(slot, action.type, key, reason, detail, False, trouble, action.run, outcome=outcome)
        except Exception as error:  # noqa: BLE001 - whatever an apply raises, its slot stands alone and stays parked
            failure = error if isinstance(error, ControllerError) else unforeseen(error)
            failed = Reason.APPLY_FAILED
            return Sent(slot, action.type, key, failed, detail, False, failure, action.run, outcome=outcome)

    def fold(self, document: Document, answer: Answer, *, settle: Settle | None = None) -> Applied | None:
        """What the answer makes of *document*, a fresh load; None: its slot does not hold this key any more."""
        action, outcome = answer.action, answer.outcome
        slot, key = action.slot, action.idempotency_key
        entry = document.pending_actions.get(slot)
        if entry is None or action_of(entry).idempotency_key != key:
            return None
        draft = self.context.draft(document)
        (settle or outcomes.settle)(draft, slot, entry, action, outcome, self.policy)
        edit = draft.edit()
        sent = Sent(
            slot,
            action.type,
            key,
            outcomes.reason_of(outcome),
            outcomes.describe(action, outcome),
            settled=slot not in draft.pending,
            run=action.run,
            ended=ended_in(edit),
            outcome=outcome,
            counts=breaker.counts(document, self.provider.kind, outcome, self.policy.breaker, draft.now),
        )
        return Applied(Part(edit, _scope(document, action)), sent)

    def _note(self, answer: Answer, sent: Sent, *, replayed: bool) -> None:
        """Record, in a commit of its own on a clean load, what an apply may not touch: trouble, and how its provider
        fares. Best effort: the trouble is said anyway, and an honest provider costs no commit.

        An action that could not be applied stays parked, whatever happens here.
        """
        action, outcome, slot = answer.action, answer.outcome, answer.action.slot
        failure = sent.unsaved if sent.reason is Reason.APPLY_FAILED else None
        if failure is None and (sent.unsaved is not None or not (sent.counts or _is_trouble(sent))):
            return
        try:
            with self.context.store.hold(self.context.lock_timeout) as hold:
                loaded = hold.load()
                draft = self.context.draft(loaded.document)
                entry = loaded.document.pending_actions.get(slot)
                if failure is not None and entry is not None and action_of(entry).idempotency_key == sent.key:
                    outcomes.later(draft, slot, entry, action, sent.reason, failure.what, self.policy)
                if failure is not None or _is_trouble(sent):
                    what = sent.detail if failure is None else failure.what
                    draft.trouble(sent.reason, what, slot=slot, key=sent.key)
                name = self.provider.kind
                breaker.note(draft, name, outcome, self.policy.breaker, replayed=replayed)
                edit = draft.edit()
                if not edit.empty:
                    hold.commit(loaded, edit)
        except ControllerError:
            return  # the answer already carries the first trouble, which is the one to act on


def _is_trouble(sent: Sent) -> bool:
    return sent.settled and sent.reason is not Reason.DONE


def unforeseen(error: Exception) -> ControllerError:
    """An exception that nobody expected, as trouble that can be told like any other."""
    return ControllerError(f"controller itself failed: {type(error).__name__}: {error}", next="please report this")


def _scope(document: Document, action: Action) -> Scope:
    """What an apply may touch: the run that the slot's worker holds, or else the one the action was made for."""
    worker = document.workers.get(action.slot)
    held = None if worker is None else worker.run or worker.reserved
    return Scope(action.slot, held or action.run)


def _told(action: Action, proof: outcomes.Evidence) -> tuple[Reason, str]:
    match proof:
        case Done():
            return Reason.DONE, f"a look shows it: {outcomes.describe(action, proof)}"
        case outcomes.WorkerLost():
            return Reason.WORKER_LOST, "a look shows its worker gone"
        case outcomes.FirstAbsence():
            return Reason.PENDING, "a first look shows nothing of it; another must say so too"
        case outcomes.SeenAgain():
            return Reason.PENDING, "a look shows its worker again"
        case outcomes.NoEffect(reason, why):
            return reason, why
