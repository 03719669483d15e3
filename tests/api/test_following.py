"""Reading what steps write as it comes: every byte once, in order, whatever comes and goes meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.api.following import Following
from controller.model.errors import NotFound
from controller.provider.local.log import HEAD, TAIL, Log


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "r-1"


@pytest.fixture
def following(tmp_path: Path) -> Following:
    """Of a run with the steps build and test."""
    return Following(tmp_path, "r-1", ["build", "test"])


def read(following: Following) -> list[tuple[str, bytes]]:
    """Log name and what is new in it."""
    return [(Path(log.path).name, part) for log, part in following.read_new()]


def write(logs: Path, name: str, data: bytes) -> None:
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / name).open("ab") as file:
        file.write(data)


def test_before_anything_is_written_there_is_nothing(following: Following) -> None:
    assert read(following) == []


def test_each_byte_is_read_once_also_half_a_character(logs: Path, following: Following) -> None:
    whole = "größer\n".encode()
    write(logs, "build.1.1.log", whole[:3])
    assert read(following) == [("build.1.1.log", whole[:3])]
    assert read(following) == []
    write(logs, "build.1.1.log", whole[3:] + b"\xff\0")
    assert read(following) == [("build.1.1.log", whole[3:] + b"\xff\0")]


def test_what_was_begun_is_read_on_before_another_log_and_those_by_life_and_step(
    logs: Path, following: Following
) -> None:
    write(logs, "test.1.1.log", b"a")
    assert read(following) == [("test.1.1.log", b"a")]
    for name in ("build.2.1.log", "test.2.1.log", "build.1.2.log", "build.1.10.log"):
        write(logs, name, b"c")
    write(logs, "test.1.1.log", b"b")
    assert [name for name, _ in read(following)] == [
        "test.1.1.log",
        "build.1.2.log",
        "build.1.10.log",
        "build.2.1.log",
        "test.2.1.log",
    ]


def test_one_step_alone_can_be_followed(tmp_path: Path, logs: Path) -> None:
    write(logs, "build.1.1.log", b"build")
    write(logs, "test.1.1.log", b"test")
    assert read(Following(tmp_path, "r-1", ["build", "test"], step="test")) == [("test.1.1.log", b"test")]


def test_a_bounded_log_is_read_head_first_and_its_tail_once_it_is_there(logs: Path, following: Following) -> None:
    log = Log(str(logs / "build.1.1.log"))
    log.write(b"h" * HEAD)
    assert b"".join(part for _, part in read(following)) == b"h" * HEAD
    log.write(b"x" * TAIL + b"t" * TAIL)
    log.finish()
    rest = b"".join(part for _, part in read(following))
    assert b"bytes are left out here" in rest
    assert rest.endswith(b"t" * TAIL)
    assert read(following) == []


def test_a_log_that_goes_away_takes_only_its_own_rest_with_it(logs: Path, following: Following) -> None:
    write(logs, "build.1.1.log", b"a")
    write(logs, "test.1.1.log", b"b")
    parts = following.read_new()
    next(parts)
    (logs / "test.1.1.log").unlink()
    assert list(parts) == []
    (logs / "build.1.1.log").unlink()
    write(logs, "test.2.1.log", b"c")
    assert read(following) == [("test.2.1.log", b"c")]


def test_a_part_that_nobody_took_is_given_again(logs: Path, following: Following) -> None:
    write(logs, "build.1.1.log", b"a")
    next(following.read_new())
    assert read(following) == [("build.1.1.log", b"a")]


def test_what_cannot_be_read_is_named(logs: Path, following: Following) -> None:
    (logs / "build.1.1.log").mkdir(parents=True)
    (logs / "build.1.1.log" / "x").mkdir()
    with pytest.raises(NotFound) as fault:
        read(following)
    assert fault.value.where == str(logs / "build.1.1.log")
