"""Who is woken for what a commit brought: nobody for nothing, and somebody for whatever may be claimed since."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from controller.clock import FakeClock
from controller.engine import leases, queue, upkeep
from controller.engine.claiming import wakes
from controller.engine.discovery import Finder
from controller.engine.index import Index
from controller.engine.queue import Context
from controller.engine.submission import Submission
from controller.model.edit import Draft, Edit
from controller.model.errors import ControllerError
from controller.model.perform import Given, move_run
from controller.model.policy import Backoff, Policy, QueuePolicy
from controller.model.reason import Reason
from controller.model.records import Document, Lease, RunState, new_document
from controller.model.transition import Trigger
from controller.store.memory import MemoryDisk, MemoryStore
from controller.store.waiters import Waiters
from tests.store import kit

Commit = tuple[Document, Document, Edit]


class Watched(Context, frozen=True):
    """Keeps what each commit changed."""

    commits: list[Commit] = []  # noqa: RUF012 - msgspec copies it for each

    def commit(self, hold: Any, loaded: Any, draft: Draft, *, forget: bool = True) -> Document:
        after = super().commit(hold, loaded, draft, forget=forget)
        if after is not loaded.document:
            self.commits.append((loaded.document, after, draft.edit()))
        return after


class Scene:
    def __init__(self, waiters: Waiters | None = None) -> None:
        self.clock = FakeClock()
        disk = MemoryDisk(new_document("test", "lineage"))
        store = MemoryStore(disk, clock=self.clock, whoami=kit.ME, command="test")
        steady = Backoff(1_000, 1_000, jitter=0.0)
        policy = Policy(by_queue={name: QueuePolicy(9, 9, steady) for name in ("a", "b")})
        self.context = Watched(store, self.clock, "test", policy=policy, boot_id="boot", waiters=waiters)

    def submit(self, *ids: str, to: str = "a", key: str = "", most: int = 1, **fields: Any) -> None:
        each = [
            Submission(id=name, queue=to, payload=Raw(b"1"), concurrency_key=key, concurrency=most, **fields)
            for name in ids
        ]
        queue.submit(self.context, each)

    def claim(self, name: str = "a", count: int = 1, *, tidy: bool = False) -> list[str]:
        runs = leases.claim(self.context, name, owner="me", lease_ms=60_000, count=count, tidy=tidy)
        return [run.id for run in runs]

    @contextmanager
    def woken(self) -> Iterator[dict[str, int]]:
        """How many of each queue what is done meanwhile wakes; told once that is over."""
        self.context.commits.clear()
        found: dict[str, int] = {}
        yield found
        for commit in self.context.commits:
            for name, count in wakes(*commit).items():
                found[name] = found.get(name, 0) + count


@pytest.fixture
def scene() -> Scene:
    return Scene()


class TestSubmit:
    def test_one_run_wakes_one(self, scene: Scene) -> None:
        with scene.woken() as woken:
            scene.submit("r")
        assert woken == {"a": 1}

    def test_some_wake_as_many_each_in_its_queue(self, scene: Scene) -> None:
        with scene.woken() as woken:
            scene.submit("r", "s", "t")
            scene.submit("u", to="b")
        assert woken == {"a": 3, "b": 1}

    def test_what_is_there_already_wakes_nobody(self, scene: Scene) -> None:
        scene.submit("r")
        with scene.woken() as woken:
            scene.submit("r")
        assert woken == {}

    def test_a_run_that_is_not_due_wakes_nobody(self, scene: Scene) -> None:
        with scene.woken() as woken:
            scene.submit("r", delay_ms=1)
        assert woken == {}

    def test_a_paused_queue_wakes_nobody(self, scene: Scene) -> None:
        scene.submit("r")
        upkeep.set_paused(scene.context, "a", True)
        with scene.woken() as woken:
            scene.submit("s")
        assert woken == {}

    def test_no_more_are_woken_than_the_key_lets_run(self, scene: Scene) -> None:
        with scene.woken() as woken:
            scene.submit("r", "s", "t", key="k", most=2)
        assert woken == {"a": 2}
        scene.claim(count=3)
        with scene.woken() as woken:
            scene.submit("u", key="k", most=2)
        assert woken == {}
        with scene.woken() as woken:
            scene.submit("v", key="other", most=2)
        assert woken == {"a": 1}

    def test_a_replaced_run_wakes_one_for_the_new_one(self, scene: Scene) -> None:
        scene.submit("r", key="k")
        scene.claim()
        with scene.woken() as woken:
            scene.submit("r", key="k", max_attempts=5, replace=True)
        assert woken == {"a": 1}

    def test_a_replaced_run_wakes_one_of_the_queue_where_the_new_one_is(self, scene: Scene) -> None:
        scene.submit("r")
        with scene.woken() as woken:
            scene.submit("r", to="b", replace=True)
        assert woken == {"b": 1}


class TestWhatComesBack:
    def test_a_run_that_its_holder_gives_back_wakes_one_once_it_is_let_in(self, scene: Scene) -> None:
        scene.submit("r")
        scene.claim()
        with scene.woken() as woken:
            leases.drain(scene.context, "r", 1)
        assert woken == {"a": 1}

    def test_a_run_that_waits_for_its_backoff_wakes_nobody_until_it_is_let_in(self, scene: Scene) -> None:
        scene.submit("r")
        scene.claim()
        with scene.woken() as woken:
            leases.retry(scene.context, "r", 1, error="no")
        assert woken == {}
        with scene.woken() as woken:
            upkeep.promote(scene.context, ["r"])
        assert woken == {"a": 1}

    def test_what_fell_due_wakes_one_when_it_is_let_in(self, scene: Scene) -> None:
        scene.submit("r", "s", delay_ms=1_000)
        scene.clock.advance(1)
        with scene.woken() as woken:
            upkeep.promote(scene.context)
        assert woken == {"a": 2}

    def test_what_was_lost_wakes_one_when_it_is_taken_back(self, scene: Scene) -> None:
        scene.submit("r")
        scene.claim()
        scene.clock.advance(60)
        with scene.woken() as woken:
            upkeep.reap(scene.context)
        assert woken == {"a": 1}

    def test_what_an_operator_retries_wakes_one(self, scene: Scene) -> None:
        scene.submit("r")
        queue.cancel(scene.context, "r")
        with scene.woken() as woken:
            queue.retry(scene.context, "r")
        assert woken == {"a": 1}


class TestWhatIsGivenBack:
    @pytest.mark.parametrize(
        "end",
        [
            lambda context: leases.complete(context, "r", 1),
            lambda context: leases.fail(context, "r", 1, error="no", reason=Reason.CONSUMER_FAILED),
            lambda context: leases.retry(context, "r", 1, error="no", delay_ms=1_000),
            lambda context: leases.discard(context, "r"),
        ],
        ids=["complete", "fail", "retry", "discard"],
    )
    def test_a_key_wakes_one_of_each_queue_that_waits_for_it(
        self, scene: Scene, end: Callable[[Context], object]
    ) -> None:
        scene.submit("r", "s", "t", key="k")
        scene.claim()
        scene.submit("u", to="b", key="k")
        scene.submit("v", to="c", key="other")
        with scene.woken() as woken:
            end(scene.context)
        assert woken == {"a": 1, "b": 1}

    def test_a_key_that_nothing_due_waits_for_wakes_nobody(self, scene: Scene) -> None:
        scene.submit("r", key="k")
        scene.claim()
        scene.submit("s", key="k", delay_ms=1_000)
        with scene.woken() as woken:
            leases.complete(scene.context, "r", 1)
        assert woken == {}

    def test_a_key_that_is_taken_again_at_once_wakes_nobody(self, scene: Scene) -> None:
        scene.submit("r", "s", "t", key="k")
        scene.claim()
        with scene.woken() as woken:
            leases.complete(scene.context, "r", 1, claim_next=True)
        assert woken == {}

    def test_each_permit_wakes_one(self, scene: Scene) -> None:
        scene.submit("r", "s", "t", "u", "v", key="k", most=3)
        scene.claim(count=3)
        scene.clock.advance(60)
        with scene.woken() as woken:
            upkeep.reap(scene.context)
        assert woken == {"a": 3}

    def test_a_key_that_still_lets_too_few_run_wakes_nobody(self, scene: Scene) -> None:
        scene.submit("r", "s", key="k", most=2)
        scene.claim(count=2)
        scene.submit("t", key="k")
        with scene.woken() as woken:
            leases.complete(scene.context, "r", 1)
        assert woken == {}
        with scene.woken() as woken:
            leases.complete(scene.context, "s", 1)
        assert woken == {"a": 1}

    def test_a_heartbeat_gives_nothing_back(self, scene: Scene) -> None:
        scene.submit("r", "s", key="k", most=2)
        scene.claim()
        with scene.woken() as woken:
            leases.heartbeat(scene.context, "r", 1)
        assert woken == {}


class TestAQueue:
    def test_that_is_resumed_wakes_one_for_each_run_that_is_due(self, scene: Scene) -> None:
        scene.submit("r", "s", "t")
        scene.submit("later", delay_ms=1_000)
        scene.submit("elsewhere", to="b")
        scene.claim()
        upkeep.set_paused(scene.context, "a", True)
        with scene.woken() as woken:
            upkeep.set_paused(scene.context, "a", False)
        assert woken == {"a": 2}

    def test_that_is_paused_wakes_nobody(self, scene: Scene) -> None:
        scene.submit("r")
        with scene.woken() as woken:
            upkeep.set_paused(scene.context, "a", True)
        assert woken == {}

    def test_whose_runs_are_claimed_or_withdrawn_wakes_nobody(self, scene: Scene) -> None:
        scene.submit("r", "s")
        with scene.woken() as woken:
            scene.claim()
            queue.withdraw(scene.context, "s")
            queue.set_draining(scene.context, True)
        assert woken == {}


def claimable(document: Document, name: str, now: int) -> int:
    """How many runs of the queue could be claimed now, one after the other, as the engine itself would claim them."""
    known = document.queues.get(name)
    if known is not None and known.paused:
        return 0
    draft, found = Draft(document, now=now, command="count"), 0
    with Finder(Index(document.runs, "boot"), draft, name) as finder:
        while (run := finder.next()) is not None:
            if move_run(draft, run.id, Trigger.CLAIM, Given(lease=Lease("me", "boot", 1, 1))).to is RunState.RUNNING:
                found += 1
    return found


VERBS: Mapping[str, Callable[[Scene, str, str, str, int], object]] = {
    "submit": lambda scene, name, to, key, most: scene.submit(name, to=to, key=key, most=most),
    "submit later": lambda scene, name, to, key, most: scene.submit(name, to=to, key=key, most=most, delay_ms=700),
    "replace": lambda scene, name, to, key, most: scene.submit(name, to=to, key=key, most=most, replace=True),
    "claim": lambda scene, name, to, key, most: scene.claim(to, most),
    "claim and tidy": lambda scene, name, to, key, most: scene.claim(to, most, tidy=True),
    "complete": lambda scene, name, to, key, most: leases.complete(scene.context, name, most),
    "complete and claim": lambda scene, name, to, key, most: leases.complete(
        scene.context, name, most, claim_next=True
    ),
    "fail": lambda scene, name, to, key, most: leases.fail(
        scene.context, name, most, error="", reason=Reason.CONSUMER_FAILED
    ),
    "give back": lambda scene, name, to, key, most: leases.retry(scene.context, name, most, error=""),
    "give back at once": lambda scene, name, to, key, most: leases.retry(
        scene.context, name, most, error="", delay_ms=0
    ),
    "drain": lambda scene, name, to, key, most: leases.drain(scene.context, name, most),
    "discard": lambda scene, name, to, key, most: leases.discard(scene.context, name),
    "cancel": lambda scene, name, to, key, most: queue.cancel(scene.context, name),
    "retry": lambda scene, name, to, key, most: queue.retry(scene.context, name),
    "promote": lambda scene, name, to, key, most: upkeep.promote(scene.context),
    "let in": lambda scene, name, to, key, most: upkeep.promote(scene.context, [name]),
    "reap": lambda scene, name, to, key, most: upkeep.reap(scene.context),
    "pause": lambda scene, name, to, key, most: upkeep.set_paused(scene.context, to, True),
    "resume": lambda scene, name, to, key, most: upkeep.set_paused(scene.context, to, False),
    "a second": lambda scene, name, to, key, most: scene.clock.advance(1),
    "a minute": lambda scene, name, to, key, most: scene.clock.advance(60),
}
MOVES = st.tuples(
    st.sampled_from(sorted(VERBS)),
    st.sampled_from(["r", "s", "t", "u", "v"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["", "k", "l"]),
    st.integers(1, 3),
)


@given(st.lists(MOVES, max_size=40))
def test_whatever_happens_as_many_are_woken_as_runs_more_may_be_claimed(
    moves: list[tuple[str, str, str, str, int]],
) -> None:
    """Counted as the engine would claim them, before and after each commit, at the time of the commit."""
    scene = Scene()
    for verb, name, to, key, most in moves:
        scene.context.commits.clear()
        try:
            VERBS[verb](scene, name, to, key, most)
        except ControllerError:
            continue
        for before, after, edit in scene.context.commits:
            now = scene.clock.now_ms()
            found = wakes(before, after, edit)
            assert wakes(before, after, edit, lambda after=after: scene.context.index(after)) == found  # type: ignore[misc]
            for each in ("a", "b"):
                more = claimable(after, each, now) - claimable(before, each, now)
                assert found.get(each, 0) >= more, (verb, name, each)


def test_a_commit_wakes_who_waits_for_it_in_other_places(tmp_path: Path) -> None:
    waiters = Waiters(tmp_path)
    scene = Scene(waiters)
    with waiters.waiting("a") as first, waiters.waiting("a") as second, waiters.waiting("b") as other:
        scene.submit("r")
        assert [each.wait(0) for each in (first, second, other)] == [True, False, False]
        scene.submit("s", "t", "u")
        assert [each.wait(0) for each in (first, second, other)] == [True, True, False]
