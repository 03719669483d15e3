"""Waiting for runs: what ends it, what is waited out, and that whatever ends it the runs go on."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace

from controller.api.waiting import serve_until_ended, watch_until_ended
from controller.engine.queue import cancel, set_draining
from controller.engine.reconcile import Stop
from controller.engine.report import Report
from controller.model.errors import Conflict, NotDurable, NotFound, ProviderFailed, StillRunning, Stuck
from controller.model.records import ActionType, Document
from controller.provider.fake import DoThenLose, FakeProvider, Later, LoseUndone, Say
from controller.provider.protocol import Description, IdentityRefused, Rejected
from controller.store import disk
from tests.engine.fleet import LINEAGE, Fleet

CREATE, EXECUTE = ActionType.CREATE, ActionType.EXECUTE


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Three slots; steps end with 0 as soon as they are accepted, and that is pushed."""
    return Fleet(tmp_path / "state", FakeProvider(LINEAGE, ends=0, pushes=True))


@pytest.fixture
def endless(tmp_path: Path) -> Fleet:
    """Three slots; steps run until they are ended."""
    return Fleet(tmp_path / "state", FakeProvider(LINEAGE, pushes=True))


def serve(
    fleet: Fleet,
    *runs: str,
    timeout: float | None = 300.0,
    tick: float = 2.0,
    each_turn: Callable[[Document], None] = lambda _: None,
    heard: list[Report] | None = None,
) -> dict[str, str]:
    """Wait for *runs* while *tick* seconds pass each turn; the states they are in then."""

    def turn(document: Document) -> None:
        fleet.clock.advance(tick)
        each_turn(document)

    reports = [] if heard is None else heard
    found = serve_until_ended(
        fleet.reconciler(parallelism=3), runs, timeout=timeout, tell=reports.append, each_turn=turn
    )
    assert [run.id for run in found] == list(runs)
    return {run.id: run.state.value for run in found}


def test_runs_that_nothing_else_serves_are_served_to_their_end(fleet: Fleet) -> None:
    fleet.submit("a", "b", "c", "d")
    assert serve(fleet, "c", "a") == {"c": "succeeded", "a": "succeeded"}


def test_a_run_that_failed_or_was_cancelled_has_ended_too(endless: Fleet) -> None:
    endless.submit("a", "b")
    cancel(endless.context, "b")

    def turn(_: Document) -> None:
        for _slot, kind, key in endless.provider.sends():
            if kind is EXECUTE and key is not None:
                endless.provider.end_step(key, exit_code=7)

    assert serve(endless, "a", "b", each_turn=turn) == {"a": "failed", "b": "cancelled"}


def test_what_has_ended_is_told_without_a_lock_or_a_question(fleet: Fleet) -> None:
    fleet.submit("a")
    serve(fleet, "a")
    fleet.provider.calls.clear()
    before = fleet.bytes()
    with fleet.context.store.hold(0):
        assert serve(fleet, "a") == {"a": "succeeded"}
    assert fleet.provider.calls == []
    assert fleet.bytes() == before


def test_a_run_that_nobody_knows_is_not_waited_for(fleet: Fleet) -> None:
    fleet.submit("a")
    with pytest.raises(NotFound):
        serve(fleet, "a", "b")
    assert fleet.provider.calls == []


