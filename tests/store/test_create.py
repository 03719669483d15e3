"""`init`: missing is not new, and a killed init can be run again."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from controller.model.errors import AlreadyThere, NotOurs
from controller.store import disk
from tests.store import kit


def test_missing_parents_are_made_and_the_directory_is_private(tmp_path: Path) -> None:
    store = kit.fleet(tmp_path / "a" / "b" / "s")
    assert stat.S_IMODE((tmp_path / "a" / "b" / "s").stat().st_mode) == 0o700
    assert store.read().document.revision == 1
    assert (tmp_path / "a" / "b" / "s" / "controller.toml").read_text() == "# made by a test\n"


def test_an_empty_directory_is_fine_and_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o755)
    kit.fleet(tmp_path / "s")
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700


def test_a_directory_with_a_readme_is_fine_and_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("hello")
    tmp_path.chmod(0o750)
    kit.fleet(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750


@pytest.mark.parametrize(
    "sign", ["controller.json", "history.jsonl", "journal-1", "backup-schema1-3-x.json", "workers", "slots", "logs"]
)
def test_any_sign_of_an_earlier_life_is_refused_and_nothing_is_made(tmp_path: Path, sign: str) -> None:
    (tmp_path / sign).write_text("")
    with pytest.raises(AlreadyThere, match=sign):
        kit.fleet(tmp_path)
    assert kit.files(tmp_path) == {sign}


def test_a_dangling_link_in_place_of_the_document_is_a_sign_too(tmp_path: Path) -> None:
    (tmp_path / "controller.json").symlink_to(tmp_path / "nowhere")
    with pytest.raises(AlreadyThere):
        kit.fleet(tmp_path)


def test_a_second_init_is_refused(tmp_path: Path) -> None:
    kit.fleet(tmp_path / "s")
    before = kit.snapshot_of(tmp_path)
    with pytest.raises(AlreadyThere):
        kit.fleet(tmp_path / "s")
    assert kit.snapshot_of(tmp_path) == before


def test_a_configuration_that_says_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "controller.toml").write_text("mine")
    with pytest.raises(AlreadyThere, match="says something else"):
        kit.fleet(tmp_path)
    assert (tmp_path / "controller.toml").read_text() == "mine"
    assert not (tmp_path / "controller.json").exists()


class Killed(BaseException):
    pass


def test_an_init_killed_at_any_write_can_be_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dies before the 1st, 2nd, ... nth call that changes the disk, without a chance to clean up; then runs again."""
    calls = ("mkdir", "write", "fsync", "rename", "replace", "unlink", "pwrite")
    for nth in range(1, 100):
        directory = tmp_path / f"s{nth}"
        with monkeypatch.context() as patch:
            left = nth

            for name in calls:
                real = getattr(os, name)

                def call(*args: object, real: object = real, **kwargs: object) -> object:
                    nonlocal left
                    left -= 1
                    if left <= 0:
                        raise Killed  # from here on nothing changes the disk: the process is dead
                    assert callable(real)
                    return real(*args, **kwargs)

                patch.setattr(os, name, call)
            try:
                kit.fleet(directory)
            except Killed:
                died = True
            else:
                died = False
        if (directory / "controller.json").exists():
            with pytest.raises(AlreadyThere):
                kit.fleet(directory)
        else:
            kit.fleet(directory)
        store = kit.opened(directory)
        kit.submit(store, "r-1")
        assert [event.event for event in store.history()] == ["initialised", "submitted"]
        assert not [name for name in kit.files(directory) if ".tmp-" in name]
        if not died:
            assert nth > 10
            return
    pytest.fail("init never got to its end")


def test_two_inits_at_once_make_one_fleet(tmp_path: Path) -> None:
    found: list[str] = []

    def found_one() -> None:
        try:
            kit.fleet(tmp_path / "s")
            found.append("made")
        except AlreadyThere:
            found.append("there")

    threads = [threading.Thread(target=found_one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["made", *["there"] * 5]


@kit.needs_root
def test_root_makes_no_fleet_in_somebody_elses_directory(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    os.chown(tmp_path / "s", 4242, 4242)
    with pytest.raises(NotOurs, match="belongs to #4242") as refusal:
        kit.fleet(tmp_path / "s")
    assert "sudo -u #4242" in refusal.value.next
    assert kit.files(tmp_path / "s") == set()
    assert disk.owner_name(0) == "root"
