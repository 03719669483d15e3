"""What the command adapter makes of replies: noise, lies, and what could not be stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.model.errors import ProviderFailed
from controller.model.inventory import Seen, StepSeen
from controller.model.records import ActionType
from controller.provider.protocol import Done, IdentityRefused, Pending, Rejected, Unknown
from tests.provider.programs import PRELUDE, ask_create, asker, command, create, python_program, script


def test_a_done_create_gives_the_worker_it_made(tmp_path: Path) -> None:
    body = """
worker["resources"] = {"vm": {"id": "i-1", "immutable_id": "u-1", "zone": "b"}}
print(reply(worker=worker))
"""
    outcome = ask_create(tmp_path, body)
    assert isinstance(outcome, Done)
    assert outcome.worker is not None
    assert (outcome.worker.id, outcome.worker.state) == ("w", Seen.READY)
    assert (outcome.worker.resources["vm"].id, outcome.worker.resources["vm"].immutable_id) == ("i-1", "u-1")


def test_members_that_nobody_knows_are_ignored(tmp_path: Path) -> None:
    assert isinstance(ask_create(tmp_path, "print(reply(meta={'a': [1, {'b': None}]}, cost=1.5))"), Done)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ("", Pending(1000)),
        (", retry_after_ms=0", Pending(0)),
        (", retry_after_ms=5000, reason='booting'", Pending(5000, "booting")),
        (", retry_after_ms=10**15", Pending(3_600_000)),
    ],
)
def test_pending_says_when_to_ask_again_within_bounds(tmp_path: Path, members: str, expected: Pending) -> None:
    assert ask_create(tmp_path, f"print(reply('pending'{members}))") == expected


def test_a_rejection_and_a_refused_identity_carry_their_reason(tmp_path: Path) -> None:
    assert ask_create(tmp_path, "print(reply('rejected', reason='quota'))") == Rejected("quota")
    refused = ask_create(tmp_path, "print(reply('identity_refused', reason='another machine'))")
    assert refused == IdentityRefused("another machine")


@pytest.mark.parametrize(
    "body",
    [
        "print('INFO: creating')\nprint(reply(worker=worker))",
        "print(reply(worker=worker), 'done')",
        "print(reply())\nprint(reply())",
        "pass",
        "print('[]')",
        "print('null')",
        "print(reply(worker=worker)[:-1])",
        "sys.stdout.buffer.write(b'\\xff\\xfe' + reply().encode())",
        "print(reply(worker=worker)); sys.exit(1)",
        "print(reply(worker=worker), flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    ],
    ids=["log line", "a word after", "two documents", "empty", "list", "null", "cut", "not text", "exit 1", "killed"],
)
def test_noise_is_unknown_and_names_slot_and_key(tmp_path: Path, body: str) -> None:
    asked = asker(python_program(tmp_path, body), tmp_path)
    sent = asked.mint(ActionType.CREATE, 3)
    outcome = asked.once(sent)
    assert isinstance(outcome, Unknown)
    assert not outcome.process_lives
    assert f"slot 3, key {sent[0].idempotency_key}" in outcome.reason


def test_an_excerpt_of_what_was_said_is_bounded_and_steers_no_terminal(tmp_path: Path) -> None:
    body = """
