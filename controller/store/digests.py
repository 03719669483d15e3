"""SHA-256 for readers: while there is little to digest, without OpenSSL.

`hashlib` loads OpenSSL when it is imported, which takes longer than all that a reader of a small document computes
itself. What the interpreter brings along needs several times as long for each byte, and is there at once. `random` of
the standard library does the same. Whoever commits has loaded it, and digests with it from then on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

FEW: Final = 1 << 16


def sha256(size: int) -> Callable[[bytes | memoryview], Any]:
    """What digests bytes as `hashlib.sha256` does, where *size* of them are to be digested in all."""
    if size <= FEW and "hashlib" not in sys.modules:
        with suppress(ImportError):  # a Python may be built without it, so that OpenSSL alone digests
            return _own()
    import hashlib

    return hashlib.sha256


def _own() -> Callable[[bytes | memoryview], Any]:
    if sys.version_info >= (3, 12):
        from _sha2 import sha256
    else:
        from _sha256 import sha256  # type: ignore[import-not-found]
    return sha256  # type: ignore[no-any-return]
