"""A run that this program holds, and the `with` block that works on it.

    with fleet.queue("mail").claim(wait=60) as claim:
        if claim:
            send(claim.payload)

Not promised: that work which was interrupted did nothing; that a block is interrupted while a call of it blocks.
"""

from __future__ import annotations

import os
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeVar

from msgspec import UNSET

from controller.api.amounts import milliseconds
from controller.api.heartbeats import Holding, Pause, attend, was_reported
from controller.api.interrupt import interrupt_of, shielded
from controller.api.payload import decoded, encoded
from controller.api.words import meant
from controller.engine import leases
from controller.engine.queue import Context
from controller.model.errors import ControllerError, LeaseLost, NotFound, TransitionRefused, UsageFault
from controller.model.reason import Reason
from controller.model.records import Run, RunState, Tombstone
from controller.model.transition import Trigger, Why

if TYPE_CHECKING:
    from controller.api.handle import Controller

T = TypeVar("T")
Happened = Literal["started", "succeeded", "failed"]
_TRIGGERS: Final = {
    "started": Trigger.STEP_STARTED,
    "succeeded": Trigger.STEP_SUCCEEDED,
    "failed": Trigger.STEP_FAILED,
}


class Claim:
    """A run that was claimed; false if there was none. For the thread that claimed it.

    As a context manager it renews the lease in the background, every third of it, and ends the life of the run:

    - the block ends: the run is completed, with `result` if that was set. Nothing raised means that this was recorded,
      unless the block reported an end itself;
    - it raises: the run is retried, and the exception propagates. KeyboardInterrupt, SystemExit and whatever else is no
      `Exception`, or ends the block of another claim around this one, give the run back instead: no budget is spent;
    - the lease was lost: LeaseLost is raised in the block, and nothing is reported;
    - a cancel was requested: CancelRequested is raised in the block, and the run ends as cancelled.

    Both are raised between two byte codes, as KeyboardInterrupt is, and never after the block: a call that blocks is
    not interrupted, `check` raises them where it suits. A heartbeat that cannot be recorded is tried again until the
    lease must be over; then it is lost. Reports in the block are not interrupted half-way.

    Every report raises LeaseLost when another may have the run, or it is gone.
    """

    _stop: threading.Event
    """Ends the heartbeats of the block. There is none without a block: to make one takes as long as a claim's rest."""

    def __init__(self, controller: Controller, run: Run | None, *, pause: Pause = threading.Event.wait) -> None:
        self.result: Any = UNSET
        """What is kept with the run once it has succeeded: any JSON value."""
        self.outcome: Run | Tombstone | None = None
        """The run as this claim's report left it."""
        self._controller = controller
        self._pause = pause
        self._holding = None if run is None else Holding(run)
        self._thread: threading.Thread | None = None
        self._process: int | None = None
        self._left = False

    def __bool__(self) -> bool:
        return self._holding is not None

    def __repr__(self) -> str:
        holding = self._holding
        return "<Claim of nothing>" if holding is None else f"<Claim of {holding.run.id}, token {holding.token}>"

    # What was claimed

    @property
    def run(self) -> Run:
        """The run as the claim, or the last heartbeat, left it. Raises NotFound if nothing was claimed."""
        return self._held().run

    @property
    def id(self) -> str:
        return self.run.id

    @property
    def token(self) -> int:
        """The number of this life of the run. Whoever has it may report on the run."""
        return self._held().token

    @property
    def payload(self) -> Any:
        """What was submitted, decoded anew each time; None without one, and without a run."""
        return None if self._holding is None else decoded(self._holding.run.payload)

    def _held(self) -> Holding:
        if self._holding is None:
            raise NotFound("nothing was claimed", next="look whether the claim is true before its run is used")
        return self._holding

    # Reports

    def check(self) -> None:
        """Raise LeaseLost or CancelRequested if heartbeats have found out about it; else do nothing, at no cost."""
        if self._holding is not None:
            self._holding.interrupt.check()

    def heartbeat(self, *, progress: Any = UNSET) -> Run:
        """Renew the lease, for as long as it was granted, and keep *progress*, any JSON value, with the run.

        Outside a block nothing else renews it, and `cancel_requested_at` of the answer is to be looked at.
        """
        holding, said = self._held(), encoded(progress, "progress")
        run = self._report(lambda context: leases.heartbeat(context, holding.run.id, holding.token, progress=said))
        with shielded():
            holding.renewed(run)
        return run

    def complete(self, result: Any = UNSET, *, claim_next: bool = False) -> Claim:
        """The run is done; *result*, or else `result`, is kept with it.

        *claim_next*: the answer is the next run of the same queue, claimed in the same commit, as long; else, or if
        there is none, it is an empty claim. The run ends as cancelled if that was requested: see `outcome`.
        """
        holding, kept = self._held(), encoded(self.result if result is UNSET else result, "result")
        done = self._end(
            lambda context: leases.complete(context, holding.run.id, holding.token, result=kept, claim_next=claim_next)
        )
        self.outcome = done.run
        return Claim(self._controller, done.next, pause=self._pause)

    def retry(self, error: str, *, delay: float | None = None) -> Run:
        """This life failed: the run waits *delay* seconds for another, by default as its queue's backoff says; on its
        last attempt it is dead.
        """
        holding = self._held()
        delay_ms = None if delay is None else milliseconds(delay, "delay", zero=True)
        return self._let_go(
            lambda context: leases.retry(context, holding.run.id, holding.token, error=error, delay_ms=delay_ms)
        )

    def fail(self, error: str, reason: Reason | str = Reason.CONSUMER_FAILED) -> Run:
        """This life failed, and no other would fare better: the run is dead. *reason* is one of `leases.FAILURES`."""
        holding, code = self._held(), failure(reason)
        return self._let_go(
            lambda context: leases.fail(context, holding.run.id, holding.token, error=error, reason=code)
        )

    def drain(self) -> Run:
        """Give the run back, without having failed. It ends as cancelled if that was requested."""
        holding = self._held()
        return self._let_go(lambda context: leases.drain(context, holding.run.id, holding.token))

    def step(
        self,
        name: str,
        happened: Happened,
        *,
        error: str | None = None,
        reason: Reason | str | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
    ) -> Run:
        """A step of the run started, succeeded or failed. A run of one step needs no such report."""
        holding, trigger = self._held(), step_trigger(happened)
        code = None if reason is None else failure(reason)
        return self._report(
            lambda context: leases.step(
                context,
                holding.run.id,
                name,
                holding.token,
                trigger,
                error=error,
                reason=code,
                exit_code=exit_code,
                signal=signal,
            )
        )

    def _let_go(self, ask: Callable[[Context], Run]) -> Run:
        run = self._end(ask)
        self.outcome = run
        return run

    def _end(self, ask: Callable[[Context], T]) -> T:
        """Report the end of this life. From then on there is nothing to interrupt its block for."""
        with shielded():
            answer = self._report(ask, ends=True)
            self._held().interrupt.end()
        return answer

    def _report(self, ask: Callable[[Context], T], *, ends: bool = False) -> T:
        holding = self._held()
        with shielded(), holding.turn:
            try:
                answer = ask(self._controller.ruled)
            except (NotFound, TransitionRefused) as refusal:
                if isinstance(refusal, NotFound) and self._still_holds(holding):
                    raise  # no such step
                told = _as_holders_are_told(holding, refusal)
                if told is refusal:
                    raise
                raise told from refusal
            holding.ended = holding.ended or ends
        return answer

    def _still_holds(self, holding: Holding) -> bool:
        run = self._controller.store.read().document.runs.get(holding.run.id)
        return run is not None and run.attempts == holding.token and run.lease is not None

    # The block

    def __enter__(self) -> Self:
        if self._holding is None:
            return self
        if self._thread is not None:
            raise UsageFault("a claim is for one block", where=f"run {self.id}", next="claim again")
        self._stop = threading.Event()
        try:
            self._begin(self._holding)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _begin(self, holding: Holding) -> None:
        controller = self._controller.another(lock_timeout=holding.pause)
        self._process = os.getpid()
        self._thread = threading.Thread(
            target=attend,
            args=(weakref.ref(self), holding, controller.ruled, self._stop, self._pause),
            name=f"heartbeats of {holding.run.id}",
            daemon=True,
        )
        holding.interrupt.begin()
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        if self._holding is None or self._process != os.getpid():
            return  # Nothing was claimed; or a fork of the program unwinds, and the block goes on where it began.
        late = self._shut(self._holding)
        try:
            try:
                self._settle(self._holding, late or error)
            finally:
                self._stop.set()
                if self._thread is not None and self._thread.ident is not None:
                    self._thread.join()
        finally:
            self._holding.interrupt.lower()
        if late is not None:
            raise late

    @staticmethod
    def _shut(holding: Holding) -> BaseException | None:
        """From here on nothing arrives in this thread; what has arrived in here instead, as if it had in the block."""
        late = None
        while True:
            try:
                holding.interrupt.end(shield=True)
            except BaseException as error:  # noqa: BLE001 - whatever it is, this must be done; it is raised afterwards
                late = error
            else:
                return late

    def _settle(self, holding: Holding, error: BaseException | None) -> None:
        """Report how the block ended, unless it did so itself, or may not any more."""
        if error is not None:
            kept_out = _kept_out(error)
            if kept_out is not None and kept_out is not self:
                kept_out.give_back()
        if isinstance(holding.interrupt.error, LeaseLost):
            if error is None and not holding.ended:
                holding.interrupt.check()
        elif holding.ended:
            return
        elif error is not None:
            try:
                if not isinstance(error, Exception) or interrupt_of(error) is not None:
                    self.drain()
                else:
                    self.retry(_told(error))
            except ControllerError as trouble:
                error.add_note(f"controller: run {holding.run.id} could not be given back: {trouble.what}")
        elif holding.interrupt.error is not None:
            self.drain()
            holding.interrupt.check()
        else:
            self._complete(holding)

    def _complete(self, holding: Holding) -> None:
        try:
            self.complete()
        except (UsageFault, TransitionRefused) as fault:
            if was_reported(fault):
                return
            with suppress(ControllerError):
                self.retry(_told(fault))
            raise
        if self.outcome is not None and self.outcome.state is RunState.CANCELLED:
            raise holding.cancelled()

    def give_back(self) -> None:
        """End the life of a run whose block has ended without its exit."""
        if self._holding is not None:
            self._stop.set()
            self._holding.give_back(self._controller.ruled)

    def missed_its_exit(self) -> bool:
        """Whether what ended the block arrived at the first byte code of its exit, which then never ran."""
        arrived = None if self._holding is None else self._holding.interrupt.arrived
        return arrived is not None and _kept_out(arrived) is self


