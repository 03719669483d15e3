"""Every state that a queue can leave a run in is told as a person would say it, with what to do next."""

from __future__ import annotations

import pytest
from msgspec import Raw
from msgspec.structs import replace

from controller.engine import leases, queue, upkeep
from controller.engine.explain import Explanation, Surroundings, explain_run
from controller.engine.moves import in_words
from controller.engine.standing import MOST_SHOWN, span
from controller.model.errors import NotFound
from controller.model.reason import EXPLAINED, Reason
from controller.model.records import Priority, RunState
from controller.model.transition import Trigger, Why
from tests.engine.queue import kit
from tests.engine.queue.kit import Host, rewrite, step

WORK = "controller queue work --queue a -- COMMAND"


@pytest.fixture
def host() -> Host:
    return Host()


def explain(host: Host, run_id: str = "x", *, queues: tuple[str, ...] = ("fleet",)) -> Explanation:
    store = host.process().store
    events = store.history("fleet")
    return explain_run(
        host.document,
        run_id,
        Surroundings(
            events=store.history(f"run:{run_id}"),
            refusals=(),
            notes={},
            slots=1,
            queues=queues,
            now=host.clock.now_ms(),
            mono_ms=host.mono_ms,
            boot_id=host.boot_id,
            paused=next((event for event in reversed(events) if event.event == "queue_paused"), None),
        ),
    )


def claim(host: Host, *, lease_ms: int = 60_000, count: int = 1, owner: str = "one") -> None:
    leases.claim(host.process(), "a", owner=owner, lease_ms=lease_ms, count=count)


def could(found: Explanation) -> str:
    return "\n".join(in_words(found.moves))


def refused(found: Explanation) -> dict[Trigger, Why | None]:
    return {move.event: move.refused for move in found.moves}


# Pending


def test_a_run_that_nobody_takes_says_where_it_stands_and_how_a_consumer_is_started(host: Host) -> None:
    host.submit("u", priority=Priority.CRITICAL)
    host.submit("v", "w", "x")
    host.clock.advance(7)
    found = explain(host)
    place = "In queue a, layer normal, it has waited 7 s"
    assert found.because == (
        f"{place}, and 2 runs of its layer and 1 run of earlier layers are before it.",
        "Queue a is served by consumers, not by the fleet, and nobody has ever claimed from it.",
    )
    assert found.next == (WORK,)
    assert could(found).startswith(
        "A consumer that takes it begins its life 1.\n`controller cancel x` cancels it at once."
    )


def test_the_first_of_a_queue_has_none_before_it_and_one_is_one(host: Host) -> None:
    host.submit("x", "y")
    assert "it has waited 0 s, and no other is before it." in explain(host).because[0]
    assert "1 run of its layer is before it." in explain(host, "y").because[0]


def test_a_queue_that_is_claimed_from_says_how_many_are_held_now(host: Host) -> None:
    host.submit("u", "v", "x")
    claim(host)
    assert "who hold 1 run of it now." in explain(host).because[-1]
    claim(host)
    assert "who hold 2 runs of it now." in explain(host).because[-1]
    for run_id in ("u", "v"):
        leases.complete(host.process(), run_id, 1)
    assert "who hold none of it now." in explain(host).because[-1]
    assert explain(host).next == (WORK,)


def test_a_paused_queue_says_since_when_by_what_and_how_to_go_on(host: Host) -> None:
    host.submit("x")
    upkeep.set_paused(host.process(), "a", True)
    host.clock.advance(600)
    found = explain(host)
    assert found.because[0] == "Its queue a is paused since 10 min, by `test`: nothing of it is handed out."
    assert found.next == ("controller queue resume a",)


def test_a_paused_queue_of_the_fleet_keeps_its_runs_too(host: Host) -> None:
    host.submit("x", steps=(step("main"),), payload=kit.UNSET)
    upkeep.set_paused(host.process(), "a", True)
    found = explain(host, queues=("a",))
    assert found.because == ("Its queue a is paused since 0 s, by `test`: nothing of it is handed out.",)


def test_a_full_key_names_who_holds_it_as_things_stand_now(host: Host) -> None:
    host.submit("u", "v", "x", concurrency_key="mail", concurrency=1)
    claim(host)
    assert host.run("x").defer_reason is Reason.CONCURRENCY
    found = explain(host)
    assert found.because[0] == (
        "It waits for its concurrency key mail: at most 1 of its runs runs at once, now u (held by one)."
    )
    assert "no other is before it" in found.because[1], "what waits for the same key is in nobody's way"
    assert found.next == ("controller explain u",)
    leases.drain(host.process(), "u", 1)
    assert host.run("x").defer_reason is Reason.CONCURRENCY, "the record says so still"
    assert "concurrency" not in " ".join(explain(host).because)


