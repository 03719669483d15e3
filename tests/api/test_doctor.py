"""doctor: each thing that can be wrong with a host or a state directory is found, said with what to do, and hides
nothing else.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller.api import configured, host
from controller.api.doctor import Check, Doctor, judged
from controller.api.host import Finding, State
from controller.api.settings import ProviderSettings, Settings
from controller.clock import Clock, FakeClock, SystemClock
from controller.model.errors import ProviderFailed
from controller.model.process import ProcessIdentity
from controller.store import disk
from tests.provider.programs import python_program, script
from tests.store import kit

ROOT = Path(__file__).parents[2]
ALL = (
    *("python", "libraries", "byte code", "processes", "limits", "clock", "directory", "file system", "mount", "room"),
    *("document", "history", "left over", "lock", "slot locks", "settings", "environment", "workers", "provider"),
    "inventory",
)
DESCRIBE = """
op = request["op"]
answer = {"protocol": "controller.provider/1", "op": op}
if op == "describe":
    answer |= {"name": "mine", "version": "7", "types": TYPES, "key_ttl_ms": 60000, "wait": False}
else:
    answer |= {"complete": COMPLETE, "workers": []}
print(json.dumps(answer))
"""
EVERY_TYPE = '["create", "execute", "cancel", "deallocate", "delete_compute", "reset"]'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    kit.fleet(tmp_path / "s")
    config(tmp_path / "s", '[provider.env]\nPATH = "/usr/bin:/bin"\n')
    return tmp_path / "s"


def config(directory: Path, text: str) -> Path:
    path = directory / "controller.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def by_program(directory: Path, body: str, **names: str) -> None:
    """Configure a provider that runs *body*, with *names* replaced in it."""
    for name, value in names.items():
        body = body.replace(name, value)
    words = ", ".join(f'"{word}"' for word in python_program(directory.parent, body))
    config(directory, f'[provider]\nkind = "command"\ncommand = [{words}]\n[provider.deadlines]\ndescribe = "1s"\n')


def examined(directory: Path, *, clock: Clock | None = None, **stand_ins: Any) -> dict[str, Check]:
    doctor = Doctor(directory, directory / "controller.toml", chosen=False, clock=clock or SystemClock(), **stand_ins)
    return {check.name: check for check in doctor.examine()}


def faults(checks: dict[str, Check]) -> dict[str, str]:
    """What is not ok, but for what the place of the tests itself may earn."""
    return {
        name: check.state.value
        for name, check in checks.items()
        if check.state is not State.OK and name not in {"byte code", "file system", "room"}
    }


def only(checks: dict[str, Check], name: str, state: str) -> str:
    """The one check that is not ok; its words."""
    assert faults(checks) == {name: state}
    assert checks[name].next
    return checks[name].found


# --- The whole -------------------------------------------------------------------------------------------------------


def test_a_new_fleet_is_well_and_every_check_is_made_in_order(directory: Path) -> None:
    checks = examined(directory)
    assert tuple(checks) == ALL
    assert faults(checks) == {}
    assert [check.next for check in checks.values() if check.state is State.OK] == [""] * sum(
        check.state is State.OK for check in checks.values()
    )


def test_it_changes_nothing(directory: Path) -> None:
    before = kit.snapshot_of(directory), kit.files(directory)
    examined(directory)
    assert (kit.snapshot_of(directory), kit.files(directory)) == before


def test_without_a_state_directory_it_makes_none_and_says_init(tmp_path: Path) -> None:
    checks = examined(tmp_path / "none" / "deep")
    told = {name: check for name, check in checks.items() if name in {"directory", "document", "lock", "history"}}
    assert {name: check.state for name, check in told.items()} == {
        **dict.fromkeys(("directory", "document"), State.FAIL),
        **dict.fromkeys(("history", "lock"), State.WARN),
    }
    assert all("controller init" in check.next for check in told.values())
    assert checks["room"].state is not State.FAIL
    assert kit.files(tmp_path) == set()


def test_what_an_earlier_life_left_is_not_called_new(directory: Path) -> None:
    (directory / "controller.json").unlink()
    checks = examined(directory)
    assert checks["document"].state is State.FAIL
    assert "put controller.json back" in checks["document"].next


def test_three_faults_are_three_lines(directory: Path) -> None:
    kit.edit_file(directory, lambda content: content.update(draining=True))
    config(directory, "[flet]\n")
    directory.chmod(0o777)
    found = faults(examined(directory))
    assert {name for name, state in found.items() if state == "fail"} == {"directory", "document", "settings"}


def test_a_bug_in_a_check_is_its_own_line() -> None:
    def broken() -> Finding:
        raise KeyError("x")

    found = judged(broken)
    assert found.state is State.FAIL
    assert found.found == "the check itself failed: KeyError: 'x'"


def test_an_error_says_where_and_what_next() -> None:
    def failing() -> Finding:
        raise ProviderFailed("no answer", where="/bin/x", next="mend it")

    assert judged(failing) == Finding(State.FAIL, "no answer (/bin/x)", "mend it")


# --- Host ------------------------------------------------------------------------------------------------------------


def test_an_old_python_is_refused_with_the_version_that_is_needed() -> None:
    found = host.python((3, 10, 9))
    assert (found.state, found.found) == (State.FAIL, "3.10.9, and controller needs 3.11")
    assert host.python((3, 11, 0)).state is State.OK


def test_libraries_below_their_minimum_or_missing_are_named_and_the_others_too() -> None:
    def version(name: str) -> str:
        if name == "orjson":
            raise metadata.PackageNotFoundError(name)
        return {"filelock": "4.2.9", "click": "8.10.0"}.get(name, "99")

    found = host.libraries(version)
    assert found.state is State.FAIL
    assert found.found == "filelock is 4.2.9, below 4.3; orjson is missing"
    assert "pip install 'filelock>=4.3'" in found.next


def test_every_dependency_of_the_project_is_looked_at() -> None:
    found = host.libraries()
    assert found.state is State.OK
    assert [part.split()[0] for part in found.found.split(", ")] == ["click", "filelock", "msgspec", "orjson"]


@pytest.mark.parametrize(
    ("version", "expected"), [("4.3.1", (4, 3, 1)), ("10.0rc1", (10, 0)), ("1+local.2", (1,)), ("", ())]
)
def test_versions_are_compared_by_number(version: str, expected: tuple[int, ...]) -> None:
    assert host.numbers(version) == expected


def test_code_that_is_not_compiled_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.__spec__, "cached", "/nonexistent/disk.pyc")
    assert host.byte_code().state is State.WARN
    assert "compileall" in host.byte_code().next


def test_without_proc_every_other_check_is_made(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> ProcessIdentity:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("controller.api.host.own_identity", unreadable)
    monkeypatch.setattr("controller.api.doctor.own_identity", unreadable)
    assert "EACCES" in only(examined(directory), "processes", "fail")


MANY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("files", "largest", "state", "words"),
    [
        (MANY, MANY, "ok", "any number of open files"),
        (1024, MANY, "ok", "1024 open files, slots: 400"),
        (800, MANY, "warn", "800 open files, and 400 slots may take 864"),
        (20, MANY, "fail", "20 open files"),
        (1024, 1 << 20, "fail", "no file may grow beyond 1024 KiB"),
    ],
)
def test_limits_that_are_too_low_for_the_slots_and_the_document(
    files: int, largest: int, state: str, words: str
) -> None:
    limits = {resource.RLIMIT_NOFILE: (files, files), resource.RLIMIT_FSIZE: (largest, largest)}
    found = host.limits(400, 1 << 20, limits.__getitem__)
    assert found.state.value == state
    assert words in found.found


def test_a_limit_of_this_process_is_found(directory: Path) -> None:
    program = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    from pathlib import Path
    from controller.api import host
    print(host.limits(4, 100).found)
    """
    assert "40 open files, and 4 slots" in in_another_process(program)


