"""What is submitted: how it is checked, and how it becomes a run, or turns out to be one that is there.

Not promised: that a command which passes is there to be run; that a run whose id was forgotten with its history gets a
higher token than its namesake had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, to_builtins
from msgspec.structs import replace

from controller.model.action import action_of, decode, digest
from controller.model.edit import Draft, Table
from controller.model.errors import Conflict, UsageFault
from controller.model.graph import Misfit, misfit
from controller.model.policy import DEFAULT_QUEUE, FLEET_QUEUE, Policy, Release
from controller.model.reason import Reason
from controller.model.records import ID_GRAMMAR, TERMINAL, Document, Priority, Run, RunState, Step, Tombstone, is_id

if TYPE_CHECKING:
    from controller.engine.contents import Contents

    Known = Callable[[Document], tuple[Contents, Contents]]
    """What gives a document's runs and tombstones by content."""

MOST_PAYLOAD: Final = 1 << 20
"""Bytes of a payload, a result or a progress."""
LONGEST_KEY: Final = 200
"""Characters of a concurrency key."""
_DEFAULTS: Final = Policy()


class Submission(Struct, frozen=True):
    """A run to be. `id` None: the document names it. Steps carry only what their submitter chose.

    `queue` None: the fleet's with steps, the consumers' for a payload alone. `max_attempts` and `max_crashes` None:
    what the queue's policy says. `delay_ms` or `at`, UTC ms: not due before. `unique_ms`: a run of the same queue and
    content that was submitted within so long is the answer. At most `concurrency` runs of `concurrency_key` run at
    once. `replace`: a run of the same id with other content makes way.
    """

    steps: tuple[Step, ...] = ()
    id: str | None = None
    queue: str | None = None
    priority: Priority = Priority.NORMAL
    max_attempts: int | None = None
    max_crashes: int | None = None
    payload: Raw | UnsetType = UNSET
    delay_ms: int | None = None
    at: int | None = None
    unique_ms: int | None = None
    concurrency_key: str = ""
    concurrency: int = 1
    replace: bool = False

    @property
    def goes_to(self) -> str:
        return self.queue or (FLEET_QUEUE if self.steps else DEFAULT_QUEUE)


class Submitted(Struct, frozen=True):
    """`created` False: that run was there already, under the id and with the content that was submitted, or, within
    `unique_ms`, with that content alone.
    """

    run: str
    created: bool


def check_bytes(content: Raw | UnsetType, what: str) -> None:
    """Raise UsageFault for JSON that is too large to be kept in every commit."""
    if content is not UNSET and len(bytes(content)) > MOST_PAYLOAD:
        where = f"--{what}"
        raise UsageFault(f"the {what} is larger than {MOST_PAYLOAD} bytes", where=where, next="keep it in a file")


def is_known(draft: Draft, run_id: str) -> bool:
    """Whether the document knows the id, also of a run that has left."""
    return run_id in draft.runs or run_id in draft.finished


def check(submission: Submission, policy: Policy) -> None:
    if submission.id is not None and not is_id(submission.id):
        raise _not_id(submission.id, "--id")
    if not is_id(submission.goes_to):
        raise _not_id(submission.goes_to, "--queue")
    if not submission.steps and submission.payload is UNSET:
        raise UsageFault("a run needs a command", next="controller submit -- COMMAND [ARGUMENT...]")
    for name, number in (("attempts", submission.max_attempts), ("crashes", submission.max_crashes)):
        if number is not None and number < 1:
            what = "a run needs at least one attempt" if name == "attempts" else "a run is lost at least once"
            raise UsageFault(what, where=f"--{name}", next="give a number from 1 up")
    check_bytes(submission.payload, "payload")
    if submission.delay_ms is not None and submission.at is not None:
        raise UsageFault("a run is due after a delay or at a time", where="--delay; --at", next="give one of them")
    key = submission.concurrency_key
    if key and (len(key) > LONGEST_KEY or not key.isprintable()):
        # No id of ours: it names what the runs share, such as host:db-1 or a path.
        what = f"a key is a name of 1 to {LONGEST_KEY} characters"
        raise UsageFault(what, where="--concurrency-key", next="give one without line ends")
    if key and submission.concurrency < 1:
        raise UsageFault("a key lets at least one run", where="--concurrency", next="give a number from 1 up")
    found = misfit(submission.steps) if submission.steps else None
    if found is not None:
        raise UsageFault(found.what, where=_place(found, submission.steps), next=found.next)
    if not submission.steps and submission.goes_to in policy.queues:
        raise Conflict(
            f"queue {submission.goes_to} is the fleet's, and a payload alone is nothing that a worker could run",
            where=f"--queue {submission.goes_to}",
            next=f"give a command after --, or another queue, such as --queue {DEFAULT_QUEUE}",
        )