print("\\x1b[31mred\\x07\\r\\n" + "x" * 100_000)
sys.stderr.write("y" * 100_000 + "\\u202e\\x1b]0;title\\x07 the end")
"""
    outcome = ask_create(tmp_path, body)
    assert isinstance(outcome, Unknown)
    assert outcome.reason.isprintable()
    assert "\\x1b[31mred" in outcome.reason
    assert "the end" in outcome.reason
    assert len(outcome.reason) < 1_000


@pytest.mark.parametrize(
    "body",
    [
        "print(reply(worker=worker, meta=0).replace('\"meta\": 0', '\"meta\": ' + '[' * 300 + ']' * 300))",
        "print(reply(worker=worker, meta=0).replace('\"meta\": 0', '\"meta\": ' + '[' * 100_000 + ']' * 100_000))",
        "print(reply(worker=worker, size=2**64))",
        "print(reply(worker=worker, size=0).replace('\"size\": 0', '\"size\": 1' + '0' * 5000))",
        "print(reply(worker=worker, load=float('nan')))",
        "print(reply(worker=worker, load=float('-inf')))",
        "print(reply(worker=worker, name='\\ud800'))",
        "print('{\"slot\": 3,' + reply(worker=worker)[1:])",
        "worker['id'] = 'x' * 2000\nprint(reply(worker=worker))",
        "worker['resources'] = {str(n): {'id': 'x'} for n in range(65)}\nprint(reply(worker=worker))",
    ],
    ids=[
        "deep",
        "very deep",
        "2^64",
        "10^5000",
        "nan",
        "inf",
        "surrogate",
        "duplicate key",
        "long id",
        "many resources",
    ],
)
def test_a_reply_that_cannot_be_stored_is_unknown_and_names_slot_and_key(tmp_path: Path, body: str) -> None:
    asked = asker(python_program(tmp_path, body), tmp_path)
    sent = asked.mint(ActionType.CREATE, 3)
    for _ in range(2):
        outcome = asked.once(sent)
        assert isinstance(outcome, Unknown)
        assert "cannot be stored" in outcome.reason
        assert f"slot 3, key {sent[0].idempotency_key}" in outcome.reason


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("slot = 4\nprint(reply())", "for slot 4"),
        ("key = 'f' * 64\nprint(reply())", "for key ffff"),
        ("print(reply(protocol='controller.provider/2'))", "protocol"),
        ("print(reply(op='inventory'))", "op"),
        ("print(reply('finished'))", "finished"),
        ("print(reply(None))", "outcome"),
        ("slot = 3.0\nprint(reply())", "slot"),
        ("slot = '3'\nprint(reply())", "slot"),
        ("slot = True\nprint(reply())", "slot"),
        ("print(reply('pending', retry_after_ms=-1))", "retry_after_ms"),
        ("print(reply('pending', retry_after_ms=1.5))", "retry_after_ms"),
        ("worker['lineage'] = 'another'\nprint(reply(worker=worker))", "lineage another"),
        ("worker['slot'] = 4\nprint(reply(worker=worker))", "slot 4"),
        ("worker['assignment'] = 'a-2'\nprint(reply(worker=worker))", "assignment a-2"),
        ("worker['generation'] = 2\nprint(reply(worker=worker))", "generation 2"),
        ("worker['state'] = 'sleepy'\nprint(reply(worker=worker))", "sleepy"),
        ("worker['id'] = ''\nprint(reply(worker=worker))", "is empty"),
        ("worker['id'] = '\\t'\nprint(reply(worker=worker))", "is empty"),
        ("worker['resources'] = {'vm': {'id': ''}}\nprint(reply(worker=worker))", "is empty"),
        ("print(reply(step={'idempotency_key': 'other', 'state': 'running'}))", "key other"),
        ("print(reply(step={'idempotency_key': key, 'state': 'running', 'exit_code': 0}))", "has an end"),
        ("print(reply(step={'idempotency_key': key, 'state': 'exited', 'exit_code': 0, 'signal': 9}))", "both"),
    ],
)
def test_a_reply_to_something_else_is_unknown(tmp_path: Path, body: str, says: str) -> None:
    outcome = ask_create(tmp_path, body)
    assert isinstance(outcome, Unknown)
    assert says in outcome.reason


def test_a_cancels_step_is_the_one_it_was_to_end(tmp_path: Path) -> None:
    body = """
