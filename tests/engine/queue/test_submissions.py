"""What is submitted twice: by id, by content within a time, and in the place of another."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from controller.engine import leases
from controller.engine.queue import submit
from controller.engine.submission import Submission, Submitted
from controller.model.errors import Conflict
from tests.engine.queue.kit import Host, step

ONE = Submission(payload=Raw(b"1"), queue="a")


def submitted(host: Host, **fields: Any) -> Submitted:
    (answer,) = submit(host.process(), [Submission(**{"payload": Raw(b"1"), "queue": "a", **fields})])
    return answer


def test_the_same_content_within_the_time_is_the_earlier_run() -> None:
    host = Host()
    first = submitted(host)
    host.clock.advance(59)
    assert submitted(host, unique_ms=60_000) == Submitted(first.run, created=False)


def test_the_same_content_after_the_time_is_a_new_run() -> None:
    host = Host()
    submitted(host)
    host.clock.advance(60)
    assert submitted(host, unique_ms=60_000).created


def test_the_earlier_run_is_found_under_another_id_too() -> None:
    host = Host()
    submitted(host, id="first")
    assert submitted(host, id="second", unique_ms=60_000) == Submitted("first", created=False)


def test_the_earlier_run_is_found_once_it_has_succeeded() -> None:
    host = Host()
    first = submitted(host)
    (run,) = leases.claim(host.process(), "a", owner="c")
    leases.complete(host.process(), run.id, 1)
    assert submitted(host, unique_ms=60_000) == Submitted(first.run, created=False)


@pytest.mark.parametrize("other", [{"payload": Raw(b"2")}, {"queue": "b"}, {"priority": "critical"}])
def test_other_content_or_another_queue_is_a_new_run(other: dict[str, object]) -> None:
    host = Host()
    submitted(host)
    assert submitted(host, **other, unique_ms=60_000).created


def test_a_discarded_run_is_no_earlier_one() -> None:
    host = Host()
    leases.discard(host.process(), submitted(host).run)
    assert submitted(host, unique_ms=60_000).created


def test_a_run_that_was_found_takes_no_number() -> None:
    host = Host()
    submitted(host)
    submit(host.process(), [Submission(payload=Raw(b"1"), queue="a", unique_ms=60_000), ONE])
    assert [*host.document.runs] == ["r-1", "r-2"]


def test_a_replacement_goes_on_from_the_token_of_what_it_replaces() -> None:
    host = Host()
    submitted(host, id="job")
    leases.claim(host.process(), "a", owner="c")
    assert submitted(host, id="job", payload=Raw(b"2"), replace=True).created
    (again,) = leases.claim(host.process(), "a", owner="d")
    assert (again.id, again.attempts, again.failures) == ("job", 2, 0)


def test_what_was_never_there_is_replaced_by_being_made() -> None:
    host = Host()
    assert submitted(host, id="job", replace=True) == Submitted("job", created=True)


def test_a_payload_alone_is_refused_by_the_fleet_and_nothing_changes() -> None:
    host = Host()
    before = host.disk.evidence()
    with pytest.raises(Conflict, match="the fleet's"):
        submitted(host, queue="fleet")
    assert host.disk.evidence() == before


def test_steps_are_taken_by_any_queue() -> None:
    host = Host()
    submitted(host, id="steps", steps=(step("one"),))
    (run,) = leases.claim(host.process(), "a", owner="c")
    leases.complete(host.process(), run.id, 1)
    assert host.stone("steps").steps[0].state == "succeeded"


def test_a_policy_gives_the_budgets_that_a_submitter_leaves_out() -> None:
    from tests.engine.queue.kit import policy, steady

    host = Host(chosen=policy(a=steady(attempts=4, crashes=7)))
    submitted(host, id="left")
    submitted(host, id="chosen", max_attempts=2)
    assert [(run.max_attempts, run.max_crashes) for run in host.document.runs.values()] == [(4, 7), (2, 2)]