def test_a_key_that_many_hold_names_the_first_of_them(host: Host) -> None:
    host.submit("q", "r", "s", "t", "u", "x", concurrency_key="mail", concurrency=5)
    claim(host, count=5)
    said = explain(host).because[0]
    assert (
        "at most 5 of its runs run at once, now q (held by one), r (held by one), s (held by one) and 2 more." in said
    )


# Scheduled


def test_a_run_for_later_says_until_when_and_how_it_is_let_in_at_once(host: Host) -> None:
    host.submit("x", delay_ms=3 * 3_600_000)
    found = explain(host)
    assert found.because[:2] == (
        "It waits another 3 h (until 2023-11-15T01:13:20Z): submitted for later.",
        EXPLAINED[Reason.SUBMITTED_FOR_LATER].why,
    )
    assert found.next[-1] == "controller queue promote x"
    assert refused(found)[Trigger.CLAIM] is Why.NOT_AVAILABLE
    upkeep.promote(host.process(), ["x"])
    assert "it has waited 0 s" in explain(host).because[0]


def test_a_time_that_no_calendar_has_is_told_too(host: Host) -> None:
    host.submit("x", at=9 * 10**17)
    assert explain(host).because[0].startswith("It waits another 1041")


def test_a_failed_life_says_what_failed_and_when_the_next_begins(host: Host) -> None:
    host.submit("x", max_attempts=3)
    claim(host)
    leases.retry(host.process(), "x", 1, error="no route")
    found = explain(host)
    assert found.because[0] == "It waits another 1 s: waits before its next life."
    assert found.because[-2:] == ("Its last error: no route.", "1 of 3 allowed lives failed, 0 of 3 were lost.")
    host.clock.advance(1)
    assert explain(host).because[0] == "It is due again: its last life failed."


def test_a_lost_life_says_whose_lease_ran_out(host: Host) -> None:
    host.submit("x", max_attempts=2)
    claim(host, lease_ms=40)
    host.clock.advance(1)
    upkeep.reap(host.process())
    found = explain(host)
    assert found.because[0] == "It is due again: its last holder was lost."
    assert "Its last error: the lease of one ran out." in found.because
    assert "0 of 2 allowed lives failed, 1 of 2 were lost." in found.because


def test_a_run_that_was_given_back_says_so(host: Host) -> None:
    host.submit("x")
    claim(host)
    leases.drain(host.process(), "x", 1)
    assert explain(host).because[0] == "It is due again: its last holder gave it back."


def test_a_fleet_run_has_nothing_to_do_with_consumers(host: Host) -> None:
    host.submit("x", steps=(step("main"),), payload=kit.UNSET)
    found = explain(host, queues=("a",))
    assert found.because == ("It is due and a slot is free: the next reconcile takes it.",)
    assert "A worker that takes it" in could(found)


# Active


def test_a_held_run_says_by_whom_how_long_and_what_was_heard(host: Host) -> None:
    host.submit("x")
    claim(host)
    host.clock.advance(20)
    found = explain(host)
    assert found.because == (
        "one holds it under token 1.",
        "Its lease lasts another 40 s of 60 s, unless a heartbeat renews it.",
        "No heartbeat came since it was claimed, 20 s ago.",
    )
    assert found.next == ("controller wait --no-drive x",)
    leases.heartbeat(host.process(), "x", 1, lease_ms=30_000, progress=Raw(b'{"sent":12}'))
    host.clock.advance(5)
    assert explain(host).because[1:] == (
        "Its lease lasts another 25 s of 30 s, unless a heartbeat renews it.",
        "Its last heartbeat came 5 s ago.",
        'It said of its progress: {"sent":12}.',
    )


def test_what_could_move_a_held_run_is_said_of_a_consumer(host: Host) -> None:
    host.submit("x", max_attempts=2)
    claim(host)
    found = explain(host)
    assert refused(found)[Trigger.LEASE_EXPIRED] is Why.LEASE_STILL_VALID
    lost = "Its holder's loss sends it back to its queue: 0 of 2 allowed were lost so far."
    assert could(found).splitlines()[:5] == [
        "`controller cancel x` ends it once its holder was told with a heartbeat and gives it back.",
        "Completed by its holder, it is succeeded.",
        "A failure of this life sends it back to its queue: 0 of 2 allowed have failed so far.",
        f"Nobody else gets it: its holder's lease is still valid. {lost}",
        "Given back by its holder, it is queued again, and no budget is spent.",
    ]


