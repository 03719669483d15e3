"""Reports on many runs in one commit: what one at a time would cost a commit each.

Not promised: all or nothing. Each report is judged for itself, as `leases.complete` would: a batch must not lose nine
good ends for one whose run was given to somebody else meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from msgspec import UNSET, Raw, Struct, UnsetType

from controller.engine.leases import Completed, end, granted, hand_over, held, repeated, take
from controller.engine.queue import Context
from controller.engine.submission import check_bytes
from controller.model.edit import Draft
from controller.model.errors import Conflict, NotFound, TransitionRefused, UsageFault
from controller.model.policy import MOST_CLAIMS
from controller.model.records import Document, Run


class End(Struct, frozen=True):
    """A run that is done, by whom its token says, with what shall be kept of it."""

    run: str
    token: int
    result: Raw | UnsetType = UNSET


class Judged(Struct, frozen=True):
    """What became of one report: `done`, or why it was `refused`. One of them is set."""

    done: Completed | None = None
    refused: NotFound | Conflict | TransitionRefused | None = None


def complete_many(context: Context, ends: Sequence[End], *, claim_next: int = 0) -> tuple[Judged, ...]:
    """As `leases.complete` of each of *ends*, in this order, in one commit. The answers are in that order too.

    One that is refused changes nothing, and the others are recorded. *claim_next*: so many more runs are taken in the
    same commit, at most one for each that is done, of its queue, for its owner and as long. Each belongs to the report
    that it is answered with: that one, repeated, is answered with the same run again.

    Raises UsageFault for what nobody could report, and what a hold raises: then nothing was recorded.
    """
    if len(ends) > MOST_CLAIMS:
        what = f"{len(ends)} runs cannot be reported on at once"
        raise UsageFault(what, where="ends", next=f"give up to {MOST_CLAIMS}")
    if not 0 <= claim_next <= MOST_CLAIMS:
        what = f"{claim_next} runs cannot be claimed at once"
        raise UsageFault(what, where="claim_next", next=f"give a number from 0 to {MOST_CLAIMS}")
    for each in ends:
        check_bytes(each.result, "result")
    with context.store.hold(context.lock_timeout) as hold:
        loaded = hold.load()
        draft = context.draft(loaded.document)
        judged = [_judged(context, draft, each, again=claim_next > 0) for each in ends]
        known = sum(isinstance(each, Completed) for each in judged)
        _hand_on(context, draft, [each for each in judged if isinstance(each, Run)], claim_next - known)
        after = context.commit(hold, loaded, draft)
    return tuple(_answer(after, each) for each in judged)


_Found = Run | Completed | NotFound | Conflict | TransitionRefused
"""What a report met: the run as its holder had it, and it has ended; an answer that was given before; or a refusal."""


def _judged(context: Context, draft: Draft, report: End, *, again: bool) -> _Found:
    known = repeated(context, draft, report.run, report.token) if again else None
    if known is not None:
        return known
    run = draft.runs.get(report.run)
    try:
        # Not around every run: each attempt costs what the draft holds, so all of them would its square.
        with draft.attempt() if run is not None and run.steps else nullcontext():
            held(draft, report.run, report.token)
            end(context, draft, report.run, report.token, report.result)
    except (NotFound, Conflict, TransitionRefused) as refusal:
        return refusal
    return draft.document.runs[report.run]


def _hand_on(context: Context, draft: Draft, ended: Sequence[Run], most: int) -> None:
    """Take up to *most* runs for those who had *ended*."""
    holders: dict[tuple[str, str, int], list[str]] = {}
    for run in ended:
        if run.lease is not None and run.queue not in context.rules.queues:
            holders.setdefault((run.queue, run.lease.owner, run.lease.granted_ms), []).append(run.id)
    for (queue, owner, lease_ms), runs in holders.items():
        count = min(len(runs), most)
        if count > 0:
            taken = take(context, draft, queue, granted(context, draft.document, owner, lease_ms), count)
            most -= len(taken)
            for run_id, following in zip(runs, taken, strict=False):  # there may be fewer
                hand_over(draft, run_id, following)


def _answer(after: Document, found: _Found) -> Judged:
    if isinstance(found, Completed):
        return Judged(found)
    if not isinstance(found, Run):
        return Judged(None, found)
    ended = after.runs.get(found.id) or after.finished[found.id]
    return Judged(Completed(ended, None if ended.next is None else after.runs.get(ended.next.run)))
