"""The long-lived loop: what a reconcile does, done as soon as there is reason to, slot by slot.

Not promised: that a change is acted on at once. News from workers is; a document that another process changed is
noticed within a quarter of a second; what only a look can tell, at the next look, `interval` seconds apart at most,
and less after a send to a provider that tells no news itself.

One thread decides. Sends, looks and the wait for news run in threads of their own and tell it when they are done, so a
slow slot never delays another. Between looks it plans for what changed, and folds the ends of steps that workers
push, in the commit that parks what comes next.

Nothing here is known that the document does not hold: a loop that is killed is replaced by any other, and two at once
are kept apart by the locks alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from controller.engine.due import next_due
from controller.engine.gather import Gather, Waiting
from controller.engine.pending import Sent, unforeseen
from controller.engine.reconcile import SHORTEST_WAIT, Reconciler, turns
from controller.engine.report import Report
from controller.engine.threads import begun
from controller.engine.upkeep import tidy
from controller.model.action import action_of
from controller.model.errors import (
    Busy,
    ControllerError,
    LockLost,
    NotDurable,
    ProviderFailed,
    Refusal,
    RevisionMoved,
)
from controller.model.inventory import Look
from controller.model.policy import Policy
from controller.model.records import Document, PendingAction
from controller.provider.protocol import News, Provider, Pushed

INTERVAL = 10.0
_NEWS_SECONDS: Final = 30.0
_LATER: Final = 1.0
"""Seconds before a slot that could not be served is tried again, and before an action that others parked is replayed:
whoever parked it is about to send it.
"""
_SOONEST_LOOK: Final = 0.5
"""Seconds until a provider that tells no news is looked at after a send; then twice that, up to the interval."""
_LONGEST_SILENCE: Final = 60.0
_TIDY: Final = 0.25
"""Seconds between looks at what consumers have lost, and at what has fallen due for them."""

Send = tuple[int, str, PendingAction | None]
Message = Callable[[], None]


class _Known(Struct, frozen=True):
    """An entry that is parked, as it was first seen, and when on the monotonic clock it may be replayed."""

    entry: PendingAction
    at: float


class Loop:
    """Serves one fleet. *tell* is called with what was done, and with each trouble once while it lasts.

    *each_turn* is called in the thread that serves, at least once a quarter of a second: the place to call `adopt` and
    `leave` from.

    The reconciler's provider must be this loop's own, and is spent when `serve` returns: it was interrupted.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        *,
        interval: float = INTERVAL,
        tell: Callable[[Report], None] = lambda _: None,
        each_turn: Callable[[], None] = lambda: None,
    ) -> None:
        self.reconciler = reconciler
        self.interval = interval
        self._tell = tell
        self._each_turn = each_turn
        self._clock = reconciler.sender.context.clock
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._senders = ThreadPoolExecutor(reconciler.parallelism, thread_name_prefix="slot")
        self._looker = ThreadPoolExecutor(1, thread_name_prefix="look")
        self._gather = Gather(lambda: self._inbox.put(lambda: None))
        reconciler.sender = replace(reconciler.sender, gather=self._gather)
        self._leaving = False
        self._report = Report()
        self._told: dict[tuple[str, str], float] = {}
        # What is out, and what came back of it.
        self._flying: dict[Future[Sent | None], int] = {}
        self._landings: deque[tuple[str, Future[Sent | None]]] = deque()
        self._followed: set[str] = set()
        self._again: dict[int, float] = {}
        self._ends: dict[str, Pushed] = {}
        self._look: Look | None = None
        self._looking = False
        self._look_at = 0.0
        self._pause = interval
        self._silent = False
        self._sighted = False
        # What of the document has been dealt with.
        self._known: dict[int, _Known] | None = None
        self._seen: Document | None = None
        self._planned: Document | None = None
        self._due_at: int | None = None
        self._resume_at = 0.0
        self._tidy_at = 0.0

    def serve(self, until: Callable[[Document], bool] | None = None) -> None:
        """Serve until *until* says so of the document, `leave` was called or the reconciler is told to stop.

        *until* is asked of every revision that is seen. Whatever the reason, nothing more is parked then, and what was
        asked is awaited and saved; what was parked here is still sent, unless the reconciler was told to stop. Trouble
        that may pass (busy, not durable, the provider, a lock file that was removed) is told and outlasted; what else a
        read or a hold raises, such as DocumentFault, ends this and is raised.
        """
        try:
            # In reverse: answers, then senders, and only then is the provider interrupted: no look is awaited.
            with self._looker, self._listening(), self._senders, closing(self._gather):
                self._serve(until)
        finally:
            self._hear()
            self._say()

    def _serve(self, until: Callable[[Document], bool] | None) -> None:
        while True:
            self._each_turn()
            if self._clock.monotonic() >= self._resume_at:
                self._turn_guarded(until)
            self._say()
            if self._is_ending:
                self._gather.close()
                self._hear()
                if not self._flying:
                    return
            self._rest()

    def leave(self) -> None:
        """Have `serve` return once nothing is in flight."""
        self._leaving = True

    def adopt(self, policy: Policy) -> None:
        """Go on under another policy. Sends that are out end under the one they began with."""
        self.reconciler.adopt(policy)
        self._planned = None

    @property
    def seen(self) -> Document | None:
        """The document as the last turn saw it; None before the first."""
        return self._seen

    @property
    def _is_ending(self) -> bool:
        return self._leaving or bool(self.reconciler.stop)

    # The turn

    def _turn_guarded(self, until: Callable[[Document], bool] | None) -> None:
        try:
            self._turn(until)
        except (Busy, NotDurable, ProviderFailed, LockLost, RevisionMoved) as error:
            self._report.errors.append(error)
            self._resume_at = self._clock.monotonic() + _LATER

    def _turn(self, until: Callable[[Document], bool] | None) -> None:
        if self._clock.monotonic() >= self._tidy_at:
            self._tidy_at = self._clock.monotonic() + _TIDY
            tidy(self.reconciler.sender.context)
        document = self.reconciler.document()
        self._see(document, until)
        if self._is_ending:
            return
        self._start_look()
        look = self._look
        if look is not None:
            self.reconciler.settle(self._report, look, without=self._flying.values())
        waiting = self._gather.take()
        if look is not None or (self._sighted and (waiting or self._is_due(document))):
            document = self._plan(document, look, waiting)
            self._see(document, until)
        else:
            for each in waiting:
                each.settle(None)
        if not self._is_ending:
            self._replay(document)

    def _see(self, document: Document, until: Callable[[Document], bool] | None) -> None:
        if until is not None and document is not self._seen and until(document):
            self._leaving = True
        self._seen = document

    def _start_look(self) -> None:
        now = self._clock.monotonic()
        if not self._looking and now >= self._look_at:
            self._looking = True
            self._look_at = now + self._pause
            self._pause = min(2 * self._pause, self.interval)
            asked = begun(self._looker, self.reconciler.look)
            asked.add_done_callback(lambda future: self._inbox.put(partial(self._looked, future)))

    def _is_due(self, document: Document) -> bool:
        """Whether there is anything to plan that the last plan did not see."""
        ends = any(end.slot not in document.pending_actions for end in self._ends.values())
        return document is not self._planned or ends or self._is_late()

    def _is_late(self) -> bool:
        return self._due_at is not None and self._clock.now_ms() >= self._due_at

    def _plan(self, before: Document, look: Look | None, waiting: Sequence[Waiting]) -> Document:
        """Park what comes next, and send it; the document then. A look that could not be acted on is kept."""
        ends = tuple(self._ends.values())
        everything = look is not None or self._is_late()
        # Before the plan: what falls due while it is committed was not planned for.
        began = self._clock.now_ms()
        try:
            plan, document = self.reconciler.park(
                look, ends=ends, since=None if everything else self._planned, waiting=waiting
            )
        except Refusal:
            if not waiting:
                raise
            # An answer spoils the commit. Each is applied alone now, and the one at fault is told for its slot alone.
            return before
        self._look = None
        if plan.wants_look:
            self._look_at = 0.0
        self._planned = document
        index = self.reconciler.sender.context.index(document)
        self._due_at = next_due(document, self.reconciler.ground.policy, began, index)
        self._ends = {key: end for key, end in self._ends.items() if _may_be_folded(document, end)}
        for each in waiting:
            self._follow(each.result())
        self._report.add_plan(plan)
        if look is not None:
            self.reconciler.tell_retained(self._report, document, look, plan)
        self._send([(parked.slot, parked.key, document.pending_actions.get(parked.slot)) for parked in plan.parks])
        return document

    def _follow(self, sent: Sent | None) -> None:
        """The plan that applied an answer has seen what follows from it: its sender has nothing to tell any more."""
        if sent is not None and sent.settled:
            self._followed.add(sent.key)
            self.reconciler.collect(self._report, sent.slot, lambda: sent)
            self._look_soon()

    def _replay(self, document: Document) -> None:
        """Send again what is due, in slot order. What others parked a moment ago, they are about to send."""
        now = self._clock.monotonic()
        known = self._known or {}
        others = now if self._known is None else now + _LATER
        self._known = {
            slot: known[slot]
            if slot in known and known[slot].entry == entry and slot not in self._again
            else _Known(entry, self._again.pop(slot, others))
            for slot, entry in document.pending_actions.items()
        }
        self._again.clear()
        may = {slot for slot, known in self._known.items() if now >= known.at}.difference(self._flying.values())
        if may:
            due = self.reconciler.due(ignore_not_before=False, document=document)
            self._send([(slot, key, None) for slot, key in due if slot in may])

    def _send(self, sends: Sequence[Send]) -> None:
        for (slot, key, parked), (turn, following) in zip(sends, turns(len(sends)), strict=True):
            # The answer before it is applied by now, but its sender may not have let go of the slot lock yet.
            before = [flight for flight, flown in self._flying.items() if flown == slot]
            send = partial(self.reconciler.in_turn, slot, key, parked, turn, following)
            flight = begun(self._senders, partial(self._fly, before, send), then=following.set)
            self._flying[flight] = slot
            flight.add_done_callback(partial(self._land, key))

    @staticmethod
    def _fly(before: Sequence[Future[Sent | None]], send: Callable[[], Sent | None]) -> Sent | None:
        for flight in before:
            flight.exception()  # once it is over, however it ended
        return send()

    def _land(self, key: str, flight: Future[Sent | None]) -> None:
        """In the sender's thread. It wakes nobody when all that is left to do is to forget the flight."""
        self._landings.append((key, flight))
        if self._is_ending or flight.exception() is not None or key not in self._followed:
            self._inbox.put(lambda: None)

    # What is heard

    def _landed(self, key: str, flight: Future[Sent | None]) -> None:
        slot = self._flying.pop(flight)
        if key in self._followed:
            self._followed.remove(key)
            if flight.exception() is None:
                return
        report = Report()
        self.reconciler.collect(report, slot, flight.result)
        hindered = report.busy or report.errors or any(sent.unsaved is not None for sent in report.sent)
        self._again[slot] = self._clock.monotonic() + (_LATER if hindered else 0.0)
        if report.sent:
            self._look_soon()
        self._report.add(report)

    def _look_soon(self) -> None:
        """Where only a look tells what comes of a send: soon, for a short step, and ever later for a long one."""
        if self._silent:
            self._pause = min(_SOONEST_LOOK, self.interval)
            self._look_at = min(self._look_at, self._clock.monotonic() + self._pause)

    def _looked(self, asked: Future[tuple[Look | None, ControllerError | None]]) -> None:
        self._looking = False
        try:
            look, failure = asked.result()
        except ControllerError as error:
            look, failure = None, error
        except Exception as error:  # noqa: BLE001 - a look that nobody foresaw failing is tried again at the next interval
            look, failure = None, unforeseen(error)
        self._look = look
        self._sighted = look is not None
        self.reconciler.tell(self._report, look, failure)

    def _heard(self, news: News) -> None:
        self._ends |= {end.step.idempotency_key: end for end in news.ends}
        if news.look:
            self._look_at = 0.0

    def _told_of(self, error: ControllerError) -> None:
        self._report.errors.append(error)

    def _rest(self) -> None:
        """Until there is a message; a quarter of a second at most, since only looking tells what others committed."""
        patience = SHORTEST_WAIT
        left = SHORTEST_WAIT if self._due_at is None else (self._due_at - self._clock.now_ms()) / 1000
        if left > 0:
            patience = min(patience, left)
        with suppress(Empty):
            self._inbox.get(timeout=patience)()
        self._hear()

    def _hear(self) -> None:
        """Every flight that landed, and every message that came so far."""
        while self._landings:
            self._landed(*self._landings.popleft())
        with suppress(Empty):
            while True:
                self._inbox.get_nowait()()

    def _say(self) -> None:
        """Tell what there is to tell. A trouble that was told is told again only after it was over for a while."""
        report, self._report = self._report, Report()
        now = self._clock.monotonic()
        over = max(_LONGEST_SILENCE, 3 * self.interval)
        self._told = {which: last for which, last in self._told.items() if now - last < over}
        errors = {(error.code, error.where or error.what): error for error in report.errors}
        report.errors = [error for which, error in errors.items() if which not in self._told]
        self._told |= dict.fromkeys(errors, now)
        if report.changed or report.errors:
            self._tell(report)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        provider = self.reconciler.sender.provider
        ended = threading.Event()
        listener = threading.Thread(target=self._listen, args=(provider, ended), name="news", daemon=True)
        listener.start()
        try:
            yield
        finally:
            ended.set()
            provider.interrupt()
            listener.join()

    def _listen(self, provider: Provider, ended: threading.Event) -> None:
        while not ended.is_set():
            began = self._clock.monotonic()
            try:
                if not provider.describe().wait:
                    self._silent = True
                    return
                news = provider.wait(_NEWS_SECONDS)
            except ProviderFailed:
                # The next look says what is wrong, and tells it.
                ended.wait(self.interval)
                continue
            except Exception as error:  # noqa: BLE001 - a wait that nobody foresaw failing leaves looks, and is tried again
                self._inbox.put(partial(self._told_of, unforeseen(error)))
                ended.wait(self.interval)
                continue
            if news:
                self._inbox.put(partial(self._heard, news))
            if news.look or not news.ends:
                # A provider that says at once, each time, that something may have changed is not asked without end.
                ended.wait(max(0.0, began + SHORTEST_WAIT - self._clock.monotonic()))


def _may_be_folded(document: Document, end: Pushed) -> bool:
    """Whether the end waits for its slot: for the answer to its own execute, or to what was asked after that."""
    entry, worker = document.pending_actions.get(end.slot), document.workers.get(end.slot)
    key = end.step.idempotency_key
    if entry is None:
        return False
    return action_of(entry).idempotency_key == key or (worker is not None and key in worker.accepted)
