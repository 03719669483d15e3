"""Two ways to digest, one digest."""

from __future__ import annotations

import hashlib
import sys

import pytest

from controller.store.digests import FEW, sha256


@pytest.mark.parametrize("size", [0, 1, 300, FEW, FEW + 1])
@pytest.mark.parametrize("built_without", [False, True])
def test_any_number_of_bytes_is_digested_as_hashlib_does(
    size: int, built_without: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "hashlib")
    if built_without:
        for name in ("_sha2", "_sha256"):
            monkeypatch.setitem(sys.modules, name, None)
    data = bytes(n * n % 251 for n in range(size))
    assert sha256(size)(memoryview(data)).hexdigest() == hashlib.sha256(data).hexdigest()


def test_a_few_bytes_need_no_openssl_and_nobody_does_without_it_once_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert sha256(FEW) is hashlib.sha256
    monkeypatch.delitem(sys.modules, "hashlib")
    assert sha256(FEW) is not hashlib.sha256
    assert sha256(FEW + 1) is hashlib.sha256
