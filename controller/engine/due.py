"""When there is reason to plan again: what differs from the document of the last plan, and what falls due by itself.

Not promised: that a plan finds anything to do then.
"""

from __future__ import annotations

from msgspec import Struct

from controller.engine.index import Index
from controller.engine.lifecycle import waits_for
from controller.model.health import retry_at
from controller.model.policy import Policy
from controller.model.records import Document, WorkerState


def changed_slots(before: Document, after: Document) -> frozenset[int] | None:
    """Slots whose worker, pending action or worker's run differ; None: something that matters to every slot does."""
    if (before.draining, before.lineage, before.epoch) != (after.draining, after.lineage, after.epoch):
        return None
    slots = {n for n, worker in after.workers.items() if _differs(before.workers.get(n), worker)}
    pending = after.pending_actions
    slots |= {
        n for n in before.pending_actions.keys() | pending.keys() if before.pending_actions.get(n) != pending.get(n)
    }
    # By the worker's word: one that waits for its run's next life is not what that run, queued again, names.
    slots |= {
        n
        for n, worker in after.workers.items()
        if worker.run is not None and _differs(before.runs.get(worker.run), after.runs.get(worker.run))
    }
    return frozenset(slots)


def _differs(before: Struct | None, after: Struct | None) -> bool:
    return before is not after and before != after


def next_due(document: Document, policy: Policy, now: int, index: Index | None = None) -> int | None:
    """When, in UTC ms after *now*, something falls due that no event will tell; None: nothing waits for a time.

    *index*, if given, is that of *document*: without it one is made, which looks at every run.
    """
    index = index or Index(document.runs, "")
    index.ripen(now)
    run_due = index.next_due()
    times = [] if run_due is None else [run_due]
    times += [slot.not_before for slot in document.slots.values() if slot.not_before]
    times += [entry.not_before for entry in document.pending_actions.values() if entry.not_before]
    for worker in document.workers.values():
        if worker.state is WorkerState.READY:
            times.append(worker.changed_at + policy.idle_ms)
        elif (wait := waits_for(document, worker, policy, now)) is not None and wait.until is not None:
            times.append(wait.until)
    for known in document.providers.values():
        if (at := retry_at(known, policy.breaker)) is not None:
            times.append(at)
    return min((at for at in times if at > now), default=None)
