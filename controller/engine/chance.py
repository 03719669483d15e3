"""Where randomness comes from."""

from __future__ import annotations

import hashlib


def new_lineage() -> str:
    """A UUID that no other document has."""
    from uuid import uuid4

    return str(uuid4())


def new_epoch() -> str:
    """What keeps ids and keys from now on apart from those that were handed out before: it goes into each of them."""
    from uuid import uuid4

    return uuid4().hex[:8]


class Seeded:
    """A generator whose values follow from its seed: planning twice gives equal plans, yet subjects spread."""

    def __init__(self, *seed: object) -> None:
        self._seed = repr(seed).encode()
        self._drawn = 0

    def random(self) -> float:
        """The next value, at least 0 and below 1."""
        self._drawn += 1
        digest = hashlib.sha256(b"%d:" % self._drawn + self._seed).digest()
        return int.from_bytes(digest[:7], "big") / (1 << 56)
