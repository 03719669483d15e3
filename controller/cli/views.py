"""Records as answers: plain values for JSON, and the lines that say the same to people.

Values of variables that a run was given are never shown, only their names: they are where secrets are.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType, to_builtins

from controller.api.words import spelled
from controller.cli import text
from controller.cli.drawing import drawing
from controller.cli.tables import Facts, Table, table
from controller.cli.text import Times, shown
from controller.model.action import decode
from controller.model.errors import BrokenAction
from controller.model.reason import EXPLAINED, Reason
from controller.model.records import Document, Event, Lease, Run, RunState, Step, StepState, Tombstone
from controller.model.step import is_active, is_blocking
from controller.model.views import advice, view_of


class Here(Struct, frozen=True):
    """A moment on this host: `now` in UTC ms, and `mono_ms` on the monotonic clock of the boot `boot_id`."""

    now: int
    mono_ms: int
    boot_id: str

    def left(self, lease: Lease) -> int:
        """Milliseconds that *lease* has left; 0 once it is over, as every lease of an earlier boot is."""
        from controller.engine.leases import remaining_ms

        return remaining_ms(lease, self.boot_id, self.mono_ms)


def run_row(run: Run | Tombstone, now: int) -> dict[str, Any]:
    """A run as one entry of a list."""
    if isinstance(run, Tombstone):
        return {
            "id": run.id,
            "state": run.state.value,
            "view": None,
            "queue": run.queue,
            "created_at": run.created_at,
            "finished_at": run.finished_at,
            "attempts": run.token,
            "slot": None,
            "owner": run.owner,
            "priority": None,
            "available_at": None,
            "reason": _value(run.reason),
            "command": _command(run.steps),
            "payload": None,
        }
    view = view_of(run, now)
    return {
        "id": run.id,
        "state": run.state.value,
        "view": None if view is None else view.value,
        "queue": run.queue,
        "created_at": run.created_at,
        "finished_at": run.finished_at,
        "attempts": run.attempts,
        "slot": None if run.worker is None else run.worker.slot,
        "owner": None if run.lease is None else run.lease.owner,
        "priority": run.priority.value,
        "available_at": run.available_at,
        "reason": _value(run.reason or run.defer_reason),
        "command": _command(run.steps),
        "payload": _kept(run.payload),
    }


def work_of(row: Mapping[str, Any]) -> str:
    """What there is to do, of a `run_row`: its command, or else its payload."""
    payload: Raw | None = row["payload"]
    return row["command"] or ("" if payload is None else bytes(payload).decode())


def run_rows(rows: Iterable[Mapping[str, Any]], times: Times) -> Iterator[str | Table]:
    """A list of runs for people. Their queues are named only where there are several."""
    known = list(rows)
    several = len({row["queue"] for row in known}) > 1
    yield table(
        ("RUN", *(["QUEUE"] if several else []), "STATE", "LIVES", "SLOT", "AGE", "REASON", "COMMAND"),
        (
            (
                row["id"],
                *([row["queue"]] if several else []),
                row["state"]
                if row["view"] in (None, "pending", "active", "dead")
                else f"{row['state']} ({row['view']})",
                str(row["attempts"]),
                "-" if row["slot"] is None else str(row["slot"]),
                times.age(row["created_at"]),
                row["reason"] or "-",
                shown(work_of(row)),
            )
            for row in known
        ),
    )


def run_whole(run: Run | Tombstone, now: int, here: Here | None = None) -> dict[str, Any]:
    """Everything about a run, values of variables left out. *here*: say too what its lease has left."""
    view = view_of(run, now) if isinstance(run, Run) else None
    head = {"id": run.id, "state": run.state.value, "view": None if view is None else view.value}
    whole = head | _fields(run, without=("steps", "payload", "progress", "result", "content"))
    if isinstance(run, Run) and run.lease is not None and here is not None:
        whole["lease"]["remaining_ms"] = here.left(run.lease)
    kept = {name: _kept(getattr(run, name, UNSET)) for name in ("payload", "progress", "result")}
    return whole | kept | {"steps": [step_whole(step) for step in run.steps]}


def step_whole(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "state": step.state.value,
        "argv": list(step.argv),
        "needs": list(step.needs),
        "env": sorted(step.env),
        "cwd": step.cwd,
        "timeout_ms": step.timeout_ms,
        "max_attempts": step.max_attempts,
        "reason": _value(step.reason),
        "started_at": step.attempts[0].started_at if step.attempts else None,
        "finished_at": step.attempts[-1].ended_at if step.attempts and not is_active(step.state) else None,
        "attempts": [_fields(attempt) for attempt in step.attempts],
    }


def run_page(run: Run | Tombstone, times: Times, here: Here | None = None) -> Iterator[str | Table]:
    """A run for people. *here*: say too what its lease has left."""
    lines = [("run", run.id), ("state", _state(run, times.now)), ("queue", run.queue)]
    lines.append(("created", times.told(run.created_at)))
    if isinstance(run, Run):
        lines.append(("priority", run.priority.value))
        if run.concurrency_key:
            lines.append(("key", f"{shown(run.concurrency_key)}, {run.concurrency} at once"))
        if run.available_at is not None:
            lines.append(("available", times.told(run.available_at)))
        lines.append(("lives", f"{run.attempts} so far (also its token)"))
        lines.append(("failures", f"{run.failures} of {run.max_attempts}"))
        lines.append(("crashes", f"{run.crashes} of {run.max_crashes}"))
        if run.deferrals:
            lines.append(("deferrals", f"{run.deferrals} in a row"))
        if run.started_at is not None:
            lines.append(("started", times.told(run.started_at)))
        if run.cancel_requested_at is not None:
            lines.append(("cancel", f"requested {times.told(run.cancel_requested_at)}"))
        if run.lease is not None:
            left = "" if here is None else f", {_left(run.lease, here)}"
            lines.append(("lease", f"held by {shown(run.lease.owner)}, token {run.attempts}{left}"))
    else:
        lines.append(("lives", f"{run.token} (also its token)"))
        if run.owner is not None:
            lines.append(("owner", shown(run.owner)))
    if run.worker is not None:
        worker = run.worker
        lines.append(("worker", f"slot {worker.slot}, {worker.assignment} generation {worker.generation}"))
    if run.finished_at is not None:
        lines.append(("finished", times.told(run.finished_at)))
    if isinstance(run, Run) and run.last_error:
        lines.append(("last error", shown(run.last_error)))
    kept = {name: _kept(getattr(run, name, UNSET)) for name in ("payload", "progress", "result")}
    lines += [(name, shown(bytes(value).decode())) for name, value in kept.items() if value is not None]
    yield Facts(lines)
    if len(run.steps) > 1:
        yield ""
        yield drawing(run.steps, times.now)
    for step in run.steps:
        yield ""
        yield from step_page(step, run.steps, times)
    what_next = advice(run)
    if what_next is not None:
        yield ""
        yield f"next: {what_next}"


def _left(lease: Lease, here: Here) -> str:
    left = here.left(lease)
    return f"{text.duration(left)} left" if left else "its lease is over"


def step_page(step: Step, steps: Sequence[Step], times: Times) -> Iterator[str]:
    """One of *steps* for people."""
    state = _step_state(step, steps)
    lines = [("step", f"{shown(step.name)}, {state}"), ("command", shown(shlex.join(step.argv)))]
    if step.needs:
        lines.append(("needs", ", ".join(map(shown, step.needs))))
    if step.env:
        lines.append(("variables", f"{', '.join(map(shown, sorted(step.env)))} (values not shown)"))
    if step.cwd is not None:
        lines.append(("directory", shown(step.cwd)))
    if step.timeout_ms is not None:
        lines.append(("timeout", spelled(step.timeout_ms)))
    if step.max_attempts != 1:
        lines.append(("attempts", f"at most {step.max_attempts} in one life"))
    for attempt in step.attempts:
        end = "running"
        if attempt.ended_at is not None:
            code = f"exit {attempt.exit_code}" if attempt.exit_code is not None else ""
            signal = f"signal {attempt.signal}" if attempt.signal is not None else ""
            end = f"{code or signal or 'ended'} after {text.duration(attempt.ended_at - attempt.started_at)}"
        why = f", {EXPLAINED[attempt.reason].text}" if attempt.reason else ""
        key = f", key {attempt.key[:12]}" if attempt.key else ""
        lines.append((f"attempt {attempt.n}", f"{end}{why}, started {times.told(attempt.started_at)}{key}"))
    yield from text.pairs(lines)


def _step_state(step: Step, steps: Sequence[Step]) -> str:
    """Its state and why; of a skipped one, which of its needs kept it from starting."""
    if step.state is not StepState.SKIPPED:
        return step.state.value + (f": {EXPLAINED[step.reason].text}" if step.reason else "")
    blocking = {each.name: each.state for each in steps if is_blocking(each.state)}
    because = [f"{shown(need)} ({blocking[need]})" for need in step.needs if need in blocking]
    return f"skipped: it needs {', '.join(because)}" if because else "skipped: the run was over before it could start"


def _state(run: Run | Tombstone, now: int) -> str:
    words = run.state.value
    if isinstance(run, Run) and run.state is RunState.QUEUED:
        view = view_of(run, now)
        words += f" ({view.value})" if view is not None else ""
    reason = run.reason or (run.defer_reason if isinstance(run, Run) else None)
    return words + (f": {EXPLAINED[reason].text}" if reason else "")


def slot_whole(document: Document, slot: int, pending: Mapping[str, Any] | None) -> dict[str, Any]:
    """Everything about a slot. *pending* is its entry of `pending_mutations`."""
    worker, record = document.workers.get(slot), document.slots.get(slot)
    return {
        "slot": slot,
        "worker": None if worker is None else _fields(worker),
        "pending_mutation": pending,
        "changed": 0 if record is None else record.changed,
        "cordoned": record is not None and record.cordoned,
        "refusals": 0 if record is None else record.refusals,
        "not_before_at": None if record is None else record.not_before,
    }


def slot_page(whole: Mapping[str, Any], times: Times) -> Iterator[str]:
    worker, pending = whole["worker"], whole["pending_mutation"]
    lines = [("slot", str(whole["slot"])), ("cordoned", "yes" if whole["cordoned"] else "no")]
    lines.append(("changed", f"by revision {whole['changed']}" if whole["changed"] else "never"))
    if whole["refusals"]:
        lines.append(("refused", f"{whole['refusals']} creates in a row"))
    if whole["not_before_at"] is not None:
        lines.append(("not before", times.told(whole["not_before_at"])))
    if worker is None:
        lines.append(("worker", "none"))
    else:
        why = f": {EXPLAINED[Reason(worker['reason'])].text}" if worker["reason"] else ""
        lines.append(("worker", f"{worker['assignment']} generation {worker['generation']}, {worker['state']}{why}"))
        lines.append(("provider", f"{shown(worker['provider'])}, id {shown(worker['id']) or 'not known yet'}"))
        lines.append(("created", times.told(worker["created_at"])))
        lines.append(("last change", times.told(worker["changed_at"])))
        lines.extend((name, worker[name]) for name in ("run", "reserved") if worker[name])
        for name, resource in (worker["resources"] or {}).items():
            lines.append((shown(name), shown(f"{resource['id']} {resource.get('immutable_id', '')}".strip())))
        lines.extend(
            (name, ", ".join(key[:12] for key in worker[name])) for name in ("accepted", "settled") if worker[name]
        )
        if worker["absent"]:
            lines.append(("not seen", f"since {times.told(worker['absent']['began_at'])}"))
    yield from text.pairs(lines)
    yield ""
    if pending is None:
        yield "no pending mutation"
    else:
        yield "pending mutation"
        from controller.cli.pending import pending_page

        yield from (f"  {line}" for line in pending_page(pending, times))


def event_whole(event: Event) -> dict[str, Any]:
    """One event of history; the action that it carries without values of variables."""
    return {
        "revision": event.revision,
        "n": event.n,
        "at": event.at,
        "command": event.command,
        "subject": event.subject,
        "event": event.event,
        "from": event.from_,
        "to": event.to,
        "reason": _value(event.reason),
        "token": event.token,
        "key": event.key,
        "step": event.step,
        "detail": event.detail,
        "action": None if event.action is UNSET else action_whole(event.action),
    }


def action_whole(raw: Raw) -> dict[str, Any]:
    try:
        decode(raw)
    except BrokenAction as error:
        return {"unreadable": str(error)}
    import orjson

    content: dict[str, Any] = orjson.loads(bytes(raw))
    request = content.get("request")
    if isinstance(request, dict) and isinstance(request.get("env"), dict):
        content["request"] = request | {"env": sorted(request["env"])}
    return content


def event_rows(events: Iterable[Mapping[str, Any]]) -> Iterator[str | Table]:
    yield table(
        ("REVISION", "TIME", "COMMAND", "SUBJECT", "EVENT", "CHANGE", "WHY"),
        (
            (
                f"{event['revision']}.{event['n']}",
                text.moment(event["at"]),
                shown(event["command"]),
                shown(event["subject"]) + (f"/{shown(event['step'])}" if event["step"] else ""),
                shown(event["event"]),
                _change(event),
                _why(event),
            )
            for event in events
        ),
    )


def _change(event: Mapping[str, Any]) -> str:
    if event["from"] is None and event["to"] is None:
        return "-"
    return f"{event['from'] or '(none)'} -> {event['to'] or '(none)'}"


def _why(event: Mapping[str, Any]) -> str:
    parts = [event["reason"] or "", shown(event["detail"] or "")]
    if event["token"] is not None:
        parts.append(f"token {event['token']}")
    if event["key"]:
        parts.append(f"key {event['key'][:12]}")
    if event["action"] is not None and "type" in event["action"]:
        parts.append(f"action {event['action']['type']} serial {event['action'].get('serial')}")
    return ", ".join(part for part in parts if part) or "-"


def _command(steps: Iterable[Step]) -> str:
    known = list(steps)
    if not known:
        return ""
    return shlex.join(known[0].argv) + (f" (and {len(known) - 1} more steps)" if len(known) > 1 else "")


def _fields(record: Struct, without: Iterable[str] = ()) -> dict[str, Any]:
    """Every field of *record* as plain values, those at their default too."""
    return {name: to_builtins(getattr(record, name)) for name in record.__struct_fields__ if name not in without}


def _kept(value: Raw | UnsetType) -> Raw | None:
    return None if isinstance(value, UnsetType) else value


def _value(value: object) -> object:
    return value.value if isinstance(value, Reason) else value
