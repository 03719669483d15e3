"""The judge of the crash matrix sees what it is there for, and strace is asked for the call that is meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from crashmatrix import cases, report, tracing
from crashmatrix.cases import Case, Outcome, Prepared, promise_of
from crashmatrix.ground import HUNG, Event, Picture
from crashmatrix.judging import Evidence, Expected, Finding, Kind, Promise, Ran, judge
from crashmatrix.plan import FEW, Only, chosen, parse
from crashmatrix.tracing import FAULTS, Point
from crashmatrix.verbs import VERBS
from tests.behaviour.driver import Result
from tests.project.scripts import load

KEY, OTHER = "a" * 64, "b" * 64
COMMAND = load("crash-matrix")


def event(subject: str, name: str, to: str | None = None, *, step: str | None = None) -> Event:
    return (subject, name, None, to, None, None, step)


def picture(*commits: tuple[Event, ...], runs: dict[str, str] | None = None, **more: Any) -> Picture:
    return Picture(True, len(commits), tuple(enumerate(commits, start=1)), runs or {}, **more)


FIRST = (event("fleet", "initialised"),)
KEPT = (event("run:kept", "submitted", "queued"),)
SUBMITTED = (event("run:r", "submitted", "queued"),)
BEFORE = picture(FIRST, KEPT, runs={"kept": "queued"})
DONE = picture(FIRST, KEPT, SUBMITTED, runs={"kept": "queued", "r": "queued"})
SUBMIT = Expected(BEFORE, DONE)
FINE = Ran("x", 0)
KILLED = Evidence(
    promise=None,
    faulted=Ran("submit", -9),
    reads=(FINE,),
    after=BEFORE,
    again=FINE,
    upkeep=(FINE,),
    proofs=(FINE,),
    final=DONE,
    effects=(),
)

PARKED = (event("slot:1", "action.parked", "create"),)
MADE = (event("slot:1", "action.settled"), event("run:r", "claim", "running"))
SERVED = picture(
    FIRST, SUBMITTED, PARKED, MADE, runs={"r": "running"}, parked=frozenset({KEY}), settled=frozenset({KEY})
)
QUEUED = picture(FIRST, SUBMITTED, runs={"r": "queued"})
RECONCILE = Expected(QUEUED, SERVED, (f"create 1 {KEY}",), steady=False)
RECONCILED = replace(KILLED, after=QUEUED, final=SERVED, effects=(f"create 1 {KEY}",))


def found(expected: Expected, seen: Evidence, **more: Any) -> list[tuple[Kind, str]]:
    return [(each.kind, each.what) for each in judge(expected, replace(seen, **more))]


# --- What is fine


def test_a_command_that_never_happened_and_was_given_again_is_fine() -> None:
    assert judge(SUBMIT, KILLED) == ()


def test_a_command_that_happened_whole_and_said_so_again_is_fine() -> None:
    assert judge(SUBMIT, replace(KILLED, after=DONE)) == ()
    refused = replace(SUBMIT, already="transition_refused")
    assert judge(refused, replace(KILLED, after=DONE, again=Ran("x", 3, "transition_refused"))) == ()


def test_effects_once_each_under_parked_keys_are_fine() -> None:
    assert judge(RECONCILE, RECONCILED) == ()


def test_a_torn_tail_that_the_next_commit_keeps_is_no_part_of_the_command() -> None:
    torn = (event("fleet", "torn_tail_kept"), *SUBMITTED)
    assert judge(SUBMIT, replace(KILLED, final=picture(FIRST, KEPT, torn, runs=dict(DONE.runs)))) == ()


# --- Losses


def test_an_acknowledged_run_that_is_not_there_is_a_loss() -> None:
    lost = found(SUBMIT, KILLED, promise=Promise(), after=BEFORE)
    assert lost == [(Kind.LOSS, "it was acknowledged, and after it there is no submitted of run:r (None -> queued)")]


def test_an_acknowledged_run_that_goes_later_is_a_loss() -> None:
    gone = picture(FIRST, KEPT, runs={"kept": "queued"})
    lost = found(SUBMIT, KILLED, promise=Promise(), after=DONE, final=gone)
    assert [kind for kind, _ in lost].count(Kind.LOSS) == 1
    assert lost[0][1].startswith("it was acknowledged, and at the end there is no submitted of run:r")


@pytest.mark.parametrize("commits", [(FIRST,), (FIRST, SUBMITTED), (KEPT, FIRST)])
def test_what_was_there_before_and_is_not_any_more_is_a_loss(commits: tuple[tuple[Event, ...], ...]) -> None:
    lost = found(SUBMIT, KILLED, after=picture(*commits, runs={}))
    assert (Kind.LOSS, "after it commits from before are not there any more, or not as they were") in lost


@pytest.mark.parametrize(
    ("promise", "what"),
    [
        (Promise(parked=frozenset({OTHER})), f"{OTHER[:12]} was said to be parked, and after it it never was"),
        (Promise(settled=frozenset({OTHER})), f"{OTHER[:12]} was said to be settled, and after it it is not"),
        (Promise(runs={"r": "succeeded"}), "run r was said to be succeeded, and after it it is running"),
    ],
)
def test_what_an_answer_says_and_nothing_knows_is_a_loss(promise: Promise, what: str) -> None:
    assert (Kind.LOSS, what) in found(RECONCILE, RECONCILED, promise=promise, after=SERVED)


def test_a_copy_that_was_answered_and_is_not_whole_or_not_there_is_a_loss() -> None:
    backup = Promise(file="backup-1.json")
    expected = Expected(BEFORE, BEFORE)
    made = replace(KILLED, promise=backup, final=BEFORE)
    assert judge(expected, replace(made, backups=("backup-1.json",))) == ()
    assert found(expected, made) == [
        (Kind.LOSS, "backup-1.json was said to be there, and no whole copy of that name is")
    ]


def test_after_a_restore_a_run_that_it_does_not_name_is_gone() -> None:
    restored = (event("fleet", "restored"), event("run:kept", "restored", "queued"))
    back = picture(FIRST, KEPT, SUBMITTED, restored, runs={"kept": "queued"})
    expected = Expected(DONE, back, steady=False, promises=frozenset({"restored"}))
    assert judge(expected, replace(KILLED, promise=Promise(), after=back, final=back)) == ()
    half = replace(back, runs={"kept": "queued", "r": "queued"})
    assert (Kind.FAULT, "after it run r is queued in the document and None in history") in found(
        expected, KILLED, after=half, final=back
    )
    assert (Kind.LOSS, "it was acknowledged, and after it there is no restored of fleet") in found(
        expected, KILLED, promise=Promise(), after=DONE, final=back
    )


def test_an_answer_that_promises_one_event_of_many_is_held_to_that_one() -> None:
    expected = replace(RECONCILE, promises=frozenset({"claim"}))
    lost = found(expected, RECONCILED, promise=Promise(), after=QUEUED)
    assert lost == [(Kind.LOSS, "it was acknowledged, and after it there is no claim of run:r (None -> running)")]


def test_an_answer_is_read_for_what_it_says_is_done() -> None:
    sent = [
        {"idempotency_key": KEY, "outcome": "done", "settled": True},
        {"idempotency_key": OTHER, "outcome": "unknown", "settled": False},
    ]
    ended = [{"run": "r", "state": "succeeded"}]
    told = {"schema": "controller.reconcile/1", "parked": [sent[0]], "sent": sent, "ended": ended}
    assert promise_of(Result((), 0, json.dumps(told), "")) == Promise(
        frozenset({KEY}), frozenset({KEY}), {"r": "succeeded"}
    )


@pytest.mark.parametrize(
    ("told", "promised"),
    [
        ({"schema": "controller.state-backup/1", "file": "/h/state/made.json"}, "made.json"),
        ({"schema": "controller.state-restore/1", "file": "/h/old.json", "kept": "/h/state/kept.json"}, "kept.json"),
        ({"schema": "controller.state-import/1", "file": "/h/old.json", "kept": None}, None),
    ],
)
def test_a_copy_that_a_command_made_is_promised_and_one_that_it_took_is_not(
    told: dict[str, Any], promised: str | None
) -> None:
    assert promise_of(Result((), 0, json.dumps(told), "")) == Promise(file=promised)


def test_an_effect_whose_key_was_never_parked_is_a_loss() -> None:
    lost = found(RECONCILE, RECONCILED, effects=(f"create 1 {OTHER}",))
    assert (Kind.LOSS, f"the effect create in slot 1 under {OTHER[:12]} was never parked") in lost
    assert (Kind.LOSS, f"history has {KEY[:12]} as done, and the provider has not done it") in lost


# --- Doubles


def test_two_effects_of_one_key_are_a_double() -> None:
    twice = found(RECONCILE, RECONCILED, effects=(f"create 1 {KEY}",) * 2)
    assert twice == [(Kind.DOUBLE, f"2 effects of create in slot 1 under {KEY[:12]}")]


def test_the_same_effect_under_a_second_key_is_a_double() -> None:
    both = replace(SERVED, parked=frozenset({KEY, OTHER}))
    twice = found(RECONCILE, RECONCILED, final=both, effects=(f"create 1 {KEY}", f"create 1 {OTHER}"))
    assert twice == [(Kind.DOUBLE, "2 effects create 1, under keys of their own, instead of 1")]


def test_a_commit_that_is_there_twice_is_a_double() -> None:
    twice = picture(FIRST, KEPT, SUBMITTED, SUBMITTED, runs=dict(DONE.runs))
    assert found(SUBMIT, KILLED, final=twice) == [(Kind.DOUBLE, "submitted of run:r (None -> queued) is there 2 times")]


def test_a_run_that_is_claimed_twice_is_a_double_also_where_commits_are_not_the_same_each_time() -> None:
    twice = picture(FIRST, SUBMITTED, PARKED, MADE, MADE, runs={"r": "running"}, parked=frozenset({KEY}))
    assert (Kind.DOUBLE, "claim of run:r (None -> running) is there 2 times") in found(
        RECONCILE, RECONCILED, final=twice
    )


# --- Faults


@pytest.mark.parametrize(
    ("seen", "what"),
    [
        ({"reads": (Ran("status", 7, "document_corrupt", "bad"),)}, "`status` exits with 7 (document_corrupt): bad"),
        ({"proofs": (Ran("fsck", 5),)}, "`fsck` exits with 5"),
        ({"upkeep": (Ran("submit", 8),)}, "`submit` exits with 8"),
        ({"again": Ran("submit", 3, "conflict")}, "again: `submit` exits with 3 (conflict)"),
        ({"faulted": Ran("submit", HUNG)}, "the command itself failed: `submit` does not end"),
        ({"faulted": Ran("submit", 1, "internal")}, "the command itself failed: `submit` exits with 1 (internal)"),
        (
            {"faulted": Ran("submit", 7, "document_corrupt")},
            "the command itself failed: `submit` exits with 7 (document_corrupt)",
        ),
        ({"after": None}, "after it the readers do not answer"),
        ({"final": replace(DONE, pending=("slot 2",))}, "slot 2 still has a pending action"),
        ({"left": (".controller.json.tmp-1",)}, ".controller.json.tmp-1 is left behind"),
        ({"disagreements": ("explain r: queued",)}, "explain r: queued"),
        (
            {"after": replace(BEFORE, runs={"kept": "queued", "r": "queued"})},
            "after it run r is queued in the document and None in history",
        ),
        ({"after": replace(BEFORE, revision=3)}, "after it history has revisions [1, 2], the document 3"),
    ],
)
def test_what_must_not_be_is_a_fault(seen: dict[str, Any], what: str) -> None:
    assert found(SUBMIT, KILLED, **seen) == [(Kind.FAULT, what)]


def test_a_command_that_is_there_by_half_is_a_fault() -> None:
    both = (*SUBMITTED, event("run:s", "submitted", "queued"))
    whole = picture(FIRST, both, runs={"r": "queued", "s": "queued"})
    expected = Expected(picture(FIRST), whole)
    half = picture(FIRST, SUBMITTED, runs={"r": "queued"})
    (fault,) = found(expected, KILLED, after=half, final=whole)
    assert fault[1].startswith("it is there by half")


def test_saying_already_of_what_never_happened_is_a_fault() -> None:
    refused = replace(SUBMIT, already="transition_refused")
    assert found(refused, KILLED, again=Ran("x", 3, "transition_refused")) == [
        (Kind.FAULT, "again: `x` exits with 3 (transition_refused)")
    ]


def test_work_that_is_never_finished_is_a_fault() -> None:
    found_out = found(RECONCILE, RECONCILED, final=QUEUED, effects=())
    assert (Kind.FAULT, "at the end run r is queued, not running") in found_out
    assert (Kind.FAULT, "0 effects create 1 instead of 1") in found_out


@pytest.mark.parametrize(
    ("code", "stdout", "told"),
    [
        (0, '{"schema": "controller.submit/1"}', True),
        (-9, '{"schema": "controller.submit/1"}', True),
        (-9, "", False),
        (-9, '{"schema": "contr', False),
        (8, '{"error": {"code": "storage_failed"}}', False),
        (5, '{"schema": "controller.reconcile/1"}', False),
    ],
)
def test_a_command_is_acknowledged_once_its_answer_is_out(code: int, stdout: str, told: bool) -> None:
    assert (promise_of(Result((), code, stdout, "")) is not None) is told


# --- strace

STATE = Path("/h/state")
TRACE = r"""10 execve("/bin/controller", [...], 0x1 /* 3 vars */) = 0
10 openat(AT_FDCWD</h>, "/usr/lib/os.pyc", O_RDONLY|O_CLOEXEC) = 3</usr/lib/os.pyc>
10 openat(AT_FDCWD</h>, "/h/state/controller.lock", O_RDWR|O_CLOEXEC) = 3</h/state/controller.lock>
10 write(1<pipe:[7]>, ""..., 5) = 5
10 write(3</h/state/.controller.json.tmp-10-140>, ""..., 5) = 5
10 fdatasync(3</h/state/.controller.json.tmp-10-140>) = 0
10 clone3({flags=CLONE_VM} => {parent_tid=[11]}, 88) = 11
11 fdatasync(4</h/state/controller.lock> <unfinished ...>
10 write(4</h/state/controller.lock>, ""..., 9) = -1 EIO (Input/output error) (INJECTED)
11 <... fdatasync resumed>) = ?
11 fdatasync(4</h/state/journal-7-0.jsonl>) = 0
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "trace"
    path.write_text(TRACE)
    return path


