"""Which run is served next: layers, ties, the bound on starving, and what cannot be served now."""

from __future__ import annotations

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.engine import leases, upkeep
from controller.engine import queue as runs
from controller.engine.queue import Context
from controller.model.records import Priority
from controller.store.memory import MemoryDisk
from tests.engine.queue import kit
from tests.engine.queue.kit import Host, Memory

LAYERS = ("forced", "critical", "scheduled", "normal", "background")


def claimed(context: Context, count: int = 1, queue: str = "a") -> list[str]:
    return [run.id for run in leases.claim(context, queue, owner="c", count=count)]


def test_priority_layers_are_served_in_their_order_and_oldest_first_within_one(host: Host) -> None:
    for layer in reversed(LAYERS):
        host.submit(f"{layer}-1", f"{layer}-2", priority=Priority(layer))
    assert claimed(host.process(), 10) == [f"{layer}-{n}" for layer in LAYERS for n in (1, 2)]


def test_a_forced_run_goes_before_runs_that_wait_longer(host: Host) -> None:
    host.submit("old", priority=Priority.CRITICAL)
    host.clock.advance(3600)
    host.submit("urgent", priority=Priority.FORCED)
    assert claimed(host.process(), 2) == ["urgent", "old"]


@given(order=st.permutations(["m", "z", "a", "q"]))
@settings(max_examples=24)
def test_a_tie_is_broken_by_id_however_the_document_came_about(order: list[str]) -> None:
    """Equal layer, time and sequence: only a document that was put together by hand has that, and it is total too."""
    first = Host()
    first.submit(*order)
    document = first.document
    same = {name: kit.replace(document.runs[name], sequence=1) for name in order}
    made = Host(Memory(MemoryDisk(kit.replace(document, runs=same))))
    assert claimed(made.process(), 4) == sorted(order)


def test_two_processes_with_the_same_document_choose_the_same_run(host: Host) -> None:
    host.submit("b", "a", "c")
    for queue in ("a", "b"):
        twin = Host(host.disk.twin())
        assert claimed(twin.process()) == ["b"], queue
    known = host.process()
    assert claimed(known) == ["b"]
    host.submit("0")
    assert claimed(known, 3) == ["a", "c", "0"]


def served(host: Host, claims: int) -> list[str]:
    """Claim and complete so often, while a stream of critical runs never runs dry."""
    order = []
    for number in range(claims):
        host.clock.advance(1)
        host.submit(f"stream-{number}", priority=Priority.CRITICAL)
        (run,) = leases.claim(host.process(), "a", owner="c")
        leases.complete(host.process(), run.id, run.attempts)
        order.append(run.id)
    return order


def test_nobody_starves_one_claim_in_sixteen_serves_the_longest_waiting_of_any_layer(host: Host) -> None:
    host.submit("normal")
    host.clock.advance(1)
    host.submit("background-1", "background-2", priority=Priority.BACKGROUND)
    order = served(host, 48)
    assert [(turn, run) for turn, run in enumerate(order, 1) if not run.startswith("stream")] == [
        (16, "normal"),
        (32, "background-1"),
        (48, "background-2"),
    ]


def test_the_turn_is_counted_in_the_document_and_for_each_queue_by_itself(host: Host) -> None:
    host.submit("patient", priority=Priority.BACKGROUND)
    host.submit("other", queue="b", priority=Priority.BACKGROUND)
    order = served(host, 15)  # each claim by a process of its own
    assert "patient" not in order
    assert host.document.queues["a"].claims == 15
    host.submit("hurried", queue="b", priority=Priority.CRITICAL)
    assert claimed(host.process(), queue="b") == ["hurried"]
    assert claimed(host.process()) == ["patient"]
    assert (host.document.queues["a"].claims, host.document.queues["b"].claims) == (16, 1)


def test_a_claim_of_several_has_its_fair_turn_where_it_falls(host: Host) -> None:
    host.submit("patient", priority=Priority.BACKGROUND)
    host.clock.advance(1)
    host.submit(*(f"run-{n:02}" for n in range(20)))
    got = claimed(host.process(), 18)
    assert got.index("patient") == 15


def test_the_fair_turn_passes_over_what_cannot_be_claimed_and_over_forced_runs(host: Host) -> None:
    host.submit("held", concurrency_key="k")
    assert claimed(host.process()) == ["held"]
    host.clock.advance(1)
    host.submit("blocked", priority=Priority.BACKGROUND, concurrency_key="k")
    host.submit("later", priority=Priority.BACKGROUND, delay_ms=3_600_000)
    host.clock.advance(1)
    host.submit("patient", priority=Priority.BACKGROUND)
    order = served(host, 15)
    assert order[14] == "patient"
    assert not {"blocked", "later"} & set(order)