def test_a_lease_that_ran_out_is_over_but_still_its_holders(host: Host) -> None:
    host.submit("x")
    claim(host, lease_ms=1_000)
    host.clock.advance(4)
    found = explain(host)
    assert found.because[1] == (
        "Its lease ran out 3 s ago; until somebody takes the run back, its holder may still complete it."
    )
    assert found.next == ("controller queue reap",)
    assert "`controller queue reap` is its end: 0 of 1 allowed were lost so far." in could(found)
    assert "`controller cancel x` takes it back and cancels it at once." in could(found)
    assert refused(found)[Trigger.ALL_STEPS_DONE] is None


def test_a_wall_clock_that_jumps_tells_nothing_of_a_lease(host: Host) -> None:
    host.submit("x")
    claim(host)
    host.clock.jump(7_200)
    assert "Its lease lasts another 60 s of 60 s" in explain(host).because[1]


def test_a_lease_of_an_earlier_boot_is_over(host: Host) -> None:
    host.submit("x")
    claim(host)
    host.reboot()
    found = explain(host)
    assert "granted before this host was rebooted, so it is over" in found.because[1]
    assert found.next == ("controller queue reap",)


def test_a_cancel_says_whether_its_holder_was_told(host: Host) -> None:
    host.submit("x")
    claim(host)
    leases.heartbeat(host.process(), "x", 1)
    queue.cancel(host.process(), "x")
    host.clock.advance(3)
    assert explain(host).because[0] == "A cancel was requested 3 s ago; its holder is told with its next heartbeat."
    leases.heartbeat(host.process(), "x", 1)
    found = explain(host)
    assert found.because[0] == "A cancel was requested 3 s ago; its holder was told with a heartbeat since."
    assert "Given back by its holder, it is cancelled, since that was requested." in could(found)
    assert "The cancel that was requested ends it once its holder was told" in could(found)
    leases.drain(host.process(), "x", 1)
    assert explain(host).state == "cancelled"


def test_heartbeats_of_an_earlier_life_are_not_those_of_this_one(host: Host) -> None:
    host.submit("x", max_attempts=2)
    claim(host)
    leases.heartbeat(host.process(), "x", 1)
    leases.drain(host.process(), "x", 1)
    claim(host, owner="two")
    assert "No heartbeat came since it was claimed" in " ".join(explain(host).because)


def test_long_progress_is_cut(host: Host) -> None:
    host.submit("x")
    claim(host)
    leases.heartbeat(host.process(), "x", 1, progress=kit.payload("é" * 10_000))
    said = explain(host).because[-1]
    assert said.endswith("... (cut).")
    assert len(said) < MOST_SHOWN + 60


def test_the_only_step_of_a_run_needs_no_report_of_its_own(host: Host) -> None:
    host.submit("x", steps=(step("main"),), payload=kit.UNSET)
    claim(host)
    assert refused(explain(host))[Trigger.ALL_STEPS_DONE] is None
    leases.step(host.process(), "x", "main", 1, Trigger.STEP_STARTED)
    assert "Completed by its holder, it is succeeded." in could(explain(host))


def test_what_complete_does_after_a_failed_step_is_what_it_says(host: Host) -> None:
    host.submit("x", steps=(step("first"), step("second", "first")), payload=kit.UNSET, max_attempts=2)
    claim(host)
    leases.step(host.process(), "x", "first", 1, Trigger.STEP_STARTED)
    assert refused(explain(host))[Trigger.ALL_STEPS_DONE] is Why.STEPS_NOT_TERMINAL
    leases.step(host.process(), "x", "first", 1, Trigger.STEP_FAILED)
    assert "Completed by its holder, it is queued." in could(explain(host))
    leases.complete(host.process(), "x", 1)
    assert explain(host).state == "queued"


# Dead, cancelled, gone


def test_a_run_that_failed_for_good_says_by_which_budget_and_where_its_logs_are(host: Host) -> None:
    host.submit("x", max_attempts=2)
    for token in (1, 2):
        claim(host)
        leases.retry(host.process(), "x", token, error="no route", delay_ms=0)
    found = explain(host)
    assert found.because == (
        EXPLAINED[Reason.ATTEMPTS_EXHAUSTED].why,
        "What it wrote is kept by its consumer, if anywhere.",
        "Its last error: no route.",
        "2 of 2 allowed lives failed, 0 of 2 were lost.",
    )
    assert found.next == ("controller retry x", "controller queue discard x")
    assert "`controller retry x` queues it again; it has its budgets anew." in could(found)