# --- Directory and file system ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "state", "words"),
    [
        (0o777, "fail", "everybody may write there (mode 0777)"),
        (0o1777, "fail", "everybody may write there (mode 1777)"),
        (0o770, "warn", "its group may write there (mode 0770)"),
    ],
)
def test_a_directory_that_others_may_write_to(directory: Path, mode: int, state: str, words: str) -> None:
    directory.chmod(mode)
    assert only(examined(directory), "directory", state) == words


def test_a_parent_in_which_everybody_may_replace_the_directory(directory: Path) -> None:
    directory.parent.chmod(0o777)
    assert f"everybody may write to {directory.parent}," in only(examined(directory), "directory", "warn")
    directory.parent.chmod(0o1777)
    assert faults(examined(directory)) == {}


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("")
    checks = examined(tmp_path / "s")
    assert checks["directory"].found == f"{tmp_path / 's'} is no directory"
    assert tuple(checks) == ALL


@kit.needs_root
def test_root_in_somebodys_directory_is_refused_asks_no_provider_and_leaves_nothing(directory: Path) -> None:
    by_program(directory, "open('asked', 'w').close()")
    os.chown(directory, 4242, 4242)
    before = kit.files(directory)
    checks = examined(directory)
    assert {name for name, check in checks.items() if check.state is State.FAIL} == {
        *("directory", "lock", "provider", "inventory")
    }
    assert "sudo -u #4242" in checks["directory"].next
    assert kit.files(directory) == before


