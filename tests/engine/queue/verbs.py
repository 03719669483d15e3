"""Everything that consumers, operators and clocks can do to one document, each beside the plain model.

Every verb is also done by a newly started process on a twin of the disk: what a process keeps in memory from earlier
verbs, its index above all, must change no answer. A verb may be killed inside its commit; then what the twin answered
tells what was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine
from msgspec import UNSET, Struct

from controller.engine import leases, upkeep
from controller.engine import queue as runs
from controller.engine.batches import End, complete_many
from controller.engine.queue import Context
from controller.engine.submission import Submission, Submitted
from controller.model.errors import Conflict, ControllerError, NotFound, TransitionRefused, UsageFault
from controller.model.policy import LONGEST_LEASE_MS
from controller.model.reason import Reason
from controller.model.records import TERMINAL, Document, Priority, Run, RunState
from controller.model.transition import Trigger
from tests.engine.queue import kit
from tests.engine.queue.model import LAYERS, Life, No, Plain

QUEUES = ("a", "b")
CAP = 8_000
RETAIN = 3
RETENTION = 3_600_000
POLICY = kit.policy(
    a=kit.steady(attempts=2, crashes=2),
    b=kit.steady(attempts=3, retain=RETAIN, retention_ms=RETENTION),
)
STEPS = (kit.step("first"), kit.step("second", "first"))
TRIGGERS = {
    "started": Trigger.STEP_STARTED,
    "succeeded": Trigger.STEP_SUCCEEDED,
    "failed": Trigger.STEP_FAILED,
}


class Outcome(Struct, frozen=True):
    """What a verb answered, or why it was refused."""

    value: Any = None
    refusal: str | None = None


def outcome_of(verb: Callable[[Context], Any], context: Context) -> Outcome:
    try:
        return Outcome(verb(context))
    except (TransitionRefused, NotFound, Conflict, UsageFault) as error:
        return Outcome(refusal=why(error))


def why(error: ControllerError) -> str:
    match error:
        case TransitionRefused():
            return error.why
        case NotFound():
            return "missing"
        case Conflict():
            return "conflict"
        case _:
            return "usage"


class Verbs(RuleBasedStateMachine):
    """Three consumers, two queues, one disk. A subclass says which disk, and what is done when."""

    twins = True

    def __init__(self) -> None:
        super().__init__()
        self.host = kit.Host(self.make_disk(), POLICY)
        self.plain = Plain(self.host.clock.now_ms(), self.host.mono_ms)
        self.plain.used |= {*POLICY.by_queue, *POLICY.queues}
        self.contexts: list[Context] = []
        self.tickets: list[tuple[str, int]] = []
        self.steps = 0

    def make_disk(self) -> kit.Disk:
        raise NotImplementedError

    # doing

    def act(
        self, who: int, doomed: str | None, verb: Callable[[Context], Any], tell: Callable[[Any], object]
    ) -> Outcome | None:
        """Do *verb* as consumer *who*, and *tell* the model. None: it was killed before it changed anything."""
        disk = self.host.disk
        doomed = doomed if doomed in disk.points else None
        before, revision = disk.evidence(), self.host.document.revision
        twin = disk.twin() if self.twins or doomed else None
        foretold = None if twin is None else outcome_of(verb, self.host.process(twin))
        died = False
        if doomed is None:
            outcome = outcome_of(verb, self.contexts[who])
        else:
            assert foretold is not None
            outcome = foretold
            with disk.killing(doomed):
                try:
                    outcome_of(verb, self.contexts[who])
                except kit.Killed:
                    died = True
            self.contexts[who] = self.host.process()
        if died and doomed in kit.BEFORE:
            assert self.host.document.revision == revision, f"killed at {doomed}, and yet it happened"
            return None
        if died and self.host.document.revision == revision:
            return None  # it was still syncing what another process wrote
        if twin is not None and foretold is not None:
            assert shown(outcome) == shown(foretold), "what this process remembers changed its answer"
            assert unended(self.host.document) == unended(self.host.process(twin).store.read().document)
        expected = None
        try:
            tell(outcome.value)
        except No as no:
            expected = no.why
        assert outcome.refusal == expected, f"{outcome}, and the rules say {expected or 'yes'}"
        if outcome.refusal is not None:
            assert disk.evidence() == before, "it was refused, and changed something"
        return outcome

    def ticket(self, index: int) -> tuple[str, int]:
        return self.tickets[-1 - index % len(self.tickets)] if self.tickets else ("nobody", 1)

    def some_run(self, index: int) -> str:
        known = list(self.plain.lives)
        return known[-1 - index % len(known)] if known else "nobody"

    # submitters and operators

    def submit_one(
        self,
        who: int,
        queue: str,
        doomed: str | None = None,
        *,
        layer: str = "normal",
        name: str | None = None,
        value: int = 0,
        delay: int | None = None,
        attempts: int | None = None,
        crashes: int | None = None,
        key: str = "",
        limit: int = 1,
        steps: int = 0,
        unique: int | None = None,
        replace: bool = False,
    ) -> None:
        wanted = Submission(
            STEPS[:steps],
            id=name,
            queue=queue,
            priority=Priority(layer),
            max_attempts=attempts,
            max_crashes=crashes,
            payload=UNSET if steps else kit.payload(value),
            delay_ms=delay,
            unique_ms=unique,
            concurrency_key=key,
            concurrency=limit,
            replace=replace and name is not None,
        )
        content = (queue, layer, None if steps else value, steps, delay, attempts or 1, crashes, key, key and limit)
        own = self.host.policy.of_queue(queue)
        most = own.attempts if attempts is None else attempts
        lost = most if own.crashes is None or attempts is not None else own.crashes
        life = Life(
            id=name or "",
            queue=queue,
            layer=LAYERS.index(layer),
            sequence=0,
            content=content,
            created=self.plain.now,
            failures_max=most,
            crashes_max=lost if crashes is None else crashes,
            key=key,
            limit=limit if key else 0,
            steps={step.name: "pending" for step in STEPS[:steps]},
            due=self.plain.now + delay if delay else None,
        )

        def tell(answers: tuple[Submitted, ...] | None) -> None:
            answer = None if answers is None else answers[0]
            if unique is not None and not self.plain.knows(life) and self.plain.has_recent(life, unique):
                assert answer is not None
                assert not answer.created, "the same was submitted a moment ago"
                assert self.plain.lives[answer.run].content == content, "it was taken for another content"
                return
            life.id = name or ("" if answer is None else answer.run)
            said = self.plain.submit(life, replace=wanted.replace)
            assert answer is not None
            assert (answer.run, answer.created) == (life.id, said == "new")
            if answer.created:
                life.sequence = self.host.document.counters.sequence

        self.act(who, doomed, lambda context: runs.submit(context, [wanted]), tell)

    def cancel(self, who: int, run: int, doomed: str | None) -> None:
        name = self.some_run(run)
        self.act(who, doomed, lambda context: runs.cancel(context, name), lambda _: self.plain.cancel(name))

    def cancel_it(self, who: int, ticket: int, doomed: str | None) -> None:
        name, _ = self.ticket(ticket)
        self.act(who, doomed, lambda context: runs.cancel(context, name), lambda _: self.plain.cancel(name))

    def retry_by_operator(self, who: int, run: int, doomed: str | None) -> None:
        name = self.some_run(run)
        self.act(who, doomed, lambda context: runs.retry(context, name), lambda _: self.plain.retry_by_operator(name))

    def discard(self, who: int, run: int, doomed: str | None) -> None:
        name = self.some_run(run)
        self.act(who, doomed, lambda context: leases.discard(context, name), lambda _: self.plain.discard(name))

    def pause(self, who: int, queue: str, on: bool, doomed: str | None) -> None:
        def tell(changed: bool | None) -> None:
            expected = self.plain.pause(queue, on)
            assert changed == expected

        self.act(who, doomed, lambda context: upkeep.set_paused(context, queue, on), tell)

    def promote_one(self, who: int, run: int, doomed: str | None) -> None:
        self.let_in(who, (self.some_run(run),), doomed)

    def promote(self, who: int, doomed: str | None) -> None:
        self.let_in(who, (), doomed)

    def let_in(self, who: int, named: tuple[str, ...], doomed: str | None) -> None:
        def tell(moved: tuple[Run, ...] | None) -> None:
            due = self.plain.due_again()
            if named:
                self.plain.promote(named)
                return
            assert moved is not None
            got = [each.id for each in moved]
            assert set(got) <= set(due), "one was promoted that is not due"
            for name in set(due) - set(got):
                # It was passed over by a claim since it fell due: what it waits for is its key, not a time.
                assert self.host.run(name).defer_reason is Reason.CONCURRENCY, f"{name} is due, and was left out"
            self.plain.promote(got)

        def verb(context: Context) -> tuple[Run, ...]:
            return tuple(sorted(upkeep.promote(context, named), key=lambda run: run.id))

        self.act(who, doomed, verb, tell)

    def reap(self, who: int, limit: int, doomed: str | None) -> None:
        def tell(reaped: tuple[upkeep.Reaped, ...]) -> None:
            self.reaped(reaped, limit)

        self.act(who, doomed, lambda context: upkeep.reap(context, limit=limit), tell)

    def reaped(self, reaped: Sequence[upkeep.Reaped], limit: int) -> None:
        over = [each.id for each in self.plain.lives.values() if each.state == "running" and self.plain.is_over(each)]
        assert len(reaped) == min(limit, len(over)), f"{over} are over"
        for each in reaped:
            life = self.plain.lives[each.run.id]
            assert (each.owner, each.token) == (life.owner, life.token)
            self.plain.reap(each.run.id)
            self.adopt(each.run, "reaped")

    # consumers

    def claim(self, who: int, queue: str, count: int, lease: int | None, doomed: str | None) -> None:
        owner = f"consumer-{who}"

        def tell(got: tuple[Run, ...] | None) -> None:
            if queue == "fleet":
                raise No("conflict")
            if lease == 0 or (lease or 0) > LONGEST_LEASE_MS:
                raise No("usage")
            assert got is not None
            self.claimed(queue, owner, lease, count, got)

        outcome = self.act(
            who,
            doomed,
            lambda context: leases.claim(context, queue, owner=owner, lease_ms=lease, count=count),
            tell,
        )
        if outcome is not None and outcome.value is not None:
            self.tickets += [(run.id, run.attempts) for run in outcome.value]

    def claimed(self, queue: str, owner: str, lease: int | None, count: int, got: Sequence[Run]) -> None:
        for run in got:
            assert run.state is RunState.RUNNING
            assert run.lease is not None
            assert (run.lease.owner, run.lease.boot_id) == (owner, self.host.boot_id)
        granted = self.host.policy.of_queue(queue).lease_ms if lease is None else lease
        self.sweep(queue)
        self.plain.claim(queue, owner, granted, count, [(run.id, run.attempts) for run in got])

    def sweep(self, queue: str) -> None:
        """A claim cancels what it finds on its way and somebody wants cancelled."""
        document = self.host.document
        for life in self.plain.lives.values():
            run = document.runs.get(life.id)
            if life.queue == queue and life.state == "queued" and life.asked and run and run.state == "cancelled":
                self.plain.end(life, "cancelled")

    def complete(self, who: int, ticket: int, claim_next: bool, doomed: str | None) -> None:
        run, token = self.ticket(ticket)

        def tell(done: leases.Completed | None) -> None:
            again = self.plain.repeats(run, token) if claim_next else None
            if again is not None:
                assert done is not None
                assert done.next is not None
                assert (done.repeated, done.next.id, done.next.attempts) == (True, *again)
                return
            life = self.plain.lives.get(run)
            owner = None if life is None else life.owner
            granted = 0 if life is None else life.granted
            self.plain.complete(run, token)
            assert done is not None
            assert life is not None
            assert not done.repeated
            if isinstance(done.run, Run):
                self.adopt(done.run, "retried")
            got = [] if done.next is None else [done.next]
            if claim_next:
                self.sweep(life.queue)
                self.plain.claim(life.queue, owner or "", granted, 1, [(each.id, each.attempts) for each in got])
                life.handed = next(((each.id, each.attempts) for each in got), None)
            else:
                assert not got

        outcome = self.act(
            who,
            doomed,
            lambda context: leases.complete(context, run, token, result=kit.payload(token), claim_next=claim_next),
            tell,
        )
        if outcome is not None and outcome.value is not None and outcome.value.next is not None:
            self.tickets.append((outcome.value.next.id, outcome.value.next.attempts))

    def complete_many(self, who: int, chosen: Sequence[int], claim_next: int, doomed: str | None) -> None:
        ends = [self.ticket(each) for each in chosen]

        def verb(context: Context) -> list[tuple[leases.Completed | None, str | None]]:
            reports = [End(run, token, kit.payload(token)) for run, token in ends]
            judged = complete_many(context, reports, claim_next=claim_next)
            return [(each.done, None if each.refused is None else why(each.refused)) for each in judged]

        def tell(judged: list[tuple[leases.Completed | None, str | None]]) -> None:
            holders: dict[tuple[str, str | None, int], list[tuple[Life, Run | None]]] = {}
            most = claim_next
            for (run, token), (done, refused) in zip(ends, judged, strict=True):
                again = self.plain.repeats(run, token) if claim_next else None
                if again is not None:
                    assert done is not None
                    assert done.next is not None
                    assert (done.repeated, done.next.id, done.next.attempts) == (True, *again)
                    most -= 1
                    continue
                life = self.plain.lives.get(run)
                holder = ("", None, 0) if life is None else (life.queue, life.owner, life.granted)
                no = None
                try:
                    self.plain.complete(run, token)
                except No as error:
                    no = error.why
                assert refused == no
                if life is None or done is None:
                    assert no is not None
                    continue
                assert not done.repeated
                if isinstance(done.run, Run):
                    self.adopt(done.run, "retried")
                holders.setdefault(holder, []).append((life, done.next))
            for (queue, owner, granted), ended in holders.items():
                got = [(each.id, each.attempts) for _, each in ended if each is not None]
                if most > 0:
                    self.sweep(queue)
                    self.plain.claim(queue, owner or "", granted, min(most, len(ended)), got)
                assert len(got) <= max(0, most)
                most -= len(got)
                for life, following in ended:
                    life.handed = None if following is None else (following.id, following.attempts)

        outcome = self.act(who, doomed, verb, tell)
        for done, _ in () if outcome is None or outcome.value is None else outcome.value:
            if done is not None and done.next is not None and not done.repeated:
                self.tickets.append((done.next.id, done.next.attempts))

    def retry(self, who: int, ticket: int, delay: int | None, doomed: str | None) -> None:
        run, token = self.ticket(ticket)

        def tell(after: Run | None) -> None:
            self.plain.fail(run, token, final=False)
            assert after is not None
            assert after.last_error == "broken"
            self.adopt(after, "retried", delay)

        self.act(who, doomed, lambda context: leases.retry(context, run, token, error="broken", delay_ms=delay), tell)

    def fail(self, who: int, ticket: int, doomed: str | None) -> None:
        run, token = self.ticket(ticket)

        def verb(context: Context) -> Run:
            return leases.fail(context, run, token, error="useless", reason=Reason.INVALID_PAYLOAD)

        self.act(who, doomed, verb, lambda _: self.plain.fail(run, token, final=True))

    def heartbeat(self, who: int, ticket: int, lease: int | None, doomed: str | None) -> None:
        run, token = self.ticket(ticket)

        def tell(after: Run | None) -> None:
            self.plain.beat(run, token, lease)
            assert after is not None
            assert (after.cancel_requested_at is not None) == self.plain.lives[run].asked

        self.act(who, doomed, lambda context: leases.heartbeat(context, run, token, lease_ms=lease), tell)

    def drain(self, who: int, ticket: int, doomed: str | None) -> None:
        run, token = self.ticket(ticket)

        def tell(after: Run | None) -> None:
            self.plain.drain(run, token)
            assert after is not None
            self.adopt(after, "drained")

        self.act(who, doomed, lambda context: leases.drain(context, run, token), tell)

    def step(self, who: int, ticket: int, name: str, what: str, doomed: str | None) -> None:
        run, token = self.ticket(ticket)
        reason = Reason.EXIT_CODE if what == "failed" else None

        def verb(context: Context) -> Run:
            return leases.step(context, run, name, token, TRIGGERS[what], reason=reason)

        self.act(who, doomed, verb, lambda _: self.plain.step(run, name, token, what))

    def adopt(self, run: Run, how: str, delay: int | None = None) -> None:
        """How long a run waits that went back to its queue: what was seen, if the rules allow it."""
        life = self.plain.lives[run.id]
        if life.state != "queued":
            return
        due = self.plain.now if run.available_at is None else run.available_at
        wait = due - self.plain.now
        if how == "retried" and delay is not None:
            assert wait == delay
        elif how == "retried":
            assert wait == min(CAP, 1_000 * 2 ** (life.failures - 1))
        else:
            assert 0 <= wait <= CAP
        life.due, life.longest = due, run.longest_ms
        if delay is None:
            assert run.longest_ms is not None, f"{how}: a clock that goes back would strand it"
            assert run.longest_ms <= CAP

    # time

    def advance(self, span: int) -> None:
        self.host.clock.advance(span / 1000)
        self.plain.now, self.plain.mono = self.host.clock.now_ms(), self.host.mono_ms

    def jump(self, span: int) -> None:
        self.host.clock.jump(span / 1000)
        self.plain.now = self.host.clock.now_ms()

    def reboot(self) -> None:
        self.host.reboot()
        self.contexts = [self.host.process() for _ in range(3)]
        self.plain.era += 1
        self.plain.mono = self.host.mono_ms

    def restore(self) -> None:
        """The document was restored: it goes on under a new epoch, and nobody's lease of the old one counts."""
        if not isinstance(self.host.disk, kit.Memory):
            return
        kit.restore(self.host)
        self.plain.era += 1


def unended(document: Document) -> dict[str, Run]:
    """What is forgotten with a commit is chance: a process that has no index yet leaves ended runs alone."""
    return {name: run for name, run in document.runs.items() if run.state not in TERMINAL}


def shown(outcome: Outcome) -> Any:
    return (outcome.refusal, outcome.value)