def test_a_run_that_lost_every_holder_says_so(host: Host) -> None:
    host.submit("x", max_attempts=5, max_crashes=1)
    claim(host, lease_ms=40)
    host.clock.advance(1)
    upkeep.reap(host.process())
    found = explain(host)
    assert found.state == "failed"
    assert EXPLAINED[Reason.CRASHES_EXHAUSTED].why in found.because
    assert "0 of 5 allowed lives failed, 1 of 1 were lost." in found.because
    assert found.next == (EXPLAINED[Reason.CRASHES_EXHAUSTED].next.replace("RUN", "x"),)


def test_a_payload_that_is_no_good_says_so_at_once(host: Host) -> None:
    host.submit("x", max_attempts=5)
    claim(host)
    leases.fail(host.process(), "x", 1, error="no address", reason=Reason.INVALID_PAYLOAD)
    found = explain(host)
    assert found.because[0] == EXPLAINED[Reason.INVALID_PAYLOAD].why
    assert "--payload JSON" in found.next[0]


def test_a_cancelled_run_says_so(host: Host) -> None:
    host.submit("x")
    queue.cancel(host.process(), "x")
    found = explain(host)
    assert (found.state, found.because) == ("cancelled", (EXPLAINED[Reason.CANCELLED].why,))


def test_a_completed_run_says_by_whom_with_what_and_what_came_after_it(host: Host) -> None:
    host.submit("x", "y")
    claim(host)
    leases.complete(host.process(), "x", 1, result=Raw(b'{"sent":12}'), claim_next=True)
    host.clock.advance(130)
    found = explain(host)
    assert found.because == (
        "It has succeeded in its life 1 and left the document; this much is kept of it.",
        'one completed it 2 min ago under token 1, with the result {"sent":12}.',
        "With the report of its end its holder got run y, under token 1.",
    )
    assert could(found).startswith("Nothing moves it any more.\n")
    leases.complete(host.process(), "y", 1)
    assert explain(host, "y").because[1] == "one completed it 0 s ago under token 1, and left no result."


def test_a_run_that_was_cancelled_in_hand_says_what_its_holder_got_next(host: Host) -> None:
    host.submit("x", "y")
    claim(host)
    queue.cancel(host.process(), "x")
    leases.complete(host.process(), "x", 1, claim_next=True)
    found = explain(host)
    assert found.state == "cancelled"
    assert "With the report of its end its holder got run y, under token 1." in found.because


def test_a_discarded_run_says_so_and_who_is_shut_out(host: Host) -> None:
    host.submit("x")
    claim(host)
    leases.discard(host.process(), "x")
    host.clock.advance(5)
    found = explain(host)
    assert found.because == (
        "It was discarded 5 s ago and left the document; this much is kept of it.",
        EXPLAINED[Reason.DISCARDED].why,
        "one held it under token 1; what it reports of it is refused since.",
    )
    assert found.next == (EXPLAINED[Reason.DISCARDED].next,)
    assert could(found).startswith("Nothing moves it any more.\n"), "not even a retry: it has left"
    assert {move.to for move in found.moves} == {None}


def test_a_forgotten_run_is_not_taken_for_one_that_never_was() -> None:
    host = Host(chosen=kit.policy(a=kit.steady(retain=1)))
    for run_id in ("x", "y", "z"):
        host.submit(run_id)
        claim(host)
        leases.complete(host.process(), run_id, 1)
    host.submit("more")
    with pytest.raises(NotFound, match="run x had succeeded and was forgotten") as gone:
        explain(host)
    assert gone.value.where == "its last token was 1"
    assert gone.value.next == "controller history x"
    with pytest.raises(NotFound, match="no run never"):
        explain(host, "never")


# What is odd


def test_a_record_that_no_verb_would_make_is_explained_too(host: Host) -> None:
    host.submit("x")
    rewrite(host, replace(host.run("x"), cancel_requested_at=kit.NOW, reason=Reason.CANCELLED))
    found = explain(host)
    assert "the next claim that would take it cancels it instead" in " ".join(found.because)
    assert "controller cancel x" in found.next
    assert queue.cancel(host.process(), "x").state is RunState.CANCELLED


@pytest.mark.parametrize(
    ("ms", "says"),
    [
        (-5, "0 s"),
        (0, "0 s"),
        (1, "1 s"),
        (119_000, "119 s"),
        (120_000, "2 min"),
        (7_200_000, "2 h"),
        (10**9, "11 days"),
    ],
)
def test_a_length_of_time_has_one_unit(ms: int, says: str) -> None:
    assert span(ms) == says
