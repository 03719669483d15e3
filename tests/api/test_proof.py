"""A proof as a file: whose it is, what it is, and how much of it is read, judged on what was opened."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from controller.api.proof import LARGEST, read_proof
from controller.model.errors import ProofRefused, UsageFault

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "proof.json"
    path.write_text('{"a": 1}')
    path.chmod(0o600)
    return path


def refused(path: Path) -> ProofRefused:
    with pytest.raises(ProofRefused) as refusal:
        read_proof(path)
    assert str(path) in refusal.value.where
    assert refusal.value.next
    return refusal.value


def test_a_file_of_ones_own_is_read(file: Path) -> None:
    file.chmod(0o644)
    assert read_proof(file) == {"a": 1}


def test_a_symbolic_link_is_refused_whatever_it_leads_to(file: Path, tmp_path: Path) -> None:
    for target in (file, tmp_path / "nowhere", tmp_path):
        link = tmp_path / "link"
        link.symlink_to(target)
        assert "symbolic link" in refused(link).what
        link.unlink()


def test_what_nobody_writes_to_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero")):
        assert "no regular file" in refused(path).what


def test_a_file_that_is_not_there_is_what_was_typed_wrong(tmp_path: Path, file: Path) -> None:
    for path in (tmp_path / "nowhere", file / "below", Path("a\0b")):
        with pytest.raises(UsageFault, match="no such file"):
            read_proof(path)


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000])
def test_a_name_that_no_file_can_have_is_what_was_typed_wrong_and_is_told_in_part(name: str) -> None:
    with pytest.raises(UsageFault, match="so long a name") as refusal:
        read_proof(Path("/") / name)
    assert refusal.value.exit == 2
    assert refusal.value.where.startswith("/a")
    assert len(refusal.value.where) <= 300


def test_what_is_larger_than_64_kib_is_refused_unread(file: Path) -> None:
    file.write_text(json.dumps({"a": "x" * (LARGEST - 9)}))
    assert (LARGEST, file.stat().st_size) == (65536, LARGEST)
    assert len(str(read_proof(file)["a"])) == LARGEST - 9
    with file.open("a") as more:
        more.write(" ")
    assert "larger than 65536 bytes" in refused(file).what
    os.truncate(file, 1 << 40)
    assert "larger than 65536 bytes" in refused(file).what


def test_a_file_that_grows_while_it_is_read_is_not_read_for_ever(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.read

    def growing(fd: int, size: int) -> bytes:
        with file.open("a") as more:
            more.write(" " * 4096)
        return real(fd, min(size, 4096))

    monkeypatch.setattr("controller.api.proof.os.read", growing)
    assert "larger than 65536 bytes" in refused(file).what


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_to_is_refused_with_its_mode(file: Path, mode: int) -> None:
    file.chmod(mode)
    refusal = refused(file)
    assert f"others may write to it (mode {mode:04o})" in refusal.what
    assert refusal.next == f"look at it, then chmod go-w {file}"


@needs_root
def test_a_file_of_somebody_else_is_refused_by_name(file: Path) -> None:
    os.chown(file, 65534, -1)
    assert "it belongs to nobody, and this is root" in refused(file).what


def test_what_was_opened_is_judged_and_not_what_has_its_name_since(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def swapped(path: Path, flags: int) -> int:
        fd = real(path, flags)
        (tmp_path / "other").write_text('{"b": 2}')
        (tmp_path / "other").chmod(0o666)
        os.replace(tmp_path / "other", file)
        return fd

    monkeypatch.setattr("controller.api.proof.os.open", swapped)
    assert read_proof(file) == {"a": 1}
    monkeypatch.undo()
    assert "others may write" in refused(file).what


@pytest.mark.parametrize(
    ("content", "what", "place"),
    [
        (b"", "empty: zero bytes", "line 1, offset 0"),
        (b"\xef\xbb\xbf{}", "a byte-order mark", "line 1, offset 0"),
        (b'{"a": "\xff"}', "not UTF-8", "line 1, offset 7"),
        (b'{"a":\n "b', "unterminated string", "line 2, offset 7"),
        (b'{"a": 1', "it ends too early", "line 1, offset 7"),
        (b'{"a": 1, "a": 1}', "twice in one object", "line 1, offset 9"),
        (b'{"a": NaN}', "NaN is not JSON", "line 1, offset 6"),
        (b'{"a": 1e999}', "a number beyond a double", "line 1, offset 6"),
        (b'{"a": 18446744073709551616}', "an integer beyond 64 bits", "line 1, offset 6"),
        (b'{"a": "\\ud800"}', "a lone surrogate", "line 1, offset 6"),
        (b"[" * 65 + b"]" * 65, "nested deeper than 64", "line 1, offset 64"),
        (b"[" * 60_000, "nested deeper than 64", "line 1, offset 64"),
        (b"{} x", "extra data", "line 1, offset 3"),
        (bytes(4096), "4096 bytes of NUL", "line 1, offset 0"),
    ],
    ids=lambda value: value[:24] if isinstance(value, bytes) else None,
)
def test_what_is_not_strict_json_is_refused_with_file_line_and_offset(
    file: Path, content: bytes, what: str, place: str
) -> None:
    file.write_bytes(content)
    refusal = refused(file)
    assert what in refusal.what
    assert refusal.where == f"{file}, {place}"


@pytest.mark.parametrize("value", [[], 1, "proof", None])
def test_json_that_is_no_object_is_no_proof(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value))
    assert "it is no JSON object" in refused(file).what
