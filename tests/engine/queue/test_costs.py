"""What a verb looks at does not grow with how much there is. Counted, never timed: records that are decoded, calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import pytest
from msgspec import Raw, Struct, json

from controller.engine import leases, upkeep
from controller.engine import queue as runs
from controller.engine.browse import browse, queues, size
from controller.engine.claiming import wakes
from controller.engine.index import Index
from controller.engine.queue import Context
from controller.engine.submission import Submission
from controller.model.mapping import Records, Source
from controller.model.policy import FLEET_QUEUE
from controller.model.records import Document, Run, RunState, Tombstone, Worker
from controller.model.views import View
from tests.engine.queue.kit import NOW, Host, Memory, policy, replace, steady

FEW, MANY = 100, 1_000


class Counted:
    """A section none of whose records is decoded yet, and which of them were."""

    def __init__(self, kind: type[Struct], records: Mapping[str, Struct]) -> None:
        self.decoded: list[Any] = []
        self._decode = json.Decoder(kind).decode
        self.records: Records[str, Any] = Records.lazy(Source(self._counted, str, json.encode(records)))

    def _counted(self, raw: Raw) -> Any:
        record = self._decode(raw)
        self.decoded.append(record)
        return record


class Stocked:
    """A host with many runs and tombstones."""

    def __init__(self, count: int, *, stones: int = 0, retain: int = 10_000, **fields: Any) -> None:
        self.host = Host(Memory(), policy(a=steady(retain=retain)))
        self.host.submit("template")
        template = self.host.run("template")
        made = (f"old-{n}" for n in range(count))
        waiting = {
            name: replace(template, **{"id": name, "sequence": n, "content": f"c{n}", **fields})
            for n, name in enumerate(made, 1)
        }
        ended = {
            f"done-{n}": Tombstone(f"done-{n}", "a", n, 1, NOW - 9, NOW - 5, RunState.SUCCEEDED, f"d{n}")
            for n in range(stones)
        }
        self.runs, self.stones = Counted(Run, waiting), Counted(Tombstone, ended)
        document = self.host.document
        self.put(runs=self.runs.records, finished=self.stones.records)
        self.put(counters=replace(document.counters, sequence=count + 1, run=count))

    def put(self, **sections: Any) -> None:
        disk = self.host.disk
        assert isinstance(disk, Memory)
        disk.disk.document = replace(self.host.document, **sections)

    @property
    def decoded(self) -> int:
        return len(self.runs.decoded) + len(self.stones.decoded)

    def during(self, verb: Callable[[], object]) -> int:
        """How many records *verb* decodes."""
        before = self.decoded
        verb()
        return self.decoded - before


def claim(context: Context, queue: str = "a", count: int = 1) -> list[Run]:
    return list(leases.claim(context, queue, owner="me", count=count))


def test_an_index_is_made_without_decoding_a_run() -> None:
    stocked = Stocked(MANY)
    assert stocked.during(lambda: Index(stocked.runs.records, "boot-1")) == 0


@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_claim_decodes_the_run_that_it_claims(count: int) -> None:
    stocked = Stocked(count)
    process = stocked.host.process()
    assert stocked.during(lambda: claim(process)) == 1


@pytest.mark.parametrize("count", [FEW, MANY])
def test_no_tombstone_is_decoded_for_an_end_while_none_is_to_be_forgotten(count: int) -> None:
    stocked = Stocked(3, stones=count)
    process = stocked.host.process()
    (run,) = claim(process)
    assert stocked.during(lambda: leases.complete(process, run.id, 1)) == 0


@pytest.mark.parametrize("count", [FEW, MANY])
def test_the_one_tombstone_too_many_is_the_one_that_is_decoded(count: int) -> None:
    stocked = Stocked(3, stones=count, retain=count)
    process = stocked.host.process()
    for run in claim(process, count=2):
        leases.complete(process, run.id, 1)
    assert [stone.id for stone in stocked.stones.decoded] == ["done-0"]
    assert len(stocked.host.document.finished) == count + 1


class Walked(dict[int, Worker]):
    """Workers, and how often all of them were gone through."""

    times = 0

    def items(self) -> Any:
        self.times += 1
        return super().items()


def test_workers_are_gone_through_once_for_all_that_is_forgotten_while_none_of_them_changes() -> None:
    stocked = Stocked(9, stones=20, retain=0)
    workers = Walked({1: Worker(1, "a-1", 1, "fake", 1, 1, run="done-0")})
    stocked.put(workers=workers)
    process = stocked.host.process()
    for run in claim(process, count=9):
        leases.complete(process, run.id, 1)
    assert "done-0" in stocked.host.document.finished
    assert len(stocked.host.document.finished) < 10
    assert workers.times == 1


def test_ended_runs_that_slots_name_do_not_hide_those_that_are_to_be_forgotten() -> None:
    """However many they are: workers that wait for their release are there for long."""
    stocked = Stocked(2, stones=200, retain=0)
    stocked.put(workers={n: Worker(n, f"a-{n}", 1, "fake", 1, 1, run=f"done-{n}") for n in range(1, 150)})
    stocked.host.submit("next")
    assert len(stocked.host.document.finished) == 200 - 16


def test_what_another_process_committed_is_followed_and_not_looked_for() -> None:
    stocked = Stocked(MANY)
    one, other = stocked.host.process(), stocked.host.process()
    known = [each.index(stocked.host.document) for each in (one, other)]
    for _ in range(200):
        for each in (one, other):
            (run,) = claim(each)
            assert stocked.during(lambda each=each, run=run: leases.complete(each, run.id, 1)) == 0  # type: ignore[misc]
    assert [each.index(stocked.host.document) for each in (one, other)] == known
    assert stocked.decoded == 400


def test_runs_of_the_fleet_that_are_due_are_not_looked_at_for_tidying() -> None:
    stocked = Stocked(MANY, queue=FLEET_QUEUE, available_at=NOW + 1)
    process, document = stocked.host.process(), stocked.host.document
    stocked.host.clock.advance(1)
    assert not upkeep.needs_tidying(process, document)
    with mock.patch.object(upkeep, "is_deferred") as looked:
        assert not upkeep.needs_tidying(process, document)
    assert looked.call_count == 0


def test_one_of_many_that_are_due_is_enough_to_know_that_there_is_something_to_do() -> None:
    stocked = Stocked(MANY, available_at=NOW + 1)
    process, document = stocked.host.process(), stocked.host.document
    stocked.host.clock.advance(1)
    process.index(document).ripen(process.clock.now_ms())
    with mock.patch.object(upkeep, "is_deferred", return_value=False) as looked:
        assert upkeep.needs_tidying(process, document)
    assert looked.call_count == 1


def test_whom_a_run_with_a_key_wakes_is_known_without_a_look_at_the_others() -> None:
    stocked = Stocked(MANY)
    process, before = stocked.host.process(), stocked.host.document
    stocked.host.submit("keyed", concurrency_key="k")
    after = stocked.host.document
    process.index(after)
    draft = process.draft(before)
    draft.runs.put("keyed", after.runs["keyed"])
    draft.event("run:keyed", "submitted")
    found: dict[str, int] = {}
    assert stocked.during(lambda: found.update(wakes(before, after, draft.edit(), lambda: process.index(after)))) == 0
    assert found == {"a": 1}


def test_the_same_submission_is_found_again_without_a_look_at_the_others() -> None:
    stocked = Stocked(MANY, stones=MANY)
    process = stocked.host.process()
    wanted = Submission(payload=Raw(b"7"), queue="a", unique_ms=60_000)

    def submitted() -> str:
        return runs.submit(process, [wanted])[0].run

    assert stocked.during(submitted) == 0
    assert stocked.during(submitted) == 0
    assert submitted() == f"r-{MANY + 1}"


def each_view(document: Document) -> Iterator[int]:
    for view in View:
        yield size(document, view, NOW, queue="a")
        yield size(document, view, NOW)


def test_counting_and_listing_decode_what_is_listed() -> None:
    stocked = Stocked(MANY, stones=MANY)
    document, rules = stocked.host.document, stocked.host.policy
    assert stocked.during(lambda: list(each_view(document))) == 0
    assert stocked.during(lambda: queues(document, rules, NOW)) == 0
    assert stocked.during(lambda: browse(document, View.PENDING, NOW, limit=7)) == 7