@kit.needs_root
def test_somebody_else_without_access_gets_every_line() -> None:
    with tempfile.TemporaryDirectory() as place:  # the places of tests are root's alone
        os.chmod(place, 0o755)
        kit.fleet(Path(place) / "s")
        printed = in_another_process(f"""
        import os
        from pathlib import Path
        from controller.clock import SystemClock
        from controller.api.doctor import Doctor
        directory = Path({place!r}) / "s"
        doctor = Doctor(directory, directory / "controller.toml", chosen=False, clock=SystemClock())
        tuple(doctor.examine())  # a stranger may not even be able to import
        os.setgroups([])
        os.setgid(4242)
        os.setuid(4242)
        for check in doctor.examine():
            print(check.state.value, check.name, check.found)
        """).splitlines()
    assert len(printed) == len(ALL)
    assert any(line.startswith("fail directory no access: ") for line in printed)
    assert any(line.startswith("fail document no access to ") for line in printed)


@pytest.mark.parametrize(
    ("kind", "state", "words"),
    [
        ("ext4", "ok", "ext4 at /"),
        *((name, "fail", "not promised on a network") for name in ("nfs4", "cifs", "fuse.sshfs", "9p", "virtiofs")),
        ("tmpfs", "warn", "gone after a reboot"),
        ("overlay", "warn", "lasts as long as its container"),
        ("vfat", "warn", "nothing is known of its locks"),
    ],
)
def test_the_kind_of_file_system(directory: Path, kind: str, state: str, words: str) -> None:
    check = examined(directory, mounts=lambda: f"1 0 8:1 / / rw - {kind} /dev/x rw\n")["file system"]
    assert check.state.value == state
    assert words in check.found


TABLE = r"""
1 0 8:1 / / rw shared:1 - ext4 /dev/a rw
2 1 8:2 / /srv rw - xfs /dev/b rw
3 1 8:3 / /srv/with\040space rw - nfs4 host:/x rw
4 1 8:4 / /twice rw - ext4 /dev/c rw
5 4 8:5 / /twice rw - tmpfs none rw
not a line of it
"""


@pytest.mark.parametrize(
    ("path", "point", "kind"),
    [
        ("/home/x", "/", "ext4"),
        ("/srv", "/srv", "xfs"),
        ("/srvx/state", "/", "ext4"),
        ("/srv/with space/state", "/srv/with space", "nfs4"),
        ("/twice/state", "/twice", "tmpfs"),
    ],
)
def test_the_mount_of_a_path_is_the_one_that_is_seen_there(path: str, point: str, kind: str) -> None:
    assert host.mount_of(path, TABLE) == host.Mount(point, kind)


def test_the_system_tells_where_this_is_mounted(directory: Path) -> None:
    assert " at /" in examined(directory)["file system"].found