def test_how_long_a_run_waits_for_its_key_counts_as_waiting(host: Host) -> None:
    host.submit("held", "blocked", priority=Priority.BACKGROUND, concurrency_key="k")
    host.clock.advance(1)
    host.submit("younger", priority=Priority.BACKGROUND)
    host.clock.advance(1)
    (held,) = leases.claim(host.process(), "a", owner="c", lease_ms=86_400_000)
    served(host, 14)
    leases.complete(host.process(), held.id, held.attempts)
    host.submit("hurried", priority=Priority.CRITICAL)
    assert claimed(host.process()) == ["blocked"]


def test_one_whose_key_is_full_falls_through_to_the_next_and_says_why_it_waits(host: Host) -> None:
    host.submit("first", "second", concurrency_key="k")
    host.submit("third")
    assert claimed(host.process(), 3) == ["first", "third"]
    waiting = host.run("second")
    assert (waiting.state, waiting.defer_reason, waiting.attempts) == ("queued", "concurrency", 0)


def test_runs_whose_key_is_full_hide_nobody_however_many_they_are(host: Host) -> None:
    host.submit(*(f"blocked-{n}" for n in range(40)), concurrency_key="k")
    host.submit("free", priority=Priority.BACKGROUND)
    assert claimed(host.process()) == ["blocked-0"]
    assert claimed(host.process()) == ["free"]
    assert claimed(host.process()) == []
    leases.complete(host.process(), "blocked-0", 1)
    assert claimed(host.process(), 2) == ["blocked-1"]


def test_many_keys_that_are_full_hide_nobody(host: Host) -> None:
    for number in range(12):
        host.submit(f"holder-{number}", f"blocked-{number}", concurrency_key=f"k-{number}")
    host.submit("free", priority=Priority.BACKGROUND)
    assert len(claimed(host.process(), 12)) == 12
    assert claimed(host.process()) == ["free"]


def test_runs_that_wait_again_because_the_clock_went_back_hide_nobody(host: Host) -> None:
    host.submit(*(f"later-{n}" for n in range(9)), delay_ms=60_000)
    host.submit("free", priority=Priority.BACKGROUND)
    known = host.process()
    host.clock.advance(60)
    assert claimed(known) == ["later-0"]
    host.clock.jump(-60)
    assert claimed(known) == ["free"]


def test_a_run_that_waits_again_since_the_clock_went_back_hides_nobody_behind_its_key(host: Host) -> None:
    host.submit("early", priority=Priority.CRITICAL, concurrency_key="k", delay_ms=1_000)
    host.submit("behind", concurrency_key="k")
    host.submit("first", priority=Priority.FORCED)
    known = host.process()
    host.clock.advance(1)
    assert claimed(known) == ["first"]
    host.clock.jump(-1)
    assert claimed(known) == ["behind"]


def test_a_paused_queue_gives_nothing_and_resumed_it_gives_the_same_order(host: Host) -> None:
    host.submit("a", "b")
    assert upkeep.set_paused(host.process(), "a", True)
    assert claimed(host.process(), 2) == []
    assert not upkeep.set_paused(host.process(), "a", True)
    assert upkeep.set_paused(host.process(), "a", False)
    assert claimed(host.process(), 2) == ["a", "b"]


def test_a_cancelled_run_in_the_line_is_passed_over(host: Host) -> None:
    host.submit("first", "second", max_attempts=2)
    (run,) = leases.claim(host.process(), "a", owner="c")
    runs.cancel(host.process(), "first")
    leases.drain(host.process(), run.id, run.attempts)
    assert claimed(host.process()) == ["second"]
    assert claimed(host.process()) == []
    assert host.run("first").state == "cancelled"


def test_a_run_that_fell_due_is_served_by_a_plain_claim_without_a_promotion(host: Host) -> None:
    host.submit("later", delay_ms=1_000)
    known = host.process()
    assert claimed(known) == []
    host.clock.advance(1)
    assert claimed(known) == ["later"]


def test_claiming_reads_no_run_that_is_not_a_candidate(host: Host) -> None:
    """What is claimed in a queue does not depend on what stands in others."""
    host.submit(*(f"b-{n}" for n in range(30)), queue="b")
    host.submit("a-1")
    assert claimed(host.process()) == ["a-1"]
    assert claimed(host.process(), queue="nobody-used-it") == []
    assert "nobody-used-it" not in host.document.queues


def test_threads_that_share_a_context_do_not_share_an_index(host: Host) -> None:
    host.submit("one", "two")
    shared = host.process()
    document = shared.store.read().document
    found: list[object] = [shared.index(document)]
    thread = threading.Thread(target=lambda: found.append(shared.index(document)))
    thread.start()
    thread.join()
    assert found[0] is shared.index(document)
    assert found[1] is not found[0]