target = action["request"]["target"] if request["op"] == "mutate" and slot == 1 else "other"
print(reply(step={"idempotency_key": target, "state": "exited", "signal": 15, "ended_at": 5, "reason": "a\\nb"}))
"""
    asked = asker(python_program(tmp_path, body), tmp_path)
    execute = asked.execute(("true",))
    outcome = asked.once(asked.cancel(execute))
    assert isinstance(outcome, Done)
    assert outcome.step is not None
    assert outcome.step.idempotency_key == execute[0].idempotency_key
    assert (outcome.step.signal, outcome.step.ended_at, outcome.step.reason) == (15, 5, "a\\nb")


def test_more_than_two_mebibytes_of_stdout_end_the_program(tmp_path: Path) -> None:
    outcome = ask_create(tmp_path, "while True: print('x' * 100_000)")
    assert isinstance(outcome, Unknown)
    assert "more than 2097152 bytes" in outcome.reason
    assert not outcome.process_lives


def test_a_reply_of_almost_two_mebibytes_and_much_stderr_is_an_answer(tmp_path: Path) -> None:
    body = "sys.stderr.write('e' * 8_000_000)\nprint(reply() + ' ' * 2_096_000)"
    assert isinstance(ask_create(tmp_path, body), Done)


# Looks and descriptions

LOOK = (
    PRELUDE + "\nworkers = [worker | {'slot': 1, 'lineage': request['lineage'], 'assignment': 'a-1', 'generation': 1}]"
)
ANSWER = (
    "\nprint(json.dumps({'protocol': request['protocol'], 'op': 'inventory', 'complete': True, 'workers': workers}))"
)


def look(tmp_path: Path, body: str) -> tuple[str, ...]:
    path = tmp_path / "look.py"
    path.write_text(LOOK + "\n" + body + ANSWER)
    return (python_program(tmp_path, "")[0], str(path))


def test_a_worker_of_another_lineage_is_passed_on_since_it_may_bear_what_is_recorded_here(tmp_path: Path) -> None:
    argv = look(tmp_path, "workers += [workers[0] | {'lineage': 'x'}]")
    found = command(argv, tmp_path).inventory().workers
    assert [(worker.lineage == "x", worker.assignment) for worker in found] == [(False, "a-1"), (True, "a-1")]


def test_workers_of_other_lineages_that_cannot_be_read_are_dropped(tmp_path: Path) -> None:
    argv = look(tmp_path, "workers += [{'lineage': 'x', 'slot': -1}, {'lineage': 'x', 'state': 7}]")
    assert [(w.slot, w.assignment) for w in command(argv, tmp_path).inventory().workers] == [(1, "a-1")]


def test_an_incomplete_look_says_so(tmp_path: Path) -> None:
    argv = script(
        tmp_path,
        """#!/bin/sh
echo '{"protocol": "controller.provider/1", "op": "inventory", "complete": false, "workers": [], "why": "page 2"}'
""",
    )
    assert not command(argv, tmp_path).inventory().complete


def test_steps_carry_what_the_worker_knows_of_them(tmp_path: Path) -> None:
    steps = "[{'idempotency_key': 'k', 'state': 'exited', 'timed_out': True, 'started': False, 'host': 'b'}]"
    (worker,) = command(look(tmp_path, f"workers[0]['steps'] = {steps}"), tmp_path).inventory().workers
    (step,) = worker.steps
    assert (step.state, step.timed_out, step.started, step.exit_code) == (StepSeen.EXITED, True, False, None)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("workers = {}", "workers"),
        ("workers[0]['size'] = 2**64", "cannot be stored"),
        ("print('listing')", "not one JSON object"),
        ("sys.exit(3)", "exited with status 3"),
    ],
)
def test_a_malformed_look_fails_whole_and_says_what_and_where(tmp_path: Path, body: str, says: str) -> None:
    argv = look(tmp_path, body)
    with pytest.raises(ProviderFailed) as failed:
        command(argv, tmp_path).inventory()
    assert says in failed.value.what
    assert str(tmp_path / "look.py") in failed.value.where
    assert "docs/provider-protocol.md" in failed.value.next


SECOND = "workers += [workers[0] | {'slot': 2, 'assignment': 'a-2'}]\n"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("workers += [workers[0] | {'id': 'other'}]", "a-1 is listed twice"),
        ("workers[0]['generation'] = -1", "generation -1"),
        ("workers[0]['generation'] = '1'", "generation"),
        ("workers[0]['state'] = 'sleepy'", "sleepy"),
        ("del workers[0]['lineage']", "lineage"),
        ("workers[0]['lineage'] = 7", "lineage"),
        ("workers[0]['resources'] = []", "resources"),
        ("workers[0]['id'] = ''", "is empty"),
        ("workers[0]['id'] = ' \\u200b'", "is empty"),
        ("workers[0]['resources'] = {'vm': {'id': ' '}}", "is empty"),
        ("workers[0]['resources'] = {'vm': {'id': 'i', 'immutable_id': ' '}}", "is empty"),
        ("workers[0]['resources'] = {'': {'id': 'i'}}", "is empty"),
        ("workers[0]['steps'] = [{'idempotency_key': 'k', 'state': 'running'}] * 2", "one idempotency_key"),
    ],
)
def test_an_entry_of_no_use_makes_its_own_slot_unreadable_and_says_why(tmp_path: Path, body: str, says: str) -> None:
    found = command(look(tmp_path, SECOND + body), tmp_path).inventory()
    assert (found.complete, found.unreadable) == (True, (1,))
    (trouble,) = found.troubles
    assert trouble.startswith("slot 1 cannot be read: ")
    assert says in trouble
    assert 2 in [worker.slot for worker in found.workers]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("workers[0]['slot'] = 0", "outside 1..10000"),
        ("workers[0]['slot'] = 10001", "outside 1..10000"),
        ("workers[0]['slot'] = True", "slot"),
        ("workers[0]['slot'] = '1'", "slot"),
        ("del workers[0]['slot']", "slot"),
        ("workers[0] = []", "workers[0]"),
    ],
)
def test_an_entry_whose_slot_cannot_be_told_makes_the_look_incomplete(tmp_path: Path, body: str, says: str) -> None:
    found = command(look(tmp_path, SECOND + body), tmp_path).inventory()
    assert (found.complete, found.unreadable) == (False, ())
    (trouble,) = found.troubles
    assert trouble.startswith("a slot that nobody can tell cannot be read: ")
    assert says in trouble
    assert [worker.slot for worker in found.workers] == [2]


def test_what_is_told_of_odd_entries_is_bounded_and_steers_no_terminal(tmp_path: Path) -> None:
    body = "workers = [workers[0] | {'slot': n, 'state': '\\x1b[31m' + 'x' * 900} for n in range(1, 1001)]"
    found = command(look(tmp_path, body), tmp_path).inventory()
    assert found.unreadable == tuple(range(1, 1001))
    assert found.troubles[-1] == "and 992 more entries that cannot be read"
    assert len(found.troubles) == 9
    assert all(trouble.isprintable() and len(trouble) < 250 for trouble in found.troubles)


def test_a_look_that_takes_too_long_fails(tmp_path: Path) -> None:
    with pytest.raises(ProviderFailed, match=r"no answer within 0\.2 s"):
        command(look(tmp_path, "time.sleep(60)"), tmp_path, inventory=0.2).inventory()


def test_a_description_is_asked_for_once(tmp_path: Path) -> None:
    body = """