def test_mounts_that_cannot_be_read_are_a_warning(directory: Path) -> None:
    def unreadable() -> str:
        raise PermissionError(13, "Permission denied")

    assert examined(directory, mounts=unreadable)["file system"].state is State.WARN


def disk_of(free: int, *, whole: int = 1 << 40, files: int = 10**6, left: int = 10**6, flags: int = 0) -> Any:
    found = SimpleNamespace(
        f_bavail=free // 4096,
        f_bfree=free // 4096,
        f_frsize=4096,
        f_blocks=whole // 4096,
        f_files=files,
        f_ffree=left,
        f_favail=left,
        f_flag=flags,
    )
    return lambda _: cast("os.statvfs_result", found)


@pytest.mark.parametrize(
    ("free", "whole", "left", "state"),
    [
        (1 << 39, 1 << 40, 10**6, "ok"),
        (20 << 30, 1 << 40, 10**6, "ok"),  # 2 %, and ample
        (9 << 30, 1 << 40, 10**6, "warn"),
        (255 << 20, 1 << 30, 10**6, "warn"),
        (1 << 20, 1 << 30, 10**6, "fail"),
        (1 << 39, 1 << 40, 999, "warn"),
        (1 << 39, 1 << 40, 1, "fail"),
    ],
)
def test_room_for_a_document_of_two_mebibytes(free: int, whole: int, left: int, state: str) -> None:
    found = host.room(Path("/"), 2 << 20, disk_of(free, whole=whole, left=left))
    assert found.state.value == state
    assert bool(found.next) is (state != "ok")