class Reported(NamedTuple):
    """What became of one report of several: the next run of its claim, empty if there is none; or what was raised."""

    claim: Claim
    next: Claim
    error: ControllerError | None


def complete_many(
    controller: Controller, claims: Sequence[Claim], results: Sequence[Any] | None, claim_next: int
) -> tuple[Reported, ...]:
    """See `Queue.complete_many`."""
    from controller.engine.batches import End
    from controller.engine.batches import complete_many as report

    if len({id(claim) for claim in claims}) < len(claims):
        raise UsageFault("a claim is reported on twice", where="claims", next="give each of them once")
    if results is not None and len(results) != len(claims):
        what = f"{len(results)} results of {len(claims)} claims"
        raise UsageFault(what, where="results", next="give one for each claim, or set `result` of each")
    holdings = [claim._held() for claim in claims]  # noqa: SLF001 - as its own reports do
    kept = [claim.result for claim in claims] if results is None else results
    ends = [
        End(holding.run.id, holding.token, encoded(result, "result"))
        for holding, result in zip(holdings, kept, strict=True)
    ]
    with shielded(), ExitStack() as turns:
        for holding in holdings:
            turns.enter_context(holding.turn)
        judged = report(controller.ruled, ends, claim_next=claim_next)
        answers = []
        for claim, holding, each in zip(claims, holdings, judged, strict=True):
            following = None
            if each.done is not None:
                claim.outcome, following, holding.ended = each.done.run, each.done.next, True
                holding.interrupt.end()
            error = None if each.refused is None else _as_holders_are_told(holding, each.refused)
            answers.append(Reported(claim, Claim(controller, following, pause=claim._pause), error))  # noqa: SLF001
    return tuple(answers)


