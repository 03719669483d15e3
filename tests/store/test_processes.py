"""Real processes on one directory: many at once, and killed at every point of a commit."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from controller.model.invariants import violations
from controller.store.file import FileStore
from tests.store import kit

ROOT = Path(__file__).parents[2]
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not here")

SUBMITTER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    sys.path.insert(0, {root!r})
    from tests.store import kit
    store = kit.opened(Path(sys.argv[1]))
    store.read()
    import filelock
    for name in sys.argv[2:]:
        kit.submit(store, name, timeout=60)
        print(name, flush=True)
    store.close()
    """
).format(root=str(ROOT))


def submitter(directory: Path, *names: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    argv = [*prefix, sys.executable, "-c", SUBMITTER, str(directory), *names]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def sound(directory: Path) -> FileStore:
    """The store after the storm: read afresh, judged, its history without gap or repeat."""
    store = kit.opened(directory)
    kit.submit(store, "r-last")
    document = store.read().document
    assert violations(document) == ()
    events = [(event.revision, event.n) for event in store.history()]
    assert events == sorted(set(events))
    assert [revision for revision, n in events if n == 1] == list(range(1, document.revision + 1))
    assert store.history_fault() is None
    assert store.leftovers() == ()
    assert not [name for name in kit.files(directory) if ".tmp-" in name]
    return store


def test_eight_processes_submit_at_once_while_others_are_killed(tmp_path: Path) -> None:
    directory = tmp_path / "s"
    kit.fleet(directory)
    steady = [submitter(directory, *(f"s{number}-{turn}" for turn in range(12))) for number in range(5)]
    doomed = [submitter(directory, *(f"d{number}-{turn}" for turn in range(500))) for number in range(3)]
    acknowledged: set[str] = set()
    for number, process in enumerate(doomed):
        assert process.stdout is not None
        for _ in range(3 + number):
            acknowledged.add(process.stdout.readline().strip())
        process.send_signal(signal.SIGKILL)
        acknowledged |= {line.strip() for line in process.stdout.read().splitlines() if line}
        process.communicate()
    for process in steady:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        acknowledged |= set(out.split())
    document = sound(directory).read().document
    assert len([name for name in acknowledged if name.startswith("s")]) == 60
    assert acknowledged <= set(document.runs), acknowledged - set(document.runs)
    extra = set(document.runs) - acknowledged - {"r-last"}
    assert len(extra) <= 3, extra  # at most the one that each killed process could not acknowledge any more
    assert all(re.match(r"d[0-2]-", name) for name in extra)


def injecting(directory: Path, call: str, what: str) -> tuple[str, ...]:
    """strace that does *what* to a *call* of the program. Opening is done all over a start, so it counts only here."""
    names = ("", "controller.json", "journal-1-0.jsonl", "journal-3-0.jsonl", "controller.lock")
    paths = [f"--trace-path={directory / name}" for name in names] if call == "openat" else []
    return ("strace", "-f", "-qq", "-o", "/dev/null", *paths, "-e", f"trace={call}", "-e", f"inject={call}:{what}")


@needs_strace
@pytest.mark.parametrize(
    ("call", "at_least"),
    [("openat", 8), ("pwrite64", 2), ("fdatasync", 1), ("write", 3), ("fsync", 6), ("rename", 1), ("fchmod", 2)],
)
def test_a_process_killed_at_any_call_of_a_commit_and_a_fold_leaves_the_commit_whole_or_absent(
    tmp_path: Path, call: str, at_least: int
) -> None:
    """The unmodified program, killed by the kernel at the nth such call, for n from 1 until it gets to its end.

    It commits by pwrite64 and fdatasync; the rest is of its fold, at the end, when the commit was acknowledged.
    """
    for nth in range(1, 40):
        directory = tmp_path / f"s{nth}"
        kit.submit(kit.fleet(directory), "r-1")
        process = submitter(directory, "r-2", prefix=injecting(directory, call, f"signal=SIGKILL:when={nth}"))
        out, _ = process.communicate(timeout=60)
        runs = set(sound(directory).read().document.runs)
        assert runs in ({"r-1", "r-last"}, {"r-1", "r-2", "r-last"})
        if out.strip() == "r-2":
            assert "r-2" in runs
        if process.returncode == 0:
            assert nth > at_least
            return
    pytest.fail("it never got to its end")


@needs_strace
@pytest.mark.parametrize(
    ("call", "count", "error"),
    [
        ("pwrite64", 3, "ENOSPC"),
        ("pwrite64", 3, "EIO"),
        ("fdatasync", 1, "EIO"),
        ("write", 3, "ENOSPC"),
        ("fsync", 6, "EIO"),
        ("rename", 1, "EIO"),
    ],
)
def test_a_call_that_fails_once_loses_nothing(tmp_path: Path, call: str, count: int, error: str) -> None:
    for nth in range(1, count + 1):
        directory = tmp_path / f"s{nth}"
        kit.submit(kit.fleet(directory), "r-1")
        process = submitter(directory, "r-2", prefix=injecting(directory, call, f"error={error}:when={nth}"))
        out, err = process.communicate(timeout=60)
        runs = set(sound(directory).read().document.runs)
        if out.strip() == "r-2":
            assert "r-2" in runs
        elif call == "write" and nth == 1:
            assert "r-2" in runs, "it was the answer that could not be written, after the commit"
        else:
            assert re.search(r"(StorageFailed|DurabilityFailed): ", err), err


def test_a_killed_holder_frees_document_and_slot_at_once(tmp_path: Path) -> None:
    directory = tmp_path / "s"
    kit.fleet(directory)
    program = textwrap.dedent(
        f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(ROOT)!r})
        from tests.store import kit
        store = kit.opened(Path({str(directory)!r}), command="doomed")
        with store.hold(5) as hold, store.hold_slot(3) as slot:
            slot.register(kit.OTHER, 99, "key")
            print("held", flush=True)
            sys.stdin.read()
        """
    )
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        store = kit.opened(directory)
        with pytest.raises(Exception, match=rf"pid {process.pid} \(doomed\) since .*Z"), store.hold(0.02):
            pass
        with pytest.raises(Exception, match=rf"pid {process.pid} \(doomed\)"), store.hold_slot(3):
            pass
        assert store.read().document.revision == 1
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with store.hold(0), store.hold_slot(3):
        note = store.slot_note(3)
        assert (note.provider, note.deadline_at, note.key) == (kit.OTHER, 99, "key")
