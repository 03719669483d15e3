"""A short life of a queue: what submitters, consumers, operators and clocks do to it, in any order.

Every act is done or refused; nothing is expected of it here. Who uses a walk looks at what it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from controller.engine import leases, queue, upkeep
from controller.engine.submission import Submission
from controller.model.errors import Conflict, NotFound, TransitionRefused, UsageFault
from controller.model.reason import Reason
from controller.model.records import Run
from controller.model.transition import Trigger
from tests.engine.queue import kit

POLICY = kit.policy(a=kit.steady(attempts=2, crashes=2, retain=1))
"""Few ended runs are kept, so that some are forgotten, and their ids used again."""
IDS = ("x", "y", "z")
STEPS = (kit.step("first", attempts=2), kit.step("second", "first"))

HELD = frozenset({"complete", "complete again", "step", "step again", "step on", "heartbeat", "retry", "fail", "drain"})

Act = tuple[str, int, int]
"""What is done, to which run, and how."""


def acts() -> st.SearchStrategy[list[Act]]:
    """Long enough for most to come to something: a short one is mostly refused."""
    act = st.tuples(st.sampled_from(sorted(_ACTS)), st.integers(0, 2), st.integers(0, 3))
    return st.lists(act, min_size=20, max_size=60)


def walk(done: Sequence[Act]) -> kit.Host:
    """A host on which all of that was tried."""
    host = kit.Host(chosen=POLICY)
    for name, which, how in done:
        try:
            _ACTS[name](host, _held(host, which) if name in HELD else IDS[which], how)
        except (Conflict, NotFound, TransitionRefused, UsageFault):
            continue
    return host


def _held(host: kit.Host, which: int) -> str:
    """A run that somebody holds, if there is one: others refuse what only a holder may say."""
    running = sorted(run.id for run in host.document.runs.values() if run.state == "running")
    return running[which % len(running)] if running else IDS[which]


def _submit(host: kit.Host, run_id: str, how: int) -> None:
    wanted = Submission(id=run_id, queue="a", replace=how == 3, payload=kit.payload(how))
    if how == 1:
        wanted = replace(wanted, steps=STEPS, payload=UNSET)
    if how == 2:
        wanted = replace(wanted, delay_ms=60_000, concurrency_key="k")
    if how == 3:
        wanted = replace(wanted, concurrency_key="k")
    queue.submit(host.process(), [wanted])


def _token(host: kit.Host, run_id: str, how: int) -> int:
    """The present token, or now and then an earlier one."""
    found = host.document.runs.get(run_id) or host.document.finished.get(run_id)
    token = 1 if found is None else found.attempts if isinstance(found, Run) else found.token
    return max(1, token - (how == 3))


def _claim(host: kit.Host, _: str, how: int) -> None:
    leases.claim(host.process(), "a", owner="one", lease_ms=1_000 * (how + 1), count=1 + how // 2, tidy=how == 3)


def _complete(host: kit.Host, run_id: str, how: int) -> None:
    leases.complete(host.process(), run_id, _token(host, run_id, how), claim_next=how == 1)


def _step(host: kit.Host, run_id: str, how: int) -> None:
    named, trigger = ("first", Trigger.STEP_STARTED), Trigger.STEP_SUCCEEDED
    run = host.document.runs.get(run_id)
    open_ = [step for step in run.steps if step.state in ("pending", "running")] if run is not None else []
    if open_:
        named = (open_[0].name, Trigger.STEP_STARTED if open_[0].state == "pending" else trigger)
    name, trigger = named
    if how == 2 and trigger is not Trigger.STEP_STARTED:
        trigger = Trigger.STEP_FAILED
    leases.step(host.process(), run_id, name, _token(host, run_id, how), trigger)


def _withdraw(host: kit.Host, run_id: str, _: int) -> None:
    queue.withdraw(host.process(), run_id)


# What ends a run from outside is done one time in four: else few would get far.
_ACTS: dict[str, Callable[[kit.Host, str, int], object]] = {
    "submit": _submit,
    "submit again": _submit,
    "claim": _claim,
    "claim again": _claim,
    "claim a third time": _claim,
    "complete": _complete,
    "complete again": _complete,
    "step": _step,
    "step again": _step,
    "step on": _step,
    "submit a third time": _submit,
    "heartbeat": lambda host, run, how: leases.heartbeat(host.process(), run, _token(host, run, how)),
    "retry": lambda host, run, how: leases.retry(host.process(), run, _token(host, run, how), error="no"),
    "fail": lambda host, run, how: leases.fail(
        host.process(), run, _token(host, run, how), error="no", reason=Reason.INVALID_PAYLOAD
    ),
    "drain": lambda host, run, how: leases.drain(host.process(), run, _token(host, run, how)),
    "discard": lambda host, run, how: how or leases.discard(host.process(), run),
    "cancel": lambda host, run, how: how or queue.cancel(host.process(), run),
    "withdraw": _withdraw,
    "operator retry": lambda host, run, _: queue.retry(host.process(), run),
    "promote": lambda host, run, how: upkeep.promote(host.process(), (run,) if how else ()),
    "reap": lambda host, *_: upkeep.reap(host.process()),
    "pause": lambda host, _, how: upkeep.set_paused(host.process(), "a", how % 2 == 0),
    "advance": lambda host, _, how: host.clock.advance(10**how),
    "jump": lambda host, _, how: host.clock.jump((-5, 5, -3_600, 3_600)[how]),
    "reboot": lambda host, *_: host.reboot(),
}
