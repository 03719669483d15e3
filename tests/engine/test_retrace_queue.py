"""Whatever happens to runs of consumers, history leads to their records, and every record can be explained."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from msgspec import UNSET, Raw
from msgspec.structs import replace

from controller.engine import leases, queue, upkeep
from controller.engine.explain import Surroundings, explain_run
from controller.engine.fsck import check
from controller.engine.moves import in_words
from controller.engine.story import Begins, Story, tell_run
from controller.model.records import Event, Run, RunState, Tombstone
from controller.model.transition import Trigger
from tests.engine.queue.kit import Host, step
from tests.engine.walk import Act, acts, walk


@pytest.fixture
def host() -> Host:
    return Host()


def records(host: Host) -> list[Run | Tombstone]:
    document = host.document
    return [*document.runs.values(), *document.finished.values()]


def history(host: Host, run_id: str) -> tuple[Event, ...]:
    return host.process().store.history(f"run:{run_id}")


def story(host: Host, run_id: str = "x") -> Story:
    found = host.document.runs.get(run_id) or host.document.finished[run_id]
    return tell_run(found, history(host, run_id))


def told(host: Host, run_id: str = "x") -> list[str]:
    """What the story says, of a history that must agree with its record."""
    found = story(host, run_id)
    assert found.disagreements == ()
    assert found.agrees
    return [each.what for each in found.told]


@settings(max_examples=200, deadline=None)
@given(acts())
def test_every_history_leads_to_its_record_from_wherever_it_is_kept(done: list[Act]) -> None:
    host = walk(done)
    for found in records(host):
        events = history(host, found.id)
        whole = tell_run(found, events)
        assert whole.disagreements == ()
        assert (whole.begins, whole.state, whole.agrees) == (Begins.BEGINNING, found.state, True)
        for first in sorted({event.revision for event in events})[1:]:
            part = tell_run(found, [event for event in events if event.revision >= first])
            assert part.disagreements == (), f"from revision {first}"
            assert part.state == found.state


@settings(max_examples=100, deadline=None)
@given(acts())
def test_a_document_and_its_history_stay_clean(done: list[Act]) -> None:
    found = check(walk(done).process().store).violations
    assert [each for each in found if each.id != "times"] == []  # a wall clock that goes back is told, and no fault


@settings(max_examples=100, deadline=None)
@given(acts())
def test_every_run_is_explained_in_sentences(done: list[Act]) -> None:
    host = walk(done)
    document = host.document
    for found in records(host):
        around = Surroundings(
            history(host, found.id), (), {}, 1, ("fleet",), host.clock.now_ms(), host.mono_ms, host.boot_id
        )
        answer = explain_run(document, found.id, around)
        sentences = [*answer.because, *(move.what for move in answer.moves), *in_words(answer.moves)]
        assert answer.because
        assert all(sentence.endswith((".", ")")) and "  " not in sentence for sentence in sentences)
        assert all(answer.next)
        assert answer.next or found.state == "succeeded"


# What single lives read like


def test_fifty_heartbeats_are_one_sentence(host: Host) -> None:
    host.submit("x", max_attempts=2)
    leases.claim(host.process(), "a", owner="one")
    for _ in range(50):
        host.clock.advance(1)
        leases.heartbeat(host.process(), "x", 1)
    assert told(host) == ["Submitted.", "Life 1 runs, held by one; it sent 50 heartbeats."]
    last = story(host).told[-1]
    assert last.until - last.at == 50_000
    leases.complete(host.process(), "x", 1)
    assert told(host) == ["Submitted.", "Life 1 was completed by its holder."]


def test_a_run_that_was_discarded_and_submitted_again_has_the_story_of_its_last_submission(host: Host) -> None:
    host.submit("x", max_attempts=2)
    leases.claim(host.process(), "a", owner="one")
    leases.discard(host.process(), "x")
    assert told(host) == ["Submitted.", "Life 1 was taken from its holder.", "Taken out for good: discarded."]
    host.submit("x")
    assert told(host) == ["Submitted; earlier runs of this id had lives up to 1."]
    leases.claim(host.process(), "a", owner="two")
    assert told(host)[-1] == "Life 2 runs, held by two."


def test_a_run_that_was_replaced_has_the_story_of_what_took_its_place(host: Host) -> None:
    host.submit("x", max_attempts=2)
    leases.claim(host.process(), "a", owner="one")
    leases.drain(host.process(), "x", 1)
    host.submit("x", payload=Raw(b"2"), replace=True)
    assert told(host) == ["Submitted; earlier runs of this id had lives up to 1."]


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_an_ended_run_that_was_discarded_is_cancelled_for_its_history_too(host: Host, end: str) -> None:
    host.submit("x")
    if end == "cancelled":
        queue.cancel(host.process(), "x")
    else:
        leases.claim(host.process(), "a", owner="one")
        leases.retry(host.process(), "x", 1, error="no")
    leases.discard(host.process(), "x")
    assert told(host)[-1] == "Taken out for good: discarded."
    assert story(host).state == "cancelled"


def test_what_was_discarded_from_its_queue_is_told_once(host: Host) -> None:
    host.submit("x")
    leases.discard(host.process(), "x")
    assert told(host) == ["Submitted.", "Taken out for good: discarded."]


def test_lives_that_ran_out_are_told_once_also_with_heartbeats(host: Host) -> None:
    host.submit("x", max_attempts=5)
    for token in (1, 2, 3):
        leases.claim(host.process(), "a", owner="one", lease_ms=40)
        for _ in range(token):
            leases.heartbeat(host.process(), "x", token)
        host.clock.advance(1)
        upkeep.reap(host.process())
    assert told(host)[1] == (
        "Lives 1 to 3 went alike; each was lost after it had sent heartbeats: the lease of one ran out. "
        "The run went back to its queue: queued again after its holder was lost."
    )


def test_a_lease_that_was_shortened_is_no_contradiction(host: Host) -> None:
    host.submit("x", max_attempts=2)
    (run,) = leases.claim(host.process(), "a", owner="one")
    events = history(host, "x")
    shortened = replace(events[-1], revision=9, event="lease_shortened", from_="running", to="running")
    assert tell_run(run, [*events, shortened]).disagreements == ()


def test_a_step_that_goes_down_with_the_last_life_had_attempts_left(host: Host) -> None:
    steps = (step("first", attempts=3), step("second", "first"))
    host.submit("x", steps=steps, payload=UNSET)
    leases.claim(host.process(), "a", owner="one")
    leases.step(host.process(), "x", "first", 1, Trigger.STEP_STARTED)
    leases.retry(host.process(), "x", 1, error="no")
    assert host.run("x").state is RunState.FAILED
    assert told(host)[-1].endswith("The run failed for good: its consumer reported a failure.")


def heard(*events: Event) -> Sequence[str]:
    run = Run("x", "a", 1, 1, (), RunState.QUEUED, attempts=1)
    return tell_run(run, events).disagreements


def event(name: str, came: str | None, to: str | None, token: int | None = None) -> Event:
    return Event(2, 1, 1, "test", "run:x", name, came, to, token=token)


SUBMITTED = event("submitted", None, "queued")
CLAIMED = event("claim", "queued", "running", 1)


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([SUBMITTED, event("heartbeat", "running", "running", 1)], "from running, but what came before led to queued"),
        ([SUBMITTED, CLAIMED, event("heartbeat", "running", "running", 2)], "token 2, but the last one given was 1"),
        ([SUBMITTED, event("discarded", "queued", "cancelled")], "only what has failed or is cancelled is taken out"),
        ([SUBMITTED, event("discarded", "failed", "cancelled")], "from failed, but what came before led to queued"),
        ([SUBMITTED, event("discarded", "odd", "cancelled")], "there is no state 'odd'"),
        ([replace(SUBMITTED, token=3), CLAIMED], "gave token 1 after token 3: tokens only climb"),
    ],
)
def test_what_no_consumer_can_have_done_is_said_plainly(events: Sequence[Event], says: str) -> None:
    assert says in "\n".join(heard(*events))