def test_points_are_the_calls_that_change_the_state_and_those_that_start_something(log: Path) -> None:
    assert [point[:4] for point in tracing.points(tracing.read(log), STATE)] == [
        ("openat", 1, 2, ""),
        ("write", 1, 2, ""),
        ("fdatasync", 1, 1, ""),
        ("clone3", 1, 1, ""),
        ("fdatasync", 2, 1, "state/controller.lock"),
        ("write", 2, 3, ""),
        ("fdatasync", 3, 2, ""),
    ]


def test_a_call_whose_number_another_thread_reaches_first_is_not_taken_for_reached(log: Path) -> None:
    log.write_text("10 fsync(3</h/state/a>) = 0\n11 fsync(3</h/state/a>) = 0\n")
    assert [point.when for point in tracing.points(tracing.read(log), STATE)] == [1, 0]


def test_names_of_temporary_files_are_the_same_in_every_run(log: Path) -> None:
    assert tracing.points(tracing.read(log), STATE)[1].what == "state/.controller.json.tmp"


def test_a_fault_elsewhere_is_not_taken_for_the_one_that_was_wanted(log: Path) -> None:
    calls = tracing.read(log)
    assert [call.name for call in calls if call.injected] == ["fdatasync", "write"]
    assert tracing.landed(log, Point("fdatasync", 2, 1, "", "state/controller.lock"), Path("/h"))
    assert not tracing.landed(log, Point("write", 2, 3, "", "state/controller.lock"), Path("/h"))
    log.write_text("10 fsync(3</h/state/a>) = 0\n")
    assert not tracing.landed(log, Point("fsync", 1, 1, "", "state/a"), Path("/h"))


