"""`Recovery`: what an operator does about a worker that does not go on by itself, for programs. Each method is what the
command of its name does; that it is called is its confirmation.

Not promised: that what a method asks of a provider has been done once it returns. What was accepted is durable, and
goes on with the next reconcile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from controller.api.operator import operator
from controller.engine.report import Report
from controller.model.errors import ControllerError, ProviderFailed, UsageFault

if TYPE_CHECKING:
    from controller.api.handle import Controller
    from controller.engine.abandon import Abandoned
    from controller.engine.adoption import Found
    from controller.engine.forget import Forgotten
    from controller.engine.reconcile import Reconciler
    from controller.engine.recovery import Resumed, Surrendered
    from controller.engine.release import Released
    from controller.model.inventory import Look
    from controller.model.records import PendingAction


def looked(reconciler: Reconciler) -> Look:
    """What the provider shows. Raises ProviderFailed."""
    look, failure = reconciler.look()
    if look is None:
        raise failure or ProviderFailed("the provider did not say what there is", next="run it again")
    return look


def looked_for_surrender(reconciler: Reconciler, run: str, *, unresolved: bool) -> Look | None:
    """As `looked`; None for one that is not expected to answer."""
    look, failure = reconciler.look()
    if failure is not None and not unresolved:
        then = f"controller surrender {run} --unresolved --reason WHY --confirm-surrender"
        raise ProviderFailed(
            failure.what, where=failure.where, next=f"mend that; if the provider is gone for good: {then}"
        ) from failure
    return look


def can_be_asked(controller: Controller, slot: int) -> bool:
    """Whether the settings name the kind of provider that made the slot's worker: no other can speak of it."""
    worker = controller.store.read().document.workers.get(slot)
    return worker is not None and worker.provider == controller.settings.provider.kind


def carry_on(reconciler: Reconciler, slot: int, parked: tuple[str, PendingAction] | None = None) -> Report:
    """Reconcile one slot, which takes no new run; first send what this process has just *parked* there by its key."""
    from controller.engine.reconcile import turns

    reconciler.keep_to(slot)
    report = Report()
    if parked is not None:
        # Not left to the reconcile: to that it would be a replay, and a "no" to a replay has to be proven by looks.
        key, entry = parked
        ((turn, following),) = turns(1)
        reconciler.collect(report, slot, lambda: reconciler.in_turn(slot, key, entry, turn, following))
    try:
        rest = reconciler.reconcile()
    except ControllerError as error:
        if not report.changed:
            raise
        report.errors.append(error)
        return report
    report.add(rest)
    report.passes, report.converged, report.interrupted = rest.passes, rest.converged, rest.interrupted
    return report


