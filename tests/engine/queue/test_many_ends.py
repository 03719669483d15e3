"""Many reports in one commit come to what they come to one by one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from controller.engine import leases
from controller.engine.batches import End, complete_many
from controller.engine.queue import cancel, submit
from controller.engine.submission import Submission
from controller.model.errors import ControllerError
from controller.model.records import StepState
from controller.model.transition import Trigger
from tests.engine.queue.kit import Host, Memory, policy, steady, step

NAMES = ("p", "q", "r", "s")
flags = st.lists(st.booleans(), min_size=len(NAMES), max_size=len(NAMES))
reports = st.tuples(st.sampled_from((*NAMES, "nobody")), st.integers(1, 2), st.sampled_from([UNSET, Raw(b"1")]))


def one_by_one(host: Host, ends: list[End]) -> list[tuple[type[ControllerError], str] | None]:
    """What refused each of *ends*; None: nothing."""
    refused: list[tuple[type[ControllerError], str] | None] = []
    for each in ends:
        try:
            leases.complete(host.process(), each.run, each.token, result=each.result)
        except ControllerError as error:
            refused.append((type(error), str(error)))
        else:
            refused.append(None)
    return refused


@settings(max_examples=60, deadline=None)
@given(flags, flags, st.integers(1, len(NAMES)), st.lists(reports, max_size=6))
def test_many_at_once_as_one_at_a_time(
    stepped: list[bool], cancelled: list[bool], claims: int, reported: list[tuple[str, int, Raw]]
) -> None:
    hosts = Host(Memory(), policy(a=steady())), Host(Memory(), policy(a=steady()))
    for host in hosts:
        for name, has_steps in zip(NAMES, stepped, strict=True):
            steps = (step("x"), step("y", "x")) if has_steps else ()
            submit(host.process(), [Submission(queue="a", id=name, payload=Raw(b"1"), steps=steps)])
        leases.claim(host.process(), "a", owner="c", count=claims)
        for name, is_cancelled in zip(NAMES, cancelled, strict=True):
            if is_cancelled:
                cancel(host.process(), name)
    ends = [End(*each) for each in reported]
    together = complete_many(hosts[0].process(), ends)
    refused = [None if each.refused is None else (type(each.refused), str(each.refused)) for each in together]
    assert refused == one_by_one(hosts[1], ends)
    assert [each.done is None for each in together] == [each is not None for each in refused]
    assert dict(hosts[0].document.runs) == dict(hosts[1].document.runs)
    assert dict(hosts[0].document.finished) == dict(hosts[1].document.finished)


def test_a_report_that_is_refused_half_way_leaves_the_steps_of_its_run() -> None:
    host = Host()
    steps = (step("x"), step("y", "x"), step("z"))
    submit(host.process(), [Submission(queue="a", id="r", payload=Raw(b"1"), steps=steps)])
    host.submit("other")
    process = host.process()
    leases.claim(process, "a", owner="c", count=2)
    for happened in (Trigger.STEP_STARTED, Trigger.STEP_FAILED):
        leases.step(process, "r", "x", 1, happened)
    refused, done = complete_many(process, [End("r", 1), End("other", 1)])
    assert (refused.done, done.refused) == (None, None)
    states = [each.state for each in host.document.runs["r"].steps]
    assert states == [StepState.FAILED, StepState.PENDING, StepState.PENDING]
