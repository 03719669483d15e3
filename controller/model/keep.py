"""How much of the past is kept. Apart, since settings need it and read no history.

Not promised: that nothing older or larger is there: whole files are dropped, and none that is still needed.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

GIB: Final = 1 << 30


class Keep(Struct, frozen=True):
    """What history is kept to: events younger than `age_ms`, and `bytes` of files. None: no limit of that kind.

    By default no age: how long ago something happened does not say whether anybody still asks for it. But bytes: a disk
    that the past has filled stops the present, and nobody who set up a fleet should have to think of that first.
    """

    age_ms: int | None = None
    bytes: int | None = GIB
