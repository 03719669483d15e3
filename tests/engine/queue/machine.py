"""Anything that consumers, operators, clocks and crashes can do to one document, in any order, and what is true after
each of it. What each verb must do is in `verbs`.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from controller.engine import leases, upkeep
from controller.engine.browse import size
from controller.engine.fsck import check
from controller.engine.queue import Context
from controller.model.invariants import violations
from controller.model.policy import LONGEST_LEASE_MS
from controller.model.records import Document, Lease
from controller.model.views import View, is_deferred
from tests.engine.queue import kit
from tests.engine.queue.model import ENDED, FAIR, LAYERS
from tests.engine.queue.verbs import QUEUES, Verbs

Report = tuple[Any, ...]
"""The name of a verb, and what it is given."""

queues = st.sampled_from(QUEUES)
consumers = st.integers(0, 2)
tickets = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 8])
"""Which claim is reported on, counted from the last: mostly a fresh one, sometimes one of somebody long dead."""
ids = st.sampled_from([0, 0, 1, 1, 2, 3, 5, 8])
spans = st.sampled_from([0, 1, 40, 999, 1_000, 5_000, 60_000, 7_200_000])
leases_asked = st.sampled_from([None, None, 40, 1_000, 60_000, 60_000, 0, LONGEST_LEASE_MS + 1])
reports = st.one_of(
    st.tuples(st.just("complete"), st.booleans()),
    st.tuples(st.just("retry"), st.sampled_from([None, None, 0, 3_000])),
    st.tuples(st.just("fail")),
    st.tuples(st.just("heartbeat"), st.sampled_from([None, 40, 5_000])),
    st.tuples(st.just("drain")),
    st.tuples(st.just("cancel_it")),
    st.tuples(
        st.just("step"),
        st.sampled_from(["first", "first", "second", "third"]),
        st.sampled_from(["started", "started", "succeeded", "failed"]),
    ),
)
operations = st.sampled_from(["cancel", "retry_by_operator", "discard", "promote_one", "cancel"])
upkeeps = st.one_of(
    st.tuples(st.just("reap"), st.sampled_from([1, 100])),
    st.tuples(st.just("promote")),
    st.tuples(st.just("pause"), st.sampled_from([*QUEUES, *QUEUES, "unused"]), st.sampled_from([True, False, False])),
)
weather = st.one_of(
    st.tuples(st.just("advance"), spans),
    st.tuples(st.just("jump"), st.sampled_from([-7_200_000, -1_000, 1_000, 7_200_000])),
    st.tuples(st.sampled_from(["reboot", "restore"])),
)
doom = st.sampled_from([*[None] * 12, *kit.BEFORE, *kit.AFTER])


class QueueMachine(Verbs):
    """Few rules, so that each comes often. A subclass says which disk."""

    @initialize(
        many=st.integers(0, 4),
        queue=queues,
        key=st.sampled_from(["", "", "k"]),
        claims=st.sampled_from([0, FAIR - 3, FAIR - 2, FAIR - 1]),
    )
    def begin(self, many: int, queue: str, key: str, claims: int) -> None:
        """Queues that have been claimed from so often that the fair turn comes soon."""
        self.contexts = [self.host.process() for _ in range(3)]
        self.plain.claims = dict.fromkeys(QUEUES, claims)
        kit.claimed_from(self.host, self.plain.claims)
        for layer in LAYERS[1 : 1 + many]:
            self.submit_one(0, queue, layer=layer, key=key, limit=1)

    # what may happen next: few rules, so that each happens often

    @rule(who=consumers, report=reports, ticket=tickets, doomed=doom)
    def report(self, who: int, report: Report, ticket: int, doomed: str | None) -> None:
        if self.tickets:
            getattr(self, report[0])(who, ticket, *report[1:], doomed)

    @rule(who=consumers, queue=queues, said=st.lists(reports, min_size=1, max_size=4), doomed=doom)
    def claim_and_report(self, who: int, queue: str, said: list[Report], doomed: str | None) -> None:
        self.claim(who, queue, 1, None, None)
        for report in said if self.tickets else ():
            getattr(self, report[0])(who, 0, *report[1:], doomed)

    @rule(
        who=consumers,
        queue=queues,
        count=st.integers(0, 3),
        chosen=st.lists(tickets, min_size=1, max_size=4),
        claim_next=st.integers(0, 3),
        doomed=doom,
    )
    def claim_and_complete_many(
        self, who: int, queue: str, count: int, chosen: list[int], claim_next: int, doomed: str | None
    ) -> None:
        if count:
            self.claim(who, queue, count, None, None)
        self.complete_many(who, chosen, claim_next, doomed)

    @rule(who=consumers, operation=operations, run=ids, doomed=doom)
    def operate(self, who: int, operation: str, run: int, doomed: str | None) -> None:
        if self.plain.lives:
            getattr(self, operation)(who, run, doomed)

    @rule(change=weather)
    def time_goes_on(self, change: Report) -> None:
        getattr(self, change[0])(*change[1:])

    @rule(who=consumers, what=upkeeps, doomed=doom)
    def keep_going(self, who: int, what: Report, doomed: str | None) -> None:
        getattr(self, what[0])(who, *what[1:], doomed)

    @rule(
        who=consumers,
        queue=queues,
        layer=st.sampled_from(LAYERS),
        name=st.sampled_from([None, None, None, "x", "y"]),
        value=st.integers(0, 1),
        delay=st.sampled_from([*[None] * 6, 0, 1_000, 90_000]),
        attempts=st.sampled_from([None, 1, 2, 3]),
        crashes=st.sampled_from([None, 1, 2]),
        key=st.sampled_from(["", "", "k", "l"]),
        limit=st.integers(1, 2),
        steps=st.sampled_from([0, 0, 1, 2]),
        unique=st.sampled_from([None, None, None, 60_000]),
        replace=st.booleans(),
        doomed=doom,
    )
    def submit(self, who: int, queue: str, doomed: str | None, **chosen: Any) -> None:
        self.submit_one(who, queue, doomed, **chosen)

    @rule(
        who=consumers,
        queue=st.sampled_from([*QUEUES, *QUEUES, *QUEUES, "unused", "fleet"]),
        count=st.sampled_from([1, 1, 2, 5]),
        lease=leases_asked,
        doomed=doom,
    )
    def take(self, who: int, queue: str, count: int, lease: int | None, doomed: str | None) -> None:
        self.claim(who, queue, count, lease, doomed)

    # what is true after each of them

    @invariant()
    def everything_holds(self) -> None:
        self.forget(self.host.document)
        self.the_document_is_what_the_model_says()
        self.the_counts_add_up()
        self.the_document_obeys_its_invariants()
        self.an_index_kept_by_edits_is_as_one_built_afresh()

    def the_document_is_what_the_model_says(self) -> None:
        document = self.host.document
        for name, life in self.plain.lives.items():
            run = document.runs.get(name)
            if life.state == "pruned":
                assert run is None
            elif life.state in ("succeeded", "discarded"):
                assert run is None, f"{name} has {life.state}, and is there again"
                stone = document.finished[name]
                assert (stone.state == "succeeded", stone.token) == (life.state == "succeeded", life.token)
            else:
                assert run is not None, f"{name} is {life.state}, and lost"
                seen = (run.state, run.attempts, run.failures, run.crashes, run.cancel_requested_at is not None)
                assert seen == (life.state, life.token, life.failures, life.crashes, life.asked), name
                assert (None if run.lease is None else run.lease.owner) == life.owner
                assert {step.name: str(step.state) for step in run.steps} == life.steps
        assert set(document.runs) <= set(self.plain.lives)

    def forget(self, document: Document) -> None:
        """Ended runs may be forgotten, if they are old or too many; every one is counted."""
        for name, life in self.plain.lives.items():
            if life.state in ENDED and name not in document.runs and name not in document.finished:
                ended = [e for e in self.plain.lives.values() if e.queue == life.queue and e.state in ENDED]
                age = self.plain.now - life.ended_at
                keeps = self.host.policy.of_queue(life.queue)
                assert age >= keeps.retention_ms or len(ended) > keeps.retain, f"{name} was forgotten too early"
                life.state = "pruned"
                self.plain.pruned += 1
        assert document.counters.pruned == self.plain.pruned

    def the_counts_add_up(self) -> None:
        document, now = self.host.document, self.plain.now
        sets = {view: size(document, view, now) for view in View}
        states = {state: self.plain.count(state) for state in (*ENDED, "running")}
        assert sets[View.ACTIVE] == states["running"]
        assert sets[View.DEAD] == states["failed"]
        ended = states["cancelled"] + states["succeeded"] + states["discarded"]
        assert self.plain.submitted == sum(sets.values()) + ended + document.counters.pruned + self.plain.gone

    def the_document_obeys_its_invariants(self) -> None:
        at_rest = {"times"}  # a wall clock that was set back may order times wrongly: that is told, and refuses nothing
        assert [each for each in violations(self.host.document) if each.id not in at_rest] == []
        assert [each for each in check(self.host.process().store).violations if each.id not in at_rest] == []

    def an_index_kept_by_edits_is_as_one_built_afresh(self) -> None:
        self.steps += 1
        known = self.contexts[self.steps % 3]
        told = [self.told(context) for context in (known, self.host.process())]
        assert told[0] == told[1], f"remembered {told[0]}, afresh {told[1]}"
        index = known.index(self.host.document)
        ripe = set(index.ripe())
        # One that fell due and waits again, since the clock went back, is found again by the claim that meets it.
        waiting = [
            run.available_at
            for run in self.host.document.runs.values()
            if is_deferred(run, self.plain.now) and run.id not in ripe and run.available_at is not None
        ]
        next_due = index.next_due()
        assert not waiting or (next_due is not None and next_due <= min(waiting)), "nobody would wake for it"

    def told(self, context: Context) -> Any:
        """Everything that a process knows of what is next, and whom a claim of everything would serve."""
        document = context.store.read().document
        index, mono = context.index(document), context.mono_ms
        ripe = sorted(upkeep.ripe(context, document, context.clock.now_ms(), 100))
        served = []
        for queue in QUEUES:
            lease = Lease("everybody", context.boot_id, mono + 1_000, 1_000, document.epoch)
            served.append(leases.take(context, context.draft(document), queue, lease, 100))
        return (
            served,
            index.over(mono, 100),
            index.too_long(mono, 100),
            index.next_deadline(),
            [index.is_free((key, most)) for key in ("k", "l") for most in (1, 2, 3)],
            [index.ended.oldest(queue, 100) for queue in QUEUES],
            [context.indexes.stones(document).ended.oldest(queue, 100) for queue in QUEUES],
            ripe,
        )
