"""Where the installed `controller` command enters.

Nothing is imported at the top that takes time: an interrupt during start-up must end in exit 130, not in a traceback.
"""

from __future__ import annotations

import gc
import os
import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command that the process was started with and return its exit code."""
    quick = False
    try:
        # Start-up makes much and drops nothing: collecting meanwhile is time lost. Commands that stay turn it on again.
        gc.disable()
        _fill_standard_descriptors()
        from controller.cli import libraries

        libraries.load()
        from controller.cli.root import run

        code, quick = run(sys.argv[1:])
    except KeyboardInterrupt:
        _say(b"interrupted: accepted work goes on\n")
        code = INTERRUPTED
    _settle_standard_streams()
    if quick:
        # A question leaves nothing behind, and taking the interpreter down costs a quarter of answering it.
        os._exit(code)
    return code


def _fill_standard_descriptors() -> None:
    """Make sure that 0, 1 and 2 are open.

    Otherwise the next file opened, perhaps the document, would become "stdout" and be written over by an answer.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(opened, True)


def _say(line: bytes) -> None:
    try:
        os.write(2, line)
    except OSError:
        return


def _settle_standard_streams() -> None:
    """Flush what libraries printed; a reader that went away must not turn into a complaint at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