@pytest.mark.parametrize("alone", [False, True])
def test_a_kill_is_a_signal_and_all_else_an_error(tmp_path: Path, alone: bool) -> None:
    point = Point("fsync", 1, 4, "state/slots", "")
    killed = tracing.injecting(tmp_path / "l", point, "KILL", Path("/h"), alone=alone)
    assert killed[-3:] == ("--trace-path=/h/state/slots", "-e", "inject=fsync:signal=KILL:when=4")
    failed = tracing.injecting(tmp_path / "l", point, "EIO", Path("/h"), alone=alone)
    assert failed[-1] == "inject=fsync:error=EIO:when=4"


def test_programs_that_a_command_starts_are_let_go(tmp_path: Path) -> None:
    point = Point("fsync", 1, 4, "", "")
    let_go = ("-b", "execve")
    assert tracing.injecting(tmp_path / "l", point, "EIO", Path("/h"), alone=False)[2:4] == let_go
    assert tracing.tracing(tmp_path / "l")[2:4] == let_go


@pytest.mark.parametrize(("found_again", "landed"), [((Point("fsync", 2, 9, "", "state/2"),), True), ((), False)])
def test_a_fault_that_missed_is_tried_again_where_the_call_is_now(
    monkeypatch: pytest.MonkeyPatch, found_again: tuple[Point, ...], landed: bool
) -> None:
    tried: list[int] = []

    def attempt(prepared: Prepared, case: Case) -> Outcome:
        tried.append(case.point.when)
        return Outcome(case, (), landed=case.point.when == 9)

    monkeypatch.setattr(cases, "_run", attempt)
    monkeypatch.setattr(cases, "_retrace", lambda prepared: found_again)
    assert cases.run(PREPARED, REACHED[1], "EIO").landed is landed
    assert tried == ([2, 9] if landed else [2])


