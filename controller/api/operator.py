"""Who types a command: for the event that says who did it.

Not promised: that it is a person, nor that the name means the same on another host.
"""

from __future__ import annotations

import os

from controller.store.disk import owner_name


def operator() -> str:
    """The login name of whoever runs this process, or `uid N` where nobody has that number."""
    uid = os.getuid()
    name = owner_name(uid)
    return f"uid {uid}" if name == f"#{uid}" else name
