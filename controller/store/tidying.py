"""Closed files of a history: zeros cut off, small ones merged, the oldest dropped. All under the document lock.

Not promised: that a merge is complete when this returns: one group at a time, so that nobody waits long for the lock.

At every moment, power cuts included, every line that is to be kept stands in some file. A merged file is complete and
durable under a temporary name before it gets its own, and its name is durable before its parts go; files are dropped
oldest first, each durably before the next. What is left over when this is killed is in the merged file as well: readers
pass over it, and the next call removes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from controller.model.errors import DocumentFault, Refusal
from controller.model.keep import Keep
from controller.store import chain, disk, segments
from controller.store.chain import End
from controller.store.segments import Kind, Segment

MOST_LOOSE: Final = 64
"""So many small journals may lie about: a directory that people can still read, and few files to open."""
MERGED_BYTES: Final = 1 << 24
"""No merged file is larger: it is written in one go under the lock, and dropped in one piece."""
SMALL: Final = MERGED_BYTES // 2
TEMPORARY: Final = ".controller.history.tmp-"


class _At(Struct):
    at: int


_AT = msgspec.json.Decoder(_At)


def tidy(directory: Path, keep: Keep, *, named: str, now: int, needed_at: int | None) -> tuple[str, ...]:
    """See `History.tidy`."""
    done: list[str] = []
    with disk.storing(directory):
        listed = segments.listed(directory)
        parts = segments.parts(listed)
        closed = segments.closed([each for each in listed if each.name not in parts], named)
        if not closed:
            return ()
        if parts:
            # The merged file has its name, but perhaps not durably yet.
            disk.sync_directory(directory)
            done += _removed(directory, sorted(parts))
        with _sparing():
            done += _cut(directory, closed)
        with _sparing():
            group = _group(directory, closed, _sizes(directory, closed), named)
            if group:
                done.append(_merge(directory, group))
                closed = segments.closed(segments.whole(directory), named)
        with _sparing():
            done += _prune(directory, closed, keep, named=named, now=now, needed_at=needed_at)
    return tuple(done)


def _sparing() -> suppress:
    """What cannot be read is left as it is, for `verify` to name."""
    return suppress(DocumentFault, Refusal)


def _sizes(directory: Path, closed: Sequence[Segment]) -> Mapping[str, int]:
    return {segment.name: os.stat(directory / segment.name).st_size for segment in closed}


def _removed(directory: Path, names: Sequence[str]) -> list[str]:
    for name in names:
        os.unlink(directory / name)
    return [f"removed {name}, which is merged" for name in names]


def _cut(directory: Path, closed: Sequence[Segment]) -> list[str]:
    """Take zeros off the ends of the last ones: those before a file without any were seen to when they closed."""
    ending: list[tuple[str, int]] = []
    for segment in reversed(closed):
        if segment.kind is not Kind.JOURNAL:
            break
        path = directory / segment.name
        with chain.reading(path) as fd:
            size = os.fstat(fd).st_size
            if not size or os.pread(fd, 1, size - 1) != b"\0":
                break
        line, end = chain.last_line(path)
        if line:
            ending.append((segment.name, end))
    for name, end in reversed(ending):
        fd = os.open(directory / name, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.ftruncate(fd, end)
        finally:
            os.close(fd)
    return [f"cut {name} to {end} bytes" for name, end in reversed(ending)]


def _group(directory: Path, closed: Sequence[Segment], sizes: Mapping[str, int], named: str) -> Sequence[Segment]:
    """The files to merge: the oldest small journals that stand together, and merged files before them that are no more
    than twice as large, so that a line is copied a few times in its life and not at each merge.
    """
    if sum(_is_loose(segment, sizes) for segment in closed) <= MOST_LOOSE:
        return ()
    # The last one follows the others, and so tells stale ones among them.
    last = segments.parse(named)
    heads = () if last is None else tuple(chain.backwards(directory, (*closed, last), named))[:0:-1]
    place = 0
    while place < len(heads):
        begin, size = place, 0
        while place < len(heads) and _is_loose(heads[place].segment, sizes):
            if size + sizes[heads[place].name] > MERGED_BYTES:
                break
            size += sizes[heads[place].name]
            place += 1
        end = place
        place = max(place, begin + 1)
        # By their names alone it must be plain which journals are in a merged file: see `segments.parts`.
        while begin < end and begin and heads[begin - 1].segment.first == heads[begin].segment.first:
            begin += 1
        while begin < end and heads[end - 1].lone:
            end -= 1
        if end - begin < 2:
            continue
        size = sum(sizes[head.name] for head in heads[begin:end])
        while begin and heads[begin - 1].segment.kind is Kind.MERGED:
            more = sizes[heads[begin - 1].name]
            if more > 2 * size or size + more > MERGED_BYTES:
                break
            begin, size = begin - 1, size + more
        return [head.segment for head in heads[begin:end]]
    return ()


def _is_loose(segment: Segment, sizes: Mapping[str, int]) -> bool:
    return segment.kind is Kind.JOURNAL and sizes[segment.name] < SMALL


def _merge(directory: Path, group: Sequence[Segment]) -> str:
    """Put the files together, each line proven on the way: nothing that is broken is hidden in a larger file."""
    after: End | None = None
    ends: list[int] = []
    for segment in group:
        for placed in chain.lines(directory / segment.name, after, last=False):
            after = End(placed.line.revision, segment.name, placed.line.digest, placed.end)
        ends.append(0 if after is None else after.offset)
    assert after is not None, "a group has files, and each of them a line"  # noqa: S101 - `_group` sees to it
    name = segments.merged_name(group[0].first, after.revision)
    temporary = directory / f"{TEMPORARY}{os.getpid()}"
    with suppress(FileNotFoundError):
        os.unlink(temporary)
    try:
        handle = disk.create(temporary, like=os.stat(directory / group[0].name))
        for segment, end in zip(group, ends, strict=True):
            with chain.reading(directory / segment.name) as fd:
                data = os.pread(fd, end, 0)
            disk.write_all(handle.fd, data)
        os.fsync(handle.fd)
        handle.close()
        os.rename(temporary, directory / name)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    disk.sync_directory(directory)
    _removed(directory, [segment.name for segment in group])
    return f"merged {len(group)} files into {name}"


def _prune(
    directory: Path, closed: Sequence[Segment], keep: Keep, *, named: str, now: int, needed_at: int | None
) -> Iterator[str]:
    """Drop the oldest files, one after the other, up to the first that stays."""
    sizes = _sizes(directory, closed)
    total = os.stat(directory / named).st_size + sum(sizes.values())
    for segment in closed:
        path = directory / segment.name
        too_much = keep.bytes is not None and total > keep.bytes
        if not too_much and keep.age_ms is None:
            return
        line, _ = chain.last_line(path)
        try:
            at = _AT.decode(line).at
        except msgspec.MsgspecError:
            return
        too_old = keep.age_ms is not None and at < now - keep.age_ms
        if not (too_much or too_old):
            return
        if needed_at is not None and (at >= needed_at or _latest(path, segment) >= needed_at):
            return
        os.unlink(path)
        disk.sync_directory(directory)
        total -= sizes[segment.name]
        yield f"dropped {segment.name}"


def _latest(path: Path, segment: Segment) -> int:
    """When the latest event in a file was: a clock that was put back makes it another than the last."""
    if segment.kind is Kind.LEGACY:
        return max((event.at for event, _, _ in chain.legacy(path)), default=0)
    return max((placed.line.at for placed in chain.lines(path, None, last=False)), default=0)
