"""The figures of `bin/bench`: what each is beside, what it is to be, and what limits it.

Not promised: that an aim is met. docs/performance.md says by how much, as measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks import commands, commits, queues
from benchmarks.discovery import SMALL, discovery
from benchmarks.disk import AHEAD, APPEND
from benchmarks.end_to_end import runs
from benchmarks.measuring import Aim, Asked, Figure
from benchmarks.remembering import memory

TIME: Final = "time: ours over theirs, so less is better"
RATE: Final = "runs a second: ours over theirs, so more is better"
SELF: Final = "as it is, so less is better"

_LINE: Final = "One appended line and its sync; hold, load, checks and encoding in Python are the rest."
_QUEUE: Final = "Commits: how many there are, then what each costs in Python; sync takes the rest."
_IMPORTS: Final = "Imports, and reading the document."

_COMMIT: Final = {
    "sqlite": Asked("SQLite (WAL, synchronous=FULL) committing one row of 300 bytes", Aim(1.3)),
    APPEND: Asked("300 bytes appended to a file, and fdatasync"),
    AHEAD: Asked("the same in space that was taken ahead"),
}
_COLD: Final = 'python -c "import click, orjson"'


def _queue(depth: int, what: str, sqlite: Aim | None, huey: Aim | None, fewer: str = "") -> Figure:
    does = "taking one" if what == queues.ENQUEUE else "claim and complete, two commits"
    values = {
        queues.SQLITE: Asked(f"a plain SQLite queue (WAL, synchronous=FULL): {does}", sqlite),
        queues.HUEY: Asked(f"SqliteHuey(fsync=True): {does}", huey),
    }
    if fewer:
        values[f"{queues.SQLITE}_{what}"] = Asked(f"the plain SQLite queue: {fewer}")
    return Figure(queues.at(depth, what), RATE, values, _QUEUE)


def _queues(depth: int) -> Mapping[str, Figure]:
    return {
        f"enqueue_{depth}": _queue(depth, queues.ENQUEUE, None, None),
        f"cycle_{depth}": _queue(depth, queues.CYCLE, Aim(0.8, least=True), Aim(1.1, least=True)),
        f"fused_{depth}": _queue(
            depth, queues.FUSED, Aim(1.2, least=True), Aim(1.8, least=True), "both in one commit too"
        ),
        f"ten_{depth}": _queue(depth, queues.TENS, Aim(4, least=True), None, "ten at a time too"),
    }


FIGURES: Final[Mapping[str, Figure]] = {
    **{f"commit_{count}": Figure(commits.commit(count), TIME, _COMMIT, _LINE) for count in (16, 1000, 10_000, 100_000)},
    "commit_flat": Figure(
        commits.flat,
        TIME,
        {"small": Asked("a commit in a document of 16 records, where ours has 100 000", Aim(1.1))},
        "Nothing that a commit does looks at every record.",
    ),
    **_queues(100),
    **_queues(100_000),
    "discovery": Figure(
        discovery,
        TIME,
        {
            SMALL: Asked("the same with 1 000 runs queued, where ours has 100 000", Aim(2)),
            "turn": Asked("the same: telling the index of a claim, an end and a submit"),
        },
        "Heaps: what is found is what surfaces, and only their depth grows.",
    ),
    "processes_8": Figure(
        commits.processes,
        "commits a second: eight processes on one directory over one alone, so more is better",
        {
            "alone": Asked("one process committing alone", Aim(0.75, least=True)),
            "worst_wait": Asked("the longest commit of any of the eight, its wait included", Aim(200)),
        },
        "One lock, which is polled: while it passes from one process to another, nobody commits.",
    ),
    "status_cold_16": Figure(
        commands.cold("status", "--json"), TIME, {commands.IMPORTS: Asked(_COLD, Aim(1.4))}, _IMPORTS
    ),
    "status_cold_100000": Figure(
        commands.status_of_many,
        SELF,
        {"more": Asked("100 000 runs of 340 bytes, over none; 16 workers in both", Aim(130))},
        "A digest over every byte, and a look at each record for its state.",
    ),
    "submit_cold": Figure(commands.cold("submit", "--", "true"), TIME, {commands.IMPORTS: Asked(_COLD)}, _IMPORTS),
    "read_100000": Figure(
        commands.read,
        TIME,
        {"loads": Asked("`orjson.loads` of the same bytes")},
        "A digest over every byte; records are decoded when somebody touches them.",
    ),
    "runs_1000_true": Figure(
        runs,
        TIME,
        {
            "parallel": Asked("GNU `parallel -j4 --joblog FILE true` on 1 000 lines", Aim(0.75)),
            "xargs": Asked("`xargs -n1 -P4 true` on 1 000 lines"),
        },
        "The processor: each run is a process under a supervisor, and its start and end parts of durable commits.",
    ),
    "memory_100000": Figure(
        memory,
        SELF,
        {
            "claimed": Asked("100 000 runs read, indexed and one of them claimed: resident", Aim(200)),
            "claimed_at_most": Asked("the most until then"),
            "read": Asked("100 000 runs read: resident"),
        },
        "The bytes of each record, its key, and its places in the index.",
    ),
}