open("calls", "a").write("x")
print(json.dumps({"protocol": request["protocol"], "op": "describe", "name": "p", "version": "2", "types": ["create"]}))
"""
    provider = command(python_program(tmp_path, body), tmp_path)
    first = provider.describe()
    assert (first.name, first.version, first.types, first.key_ttl_ms, first.wait) == (
        "p",
        "2",
        ("create",),
        None,
        False,
    )
    assert provider.describe() == first
    assert (tmp_path / "calls").read_text() == "x"


def test_a_program_that_describes_itself_wrongly_is_asked_again(tmp_path: Path) -> None:
    body = """
ttl = 5 if os.path.exists("asked") else -5
open("asked", "w")
answer = {"protocol": request["protocol"], "op": "describe", "name": "p", "version": "2", "types": []}
print(json.dumps(answer | {"key_ttl_ms": ttl}))
"""
    provider = command(python_program(tmp_path, body), tmp_path)
    with pytest.raises(ProviderFailed, match="key_ttl_ms is -5"):
        provider.describe()
    assert provider.describe().key_ttl_ms == 5


@pytest.mark.parametrize(("members", "changed"), [({}, True), ({"changed": True}, True), ({"changed": False}, False)])
def test_a_wait_ends_when_the_program_says_so(tmp_path: Path, members: dict[str, bool], changed: bool) -> None:
    body = f"""
assert request["timeout_ms"] == 30_000, request
print(json.dumps({{"protocol": "controller.provider/1", "op": "wait", **{members!r}}}))
"""
    assert bool(command(python_program(tmp_path, body), tmp_path).wait(30.0)) is changed


def test_a_wait_that_does_not_end_is_no_news(tmp_path: Path) -> None:
    assert not command(python_program(tmp_path, "time.sleep(60)"), tmp_path).wait(0.1)


def test_what_an_unready_program_gets_is_one_line_with_the_stored_bytes_whole(tmp_path: Path) -> None:
    asked = asker(script(tmp_path, "#!/bin/sh\ncat > request\n"), tmp_path)
    sent = asked.mint(ActionType.CREATE, 3)
    assert isinstance(asked.once(sent), Unknown)
    head = f'{{"protocol":"controller.provider/1","op":"mutate","fleet":"test","lineage":"{sent[0].lineage}","action":'
    assert (tmp_path / "request").read_bytes() == head.encode() + bytes(sent[1]) + b"}\n"
    assert isinstance(create(asked), Unknown)
