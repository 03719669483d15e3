"""New compute for the data of a worker: whatever dies on the way, the same key finishes it, and one process is it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from controller.model.inventory import Seen, StepSeen
from controller.model.process import Liveness
from controller.model.records import ActionType
from controller.provider.local.client import LocalProvider
from controller.provider.process import group_members, identify, liveness
from controller.provider.protocol import Done, Outcome, Rejected, Unknown
from tests.provider.contract import LINEAGE, OTHER_LINEAGE, SLEEP, Asker, Sent, until
from tests.provider.local_kit import (
    CLOCK,
    groups,
    hasty,
    kill,
    nobody,
    provider,
    supervisor,
    sweep,
    worker_directory,
)

ROOT = Path(__file__).parents[2]

_DYING = """
import os, signal
def die_at(name, nth):
    real, calls = getattr(os, name), 0
    def dying(*args, **options):
        nonlocal calls
        calls += 1
        answer = real(*args, **options)
        if calls == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    setattr(os, name, dying)
"""
"""Right after its *nth* call of a function of `os`, a process is killed."""

CALLER_DIES = [("fchmod", 1), ("write", 1), ("fsync", 1), ("rename", 1), ("fsync", 2), ("posix_spawn", 1), ("read", 1)]
"""Each thing that a caller changes, or waits for, in the course of a resume."""
SUPERVISOR_DIES = [("chdir", 1), ("fchmod", 1), ("write", 1), ("unlink", 1), ("write", 2), ("fdatasync", 1)]
"""Each thing that a supervisor changes in the course of its start."""


@pytest.fixture(params=["switched off", "lost"])
def resume(request: pytest.FixtureRequest, ask: Asker, state: Path) -> Sent:
    """A resume that is due: a worker whose step ended, and whose compute has ended since."""
    ask.create()
    worker = ask.worker()
    sent = ask.execute(("sh", "-c", "exit 7"))
    ask.done(sent)
    ask.ended(sent)
    if request.param == "lost":
        kill(supervisor(state))
    else:
        ask.done(ask.mint(ActionType.DEALLOCATE))
    return ask.mint(ActionType.CREATE, generation=2, resources=worker.resources)


def supervisors_of(state: Path) -> list[int]:
    """Pids of living processes that work in the worker's directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and identify(int(entry.name)) is not None:
            try:
                where = os.readlink(entry / "cwd")
            except OSError:
                continue
            if where == str(worker_directory(state)):
                found.append(int(entry.name))
    return found


def answered(outcome: Outcome) -> bool:
    """Whether it is done. All that may come instead, while one that starts has the lock, is unknown."""
    assert isinstance(outcome, (Done, Unknown)), outcome
    return isinstance(outcome, Done)


def finishes(ask: Asker, sent: Sent, state: Path) -> None:
    """The same key makes the resumed worker, whole."""
    until(CLOCK, lambda: answered(ask.settle(sent)))
    worker = ask.worker()
    assert (worker.generation, worker.state) == (2, Seen.READY)
    assert [step.exit_code for step in worker.steps] == [7]
    assert supervisors_of(state) == [supervisor(state).pid]
    now = ask.execute(("true",), run="r-2", generation=2)
    ask.done(now)
    assert ask.ended(now).exit_code == 0


@pytest.mark.parametrize(("name", "nth"), CALLER_DIES)
def test_a_caller_that_is_killed_in_a_resume_leaves_what_the_same_key_finishes(
    ask: Asker, state: Path, resume: Sent, name: str, nth: int
) -> None:
    program = f"""{_DYING}
from pathlib import Path
from msgspec import Raw
from controller.model.action import decode
from tests.provider.local_kit import provider
raw = Raw({bytes(resume[1])!r})
local = provider(Path({str(state)!r}))
die_at({name!r}, {nth})
local.mutate(decode(raw), raw, lambda *_: None)
"""
    died = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    assert all(worker.state is not Seen.DARK or worker.generation == 1 for worker in ask.workers())
    finishes(ask, resume, state)


@pytest.mark.parametrize(("name", "nth"), SUPERVISOR_DIES)
def test_a_supervisor_that_is_killed_as_it_starts_leaves_what_the_same_key_finishes(
    ask: Asker, state: Path, tmp_path: Path, resume: Sent, name: str, nth: int
) -> None:
    program = tmp_path / "python"
    program.write_text(f"""#!{sys.executable}
import sys
{_DYING}
at = sys.argv.index("-c") + 1
sys.argv, program = ["-c", *sys.argv[at + 1:]], sys.argv[at]
die_at({name!r}, {nth})
exec(program)
""")
    program.chmod(0o700)
    broken = LocalProvider(
        state, fleet="test", lineage=LINEAGE, clock=CLOCK, environment=dict(os.environ), python=str(program)
    )
    try:
        assert isinstance(broken.mutate(*resume, nobody), Unknown)
    finally:
        broken.close()
    assert supervisors_of(state) == []
    assert (ask.worker().generation, ask.worker().state) != (2, Seen.READY)
    finishes(ask, resume, state)