def _not_id(text: str, where: str) -> UsageFault:
    grammar = f"use {ID_GRAMMAR}"
    return UsageFault(f"not an id: {text!r}", where=where, next=grammar)


def _place(found: Misfit, steps: Sequence[Step]) -> str:
    """A graph names the step; a run of one step is a command line, and its place is an option, or the words."""
    if len(steps) != 1:
        return found.place(steps)
    return f"--{found.member}" if found.member in ("env", "cwd") else ""


def add_run(
    draft: Draft,
    submission: Submission,
    policy: Policy = _DEFAULTS,
    *,
    token: int = 0,
    known_contents: Known | None = None,
) -> Submitted:
    """Add one checked run to the draft, or find it there. Raises Conflict.

    *token*: the highest that an earlier run of this id is known to have had, beyond those that the draft knows.
    *known_contents* gives what a document has by content: without it every run is looked at, if that is asked for.
    """
    content = content_of(submission)
    known = _there(draft, submission.id)
    if known is not None and known.content == content:
        return Submitted(known.id, created=False)
    if submission.unique_ms is not None:
        earlier = _earlier(draft, submission, content, known_contents)
        if earlier is not None:
            return Submitted(earlier, created=False)
    if known is not None:
        _make_way(draft, known, submission, policy)
    run_id = submission.id or _fresh_id(draft)
    token = max(token, _token_of(draft.finished.get(run_id)))
    rules = policy.of_queue(submission.goes_to)
    attempts = submission.max_attempts or rules.attempts
    crashes = submission.max_crashes or (attempts if submission.max_attempts else rules.crashes or attempts)
    due = submission.at if submission.delay_ms is None else draft.now + submission.delay_ms
    later = due is not None and due > draft.now
    run = Run(
        id=run_id,
        queue=submission.goes_to,
        sequence=draft.count("sequence"),
        created_at=draft.now,
        steps=submission.steps,
        priority=submission.priority,
        attempts=token,
        earlier_lives=token,
        max_attempts=attempts,
        max_crashes=crashes,
        available_at=due if later else None,
        defer_reason=Reason.SUBMITTED_FOR_LATER if later else None,
        payload=submission.payload,
        content=content,
        concurrency_key=submission.concurrency_key,
        concurrency=submission.concurrency if submission.concurrency_key else 0,
    )
    draft.finished.remove(run_id)
    draft.runs.put(run_id, run)
    reason = Reason.SUBMITTED_FOR_LATER if later else None
    draft.event(f"run:{run_id}", "submitted", to=RunState.QUEUED, reason=reason, token=token or None)
    return Submitted(run_id, created=True)


def _there(draft: Draft, run_id: str | None) -> Run | Tombstone | None:
    """The run that an id stands for; one that was discarded stands for nothing any more."""
    known = None if run_id is None else draft.runs.get(run_id) or draft.finished.get(run_id)
    return None if known is None or _is_discarded(known) else known


def _is_discarded(known: Run | Tombstone) -> bool:
    return isinstance(known, Tombstone) and known.state is not RunState.SUCCEEDED


def _token_of(stone: Tombstone | None) -> int:
    return 0 if stone is None else stone.token


def _make_way(draft: Draft, known: Run | Tombstone, submission: Submission, policy: Policy) -> None:
    """Take a run of the same id and other content away if that is wanted and nothing holds it. Raises Conflict."""
    from controller.model.perform import discard

    if not submission.replace:
        raise Conflict(
            f"run {known.id} exists with other content",
            where=f"run {known.id}, {known.state}",
            next=f"choose another --id, or see `controller show {known.id}`",
        )
    # One that has ended too: a worker that is not released from it would be taken for the new one's.
    refuse_held(draft, known, "replaced", policy)
    if isinstance(known, Run):
        discard(draft, known.id, Reason.REPLACED)