def test_a_run_of_a_queue_that_the_fleet_does_not_serve_is_refused_at_once(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.policy = replace(fleet.policy, queues=("other",))
    with pytest.raises(Conflict, match="in queue fleet, which the fleet does not serve") as refusal:
        serve(fleet, "a")
    assert "wait --no-drive a" in refusal.value.next
    assert fleet.provider.calls == []


def test_a_time_out_names_what_is_left_and_the_runs_go_on(endless: Fleet) -> None:
    endless.submit("a", "b")
    cancel(endless.context, "b")
    with pytest.raises(StillRunning, match=r"not ended after 20 s: a is running") as late:
        serve(endless, "a", "b", timeout=20)
    assert late.value.exit == 6
    assert late.value.next.endswith("controller wait a")
    assert endless.document.runs["a"].state == "running"
    endless.provider.end_step(endless.provider.sends()[-1][2] or "", exit_code=0)
    assert serve(endless, "a") == {"a": "succeeded"}


def test_a_stop_gives_the_runs_as_they_are(endless: Fleet) -> None:
    endless.submit("a", "b")

    def turn(document: Document) -> None:
        if document.runs["a"].state == "running":
            endless.stop.set()

    assert serve(endless, "a", each_turn=turn) == {"a": "running"}


def test_a_provider_that_is_away_is_told_once_and_waited_out(fleet: Fleet) -> None:
    fleet.submit("a")
    away = ProviderFailed("the provider is away", where="test")
    fleet.provider.script_look(away, away)
    heard: list[Report] = []
    assert serve(fleet, "a", heard=heard) == {"a": "succeeded"}
    assert [error.what for report in heard for error in report.errors] == ["the provider is away"]


def test_a_provider_that_tells_no_news_is_looked_at_often_just_after_a_change_and_rarely_later(tmp_path: Path) -> None:
    class Silent(FakeProvider):
        def describe(self) -> Description:
            return replace(super().describe(), wait=False)

    fleet = Fleet(tmp_path / "state", Silent(LINEAGE, ends=0))
    fleet.submit("a")
    began = fleet.clock.monotonic()
    assert serve(fleet, "a", tick=0.25) == {"a": "succeeded"}
    assert fleet.clock.monotonic() - began < 5
    fleet.provider.calls.clear()
    fleet.submit("b")
    set_draining(fleet.context, True)
    with pytest.raises(StillRunning):
        serve(fleet, "b", tick=20, timeout=400)
    assert len([call for call in fleet.provider.calls if call.op == "inventory"]) <= 22


@pytest.mark.parametrize(
    "trouble",
    [LoseUndone(), DoThenLose(), Later(3), Say(Rejected("no quota today"))],
    ids=lambda behaviour: type(behaviour).__name__,
)
def test_trouble_with_the_slot_is_waited_out(fleet: Fleet, trouble: LoseUndone | DoThenLose | Later | Say) -> None:
    fleet.submit("a")
    fleet.provider.script(CREATE, trouble)
    assert serve(fleet, "a") == {"a": "succeeded"}


def test_a_drain_is_waited_out(fleet: Fleet) -> None:
    fleet.submit("a")
    set_draining(fleet.context, True)
    turns = iter(range(100))

    def turn(_: Document) -> None:
        if next(turns) == 3:
            set_draining(fleet.context, False)

    assert serve(fleet, "a", each_turn=turn) == {"a": "succeeded"}


def test_a_slot_that_an_operator_has_to_settle_ends_it_once_nothing_else_is_left(fleet: Fleet) -> None:
    fleet.submit("a", "b")
    fleet.provider.script(EXECUTE, Say(IdentityRefused("another machine has that name")), slot=1)
    fleet.provider.script(EXECUTE, Later(2), slot=2)
    with pytest.raises(Stuck, match=r"run . cannot go on .* slot 1 .*another machine has that name") as stuck:
        serve(fleet, "a", "b")
    assert (stuck.value.exit, stuck.value.next) == (5, "controller explain slot:1")
    (left,), (ended,) = fleet.document.runs, fleet.document.finished  # whose worker was made first took slot 1
    assert stuck.value.where == f"run {left}, slot 1"
    assert {left, ended} == {"a", "b"}


def test_a_queued_run_is_waited_for_as_long_as_one_slot_can_serve_it(fleet: Fleet) -> None:
    fleet.submit("a")
    refused = Say(IdentityRefused("another machine has that name"))
    fleet.provider.script(CREATE, refused)
    fleet.policy = replace(fleet.policy, slots=1)
    with pytest.raises(Stuck, match="run a cannot go on"):
        serve(fleet, "a")
    fleet.policy = replace(fleet.policy, slots=2)
    fleet.submit("b")
    assert serve(fleet, "b", "a") == {"b": "succeeded", "a": "succeeded"}


def test_a_slot_whose_last_caller_nobody_can_prove_gone_ends_it(fleet: Fleet) -> None:
    fleet.submit("a")
    fleet.park()
    fleet.policy = replace(fleet.policy, slots=1)
    path = fleet.directory / "slots" / "00001.lock"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text("no note of ours")
    with pytest.raises(Stuck, match="run a cannot go on"):
        serve(fleet, "a")


def test_what_cannot_be_saved_ends_it(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.submit("a")

    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    heard: list[Report] = []
    with monkeypatch.context() as full:
        full.setattr(disk, "write_at", refuse)
        with pytest.raises(NotDurable, match="No space left on device"):
            serve(fleet, "a", heard=heard)
    assert [error.what for report in heard for error in report.errors] == []
    assert serve(fleet, "a") == {"a": "succeeded"}


# Without serving


def test_watching_sees_an_end_that_somebody_else_brings_about(fleet: Fleet) -> None:
    fleet.submit("a")
    turns = iter(range(100))

    def turn(_: Document) -> None:
        if next(turns) == 2:
            fleet.reconciler().reconcile()

    (found,) = watch_until_ended(fleet.context.store, fleet.clock, ["a"], Stop(), each_turn=turn)
    assert found.state == "succeeded"


def test_watching_only_reads_and_ends_at_its_time_out(fleet: Fleet) -> None:
    fleet.submit("a")
    before = fleet.bytes()
    with fleet.context.store.hold(0), pytest.raises(StillRunning, match="a is queued"):
        watch_until_ended(fleet.context.store, fleet.clock, ["a"], Stop(), timeout=60)
    assert fleet.bytes() == before
    assert fleet.provider.calls == []


def test_watching_ends_when_it_is_told_to(fleet: Fleet) -> None:
    fleet.submit("a")
    stop = Stop()
    stop.set()
    (found,) = watch_until_ended(fleet.context.store, fleet.clock, ["a"], stop)
    assert found.state == "queued"