class Recovery:
    """Reached as `Controller.recovery`. For one thread, as its `Controller`.

    Every method may raise what those of `Controller` do; those that look or send also ProviderFailed. A Refusal changed
    nothing. *reason* is kept in history with the name of whoever runs the program; those that give something up need
    one. *dry_run*: judge, and change nothing.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def release_template(self, run: str, *, slot: int | None = None) -> dict[str, Any]:
        """What a proof of *run*'s release has to say, with placeholders that cannot pass. Only reads.

        Raises NotFound, and Conflict when no worker, or more than one, is assigned to the run.
        """
        from controller.engine.proof import template

        return template(self._controller.store.read().document, run, slot)

    def release(
        self,
        run: str,
        proof: Mapping[str, Any] | None = None,
        *,
        slot: int | None = None,
        reason: str = "",
        dry_run: bool = False,
    ) -> Released:
        """Release the worker that is assigned to a run which is over: its data may go.

        *proof* is needed where the settings ask for one. Raises Conflict for a run that is not over, TransitionRefused,
        and ProofRefused for a proof that is missing something, stale, or of something else.
        """
        from controller.engine.release import release

        context = self._controller.ruled
        return release(context, run, proof, slot=slot, reason=reason, by=operator(), dry_run=dry_run)

    def resume(self, run: str, *, slot: int | None = None, reason: str = "", dry_run: bool = False) -> Resumed:
        """Make new compute for the data of *run*, and queue the run again if it had failed or was cancelled.

        The provider is asked at once; whatever comes of that, the create is parked. Raises Conflict unless a look shows
        the old compute off or gone, with the recorded identities, and nothing else has the run.
        """
        from controller.engine.recovery import resume

        with self._controller.driving(parallelism=1) as reconciler:
            resumed = resume(
                reconciler.sender.context,
                run,
                looked(reconciler),
                slot=slot,
                reason=reason,
                by=operator(),
                dry_run=dry_run,
                key_ttl_ms=reconciler.ground.key_ttl_ms,
            )
            if resumed.parked is not None:
                carry_on(reconciler, resumed.slot, (resumed.key, resumed.parked))
        return resumed

    def surrender(
        self, run: str, *, reason: str, slot: int | None = None, dry_run: bool = False, unresolved: bool = False
    ) -> Surrendered:
        """End the assignment of a worker whose release cannot be proven any more: its data is given up.

        *unresolved*: the provider is gone for good. Raises Conflict while an ordinary release would do, while compute
        may be live, while an action is pending, and, with *unresolved*, when the provider answers after all.
        """
        from controller.engine.recovery import surrender

        _need(reason, dry_run=dry_run)
        with self._controller.driving(parallelism=1) as reconciler:
            look = looked_for_surrender(reconciler, run, unresolved=unresolved)
            return surrender(
                reconciler.sender.context,
                run,
                look,
                slot=slot,
                reason=reason,
                by=operator(),
                dry_run=dry_run,
                unresolved=unresolved,
            )

    def abandon(
        self,
        slot: int,
        key: str,
        *,
        reason: str,
        unresolved: bool = False,
        provider_gone: bool = False,
        dry_run: bool = False,
    ) -> Abandoned:
        """End the pending action *key* of a slot, which can never apply: sent once more, and cleared on a final "no".

        *unresolved*: the provider is gone for good; the action is then kept on record for ever. *provider_gone*: the
        caller's word that a provider process of another pid namespace does not live any more. Raises Conflict for
        another key, SlotBusy, SlotUnproven.
        """
        from controller.engine.abandon import abandon

        _need(reason, dry_run=dry_run)
        with self._controller.driving(parallelism=1) as reconciler:
            return abandon(
                reconciler.sender,
                slot,
                key,
                look=lambda: reconciler.look()[0],
                reason=reason,
                by=operator(),
                unresolved=unresolved,
                provider_gone=provider_gone,
                dry_run=dry_run,
            )

    def forget(self, slot: int, *, reason: str, dry_run: bool = False) -> Forgotten:
        """Give up the record of a worker whose provider is gone for good; what may be left of it stays on record.

        Raises NotFound without such a record; Conflict while an action is pending, while a run has the worker, and when
        the provider answers after all. One of another kind than the settings name is not asked.
        """
        from controller.engine.forget import forget

        _need(reason, dry_run=dry_run)
        look = None
        if can_be_asked(self._controller, slot):
            with self._controller.driving(parallelism=1) as reconciler:
                look = reconciler.look()[0]
        return forget(self._controller.ruled, slot, look, reason=reason, by=operator(), dry_run=dry_run)

    def adopt(self, slot: int, identity: str | None = None, *, reason: str = "") -> Found:
        """Record what the provider shows in *slot* and no record knows, as its worker. Without *identity* it only tells
        what is there, and its identity.

        Raises NotFound when nothing is, Conflict unless it is one thing, of that identity, ready and idle.
        """
        from controller.engine.adoption import adopt

        with self._controller.driving(parallelism=1) as reconciler:
            return adopt(
                reconciler.sender.context,
                slot,
                looked(reconciler),
                provider=reconciler.ground.provider,
                identity=identity,
                reason=reason,
                by=operator(),
                dry_run=identity is None,
            )

    def delete_unrecorded(self, slot: int, identity: str | None = None, *, reason: str = "") -> Found:
        """Record what the provider shows in *slot* and no record knows, so that it is stopped and removed; the provider
        is asked at once. Without *identity* as `adopt`.
        """
        from controller.engine.adoption import condemn

        if identity is not None:
            _need(reason, dry_run=False)
        with self._controller.driving(parallelism=1) as reconciler:
            found = condemn(
                reconciler.sender.context,
                slot,
                looked(reconciler),
                provider=reconciler.ground.provider,
                identity=identity,
                reason=reason,
                by=operator(),
                dry_run=identity is None,
            )
            if identity is not None:
                carry_on(reconciler, slot)
        return found

    def cordon(self, slot: int, *, reason: str = "", dry_run: bool = False) -> bool:
        """Let the slot take nothing new. False: it was so already. Raises NotFound."""
        return self._cordon(slot, on=True, reason=reason, dry_run=dry_run)

    def uncordon(self, slot: int, *, reason: str = "", dry_run: bool = False) -> bool:
        """Lift `cordon` and `drain`. False: neither was in force. Raises NotFound."""
        return self._cordon(slot, on=False, reason=reason, dry_run=dry_run)

    def drain(self, slot: int, *, reason: str = "", timeout: float | None = None, dry_run: bool = False) -> bool:
        """Cordon the slot and reconcile it until it is empty; whether it is. It stays drained until `uncordon`.

        *timeout*, in seconds: no longer than that. Raises NotFound.
        """
        from controller.api.emptying import left_in, until_empty

        with self._controller.driving(parallelism=1) as reconciler:
            self._cordon(slot, on=True, drain=True, reason=reason, dry_run=dry_run)
            if dry_run:
                return not left_in(self._controller.store.read().document, slot)
            reconciler.keep_to(slot)
            deadline = None if timeout is None else self._controller.clock.monotonic() + timeout
            _, document = until_empty(reconciler, slot, deadline=deadline)
            return not left_in(document, slot)

    def _cordon(self, slot: int, *, on: bool, drain: bool = False, reason: str, dry_run: bool) -> bool:
        from controller.engine.cordon import cordon

        context = self._controller.ruled
        return cordon(context, slot, on=on, drain=drain, reason=reason, by=operator(), dry_run=dry_run)


def _need(reason: str, *, dry_run: bool) -> None:
    if not reason and not dry_run:
        raise UsageFault("say why: it is kept in history", where="reason", next="give a reason")