def _earlier(draft: Draft, submission: Submission, content: str, known: Known | None) -> str | None:
    """The latest run of the same queue and content that was submitted within the time asked for."""
    from controller.engine.contents import Contents

    document, within = draft.document, submission.unique_ms or 0
    runs, stones = (
        (Contents(document.runs), Contents(document.finished, stones=True)) if known is None else known(document)
    )
    tables: tuple[tuple[Table[str, Any], Contents], ...] = (draft.runs, runs), (draft.finished, stones)
    # What this draft has added is as late as can be, and in no table yet.
    there: list[Any] = [run for run in draft.runs.changes.values() if run is not None and run.content == content]
    for table, places in tables:
        names = places.within(content, draft.now - within, draft.now + within)
        there += islice((table.get(name) for name in names if name not in table.changes), 1)
    same = [run for run in there if run.queue == submission.goes_to and abs(draft.now - run.created_at) < within]
    latest = max(same, key=lambda run: (run.created_at, run.sequence), default=None)
    return None if latest is None else str(latest.id)


def content_of(submission: Submission) -> str:
    """The digest of everything a submitter chose but the id, and how it is treated when there is such a run already.

    What has its default is left out where older documents had no such choice: their digests stay what they are.
    """
    chosen = to_builtins(replace(submission, payload=UNSET))
    for name in ("id", "unique_ms", "replace"):
        chosen.pop(name)
    chosen["queue"] = submission.goes_to
    chosen["max_attempts"] = submission.max_attempts or 1
    for name in ("delay_ms", "at"):
        if chosen[name] is None:
            del chosen[name]
    if not submission.concurrency_key:
        del chosen["concurrency_key"], chosen["concurrency"]
    if submission.payload is not UNSET:
        chosen["payload"] = bytes(submission.payload).decode()
    return digest(chosen)


def _fresh_id(draft: Draft) -> str:
    epoch = f"{draft.document.epoch}-" if draft.document.epoch else ""
    while True:
        run_id = f"r-{epoch}{draft.count('run')}"
        if not is_known(draft, run_id):
            return run_id


def slots_naming(draft: Draft, run_id: str) -> tuple[int, ...]:
    """Every slot whose worker or pending action names the run, or a disowned action that may have done anything."""
    named = {n for n, worker in draft.workers.items() if run_id in (worker.run, worker.reserved)}
    named |= {n for n, pending in draft.pending.items() if action_of(pending).run == run_id}
    disowned = (decode(each.action) for _, each in draft.disowned.items() if each.proven is None)
    named |= {action.slot for action in disowned if action.run == run_id}
    return tuple(sorted(named))


def refuse_held(draft: Draft, run: Run | Tombstone, verb: str, policy: Policy = _DEFAULTS) -> None:
    """Raise Conflict while a worker holds *run*, or anything of a slot names it."""
    slots = slots_naming(draft, run.id)
    if slots:
        names = ", ".join(f"slot {slot}" for slot in slots)
        raise Conflict(
            f"run {run.id} cannot be {verb}: it is named by {names}",
            where=names,
            next=way_out(draft, run, slots, policy),
        )


def way_out(draft: Draft, run: Run | Tombstone, slots: tuple[int, ...], policy: Policy) -> str:
    """What to do first so that no slot names the run any more: a cancel does nothing for one that has ended."""
    if run.state not in TERMINAL:
        return f"controller cancel {run.id}"
    kept = [n for n in slots if n not in draft.pending and (worker := draft.workers.get(n)) and worker.run == run.id]
    if not kept:
        return f"controller reconcile --apply; `controller explain slot:{slots[0]}` says what it waits for"
    which = f"{run.id} --slot {kept[0]}"
    if policy.release is Release.AUTO:
        return f"controller release {which} --reason WHY --confirm-release"
    surrender = f"controller surrender {which} --reason WHY --confirm-surrender"
    return f"controller release {which} --template; if no proof can be made any more: {surrender}"