def test_a_file_system_that_counts_no_inodes_is_not_short_of_them() -> None:
    assert host.room(Path("/"), 0, disk_of(1 << 39, files=0, left=0)).state is State.OK


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A fleet on a file system of 200 KiB of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)], check=False).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        kit.fleet(place / "s")
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_fails_and_the_document_on_it_is_still_judged(small: Path) -> None:
    with (small / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(b"\0" * 4096)
    checks = examined(small / "s")
    assert checks["room"].state is State.FAIL
    assert "0 B free" in checks["room"].found
    assert checks["file system"].found.startswith("tmpfs at ")
    assert checks["document"].state is State.OK


def test_a_read_only_mount_fails_and_reading_goes_on(small: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    checks = examined(small / "s")
    assert checks["mount"].state is State.FAIL
    assert checks["lock"].state is State.FAIL
    assert "EROFS" in checks["lock"].found
    assert checks["document"].state is State.OK


# --- Document, history, locks, clock ---------------------------------------------------------------------------------


def test_an_edited_document_fails_alone(directory: Path) -> None:
    kit.edit_file(directory, lambda content: content.update(draining=True))
    assert only(examined(directory), "document", "fail") == "something else than controller wrote it"


def test_a_document_that_breaks_a_rule_is_sent_to_fsck(directory: Path) -> None:
    def running_without_a_worker(content: dict[str, Any]) -> None:
        content["counters"]["sequence"] = 0
        content["runs"] = {
            "r-1": {
                "id": "r-1",
                "queue": "fleet",
                "sequence": 1,
                "created_at": 5,
                "state": "running",
                "steps": [{"name": "main", "argv": ["true"]}],
            }
        }

    kit.edit_file(directory, running_without_a_worker)
    check = examined(directory)["document"]
    assert check.state is State.FAIL
    assert "run:r-1" in check.found
    assert "controller fsck" in check.next


@pytest.mark.parametrize("data", [b"", b"{", b"\0" * 100, b'{"schema": 99}'])
def test_an_unreadable_document_hides_nothing_else(directory: Path, data: bytes) -> None:
    (directory / "controller.json").write_bytes(data)
    checks = examined(directory)
    assert faults(checks) == {
        "document": "fail",
        **dict.fromkeys(("history", "provider", "inventory"), "warn"),
    }
    assert (directory / "controller.json").read_bytes() == data


def test_a_document_that_is_a_link_or_that_others_may_write(directory: Path) -> None:
    path = directory / "controller.json"
    path.chmod(0o666)
    assert only(examined(directory), "document", "fail") == "others may write it (mode 0666)"
    path.chmod(0o600)
    path.rename(directory / "real")
    path.symlink_to("real")
    checks = examined(directory)
    assert "symbolic link" in checks["document"].found
    assert checks["lock"].state is State.FAIL


def test_an_older_schema_is_a_warning(tmp_path: Path) -> None:
    kit.legacy(tmp_path / "s", kit.schema1())
    check = examined(tmp_path / "s")["document"]
    assert (check.state, "older schema" in check.found) == (State.WARN, True)


def test_history_ahead_of_the_document_fails(directory: Path) -> None:
    old = (directory / "controller.json").read_bytes()
    store = kit.opened(directory)
    for name in ("a", "b"):
        kit.submit(store, name)
        assert store.fold()
    (directory / "controller.json").write_bytes(old)
    checks = examined(directory)
    assert only(checks, "history", "fail").startswith("it knows revision 3, the document is of revision 2")
    assert "controller state restore" in checks["history"].next


def test_a_line_that_does_not_follow_fails_and_says_that_nothing_can_be_changed(directory: Path) -> None:
    kit.submit(kit.opened(directory), "a")
    journal = kit.journal_of(directory)
    data = journal.read_bytes().rstrip(b"\0")
    journal.write_bytes(data + data.splitlines(keepends=True)[-1])
    found = only(examined(directory), "history", "fail")
    assert "does not follow the line before it" in found
    assert "the next command that changes anything is refused" in found


def test_damage_in_history_fails_and_names_the_place(directory: Path) -> None:
    store = kit.opened(directory)
    for name in ("a", "b"):
        kit.submit(store, name)
        assert store.fold()
    closed = directory / kit.journals(directory)[1]
    closed.write_bytes(closed.read_bytes().replace(b'"b"', b'"x"'))
    assert re.search(r"the line at offset \d+ is not as it was written", only(examined(directory), "history", "fail"))


def test_an_edited_revision_is_told_beside_what_history_knows(directory: Path) -> None:
    kit.edit_file(directory, lambda content: content.update(revision=9))
    checks = examined(directory)
    assert faults(checks) == {"document": "fail", "history": "fail"}
    assert checks["history"].found == "it ends at revision 1, and the edited document says 9"


@pytest.mark.parametrize("told", [True, False])
def test_history_of_a_document_from_before_the_journal(tmp_path: Path, told: bool) -> None:
    """Taken away is a warning; and one without the last commit gets that by the migration."""
    directory = tmp_path / "s"
    kit.legacy(directory, kit.schema1())
    if told:
        event = {"revision": 6, "n": 1, "at": 1, "command": "submit", "subject": "fleet", "event": "noted"}
        (directory / "history.jsonl").write_text(json.dumps(event) + "\n")
    check = examined(directory)["history"]
    assert check.state is (State.OK if told else State.WARN)
    assert ("adds what the last one left out" if told else "it begins with the next command") in check.found


def test_temporary_files_of_the_dead_are_told_and_those_of_the_living_are_not(directory: Path) -> None:
    (directory / f".controller.json.tmp-{os.getpid()}-1").write_text("")
    assert faults(examined(directory)) == {}
    (directory / ".controller.json.tmp-4194303-1").write_text("")
    found = only(examined(directory), "left over", "warn")
    assert found.startswith(".controller.json.tmp-4194303-1: ")


def test_a_lock_that_another_process_holds_is_a_warning_that_names_it(directory: Path) -> None:
    program = f"""
    from pathlib import Path
    from tests.store import kit
    with kit.opened(Path({str(directory)!r}), command="reconcile").hold(5):
        print("held", flush=True)
        input()
    """
    with another_process(program) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        found = only(examined(directory), "lock", "warn")
        holder.communicate("\n", timeout=30)
    assert f"pid {holder.pid} (reconcile)" in found
    assert faults(examined(directory)) == {}


def test_a_lock_that_cannot_be_used_fails(directory: Path) -> None:
    (directory / "controller.lock").unlink(missing_ok=True)
    (directory / "controller.lock").mkdir()
    assert "cannot lock" in only(examined(directory), "lock", "fail")


def test_a_slot_lock_without_a_readable_note_fails(directory: Path) -> None:
    store = kit.opened(directory)
    for slot in (1, 2):
        with store.hold_slot(slot):
            pass
    (directory / "slots" / "00002.lock").write_bytes(b"\xff\n")
    assert only(examined(directory), "slot locks", "fail").startswith("slot 2: ")


def test_a_provider_process_of_another_pid_namespace_is_uncertain(directory: Path) -> None:
    foreign = ProcessIdentity(5, 5, kit.ME.boot_id, "pid:[1]")
    with kit.opened(directory).hold_slot(3) as held:
        held.register(foreign, kit.NOW, "k")
    assert "process 5 of another pid namespace" in only(examined(directory), "slot locks", "warn")


@pytest.mark.parametrize("now", [0, 1_000_000_000_000, 9_000_000_000_000])
def test_a_clock_that_was_never_set_fails(directory: Path, now: int) -> None:
    assert f"the wall clock says {now} ms" in only(examined(directory, clock=FakeClock(now)), "clock", "fail")


def test_a_clock_behind_the_document_is_a_warning(tmp_path: Path) -> None:
    clock = FakeClock()
    kit.fleet(tmp_path / "s", clock=clock)
    config(tmp_path / "s", '[provider.env]\nPATH = "/bin"\n')
    assert faults(examined(tmp_path / "s", clock=clock)) == {}
    clock.jump(-3600)
    assert " is 1h before what the document last recorded, " in only(
        examined(tmp_path / "s", clock=clock), "clock", "warn"
    )


# --- Settings and what they name -------------------------------------------------------------------------------------


def test_settings_that_cannot_be_meant_fail_and_the_provider_is_not_asked(directory: Path) -> None:
    config(directory, '[provider.env]\nPATH = "/bin"\n[fleet]\nslots = 0\n')
    checks = examined(directory)
    assert faults(checks) == {"settings": "fail", "environment": "warn", "provider": "warn", "inventory": "warn"}
    assert "slots cannot be 0" in checks["settings"].found
    assert checks["provider"].found.startswith("not tried: ")


@pytest.mark.parametrize(
    ("mode", "state", "words"),
    [(0o602, "fail", "everybody may write"), (0o620, "warn", "its group may write"), (0o644, "warn", "hold secrets")],
)
def test_a_settings_file_that_others_may_write_or_read(directory: Path, mode: int, state: str, words: str) -> None:
    config(directory, '[provider.env]\nPATH = "/bin"\nTOKEN = "x"\n').chmod(mode)
    assert words in only(examined(directory), "settings", state)


@kit.needs_root
def test_a_settings_file_of_somebody_else_is_a_warning(directory: Path) -> None:
    os.chown(directory / "controller.toml", 4242, 4242)
    assert "its owner decides what runs here" in only(examined(directory), "settings", "warn")


def test_a_chosen_settings_file_must_be_there(directory: Path) -> None:
    doctor = Doctor(directory, directory / "other.toml", chosen=True, clock=SystemClock())
    assert {check.name: check.state for check in doctor.examine()}["settings"] is State.FAIL


def test_a_path_that_depends_on_the_caller_is_a_warning(directory: Path) -> None:
    config(directory, "")
    assert "PATH is that of whoever calls" in only(examined(directory), "environment", "warn")


def test_without_any_path_the_environment_fails(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(directory, '[provider]\npass_env = ["NOWHERE_SET"]\n')
    monkeypatch.delenv("PATH")
    found = only(examined(directory), "environment", "fail")
    assert found == "there is no PATH; pass_env names NOWHERE_SET, which is not set here"


def test_a_place_of_the_workers_that_cannot_be_used(directory: Path) -> None:
    (directory / "workers").mkdir()
    (directory / "workers").chmod(0o777)
    assert "others may write to" in only(examined(directory), "workers", "fail")
    (directory / "logs").write_text("")
    assert "logs is no directory" in examined(directory)["workers"].found


def test_a_long_path_is_fine_for_sockets_until_the_system_has_no_more(tmp_path: Path) -> None:
    assert configured.workers(Settings("f"), Path("/" + "d/" * 200)).state is State.OK
    assert configured.workers(Settings("f"), Path("/" + "d" * 4000)).state is State.FAIL
    made = Settings("f", provider=ProviderSettings(kind="command", argv=("/x",)))
    assert configured.workers(made, tmp_path).state is State.OK


@pytest.mark.parametrize(
    ("cgroups", "unit"),
    [
        ("0::/system.slice/controller.service\n", "controller.service"),
        ("5:memory:/x.service\n1:name=systemd:/user.slice/session-3.scope\n", ""),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/term.scope\n", ""),
        ("", ""),
    ],
)
def test_the_unit_that_a_process_is_in(cgroups: str, unit: str) -> None:
    assert configured.unit_of(cgroups) == unit


def test_in_a_unit_its_kill_mode_is_mentioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup").write_text("0::/system.slice/controller.service\n")
    monkeypatch.setattr(configured, "CGROUPS", tmp_path / "cgroup")
    assert "controller.service, which needs KillMode=process" in configured.workers(Settings("f"), tmp_path).found


def test_a_provider_that_answers_is_described(directory: Path) -> None:
    by_program(directory, DESCRIBE, TYPES=EVERY_TYPE, COMPLETE="True")
    checks = examined(directory)
    assert checks["provider"].found == "command: mine 7, knows keys for 1m, has no wait"
    assert checks["inventory"].found == "workers: 0"
    assert faults(checks) == {"environment": "warn"}


def test_a_provider_that_lacks_a_type_or_cannot_see_everything(directory: Path) -> None:
    by_program(directory, DESCRIBE, TYPES='["create", "execute"]', COMPLETE="False")
    checks = examined(directory)
    assert "it does not do cancel, deallocate, delete_compute, reset" in checks["provider"].found
    assert (checks["provider"].state, checks["inventory"].state) == (State.WARN, State.WARN)
    assert "not complete" in checks["inventory"].found


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("sys.exit(3)", "it exited with status 3"),
        ("print('hello')", "the provider did not answer"),
        ("time.sleep(600)", "no answer within 1 s"),
    ],
    ids=["exits", "talks", "hangs"],
)
def test_a_provider_that_does_not_answer_fails(directory: Path, body: str, words: str) -> None:
    by_program(directory, body)
    with (directory / "controller.toml").open("a") as file:
        file.write('inventory = "1s"\n')
    checks = examined(directory)
    assert words in checks["provider"].found
    assert (checks["provider"].state, checks["inventory"].state) == (State.FAIL, State.FAIL)
    assert checks["provider"].next


def test_a_provider_program_that_cannot_be_started_is_found_without_a_document_too(directory: Path) -> None:
    (program,) = script(directory.parent, "#!/bin/sh\n", mode=0o644)
    config(directory, f'[provider]\nkind = "command"\ncommand = ["{program}"]\n')
    assert examined(directory)["provider"].state is State.FAIL
    (directory / "controller.json").write_bytes(b"{")
    check = examined(directory)["provider"]
    assert (check.state, program in check.found) == (State.FAIL, True)
    assert "chmod +x" in check.next


def test_another_kind_of_provider_than_made_the_workers_fails(directory: Path) -> None:
    store = kit.opened(directory)
    with store.hold(5) as hold:
        loaded = hold.load()
        hold.commit(loaded, kit.parking(loaded.document))
    by_program(directory, DESCRIBE, TYPES=EVERY_TYPE, COMPLETE="True")
    assert "but workers of 'local' live" in examined(directory)["provider"].found


def test_a_worker_that_cannot_be_read_is_a_warning_that_names_it(directory: Path) -> None:
    (directory / "workers" / "4-a-9").mkdir(parents=True, mode=0o700)
    (directory / "workers").chmod(0o700)
    assert "worker 4-a-9 cannot be read" in only(examined(directory), "inventory", "warn")


# --- Other processes -------------------------------------------------------------------------------------------------


def another_process(program: str) -> subprocess.Popen[str]:
    code = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{textwrap.dedent(program)}"
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def in_another_process(program: str) -> str:
    with another_process(program) as process:
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return printed
