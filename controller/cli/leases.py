"""`queue` commands of those who hold runs: claim, complete, retry, fail, heartbeat, drain, step. Each is one commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from controller.cli.call import Call
from controller.cli.output import UNWRITTEN
from controller.cli.values import Named, ReasonCode, Text, Token, Trouble
from controller.cli.verb import Duration, Verb, Whole, completed, run_of
from controller.model.policy import DEFAULT_QUEUE, MOST_CLAIMS

if TYPE_CHECKING:
    from msgspec import Raw, UnsetType

    from controller.cli.tables import Table
    from controller.model.reason import Reason
    from controller.model.records import Run

HAPPENED = ("started", "succeeded", "failed")

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

run_argument = click.argument("run", metavar="RUN", shell_complete=completed("runs"))
# An inherited token, error or result would fit another run: none of them ever comes from the environment.
token_option = click.option(
    "--token",
    type=Token(),
    metavar="N",
    required=True,
    allow_from_autoenv=False,
    help="The token that the claim gave.",
)
queue_option = click.option(
    "--queue",
    type=Named(),
    default=DEFAULT_QUEUE,
    show_default=True,
    metavar="Q",
    shell_complete=completed("queues"),
    help="Which queue.",
)
lease_option = click.option(
    "--lease", type=Duration(), metavar="D", help="For how long; at most 1d.  [default: what the queue has]"
)


def error_option(*, required: bool) -> Decorator:
    return click.option(
        "--error",
        type=Trouble(),
        metavar="TEXT",
        required=required,
        allow_from_autoenv=False,
        help="What went wrong; it is kept with the run.",
    )


def reason_option(*, required: bool) -> Decorator:
    return click.option(
        "--reason",
        type=ReasonCode(),
        metavar="CODE",
        required=required,
        shell_complete=completed("failures"),
        allow_from_autoenv=False,
        help="Why, as a code, such as consumer_failed or invalid_payload.",
    )


@click.command(
    cls=Verb,
    examples=[
        "controller queue claim",
        "controller queue claim --queue mail --owner mailer-1 --lease 5m --count 10",
        "controller queue claim --wait 5s --json",
    ],
)
@queue_option
@click.option("--owner", type=Text(), metavar="NAME", help="Who holds them.  [default: HOST:PID of who calls]")
@lease_option
@click.option("--count", type=Whole(1, MOST_CLAIMS), default=1, show_default=True, metavar="N", help="At most so many.")
@click.option(
    "--wait",
    type=Duration(zero=True),
    metavar="D",
    help="If there is none, wait for one this long; moves what is due and reaps, too.",
)
@click.pass_obj
def claim(call: Call, queue: str, owner: str | None, lease: int | None, count: int, wait: int | None) -> int:
    """Take the next runs of a queue; nobody else gets them while the lease lives.

    Which is next: the layer of its priority, then who came first; now and then the one that has waited longest. The
    token is the number of the run's life, and every later command about the run carries it. Whoever lets the lease run
    out has lost the run: another may have it. Nothing to claim is no failure: no runs, exit 0. When the answer cannot
    be written, or a signal comes first, what was claimed is given back.
    """
    from controller.cli.held import claimed_page, give_back, held_row, none_page, unbroken, why_none

    owner = f"{os.uname().nodename}:{os.getppid()}" if owner is None else owner
    with unbroken() as came:
        if wait is None:
            from controller.engine.leases import claim as take

            runs = take(call.ruled, queue, owner=owner, lease_ms=lease, count=count)
        else:
            from controller.engine.claiming import claim_waiting
            from controller.store.waiters import Waiters

            runs = claim_waiting(
                call.ruled,
                Waiters(call.state_dir),
                queue,
                owner=owner,
                lease_ms=lease,
                count=count,
                wait_ms=wait,
                stop=lambda: bool(came),
            )
        if came:
            give_back(call, runs)
            return 0
        here = call.here()
        rows = [held_row(run, here) for run in runs]
        body: dict[str, Any] = {"queue": queue, "owner": owner, "runs": rows}
        if not rows:
            none = why_none(call, queue)
            call.output.answer("queue-claim", body | none, none_page(none))
            return 0
        call.output.answer("queue-claim", body, claimed_page(rows))
        if not call.output.failed:
            return 0
        # Nobody has heard of these tokens: without this the runs would be lost with their leases.
        give_back(call, runs)
        return UNWRITTEN


@click.command(
    cls=Verb,
    examples=[
        "controller queue complete r-1 --token 1",
        """controller queue complete r-1 --token 1 --result '{"sent": 17}' --claim-next""",
    ],
)
@run_argument
@token_option
@click.option(
    "--result",
    metavar="JSON|@FILE|-",
    allow_from_autoenv=False,
    help="What came of it, kept for `controller show RUN`; at most 1 MiB.",
)
@click.option("--claim-next", is_flag=True, help="Take the next run of the same queue in the same commit.")
@click.pass_obj
def complete(call: Call, run: str, token: int, result: str | None, claim_next: bool) -> None:
    """Say that a run is done; it leaves its queue for good.

    Said again with the same token, it is refused as done already, by you: nothing is lost. With --claim-next the
    repetition is answered like the first time, if there was a next run and while its lease lives. A run whose cancel
    was requested ends as cancelled instead, and one with a failed step has failed once more.
    """
    from controller.cli.held import claimed_page, held_row, none_page, why_none
    from controller.engine.leases import complete as end
    from controller.model.records import Run

    run_id = _about(call, run)
    done = end(call.lenient, run_id, token, result=_json(result, "--result"), claim_next=claim_next)
    following = None if done.next is None else held_row(done.next, call.here())
    body = {
        "run": run_id,
        "state": done.run.state.value,
        "token": token,
        "repeated": done.repeated,
        "next": following,
    }
    page: list[str | Table] = [f"run {run_id} has succeeded"]
    if isinstance(done.run, Run):
        page = [*_let_go_page(done.run, call.clock.now_ms(), call)]
    if done.repeated:
        page.append("you said so before")
    if following is not None:
        page += ["", *claimed_page([following])]
    elif claim_next:
        none = why_none(call, done.run.queue)
        body["why"] = none["why"]
        page += none_page(none)
    call.output.answer("queue-complete", body, page, well=following is None)


@click.command(
    cls=Verb,
    examples=[
        "controller queue retry r-1 --token 1 --error 'server is away'",
        "controller queue retry r-1 --token 1 --error 'server is away' --delay 5m",
    ],
)
@run_argument
@token_option
@error_option(required=True)
@click.option(
    "--delay", type=Duration(zero=True), metavar="D", help="When it is due again.  [default: the queue's backoff]"
)
@click.pass_obj
def retry(call: Call, run: str, token: int, error: str, delay: int | None) -> None:
    """Say that this life of a run failed; it is tried again, or is dead if that was the last it had.

    It counts as one of the failures that `submit --attempts` allows.
    """
    from controller.engine.leases import retry as again

    run_id = _about(call, run)
    after = again(call.lenient, run_id, token, error=error, delay_ms=delay)
    _tell(call, "queue-retry", after, token)


@click.command(
    cls=Verb, examples=["controller queue fail r-1 --token 1 --error 'no such address' --reason invalid_payload"]
)
@run_argument
@token_option
@error_option(required=True)
@reason_option(required=True)
@click.pass_obj
def fail(call: Call, run: str, token: int, error: str, reason: Reason) -> None:
    """Say that a run failed for good: it is dead, whatever lives it had left."""
    from controller.engine.leases import fail as end

    run_id = _about(call, run)
    _tell(call, "queue-fail", end(call.lenient, run_id, token, error=error, reason=reason), token)


@click.command(
    cls=Verb,
    examples=[
        "controller queue heartbeat r-1 --token 1",
        "controller queue heartbeat r-1 --token 1 --lease 5m --progress '{\"sent\": 12}'",
    ],
)
@run_argument
@token_option
@click.option("--lease", type=Duration(), metavar="D", help="For how long, from now.  [default: as long as before]")
@click.option(
    "--progress",
    metavar="JSON|@FILE|-",
    allow_from_autoenv=False,
    help="How far it is, kept for `controller show RUN`; at most 1 MiB.",
)
@click.pass_obj
def heartbeat(call: Call, run: str, token: int, lease: int | None, progress: str | None) -> None:
    """Say that a run is still worked on: its lease begins anew. Answers whether its cancel was requested."""
    from controller.cli.held import held_row
    from controller.cli.text import duration
    from controller.engine.leases import heartbeat as renew

    run_id = _about(call, run)
    after = renew(call.lenient, run_id, token, lease_ms=lease, progress=_json(progress, "--progress"))
    row = held_row(after, call.here())
    asked = after.cancel_requested_at is not None
    body = {
        "run": run_id,
        "token": token,
        **{name: row[name] for name in ("owner", "lease_ms", "remaining_ms")},
        "cancel_requested": asked,
        "cancel_requested_at": after.cancel_requested_at,
    }
    page = [f"run {run_id} is held for {duration(row['lease_ms'])} more"]
    if asked:
        page += [
            "its cancel was requested: stop working on it",
            f"next: controller queue drain {run_id} --token {token}",
        ]
    call.output.answer("queue-heartbeat", body, page, well=not asked)


@click.command(cls=Verb, examples=["controller queue drain r-1 --token 1"])
@run_argument
@token_option
@click.pass_obj
def drain(call: Call, run: str, token: int) -> None:
    """Give a run back undone, as whoever shuts down in order does; it spends neither of its budgets."""
    from controller.engine.leases import drain as back

    run_id = _about(call, run)
    _tell(call, "queue-drain", back(call.lenient, run_id, token), token)


@click.command(
    cls=Verb,
    examples=[
        "controller queue step r-1 main --token 1 started",
        "controller queue step r-1 main --token 1 succeeded",
        "controller queue step r-1 main --token 1 failed --error 'disk full' --exit-code 1",
    ],
)
@run_argument
@click.argument("step", metavar="STEP")
@token_option
@click.argument("happened", metavar="|".join(HAPPENED), type=click.Choice(HAPPENED))
@error_option(required=False)
@reason_option(required=False)
@click.option("--exit-code", type=Whole(0, 255), metavar="N", help="With which code its command ended.")
@click.option("--signal", type=Whole(1, 64), metavar="N", help="By which signal its command was ended.")
@click.pass_obj
def step(
    call: Call,
    run: str,
    step: str,
    token: int,
    happened: str,
    error: str | None,
    reason: Reason | None,
    exit_code: int | None,
    signal: int | None,
) -> None:
    """Say how a step of a run goes, for runs with several. Once all have ended, complete or retry the run."""
    from controller.cli.views import step_whole
    from controller.engine.leases import step as moved
    from controller.model.errors import UsageFault
    from controller.model.transition import Trigger

    run_id = _about(call, run)
    given = {"--error": error, "--reason": reason, "--exit-code": exit_code, "--signal": signal}
    beside = [name for name, value in given.items() if value is not None]
    fits = {"started": (), "succeeded": ("--exit-code",), "failed": tuple(given)}[happened]
    wrong = [name for name in beside if name not in fits]
    if wrong or (exit_code is not None and signal is not None):
        what = f"{' and '.join(wrong)} cannot be said of a step that has {happened}" if wrong else "one end, not two"
        raise UsageFault(what, where=", ".join(wrong) or "--exit-code, --signal", next="controller queue step --help")
    trigger = Trigger(f"step_{happened}")
    after = moved(
        call.lenient, run_id, step, token, trigger, error=error, reason=reason, exit_code=exit_code, signal=signal
    )
    (found,) = (each for each in after.steps if each.name == step)
    left = [each.name for each in after.steps if each.state in ("pending", "running")]
    body = {"run": run_id, "token": token, "step": step_whole(found), "left": left}
    page = [f"step {step} of run {run_id} is {found.state.value}"]
    if not left:
        verb = "retry" if any(each.state == "failed" for each in after.steps) else "complete"
        page.append(f"next: controller queue {verb} {run_id} --token {token}" + " --error TEXT" * (verb == "retry"))
    call.output.answer("queue-step", body, page, well=True)


def _about(call: Call, run: str) -> str:
    """The id in RUN; a refusal is noted for it."""
    run_id = run_of(run)
    call.subject = f"run:{run_id}"
    return run_id


def _json(given: str | None, option: str) -> Raw | UnsetType:
    from msgspec import UNSET

    from controller.cli.values import json_value

    return UNSET if given is None else json_value(given, option)


def _tell(call: Call, verb: str, run: Run, token: int) -> None:
    """What became of a run whose holder let go of it."""
    from controller.cli import views

    now = call.clock.now_ms()
    row = views.run_row(run, now)
    body = {
        "run": run.id,
        "token": token,
        **{name: row[name] for name in ("state", "view", "queue", "available_at", "reason")},
        "failures": run.failures,
        "max_attempts": run.max_attempts,
        "last_error": run.last_error,
    }
    call.output.answer(verb, body, _let_go_page(run, now, call), well=run.state == "queued")


def _let_go_page(run: Run, now: int, call: Call) -> Iterator[str]:
    from controller.model.reason import EXPLAINED
    from controller.model.views import is_deferred

    failures = f"{run.failures} of {run.max_attempts} failures"
    if run.state == "queued":
        if run.available_at is not None and is_deferred(run, now):
            yield f"run {run.id} is queued again, due {call.times(now).told(run.available_at)}; {failures}"
            yield f"next: it is handed out once it is due; `controller queue promote {run.id}` lets it in now"
        else:
            own = "" if run.queue == DEFAULT_QUEUE else f" --queue {run.queue}"
            yield f"run {run.id} is queued again, due now; {failures}"
            yield f"next: controller queue claim{own}"
        return
    why = "" if run.reason is None else f": {EXPLAINED[run.reason].text}"
    if run.state == "failed":
        yield f"run {run.id} is dead{why}; {failures}"
    else:
        yield f"run {run.id} is {run.state.value}{why}"
    yield f"next: `controller show {run.id}` tells all of it; `controller retry {run.id}` queues it again"


COMMANDS: Mapping[str, click.Command] = {
    "claim": claim,
    "complete": complete,
    "retry": retry,
    "fail": fail,
    "heartbeat": heartbeat,
    "drain": drain,
    "step": step,
}
