"""Signals to the process group of a step, without waiting: a supervisor answers while a group ends.

`process.end_group` waits, and is for whoever finds a worker's lock free. The same rule holds here: only a group whose
leader is provably the recorded one is signalled, or one that outlives its leader, whose number is not given out again
until it is empty.
"""

from __future__ import annotations

import os
import signal

from controller.model.process import ProcessIdentity
from controller.provider.process import group_members, identify


def signal_group(leader: ProcessIdentity, number: signal.Signals) -> None:
    """Send *number* to the group that *leader* leads, if it is still that group."""
    found = None if leader.pid <= 1 else identify(leader.pid)
    if found != leader and (found is not None or not group_members(leader.pid)):
        return
    try:
        os.killpg(leader.pid, number)
    except (ProcessLookupError, PermissionError):  # nobody left, or processes of another user: `is_left` tells
        return


def is_left(leader: ProcessIdentity) -> bool:
    """Whether a living process of the group is left. The leader must have been reaped, or it reads all of /proc."""
    if leader.pid <= 1:
        return False
    permitted = True
    try:
        os.killpg(leader.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        permitted = False
    if identify(leader.pid) not in {None, leader}:
        return False
    return not permitted or bool(group_members(leader.pid))
