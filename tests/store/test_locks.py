"""Busy is not broken: what is not contention is said at once, with path and error, and never as "busy"."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from controller.clock import FakeClock
from controller.model.errors import DocumentMissing, LockBusy, LockReentered, LockUnusable, NotOurs, SlotBusy
from controller.store import locks
from controller.store.file import FileStore
from tests.store import kit

ROOT = Path(__file__).parents[2]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    kit.fleet(tmp_path / "s")
    return tmp_path / "s"


@pytest.fixture
def store(directory: Path) -> FileStore:
    return kit.opened(directory)


def run_as(directory: Path, program: str, *, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run *program* in another process with `store` at hand; refusals come out as `type: what | next`."""
    code = textwrap.dedent(
        f"""
        import sys, json
        from pathlib import Path
        sys.path.insert(0, {str(ROOT)!r})
        from controller.model.errors import ControllerError
        from tests.store import kit
        store = kit.opened(Path({str(directory)!r}))
        try:
            {program}
        except ControllerError as error:
            print(type(error).__name__ + ": " + error.what + " | " + error.next)
        """
    )
    argv = [*prefix, sys.executable, "-c", code]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)


SUBMIT = "kit.submit(store, 'r-x', timeout=5); print('done')"
POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
STRANGER = ("setpriv", "--reuid=4242", "--regid=4242", "--clear-groups")


def test_a_lock_path_that_is_a_directory_is_unusable(store: FileStore, directory: Path) -> None:
    (directory / "controller.lock").unlink()
    (directory / "controller.lock").mkdir()
    with pytest.raises(LockUnusable, match=r"controller\.lock.*EISDIR"), store.hold(5):
        pass


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_lock_path_that_is_no_file_is_unusable(store: FileStore, directory: Path, kind: str) -> None:
    path = directory / "controller.lock"
    path.unlink()
    if kind == "link":
        path.symlink_to(directory / "history.jsonl")
    else:
        os.mkfifo(path)
    with pytest.raises(LockUnusable), store.hold(5):
        pass


def test_exhausted_descriptors_are_unusable_and_not_busy(directory: Path) -> None:
    program = """
            import resource, os
            from controller.model.errors import LockUnusable
            store.read(); import filelock
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            kit.submit(store, 'r-x', timeout=5)"""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)
    result = run_as(directory, program.strip())
    assert result.stdout.startswith("LockUnusable:"), result
    assert "EMFILE" in result.stdout


def test_a_directory_moved_away_while_waiting_is_said_at_once(store: FileStore, directory: Path) -> None:
    waiter = kit.opened(directory)
    found: list[BaseException] = []
    waiting = threading.Event()

    class Waiting(FakeClock):
        """Tells when the waiter sleeps, and lets it sleep without end."""

        def sleep(self, seconds: float) -> None:
            waiting.set()

    waiter = FileStore(directory, clock=Waiting(), whoami=kit.ME, command="waiter")

    def wait() -> None:
        try:
            kit.submit(waiter, "r-1", timeout=60)
        except BaseException as error:  # noqa: BLE001 - looked at below
            found.append(error)

    with store.hold(1):
        thread = threading.Thread(target=wait)
        thread.start()
        assert waiting.wait(30)
        directory.rename(directory.with_name("moved"))
        thread.join(30)
    assert isinstance(found[0], LockUnusable)
    assert "ENOENT" in found[0].what
    assert str(directory) in found[0].what