def test_a_resume_that_is_sent_by_many_at_once_starts_one_supervisor(ask: Asker, state: Path, resume: Sent) -> None:
    outcomes: list[Outcome] = []

    def send() -> None:
        local = provider(state)
        outcomes.append(local.mutate(*resume, nobody))
        local.close()

    senders = [threading.Thread(target=send) for _ in range(4)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert any(answered(outcome) for outcome in outcomes)
    finishes(ask, resume, state)


def test_a_resume_ends_what_a_lost_supervisor_left_before_it_makes_anything(ask: Asker, state: Path) -> None:
    ask.create()
    lost = ask.execute(("sh", "-c", "sleep 600 & sleep 600"))
    ask.done(lost)
    (group,) = groups(worker_directory(state))
    until(CLOCK, lambda: len(group_members(group.pid)) >= 2)
    kill(supervisor(state))
    ask.create(generation=2)
    assert group_members(group.pid) == ()
    end = ask.step(lost)
    assert (end.state, end.exit_code, end.signal) == (StepSeen.EXITED, None, None)


def test_a_resume_over_a_process_that_is_not_provably_ours_makes_nothing(ask: Asker, state: Path) -> None:
    ask.create()
    ask.done(ask.execute(SLEEP))
    (group,) = groups(worker_directory(state))
    kill(supervisor(state))
    memory = worker_directory(state) / "memory.jsonl"
    truth = memory.read_bytes()
    memory.write_bytes(truth.replace(f'"pid":{group.pid},'.encode(), b'"pid":0,'))
    assert isinstance(ask.once(ask.mint(ActionType.CREATE, generation=2)), Unknown)
    assert identify(group.pid) == group
    memory.write_bytes(truth)
    assert (ask.worker().generation, ask.worker().state) == (1, Seen.GONE)


def test_a_late_deallocate_does_not_end_a_later_generation_that_hangs(ask: Asker, state: Path) -> None:
    ask.create()
    ask.done(ask.mint(ActionType.DEALLOCATE))
    late, current = ask.mint(ActionType.DEALLOCATE), ask.mint(ActionType.DEALLOCATE, generation=2)
    ask.create(generation=2)
    who = supervisor(state)
    os.kill(who.pid, signal.SIGSTOP)
    with hasty(state) as local:
        assert isinstance(local.mutate(*late, nobody), Unknown)
        assert liveness(who) is Liveness.ALIVE
        assert isinstance(local.mutate(*current, nobody), Done)
    assert liveness(who) is Liveness.GONE


def test_a_deallocate_that_names_another_process_does_not_end_one_that_hangs(ask: Asker, state: Path) -> None:
    ask.create()
    whole = ask.worker().resources
    other = {**whole, "process": whole["directory"]}
    who = supervisor(state)
    os.kill(who.pid, signal.SIGSTOP)
    with hasty(state) as local:
        assert isinstance(local.mutate(*ask.mint(ActionType.DEALLOCATE, resources=other), nobody), Unknown)
        assert liveness(who) is Liveness.ALIVE
        assert isinstance(local.mutate(*ask.mint(ActionType.DEALLOCATE, resources=whole), nobody), Done)


def test_the_data_of_another_lineage_is_not_resumed(ask: Asker, state: Path) -> None:
    ask.create()
    ask.done(ask.mint(ActionType.DEALLOCATE))
    dark = ask.worker()
    stranger = Asker(provider(state, lineage=OTHER_LINEAGE), CLOCK, OTHER_LINEAGE)
    assert isinstance(stranger.once(stranger.mint(ActionType.CREATE, generation=2)), Rejected)
    assert ask.worker() == dark


def test_a_step_that_was_cancelled_before_it_came_stays_refused_after_a_resume(ask: Asker) -> None:
    ask.create()
    late = ask.execute(SLEEP, token=2)
    ask.done(ask.cancel(late, token=2))
    ask.done(ask.mint(ActionType.DEALLOCATE))
    ask.create(generation=2)
    assert isinstance(ask.once(late), Rejected)
    assert isinstance(ask.once(ask.execute(SLEEP, token=1, generation=2)), Rejected)
    assert ask.steps() == {}


def test_a_process_is_listed_while_it_lives_and_the_directory_while_it_is_there(ask: Asker, state: Path) -> None:
    ask.create()
    alive = ask.worker()
    who = supervisor(state)
    assert set(alive.resources) == {"directory", "process"}
    assert alive.resources["process"].id == f"{who.pid}-{who.started}"
    kill(who)
    gone = ask.worker()
    assert (gone.state, dict(gone.resources)) == (Seen.GONE, {"directory": alive.resources["directory"]})
    ask.create(generation=2)
    again = ask.worker()
    assert again.resources["directory"] == alive.resources["directory"]
    assert again.resources["process"] != alive.resources["process"]
    ask.done(ask.mint(ActionType.DEALLOCATE, generation=2))
    assert dict(ask.worker().resources) == {"directory": alive.resources["directory"]}
    sweep(state)