# --- Which cases, and the table

REACHED = tuple(Point("fsync", nth, nth, "", f"state/{nth}") for nth in range(1, 8))
PREPARED = Prepared("submit", Path("/h"), SUBMIT, (*REACHED, Point("fsync", 8, 0, "", "state/8")))


def test_every_point_that_can_be_reached_gets_every_fault() -> None:
    assert list(chosen(PREPARED, quick=False, only=None)) == [(point, fault) for point in REACHED for fault in FAULTS]


def test_of_many_calls_alike_the_first_and_the_last_are_tried() -> None:
    many = tuple(Point("unlink", nth, nth, "", "state/journal-N-N.jsonl") for nth in range(1, 65))
    tried = [point.nth for point, _ in chosen(PREPARED._replace(points=many), quick=False, only=None, faults=("EIO",))]
    assert tried == [1, 2, 3, 62, 63, 64]


def test_some_faults_can_be_left_out() -> None:
    few = chosen(PREPARED, quick=False, only=None, faults=("EIO",))
    assert list(few) == [(point, "EIO") for point in REACHED]


@pytest.mark.parametrize("more", [["--verb", "submit"], ["--fault", "EIO"], ["--quick"]])
def test_one_case_is_one_case(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        COMMAND.main(["--only", "submit:fsync:2:EIO", *more])
    assert ending.value.code == 2
    assert "--only is one case" in capsys.readouterr().err


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_the_short_form_has_a_few_different_points_of_each_verb_one_killed(verb: str) -> None:
    few = list(chosen(PREPARED._replace(verb=verb), quick=True, only=None))
    assert len({point for point, _ in few}) == FEW
    assert "KILL" in {fault for _, fault in few}


def test_one_case_is_named_as_the_report_names_it() -> None:
    case = Case("submit", REACHED[1], "EIO")
    assert list(chosen(PREPARED, quick=False, only=parse(str(case)))) == [(REACHED[1], "EIO")]
    assert report.repeat(str(case)) == "bin/crash-matrix --only submit:fsync:2:EIO"


@pytest.mark.parametrize(
    "text", ["submit", "submit:fsync:2", "x:fsync:2:KILL", "submit:x:2:KILL", "submit:fsync:0:EIO"]
)
def test_what_is_no_case_is_a_usage_fault(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        COMMAND.main(["--only", text])
    assert ending.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("nth", [8, 9])
def test_a_case_that_cannot_be_reached_or_is_not_there_is_refused(nth: int) -> None:
    with pytest.raises(ValueError, match=r"cannot single out|makes 8 calls of fsync"):
        list(chosen(PREPARED, quick=False, only=Only("submit", "fsync", nth, "KILL")))


def test_without_strace_it_says_so_and_does_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracing, "STRACE", None)
    assert COMMAND.main(["--quick"]) == 3
    said = capsys.readouterr()
    assert "strace is not here" in said.err
    assert said.out == ""


def test_the_table_counts_each_kind_in_its_column() -> None:
    findings = (Finding(Kind.LOSS, "l"), Finding(Kind.LOSS, "m"), Finding(Kind.DOUBLE, "d"), Finding(Kind.FAULT, "f"))
    outcomes = [
        Outcome(Case("submit", REACHED[0], "KILL"), findings, landed=True),
        Outcome(Case("submit", REACHED[1], "KILL"), (), landed=False),
    ]
    (row,) = report.rows([PREPARED], outcomes)
    assert (row.points, row.cases, row.unreached, row.missed) == (8, 2, 1, 1)
    assert (row.faults, row.losses, row.doubles) == (1, 2, 1)
    assert report.table([row]).splitlines()[-1].split() == ["all", "8", "2", "1", "1", "1", "2", "1"]
    assert report.wrongs(outcomes)[0].what == ("loss: l", "loss: m", "double: d", "fault: f")