def test_a_lock_file_replaced_while_waiting_is_not_waited_for(store: FileStore, directory: Path) -> None:
    waiting = threading.Event()

    class Waiting(FakeClock):
        def sleep(self, seconds: float) -> None:
            waiting.set()

    waiter = FileStore(directory, clock=Waiting(), whoami=kit.ME, command="waiter")
    with store.hold(1):
        thread = threading.Thread(target=kit.submit, args=(waiter, "r-1"))
        thread.start()
        assert waiting.wait(30)
        (directory / "controller.lock").unlink()
        thread.join(30)
        assert not thread.is_alive()
    assert set(store.read().document.runs) == {"r-1"}


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Lock files that somebody removes right after they are opened for the first time, before they are locked."""
    paths: list[Path] = []
    real = locks.open_lock

    def open_and_remove(path: Path) -> locks.LockFile:
        handle = real(path)
        if path not in paths:
            paths.append(path)
            path.unlink()
        return handle

    monkeypatch.setattr(locks, "open_lock", open_and_remove)
    return paths


def test_a_lock_file_removed_before_it_was_locked_lets_nobody_in(store: FileStore, removed: list[Path]) -> None:
    kit.submit(store, "r-1")
    assert len(removed) == 1
    assert set(store.read().document.runs) == {"r-1"}


def test_a_slots_lock_file_removed_before_it_was_locked_lets_nobody_in(store: FileStore, removed: list[Path]) -> None:
    with store.hold_slot(1) as held:
        assert len(removed) == 1
        held.check()


@kit.needs_root
def test_a_directory_without_write_permission_is_unusable_for_its_owner(directory: Path) -> None:
    (directory / "controller.lock").unlink()
    directory.chmod(0o500)
    result = run_as(directory, SUBMIT, prefix=POWERLESS)
    assert result.stdout.startswith("LockUnusable:"), result
    assert "EACCES" in result.stdout
    assert "controller.lock" in result.stdout


@kit.needs_root
def test_a_directory_that_lost_its_write_permission_still_takes_commits_and_is_not_folded(directory: Path) -> None:
    before = (directory / "controller.json").read_bytes()
    directory.chmod(0o500)
    result = run_as(directory, f"{SUBMIT}; print('folded', store.fold())", prefix=POWERLESS)
    assert result.stdout.endswith("folded False\n"), result
    directory.chmod(0o700)
    assert (directory / "controller.json").read_bytes() == before
    assert "r-x" in kit.opened(directory).read().document.runs


@kit.needs_root
def test_a_journal_that_lost_its_write_permission_takes_none_and_is_named(directory: Path) -> None:
    kit.journal_of(directory).chmod(0o400)
    before = kit.snapshot_of(directory)
    result = run_as(directory, SUBMIT, prefix=POWERLESS)
    assert "EACCES" in result.stdout, result
    assert kit.journal_of(directory).name in result.stdout
    assert kit.snapshot_of(directory) == before


@kit.needs_root
def test_a_stranger_is_told_file_owner_and_mode(directory: Path, tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents):
        if path != Path("/") and path.stat().st_mode & 0o005 != 0o005:
            path.chmod(path.stat().st_mode | 0o005)
    directory.chmod(0o755)
    (directory / "controller.json").chmod(0o644)
    for program in (SUBMIT, "store.hold_slot(1).__enter__()"):
        result = run_as(directory, program, prefix=STRANGER)
        assert result.stdout.startswith("NotOurs:"), result
        assert "belongs to root, mode 0" in result.stdout
    assert "revision" not in run_as(directory, "print(store.read().document.revision)", prefix=STRANGER).stdout
    (directory / "controller.json").chmod(0o600)
    result = run_as(directory, "store.read()", prefix=STRANGER)
    assert result.stdout.startswith("NotOurs:"), result
    assert "controller.json belongs to root, mode 0600" in result.stdout


@kit.needs_root
def test_root_is_refused_in_a_users_directory_and_told_what_to_type(store: FileStore, directory: Path) -> None:
    os.chown(directory, 65534, 65534)
    before = kit.files(directory)
    for attempt in (lambda: kit.submit(store, "r-1"), lambda: store.hold_slot(1).__enter__()):
        with pytest.raises(NotOurs, match="belongs to nobody") as refusal:
            attempt()
        assert refusal.value.next == "sudo -u nobody controller ..."
    store.note_refusal("x", "y", "z", "fleet")
    assert store.read().document.revision == 1
    assert kit.files(directory) == before


@kit.needs_root
def test_a_read_only_mount_reads_and_refuses_the_lock(directory: Path) -> None:
    program = f"""
            import os
            print(store.read().document.revision, len(store.history()), store.slot_note(1).key, store.refusals(3))
            {SUBMIT}"""
    script = f"mount --bind {directory} {directory} && mount -o remount,ro,bind {directory} && exec "
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{script} true"], capture_output=True, text=True, check=False
    )
    if result.returncode:
        pytest.skip(f"no mount namespaces here: {result.stderr.strip()}")
    before = kit.snapshot_of(directory)
    answer = run_as(directory, program.strip(), prefix=("unshare", "-m", "sh", "-c", script + '"$@"', "sh"))
    assert answer.stdout.splitlines()[0] == "1 1  ()", answer
    assert answer.stdout.splitlines()[1].startswith("LockUnusable:")
    assert "EROFS" in answer.stdout
    assert kit.snapshot_of(directory) == before


def test_readers_import_no_lock_library(directory: Path) -> None:
    program = """
            store.read(); store.history(); store.slot_note(1); store.refusals(1)
            print(sorted(name for name in sys.modules if name.startswith("filelock")))"""
    assert run_as(directory, program.strip()).stdout == "[]\n"


def test_re_entry_is_noticed_under_every_spelling_of_the_path(
    store: FileStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = directory.with_name("link")
    link.symlink_to(directory)
    monkeypatch.chdir(directory)
    with store.hold(1):
        for spelling in (directory, link, Path(), directory / ".." / directory.name, Path("..") / "link"):
            with pytest.raises(LockReentered), kit.opened(spelling).hold(0):
                pass


def test_a_forked_child_holds_nothing(store: FileStore) -> None:
    with store.hold(1) as hold:
        loaded = hold.load()
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            try:
                hold.commit(loaded, kit.submitting(loaded.document, "r-1"))
            except Exception as error:  # noqa: BLE001 - only its name crosses to the parent
                os._exit(7 if type(error).__name__ == "LockLost" else 8)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        hold.commit(loaded, kit.submitting(loaded.document, "r-2"))
    assert set(store.read().document.runs) == {"r-2"}


def test_no_descriptor_of_the_store_is_inherited(store: FileStore, directory: Path) -> None:
    listing = (
        "import os; print([os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd') if fd != '3'])"
    )
    with store.hold(1) as hold, store.hold_slot(2) as slot:
        hold.load()
        slot.register(kit.OTHER, 1, "k")
        argv = [sys.executable, "-c", listing]
        found = subprocess.run(argv, capture_output=True, text=True, check=True, close_fds=False).stdout
    assert str(directory) not in found


@pytest.mark.parametrize("often", [False, True], ids=["a few times", "again and again"])
def test_the_note_says_who_holds_it_since_which_second_and_often_only_when_that_changes(
    directory: Path, often: bool
) -> None:
    clock = FakeClock(1_700_000_000_000)
    ours, theirs = kit.opened(directory, clock=clock), kit.opened(directory, clock=clock, command="other")
    path = directory / "controller.lock"

    def noted(store: FileStore) -> tuple[str, int]:
        """By whom and since when, after a hold of *store*."""
        with store.hold(1):
            note = json.loads(path.read_bytes().partition(b"\n")[0])
        return note["command"], note["since"]

    if often:
        for _ in range(100):
            noted(ours)
    clock.advance(0.3)
    assert noted(ours) == ("test", 1_700_000_000_000 if often else 1_700_000_000_300)
    before = path.stat().st_mtime_ns
    clock.advance(0.5)
    assert noted(ours) == ("test", 1_700_000_000_000 if often else 1_700_000_000_800)
    assert (path.stat().st_mtime_ns == before) is often
    assert noted(theirs) == ("other", 1_700_000_000_800)
    assert noted(ours) == ("test", 1_700_000_000_000 if often else 1_700_000_000_800)
    clock.advance(0.5)
    assert noted(ours) == ("test", 1_700_000_001_300)


def test_a_note_of_garbage_is_tolerated(store: FileStore, directory: Path) -> None:
    holder = kit.opened(directory)
    found: list[LockBusy] = []

    def wait() -> None:
        try:
            kit.submit(store, "r-1", timeout=0)
        except LockBusy as busy:
            found.append(busy)

    with holder.hold(1):
        for garbage in (
            b"",
            b"\xff\xfe",
            b"[" * 5_000,
            b'{"pid":1}',
            b'{"pid":1,"command":"x","since":99999999999999999}\n',
        ):
            (directory / "controller.lock").write_bytes(garbage)
            thread = threading.Thread(target=wait)
            thread.start()
            thread.join()
    assert len(found) == 5
    assert all("a process that left no readable note" in busy.what for busy in found)


def test_a_slot_note_of_garbage_is_an_empty_one(store: FileStore, directory: Path) -> None:
    with store.hold_slot(1):
        (directory / "slots" / "00001.lock").write_bytes(b"\0\0\0")
        assert store.slot_note(1).controller is None
        with pytest.raises(SlotBusy, match="no readable note"), store.hold_slot(1):
            pass


def test_a_longer_older_note_does_not_spoil_a_shorter_one(store: FileStore) -> None:
    with store.hold_slot(1) as held:
        held.register(kit.OTHER, 5, "k" * 500)
        held.clear()
        assert store.slot_note(1).key == ""
        assert store.slot_note(1).controller == kit.ME
    with kit.opened(store.directory, command="a much longer command than the next").hold(1):
        pass
    with kit.opened(store.directory, command="x").hold(1), pytest.raises(LockReentered), store.hold(0):
        pass


def test_a_slot_of_a_missing_document_is_not_locked(store: FileStore, directory: Path) -> None:
    (directory / "controller.json").unlink()
    with pytest.raises(DocumentMissing), store.hold_slot(1):
        pass
    assert not (directory / "slots").exists()
