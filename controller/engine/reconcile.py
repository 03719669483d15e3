"""Reconcile: look, plan, act, until nothing is left to do.

Replays first, then passes of look, settle, plan, park and send until a pass changes nothing (10 at most), then replays
again. One commit parks a whole plan; different slots are asked concurrently, and each answer is applied as it comes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial, reduce

from msgspec.structs import replace

from controller.engine.classify import classify
from controller.engine.due import changed_slots
from controller.engine.gather import Waiting
from controller.engine.outcomes import MAX_RETRY_AFTER_MS
from controller.engine.pending import Sender, Sent, unforeseen
from controller.engine.planner import Ground, Plan, plan
from controller.engine.report import Report
from controller.engine.threads import begun
from controller.engine.upkeep import tidy
from controller.model.action import action_of
from controller.model.edit import foreseen, joined
from controller.model.errors import ControllerError, EditedOutside, ProviderFailed, SlotBusy, SlotRetained, SlotUnproven
from controller.model.inventory import Look
from controller.model.policy import Policy, still_waits
from controller.model.reason import Reason
from controller.model.records import Document, PendingAction
from controller.provider.protocol import Pushed
from controller.store.protocol import Part

MAX_PASSES = 10
SHORTEST_WAIT = 0.25
PATIENCE_MS = 1_000
"""A pending action that may be asked again this soon is waited for instead of being left to the next reconcile."""


class Stop:
    """Whether to park and send nothing more. Set by a signal; read between sends."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()


