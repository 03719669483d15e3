"""What fuzzing is worth: with a check of the program taken away, it finds that out."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from controller.store import codec, journal
from tests.fuzz import target as fuzzing
from tests.fuzz.target import Case, Finding, Target
from tests.fuzz.targets import TARGETS


def found(name: str, cases: int = 400) -> str:
    """What is found first in so many cases; "" when nothing is."""
    for seed in range(cases):
        try:
            TARGETS[name].try_one(TARGETS[name].make(Random(seed)))
        except Finding as finding:
            return finding.kind
    return ""


def test_a_document_whose_digest_nobody_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    def believed(data: bytes) -> str | None:
        seal = codec._TAIL.search(data)
        return None if seal is None else seal[1].decode()

    monkeypatch.setattr(codec, "_seal", believed)
    assert "never committed" in found("bytes")


def test_a_journal_whose_digests_nobody_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    def believed(
        data: bytes, digested: object, where: str, offset: int, *, first: bool
    ) -> journal.Opening | journal.Commit:
        kind: Any = journal.Opening if first else journal.Commit
        try:
            line: journal.Opening | journal.Commit = msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise journal.corrupt("no line", where) from error
        return line

    monkeypatch.setattr(journal, "_line", believed)
    assert found("bytes")


def test_a_journal_whose_lines_need_not_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_strays", lambda line, previous, revision: None)
    assert "never" in found("bytes")


def test_a_foreign_exception_that_nobody_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_located", lambda data, error, where: error)
    assert "Error at store/codec.py" in found("documents")


def test_a_proof_whose_types_nobody_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.engine.proof._faults", lambda content: iter(()))
    assert "release --proof: " in found("proofs")


def test_a_reply_that_nobody_reads_strictly(monkeypatch: pytest.MonkeyPatch) -> None:
    def lenient(data: bytes, *, where: str) -> object:
        return json.loads(data.decode("utf-8", "replace").encode("utf-8", "replace"))

    monkeypatch.setattr("controller.provider.wire.strict_loads", lenient)
    assert found("replies", 1_500)


def test_numbers_of_settings_that_nobody_holds_against_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.api.settings._check_numbers", lambda fleet, source: None)
    assert "cannot all be meant" in found("settings", 3_000)


def test_a_hang_ends_and_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def spin(_case: Case, _home: Path) -> None:
        while True:
            tmp_path.exists()

    monkeypatch.setattr(fuzzing, "WATCHDOG_SECONDS", 0.05)
    with pytest.raises(Finding, match="a hang"):
        Target("x", lambda _: Case("x", "x", {}), spin).try_one(Case("x", "x", {}))