def _as_holders_are_told(holding: Holding, refusal: ControllerError) -> ControllerError:
    """A refusal, or the LeaseLost that it means."""
    if isinstance(refusal, TransitionRefused):
        return holding.lost(refusal) if refusal.why == Why.STALE_LEASE else refusal
    return holding.lost(refusal) if isinstance(refusal, NotFound) else refusal


def _kept_out(error: BaseException) -> Claim | None:
    """The claim whose exit *error* kept from running.

    A block that waits in a loop's own call, such as for the next line of a pipe, passes no byte code where an exception
    could arrive before the first one of the exit. Python has called the exit by then, and does not call it again.
    """
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None or place.tb_frame.f_code is not Claim.__exit__.__code__:
        return None
    claim = place.tb_frame.f_locals.get("self")
    return claim if isinstance(claim, Claim) and not claim._left else None  # noqa: SLF001 - it is of this class


def _told(error: BaseException) -> str:
    """An exception in one line or a few, as it is kept with the run."""
    text = "".join(traceback.format_exception_only(error)).strip()
    return text.encode("utf-8", "backslashreplace").decode()


def failure(reason: Reason | str) -> Reason:
    """A reason that a holder may give. Raises UsageFault."""
    known = {each.value: each for each in leases.FAILURES}
    if reason not in known:
        raise UsageFault(
            f"{reason!s} is no reason for a failure{meant(str(reason), known)}",
            where="reason",
            next=f"give one of {', '.join(sorted(known))}",
        )
    return known[reason]


def step_trigger(happened: str) -> Trigger:
    """What happened to a step. Raises UsageFault."""
    if happened not in _TRIGGERS:
        raise UsageFault(
            f"{happened!s} does not happen to a step", where="happened", next=f"give {', '.join(_TRIGGERS)}"
        )
    return _TRIGGERS[happened]