class Reconciler:
    """Drives one fleet. `parallelism` provider calls at most run at once."""

    def __init__(self, sender: Sender, ground: Ground, *, parallelism: int = 8, stop: Stop | None = None) -> None:
        self.sender = sender
        self.ground = ground
        self.parallelism = parallelism
        self.stop = Stop() if stop is None else stop
        self.asking: dict[str, float] = {}
        """What the provider is being asked now, and since when on the clock's monotonic time: for whoever shows it."""
        self.retained: frozenset[int] = frozenset()
        """Slots that nothing may touch, by the last look that was planned with."""
        self._ttl_known = False
        self._guard = threading.Lock()

    def keep_to(self, slot: int) -> None:
        """From now on only this slot is served, and it takes no new run."""
        self.ground = replace(self.ground, only=slot)

    def adopt(self, policy: Policy) -> None:
        """From now on plan and send under *policy*, while another thread may look."""
        context = replace(self.sender.context, policy=policy)
        self.sender = replace(self.sender, context=context, policy=policy)
        with self._guard:
            self.ground = replace(self.ground, policy=policy)

    def wait(self, seconds: float) -> None:
        """Until something may have changed, if the provider can tell, or until the time is over."""
        if self.stop:
            return
        clock = self.sender.context.clock
        began = clock.monotonic()
        least = SHORTEST_WAIT
        try:
            if self.sender.provider.describe().wait:
                self.sender.provider.wait(seconds)
            else:
                least = seconds
        except ProviderFailed:
            least = seconds
        # A provider that says at once, each time, that something may have changed must not be asked without end.
        clock.sleep(max(0.0, began + least - clock.monotonic()))

    def preview(self) -> tuple[Document, Look, Plan]:
        """The plan that a first pass would act on, and what it stands on. Changes nothing."""
        look, failure = self.look()
        if look is None:
            raise failure or ProviderFailed("the provider did not say what there is")
        document = self.document()
        planned = plan(document, look, self.ground, self._now(), command=self.sender.context.command)
        return document, look, planned

    def reconcile(self) -> Report:
        """Replay, pass until nothing changes, replay. Trouble with one slot is in the report and stops no other.

        Raises what a hold or a read raises, but only before anything was done; afterwards that is in the report too.
        """
        report = Report()
        try:
            tidy(self.sender.context)
            self._replay(report, ignore_not_before=False)
            self._passes(report)
            self._replay(report, ignore_not_before=False)
        except ControllerError as error:
            if not report.changed:
                raise
            report.errors.append(error)
        report.interrupted = bool(self.stop)
        return report

    def _passes(self, report: Report) -> None:
        for _ in range(MAX_PASSES):
            if self.stop:
                return
            report.passes += 1
            if not self._pass(report):
                report.converged = True
                return

    def replay(self, *, slot: int | None = None) -> Report:
        """Send what is parked again, all or that of *slot*, whatever its `not_before`; then settle by a look."""
        report = Report()
        self._replay(report, ignore_not_before=True, only=slot)
        if self.waiting_for_looks(only=slot):
            look, failure = self.look()
            self.tell(report, look, failure)
            self.settle(report, look, only=slot)
        report.interrupted = bool(self.stop)
        return report

    def due(
        self, *, ignore_not_before: bool, only: int | None = None, document: Document | None = None
    ) -> tuple[tuple[int, str], ...]:
        """Slots and keys that a replay would send now, in slot order. *document*: as it was just read."""
        document = self.document() if document is None else document
        now = self._now()
        return tuple(
            (slot, action_of(entry).idempotency_key)
            for slot, entry in sorted(document.pending_actions.items())
            if only in (None, slot)
            and (ignore_not_before or _is_due(entry, now))
            and not self.sender.waits_for_proof(document, entry)
        )

    def waiting_for_looks(self, *, only: int | None = None) -> tuple[tuple[int, str], ...]:
        """Slots and keys that no send can help any more: looks settle them."""
        document = self.document()
        return tuple(
            (slot, action_of(entry).idempotency_key)
            for slot, entry in sorted(document.pending_actions.items())
            if only in (None, slot) and self.sender.waits_for_proof(document, entry)
        )

    def document(self) -> Document:
        """The document as it stands. Raises EditedOutside: nothing is sent on the strength of bytes not ours."""
        snapshot = self.sender.context.store.read()
        if snapshot.edited:
            raise EditedOutside(
                "the document was edited by something else than controller",
                where=self.sender.context.store.where,
                next="`controller fsck` judges it, `controller state accept` takes it over",
            )
        return snapshot.document

    def _now(self) -> int:
        return self.sender.context.clock.now_ms()

    def _replay(self, report: Report, *, ignore_not_before: bool, only: int | None = None) -> bool:
        only = self.ground.only if only is None else only
        due = [(slot, key, None) for slot, key in self.due(ignore_not_before=ignore_not_before, only=only)]
        return self._send_all(report, due)

    def _pass(self, report: Report) -> bool:
        """One pass; False when it changed nothing and nothing is about to."""
        look, failure = self.look()
        self.tell(report, look, failure)
        changed = self.settle(report, look)
        if self.stop or look is None:
            # A provider that cannot say what there is is asked for nothing new.
            return changed
        planned, document = self.park(look)
        report.add_plan(planned)
        self.tell_retained(report, document, look, planned)
        sends = [(p.slot, p.key, document.pending_actions.get(p.slot)) for p in planned.parks]
        sent = self._send_all(report, sends)
        waited = self._wait_for_soon()
        replayed = waited and self._replay(report, ignore_not_before=False)
        return changed or sent or replayed or not planned.edit.empty

    def tell(self, report: Report, look: Look | None, failure: ControllerError | None) -> None:
        """Say once what is wrong with looks: one that shows half says nothing about what it leaves out."""
        troubles = () if look is None else look.inventory.troubles
        report.stuck |= set() if look is None else set(look.inventory.unreadable)
        if look is not None and not look.complete:
            what = "the provider's listing is incomplete: nothing is concluded from what it does not show"
            troubles = (what, *troubles)
        found = [ProviderFailed(what, next="controller status --live") for what in troubles]
        known = {error.what for error in report.errors}
        report.errors += [error for error in ([] if failure is None else [failure]) + found if error.what not in known]

    def tell_retained(self, report: Report, document: Document, look: Look, planned: Plan) -> None:
        """Say of every slot that nothing may touch what is the matter with it."""
        if not planned.retained:
            return
        report.stuck |= planned.retained
        for each in classify(document, look, 0):
            # One that the provider cannot read is told by its troubles.
            if each.slot in planned.retained and each.slot not in look.inventory.unreadable:
                error = SlotRetained(
                    f"slot {each.slot} is left alone: {each.why}",
                    where=f"slot {each.slot}, {each.reason}",
                    next=f"controller explain slot:{each.slot} --live",
                )
                self.failed(report, each.slot, error)

    def look(self) -> tuple[Look | None, ControllerError | None]:
        """Ask the provider what there is; None and why, if it did not answer."""
        context = self.sender.context
        if not self._ttl_known:
            self._learn_ttl()
        revision = context.store.read().document.revision
        began = self._now()
        try:
            with self._asking("what there is"):
                inventory = self.sender.provider.inventory()
        except ProviderFailed as failure:
            return None, failure
        return Look(revision, began, self._now(), inventory), None

    def _learn_ttl(self) -> None:
        """One that cannot describe itself is taken at its last word, or else at the protocol's default: for ever."""
        try:
            ttl = self.sender.provider.describe().key_ttl_ms
            self._ttl_known = True
        except ProviderFailed:
            known = self.sender.context.store.read().document.providers.get(self.ground.provider)
            ttl = None if known is None else known.key_ttl_ms
        with self._guard:
            self.ground = replace(self.ground, key_ttl_ms=ttl)

    def settle(
        self, report: Report, look: Look | None, *, only: int | None = None, without: Collection[int] = ()
    ) -> bool:
        """Settle pending actions by what *look* proves, but for slots that are being asked; True if any was."""
        if look is None or not look.complete:
            return False
        only = self.ground.only if only is None else only
        settled = False
        for slot, entry in sorted(self.document().pending_actions.items()):
            if only not in (None, slot) or slot in without:
                continue
            try:
                sent = self.sender.settle(slot, action_of(entry).idempotency_key, look)
            except ControllerError as error:
                self.failed(report, slot, error)
                continue
            if sent is not None:
                report.sent.append(sent)
                report.ended += sent.ended
                settled = settled or sent.settled
        return settled

    def park(
        self,
        look: Look | None,
        *,
        ends: Sequence[Pushed] = (),
        since: Document | None = None,
        waiting: Sequence[Waiting] = (),
    ) -> tuple[Plan, Document]:
        """Plan on the document loaded in the very hold that parks it, all slots in one commit.

        *waiting* answers are applied in that commit too, before the plan, and settled; *ends* are folded in it.
        *since*: plan only for what differs from that document.
        """
        context = self.sender.context
        told: list[tuple[Waiting, Sent | None]] = [(each, None) for each in waiting]
        try:
            with context.store.hold(context.lock_timeout) as hold:
                loaded = hold.load()
                document, parts, applied = self._applied(loaded.document, waiting)
                changed = None if since is None else changed_slots(since, document)
                if changed is not None:
                    changed |= {end.slot for end in ends}
                planned = plan(
                    document,
                    look,
                    self.ground,
                    self._now(),
                    command=context.command,
                    ends=ends,
                    changed=changed,
                    retained=self.retained,
                    index=context.index(document),
                )
                if parts or not planned.edit.empty:
                    planned_on, document = document, hold.commit(loaded, planned.edit, parts=parts)
                    context.indexes.follow(planned_on, planned.edit, document)
                    whole = reduce(joined, (*(part.edit for part in parts), planned.edit))
                    context.wake(loaded.document, whole, document)
            told = applied
        finally:
            for each, sent in told:
                each.settle(sent)
        self.retained = planned.retained
        return planned, document

    def _applied(
        self, document: Document, waiting: Sequence[Waiting]
    ) -> tuple[Document, list[Part], list[tuple[Waiting, Sent | None]]]:
        """*document* with the answers in it, as parts of a commit to be; one that cannot be folded is left alone."""
        parts: list[Part] = []
        told: list[tuple[Waiting, Sent | None]] = []
        for each in waiting:
            try:
                applied = self.sender.fold(document, each.answer)
            except Exception:  # noqa: BLE001 - its sender applies it alone, meets the same, and says so for its slot
                applied = None
            told.append((each, None if applied is None else applied.sent))
            if applied is not None:
                parts.append(applied.part)
                document = foreseen(document, applied.part.edit)
        return document, parts, told

    def _wait_for_soon(self) -> bool:
        """Wait for pending actions that may be asked again within a moment."""
        soon = [
            entry.not_before
            for slot, entry in self.sender.context.store.read().document.pending_actions.items()
            if entry.not_before is not None and entry.last_reason is Reason.PENDING and self.ground.only in (None, slot)
        ]
        now = self._now()
        if self.stop or not soon or min(soon) - now > PATIENCE_MS:
            return False
        self.sender.context.clock.sleep(max(0, min(soon) - now) / 1000)
        return True

    def _send_all(self, report: Report, sends: Sequence[tuple[int, str, PendingAction | None]]) -> bool:
        """Send in slot order, at most `parallelism` at once; True if any was sent."""
        if not sends or self.stop:
            return False
        before = len(report.sent)
        self._send_each(report, sends)
        report.sent[before:] = sorted(report.sent[before:], key=lambda sent: sent.slot)
        return len(report.sent) > before

    def _send_each(self, report: Report, sends: Sequence[tuple[int, str, PendingAction | None]]) -> None:
        with ThreadPoolExecutor(self.parallelism, thread_name_prefix="slot") as pool:
            running: dict[Future[Sent | None], int] = {}
            for (slot, key, parked), (turn, following) in zip(sends, turns(len(sends)), strict=True):
                send = partial(self.in_turn, slot, key, parked, turn, following)
                running[begun(pool, send, then=following.set)] = slot
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    slot = running.pop(future)
                    self.collect(report, slot, future.result)

    def in_turn(
        self, slot: int, key: str, parked: PendingAction | None, turn: threading.Event, following: threading.Event
    ) -> Sent | None:
        """Begin only after the slot before has begun: replay is promised to start in slot order."""
        try:
            turn.wait()
            if self.stop:
                return None
            with self._asking(f"slot {slot}"):
                return self.sender.send(slot, key, parked=parked, began=following.set)
        finally:
            following.set()

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        self.asking[what] = self.sender.context.clock.monotonic()
        try:
            yield
        finally:
            del self.asking[what]

    def collect(self, report: Report, slot: int, get: Callable[[], Sent | None]) -> None:
        """Take what became of one send into the report. *get* may raise what the send raised."""
        try:
            sent = get()
        except ControllerError as error:
            self.failed(report, slot, error)
        except Exception as error:  # noqa: BLE001 - each slot stands alone, also for what nobody foresaw
            report.errors.append(unforeseen(error))
        else:
            if sent is not None:
                report.sent.append(sent)
                report.ended += sent.ended
                report.busy.pop(slot, None)

    def failed(self, report: Report, slot: int, error: ControllerError) -> None:
        """Note what kept a slot from being served. Each slot stands alone."""
        if isinstance(error, SlotBusy):
            report.busy[slot] = error
            return
        if isinstance(error, SlotUnproven):
            report.stuck.add(slot)
        if error.what not in {known.what for known in report.errors}:
            report.errors.append(error)


def turns(count: int) -> Iterator[tuple[threading.Event, threading.Event]]:
    turn = threading.Event()
    turn.set()
    for _ in range(count):
        following = threading.Event()
        yield turn, following
        turn = following


def _is_due(entry: PendingAction, now: int) -> bool:
    if entry.last_reason is Reason.IDENTITY_REFUSED:
        return False
    return not still_waits(entry.not_before, now, MAX_RETRY_AFTER_MS)
